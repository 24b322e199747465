"""In-sync sets on their way from leaders to the controller (AlterPartition, KIP-497): pure.

Owns the proposals of this broker that have no answer, and when they are sent: one request at a
time, with all that came meanwhile in the next. Its user sends a batch and says what became of it.
A proposal whose answer is lost is sent again, as it was: the controller may have written it, and
until that is known all of its members count (`InSyncSet.maximal`).
"""

from __future__ import annotations

from collections.abc import Mapping
from itertools import islice
from typing import Final, NamedTuple, TypeAlias

from plog.cluster.replication.isr import Outcome, Proposal
from plog.errors import ErrorCode
from plog.types import TopicPartition

MOST_IN_REQUEST: Final = 10_000
"""Partitions. Receivers limit the elements of a request (`MOST_REQUEST_ELEMENTS`)."""
RETRY_MS: Final = 50
MOST_RETRY_MS: Final = 1_000

OUTCOMES: Final = {
    ErrorCode.INELIGIBLE_REPLICA: Outcome.INELIGIBLE,
    ErrorCode.OPERATION_NOT_ATTEMPTED: Outcome.INELIGIBLE,
    ErrorCode.FENCED_LEADER_EPOCH: Outcome.SUPERSEDED,
    ErrorCode.NEW_LEADER_ELECTED: Outcome.SUPERSEDED,
    ErrorCode.INVALID_UPDATE_VERSION: Outcome.SUPERSEDED,
    ErrorCode.INVALID_REQUEST: Outcome.SUPERSEDED,
    ErrorCode.UNKNOWN_TOPIC_OR_PARTITION: Outcome.SUPERSEDED,
}
"""What a partition's error means. All others say that this controller cannot know (KAFKA-14154)."""


class Written(NamedTuple):
    """A partition's state as the controller has it, after it accepted a set."""

    leader_epoch: int
    isr: tuple[int, ...]
    partition_epoch: int


Found: TypeAlias = Written | ErrorCode
"""What the controller answers for a partition."""


class Settled(NamedTuple):
    """What became of a proposal, as `InSyncSet.answered` takes it. The outcome is never UNKNOWN."""

    partition: TopicPartition
    proposal: Proposal
    outcome: Outcome
    isr: tuple[int, ...] = ()
    partition_epoch: int = -1


class Batch(dict[TopicPartition, Proposal]):
    """The proposals of one request. Two with the same content are two requests."""


class Proposals:
    """The proposals of a broker's leaders. Times are of a clock that goes on in a suspended host.

    Attributes:
        in_flight: the batch that was sent and has no answer.
    """

    def __init__(self) -> None:
        self.in_flight: Batch | None = None
        self._open: dict[TopicPartition, Proposal] = {}
        self._not_before_ms = 0
        self._pause_ms = RETRY_MS

    def __len__(self) -> int:
        return len(self._open)

    def put(self, partition: TopicPartition, proposal: Proposal) -> None:
        """Have a proposal sent. It takes the place of an earlier one of its partition."""
        self._open[partition] = proposal

    def drop(self, partition: TopicPartition) -> None:
        """Send a partition's proposal no more: this broker leads it no longer."""
        self._open.pop(partition, None)

    def due_ms(self) -> int | None:
        """Return when the next request may go; None: there is nothing to send, or one is away."""
        return self._not_before_ms if self._open and self.in_flight is None else None

    def take(self, now_ms: int) -> Batch | None:
        """Return the proposals to send now, the oldest first; None: there are none."""
        due_ms = self.due_ms()
        if due_ms is None or due_ms > now_ms:
            return None
        self.in_flight = Batch(islice(self._open.items(), MOST_IN_REQUEST))
        return self.in_flight

    def answered(
        self, batch: Batch, found: Mapping[TopicPartition, Found], now_ms: int
    ) -> list[Settled]:
        """Take the answer to a batch; return what it settles. A late one settles nothing.

        A proposal that the answer leaves out, or knows nothing of, is sent again.
        """
        if batch is not self.in_flight:
            return []
        self.in_flight = None
        settled = [
            one
            for partition, proposal in batch.items()
            if (one := _settled(partition, proposal, found.get(partition))) is not None
        ]
        for one in settled:
            if self._open.get(one.partition) == one.proposal:
                del self._open[one.partition]
        if len(settled) == len(batch):
            self._not_before_ms, self._pause_ms = now_ms, RETRY_MS
        else:
            # The others come first next time.
            for partition in batch:
                if (proposal := self._open.pop(partition, None)) is not None:
                    self._open[partition] = proposal
            self._pause(now_ms)
        return settled

    def failed(self, batch: Batch, now_ms: int) -> None:
        """There is no answer to a batch, or none by the controller."""
        if batch is self.in_flight:
            self.in_flight = None
            self._pause(now_ms)

    def _pause(self, now_ms: int) -> None:
        self._not_before_ms = now_ms + self._pause_ms
        self._pause_ms = min(2 * self._pause_ms, MOST_RETRY_MS)


def _settled(partition: TopicPartition, proposal: Proposal, found: Found | None) -> Settled | None:
    match found:
        case Written(leader_epoch, isr, partition_epoch):
            if leader_epoch != proposal.leader_epoch:
                return Settled(partition, proposal, Outcome.SUPERSEDED)
            return Settled(partition, proposal, Outcome.ACCEPTED, isr, partition_epoch)
        case None:
            return None
    outcome = OUTCOMES.get(found)
    return None if outcome is None else Settled(partition, proposal, outcome)
