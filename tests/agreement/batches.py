"""Batches for the tests of what reads them: from other libraries and by hand."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import pytest
from aiokafka import codec as aiokafka_codec
from hypothesis import strategies as st
from kafka.record.default_records import DefaultRecordBatchBuilder

from plog._reference import record_view as reference_record_view

from .batch_headers import decompress, stamped
from .harness import mutations, outcome

CODECS = range(5)
NOW_MS = 1_700_000_000_000

Headers = Sequence[tuple[str, bytes | None]]
RecordTuple = tuple[int, bytes | None, bytes | None, Headers]


@pytest.fixture(scope="module", autouse=True)
def zstd_for_the_twin() -> Iterator[None]:
    """Lend the twin the kernel's zstd, tested elsewhere: the standard library has none."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(reference_record_view, "decompress", decompress)
        yield


def answer(function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """Return what `function` returns, or "Type: text" of what it refuses with."""
    found = outcome(lambda: function(*args, **kwargs))
    return found[1] if found[0] == "value" else f"{found[1].__name__}: {found[2]}"


SMALL: list[RecordTuple] = [
    (NOW_MS, b"key", b"value", ()),
    (NOW_MS + 5, None, b"", [("h", b"1"), ("h", None), ("é", b"")]),
    (NOW_MS - 3, b"", None, ()),
]


def build(
    records: Sequence[RecordTuple],
    codec: int = 0,
    *,
    base_offset: int = 0,
    producer: tuple[int, int, int] = (-1, -1, -1),
    transactional: bool = False,
) -> bytes:
    """Return a batch as kafka-python builds it, compressed as aiokafka does."""
    producer_id, producer_epoch, base_sequence = producer
    builder = DefaultRecordBatchBuilder(
        magic=2,
        compression_type=0,
        is_transactional=int(transactional),
        producer_id=producer_id,
        producer_epoch=producer_epoch,
        base_sequence=base_sequence,
        batch_size=1 << 30,
    )
    for index, (timestamp, key, value, headers) in enumerate(records):
        assert builder.append(index, timestamp, key, value, list(headers)) is not None
    built = stamped(bytes(builder.build()), base_offset=base_offset)
    if codec == 0:
        return built
    attributes = codec | transactional << 4
    return with_records(stamped(built, attributes=attributes), COMPRESS[codec](built[61:]))


COMPRESS: dict[int, Callable[[bytes], bytes]] = {
    1: aiokafka_codec.gzip_encode,
    2: aiokafka_codec.snappy_encode,
    3: aiokafka_codec.lz4_encode,
    4: aiokafka_codec.zstd_encode,
}


def with_records(batch: bytes, records: bytes) -> bytes:
    """Return the batch with other bytes for its records, its length and CRC made right."""
    return stamped(batch[:61] + records, batch_length=49 + len(records))


def zigzag(value: int) -> bytes:
    raw = (value << 1) ^ (value >> 63)
    out = bytearray()
    while raw > 0x7F:
        out.append(raw & 0x7F | 0x80)
        raw >>= 7
    out.append(raw)
    return bytes(out)


def raw_record(
    *,
    attributes: int = 0,
    timestamp_delta: int = 0,
    offset_delta: int = 0,
    rest: bytes = b"\x01\x01\x00",
    length: int | None = None,
) -> bytes:
    """One record byte by byte; `rest` is key, value and headers (null, null, none)."""
    body = bytes([attributes & 0xFF]) + zigzag(timestamp_delta) + zigzag(offset_delta) + rest
    return zigzag(len(body) if length is None else length) + body


maybe_bytes = st.none() | st.binary(max_size=200)
timestamps = st.integers(NOW_MS - 1000, NOW_MS + 1000) | st.just(-1) | st.integers(-(2**40), 2**40)
header_lists = st.lists(
    st.tuples(st.text(max_size=5), st.none() | st.binary(max_size=9)), max_size=3
)
record_tuples = st.tuples(timestamps, maybe_bytes, maybe_bytes, header_lists)
record_lists = st.lists(record_tuples, min_size=1, max_size=12)

MALFORMED_RECORDS = {
    "none": b"",
    "cut length": b"\x80",
    "length below the least": b"\x00" * 7,
    "negative length": b"\x01" * 7,
    "length past the end": raw_record(length=7),
    "length of six bytes": b"\x80\x80\x80\x80\x80\x01" + b"\x00" * 8,
    "length beyond 32 bits": b"\xff\xff\xff\xff\x7f" + b"\x00" * 8,
    "length too short": raw_record(length=6)[:-1] + b"\x02" + b"\x00",
    "length too long": raw_record() + b"\x00",
    "byte left over inside": raw_record(rest=b"\x01\x01\x00\x00"),
    "key past the end": raw_record(rest=b"\x7e\x01\x00"),
    "key length -2": raw_record(rest=b"\x03\x01\x00"),
    "key takes the rest": raw_record(rest=b"\x02\x01\x00"),
    "value past the end": raw_record(rest=b"\x01\x7e\x00"),
    "value length huge": raw_record(rest=b"\x01\xfe\xff\xff\xff\x0f\x00"),
    "headers count negative": raw_record(rest=b"\x01\x01\x01"),
    "headers count huge": raw_record(rest=b"\x01\x01\xfe\xff\xff\xff\x0f"),
    "headers count without headers": raw_record(rest=b"\x01\x01\x02"),
    "header key null": raw_record(rest=b"\x01\x01\x02\x01\x01"),
    "header key past the end": raw_record(rest=b"\x01\x01\x02\x08h\x01"),
    "header value past the end": raw_record(rest=b"\x01\x01\x02\x02h\x08"),
    "header value -2": raw_record(rest=b"\x01\x01\x02\x02h\x03"),
    "timestamp delta of 11 bytes": b"\x1c\x00" + b"\x80" * 10 + b"\x01\x00\x01\x01\x00",
    "second record missing": raw_record(),
    "third record": raw_record() + raw_record(offset_delta=1) + raw_record(offset_delta=2),
    "offset delta repeated": raw_record() + raw_record(),
    "offset delta negative": raw_record(offset_delta=-1) + raw_record(offset_delta=1),
    "offset delta past the last": raw_record() + raw_record(offset_delta=7),
    "attributes": raw_record() + raw_record(offset_delta=1, attributes=-128),
    "timestamp overflows": raw_record(timestamp_delta=2**63 - 1) + raw_record(offset_delta=1),
}
"""Records sections of two records, each wrong in its way under a right CRC."""


def malformed(name: str) -> bytes:
    """Return a batch that promises two records and holds MALFORMED_RECORDS[name]."""
    return with_records(build(SMALL[:2]), MALFORMED_RECORDS[name])


def damaged(originals: Sequence[bytes], count: int, seed: int) -> Iterator[bytes]:
    """Yield damaged batches: as they are, with a right length and CRC, damaged in records alone.

    `originals` begins with a batch that is not compressed.
    """
    plain = originals[0]
    for data in mutations(originals, count, seed):
        yield data
        if len(data) >= 61:
            yield stamped(data)
            yield stamped(data, batch_length=len(data) - 12)
    for records in mutations([plain[61:]], count, seed + 1):
        yield with_records(plain, records)
