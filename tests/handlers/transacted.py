"""Those who write in transactions, and read what is committed, beside the others of `stress`."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable

from plog.errors import ErrorCode
from plog.types import TopicPartition
from tests.committed import kept_records
from tests.handlers.stress import PASSING, World
from tests.handlers.wire import Speaker, fetch_request, fetched, speak
from tests.transactions.transactor import Transactor

TRANSACTED = "transacted"
PARTITIONS = 2
SEGMENT_BYTES = 20_000
PLACES = [TopicPartition(TRANSACTED, index) for index in range(PARTITIONS)]
MOST_TRIES = 2000
"""At 5 ms each: a moment passes."""
AGAIN = {
    *PASSING,
    ErrorCode.CONCURRENT_TRANSACTIONS,
    ErrorCode.COORDINATOR_NOT_AVAILABLE,
    ErrorCode.NOT_ENOUGH_REPLICAS,
}


class Ledger:
    """Which transactions were committed. A value tells its writer, its number, and its fate."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._ending: set[bytes] = set()  # its commit has been asked for
        self.committed: dict[TopicPartition, list[bytes]] = {at: [] for at in PLACES}

    def begin_commit(self, values: Iterable[bytes]) -> None:
        with self._lock:
            self._ending.update(values)

    def note(self, at: TopicPartition, values: list[bytes]) -> None:
        with self._lock:
            self.committed[at] += values

    def check(self, value: bytes) -> None:
        """Whoever reads committed records may have read this."""
        with self._lock:
            assert value in self._ending, f"{value!r} was read before its commit"


def prepare(world: World) -> Ledger:
    """Make the topic, and that of the coordinators."""
    wire = speak(world.port)
    world.create(wire, TRANSACTED, PARTITIONS, segment_bytes=SEGMENT_BYTES)
    Transactor(wire, "first").start()
    wire.close()
    return Ledger()


def workers(world: World, ledger: Ledger) -> dict[str, Callable[[], None]]:
    """Return two producers, one of each version, and a reader of each partition."""
    return {
        **{f"transactor-{n}": lambda n=n: write(world, ledger, n) for n in range(2)},
        **{f"committed-reader-{n}": lambda n=n: read(world, ledger, n) for n in range(PARTITIONS)},
    }


def insist(ask: Callable[[], int]) -> None:
    """Ask until it is done; nothing else may be said than to come again."""
    for _ in range(MOST_TRIES):
        error = ask()
        if error == ErrorCode.NONE:
            return
        assert error in AGAIN, ErrorCode(error)
        time.sleep(0.005)
    raise AssertionError("it is never done")


def write(world: World, ledger: Ledger, number: int) -> None:
    rng = world.rng()
    name, own_epochs = f"transactor-{number}", bool(number % 2)
    one = Transactor(speak(world.port), name, own_epochs=own_epochs).start()
    count = 0
    while not world.stop.wait(rng.choice((0, 0, 0.002))):
        commit = rng.random() < 0.7
        values: dict[TopicPartition, list[bytes]] = {}
        for at in rng.sample(PLACES, rng.randint(1, PARTITIONS)):
            for _ in range(rng.randint(1, 3)):
                count += 1
                value = b"%d %d %s" % (number, count, b"yes" if commit else b"no")
                values.setdefault(at, []).append(value.ljust(rng.choice((20, 500))))
        if not own_epochs:
            insist(lambda v=values: max(one.add(*v)))
            if rng.random() < 0.2:
                del values[rng.choice(list(values))]  # it has joined, and is not written to
        for at, some in values.items():
            for value in some:
                insist(lambda a=at, v=value: one.produce(a, v).error_code)
        if commit:
            ledger.begin_commit(value for some in values.values() for value in some)
        insist(lambda c=commit: one.end(commit=c))
        unwritten = [at for at in PLACES if at not in values]
        if not own_epochs and unwritten:
            write_late(world, one, rng.choice(unwritten))
        if commit:
            for at, some in values.items():
                ledger.note(at, some)
        world.count("transactions committed" if commit else "transactions aborted")
    one.wire.close()


def write_late(world: World, one: Transactor, at: TopicPartition) -> None:
    """Write what would begin a transaction where the last one, whose end is answered, did not.

    It may have joined there. Where it has written, it may go on until the marker comes.
    """
    part = one.produce(at, b"late")
    assert part.error_code != ErrorCode.NONE, "a write has come after the end of its transaction"
    world.count("late writes refused")


def read(world: World, ledger: Ledger, number: int) -> None:
    """Read one partition as its records are committed."""
    rng, wire, at = world.rng(), speak(world.port), PLACES[number]
    offset, found = 0, list[bytes]()
    while not world.stop.is_set():
        offset = read_on(wire, at, offset, found, max_wait_ms=rng.choice((0, 5, 50)))
        for value in found:
            ledger.check(value)
        world.count("committed records read", len(found))
        found.clear()
    wire.close()


def read_on(
    wire: Speaker, at: TopicPartition, offset: int, found: list[bytes], **options: int
) -> int:
    """Read once from an offset; return where it goes on."""
    request = fetch_request((*at, offset), isolation_level=1, partition_max_bytes=5000, **options)
    (part,) = fetched(wire.ask(request, 12)).values()
    if part.error_code != ErrorCode.NONE:
        assert part.error_code in PASSING, part
        return offset
    kept, end = kept_records(part)
    # A batch that holds the offset may begin before it.
    found += [record.value or b"" for record in kept if record.offset >= offset]
    return max(offset, end)


def check(ledger: Ledger, wire: Speaker) -> None:
    """What was committed is there, each value once, and of each producer in its order."""
    for at in PLACES:
        offset, before, found = 0, -1, list[bytes]()
        while offset != before:
            before = offset
            offset = read_on(wire, at, offset, found)
        missing = set(ledger.committed[at]) - set(found)
        assert not missing, (at, sorted(missing)[:5])
        assert len(found) == len(set(found)), at
        for number in range(2):
            mine = [int(value.split()[1]) for value in found if value.startswith(b"%d " % number)]
            assert mine == sorted(mine), (at, number)
