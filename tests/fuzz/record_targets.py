"""Targets over what producers send: record batches, their records and codecs, and varints."""

from __future__ import annotations

import struct
from typing import Any

from plog._native import batch as native_batch
from plog._native import columns as native_columns
from plog._native import compression as native_compression
from plog._native import records as native_records
from plog._native import validation as native_validation
from plog._native import wire as native_wire
from plog._reference import batch as reference_batch
from plog._reference import columns as reference_columns
from plog._reference import records as reference_records
from plog._reference import validation as reference_validation
from plog._reference import wire as reference_wire

from .common import READINGS, agree, alike, as_one_batch, exact, said, with_right_crcs

LIMIT = 64 * 1024
"""Of what compressed records may expand to: the twins are slow."""
NOW_MS = 1_700_000_000_000

_BATCH = native_batch, reference_batch
_WIRE = native_wire, reference_wire
_RECORDS = native_records, reference_records
_COLUMNS = frozenset(native_columns.COLUMNS)
_WIDTHS = ["int8", "int16", "int32", "int64", "uint32"]
_VARINTS = ["unsigned_varint", "varint", "varlong"]


def varints(data: memoryview) -> None:
    """Integers of every kind, at the beginning and behind it; those of varying width come back."""
    for name in _WIDTHS + _VARINTS:
        for at in range(min(len(data), 1) + 1):
            found = agree(_WIRE, f"decode_{name}", data, at)
            if name in _VARINTS and isinstance(found, tuple):
                value, end = found
                again = agree(_WIRE, f"encode_{name}", value)
                assert len(again) <= end - at
                assert agree(_WIRE, f"decode_{name}", again, 0) == (value, len(again))


def batches(data: memoryview) -> None:
    """A record set: headers, structure, CRCs, where it ends, and restamping."""
    for each in (data, with_right_crcs(data)):
        record_set = exact(each)
        agree(_BATCH, "read_header", record_set)
        agree(_BATCH, "whole", record_set, 7)
        agree(_BATCH, "scan", record_set)
        if isinstance(agree(_BATCH, "check_batch", record_set), str):
            continue
        for name, *args in (
            ("restamp_offsets", 1 << 40, 5),
            ("restamp_append_time", NOW_MS),
            ("restamp_max_timestamp", NOW_MS - 1),
        ):
            copies = exact(record_set), exact(record_set)
            for engine, copy in zip(_BATCH, copies, strict=True):
                said(getattr(engine, name), copy, *args)
            assert copies[0] == copies[1], f"{name}{args} left other bytes"
            agree(_BATCH, "check_batch", copies[0])


def records(data: memoryview) -> None:
    """The records of one batch under a right length and CRC, of any codec."""
    one = exact(as_one_batch(data))
    found = agree(_RECORDS, "walk", one, decompressed_limit=LIMIT)
    if isinstance(found, list):
        header = native_batch.check_batch(one)
        assert all(header.base_offset <= r.offset <= header.last_offset for r in found)


def validation(data: memoryview) -> None:
    """Rules, a byte; then a batch that a client has produced."""
    if len(data) < 1:
        return
    rules = {
        "now_ms": NOW_MS,
        "before_max_ms": 10_000,
        "after_max_ms": 1_000,
        "log_append_time": bool(data[0] & 1),
        "key_required": bool(data[0] & 2),
        "decompressed_limit": LIMIT if data[0] & 4 else 100,
    }
    one = exact(as_one_batch(data[1:]) if data[0] & 8 else data[1:])
    found = agree((native_validation, reference_validation), "validate_produced", one, **rules)
    if found.error == 0:
        assert len(native_records.walk(one)) == native_batch.check_batch(one).records_count


def codecs(data: memoryview) -> None:
    """A codec and a limit, a byte; then what is to be expanded."""
    if len(data) < 1:
        return
    codec, limit = data[0] & 7, LIMIT >> (data[0] >> 4)
    packed = exact(data[1:])
    found = said(native_compression.decompress, codec, packed, limit)
    expected = [said(reading, codec, packed, limit) for reading in READINGS]
    assert found in expected, f"{found!r}, where its twin says {expected!r}"
    if isinstance(found, bytes):
        assert len(found) <= limit
        again = native_compression.compress(codec, found)
        assert native_compression.decompress(codec, again, limit) == found


def _rows(engine: Any, calls: list[tuple[Any, ...]]) -> tuple[Any, ...]:
    builder = engine.ColumnBuilder(_COLUMNS, "tópic", 3, decompressed_limit=LIMIT)
    told = [builder.append(*call) for call in calls]
    taken = {
        name: [None if buffer is None else bytes(buffer) for buffer in column]
        for name, column in builder.take().items()
    }
    return told, taken


def columns(data: memoryview) -> None:
    """Where to start and end, portions, and an aborted transaction, 8 bytes; then a record set."""
    if len(data) < 8:
        return
    start, end, rows, limit, producer, first = struct.unpack_from(">BHBHBB", data)
    record_set = exact(with_right_crcs(data[8:]))
    aborted = [(producer, first)] if producer else None
    calls = [(record_set, start, end, rows, aborted, limit), (record_set, start + 1, end)]
    alike((native_columns, reference_columns), lambda engine: _rows(engine, calls), str(calls))
