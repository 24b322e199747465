"""Topics: CreateTopics, DeleteTopics, CreatePartitions.

The rules are the cluster's (`TopicAdmin`, the controller). Here a request becomes calls, and their
outcomes a response once the cluster shows them.
"""

from __future__ import annotations

import asyncio
import uuid
from collections import Counter
from collections.abc import Collection, Sequence
from typing import NamedTuple, TypeAlias

from plog.cluster.internal_replicas import OFFSETS_TOPIC, TRANSACTIONS_TOPIC
from plog.cluster.metadata_cache import MetadataSnapshot
from plog.cluster.store import SessionLost, WriteRefused
from plog.cluster.topic_admin import CreatedTopic, NewTopic
from plog.errors import (
    ErrorCode,
    InvalidReplicaAssignment,
    InvalidRequest,
    KafkaError,
    KafkaStorageError,
    PolicyViolation,
    RequestTimedOut,
    TopicDeletionDisabled,
    UnknownTopicOrPartition,
)
from plog.handlers.context import Context, Services, store_refusal
from plog.handlers.deadline import Deadline
from plog.handlers.registry import handles
from plog.protocol.messages.topics import (
    CreatableTopic,
    CreatableTopicConfigs,
    CreatableTopicResult,
    CreatePartitionsRequest,
    CreatePartitionsResponse,
    CreatePartitionsTopic,
    CreatePartitionsTopicResult,
    CreateTopicsRequest,
    CreateTopicsResponse,
    DeletableTopicResult,
    DeleteTopicsRequest,
    DeleteTopicsResponse,
    DeleteTopicState,
)
from plog.settings.definitions import BrokerSettings
from plog.types import ZERO_UUID

DEFAULT_PARTITIONS = -1
"""As many as the broker's setting says."""
MAX_NEW_PARTITIONS = 10_000
"""One request may not create more; Kafka's controller has the same bound."""
MAX_REPLICAS = 2**15 - 1
"""Of a partition, as the protocol has it."""
CREATED_AT_ONCE = 10
"""So many topics are created between two looks at whether the broker stops, or time is up."""
DELETION_DISABLED_SINCE = 3
"""From this version of DeleteTopics on, clients know TOPIC_DELETION_DISABLED."""
LOOK_S = 1.0
"""How long a request waits for a topic to be shown before it asks the store whether it is there."""

Descriptions: TypeAlias = "dict[frozenset[tuple[str, str]], list[CreatableTopicConfigs]]"
"""By a topic's own settings, how it is described: one request's topics share what is alike."""


# -- CreateTopics


@handles(CreateTopicsRequest, versions="0-7")
async def create_topics(ctx: Context, request: CreateTopicsRequest) -> CreateTopicsResponse:
    """Create all the topics, then wait until all their partitions have leaders."""
    deadline = Deadline(ctx, request.timeout_ms)
    names = Counter(topic.name for topic in request.topics)
    twice = {name for name, times in names.items() if times > 1}
    beyond = _beyond_the_most(ctx.services.settings.broker(), request.topics)
    descriptions: Descriptions = {}
    results: list[CreatableTopicResult] = []
    for start in range(0, len(request.topics), CREATED_AT_ONCE):
        topics = request.topics[start : start + CREATED_AT_ONCE]
        found: list[CreatableTopicResult] = []
        try:
            await ctx.in_thread(
                _create_some,
                ctx.services,
                topics,
                found,
                twice=twice,
                beyond=beyond,
                descriptions=descriptions,
                validate_only=request.validate_only,
            )
            results += found
        except RequestTimedOut as refusal:
            done = list(found)  # a thread may still be at work on the next
            results += done
            results += [_not_created(topic.name, refusal) for topic in topics[len(done) :]]
    if not request.validate_only:
        for at, result in enumerate(results):
            if result.error_code == ErrorCode.NONE:
                try:
                    await _until_led(
                        ctx, deadline, result.name, result.topic_id, result.num_partitions
                    )
                except (KafkaStorageError, RequestTimedOut, UnknownTopicOrPartition) as fault:
                    results[at] = _not_created(result.name, fault, result.topic_id)
    return CreateTopicsResponse(topics=results)


