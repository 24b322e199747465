"""Every API at every version that is served: a request that succeeds and one that is refused."""

from __future__ import annotations

import uuid
from collections.abc import Callable
from contextlib import closing
from typing import NamedTuple

import pytest

from plog.errors import ErrorCode
from plog.protocol.api_keys import ApiKey
from plog.protocol.messages import (
    api_versions,
    configs,
    consumer_groups,
    features,
    group_admin,
    groups,
    list_offsets,
    metadata,
    offsets,
    producers,
    reassignments,
    topics,
    transactions,
)
from plog.protocol.messages import cluster as clusters
from plog.protocol.schema import Struct
from tests.coordinator.conftest import TRANSACTION, await_coordinator
from tests.handlers.wire import (
    Speaker,
    create_topic,
    fetch_request,
    fresh_name,
    make_batch,
    produce_request,
    speak,
)
from tests.served import SERVED
from tests.servers import BrokerProcess

UNKNOWN_ID = uuid.UUID(int=12345)
UNKNOWN_KIND = 9


class Target(NamedTuple):
    """What a request is about."""

    topic: str
    topic_id: uuid.UUID
    exists: bool

    def named(self, version: int, ids_since: int) -> str | uuid.UUID:
        return self.topic if version < ids_since else self.topic_id


def _metadata(target: Target, version: int) -> Struct:
    asked = metadata.MetadataRequestTopic(name=target.topic)
    return metadata.MetadataRequest(topics=[asked], allow_auto_topic_creation=version < 4)


def _list_offsets(target: Target, version: int) -> Struct:
    part = list_offsets.ListOffsetsPartition(partition_index=0, timestamp=-1)
    topic = list_offsets.ListOffsetsTopic(name=target.topic, partitions=[part])
    return list_offsets.ListOffsetsRequest(replica_id=-1, topics=[topic])


def _epochs(target: Target, version: int) -> Struct:
    part = offsets.OffsetForLeaderPartition(partition=0, leader_epoch=0)
    topic = offsets.OffsetForLeaderTopic(topic=target.topic, partitions=[part])
    return offsets.OffsetForLeaderEpochRequest(topics=[topic], replica_id=-2)


def _create(target: Target, version: int) -> Struct:
    topic = topics.CreatableTopic(
        name=fresh_name() if target.exists else "no/name",
        num_partitions=1,
        replication_factor=1,
        assignments=[],
        configs=[],
    )
    return topics.CreateTopicsRequest(topics=[topic], timeout_ms=20_000)


def _delete(target: Target, version: int) -> Struct:
    if version >= 6:
        return topics.DeleteTopicsRequest(
            topics=[topics.DeleteTopicState(topic_id=target.topic_id)], timeout_ms=20_000
        )
    return topics.DeleteTopicsRequest(topic_names=[target.topic], timeout_ms=20_000)


def _delete_records(target: Target, version: int) -> Struct:
    part = topics.DeleteRecordsPartition(partition_index=0, offset=-1)
    topic = topics.DeleteRecordsTopic(name=target.topic, partitions=[part])
    return topics.DeleteRecordsRequest(topics=[topic], timeout_ms=20_000)


def _grow(target: Target, version: int) -> Struct:
    topic = topics.CreatePartitionsTopic(name=target.topic, count=2, assignments=None)
    return topics.CreatePartitionsRequest(topics=[topic], timeout_ms=20_000, validate_only=False)


def _elect(target: Target, version: int) -> Struct:
    asked = topics.TopicPartitions(topic=target.topic, partitions=[0])
    return topics.ElectLeadersRequest(topic_partitions=[asked], timeout_ms=20_000)


def _describe_configs(target: Target, version: int) -> Struct:
    resource = configs.DescribeConfigsResource(
        resource_type=2, resource_name=target.topic, configuration_keys=None
    )
    return configs.DescribeConfigsRequest(
        resources=[resource],
        include_synonyms=version >= 1,
        include_documentation=version >= 3,
    )


