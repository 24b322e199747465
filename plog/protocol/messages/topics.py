"""Topics: creation, deletion, partitions, records, leaders."""

from plog.protocol.schema import (
    Bool,
    Int8,
    Int16,
    Int32,
    Int64,
    String,
    Struct,
    Uuid,
    field,
    message,
)
from plog.types import ZERO_UUID


class CreatableReplicaAssignment(Struct):
    """One of `assignments`."""

    partition_index: Int32 = field("The partition.")
    broker_ids: list[Int32] = field("Brokers of the replicas, the preferred leader first.")


class CreatableTopicConfig(Struct):
    """One of `configs`."""

    name: String = field("The name.")
    value: String | None = field("The value.", nullable="0+")


class CreatableTopic(Struct):
    """One of `topics`."""

    name: String = field("The name.")
    num_partitions: Int32 = field("Number of partitions; -1 for the broker's default.")
    replication_factor: Int16 = field("Number of replicas; -1 for the broker's default.")
    assignments: list[CreatableReplicaAssignment] = field("Explicit replica assignment.")
    configs: list[CreatableTopicConfig] = field("The settings.")


@message(api_key=19, versions="0-7", flexible="5+")
class CreateTopicsRequest(Struct):
    """Creates topics. V5 and later answer with the topic's settings, v7 with its id."""

    topics: list[CreatableTopic] = field("The topics.")
    timeout_ms: Int32 = field("Timeout of the request, in ms.", default=60000)
    validate_only: Bool = field(
        "Check the request without changing anything.", versions="1+", default=False
    )


class CreatableTopicConfigs(Struct):
    """One of `configs`."""

    name: String = field("The name.", versions="5+", default="")
    value: String | None = field("The value.", versions="5+", nullable="5+", default=None)
    read_only: Bool = field("Whether it cannot be changed.", versions="5+", default=False)
    config_source: Int8 = field("Source of the value.", versions="5+", default=-1, ignorable=True)
    is_sensitive: Bool = field(
        "Whether it is a secret, whose value is None.", versions="5+", default=False
    )


class CreatableTopicResult(Struct):
    """One of `topics`."""

    name: String = field("The name.")
    topic_id: Uuid = field(
        "The topic's id (KIP-516).", versions="7+", default=ZERO_UUID, ignorable=True
    )
    error_code: Int16 = field("Error code, 0 for success.")
    error_message: String | None = field(
        "Error message, or None.", versions="1+", nullable="1+", default=None, ignorable=True
    )
    topic_config_error_code: Int16 = field(
        "Error code, 0 for success.", versions="5+", default=0, tag=0, ignorable=True
    )
    num_partitions: Int32 = field(
        "Number of partitions; -1 for the broker's default.",
        versions="5+",
        default=-1,
        ignorable=True,
    )
    replication_factor: Int16 = field(
        "Number of replicas; -1 for the broker's default.",
        versions="5+",
        default=-1,
        ignorable=True,
    )
    configs: list[CreatableTopicConfigs] | None = field(
        "The settings.", versions="5+", nullable="5+", default=[], ignorable=True
    )


@message(api_key=19, versions="0-7", flexible="5+")
class CreateTopicsResponse(Struct):
    """The result for each topic."""

    throttle_time_ms: Int32 = field(
        "How long a quota throttles the client, in ms.", versions="2+", default=0, ignorable=True
    )
    topics: list[CreatableTopicResult] = field("The topics.")


class DeleteTopicState(Struct):
    """One of `topics`."""

    name: String | None = field("The name.", versions="6+", nullable="6+", default=None)
    topic_id: Uuid = field("The topic's id (KIP-516).", versions="6+", default=ZERO_UUID)


@message(api_key=20, versions="0-6", flexible="4+")
class DeleteTopicsRequest(Struct):
    """Deletes topics, by name or (v6) by id."""

    topics: list[DeleteTopicState] = field("The topics.", versions="6+", default=[])
    topic_names: list[String] = field(
        "The topics, by name.", versions="0-5", default=[], ignorable=True
    )
    timeout_ms: Int32 = field("Timeout of the request, in ms.")


class DeletableTopicResult(Struct):
    """One of `responses`."""

    name: String | None = field("The name.", nullable="6+")
    topic_id: Uuid = field(
        "The topic's id (KIP-516).", versions="6+", default=ZERO_UUID, ignorable=True
    )
    error_code: Int16 = field("Error code, 0 for success.")
    error_message: String | None = field(
        "Error message, or None.", versions="5+", nullable="5+", default=None, ignorable=True
    )


