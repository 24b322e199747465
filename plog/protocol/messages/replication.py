"""Requests between brokers and the controller: leaders, in-sync sets, metadata."""

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


class LeaderAndIsrPartitionState(Struct):
    """One partition or endpoint of LeaderAndIsr."""

    topic_name: String = field("The topic.", versions="0-1", default="", ignorable=True)
    partition_index: Int32 = field("The partition.")
    controller_epoch: Int32 = field("The controller's epoch, which fences former controllers.")
    leader: Int32 = field("The leader's node id; -1 for none, -2 during deletion.")
    leader_epoch: Int32 = field("The leader epoch, -1 when unknown.")
    isr: list[Int32] = field("The in-sync replicas.")
    partition_epoch: Int32 = field("Version of the partition's state.")
    replicas: list[Int32] = field("Brokers that hold a replica.")
    adding_replicas: list[Int32] = field(
        "Replicas that a reassignment adds.", versions="3+", default=[], ignorable=True
    )
    removing_replicas: list[Int32] = field(
        "Replicas that a reassignment removes.", versions="3+", default=[], ignorable=True
    )
    is_new: Bool = field(
        "Whether the replica is created now.", versions="1+", default=False, ignorable=True
    )
    leader_recovery_state: Int8 = field(
        "1 while recovering from an unclean election.", versions="6+", default=0
    )


class LeaderAndIsrTopicState(Struct):
    """One of `topic_states`."""

    topic_name: String = field("The topic.", versions="2+", default="")
    topic_id: Uuid = field(
        "The topic's id (KIP-516).", versions="5+", default=ZERO_UUID, ignorable=True
    )
    partition_states: list[LeaderAndIsrPartitionState] = field(
        "The partitions of the topic.", versions="2+", default=[]
    )


class LeaderAndIsrLiveLeader(Struct):
    """One of `live_leaders`."""

    broker_id: Int32 = field("The broker.")
    host_name: String = field("Its host.")
    port: Int32 = field("Its port.")


@message(api_key=4, versions="0-7", flexible="4+")
class LeaderAndIsrRequest(Struct):
    """Names leaders and followers; sent by the controller. V2 groups by topic, v5 topic ids."""

    controller_id: Int32 = field("The controller's node id, -1 for none.")
    is_kraft_controller: Bool = field(
        "Whether the sender is a KRaft controller.", versions="7+", default=False
    )
    controller_epoch: Int32 = field("The controller's epoch, which fences former controllers.")
    broker_epoch: Int64 = field(
        "The receiver's broker epoch, so that it refuses requests for an earlier start.",
        versions="2+",
        default=-1,
        ignorable=True,
    )
    type: Int8 = field("0 unknown, 1 some partitions, 2 all of them.", versions="5+", default=0)
    ungrouped_partition_states: list[LeaderAndIsrPartitionState] = field(
        "The partitions, each with its topic.", versions="0-1", default=[]
    )
    topic_states: list[LeaderAndIsrTopicState] = field("The topics.", versions="2+", default=[])
    live_leaders: list[LeaderAndIsrLiveLeader] = field("Addresses of the leaders.")


class LeaderAndIsrPartitionError(Struct):
    """One partition or endpoint of LeaderAndIsr."""

    topic_name: String = field("The topic.", versions="0-4", default="", ignorable=True)
    partition_index: Int32 = field("The partition.")
    error_code: Int16 = field("Error code, 0 for success.")


class LeaderAndIsrTopicError(Struct):
    """One of `topics`."""

    topic_id: Uuid = field("The topic's id (KIP-516).", versions="5+", default=ZERO_UUID)
    partition_errors: list[LeaderAndIsrPartitionError] = field(
        "The result for each partition.", versions="5+", default=[]
    )


@message(api_key=4, versions="0-7", flexible="4+")
class LeaderAndIsrResponse(Struct):
    """The result for each partition."""

    error_code: Int16 = field("Error code, 0 for success.")
    partition_errors: list[LeaderAndIsrPartitionError] = field(
        "The result for each partition.", versions="0-4", default=[]
    )
    topics: list[LeaderAndIsrTopicError] = field("The topics.", versions="5+", default=[])


class StopReplicaPartitionV0(Struct):
    """One of `ungrouped_partitions`."""

    topic_name: String = field("The topic.", versions="0", default="")
    partition_index: Int32 = field("The partition.", versions="0", default=0)


class StopReplicaTopicV1(Struct):
    """One of `topics`."""

    name: String = field("The name.", versions="1-2", default="")
    partition_indexes: list[Int32] = field("The partitions.", versions="1-2", default=[])


