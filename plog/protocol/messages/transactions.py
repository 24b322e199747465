"""Transactions: adding partitions and offsets, committing, aborting, markers (KIP-98)."""

from plog.protocol.schema import (
    Bool,
    Int8,
    Int16,
    Int32,
    Int64,
    String,
    Struct,
    Uuid,
    field,
    message,
)
from plog.types import ZERO_UUID


class AddPartitionsToTxnTopic(Struct):
    """One of `topics`."""

    name: String = field("The topic.")
    partitions: list[Int32] = field("The partitions.")


class AddPartitionsToTxnTransaction(Struct):
    """One of `transactions`."""

    transactional_id: String = field("The transactional id.", versions="4+", default="")
    producer_id: Int64 = field("The producer id.", versions="4+", default=0)
    producer_epoch: Int16 = field("The producer epoch.", versions="4+", default=0)
    verify_only: Bool = field(
        "Only verify that the partitions are in the transaction (KIP-890).",
        versions="4+",
        default=False,
    )
    topics: list[AddPartitionsToTxnTopic] = field("The topics.", versions="4+", default=[])


@message(api_key=24, versions="0-5", flexible="3+")
class AddPartitionsToTxnRequest(Struct):
    """Adds partitions to transactions.

    Clients send v3 and below; v4 and later is the brokers' batched form (KIP-890).
    """

    transactions: list[AddPartitionsToTxnTransaction] = field(
        "The transactions to add partitions to.", versions="4+", default=[]
    )
    v3_and_below_transactional_id: String = field(
        "The transactional id.", versions="0-3", default=""
    )
    v3_and_below_producer_id: Int64 = field("The producer id.", versions="0-3", default=0)
    v3_and_below_producer_epoch: Int16 = field("The producer epoch.", versions="0-3", default=0)
    v3_and_below_topics: list[AddPartitionsToTxnTopic] = field(
        "The partitions to add to the transaction.", versions="0-3", default=[]
    )


class AddPartitionsToTxnPartitionResult(Struct):
    """One of `results_by_partition`."""

    partition_index: Int32 = field("The partition.")
    partition_error_code: Int16 = field("Error code, 0 for success.")


class AddPartitionsToTxnTopicResult(Struct):
    """One of `topic_results`."""

    name: String = field("The topic.")
    results_by_partition: list[AddPartitionsToTxnPartitionResult] = field(
        "The result for each partition."
    )


class AddPartitionsToTxnResult(Struct):
    """One of `results_by_transaction`."""

    transactional_id: String = field("The transactional id.", versions="4+", default="")
    topic_results: list[AddPartitionsToTxnTopicResult] = field(
        "The result for each topic.", versions="4+", default=[]
    )


@message(api_key=24, versions="0-5", flexible="3+")
class AddPartitionsToTxnResponse(Struct):
    """Which partitions were added."""

    throttle_time_ms: Int32 = field("How long a quota throttles the client, in ms.", default=0)
    error_code: Int16 = field(
        "Error code, 0 for success.", versions="4+", default=0, ignorable=True
    )
    results_by_transaction: list[AddPartitionsToTxnResult] = field(
        "The result for each transaction.", versions="4+", default=[]
    )
    results_by_topic_v3_and_below: list[AddPartitionsToTxnTopicResult] = field(
        "The result for each topic.", versions="0-3", default=[]
    )


@message(api_key=25, versions="0-4", flexible="3+")
class AddOffsetsToTxnRequest(Struct):
    """Adds a group's offsets to a transaction."""

    transactional_id: String = field("The transactional id.")
    producer_id: Int64 = field("The producer id.")
    producer_epoch: Int16 = field("The producer epoch.")
    group_id: String = field("The group.")


@message(api_key=25, versions="0-4", flexible="3+")
class AddOffsetsToTxnResponse(Struct):
    """Whether the offsets were added."""

    throttle_time_ms: Int32 = field("How long a quota throttles the client, in ms.", default=0)
    error_code: Int16 = field("Error code, 0 for success.")


