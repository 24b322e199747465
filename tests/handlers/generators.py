"""The C generator's load on one topic of a broker that is stressed, and what that topic must hold.

It asks far more often than clients written in Python can, in the shapes that Java's clients have.
Its topic is rolled, retained, moved and reconfigured meanwhile; nobody else writes to it, truncates
it or deletes from it, for the generator bears nothing but what a move or retention explains.
"""

from __future__ import annotations

import threading
import uuid
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from plog._native import records
from plog._native.batch import HEADER_BYTES, BatchHeader
from plog.errors import ErrorCode
from plog.ops import load
from tests.handlers.changers import Changer
from tests.handlers.stress import At, World, fetch_one_of, whole_batches
from tests.handlers.wire import Speaker

TOPIC = "loaded"
PARTITIONS = 12
LARGEST_SEGMENT = 1_000_000
MOST_KEPT_BYTES = 4 * LARGEST_SEGMENT
"""Of a partition, once retention looks again."""
MOST_IN_FLIGHT = 5
"""Batches of a producer and partition: one that is refused, and those behind it."""
REST_S = 60.0
"""For what a run does beyond its seconds; the generator itself gives up after so long a silence."""


class Sent(NamedTuple):
    """What a run writes: batches, and how."""

    batch: str
    options: dict[str, object]


BATCHES: dict[str, dict[str, object]] = {
    "record": {"size_bytes": 0},
    "large record": {"size_bytes": 0, "value_bytes": 30_000},
    "full": {"size_bytes": 16_384},
    "lz4": {"size_bytes": 16_384, "codec": "lz4"},
}
ALL = {"per_request": PARTITIONS}
IDEMPOTENT = {"idempotent": True, "acks": -1}
SENT = (
    Sent("record", {"acks": 1, "connections": 5, "in_flight": 20}),
    Sent("record", {"acks": -1, "connections": 3, **ALL}),
    Sent("large record", {"acks": -1, "connections": 2, "per_request": 2}),
    Sent("full", {**IDEMPOTENT, **ALL, "connections": 3}),
    Sent("full", {**IDEMPOTENT, "per_request": 5, "connections": 2}),
    Sent("record", {**IDEMPOTENT, "connections": 4}),
    Sent("lz4", {**IDEMPOTENT, **ALL, "connections": 2}),
    Sent("lz4", {"acks": 1, "connections": 2, "per_request": 3}),
)
ASKED: tuple[dict[str, object], ...] = (
    {"sessions": True, "in_flight": 1, **ALL},
    {"sessions": True, "in_flight": 1, "per_request": 3, "connections": 3},
    {"sessions": True, "in_flight": 1, "follow": True, **ALL, "connections": 2},
    # Fewer partitions than connections: each reads all of them.
    {"sessions": True, "in_flight": 1, "follow": True, **ALL, "connections": PARTITIONS + 1},
    {"in_flight": 4, "connections": 3},
    {"in_flight": 1, **ALL, "max_bytes": 100_000},
    {"in_flight": 2, "per_request": 3, "partition_max_bytes": 1, "follow": True},
)
LEFT_TO_CHANCE = {"partition_max_bytes": (20_000, 1 << 20), "max_bytes": (200_000, 50 << 20)}


@dataclass
class Tally:
    """What the producers' runs were told, all of them together."""

    acknowledged: int = 0
    refused: int = 0
    most_records: int = 1  # of a batch


