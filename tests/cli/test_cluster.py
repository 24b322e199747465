"""`plog cluster`: a real broker, and brokers that do not answer."""

from __future__ import annotations

import json
from collections.abc import Sequence

import pytest

from plog.client.admin import TOPIC
from plog.errors import ErrorCode
from plog.protocol.api_keys import ApiKey
from plog.protocol.messages.api_versions import ApiVersion
from plog.protocol.messages.configs import (
    DescribeConfigsRequest,
    DescribeConfigsResourceResult,
    DescribeConfigsResponse,
    DescribeConfigsResult,
)
from plog.protocol.messages.metadata import MetadataResponseBroker
from plog.protocol.messages.topics import (
    CreatableTopicResult,
    CreateTopicsRequest,
    CreateTopicsResponse,
)
from plog.types import ZERO_UUID
from tests.client.fake_broker import SERVED, FakeBroker
from tests.servers import free_port


@pytest.fixture(autouse=True)
def wide_tables(monkeypatch) -> None:
    """Print tables as in a pipe, without folded cells."""
    monkeypatch.delenv("COLUMNS", raising=False)


def test_cluster_is_described(call, broker, topic):
    cluster = json.loads(call("cluster", "--json").stdout)
    (one,) = cluster.pop("brokers")
    assert one.pop("apis")["Metadata"] == [0, 13]
    assert one == {
        "broker": 0,
        "host": "127.0.0.1",
        "port": broker.port,
        "rack": None,
        "software": "plog",
        "listeners": [f"PLAINTEXT://127.0.0.1:{broker.port}"],
        "advertised_listeners": [],
        "partitions": cluster["partitions"],
    }
    assert cluster["partitions"] > 0
    assert len(cluster["cluster_id"]) == 22
    assert (cluster["controller"], cluster["coordination"]) == (0, "embedded store")
    assert cluster["features"] == json.loads(call("features", "list", "--json").stdout)
    assert cluster["features"][1]["feature"] == "transaction.version"
    described = json.loads(call("topics", "list", "--json").stdout)
    assert cluster["topics"] == len(described)
    assert (cluster["offline"], cluster["under_replicated"]) == ([], [])
    assert cluster["under_min_isr"] == []
    text = call("cluster").stdout.decode()
    assert f"Cluster {cluster['cluster_id']}: controller broker 0, coordination embedded" in text
    assert "0 offline, 0 under-replicated" in text
    assert "Metadata" not in text
    assert "0-13" in call("cluster", "--apis").stdout.decode()


class Pair(FakeBroker):
    """A broker that describes a second one at an address where nothing listens.

    Args:
        configs: of each broker.
        replicas: the brokers of each partition; only the first one is in sync.
        leader: of all partitions.
    """

    def __init__(
        self, configs: dict[str, str], replicas: Sequence[Sequence[int]], leader: int = -1
    ) -> None:
        super().__init__(partitions=len(replicas))
        self.configs, self.replicas, self.leader = configs, replicas, leader
        self.answers[ApiKey.DESCRIBE_CONFIGS] = self._configs

    def api_versions(self, request, header):
        answer = super().api_versions(request, header)
        more = ApiVersion(api_key=ApiKey.DESCRIBE_CONFIGS, min_version=0, max_version=4)
        answer.api_keys.append(more)
        return answer

    def metadata(self, request, header):
        answer = super().metadata(request, header)
        second = MetadataResponseBroker(node_id=2, host="127.0.0.1", port=free_port(), rack="r")
        answer.brokers.append(second)
        answer.topics = [self.describe("t")]
        for part, brokers in zip(answer.topics[0].partitions, self.replicas, strict=True):
            part.leader_id, part.isr_nodes = self.leader, [brokers[0]]
            part.replica_nodes = [*brokers]
        return answer

    def _configs(self, request: DescribeConfigsRequest, header):
        (asked,) = request.resources
        return DescribeConfigsResponse(
            results=[
                DescribeConfigsResult(
                    error_code=ErrorCode.NONE,
                    resource_type=asked.resource_type,
                    resource_name=asked.resource_name,
                    configs=[
                        DescribeConfigsResourceResult(
                            name=name, value=value, read_only=True, is_sensitive=False
                        )
                        for name, value in self.configs.items()
                    ],
                )
            ]
        )


