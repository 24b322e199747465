"""A consumer in a group: it shares partitions with the other members and commits its positions.

Owns the positions when partitions are assigned and revoked, and the times of commits.
`group_membership` owns the group protocol, `group_offsets` the commits, `consumer` the reading. Not
thread-safe.
"""

from __future__ import annotations

import logging
import re
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import NamedTuple

from plog.client.assignors import ASSIGNORS, RANGE, Subscription
from plog.client.attempts import RETRY_BACKOFF_S
from plog.client.consumer import Consumer, ConsumerRecord
from plog.client.group_membership import (
    CommitFailed,
    GroupMetadata,
    Membership,
    State,
    Timeouts,
)
from plog.client.group_offsets import GroupOffsets
from plog.client.metadata import Cluster
from plog.client.offsets import OffsetAndMetadata, OffsetAndTimestamp, Offsets, with_metadata
from plog.client.retry_log import RetryLog
from plog.errors import InvalidConfig, KafkaError, RebalanceInProgress
from plog.types import TopicPartition

__all__ = [
    "CommitFailed",
    "GroupConsumer",
    "GroupMetadata",
    "Listener",
    "OffsetAndMetadata",
    "RebalanceInProgress",
]

log = logging.getLogger(__name__)

Partitions = list[TopicPartition]

LEAVE_PATIENCE_S = 3.0
"""How long `close` waits for a rebalance to end before it leaves."""
LOOK_AROUND_S = 0.1
"""How long `poll` waits for records, or for other members, before it checks the group."""
MISSING_TOPIC_S = 0.5
"""How often topics are looked up while one does not exist, or is unknown to the asked broker."""


class Listener(NamedTuple):
    """The callbacks of an application about its partitions. `poll` calls them.

    Args:
        on_assigned: after partitions are assigned, and their committed offsets are set.
        on_revoked: before partitions are revoked; the application may still commit.
        on_lost: after partitions are lost; other members may have them. None: as `on_revoked`.
    """

    on_assigned: Callable[[Partitions], None] = lambda _: None
    on_revoked: Callable[[Partitions], None] = lambda _: None
    on_lost: Callable[[Partitions], None] | None = None


