"""Requests as the cases write them, short: each returns what makes the request for one side.

Topics are called by the case's own names; a name of several topics or partitions stands alone or
in a list.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from plog.protocol.messages.configs import (
    AlterableConfig,
    AlterConfigsRequest,
    AlterConfigsResource,
    DescribeConfigsRequest,
    DescribeConfigsResource,
    IncrementalAlterableConfig,
    IncrementalAlterConfigsRequest,
    IncrementalAlterConfigsResource,
    ListConfigResourcesRequest,
)
from plog.protocol.messages.list_offsets import (
    ListOffsetsPartition,
    ListOffsetsRequest,
    ListOffsetsTopic,
)
from plog.protocol.messages.metadata import MetadataRequest, MetadataRequestTopic
from plog.protocol.messages.offsets import (
    OffsetForLeaderEpochRequest,
    OffsetForLeaderPartition,
    OffsetForLeaderTopic,
)
from plog.protocol.messages.topics import (
    CreatableReplicaAssignment,
    CreatableTopic,
    CreatableTopicConfig,
    CreatePartitionsAssignment,
    CreatePartitionsRequest,
    CreatePartitionsTopic,
    CreateTopicsRequest,
    DeleteRecordsPartition,
    DeleteRecordsRequest,
    DeleteRecordsTopic,
    DeleteTopicsRequest,
    DeleteTopicState,
)
from plog.protocol.schema import Struct
from plog.types import ZERO_UUID
from tests.compat.against_kafka.pair import Made, Side
from tests.handlers import wire
from tests.handlers.wire import WAIT_MS

TOPIC, BROKER, GROUP = 2, 4, 32
SET, DELETE, APPEND, SUBTRACT = range(4)


def topics_of(
    kind: type[Struct], side: Side, topics: Iterable[tuple[str, Iterable[object]]]
) -> list[Struct]:
    """Return a `kind` for each topic: its first fields are the name and perhaps the id.

    Versions with ids leave the names out, and versions with names the ids.
    """
    name, partitions = kind.fields[0].name, next(f.name for f in kind.fields if f.kind == "array")
    by_id = any(field.name == "topic_id" for field in kind.fields)
    return [
        kind(
            **{name: side.name(called), partitions: list(of)},
            **({"topic_id": side.id(called)} if by_id else {}),
        )
        for called, of in topics
    ]


def new(
    name: str = "new",
    partitions: int = 1,
    factor: int = 1,
    *,
    replicas: Sequence[tuple[int, Sequence[int]]] = (),
    configs: Sequence[tuple[str, str | None]] = (),
) -> CreatableTopic:
    """Return one topic for `create`."""
    return CreatableTopic(
        name=name,
        num_partitions=partitions,
        replication_factor=factor,
        assignments=[
            CreatableReplicaAssignment(partition_index=index, broker_ids=list(brokers))
            for index, brokers in replicas
        ],
        configs=[CreatableTopicConfig(name=key, value=value) for key, value in configs],
    )


def create(*topics: CreatableTopic, validate_only: bool = False, timeout_ms: int = WAIT_MS) -> Made:
    def make(side: Side) -> CreateTopicsRequest:
        named = [
            CreatableTopic(
                name=side.name(topic.name),
                num_partitions=topic.num_partitions,
                replication_factor=topic.replication_factor,
                assignments=topic.assignments,
                configs=topic.configs,
            )
            for topic in topics
        ]
        return CreateTopicsRequest(topics=named, timeout_ms=timeout_ms, validate_only=validate_only)

    return make


def delete(*names: str, timeout_ms: int = WAIT_MS) -> Made:
    """By name, in the form of versions below 6 and of version 6."""

    def make(side: Side) -> DeleteTopicsRequest:
        return DeleteTopicsRequest(topic_names=list(map(side.name, names)), timeout_ms=timeout_ms)

    return make


def delete_states(*states: tuple[str | None, str | None], timeout_ms: int = WAIT_MS) -> Made:
    """Version 6: by name, or by the id of a topic, or both, or neither."""

    def make(side: Side) -> DeleteTopicsRequest:
        return DeleteTopicsRequest(
            topics=[
                DeleteTopicState(
                    name=None if name is None else side.name(name), topic_id=side.id(of)
                )
                for name, of in states
            ],
            timeout_ms=timeout_ms,
        )

    return make


def grow(
    *topics: tuple[str, int] | tuple[str, int, Sequence[Sequence[int]]],
    validate_only: bool = False,
    timeout_ms: int = WAIT_MS,
) -> Made:
    """CreatePartitions: name, count, and the new ones' replicas."""

    def make(side: Side) -> CreatePartitionsRequest:
        return CreatePartitionsRequest(
            topics=[
                CreatePartitionsTopic(
                    name=side.name(name),
                    count=count,
                    assignments=[
                        CreatePartitionsAssignment(broker_ids=list(one)) for one in replicas[0]
                    ]
                    if replicas
                    else None,
                )
                for name, count, *replicas in topics
            ],
            timeout_ms=timeout_ms,
            validate_only=validate_only,
        )

    return make


def delete_records(*parts: tuple[str, int, int]) -> Made:
    """Topic, partition, offset."""

    def partition(index: int, offset: int) -> DeleteRecordsPartition:
        return DeleteRecordsPartition(partition_index=index, offset=offset)

    def make(side: Side) -> DeleteRecordsRequest:
        return DeleteRecordsRequest(
            topics=topics_of(
                DeleteRecordsTopic, side, ((name, [partition(*rest)]) for name, *rest in parts)
            ),
            timeout_ms=WAIT_MS,
        )

    return make


