"""Metadata: brokers, topics, leaders."""

from plog.protocol.schema import Bool, Int16, Int32, String, Struct, Uuid, field, message
from plog.types import ZERO_UUID


class MetadataRequestTopic(Struct):
    """One of `topics`."""

    topic_id: Uuid = field(
        "The topic's id (KIP-516).", versions="10+", default=ZERO_UUID, ignorable=True
    )
    name: String | None = field("The name.", nullable="10+")


@message(api_key=3, versions="0-13", flexible="9+")
class MetadataRequest(Struct):
    """Asks for brokers and topics.

    V0 lists all topics on an empty array, later versions on null. V10 topic ids.
    """

    topics: list[MetadataRequestTopic] | None = field("The topics.", nullable="1+")
    allow_auto_topic_creation: Bool = field(
        "Whether unknown topics may be created.", versions="4+", default=True
    )
    include_cluster_authorized_operations: Bool = field(
        "Whether to include the client's operations on the cluster.", versions="8-10", default=False
    )
    include_topic_authorized_operations: Bool = field(
        "Whether to include the client's operations on each topic.", versions="8+", default=False
    )


class MetadataResponseBroker(Struct):
    """One of `brokers`."""

    node_id: Int32 = field("The broker.")
    host: String = field("Its host.")
    port: Int32 = field("Its port.")
    rack: String | None = field(
        "Its rack, or None.", versions="1+", nullable="1+", default=None, ignorable=True
    )


class MetadataResponsePartition(Struct):
    """One of `partitions`."""

    error_code: Int16 = field("Error code, 0 for success.")
    partition_index: Int32 = field("The partition.")
    leader_id: Int32 = field("The leader's node id, -1 for none.")
    leader_epoch: Int32 = field(
        "The leader epoch, -1 when unknown.", versions="7+", default=-1, ignorable=True
    )
    replica_nodes: list[Int32] = field("Brokers that hold a replica.")
    isr_nodes: list[Int32] = field("Brokers whose replica is in sync.")
    offline_replicas: list[Int32] = field(
        "Brokers whose replica is not available.", versions="5+", default=[], ignorable=True
    )


class MetadataResponseTopic(Struct):
    """One of `topics`."""

    error_code: Int16 = field("Error code, 0 for success.")
    name: String | None = field("The name.", nullable="12+")
    topic_id: Uuid = field(
        "The topic's id (KIP-516).", versions="10+", default=ZERO_UUID, ignorable=True
    )
    is_internal: Bool = field(
        "Whether the topic is internal.", versions="1+", default=False, ignorable=True
    )
    partitions: list[MetadataResponsePartition] = field("The partitions.")
    topic_authorized_operations: Int32 = field(
        "Bits of the operations that the client may use on the topic.",
        versions="8+",
        default=-(2**31),
    )


@message(api_key=3, versions="0-13", flexible="9+")
class MetadataResponse(Struct):
    """Brokers, topics and leaders, as the answering broker knows them.

    V5 offline replicas, v7 leader epochs, v8 authorized operations, v10 topic ids, v13 an error
    code for the whole response (KIP-1102).
    """

    throttle_time_ms: Int32 = field(
        "How long a quota throttles the client, in ms.", versions="3+", default=0, ignorable=True
    )
    brokers: list[MetadataResponseBroker] = field("The live brokers.")
    cluster_id: String | None = field(
        "The cluster, or None.", versions="2+", nullable="2+", default=None, ignorable=True
    )
    controller_id: Int32 = field(
        "The controller's node id, -1 for none.", versions="1+", default=-1, ignorable=True
    )
    topics: list[MetadataResponseTopic] = field("The topics.")
    cluster_authorized_operations: Int32 = field(
        "Bits of the operations that the client may use on the cluster.",
        versions="8-10",
        default=-(2**31),
    )
    error_code: Int16 = field(
        "0, or why all of it failed (KIP-1102).", versions="13+", default=0, ignorable=True
    )
