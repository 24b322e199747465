"""A consumer in a group: its partitions come and go with the members, its positions are committed.

Owns what becomes of positions when partitions come and go, and when they are committed. Members
and their protocol are `group_membership`'s, commits `group_offsets`', reading is `consumer`'s. Not
thread-safe.
"""

from __future__ import annotations

import logging
import re
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import NamedTuple

from plog.client.assignors import ASSIGNORS, RANGE, Subscription
from plog.client.consumer import Consumer, ConsumerRecord
from plog.client.coordinators import RETRY_BACKOFF_S
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
"""How long `poll` waits for records, or for other members, before it looks what the group does."""


class Listener(NamedTuple):
    """What the application wants to hear of its partitions, while it polls.

    Args:
        on_assigned: they came; what was committed is their position by then.
        on_revoked: they are about to go; positions may still be committed.
        on_lost: they are gone, and may be others' already. None: as `on_revoked`.
    """

    on_assigned: Callable[[Partitions], None] = lambda _: None
    on_revoked: Callable[[Partitions], None] = lambda _: None
    on_lost: Callable[[Partitions], None] | None = None


class GroupConsumer:
    """Reads the partitions that its group gives it.

    With a text beside each position, which whoever takes over may read (`committed`):

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
        assignors: names of those that may share the partitions, the preferred first: range,
            roundrobin, sticky, cooperative-sticky. If all are cooperative, members keep what stays
            theirs while the group rebalances, and read on; `commit` may have to wait for its end.
        enable_auto_commit: commit what `poll` has returned before, every auto_commit_interval_ms
            and whenever partitions go.
        session_timeout_ms, heartbeat_interval_ms, max_poll_interval_ms: as Kafka's.
        metadata_max_age_ms: how often it is seen which topics there are, and how large.
        reading: arguments of `Consumer`, such as auto_offset_reset and isolation_level.

    Raises:
        InvalidConfig: an argument is not one of its values.
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
            raise InvalidConfig(f"assignors={list(assignors)!r}: {', '.join(ASSIGNORS)}")
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
        """Commit, if that is automatic, give the partitions back, leave and close.

        A cooperative member that has read on amid a rebalance waits some seconds for its end: what
        it has read could not be committed before, and would be read again by others.
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
        """Wait a little to be inside: what a cooperative member has read on is committed there."""
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
            log.warning("group %s: %s", membership.group_id, fault)

    # -- what is read --------------------------------------------------------------------------

    def subscribe(
        self, topics: Iterable[str] | re.Pattern[str], listener: Listener | None = None
    ) -> None:
        """Read these topics, or all whose whole names match, together with the other members.

        No topics at all: as `unsubscribe`.
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
        """Give the partitions back, committed if that is automatic, and leave the group."""
        try:
            self._leave()
        finally:
            try:
                self._lose(self.reader.assignment())  # the listener must not commit as nobody
            finally:
                self._wanted, self._topics = frozenset(), ()

    def subscription(self) -> list[str]:
        """Return the topics that this member reads its part of, as far as they are known by now."""
        return list(self._topics)

    def assignment(self) -> Partitions:
        """Return the partitions that this member has."""
        return self.reader.assignment()

    def partitions_for(self, topic: str) -> Partitions:
        """Return all partitions of a topic. Raises as `Consumer.partitions_for`."""
        return self.reader.partitions_for(topic)

    def seek(self, partition: TopicPartition, offset: int | OffsetAndMetadata) -> None:
        """Set where the next poll goes on. Raises as `Consumer.seek`."""
        self.reader.seek(partition, offset)

    def seek_to_beginning(self, partitions: Iterable[TopicPartition] | None = None) -> None:
        """Go to the log start offset of each partition (all that this member has by default)."""
        self.reader.seek_to_beginning(partitions)

    def seek_to_end(self, partitions: Iterable[TopicPartition] | None = None) -> None:
        """Go to the end of each partition (all that this member has by default)."""
        self.reader.seek_to_end(partitions)

    def position(self, partition: TopicPartition) -> int:
        """Return the offset of the next record that poll returns. Raises as `Consumer.position`."""
        return self.reader.position(partition)

    def pause(self, partitions: Iterable[TopicPartition]) -> None:
        """Do not return records of these partitions until `resume`, or until they go."""
        self.reader.pause(partitions)

    def resume(self, partitions: Iterable[TopicPartition]) -> None:
        """Undo `pause`."""
        self.reader.resume(partitions)

    def paused(self) -> Partitions:
        """Return the partitions that are paused."""
        return self.reader.paused()

    def beginning_offsets(self, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, int]:
        """Return the log start offset of each partition, whoever has it."""
        return self.reader.beginning_offsets(partitions)

    def end_offsets(self, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, int]:
        """Return the offset after the last readable record of each partition, whoever has it."""
        return self.reader.end_offsets(partitions)

    def offsets_for_times(
        self, times: Mapping[TopicPartition, int]
    ) -> dict[TopicPartition, OffsetAndTimestamp]:
        """Return the first offset of each partition at or after a time, whoever has it.

        Args and errors as of `Consumer.offsets_for_times`.
        """
        return self.reader.offsets_for_times(times)

    def poll(self, timeout_ms: int = 1000) -> list[ConsumerRecord]:
        """Return records as soon as there are any, or [] after `timeout_ms`.

        Must be called again within max_poll_interval_ms: here the member takes part in its group,
        and here the listener is called. Where to begin may not be known for a while, as long as a
        transaction is about to commit it, say: the partitions then come with a later poll.

        Raises:
            KafkaError: the group refuses this member (FENCED_INSTANCE_ID, say), or as
                `Consumer.poll`.
        """
        deadline = time.monotonic() + timeout_ms / 1000
        while True:
            self._membership.polled()
            self._commit_now_and_then()
            found: list[ConsumerRecord] = []
            if self._take_part(deadline):
                left_s = max(deadline - time.monotonic(), 0)
                # A rebalance is not kept waiting by a topic to which nobody writes.
                found = self.reader.poll(int(min(left_s, LOOK_AROUND_S) * 1000))
            if found or time.monotonic() >= deadline:
                return found

    def _take_part(self, deadline: float) -> bool:
        """Be in the group, as far as the time allows; tell whether there may be records."""
        membership = self._membership
        self._rejoin_with_topics()
        if membership.must_rejoin:
            self._leave_generation()
        if not self._topics:
            self._idle(deadline)
            return False
        if membership.state is not State.INSIDE:
            self._has_entered = False
            # What a cooperative member keeps it reads on, while the others join.
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
        """Wait a little, as far as the time allows: there is nothing to read."""
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
        """Take part in a rebalance: an eager member gives everything up first.

        To be called again if the listener raises: it has heard of what went, and is not told twice.
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
        """Give up what goes and read on with what comes, once it is known where.

        To be called again until that is so: the member has entered then.
        """
        owned = self.reader.assignment()
        gone = [at for at in owned if at not in assigned]
        come = [at for at in assigned if at not in owned]
        if gone:
            if self._is_cooperative:
                # Somebody else waits for them, whatever the listener makes of it.
                self._membership.rejoin()
            self._give_up(gone)
        # First: without a position a partition would be read from wherever auto_offset_reset says.
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
        """Tell the listener, and have them no more, even if it raises: they are others' then."""
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
        for name in sorted(missing - self._missing):
            cause = errors.get(name) or f"topic {name!r} does not exist"
            log.warning("group %r: %s; waiting for it", self._membership.group_id, cause)
        self._missing = missing

    def _partition_counts(self, topics: Iterable[str]) -> Mapping[str, int]:
        wanted = sorted(topics)
        if wanted:
            self._cluster.refresh(wanted)
        known = self._cluster.topics
        return {name: len(known[name].partitions) if name in known else 0 for name in wanted}

    # -- commits -------------------------------------------------------------------------------

    @property
    def group_metadata(self) -> GroupMetadata:
        """Who this member is at the moment, for `Producer.send_offsets_to_transaction` (KIP-447).

        It changes with each rebalance, so ask for it anew with every commit: one that names an
        older generation is refused. It does so once the member is in the next one; whoever the
        group has gone on without is refused until then.
        """
        return self._membership.metadata

    def positions(self) -> dict[TopicPartition, OffsetAndMetadata]:
        """Return the next record of each partition that has a position by now.

        It is what `commit` commits by itself, and what a transaction commits in its place, with the
        leader epoch of what was read last.
        """
        return self.reader.known_positions()

    def commit(self, offsets: Offsets | None = None) -> None:
        """Commit offsets of the next records to read: all positions, or those given.

        Args:
            offsets: with a text and a leader epoch, or without: `positions()` tells the epochs,
                and so does each record (`leader_epoch`).

        Raises:
            CommitFailed: the group has gone on without this member, or poll has not joined it yet.
            RebalanceInProgress: the member is on its way in, for the first time or again, or a
                cooperative one into a new generation, where it may keep its partitions. Poll, and
                commit again: what `poll` takes away until then is read again by others, from what
                was committed before.
            KafkaError: the coordinator refuses, or does not answer in request_timeout_ms.
        """
        wanted = self.positions() if offsets is None else offsets
        if not wanted:
            return
        membership = self._membership
        if self._wanted and not membership.is_member:
            # Nobody's commit might be taken.
            group = f"group {membership.group_id!r}"
            if membership.state is State.OUTSIDE:
                raise CommitFailed(f"{group}: not a member; poll joins it")
            raise RebalanceInProgress(f"{group}: not a member yet; poll, and commit again")
        self._offsets.commit(wanted)
        self._note_committed(wanted)

    def committed(
        self, partitions: Iterable[TopicPartition]
    ) -> dict[TopicPartition, OffsetAndMetadata]:
        """Return what the group has committed for partitions, but for those without a commit."""
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
        """Commit what was returned of partitions, if that is automatic; failures are told."""
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
            log.warning("group %s: positions are not committed: %s", group_id, fault)
            return
        self._note_committed(wanted)
