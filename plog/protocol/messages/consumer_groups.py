"""Consumer groups of KIP-848: heartbeats and descriptions."""

from plog.protocol.schema import Bool, Int8, Int16, Int32, String, Struct, Uuid, field, message


class TopicPartitions(Struct):
    """Partitions of one topic."""

    topic_id: Uuid = field("The topic's id (KIP-516).")
    partitions: list[Int32] = field("The partitions.")


@message(api_key=68, versions="0-1", flexible="0+")
class ConsumerGroupHeartbeatRequest(Struct):
    """A member's heartbeat, with its changed fields; null means unchanged.

    V1 regular expressions, and members that name themselves (KIP-1082).
    """

    group_id: String = field("The group.")
    member_id: String = field("The member id; constant while its process runs.")
    member_epoch: Int32 = field("Its epoch; 0 joins, -1 leaves, -2 leaves to come back (static).")
    instance_id: String | None = field(
        "Name that a static member keeps over restarts (KIP-345), or None.",
        nullable="0+",
        default=None,
    )
    rack_id: String | None = field("The member's rack, or None.", nullable="0+", default=None)
    rebalance_timeout_ms: Int32 = field(
        "Maximum time to give partitions up, in ms; -1 if unchanged.", default=-1
    )
    subscribed_topic_names: list[String] | None = field(
        "The subscribed topics.", nullable="0+", default=None
    )
    subscribed_topic_regex: String | None = field(
        "Subscribed topics by regular expression, in RE2's syntax.",
        versions="1+",
        nullable="1+",
        default=None,
    )
    server_assignor: String | None = field(
        "The preferred server-side assignor.", nullable="0+", default=None
    )
    topic_partitions: list[TopicPartitions] | None = field(
        "The owned partitions.", nullable="0+", default=None
    )


class AssignedPartitions(Struct):
    """A member's assignment."""

    topic_partitions: list[TopicPartitions] = field("All of its partitions.")


@message(api_key=68, versions="0-1", flexible="0+")
class ConsumerGroupHeartbeatResponse(Struct):
    """The member's epoch, and its partitions if they have changed."""

    throttle_time_ms: Int32 = field("How long a quota throttles the client, in ms.", default=0)
    error_code: Int16 = field("Error code, 0 for success.")
    error_message: String | None = field("Error message, or None.", nullable="0+", default=None)
    member_id: String | None = field("The member.", nullable="0+", default=None)
    member_epoch: Int32 = field("Its epoch.", default=0)
    heartbeat_interval_ms: Int32 = field("Interval to the next heartbeat, in ms.", default=0)
    assignment: AssignedPartitions | None = field(
        "Its assignment, if that has changed.", nullable="0+", default=None
    )


@message(api_key=69, versions="0-1", flexible="0+")
class ConsumerGroupDescribeRequest(Struct):
    """Asks for groups and their members."""

    group_ids: list[String] = field("The groups.")
    include_authorized_operations: Bool = field(
        "Whether to include the client's operations on the group."
    )


class NamedTopicPartitions(Struct):
    """Partitions of one topic."""

    topic_id: Uuid = field("The topic's id (KIP-516).")
    topic_name: String = field("The topic.")
    partitions: list[Int32] = field("The partitions.")


class Assignment(Struct):
    """A member's current or target assignment."""

    topic_partitions: list[NamedTopicPartitions] = field("The partitions.")


class ConsumerGroupMember(Struct):
    """One of `members`."""

    member_id: String = field("The member.")
    instance_id: String | None = field(
        "Name that a static member keeps over restarts (KIP-345), or None.",
        nullable="0+",
        default=None,
    )
    rack_id: String | None = field("The member's rack, or None.", nullable="0+", default=None)
    member_epoch: Int32 = field("Its epoch.")
    client_id: String = field("The client id of the member's connection.")
    client_host: String = field("The host of the member's connection.")
    subscribed_topic_names: list[String] = field("The subscribed topics.")
    subscribed_topic_regex: String | None = field(
        "Subscribed topics by regular expression.", nullable="0+", default=None
    )
    assignment: Assignment = field("The owned partitions.")
    target_assignment: Assignment = field("The target assignment.")
    member_type: Int8 = field(
        "-1 unknown, 0 classic, 1 consumer protocol.", versions="1+", default=-1, ignorable=True
    )


class DescribedConsumerGroup(Struct):
    """One of `groups`."""

    error_code: Int16 = field("Error code, 0 for success.")
    error_message: String | None = field("Error message, or None.", nullable="0+", default=None)
    group_id: String = field("The group.")
    group_state: String = field("State of the group, by Kafka's name.", default="")
    group_epoch: Int32 = field(
        "Epoch of the group; it rises when members or topics change.", default=0
    )
    assignment_epoch: Int32 = field("The group epoch of the target assignment.", default=0)
    assignor_name: String = field("The assignor in use.", default="")
    members: list[ConsumerGroupMember] = field("The members.", default=[])
    authorized_operations: Int32 = field(
        "Bits of the operations that the client may use on the group.", default=-(2**31)
    )


@message(api_key=69, versions="0-1", flexible="0+")
class ConsumerGroupDescribeResponse(Struct):
    """The groups."""

    throttle_time_ms: Int32 = field("How long a quota throttles the client, in ms.", default=0)
    groups: list[DescribedConsumerGroup] = field("The groups.")