def _alter_configs(target: Target, version: int) -> Struct:
    resource = configs.AlterConfigsResource(
        resource_type=2,
        resource_name=target.topic,
        configs=[configs.AlterableConfig(name="retention.ms", value="1000000")],
    )
    return configs.AlterConfigsRequest(resources=[resource], validate_only=False)


def _list_resources(target: Target, version: int) -> Struct:
    types = [2] if target.exists else [UNKNOWN_KIND]
    return configs.ListConfigResourcesRequest(resource_types=types if version >= 1 else [])


def _incremental(target: Target, version: int) -> Struct:
    change = configs.IncrementalAlterableConfig(
        name="retention.ms", config_operation=0, value="1000000"
    )
    resource = configs.IncrementalAlterConfigsResource(
        resource_type=2, resource_name=target.topic, configs=[change]
    )
    return configs.IncrementalAlterConfigsRequest(resources=[resource], validate_only=False)


def _log_dirs(target: Target, version: int) -> Struct:
    asked = clusters.DescribableLogDirTopic(topic=target.topic, partitions=[0])
    return clusters.DescribeLogDirsRequest(topics=[asked])


def _move(target: Target, version: int) -> Struct:
    asked = clusters.AlterReplicaLogDirTopic(name=target.topic, partitions=[0])
    moved = clusters.AlterReplicaLogDir(path="/no/such/log/dir", topics=[asked])
    return clusters.AlterReplicaLogDirsRequest(dirs=[moved])


def _cluster(target: Target, version: int) -> Struct:
    request = clusters.DescribeClusterRequest(include_cluster_authorized_operations=True)
    if not target.exists and version >= 1:
        request.endpoint_type = 2
    return request


def _reassign(target: Target, version: int) -> Struct:
    asked = reassignments.ReassignablePartition(partition_index=0, replicas=[0])
    moved = reassignments.ReassignableTopic(name=target.topic, partitions=[asked])
    return reassignments.AlterPartitionReassignmentsRequest(topics=[moved])


def _coordinator(target: Target, version: int) -> Struct:
    kind = 0 if target.exists or version == 0 else UNKNOWN_KIND
    if version >= 4:
        return groups.FindCoordinatorRequest(coordinator_keys=["g", "h"], key_type=kind)
    return groups.FindCoordinatorRequest(key="g", key_type=kind)


def _join(target: Target, version: int) -> Struct:
    return groups.JoinGroupRequest(
        group_id=target.topic,
        session_timeout_ms=10_000,
        rebalance_timeout_ms=10_000 if version >= 1 else -1,
        member_id="" if target.exists else "nobody",
        group_instance_id="one" if version >= 5 else None,
        protocol_type="consumer",
        protocols=[groups.JoinGroupRequestProtocol(name="range", metadata=b"")],
    )


def _beat_as_consumer(target: Target, version: int) -> Struct:
    return consumer_groups.ConsumerGroupHeartbeatRequest(
        group_id=target.topic,
        member_id=str(uuid.uuid4()),
        member_epoch=0 if target.exists else 5,
        rebalance_timeout_ms=10_000,
        subscribed_topic_names=[target.topic],
        subscribed_topic_regex="x" if version >= 1 else None,
        topic_partitions=[],
    )


def _describe_consumers(target: Target, version: int) -> Struct:
    return consumer_groups.ConsumerGroupDescribeRequest(
        group_ids=[target.topic], include_authorized_operations=True
    )


def _sync(target: Target, version: int) -> Struct:
    return groups.SyncGroupRequest(
        group_id=target.topic,
        generation_id=1,
        member_id="nobody",
        protocol_type="consumer" if version >= 5 else None,
        protocol_name="range" if version >= 5 else None,
        assignments=[],
    )


def _beat(target: Target, version: int) -> Struct:
    return groups.HeartbeatRequest(group_id=target.topic, generation_id=1, member_id="nobody")


