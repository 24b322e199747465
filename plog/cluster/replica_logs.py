"""The log of a replica as the controller orders it: found, made, or refused for what it may lack.

Owns the rule that a replica that lost records does not lead replicas that may have them.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterable, Mapping

from plog.cluster.partition import Partition
from plog.cluster.znodes import NO_LEADER
from plog.errors import InconsistentTopicId, KafkaStorageError
from plog.protocol.messages.replication import LeaderAndIsrPartitionState, LeaderAndIsrTopicState
from plog.runtime.bounded_lines import BoundedLines
from plog.settings.definitions import TopicSettings
from plog.storage.log import Log
from plog.storage.log_manager import LogManager, NewPartition
from plog.types import TopicPartition


class ReplicaLost(KafkaStorageError):
    """A replica's log is gone, and may be copied from a leader once there is one."""


class ReplicaLogs:
    """The logs of this broker's replicas.

    Args:
        broker_id: this broker.
        logs: the log directories.
        lines: where lost logs are reported.
    """

    def __init__(self, broker_id: int, logs: LogManager, lines: BoundedLines) -> None:
        self._broker_id = broker_id
        self._logs = logs
        self._lines = lines

    def make_new(
        self,
        topics: Iterable[LeaderAndIsrTopicState],
        settings: Mapping[str, TopicSettings],
        known: Mapping[TopicPartition, Partition],
    ) -> None:
        """Make the logs of an order's new replicas together; the disk is waited for once.

        What cannot be made is asked for again by `log_of`, which hears why.

        Args:
            settings: of each topic, by name.
            known: the replicas that are not new.
        """
        new = []
        for topic in topics:
            for state in topic.partition_states:
                at = TopicPartition(topic.topic_name, state.partition_index)
                if (
                    state.is_new
                    and self._broker_id in state.replicas
                    and at not in known
                    and self._logs.get(at) is None
                ):
                    new.append(
                        NewPartition(at, topic.topic_id, settings[at.topic], state.leader_epoch)
                    )
        if new:
            self._logs.create_all(new)

    def log_of(
        self, partition: Partition, state: LeaderAndIsrPartitionState, *, was_refused: bool
    ) -> Log:
        """Return the log of a replica, made if it is not there yet.

        Args:
            was_refused: it could not be made before, for want of space.

        Raises:
            ReplicaLost: it has lost records, and no other broker leads that may have them.
            KafkaStorageError: it cannot be made, or is in a directory that is not here.
            InconsistentTopicId: it is another topic's.
        """
        at = partition.topic_partition
        is_copied = state.leader not in (NO_LEADER, self._broker_id)
        has_others = state.replicas != [self._broker_id]
        needs_copy = has_others and not (
            is_copied or partition.settings.unclean_leader_election_enable
        )
        found = self._logs.get(at)
        if found is not None:
            _check_topic_id(found, partition.topic_id)
            if found.lack is not None and needs_copy:
                raise ReplicaLost(f"{at} {found.lack.reason}")
            return found
        is_late = not state.is_new or was_refused
        is_lost = not state.is_new and not was_refused
        if is_lost:
            # Its broker may have been killed before it had the order that creates the topic.
            may_lack = has_others and not self._logs.was_never_made(at, partition.topic_id)
            is_only = not is_copied and (needs_copy or not has_others)
            absent = self._logs.reason_absent(at, partition.topic_id, is_only=is_only)
            if needs_copy and may_lack:
                raise ReplicaLost(absent or f"{at} has no log on this broker, and no leader")
            is_lost = may_lack
            if absent is not None:
                raise KafkaStorageError(absent)
            self._lines.warning("%s has no log on this broker: creating an empty one", at)
        return self._logs.create(
            at,
            partition.topic_id,
            partition.settings,
            leader_epoch=state.leader_epoch,
            is_late=is_late,
            # Others would take an empty log for one with all records. One that is not in sync gets
            # there only once its leader has seen that it has them.
            is_incomplete=is_lost and self._broker_id in state.isr,
        )


def _check_topic_id(log: Log, topic_id: uuid.UUID) -> None:
    if log.topic_id not in (None, topic_id):
        raise InconsistentTopicId(
            f"{log.topic_partition} has a log of topic id {log.topic_id}, not {topic_id}"
        )
