"""Produce: record sets to leaders."""

from collections.abc import Sequence
from typing import Final

from plog.errors import error_for
from plog.protocol.schema import (
    DEFAULT,
    Int16,
    Int32,
    Int64,
    Records,
    String,
    Struct,
    field,
    message,
)


class PartitionProduceData(Struct):
    """One of `partition_data`."""

    index: Int32 = field("The partition.")
    records: Records | None = field("The record set.", nullable="0+")


class TopicProduceData(Struct):
    """One of `topic_data`."""

    name: String = field("The name.")
    partition_data: list[PartitionProduceData] = field("The written partitions.")


@message(api_key=0, versions="0-12", flexible="9+")
class ProduceRequest(Struct):
    """Appends one record batch per partition.

    V3 and later carry record batches v2 only, earlier ones message sets; v7 allows zstd.
    """

    transactional_id: String | None = field(
        "The transactional producer, or None.", versions="3+", nullable="3+", default=None
    )
    acks: Int16 = field(
        "Required acknowledgements: 0 none, 1 the leader, -1 every in-sync replica."
    )
    timeout_ms: Int32 = field("Timeout of the request, in ms.")
    topic_data: list[TopicProduceData] = field("The written topics.")


class BatchIndexAndErrorMessage(Struct):
    """One of `record_errors`."""

    batch_index: Int32 = field("The record's index in its batch.", versions="8+", default=0)
    batch_index_error_message: String | None = field(
        "Error message for the record, or None.", versions="8+", nullable="8+", default=None
    )


class LeaderIdAndEpoch(Struct):
    """The `current_leader`."""

    leader_id: Int32 = field("The leader's node id, -1 for none.", versions="10+", default=-1)
    leader_epoch: Int32 = field("The leader epoch, -1 when unknown.", versions="10+", default=-1)


class PartitionProduceResponse(Struct):
    """One of `partition_responses`."""

    index: Int32 = field("The partition.")
    error_code: Int16 = field("Error code, 0 for success.")
    base_offset: Int64 = field("Offset of the batch's first record.")
    log_append_time_ms: Int64 = field(
        "Time of the append with LogAppendTime, otherwise -1.",
        versions="2+",
        default=-1,
        ignorable=True,
    )
    log_start_offset: Int64 = field(
        "First offset of the log.", versions="5+", default=-1, ignorable=True
    )
    record_errors: list[BatchIndexAndErrorMessage] = field(
        "The invalid records of a refused batch.", versions="8+", default=[], ignorable=True
    )
    error_message: String | None = field(
        "Error message, or None.", versions="8+", nullable="8+", default=None, ignorable=True
    )
    current_leader: LeaderIdAndEpoch = field(
        "The leader, if the client asked another broker.", versions="10+", default=DEFAULT, tag=0
    )


MOST_REASONS: Final = 3
"""So many records are named where people read why a batch was refused: it may be hundreds."""


def refusal_text(
    error: int, message: str | None, record_errors: Sequence[tuple[int, str | None]]
) -> str:
    """Say for people why a partition's records were refused: the text of each by its index."""
    texts = [message or str(error_for(error))]
    texts += [f"record {index}: {text}" for index, text in record_errors[:MOST_REASONS]]
    if len(record_errors) > MOST_REASONS:
        texts.append("...")
    return "; ".join(texts)


class TopicProduceResponse(Struct):
    """One of `responses`."""

    name: String = field("The name.")
    partition_responses: list[PartitionProduceResponse] = field("The result for each partition.")


class NodeEndpoint(Struct):
    """One of `node_endpoints`."""

    node_id: Int32 = field("The broker.", versions="10+", default=0)
    host: String = field("Its host.", versions="10+", default="")
    port: Int32 = field("Its port.", versions="10+", default=0)
    rack: String | None = field("Its rack, or None.", versions="10+", nullable="10+", default=None)


@message(api_key=0, versions="0-12", flexible="9+")
class ProduceResponse(Struct):
    """The offsets of the batches, or their errors.

    V5 log start offset, v8 errors per record, v10 leader hints (KIP-951).
    """

    responses: list[TopicProduceResponse] = field("The result for each topic or resource.")
    throttle_time_ms: Int32 = field(
        "How long a quota throttles the client, in ms.", versions="1+", default=0, ignorable=True
    )
    node_endpoints: list[NodeEndpoint] = field(
        "Addresses of the named leaders.", versions="10+", default=[], tag=0
    )
