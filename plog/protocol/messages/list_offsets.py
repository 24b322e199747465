"""ListOffsets: offsets by time."""

from plog.protocol.schema import Int8, Int16, Int32, Int64, String, Struct, field, message


class ListOffsetsPartition(Struct):
    """One of `partitions`."""

    partition_index: Int32 = field("The partition.")
    current_leader_epoch: Int32 = field(
        "The leader epoch that the client knows; fences old metadata (KIP-320).",
        versions="4+",
        default=-1,
        ignorable=True,
    )
    timestamp: Int64 = field("A time in ms, or a named end below 0.")
    max_num_offsets: Int32 = field(
        "Maximum number of segment starts to list.", versions="0", default=1
    )


class ListOffsetsTopic(Struct):
    """One of `topics`."""

    name: String = field("The name.")
    partitions: list[ListOffsetsPartition] = field("The partitions.")


@message(api_key=2, versions="0-11", flexible="6+")
class ListOffsetsRequest(Struct):
    """Asks for offsets by time.

    V1 one offset instead of many, v2 isolation level, v4 leader epochs, v7 the maximum timestamp.
    """

    replica_id: Int32 = field("The follower that asks; -1 for consumers.")
    isolation_level: Int8 = field(
        "0 read_uncommitted, 1 read_committed (KIP-98).", versions="2+", default=0
    )
    topics: list[ListOffsetsTopic] = field("The topics.")
    timeout_ms: Int32 = field(
        "Timeout of the request, in ms.",
        versions="10+",
        default=0,
        ignorable=True,
    )


class ListOffsetsPartitionResponse(Struct):
    """One of `partitions`."""

    partition_index: Int32 = field("The partition.")
    error_code: Int16 = field("Error code, 0 for success.")
    old_style_offsets: list[Int64] = field(
        "Starts of segments, newest first.", versions="0", default=[]
    )
    timestamp: Int64 = field("A time in ms, or a named end below 0.", versions="1+", default=-1)
    offset: Int64 = field("The offset.", versions="1+", default=-1)
    leader_epoch: Int32 = field("The leader epoch, -1 when unknown.", versions="4+", default=-1)


class ListOffsetsTopicResponse(Struct):
    """One of `topics`."""

    name: String = field("The name.")
    partitions: list[ListOffsetsPartitionResponse] = field("The partitions.")


@message(api_key=2, versions="0-11", flexible="6+")
class ListOffsetsResponse(Struct):
    """Offsets with their timestamps."""

    throttle_time_ms: Int32 = field(
        "How long a quota throttles the client, in ms.", versions="2+", default=0, ignorable=True
    )
    topics: list[ListOffsetsTopicResponse] = field("The topics.")
