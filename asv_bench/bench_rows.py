"""What bin/bench measures: rows, who is measured in each, and what is hoped for.

A row is one load. Its contestants get it one after the other, in every round anew. A
broker is held against the C server that does no more than its bare work.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import NamedTuple

from bench_servers import CLoop, Plog, PlogWithOldLog, Server

from plog.ops.load import Batch

KB, MB = 1_024, 1_048_576
MOST_BYTES_IN_A_REQUEST = MB
"""Java's max.request.size: so many batches go into one request."""
HOT_BYTES = 128 * MB
RECYCLED_BYTES = 512 * MB
LOG_BATCH_BYTES = 16 * KB
"""Of the batches that fetches find: Java's batch.size."""

PLOG, PAGE_CACHE, PREAD, BUSY = "plog", "plog, page cache", "plog, pread", "plog, busy thread"
C_FRESH, C_RECYCLED, C_SYNCED = "C, fresh pages", "C, recycled pages", "C, fdatasync"
C_ECHO, C_SENDFILE, C_PREAD = "C echo", "C sendfile", "C pread"
C_ECHO_BUSY, C_SENDFILE_LARGE = "C echo, busy thread", "C sendfile, large pages"

Maker = Callable[[Path, "Row", Batch], Server]


def _source(directory: Path, row: Row, batch: Batch, **options: object) -> CLoop:
    """What answers Fetch, from files that are written batch by batch, as logs are."""
    total_bytes = row.bytes_to_fetch(batch)
    return CLoop(
        directory, "serve-source", total_bytes=total_bytes, batch_file=batch.path, **options
    )


CONTESTANTS: dict[str, Maker] = {
    PLOG: lambda at, *_: Plog(at),
    PAGE_CACHE: lambda at, *_: Plog(at, flush_before_ack="false"),
    PREAD: lambda at, *_: Plog(at, socket_sendfile_enable="false"),
    BUSY: lambda at, *_: Plog(at, spinning=True),
    C_FRESH: lambda at, *_: CLoop(at, "serve-sink"),
    C_RECYCLED: lambda at, *_: CLoop(at, "serve-sink", total_bytes=RECYCLED_BYTES),
    C_SYNCED: lambda at, *_: CLoop(at, "serve-sink", sync=True),
    C_ECHO: lambda at, *_: CLoop(at, "serve-echo"),
    C_ECHO_BUSY: lambda at, *_: CLoop(at, "serve-echo", spin=True),
    C_SENDFILE: lambda *given: _source(*given, sendfile=True),
    C_SENDFILE_LARGE: lambda *given: _source(*given, sendfile=True, fill_bytes=4 * MB),
    C_PREAD: lambda *given: _source(*given),
}
OLD_GB = {f"plog, {size} GB before": size for size in (1, 20, 200)}


def _plog_with_old_log(size_gb: int) -> Maker:
    return lambda at, *_: PlogWithOldLog(at, size_gb * 10**9)


CONTESTANTS |= {name: _plog_with_old_log(size_gb) for name, size_gb in OLD_GB.items()}


class Row(NamedTuple):
    """One load, and how it is judged.

    Attributes:
        unit: of its figure: "MB/s" and "req/s", the more the better; "us", the less.
        load: options of the generator.
        against: contestants, each with the one it is held against, if any.
        goal: of the ratio between the two.
        beside: mode and options of a load that runs on the same topic meanwhile.
        cost_goal: of the ratio between their CPU times for a request.
        is_of_plog: no other broker can be measured so.
        records: so many make the load, instead of some seconds; only by name.
    """

    name: str
    unit: str
    mode: str
    partitions: int
    batch_bytes: int
    codec: str
    value_bytes: int
    load: dict[str, object]
    against: dict[str, str | None]
    goal: float | None
    beside: tuple[str, dict[str, object]] | None = None
    cost_goal: float | None = None
    is_of_plog: bool = False
    records: int | None = None

    def with_others(self, others: Iterable[str]) -> Row:
        """Return the same row with these among the contestants, if it is for them."""
        if self.is_of_plog:
            return self
        return self._replace(against=self.against | dict.fromkeys(others))

    def bytes_to_fetch(self, batch: Batch) -> int:
        """Return how much there is to fetch, or to produce where records are counted."""
        if self.records is None:
            return HOT_BYTES
        return math.ceil(self.records / (batch.records * self.partitions)) * (
            batch.size_bytes * self.partitions
        )


def _size(size_bytes: int) -> str:
    if size_bytes == 0:
        return "1 record"
    return f"{size_bytes // MB}M" if size_bytes >= MB else f"{size_bytes // KB}K"


