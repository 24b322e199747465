"""Coordinators, and the life of a member of a classic group."""

from plog.protocol.schema import Bool, Bytes, Int8, Int16, Int32, String, Struct, field, message


@message(api_key=10, versions="0-6", flexible="3+")
class FindCoordinatorRequest(Struct):
    """Asks for the coordinators of groups or transactional ids; from v4 many keys at once."""

    key: String = field("The group or transactional id.", versions="0-3", default="")
    key_type: Int8 = field("0 group, 1 transaction, 2 share group.", versions="1+", default=0)
    coordinator_keys: list[String] = field(
        "Groups or transactional ids.", versions="4+", default=[]
    )


class Coordinator(Struct):
    """One of `coordinators`."""

    key: String = field("The group or transactional id.", versions="4+", default="")
    node_id: Int32 = field("The broker.", versions="4+", default=0)
    host: String = field("Its host.", versions="4+", default="")
    port: Int32 = field("Its port.", versions="4+", default=0)
    error_code: Int16 = field("Error code, 0 for success.", versions="4+", default=0)
    error_message: String | None = field(
        "Error message, or None.", versions="4+", nullable="4+", default=None, ignorable=True
    )


@message(api_key=10, versions="0-6", flexible="3+")
class FindCoordinatorResponse(Struct):
    """The coordinators."""

    throttle_time_ms: Int32 = field(
        "How long a quota throttles the client, in ms.", versions="1+", default=0, ignorable=True
    )
    error_code: Int16 = field("Error code, 0 for success.", versions="0-3", default=0)
    error_message: String | None = field(
        "Error message, or None.", versions="1-3", nullable="1-3", default=None, ignorable=True
    )
    node_id: Int32 = field("The broker.", versions="0-3", default=0)
    host: String = field("Its host.", versions="0-3", default="")
    port: Int32 = field("Its port.", versions="0-3", default=0)
    coordinators: list[Coordinator] = field(
        "The coordinator of each key.", versions="4+", default=[]
    )


class JoinGroupRequestProtocol(Struct):
    """One of `protocols`."""

    name: String = field("The assignor.")
    metadata: Bytes = field("Metadata of the member for the assignor.")


@message(api_key=11, versions="0-9", flexible="6+")
class JoinGroupRequest(Struct):
    """Joins a group, or its next generation.

    V1 rebalance timeout, v4 member id required, v5 static members, v8 reason.
    """

    group_id: String = field("The group.")
    session_timeout_ms: Int32 = field("Session timeout, in ms.")
    rebalance_timeout_ms: Int32 = field(
        "Maximum time for members to join again, in ms; -1 for the session timeout.",
        versions="1+",
        default=-1,
        ignorable=True,
    )
    member_id: String = field("The member id; empty in its first request.")
    group_instance_id: String | None = field(
        "Name that a static member keeps over restarts (KIP-345), or None.",
        versions="5+",
        nullable="5+",
        default=None,
    )
    protocol_type: String = field("Protocol type of the group, such as `consumer`.")
    protocols: list[JoinGroupRequestProtocol] = field(
        "Assignors the member can use, the preferred first."
    )
    reason: String | None = field(
        "The client's reason, for the broker's log (KIP-800).",
        versions="8+",
        nullable="8+",
        default=None,
        ignorable=True,
    )


class JoinGroupResponseMember(Struct):
    """One of `members`."""

    member_id: String = field("The member id, which the coordinator assigns.")
    group_instance_id: String | None = field(
        "Name that a static member keeps over restarts (KIP-345), or None.",
        versions="5+",
        nullable="5+",
        default=None,
        ignorable=True,
    )
    metadata: Bytes = field("Metadata of the member for the assignor.")


@message(api_key=11, versions="0-9", flexible="6+")
class JoinGroupResponse(Struct):
    """The new generation; only the leader gets its members.

    V7 protocol type, v9 skipped assignment.
    """

    throttle_time_ms: Int32 = field(
        "How long a quota throttles the client, in ms.", versions="2+", default=0, ignorable=True
    )
    error_code: Int16 = field("Error code, 0 for success.")
    generation_id: Int32 = field("The group's generation.", default=-1)
    protocol_type: String | None = field(
        "Protocol type of the group, such as `consumer`.",
        versions="7+",
        nullable="7+",
        default=None,
        ignorable=True,
    )
    protocol_name: String | None = field("The chosen assignor.", nullable="7+")
    leader: String = field("The member that assigns.")
    skip_assignment: Bool = field(
        "Whether the leader keeps the assignment it has (KIP-814).", versions="9+", default=False
    )
    member_id: String = field("The member id, which the coordinator assigns.")
    members: list[JoinGroupResponseMember] = field("The members.")


