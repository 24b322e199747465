"""Moves of partitions to other brokers (KIP-455).

Owns the form of a move. The controller makes it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from plog.client.admin import Admin
from plog.errors import ErrorCode, KafkaError, error_for
from plog.protocol.messages.cluster import DescribeLogDirsRequest, DescribeLogDirsResponse
from plog.protocol.messages.reassignments import (
    AlterPartitionReassignmentsRequest,
    AlterPartitionReassignmentsResponse,
    ListPartitionReassignmentsRequest,
    ListPartitionReassignmentsResponse,
    ReassignablePartition,
    ReassignableTopic,
)
from plog.types import TopicPartition


class Move(NamedTuple):
    """A partition that moves.

    Attributes:
        replicas: all of them, old and new.
        adding: those that are new, and not in sync at first.
        removing: those that go once the others are in sync.
    """

    replicas: tuple[int, ...]
    adding: tuple[int, ...]
    removing: tuple[int, ...]


class BrokerDisks(NamedTuple):
    """The log directories of a broker.

    Attributes:
        free_bytes: on all of their disks, each counted once; None if the broker does not say.
        sizes: of its replicas.
    """

    free_bytes: int | None
    sizes: dict[TopicPartition, int]


class ReassignmentAdmin(Admin):
    """Begins, shows and gives up moves."""

    def disks(self, *, all_must_answer: bool = True) -> dict[int, BrokerDisks]:
        """Return the log directories of each live broker."""
        found = {}
        for node in self.nodes():
            try:
                found[node.node_id] = self._disks_of(node.node_id)
            except KafkaError:
                if all_must_answer:
                    raise
        return found

    def _disks_of(self, node_id: int) -> BrokerDisks:
        answer = self._cluster.connection(node_id).call(
            DescribeLogDirsRequest(topics=None), DescribeLogDirsResponse
        )
        _check(answer.error_code, f"log directories of broker {node_id}")
        sizes: dict[TopicPartition, int] = {}
        disks: set[tuple[int, int]] = set()  # directories of one disk say the same
        for log_dir in answer.results:
            if log_dir.error_code == ErrorCode.NONE:
                disks.add((log_dir.total_bytes, log_dir.usable_bytes))
                for topic in log_dir.topics:
                    for part in topic.partitions:
                        if not part.is_future_key:
                            sizes[TopicPartition(topic.name, part.partition_index)] = (
                                part.partition_size
                            )
        is_known = bool(disks) and all(free >= 0 for _, free in disks)
        return BrokerDisks(sum(free for _, free in disks) if is_known else None, sizes)

    def reassign(self, targets: Mapping[TopicPartition, Sequence[int] | None]) -> None:
        """Move partitions to brokers, the preferred leader first; None gives a move up.

        Returns once the controller has begun: copying takes its time. What one partition is refused
        for does not hold the others up.

        Raises:
            InvalidReplicaAssignment, NoReassignmentInProgress, UnknownTopicOrPartition: the first
                refusal of a partition, as the broker says.
        """
        topics: dict[str, list[ReassignablePartition]] = {}
        for at, replicas in sorted(targets.items()):
            topics.setdefault(at.topic, []).append(
                ReassignablePartition(
                    partition_index=at.partition,
                    replicas=None if replicas is None else list(replicas),
                )
            )
        request = AlterPartitionReassignmentsRequest(
            timeout_ms=self._timeout_ms,
            topics=[
                ReassignableTopic(name=name, partitions=parts) for name, parts in topics.items()
            ],
        )
        self._by_controller(request, AlterPartitionReassignmentsResponse, _check_all)

    def moves(self) -> dict[TopicPartition, Move]:
        """Return the partitions that move."""
        found: dict[TopicPartition, Move] = {}

        def take(answer: ListPartitionReassignmentsResponse) -> None:
            _check(answer.error_code, answer.error_message)
            for topic in answer.topics:
                for part in topic.partitions:
                    found[TopicPartition(topic.name, part.partition_index)] = Move(
                        tuple(part.replicas),
                        tuple(part.adding_replicas),
                        tuple(part.removing_replicas),
                    )

        request = ListPartitionReassignmentsRequest(timeout_ms=self._timeout_ms, topics=None)
        self._by_controller(request, ListPartitionReassignmentsResponse, take)
        return found


def _check_all(answer: AlterPartitionReassignmentsResponse) -> None:
    _check(answer.error_code, answer.error_message)
    for topic in answer.responses:
        for part in topic.partitions:
            _check(part.error_code, part.error_message)


def _check(code: int, message: str | None) -> None:
    if code != ErrorCode.NONE:
        raise error_for(code, message or "")