def _produce_rows() -> Iterator[Row]:
    """Batches of three sizes: plain, as Java's producer sends them by default, and with lz4."""
    for batch_bytes in (16 * KB, 64 * KB, MB):
        for connections in (1, 4):
            for partitions in (6, 200):
                at_once = min(partitions, MOST_BYTES_IN_A_REQUEST // batch_bytes)
                name = f"produce/{_size(batch_bytes)}/{connections}c/{partitions}p"
                common: dict[str, object] = {"connections": connections, "in_flight": 5}
                plain = common | {"acks": 1}
                java = common | {"acks": -1, "idempotent": True, "per_request": at_once}
                pages: dict[str, str | None] = {C_FRESH: None, C_RECYCLED: None}
                durable: dict[str, str | None] = {
                    PLOG: C_SYNCED,
                    PAGE_CACHE: C_FRESH,
                    C_SYNCED: None,
                    C_FRESH: None,
                }
                for kind, codec, load, against in (
                    ("plain", "none", plain, {PLOG: C_FRESH, **pages}),
                    ("java", "none", java, durable),
                    ("java-lz4", "lz4", java, durable),
                ):
                    yield Row(
                        f"{name}/{kind}",
                        "MB/s",
                        "produce",
                        partitions,
                        batch_bytes,
                        codec,
                        100,
                        load,
                        against,
                        0.6,
                    )


def _small_rows() -> Iterator[Row]:
    """One record of 100 bytes in a request."""
    common: dict[str, object] = {"connections": 4, "in_flight": 5}
    for kind, load, against in (
        ("plain", {"acks": 1}, {PLOG: C_ECHO, C_ECHO: None, C_FRESH: None}),
        (
            "java",
            {"acks": -1, "idempotent": True},
            {PLOG: C_SYNCED, PAGE_CACHE: C_ECHO, C_ECHO: None, C_SYNCED: None},
        ),
    ):
        yield Row(
            f"small/4c/6p/{kind}",
            "req/s",
            "produce",
            6,
            0,
            "none",
            100,
            common | load,
            against,
            0.5,
        )


def _fetch_rows() -> Iterator[Row]:
    """Hot data. In a session a request asks for some partitions in turn, or for all."""
    against: dict[str, str | None] = {
        PLOG: C_SENDFILE,
        PREAD: C_PREAD,
        C_SENDFILE: None,
        C_SENDFILE_LARGE: None,
        C_PREAD: None,
    }
    for connections in (1, 4):
        for answer_bytes in (64 * KB, MB):
            for kind, load in (
                ("plain", {"in_flight": 2}),
                ("session", {"in_flight": 1, "sessions": True}),
            ):
                yield Row(
                    f"fetch/{_size(answer_bytes)}/{connections}c/6p/{kind}",
                    "MB/s",
                    "fetch",
                    6,
                    LOG_BATCH_BYTES,
                    "none",
                    100,
                    {"connections": connections, "partition_max_bytes": answer_bytes, **load},
                    against,
                    0.8,
                )
        for partitions in (6, 200):
            yield Row(
                f"fetch/all/{connections}c/{partitions}p/session",
                "MB/s",
                "fetch",
                partitions,
                LOG_BATCH_BYTES,
                "none",
                100,
                {
                    "connections": connections,
                    "in_flight": 1,
                    "sessions": True,
                    "per_request": partitions,
                },
                against,
                0.8,
            )


def _latency_rows() -> Iterator[Row]:
    """A request of one record each millisecond, whatever has been answered."""
    for acks, kind in ((1, "acks1"), (-1, "all")):
        judged: dict[str, str | None] = (
            {PLOG: C_ECHO, BUSY: C_ECHO_BUSY, C_ECHO: None, C_ECHO_BUSY: None}
            if acks == 1
            else {PLOG: C_SYNCED, BUSY: None, PAGE_CACHE: C_ECHO, C_ECHO: None, C_SYNCED: None}
        )
        yield Row(
            f"latency/{kind}",
            "us",
            "produce",
            1,
            0,
            "none",
            100,
            {"acks": acks, "rate": 1_000},
            judged,
            2.0,
        )


def _durable_rows() -> Iterator[Row]:
    """Group commit: eight producers whose acks=all waits for the disk, or for the page cache."""
    for batch_bytes in (0, 16 * KB):
        yield Row(
            f"durable/{_size(batch_bytes).replace(' ', '-')}/8c/6p",
            "req/s",
            "produce",
            6,
            batch_bytes,
            "none",
            100,
            {"connections": 8, "in_flight": 5, "acks": -1, "idempotent": True},
            {PLOG: PAGE_CACHE, PAGE_CACHE: None, C_SYNCED: None},
            0.5,
        )


def _linkedin_rows() -> Iterator[Row]:
    """Those of LinkedIn's benchmark of 2014 that need one broker: 100-byte records, 6 partitions.

    Batches are Java's of today. Consumers of a group have two partitions each. Records of more
    than a batch are alone in theirs. All 50 million records are 5.5 GB: more than the page cache
    takes without waiting for the disk, on most machines.
    """
    producer: dict[str, object] = {"in_flight": 5, "acks": 1, "per_request": 6}
    consumer: dict[str, object] = {"in_flight": 1, "sessions": True, "per_request": 2}
    sink: dict[str, str | None] = {PLOG: C_FRESH, C_FRESH: None}
    source: dict[str, str | None] = {PLOG: C_SENDFILE, C_SENDFILE: None, C_SENDFILE_LARGE: None}
    reading = ("fetch", {**consumer, "follow": True})

    def row(
        name: str,
        mode: str,
        load: dict[str, object],
        against: dict[str, str | None],
        value_bytes: int = 100,
        beside: tuple[str, dict[str, object]] | None = None,
    ) -> Row:
        goal = None if beside else 0.8 if mode == "fetch" else 0.6
        return Row(
            f"linkedin/{name}",
            "MB/s",
            mode,
            6,
            LOG_BATCH_BYTES,
            "none",
            value_bytes,
            load,
            against,
            goal,
            beside,
        )

    for count in (1, 3):
        many = {"connections": count}
        yield row(f"producers-{count}", "produce", producer | many, sink)
        yield row(f"consumers-{count}", "fetch", consumer | many, source)
    yield row("both-at-once", "produce", producer, {PLOG: None}, beside=reading)
    for value_bytes in (10, 100, 1_000, 10_000, 100_000):
        yield row(f"size-{value_bytes}", "produce", producer, sink, value_bytes)
    yield Row(
        "linkedin/end-to-end",
        "us",
        "produce",
        1,
        0,
        "none",
        100,
        {"acks": 1, "rate": 1_000, "end_to_end": True, "in_flight": 1, "sessions": True},
        {PLOG: None, BUSY: None},
        2.0,
    )
    for name, mode, load, against in (
        ("producers-1", "produce", producer, sink),
        ("consumers-1", "fetch", consumer, source),
        ("consumers-3", "fetch", consumer | {"connections": 3}, source),
    ):
        whole = row(name, mode, load | ({"once": True} if mode == "fetch" else {}), against)
        yield whole._replace(name=f"linkedin-50M/{name}", records=50_000_000)


def _growth_rows() -> Iterator[Row]:
    """The same load over more partitions, or from more connections: what a request costs then."""
    against: dict[str, str | None] = {PLOG: C_FRESH, C_FRESH: None}
    shapes: list[tuple[str, int, dict[str, object]]] = [
        (f"partitions/{partitions}", partitions, {"connections": 4, "in_flight": 5})
        for partitions in (1, 100, 1_000, 5_000)
    ]
    shapes += [
        (f"connections/{connections}", 6, {"connections": connections, "in_flight": 1})
        for connections in (1, 50, 500)
    ]
    for name, partitions, load in shapes:
        load = load | {"acks": 1}
        yield Row(
            f"growth/{name}", "req/s", "produce", partitions, 0, "none", 100, load, against, 0.5
        )


def _old_log_rows() -> Iterator[Row]:
    """The same load where partitions hold old segments: a request costs what it did before."""
    least, *_ = OLD_GB
    against: dict[str, str | None] = {name: None if name == least else least for name in OLD_GB}
    for name, batch_bytes, load in (
        ("produce", 0, {"connections": 4, "in_flight": 5, "acks": 1}),
        (
            "fetch",
            LOG_BATCH_BYTES,
            {
                "connections": 4,
                "in_flight": 1,
                "sessions": True,
                "partition_max_bytes": LOG_BATCH_BYTES,
            },
        ),
    ):
        yield Row(
            f"growth/log/{name}",
            "req/s",
            name,
            6,
            batch_bytes,
            "none",
            100,
            load,
            against,
            0.8,
            cost_goal=1.2,
            is_of_plog=True,
        )


def rows() -> list[Row]:
    return [
        *_produce_rows(),
        *_small_rows(),
        *_fetch_rows(),
        *_latency_rows(),
        *_durable_rows(),
        *_linkedin_rows(),
        *_growth_rows(),
        *_old_log_rows(),
    ]


SHORT = (
    "produce/64K/4c/6p/java",
    "small/4c/6p/plain",
    "fetch/all/1c/6p/session",
    "latency/acks1",
)
"""What a look that everything works takes."""