def _leave(target: Target, version: int) -> Struct:
    if version < 3:
        return groups.LeaveGroupRequest(group_id=target.topic, member_id="nobody")
    return groups.LeaveGroupRequest(
        group_id=target.topic, members=[groups.MemberIdentity(member_id="nobody")]
    )


def _commit(target: Target, version: int) -> Struct:
    part = offsets.OffsetCommitRequestPartition(
        partition_index=0, committed_offset=1, committed_metadata=""
    )
    topic = offsets.OffsetCommitRequestTopic(
        name=target.topic, topic_id=target.topic_id, partitions=[part]
    )
    return offsets.OffsetCommitRequest(group_id=target.topic, topics=[topic])


def _committed(target: Target, version: int) -> Struct:
    if version >= 8:
        asked = offsets.OffsetFetchRequestTopics(
            name=target.topic, topic_id=target.topic_id, partition_indexes=[0]
        )
        group = offsets.OffsetFetchRequestGroup(group_id=target.topic, topics=[asked])
        return offsets.OffsetFetchRequest(groups=[group])
    topic = offsets.OffsetFetchRequestTopic(name=target.topic, partition_indexes=[0])
    return offsets.OffsetFetchRequest(group_id=target.topic, topics=[topic])


def _forget(target: Target, version: int) -> Struct:
    part = offsets.OffsetDeleteRequestPartition(partition_index=0)
    topic = offsets.OffsetDeleteRequestTopic(name=target.topic, partitions=[part])
    return offsets.OffsetDeleteRequest(group_id=target.topic, topics=[topic])


def _producer_id(target: Target, version: int) -> Struct:
    return producers.InitProducerIdRequest(
        transactional_id=None if target.exists else "", transaction_timeout_ms=1000
    )


NOBODY = {"producer_id": 5, "producer_epoch": 0}


def _level(target: Target, version: int) -> Struct:
    level = 2 if target.exists else 99
    change = features.FeatureUpdateKey(feature="transaction.version", max_version_level=level)
    return features.UpdateFeaturesRequest(feature_updates=[change])


def _add_partitions(target: Target, version: int) -> Struct:
    topic = transactions.AddPartitionsToTxnTopic(name=target.topic, partitions=[0])
    if version < 4:
        return transactions.AddPartitionsToTxnRequest(
            v3_and_below_transactional_id="nobody",
            v3_and_below_producer_id=5,
            v3_and_below_producer_epoch=0,
            v3_and_below_topics=[topic],
        )
    one = transactions.AddPartitionsToTxnTransaction(
        transactional_id="nobody", topics=[topic], **NOBODY
    )
    return transactions.AddPartitionsToTxnRequest(transactions=[one])


def _add_offsets(target: Target, version: int) -> Struct:
    return transactions.AddOffsetsToTxnRequest(
        transactional_id="nobody", group_id="g" if target.exists else "", **NOBODY
    )


def _end(target: Target, version: int) -> Struct:
    return transactions.EndTxnRequest(
        transactional_id="nobody" if target.exists else "", committed=True, **NOBODY
    )


def _mark(target: Target, version: int) -> Struct:
    topic = transactions.WritableTxnMarkerTopic(name=target.topic, partition_indexes=[0])
    marker = transactions.WritableTxnMarker(
        transaction_result=True, topics=[topic], coordinator_epoch=0, **NOBODY
    )
    return transactions.WriteTxnMarkersRequest(markers=[marker])


def _commit_in_transaction(target: Target, version: int) -> Struct:
    part = transactions.TxnOffsetCommitRequestPartition(
        partition_index=0, committed_offset=0, committed_metadata=""
    )
    topic = transactions.TxnOffsetCommitRequestTopic(
        name=target.topic, topic_id=target.topic_id, partitions=[part]
    )
    return transactions.TxnOffsetCommitRequest(
        transactional_id="nobody", group_id="g", topics=[topic], **NOBODY
    )