def _beyond_the_most(settings: BrokerSettings, topics: Sequence[CreatableTopic]) -> set[str]:
    """Return the topics for which a request has no partitions left, which each counts in its turn.

    Their answers, too, are bounded by it: a name of a few bytes is answered by all of its settings.
    """
    beyond = set()
    left = MAX_NEW_PARTITIONS
    for topic in topics:
        count = len(topic.assignments) or topic.num_partitions
        if count == DEFAULT_PARTITIONS:
            count = settings.num_partitions
        if count > left:
            beyond.add(topic.name)
        else:
            left -= max(count, 1)
    return beyond


def _create_some(
    services: Services,
    topics: Sequence[CreatableTopic],
    results: list[CreatableTopicResult],
    *,
    twice: Collection[str],
    beyond: Collection[str],
    descriptions: Descriptions,
    validate_only: bool,
) -> None:
    """Create topics, or only look whether they could be; add what becomes of each to `results`.

    Names that come `twice` cannot, nor what is `beyond` the most partitions of a request. Blocks.

    Raises:
        Unreachable: the coordination store is silent. It would be for the topics that are left.
    """
    for topic in topics:
        try:
            if topic.name in twice:
                raise InvalidRequest(f"topic {topic.name!r} appears twice in the request")
            if topic.name in beyond:
                raise PolicyViolation(
                    f"the request creates more than {MAX_NEW_PARTITIONS} partitions"
                )
            created = services.topics.create(_asked(topic), validate_only=validate_only)
            result = _created(services, created, descriptions)
        except (WriteRefused, SessionLost) as fault:
            result = _not_created(topic.name, store_refusal(fault))
        except KafkaError as refusal:
            result = _not_created(topic.name, refusal)
        results.append(result)


def _asked(topic: CreatableTopic) -> NewTopic:
    assignments = {entry.partition_index: entry.broker_ids for entry in topic.assignments}
    if len(assignments) < len(topic.assignments):
        raise InvalidReplicaAssignment("a partition is assigned twice")
    return NewTopic(
        topic.name,
        topic.num_partitions,
        topic.replication_factor,
        assignments,
        {config.name: config.value for config in topic.configs},
    )


async def _until_led(
    ctx: Context, deadline: Deadline, topic: str, topic_id: uuid.UUID | None, partitions: int
) -> None:
    """Wait until so many partitions of a topic have leaders.

    The topic may be deleted before anything is shown of it, so the store is asked now and then.

    Args:
        topic_id: of the topic that is meant; None: the one that has the name.

    Raises:
        KafkaStorageError: this broker cannot open the logs of some for now, or the store is lost.
        RequestTimedOut: they have not in time.
        UnknownTopicOrPartition: the topic is deleted, and they never will.
    """
    metadata = ctx.services.metadata
    was_shown = False

    def is_shown(snapshot: MetadataSnapshot) -> bool:
        there = snapshot.topics.get(topic)
        return there is not None and topic_id in (None, there.topic_id)

    def is_refused() -> bool:
        try:
            ctx.services.replicas.check_taken_up(topic)
        except KafkaStorageError:
            return True
        return False

    def is_led(snapshot: MetadataSnapshot) -> bool:
        nonlocal was_shown
        was_shown = was_shown or is_shown(snapshot)
        return is_refused() or (is_shown(snapshot) and snapshot.has_leaders(topic, partitions))

    def is_over(snapshot: MetadataSnapshot) -> bool:
        return is_led(snapshot) or (was_shown and not is_shown(snapshot))

    otherwise = f"not all {partitions} partitions of topic {topic!r} have leaders yet"
    while True:
        await deadline.is_shown_within(LOOK_S, is_over, otherwise)
        # `is_over` also runs on the thread that updates the snapshot. The newest one decides.
        newest = metadata.snapshot
        if is_led(newest):
            break
        if is_shown(newest):
            continue
        if was_shown or not await ctx.in_thread(ctx.services.topics.is_there, topic, topic_id):
            raise UnknownTopicOrPartition(f"topic {topic!r} was deleted during the request")
    ctx.services.replicas.check_taken_up(topic)


