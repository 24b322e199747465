"""Arrow record batches around the buffers of the columns kernel; nothing is copied.

Owns the schema of the source and the assembly of arrays. Decodes nothing.
"""

from __future__ import annotations

from typing import Any

import pyarrow as pa
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    IntegerType,
    LongType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

from plog._native.arrow_buffers import ColumnBuffer
from plog._native.columns import ColumnBuilder
from plog.errors import ConfigError

HEADER = StructType([StructField("key", StringType()), StructField("value", BinaryType())])
FULL_SCHEMA = (
    StructType()
    .add("key", BinaryType())
    .add("value", BinaryType())
    .add("topic", StringType())
    .add("partition", IntegerType())
    .add("offset", LongType())
    .add("timestamp", TimestampType())
    .add("timestampType", IntegerType())
    .add("headers", ArrayType(HEADER))
)
BASE_SCHEMA = StructType(FULL_SCHEMA.fields[:-1])
"""The columns of Spark's Kafka source, with headers and without."""
MAY_BE_NULL = frozenset({"key", "value", "headers"})


def arrow_schema(schema: StructType) -> pa.Schema:
    """Return the Arrow schema that Spark requires for a query's batches.

    Raises:
        ConfigError: the query's schema has an unknown column, or one of another type.
    """
    columns = ", ".join(f"{c.name} {c.dataType.simpleString()}" for c in FULL_SCHEMA)
    if not schema.fields:
        raise ConfigError(f"plog source: the schema is empty; choose from {columns}")
    for column in schema.fields:
        name, data_type = column.name, column.dataType
        if name not in FULL_SCHEMA.names or data_type != FULL_SCHEMA[name].dataType:
            raise ConfigError(
                f"plog source: unknown column {name} {data_type.simpleString()} in the schema; "
                f"choose from {columns}"
            )
        if name in MAY_BE_NULL and not column.nullable:
            raise ConfigError(f"plog source: column {name} can be null; declare it nullable")
    return to_arrow_schema(schema, timezone="UTC")


def take_batch(builder: ColumnBuilder, schema: pa.Schema) -> pa.RecordBatch:
    """Take the rows of a builder as one record batch of this schema."""
    rows = len(builder)
    buffers = builder.take()
    arrays = [_array(column, rows, buffers) for column in schema]
    return pa.RecordBatch.from_arrays(arrays, schema=schema)


def _array(column: Any, rows: int, buffers: dict[str, list[ColumnBuffer | None]]) -> Any:
    own = _wrap(buffers[column.name])
    if column.name != "headers":
        return pa.Array.from_buffers(column.type, rows, own)
    struct = column.type.value_type
    entries = [_wrap(buffers[f"headers.{struct.field(index).name}"]) for index in range(2)]
    # int32 offsets, one more than there are entries.
    count = entries[0][1].size // 4 - 1
    children = [
        pa.Array.from_buffers(struct.field(index).type, count, entry)
        for index, entry in enumerate(entries)
    ]
    structs = pa.Array.from_buffers(struct, count, [None], children=children)
    return pa.Array.from_buffers(column.type, rows, own, children=[structs])


def _wrap(buffers: list[ColumnBuffer | None]) -> list[Any]:
    return [None if buffer is None else pa.py_buffer(buffer) for buffer in buffers]
