"""The codecs of record batches, written to be read: the oracle of `plog._native.compression`.

gzip is zlib's; the snappy and lz4 decoders are here from the formats up. The
compressing halves of those two store their input as literals: valid output, no
smaller than the input. zstd is not in the standard library of Python 3.11, so
this twin has none of it (NotImplementedError) and the tests ask cramjam instead.
"""

from __future__ import annotations

import struct
import zlib

from plog.errors import CorruptRecord, MalformedBytes
from plog.types import Buffer

from .wire import decode_unsigned_varint, encode_unsigned_varint

NONE, GZIP, SNAPPY, LZ4, ZSTD = range(5)
DEFAULT_LEVEL = -(2**31)

_NAMES = ("none", "gzip", "snappy", "lz4", "zstd")
_LEVELS = {GZIP: (-1, 9), LZ4: (0, 17), ZSTD: (-131072, 22)}

_GZIP_WINDOW_BITS = 31  # 32 KiB window, and 16 for gzip's header instead of zlib's


class _Corrupt(Exception):
    """The input is not of this codec, or is cut short."""


class _TooLarge(Exception):
    """The output would exceed the limit."""


class _Input:
    """The compressed bytes and how far they are read."""

    def __init__(self, data: bytes) -> None:
        self.data = data
        self.pos = 0

    @property
    def left(self) -> int:
        return len(self.data) - self.pos

    def take(self, count: int) -> bytes:
        if count > self.left:
            raise _Corrupt
        self.pos += count
        return self.data[self.pos - count : self.pos]

    def little_endian(self, width: int) -> int:
        return int.from_bytes(self.take(width), "little")


class _Output:
    """The expanded bytes, never more than the limit."""

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self.data = bytearray()

    def append(self, piece: bytes) -> None:
        if len(piece) > self.room:
            raise _TooLarge
        self.data += piece

    @property
    def room(self) -> int:
        return self.limit - len(self.data)


def compress(codec: int, data: Buffer, level: int = DEFAULT_LEVEL) -> bytes:
    """Compress a batch's records section in the framing that Kafka gives `codec`.

    Raises:
        ValueError: no such codec, or a level outside the codec's range.
    """
    if not NONE <= codec <= ZSTD:
        raise ValueError(f"compression codec {codec} is unknown")
    if level != DEFAULT_LEVEL and codec in _LEVELS:
        least, most = _LEVELS[codec]
        if not least <= level <= most:
            raise ValueError(f"{_NAMES[codec]} level {level} is not in {least}..{most}")
    plain = bytes(data)
    if codec == NONE:
        return plain
    if codec == GZIP:
        chosen = -1 if level == DEFAULT_LEVEL else level
        deflater = zlib.compressobj(chosen, zlib.DEFLATED, _GZIP_WINDOW_BITS)
        return deflater.compress(plain) + deflater.flush()
    if codec == SNAPPY:
        return _store_xerial(plain)
    if codec == LZ4:
        return _store_lz4_frame(plain)
    raise NotImplementedError("zstd is not in the standard library")


def decompress(codec: int, data: Buffer, limit: int) -> bytes:
    """Expand a batch's records section.

    Raises:
        CorruptRecord: not valid data of this codec, cut short, or more than `limit` bytes.
        ValueError: `limit` is negative.
    """
    return _expand(codec, data, limit, strict_ends=False)


def _expand(codec: int, data: Buffer, limit: int, *, strict_ends: bool) -> bytes:
    """`decompress`, holding lz4 blocks to the rules for their end if asked (see `_lz4_block`)."""
    if limit < 0:
        raise ValueError(f"limit {limit} is negative")
    if not NONE <= codec <= ZSTD:
        raise CorruptRecord(f"compression codec {codec} is unknown")
    if codec == ZSTD:
        raise NotImplementedError("zstd is not in the standard library")
    source, out = _Input(bytes(data)), _Output(limit)
    try:
        if codec == NONE:
            out.append(source.data)
        elif codec == GZIP:
            _read_gzip_members(source, out)
        elif codec == SNAPPY:
            _read_snappy(source, out)
        else:
            _read_lz4_frames(source, out, strict_ends)
    except _Corrupt:
        raise CorruptRecord(
            f"{_NAMES[codec]} data of {len(source.data)} bytes is corrupt or cut short"
        ) from None
    except _TooLarge:
        raise CorruptRecord(
            f"{_NAMES[codec]} data of {len(source.data)} bytes "
            f"expands beyond the limit of {limit} bytes"
        ) from None
    return bytes(out.data)


# ---- gzip


def _read_gzip_members(source: _Input, out: _Output) -> None:
    while True:
        inflater = zlib.decompressobj(_GZIP_WINDOW_BITS)
        try:
            # One byte beyond the room is enough to prove the output too large.
            out.append(inflater.decompress(source.data[source.pos :], out.room + 1))
        except zlib.error:
            raise _Corrupt from None
        if not inflater.eof:
            raise _Corrupt
        source.pos = len(source.data) - len(inflater.unused_data)
        if source.left == 0:
            return


