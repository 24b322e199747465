"""A member's commits, and the look-up of committed offsets (OffsetCommit, OffsetFetch).

Owns the two requests, and how long each is tried. `group_consumer` decides when to commit;
`transactions` owns commits in transactions.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Iterable

from plog.client.attempts import RETRY_BACKOFF_S, retry
from plog.client.coordinators import MOVED
from plog.client.group_membership import LOST, CommitFailed, Identity, Membership, State
from plog.client.offsets import OffsetAndMetadata, Offsets, with_metadata
from plog.client.retry_log import RetryLog
from plog.errors import (
    ErrorCode,
    KafkaError,
    NetworkException,
    RebalanceInProgress,
    RequestTimedOut,
    error_for,
)
from plog.protocol.messages.offsets import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
    OffsetCommitResponse,
    OffsetFetchRequest,
    OffsetFetchRequestTopic,
    OffsetFetchResponse,
)
from plog.types import NO_OFFSET, TopicPartition

log = logging.getLogger(__name__)


class GroupOffsets:
    """The committed offsets of a member's group. Stores none.

    Args:
        timeout_s: how long `commit` and `fetch` try while the coordinator moves or is down.
    """

    def __init__(self, membership: Membership, *, timeout_s: float) -> None:
        self._membership = membership
        self._timeout_s = timeout_s
        self._retries = RetryLog(log)
        # The identity with which `fetch_within` failed, and the time of its next attempt. With
        # another identity it asks at once.
        self._refused = Identity()
        self._retry_at = 0.0

    def commit(self, offsets: Offsets) -> None:
        """Commit as the member, or without a member id if it is none.

        Raises:
            CommitFailed: the group has expelled the member.
            RebalanceInProgress: the group has a new generation, which the member is about to join.
            KafkaError: the coordinator refuses, or does not answer in time.
        """

        def may_pass(fault: KafkaError) -> bool:
            if self._is_of_a_rebalance(fault) or fault.code in LOST:
                return False
            return fault.retriable or fault.code in MOVED

        try:
            retry(
                lambda: self.commit_once(offsets),
                timeout_s=self._timeout_s,
                may_pass=may_pass,
                before_next=lambda _: self._membership.forget_coordinator(),
            )
        except KafkaError as fault:
            if self._is_of_a_rebalance(fault):
                raise RebalanceInProgress(f"{fault}: poll, and commit again") from fault
            if fault.code in LOST:
                raise CommitFailed(str(fault)) from fault
            raise

    def _is_of_a_rebalance(self, fault: KafkaError) -> bool:
        """Return whether a refusal only means that the member's next generation has begun."""
        if fault.code == ErrorCode.ILLEGAL_GENERATION:
            return self._membership.state is not State.INSIDE and not self._membership.is_lost
        return fault.code == ErrorCode.REBALANCE_IN_PROGRESS

    def commit_once(self, offsets: Offsets) -> None:
        """Commit by one request. Raises KafkaError with the first refusal."""
        membership = self._membership
        identity = membership.committer if membership.is_member else Identity()
        topics: dict[str, list[OffsetCommitRequestPartition]] = {}
        for at, offset in offsets.items():
            entry = with_metadata(offset)
            topics.setdefault(at.topic, []).append(
                OffsetCommitRequestPartition(
                    partition_index=at.partition,
                    committed_offset=entry.offset,
                    committed_leader_epoch=entry.leader_epoch,
                    committed_metadata=entry.metadata,
                )
            )
        answer = membership.call(
            OffsetCommitRequest(
                group_id=membership.group_id,
                generation_id_or_member_epoch=identity.generation,
                member_id=identity.member_id,
                group_instance_id=membership.instance_id,
                topics=[
                    OffsetCommitRequestTopic(name=name, partitions=parts)
                    for name, parts in topics.items()
                ],
            ),
            OffsetCommitResponse,
        )
        for topic in answer.topics:
            for part in topic.partitions:
                if part.error_code != ErrorCode.NONE:
                    if part.error_code in MOVED:
                        membership.forget_coordinator()
                    membership.refused(part.error_code)
                    at = TopicPartition(topic.name, part.partition_index)
                    raise error_for(part.error_code, f"group {membership.group_id!r}, {at}")

    def fetch(
        self, partitions: Iterable[TopicPartition]
    ) -> dict[TopicPartition, OffsetAndMetadata]:
        """Return the committed offsets of partitions; those without a commit are left out.

        Waits for transactions that are about to commit some.

        Raises:
            KafkaError: the coordinator refuses, or does not answer in time.
        """
        request = self._fetch_request(partitions)
        if not request.topics:
            return {}
        return retry(
            lambda: self._committed_of(self._membership.call(request, OffsetFetchResponse)),
            timeout_s=self._timeout_s,
            may_pass=lambda fault: fault.retriable,
            before_next=self._prepare_another,
        )

    def fetch_within(
        self, partitions: Iterable[TopicPartition], timeout_s: float
    ) -> dict[TopicPartition, OffsetAndMetadata] | None:
        """Return the committed offsets of the member's partitions as `fetch`, or None if not known.

        They are not known while a transaction is about to commit some, or the coordinator is down:
        call again. A call continues the wait of the previous one. It does not wait for the next
        attempt, because the member may have something to read meanwhile.

        Raises:
            KafkaError: an error that a retry cannot solve.
        """
        request = self._fetch_request(partitions)
        if not request.topics:
            return {}
        me = self._membership.identity
        if me == self._refused and time.monotonic() < self._retry_at:
            return None
        try:
            answer = self._membership.ask(request, OffsetFetchResponse, timeout_s)
            return None if answer is None else self._committed_of(answer)
        except KafkaError as fault:
            if not fault.retriable:
                raise
            self._prepare_another(fault)
            self._refused, self._retry_at = me, time.monotonic() + RETRY_BACKOFF_S
            text = f"group {request.group_id!r}: committed offsets are not known yet: {fault}"
            if isinstance(fault, NetworkException | RequestTimedOut):
                self._retries.warn(text)
            else:
                log.info("%s", text)
            return None

    def _fetch_request(self, partitions: Iterable[TopicPartition]) -> OffsetFetchRequest:
        topics: dict[str, list[int]] = {}
        for at in partitions:
            topics.setdefault(at.topic, []).append(at.partition)
        return OffsetFetchRequest(
            group_id=self._membership.group_id,
            topics=[
                OffsetFetchRequestTopic(name=name, partition_indexes=indexes)
                for name, indexes in topics.items()
            ],
            require_stable=True,
        )

    def _prepare_another(self, fault: KafkaError) -> None:
        """Prepare another attempt."""
        if fault.code != ErrorCode.UNSTABLE_OFFSET_COMMIT:
            self._membership.forget_coordinator()

    def _committed_of(self, answer: OffsetFetchResponse) -> dict[TopicPartition, OffsetAndMetadata]:
        group_id = self._membership.group_id
        if answer.error_code != ErrorCode.NONE:
            raise error_for(answer.error_code, f"group {group_id!r}")
        found = {}
        for topic in answer.topics:
            for part in topic.partitions:
                at = TopicPartition(topic.name, part.partition_index)
                if part.error_code != ErrorCode.NONE:
                    raise error_for(part.error_code, f"group {group_id!r}, {at}")
                if part.committed_offset != NO_OFFSET:
                    found[at] = OffsetAndMetadata(
                        part.committed_offset, part.metadata or "", part.committed_leader_epoch
                    )
        return found
