"""kafka-consumer-perf-test: measure how fast a consumer reads."""

from __future__ import annotations

import random
import time
from collections.abc import Sequence
from datetime import datetime

from plog.cli.kafka.config import ClientProperties, read_file
from plog.cli.kafka.java_times import format_time
from plog.cli.kafka.options import LONG_BITS, Given, Options, UsageFault
from plog.client.consumer import ConsumerRecord
from plog.client.group_consumer import GroupConsumer, Listener
from plog.types import TopicPartition

OPTIONS = Options(
    "Measure how fast a consumer reads.",
    """
    --bootstrap-server HOST:PORT   Address of a broker. Required.
    --broker-list HOST:PORT        The old name of --bootstrap-server.
    --topic TOPIC                  The topic. Required.
    --messages NUMBER              Number of records to read. Required.
    --group GROUP                  The consumer group.
    --from-latest                  Start at the end, unless the group has offsets.
    --fetch-size BYTES             Maximum bytes per partition and fetch.
    --timeout [MS]                 Stop when no record has come for this time.
    --consumer.config FILE         Properties of the consumer.
    --date-format FORMAT           Format of times.
    --hide-header                  Leave out the header.
    --show-detailed-stats          Print a line for each interval.
    --reporting-interval MS        Length of an interval.
    --print-metrics                Accepted and ignored.
    --socket-buffer-size BYTES     Accepted and ignored.
    --threads NUMBER               Accepted and ignored.
    --num-fetch-threads NUMBER     Accepted and ignored.
    """,
    helps=False,
)
HEADS = ("start.time", "end.time")
DETAIL_HEADS = ("time", "threadId")
FIGURES = (
    *("data.consumed.in.MB", "MB.sec", "data.consumed.in.nMsg", "nMsg.sec"),
    *("rebalance.time.ms", "fetch.time.ms", "fetch.MB.sec", "fetch.nMsg.sec"),
)
MEGABYTE = 1 << 20
POLL_MS = 100
DEFAULT_TIMEOUT_MS, DEFAULT_INTERVAL_MS = 10_000, 5_000
DATE_FORMAT = "yyyy-MM-dd HH:mm:ss:SSS"


def run(given: Given) -> int:
    """Run the script; return its exit status."""
    _check(given)
    properties = _properties(given)
    arguments = properties.group_arguments()
    detailed = given.has("show-detailed-stats")
    if not given.has("hide-header"):
        print(", ".join((*(DETAIL_HEADS if detailed else HEADS), *FIGURES)))
    interval_ms = given.integer("reporting-interval", bits=LONG_BITS)
    if interval_ms is not None and interval_ms <= 0:
        raise ValueError("Reporting interval must be greater than 0.")
    most = given.integer("messages", bits=LONG_BITS)
    assert most is not None
    timeout_ms = given.integer("timeout", bits=LONG_BITS)
    with GroupConsumer(
        properties.servers, properties.text("group.id", ""), **arguments
    ) as consumer:
        reading = _Reading(
            consumer,
            given.text("date-format", DATE_FORMAT),
            interval_ms=(interval_ms or DEFAULT_INTERVAL_MS) if detailed else None,
        )
        reading.run(
            given.text("topic"), most, DEFAULT_TIMEOUT_MS if timeout_ms is None else timeout_ms
        )
        if consumer.assignment():
            consumer.commit()
    if not detailed:
        reading.print_total()
    return 0


def _check(given: Given) -> None:
    if not given.has("bootstrap-server") and not given.has("broker-list"):
        raise UsageFault("Missing required option(s) [bootstrap-server]")
    given.require("topic", "messages")
    if given.has("threads") or given.has("num-fetch-threads"):
        print(
            "WARNING: option [threads] and [num-fetch-threads] have been deprecated"
            " and will be ignored by the test"
        )


