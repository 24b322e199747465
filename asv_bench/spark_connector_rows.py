"""What spark_connector.py measures: its rows, who takes part in each, and what is hoped for."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

READ, SCALING, SINK, BATCHES = "read", "partitions", "sink", "micro-batches"
"""Kinds of rows."""
COUNT, AGGREGATE, JSON = "count", "aggregate", "JSON"
"""Queries of a topic."""
GOALS = {COUNT: 1.5, AGGREGATE: 1.5, JSON: 1.0, SINK: 1.0}
"""plog's rate beside the connector's, at least."""
SIZES = (100, 1000)
"""Of values, in bytes; each is a JSON object. Of the larger ones there are a quarter as many."""
KEY_BYTES = 10
PARTITIONS = 4
SCALES = (1, 2, 4, 8, 32)
"""Numbers of partitions."""
BATCH_ROWS = 400
"""Of a micro-batch."""
DISK, PAGE_CACHE = "disk", "page cache"
"""What acks=all waits for: plog's default, and `flush.before.ack=false`, which is Kafka's way."""


class Way(NamedTuple):
    """One of those who are compared: formats, and options of the sink."""

    name: str
    source: str = ""
    sink: str = ""
    options: tuple[tuple[str, str], ...] = ()


KAFKA, PLOG = "kafka", "plog"
SOURCES = (Way(KAFKA, KAFKA), Way(PLOG, PLOG))
KAFKA_TUNED = "kafka, batches as plog's"
EXACTLY_ONCE, AT_LEAST_ONCE = "plog, exactly-once", "plog, at-least-once"
_AT_LEAST_ONCE = (("delivery", "at-least-once"),)
SINKS = (
    Way(KAFKA, sink=KAFKA),
    Way(
        KAFKA_TUNED,
        sink=KAFKA,
        options=(("kafka.linger.ms", "50"), ("kafka.batch.size", str(512 * 1024))),
    ),
    Way(EXACTLY_ONCE, sink=PLOG),
    Way(AT_LEAST_ONCE, sink=PLOG, options=_AT_LEAST_ONCE),
)
NOOP = "noop"
TO_NOTHING = tuple(one._replace(sink=NOOP) for one in SOURCES)
COPIES = (
    Way(KAFKA, KAFKA, KAFKA),
    Way(EXACTLY_ONCE, PLOG, PLOG),
    Way(AT_LEAST_ONCE, PLOG, PLOG, _AT_LEAST_ONCE),
)


class Row(NamedTuple):
    """One thing that is measured, of each of its ways."""

    name: str
    kind: str
    ways: tuple[Way, ...]
    query: str = ""
    value_bytes: int = SIZES[0]
    partitions: int = PARTITIONS
    waits_for: str = DISK

    @property
    def goal(self) -> float | None:
        return GOALS.get(self.query if self.kind == READ else self.kind)

    @property
    def topic(self) -> str:
        """What is read."""
        if self.kind == BATCHES:
            return "batches"
        return f"bytes-{self.value_bytes}-{self.kind}-{self.partitions}"

    def records(self, rows: int, batches: int) -> int:
        """Return how many records it is about, where `rows` are read of the smallest."""
        if self.kind == BATCHES:
            return BATCH_ROWS * batches
        part = {READ: 1, SCALING: 2, SINK: 4}[self.kind] * (
            1 if self.value_bytes == SIZES[0] else 4
        )
        return max(1, rows // part)


def rows(scales: Iterable[int] = SCALES) -> list[Row]:
    """Return all rows, in the order of the tables."""
    return [
        *(
            Row(f"{READ}/{size}B/{query}", READ, SOURCES, query, size)
            for size in SIZES
            for query in (COUNT, AGGREGATE, JSON)
        ),
        *(Row(f"{SCALING}/{n}", SCALING, SOURCES, AGGREGATE, partitions=n) for n in scales),
        *(
            Row(f"{SINK}/{size}B/{where}", SINK, SINKS, value_bytes=size, waits_for=where)
            for size in SIZES
            for where in (DISK, PAGE_CACHE)
        ),
        Row(f"{BATCHES}/{NOOP}", BATCHES, TO_NOTHING),
        *(
            Row(f"{BATCHES}/sink/{where}", BATCHES, COPIES, waits_for=where)
            for where in (DISK, PAGE_CACHE)
        ),
    ]
