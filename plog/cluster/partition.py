"""One partition as this broker has it: who leads it by whose word, and its log if it is here.

Owns the replica's role and the checks that stand before every append and read. The
numbers of the log live in the log; how followers catch up and who is in sync is
decided elsewhere and published here.

Threads: one thread at a time changes the role (`make_leader`, `make_follower`,
`go_offline`, `stop`: whoever takes the controller's orders, or the log manager's).
Any thread may check, append and read: the role is one immutable object that is
replaced, and the log itself refuses appends once it is no longer led here.
"""

from __future__ import annotations

import threading
import uuid
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import Protocol

from plog._native.partition_followers import MAY_JOIN, UNKNOWN, followers_of, note_follower
from plog._native.partition_guards import TxnGuard
from plog._native.partition_log import APPENDED, Appended, PartitionLog
from plog._native.topic_traffic import TopicTraffic
from plog.cluster.disks import Disks
from plog.cluster.leadership import UNTOLD, Leadership
from plog.cluster.replication.isr import shown_to_followers
from plog.cluster.znodes import NO_LEADER
from plog.errors import (
    FencedLeaderEpoch,
    KafkaStorageError,
    NotEnoughReplicas,
    NotLeaderOrFollower,
    UnknownLeaderEpoch,
)
from plog.settings.definitions import TopicSettings
from plog.storage.log import Log
from plog.storage.producer_state import Marker
from plog.types import NO_EPOCH, NO_OFFSET, TopicPartition, counted

ACKS_ALL = -1


class OnChange(Protocol):
    """Told that waiters on a partition should look again; any thread, must be quick."""

    def __call__(self, topic_partition: TopicPartition, /) -> None:
        """Wake them."""
        ...


class Led(Protocol):
    """The in-sync set of a partition with several replicas, in one epoch that is led here."""

    @property
    def isr(self) -> tuple[int, ...]:
        """As it was last known to be written."""
        ...

    @property
    def partition_epoch(self) -> int:
        """The version of the state with that set."""
        ...

    @property
    def counted(self) -> int:
        """How many count: this broker, members, and those that are about to be."""
        ...

    @property
    def is_fresh(self) -> bool:
        """Whether all that count have followed this leader lately."""
        ...

    def set_least_in_sync(self, least_in_sync: int) -> None:
        """Obey another min.insync.replicas from now on."""
        ...

    def move_to(self, native: PartitionLog) -> None:
        """Go on with another copy of the log."""
        ...


class InSyncSets(Protocol):
    """Keeps the in-sync sets. Any thread; must be quick."""

    def lead(
        self,
        at: TopicPartition,
        native: PartitionLog,
        leadership: Leadership,
        *,
        least_in_sync: int,
    ) -> Led:
        """Keep the set of a partition in a new leader epoch, in which `native` leads already."""
        ...

    def cease(self, at: TopicPartition, /) -> None:
        """Keep it no more."""
        ...


class Publisher(Protocol):
    """Told which partitions may be served without asking here."""

    def publish(self, partition: Partition, /) -> None:
        """Take note of a partition that this broker leads, as it is now."""
        ...

    def withdraw(self, topic_partition: TopicPartition, /) -> None:
        """Serve it no more."""
        ...

    def may_join(self, partition: Partition, broker_id: int, /) -> None:
        """Take note of a follower that may join the in-sync set."""
        ...


