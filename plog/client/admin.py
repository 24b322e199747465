"""Administrative requests: topics, partitions, configs, records, log directories.

Owns only its connections. Each call asks the broker that is responsible (the
controller, a leader, or each broker), and again when that broker has changed. It
raises the first error of a response.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import NamedTuple, TypeVar

from plog.client.administration import Administration
from plog.client.attempts import retry, wait_for_next
from plog.client.connection import introduction
from plog.client.metadata import ControllerUnreachable, Node, TopicInfo
from plog.client.offsets import OffsetAndTimestamp, ask_each
from plog.client.retry_log import RetryLog
from plog.errors import ErrorCode, InvalidRequest, KafkaError, NotController, error_for
from plog.protocol.messages.api_versions import ApiVersionsResponse
from plog.protocol.messages.cluster import (
    DescribableLogDirTopic,
    DescribeLogDirsRequest,
    DescribeLogDirsResponse,
)
from plog.protocol.messages.configs import (
    DescribeConfigsRequest,
    DescribeConfigsResource,
    DescribeConfigsResponse,
    IncrementalAlterableConfig,
    IncrementalAlterConfigsRequest,
    IncrementalAlterConfigsResource,
    IncrementalAlterConfigsResponse,
)
from plog.protocol.messages.features import (
    FeatureUpdateKey,
    UpdateFeaturesRequest,
    UpdateFeaturesResponse,
)
from plog.protocol.messages.topics import (
    CreatableReplicaAssignment,
    CreatableTopic,
    CreatableTopicConfig,
    CreatableTopicResult,
    CreatePartitionsRequest,
    CreatePartitionsResponse,
    CreatePartitionsTopic,
    CreatePartitionsTopicResult,
    CreateTopicsRequest,
    CreateTopicsResponse,
    DeletableTopicResult,
    DeleteRecordsPartition,
    DeleteRecordsRequest,
    DeleteRecordsResponse,
    DeleteRecordsTopic,
    DeleteTopicsRequest,
    DeleteTopicsResponse,
    DeleteTopicState,
)
from plog.protocol.schema import Struct
from plog.types import ZERO_UUID, TopicPartition

log = logging.getLogger(__name__)

R = TypeVar("R", bound=Struct)
TopicResult = CreatableTopicResult | DeletableTopicResult | CreatePartitionsTopicResult

UP, DOWN_SAFELY = 1, 2
"""Direction in which a feature's level changes."""
TOPIC, BROKER, LOGGER, GROUP = 2, 4, 8, 32
"""Resource types of configs."""
SET, DELETE, APPEND, SUBTRACT = range(4)
"""Operations on one config (KIP-339)."""
SOURCES = {
    1: "topic",
    2: "dynamic broker",
    3: "dynamic default",
    4: "static broker",
    5: "default",
    6: "logger",
    8: "group",
}
BROKER_DEFAULT = -1
"""Number of partitions or replicas: the broker's default."""
END = -1
"""Offset of `delete_records`: the end of the log."""
LEADER_MOVED = frozenset({ErrorCode.NOT_LEADER_OR_FOLLOWER, ErrorCode.LEADER_NOT_AVAILABLE})
"""Errors after which the same request may succeed on another broker, or a little later."""
LEADER_MOVED_TIMEOUT_S = 10.0
ELECTING = frozenset(
    {
        ErrorCode.NOT_LEADER_OR_FOLLOWER,
        ErrorCode.FENCED_LEADER_EPOCH,
        ErrorCode.UNKNOWN_LEADER_EPOCH,
        ErrorCode.OFFSET_NOT_AVAILABLE,
    }
)
"""Errors of a partition whose leader has just changed."""
ELECTION_TIMEOUT_S = 2.0
HINTS: dict[int, str] = {
    ErrorCode.UNKNOWN_TOPIC_OR_PARTITION: "it does not exist",
    ErrorCode.OFFSET_OUT_OF_RANGE: "the offset is past the end of the log",
    ErrorCode.KAFKA_STORAGE_ERROR: "its log directory is offline, or its log is damaged",
}
"""What a code means here, if the broker sends no message with it."""


class ConfigEntry(NamedTuple):
    """One setting as a broker describes it. `value` is None for secrets."""

    name: str
    value: str | None
    source: str
    read_only: bool
    sensitive: bool
    documentation: str | None


class LogDirPartition(NamedTuple):
    """One partition's files in one log directory."""

    node_id: int
    log_dir: str
    partition: TopicPartition
    size_bytes: int
    offset_lag: int
    is_future: bool