def _properties(given: Given) -> ClientProperties:
    path = given.value("consumer.config")
    properties = {} if path is None else read_file(path)
    server = "bootstrap-server" if given.has("bootstrap-server") else "broker-list"
    properties["bootstrap.servers"] = given.text(server)
    properties["group.id"] = given.text("group", f"perf-consumer-{random.randrange(100_000)}")
    properties["max.partition.fetch.bytes"] = given.text("fetch-size", str(MEGABYTE))
    properties["auto.offset.reset"] = "latest" if given.has("from-latest") else "earliest"
    properties.setdefault("client.id", "perf-consumer-client")
    return ClientProperties(properties, "Failed to construct kafka consumer")


class _Reading:
    """Reads records and measures; `interval_ms` is None without a line for each interval."""

    def __init__(
        self, consumer: GroupConsumer, date_format: str, *, interval_ms: int | None
    ) -> None:
        self._consumer = consumer
        self._format = date_format
        self._interval_ms = interval_ms
        self._count = self._size = 0
        self._begun, self._ended = datetime.now(), datetime.now()
        self._join_s = 0.0
        self._joining_since: float | None = time.monotonic()

    def run(self, topic: str, most: int, timeout_ms: int) -> None:
        """Read until there are `most` records, or none has come for `timeout_ms`."""
        self._consumer.subscribe(
            [topic], Listener(on_assigned=self._assigned, on_revoked=self._revoked)
        )
        last = reported = time.monotonic()
        count_before = size_before = 0
        join_before = 0.0
        while self._count < most and (time.monotonic() - last) * 1000 <= timeout_ms:
            found = self._consumer.poll(POLL_MS)
            now = time.monotonic()
            if found:
                last = now
                self._count += len(found)
                self._size += sum(map(_size, found))
            if self._interval_ms is not None and (now - reported) * 1000 >= self._interval_ms:
                at = format_time(datetime.now(), self._format)
                figures = _figures(
                    self._size - size_before,
                    self._count - count_before,
                    now - reported,
                    self._join_s - join_before,
                    total=(self._size, self._count),
                )
                print(", ".join((at, "0", *figures)), flush=True)
                reported, count_before, size_before = now, self._count, self._size
                join_before = self._join_s
        self._ended = datetime.now()
        if self._count < most:
            print(
                "WARNING: Exiting before consuming the expected number of messages:"
                f" timeout ({timeout_ms} ms) exceeded."
                " You can use the --timeout option to increase the timeout."
            )

    def _assigned(self, _: Sequence[TopicPartition]) -> None:
        if self._joining_since is not None:
            self._join_s += time.monotonic() - self._joining_since
            self._joining_since = None

    def _revoked(self, _: Sequence[TopicPartition]) -> None:
        self._joining_since = time.monotonic()

    def print_total(self) -> None:
        """Print the line for the whole run."""
        elapsed_s = (self._ended - self._begun).total_seconds()
        times = (format_time(at, self._format) for at in (self._begun, self._ended))
        figures = _figures(self._size, self._count, elapsed_s, self._join_s)
        print(", ".join((*times, *figures)))


def _size(record: ConsumerRecord) -> int:
    return len(record.key or b"") + len(record.value or b"")


def _figures(
    size: int,
    count: int,
    elapsed_s: float,
    join_s: float,
    total: tuple[int, int] | None = None,
) -> list[str]:
    """Return the figures of a time; the amounts are those since the start if `total` is given."""
    elapsed_s = max(elapsed_s, 0.001)
    join_ms = int(join_s * 1000)
    fetch_ms = max(int(elapsed_s * 1000) - join_ms, 0)
    fetch_s = fetch_ms / 1000
    all_size, all_count = total or (size, count)
    return [
        f"{all_size / MEGABYTE:.4f}",
        f"{size / MEGABYTE / elapsed_s:.4f}",
        str(all_count),
        f"{count / elapsed_s:.4f}",
        str(join_ms),
        str(fetch_ms),
        f"{size / MEGABYTE / fetch_s if fetch_s else 0:.4f}",
        f"{count / fetch_s if fetch_s else 0:.4f}",
    ]
