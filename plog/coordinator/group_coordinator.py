"""Runs the groups whose partitions of `__consumer_offsets` this broker leads.

Owns the shards in memory, the timers of their groups, and the requests that wait: executes
what the groups' machines want, and feeds back what became of it. Everything happens in the
event loop; only logs are read on threads of their own. Never decides about members
(`classic_group`) or about what a record says (`group_log`).
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Collection, Coroutine, Iterable, Sequence
from typing import TypeVar

from plog.cluster.metadata_cache import MetadataCache, MetadataSnapshot
from plog.cluster.own_appends import OwnAppends, Pair
from plog.cluster.partition import Partition
from plog.coordinator import group_log
from plog.coordinator.classic_group import ClassicGroup
from plog.coordinator.group_events import (
    Answer,
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
    Timer,
    TimerFired,
)
from plog.coordinator.group_hash import partition_of
from plog.coordinator.group_log import CommittedOffset
from plog.coordinator.group_shard import Group, Shard
from plog.coordinator.group_states import GroupState
from plog.coordinator.replay import replay
from plog.errors import (
    CoordinatorLoadInProgress,
    ErrorCode,
    KafkaError,
    NotCoordinator,
)
from plog.network.bounded_lines import BoundedLines
from plog.runtime.clock import Clock
from plog.runtime.timers import Timers
from plog.settings.definitions import BrokerSettings
from plog.storage.log import Log
from plog.types import TopicPartition

log = logging.getLogger(__name__)

OFFSETS_TOPIC = "__consumer_offsets"
MINUTE_MS = 60_000
REBALANCES_AT_ONCE, REBALANCES_PER_S = 200, 20
"""So many rebalances have lines of their own: whoever may join can cause them without end."""
A = TypeVar("A")

UNAVAILABLE = frozenset(
    {
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        ErrorCode.NOT_ENOUGH_REPLICAS,
        ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND,
        ErrorCode.REQUEST_TIMED_OUT,
    }
)
ELSEWHERE = frozenset({ErrorCode.NOT_LEADER_OR_FOLLOWER, ErrorCode.KAFKA_STORAGE_ERROR})
TOO_LARGE = frozenset({ErrorCode.MESSAGE_TOO_LARGE, ErrorCode.RECORD_LIST_TOO_LARGE})


class GroupCoordinator:
    """The groups of this broker. For the event loop's thread, but for `on_leadership`.

    Args:
        partitions: tells how many `__consumer_offsets` has, or will have.
    """

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        *,
        appends: OwnAppends,
        settings: BrokerSettings,
        clock: Clock,
        partitions: Callable[[], int],
    ) -> None:
        self._loop = loop
        self._appends = appends
        self._settings = settings
        self._clock = clock
        self._partitions = partitions
        self._shards: dict[int, Shard] = {}
        self._loading: dict[int, Shard] = {}
        self._timers: Timers[tuple[str, Timer]] = Timers(loop, self._fired)
        self._tasks: set[asyncio.Task[None]] = set()
        self._rebalances = BoundedLines(
            log,
            loop,
            "%d further rebalances",
            at_once=REBALANCES_AT_ONCE,
            per_s=REBALANCES_PER_S,
            least_level=logging.INFO,
        )
        self._unsubscribe: Callable[[], None] = lambda: None
        self._is_closed = False

    def start(self, metadata: MetadataCache) -> None:
        """Look over what may be forgotten from now on; and with a topic go its offsets."""
        topics = metadata.snapshot.topic_names

        def look(snapshot: MetadataSnapshot) -> None:  # on the thread that takes orders
            nonlocal topics
            before, topics = topics, snapshot.topic_names
            if gone := {before[one] for one in before.keys() - topics.keys()}:
                self._loop.call_soon_threadsafe(self._forget_topics, gone)

        self._unsubscribe = metadata.subscribe(look)
        self._spawn(self._expire_now_and_then())

    # -- partitions come and go --------------------------------------------------------------

    def on_leadership(self, leading: Iterable[Partition], following: Iterable[Partition]) -> None:
        """Take over and give up partitions. From any thread."""
        ours = [one for one in leading if one.topic_partition.topic == OFFSETS_TOPIC]
        gone = [one for one in following if one.topic_partition.topic == OFFSETS_TOPIC]
        if (ours or gone) and not self._is_closed:
            self._loop.call_soon_threadsafe(self._change_shards, ours, gone)

    def _change_shards(self, leading: list[Partition], following: list[Partition]) -> None:
        if self._is_closed:
            return
        for partition in following:
            self.give_up(partition.topic_partition.partition)
        for partition in leading:
            self._take_over(partition)

    def _take_over(self, partition: Partition) -> None:
        index, epoch = partition.topic_partition.partition, partition.leadership.leader_epoch
        shard = self._shards.get(index)
        if shard is not None:
            # Led on without a break: what is in memory is what the log says.
            shard.leader_epoch = max(shard.leader_epoch, epoch)
            return
        loading, hosted = self._loading.get(index), partition.hosted_log
        if hosted is None or (loading is not None and loading.leader_epoch >= epoch):
            return
        shard = Shard(index, epoch, self._settings.group_initial_rebalance_delay_ms)
        self._loading[index] = shard
        self._spawn(self._load(shard, hosted))

    async def _load(self, shard: Shard, hosted: Log) -> None:
        index = shard.partition
        begun_ms = self._clock.monotonic_ms()

        def is_abandoned() -> bool:
            return self._is_closed or self._loading.get(index) is not shard

        def read() -> None:
            shard.fill(
                replay(
                    hosted,
                    chunk_bytes=self._settings.offsets_load_buffer_size,
                    abandoned=is_abandoned,
                )
            )

        try:
            await asyncio.to_thread(read)
        except KafkaError as failure:
            log.error("groups of %s-%d cannot be served: %s", OFFSETS_TOPIC, index, failure)
            if not is_abandoned():
                del self._loading[index]
            return
        if is_abandoned():
            return
        del self._loading[index]
        self._shards[index] = shard
        for group in shard:
            self._execute(group, group.classic.resume())
        if shard.groups:
            log.info(
                "%d groups of %s-%d loaded in %d ms",
                len(shard.groups),
                OFFSETS_TOPIC,
                index,
                self._clock.monotonic_ms() - begun_ms,
            )

    def give_up(self, index: int) -> None:
        """Coordinate a partition's groups no more: another broker does, or it is gone."""
        self._loading.pop(index, None)
        shard = self._shards.pop(index, None)
        for group in shard or ():
            self._execute(group, group.classic.die(ErrorCode.NOT_COORDINATOR))

    def close(self) -> None:
        """Stop: no timer fires any more, and nobody is answered."""
        self._is_closed = True
        self._rebalances.tell_rest()
        self._unsubscribe()
        self._timers.close()
        for task in self._tasks:
            task.cancel()

    def _spawn(self, work: Coroutine[None, None, None]) -> None:
        task = self._loop.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._ended)

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (bug := task.exception()) is not None:
            log.error("the group coordinator met a bug", exc_info=bug)

    # -- who is asked ------------------------------------------------------------------------

    def shard_of(self, group_id: str) -> Shard:
        """Return the shard that keeps a group, whether there is such a group or not.

        Raises:
            NotCoordinator: another broker keeps it.
            CoordinatorLoadInProgress: its log is being read.
        """
        index = partition_of(group_id, self._partitions())
        shard = self._shards.get(index)
        if shard is not None:
            return shard
        if index in self._loading:
            raise CoordinatorLoadInProgress(f"{OFFSETS_TOPIC}-{index} is being read")
        raise NotCoordinator(f"{OFFSETS_TOPIC}-{index} is not led here")

    def find(self, group_id: str) -> Group | None:
        """Return a group that there is. Raises as `shard_of`."""
        return self.shard_of(group_id).groups.get(group_id)

    def groups(self) -> list[Group]:
        """Return all groups that are kept here."""
        return [group for shard in self._shards.values() for group in shard]

    @property
    def is_loading(self) -> bool:
        """Whether there may be more groups than `groups` tells."""
        return bool(self._loading)

    # -- the life of members -----------------------------------------------------------------

    async def join(self, group_id: str, join: Join) -> JoinAnswer:
        """Have somebody join, and return what it is told once its generation is formed.

        `join.token` is taken for the wait. Raises as `shard_of`.
        """
        shard = self.shard_of(group_id)
        if join.member_id and group_id not in shard.groups:
            return JoinAnswer(ErrorCode.UNKNOWN_MEMBER_ID, join.member_id)
        return await self._ask(shard.group(group_id), join, JoinAnswer)

    async def sync(self, group_id: str, sync: Sync) -> SyncAnswer:
        """Return a member's assignment once there is one. Raises as `shard_of`."""
        group = self.find(group_id)
        if group is None:
            return SyncAnswer(ErrorCode.UNKNOWN_MEMBER_ID)
        return await self._ask(group, sync, SyncAnswer)

    async def beat(self, group_id: str, beat: Heartbeat) -> ErrorCode:
        """Take note that a member lives. Raises as `shard_of`."""
        group = self.find(group_id)
        if group is None:
            return ErrorCode.UNKNOWN_MEMBER_ID
        return await self._ask(group, beat, ErrorCode)

    async def leave(self, group_id: str, members: tuple[Leaving, ...]) -> tuple[ErrorCode, ...]:
        """Take members out; an error for each, in this order. Raises as `shard_of`."""
        group = self.find(group_id)
        if group is None:
            return (ErrorCode.UNKNOWN_MEMBER_ID,) * len(members)
        return (await self._ask(group, Leave(self.token(), members), Left)).errors

    def token(self) -> asyncio.Future[object]:
        """Return what a request waits with."""
        return self._loop.create_future()

    async def _ask(self, group: Group, event: Join | Sync | Heartbeat | Leave, kind: type[A]) -> A:
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
    ) -> ErrorCode:
        """Commit offsets, at least one: all or none. Tells once they are safe.

        Raises as `shard_of`.
        """
        shard = self.shard_of(group_id)
        if group_id not in shard.groups and generation >= 0:
            return ErrorCode.ILLEGAL_GENERATION
        group = shard.group(group_id)
        refusal = group.classic.refuse_commit(member_id, instance_id, generation)
        if refusal is not ErrorCode.NONE:
            return refusal
        self._execute(group, group.classic.hear(member_id))
        pairs = [
            Pair(group_log.encode_offset_key(group_id, at), group_log.encode_offset(committed))
            for at, committed in offsets
        ]
        with group.offsets.committing(at for at, _ in offsets):
            try:
                position = await self._append(shard, pairs)
            except KafkaError as failure:
                return told(failure, too_large=ErrorCode.INVALID_COMMIT_OFFSET_SIZE)
            for step, (at, committed) in enumerate(offsets):
                group.offsets.commit(at, committed, position + step)
        return ErrorCode.NONE

    async def forget_offsets(self, group: Group, partitions: Sequence[TopicPartition]) -> None:
        """Delete committed offsets, and with the last ones a group that nobody would miss.

        Raises KafkaError: they are still there.
        """
        shard = self.shard_of(group.classic.group_id)
        group_id = group.classic.group_id
        pairs = [Pair(group_log.encode_offset_key(group_id, at), None) for at in partitions]
        if pairs:
            position = await self._append(shard, pairs)
            for step, at in enumerate(partitions):
                group.offsets.forget(at, position + step)
            if group.is_forgettable:
                await self.delete(group_id)

    async def delete(self, group_id: str) -> ErrorCode:
        """Delete a group that nobody is in, and what it has committed. Raises as `shard_of`."""
        shard = self.shard_of(group_id)
        group = shard.groups.get(group_id)
        if group is None:
            return ErrorCode.GROUP_ID_NOT_FOUND
        if group.classic.state is not GroupState.EMPTY or group.classic.pending:
            return ErrorCode.NON_EMPTY_GROUP
        partitions = [at for at, _ in group.offsets]
        pairs = [Pair(group_log.encode_offset_key(group_id, at), None) for at in partitions]
        if group.is_stored:
            pairs.append(Pair(group_log.encode_group_key(group_id), None))
        # Until its end is safe the group refuses whoever comes, for a while.
        was = group.classic
        self._execute(group, was.die(ErrorCode.COORDINATOR_NOT_AVAILABLE))
        try:
            if pairs:
                await self._append(shard, pairs)
        except KafkaError as failure:
            group.classic = ClassicGroup(
                group_id,
                was.initial_delay_ms,
                generation=was.generation,
                protocol_type=was.protocol_type,
            )
            return told(failure, too_large=ErrorCode.UNKNOWN_SERVER_ERROR)
        if shard.groups.get(group_id) is group:
            del shard.groups[group_id]
        return ErrorCode.NONE

    def _forget_topics(self, topics: Collection[str]) -> None:
        if not self._is_closed:
            self._spawn(self._forget_offsets_of(topics))

    async def _forget_offsets_of(self, topics: Collection[str]) -> None:
        for group in self.groups():
            partitions = [at for at, _ in group.offsets if at.topic in topics]
            try:
                await self.forget_offsets(group, partitions)
            except KafkaError as failure:
                log.warning(
                    "group %s keeps offsets of deleted topics: %s", group.classic.group_id, failure
                )

    async def _expire_now_and_then(self) -> None:
        while True:
            await asyncio.sleep(self._settings.offsets_retention_check_interval_ms / 1000)
            await self.expire()

    async def expire(self) -> None:
        """Forget offsets that nobody asked for in a long time, and groups without any."""
        retention_ms = self._settings.offsets_retention_minutes * MINUTE_MS
        for group in self.groups():
            try:
                expired = group.expired(self._clock.now_ms(), retention_ms)
                await self.forget_offsets(group, expired)
                if group.is_forgettable:
                    await self.delete(group.classic.group_id)
            except KafkaError as failure:
                log.warning("offsets of %s cannot expire: %s", group.classic.group_id, failure)

    async def _append(self, shard: Shard, pairs: Sequence[Pair]) -> int:
        return await self._appends.append(
            TopicPartition(OFFSETS_TOPIC, shard.partition),
            pairs,
            codec=self._settings.offsets_topic_compression_codec,
        )

    # -- machines ----------------------------------------------------------------------------

    def _feed(self, group: Group, event: Event) -> None:
        before = group.classic.state
        effects = group.classic.on(event)
        if group.classic.state is not before:
            group.since_ms = self._clock.now_ms()
        self._execute(group, effects)

    def _fired(self, key: tuple[str, Timer]) -> None:
        group_id, timer = key
        shard = self._shards.get(partition_of(group_id, self._partitions()))
        group = None if shard is None else shard.groups.get(group_id)
        if group is not None:
            self._feed(group, TimerFired(timer))

    def _execute(self, group: Group, effects: Iterable[Effect]) -> None:
        group_id = group.classic.group_id
        for effect in effects:
            match effect:
                case Answer(token, answer):
                    assert isinstance(token, asyncio.Future)
                    if not token.done():  # else its client has gone
                        token.set_result(answer)
                case SetTimer(timer, after_ms):
                    self._timers.set((group_id, timer), after_ms)
                case StopTimer(timer):
                    self._timers.stop((group_id, timer))
                case Rebalancing(generation, reason):
                    # All of it is the clients' word: one line, and no long one.
                    self._rebalances.log(
                        logging.INFO,
                        "group %.100r rebalances at generation %d: %.300s",
                        group_id,
                        generation,
                        reason.encode("unicode_escape").decode(),
                    )
                case StoreGroup():
                    self._spawn(self._store(group, self._record(group, effect), effect.ticket))

    def _record(self, group: Group, effect: StoreGroup) -> Pair:
        group.is_stored = True
        return Pair(
            group_log.encode_group_key(group.classic.group_id),
            group_log.encode_group(group.classic, effect.assignments, group.since_ms),
        )

    async def _store(self, group: Group, record: Pair, ticket: int) -> None:
        error = ErrorCode.NONE
        try:
            await self._append(self.shard_of(group.classic.group_id), [record])
        except KafkaError as failure:
            error = told(failure, too_large=ErrorCode.UNKNOWN_SERVER_ERROR)
            log.warning("group %s cannot be stored: %s", group.classic.group_id, failure)
        self._feed(group, Stored(ticket, error))


def told(failure: KafkaError, *, too_large: ErrorCode) -> ErrorCode:
    """Return what a client is told when the coordinator's own append fails."""
    code = ErrorCode(failure.code)
    if code in UNAVAILABLE:
        return ErrorCode.COORDINATOR_NOT_AVAILABLE
    if code in ELSEWHERE:
        return ErrorCode.NOT_COORDINATOR
    return too_large if code in TOO_LARGE else code
