"""Administration of groups: description, list, deletion."""

from plog.protocol.schema import Bool, Bytes, Int16, Int32, String, Struct, field, message


@message(api_key=15, versions="0-6", flexible="5+")
class DescribeGroupsRequest(Struct):
    """Asks for groups and their members."""

    groups: list[String] = field("The groups.")
    include_authorized_operations: Bool = field(
        "Whether to include the client's operations on the group.", versions="3+", default=False
    )


class DescribedGroupMember(Struct):
    """One of `members`."""

    member_id: String = field("The member id, which the coordinator assigns.")
    group_instance_id: String | None = field(
        "Name that a static member keeps over restarts (KIP-345), or None.",
        versions="4+",
        nullable="4+",
        default=None,
        ignorable=True,
    )
    client_id: String = field("The client id of the member's connection.")
    client_host: String = field("The host of the member's connection.")
    member_metadata: Bytes = field("The member's metadata of its Join.")
    member_assignment: Bytes = field("The member's assignment.")


class DescribedGroup(Struct):
    """One of `groups`."""

    error_code: Int16 = field("Error code, 0 for success.")
    error_message: String | None = field(
        "Error message, or None.", versions="6+", nullable="6+", default=None, ignorable=True
    )
    group_id: String = field("The group.")
    group_state: String = field("State of the group, by Kafka's name.")
    protocol_type: String = field("Protocol type of the group, such as `consumer`.")
    protocol_data: String = field("The assignor, while the group is stable.")
    members: list[DescribedGroupMember] = field("The members.")
    authorized_operations: Int32 = field(
        "Bits of the operations that the client may use on the group.",
        versions="3+",
        default=-(2**31),
    )


@message(api_key=15, versions="0-6", flexible="5+")
class DescribeGroupsResponse(Struct):
    """The groups; an unknown one is in state Dead, from v6 on with an error (KIP-1043)."""

    throttle_time_ms: Int32 = field(
        "How long a quota throttles the client, in ms.", versions="1+", default=0, ignorable=True
    )
    groups: list[DescribedGroup] = field("The groups.")


@message(api_key=16, versions="0-5", flexible="3+")
class ListGroupsRequest(Struct):
    """Asks a coordinator for all its groups."""

    states_filter: list[String] = field(
        "Only groups in these states; empty for all.", versions="4+", default=[]
    )
    types_filter: list[String] = field(
        "Only groups of these types; empty for all.", versions="5+", default=[]
    )


class ListedGroup(Struct):
    """One of `groups`."""

    group_id: String = field("The group.")
    protocol_type: String = field("Protocol type of the group, such as `consumer`.")
    group_state: String = field(
        "State of the group, by Kafka's name.", versions="4+", default="", ignorable=True
    )
    group_type: String = field(
        "`classic` or `consumer`.", versions="5+", default="", ignorable=True
    )


@message(api_key=16, versions="0-5", flexible="3+")
class ListGroupsResponse(Struct):
    """The groups."""

    throttle_time_ms: Int32 = field(
        "How long a quota throttles the client, in ms.", versions="1+", default=0, ignorable=True
    )
    error_code: Int16 = field("Error code, 0 for success.")
    groups: list[ListedGroup] = field("The groups.")


@message(api_key=42, versions="0-3", flexible="2+")
class DeleteGroupsRequest(Struct):
    """Deletes empty groups."""

    groups_names: list[String] = field("The groups.")


class DeletableGroupResult(Struct):
    """One of `results`."""

    group_id: String = field("The group.")
    error_code: Int16 = field("Error code, 0 for success.")
    error_message: String | None = field(
        "Error message, or None.", versions="3+", nullable="3+", default=None, ignorable=True
    )


@message(api_key=42, versions="0-3", flexible="2+")
class DeleteGroupsResponse(Struct):
    """The result of each deletion."""

    throttle_time_ms: Int32 = field("How long a quota throttles the client, in ms.", default=0)
    results: list[DeletableGroupResult] = field("The results.")
