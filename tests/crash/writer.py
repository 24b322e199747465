"""A client under fire: writes numbered records and keeps in mind what was acknowledged."""

from __future__ import annotations

import threading
import time
from collections import defaultdict
from typing import Any

from confluent_kafka import Producer


class Writer:
    """Produces without pause, on its own thread, until told to stop.

    Values are "<partition>-<n>", n rising by one for each record of a partition; `padding`
    bytes follow after a blank. With `acks` 1 nothing is promised, and failures are no matter.
    """

    def __init__(
        self,
        bootstrap: str,
        topic: str,
        partitions: int,
        *,
        acks: str = "all",
        padding: int = 0,
        pause_s: float = 0.0005,
    ) -> None:
        self.acknowledged: dict[int, list[str]] = defaultdict(list)
        self.sent: dict[int, int] = dict.fromkeys(range(partitions), 0)
        self.failures: list[str] = []
        self._topic = topic
        self._pause_s = pause_s
        self._suffix = " " + "x" * padding if padding else ""
        self._stop = threading.Event()
        self._producer = Producer(
            {
                "bootstrap.servers": bootstrap,
                "enable.idempotence": acks == "all",
                "acks": acks,
                "log_level": 0,
                "linger.ms": 1,
                "batch.num.messages": 50,
                "message.timeout.ms": 120_000,
                # Or a slow machine takes a record a minute after it was sent, and gives up.
                "queue.buffering.max.messages": 5_000,
                "reconnect.backoff.ms": 20,
                "reconnect.backoff.max.ms": 100,
                "retry.backoff.ms": 20,
                "socket.timeout.ms": 5_000,
            }
        )
        self._thread = threading.Thread(target=self._run, daemon=True)

    @property
    def total_acknowledged(self) -> int:
        return sum(len(values) for values in self.acknowledged.values())

    def wait_for_more(self, records: int) -> None:
        """Wait until so many more records are acknowledged than now."""
        wanted = self.total_acknowledged + records
        deadline = time.monotonic() + 60
        while self.total_acknowledged < wanted:
            assert time.monotonic() < deadline, "nothing is acknowledged any more"
            time.sleep(0.005)

    def __enter__(self) -> Writer:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()
        self._producer.purge()

    def stop(self) -> None:
        """Stop sending and wait until everything is acknowledged or given up."""
        self._stop.set()
        self._thread.join()
        left = self._producer.flush(120)
        assert left == 0, f"{left} records are unacknowledged"

    def _run(self) -> None:
        while not self._stop.is_set():
            for partition in self.sent:
                value = f"{partition}-{self.sent[partition]}"
                self.sent[partition] += 1
                self._produce(partition, value)
            self._producer.poll(0)
            self._stop.wait(self._pause_s)

    def _produce(self, partition: int, value: str) -> None:
        def delivered(error: Any, _message: Any) -> None:
            if error is None:
                self.acknowledged[partition].append(value)
            else:
                self.failures.append(f"{value}: {error}")

        while True:
            try:
                self._producer.produce(
                    self._topic,
                    value=value + self._suffix,
                    partition=partition,
                    on_delivery=delivered,
                )
                return
            except BufferError:
                self._producer.poll(0.1)
