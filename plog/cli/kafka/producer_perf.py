"""kafka-producer-perf-test: measure how fast a producer writes."""

from __future__ import annotations

import itertools
import random
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

from plog.cli.kafka.commands import CommandFault, Commands, Words
from plog.cli.kafka.config import ClientProperties, read_file
from plog.cli.kafka.texts import reason
from plog.client.producer import Producer
from plog.errors import InvalidConfig, KafkaError, PlogError

OPTIONS = Commands(
    "producer-performance",
    "Measure how fast a producer writes.",
    """
    --topic! TOPIC                      The topic. Required.
    --num-records! NUMBER:Long          Number of records. Required.
    --payload-delimiter TEXT            Text between the payloads of the file; \\n by default.
    --throughput! RATE:Integer          Records per second; -1 for no limit. Required.
    --producer-props NAME=VALUE...      Properties of the producer.
    --producer.config FILE              Properties of the producer.
    --print-metrics                     Accepted and ignored.
    --transactional-id ID               Transactional id.
    --transaction-duration-ms MS:Long   Write in transactions of this length.
    --record-size BYTES:Integer         Bytes of a record.
    --payload-file FILE                 File with payloads, chosen at random.
    --payload-monotonic                 Numbers as payloads.
    """,
    one_of=("record-size", "payload-file", "payload-monotonic"),
)
DEFAULT_ID = "performance-producer-default-transactional-id"
WINDOW_S = 5.0
MEGABYTE = 1 << 20
POOL_BYTES = 1 << 16
LETTERS = b"ABCDEFGHIJKLMNOPQRSTUVWXYZ"
PERCENTILES = (0.5, 0.95, 0.99, 0.999)
MAX_SAMPLES = 500_000


def run(given: Words) -> int:
    """Run the script; return its exit status."""
    count, rate = given.number("num-records"), given.number("throughput")
    assert count is not None
    assert rate is not None
    properties = _properties(given)
    payloads = _payloads(given)
    if count < 1:
        raise ValueError(f"--num-records {count} is too small: use 1 or more")
    if rate == 0:
        raise ValueError("--throughput 0 writes nothing: use -1 for no limit")
    duration_ms = given.number("transaction-duration-ms") or 0
    arguments = properties.producer_arguments()
    if duration_ms > 0:
        arguments["transactional_id"] = given.text("transactional-id", DEFAULT_ID)
    try:
        producer = Producer(properties.servers, **arguments)
    except InvalidConfig as fault:
        raise properties.fault(str(fault)) from fault
    stats = _Statistics(count)
    with producer:
        writing = _Writing(producer, given.text("topic"), stats, duration_ms / 1000)
        writing.run(payloads, count, rate)
        producer.flush()
    stats.print_total()
    return 0


def _properties(given: Words) -> ClientProperties:
    if not given.has("producer-props") and not given.has("producer.config"):
        raise CommandFault("Either --producer-props or --producer.config must be specified.")
    path = given.value("producer.config")
    properties = {} if path is None else read_file(path)
    for entry in given.values("producer-props"):
        key, equals, value = entry.partition("=")
        if not equals:
            raise ValueError(f"Invalid property: {entry}")
        properties[key] = value
    properties.setdefault("client.id", "perf-producer-client")
    return ClientProperties(properties, "Failed to construct kafka producer")


# -- payloads ----------------------------------------------------------------------------------


def _payloads(given: Words) -> Iterator[bytes]:
    """Return an endless iterator of payloads."""
    if given.has("payload-monotonic"):
        return (b"%d" % number for number in itertools.count())
    path = given.value("payload-file")
    if path is not None:
        return _choices(_read_payloads(path, given.text("payload-delimiter", "\\n")))
    size = given.number("record-size")
    assert size is not None
    if size < 0:
        raise ValueError(f"--record-size {size} is negative: use 0 or more")
    return _letters(size)


def _letters(size: int) -> Iterator[bytes]:
    pool = bytes(random.choices(LETTERS, k=POOL_BYTES))
    pool *= size // POOL_BYTES + 2
    while True:
        start = random.randrange(POOL_BYTES)
        yield pool[start : start + size]


def _choices(payloads: list[bytes]) -> Iterator[bytes]:
    while True:
        yield random.choice(payloads)


