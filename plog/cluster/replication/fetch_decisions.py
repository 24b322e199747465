"""What a follower does with its leader's answer to a fetch: pure.

Owns the order of the checks. A log is cut where it parts from the leader's before anything else is
believed (KIP-101, KIP-279, KIP-320): the answer that says so brings neither records nor a high
watermark (KAFKA-14704). Reads and writes no log; the fetcher does what comes out.
"""

from __future__ import annotations

from enum import Enum, auto
from typing import Final, NamedTuple

from plog.errors import ErrorCode
from plog.storage.leader_epochs import EpochEnd, LeaderEpochs


class Replica(NamedTuple):
    """A follower's log, and the leader epoch that it follows in.

    Attributes:
        durable_end: where it fetches from: what lies below survives a loss of power.
    """

    leader_epoch: int
    log_start_offset: int
    log_end_offset: int
    durable_end: int
    high_watermark: int
    epochs: LeaderEpochs


class Asked(NamedTuple):
    """What a fetch has asked for.

    Attributes:
        last_epoch: of the last batch below `position`; -1 if there is none.
    """

    leader_epoch: int
    position: int
    last_epoch: int


class Answer(NamedTuple):
    """The leader's answer for one partition.

    Attributes:
        log_start_offset: the leader's; -1 if it does not say.
    """

    error: ErrorCode
    high_watermark: int
    log_start_offset: int
    diverging: EpochEnd | None


class Range(NamedTuple):
    """Where the leader's log begins and ends, as it says when it is asked."""

    log_start_offset: int
    log_end_offset: int


class Do(Enum):
    """What the fetcher does next."""

    APPEND = auto()
    """Append the batches, if there are any, make them durable, then take `high_watermark` and
    `log_start_offset`."""
    CUT = auto()
    """Cut the log to `offset`, and fetch again."""
    RESTART = auto()
    """Give up all records, begin an empty log at `offset`, and fetch again."""
    ASK_RANGE = auto()
    """Ask the leader where its log begins and ends, then `decide_by_range`."""
    FETCH_AGAIN = auto()
    """At once: nothing was learned."""
    FETCH_LATER = auto()
    """After replica.fetch.backoff.ms."""
    AWAIT_ORDER = auto()
    """Fetch no more until the controller names a leader in a later epoch."""


class Decision(NamedTuple):
    """One thing to do. `offset`, `high_watermark`, `log_start_offset`: see `Do`; else -1."""

    do: Do
    offset: int = -1
    high_watermark: int = -1
    log_start_offset: int = -1


AGAIN: Final = Decision(Do.FETCH_AGAIN)
LATER: Final = Decision(Do.FETCH_LATER)

BY_ERROR: Final = {
    ErrorCode.OFFSET_OUT_OF_RANGE: Decision(Do.ASK_RANGE),
    # There is a later leader epoch than the follower's: its order is on the way.
    ErrorCode.FENCED_LEADER_EPOCH: Decision(Do.AWAIT_ORDER),
}
"""Other errors pass: the leader has not heard of its epoch yet, or has no disk for a while."""


def ask(replica: Replica) -> Asked:
    """Return what to fetch.

    The epoch is that of the last batch, not of an epoch that has begun and has none (KIP-595).
    """
    has_batches = replica.durable_end > replica.log_start_offset
    last_epoch = replica.epochs.epoch_at(replica.durable_end - 1) if has_batches else -1
    return Asked(replica.leader_epoch, replica.durable_end, last_epoch)


def decide(replica: Replica, asked: Asked, answer: Answer) -> Decision:
    """Return what to do with an answer.

    One to a fetch in another leader epoch, or of a log that has changed since, says nothing about
    this log (KAFKA-7786, KAFKA-18723).
    """
    if asked != ask(replica) or replica.log_end_offset != asked.position:
        return AGAIN
    if answer.error != ErrorCode.NONE:
        return by_error(answer.error)
    if answer.diverging is not None:
        return _cut(replica, answer.diverging)
    return Decision(
        Do.APPEND, high_watermark=answer.high_watermark, log_start_offset=answer.log_start_offset
    )


def by_error(error: ErrorCode) -> Decision:
    """Return what to do where the leader has refused to answer."""
    return BY_ERROR.get(error, LATER)


def decide_by_range(replica: Replica, asked: Asked, found: Range) -> Decision:
    """Return what to do with a log that begins or ends outside the leader's (KAFKA-2143).

    A leader that ends before this log was elected uncleanly, or has lost its end: what it does not
    have is cut. One that begins after this log's end has removed what lies between.
    """
    if asked != ask(replica):
        return AGAIN
    if found.log_end_offset < replica.log_end_offset:
        return _cut_to(replica, found.log_end_offset)
    if found.log_start_offset > replica.log_end_offset:
        return Decision(Do.RESTART, found.log_start_offset)
    return LATER  # its log has grown meanwhile, or has been cut


def decide_by_epoch_end(replica: Replica, asked: Asked, found: EpochEnd) -> Decision:
    """Return what to do with where the last epoch ends there, if a leader's fetches do not say.

    The leader was asked for it by OffsetForLeaderEpoch.
    """
    if asked != ask(replica):
        return AGAIN
    if found.end_offset < 0:
        return Decision(Do.ASK_RANGE)
    if found.epoch < asked.last_epoch or found.end_offset < asked.position:
        return _cut(replica, found)
    return AGAIN


def high_watermark_after(replica: Replica, leaders: int) -> int:
    """Return a follower's high watermark: the leader's, as far as there are records.

    It goes back only if the log is cut below it.
    """
    return min(max(replica.high_watermark, leaders), replica.log_end_offset)


def _cut(replica: Replica, diverging: EpochEnd) -> Decision:
    """Cut where both logs have the same epoch, or the next older one: the next fetch looks again.

    An answer that would cut nothing comes from a leader that contradicts itself.
    """
    to = replica.epochs.end_in_common(diverging, replica.log_end_offset)
    if to >= replica.log_end_offset:
        return LATER
    return _cut_to(replica, to)


def _cut_to(replica: Replica, to: int) -> Decision:
    return Decision(Do.RESTART if to < replica.log_start_offset else Do.CUT, to)
