"""Both compression engines on the same bytes, and cramjam as a third party to each codec.

The twin has no zstd, so there cramjam alone is the oracle.
"""

from __future__ import annotations

import functools
import gzip
import random
import struct

import cramjam
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from plog._native import compression as native
from plog._reference import compression as reference
from plog.errors import CorruptRecord

from .harness import forked, mutations, outcome, run_seed

NONE, GZIP, SNAPPY, LZ4, ZSTD = range(5)
CODECS = [GZIP, SNAPPY, LZ4, ZSTD]
NAMES = {NONE: "none", GZIP: "gzip", SNAPPY: "snappy", LZ4: "lz4", ZSTD: "zstd"}
TWINNED = [NONE, GZIP, SNAPPY, LZ4]
XERIAL = b"\x82SNAPPY\0" + struct.pack(">ii", 1, 1)

_EVENT = '{"id":%d,"carrier":"%s","delay":%d,"origin":"JFK","dest":"LAX"}\n'
_RNG = random.Random(20)
EVENTS = "".join(
    _EVENT % (i, _RNG.choice(["AA", "UA", "DL"]), _RNG.randrange(-20, 300)) for i in range(1200)
).encode()

PLAIN = {
    "nothing": b"",
    "one byte": b"a",
    "a run": b"\0" * 300,
    "a phrase again": b"abcdefghijkl" * 7,
    "noise": _RNG.randbytes(700),
    "events": EVENTS[:4000],
    "a snappy block": EVENTS[:32768],
    "a snappy block and a byte": EVENTS[:32769],
    "several lz4 blocks": EVENTS + _RNG.randbytes(70000) + EVENTS,
}
LIMIT = 1 << 20


def xerial(plain: bytes, block_bytes: int = 1000) -> bytes:
    """Frame blocks of another size than SnappyOutputStream's default, as its option allows."""
    framed = XERIAL
    for at in range(0, len(plain), block_bytes):
        block = bytes(cramjam.snappy.compress_raw(plain[at : at + block_bytes]))
        framed += struct.pack(">i", len(block)) + block
    return framed


def open_xerial(framed: bytes) -> bytes:
    assert framed.startswith(XERIAL)
    plain, at = b"", len(XERIAL)
    while at < len(framed):
        (size,) = struct.unpack_from(">i", framed, at)
        plain += bytes(cramjam.snappy.decompress_raw(framed[at + 4 : at + 4 + size]))
        at += 4 + size
    return plain


def cramjam_lz4(plain: bytes, **options: bool) -> bytes:
    compressor = cramjam.lz4.Compressor(**options)
    compressor.compress(plain)
    return bytes(compressor.finish())


def cramjam_zstd_stream(plain: bytes) -> bytes:
    """Make a frame without the content size, as streaming producers do."""
    compressor = cramjam.zstd.Compressor()
    for at in range(0, len(plain), 1000):
        compressor.compress(plain[at : at + 1000])
    return bytes(compressor.finish())


# What others may send, by codec.
FOREIGN = [
    (GZIP, lambda plain: bytes(cramjam.gzip.compress(plain))),
    (GZIP, lambda plain: gzip.compress(plain, 1)),
    (SNAPPY, xerial),
    (SNAPPY, lambda plain: xerial(plain, 70000)),
    (SNAPPY, lambda plain: bytes(cramjam.snappy.compress_raw(plain))),
    (LZ4, lambda plain: bytes(cramjam.lz4.compress(plain))),
    (LZ4, lambda plain: cramjam_lz4(plain, content_checksum=True, block_linked=True)),
    (LZ4, lambda plain: cramjam_lz4(plain, content_checksum=True, block_linked=False)),
    (ZSTD, lambda plain: bytes(cramjam.zstd.compress(plain))),
    (ZSTD, lambda plain: bytes(cramjam.zstd.compress(plain, 19))),
    (ZSTD, cramjam_zstd_stream),
]
OPEN = {
    GZIP: lambda data: bytes(cramjam.gzip.decompress(data)),
    SNAPPY: open_xerial,
    LZ4: lambda data: bytes(cramjam.lz4.decompress(data)),
    ZSTD: lambda data: bytes(cramjam.zstd.decompress(data)),
}
LEVELS = {
    NONE: [],
    GZIP: [-1, 0, 1, 9],
    SNAPPY: [],
    LZ4: [0, 1, 9, 12, 17],
    ZSTD: [-5, 1, 3, 12],
}
BY_CODEC_AND_LEVEL = [
    (codec, level) for codec in range(5) for level in [native.DEFAULT_LEVEL, *LEVELS[codec]]
]