REQUESTS: dict[int, Callable[[Target, int], Struct]] = {
    ApiKey.PRODUCE: lambda t, v: produce_request([(t.topic, 0, make_batch())]),
    ApiKey.FETCH: lambda t, v: fetch_request((t.named(v, 13), 0, 0)),
    ApiKey.LIST_OFFSETS: _list_offsets,
    ApiKey.METADATA: _metadata,
    ApiKey.OFFSET_COMMIT: _commit,
    ApiKey.OFFSET_FETCH: _committed,
    ApiKey.FIND_COORDINATOR: _coordinator,
    ApiKey.JOIN_GROUP: _join,
    ApiKey.HEARTBEAT: _beat,
    ApiKey.LEAVE_GROUP: _leave,
    ApiKey.SYNC_GROUP: _sync,
    ApiKey.DESCRIBE_GROUPS: lambda t, v: group_admin.DescribeGroupsRequest(groups=[t.topic]),
    ApiKey.LIST_GROUPS: lambda t, v: group_admin.ListGroupsRequest(),
    ApiKey.API_VERSIONS: lambda t, v: api_versions.ApiVersionsRequest(
        client_software_name="t" if t.exists else "", client_software_version="1"
    ),
    ApiKey.CREATE_TOPICS: _create,
    ApiKey.DELETE_TOPICS: _delete,
    ApiKey.DELETE_RECORDS: _delete_records,
    ApiKey.INIT_PRODUCER_ID: _producer_id,
    ApiKey.OFFSET_FOR_LEADER_EPOCH: _epochs,
    ApiKey.DESCRIBE_CONFIGS: _describe_configs,
    ApiKey.ALTER_CONFIGS: _alter_configs,
    ApiKey.ALTER_REPLICA_LOG_DIRS: _move,
    ApiKey.DESCRIBE_LOG_DIRS: _log_dirs,
    ApiKey.CREATE_PARTITIONS: _grow,
    ApiKey.ELECT_LEADERS: _elect,
    ApiKey.CONSUMER_GROUP_HEARTBEAT: _beat_as_consumer,
    ApiKey.CONSUMER_GROUP_DESCRIBE: _describe_consumers,
    ApiKey.DELETE_GROUPS: lambda t, v: group_admin.DeleteGroupsRequest(groups_names=[t.topic]),
    ApiKey.INCREMENTAL_ALTER_CONFIGS: _incremental,
    ApiKey.LIST_CONFIG_RESOURCES: _list_resources,
    ApiKey.OFFSET_DELETE: _forget,
    ApiKey.ALTER_PARTITION_REASSIGNMENTS: _reassign,
    ApiKey.LIST_PARTITION_REASSIGNMENTS: lambda t, v: (
        reassignments.ListPartitionReassignmentsRequest(topics=None)
    ),
    ApiKey.UPDATE_FEATURES: _level,
    ApiKey.DESCRIBE_CLUSTER: _cluster,
    ApiKey.ADD_PARTITIONS_TO_TXN: _add_partitions,
    ApiKey.ADD_OFFSETS_TO_TXN: _add_offsets,
    ApiKey.END_TXN: _end,
    ApiKey.WRITE_TXN_MARKERS: _mark,
    ApiKey.TXN_OFFSET_COMMIT: _commit_in_transaction,
    ApiKey.DESCRIBE_PRODUCERS: lambda t, v: producers.DescribeProducersRequest(
        topics=[producers.TopicRequest(name=t.topic, partition_indexes=[0])]
    ),
    ApiKey.DESCRIBE_TRANSACTIONS: lambda t, v: transactions.DescribeTransactionsRequest(
        transactional_ids=["nobody" if t.exists else ""]
    ),
    ApiKey.LIST_TRANSACTIONS: lambda t, v: transactions.ListTransactionsRequest(
        state_filters=[], producer_id_filters=[]
    ),
}