class StopReplicaPartitionState(Struct):
    """One of `partition_states`."""

    partition_index: Int32 = field("The partition.", versions="3+", default=0)
    leader_epoch: Int32 = field("The leader epoch, -1 when unknown.", versions="3+", default=-1)
    delete_partition: Bool = field(
        "Whether the replica's files are deleted.", versions="3+", default=False
    )


class StopReplicaTopicState(Struct):
    """One of `topic_states`."""

    topic_name: String = field("The topic.", versions="3+", default="")
    partition_states: list[StopReplicaPartitionState] = field(
        "The partitions of the topic.", versions="3+", default=[]
    )


@message(api_key=5, versions="0-4", flexible="2+")
class StopReplicaRequest(Struct):
    """Stops and deletes replicas; sent by the controller. V3 leader epochs."""

    controller_id: Int32 = field("The controller's node id, -1 for none.")
    is_kraft_controller: Bool = field(
        "Whether the sender is a KRaft controller.", versions="4+", default=False
    )
    controller_epoch: Int32 = field("The controller's epoch, which fences former controllers.")
    broker_epoch: Int64 = field(
        "The receiver's broker epoch, so that it refuses requests for an earlier start.",
        versions="1+",
        default=-1,
        ignorable=True,
    )
    delete_partitions: Bool = field(
        "Whether the replicas' files are deleted.", versions="0-2", default=False
    )
    ungrouped_partitions: list[StopReplicaPartitionV0] = field(
        "The partitions, each with its topic.", versions="0", default=[]
    )
    topics: list[StopReplicaTopicV1] = field("The topics.", versions="1-2", default=[])
    topic_states: list[StopReplicaTopicState] = field("The topics.", versions="3+", default=[])


class StopReplicaPartitionError(Struct):
    """One of `partition_errors`."""

    topic_name: String = field("The topic.")
    partition_index: Int32 = field("The partition.")
    error_code: Int16 = field("Error code, 0 for success.")


@message(api_key=5, versions="0-4", flexible="2+")
class StopReplicaResponse(Struct):
    """The result for each replica."""

    error_code: Int16 = field("Error code, 0 for success.")
    partition_errors: list[StopReplicaPartitionError] = field("The result for each partition.")


class UpdateMetadataPartitionState(Struct):
    """The state of one partition for brokers."""

    topic_name: String = field("The topic.", versions="0-4", default="", ignorable=True)
    partition_index: Int32 = field("The partition.")
    controller_epoch: Int32 = field("The controller's epoch, which fences former controllers.")
    leader: Int32 = field("The leader's node id; -1 for none, -2 during deletion.")
    leader_epoch: Int32 = field("The leader epoch, -1 when unknown.")
    isr: list[Int32] = field("The in-sync replicas.")
    zk_version: Int32 = field("Version of the partition's state node.")
    replicas: list[Int32] = field("Brokers that hold a replica.")
    offline_replicas: list[Int32] = field(
        "Brokers whose replica is not available.", versions="4+", default=[], ignorable=True
    )


class UpdateMetadataTopicState(Struct):
    """One of `topic_states`."""

    topic_name: String = field("The topic.", versions="5+", default="")
    topic_id: Uuid = field(
        "The topic's id (KIP-516).", versions="7+", default=ZERO_UUID, ignorable=True
    )
    partition_states: list[UpdateMetadataPartitionState] = field(
        "The partitions of the topic.", versions="5+", default=[]
    )


class UpdateMetadataEndpoint(Struct):
    """One of `endpoints`."""

    port: Int32 = field("Its port.", versions="1+", default=0)
    host: String = field("Its host.", versions="1+", default="")
    listener: String = field("The listener's name.", versions="3+", default="", ignorable=True)
    security_protocol: Int16 = field(
        "0 PLAINTEXT, 1 SSL, 2 SASL_PLAINTEXT, 3 SASL_SSL.", versions="1+", default=0
    )


class UpdateMetadataBroker(Struct):
    """One of `live_brokers`."""

    id: Int32 = field("The broker.")
    v0_host: String = field("Its host.", versions="0", default="", ignorable=True)
    v0_port: Int32 = field("Its port.", versions="0", default=0, ignorable=True)
    endpoints: list[UpdateMetadataEndpoint] = field(
        "Its listeners.", versions="1+", default=[], ignorable=True
    )
    rack: String | None = field(
        "Its rack, or None.", versions="2+", nullable="2+", default=None, ignorable=True
    )