@pytest.mark.parametrize(
    ("configs", "software", "coordination"),
    [
        ({"zookeeper.connect": "zk:2181/k"}, "Kafka", "ZooKeeper zk:2181/k"),
        ({"process.roles": "broker,controller"}, "Kafka", "KRaft"),
        ({"flush.before.ack": "true", "zookeeper.connect": ""}, "plog", "embedded store"),
        ({"listeners": "A://h:1, B://h:2"}, "Kafka", None),
        ({}, None, None),
    ],
)
def test_broker_without_an_answer_hides_nothing(call, configs, software, coordination):
    with Pair(configs, [(1, 2), *[(1,)] * 11]) as fake:
        done = call("cluster", "-b", fake.bootstrap, "--json", status=1)
        cluster = json.loads(done.stdout)
        first, second = cluster["brokers"]
        assert (first["software"], cluster["coordination"]) == (software, coordination)
        assert len(first["apis"]) == len(SERVED) + 1
        assert (second["broker"], second["rack"], second["apis"]) == (2, "r", {})
        assert len(cluster["offline"]) == 12
        assert cluster["under_replicated"] == ["t-0"]
        if "listeners" in configs:
            assert first["listeners"] == ["A://h:1", "B://h:2"]
        (line,) = done.stderr.decode().splitlines()
        assert "Connection refused" in json.loads(line)["message"]
        text = call("cluster", "-b", fake.bootstrap, status=1).stdout.decode()
        assert "Offline: t-0, t-1, t-2, t-3, t-4, t-5, t-6, t-7, t-8, t-9 and 2 more" in text
        assert "Under-replicated: t-0\n" in text


@pytest.mark.parametrize(
    ("least", "under_min"), [("1", []), ("2", ["t-0", "t-1"]), ("3", ["t-0", "t-1"])]
)
def test_partitions_below_min_in_sync_replicas_are_named(call, least, under_min):
    """Each has one replica in sync. No partition needs more than it has."""
    configs = {**PLOG_CONFIGS, "min.insync.replicas": least}
    with Pair(configs, [(1, 2), (1, 2, 3), (1,)], leader=1) as fake:
        cluster = json.loads(call("cluster", "-b", fake.bootstrap, "--json", status=1).stdout)
        assert cluster["under_min_isr"] == under_min
        text = call("cluster", "-b", fake.bootstrap, status=1).stdout.decode()
    assert "\nUnder-replicated: t-0, t-1\n" in text
    line = "\nBelow min.insync.replicas: t-0, t-1\n"
    assert (line in text) == bool(under_min)


def test_cluster_is_described_without_the_topics_settings(call):
    with Pair(PLOG_CONFIGS, [(1, 2)], leader=1) as fake:
        describe = fake.answers[ApiKey.DESCRIBE_CONFIGS]

        def refuse_topics(request: DescribeConfigsRequest, header):
            answer = describe(request, header)
            if request.resources[0].resource_type == TOPIC:
                answer.results[0].error_code = ErrorCode.TOPIC_AUTHORIZATION_FAILED
            return answer

        fake.answers[ApiKey.DESCRIBE_CONFIGS] = refuse_topics
        done = call("cluster", "-b", fake.bootstrap, "--json", status=1)
        assert json.loads(done.stdout)["under_min_isr"] is None
        assert "Below" not in call("cluster", "-b", fake.bootstrap, status=1).stdout.decode()


