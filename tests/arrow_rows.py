"""Rows as pyarrow lays them out, for what takes the buffers of columns."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pyarrow as pa

from plog._native.rows import RowColumns

HEADER = pa.struct([("key", pa.string()), ("value", pa.binary())])
TYPES = {
    "key": pa.binary(),
    "value": pa.binary(),
    "headers": pa.list_(HEADER),
    "partition": pa.int32(),
    "timestamp_ms": pa.int64(),
}


def table(rows: Sequence[dict[str, Any]], names: Sequence[str] = tuple(TYPES)) -> pa.RecordBatch:
    """Return rows as a record batch; what a row does not have is null."""
    arrays = [pa.array([row.get(name) for row in rows], TYPES[name]) for name in names]
    return pa.RecordBatch.from_arrays(arrays, names=list(names))


def columns_of(batch: pa.RecordBatch) -> tuple[int, dict[str, Any], dict[str, int]]:
    """Return what `RowColumns` takes of a record batch: nothing is copied."""
    columns, array_offsets = {}, {}
    for name in batch.schema.names:
        array = batch.column(name)
        parts = [(name, array)]
        if name == "headers":
            keys, values = array.values.flatten()
            parts += [("headers.key", keys), ("headers.value", values)]
        for part, held in parts:
            columns[part] = held.buffers()[:2] if part == "headers" else held.buffers()
            array_offsets[part] = held.offset
    return batch.num_rows, columns, array_offsets


def rows_of(batch: pa.RecordBatch) -> RowColumns:
    """Return the rows of a record batch."""
    return RowColumns(*columns_of(batch))
