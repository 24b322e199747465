"""Readable twin of the kernel `validation`: what a leader asks of a client's batch.

Owns the same names with the same meaning, one rule after the other, those of the
kernel `produce_rules` among them. It is the oracle of the agreement tests and never
runs in a broker.
"""

from __future__ import annotations

from typing import Final, NamedTuple

from plog._reference.batch import (
    AT_MAGIC,
    HEADER_BYTES,
    BatchHeader,
    bytes_from,
    check_bounds_and_crc,
    read_header,
)
from plog._reference.record_view import (
    CODEC_ZSTD,
    INT64_MAX,
    INT64_MIN,
    RecordFault,
    TooLarge,
    iterate_records,
    open_records,
)
from plog.errors import CorruptRecord, ErrorCode
from plog.types import Buffer

MOST_RECORD_ERRORS: Final = 100
NO_TIMESTAMP: Final = -1


class Validation(NamedTuple):
    """What deep validation of a produced batch found; see the kernel's .pyi."""

    error: int
    message: str
    record_errors: list[tuple[int, str]]
    max_timestamp_offset_delta: int
    uncompressed_bytes: int
    max_timestamp: int


def _refused(error: ErrorCode, message: str) -> Validation:
    return Validation(error, message, [], -1, 0, -1)


def validate_produced(
    data: Buffer,
    *,
    pos: int = 0,
    now_ms: int,
    before_max_ms: int,
    after_max_ms: int,
    log_append_time: bool,
    key_required: bool,
    decompressed_limit: int,
) -> Validation:
    """Deep validation of one batch from a client, as the leader does before it appends."""
    batch = bytes_from(data, pos)
    if not batch:
        return _refused(ErrorCode.INVALID_RECORD, f"batch at {pos}: there is none")
    if len(batch) > AT_MAGIC and batch[AT_MAGIC] != 2:
        magic = int.from_bytes(batch[AT_MAGIC : AT_MAGIC + 1], "big", signed=True)
        code = ErrorCode.INVALID_RECORD if magic in (0, 1) else ErrorCode.CORRUPT_MESSAGE
        return _refused(code, f"batch at {pos}: magic {magic}, must be 2")
    is_cut = len(batch) < HEADER_BYTES
    try:
        header = read_header(data, pos)
        surplus = len(batch) - header.size_bytes
        if surplus > 0:
            return _refused(
                ErrorCode.INVALID_RECORD,
                f"batch at {pos}: {surplus} bytes follow, it must be alone",
            )
        is_cut = surplus < 0
        check_bounds_and_crc(data, header)
    except CorruptRecord as corrupt:
        code = ErrorCode.INVALID_RECORD if is_cut else ErrorCode.CORRUPT_MESSAGE
        return _refused(code, str(corrupt))
    text = _header_refusal(header)
    if text is not None:
        return _refused(ErrorCode.INVALID_RECORD, f"batch at {pos}: {text}")
    if header.codec > CODEC_ZSTD:
        return _refused(ErrorCode.UNSUPPORTED_COMPRESSION_TYPE, f"codec {header.codec} is unknown")
    if header.is_log_append_time:
        return _refused(
            ErrorCode.INVALID_TIMESTAMP, f"batch at {pos}: producers must not set LogAppendTime"
        )
    try:
        records = open_records(data, header, decompressed_limit)
        found = list(iterate_records(header, records))
    except TooLarge as too_large:
        return _refused(ErrorCode.MESSAGE_TOO_LARGE, str(too_large))
    except CorruptRecord as corrupt:
        return _refused(ErrorCode.CORRUPT_MESSAGE, str(corrupt))
    except RecordFault as fault:
        return _refused(ErrorCode.INVALID_RECORD, str(fault))

    oldest = min(max(now_ms - before_max_ms, INT64_MIN), INT64_MAX)
    newest = min(max(now_ms + after_max_ms, INT64_MIN), INT64_MAX)
    errors: list[tuple[int, str]] = []
    code = ErrorCode.INVALID_RECORD
    for index, (_, raw, timestamp) in enumerate(found):
        if raw.attributes != 0:
            errors.append((index, f"attributes are {raw.attributes}, must be 0"))
        elif raw.offset_delta != index:
            errors.append((index, f"offset delta is {raw.offset_delta}, must be {index}"))
        elif key_required and raw.key is None:
            errors.append((index, "a record of a compacted topic needs a key"))
        elif log_append_time or timestamp == NO_TIMESTAMP or oldest <= timestamp <= newest:
            continue
        else:
            errors.append((index, f"timestamp {timestamp} is not within {oldest} .. {newest}"))
            code = ErrorCode.INVALID_TIMESTAMP
    if errors:
        message = f"{len(errors)} of {len(found)} records refused"
        return Validation(code, message, errors[:MOST_RECORD_ERRORS], -1, 0, -1)

    uncompressed_bytes = HEADER_BYTES + len(records)
    if log_append_time:
        return Validation(ErrorCode.NONE, "", [], 0, uncompressed_bytes, now_ms)
    timestamps = [timestamp for _, _, timestamp in found]
    greatest = max(timestamps)
    if greatest < NO_TIMESTAMP:
        return Validation(ErrorCode.NONE, "", [], -1, uncompressed_bytes, NO_TIMESTAMP)
    return Validation(
        ErrorCode.NONE, "", [], timestamps.index(greatest), uncompressed_bytes, greatest
    )


def _header_refusal(header: BatchHeader) -> str | None:
    """What Kafka's leader refuses of a client whatever the records say.

    Without a producer id the other producer fields are not looked at: Sarama
    and KafkaJS leave zeros there.
    """
    if header.base_offset != 0:
        return f"base_offset is {header.base_offset}, a producer must leave it 0"
    if header.last_offset_delta < 0:
        return f"last_offset_delta is {header.last_offset_delta}"
    if header.records_count < 1:
        return f"records_count is {header.records_count}"
    if header.records_count != header.last_offset_delta + 1:
        return (
            f"records_count is {header.records_count},"
            f" last_offset_delta is {header.last_offset_delta}"
        )
    if header.is_control:
        return "clients must not write control batches"
    if header.has_delete_horizon:
        return "clients must not set a delete horizon"
    if header.producer_id < -1:
        return f"producer_id is {header.producer_id}"
    if header.producer_id == -1:
        return "a transactional batch needs a producer_id" if header.is_transactional else None
    if header.producer_epoch < 0:
        return f"producer_epoch is {header.producer_epoch} with producer_id {header.producer_id}"
    if header.base_sequence < 0:
        return f"base_sequence is {header.base_sequence} with producer_id {header.producer_id}"
    return None
