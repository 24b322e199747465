"""Record batches as messages carry them: the names of codecs, and rewriting a batch for a topic.

The bytes themselves are the kernels' (`plog._native.batch`, `records`).
"""

from __future__ import annotations

from plog._native import records
from plog._native.batch import BatchHeader
from plog._native.compression import DEFAULT_LEVEL

NONE, GZIP, SNAPPY, LZ4, ZSTD = range(5)
CODECS = {
    "uncompressed": NONE,
    "none": NONE,
    "gzip": GZIP,
    "snappy": SNAPPY,
    "lz4": LZ4,
    "zstd": ZSTD,
}
"""Names in settings and on command lines."""
PRODUCER = "producer"
"""The `compression.type` that keeps whatever the producer sent."""
EXPANSION_LIMIT = 128
"""A compressed batch may expand to this many times max.message.bytes, and not further."""


def decompressed_limit(max_message_bytes: int) -> int:
    """Return how many bytes a produced batch may expand to: no more than its readers take."""
    return min(max_message_bytes * EXPANSION_LIMIT, records.DECOMPRESSED_LIMIT)


def must_recompress(header: BatchHeader, compression_type: str) -> bool:
    """Tell whether a topic with this `compression.type` wants another codec than the batch has."""
    return compression_type != PRODUCER and CODECS[compression_type] != header.codec


def recompress(
    batch: bytearray | memoryview,
    header: BatchHeader,
    codec: int,
    *,
    level: int = DEFAULT_LEVEL,
    decompressed_limit: int,
) -> bytearray:
    """Return a validated batch in another codec.

    Costs as much as ten ordinary appends, so only topics that ask for it pay. Offsets, sequences
    and timestamps stay as they are.

    Raises:
        CorruptRecord: the batch expands to more than `decompressed_limit` bytes.
        ValueError: a level that the codec does not take, or timestamps 2**63 ms apart.
    """
    builder = records.BatchBuilder(
        codec=codec,
        level=level,
        log_append_time=header.is_log_append_time,
        producer_id=header.producer_id,
        producer_epoch=header.producer_epoch,
        base_sequence=header.base_sequence,
        transactional=header.is_transactional,
    )
    for record in records.walk(batch, decompressed_limit=decompressed_limit):
        builder.append(record.timestamp, record.key, record.value, record.headers)
    return bytearray(builder.build(header.base_offset, header.partition_leader_epoch))
