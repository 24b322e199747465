"""Offsets: where leader epochs end, and what groups have committed."""

from plog.protocol.schema import Bool, Int16, Int32, Int64, String, Struct, Uuid, field, message
from plog.types import ZERO_UUID


class OffsetForLeaderPartition(Struct):
    """One of `partitions`."""

    partition: Int32 = field("The partition.")
    current_leader_epoch: Int32 = field(
        "The leader epoch that the client knows; fences old metadata (KIP-320).",
        versions="2+",
        default=-1,
        ignorable=True,
    )
    leader_epoch: Int32 = field("The leader epoch, -1 when unknown.")


class OffsetForLeaderTopic(Struct):
    """One of `topics`."""

    topic: String = field("The topic.")
    partitions: list[OffsetForLeaderPartition] = field("The partitions.")


@message(api_key=23, versions="0-4", flexible="4+")
class OffsetForLeaderEpochRequest(Struct):
    """Asks for the end offsets of leader epochs (KIP-101, KIP-279, KIP-320)."""

    replica_id: Int32 = field(
        "The follower that asks; -1 for consumers.", versions="3+", default=-2, ignorable=True
    )
    topics: list[OffsetForLeaderTopic] = field("The topics.")


class EpochEndOffset(Struct):
    """One of `partitions`."""

    error_code: Int16 = field("Error code, 0 for success.")
    partition: Int32 = field("The partition.")
    leader_epoch: Int32 = field(
        "The leader epoch, -1 when unknown.", versions="1+", default=-1, ignorable=True
    )
    end_offset: Int64 = field("Offset after the epoch's last record.", default=-1)


class OffsetForLeaderTopicResult(Struct):
    """One of `topics`."""

    topic: String = field("The topic.")
    partitions: list[EpochEndOffset] = field("The partitions.")


@message(api_key=23, versions="0-4", flexible="4+")
class OffsetForLeaderEpochResponse(Struct):
    """The end offset of each epoch."""

    throttle_time_ms: Int32 = field(
        "How long a quota throttles the client, in ms.", versions="2+", default=0, ignorable=True
    )
    topics: list[OffsetForLeaderTopicResult] = field("The topics.")


class OffsetCommitRequestPartition(Struct):
    """One of `partitions`."""

    partition_index: Int32 = field("The partition.")
    committed_offset: Int64 = field("Next offset to read.")
    committed_leader_epoch: Int32 = field(
        "Epoch of the last record consumed, -1 when unknown (KIP-320).",
        versions="6+",
        default=-1,
        ignorable=True,
    )
    commit_timestamp: Int64 = field(
        "Time of the commit, in ms; -1 for now.", versions="1", default=-1
    )
    committed_metadata: String | None = field(
        "The consumer's metadata for the offset.", nullable="0+"
    )


class OffsetCommitRequestTopic(Struct):
    """One of `topics`."""

    name: String = field("The topic.", versions="0-9", default="", ignorable=True)
    topic_id: Uuid = field(
        "The topic's id (KIP-516).", versions="10+", default=ZERO_UUID, ignorable=True
    )
    partitions: list[OffsetCommitRequestPartition] = field("The partitions.")


@message(api_key=8, versions="0-10", flexible="8+")
class OffsetCommitRequest(Struct):
    """Commits offsets of a group.

    V1 generations, v2 retention (gone in v5), v6 leader epochs, v7 static members, v9 KIP-848,
    v10 topic ids.
    """

    group_id: String = field("The group.")
    generation_id_or_member_epoch: Int32 = field(
        "Generation (classic) or epoch (KIP-848) of the member; -1 outside a group.",
        versions="1+",
        default=-1,
        ignorable=True,
    )
    member_id: String = field(
        "The member id, which the coordinator assigns.", versions="1+", default="", ignorable=True
    )
    group_instance_id: String | None = field(
        "Name that a static member keeps over restarts (KIP-345), or None.",
        versions="7+",
        nullable="7+",
        default=None,
    )
    retention_time_ms: Int64 = field(
        "How long to keep the offsets, in ms; -1 for the broker's setting.",
        versions="2-4",
        default=-1,
        ignorable=True,
    )
    topics: list[OffsetCommitRequestTopic] = field("The topics.")


class OffsetCommitResponsePartition(Struct):
    """One of `partitions`."""

    partition_index: Int32 = field("The partition.")
    error_code: Int16 = field("Error code, 0 for success.")


class OffsetCommitResponseTopic(Struct):
    """One of `topics`."""

    name: String = field("The topic.", versions="0-9", default="", ignorable=True)
    topic_id: Uuid = field(
        "The topic's id (KIP-516).", versions="10+", default=ZERO_UUID, ignorable=True
    )
    partitions: list[OffsetCommitResponsePartition] = field("The partitions.")


@message(api_key=8, versions="0-10", flexible="8+")
class OffsetCommitResponse(Struct):
    """The result of each commit."""

    throttle_time_ms: Int32 = field(
        "How long a quota throttles the client, in ms.", versions="3+", default=0, ignorable=True
    )
    topics: list[OffsetCommitResponseTopic] = field("The topics.")


class OffsetFetchRequestTopic(Struct):
    """One of `topics`."""

    name: String = field("The topic.", versions="0-7", default="")
    partition_indexes: list[Int32] = field("The partitions.", versions="0-7", default=[])


class OffsetFetchRequestTopics(Struct):
    """One of `topics`."""

    name: String = field("The topic.", versions="8-9", default="", ignorable=True)
    topic_id: Uuid = field(
        "The topic's id (KIP-516).", versions="10+", default=ZERO_UUID, ignorable=True
    )
    partition_indexes: list[Int32] = field("The partitions.", versions="8+", default=[])