def agreed(codec: int, data: bytes, limit: int = LIMIT) -> tuple:
    """Return native's outcome, having asserted that the twin's is the same.

    How an lz4 decoder takes a block whose end breaks the rules for encoders is open;
    then native may side with the twin's strict reading or with its lenient one.
    """
    result = outcome(native.decompress, codec, data, limit)
    if codec in TWINNED:
        expected = [outcome(reference.decompress, codec, data, limit)]
        if codec == LZ4:
            strictly = functools.partial(reference._expand, strict_ends=True)
            expected.append(outcome(strictly, codec, data, limit))
        assert result in expected, data.hex()
    return result


def test_constants_of_both_engines_are_those_of_the_attributes_field():
    for engine in (native, reference):
        known = (engine.NONE, engine.GZIP, engine.SNAPPY, engine.LZ4, engine.ZSTD)
        assert known == (0, 1, 2, 3, 4)
    assert native.DEFAULT_LEVEL == reference.DEFAULT_LEVEL


@pytest.mark.parametrize("plain", PLAIN.values(), ids=PLAIN.keys())
@pytest.mark.parametrize(("codec", "level"), BY_CODEC_AND_LEVEL)
def test_what_native_compresses_everyone_expands(codec, level, plain):
    packed = native.compress(codec, plain, level)
    assert native.decompress(codec, packed, len(plain)) == plain
    if codec in TWINNED:
        assert reference.decompress(codec, packed, len(plain)) == plain
    if codec in OPEN:
        assert OPEN[codec](packed) == plain


@pytest.mark.parametrize("plain", PLAIN.values(), ids=PLAIN.keys())
@pytest.mark.parametrize("codec", TWINNED)
def test_what_reference_compresses_everyone_expands(codec, plain):
    packed = reference.compress(codec, plain)
    assert native.decompress(codec, packed, len(plain)) == plain
    assert reference.decompress(codec, packed, len(plain)) == plain
    if codec in OPEN:
        assert OPEN[codec](packed) == plain


@pytest.mark.parametrize("plain", PLAIN.values(), ids=PLAIN.keys())
@pytest.mark.parametrize(("codec", "pack"), FOREIGN)
def test_what_others_compress_both_engines_expand(codec, pack, plain):
    packed = pack(plain)
    assert native.decompress(codec, packed, len(plain)) == plain
    if codec in TWINNED:
        assert reference.decompress(codec, packed, len(plain)) == plain


def test_compression_makes_events_smaller():
    for codec in CODECS:
        assert len(native.compress(codec, EVENTS)) < len(EVENTS) / 2


def test_snappy_output_is_framed_in_blocks_of_32_kib():
    packed = native.compress(SNAPPY, EVENTS[:32769])
    assert packed[:16] == bytes.fromhex("82534e4150505900 00000001 00000001")
    (first,) = struct.unpack_from(">i", packed, 16)
    assert bytes(cramjam.snappy.decompress_raw(packed[20 : 20 + first])) == EVENTS[:32768]


def test_lz4_output_has_independent_blocks_of_64_kib():
    packed = native.compress(LZ4, PLAIN["several lz4 blocks"])
    assert packed[:4] == bytes.fromhex("04224d18")
    assert packed[4] & 0xE0 == 0x60  # version 1, independent blocks
    assert packed[5] == 0x40


@pytest.mark.parametrize("codec", CODECS)
def test_members_one_behind_the_other_expand_as_one(codec):
    packed = native.compress(codec, b"first ") + native.compress(codec, EVENTS)
    assert native.decompress(codec, packed, LIMIT) == b"first " + EVENTS
    if codec in TWINNED:
        assert reference.decompress(codec, packed, LIMIT) == b"first " + EVENTS


@pytest.mark.parametrize("codec", [LZ4, ZSTD])
def test_skippable_frames_are_passed_over(codec):
    skippable = struct.pack("<II", 0x184D2A53, 5) + b"hello"
    packed = skippable + native.compress(codec, EVENTS) + skippable
    assert native.decompress(codec, packed, LIMIT) == EVENTS
    if codec in TWINNED:
        assert reference.decompress(codec, packed, LIMIT) == EVENTS