async def create_with_defaults(ctx: Context, name: str) -> None:
    """Create a topic that a client only asked about, if that is allowed.

    Raises:
        KafkaError: it cannot be created; TopicAlreadyExists when somebody was quicker.
    """
    internal = _internal_topics(ctx.services.settings.broker())
    await ctx.in_thread(ctx.services.topics.create, internal.get(name, NewTopic(name)))


def _internal_topics(broker: BrokerSettings) -> dict[str, NewTopic]:
    """Return the brokers' own topics as they must be: whoever asks first has them made.

    A broker without others has no place for more than one replica.
    """
    most = MAX_REPLICAS if broker.zookeeper_connect else 1
    as_it_comes = {"cleanup.policy": "compact", "compression.type": "producer"}
    return {
        OFFSETS_TOPIC: NewTopic(
            OFFSETS_TOPIC,
            broker.offsets_topic_num_partitions,
            min(broker.offsets_topic_replication_factor, most),
            configs={**as_it_comes, "segment.bytes": str(broker.offsets_topic_segment_bytes)},
        ),
        TRANSACTIONS_TOPIC: NewTopic(
            TRANSACTIONS_TOPIC,
            broker.transaction_state_log_num_partitions,
            min(broker.transaction_state_log_replication_factor, most),
            configs={
                "cleanup.policy": "compact",
                "compression.type": "uncompressed",
                "min.insync.replicas": str(min(broker.transaction_state_log_min_isr, most)),
                "segment.bytes": str(broker.transaction_state_log_segment_bytes),
                "unclean.leader.election.enable": "false",
            },
        ),
    }


def _created(
    services: Services, created: CreatedTopic, descriptions: Descriptions
) -> CreatableTopicResult:
    alike = frozenset(created.settings.overrides.items())
    configs = descriptions.get(alike)
    if configs is None:
        configs = descriptions[alike] = [
            CreatableTopicConfigs(
                name=entry.name,
                value=entry.value,
                read_only=entry.read_only,
                config_source=entry.source,
                is_sensitive=entry.sensitive,
            )
            for entry in services.settings.describe(created.settings)
        ]
    return CreatableTopicResult(
        name=created.name,
        topic_id=created.topic_id,
        error_code=ErrorCode.NONE,
        error_message=None,
        num_partitions=created.num_partitions,
        replication_factor=created.replication_factor,
        configs=configs,
    )


def _not_created(
    name: str, refusal: KafkaError, topic_id: uuid.UUID = ZERO_UUID
) -> CreatableTopicResult:
    """Answer with a refusal; a topic that is there all the same has its id told."""
    return CreatableTopicResult(
        name=name,
        topic_id=topic_id,
        error_code=refusal.code,
        error_message=str(refusal),
        configs=[],
    )


# -- DeleteTopics


@handles(DeleteTopicsRequest, versions="0-6")
async def delete_topics(ctx: Context, request: DeleteTopicsRequest) -> DeleteTopicsResponse:
    """Delete topics by name, or (from version 6) by id, and wait until they are gone."""
    deadline = Deadline(ctx, request.timeout_ms)
    asked = request.topics or [
        DeleteTopicState(name=name, topic_id=ZERO_UUID) for name in request.topic_names
    ]
    # All ids are looked up first, and each topic is deleted once, however often it is given.
    names = [_named(ctx, state) for state in asked]
    by_name: dict[str, Going | KafkaError] = {}
    for name, state in zip(names, asked, strict=True):
        if isinstance(name, str) and name not in by_name:
            by_name[name] = await _delete(ctx, name, state.topic_id)
    outcomes = [by_name[name] if isinstance(name, str) else name for name in names]
    responses = []
    for state, outcome in zip(asked, outcomes, strict=True):
        try:
            if isinstance(outcome, KafkaError):
                raise outcome
            await _until_gone(ctx, deadline, outcome)
            responses.append(
                DeletableTopicResult(
                    name=outcome.name, topic_id=state.topic_id, error_code=ErrorCode.NONE
                )
            )
        except KafkaError as refusal:
            # Names and ids are equally secret where access is controlled: say what was said.
            responses.append(
                DeletableTopicResult(
                    name=state.name,
                    topic_id=state.topic_id,
                    error_code=refusal.code,
                    error_message=str(refusal),
                )
            )
    return DeleteTopicsResponse(responses=responses)


