"""The cluster, its brokers and their log directories."""

from plog.protocol.schema import Bool, Int8, Int16, Int32, Int64, String, Struct, field, message


@message(api_key=60, versions="0-2", flexible="0+")
class DescribeClusterRequest(Struct):
    """Asks for brokers and controller (KIP-700)."""

    include_cluster_authorized_operations: Bool = field(
        "Whether to include the client's operations on the cluster."
    )
    endpoint_type: Int8 = field("1 brokers, 2 controllers.", versions="1+", default=1)
    include_fenced_brokers: Bool = field(
        "Whether to include brokers that may not lead (KIP-1073).", versions="2+", default=False
    )


class DescribeClusterBroker(Struct):
    """One of `brokers`."""

    broker_id: Int32 = field("The broker.")
    host: String = field("Its host.")
    port: Int32 = field("Its port.")
    rack: String | None = field("Its rack, or None.", nullable="0+", default=None)
    is_fenced: Bool = field("Whether it may not lead.", versions="2+", default=False)


@message(api_key=60, versions="0-2", flexible="0+")
class DescribeClusterResponse(Struct):
    """Brokers and controller."""

    throttle_time_ms: Int32 = field("How long a quota throttles the client, in ms.", default=0)
    error_code: Int16 = field("Error code, 0 for success.")
    error_message: String | None = field("Error message, or None.", nullable="0+", default=None)
    endpoint_type: Int8 = field("1 brokers, 2 controllers.", versions="1+", default=1)
    cluster_id: String = field("The cluster, or None.")
    controller_id: Int32 = field("The controller's node id, -1 for none.", default=-1)
    brokers: list[DescribeClusterBroker] = field("The live brokers.")
    cluster_authorized_operations: Int32 = field(
        "Bits of the operations that the client may use on the cluster.", default=-(2**31)
    )


class DescribableLogDirTopic(Struct):
    """One of `topics`."""

    topic: String = field("The topic.")
    partitions: list[Int32] = field("The partitions.")


@message(api_key=35, versions="0-5", flexible="2+")
class DescribeLogDirsRequest(Struct):
    """Asks a broker for its log directories and what they hold (KIP-113)."""

    topics: list[DescribableLogDirTopic] | None = field("The topics.", nullable="0+")


class DescribeLogDirsPartition(Struct):
    """One of `partitions`."""

    partition_index: Int32 = field("The partition.")
    partition_size: Int64 = field("Size of the log's segments in bytes.")
    offset_lag: Int64 = field(
        "How far a future replica is behind, or the log's end ahead of the high watermark."
    )
    is_future_key: Bool = field(
        "Whether the replica is being moved here from another log directory."
    )


class DescribeLogDirsTopic(Struct):
    """One of `topics`."""

    name: String = field("The name.")
    partitions: list[DescribeLogDirsPartition] = field("The partitions.")


class DescribeLogDirsResult(Struct):
    """One of `results`."""

    error_code: Int16 = field("Error code, 0 for success.")
    log_dir: String = field("Absolute path of the log directory.")
    topics: list[DescribeLogDirsTopic] = field("The topics.")
    total_bytes: Int64 = field(
        "Size of the volume, -1 when unknown.", versions="4+", default=-1, ignorable=True
    )
    usable_bytes: Int64 = field(
        "Free bytes of the volume, -1 when unknown.", versions="4+", default=-1, ignorable=True
    )
    is_cordoned: Bool = field(
        "Whether no new partition is placed there (KIP-1066).",
        versions="5+",
        default=False,
        ignorable=True,
    )


@message(api_key=35, versions="0-5", flexible="2+")
class DescribeLogDirsResponse(Struct):
    """The log directories. V4 sizes of their volumes (KIP-827), v5 cordoned ones."""

    throttle_time_ms: Int32 = field("How long a quota throttles the client, in ms.", default=0)
    error_code: Int16 = field(
        "Error code, 0 for success.", versions="3+", default=0, ignorable=True
    )
    results: list[DescribeLogDirsResult] = field("The results.")


class AlterReplicaLogDirTopic(Struct):
    """One of `topics`."""

    name: String = field("The name.")
    partitions: list[Int32] = field("The partitions.")


class AlterReplicaLogDir(Struct):
    """One of `dirs`."""

    path: String = field("Absolute path of the log directory.")
    topics: list[AlterReplicaLogDirTopic] = field("The topics.")


@message(api_key=34, versions="0-2", flexible="2+")
class AlterReplicaLogDirsRequest(Struct):
    """Moves replicas between a broker's log directories (KIP-113)."""

    dirs: list[AlterReplicaLogDir] = field("The target directories.")


class AlterReplicaLogDirPartitionResult(Struct):
    """One of `partitions`."""

    partition_index: Int32 = field("The partition.")
    error_code: Int16 = field("Error code, 0 for success.")


class AlterReplicaLogDirTopicResult(Struct):
    """One of `results`."""

    topic_name: String = field("The topic.")
    partitions: list[AlterReplicaLogDirPartitionResult] = field("The partitions.")


@message(api_key=34, versions="0-2", flexible="2+")
class AlterReplicaLogDirsResponse(Struct):
    """The result of each move."""

    throttle_time_ms: Int32 = field("How long a quota throttles the client, in ms.", default=0)
    results: list[AlterReplicaLogDirTopicResult] = field("The results.")
