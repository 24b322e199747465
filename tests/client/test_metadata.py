from __future__ import annotations

import pytest

from plog.client.connection import BrokerUnreachable
from plog.client.metadata import Cluster, parse_bootstrap
from plog.client.offsets import EARLIEST, LATEST, list_offsets
from plog.errors import (
    ErrorCode,
    InvalidConfig,
    InvalidTopic,
    KafkaError,
    LeaderNotAvailable,
    NetworkException,
    UnknownTopicOrPartition,
)
from plog.protocol.api_keys import ApiKey
from plog.protocol.messages.api_versions import ApiVersionsRequest
from plog.protocol.messages.list_offsets import (
    ListOffsetsPartitionResponse,
    ListOffsetsResponse,
    ListOffsetsTopicResponse,
)
from plog.protocol.messages.metadata import MetadataResponse, MetadataResponseBroker
from plog.types import TopicPartition
from tests.client.fake_broker import CLOSE, FakeBroker
from tests.servers import free_port


@pytest.mark.parametrize(
    ("text", "addresses"),
    [
        ("a:1", [("a", 1)]),
        ("a:1, b:2,", [("a", 1), ("b", 2)]),
        ("a", [("a", 9092)]),
        ("[::1]:7", [("::1", 7)]),
        ("[::1]", [("::1", 9092)]),
        (["a:1", "b"], [("a", 1), ("b", 9092)]),
    ],
)
def test_bootstrap_servers_are_read(text, addresses):
    assert parse_bootstrap(text) == addresses


@pytest.mark.parametrize(
    "text",
    ["", ",", ":1", "a:", "a:x", "a:0", "a:65536", "::1", "[::1", "[::1]x", "a:1:2", "a:\u0661"],
)
def test_bootstrap_server_that_is_no_address_is_refused(text):
    with pytest.raises(InvalidConfig):
        parse_bootstrap(text)


def test_topic_that_does_not_exist_is_said_so(bootstrap):
    with Cluster(bootstrap) as cluster:
        with pytest.raises(UnknownTopicOrPartition, match="'nowhere' does not exist"):
            cluster.topic("nowhere")
        with pytest.raises(InvalidTopic):
            cluster.topic("a/b")


def test_broker_that_refuses_metadata_leaves_what_is_known():
    with FakeBroker(2) as fake, Cluster(fake.bootstrap) as cluster:
        cluster.refresh(["t"])
        before = dict(cluster.nodes), dict(cluster.topics)
        fake.answers[ApiKey.METADATA] = lambda request, header: MetadataResponse(
            brokers=[], topics=[], error_code=ErrorCode.REBOOTSTRAP_REQUIRED
        )
        with pytest.raises(KafkaError, match="refused Metadata") as refusal:
            cluster.refresh(["t"])
        assert refusal.value.code == ErrorCode.REBOOTSTRAP_REQUIRED
        assert (cluster.nodes, cluster.topics) == before


def test_one_refused_topic_leaves_the_others(bootstrap, new_topic):
    good = new_topic(2)
    with Cluster(bootstrap) as cluster:
        cluster.refresh(["a/b", good, "nowhere"])
        assert list(cluster.topics) == [good]
        assert list(cluster.errors) == ["a/b"]
        assert sorted(cluster.topics[good].partitions) == [0, 1]
        with pytest.raises(UnknownTopicOrPartition):
            cluster.leader(TopicPartition(good, 2))


def test_first_address_that_answers_will_do(broker):
    with Cluster(f"127.0.0.1:{free_port()},{broker.bootstrap}") as cluster:
        cluster.refresh([])
        assert sorted(cluster.nodes) == broker.ids


@pytest.mark.parametrize("host", ["127.0.0.1", "::1"])
def test_twin_knows_the_brokers_and_has_connections_of_its_own(host):
    with FakeBroker(host=host) as fake, Cluster(fake.bootstrap) as cluster:
        cluster.refresh([])
        with cluster.twin() as twin:
            assert twin.nodes == cluster.nodes
            twin.refresh([])
            twin.nodes.clear()
            twin.refresh([])
        cluster.refresh([])
        assert fake.count(ApiVersionsRequest) == 2


