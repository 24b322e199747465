"""Groups of KIP-848, whose coordinator assigns: heartbeats and descriptions."""

from plog.protocol.schema import Bool, Int8, Int16, Int32, String, Struct, Uuid, field, message


class TopicPartitions(Struct):
    """Partitions of one topic."""

    topic_id: Uuid = field("The topic's id (KIP-516).")
    partitions: list[Int32] = field("The partitions.")


@message(api_key=68, versions="0-1", flexible="0+")
class ConsumerGroupHeartbeatRequest(Struct):
    """Says that a member is alive, and what has changed about it: null has not.

    V1 regular expressions, and members that name themselves (KIP-1082).
    """

    group_id: String = field("The group.")
    member_id: String = field("The member; the same for as long as its process lives.")
    member_epoch: Int32 = field("Its epoch; 0 joins, -1 leaves, -2 leaves to come back (static).")
    instance_id: String | None = field(
        "Name that a static member keeps over restarts (KIP-345), or None.",
        nullable="0+",
        default=None,
    )
    rack_id: String | None = field("Where the member is.", nullable="0+", default=None)
    rebalance_timeout_ms: Int32 = field(
        "How long the member may take to give partitions up, in ms; -1 as before.", default=-1
    )
    subscribed_topic_names: list[String] | None = field(
        "The topics that it wants.", nullable="0+", default=None
    )
    subscribed_topic_regex: String | None = field(
        "What names of topics that it wants match, in RE2's syntax.",
        versions="1+",
        nullable="1+",
        default=None,
    )
    server_assignor: String | None = field(
        "The coordinator's assignor that it prefers.", nullable="0+", default=None
    )
    topic_partitions: list[TopicPartitions] | None = field(
        "The partitions that it owns.", nullable="0+", default=None
    )


class AssignedPartitions(Struct):
    """What a member may use from now on."""

    topic_partitions: list[TopicPartitions] = field("All of its partitions.")


@message(api_key=68, versions="0-1", flexible="0+")
class ConsumerGroupHeartbeatResponse(Struct):
    """The member's epoch, and its partitions if they have changed."""

    throttle_time_ms: Int32 = field("How long a quota holds the client back, in ms.", default=0)
    error_code: Int16 = field("0, or why it failed.")
    error_message: String | None = field("Why it failed, in words.", nullable="0+", default=None)
    member_id: String | None = field("The member.", nullable="0+", default=None)
    member_epoch: Int32 = field("Its epoch.", default=0)
    heartbeat_interval_ms: Int32 = field("When to come again, in ms.", default=0)
    assignment: AssignedPartitions | None = field(
        "All that it may use, if that has changed.", nullable="0+", default=None
    )


@message(api_key=69, versions="0-1", flexible="0+")
class ConsumerGroupDescribeRequest(Struct):
    """Asks for groups and their members."""

    group_ids: list[String] = field("The groups.")
    include_authorized_operations: Bool = field(
        "Whether to say what the client may do to the group."
    )


class NamedTopicPartitions(Struct):
    """Partitions of one topic."""

    topic_id: Uuid = field("The topic's id (KIP-516).")
    topic_name: String = field("The topic.")
    partitions: list[Int32] = field("The partitions.")


class Assignment(Struct):
    """What a member has, or is to have."""

    topic_partitions: list[NamedTopicPartitions] = field("The partitions.")


class ConsumerGroupMember(Struct):
    """One of `members`."""

    member_id: String = field("The member.")
    instance_id: String | None = field(
        "Name that a static member keeps over restarts (KIP-345), or None.",
        nullable="0+",
        default=None,
    )
    rack_id: String | None = field("Where the member is.", nullable="0+", default=None)
    member_epoch: Int32 = field("Its epoch.")
    client_id: String = field("The client id of the member's connection.")
    client_host: String = field("The host of the member's connection.")
    subscribed_topic_names: list[String] = field("The topics that it wants.")
    subscribed_topic_regex: String | None = field(
        "What names of topics that it wants match.", nullable="0+", default=None
    )
    assignment: Assignment = field("What it has.")
    target_assignment: Assignment = field("What it is to have.")
    member_type: Int8 = field(
        "-1 unknown, 0 classic, 1 consumer protocol.", versions="1+", default=-1, ignorable=True
    )


class DescribedConsumerGroup(Struct):
    """One of `groups`."""

    error_code: Int16 = field("0, or why it failed.")
    error_message: String | None = field("Why it failed, in words.", nullable="0+", default=None)
    group_id: String = field("The group.")
    group_state: String = field("State of the group, by Kafka's name.", default="")
    group_epoch: Int32 = field("Counts what changed about members and topics.", default=0)
    assignment_epoch: Int32 = field("The group's epoch that is assigned for.", default=0)
    assignor_name: String = field("The assignor that is used.", default="")
    members: list[ConsumerGroupMember] = field("The members.", default=[])
    authorized_operations: Int32 = field(
        "Bits of what the client may do to the group.", default=-(2**31)
    )


@message(api_key=69, versions="0-1", flexible="0+")
class ConsumerGroupDescribeResponse(Struct):
    """The groups."""

    throttle_time_ms: Int32 = field("How long a quota holds the client back, in ms.", default=0)
    groups: list[DescribedConsumerGroup] = field("The groups.")