def _read_payloads(path: str, delimiter: str) -> list[bytes]:
    print(f"Reading payloads from: {Path(path).absolute()}")
    try:
        text = Path(path).read_bytes()
    except OSError:
        text = b""
    if not text:
        raise ValueError("File does not exist or empty file provided.")
    end = delimiter.replace("\\n", "\n").replace("\\t", "\t").encode()
    payloads = text.split(end)
    while payloads and not payloads[-1]:  # as Java's split
        payloads.pop()
    print(f"Number of messages read: {len(payloads)}")
    if not payloads:
        raise ValueError("no payload File Path or record Size or payload-monotonic option provided")
    return payloads


# -- writing -----------------------------------------------------------------------------------


class _Writing:
    """Sends records at a rate, in transactions of some length if `transaction_s` is not 0."""

    def __init__(
        self, producer: Producer, topic: str, stats: _Statistics, transaction_s: float
    ) -> None:
        self._producer = producer
        self._topic = topic
        self._stats = stats
        self._transaction_s = transaction_s
        self._began: float | None = None

    def run(self, payloads: Iterator[bytes], count: int, rate: int) -> None:
        """Send `count` records, at most `rate` a second (below 0: no limit)."""
        if self._transaction_s:
            self._producer.init_transactions()
        begun = time.monotonic()
        for number in range(count):
            if self._transaction_s and self._began is None:
                self._producer.begin_transaction()
                self._began = time.monotonic()
            self._send(next(payloads))
            if self._began is not None and time.monotonic() - self._began >= self._transaction_s:
                self._commit()
            if rate > 0:
                early_s = begun + (number + 1) / rate - time.monotonic()
                if early_s > 0:
                    time.sleep(early_s)
        if self._began is not None:
            self._commit()

    def _commit(self) -> None:
        self._producer.commit_transaction()
        self._began = None

    def _send(self, payload: bytes) -> None:
        sent_at = time.monotonic()

        def done(_: object, fault: PlogError | None) -> None:
            if fault is None:
                self._stats.add(len(payload), time.monotonic() - sent_at)
            else:
                sys.stderr.write(f"ERROR {reason(fault)}\n")

        try:
            self._producer.send(self._topic, payload, on_delivery=done)
        except KafkaError as fault:
            done(None, fault)


class _Window:
    """Records of a time: their number, bytes and latencies."""

    def __init__(self) -> None:
        self.begun = time.monotonic()
        self.count = self.size = 0
        self.latency_ms = self.max_ms = 0

    def add(self, size: int, latency_ms: int) -> None:
        """Count a record."""
        self.count += 1
        self.size += size
        self.latency_ms += latency_ms
        self.max_ms = max(self.max_ms, latency_ms)

    @property
    def average_ms(self) -> float:
        """Return the average latency; NaN, as Java prints it, without records."""
        return self.latency_ms / self.count if self.count else float("nan")

    def rates(self) -> tuple[float, float]:
        """Return records and megabytes a second."""
        elapsed_s = max(time.monotonic() - self.begun, 0.001)
        return self.count / elapsed_s, self.size / elapsed_s / MEGABYTE


class _Statistics:
    """Prints a line for each window, and one for the whole run. Thread-safe."""

    def __init__(self, count: int) -> None:
        self._lock = threading.Lock()
        self._whole, self._window = _Window(), _Window()
        self._every = -(-count // MAX_SAMPLES)
        self._samples: list[int] = []
        self._seen = 0

    def add(self, size: int, latency_s: float) -> None:
        """Count an acknowledged record."""
        latency_ms = int(latency_s * 1000)
        with self._lock:
            self._whole.add(size, latency_ms)
            self._window.add(size, latency_ms)
            if self._seen % self._every == 0:
                self._samples.append(latency_ms)
            self._seen += 1
            if time.monotonic() - self._window.begun >= WINDOW_S:
                self._print_window()

    def _print_window(self) -> None:
        window, self._window = self._window, _Window()
        records, megabytes = window.rates()
        print(
            f"{window.count} records sent, {records:.1f} records/sec ({megabytes:.2f} MB/sec),"
            f" {window.average_ms:.1f} ms avg latency, {window.max_ms:.1f} ms max latency.",
            flush=True,
        )

    def print_total(self) -> None:
        """Print the line for the whole run."""
        whole = self._whole
        records, megabytes = whole.rates()
        samples = sorted(self._samples) or [0]
        percentiles = ", ".join(
            f"{samples[min(int(share * len(samples)), len(samples) - 1)]} ms {share * 100:g}th"
            for share in PERCENTILES
        )
        average = f"{whole.average_ms:.2f}".replace("nan", "NaN")
        print(
            f"{whole.count} records sent, {records:.6f} records/sec ({megabytes:.2f} MB/sec),"
            f" {average} ms avg latency, {whole.max_ms:.2f} ms max latency, {percentiles}."
        )
