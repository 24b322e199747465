"""Checks a produced batch before it is appended: one, whole, valid, in its topic's codec.

Owns the checks of one partition's batch and its rewriting, which take processor time
and touch no file, so that any thread may do them. The leader of the partition is looked up
before, and the log decides after.
"""

from __future__ import annotations

import threading
from contextlib import nullcontext

from plog._native import batch, validation
from plog._native.batch import BatchHeader
from plog._native.compression import DEFAULT_LEVEL
from plog._native.validation import Validation
from plog.errors import (
    CorruptRecord,
    ErrorCode,
    InvalidRecord,
    MessageTooLarge,
    UnsupportedCompressionType,
)
from plog.protocol import record_batch
from plog.settings.definitions import TopicSettings
from plog.types import Buffer

LOG_APPEND_TIME = "LogAppendTime"
COMPACT = "compact"
ZSTD_SINCE = 7
AT_MAGIC, OLD_MAGICS = 16, (0, 1)
"""Where a batch says its format, and those of message sets, as before 0.11."""
AT_CODEC, CODEC_MASK, TRANSACTIONAL = 22, 7, 1 << 4
"""The lower byte of a batch's attributes."""
GZIP_DEFAULT_LEVEL = -1
"""In compression.gzip.level: zlib's own default."""
REWRITTEN_TOGETHER_BYTES = 8 << 20
"""A batch that expands further is recompressed alone, as validation expands one at a time: it takes
three times its records meanwhile."""

_one_at_a_time = threading.Lock()


class RecordsRefused(Exception):
    """Validation has found something wrong, and says in `found` which error is the answer."""

    def __init__(self, found: Validation) -> None:
        super().__init__(found.message)
        self.found = found


def is_compressed(records: Buffer) -> bool:
    """Tell whether a batch says that it is compressed; nothing of it has been checked."""
    return len(records) > AT_CODEC and records[AT_CODEC] & CODEC_MASK != record_batch.NONE


def is_transactional(records: Buffer) -> bool:
    """Tell whether a batch says that it is of a transaction; nothing of it has been checked."""
    if len(records) <= AT_CODEC or records[AT_MAGIC] in OLD_MAGICS:  # there stands a message's time
        return False
    return bool(records[AT_CODEC] & TRANSACTIONAL)


def check_header(
    records: bytearray | memoryview | None, settings: TopicSettings, produce_version: int
) -> tuple[bytearray | memoryview, BatchHeader]:
    """Check what can be said before any record is looked at: one batch, its size, its codec.

    Raises:
        InvalidRecord: no batch, more or less than one, or an old format.
        CorruptRecord: a format that there is not.
        MessageTooLarge: larger than max.message.bytes.
        UnsupportedCompressionType: zstd from a client that cannot know it.
    """
    if not records:
        raise InvalidRecord("the request holds no batch for this partition")
    try:
        header = batch.read_header(records)
    except CorruptRecord as fault:
        # CORRUPT_MESSAGE, after which clients try again, is for what can only be damage.
        if len(records) < batch.HEADER_BYTES or records[AT_MAGIC] in OLD_MAGICS:
            raise InvalidRecord(str(fault)) from fault
        raise
    if header.size_bytes != len(records):
        raise InvalidRecord(
            f"a batch of {header.size_bytes} bytes in {len(records)}: a request must have exactly"
            " one whole batch per partition"
        )
    _check_size(len(records), settings)
    if header.codec == record_batch.ZSTD and produce_version < ZSTD_SINCE:
        raise UnsupportedCompressionType(f"zstd batches need Produce v{ZSTD_SINCE} or newer")
    return records, header


def made_ready(
    records: bytearray | memoryview, header: BatchHeader, settings: TopicSettings, now_ms: int
) -> bytearray | memoryview:
    """Return a batch as it is to be appended, after a look at every record.

    It is `records` itself, with the right max_timestamp, or another in the topic's codec. The
    append stamps the rest: offset, leader epoch, and the time with LogAppendTime.

    Raises:
        RecordsRefused: a record, or the batch, is not as it should be.
        InvalidRecord: the codec does not take the topic's level.
        MessageTooLarge: in the topic's codec it is larger than max.message.bytes.
    """
    log_append_time = settings.message_timestamp_type == LOG_APPEND_TIME
    found = validation.validate_produced(
        records,
        now_ms=now_ms,
        before_max_ms=settings.message_timestamp_before_max_ms,
        after_max_ms=settings.message_timestamp_after_max_ms,
        log_append_time=log_append_time,
        key_required=COMPACT in settings.cleanup_policy,
        decompressed_limit=record_batch.decompressed_limit(settings.max_message_bytes),
    )
    if found.error != ErrorCode.NONE:
        raise RecordsRefused(found)
    if record_batch.must_recompress(header, settings.compression_type):
        is_huge = found.uncompressed_bytes > REWRITTEN_TOGETHER_BYTES
        with _one_at_a_time if is_huge else nullcontext():
            records = _recompressed(records, header, settings, found.uncompressed_bytes)
    if not log_append_time:
        # Some clients leave a stale maximum in the header; indexes and retention rely on it.
        batch.restamp_max_timestamp(records, found.max_timestamp)
    return records


def _check_size(size: int, settings: TopicSettings) -> None:
    if size > settings.max_message_bytes:
        raise MessageTooLarge(
            f"batch of {size} bytes, max.message.bytes is {settings.max_message_bytes}"
        )


def _recompressed(
    records: bytearray | memoryview,
    header: BatchHeader,
    settings: TopicSettings,
    uncompressed_bytes: int,
) -> bytearray:
    codec = record_batch.CODECS[settings.compression_type]
    if codec == record_batch.NONE:
        _check_size(uncompressed_bytes, settings)  # before it takes that much
    levels = {
        record_batch.GZIP: settings.compression_gzip_level,
        record_batch.LZ4: settings.compression_lz4_level,
        record_batch.ZSTD: settings.compression_zstd_level,
    }
    level = levels.get(codec, DEFAULT_LEVEL)
    if codec == record_batch.GZIP and level == GZIP_DEFAULT_LEVEL:
        level = DEFAULT_LEVEL
    try:
        rewritten = record_batch.recompress(
            records, header, codec, level=level, decompressed_limit=uncompressed_bytes
        )
    except ValueError as fault:
        raise InvalidRecord(f"the batch cannot be recompressed: {fault}") from fault
    _check_size(len(rewritten), settings)
    return rewritten
