"""Fetch: record sets from leaders."""

from plog.protocol.schema import (
    DEFAULT,
    Int8,
    Int16,
    Int32,
    Int64,
    Records,
    String,
    Struct,
    Uuid,
    field,
    message,
)
from plog.types import ZERO_UUID


class ReplicaState(Struct):
    """The `replica_state`."""

    replica_id: Int32 = field(
        "The follower that asks; -1 for consumers.", versions="15+", default=-1
    )
    replica_epoch: Int64 = field("The follower's broker epoch.", versions="15+", default=-1)


class FetchPartition(Struct):
    """One of `partitions`."""

    partition: Int32 = field("The partition.")
    current_leader_epoch: Int32 = field(
        "The leader epoch that the client knows; fences old metadata (KIP-320).",
        versions="9+",
        default=-1,
        ignorable=True,
    )
    fetch_offset: Int64 = field("Offset of the fetch.")
    last_fetched_epoch: Int32 = field(
        "Epoch of the reader's last record, to find where the logs diverge.",
        versions="12+",
        default=-1,
    )
    log_start_offset: Int64 = field(
        "First offset of the log.", versions="5+", default=-1, ignorable=True
    )
    partition_max_bytes: Int32 = field("Maximum bytes of this partition.")
    replica_directory_id: Uuid = field(
        "The follower's log directory.", versions="17+", default=ZERO_UUID, tag=0, ignorable=True
    )
    high_watermark: Int64 = field(
        "The high watermark that the follower knows (KIP-1166); the highest number for consumers.",
        versions="18+",
        default=2**63 - 1,
        tag=1,
        ignorable=True,
    )


class FetchTopic(Struct):
    """One of `topics`."""

    topic: String = field("The topic.", versions="0-12", default="", ignorable=True)
    topic_id: Uuid = field(
        "The topic's id (KIP-516).", versions="13+", default=ZERO_UUID, ignorable=True
    )
    partitions: list[FetchPartition] = field("The partitions.")


class ForgottenTopic(Struct):
    """One of `forgotten_topics_data`."""

    topic: String = field("The topic.", versions="7-12", default="", ignorable=True)
    topic_id: Uuid = field(
        "The topic's id (KIP-516).", versions="13+", default=ZERO_UUID, ignorable=True
    )
    partitions: list[Int32] = field("The partitions.", versions="7+", default=[])


@message(api_key=1, versions="0-18", flexible="12+")
class FetchRequest(Struct):
    """Reads record sets, for consumers and followers alike.

    V4 isolation level, v7 sessions, v9 leader epochs, v10 zstd, v11 racks, v13 topic ids,
    v18 the high watermarks of followers (KIP-1166).
    """

    cluster_id: String | None = field(
        "The cluster, or None.", versions="12+", nullable="12+", default=None, tag=0, ignorable=True
    )
    replica_id: Int32 = field(
        "The follower that asks; -1 for consumers.", versions="0-14", default=-1
    )
    replica_state: ReplicaState = field(
        "The follower that asks (KIP-903).", versions="15+", default=DEFAULT, tag=1
    )
    max_wait_ms: Int32 = field("How long to wait for min_bytes, in ms.")
    min_bytes: Int32 = field("Minimum bytes of the response.")
    max_bytes: Int32 = field(
        "Maximum bytes of the response, except the first batch (KIP-74).",
        versions="3+",
        default=2**31 - 1,
        ignorable=True,
    )
    isolation_level: Int8 = field(
        "0 read_uncommitted, 1 read_committed (KIP-98).", versions="4+", default=0, ignorable=True
    )
    session_id: Int32 = field(
        "The fetch session, 0 for none (KIP-227).", versions="7+", default=0, ignorable=True
    )
    session_epoch: Int32 = field(
        "The request's epoch in its session; 0 opens a session, -1 uses none.",
        versions="7+",
        default=-1,
        ignorable=True,
    )
    topics: list[FetchTopic] = field("The topics.")
    forgotten_topics_data: list[ForgottenTopic] = field(
        "Partitions to remove from the session.", versions="7+", default=[]
    )
    rack_id: String = field(
        "The consumer's rack (KIP-392).", versions="11+", default="", ignorable=True
    )


