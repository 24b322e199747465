"""Moving partitions between brokers (KIP-455)."""

from plog.protocol.schema import Bool, Int16, Int32, String, Struct, field, message


class ReassignablePartition(Struct):
    """One of `partitions`."""

    partition_index: Int32 = field("The partition.")
    replicas: list[Int32] | None = field(
        "The new replicas, the preferred leader first; None cancels the move.",
        nullable="0+",
        default=None,
    )


class ReassignableTopic(Struct):
    """One of `topics`."""

    name: String = field("The topic.")
    partitions: list[ReassignablePartition] = field("The partitions.")


@message(api_key=45, versions="0-1", flexible="0+")
class AlterPartitionReassignmentsRequest(Struct):
    """Begins and cancels moves of partitions."""

    timeout_ms: Int32 = field("Timeout of the request, in ms.", default=60000)
    allow_replication_factor_change: Bool = field(
        "Whether a partition may get more or fewer replicas (KIP-860).", versions="1+", default=True
    )
    topics: list[ReassignableTopic] = field("The topics to move.")


class ReassignablePartitionResponse(Struct):
    """One of `partitions`."""

    partition_index: Int32 = field("The partition.")
    error_code: Int16 = field("Error code, 0 for success.")
    error_message: String | None = field("Error message, or None.", nullable="0+", default=None)


class ReassignableTopicResponse(Struct):
    """One of `responses`."""

    name: String = field("The topic.")
    partitions: list[ReassignablePartitionResponse] = field("The partitions.")


@message(api_key=45, versions="0-1", flexible="0+")
class AlterPartitionReassignmentsResponse(Struct):
    """The result of each change."""

    throttle_time_ms: Int32 = field("How long a quota throttles the client, in ms.", default=0)
    allow_replication_factor_change: Bool = field(
        "As in the request.", versions="1+", default=True, ignorable=True
    )
    error_code: Int16 = field("Error code, 0 for success.")
    error_message: String | None = field("Error message, or None.", nullable="0+", default=None)
    responses: list[ReassignableTopicResponse] = field("The result for each topic.")


class ListPartitionReassignmentsTopics(Struct):
    """One of `topics`."""

    name: String = field("The topic.")
    partition_indexes: list[Int32] = field("The partitions.")


@message(api_key=46, versions="0", flexible="0+")
class ListPartitionReassignmentsRequest(Struct):
    """Lists partitions that are being moved."""

    timeout_ms: Int32 = field("Timeout of the request, in ms.", default=60000)
    topics: list[ListPartitionReassignmentsTopics] | None = field(
        "The topics; None for all with moves.", nullable="0+", default=None
    )


class OngoingPartitionReassignment(Struct):
    """One of `partitions`."""

    partition_index: Int32 = field("The partition.")
    replicas: list[Int32] = field("Brokers of the replicas, the preferred leader first.")
    adding_replicas: list[Int32] = field("Replicas that the move adds.")
    removing_replicas: list[Int32] = field("Replicas that the move removes.")


class OngoingTopicReassignment(Struct):
    """One of `topics`."""

    name: String = field("The topic.")
    partitions: list[OngoingPartitionReassignment] = field("The partitions.")


@message(api_key=46, versions="0", flexible="0+")
class ListPartitionReassignmentsResponse(Struct):
    """The partitions that are being moved."""

    throttle_time_ms: Int32 = field("How long a quota throttles the client, in ms.", default=0)
    error_code: Int16 = field("Error code, 0 for success.")
    error_message: String | None = field("Error message, or None.", nullable="0+", default=None)
    topics: list[OngoingTopicReassignment] = field("The topics.")
