"""plog's own producer, told what to do as tests/compat/java/Load.java is.

Run by bench_clients.py. Knows "produce" only.
"""

from __future__ import annotations

import json
import random
import sys
import time

from plog.client.producer import Producer, RecordMetadata
from plog.errors import PlogError

SEED = 2013


class Load:
    """One producer and what it has done."""

    def __init__(self, producer: Producer, topic: str, value: bytes, transaction_s: float) -> None:
        self._producer, self._topic, self._value = producer, topic, value
        self._transaction_s = transaction_s
        self._failure: PlogError | None = None
        self.records = self.transactions = 0
        self.committing_s = 0.0

    def run(self, seconds: float, most: float) -> float:
        """Produce until so many seconds or records are over; return how long that took."""
        self.records = self.transactions = 0
        self.committing_s = 0.0
        begun = now = time.monotonic()
        end = begun + seconds
        while now < end and self.records < most:
            if self._transaction_s > 0:
                self._producer.begin_transaction()
                now = self._send(min(end, now + self._transaction_s), most)
                self._producer.commit_transaction()
                self.transactions += 1
                committed = time.monotonic()
                self.committing_s += committed - now
                now = committed
            else:
                now = self._send(end, most)
        self._producer.flush()
        if self._failure is not None:
            raise self._failure
        return time.monotonic() - begun

    def _send(self, until: float, most: float) -> float:
        while True:
            self._producer.send(self._topic, self._value, on_delivery=self._delivered)
            self.records += 1
            now = time.monotonic()
            if now >= until or self.records >= most:
                return now

    def _delivered(self, _: RecordMetadata | None, error: PlogError | None) -> None:
        self._failure = self._failure or error


def produce(options: dict[str, str]) -> None:
    value = random.Random(SEED).randbytes(int(options["record.bytes"]))
    transaction_s = float(options["transaction.ms"]) / 1000
    # By the names of Java's settings, which are plog's with dots.
    settings: dict[str, object] = {
        key.removeprefix("producer.").replace(".", "_"): value
        for key, value in options.items()
        if key.startswith("producer.")
    }
    if "enable_idempotence" in settings:
        settings["enable_idempotence"] = settings["enable_idempotence"] == "true"
    with Producer(options["bootstrap"], **settings) as producer:  # type: ignore[arg-type]
        if transaction_s > 0:
            producer.init_transactions()
        load = Load(producer, options["topic"], value, transaction_s)
        load.run(float(options["warmup"]), float("inf"))
        say("ready")
        sys.stdin.readline()
        took_s = load.run(float(options["seconds"]), float(options["most.records"]))
        say(
            json.dumps(
                {
                    "records": load.records,
                    "seconds": took_s,
                    "transactions": load.transactions,
                    "committing_s": load.committing_s,
                }
            )
        )
    say("closed")


def say(line: str) -> None:
    print(line, flush=True)


def main() -> None:
    for line in sys.stdin:
        what, *words = line.split()
        if what != "produce":
            raise ValueError(line)
        produce(dict(word.split("=", 1) for word in words))


if __name__ == "__main__":
    main()