class EpochEndOffset(Struct):
    """The `diverging_epoch`."""

    epoch: Int32 = field("The epoch.", versions="12+", default=-1)
    end_offset: Int64 = field("Offset after the epoch's last record.", versions="12+", default=-1)


class LeaderIdAndEpoch(Struct):
    """The `current_leader`."""

    leader_id: Int32 = field("The leader's node id, -1 for none.", versions="12+", default=-1)
    leader_epoch: Int32 = field("The leader epoch, -1 when unknown.", versions="12+", default=-1)


class SnapshotId(Struct):
    """The `snapshot_id`."""

    end_offset: Int64 = field("Offset after the epoch's last record.", default=-1)
    epoch: Int32 = field("The epoch.", default=-1)


class AbortedTransaction(Struct):
    """One of `aborted_transactions`."""

    producer_id: Int64 = field("The producer id.", versions="4+", default=0)
    first_offset: Int64 = field(
        "Offset of the transaction's first record here.", versions="4+", default=0
    )


class PartitionData(Struct):
    """One of `partitions`."""

    partition_index: Int32 = field("The partition.")
    error_code: Int16 = field("Error code, 0 for success.")
    high_watermark: Int64 = field(
        "High watermark: the offset after the last record that every in-sync replica has."
    )
    last_stable_offset: Int64 = field(
        "Last stable offset: no transaction is open below it.",
        versions="4+",
        default=-1,
        ignorable=True,
    )
    log_start_offset: Int64 = field(
        "First offset of the log.", versions="5+", default=-1, ignorable=True
    )
    diverging_epoch: EpochEndOffset = field(
        "Where the reader's log diverges from this one.", versions="12+", default=DEFAULT, tag=0
    )
    current_leader: LeaderIdAndEpoch = field(
        "The leader, if the client asked another broker.", versions="12+", default=DEFAULT, tag=1
    )
    snapshot_id: SnapshotId = field(
        "A snapshot to fetch instead (KRaft only).", versions="12+", default=DEFAULT, tag=2
    )
    aborted_transactions: list[AbortedTransaction] | None = field(
        "Aborted transactions among the records; None under read_uncommitted.",
        versions="4+",
        nullable="4+",
        default=[],
        ignorable=True,
    )
    preferred_read_replica: Int32 = field(
        "A closer replica to read from, or -1.", versions="11+", default=-1
    )
    records: Records | None = field("The record set.", nullable="0+")


class FetchableTopicResponse(Struct):
    """One of `responses`."""

    topic: String = field("The topic.", versions="0-12", default="", ignorable=True)
    topic_id: Uuid = field(
        "The topic's id (KIP-516).", versions="13+", default=ZERO_UUID, ignorable=True
    )
    partitions: list[PartitionData] = field("The partitions.")


class NodeEndpoint(Struct):
    """One of `node_endpoints`."""

    node_id: Int32 = field("The broker.", versions="16+", default=0)
    host: String = field("Its host.", versions="16+", default="")
    port: Int32 = field("Its port.", versions="16+", default=0)
    rack: String | None = field("Its rack, or None.", versions="16+", nullable="16+", default=None)


@message(api_key=1, versions="0-18", flexible="12+")
class FetchResponse(Struct):
    """Record sets of partitions.

    V7 sessions, v11 preferred replica, v12 diverging epochs, v13 topic ids, v16 leader hints.
    """

    throttle_time_ms: Int32 = field(
        "How long a quota throttles the client, in ms.", versions="1+", default=0, ignorable=True
    )
    error_code: Int16 = field(
        "Error code, 0 for success.", versions="7+", default=0, ignorable=True
    )
    session_id: Int32 = field("The fetch session, 0 for none (KIP-227).", versions="7+", default=0)
    responses: list[FetchableTopicResponse] = field("The result for each topic or resource.")
    node_endpoints: list[NodeEndpoint] = field(
        "Addresses of the named leaders.", versions="16+", default=[], tag=0
    )