@pytest.mark.parametrize("codec", CODECS)
def test_any_prefix_of_one_member_is_refused(codec):
    packed = native.compress(codec, EVENTS[:600])
    for cut in range(len(packed)):
        expected = ("error", CorruptRecord, corrupt(codec, cut))
        if codec == SNAPPY and cut == len(XERIAL):
            expected = ("value", b"")  # a stream without blocks
        assert outcome(native.decompress, codec, packed[:cut], LIMIT) == expected
        if codec in TWINNED:
            assert outcome(reference.decompress, codec, packed[:cut], LIMIT) == expected


@pytest.mark.parametrize(("codec", "pack"), FOREIGN)
def test_prefixes_of_foreign_data_give_one_answer(codec, pack):
    packed = pack(EVENTS[:300])
    for cut in range(len(packed)):
        result = agreed(codec, packed[:cut])
        if codec == ZSTD:
            assert result == ("error", CorruptRecord, corrupt(codec, cut))


@pytest.mark.parametrize("codec", CODECS)
def test_bytes_behind_the_last_member_are_refused(codec):
    packed = native.compress(codec, EVENTS[:600])
    for tail in (b"\0", b"x", b"\0\0\0\0", b"trailing garbage"):
        expected = ("error", CorruptRecord, corrupt(codec, len(packed) + len(tail)))
        assert outcome(native.decompress, codec, packed + tail, LIMIT) == expected
        if codec in TWINNED:
            assert outcome(reference.decompress, codec, packed + tail, LIMIT) == expected


def corrupt(codec: int, size: int) -> str:
    return f"{NAMES[codec]} data of {size} bytes is corrupt or cut short"


def too_large(codec: int, size: int, limit: int) -> str:
    return f"{NAMES[codec]} data of {size} bytes expands beyond the limit of {limit} bytes"


