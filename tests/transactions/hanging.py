"""Transactions that hang: open in a partition, and no coordinator will end them there."""

from __future__ import annotations

from plog.errors import ErrorCode
from plog.types import TopicPartition
from tests.handlers.wire import NOW_MS
from tests.transactions.test_administration import write_marker
from tests.transactions.transactor import Transactor
from tests.waiting import until

COORDINATOR_EPOCH = 50
"""Later than any of a coordinator that has just begun, which is fenced by it."""


def leave_hanging(
    one: Transactor, at: TopicPartition, *values: bytes, timestamp: int = NOW_MS
) -> int:
    """Leave a transaction open in a partition for good; return the offset it begins at.

    As by an administrator who makes up the coordinator's epoch: the transaction is aborted in the
    partition under a later epoch than the coordinator's, its producer writes on, and the marker
    that the coordinator then has for its end is refused: it is prepared until somebody ends it.
    """
    one.send(at, b"before")
    aborted = write_marker(one.wire, at, one.producer, commit=False, epoch=COORDINATOR_EPOCH)
    assert aborted is ErrorCode.NONE
    part = one.produce(at, *values, timestamp=timestamp)
    assert part.error_code == ErrorCode.NONE, part
    assert one.end(commit=True) is ErrorCode.NONE
    until(lambda: not one.described().topics, "its marker is refused")
    assert one.described().transaction_state == "PrepareCommit"
    return int(part.base_offset)