def _named(ctx: Context, state: DeleteTopicState) -> str | KafkaError:
    """Return the name of the topic that is to go, or why there is none."""
    if (state.name is None) == (state.topic_id == ZERO_UUID):
        return InvalidRequest("name a topic by its name or by its id")
    try:
        return ctx.topic_of_id(state.topic_id) if state.name is None else state.name
    except KafkaError as refusal:
        return refusal


class Going(NamedTuple):
    """A topic that is being deleted. Its name may be another's before anybody has seen it free."""

    name: str
    topic_id: uuid.UUID | None

    def is_shown(self, snapshot: MetadataSnapshot) -> bool:
        """Whether clients still see it."""
        shown = snapshot.topics.get(self.name)
        return shown is not None and self.topic_id in (None, shown.topic_id)


async def _delete(ctx: Context, name: str, topic_id: uuid.UUID) -> Going | KafkaError:
    """Have a topic deleted, which has to have the id if that is given; return why it is not."""
    wanted = None if topic_id == ZERO_UUID else topic_id
    try:
        return Going(name, await ctx.in_thread(ctx.services.topics.delete, name, wanted))
    except TopicDeletionDisabled as refusal:
        if ctx.version >= DELETION_DISABLED_SINCE:
            return refusal
        return InvalidRequest(str(refusal))
    except KafkaError as refusal:
        return refusal


async def _until_gone(ctx: Context, deadline: Deadline, topic: Going) -> None:
    """Wait until clients see the topic no more, and then until its name is free."""
    otherwise = f"topic {topic.name!r} is being deleted"
    await deadline.until_shown(lambda snapshot: not topic.is_shown(snapshot), otherwise)
    loop = asyncio.get_running_loop()
    removed: asyncio.Future[None] = loop.create_future()

    def settle() -> None:
        if not removed.done():
            removed.set_result(None)

    def on_removed() -> None:  # on the store's thread
        loop.call_soon_threadsafe(settle)

    watch = ctx.services.topics.watch_removal(*topic, on_removed)
    try:
        await ctx.in_thread(watch.begin)
        await deadline.until_done(removed, otherwise)
    finally:
        # Not here: it may wait for the store, and the store for a disk.
        loop.run_in_executor(None, watch.cancel)


# -- CreatePartitions


@handles(CreatePartitionsRequest, versions="0-3")
async def create_partitions(
    ctx: Context, request: CreatePartitionsRequest
) -> CreatePartitionsResponse:
    """Add partitions to topics and wait until they have leaders."""
    deadline = Deadline(ctx, request.timeout_ms)
    names = Counter(topic.name for topic in request.topics)
    topics = list({topic.name: topic for topic in request.topics}.values())
    outcomes: list[uuid.UUID | KafkaError | None] = []
    for topic in topics:
        try:
            if names[topic.name] > 1:
                raise InvalidRequest(f"topic {topic.name!r} appears twice in the request")
            outcomes.append(await _grow(ctx, topic, validate_only=request.validate_only))
        except KafkaError as refusal:
            outcomes.append(refusal)
    results = []
    for topic, outcome in zip(topics, outcomes, strict=True):
        code, message = ErrorCode.NONE, None
        try:
            if isinstance(outcome, KafkaError):
                raise outcome
            if not request.validate_only:
                await _until_led(ctx, deadline, topic.name, outcome, topic.count)
        except KafkaError as refusal:
            code, message = refusal.code, str(refusal)
        results.append(
            CreatePartitionsTopicResult(name=topic.name, error_code=code, error_message=message)
        )
    return CreatePartitionsResponse(results=results)


async def _grow(
    ctx: Context, topic: CreatePartitionsTopic, *, validate_only: bool
) -> uuid.UUID | None:
    """Add a topic's partitions, or only look whether they could be; return the topic's id."""
    assignments = (
        None if topic.assignments is None else [entry.broker_ids for entry in topic.assignments]
    )
    return await ctx.in_thread(
        ctx.services.topics.create_partitions,
        topic.name,
        topic.count,
        assignments,
        limit=MAX_NEW_PARTITIONS,
        validate_only=validate_only,
    )
