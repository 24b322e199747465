"""Runs the groups whose partitions of `__consumer_offsets` this broker leads.

Owns the shards in memory, the timers of their groups and the waiting requests. Executes the effects
of the groups' machines and reports the results to them, all in the event loop; only logs are read
in other threads. Never decides about members (`classic_group`) or the format of a record
(`group_log`).
"""

from __future__ import annotations

import asyncio
import logging
import uuid
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from typing import TypeVar

from plog._native.partition_guards import TxnGuard
from plog.cluster.metadata_cache import MetadataCache, MetadataSnapshot
from plog.cluster.own_appends import OwnAppends, Pair, Writer, ignore
from plog.coordinator import group_log
from plog.coordinator.classic_group import ClassicGroup
from plog.coordinator.consumer_events import Beat
from plog.coordinator.consumer_group import ConsumerGroup
from plog.coordinator.consumer_runner import ConsumerRunner
from plog.coordinator.failures import bugs_are_errors, log_level, told
from plog.coordinator.given_out import GivenOut, Key
from plog.coordinator.group_endings import GroupEndings
from plog.coordinator.group_events import (
    Answer,
    BeatAnswer,
    Effect,
    Event,
    Heartbeat,
    Join,
    JoinAnswer,
    Leave,
    Leaving,
    Left,
    Rebalancing,
    SetTimer,
    StopTimer,
    Stored,
    StoreGroup,
    Sync,
    SyncAnswer,
    TimerFired,
    TimerKind,
)
from plog.coordinator.group_log import CommittedOffset
from plog.coordinator.group_shard import Group, Shard
from plog.coordinator.load_queue import LoadQueue
from plog.coordinator.member_memory import MemberMemory
from plog.coordinator.shards import Shards
from plog.coordinator.txn_events import Producer
from plog.errors import (
    CoordinatorLoadInProgress,
    ErrorCode,
    GroupIdNotFound,
    KafkaError,
    NotCoordinator,
)
from plog.runtime.bounded_lines import BoundedLines
from plog.runtime.clock import Clock
from plog.runtime.timers import Timers
from plog.runtime.trusted_time import TrustedTime
from plog.settings.definitions import BrokerSettings, GroupSettings
from plog.storage.log_faults import is_of_full_disk
from plog.types import ZERO_UUID, TopicPartition, counted

log = logging.getLogger(__name__)

OFFSETS_TOPIC = "__consumer_offsets"
MINUTE_MS = 60_000
A = TypeVar("A")