def metadata(*names: str | None, auto: bool = False, **options: object) -> Made:
    """Of topics by name; a single None asks for all."""

    def make(side: Side) -> MetadataRequest:
        return MetadataRequest(
            topics=None
            if names == (None,)
            else [MetadataRequestTopic(name=side.name(name), topic_id=ZERO_UUID) for name in names],
            allow_auto_topic_creation=auto,
            **options,
        )

    return make


def metadata_of_id(*states: tuple[str | None, str | None]) -> Made:
    """Of topics by name or null, and the id of a topic of the case, "unknown" or None."""

    def make(side: Side) -> MetadataRequest:
        return MetadataRequest(
            topics=[
                MetadataRequestTopic(
                    name=None if name is None else side.name(name), topic_id=side.id(of)
                )
                for name, of in states
            ],
            allow_auto_topic_creation=False,
        )

    return make


def list_offsets(
    *parts: tuple[str, int, int],
    epoch: int = -1,
    isolation: int = 0,
    replica_id: int = -1,
    most: int = 1,
) -> Made:
    """Topic, partition, timestamp."""

    def partition(index: int, timestamp: int) -> ListOffsetsPartition:
        return ListOffsetsPartition(
            partition_index=index,
            current_leader_epoch=epoch,
            timestamp=timestamp,
            max_num_offsets=most,
        )

    def make(side: Side) -> ListOffsetsRequest:
        return ListOffsetsRequest(
            replica_id=replica_id,
            isolation_level=isolation,
            topics=topics_of(
                ListOffsetsTopic, side, ((name, [partition(*rest)]) for name, *rest in parts)
            ),
        )

    return make


def end_of_epoch(*parts: tuple[str, int, int, int], replica_id: int = -1) -> Made:
    """OffsetForLeaderEpoch: topic, partition, the reader's leader epoch, the epoch asked about."""

    def partition(index: int, current: int, epoch: int) -> OffsetForLeaderPartition:
        return OffsetForLeaderPartition(
            partition=index, current_leader_epoch=current, leader_epoch=epoch
        )

    def make(side: Side) -> OffsetForLeaderEpochRequest:
        return OffsetForLeaderEpochRequest(
            replica_id=replica_id,
            topics=topics_of(
                OffsetForLeaderTopic, side, ((name, [partition(*rest)]) for name, *rest in parts)
            ),
        )

    return make


# -- configs: topics and groups are called by the case's own names


def _resource(side: Side, kind: int, name: str) -> dict[str, object]:
    is_ours = kind == TOPIC or (kind == GROUP and name != "")
    return {"resource_type": kind, "resource_name": side.name(name) if is_ours else name}


def describe(
    *resources: tuple[int, str],
    keys: Sequence[str] | None = None,
    synonyms: bool = False,
    documentation: bool = False,
) -> Made:
    def make(side: Side) -> DescribeConfigsRequest:
        return DescribeConfigsRequest(
            resources=[
                DescribeConfigsResource(
                    **_resource(side, kind, name),
                    configuration_keys=None if keys is None else list(keys),
                )
                for kind, name in resources
            ],
            include_synonyms=synonyms,
            include_documentation=documentation,
        )

    return make


def replace(
    *resources: tuple[int, str, Mapping[str, str | None] | Sequence[tuple[str, str | None]]],
    validate_only: bool = False,
) -> Made:
    """AlterConfigs: type, name, all that is to be set."""

    def make(side: Side) -> AlterConfigsRequest:
        return AlterConfigsRequest(
            resources=[
                AlterConfigsResource(
                    **_resource(side, kind, name),
                    configs=[
                        AlterableConfig(name=key, value=value)
                        for key, value in (
                            configs.items() if isinstance(configs, Mapping) else configs
                        )
                    ],
                )
                for kind, name, configs in resources
            ],
            validate_only=validate_only,
        )

    return make


def alter(
    *resources: tuple[int, str, Sequence[tuple[str, int, str | None]]],
    validate_only: bool = False,
) -> Made:
    """IncrementalAlterConfigs: type, name, and keys with operations and values."""

    def make(side: Side) -> IncrementalAlterConfigsRequest:
        return IncrementalAlterConfigsRequest(
            resources=[
                IncrementalAlterConfigsResource(
                    **_resource(side, kind, name),
                    configs=[
                        IncrementalAlterableConfig(name=key, config_operation=operation, value=to)
                        for key, operation, to in configs
                    ],
                )
                for kind, name, configs in resources
            ],
            validate_only=validate_only,
        )

    return make


def list_resources(*types: int) -> Made:
    return lambda side: ListConfigResourcesRequest(resource_types=list(types))


# -- records


def produce(*parts: tuple[str, int, bytes | None], acks: int = -1) -> Made:
    """Topic, partition, record set."""

    def make(side: Side) -> wire.ProduceRequest:
        named = [(side.name(name), index, data) for name, index, data in parts]
        return wire.produce_request(named, acks=acks)

    return make


def fetch(*parts: tuple[str, int, int], by_id: bool = False, **options: object) -> Made:
    """Topic, partition, offset. `session` may hold None for the id of the case's session."""

    def make(side: Side) -> object:
        given = dict(options)
        called = side.id if by_id else side.name
        if "forgotten" in given:
            given["forgotten"] = [(called(name), index) for name, index in given["forgotten"]]
        if "session" in given:
            session_id, epoch = given["session"]
            given["session"] = side.session_id if session_id is None else session_id, epoch
        named = [(called(name), index, offset) for name, index, offset in parts]
        return wire.fetch_request(*named, **given)

    return make