# ---- snappy

_XERIAL_MAGIC = b"\x82SNAPPY\0"
_XERIAL_HEADER = struct.Struct(">8sii")
_XERIAL_VERSION = 1
_XERIAL_BLOCK_BYTES = 32768
_SNAPPY_MAX_EXPANSION = 22  # an element of 3 bytes yields at most 64


def _starts_xerial(source: _Input) -> bool:
    return source.left >= _XERIAL_HEADER.size and source.data.startswith(_XERIAL_MAGIC, source.pos)


def _read_snappy(source: _Input, out: _Output) -> None:
    if not _starts_xerial(source):
        out.append(_snappy_block(source.data, out.room))
        return
    while source.left:
        if _starts_xerial(source):  # at the start, or where two streams were joined
            _, version, _ = _XERIAL_HEADER.unpack(source.take(_XERIAL_HEADER.size))
            if version < _XERIAL_VERSION:
                raise _Corrupt
            continue
        size = int.from_bytes(source.take(4), "big", signed=True)
        if size <= 0:
            raise _Corrupt
        out.append(_snappy_block(source.take(size), out.room))


def _snappy_block(block: bytes, room: int) -> bytes:
    """Expand one block: its expanded length, then literals and copies of what came before."""
    source, out = _Input(block), bytearray()
    try:
        claimed, source.pos = decode_unsigned_varint(block, 0)
    except MalformedBytes:
        raise _Corrupt from None
    if claimed // _SNAPPY_MAX_EXPANSION > len(block):
        raise _Corrupt
    if claimed > room:
        raise _TooLarge
    while source.left:
        tag = source.little_endian(1)
        kind, upper = tag & 3, tag >> 2
        if kind == 0:
            length = upper + 1
            if upper >= 60:  # that many bytes above 59 hold the length
                # The C library counts in 32 bits, so that its greatest length is none.
                length = (source.little_endian(upper - 59) + 1) & 0xFFFFFFFF
            out += source.take(length)
        else:
            if kind == 1:
                length, offset = (upper & 7) + 4, (upper >> 3) << 8 | source.little_endian(1)
            else:
                length, offset = upper + 1, source.little_endian(2 if kind == 2 else 4)
            if not 0 < offset <= len(out):
                raise _Corrupt
            _copy_back(out, offset, length)
        if len(out) > claimed:
            raise _Corrupt
    if len(out) != claimed:
        raise _Corrupt
    return bytes(out)