# What no single request of these can avoid: nobody is a member yet, nor anything out of place.
ALWAYS = {
    ApiKey.CONSUMER_GROUP_DESCRIBE: ErrorCode.GROUP_ID_NOT_FOUND,
    ApiKey.SYNC_GROUP: ErrorCode.UNKNOWN_MEMBER_ID,
    ApiKey.HEARTBEAT: ErrorCode.UNKNOWN_MEMBER_ID,
    ApiKey.LEAVE_GROUP: ErrorCode.UNKNOWN_MEMBER_ID,
    ApiKey.DELETE_GROUPS: ErrorCode.GROUP_ID_NOT_FOUND,
    ApiKey.OFFSET_DELETE: ErrorCode.GROUP_ID_NOT_FOUND,
    ApiKey.ELECT_LEADERS: ErrorCode.ELECTION_NOT_NEEDED,
    ApiKey.ALTER_REPLICA_LOG_DIRS: ErrorCode.LOG_DIR_NOT_FOUND,
    ApiKey.ADD_PARTITIONS_TO_TXN: ErrorCode.INVALID_PRODUCER_ID_MAPPING,
    ApiKey.ADD_OFFSETS_TO_TXN: ErrorCode.INVALID_PRODUCER_ID_MAPPING,
    ApiKey.END_TXN: ErrorCode.INVALID_PRODUCER_ID_MAPPING,
    ApiKey.TXN_OFFSET_COMMIT: ErrorCode.INVALID_PRODUCER_ID_MAPPING,
    ApiKey.DESCRIBE_TRANSACTIONS: ErrorCode.TRANSACTIONAL_ID_NOT_FOUND,
}
# What clients of one version alone are told.
ONCE = {
    (ApiKey.JOIN_GROUP, 4): ErrorCode.MEMBER_ID_REQUIRED,
    # No member has joined.
    (ApiKey.DESCRIBE_GROUPS, 6): ErrorCode.GROUP_ID_NOT_FOUND,
}
# What each says of a topic that does not exist (or the like of it); None: nothing.
REFUSALS: dict[int, ErrorCode | None] = {
    ApiKey.METADATA: None,  # auto creation is tested by itself
    ApiKey.FIND_COORDINATOR: None,
    ApiKey.OFFSET_FETCH: None,
    ApiKey.DESCRIBE_GROUPS: None,
    ApiKey.LIST_GROUPS: None,
    ApiKey.JOIN_GROUP: ErrorCode.UNKNOWN_MEMBER_ID,
    ApiKey.SYNC_GROUP: ErrorCode.UNKNOWN_MEMBER_ID,
    ApiKey.HEARTBEAT: ErrorCode.UNKNOWN_MEMBER_ID,
    ApiKey.LEAVE_GROUP: ErrorCode.UNKNOWN_MEMBER_ID,
    ApiKey.DELETE_GROUPS: ErrorCode.GROUP_ID_NOT_FOUND,
    ApiKey.OFFSET_DELETE: ErrorCode.GROUP_ID_NOT_FOUND,
    ApiKey.CREATE_TOPICS: ErrorCode.INVALID_TOPIC_EXCEPTION,
    ApiKey.INIT_PRODUCER_ID: ErrorCode.INVALID_REQUEST,
    ApiKey.DESCRIBE_LOG_DIRS: None,
    ApiKey.LIST_PARTITION_REASSIGNMENTS: None,
    ApiKey.ALTER_REPLICA_LOG_DIRS: ErrorCode.LOG_DIR_NOT_FOUND,
    ApiKey.ADD_OFFSETS_TO_TXN: ErrorCode.INVALID_GROUP_ID,
    ApiKey.END_TXN: ErrorCode.INVALID_REQUEST,
    ApiKey.UPDATE_FEATURES: ErrorCode.INVALID_UPDATE_VERSION,
    ApiKey.DESCRIBE_TRANSACTIONS: ErrorCode.INVALID_REQUEST,
    ApiKey.LIST_TRANSACTIONS: None,
    ApiKey.CONSUMER_GROUP_HEARTBEAT: ErrorCode.GROUP_ID_NOT_FOUND,
    ApiKey.CONSUMER_GROUP_DESCRIBE: ErrorCode.GROUP_ID_NOT_FOUND,
}
# Refused differently, or not at all, by version.
REFUSED_SINCE = {
    (ApiKey.FIND_COORDINATOR, 1): ErrorCode.INVALID_REQUEST,
    (ApiKey.FETCH, 13): ErrorCode.UNKNOWN_TOPIC_ID,
    (ApiKey.DELETE_TOPICS, 6): ErrorCode.UNKNOWN_TOPIC_ID,
    (ApiKey.DESCRIBE_GROUPS, 6): ErrorCode.GROUP_ID_NOT_FOUND,
    (ApiKey.OFFSET_COMMIT, 10): ErrorCode.UNKNOWN_TOPIC_ID,
    (ApiKey.OFFSET_FETCH, 10): ErrorCode.UNKNOWN_TOPIC_ID,
    (ApiKey.TXN_OFFSET_COMMIT, 6): ErrorCode.UNKNOWN_TOPIC_ID,
    (ApiKey.LIST_CONFIG_RESOURCES, 0): None,
    (ApiKey.LIST_CONFIG_RESOURCES, 1): ErrorCode.UNSUPPORTED_VERSION,
    (ApiKey.API_VERSIONS, 0): None,
    (ApiKey.API_VERSIONS, 3): ErrorCode.INVALID_REQUEST,
    (ApiKey.DESCRIBE_CLUSTER, 0): None,
    (ApiKey.DESCRIBE_CLUSTER, 1): ErrorCode.MISMATCHED_ENDPOINT_TYPE,
}


