"""Those who write, read and compact one log at once, beside the others of `stress`."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

from plog._native import records
from plog._native.records import Record
from plog.errors import ErrorCode
from plog.storage.log_manager import LogManager
from tests.handlers.stress import PASSING, World, fetch_one_of, whole_batches
from tests.handlers.wire import Speaker, flat, make_batch, produce_request, speak

COMPACTED = "compacted"
AT = (COMPACTED, 0)
SEGMENT_BYTES = 20_000
KEYS = 30
MOST_TRIES = 2000
"""At 5 ms each: a moment passes."""


class Table:
    """What was written last under each key, and where; None once it was deleted."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._last: dict[bytes, tuple[bytes | None, int]] = {}
        self._writing: bytes | None = None
        self.end = 0

    def begin(self, key: bytes) -> None:
        """Take note that something is about to be written under a key."""
        with self._lock:
            self._writing = key

    def note(self, key: bytes, value: bytes | None, offset: int) -> None:
        """Take note that it was."""
        with self._lock:
            self._last[key] = value, offset
            self._writing = None
            self.end = offset + 1

    def known_below(self, end: int) -> dict[bytes, bytes | None]:
        """Return what whoever has read up to an offset must have found, of all that is certain."""
        with self._lock:
            return {
                key: value
                for key, (value, offset) in self._last.items()
                if offset < end and key != self._writing
            }


def workers(world: World, manager: LogManager) -> dict[str, Callable[[], None]]:
    """Return a writer, a cleaner and two readers of a topic of their own, which is made here."""
    wire = speak(world.port)
    world.create(
        wire,
        COMPACTED,
        1,
        segment_bytes=SEGMENT_BYTES,
        cleanup_policy="compact",
        min_cleanable_dirty_ratio="0.01",
        delete_retention_ms=50,
        file_delete_delay_ms=0,
    )
    wire.close()
    table = Table()
    return {
        "compacted-writer": lambda: write(world, table),
        "cleaner": lambda: clean(world, manager),
        **{f"compacted-reader-{n}": lambda: read(world, table) for n in range(2)},
    }


def write(world: World, table: Table) -> None:
    rng, wire, number = world.rng(), speak(world.port), 0
    while not world.stop.wait(rng.choice((0, 0.001))):
        number += 1
        key = b"%d" % rng.randrange(KEYS)
        value = None if rng.random() < 0.2 else b"%d " % number + rng.randbytes(500)
        data = make_batch([value], key=key, codec=rng.choice((0, 3)))
        table.begin(key)
        for _ in range(MOST_TRIES):
            (answer,) = flat(wire.ask(produce_request([(*AT, data)]), 9))
            if answer.error_code == ErrorCode.NONE:
                break
            assert answer.error_code in PASSING, answer
            time.sleep(0.005)
        assert answer.error_code == ErrorCode.NONE, answer
        table.note(key, value, answer.base_offset)
    wire.close()


def clean(world: World, manager: LogManager) -> None:
    while not world.stop.wait(0.005):
        world.count("logs compacted", manager.cleaner.clean_now())


def read(world: World, table: Table) -> None:
    wire = speak(world.port)
    while not world.stop.wait(0.002):
        found, end = read_up_to(wire, table.end)
        told = table_of(found)
        # A key that was written to meanwhile is looked for the next time.
        for key, value in table.known_below(end).items():
            assert told.get(key) == value, (key, end)
        world.count("compacted logs read")
    wire.close()


def read_up_to(wire: Speaker, end: int) -> tuple[list[Record], int]:
    """Read from the start to an offset at least; every batch is whole, and offsets rise.

    Returns the offset that was reached as well.
    """
    found: list[Record] = []
    offset = refused = 0
    while offset < end:
        part = fetch_one_of(wire, AT, offset, partition_max_bytes=64_000)
        if part.error_code in PASSING:
            refused += 1
            assert refused < MOST_TRIES, (offset, part.error_code)
            time.sleep(0.005)
            continue
        assert part.error_code == ErrorCode.NONE, (offset, part.error_code)
        data, position = bytes(part.records or b""), 0
        assert data, (offset, end)
        for header in whole_batches(data):
            assert header.last_offset >= offset, (header, offset)
            if header.records_count:
                found += [one for one in records.walk(data, pos=position) if one.offset >= offset]
            offset, position = header.next_offset, position + header.size_bytes
    return found, offset


def table_of(found: list[Record]) -> dict[bytes, bytes]:
    table: dict[bytes, bytes] = {}
    for record in found:
        assert record.key is not None
        if record.value is None:
            table.pop(record.key, None)
        else:
            table[record.key] = record.value
    return table
