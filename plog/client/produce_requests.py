"""A sender's Produce requests: its settings, their form, and the errors in their responses."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from plog.errors import ErrorCode, KafkaError, error_for
from plog.protocol.messages.produce import (
    PartitionProduceData,
    PartitionProduceResponse,
    ProduceRequest,
    TopicProduceData,
    refusal_text,
)
from plog.types import TopicPartition

WRITTEN = frozenset({ErrorCode.NONE, ErrorCode.DUPLICATE_SEQUENCE_NUMBER})
NUMBERS_REFUSED = frozenset(
    {
        ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER,
        ErrorCode.INVALID_PRODUCER_EPOCH,
        ErrorCode.UNKNOWN_PRODUCER_ID,
    }
)
TOO_LARGE = frozenset({ErrorCode.MESSAGE_TOO_LARGE, ErrorCode.RECORD_LIST_TOO_LARGE})
UNDECIDED = frozenset(
    {
        ErrorCode.REQUEST_TIMED_OUT,
        ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND,
        ErrorCode.KAFKA_STORAGE_ERROR,
        ErrorCode.UNKNOWN_SERVER_ERROR,
    }
)
"""Errors after which the batch may have been written."""


@dataclass(frozen=True, slots=True)
class Rules:
    """The settings of a sender; times in seconds."""

    acks: int
    idempotent: bool
    max_request_size: int
    request_timeout_s: float
    delivery_timeout_s: float
    backoff_s: float
    metadata_max_age_s: float


def produce_request(
    rules: Rules, transactional_id: str | None, batches: Iterable[tuple[TopicPartition, bytes]]
) -> ProduceRequest:
    """Return the request that sends the batches of one leader's partitions."""
    topics: dict[str, list[PartitionProduceData]] = {}
    for at, records in batches:
        data = PartitionProduceData(index=at.partition, records=records)
        topics.setdefault(at.topic, []).append(data)
    return ProduceRequest(
        transactional_id=transactional_id,
        acks=rules.acks,
        timeout_ms=int(rules.request_timeout_s * 1000),
        topic_data=[
            TopicProduceData(name=name, partition_data=data) for name, data in topics.items()
        ],
    )


def fault_of(partition: TopicPartition, part: PartitionProduceResponse) -> KafkaError:
    """Return the error that a response has for a partition, with those of its records."""
    errors = [(error.batch_index, error.batch_index_error_message) for error in part.record_errors]
    text = refusal_text(part.error_code, part.error_message, errors)
    fault = error_for(part.error_code, f"produce to {partition}: {text}")
    fault.record_errors = dict(errors)
    return fault