class GroupCoordinator:
    """The groups of this broker. For the event loop's thread, except `on_leadership`.

    Args:
        settings_of: returns a group's current settings.
        trusted_time: the time by which offsets expire.
        partitions: returns the number of partitions that `__consumer_offsets` has or will have.
        loads: as for `Shards`.
    """

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        *,
        appends: OwnAppends,
        settings: BrokerSettings,
        settings_of: Callable[[str], GroupSettings],
        clock: Clock,
        trusted_time: TrustedTime,
        partitions: Callable[[], int],
        loads: LoadQueue | None = None,
    ) -> None:
        self._loop = loop
        self._appends = appends
        self._settings = settings
        self._clock = clock
        self.shards = Shards(
            loop,
            OFFSETS_TOPIC,
            partitions=partitions,
            load_bytes=settings.offsets_load_buffer_size,
            loads=loads,
            make=self._make_shard,
            taken=self._resume,
            given_up=self._retire,
            loaded=_log_loaded,
        )
        self._timers: Timers[Key] = Timers(loop, self._fired)
        self._given_out = GivenOut()
        self._memory = MemberMemory(
            settings.group_members_max_bytes,
            clock,
            lambda: (group.members_size for group in self.groups()),
            BoundedLines(log, "%d further members were refused for lack of memory", timing=loop),
        )
        # Rate-limited: clients can cause any number of rebalances.
        self._rebalances = BoundedLines(
            log, "%d further rebalances", least_level=logging.INFO, timing=loop
        )
        self._unstored = BoundedLines(
            log,
            "%d further group changes could not be stored",
            least_level=logging.INFO,
            timing=loop,
        )
        self._unsubscribe: Callable[[], None] = lambda: None
        self._classic_rebalances = 0
        self._cluster: Callable[[], MetadataSnapshot] = MetadataSnapshot
        self.consumers = ConsumerRunner(
            settings=settings,
            settings_of=settings_of,
            clock=clock,
            timers=self._timers,
            lines=self._rebalances,
            unstored=self._unstored,
            append=lambda group_id, pairs: self._append(self.shards.of(group_id), pairs),
            spawn=self.shards.spawn,
            cluster=lambda: self._cluster(),
            is_ours=self._is_ours,
            run_classic=self._execute,
        )
        self.endings = GroupEndings(
            self.shards,
            self.consumers,
            settings=settings,
            trusted_time=trusted_time,
            unstored=self._unstored,
            append=self._append,
            is_ours=self._is_ours,
            is_deleted=self._is_deleted,
            run_classic=self._execute,
        )

    @property
    def max_members_bytes(self) -> int:
        """Memory that all group members may use."""
        return self._settings.group_members_max_bytes

    @property
    def rebalances(self) -> int:
        """Number of rebalances started."""
        return self._classic_rebalances + self.consumers.rebalances

    def _make_shard(self, index: int, epoch: int) -> Shard:
        delay_ms = self._settings.group_initial_rebalance_delay_ms
        return Shard(index, epoch, delay_ms)

    def _is_ours(self, group: Group) -> bool:
        with suppress(NotCoordinator, CoordinatorLoadInProgress):
            shard = self.shards.of(group.group_id)
            return not self.shards.is_closed and shard.groups.get(group.group_id) is group
        return False

    def _is_deleted(self, topic_id: uuid.UUID) -> bool:
        # All known ids are of topics that this broker's metadata contains, or contained before. It
        # keeps those that the controller can only name (`MetadataSnapshot.is_deleted`).
        return topic_id != ZERO_UUID and topic_id not in self._cluster().topic_names

    def start(self, metadata: MetadataCache) -> None:
        """Start to expire offsets, and to delete those of deleted topics."""
        topics = metadata.snapshot.topic_names
        self._cluster = lambda: metadata.snapshot

        def look(snapshot: MetadataSnapshot) -> None:  # on the metadata's thread
            nonlocal topics
            before, topics = topics, snapshot.topic_names
            if gone := {before[one]: one for one in before.keys() - topics.keys()}:
                self._loop.call_soon_threadsafe(self._forget_topics, gone)

        self._unsubscribe = metadata.subscribe(look)
        every_ms = self._settings.offsets_retention_check_interval_ms
        self.shards.spawn_every(every_ms, self.endings.expire)

    def _forget_topics(self, topics: Mapping[str, uuid.UUID]) -> None:
        if not self.shards.is_closed:
            for shard in self.shards.all_loading:
                shard.deleted_meanwhile.update(topics)
            self.shards.spawn(self.endings.forget_topics(topics, self.groups()))

    def _forget_deleted_topics(
        self, group: Group, offsets: Iterable[tuple[TopicPartition, CommittedOffset | None]]
    ) -> None:
        """Delete offsets of deleted topics that these commits have delayed, or applied late."""
        if not self.shards.is_closed and self.endings.may_be_of_deleted_topics(group, offsets):
            self.shards.spawn(self.endings.forget_deleted_topics(group))

    # -- partitions come and go --------------------------------------------------------------

    def _resume(self, shard: Shard) -> None:
        self._memory.look_again()
        for producer_id, is_commit in shard.ended_meanwhile:
            shard.end_transaction(producer_id, is_commit=is_commit)
        for group in shard:
            if isinstance(group.machine, ConsumerGroup):
                self.consumers.resume(group, group.machine)
            else:
                self._resume_classic(group, group.machine)
        if shard.deleted_meanwhile:
            topics = shard.deleted_meanwhile
            self.shards.spawn(self.endings.forget_topics(topics, list(shard)))

    def _resume_classic(self, group: Group, machine: ClassicGroup) -> None:
        self._execute(group, machine.resume())
        size, most = len(machine.roster), self._settings.group_max_size
        if size > most:
            # Its members notice, may commit, and the first ones to rejoin stay (KIP-389).
            group.since_ms = self._clock.now_ms()
            reason = f"it has {size} members, group.max.size is {most}"
            self._execute(group, machine.disturb(reason))

    def _retire(self, shard: Shard) -> None:
        for group in shard:
            if isinstance(group.machine, ConsumerGroup):
                self.consumers.retire(group, group.machine, ErrorCode.NOT_COORDINATOR)
            else:
                self._execute(group, group.machine.die(ErrorCode.NOT_COORDINATOR))

    def stop_serving(self) -> None:
        """Answer waiting members with NOT_COORDINATOR and serve no group: the broker stops.

        Otherwise their requests would delay the stop, and members that are silent meanwhile would
        expire while nothing can be stored any more.
        """
        self.shards.give_up_all()

    def close(self) -> None:
        """Stop all timers; pending requests get no response."""
        self._memory.lines.tell_rest()
        self._rebalances.tell_rest()
        self._unstored.tell_rest()
        self._unsubscribe()
        self._timers.close()
        self.shards.close()

    # -- look-ups ----------------------------------------------------------------------------

    def find(self, group_id: str) -> Group | None:
        """Return an existing group, for a response from memory. Raises as `Shards.of_fresh`."""
        return self.shards.of_fresh(group_id).groups.get(group_id)

    def groups(self) -> list[Group]:
        """Return all groups of this coordinator."""
        return [group for shard in self.shards for group in shard]

    @property
    def is_loading(self) -> bool:
        """Whether `groups` may be incomplete, because a partition is still loading."""
        return self.shards.is_loading

    # -- the life of members -----------------------------------------------------------------

    async def join(self, group_id: str, join: Join) -> JoinAnswer:
        """Join a client; return its response once the generation is formed.

        Waits on `join.token`. Raises as `Shards.of_fresh`.
        """
        shard = self.shards.of_fresh(group_id)
        if join.member_id and group_id not in shard.groups:
            return JoinAnswer(ErrorCode.UNKNOWN_MEMBER_ID, join.member_id)
        group = shard.group(group_id)
        try:
            refusal = self._memory.refuse(group, join)
            if refusal is not ErrorCode.NONE:
                return JoinAnswer(refusal, join.member_id)
            return await self._ask(group, join, JoinAnswer)
        finally:
            self._forget_unborn(shard, group)

    async def sync(self, group_id: str, sync: Sync) -> SyncAnswer:
        """Return a member's assignment once there is one. Raises as `Shards.of_fresh`."""
        group = self.find(group_id)
        if group is None:
            return SyncAnswer(ErrorCode.UNKNOWN_MEMBER_ID)
        # The log could not store assignments of this size, so respond as if it had refused them.
        refusal = self._memory.refuse(group, sync, too_large=ErrorCode.UNKNOWN_SERVER_ERROR)
        if refusal is not ErrorCode.NONE:
            return SyncAnswer(refusal)
        return await self._ask(group, sync, SyncAnswer)

    async def beat(self, group_id: str, beat: Heartbeat) -> ErrorCode:
        """Process a member's heartbeat. Raises as `Shards.of`.

        An old state does no harm here: a member may hear that all is well while groups load, too.
        """
        group = self.shards.of(group_id).groups.get(group_id)
        if group is None:
            return ErrorCode.UNKNOWN_MEMBER_ID
        return await self._ask(group, beat, ErrorCode)

    async def leave(self, group_id: str, members: tuple[Leaving, ...]) -> tuple[ErrorCode, ...]:
        """Remove members; return an error for each, in order. Raises as `Shards.of_fresh`."""
        shard = self.shards.of_fresh(group_id)
        group = shard.groups.get(group_id)
        if group is None:
            return (ErrorCode.UNKNOWN_MEMBER_ID,) * len(members)
        left = await self._ask(group, Leave(self.token(), members), Left)
        self._forget_unborn(shard, group)
        return left.errors

    async def beat_as_consumer(self, group_id: str, beat: Beat) -> BeatAnswer:
        """Process a ConsumerGroupHeartbeat (KIP-848); return the response.

        Raises as `Shards.of_fresh`, GroupIdNotFound, and the error of storing the group's records.
        """
        shard = self.shards.of_fresh(group_id)
        if group_id not in shard.groups and beat.epoch != 0:
            raise GroupIdNotFound(f"group {group_id} not found")
        group = shard.group(group_id)
        refusal = self._memory.refuse(group, beat)
        answer = (
            await self._ask(group, beat, BeatAnswer)
            if refusal is ErrorCode.NONE
            else BeatAnswer(refusal, "the limit group.members.max.bytes is reached")
        )
        if answer.error is not ErrorCode.NONE:
            self._forget_unborn(shard, group)
        return answer

    def _forget_unborn(self, shard: Shard, group: Group) -> None:
        """Drop a new group whose first client was refused, or did not rejoin."""
        is_nothing = (
            isinstance(group.machine, ClassicGroup) and group.is_forgettable and not group.is_in_log
        )
        if is_nothing and shard.groups.get(group.group_id) is group:
            del shard.groups[group.group_id]

    def token(self) -> asyncio.Future[object]:
        """Return the future on which a request waits."""
        return self._loop.create_future()

    async def _ask(
        self, group: Group, event: Join | Sync | Heartbeat | Leave | Beat, kind: type[A]
    ) -> A:
        token = event.token
        assert isinstance(token, asyncio.Future)
        self._feed(group, event)
        answer = token.result() if token.done() else await token
        assert isinstance(answer, kind)
        return answer

    # -- offsets -----------------------------------------------------------------------------

    async def commit(
        self,
        group_id: str,
        offsets: Sequence[tuple[TopicPartition, CommittedOffset]],
        *,
        member_id: str,
        instance_id: str | None,
        generation: int,
        version: int,
    ) -> ErrorCode:
        """Commit one or more offsets, all or none; return once they are committed.

        Args:
            generation: the generation; in a consumer group the member's epoch.
            version: version of the OffsetCommit request.

        Raises as `Shards.of`.
        """
        shard = self.shards.of(group_id)
        if group_id not in shard.groups and generation >= 0:
            return ErrorCode.ILLEGAL_GENERATION
        group = shard.group(group_id)
        try:
            refusal = group.refuse_commit(member_id, instance_id, generation, version)
            if refusal is not ErrorCode.NONE:
                return refusal
            return await self._commit(shard, group, offsets, member_id)
        finally:
            self._forget_deleted_topics(group, offsets)
            self._forget_unborn(shard, group)

    async def _commit(
        self,
        shard: Shard,
        group: Group,
        offsets: Sequence[tuple[TopicPartition, CommittedOffset]],
        member_id: str,
    ) -> ErrorCode:
        if isinstance(group.machine, ClassicGroup):
            self._execute(group, group.machine.hear(member_id))
        pairs = self._offset_pairs(group.group_id, offsets)
        with group.offsets.committing(at for at, _ in offsets):
            try:
                position = await self._append(shard, pairs)
            except KafkaError as failure:
                return told(failure, too_large=ErrorCode.INVALID_COMMIT_OFFSET_SIZE)
            for step, (at, committed) in enumerate(offsets):
                group.offsets.commit(at, committed, position + step)
        return ErrorCode.NONE

    async def commit_in_transaction(
        self,
        group_id: str,
        offsets: Sequence[tuple[TopicPartition, CommittedOffset]],
        *,
        producer: Producer,
        guard: TxnGuard | None,
        member_id: str,
        instance_id: str | None,
        generation: int,
    ) -> ErrorCode:
        """Commit one or more offsets in a producer's transaction; they count once it commits.

        Args:
            guard: needed to begin the transaction here; its coordinator has approved it.

        Raises as `Shards.of`, and InvalidTxnState, InvalidProducerEpoch.
        """
        shard = self.shards.of(group_id)
        if group_id not in shard.groups and generation >= 0:
            return ErrorCode.UNKNOWN_MEMBER_ID
        group = shard.group(group_id)
        try:
            refusal = group.refuse_transactional_commit(member_id, instance_id, generation)
            if refusal is not ErrorCode.NONE:
                return refusal
            if isinstance(group.machine, ClassicGroup):
                self._execute(group, group.machine.hear(member_id))
            if any(self._is_deleted(committed.topic_id) for _, committed in offsets):
                # Otherwise it could follow a commit for the next topic of that name in the log.
                return ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
            writer = Writer(*producer, guard)
            return await self._commit_in_transaction(shard, group, offsets, writer)
        finally:
            self._forget_deleted_topics(group, offsets)
            self._forget_unborn(shard, group)

    async def _commit_in_transaction(
        self,
        shard: Shard,
        group: Group,
        offsets: Sequence[tuple[TopicPartition, CommittedOffset]],
        writer: Writer,
    ) -> ErrorCode:
        def appended(position: int) -> None:
            # At once, because the marker that decides these offsets may follow immediately.
            for step, (at, committed) in enumerate(offsets):
                shard.commit_in_transaction(
                    group, writer.producer_id, at, committed, position + step
                )

        try:
            # Otherwise the group could expire before it has an undecided offset that keeps it.
            with group.offsets.committing(at for at, _ in offsets):
                await self._append(
                    shard,
                    self._offset_pairs(group.group_id, offsets),
                    of=writer,
                    appended=appended,
                )
        except KafkaError as failure:
            if failure.code in (ErrorCode.INVALID_TXN_STATE, ErrorCode.INVALID_PRODUCER_EPOCH):
                raise
            return told(failure, too_large=ErrorCode.INVALID_COMMIT_OFFSET_SIZE)
        return ErrorCode.NONE

    def on_marker(self, at: TopicPartition, producer_id: int, is_commit: bool) -> None:
        """Apply a committed transaction marker to the offsets of a partition."""
        if at.topic != OFFSETS_TOPIC:
            return
        if (shard := self.shards.at(at.partition)) is not None:
            for group, partitions in shard.end_transaction(producer_id, is_commit=is_commit):
                self._forget_deleted_topics(group, ((one, None) for one in partitions))
        elif (loading := self.shards.loading(at.partition)) is not None:
            # A thread that loads the log may have read past its end before the marker.
            loading.ended_meanwhile.append((producer_id, is_commit))

    def _offset_pairs(
        self, group_id: str, offsets: Sequence[tuple[TopicPartition, CommittedOffset]]
    ) -> list[Pair]:
        return [
            Pair(group_log.encode_offset_key(group_id, at), group_log.encode_offset(committed))
            for at, committed in offsets
        ]

    async def _append(
        self,
        shard: Shard,
        pairs: Sequence[Pair],
        *,
        of: Writer | None = None,
        appended: Callable[[int], None] = ignore,
    ) -> int:
        return await self._appends.append(
            TopicPartition(OFFSETS_TOPIC, shard.partition),
            pairs,
            codec=self._settings.offsets_topic_compression_codec,
            of=of,
            appended=appended,
        )

    # -- machines ----------------------------------------------------------------------------

    def _feed(self, group: Group, event: Event | Beat) -> None:
        before = group.members_size
        self._run(group, event)
        self._memory.took(group.members_size - before)

    def _run(self, group: Group, event: Event | Beat) -> None:
        machine = group.machine
        if isinstance(machine, ConsumerGroup) or isinstance(event, Beat):
            assert not isinstance(event, Stored)
            self.consumers.feed(group, event)
            return
        before = machine.state
        effects = machine.on(event)
        if machine.state is not before:
            group.since_ms = self._clock.now_ms()
        self._execute(group, effects)

    def _fired(self, key: Key) -> None:
        group_id, timer = key
        self._given_out.drop(key)
        with suppress(NotCoordinator, CoordinatorLoadInProgress):
            shard = self.shards.of(group_id)
            if (group := shard.groups.get(group_id)) is not None:
                self._feed(group, TimerFired(timer))
                self._forget_unborn(shard, group)

    def _wait_for(self, key: Key) -> None:
        """Add an assigned member id to the pending ones; drop the oldest ones."""
        for oldest in self._given_out.add(key):
            self._timers.stop(oldest)
            self._loop.call_soon(self._fired, oldest)

    def _execute(self, group: Group, effects: Iterable[Effect]) -> None:
        group_id = group.group_id
        for effect in effects:
            match effect:
                case Answer(token, answer):
                    assert isinstance(token, asyncio.Future)
                    if not token.done():  # otherwise its client has disconnected
                        token.set_result(answer)
                case SetTimer(timer, after_ms):
                    self._timers.set((group_id, timer), after_ms)
                    if timer.kind is TimerKind.PENDING:
                        self._wait_for((group_id, timer))
                case StopTimer(timer):
                    self._timers.stop((group_id, timer))
                    self._given_out.drop((group_id, timer))
                case Rebalancing(generation, reason):
                    self._classic_rebalances += 1
                    # All of this text comes from clients: keep it to one short line.
                    self._rebalances.log(
                        logging.INFO,
                        "group %.100r rebalances at generation %d: %.300s",
                        group_id,
                        generation,
                        reason.encode("unicode_escape").decode(),
                    )
                case StoreGroup(ticket):
                    machine = group.machine
                    assert isinstance(machine, ClassicGroup)
                    record = self._record(group, machine, effect)
                    self.shards.spawn(self._store(group, machine, record, ticket))

    def _record(self, group: Group, machine: ClassicGroup, effect: StoreGroup) -> Pair:
        group.is_stored = True
        return Pair(
            group_log.encode_group_key(group.group_id),
            group_log.encode_group(machine, effect.assignments, group.since_ms),
        )

    async def _store(self, group: Group, machine: ClassicGroup, record: Pair, ticket: int) -> None:
        error = ErrorCode.NONE
        await self.consumers.settled(group)  # the new records must follow the old ones
        if group.machine is not machine:
            return
        try:
            with bugs_are_errors("storing a group"):
                await self._append(self.shards.of(group.group_id), [record])
        except KafkaError as failure:
            error = told(failure, too_large=ErrorCode.UNKNOWN_SERVER_ERROR)
            if not is_of_full_disk(failure):
                self._unstored.log(
                    log_level(failure), "group %.100r cannot be stored: %s", group.group_id, failure
                )
        if group.machine is machine:
            text = "group %.100r stores generation %d with %s: %s"
            members, name = counted(len(machine.roster), "member"), error.name
            log.debug(text, group.group_id, machine.generation, members, name)
            self._feed(group, Stored(ticket, error))


def _log_loaded(shards: Sequence[Shard]) -> None:
    for shard in shards:
        found = counted(len(shard.groups), "group")
        log.debug("loaded %s from %s-%d", found, OFFSETS_TOPIC, shard.partition)
    count = sum(len(shard.groups) for shard in shards)
    if count:
        of = counted(len(shards), "partition")
        log.info("loaded %s from %s of %s", counted(count, "group"), of, OFFSETS_TOPIC)
