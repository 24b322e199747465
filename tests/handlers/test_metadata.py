"""Metadata and DescribeCluster: topics, auto creation, and what each listener's clients see."""

from __future__ import annotations

import uuid
from collections.abc import Callable

import pytest

from plog.errors import ErrorCode
from plog.handlers.operations import NOT_ASKED
from plog.protocol.messages.cluster import DescribeClusterRequest
from plog.protocol.messages.metadata import MetadataRequest, MetadataRequestTopic, MetadataResponse
from plog.types import ZERO_UUID
from tests.handlers.conftest import ADVERTISED, ManyListeners
from tests.handlers.wire import (
    Speaker,
    create_topic,
    eventually,
    fresh_name,
    make_batch,
    produce,
    speak,
)
from tests.servers import BrokerProcess, free_port


def metadata(
    connection: Speaker,
    *names: str | uuid.UUID,
    version: int = 12,
    create: bool = False,
    **options: bool,
) -> MetadataResponse:
    asked = [
        MetadataRequestTopic(name=name)
        if isinstance(name, str)
        else MetadataRequestTopic(name=None, topic_id=name)
        for name in names
    ]
    allow = create or version < 4
    return connection.ask(
        MetadataRequest(topics=asked, allow_auto_topic_creation=allow, **options), version
    )


def cluster_request(
    *, include_cluster_authorized_operations: bool = False, endpoint_type: int = 1
) -> DescribeClusterRequest:
    return DescribeClusterRequest(
        include_cluster_authorized_operations=include_cluster_authorized_operations,
        endpoint_type=endpoint_type,
    )


@pytest.mark.parametrize("version", range(14))
def test_topic_and_broker_are_described(broker: ManyListeners, wire: Speaker, version: int) -> None:
    name, topic_id = create_topic(wire, partitions=3)
    answer = metadata(wire, name, version=version)
    (node,) = answer.brokers
    assert (node.node_id, node.host, node.port) == (0, "127.0.0.1", broker.port)
    assert node.rack == ("r1" if version >= 1 else None)
    assert answer.controller_id == (0 if version >= 1 else -1)
    assert bool(answer.cluster_id) == (version >= 2)
    assert answer.error_code == ErrorCode.NONE
    (topic,) = answer.topics
    assert (topic.error_code, topic.name, topic.is_internal) == (0, name, False)
    assert topic.topic_id == (topic_id if version >= 10 else ZERO_UUID)
    assert topic.topic_authorized_operations == NOT_ASKED
    found = [
        (p.error_code, p.partition_index, p.leader_id, p.replica_nodes, p.isr_nodes)
        for p in sorted(topic.partitions, key=lambda p: p.partition_index)
    ]
    assert found == [(0, index, 0, [0], [0]) for index in range(3)]
    assert {p.leader_epoch for p in topic.partitions} == {0 if version >= 7 else -1}


@pytest.mark.parametrize("version", range(14))
def test_all_topics_are_asked_for_as_the_version_has_it(wire: Speaker, version: int) -> None:
    name, _ = create_topic(wire)
    empty = wire.ask(MetadataRequest(topics=[]), version)
    if version == 0:
        assert name in {topic.name for topic in empty.topics}
        return
    assert empty.topics == []
    everything = wire.ask(MetadataRequest(topics=None), version)
    assert name in {topic.name for topic in everything.topics}
    ids = {topic.topic_id for topic in everything.topics}
    assert (ZERO_UUID in ids) == (version < 10)


def test_asking_for_all_topics_creates_none(wire: Speaker) -> None:
    before = {topic.name for topic in wire.ask(MetadataRequest(topics=None), 12).topics}
    wire.ask(MetadataRequest(topics=None, allow_auto_topic_creation=True), 12)
    assert {t.name for t in wire.ask(MetadataRequest(topics=None), 12).topics} == before


@pytest.mark.parametrize("version", [0, 3, 4, 12, 13])
def test_unknown_topic_is_created_with_the_defaults(wire: Speaker, version: int) -> None:
    name = fresh_name()
    (first,) = metadata(wire, name, version=version, create=True).topics
    assert first.error_code == ErrorCode.LEADER_NOT_AVAILABLE
    eventually(lambda: metadata(wire, name).topics[0].error_code == 0, "created")
    (topic,) = metadata(wire, name).topics
    assert len(topic.partitions) == 2  # num.partitions
    assert produce(wire, name, make_batch()).error_code == 0


