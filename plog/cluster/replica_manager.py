"""All partitions that have a replica on this broker, and the controller's orders about them.

Owns which replicas there are here and in which role; obeys LeaderAndIsr and StopReplica
after the fence let them in. Never decides who leads, and knows of other partitions
only what the metadata cache was told.

Threads: orders and log directory failures are taken one at a time (a lock); lookups
come from any thread and take none.
"""

from __future__ import annotations

import logging
import threading
import uuid
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Protocol

from plog._native.topic_traffic import TopicTraffic
from plog.cluster.control_fence import ControlFence
from plog.cluster.control_requests import DRAIN, INCOMPLETE, USABLE
from plog.cluster.disks import Disks
from plog.cluster.leadership import Leadership
from plog.cluster.metadata_cache import MetadataCache
from plog.cluster.partition import InSyncSets, Led, OnChange, Partition, Publisher, SettingsOf
from plog.cluster.refused_replicas import RefusedReplicas
from plog.cluster.replica_logs import ReplicaLogs, ReplicaLost
from plog.cluster.replication.drain import drain_for_order
from plog.errors import (
    ErrorCode,
    FencedLeaderEpoch,
    InconsistentTopicId,
    KafkaError,
    KafkaStorageError,
    NotLeaderOrFollower,
    StaleControllerEpoch,
    UnknownTopicId,
    UnknownTopicOrPartition,
)
from plog.protocol.messages.replication import (
    LeaderAndIsrPartitionError,
    LeaderAndIsrPartitionState,
    LeaderAndIsrRequest,
    LeaderAndIsrResponse,
    LeaderAndIsrTopicError,
    StopReplicaPartitionError,
    StopReplicaPartitionState,
    StopReplicaRequest,
    StopReplicaResponse,
)
from plog.runtime.bounded_lines import BoundedLines
from plog.runtime.partition_lines import log_partitions
from plog.settings.definitions import TopicSettings
from plog.storage.log import Log
from plog.storage.log_manager import LogManager
from plog.types import NO_EPOCH, ZERO_UUID, TopicPartition, counted

log = logging.getLogger(__name__)

MOST_NAMED = 5
"""So many partitions are named in an error."""


class FollowerFetchers(Protocol):
    """Who copies from leaders."""

    def follow(self, partitions: Iterable[Partition]) -> None:
        """Fetch these from the leaders that their `leadership` names (again)."""
        ...

    def forget(self, topic_partitions: Iterable[TopicPartition]) -> None:
        """Stop fetching these; no fetch is under way any more when it returns."""
        ...


class LeadershipChanged(Protocol):
    """Told after each LeaderAndIsr which partitions this broker began and ceased to lead."""

    def __call__(self, leading: list[Partition], following: list[Partition], /) -> None:
        """Take note; called on the thread that takes orders."""
        ...


