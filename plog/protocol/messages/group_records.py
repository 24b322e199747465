"""Keys and values of `__consumer_offsets`, as Kafka's brokers store them. Each is preceded by its
version as an int16, and a key's version gives its type.
"""

from plog.protocol.schema import Bytes, Int32, Int64, String, Struct, field, message


@message(versions="0-1")
class OffsetCommitKey(Struct):
    """Key of a committed offset; both versions mean the same."""

    group: String = field("The group.")
    topic: String = field("The topic.")
    partition: Int32 = field("The partition.")


@message(versions="0-4", flexible="4+")
class OffsetCommitValue(Struct):
    """A committed offset. V1 has an expiry time."""

    offset: Int64 = field("Next offset to read.")
    leader_epoch: Int32 = field(
        "Epoch of the last record consumed, -1 when unknown (KIP-320).",
        versions="3+",
        default=-1,
        ignorable=True,
    )
    metadata: String = field("The consumer's metadata for the offset.")
    commit_timestamp: Int64 = field("Time of the commit, in ms.")
    expire_timestamp: Int64 = field(
        "Expiry time, in ms; -1 for the broker's setting.",
        versions="1",
        default=-1,
        ignorable=True,
    )


@message(versions="2")
class GroupMetadataKey(Struct):
    """Key of a classic group."""

    group: String = field("The group.")


class MemberMetadata(Struct):
    """One of `members`."""

    member_id: String = field("The member id, which the coordinator assigns.")
    group_instance_id: String | None = field(
        "Name that a static member keeps over restarts (KIP-345), or None.",
        versions="3+",
        nullable="3+",
        default=None,
        ignorable=True,
    )
    client_id: String = field("The client id.")
    client_host: String = field("The client's host.")
    rebalance_timeout: Int32 = field(
        "Maximum time to join again, in ms.", versions="1+", default=-1, ignorable=True
    )
    session_timeout: Int32 = field("Session timeout, in ms.")
    subscription: Bytes = field("Its subscription for the chosen assignor.")
    assignment: Bytes = field("Its assignment, in the assignor's encoding.")


@message(versions="0-4", flexible="4+")
class GroupMetadataValue(Struct):
    """A generation of a classic group, with the assignment of each member."""

    protocol_type: String = field("Protocol type of the group, such as `consumer`.")
    generation: Int32 = field("The group's generation.")
    protocol: String | None = field("The chosen assignor.", nullable="0+")
    leader: String | None = field("The member that assigned.", nullable="0+")
    current_state_timestamp: Int64 = field(
        "Time of the last state change, in ms.", versions="2+", default=-1, ignorable=True
    )
    members: list[MemberMetadata] = field("The members.")