@pytest.mark.parametrize("count", [1, 2])
def test_wrong_advertised_address_of_the_only_broker_may_be_ignored(count):
    """With several brokers the bootstrap server may be another one, so they are not ignored."""
    wrong = free_port()
    brokers = [
        MetadataResponseBroker(node_id=number, host="127.0.0.1", port=wrong, rack=None)
        for number in range(1, count + 1)
    ]
    with FakeBroker() as fake:
        fake.answers[ApiKey.METADATA] = lambda *_: MetadataResponse(
            brokers=brokers, controller_id=1, cluster_id="fake", topics=[]
        )
        servers = [f"127.0.0.1:{free_port()}", fake.bootstrap]
        for stays in False, True:
            with Cluster(servers, stays_at_bootstrap=stays) as cluster:
                cluster.refresh([])
                with cluster.twin() as twin:
                    for one in cluster, twin:
                        assert one.nodes[1].port == wrong
                        if stays and count == 1:
                            assert one.connection(1).peer == fake.bootstrap
                        else:
                            with pytest.raises(BrokerUnreachable, match=str(wrong)):
                                one.connection(1)


def test_cluster_without_a_broker_names_every_address():
    ports = free_port(), free_port()
    with Cluster([f"127.0.0.1:{port}" for port in ports]) as cluster:
        with pytest.raises(BrokerUnreachable) as caught:
            cluster.refresh([])
        assert all(str(port) in str(caught.value) for port in ports)


def test_connection_that_broke_is_opened_again():
    with FakeBroker() as fake, Cluster(fake.bootstrap) as cluster:
        cluster.refresh(["t"])
        broken = [True]

        def once(request, header):
            return CLOSE if broken and broken.pop() else fake.metadata(request, header)

        fake.answers[ApiKey.METADATA] = once
        with pytest.raises(NetworkException):
            cluster.refresh(["t"])
        cluster.refresh(["t"])
        assert cluster.known_leader(TopicPartition("t", 0)) is not None


def test_older_leader_epoch_does_not_replace_a_newer_one():
    with FakeBroker() as fake, Cluster(fake.bootstrap) as cluster:
        epochs = iter([5, 4, 6])

        def metadata(request, header):
            answer = fake.metadata(request, header)
            answer.topics[0].partitions[0].leader_epoch = next(epochs)
            return answer

        fake.answers[ApiKey.METADATA] = metadata
        seen = []
        for _ in range(3):
            cluster.refresh(["t"])
            seen.append(cluster.topics["t"].partitions[0].leader_epoch)
        assert seen == [5, 5, 6]


def test_partition_without_leader_is_said_so():
    with FakeBroker() as fake, Cluster(fake.bootstrap) as cluster:

        def metadata(request, header):
            answer = fake.metadata(request, header)
            answer.topics = [fake.describe("t", leader=-1)]
            return answer

        fake.answers[ApiKey.METADATA] = metadata
        with pytest.raises(LeaderNotAvailable):
            cluster.leader(TopicPartition("t", 0))
        assert cluster.known_leader(TopicPartition("t", 0)) is None


def offsets_answer(request, code: int):
    return ListOffsetsResponse(
        throttle_time_ms=0,
        topics=[
            ListOffsetsTopicResponse(
                name=topic.name,
                partitions=[
                    ListOffsetsPartitionResponse(
                        partition_index=part.partition_index,
                        error_code=code,
                        offset=7,
                        timestamp=-1,
                    )
                    for part in topic.partitions
                ],
            )
            for topic in request.topics
        ],
    )


@pytest.mark.parametrize("trouble", [6, 74, 78, CLOSE])
def test_list_offsets_is_tried_again_after_trouble_that_passes(trouble):
    with FakeBroker(2) as fake, Cluster(fake.bootstrap) as cluster:
        troubles = [trouble, trouble]

        def answer(request, header):
            met = troubles.pop() if troubles else 0
            return met if met is CLOSE else offsets_answer(request, met)

        fake.answers[ApiKey.LIST_OFFSETS] = answer
        asked = {TopicPartition("t", n): LATEST for n in range(2)}
        found = list_offsets(cluster, asked)
        assert [at.offset for at in found.values()] == [7, 7]
        assert list(found) == list(asked)


def test_list_offsets_gives_up_in_time():
    with FakeBroker() as fake, Cluster(fake.bootstrap) as cluster:
        fake.answers[ApiKey.LIST_OFFSETS] = lambda request, header: offsets_answer(request, 6)
        with pytest.raises(Exception, match="offsets of t-0") as caught:
            list_offsets(cluster, {TopicPartition("t", 0): EARLIEST}, timeout_ms=0)
        assert caught.value.code == 6


def test_list_offsets_of_an_unknown_partition_fails_at_once(bootstrap, new_topic):
    with Cluster(bootstrap) as cluster, pytest.raises(UnknownTopicOrPartition):
        list_offsets(cluster, {TopicPartition(new_topic(), 9): LATEST})