@message(api_key=26, versions="0-5", flexible="3+")
class EndTxnRequest(Struct):
    """Commits or aborts a transaction."""

    transactional_id: String = field("The transactional id.")
    producer_id: Int64 = field("The producer id.")
    producer_epoch: Int16 = field("The producer epoch.")
    committed: Bool = field("True to commit, False to abort.")


@message(api_key=26, versions="0-5", flexible="3+")
class EndTxnResponse(Struct):
    """Whether the outcome is decided; from v5 on the producer's new id and epoch (KIP-890)."""

    throttle_time_ms: Int32 = field("How long a quota throttles the client, in ms.", default=0)
    error_code: Int16 = field("Error code, 0 for success.")
    producer_id: Int64 = field("The producer id.", versions="5+", default=-1, ignorable=True)
    producer_epoch: Int16 = field("The producer epoch.", versions="5+", default=-1, ignorable=True)


class TxnOffsetCommitRequestPartition(Struct):
    """One of `partitions`."""

    partition_index: Int32 = field("The partition.")
    committed_offset: Int64 = field("Next offset to read.")
    committed_leader_epoch: Int32 = field(
        "Epoch of the last record consumed, -1 when unknown (KIP-320).",
        versions="2+",
        default=-1,
        ignorable=True,
    )
    committed_metadata: String | None = field(
        "The consumer's metadata for the offset.", nullable="0+"
    )


class TxnOffsetCommitRequestTopic(Struct):
    """One of `topics`."""

    name: String = field("The topic.", versions="0-5", default="", ignorable=True)
    topic_id: Uuid = field(
        "The topic's id (KIP-516).", versions="6+", default=ZERO_UUID, ignorable=True
    )
    partitions: list[TxnOffsetCommitRequestPartition] = field("The partitions.")


@message(api_key=28, versions="0-6", flexible="3+")
class TxnOffsetCommitRequest(Struct):
    """Commits offsets inside a transaction. v3 fences by generation (KIP-447), v6 topic ids."""

    transactional_id: String = field("The transactional id.")
    group_id: String = field("The group.")
    producer_id: Int64 = field("The producer id.")
    producer_epoch: Int16 = field("The producer epoch.")
    generation_id: Int32 = field("The group's generation.", versions="3+", default=-1)
    member_id: String = field(
        "The member id, which the coordinator assigns.", versions="3+", default=""
    )
    group_instance_id: String | None = field(
        "Name that a static member keeps over restarts (KIP-345), or None.",
        versions="3+",
        nullable="3+",
        default=None,
    )
    topics: list[TxnOffsetCommitRequestTopic] = field("The topics.")


class TxnOffsetCommitResponsePartition(Struct):
    """One of `partitions`."""

    partition_index: Int32 = field("The partition.")
    error_code: Int16 = field("Error code, 0 for success.")


class TxnOffsetCommitResponseTopic(Struct):
    """One of `topics`."""

    name: String = field("The topic.", versions="0-5", default="", ignorable=True)
    topic_id: Uuid = field(
        "The topic's id (KIP-516).", versions="6+", default=ZERO_UUID, ignorable=True
    )
    partitions: list[TxnOffsetCommitResponsePartition] = field("The partitions.")


@message(api_key=28, versions="0-6", flexible="3+")
class TxnOffsetCommitResponse(Struct):
    """The result of each commit."""

    throttle_time_ms: Int32 = field("How long a quota throttles the client, in ms.", default=0)
    topics: list[TxnOffsetCommitResponseTopic] = field("The topics.")


class WritableTxnMarkerTopic(Struct):
    """One of `topics`."""

    name: String = field("The topic.")
    partition_indexes: list[Int32] = field("The partitions.")


class WritableTxnMarker(Struct):
    """One of `markers`."""

    producer_id: Int64 = field("The producer id.")
    producer_epoch: Int16 = field("The producer epoch.")
    transaction_result: Bool = field("True to commit, False to abort.")
    topics: list[WritableTxnMarkerTopic] = field("The topics.")
    coordinator_epoch: Int32 = field("Epoch of the transaction coordinator.")
    transaction_version: Int8 = field(
        "2 where each transaction has an epoch of its own (KIP-890), 0 or 1 before.",
        versions="2+",
        default=0,
        ignorable=True,
    )