class ReplicaManager:
    """The replicas of this broker.

    Args:
        broker_id: this broker.
        logs: the log directories.
        metadata: tells a partition that is elsewhere from one that is nowhere.
        fence: shared with whatever else takes the controller's orders.
        settings_of: reads the effective settings of topics. Each read calls
            `update_topic_settings` before any later change does.
        on_change: told of each partition whose waiters should look again.
        log_dir_failed: has the controller ask which replicas this broker can serve.
        in_sync_sets: who keeps the sets of the partitions that are led here.
        fetchers: follow leaders elsewhere; None: no replica is copied.
        publisher: told what the fast path may serve; None without one.
        disks: the marks of the log directories; None for marks that nobody else sees.
        drain: waits until followers have the records of partitions.
    """

    def __init__(
        self,
        *,
        broker_id: int,
        logs: LogManager,
        metadata: MetadataCache,
        fence: ControlFence,
        settings_of: SettingsOf,
        on_change: OnChange,
        log_dir_failed: Callable[[], None],
        in_sync_sets: InSyncSets,
        fetchers: FollowerFetchers | None = None,
        publisher: Publisher | None = None,
        disks: Disks | None = None,
        drain: Callable[[list[Partition]], None] = drain_for_order,
    ) -> None:
        self._broker_id = broker_id
        self._logs = logs
        self._metadata = metadata
        self._fence = fence
        self._settings_of = settings_of
        self._on_change = on_change
        self._log_dir_failed = log_dir_failed
        self._in_sync_sets = in_sync_sets
        self._fetchers = fetchers
        self._leadership_changed: list[LeadershipChanged] = []
        self._publisher = publisher
        self.disks = disks or Disks()
        self._drain = drain
        self.leaderships_taken = 0
        """How often this broker began to lead a partition."""
        self._lock = threading.Lock()
        self._refused = RefusedReplicas()
        self._partitions: dict[TopicPartition, Partition] = {}
        # Without a role for too long.
        self._not_awaited: set[TopicPartition] = set()
        self._by_id: dict[tuple[uuid.UUID, int], Partition] = {}
        self._by_topic: dict[str, dict[int, Partition]] = {}
        self._lines = BoundedLines(log, "%d further replicas could not be started or stopped")
        self.replica_logs = ReplicaLogs(broker_id, logs, self._lines)
        self._deletions = BoundedLines(
            log, "%d further topics had their logs deleted", least_level=logging.INFO
        )

    def on_leadership(self, changed: LeadershipChanged) -> None:
        """Tell of every LeaderAndIsr from now on: the coordinators' ear."""
        self._leadership_changed.append(changed)

    def _tell_leadership(self, leading: list[Partition], following: list[Partition]) -> None:
        if leading or following:
            for tell in self._leadership_changed:
                tell(leading, following)

    # -- lookups -----------------------------------------------------------------------------

    @property
    def partitions(self) -> list[Partition]:
        """Every partition with a replica here, usable or not."""
        return list(self._partitions.values())

    def traffic(self) -> dict[str, TopicTraffic]:
        """Return the traffic of each topic; any thread."""
        topics = list(self._by_topic.items())
        return {topic: one.traffic for topic, parts in topics for one in list(parts.values())[:1]}

    def get(self, topic_partition: TopicPartition) -> Partition | None:
        """Return the partition if it has a replica here."""
        return self._partitions.get(topic_partition)

    def lacks_role(self, topic_partition: TopicPartition) -> bool:
        """Whether its log is here, and the controller has not said who leads it since the start."""
        return (
            topic_partition not in self._partitions
            and topic_partition not in self._not_awaited
            and self._logs.get(topic_partition) is not None
        )

    def may_lead(self, topic_partition: TopicPartition) -> bool:
        """Whether this broker leads it, or does not know yet who leads the log that is here."""
        partition = self._partitions.get(topic_partition)
        if partition is None:
            return self.lacks_role(topic_partition)
        return partition.is_leader and partition.hosted_log is not None

    def is_fresh(self, topic_partition: TopicPartition) -> bool:
        """Whether this broker leads it, and would know if another one did by now."""
        partition = self._partitions.get(topic_partition)
        return partition is not None and partition.is_fresh

    def await_no_more(self, topic_partitions: Iterable[TopicPartition]) -> None:
        """Let no later request wait for the roles of these."""
        self._not_awaited.update(topic_partitions)

    def leader(
        self, topic_partition: TopicPartition, current_leader_epoch: int = NO_EPOCH
    ) -> Partition:
        """Return a partition that this broker leads.

        Raises:
            UnknownTopicOrPartition: nobody has heard of it.
            NotLeaderOrFollower, FencedLeaderEpoch, UnknownLeaderEpoch, KafkaStorageError:
                as `Partition.check_leader`.
        """
        partition = self._partitions.get(topic_partition)
        if partition is None:
            if self._metadata.contains(topic_partition):
                raise NotLeaderOrFollower(f"no replica of {topic_partition} here")
            raise UnknownTopicOrPartition(f"{topic_partition} does not exist")
        if (reason := self._logs.offline.get(topic_partition)) is not None:
            raise KafkaStorageError(f"{topic_partition} is offline: {reason}")
        partition.check_leader(current_leader_epoch)
        return partition

    def by_id(self, topic_id: uuid.UUID, partition_index: int) -> Partition:
        """Return a partition with a replica here, by topic id.

        Raises:
            UnknownTopicId: no replica of such a topic here.
        """
        partition = self._by_id.get((topic_id, partition_index))
        if partition is None:
            raise UnknownTopicId(f"no replica of topic id {topic_id}, partition {partition_index}")
        return partition

    def update_topic_settings(self, topic: str, settings: TopicSettings) -> None:
        """Have the replicas of a topic obey other settings."""
        self._renew((one, settings) for one in list(self._by_topic.get(topic, {}).values()))

    def renew_settings(self, settings_of: Callable[[str], TopicSettings]) -> None:
        """Have every replica obey its topic's settings of now: the broker's have changed."""
        self._renew((one, settings_of(one.topic_partition.topic)) for one in self.partitions)

    def _renew(self, renewed: Iterable[tuple[Partition, TopicSettings]]) -> None:
        may_lead = False
        for partition, settings in renewed:
            was_allowed = partition.settings.unclean_leader_election_enable
            is_allowed = settings.unclean_leader_election_enable and not was_allowed
            may_lead = may_lead or (is_allowed and self._refused.is_lost(partition.topic_partition))
            partition.update_settings(settings)
        if may_lead:  # the controller takes it for offline
            self._log_dir_failed()

    # -- LeaderAndIsr ------------------------------------------------------------------------

    def apply_leader_and_isr(self, request: LeaderAndIsrRequest) -> LeaderAndIsrResponse:
        """Lead and follow as told; one partition's error leaves the others alone.

        Codes of a partition: KAFKA_STORAGE_ERROR where its log is not usable,
        STALE_CONTROLLER_EPOCH where it is, but the leader epoch is not new (it is ignored),
        INELIGIBLE_REPLICA where it follows, but may lack records and would refuse to lead,
        INCONSISTENT_TOPIC_ID where the log here is that of another topic,
        UNKNOWN_TOPIC_OR_PARTITION where this broker is no replica.

        Raises:
            StoreError: the settings of a topic cannot be read; the controller sends this again.
        """
        try:
            self._fence.admit(request.controller_epoch, request.broker_epoch)
        except KafkaError as refusal:
            log.warning("LeaderAndIsr of controller %d: %s", request.controller_id, refusal)
            return LeaderAndIsrResponse(error_code=refusal.code, topics=[])
        if request.type == DRAIN:
            return self._drain_led(request)
        leading: list[Partition] = []
        following: list[Partition] = []
        refused: dict[str, list[TopicPartition]] = {}
        names = [topic.topic_name for topic in request.topic_states]
        # Once a replica has its role, the same order is not new to it: a failure must leave no
        # role untold.
        try:
            with self._lock:
                settings = self._settings_of(names)
                self.replica_logs.make_new(request.topic_states, settings, self._partitions)
                named = [
                    TopicPartition(topic.topic_name, state.partition_index)
                    for topic in request.topic_states
                    for state in topic.partition_states
                ]
                # No fetch brings a log on while its role changes.
                if self._fetchers is not None:
                    self._fetchers.forget(named)
                try:
                    answers = self._take_up_all(request, settings, leading, following, refused)
                finally:
                    if self._fetchers is not None:
                        self._fetchers.follow(self._followed(named))
        finally:
            for reason, partitions in refused.items():
                log_partitions(
                    self._lines,
                    logging.ERROR,
                    "cannot start replica %s: %s",
                    partitions,
                    reason,
                    plural="cannot start replicas of %s: %s",
                )
            self._tell_leadership(leading, following)
        # A change since the first read has not reached replicas that were not registered. The last
        # step: if the store is away, the controller's next attempt repeats nothing else.
        self._settings_of(names)
        return LeaderAndIsrResponse(error_code=ErrorCode.NONE, topics=answers)

    def _drain_led(self, request: LeaderAndIsrRequest) -> LeaderAndIsrResponse:
        """Give followers all records of these, and take no more: another broker leads next."""
        led = []
        for topic in request.topic_states:
            for state in topic.partition_states:
                one = self._partitions.get(TopicPartition(topic.topic_name, state.partition_index))
                if one is not None and one.leads_in(state.leader_epoch):
                    led.append(one)
        self._drain(led)
        return LeaderAndIsrResponse(error_code=ErrorCode.NONE, topics=[])

    def _followed(self, named: Iterable[TopicPartition]) -> list[Partition]:
        """Return those that this broker follows, also where the order was not new."""
        known = [self._partitions.get(at) for at in named]
        return [
            one
            for one in known
            if one is not None and not one.is_leader and one.hosted_log is not None
        ]

    def _take_up_all(
        self,
        request: LeaderAndIsrRequest,
        settings: Mapping[str, TopicSettings],
        leading: list[Partition],
        following: list[Partition],
        refused: dict[str, list[TopicPartition]],
    ) -> list[LeaderAndIsrTopicError]:
        """Take up each replica; add it to those that lead or follow, or its refusal to the others.

        `refused` has by reason the partitions whose refusal is to be logged.
        """
        answers: list[LeaderAndIsrTopicError] = []
        for topic in request.topic_states:
            errors = []
            for state in topic.partition_states:
                at = TopicPartition(topic.topic_name, state.partition_index)
                code = ErrorCode.NONE
                lacked_space = self._refused.lacked_space(at)
                known = self._partitions.get(at)
                was_offline = known.offline_reason if known is not None else None
                has_led = known is not None and known.is_leader
                try:
                    partition = self._take_up(at, topic.topic_id, state, settings[at.topic])
                    (leading if partition.is_leader else following).append(partition)
                    self.leaderships_taken += partition.is_leader and not has_led
                except KafkaError as refusal:
                    code = refusal.code
                    # Why one is offline was said when it went, for all of a directory at once.
                    # It may be recovered by now, of which nobody has told here yet.
                    told = (
                        at in self._logs.offline
                        or str(refusal) == was_offline
                        or (lacked_space and self._refused.lacked_space(at))
                    )
                    if code != ErrorCode.STALE_CONTROLLER_EPOCH and not told:
                        refused.setdefault(str(refusal), []).append(at)
                if code in USABLE and self._lacks_records(at):
                    code = INCOMPLETE
                errors.append(
                    LeaderAndIsrPartitionError(partition_index=at.partition, error_code=code)
                )
            answers.append(LeaderAndIsrTopicError(topic_id=topic.topic_id, partition_errors=errors))
        return answers

    def _lacks_records(self, at: TopicPartition) -> bool:
        log = self._partitions[at].hosted_log
        return log is not None and log.lack is not None

    def _take_up(
        self,
        at: TopicPartition,
        topic_id: uuid.UUID,
        state: LeaderAndIsrPartitionState,
        settings: TopicSettings,
    ) -> Partition:
        if self._broker_id not in state.replicas:
            raise UnknownTopicOrPartition(f"{at} has no replica on broker {self._broker_id}")
        known = self._partitions.get(at)
        if known is not None and topic_id not in (known.topic_id, ZERO_UUID):
            raise InconsistentTopicId(f"{at} has topic id {known.topic_id} here, not {topic_id}")
        leadership = Leadership(
            state.leader,
            state.leader_epoch,
            tuple(state.isr),
            tuple(state.replicas),
            state.partition_epoch,
            state.controller_epoch,
            tuple(state.adding_replicas),
        )
        lacked_space = self._refused.lacked_space(at)
        # An order that has not been carried out may come again.
        again = self._refused.may_come_again(at)
        # Before the epochs: the controller asks with old ones which replicas a broker has lost.
        reason = self._logs.offline.get(at)
        if reason is None and known is not None and not again:
            reason = known.offline_reason
        if reason is None and known is not None:
            newest = known.leadership.leader_epoch
            if not again and state.leader_epoch <= newest:
                raise StaleControllerEpoch(f"{at} is at leader epoch {newest}")
            if again and state.leader_epoch < newest:
                raise KafkaStorageError(known.offline_reason or f"{at} is at epoch {newest}")
        partition = known or Partition(
            at,
            topic_id,
            broker_id=self._broker_id,
            settings=settings,
            on_change=self._on_change,
            disks=self.disks,
            in_sync_sets=self._in_sync_sets,
            publisher=self._publisher,
            traffic=next((one.traffic for one in self._by_topic.get(at.topic, {}).values()), None),
        )
        try:
            if reason is not None:
                raise KafkaStorageError(reason)
            hosted = self.replica_logs.log_of(partition, state, was_refused=lacked_space)
            self._give_role(partition, leadership, hosted)
        except ReplicaLost as lost:
            # The next leader can give all of it back. Until then an order without a leader is
            # refused, too: the controller would take this replica for one that can lead.
            self._refused.on_lost(at)
            partition.go_offline(str(lost), leadership)
            self._register(partition)
            raise
        except KafkaStorageError as failure:
            partition.go_offline(reason or str(failure), leadership)
            self._register(partition)
            self._refused.on_failure(at, failure)
            raise
        self._refused.forget(at)
        self._register(partition)
        return partition

    def _give_role(self, partition: Partition, leadership: Leadership, log: Log) -> None:
        """Lead or follow; with the log that replaces `log`, if this one moves meanwhile."""
        leads = leadership.leader == self._broker_id
        give = partition.make_leader if leads else partition.make_follower
        if leads and log.lack is not None:
            self._lines.warning(
                "%s is led from here, although this replica %s",
                partition.topic_partition,
                log.lack.reason,
            )
            log.complete()
        try:
            give(leadership, log)
        except KafkaStorageError:
            moved = self._logs.get(partition.topic_partition)
            if moved is None or moved is log:
                raise
            give(leadership, moved)

    def _register(self, partition: Partition) -> None:
        at = partition.topic_partition
        is_first = at not in self._partitions
        self._partitions[at] = partition
        self._by_id[partition.topic_id, at.partition] = partition
        self._by_topic.setdefault(at.topic, {})[at.partition] = partition
        if is_first:  # the role woke those who wait, when it could not be found here yet
            self._on_change(at)

    # -- StopReplica -------------------------------------------------------------------------

    def apply_stop_replica(self, request: StopReplicaRequest) -> StopReplicaResponse:
        """Stop replicas, and delete those that the controller says.

        Codes of a partition: FENCED_LEADER_EPOCH where the order is older than the
        replica's role, KAFKA_STORAGE_ERROR where its log is not usable.
        """
        try:
            self._fence.admit(request.controller_epoch, request.broker_epoch)
        except KafkaError as refusal:
            log.warning("StopReplica of controller %d: %s", request.controller_id, refusal)
            return StopReplicaResponse(error_code=refusal.code, partition_errors=[])
        errors = []
        deleted = []
        with self._lock:
            for topic in request.topic_states:
                for state in topic.partition_states:
                    at = TopicPartition(topic.topic_name, state.partition_index)
                    code = ErrorCode.NONE
                    try:
                        if self._stop(at, state):
                            deleted.append(at)
                    except KafkaError as refusal:
                        code = refusal.code
                        self._lines.error("cannot stop %s: %s", at, refusal)
                    errors.append(
                        StopReplicaPartitionError(
                            topic_name=at.topic, partition_index=at.partition, error_code=code
                        )
                    )
        log_partitions(self._deletions, logging.INFO, "deleted %s", deleted)
        return StopReplicaResponse(error_code=ErrorCode.NONE, partition_errors=errors)

    def _stop(self, at: TopicPartition, state: StopReplicaPartitionState) -> bool:
        """Stop a replica; return whether its log was deleted."""
        partition = self._partitions.get(at)
        if partition is not None and 0 <= state.leader_epoch < partition.leadership.leader_epoch:
            raise FencedLeaderEpoch(f"{at} is at leader epoch {partition.leadership.leader_epoch}")
        reason = self._logs.offline.get(at)
        if reason is not None and state.delete_partition and self._logs.offline_log_dirs:
            # A damaged log can be deleted; one on a failed disk would be back with the disk.
            raise KafkaStorageError(f"{at} is offline: {reason}")
        if self._fetchers is not None:
            self._fetchers.forget([at])
        if partition is not None:
            was_leader = partition.is_leader
            partition.stop()
            if was_leader:
                self._tell_leadership([], [partition])
        if not state.delete_partition:
            return False
        if partition is not None:
            del self._partitions[at]
            self._refused.forget(at)
            self._by_id.pop((partition.topic_id, at.partition), None)
            same_topic = self._by_topic[at.topic]
            del same_topic[at.partition]
            if not same_topic:
                del self._by_topic[at.topic]
        if self._logs.get(at) is not None or at in self._logs.offline:
            self._logs.delete(at)
            return True
        return False

    def check_taken_up(self, topic: str) -> None:
        """Check that no log of a topic was refused here; `ask_again_for_refused` makes it later.

        Raises:
            KafkaStorageError: the disk is full, or no file descriptor is left; it says which.
        """
        refused = [at.partition for at in self._refused.without_space(topic)]
        if not refused:
            return
        partition = self._partitions.get(TopicPartition(topic, refused[0]))
        reason = None if partition is None else partition.offline_reason
        raise KafkaStorageError(
            f"topic {topic!r} exists, but {counted(len(refused), 'partition')} cannot be opened yet"
            f" ({', '.join(map(str, refused[:MOST_NAMED]))}"
            f"{', ...' if len(refused) > MOST_NAMED else ''}). The broker needs free file"
            f" descriptors and disk space, and tries again: {reason}"
        )

    def ask_again_for_refused(self) -> None:
        """Have the controller repeat its orders, if some were refused and can be obeyed now.

        To be called from time to time: nothing tells when space or descriptors are free again.
        """
        if any(self._logs.has_space_for(at) for at in self._refused.without_space()):
            self._log_dir_failed()

    def on_late_recovery(self, topic_partitions: Iterable[TopicPartition]) -> None:
        """Have the controller repeat its orders about replicas that had no log until now."""
        with self._lock:
            refused = self._partitions.keys() & set(topic_partitions)
            self._refused.on_recovered(refused)
        if refused:
            self._log_dir_failed()

    def on_in_sync(self, topic_partition: TopicPartition, led: Led) -> None:
        """Take note that the controller has written another in-sync set of a partition."""
        if (partition := self.get(topic_partition)) is not None:
            partition.take_in_sync(led)

    # -- failures ----------------------------------------------------------------------------

    def on_log_dir_failure(self, log_dir: Path, reason: str) -> None:
        """Take the replicas in a failed log directory offline, and have the controller told."""
        lost = [
            one
            for one in self.partitions
            if (hosted := one.hosted_log) is not None and hosted.log_dir == log_dir
        ]
        self._lose(f"log directory {log_dir} is offline: {reason}", lost)
        self._log_dir_failed()

    def on_log_moved(self, old: Log, moved: Log) -> None:
        """Serve a replica from the log directory it has moved to."""
        if (partition := self.get(old.topic_partition)) is not None:
            partition.replace_log(old, moved)

    def on_damage(self, topic_partition: TopicPartition, reason: str) -> None:
        """Take one replica offline whose bytes are damaged, and have the controller told.

        Does nothing if the log was deleted since: the partition may have been created again.
        """
        with self._lock:
            if topic_partition not in self._logs.offline:
                return
            partition = self._partitions.get(topic_partition)
            self._lose(reason, [] if partition is None else [partition])
        self._log_dir_failed()

    def _lose(self, reason: str, partitions: list[Partition]) -> None:
        if self._fetchers is not None and partitions:
            self._fetchers.forget([one.topic_partition for one in partitions])
        for partition in partitions:
            partition.go_offline(reason)
        self._tell_leadership([], partitions)