@message(api_key=20, versions="0-6", flexible="4+")
class DeleteTopicsResponse(Struct):
    """The result for each topic."""

    throttle_time_ms: Int32 = field(
        "How long a quota throttles the client, in ms.", versions="1+", default=0, ignorable=True
    )
    responses: list[DeletableTopicResult] = field("The result for each topic or resource.")


class CreatePartitionsAssignment(Struct):
    """One of `assignments`."""

    broker_ids: list[Int32] = field("Brokers of the replicas, the preferred leader first.")


class CreatePartitionsTopic(Struct):
    """One of `topics`."""

    name: String = field("The name.")
    count: Int32 = field("The new number of partitions.")
    assignments: list[CreatePartitionsAssignment] | None = field(
        "Explicit replica assignment.", nullable="0+"
    )


@message(api_key=37, versions="0-3", flexible="2+")
class CreatePartitionsRequest(Struct):
    """Adds partitions to topics."""

    topics: list[CreatePartitionsTopic] = field("The topics.")
    timeout_ms: Int32 = field("Timeout of the request, in ms.")
    validate_only: Bool = field("Check the request without changing anything.")


class CreatePartitionsTopicResult(Struct):
    """One of `results`."""

    name: String = field("The name.")
    error_code: Int16 = field("Error code, 0 for success.")
    error_message: String | None = field("Error message, or None.", nullable="0+", default=None)


@message(api_key=37, versions="0-3", flexible="2+")
class CreatePartitionsResponse(Struct):
    """The result for each topic."""

    throttle_time_ms: Int32 = field("How long a quota throttles the client, in ms.", default=0)
    results: list[CreatePartitionsTopicResult] = field("The results.")


class DeleteRecordsPartition(Struct):
    """One of `partitions`."""

    partition_index: Int32 = field("The partition.")
    offset: Int64 = field("The offset.")


class DeleteRecordsTopic(Struct):
    """One of `topics`."""

    name: String = field("The name.")
    partitions: list[DeleteRecordsPartition] = field("The partitions.")


@message(api_key=21, versions="0-2", flexible="2+")
class DeleteRecordsRequest(Struct):
    """Moves the log start offsets of partitions forward."""

    topics: list[DeleteRecordsTopic] = field("The topics.")
    timeout_ms: Int32 = field("Timeout of the request, in ms.")


class DeleteRecordsPartitionResult(Struct):
    """One of `partitions`."""

    partition_index: Int32 = field("The partition.")
    low_watermark: Int64 = field("The new log start offset.")
    error_code: Int16 = field("Error code, 0 for success.")


class DeleteRecordsTopicResult(Struct):
    """One of `topics`."""

    name: String = field("The name.")
    partitions: list[DeleteRecordsPartitionResult] = field("The partitions.")


@message(api_key=21, versions="0-2", flexible="2+")
class DeleteRecordsResponse(Struct):
    """The new log start offsets."""

    throttle_time_ms: Int32 = field("How long a quota throttles the client, in ms.", default=0)
    topics: list[DeleteRecordsTopicResult] = field("The topics.")


class TopicPartitions(Struct):
    """One of `topic_partitions`."""

    topic: String = field("The topic.")
    partitions: list[Int32] = field("The partitions.")


@message(api_key=43, versions="0-2", flexible="2+")
class ElectLeadersRequest(Struct):
    """Elects preferred or, unclean, any leaders (KIP-183, KIP-460)."""

    election_type: Int8 = field(
        "0 for the preferred leader, 1 for any (unclean).", versions="1+", default=0
    )
    topic_partitions: list[TopicPartitions] | None = field(
        "The partitions; None for all.", nullable="0+"
    )
    timeout_ms: Int32 = field("Timeout of the request, in ms.", default=60000)


class PartitionResult(Struct):
    """One of `partition_result`."""

    partition_id: Int32 = field("The partition.")
    error_code: Int16 = field("Error code, 0 for success.")
    error_message: String | None = field("Error message, or None.", nullable="0+", default=None)


class ReplicaElectionResult(Struct):
    """One of `replica_election_results`."""

    topic: String = field("The topic.")
    partition_result: list[PartitionResult] = field("The result for each partition.")


@message(api_key=43, versions="0-2", flexible="2+")
class ElectLeadersResponse(Struct):
    """The result of each election."""

    throttle_time_ms: Int32 = field("How long a quota throttles the client, in ms.", default=0)
    error_code: Int16 = field("Error code, 0 for success.", versions="1+", default=0)
    replica_election_results: list[ReplicaElectionResult] = field("The result for each topic.")