@message(api_key=27, versions="0-2", flexible="1+")
class WriteTxnMarkersRequest(Struct):
    """Writes the markers that end transactions in their partitions; sent by a coordinator.

    V2 gives the version of each transaction.
    """

    markers: list[WritableTxnMarker] = field("The transactions to end.")


class WritableTxnMarkerPartitionResult(Struct):
    """One of `partitions`."""

    partition_index: Int32 = field("The partition.")
    error_code: Int16 = field("Error code, 0 for success.")


class WritableTxnMarkerTopicResult(Struct):
    """One of `topics`."""

    name: String = field("The topic.")
    partitions: list[WritableTxnMarkerPartitionResult] = field("The partitions.")


class WritableTxnMarkerResult(Struct):
    """One of `markers`."""

    producer_id: Int64 = field("The producer id.")
    topics: list[WritableTxnMarkerTopicResult] = field("The topics.")


@message(api_key=27, versions="0-2", flexible="1+")
class WriteTxnMarkersResponse(Struct):
    """The result of each marker."""

    markers: list[WritableTxnMarkerResult] = field("The transactions to end.")


@message(api_key=65, versions="0", flexible="0+")
class DescribeTransactionsRequest(Struct):
    """Asks a coordinator for transactions (KIP-664)."""

    transactional_ids: list[String] = field("The transactional ids.")


class TopicData(Struct):
    """One of `topics`."""

    topic: String = field("The topic.")
    partitions: list[Int32] = field("The partitions.")


class TransactionState(Struct):
    """One of `transaction_states`."""

    error_code: Int16 = field("Error code, 0 for success.")
    transactional_id: String = field("The transactional id.")
    transaction_state: String = field("State of the transaction, by Kafka's name.")
    transaction_timeout_ms: Int32 = field("Timeout of the transaction, in ms.")
    transaction_start_time_ms: Int64 = field("Start time, in ms; -1 without a transaction.")
    producer_id: Int64 = field("The producer id.")
    producer_epoch: Int16 = field("The producer epoch.")
    topics: list[TopicData] = field("The topics.")


@message(api_key=65, versions="0", flexible="0+")
class DescribeTransactionsResponse(Struct):
    """The transactions."""

    throttle_time_ms: Int32 = field("How long a quota throttles the client, in ms.", default=0)
    transaction_states: list[TransactionState] = field("The transactions.")


@message(api_key=66, versions="0-2", flexible="0+")
class ListTransactionsRequest(Struct):
    """Asks a coordinator for all its transactions (KIP-664), v2 by a pattern (KIP-1152)."""

    state_filters: list[String] = field("Only transactions in these states; empty for all.")
    producer_id_filters: list[Int64] = field("Only these producer ids; empty for all.")
    duration_filter: Int64 = field(
        "Only transactions open for longer, in ms; negative for all.", versions="1+", default=-1
    )
    transactional_id_pattern: String | None = field(
        "Only those whose ids this regular expression of RE2 matches; empty or None for all.",
        versions="2+",
        nullable="2+",
        default=None,
    )


class ListedTransaction(Struct):
    """One of `transaction_states`."""

    transactional_id: String = field("The transactional id.")
    producer_id: Int64 = field("The producer id.")
    transaction_state: String = field("State of the transaction, by Kafka's name.")


@message(api_key=66, versions="0-2", flexible="0+")
class ListTransactionsResponse(Struct):
    """The transactions."""

    throttle_time_ms: Int32 = field("How long a quota throttles the client, in ms.", default=0)
    error_code: Int16 = field("Error code, 0 for success.")
    unknown_state_filters: list[String] = field(
        "Requested states that the coordinator does not know."
    )
    transaction_states: list[ListedTransaction] = field("The transactions.")