@pytest.mark.parametrize("version", [4, 12, 13])
def test_topic_that_shall_not_be_created_is_unknown(wire: Speaker, version: int) -> None:
    name = fresh_name()
    for _ in range(2):
        (topic,) = metadata(wire, name, version=version).topics
        assert (topic.error_code, topic.name, topic.partitions) == (
            ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
            name,
            [],
        )


def test_broker_that_creates_none_says_unknown(own_broker: Callable[..., BrokerProcess]) -> None:
    connection = speak(own_broker(auto_create_topics_enable="false").port)
    for _ in range(2):
        (topic,) = metadata(connection, "t", create=True).topics
        assert topic.error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    connection.close()


@pytest.mark.parametrize("name", ["", ".", "..", "a b", "a/b", "é", "x" * 250])
@pytest.mark.parametrize("create", [True, False])
def test_illegal_name_is_refused_and_not_created(wire: Speaker, name: str, create: bool) -> None:
    (topic,) = metadata(wire, name, create=create).topics
    assert (topic.error_code, topic.name) == (ErrorCode.INVALID_TOPIC_EXCEPTION, name)


def test_name_that_collides_is_refused(wire: Speaker) -> None:
    name, _ = create_topic(wire, f"{fresh_name()}.x")
    (topic,) = metadata(wire, name.replace(".", "_"), create=True).topics
    assert topic.error_code == ErrorCode.INVALID_TOPIC_EXCEPTION


def test_topics_by_id(wire: Speaker) -> None:
    name, topic_id = create_topic(wire)
    unknown = uuid.uuid4()
    good, bad, none = metadata(wire, topic_id, unknown, ZERO_UUID, create=True).topics
    assert (good.error_code, good.name, good.topic_id) == (0, name, topic_id)
    assert (bad.error_code, bad.name, bad.topic_id) == (
        ErrorCode.UNKNOWN_TOPIC_ID,
        None,
        unknown,
    )
    assert none.error_code == ErrorCode.UNKNOWN_TOPIC_ID
    for version in (10, 11):
        answer = metadata(wire, topic_id, version=version)
        (early,) = answer.topics
        assert early.error_code == ErrorCode.INVALID_REQUEST
        assert (answer.brokers, answer.controller_id, answer.cluster_id) == ([], -1, None)


def test_topic_named_twice_is_told_once(wire: Speaker, topic: str) -> None:
    assert [t.name for t in metadata(wire, topic, topic).topics] == [topic]
    topic_id = metadata(wire, topic).topics[0].topic_id
    assert [t.name for t in metadata(wire, topic, topic_id).topics] == [topic]


def test_id_stays_over_a_restart(own_broker: Callable[..., BrokerProcess]) -> None:
    broker = own_broker()
    connection = speak(broker.port)
    name, topic_id = create_topic(connection)
    cluster_id = metadata(connection).cluster_id
    for end in (broker.stop, broker.kill):
        connection.close()
        end()
        broker.start()
        connection = speak(broker.port)
        eventually(lambda at=connection: metadata(at, name).topics[0].error_code == 0, "there")
        answer = metadata(connection, name)
        assert answer.topics[0].topic_id == topic_id
        assert answer.cluster_id == cluster_id
    connection.close()


# -- the brokers' own topics


def test_own_topics_are_created_as_they_must_be(own_broker: Callable[..., BrokerProcess]) -> None:
    connection = speak(
        own_broker(
            offsets_topic_replication_factor=1,
            offsets_topic_num_partitions=3,
            transaction_state_log_num_partitions=4,
        ).port
    )
    (first,) = metadata(connection, "__consumer_offsets", create=True).topics
    assert (first.error_code, first.is_internal) == (ErrorCode.LEADER_NOT_AVAILABLE, True)
    eventually(
        lambda: metadata(connection, "__consumer_offsets").topics[0].error_code == 0, "created"
    )
    (topic,) = metadata(connection, "__consumer_offsets").topics
    assert (topic.is_internal, len(topic.partitions)) == (True, 3)
    admin = Speaker("127.0.0.1", int(connection.peer.split(":")[1]), client_id="__admin_client")
    # Compacted: records need keys.
    refused = produce(admin, "__consumer_offsets", make_batch())
    assert refused.error_code == ErrorCode.INVALID_RECORD
    # Three replicas cannot be had of one broker, which is alone for good: it takes one.
    (other,) = metadata(connection, "__transaction_state", create=True).topics
    assert (other.error_code, other.is_internal) == (ErrorCode.LEADER_NOT_AVAILABLE, True)
    eventually(
        lambda: metadata(connection, "__transaction_state").topics[0].error_code == 0, "created"
    )
    (topic,) = metadata(connection, "__transaction_state").topics
    assert [one.replica_nodes for one in topic.partitions] == [[0]] * 4
    admin.close()
    connection.close()


