"""Keys and values of `__consumer_offsets` about groups of KIP-848, as Kafka's brokers store them.
Each is preceded by its version as an int16, and a key's version tells what it is a key of.
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
    """Names what there is one of in a group: 3 its epoch, 4 its topics, 6 its target's epoch."""

    group_id: String = field("The group.")


@message(versions="5-8")
class ConsumerGroupMemberKey(Struct):
    """Names what each member has: 5 what it told, 7 its target, 8 its current assignment."""

    group_id: String = field("The group.")
    member_id: String = field("The member.")


@message(versions="16")
class ConsumerGroupRegularExpressionKey(Struct):
    """Names a regular expression that members have subscribed to."""

    group_id: String = field("The group.")
    regular_expression: String = field("The expression, in RE2's syntax.")


@message(versions="0", flexible="0+")
class ConsumerGroupMetadataValue(Struct):
    """The group itself."""

    epoch: Int32 = field("Counts what changed about members and topics.")


class PartitionMetadata(Struct):
    """One of `partition_metadata`."""

    partition: Int32 = field("The partition.")
    racks: list[String] = field("Where its replicas are.")


class TopicMetadata(Struct):
    """One of `topics`."""

    topic_id: Uuid = field("The topic's id (KIP-516).")
    topic_name: String = field("The topic.")
    num_partitions: Int32 = field("How many partitions it has.")
    partition_metadata: list[PartitionMetadata] = field(
        "Racks of the partitions, where they are known."
    )


@message(versions="0", flexible="0+")
class ConsumerGroupPartitionMetadataValue(Struct):
    """The topics that members want, as the group has last seen them."""

    topics: list[TopicMetadata] = field("The topics.")


class ClassicProtocol(Struct):
    """One of `supported_protocols`."""

    name: String = field("The assignor.")
    metadata: Bytes = field("What the assignor needs to know of the member.")


class ClassicMemberMetadata(Struct):
    """What a member told that speaks the classic protocol."""

    session_timeout_ms: Int32 = field(
        "Silence after which the member counts as gone, in ms.", default=0
    )
    supported_protocols: list[ClassicProtocol] = field(
        "Assignors the member can use, the preferred first.", default=[]
    )


@message(versions="0", flexible="0+")
class ConsumerGroupMemberMetadataValue(Struct):
    """What a member told of itself."""

    instance_id: String | None = field(
        "Name that a static member keeps over restarts (KIP-345), or None.", nullable="0+"
    )
    rack_id: String | None = field("Where the member is.", nullable="0+")
    client_id: String = field("What the client calls itself.")
    client_host: String = field("Where it is.")
    subscribed_topic_names: list[String] = field("The topics that it wants.")
    subscribed_topic_regex: String | None = field(
        "What names of topics that it wants match.", nullable="0+"
    )
    rebalance_timeout_ms: Int32 = field(
        "How long it may take to give partitions up, in ms.", default=-1
    )
    server_assignor: String | None = field("The assignor that it prefers.", nullable="0+")
    classic_member_metadata: ClassicMemberMetadata | None = field(
        "What it told if it speaks the classic protocol.", nullable="0+", default=DEFAULT, tag=0
    )


@message(versions="0", flexible="0+")
class ConsumerGroupTargetAssignmentMetadataValue(Struct):
    """The group's epoch that is assigned for."""

    assignment_epoch: Int32 = field("The epoch.")


@message(versions="0", flexible="0+")
class ConsumerGroupTargetAssignmentMemberValue(Struct):
    """What a member is to have."""

    topic_partitions: list[TopicPartitions] = field("The partitions.")


@message(versions="0", flexible="0+")
class ConsumerGroupCurrentMemberAssignmentValue(Struct):
    """Where a member stands."""

    member_epoch: Int32 = field("Its epoch.")
    previous_member_epoch: Int32 = field(
        "Its epoch before: it comes with that if it has missed the answer."
    )
    state: Int8 = field("0 stable, 1 has not given up yet, 2 waits for others.")
    assigned_partitions: list[TopicPartitions] = field("What it may use.")
    partitions_pending_revocation: list[TopicPartitions] = field("What it is giving up.")


@message(versions="0", flexible="0+")
class ConsumerGroupRegularExpressionValue(Struct):
    """Which topics match a regular expression."""

    topics: list[String] = field("The topics.")
    version: Int64 = field("The version of the cluster's metadata that was looked at.")
    timestamp: Int64 = field("When that was, in ms.")
