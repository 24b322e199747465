"""Headers of batches, changed by hand, and what their readers borrow.

Apart from `batches`, whose libraries of others take longer to import than a fuzzer's first inputs.
"""

from __future__ import annotations

import struct

import crcmod.predefined

from plog._native import compression as native_compression
from plog._reference import compression as reference_compression

crc32c = crcmod.predefined.mkCrcFun("crc-32c")

FIELDS = {
    "base_offset": (0, "q"),
    "batch_length": (8, "i"),
    "partition_leader_epoch": (12, "i"),
    "magic": (16, "b"),
    "crc": (17, "I"),
    "attributes": (21, "h"),
    "last_offset_delta": (23, "i"),
    "base_timestamp": (27, "q"),
    "max_timestamp": (35, "q"),
    "producer_id": (43, "q"),
    "producer_epoch": (51, "h"),
    "base_sequence": (53, "i"),
    "records_count": (57, "i"),
}


def stamped(batch: bytes | bytearray, **fields: int) -> bytes:
    """Return the batch with header fields replaced and, unless `crc` is given, a new CRC."""
    changed = bytearray(batch)
    for name, value in fields.items():
        at, code = FIELDS[name]
        struct.pack_into(f">{code}", changed, at, value)
    if "crc" not in fields:
        struct.pack_into(">I", changed, 17, crc32c(bytes(changed[21:])))
    return bytes(changed)


def decompress(codec: int, data: bytes, limit: int) -> bytes:
    if codec == reference_compression.ZSTD:
        return native_compression.decompress(codec, data, limit)
    return reference_compression.decompress(codec, data, limit)