# -- what a client may do


@pytest.mark.parametrize("version", range(8, 14))
def test_operations_are_told_when_asked(wire: Speaker, topic: str, version: int) -> None:
    answer = metadata(
        wire,
        topic,
        fresh_name(),
        version=version,
        include_topic_authorized_operations=True,
        include_cluster_authorized_operations=version <= 10,
    )
    told, unknown = answer.topics
    # Read, write, create, delete, alter, describe, and both of configs: bits 3 to 8, 10, 11.
    assert told.topic_authorized_operations == 0b110111111000
    assert unknown.topic_authorized_operations == NOT_ASKED
    # Create, alter, describe, cluster action, both of configs, idempotent write.
    expected = 0b1111110100000 if version <= 10 else NOT_ASKED
    assert answer.cluster_authorized_operations == expected


# -- listeners


def test_each_listener_tells_its_own_address(broker: ManyListeners) -> None:
    for port, expected in (
        (broker.port, ("127.0.0.1", broker.port)),
        (broker.second_port, ("127.0.0.1", broker.second_port)),
        (broker.third_port, ADVERTISED),
    ):
        connection = speak(port)
        (node,) = metadata(connection).brokers
        assert (node.host, node.port) == expected
        (node,) = connection.ask(cluster_request()).brokers
        assert (node.host, node.port, node.rack) == (*expected, "r1")
        connection.close()


def test_listeners_serve_the_same_topics(broker: ManyListeners, wire: Speaker) -> None:
    name, _ = create_topic(wire)
    for port in (broker.second_port, broker.third_port):
        connection = speak(port)
        assert produce(connection, name, make_batch()).error_code == 0
        connection.close()
    assert produce(wire, name, make_batch()).base_offset == 2


@pytest.mark.parametrize("version", [5, 6])
def test_listener_that_is_not_advertised_says_so(
    own_broker: Callable[..., BrokerProcess], version: int
) -> None:
    port, hidden = free_port(), free_port()
    broker = own_broker(
        listeners=f"PLAINTEXT://127.0.0.1:{port},HIDDEN://127.0.0.1:{hidden}",
        advertised_listeners=f"PLAINTEXT://127.0.0.1:{port}",
        listener_security_protocol_map="PLAINTEXT:PLAINTEXT,HIDDEN:PLAINTEXT",
        inter_broker_listener_name="PLAINTEXT",
        port=port,
    )
    assert broker.port == port
    connection, other = speak(port), speak(hidden)
    name, _ = create_topic(connection)
    answer = metadata(other, name, version=version)
    assert answer.brokers == []
    expected = ErrorCode.LISTENER_NOT_FOUND if version >= 6 else ErrorCode.LEADER_NOT_AVAILABLE
    assert [part.error_code for part in answer.topics[0].partitions] == [expected]
    connection.close()
    other.close()


# -- DescribeCluster


@pytest.mark.parametrize("version", [0, 1, 2])
def test_cluster_is_described(wire: Speaker, version: int) -> None:
    answer = wire.ask(cluster_request(), version)
    assert (answer.error_code, answer.controller_id) == (0, 0)
    assert answer.cluster_id == metadata(wire).cluster_id
    assert answer.cluster_authorized_operations == NOT_ASKED
    for fenced in (False, True) if version >= 2 else (False,):
        request = DescribeClusterRequest(
            include_cluster_authorized_operations=False, include_fenced_brokers=fenced
        )
        (broker,) = wire.ask(request, version).brokers
        assert (broker.broker_id, broker.is_fenced) == (0, False)
    asked = cluster_request(include_cluster_authorized_operations=True)
    assert wire.ask(asked, version).cluster_authorized_operations == 0b1111110100000


@pytest.mark.parametrize(
    ("endpoint_type", "expected"),
    [
        (0, ErrorCode.UNSUPPORTED_ENDPOINT_TYPE),
        (2, ErrorCode.MISMATCHED_ENDPOINT_TYPE),
        (9, ErrorCode.UNSUPPORTED_ENDPOINT_TYPE),
    ],
)
def test_controllers_are_not_described_by_brokers(
    wire: Speaker, endpoint_type: int, expected: ErrorCode
) -> None:
    answer = wire.ask(cluster_request(endpoint_type=endpoint_type), 1)
    assert (answer.error_code, answer.brokers) == (expected, [])
    assert answer.error_message