class FoundOffsets(NamedTuple):
    """The offsets of partitions, and the errors of the others."""

    offsets: dict[TopicPartition, OffsetAndTimestamp]
    faults: dict[TopicPartition, KafkaError]


class FeatureLevels(NamedTuple):
    """A feature (KIP-584): the levels that a broker supports, and the level in force (0: none)."""

    name: str
    lowest: int
    highest: int
    level: int


class Admin(Administration):
    """Administers a cluster. Its arguments are those of `Administration`."""

    def nodes(self) -> list[Node]:
        """Return the live brokers."""
        self._cluster.refresh([])
        return sorted(self._cluster.nodes.values())

    def controller_id(self) -> int:
        """Return the controller's node id, -1 without a controller."""
        self._cluster.refresh([])
        return self._cluster.controller_id

    def cluster_id(self) -> str | None:
        """Return the cluster's id."""
        self._cluster.refresh([])
        return self._cluster.cluster_id

    def topics(self) -> dict[str, TopicInfo]:
        """Return every topic by name."""
        self._cluster.refresh(None)
        return dict(sorted(self._cluster.topics.items()))

    def topic(self, name: str) -> TopicInfo:
        """Return one topic.

        Raises:
            UnknownTopicOrPartition: it does not exist.
            InvalidTopic: the name is not valid for a topic.
        """
        self._cluster.forget(name)
        return self._cluster.topic(name)

    def offsets(self, times: Mapping[TopicPartition, int]) -> FoundOffsets:
        """Return the offsets of partitions at times; an error of one does not hide the others.

        Args:
            times: ms since 1970, or EARLIEST, LATEST, MAX_TIMESTAMP of `plog.client.offsets`.

        Raises:
            KafkaError: no broker answers.
        """
        deadline = time.monotonic() + ELECTION_TIMEOUT_S
        found, faults = ask_each(self._cluster, times)
        while any(fault.code in ELECTING for fault in faults.values()):
            if not wait_for_next(deadline):
                break
            more, faults = ask_each(self._cluster, {at: times[at] for at in faults})
            found.update(more)
        return FoundOffsets(found, faults)

    def create_topic(
        self,
        name: str,
        *,
        partitions: int = BROKER_DEFAULT,
        replication_factor: int = BROKER_DEFAULT,
        assignments: Mapping[int, Sequence[int]] | None = None,
        configs: Mapping[str, str] | None = None,
        validate_only: bool = False,
    ) -> None:
        """Create a topic.

        Args:
            assignments: the brokers of each partition, in place of the two numbers.
            validate_only: only check whether the topic could be created.

        Raises:
            TopicAlreadyExists, InvalidTopic, InvalidPartitions, InvalidReplicationFactor,
            InvalidConfig: as the broker says.
        """
        asked = CreatableTopic(
            name=name,
            num_partitions=BROKER_DEFAULT if assignments else partitions,
            replication_factor=BROKER_DEFAULT if assignments else replication_factor,
            assignments=[
                CreatableReplicaAssignment(partition_index=index, broker_ids=list(brokers))
                for index, brokers in (assignments or {}).items()
            ],
            configs=[
                CreatableTopicConfig(name=key, value=value)
                for key, value in (configs or {}).items()
            ],
        )

        request = CreateTopicsRequest(
            topics=[asked], timeout_ms=self._timeout_ms, validate_only=validate_only
        )

        self._by_controller(
            request, CreateTopicsResponse, lambda answer: _check_topics(answer.topics, name)
        )
        self._cluster.forget(name)

    def delete_topic(self, name: str) -> None:
        """Delete a topic and its data.

        Raises:
            UnknownTopicOrPartition: it does not exist.
        """

        request = DeleteTopicsRequest(
            topics=[DeleteTopicState(name=name, topic_id=ZERO_UUID)],
            topic_names=[name],
            timeout_ms=self._timeout_ms,
        )
        self._by_controller(
            request, DeleteTopicsResponse, lambda answer: _check_topics(answer.responses, name)
        )
        self._cluster.forget(name)

    def create_partitions(self, name: str, count: int) -> None:
        """Raise a topic's number of partitions to `count`.

        Raises:
            UnknownTopicOrPartition: it does not exist.
            InvalidPartitions: it already has that many partitions or more.
        """

        request = CreatePartitionsRequest(
            topics=[CreatePartitionsTopic(name=name, count=count, assignments=None)],
            timeout_ms=self._timeout_ms,
            validate_only=False,
        )
        self._by_controller(
            request, CreatePartitionsResponse, lambda answer: _check_topics(answer.results, name)
        )
        self._cluster.forget(name)

    def delete_records(self, before: Mapping[TopicPartition, int]) -> dict[TopicPartition, int]:
        """Delete the records below an offset (END: all) of each partition; return the new starts.

        Raises:
            OffsetOutOfRange: the offset is past the end.
            UnknownTopicOrPartition: no such partition.
        """
        starts: dict[TopicPartition, int] = {}
        left = dict(before)

        def delete() -> None:
            for node_id, topics in self._by_leader(left).items():
                request = DeleteRecordsRequest(topics=topics, timeout_ms=self._timeout_ms)
                connection = self._cluster.connection(node_id)
                answer = connection.call(request, DeleteRecordsResponse, wait_ms=self._timeout_ms)
                for topic in answer.topics:
                    for part in topic.partitions:
                        at = TopicPartition(topic.name, part.partition_index)
                        if part.error_code != ErrorCode.NONE:
                            self._cluster.forget(topic.name)
                        asked = f"records of {at} below offset {left.get(at)}"
                        _raise(part.error_code, None, asked)
                        starts[at] = part.low_watermark
                        left.pop(at, None)

        retry(
            delete,
            timeout_s=LEADER_MOVED_TIMEOUT_S,
            may_pass=lambda fault: fault.code in LEADER_MOVED,
            before_next=lambda _: self._cluster.refresh([]),
        )
        return starts

    def describe_configs(
        self, resource_type: int, name: str, keys: Sequence[str] | None = None
    ) -> list[ConfigEntry]:
        """Return the settings of a topic or group (TOPIC, GROUP, its name) or broker (BROKER, id).

        The log levels of a broker are settings too (LOGGER, the broker's id).

        Args:
            name: with BROKER, "" is what all brokers share.
            keys: only these settings; all by default.

        Raises:
            UnknownTopicOrPartition: no such topic.
            InvalidRequest: no such broker.
        """
        request = DescribeConfigsRequest(
            resources=[
                DescribeConfigsResource(
                    resource_type=resource_type,
                    resource_name=name,
                    configuration_keys=None if keys is None else list(keys),
                )
            ],
            include_synonyms=False,
            include_documentation=True,
        )
        answer = self._ask_about(resource_type, name, request, DescribeConfigsResponse)
        (result,) = answer.results
        _raise(result.error_code, result.error_message, _configs_of(resource_type, name))
        return [
            ConfigEntry(
                config.name,
                config.value,
                SOURCES.get(config.config_source, str(config.config_source)),
                config.read_only,
                config.is_sensitive,
                config.documentation,
            )
            for config in result.configs
        ]

    def alter_configs(
        self,
        resource_type: int,
        name: str,
        changes: Iterable[tuple[str, int, str | None]],
        *,
        validate_only: bool = False,
    ) -> None:
        """Change settings, each (key, SET | DELETE | APPEND | SUBTRACT, value).

        Raises:
            InvalidConfig: no such key, or an invalid value; no such logger or level.
            UnknownTopicOrPartition: no such topic.
            InvalidRequest: no such broker, or one key twice.
        """
        request = IncrementalAlterConfigsRequest(
            resources=[
                IncrementalAlterConfigsResource(
                    resource_type=resource_type,
                    resource_name=name,
                    configs=[
                        IncrementalAlterableConfig(
                            name=key, config_operation=operation, value=value
                        )
                        for key, operation, value in changes
                    ],
                )
            ],
            validate_only=validate_only,
        )
        answer = self._ask_about(resource_type, name, request, IncrementalAlterConfigsResponse)
        for result in answer.responses:
            _raise(result.error_code, result.error_message, _configs_of(resource_type, name))

    def features(self) -> list[FeatureLevels]:
        """Return the features, by name: as the controller knows them, if there is one."""
        try:
            answer = self._cluster.controller().call(introduction(), ApiVersionsResponse)
        except (NotController, ControllerUnreachable):
            answer = self._cluster.ask_any(introduction(), ApiVersionsResponse)
        levels = {one.name: one.max_version_level for one in answer.finalized_features}
        return sorted(
            FeatureLevels(one.name, one.min_version, one.max_version, levels.get(one.name, 0))
            for one in answer.supported_features
        )

    def set_feature(
        self, name: str, level: int, *, lower: bool = False, validate_only: bool = False
    ) -> None:
        """Set a feature's level in the whole cluster; 0 removes the feature.

        Args:
            lower: the new level is below the current one.

        Raises:
            InvalidUpdateVersion: no such feature or level, or `lower` does not fit.
            InvalidRequest: the feature is not set, and cannot be removed.
        """
        change = FeatureUpdateKey(
            feature=name, max_version_level=level, upgrade_type=DOWN_SAFELY if lower else UP
        )
        request = UpdateFeaturesRequest(
            timeout_ms=self._timeout_ms, feature_updates=[change], validate_only=validate_only
        )

        def check(answer: UpdateFeaturesResponse) -> None:
            _raise(answer.error_code, answer.error_message, name)
            for result in answer.results:
                _raise(result.error_code, result.error_message, name)

        self._by_controller(request, UpdateFeaturesResponse, check)

    def log_dirs(
        self, topics: Sequence[str] | None = None, brokers: Iterable[int] | None = None
    ) -> list[LogDirPartition]:
        """Return the partitions in brokers' log directories, of some topics or of all.

        Offline directories are left out.

        Args:
            brokers: the brokers that are asked; None: all.
        """
        asked: list[DescribableLogDirTopic] | None = None
        if topics is not None:
            asked = [
                DescribableLogDirTopic(topic=name, partitions=sorted(self.topic(name).partitions))
                for name in topics
            ]
        found: list[LogDirPartition] = []
        for node_id in [node.node_id for node in self.nodes()] if brokers is None else brokers:
            answer = self._cluster.connection(node_id).call(
                DescribeLogDirsRequest(topics=asked), DescribeLogDirsResponse
            )
            _raise(answer.error_code, None, f"log directories of broker {node_id}")
            for log_dir in answer.results:
                for topic in log_dir.topics:
                    found.extend(
                        LogDirPartition(
                            node_id,
                            log_dir.log_dir,
                            TopicPartition(topic.name, part.partition_index),
                            part.partition_size,
                            part.offset_lag,
                            part.is_future_key,
                        )
                        for part in topic.partitions
                    )
        return found

    def _by_leader(
        self, offsets: Mapping[TopicPartition, int]
    ) -> dict[int, list[DeleteRecordsTopic]]:
        """Group partitions by the broker that leads them."""
        grouped: dict[int, dict[str, DeleteRecordsTopic]] = {}
        for partition, offset in offsets.items():
            topics = grouped.setdefault(self._cluster.leader(partition).leader_id, {})
            topic = topics.setdefault(
                partition.topic, DeleteRecordsTopic(name=partition.topic, partitions=[])
            )
            topic.partitions.append(
                DeleteRecordsPartition(partition_index=partition.partition, offset=offset)
            )
        return {node_id: list(topics.values()) for node_id, topics in grouped.items()}

    def _by_controller(
        self, request: Struct, response: type[R], check: Callable[[R], None]
    ) -> None:
        """Send a request to the controller. While that one is away, look for the next one.

        Args:
            check: raises the error of a response.

        Raises:
            NotController, ControllerUnreachable: there was none in the request's time.
        """
        waits = RetryLog(log)

        def attempt() -> None:
            controller = self._cluster.controller()
            check(controller.call(request, response, wait_ms=self._timeout_ms))

        def before_next(fault: KafkaError) -> None:
            if isinstance(fault, ControllerUnreachable):
                waits.warn(fault)
            self._cluster.refresh([])

        retry(
            attempt,
            timeout_s=self._timeout_ms / 1000,
            may_pass=lambda fault: isinstance(fault, NotController | ControllerUnreachable),
            before_next=before_next,
        )

    def _ask_about(self, resource_type: int, name: str, request: Struct, response: type[R]) -> R:
        """Ask the broker that knows a resource: the named broker, or any broker."""
        if resource_type not in (BROKER, LOGGER) or not name:
            return self._cluster.ask_any(request, response)
        self._cluster.refresh([])
        known = self._cluster.nodes
        if not name.isdecimal() or int(name) not in known:
            raise InvalidRequest(
                f"no broker has id {name!r}; the cluster has {', '.join(map(str, sorted(known)))}"
            )
        return self._cluster.connection(int(name)).call(request, response)


def _configs_of(resource_type: int, name: str) -> str:
    if resource_type == LOGGER:
        return f"log levels of broker {name}"
    return f"configs of {name or 'all brokers'!r}"


def _check_topics(results: Iterable[TopicResult], name: str) -> None:
    for one in results:
        _raise(one.error_code, one.error_message, f"topic {name!r}")


def _raise(code: int, message: str | None, what: str) -> None:
    if code == ErrorCode.NONE:
        return
    text = message or HINTS.get(code) or str(error_for(code))
    fault = error_for(code, text if what in text else f"{what}: {text}")
    fault.broker_message = message
    raise fault