class GroupConsumer:
    """Reads the partitions that its group assigns to it.

    An example with a text for each position, which the next owner may read (`committed`):

        with GroupConsumer("localhost:9092", "billing", enable_auto_commit=False) as consumer:
            consumer.subscribe(["payments"])
            while records := consumer.poll(60_000):
                handle(records)
                consumer.commit(
                    {at: one._replace(metadata="v2") for at, one in consumer.positions().items()}
                )

    Args:
        bootstrap_servers: "host:port,...".
        group_id: the group.
        group_instance_id: a name that the member keeps over restarts (KIP-345).
        assignors: names of assignors, the preferred first: range, roundrobin, sticky,
            cooperative-sticky. If all are cooperative, members keep and read the partitions that
            stay during a rebalance; a `commit` may have to wait for its end.
        enable_auto_commit: commit the records of earlier polls every auto_commit_interval_ms, and
            before partitions are revoked.
        session_timeout_ms, heartbeat_interval_ms, max_poll_interval_ms: as Kafka's.
        metadata_max_age_ms: how often topics and their partitions are looked up, once all exist.
            With a pattern they are also looked up before each rebalance.
        reading: arguments of `Consumer`, such as auto_offset_reset and isolation_level.

    Raises:
        InvalidConfig: an argument is invalid.
    """

    def __init__(
        self,
        bootstrap_servers: str | Iterable[str],
        group_id: str,
        *,
        client_id: str = "plog-consumer",
        group_instance_id: str | None = None,
        assignors: Sequence[str] = (RANGE.name,),
        enable_auto_commit: bool = True,
        auto_commit_interval_ms: int = 5_000,
        session_timeout_ms: int = 45_000,
        heartbeat_interval_ms: int = 3_000,
        max_poll_interval_ms: int = 300_000,
        metadata_max_age_ms: int = 300_000,
        request_timeout_ms: int = 30_000,
        **reading: object,
    ) -> None:
        if not group_id:
            raise InvalidConfig("group_id is empty")
        unknown = [name for name in assignors if name not in ASSIGNORS]
        if unknown or not assignors:
            raise InvalidConfig(
                f"invalid assignors={list(assignors)!r}: use {', '.join(ASSIGNORS)}"
            )
        chosen = [ASSIGNORS[name] for name in assignors]
        self._is_cooperative = all(one.is_cooperative for one in chosen)
        self._cluster = Cluster(
            bootstrap_servers, client_id=client_id, request_timeout_ms=request_timeout_ms
        )
        self.reader = Consumer(
            bootstrap_servers,
            client_id=client_id,
            request_timeout_ms=request_timeout_ms,
            **reading,  # type: ignore[arg-type]
        )
        self._membership = Membership(
            self._cluster,
            group_id,
            instance_id=group_instance_id,
            assignors=chosen,
            timeouts=Timeouts(session_timeout_ms, heartbeat_interval_ms, max_poll_interval_ms),
            partition_counts=self._partition_counts,
        )
        self._offsets = GroupOffsets(self._membership, timeout_s=request_timeout_ms / 1000)
        self._listener = Listener()
        self._wanted: re.Pattern[str] | frozenset[str] = frozenset()
        self._topics: tuple[str, ...] = ()
        self._metadata_max_age_s = metadata_max_age_ms / 1000
        self._look_again_at = 0.0
        self._missing: set[str] = set()  # topics that do not exist
        self._retries = RetryLog(log)
        self._auto_commit_s = auto_commit_interval_ms / 1000 if enable_auto_commit else None
        self._commit_at = 0.0
        self._committed: dict[TopicPartition, int] = {}
        self._has_entered = False  # the generation that the membership is in

    def __enter__(self) -> GroupConsumer:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Commit (with enable_auto_commit), give the partitions up, leave and close.

        A cooperative member that has read during a rebalance waits some seconds for its end to
        commit. Otherwise other members would read its records again. A coordinator that does not
        answer the commit and the leave holds the call for request_timeout_ms each.
        """
        try:
            self._leave()
        finally:
            self.reader.close()
            self._cluster.close()

    def _leave(self) -> None:
        membership = self._membership
        owned = self.reader.assignment()
        try:
            if owned:
                self._finish_rebalance()
            if membership.state is State.INSIDE and not membership.is_lost:
                self._give_up(owned)
        finally:
            membership.close()

    def _finish_rebalance(self) -> None:
        """Wait up to LEAVE_PATIENCE_S for the next generation, in which the member can commit."""
        membership = self._membership
        deadline = time.monotonic() + LEAVE_PATIENCE_S
        try:
            while (
                membership.state is not State.INSIDE
                and not membership.is_lost
                and time.monotonic() < deadline
            ):
                self._go_inside(deadline, reads_on=False)
        except KafkaError as fault:
            log.warning("group %r: %s", membership.group_id, fault)

    # -- topics and positions ------------------------------------------------------------------

    def subscribe(
        self, topics: Iterable[str] | re.Pattern[str], listener: Listener | None = None
    ) -> None:
        """Read these topics, or all with matching names, together with the other members.

        Without topics it is `unsubscribe`.
        """
        wanted = topics if isinstance(topics, re.Pattern) else frozenset(topics)
        if not wanted:
            self.unsubscribe()
            return
        self._wanted = wanted
        self._listener = listener or Listener()
        self._look_again_at = 0.0
        self._rejoin_with_topics()

    def unsubscribe(self) -> None:
        """Commit (with enable_auto_commit), give the partitions up, and leave the group."""
        try:
            self._leave()
        finally:
            try:
                self._lose(self.reader.assignment())  # the listener can no longer commit
            finally:
                self._wanted, self._topics = frozenset(), ()

    def subscription(self) -> list[str]:
        """Return the subscribed topics that are known."""
        return list(self._topics)

    def assignment(self) -> Partitions:
        """Return the partitions of this member."""
        return self.reader.assignment()

    @property
    def has_coordinator(self) -> bool:
        """Whether the group has taken this member in, or has it wait for the other members.

        Before that, and without its committed offsets, `poll` tries again.
        """
        state = self._membership.state
        return self._has_entered if state is State.INSIDE else state is not State.OUTSIDE

    def partitions_for(self, topic: str) -> Partitions:
        """Return all partitions of a topic. Raises as `Consumer.partitions_for`."""
        return self.reader.partitions_for(topic)

    def seek(self, partition: TopicPartition, offset: int | OffsetAndMetadata) -> None:
        """Set the position of the next poll. Raises as `Consumer.seek`."""
        self.reader.seek(partition, offset)

    def seek_to_beginning(self, partitions: Iterable[TopicPartition] | None = None) -> None:
        """Go to the log start offset of each partition (by default all of this member)."""
        self.reader.seek_to_beginning(partitions)

    def seek_to_end(self, partitions: Iterable[TopicPartition] | None = None) -> None:
        """Go to the end of each partition (by default all of this member)."""
        self.reader.seek_to_end(partitions)

    def position(self, partition: TopicPartition) -> int:
        """Return the offset of the next record that poll returns. Raises as `Consumer.position`."""
        return self.reader.position(partition)

    def pause(self, partitions: Iterable[TopicPartition]) -> None:
        """Do not return records of these partitions until `resume`, or until they are revoked."""
        self.reader.pause(partitions)

    def resume(self, partitions: Iterable[TopicPartition]) -> None:
        """Undo `pause`."""
        self.reader.resume(partitions)

    def paused(self) -> Partitions:
        """Return the paused partitions."""
        return self.reader.paused()

    def beginning_offsets(self, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, int]:
        """Return the log start offset of each partition, of any member."""
        return self.reader.beginning_offsets(partitions)

    def end_offsets(self, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, int]:
        """Return the offset after the last readable record of each partition, of any member."""
        return self.reader.end_offsets(partitions)

    def offsets_for_times(
        self, times: Mapping[TopicPartition, int]
    ) -> dict[TopicPartition, OffsetAndTimestamp]:
        """Return the first offset of each partition, of any member, at or after a time.

        Args and errors as of `Consumer.offsets_for_times`.
        """
        return self.reader.offsets_for_times(times)

    def poll(self, timeout_ms: int = 1000) -> list[ConsumerRecord]:
        """Return records as soon as there are any, or [] after `timeout_ms`.

        Must be called again within max_poll_interval_ms: it takes part in rebalances and calls the
        listener. If the committed offsets are not known yet, for example while a transaction
        commits them, a later poll assigns the partitions. Each request that a broker does not
        answer may hold the call for request_timeout_ms.

        Raises:
            KafkaError: the group refuses this member (for example FENCED_INSTANCE_ID), or as
                `Consumer.poll`.
        """
        deadline = time.monotonic() + timeout_ms / 1000
        while True:
            self._membership.polled()
            self._commit_now_and_then()
            found: list[ConsumerRecord] = []
            if self._take_part(deadline):
                left_s = max(deadline - time.monotonic(), 0)
                # Short, so that an idle topic does not delay a rebalance.
                found = self.reader.poll(int(min(left_s, LOOK_AROUND_S) * 1000))
            if found or time.monotonic() >= deadline:
                return found

    def _take_part(self, deadline: float) -> bool:
        """Join the group, as far as the time allows; return whether partitions can be read."""
        membership = self._membership
        if membership.must_rejoin and isinstance(self._wanted, re.Pattern):
            # As Kafka: otherwise each member that finds a new topic later starts another rebalance.
            self._look_again_at = 0.0
        self._rejoin_with_topics()
        if membership.must_rejoin:
            self._leave_generation()
        if not self._topics:
            self._idle(deadline)
            return False
        if membership.state is not State.INSIDE:
            self._has_entered = False
            # A cooperative member reads the partitions that it keeps while the others join.
            self._go_inside(deadline, reads_on=bool(self.reader.assignment()))
            if membership.is_lost:
                self._leave_generation()
        if membership.state is State.INSIDE:
            if not self._has_entered:
                self._enter_generation(membership.assigned, deadline)
            if not self.reader.assignment():
                self._idle(deadline)
        return bool(self.reader.assignment())

    def _idle(self, deadline: float) -> None:
        """Wait a little, as far as the time allows: the member has nothing to read."""
        time.sleep(max(min(deadline - time.monotonic(), RETRY_BACKOFF_S), 0))

    def _go_inside(self, deadline: float, *, reads_on: bool) -> None:
        """Join and sync, as far as the time allows."""
        membership = self._membership
        owned = self.reader.assignment() if self._is_cooperative else membership.assigned
        subscription = Subscription(
            self._topics, tuple(owned), membership.identity.generation, membership.instance_id
        )
        left_s = max(deadline - time.monotonic(), 0)
        timeout_s = 0.0 if reads_on else min(left_s, LOOK_AROUND_S)
        membership.advance(subscription, timeout_s)

    # -- generations ---------------------------------------------------------------------------

    def _leave_generation(self) -> None:
        """Take part in a rebalance: an eager member gives all partitions up first.

        If the listener raises, call it again: the listener is not called twice for a partition.
        """
        membership = self._membership
        if not membership.is_lost:
            owned = self.reader.assignment()
            if self._is_cooperative:
                self._commit_quietly(owned)
            else:
                self._give_up(owned)
        membership.rest()
        if membership.is_lost:
            self._lose(self.reader.assignment())
        membership.begin()

    def _enter_generation(self, assigned: Partitions, deadline: float) -> None:
        """Give up revoked partitions, and read new ones once their committed offsets are known.

        Call it again until `_has_entered` is set.
        """
        owned = self.reader.assignment()
        gone = [at for at in owned if at not in assigned]
        come = [at for at in assigned if at not in owned]
        if gone:
            if self._is_cooperative:
                # Another member waits for them, even if the listener raises.
                self._membership.rejoin()
            self._give_up(gone)
        # First: without a position the reader would use auto_offset_reset.
        left_s = max(deadline - time.monotonic(), 0)
        positions = self._offsets.fetch_within(come, min(left_s, LOOK_AROUND_S))
        if positions is None:
            return
        self.reader.assign([*(at for at in owned if at in assigned), *come])
        for at, committed in positions.items():
            self.reader.seek(at, committed)
        self._has_entered = True
        self._commit_at = time.monotonic() + (self._auto_commit_s or 0)
        self._listener.on_assigned(come)

    def _give_up(self, partitions: Partitions) -> None:
        self._commit_quietly(partitions)
        if self._membership.is_lost:
            self._lose(partitions)
        else:
            self._drop(partitions, self._listener.on_revoked)

    def _lose(self, partitions: Partitions) -> None:
        self._drop(partitions, self._listener.on_lost or self._listener.on_revoked)

    def _drop(self, partitions: Partitions, tell: Callable[[Partitions], None]) -> None:
        """Call the listener, and unassign the partitions even if it raises."""
        try:
            if partitions:
                tell(partitions)
        finally:
            self.reader.assign([at for at in self.reader.assignment() if at not in partitions])
            for at in partitions:
                self._committed.pop(at, None)

    # -- topics --------------------------------------------------------------------------------

    def _rejoin_with_topics(self) -> None:
        """Refresh the topics of this member and, as the leader, the partition counts of all.

        A change starts a rebalance.
        """
        now = time.monotonic()
        if now < self._look_again_at or not self._wanted:
            return
        membership = self._membership
        if membership.state in (State.JOINING, State.SYNCING):
            return  # this member has already sent its subscription for this generation
        self._look_again_at = now + self._metadata_max_age_s
        try:
            topics = self._find_topics()
            # Only the leader watches the topics of the other members.
            shares_are_old = self._partition_counts(membership.led) != membership.led
        except KafkaError as fault:
            if not fault.retriable:
                raise
            self._look_again_at = now + RETRY_BACKOFF_S
            self._retries.warn(fault)
            return
        changed = topics != self._topics or shares_are_old
        self._topics = topics
        if changed and membership.state is State.INSIDE:
            membership.rejoin()  # with the next poll, if the listener raises
            self._leave_generation()

    def _find_topics(self) -> tuple[str, ...]:
        if not isinstance(self._wanted, re.Pattern):
            topics = tuple(sorted(self._wanted))
            self._cluster.refresh(topics)
            self._report_missing(topics)
            return topics
        self._cluster.refresh(None)
        return tuple(
            sorted(
                name
                for name, topic in self._cluster.topics.items()
                if self._wanted.fullmatch(name) and not topic.is_internal
            )
        )

    def _report_missing(self, topics: Iterable[str]) -> None:
        """Log once which topics cannot be read yet: the member waits until they can."""
        known, errors = self._cluster.topics, self._cluster.errors
        missing = {name for name in topics if name not in known}
        if missing:
            self._look_again_soon()
        for name in sorted(missing - self._missing):
            cause = errors.get(name) or f"topic {name!r} does not exist"
            log.warning("group %r: %s; waiting for it", self._membership.group_id, cause)
        self._missing = missing

    def _partition_counts(self, topics: Iterable[str]) -> Mapping[str, int]:
        wanted = sorted(topics)
        if wanted:
            self._cluster.refresh(wanted)
        known = self._cluster.topics
        if any(name not in known for name in wanted):
            self._look_again_soon()
        return {name: len(known[name].partitions) if name in known else 0 for name in wanted}

    def _look_again_soon(self) -> None:
        self._look_again_at = min(self._look_again_at, time.monotonic() + MISSING_TOPIC_S)

    # -- commits -------------------------------------------------------------------------------

    @property
    def group_metadata(self) -> GroupMetadata:
        """The member's identity for `Producer.send_offsets_to_transaction` (KIP-447).

        It changes once the member is in the next generation, so read it again for every commit: the
        coordinator refuses an older generation. It also refuses a member that was expelled, until
        the member has joined again.
        """
        return self._membership.metadata

    def positions(self) -> dict[TopicPartition, OffsetAndMetadata]:
        """Return the offset of the next record of each partition with a position.

        `commit` commits these by default. They include the leader epoch of the last record read.
        """
        return self.reader.known_positions()

    def commit(self, offsets: Offsets | None = None) -> None:
        """Commit offsets of the next records to read: all positions, or the given offsets.

        Args:
            offsets: with or without a text and a leader epoch; `positions()` and the records
                (`leader_epoch`) have the epochs.

        Raises:
            CommitFailed: the group has expelled this member, or poll has not joined it yet.
            RebalanceInProgress: the member is joining a generation. Poll, and commit again. If
                `poll` revokes a partition meanwhile, its next owner begins at the last commit.
            KafkaError: the coordinator refuses, or does not answer within request_timeout_ms.
        """
        wanted = self.positions() if offsets is None else offsets
        if not wanted:
            return
        membership = self._membership
        if self._wanted and not membership.is_member:
            # The coordinator might accept a commit without a member id.
            group = f"group {membership.group_id!r}"
            if membership.state is State.OUTSIDE:
                raise CommitFailed(f"{group}: not a member; call poll to join")
            raise RebalanceInProgress(f"{group}: not a member yet; poll, and commit again")
        self._offsets.commit(wanted)
        self._note_committed(wanted)

    def committed(
        self, partitions: Iterable[TopicPartition]
    ) -> dict[TopicPartition, OffsetAndMetadata]:
        """Return the group's committed offsets; partitions without a commit are left out."""
        return self._offsets.fetch(list(partitions))

    def _note_committed(self, offsets: Offsets) -> None:
        self._committed |= {at: with_metadata(one).offset for at, one in offsets.items()}

    def _commit_now_and_then(self) -> None:
        if self._auto_commit_s is None or time.monotonic() < self._commit_at:
            return
        self._commit_at = time.monotonic() + self._auto_commit_s
        if self._membership.state is State.INSIDE and not self._membership.is_lost:
            self._commit_quietly(self.reader.assignment())

    def _commit_quietly(self, partitions: Partitions) -> None:
        """Commit the positions of partitions, with enable_auto_commit; only log a failure."""
        if self._auto_commit_s is None:
            return
        positions = self.reader.known_positions()
        wanted = {
            at: positions[at]
            for at in partitions
            if at in positions and self._committed.get(at) != positions[at].offset
        }
        if not wanted:
            return
        try:
            self._offsets.commit_once(wanted)
        except KafkaError as fault:
            group_id = self._membership.group_id
            log.warning("group %r: auto commit failed: %s", group_id, fault)
            return
        self._note_committed(wanted)
