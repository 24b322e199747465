"""Keys and values of `__consumer_offsets`, as Kafka's brokers store them. Each is preceded by its
version as an int16, and a key's version tells what it is a key of.
"""

from plog.protocol.schema import Bytes, Int32, Int64, String, Struct, field, message


@message(versions="0-1")
class OffsetCommitKey(Struct):
    """Names a committed offset; both versions mean the same."""

    group: String = field("The group.")
    topic: String = field("The topic.")
    partition: Int32 = field("The partition.")


@message(versions="0-4", flexible="4+")
class OffsetCommitValue(Struct):
    """A committed offset. V1 has a time of its own at which it expires."""

    offset: Int64 = field("Next offset the consumer wants.")
    leader_epoch: Int32 = field(
        "Epoch of the last record consumed, -1 when unknown (KIP-320).",
        versions="3+",
        default=-1,
        ignorable=True,
    )
    metadata: String = field("What the consumer wants kept beside the offset.")
    commit_timestamp: Int64 = field("When it was committed, in ms.")
    expire_timestamp: Int64 = field(
        "When it is to be forgotten, in ms; -1 for what the broker's setting says.",
        versions="1",
        default=-1,
        ignorable=True,
    )


@message(versions="2")
class GroupMetadataKey(Struct):
    """Names a classic group."""

    group: String = field("The group.")


class MemberMetadata(Struct):
    """One of `members`."""

    member_id: String = field("The member, named by the coordinator.")
    group_instance_id: String | None = field(
        "Name that a static member keeps over restarts (KIP-345), or None.",
        versions="3+",
        nullable="3+",
        default=None,
        ignorable=True,
    )
    client_id: String = field("What the client calls itself.")
    client_host: String = field("Where it is.")
    rebalance_timeout: Int32 = field(
        "How long it may take to join again, in ms.", versions="1+", default=-1, ignorable=True
    )
    session_timeout: Int32 = field("Silence after which it counts as gone, in ms.")
    subscription: Bytes = field("What it told for the chosen assignor.")
    assignment: Bytes = field("Its assignment, in the assignor's form.")


@message(versions="0-4", flexible="4+")
class GroupMetadataValue(Struct):
    """A generation of a classic group, with the assignment of each member."""

    protocol_type: String = field("What kind of group it is, such as `consumer`.")
    generation: Int32 = field("The group's generation.")
    protocol: String | None = field("The assignor that was chosen.", nullable="0+")
    leader: String | None = field("The member that assigned.", nullable="0+")
    current_state_timestamp: Int64 = field(
        "Since when it has the state that it has, in ms.", versions="2+", default=-1, ignorable=True
    )
    members: list[MemberMetadata] = field("The members.")