def test_partitions_of_a_broker_that_does_not_answer_are_named(call):
    """Its session may last: the controller has not taken the leaderships away yet."""
    with Pair(PLOG_CONFIGS, [(2,), (2,)], leader=2) as fake:
        done = call("cluster", "-b", fake.bootstrap, status=1)
        assert "0 offline, 0 under-replicated" in done.stdout.decode()
        assert "\nLeader unreachable: t-0, t-1\n" in done.stdout.decode()
        (line,) = done.stderr.decode().splitlines()
        assert line.startswith("plog: broker 2 does not answer: ")
        assert "Connection refused" in line
        assert line.endswith(" (start it again)")
        cluster = json.loads(call("cluster", "-b", fake.bootstrap, "--json", status=1).stdout)
        assert cluster["leader_unreachable"] == ["t-0", "t-1"]
    with Pair(PLOG_CONFIGS, [(1,)], leader=1) as fake:
        text = call("cluster", "-b", fake.bootstrap, status=1).stdout.decode()
        assert "Leader unreachable" not in text


def test_brokers_that_are_away_are_named_with_their_partitions(call):
    """Their sessions are over: the cluster lists them no more."""
    with Pair({}, [(3,), (1,), (3, 4), (2,)]) as fake:
        done = call("cluster", "-b", fake.bootstrap, "--json", status=1)
        assert json.loads(done.stdout)["away"] == [
            {"broker": 3, "partitions": 2},
            {"broker": 4, "partitions": 1},
        ]
        lines = call("cluster", "-b", fake.bootstrap, status=1).stdout.decode().splitlines()
        away = [one for one in lines if "away" in one]
        assert away == ["Broker 3 is away: 2 partitions", "Broker 4 is away: 1 partition"]
    with Pair({}, [(1, 2)]) as fake:
        assert b"away" not in call("cluster", "-b", fake.bootstrap, status=1).stdout


@pytest.mark.parametrize("code", [ErrorCode.INVALID_TOPIC_EXCEPTION, ErrorCode.REQUEST_TIMED_OUT])
def test_brokers_without_zookeeper_are_named(call, code):
    with Pair({**PLOG_CONFIGS, "zookeeper.connect": "zk:2181"}, [(1,)]) as fake:
        fake.served += (ApiKey.CREATE_TOPICS,)
        fake.answers[ApiKey.CREATE_TOPICS] = lambda request, _: CreateTopicsResponse(
            topics=[
                CreatableTopicResult(name=one.name, topic_id=ZERO_UUID, error_code=code)
                for one in request.topics
            ]
        )
        done = call("cluster", "-b", fake.bootstrap, "--json", status=1)
        without = json.loads(done.stdout)["without_zookeeper"]
        text = call("cluster", "-b", fake.bootstrap, status=1).stdout.decode()
        asked = [one for one in fake.requests if isinstance(one, CreateTopicsRequest)]
    line = "\nZooKeeper does not answer broker 1: topics and settings cannot be changed\n"
    is_lost = code == ErrorCode.REQUEST_TIMED_OUT
    assert (without, line in text) == ([1] if is_lost else [], is_lost)
    assert len(asked) == 2
    assert all(one.validate_only for one in asked)


HOW_TO_MOVE = "`plog reassign plan --balance`"
PLOG_CONFIGS = {"flush.before.ack": "true"}


@pytest.mark.parametrize(
    ("counts", "configs", "line"),
    [
        ({1: 12}, PLOG_CONFIGS, "Broker 2 has no partitions"),
        ({1: 11, 2: 1}, PLOG_CONFIGS, "Broker 2 has 1 partition"),
        ({2: 12}, PLOG_CONFIGS, "Broker 1 has no partitions"),
        ({1: 10, 2: 2}, PLOG_CONFIGS, None),
        ({}, PLOG_CONFIGS, None),
        ({1: 12}, {"process.roles": "broker"}, None),
    ],
)
def test_broker_with_few_partitions_is_named_with_the_reason(call, counts, configs, line):
    replicas = [(broker_id,) for broker_id, count in counts.items() for _ in range(count)]
    with Pair(configs, replicas) as fake:
        text = call("cluster", "-b", fake.bootstrap, status=1).stdout.decode()
    lines = [one for one in text.splitlines() if HOW_TO_MOVE in one]
    expected = f"{line}: {HOW_TO_MOVE} shows its share"
    assert lines == ([] if line is None else [expected])