class OffsetFetchRequestGroup(Struct):
    """One of `groups`."""

    group_id: String = field("The group.", versions="8+", default="")
    member_id: String | None = field(
        "The member id, which the coordinator assigns.",
        versions="9+",
        nullable="9+",
        default=None,
        ignorable=True,
    )
    member_epoch: Int32 = field(
        "Epoch of the member (KIP-848), -1 outside a group.",
        versions="9+",
        default=-1,
        ignorable=True,
    )
    topics: list[OffsetFetchRequestTopics] | None = field(
        "The topics; None for all with offsets.", versions="8+", nullable="8+", default=[]
    )


@message(api_key=9, versions="0-10", flexible="6+")
class OffsetFetchRequest(Struct):
    """Asks for committed offsets.

    V7 stable only, v8 many groups in one request, v9 KIP-848, v10 topic ids.
    """

    group_id: String = field("The group.", versions="0-7", default="")
    topics: list[OffsetFetchRequestTopic] | None = field(
        "The topics; None for all with offsets.", versions="0-7", nullable="2-7", default=[]
    )
    groups: list[OffsetFetchRequestGroup] = field("The groups.", versions="8+", default=[])
    require_stable: Bool = field(
        "Whether open transactional commits give UNSTABLE_OFFSET_COMMIT (KIP-447).",
        versions="7+",
        default=False,
    )


class OffsetFetchResponsePartition(Struct):
    """One of `partitions`."""

    partition_index: Int32 = field("The partition.", versions="0-7", default=0)
    committed_offset: Int64 = field("The committed offset, -1 for none.", versions="0-7", default=0)
    committed_leader_epoch: Int32 = field(
        "Epoch of the last record consumed, -1 when unknown (KIP-320).",
        versions="5-7",
        default=-1,
        ignorable=True,
    )
    metadata: String | None = field(
        "The consumer's metadata of the offset.", versions="0-7", nullable="0-7", default=""
    )
    error_code: Int16 = field("Error code, 0 for success.", versions="0-7", default=0)


class OffsetFetchResponseTopic(Struct):
    """One of `topics`."""

    name: String = field("The topic.", versions="0-7", default="")
    partitions: list[OffsetFetchResponsePartition] = field(
        "The partitions.", versions="0-7", default=[]
    )


class OffsetFetchResponsePartitions(Struct):
    """One of `partitions`."""

    partition_index: Int32 = field("The partition.", versions="8+", default=0)
    committed_offset: Int64 = field("The committed offset, -1 for none.", versions="8+", default=0)
    committed_leader_epoch: Int32 = field(
        "Epoch of the last record consumed, -1 when unknown (KIP-320).",
        versions="8+",
        default=-1,
        ignorable=True,
    )
    metadata: String | None = field(
        "The consumer's metadata of the offset.", versions="8+", nullable="8+", default=""
    )
    error_code: Int16 = field("Error code, 0 for success.", versions="8+", default=0)


class OffsetFetchResponseTopics(Struct):
    """One of `topics`."""

    name: String = field("The topic.", versions="8-9", default="", ignorable=True)
    topic_id: Uuid = field(
        "The topic's id (KIP-516).", versions="10+", default=ZERO_UUID, ignorable=True
    )
    partitions: list[OffsetFetchResponsePartitions] = field(
        "The partitions.", versions="8+", default=[]
    )


class OffsetFetchResponseGroup(Struct):
    """One of `groups`."""

    group_id: String = field("The group.", versions="8+", default="")
    topics: list[OffsetFetchResponseTopics] = field("The topics.", versions="8+", default=[])
    error_code: Int16 = field("Error code, 0 for success.", versions="8+", default=0)


@message(api_key=9, versions="0-10", flexible="6+")
class OffsetFetchResponse(Struct):
    """The committed offsets."""

    throttle_time_ms: Int32 = field(
        "How long a quota throttles the client, in ms.", versions="3+", default=0, ignorable=True
    )
    topics: list[OffsetFetchResponseTopic] = field("The topics.", versions="0-7", default=[])
    error_code: Int16 = field(
        "Error code, 0 for success.", versions="2-7", default=0, ignorable=True
    )
    groups: list[OffsetFetchResponseGroup] = field("The groups.", versions="8+", default=[])


class OffsetDeleteRequestPartition(Struct):
    """One of `partitions`."""

    partition_index: Int32 = field("The partition.")


class OffsetDeleteRequestTopic(Struct):
    """One of `topics`."""

    name: String = field("The topic.")
    partitions: list[OffsetDeleteRequestPartition] = field("The partitions.")


@message(api_key=47, versions="0")
class OffsetDeleteRequest(Struct):
    """Deletes offsets of a group (KIP-496)."""

    group_id: String = field("The group.")
    topics: list[OffsetDeleteRequestTopic] = field("The topics.")


class OffsetDeleteResponsePartition(Struct):
    """One of `partitions`."""

    partition_index: Int32 = field("The partition.")
    error_code: Int16 = field("Error code, 0 for success.")


class OffsetDeleteResponseTopic(Struct):
    """One of `topics`."""

    name: String = field("The topic.")
    partitions: list[OffsetDeleteResponsePartition] = field("The partitions.")


@message(api_key=47, versions="0")
class OffsetDeleteResponse(Struct):
    """The result of each deletion."""

    error_code: Int16 = field("Error code, 0 for success.")
    throttle_time_ms: Int32 = field(
        "How long a quota throttles the client, in ms.", default=0, ignorable=True
    )
    topics: list[OffsetDeleteResponseTopic] = field("The topics.")
