"""Ends groups: expires offsets, deletes those of deleted topics, and deletes unused groups.

Owns the order of storing and forgetting. Never decides whether a group is empty (`classic_group`,
`consumer_group`), or when an offset has expired (`group_shard`).
"""

from __future__ import annotations

import logging
import uuid
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping, Sequence

from plog.cluster.own_appends import Pair
from plog.coordinator import group_log
from plog.coordinator.classic_group import ClassicGroup
from plog.coordinator.consumer_group import ConsumerGroup
from plog.coordinator.consumer_runner import ConsumerRunner
from plog.coordinator.consumer_store import Batch
from plog.coordinator.consumer_table import Record
from plog.coordinator.failures import log_level, told
from plog.coordinator.group_events import Effect
from plog.coordinator.group_log import CommittedOffset
from plog.coordinator.group_shard import Group, Shard
from plog.coordinator.shards import Shards
from plog.errors import ErrorCode, KafkaError
from plog.runtime.bounded_lines import BoundedLines
from plog.runtime.give_way import giving_way
from plog.runtime.trusted_time import TrustedTime
from plog.settings.definitions import BrokerSettings
from plog.types import TopicPartition, counted

log = logging.getLogger(__name__)

MINUTE_MS = 60_000


class GroupEndings:
    """Ends groups of this broker. For the event loop's thread.

    Args:
        consumers: runs the groups of KIP-848; `run_classic` executes the effects of the others.
        trusted_time: the time by which offsets expire.
        append: writes to a shard's log and returns the offset. Raises KafkaError.
        is_ours: returns whether a group exists and this broker coordinates it.
        is_deleted: returns whether a topic that existed does not exist any more, by its id.
    """

    def __init__(
        self,
        shards: Shards[Shard],
        consumers: ConsumerRunner,
        *,
        settings: BrokerSettings,
        trusted_time: TrustedTime,
        unstored: BoundedLines,
        append: Callable[[Shard, Sequence[Pair]], Awaitable[int]],
        is_ours: Callable[[Group], bool],
        is_deleted: Callable[[uuid.UUID], bool],
        run_classic: Callable[[Group, Iterable[Effect]], None],
    ) -> None:
        self._shards = shards
        self._consumers = consumers
        self._settings = settings
        self._trusted_time = trusted_time
        self._unstored = unstored
        self._append = append
        self._is_ours = is_ours
        self._is_deleted = is_deleted
        self._run_classic = run_classic

    async def forget_offsets(self, group: Group, partitions: Sequence[TopicPartition]) -> None:
        """Delete committed offsets; with the last ones also an unused group.

        Raises KafkaError if they could not be deleted.
        """
        group_id = group.group_id
        shard = self._shards.of(group_id)
        pairs = [Pair(group_log.encode_offset_key(group_id, at), None) for at in partitions]
        if pairs:
            position = await self._append(shard, pairs)
            for step, at in enumerate(partitions):
                group.offsets.forget(at, position + step)
            log.debug("deleted %s of group %.100r", counted(len(pairs), "offset"), group_id)
            if group.is_forgettable:
                await self.delete(group_id)

    async def delete(self, group_id: str) -> ErrorCode:
        """Delete an empty group and its committed offsets. Raises as `Shards.of`.

        Offsets of open transactions are deleted as well, as in Kafka's `deleteAllOffsets`: their
        markers find none, now or after a restart.
        """
        shard = self._shards.of(group_id)
        group = shard.groups.get(group_id)
        if group is None:
            return ErrorCode.GROUP_ID_NOT_FOUND
        if not group.is_empty:
            return ErrorCode.NON_EMPTY_GROUP
        if group.unsafe or group.offsets.is_being_committed:
            # Wait until the last member's leave is committed, and all keys to delete are known.
            return ErrorCode.COORDINATOR_NOT_AVAILABLE
        pairs = [
            Pair(group_log.encode_offset_key(group_id, at), None) for at in group.offsets.partitions
        ]
        if group.is_stored:
            pairs.append(Pair(group_log.encode_group_key(group_id), None))
        removed = Batch([Record(key, None) for key in group.consumer_keys()])
        pairs += removed.pairs(group_id)
        # Until its deletion is committed, the group refuses new members with a retriable error.
        was, again = group.machine, self._begin_again(group)
        if isinstance(was, ConsumerGroup):
            self._consumers.retire(group, was, ErrorCode.COORDINATOR_NOT_AVAILABLE)
        else:
            self._run_classic(group, was.die(ErrorCode.COORDINATOR_NOT_AVAILABLE))
        try:
            if pairs:
                await self._append(shard, pairs)
        except KafkaError as failure:
            group.machine = again
            return told(failure, too_large=ErrorCode.UNKNOWN_SERVER_ERROR)
        if shard.groups.get(group_id) is group:
            del shard.groups[group_id]
            log.debug("deleted group %.100r", group_id)
        return ErrorCode.NONE

    def _begin_again(self, group: Group) -> ClassicGroup | ConsumerGroup:
        """Return a machine for an empty group, in its state before the deletion."""
        was = group.machine
        if isinstance(was, ConsumerGroup):
            return ConsumerGroup(group.group_id, was.rules, group.stored.copy())
        return ClassicGroup(
            group.group_id,
            was.initial_delay_ms,
            generation=was.generation,
            protocol_type=was.protocol_type,
        )

    async def _each_of(self, groups: Iterable[Group]) -> AsyncIterator[Group]:
        """Iterate over the groups that still exist, yielding to requests in between."""
        async for group in giving_way(groups):
            if self._is_ours(group):
                yield group

    async def forget_topics(self, topics: Mapping[str, uuid.UUID], groups: Iterable[Group]) -> None:
        """Delete the offsets of deleted topics, by name.

        Args:
            groups: those that existed when the deletion was seen. Only their offsets without a
                topic id certainly belong to the deleted topics.
        """
        async for group in self._each_of(groups):
            group.offsets.set_topic_ids(topics)
            await self.forget_deleted_topics(group)

    def may_be_of_deleted_topics(
        self, group: Group, offsets: Iterable[tuple[TopicPartition, CommittedOffset | None]]
    ) -> bool:
        """Return whether these offsets, or those committed there, belong to deleted topics."""
        return any(
            committed is not None and self._is_deleted(committed.topic_id)
            for at, given in offsets
            for committed in (given, group.offsets.get(at))
        )

    async def forget_deleted_topics(self, group: Group) -> None:
        """Delete a group's offsets of deleted topics, as far as that is possible now."""
        if not self._is_ours(group):
            return
        try:
            await self.forget_offsets(group, group.offsets.of_deleted_topics(self._is_deleted))
        except KafkaError as failure:
            self._unstored.log(
                log_level(failure),
                "group %.100r keeps offsets of deleted topics: %s",
                group.group_id,
                failure,
            )

    async def expire(self) -> None:
        """Delete expired offsets, remaining ones of deleted topics, and unused groups."""
        retention_ms = self._settings.offsets_retention_minutes * MINUTE_MS
        groups = [group for shard in self._shards for group in shard]
        async for group in self._each_of(groups):
            await self.forget_deleted_topics(group)
            if not self._is_ours(group):
                continue
            try:
                expired = group.expired(self._trusted_time.now_ms(), retention_ms)
                await self.forget_offsets(group, expired)
                if group.is_forgettable:
                    await self.delete(group.group_id)
            except KafkaError as failure:
                self._unstored.log(
                    log_level(failure),
                    "offsets of group %.100r cannot expire: %s",
                    group.group_id,
                    failure,
                )