def _copy_back(out: bytearray, offset: int, length: int) -> None:
    """Append `length` bytes from `offset` bytes back; where they overlap, they repeat."""
    pattern = out[-offset:][:length]
    out += (pattern * (length // len(pattern) + 1))[:length]


def _store_xerial(plain: bytes) -> bytes:
    pieces = [_XERIAL_HEADER.pack(_XERIAL_MAGIC, _XERIAL_VERSION, _XERIAL_VERSION)]
    for at in range(0, len(plain), _XERIAL_BLOCK_BYTES):
        literal = plain[at : at + _XERIAL_BLOCK_BYTES]
        block = encode_unsigned_varint(len(literal)) + _snappy_literal_tag(len(literal)) + literal
        pieces.append(struct.pack(">i", len(block)) + block)
    return b"".join(pieces)


def _snappy_literal_tag(length: int) -> bytes:
    if length <= 60:
        return bytes([length - 1 << 2])
    return bytes([61 << 2]) + struct.pack("<H", length - 1)


# ---- lz4

_LZ4_MAGIC = 0x184D2204
_LZ4_SKIPPABLE_MAGIC = 0x184D2A50  # and the fifteen after it
_LZ4_STORED = 0x80000000
_LZ4_BLOCK_BYTES = {4: 1 << 16, 5: 1 << 18, 6: 1 << 20, 7: 1 << 22}


def _read_lz4_frames(source: _Input, out: _Output, strict_ends: bool) -> None:
    while True:
        magic = source.little_endian(4)
        if magic & 0xFFFFFFF0 == _LZ4_SKIPPABLE_MAGIC:
            source.take(source.little_endian(4))
        elif magic == _LZ4_MAGIC:
            _read_lz4_frame(source, out, strict_ends)
        else:
            raise _Corrupt
        if source.left == 0:
            return


def _read_lz4_frame(source: _Input, out: _Output, strict_ends: bool) -> None:
    start = source.pos
    flags, block_descriptor = source.take(2)
    independent, checksum_blocks = flags & 0x20, flags & 0x10
    has_content_size, checksum_content, has_dictionary = flags & 0x08, flags & 0x04, flags & 0x01
    if flags >> 6 != 1 or flags & 0x02 or block_descriptor & 0x8F:
        raise _Corrupt  # another version, or a reserved bit
    if block_descriptor >> 4 not in _LZ4_BLOCK_BYTES:
        raise _Corrupt
    content_size = source.little_endian(8) if has_content_size else 0
    if has_dictionary:
        source.take(4)
    if xxh32(source.data[start : source.pos]) >> 8 & 0xFF != source.little_endian(1):
        raise _Corrupt
    most = _LZ4_BLOCK_BYTES[block_descriptor >> 4]
    first = len(out.data)
    while (size := source.little_endian(4)) != 0:
        stored, size = size & _LZ4_STORED, size & ~_LZ4_STORED
        if size > most:
            raise _Corrupt
        if stored:
            # These bytes come out before anything can be found wrong behind them.
            out.append(source.data[source.pos : source.pos + size])
        block = source.take(size)
        if checksum_blocks and source.little_endian(4) != xxh32(block):
            raise _Corrupt
        if not stored:
            history = b"" if independent else bytes(out.data[first:][-0x10000:])
            out.append(_lz4_block(block, history, most, strict_ends))
    content = bytes(out.data[first:])
    if content_size not in (0, len(content)):  # 0 stands for unknown
        raise _Corrupt
    if checksum_content and source.little_endian(4) != xxh32(content):
        raise _Corrupt


def _lz4_block(block: bytes, history: bytes, most: int, strict_ends: bool) -> bytes:
    """Expand one block: sequences of literals and a match, then literals alone.

    Encoders must end a block with 5 literals and start its last match 12 bytes
    before the end, so that decoders may copy in large steps. What a decoder does
    with a block that breaks these rules (or has an offset of 0) is its own affair
    and differs between versions of the C library: `strict_ends` refuses them, a
    decoder without large steps takes them.
    """
    source, out = _Input(block), bytearray(history)
    most += len(history)
    last_match = None
    while True:
        token = source.little_endian(1)
        literals = source.take(_lz4_length(source, token >> 4))
        out += literals
        if len(out) > most:
            raise _Corrupt
        if source.left == 0:
            if strict_ends and len(literals) < 5 and last_match is not None:
                raise _Corrupt
            if strict_ends and last_match is not None and len(out) - last_match < 12:
                raise _Corrupt
            return bytes(out[len(history) :])
        last_match = len(out)
        offset = source.little_endian(2)
        length = _lz4_length(source, token & 15) + 4
        if offset > len(out) or len(out) + length > most or (offset == 0 and strict_ends):
            raise _Corrupt
        if offset == 0:
            out += bytes(length)  # as the C library of 2022 has it
        else:
            _copy_back(out, offset, length)


def _lz4_length(source: _Input, nibble: int) -> int:
    """Return the length that starts with `nibble`: 15 adds bytes up to the first below 255."""
    length = nibble
    more = nibble == 15
    while more:
        byte = source.little_endian(1)
        length += byte
        more = byte == 255
    return length


def _store_lz4_frame(plain: bytes) -> bytes:
    descriptor = bytes([0x60, 0x40])  # version 1, independent blocks; of 64 KiB
    pieces = [
        struct.pack("<I", _LZ4_MAGIC),
        descriptor,
        bytes([xxh32(descriptor) >> 8 & 0xFF]),
    ]
    for at in range(0, len(plain), 1 << 16):
        block = plain[at : at + (1 << 16)]
        pieces += [struct.pack("<I", _LZ4_STORED | len(block)), block]
    pieces.append(bytes(4))
    return b"".join(pieces)


_PRIMES = (0x9E3779B1, 0x85EBCA77, 0xC2B2AE3D, 0x27D4EB2F, 0x165667B1)


def _rotate(value: int, bits: int) -> int:
    value &= 0xFFFFFFFF
    return (value << bits | value >> (32 - bits)) & 0xFFFFFFFF


def xxh32(data: bytes) -> int:
    """Return the 32-bit xxHash with seed 0, the checksum of lz4 frames."""
    p1, p2, p3, p4, p5 = _PRIMES
    whole = len(data) - len(data) % 16
    if whole:
        lanes = [p1 + p2, p2, 0, -p1]
        for words in struct.iter_unpack("<4I", data[:whole]):
            lanes = [
                _rotate(lane + word * p2, 13) * p1 for lane, word in zip(lanes, words, strict=True)
            ]
        mixed = sum(_rotate(lane, by) for lane, by in zip(lanes, (1, 7, 12, 18), strict=True))
    else:
        mixed = p5
    mixed += len(data)
    for at in range(whole, len(data) - 3, 4):
        mixed = _rotate(mixed + int.from_bytes(data[at : at + 4], "little") * p3, 17) * p4
    for byte in data[len(data) - len(data) % 4 :]:
        mixed = _rotate(mixed + byte * p5, 11) * p1
    mixed &= 0xFFFFFFFF
    mixed = (mixed ^ mixed >> 15) * p2 & 0xFFFFFFFF
    mixed = (mixed ^ mixed >> 13) * p3 & 0xFFFFFFFF
    return mixed ^ mixed >> 16