def codes(value: object) -> set[int]:
    """Return every error code in an answer but 0."""
    found: set[int] = set()
    if isinstance(value, list):
        for item in value:
            found |= codes(item)
    elif isinstance(value, Struct):
        for name in type(value).__annotations__:
            inner = getattr(value, name)
            if name.endswith("error_code"):
                found |= {inner} - {ErrorCode.NONE}
            else:
                found |= codes(inner)
    return found


@pytest.fixture(scope="module", autouse=True)
def groups_are_coordinated(broker: BrokerProcess) -> None:
    with closing(speak(broker.port)) as connection:
        await_coordinator(connection, "g")
        await_coordinator(connection, "nobody", TRANSACTION)


def every_version() -> list[tuple[int, int]]:
    return [
        (key, version)
        for key, handler in sorted(SERVED.items())
        for version in range(handler.min_version, handler.max_version + 1)
    ]


def test_every_api_has_its_request_here() -> None:
    assert set(REQUESTS) == set(SERVED)


@pytest.mark.parametrize(("key", "version"), every_version())
def test_request_that_can_be_granted_is(wire: Speaker, key: int, version: int) -> None:
    name, topic_id = create_topic(wire)
    answer = wire.ask(REQUESTS[key](Target(name, topic_id, True), version), version)
    expected = ONCE.get((ApiKey(key), version), ALWAYS.get(ApiKey(key)))
    assert codes(answer) == (set() if expected is None else {expected})


@pytest.mark.parametrize(("key", "version"), every_version())
def test_request_that_can_not_be_granted_is_refused_by_its_code(
    wire: Speaker, key: int, version: int
) -> None:
    answer = wire.ask(REQUESTS[key](Target(fresh_name(), UNKNOWN_ID, False), version), version)
    expected = REFUSALS.get(key, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
    for (api, since), code in sorted(REFUSED_SINCE.items()):
        if api == key and version >= since:
            expected = code
    if key == ApiKey.METADATA:
        expected = (
            ErrorCode.LEADER_NOT_AVAILABLE if version < 4 else ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        )
    assert codes(answer) == (set() if expected is None else {expected})
