"""The records that the logs of all brokers must hold: those that were appended to them."""

from __future__ import annotations

import uuid
from collections import defaultdict
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

from plog.types import TopicPartition

LEADER_EPOCH = slice(12, 16)
"""Where a batch has it. The log writes it; markers are made by the log altogether."""


class Hosted(NamedTuple):
    """A log: a partition of one life of a topic, on a broker."""

    broker_id: int
    topic_id: uuid.UUID | None
    partition: TopicPartition


class Contents:
    """The batches of each log, in order. A log that was set aside stays as it was."""

    def __init__(self) -> None:
        self._batches: defaultdict[Hosted, list[bytes]] = defaultdict(list)
        self.aside: set[Hosted] = set()

    def append(self, log: Hosted, batch: bytes) -> None:
        """Note a batch that was appended."""
        self._batches[log].append(batch)

    def count(self, log: Hosted) -> int:
        """Return how many batches a log has; each has one record."""
        return len(self._batches[log])

    def delete(self, log: Hosted) -> None:
        """Note that a log was deleted."""
        self._batches.pop(log, None)

    def set_aside(self, log: Hosted) -> None:
        """Note that a log was set aside."""
        self.aside.add(log)

    def back_up(self, broker_id: int) -> Callable[[], None]:
        """Return a call that brings back the present records of a broker's logs."""
        batches = {log: list(one) for log, one in self._batches.items() if log[0] == broker_id}
        aside = {log for log in self.aside if log.broker_id == broker_id}

        def restore() -> None:
            for log in [log for log in self._batches if log.broker_id == broker_id]:
                del self._batches[log]
            self._batches |= {log: list(one) for log, one in batches.items()}
            self.aside = {log for log in self.aside if log.broker_id != broker_id} | aside

        return restore

    def differs(self, log: Hosted, directory: Path) -> str | None:
        """Return the fault of a log's files; None: they have none."""
        wanted, found = self._batches[log], list(_batches_in(directory))
        if list(map(_as_asked, found)) == list(map(_as_asked, wanted)):
            return None
        same = next((n for n, (a, b) in enumerate(zip(found, wanted, strict=False)) if a != b), "?")
        return f"{log} holds {len(found)} batches, not {len(wanted)}; the first other one is {same}"


def _batches_in(directory: Path) -> Iterator[bytes]:
    for path in sorted(directory.glob("*.log")):
        data, at = path.read_bytes(), 0
        while at < len(data):
            end = at + 12 + int.from_bytes(data[at + 8 : at + 12], "big")
            yield data[at:end]
            at = end


def _as_asked(batch: bytes) -> bytes:
    return batch[: LEADER_EPOCH.start] + batch[LEADER_EPOCH.stop :]
