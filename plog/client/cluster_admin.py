"""A cluster at a glance: its brokers with their versions and listeners, and partitions in trouble.

Owns the choice of requests: Metadata once, ApiVersions and DescribeConfigs of each broker, and a
question that ZooKeeper has to answer. An error of one broker does not hide the others.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from typing import NamedTuple

from plog.client.admin import BROKER, Admin, FeatureLevels
from plog.client.administration import Administration
from plog.client.metadata import Node, PartitionInfo, TopicInfo
from plog.errors import ErrorCode, KafkaError, NetworkException, RequestTimedOut
from plog.protocol.messages.topics import CreatableTopic, CreateTopicsRequest, CreateTopicsResponse
from plog.types import TopicPartition

LISTENERS, ADVERTISED = "listeners", "advertised.listeners"
ZOOKEEPER, ROLES, PLOG_ONLY = "zookeeper.connect", "process.roles", "flush.before.ack"
"""Keys that show how a broker is coordinated, and whether it is plog's."""
PLOG, KAFKA = "plog", "Kafka"
EMBEDDED, KRAFT = "embedded store", "KRaft"
STORE_WAIT_MS = 3_000
"""How long ZooKeeper may take to answer a broker."""
STORE_QUESTION = CreateTopicsRequest(
    topics=[
        CreatableTopic(name=".", num_partitions=1, replication_factor=1, assignments=[], configs=[])
    ],
    timeout_ms=STORE_WAIT_MS,
    validate_only=True,
)
"""Changes nothing: a broker refuses the name, once ZooKeeper has answered it."""


class BrokerOverview(NamedTuple):
    """A broker.

    Attributes:
        apis: the lowest and the highest supported version, by the number of the API.
        configs: the settings that show its software and its listeners.
        fault: why the two are not known.
    """

    node: Node
    apis: Mapping[int, tuple[int, int]]
    configs: Mapping[str, str | None]
    fault: KafkaError | None

    @property
    def software(self) -> str | None:
        """The name of the program; the protocol has none, but plog has settings of its own."""
        if not self.configs:
            return None
        return PLOG if PLOG_ONLY in self.configs else KAFKA

    @property
    def coordination(self) -> str | None:
        """The place of the cluster's metadata."""
        if zookeeper := self.configs.get(ZOOKEEPER):
            return f"ZooKeeper {zookeeper}"
        if self.configs.get(ROLES):
            return KRAFT
        return EMBEDDED if self.software == PLOG else None


class ClusterOverview(NamedTuple):
    """A cluster, as its brokers describe it.

    Attributes:
        features_fault: why `features` is empty.
        without_zookeeper: the brokers that get no answer from ZooKeeper.
    """

    cluster_id: str | None
    controller_id: int
    brokers: list[BrokerOverview]
    topics: list[TopicInfo]
    features: list[FeatureLevels]
    features_fault: KafkaError | None
    without_zookeeper: list[int]

    @property
    def coordination(self) -> str | None:
        """The place of the cluster's metadata, by the first broker that shows it."""
        return next((one.coordination for one in self.brokers if one.coordination), None)

    def replicas_on(self, broker_id: int) -> int:
        """Return how many partitions have a replica on a broker."""
        return sum(
            broker_id in part.replicas
            for topic in self.topics
            for part in topic.partitions.values()
        )

    @property
    def away(self) -> dict[int, int]:
        """The number of partitions of each broker that has replicas and is not registered."""
        registered = {one.node.node_id for one in self.brokers}
        placed = {
            broker_id
            for topic in self.topics
            for part in topic.partitions.values()
            for broker_id in part.replicas
        }
        return {one: self.replicas_on(one) for one in sorted(placed - registered)}

    @property
    def sparse_brokers(self) -> dict[int, int]:
        """The number of partitions of each broker that has less than a quarter of the average.

        Empty unless the cluster is one of plog, whose tools can plan moves to them.
        """
        counts = {one.node.node_id: self.replicas_on(one.node.node_id) for one in self.brokers}
        if not any(one.software == PLOG for one in self.brokers):
            return {}
        total = sum(counts.values())
        return {one: count for one, count in counts.items() if 4 * count * len(counts) < total}

    @property
    def offline(self) -> list[TopicPartition]:
        """The partitions without a leader."""
        return self._where(lambda part: part.leader_id < 0)

    @property
    def leader_unreachable(self) -> list[TopicPartition]:
        """The partitions that have a leader which does not answer.

        It may have been killed: the controller hears of it once its session has ended.
        """
        silent = {
            one.node.node_id
            for one in self.brokers
            if isinstance(one.fault, NetworkException | RequestTimedOut)
        }
        return self._where(lambda part: part.leader_id in silent)

    @property
    def under_replicated(self) -> list[TopicPartition]:
        """The partitions with replicas that are not in sync."""
        return self._where(lambda part: len(part.isr) < len(part.replicas))

    def _where(self, is_meant: Callable[[PartitionInfo], bool]) -> list[TopicPartition]:
        return [
            TopicPartition(topic.name, index)
            for topic in self.topics
            for index, part in sorted(topic.partitions.items())
            if is_meant(part)
        ]


class ClusterAdmin(Administration):
    """Describes a cluster. Its arguments are those of `Administration`."""

    def overview(self) -> ClusterOverview:
        """Return the cluster with its brokers and topics.

        Raises:
            KafkaError: no broker answers.
        """
        self._cluster.refresh(None)
        admin = Admin(self._cluster, request_timeout_ms=self._timeout_ms)
        brokers = [self._broker(admin, node) for node in sorted(self._cluster.nodes.values())]
        topics = [topic for _, topic in sorted(self._cluster.topics.items())]
        controller_id, cluster_id = self._cluster.controller_id, self._cluster.cluster_id
        features: list[FeatureLevels] = []
        fault: KafkaError | None = None
        try:
            features = admin.features()
        except KafkaError as error:
            fault = error
        without = self._without_zookeeper(brokers)
        return ClusterOverview(cluster_id, controller_id, brokers, topics, features, fault, without)

    def _without_zookeeper(self, brokers: Iterable[BrokerOverview]) -> list[int]:
        """Return the brokers of plog that get no answer from ZooKeeper; all are asked at once."""
        asked = []
        for one in brokers:
            if one.software != PLOG or not one.configs.get(ZOOKEEPER):
                continue
            with suppress(KafkaError):
                connection = self._cluster.connection(one.node.node_id)
                connection.send(STORE_QUESTION, CreateTopicsResponse, wait_ms=STORE_WAIT_MS)
                asked.append((one.node.node_id, connection))
        without = []
        for node_id, connection in asked:
            with suppress(KafkaError):
                results = connection.receive(CreateTopicsResponse).topics
                if any(one.error_code == ErrorCode.REQUEST_TIMED_OUT for one in results):
                    without.append(node_id)
        return without

    def _broker(self, admin: Admin, node: Node) -> BrokerOverview:
        keys = [LISTENERS, ADVERTISED, ZOOKEEPER, ROLES, PLOG_ONLY]
        try:
            apis = self._cluster.connection(node.node_id).versions
            entries = admin.describe_configs(BROKER, str(node.node_id), keys)
        except KafkaError as fault:
            return BrokerOverview(node, {}, {}, fault)
        return BrokerOverview(node, apis, {entry.name: entry.value for entry in entries}, None)