class Partition:
    """A replica of a partition on this broker.

    Invariant: `is_leader` implies a log that accepts appends of `leadership.leader_epoch`,
    unless the partition is offline.
    """

    def __init__(
        self,
        topic_partition: TopicPartition,
        topic_id: uuid.UUID,
        *,
        broker_id: int,
        settings: TopicSettings,
        on_change: OnChange,
        disks: Disks,
        in_sync_sets: InSyncSets,
        publisher: Publisher | None = None,
        traffic: TopicTraffic | None = None,
    ) -> None:
        self.topic_partition = topic_partition
        self.topic_id = topic_id
        self._broker_id = broker_id
        self._settings = settings
        self._on_change = on_change
        self._disks = disks
        self._in_sync_sets = in_sync_sets
        self._led: Led | None = None
        self._publisher = publisher
        self.traffic = traffic or TopicTraffic()
        """Shared by the partitions of the topic."""
        self._lock = threading.Lock()
        self._leadership = UNTOLD
        self._log: Log | None = None
        self._offline_reason: str | None = None
        self._leaders_high_watermark = 0

    def __repr__(self) -> str:
        where = self._offline_reason or repr(self._leadership)
        return f"<Partition {self.topic_partition} {where}>"

    # -- what it is --------------------------------------------------------------------------

    @property
    def leadership(self) -> Leadership:
        """Leader, epochs, in-sync set and replicas, as one object."""
        return self._leadership

    @property
    def is_leader(self) -> bool:
        """Whether this broker leads the partition."""
        return self._leadership.leader == self._broker_id

    def leads_in(self, leader_epoch: int) -> bool:
        """Return whether this broker leads the partition in a leader epoch."""
        return self.is_leader and self._leadership.leader_epoch == leader_epoch

    @property
    def is_fresh(self) -> bool:
        """Whether this broker leads, and would know if another one did by now.

        A broker that was stopped past its session goes on as a leader until it hears otherwise.
        """
        leadership, led = self._leadership, self._led
        if leadership.leader != self._broker_id:
            return False
        return self._is_sole(leadership) or (led is not None and led.is_fresh)

    @property
    def offline_reason(self) -> str | None:
        """Why the log cannot be used; None if it can."""
        return self._offline_reason

    @property
    def hosted_log(self) -> Log | None:
        """The log, if there is one here and it is usable."""
        return None if self._offline_reason else self._log

    @property
    def log(self) -> Log:
        """The log.

        Raises:
            KafkaStorageError: the partition is offline here.
            NotLeaderOrFollower: there is no replica here (any more).
        """
        if self._offline_reason is not None:
            raise KafkaStorageError(f"{self.topic_partition} is offline: {self._offline_reason}")
        if self._log is None:
            raise NotLeaderOrFollower(f"no replica of {self.topic_partition} here")
        return self._log

    @property
    def settings(self) -> TopicSettings:
        """The topic's effective settings."""
        return self._settings

    @property
    def least_in_sync(self) -> int:
        """How many replicas acks=all needs: min.insync.replicas, but no more than there are.

        Kafka's rule since 3.x: else a topic of one replica could not be written with acks=all where
        the brokers' file says 2.
        """
        return self._least_of(self._leadership)

    def _least_of(self, leadership: Leadership) -> int:
        return min(self._settings.min_insync_replicas, len(leadership.replicas))

    def _is_sole(self, leadership: Leadership) -> bool:
        return leadership.replicas == (self._broker_id,)

    def update_settings(self, settings: TopicSettings) -> None:
        """Obey other settings from now on."""
        with self._lock:
            self._settings = settings
            if (log := self.hosted_log) is not None:
                self._apply_settings(log)
            self._publish()

    def _apply_settings(self, log: Log) -> None:
        log.update_settings(self._settings)
        if self._led is not None:
            self._led.set_least_in_sync(self.least_in_sync)

    def _publish(self) -> None:
        """Under the lock, after a change of what may be served without asking here."""
        if self._publisher is not None and self.is_leader:
            self._publisher.publish(self)

    def _lead_no_more(self) -> None:
        """Under the lock, before the role changes."""
        if self._publisher is not None:
            self._publisher.withdraw(self.topic_partition)
        self._keep_no_set()

    def _keep_no_set(self) -> None:
        if self._led is not None:
            self._in_sync_sets.cease(self.topic_partition)
            self._led = None

    # -- the controller's orders -------------------------------------------------------------

    def make_leader(self, leadership: Leadership, log: Log) -> None:
        """Lead. Appends of older epochs are refused before this returns.

        Raises:
            KafkaStorageError: the epoch cannot be written down, or another log has replaced this
                one; the role is unchanged.
        """
        with self._lock:
            least, is_sole = self._least_of(leadership), self._is_sole(leadership)
            log.become_leader(
                leadership.leader_epoch,
                sole_replica=is_sole,
                enough_in_sync=len(leadership.isr) >= least,
            )
            self._log, self._offline_reason = log, None
            self._leadership = leadership
            if is_sole:
                self._keep_no_set()
            else:
                self._led = self._in_sync_sets.lead(
                    self.topic_partition, log.native, leadership, least_in_sync=least
                )
            self._publish()
        self._on_change(self.topic_partition)

    def make_follower(self, leadership: Leadership, log: Log) -> None:
        """Follow, or wait for a leader: refuse appends by clients.

        Raises:
            KafkaStorageError: another log has replaced this one; the role is unchanged.
        """
        with self._lock:
            self._lead_no_more()
            log.become_follower(leadership.leader_epoch)
            self._log, self._offline_reason = log, None
            self._leadership = leadership
            self._leaders_high_watermark = 0
        self._on_change(self.topic_partition)

    def take_in_sync(self, led: Led) -> None:
        """Take note of the set that the controller has written for this leader (KIP-497)."""
        with self._lock:
            if self._led is not led:
                return
            self._leadership = self._leadership._replace(
                isr=led.isr, partition_epoch=led.partition_epoch
            )
        self._on_change(self.topic_partition)

    def refuse_appends(self) -> bool:
        """Take no more records, as another broker is about to lead; return whether this one led.

        Until the next order, or `accept_appends`.
        """
        with self._lock:
            log = self.hosted_log if self.is_leader else None
            if log is not None:
                log.refuse_appends()
        self._on_change(self.topic_partition)
        return log is not None

    def accept_appends(self, leadership: Leadership) -> None:
        """Take records again, if this broker still leads as it did when it refused them."""
        with self._lock:
            leads = self.leads_in(leadership.leader_epoch)
            if leads and (log := self.hosted_log) is not None:
                log.accept_appends()
        self._on_change(self.topic_partition)

    @property
    def is_drained(self) -> bool:
        """Whether all in sync have what this leader has."""
        log = self.hosted_log
        return log is None or not self.is_leader or log.high_watermark >= log.log_end_offset

    def go_offline(self, reason: str, leadership: Leadership | None = None) -> None:
        """Answer KAFKA_STORAGE_ERROR from now on; what the controller said stays known."""
        with self._lock:
            self._lead_no_more()
            self._offline_reason = reason
            if leadership is not None:
                self._leadership = leadership
        self._on_change(self.topic_partition)

    def replace_log(self, old: Log, moved: Log) -> None:
        """Serve from another copy of the log: it has moved to another log directory.

        A replica that has another log, or none, stays as it is.
        """
        with self._lock:
            if self._log is old or self._log is moved:  # LeaderAndIsr may have set it
                self._log = moved
                if self._led is not None:
                    self._led.move_to(moved.native)
                self._apply_settings(moved)  # the old log may have got them as it was replaced
                self._publish()
        self._on_change(self.topic_partition)

    def stop(self) -> Log | None:
        """Have no replica here any more. Returns the log that was served, to be kept or deleted."""
        with self._lock:
            self._lead_no_more()
            log, self._log = self._log, None
            if log is not None and self._offline_reason is None:
                with suppress(KafkaStorageError):  # it has moved, and refuses appends already
                    log.become_follower(self._leadership.leader_epoch)
            self._leadership = self._leadership._replace(leader=NO_LEADER)
        self._on_change(self.topic_partition)
        return log

    # -- what clients and followers do -------------------------------------------------------

    def check_leader(self, current_leader_epoch: int = NO_EPOCH) -> None:
        """Refuse whoever believes in another leader, or another epoch of this one (KIP-320).

        Raises:
            FencedLeaderEpoch: the client's epoch is older.
            UnknownLeaderEpoch: the client's epoch is newer: this broker has not heard yet.
            NotLeaderOrFollower: this broker does not lead the partition.
            KafkaStorageError: it would, but the log is offline.
        """
        known = self._leadership
        if current_leader_epoch != NO_EPOCH:
            if current_leader_epoch < known.leader_epoch:
                raise FencedLeaderEpoch(
                    f"{self.topic_partition} is at leader epoch {known.leader_epoch},"
                    f" the request has {current_leader_epoch}"
                )
            if current_leader_epoch > known.leader_epoch:
                raise UnknownLeaderEpoch(
                    f"{self.topic_partition} is at leader epoch {known.leader_epoch} here,"
                    f" the request has {current_leader_epoch}"
                )
        if self._offline_reason is not None:
            raise KafkaStorageError(f"{self.topic_partition} is offline: {self._offline_reason}")
        if known.leader != self._broker_id:
            raise NotLeaderOrFollower(f"{self.topic_partition} is led by broker {known.leader}")

    def append(
        self,
        records: bytearray | memoryview,
        *,
        acks: int,
        now_ms: int,
        guard: TxnGuard | None = None,
    ) -> Appended:
        """Append one validated batch as leader; offsets are stamped into `records`.

        Raises:
            NotEnoughReplicas: acks=all, and fewer replicas are in sync than `least_in_sync`.
            NotLeaderOrFollower, KafkaStorageError: as `check_leader`.
            KafkaError: whatever `Log.append_as_leader` raises.
        """
        log = self._log_for_append(acks)
        return self._noted(log, log.append_as_leader(records, now_ms=now_ms, guard=guard))

    def append_for_coordinator(
        self, records: bytearray, *, now_ms: int, guard: TxnGuard | None
    ) -> Appended:
        """Append what a coordinator writes for a producer's transaction, with acks=all.

        Raises as `append`.
        """
        log = self._log_for_append(ACKS_ALL)
        return self._noted(
            log, log.transactions.append_for_coordinator(records, now_ms=now_ms, guard=guard)
        )

    def append_marker(
        self, producer_id: int, producer_epoch: int, marker: Marker, *, now_ms: int
    ) -> Appended:
        """End a producer's transaction here, with acks=all.

        Raises as `append`, and what `LogTransactions.append_marker` raises.
        """
        log = self._log_for_append(ACKS_ALL)
        return self._noted(
            log, log.transactions.append_marker(producer_id, producer_epoch, marker, now_ms=now_ms)
        )

    def _log_for_append(self, acks: int) -> Log:
        self.check_leader()
        if acks == ACKS_ALL and (led := self._led) is not None:
            in_sync, least = led.counted, self.least_in_sync
            if in_sync < least:
                raise NotEnoughReplicas(
                    f"{self.topic_partition}: {counted(in_sync, 'replica')} in sync,"
                    f" min.insync.replicas is {least}"
                )
        return self.log

    def _noted(self, log: Log, appended: Appended) -> Appended:
        if appended.status == APPENDED:  # what is not written says nothing of a disk
            self._disks.note_append(log.log_dir, appended.took_us)
        self._on_change(self.topic_partition)
        return appended

    def check_follower(self, broker_id: int, broker_epoch: int, leader_epoch: int) -> None:
        """Refuse to serve a broker as a follower that is none.

        Raises:
            NotLeaderOrFollower: it has registered again since, or does not say a leader epoch.
            UnknownLeaderEpoch: it agrees with this leader on the epoch, so it may become one that
                is only not known here yet.
            KafkaStorageError: as `log`.
        """
        who = f"broker {broker_id} is not a replica of {self.topic_partition}"
        if leader_epoch == NO_EPOCH:
            raise NotLeaderOrFollower(who)
        for follower in followers_of(self.log.native):
            if follower.broker_id == broker_id:
                if broker_epoch < follower.broker_epoch:
                    raise NotLeaderOrFollower(f"{who} under broker epoch {broker_epoch} any more")
                return
        raise UnknownLeaderEpoch(who)

    def note_follower(
        self,
        broker_id: int,
        broker_epoch: int,
        leader_epoch: int,
        position: int,
        log_start_offset: int,
        came_ms: int,
    ) -> None:
        """Take over which records a follower has; one that is none is refused.

        Raises as `check_follower`.
        """
        status = note_follower(
            self.log.native,
            broker_id,
            position,
            broker_epoch=broker_epoch,
            leader_epoch=leader_epoch,
            log_start_offset=log_start_offset,
            now_ms=came_ms,
        )
        if status == UNKNOWN:  # it was one a moment ago
            raise NotLeaderOrFollower(f"broker {broker_id} follows {self.topic_partition} no more")
        if status == MAY_JOIN and self._publisher is not None:
            self._publisher.may_join(self, broker_id)
        log = self.log
        if self._settings.flush_before_ack and log.high_watermark > log.durable_end:
            log.flush_soon()  # answers to followers say no more than is durable
        self._on_change(self.topic_partition)

    def note_leader(self, high_watermark: int) -> None:
        """Take note of the high watermark that the leader of now says."""
        self._leaders_high_watermark = high_watermark

    @property
    def offset_lag(self) -> int:
        """How far the log of a follower ends behind its leader's high watermark, as last heard."""
        log = self.hosted_log
        if log is None or self.is_leader:
            return 0
        return max(self._leaders_high_watermark - log.log_end_offset, 0)

    def advance_high_watermark(self, offset: int) -> None:
        """Take the leader's high watermark over. It never goes back. Raises as `log`."""
        if self.log.native.advance_high_watermark(offset):
            self._on_change(self.topic_partition)

    def low_watermark(self, is_alive: Callable[[int], bool]) -> int:
        """Return the offset below which no live replica has records any more, as its leader.

        A follower that has not fetched in this leader epoch counts as -1. Raises as `log`.
        """
        native = self.log.native
        # Of those in the order: the struct has none for a moment while the role changes.
        others = [one for one in self._leadership.replicas if one != self._broker_id]
        known = {one.broker_id: one.log_start_offset for one in followers_of(native)}
        starts = [known.get(one, NO_OFFSET) for one in others if is_alive(one)]
        return min([native.log_start_offset, *starts])

    @property
    def shown_to_followers(self) -> int:
        """The high watermark that answers to followers have. Raises as `log`."""
        log = self.log
        if not self._settings.flush_before_ack:
            return log.high_watermark
        return shown_to_followers(log.high_watermark, log.durable_end)

    def readable_end(self, *, read_committed: bool) -> int:
        """Return the offset that a consumer may read up to: high watermark or last stable offset.

        Raises:
            KafkaStorageError, NotLeaderOrFollower: as `log`.
        """
        log = self.log
        return log.last_stable_offset if read_committed else log.high_watermark


SettingsOf = Callable[[Sequence[str]], Mapping[str, TopicSettings]]
"""Gives the effective settings of topics; reads the store, so not on the asyncio loop."""
