"""Batches of a megabyte or less that would expand to gigabytes, in every codec that Kafka has.

The bombs of zeros are made of repeated pieces, so that making them takes neither time nor memory.
"""

from __future__ import annotations

import gzip
import struct
import zlib

from plog._native.compression import GZIP, LZ4, SNAPPY, ZSTD, compress
from tests.agreement.batches import zigzag
from tests.hostile.frames import uvarint, with_codec

MIB = 1 << 20
GIB = 1 << 30
MOST = MIB - 100
"""Bytes of records that fit into max.message.bytes by default."""


def gzip_bomb() -> bytes:
    """One member of DEFLATE, a thousandfold: about a gigabyte in a megabyte."""
    piece = zlib.compressobj(9, zlib.DEFLATED, -15)
    first = piece.compress(bytes(4 * MIB)) + piece.flush(zlib.Z_FULL_FLUSH)
    head = b"\x1f\x8b\x08\0\0\0\0\0\0\3"
    return head + first * ((MOST - len(head)) // len(first))


def gzip_members() -> bytes:
    """Many members behind each other."""
    member = gzip.compress(bytes(4 * MIB), 9)
    return member * (MOST // len(member))


def snappy_bomb() -> bytes:
    """One raw block: copies of 64 bytes, as far as three bytes go."""
    copies = (MOST - 10) // 3
    return uvarint(1 + 64 * copies) + b"\0\0" + b"\xfe\1\0" * copies


def xerial_bomb() -> bytes:
    """Blocks as Java writes them, each of which claims as much as it can."""
    copies = 10_000
    block = uvarint(1 + 64 * copies) + b"\0\0" + b"\xfe\1\0" * copies
    framed = struct.pack(">i", len(block)) + block
    return b"\x82SNAPPY\0" + struct.pack(">ii", 1, 1) + framed * ((MOST - 16) // len(framed))


def lz4_bomb() -> bytes:
    """One frame, whose blocks are each one match of four megabytes."""
    frame = compress(LZ4, bytes(16 * MIB))
    return frame * (MOST // len(frame))


def zstd_bomb() -> bytes:
    """Frames of a gigabyte's zeros in all, and room for many more."""
    frame = compress(ZSTD, bytes(64 * MIB), 19)
    return frame * min(MOST // len(frame), 512)


BOMBS = {
    "gzip": (GZIP, gzip_bomb),
    "gzip, members": (GZIP, gzip_members),
    "snappy": (SNAPPY, snappy_bomb),
    "xerial": (SNAPPY, xerial_bomb),
    "lz4": (LZ4, lz4_bomb),
    "zstd": (ZSTD, zstd_bomb),
}


def bomb(name: str) -> bytes:
    """Return a batch that expands past every limit."""
    number, make = BOMBS[name]
    return with_codec(number, make())


def headers_bomb(expanded: int = 120 * MIB) -> bytes:
    """Return a batch within the limit of expansion, of one record with as many headers as fit.

    As objects they would be fifty times as large.
    """
    headers = (expanded - 64) // 2
    body = b"\0\0\0\1\1" + zigzag(headers) + b"\0\1" * headers
    return with_codec(ZSTD, compress(ZSTD, zigzag(len(body)) + body), count=1)


def records_bomb(count: int = 1_200_000) -> bytes:
    """Return a batch of as many of the smallest records as a megabyte can be made to hold."""
    records = b"".join(
        zigzag(len(delta) + 5) + b"\0\0" + delta + b"\1\1\0" for delta in map(zigzag, range(count))
    )
    return with_codec(ZSTD, compress(ZSTD, records, 9), count=count)
