"""Keys and values of `__consumer_offsets` about groups of KIP-848, as Kafka's brokers store them.
Each is preceded by its version as an int16, and a key's version gives its type.
"""

from plog.protocol.messages.consumer_groups import TopicPartitions
from plog.protocol.schema import (
    DEFAULT,
    Bytes,
    Int8,
    Int32,
    Int64,
    String,
    Struct,
    Uuid,
    field,
    message,
)


@message(versions="3-6")
class ConsumerGroupKey(Struct):
    """Key of a group's records: 3 its epoch, 4 its topics, 6 the epoch of its target."""

    group_id: String = field("The group.")


@message(versions="5-8")
class ConsumerGroupMemberKey(Struct):
    """Key of a member's records: 5 its subscription, 7 its target, 8 its current assignment."""

    group_id: String = field("The group.")
    member_id: String = field("The member.")


@message(versions="16")
class ConsumerGroupRegularExpressionKey(Struct):
    """Key of a subscribed regular expression."""

    group_id: String = field("The group.")
    regular_expression: String = field("The expression, in RE2's syntax.")


@message(versions="0", flexible="0+")
class ConsumerGroupMetadataValue(Struct):
    """The group itself."""

    epoch: Int32 = field("Epoch of the group; it rises when members or topics change.")


class PartitionMetadata(Struct):
    """One of `partition_metadata`."""

    partition: Int32 = field("The partition.")
    racks: list[String] = field("Racks of its replicas.")


class TopicMetadata(Struct):
    """One of `topics`."""

    topic_id: Uuid = field("The topic's id (KIP-516).")
    topic_name: String = field("The topic.")
    num_partitions: Int32 = field("Number of partitions.")
    partition_metadata: list[PartitionMetadata] = field("Racks of the partitions, if known.")


@message(versions="0", flexible="0+")
class ConsumerGroupPartitionMetadataValue(Struct):
    """The subscribed topics, as the group has last seen them."""

    topics: list[TopicMetadata] = field("The topics.")


class ClassicProtocol(Struct):
    """One of `supported_protocols`."""

    name: String = field("The assignor.")
    metadata: Bytes = field("Metadata of the member for the assignor.")


class ClassicMemberMetadata(Struct):
    """The data of a member that uses the classic protocol."""

    session_timeout_ms: Int32 = field("Session timeout, in ms.", default=0)
    supported_protocols: list[ClassicProtocol] = field(
        "Assignors the member can use, the preferred first.", default=[]
    )


@message(versions="0", flexible="0+")
class ConsumerGroupMemberMetadataValue(Struct):
    """A member's subscription."""

    instance_id: String | None = field(
        "Name that a static member keeps over restarts (KIP-345), or None.", nullable="0+"
    )
    rack_id: String | None = field("The member's rack, or None.", nullable="0+")
    client_id: String = field("The client id.")
    client_host: String = field("The client's host.")
    subscribed_topic_names: list[String] = field("The subscribed topics.")
    subscribed_topic_regex: String | None = field(
        "Subscribed topics by regular expression.", nullable="0+"
    )
    rebalance_timeout_ms: Int32 = field("Maximum time to give partitions up, in ms.", default=-1)
    server_assignor: String | None = field("The preferred assignor.", nullable="0+")
    classic_member_metadata: ClassicMemberMetadata | None = field(
        "Its classic protocol data, if it uses the classic protocol.",
        nullable="0+",
        default=DEFAULT,
        tag=0,
    )


@message(versions="0", flexible="0+")
class ConsumerGroupTargetAssignmentMetadataValue(Struct):
    """The group epoch of the target assignment."""

    assignment_epoch: Int32 = field("The epoch.")


@message(versions="0", flexible="0+")
class ConsumerGroupTargetAssignmentMemberValue(Struct):
    """A member's target assignment."""

    topic_partitions: list[TopicPartitions] = field("The partitions.")


@message(versions="0", flexible="0+")
class ConsumerGroupCurrentMemberAssignmentValue(Struct):
    """A member's current assignment."""

    member_epoch: Int32 = field("Its epoch.")
    previous_member_epoch: Int32 = field(
        "Its previous epoch, which it sends if it has missed the response."
    )
    state: Int8 = field(
        "0 stable, 1 has to give partitions up, 2 waits for partitions of other members."
    )
    assigned_partitions: list[TopicPartitions] = field("The assigned partitions.")
    partitions_pending_revocation: list[TopicPartitions] = field(
        "Partitions that it has to give up."
    )


@message(versions="0", flexible="0+")
class ConsumerGroupRegularExpressionValue(Struct):
    """The topics that match a regular expression."""

    topics: list[String] = field("The topics.")
    version: Int64 = field("The version of the cluster metadata used.")
    timestamp: Int64 = field("Time of the look-up, in ms.")
