"""Logs of replicated partitions: a model that outlives its process, as a directory does."""

from __future__ import annotations

import uuid
from typing import NamedTuple

from plog.cluster.replication.fetch_decisions import Replica
from plog.storage.leader_epochs import LeaderEpochs
from plog.types import TopicPartition


class Hosted(NamedTuple):
    """A partition of one life of a topic."""

    topic_id: uuid.UUID
    at: TopicPartition


class SimRecord(NamedTuple):
    """A batch of one record. No two have the same number."""

    leader_epoch: int
    number: int


class SimLog:
    """One replica's log.

    Attributes:
        records: from `start` on.
        durable_end: what lies below survives a loss of power.
        truncations: how often its end was cut off.
        is_incomplete: it was made for a replica that had one before, and has not had all of a
            leader's records since.
    """

    def __init__(self, *, is_incomplete: bool) -> None:
        self.start = 0
        self.records: list[SimRecord] = []
        self.durable_end = 0
        self.high_watermark = 0
        self.epochs = LeaderEpochs()
        self.truncations = 0
        self.is_incomplete = is_incomplete

    @property
    def end(self) -> int:
        """The offset of the next record."""
        return self.start + len(self.records)

    def at(self, offset: int) -> SimRecord | None:
        """Return the record at an offset, if it is here."""
        return self.records[offset - self.start] if self.start <= offset < self.end else None

    def has_durably(self, offset: int, record: SimRecord) -> bool:
        """Return whether a record is here, and survives a loss of power."""
        return offset < self.durable_end and self.at(offset) == record

    def append(self, record: SimRecord) -> None:
        """Append a record, as a leader or as a follower."""
        self.epochs = self.epochs.assign(record.leader_epoch, self.end)
        self.records.append(record)

    def cut(self, to: int) -> None:
        """Remove the records from an offset on."""
        del self.records[to - self.start :]
        self.durable_end = min(self.durable_end, to)
        self.high_watermark = min(self.high_watermark, to)
        self.epochs = self.epochs.truncate_from_end(to)
        self.truncations += 1

    def restart(self, at: int) -> None:
        """Remove all records, and begin at an offset."""
        self.records.clear()
        self.start = self.durable_end = self.high_watermark = at
        self.epochs = LeaderEpochs()
        self.truncations += 1

    def advance_start(self, to: int) -> None:
        """Remove the records below an offset, which retention does to committed ones."""
        if to > self.start:
            to = min(to, self.end)
            del self.records[: to - self.start]
            self.start = to
            self.high_watermark = max(self.high_watermark, to)
            self.durable_end = max(self.durable_end, to)
            self.epochs = self.epochs.truncate_from_start(to)

    def lose_power(self) -> None:
        """Forget the records that were not durable."""
        if self.durable_end < self.end:
            self.cut(self.durable_end)

    def as_replica(self, leader_epoch: int) -> Replica:
        """Return what a follower's decisions need of it."""
        return Replica(
            leader_epoch, self.start, self.end, self.durable_end, self.high_watermark, self.epochs
        )