@pytest.mark.parametrize("size", [1, 300, 4095, 4096, 4097, 65535, 65536, 65537, 140000])
@pytest.mark.parametrize("codec", range(5))
def test_limit_is_exact(codec, size):
    plain = (EVENTS * 2)[:size]
    packed = native.compress(codec, plain)
    for limit in (size, size + 1, size * 10, 2**63, 2**100):
        assert native.decompress(codec, packed, limit) == plain
    for limit in {0, 1, size // 2, size - 1} - {size}:
        expected = ("error", CorruptRecord, too_large(codec, len(packed), limit))
        assert outcome(native.decompress, codec, packed, limit) == expected
        if codec in TWINNED:
            assert outcome(reference.decompress, codec, packed, limit) == expected


def snappy_block(claimed: str, *elements: str) -> bytes:
    return bytes.fromhex(claimed + "".join(elements))


@pytest.mark.parametrize(
    ("codec", "data"),
    [
        (SNAPPY, XERIAL + struct.pack(">i", 0)),  # an empty block
        (SNAPPY, XERIAL + struct.pack(">i", -1)),
        (SNAPPY, XERIAL + struct.pack(">i", 2**31 - 1) + b"\x01\x00a"),
        (SNAPPY, XERIAL[:8] + struct.pack(">ii", 0, 0) + struct.pack(">i", 3) + b"\x01\x00a"),
        (SNAPPY, XERIAL[:8]),
        (SNAPPY, snappy_block("01")),  # claims a byte, has none
        (SNAPPY, snappy_block("00", "0061")),  # claims none, has one
        (SNAPPY, snappy_block("05", "0061", "0100")),  # a copy from offset 0
        (SNAPPY, snappy_block("05", "0061", "0102")),  # a copy from before the start
        (SNAPPY, snappy_block("05", "0061", "0101", "0162")),  # more than it claims
        (SNAPPY, snappy_block("ffffffff0f", "0061")),  # claims 4 GiB
        (SNAPPY, snappy_block("ffffffff1f", "0061")),  # claims more than 32 bits hold
        (LZ4, bytes.fromhex("04224d18 6040 82 00000000 00")),  # a byte behind the end mark
        (LZ4, bytes.fromhex("04224d18 6040 83 00000000")),  # a wrong header checksum
        (LZ4, bytes.fromhex("04224d18 6040 82 01000100")),  # a block longer than blocks may be
        (LZ4, bytes.fromhex("02214c18 00000000")),  # the legacy frame
        (ZSTD, bytes.fromhex("28b52ffd")),
        (ZSTD, bytes.fromhex("25b52ffd 00000000")),  # an empty frame of version 0.5
        (ZSTD, bytes.fromhex("502a4d18 00000000 25b52ffd 00000000")),  # the same, further on
        (ZSTD, bytes.fromhex("28b52ffd 2000010000 25b52ffd 00000000")),
        (ZSTD, bytes.fromhex("502a4d18")),
        (ZSTD, b""),
        (GZIP, b"\x1f\x8b\x08"),
        (GZIP, bytes(18)),
    ],
)
def test_damage_of_a_known_kind_is_refused_by_both(codec, data):
    expected = ("error", CorruptRecord, corrupt(codec, len(data)))
    assert outcome(native.decompress, codec, data, LIMIT) == expected
    if codec in TWINNED:
        assert outcome(reference.decompress, codec, data, LIMIT) == expected


@pytest.mark.parametrize(
    ("codec", "data", "plain"),
    [
        (SNAPPY, XERIAL, b""),
        (SNAPPY, XERIAL + XERIAL, b""),
        (SNAPPY, XERIAL + struct.pack(">i", 3) + b"\x01\x00a" + XERIAL, b"a"),
        (SNAPPY, XERIAL[:8] + struct.pack(">ii", 9, 1), b""),  # versions only grow
        (SNAPPY, snappy_block("00"), b""),
        (SNAPPY, snappy_block("05", "0061", "0101"), b"aaaaa"),
        (SNAPPY, snappy_block("05", "0061", "0e0100"), b"aaaaa"),
        (SNAPPY, snappy_block("05", "0061", "0f01000000"), b"aaaaa"),
        (SNAPPY, snappy_block("02", "f0016162"), b"ab"),
        (SNAPPY, snappy_block("02", "fc010000006162"), b"ab"),
        (SNAPPY, snappy_block("01", "fcffffffff", "0061"), b"a"),  # a literal of 2^32 bytes: none
        (ZSTD, bytes.fromhex("28b52ffd 2000010000"), b""),
        (ZSTD, bytes.fromhex("5f2a4d18 00000000"), b""),
        (LZ4, bytes.fromhex("04224d18 6040 82 00000000"), b""),
        (LZ4, bytes.fromhex("04224d18 6040 82 00000080 02000080 6162 00000000"), b"ab"),
        (LZ4, bytes.fromhex("04224d18 6040 82 03000000 206162 00000000"), b"ab"),
    ],
)
def test_rare_but_valid_data_expands_alike_in_both(codec, data, plain):
    if codec in TWINNED:
        assert reference.decompress(codec, data, LIMIT) == plain
    assert native.decompress(codec, data, LIMIT) == plain


@settings(max_examples=60)
@given(
    st.lists(st.sampled_from([b"ab", b"\0", b"event", bytes(40), EVENTS[:90]]), max_size=60),
    st.binary(max_size=50),
)
def test_round_trip_gives_the_same_bytes(pieces, tail):
    plain = b"".join(pieces) + tail
    for codec in range(5):
        packed = native.compress(codec, plain)
        assert native.decompress(codec, packed, len(plain)) == plain
        if codec in TWINNED:
            assert reference.decompress(codec, packed, len(plain)) == plain
            assert native.decompress(codec, reference.compress(codec, plain), len(plain)) == plain


@settings(max_examples=150)
@given(codec=st.sampled_from(TWINNED), data=st.binary(max_size=60))
def test_junk_gets_one_answer_from_both(codec, data):
    for framed in (data, XERIAL + data, bytes.fromhex("04224d18604082") + data):
        agreed(codec, framed, 5000)


@pytest.mark.parametrize("codec", CODECS)
def test_mutated_data_crashes_nothing_and_gets_one_answer(codec):
    plain = [PLAIN[name] for name in ("one byte", "a run", "a phrase again", "noise", "events")]
    packs = [pack for of, pack in FOREIGN if of == codec]
    originals = [pack(p) for p in plain for pack in packs] + [
        native.compress(codec, p) for p in plain
    ]

    def check(data: bytes) -> None:
        result = agreed(codec, data)
        assert result[0] == "value" or result[1] is CorruptRecord, result

    assert forked(check, mutations(originals, 1500, run_seed())) == 1500


def lz4_frame(*blocks: bytes, linked: bool = False) -> bytes:
    """Wrap blocks in a frame whose header is whole, so that damage reaches the block decoder."""
    flags = bytes([0x40 if linked else 0x60, 0x40])
    header = flags + bytes([reference.xxh32(flags) >> 8 & 0xFF])
    framed = b"".join(struct.pack("<I", len(block)) + block for block in blocks if block)
    return struct.pack("<I", 0x184D2204) + header + framed + bytes(4)


def test_mutated_lz4_blocks_in_whole_frames_get_one_answer():
    plain = [PLAIN[name] for name in ("a run", "a phrase again", "noise", "events")]
    blocks = [bytes(cramjam.lz4.compress_block(p, store_size=False)) for p in plain]

    def check(block: bytes) -> None:
        for data in (lz4_frame(block, block), lz4_frame(block, block, linked=True)):
            agreed(LZ4, data)

    assert forked(check, mutations(blocks, 2000, run_seed())) == 2000


def zstd_bomb() -> bytes:
    return bytes(cramjam.zstd.compress(bytes(64 << 20)))


BOMBS = {
    "gzip": (GZIP, lambda: gzip.compress(bytes(64 << 20))),
    "snappy": (SNAPPY, lambda: XERIAL + xerial(bytes(1 << 20), 65536)[16:] * 64),
    "snappy in one block": (SNAPPY, lambda: bytes(cramjam.snappy.compress_raw(bytes(64 << 20)))),
    "lz4": (LZ4, lambda: bytes(cramjam.lz4.compress(bytes(64 << 20)))),
    "zstd": (ZSTD, zstd_bomb),
    "zstd many times": (ZSTD, lambda: zstd_bomb() * 100),
    "zstd without a size": (ZSTD, lambda: cramjam_zstd_stream(bytes(16 << 20)) * 4),
}


@pytest.mark.parametrize(("codec", "pack"), BOMBS.values(), ids=BOMBS.keys())
def test_bomb_is_refused_within_bounded_memory(codec, pack):
    packed = pack()
    assert len(packed) < 4 << 20
    engines = [native, reference] if codec in TWINNED else [native]

    def check(limit: int) -> None:
        for engine in engines:
            result = outcome(engine.decompress, codec, packed, limit)
            assert result == ("error", CorruptRecord, too_large(codec, len(packed), limit))

    # Within 32 MiB of memory beside the input, though 64 MiB or more would come out.
    assert forked(check, [0, 1000, 1 << 20], memory_bytes=32 << 20) == 3


def test_snappy_length_beyond_any_expansion_is_refused_before_memory_is_taken():
    def check(claimed: bytes) -> None:
        data = claimed + b"\x00a" + bytes(1000)
        expected = ("error", CorruptRecord, corrupt(SNAPPY, len(data)))
        assert outcome(native.decompress, SNAPPY, data, 2**32) == expected

    claims = [bytes.fromhex(text) for text in ("ffffffff0f", "8080808001", "80808001")]
    assert forked(check, claims, memory_bytes=16 << 20) == 3


@pytest.mark.parametrize("codec", [-1, 5, 7, 2**70, -(2**70)])
def test_unknown_codec_is_refused_by_both(codec):
    packing = ("error", ValueError, f"compression codec {codec} is unknown")
    opening = ("error", CorruptRecord, f"compression codec {codec} is unknown")
    for engine in (native, reference):
        assert outcome(engine.compress, codec, b"") == packing
        assert outcome(engine.decompress, codec, b"", 10) == opening


@pytest.mark.parametrize(
    ("codec", "level"),
    [(GZIP, -2), (GZIP, 10), (LZ4, -1), (LZ4, 18), (ZSTD, 23), (ZSTD, -131073), (ZSTD, 2**70)],
)
def test_level_outside_the_codecs_range_is_refused_by_both(codec, level):
    expected = outcome(reference.compress, codec, b"", level)
    assert expected[:2] == ("error", ValueError)
    assert outcome(native.compress, codec, b"", level) == expected


@pytest.mark.parametrize("limit", [-1, -(2**70)])
def test_negative_limit_is_a_value_error_for_both(limit):
    expected = ("error", ValueError, f"limit {limit} is negative")
    for engine in (native, reference):
        assert outcome(engine.decompress, GZIP, b"", limit) == expected


def test_any_buffer_is_taken():
    for codec in range(5):
        packed = native.compress(codec, memoryview(bytearray(EVENTS)))
        assert native.decompress(codec, memoryview(bytearray(packed)), LIMIT) == EVENTS