class SyncGroupRequestAssignment(Struct):
    """One of `assignments`."""

    member_id: String = field("The member id, which the coordinator assigns.")
    assignment: Bytes = field("The member's assignment, in the assignor's encoding.")


@message(api_key=14, versions="0-5", flexible="4+")
class SyncGroupRequest(Struct):
    """Sends the leader's assignment, and asks for the member's own."""

    group_id: String = field("The group.")
    generation_id: Int32 = field("The group's generation.")
    member_id: String = field("The member id, which the coordinator assigns.")
    group_instance_id: String | None = field(
        "Name that a static member keeps over restarts (KIP-345), or None.",
        versions="3+",
        nullable="3+",
        default=None,
    )
    protocol_type: String | None = field(
        "Protocol type of the group, such as `consumer`.",
        versions="5+",
        nullable="5+",
        default=None,
        ignorable=True,
    )
    protocol_name: String | None = field(
        "The chosen assignor.", versions="5+", nullable="5+", default=None, ignorable=True
    )
    assignments: list[SyncGroupRequestAssignment] = field(
        "The leader's assignment of each member; empty from the others."
    )


@message(api_key=14, versions="0-5", flexible="4+")
class SyncGroupResponse(Struct):
    """The member's assignment."""

    throttle_time_ms: Int32 = field(
        "How long a quota throttles the client, in ms.", versions="1+", default=0, ignorable=True
    )
    error_code: Int16 = field("Error code, 0 for success.")
    protocol_type: String | None = field(
        "Protocol type of the group, such as `consumer`.",
        versions="5+",
        nullable="5+",
        default=None,
        ignorable=True,
    )
    protocol_name: String | None = field(
        "The chosen assignor.", versions="5+", nullable="5+", default=None, ignorable=True
    )
    assignment: Bytes = field("The member's assignment, in the assignor's encoding.")


@message(api_key=12, versions="0-4", flexible="4+")
class HeartbeatRequest(Struct):
    """A member's heartbeat."""

    group_id: String = field("The group.")
    generation_id: Int32 = field("The group's generation.")
    member_id: String = field("The member id, which the coordinator assigns.")
    group_instance_id: String | None = field(
        "Name that a static member keeps over restarts (KIP-345), or None.",
        versions="3+",
        nullable="3+",
        default=None,
    )


@message(api_key=12, versions="0-4", flexible="4+")
class HeartbeatResponse(Struct):
    """Whether the generation is still the current one."""

    throttle_time_ms: Int32 = field(
        "How long a quota throttles the client, in ms.", versions="1+", default=0, ignorable=True
    )
    error_code: Int16 = field("Error code, 0 for success.")


class MemberIdentity(Struct):
    """One of `members`."""

    member_id: String = field(
        "The member id, which the coordinator assigns.", versions="3+", default=""
    )
    group_instance_id: String | None = field(
        "Name that a static member keeps over restarts (KIP-345), or None.",
        versions="3+",
        nullable="3+",
        default=None,
    )
    reason: String | None = field(
        "The client's reason, for the broker's log (KIP-800).",
        versions="5+",
        nullable="5+",
        default=None,
        ignorable=True,
    )


@message(api_key=13, versions="0-5", flexible="4+")
class LeaveGroupRequest(Struct):
    """Removes members from a group; v3 and later several at once."""

    group_id: String = field("The group.")
    member_id: String = field(
        "The member id, which the coordinator assigns.", versions="0-2", default=""
    )
    members: list[MemberIdentity] = field("The members.", versions="3+", default=[])


class MemberResponse(Struct):
    """One of `members`."""

    member_id: String = field(
        "The member id, which the coordinator assigns.", versions="3+", default=""
    )
    group_instance_id: String | None = field(
        "Name that a static member keeps over restarts (KIP-345), or None.",
        versions="3+",
        nullable="3+",
        default="",
    )
    error_code: Int16 = field("Error code, 0 for success.", versions="3+", default=0)


@message(api_key=13, versions="0-5", flexible="4+")
class LeaveGroupResponse(Struct):
    """The result for each member."""

    throttle_time_ms: Int32 = field(
        "How long a quota throttles the client, in ms.", versions="1+", default=0, ignorable=True
    )
    error_code: Int16 = field("Error code, 0 for success.")
    members: list[MemberResponse] = field("The members.", versions="3+", default=[])
