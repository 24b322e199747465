"""Record batches as messages carry them: the names of codecs, and rewriting a batch for a topic.

The bytes themselves are the kernels' (`plog._native.batch`, `compression`).
"""

from __future__ import annotations

import struct

from plog._native import compression, records
from plog._native.batch import HEADER_BYTES, BatchHeader
from plog._native.compression import DEFAULT_LEVEL
from plog._native.crc32c import crc32c

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
CODEC_MASK = 7
AT_LENGTH, AT_CRC, AT_ATTRIBUTES = 8, 17, 21
_LENGTH, _CRC, _ATTRIBUTES = struct.Struct(">i"), struct.Struct(">I"), struct.Struct(">h")

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

    Offsets, sequences and timestamps stay as they are, and so do the records: they are bytes all
    the while, because as objects they could take fifty times as much, and keep every other thread
    waiting.

    Raises:
        CorruptRecord: the batch expands to more than `decompressed_limit` bytes.
        ValueError: a level that the codec does not take.
    """
    stored = memoryview(batch)[HEADER_BYTES:]
    made = bytearray(memoryview(batch)[:HEADER_BYTES])
    # The expanded bytes have no name here, so they are freed before `made` grows.
    made += compression.compress(
        codec, compression.decompress(header.codec, stored, decompressed_limit), level
    )
    _LENGTH.pack_into(made, AT_LENGTH, len(made) - AT_LENGTH - _LENGTH.size)
    _ATTRIBUTES.pack_into(made, AT_ATTRIBUTES, header.attributes & ~CODEC_MASK | codec)
    _CRC.pack_into(made, AT_CRC, crc32c(memoryview(made)[AT_ATTRIBUTES:]))
    return made