@message(api_key=6, versions="0-8", flexible="6+")
class UpdateMetadataRequest(Struct):
    """Updates the brokers' metadata; sent by the controller. V5 groups by topic, v7 topic ids."""

    controller_id: Int32 = field("The controller's node id, -1 for none.")
    is_kraft_controller: Bool = field(
        "Whether the sender is a KRaft controller.", versions="8+", default=False
    )
    type: Int8 = field(
        "0 unknown, 1 some partitions, 2 all of them.", versions="8+", default=0, tag=0
    )
    controller_epoch: Int32 = field("The controller's epoch, which fences former controllers.")
    broker_epoch: Int64 = field(
        "The receiver's broker epoch, so that it refuses requests for an earlier start.",
        versions="5+",
        default=-1,
        ignorable=True,
    )
    ungrouped_partition_states: list[UpdateMetadataPartitionState] = field(
        "The partitions, each with its topic.", versions="0-4", default=[]
    )
    topic_states: list[UpdateMetadataTopicState] = field("The topics.", versions="5+", default=[])
    live_brokers: list[UpdateMetadataBroker] = field("The live brokers.")


@message(api_key=6, versions="0-8", flexible="6+")
class UpdateMetadataResponse(Struct):
    """Whether the broker accepted the request."""

    error_code: Int16 = field("Error code, 0 for success.")


@message(api_key=7, versions="0-3", flexible="3+")
class ControlledShutdownRequest(Struct):
    """A broker asks the controller to take its leaderships before it stops."""

    broker_id: Int32 = field("The broker.")
    broker_epoch: Int64 = field("The broker's epoch.", versions="2+", default=-1, ignorable=True)


class RemainingPartition(Struct):
    """One of `remaining_partitions`."""

    topic_name: String = field("The topic.")
    partition_index: Int32 = field("The partition.")


@message(api_key=7, versions="0-3", flexible="3+")
class ControlledShutdownResponse(Struct):
    """The partitions that the broker still leads."""

    error_code: Int16 = field("Error code, 0 for success.")
    remaining_partitions: list[RemainingPartition] = field(
        "Partitions that the broker still leads."
    )


class BrokerState(Struct):
    """One of `new_isr_with_epochs`."""

    broker_id: Int32 = field("The broker.", versions="3+", default=0)
    broker_epoch: Int64 = field("The broker's epoch.", versions="3+", default=-1)


class AlterPartitionState(Struct):
    """One of `partitions`."""

    partition_index: Int32 = field("The partition.")
    leader_epoch: Int32 = field("The leader epoch.")
    new_isr: list[Int32] = field("The new in-sync set.", versions="0-2", default=[])
    new_isr_with_epochs: list[BrokerState] = field(
        "The new in-sync set, with broker epochs (KIP-903).",
        versions="3+",
        default=[],
    )
    leader_recovery_state: Int8 = field(
        "1 while recovering from an unclean election (KIP-704).", versions="1+", default=0
    )
    partition_epoch: Int32 = field("Version of the partition's state.")


class AlterPartitionTopic(Struct):
    """One of `topics`."""

    topic_name: String = field("The topic.", versions="0-1", default="", ignorable=True)
    topic_id: Uuid = field(
        "The topic's id (KIP-516).", versions="2+", default=ZERO_UUID, ignorable=True
    )
    partitions: list[AlterPartitionState] = field("The partitions.")


@message(api_key=56, versions="0-3", flexible="0+")
class AlterPartitionRequest(Struct):
    """A leader proposes in-sync sets (KIP-497).

    V1 recovery state, v2 topic ids, v3 broker epochs.
    """

    broker_id: Int32 = field("The broker.")
    broker_epoch: Int64 = field("The broker's epoch.", default=-1)
    topics: list[AlterPartitionTopic] = field("The topics.")


class AlterPartitionStateResponse(Struct):
    """One of `partitions`."""

    partition_index: Int32 = field("The partition.")
    error_code: Int16 = field("Error code, 0 for success.")
    leader_id: Int32 = field("The leader's node id, -1 for none.")
    leader_epoch: Int32 = field("The leader epoch.")
    isr: list[Int32] = field("The in-sync replicas.")
    leader_recovery_state: Int8 = field(
        "1 while recovering from an unclean election (KIP-704).",
        versions="1+",
        default=0,
        ignorable=True,
    )
    partition_epoch: Int32 = field("Version of the partition's state.")


class AlterPartitionTopicResponse(Struct):
    """One of `topics`."""

    topic_name: String = field("The topic.", versions="0-1", default="", ignorable=True)
    topic_id: Uuid = field(
        "The topic's id (KIP-516).", versions="2+", default=ZERO_UUID, ignorable=True
    )
    partitions: list[AlterPartitionStateResponse] = field("The partitions.")


@message(api_key=56, versions="0-3", flexible="0+")
class AlterPartitionResponse(Struct):
    """The controller's new state of each partition."""

    throttle_time_ms: Int32 = field("How long a quota throttles the client, in ms.", default=0)
    error_code: Int16 = field("Error code, 0 for success.")
    topics: list[AlterPartitionTopicResponse] = field("The topics.")