class Generators:
    """Runs of the generator, one after another on each thread that calls `produce` or `fetch`."""

    def __init__(self, world: World, wire: Speaker, directory: Path, *, seconds: float) -> None:
        """`seconds` is how long a run lasts at most."""
        self.world, self._seconds = world, seconds
        self._tally, self._lock = Tally(), threading.Lock()
        self._batches = {
            name: load.make_batch(directory / name, **made) for name, made in BATCHES.items()
        }
        written = [made.path.read_bytes() for made in self._batches.values()]
        self._payloads = {data[HEADER_BYTES:] for data in written}
        self._values = {tuple(record.value for record in records.walk(data)) for data in written}
        configs = {"segment_bytes": LARGEST_SEGMENT, "retention_bytes": MOST_KEPT_BYTES}
        world.create(wire, TOPIC, PARTITIONS, **configs)

    @property
    def topic_id(self) -> uuid.UUID:
        return self.world.ids[TOPIC]

    def produce(self) -> None:
        rng = self.world.rng()
        while not self.world.stop.is_set():
            name, options = rng.choice(SENT)
            made = self._batches[name]
            figures = self._run("produce", rng.uniform(0.3, 1), options, batch_file=made.path)
            with self._lock:
                self._tally.acknowledged += figures["total"]["records"]
                self._tally.refused += figures["refused"]
                self._tally.most_records = max(self._tally.most_records, made.records)

    def fetch(self) -> None:
        rng = self.world.rng()
        while not self.world.stop.is_set():
            options = {name: rng.choice(some) for name, some in LEFT_TO_CHANCE.items()}
            self._run(
                "fetch",
                rng.uniform(0.3, 1),
                {**options, **rng.choice(ASKED)},
                topic_id=self.topic_id,
                # It takes the generator longer than all else.
                check_crcs=rng.random() < 0.3,
            )

    def _run(
        self, mode: str, share: float, options: dict[str, object], **others: object
    ) -> load.Figures:
        seconds = self._seconds * share
        running = load.start(
            mode,
            port=self.world.port,
            topic=TOPIC,
            partitions=PARTITIONS,
            patient=True,
            seconds=round(seconds, 3),
            **options,
            **others,
        )
        try:
            figures = load.finish(running, seconds + REST_S)
        except load.LoadError as error:
            raise AssertionError(f"{mode} {options}: {error}") from error
        for what in ("requests", "records"):
            self.world.count(f"load: {mode} {what}", figures["total"][what])
        self.world.count(f"load: {mode} refused", figures["refused"])
        return figures

    def check(self, wire: Speaker) -> None:
        """Hold the logs against what the producers were told; nobody may be at work."""
        # Nothing goes while it is looked at.
        Changer.alter(wire, TOPIC, "retention.bytes", -1)
        ends = sum(self._check_log(wire, (TOPIC, index)) for index in range(PARTITIONS))
        told = self._tally
        # A refusal does not say that nothing was written.
        unknown = told.refused * MOST_IN_FLIGHT * told.most_records
        assert told.acknowledged <= ends <= told.acknowledged + unknown, (told, ends)

    def _check_log(self, wire: Speaker, at: At) -> int:
        """Return how many records this log has had, of which retention may have left the last."""
        start = offset = fetch_one_of(wire, at, 0).log_start_offset
        sequences: dict[int, int] = {}
        while True:
            part = fetch_one_of(wire, at, offset, partition_max_bytes=4 << 20)
            assert part.error_code == ErrorCode.NONE, (at, offset, part.error_code)
            data = bytes(part.records or b"")
            if not data:
                assert offset == part.high_watermark, (at, offset, part.high_watermark)
                return offset
            for header in whole_batches(data):
                assert header.base_offset == offset, (at, header, offset)
                assert header.last_offset_delta == header.records_count - 1, (at, header)
                offset = header.next_offset
                self._check_values(data, header)
                if header.producer_id >= 0:
                    # Retention may have taken the first ones.
                    following = 0 if start == 0 else header.base_sequence
                    following = sequences.get(header.producer_id, following)
                    assert header.base_sequence == following, (at, header, following)
                    sequences[header.producer_id] = header.last_sequence + 1

    def _check_values(self, data: bytes, header: BatchHeader) -> None:
        payload = data[header.position + HEADER_BYTES : header.position + header.size_bytes]
        if payload in self._payloads:
            return
        # Compressed anew, as the topic's setting was for a while.
        values = tuple(record.value for record in records.walk(data, pos=header.position))
        assert values in self._values, header
        self._payloads.add(payload)


class TopicChanger(Changer):
    """Changes what the generator writes to and reads, but nothing that it would not bear."""

    def _actions(self) -> list[Callable[[], None]]:
        return [*[self._alter_configs] * 4, *[self._move_replica] * 4, self._look]

    def _anywhere(self) -> At:
        return TOPIC, self._rng.randrange(PARTITIONS)

    def _retention_bytes(self) -> int:
        return self._rng.choice((500_000, MOST_KEPT_BYTES))
