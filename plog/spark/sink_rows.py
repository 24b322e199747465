"""Passes Spark's rows to the producer's kernel without copying them.

Owns the columns of the sink, their types, and the topic of each row.
"""

from __future__ import annotations

from collections.abc import Iterator

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    DataType,
    IntegerType,
    StringType,
    StructField,
    StructType,
)

from plog._native.rows import RowColumns
from plog.errors import ConfigError, PlogError

BYTES = (BinaryType, StringType)
COLUMNS = {
    "key": "binary or string",
    "value": "binary or string",
    "topic": "string",
    "partition": "int",
    "headers": "array<struct<key: string, value: binary>>",
}
"""The columns of Spark's Kafka sink, with their types."""
HEADERS = pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))


class NoTopic(PlogError):
    """The column `topic` of a row is null."""


def check(schema: StructType, topic: str | None) -> None:
    """Check that rows of a schema can be written.

    Args:
        topic: the option; None if a column names the topics.

    Raises:
        ConfigError: lists all faults.
    """
    faults = []
    for field in schema.fields:
        expected = COLUMNS.get(field.name)
        if expected is None:
            faults.append(f"unknown column {field.name}; drop or rename it")
        elif not _fits(field.name, field.dataType):
            found = field.dataType.simpleString()
            faults.append(f"column {field.name} is {found}; cast it to {expected}")
    if "value" not in schema.names:
        faults.append("column value is missing")
    if topic is None and "topic" not in schema.names:
        faults.append("no topic: set the option topic, or add a column topic")
    if faults:
        columns = ", ".join(f"{name} ({expected})" for name, expected in COLUMNS.items())
        raise ConfigError(f"plog sink: {'; '.join(faults)}. The sink's columns are {columns}")


def _fits(name: str, data_type: DataType) -> bool:
    if name in ("key", "value"):
        return isinstance(data_type, BYTES)
    if name == "topic":
        return isinstance(data_type, StringType)
    if name == "partition":
        return isinstance(data_type, IntegerType)
    if not isinstance(data_type, ArrayType) or not isinstance(data_type.elementType, StructType):
        return False
    fields: list[StructField] = data_type.elementType.fields
    return [(field.name, type(field.dataType)) for field in fields] == [
        ("key", StringType),
        ("value", BinaryType),
    ]


def by_topic(batch: pa.RecordBatch, topic: str | None) -> Iterator[tuple[str, RowColumns]]:
    """Yield the rows of a batch by topic, each topic's in their order.

    Args:
        topic: the option, which takes precedence over the column.

    Raises:
        NoTopic: a row has no topic.
        ValueError: a header has no key, or a partition is negative.
    """
    if topic is not None:
        yield topic, rows_of(batch)
        return
    named = batch.column("topic").cast(pa.string())
    if named.null_count:
        raise NoTopic(
            f"column topic is null in {named.null_count} of {len(named)} rows: fill it, or set "
            "the option topic for all rows"
        )
    for name in pc.unique(named).to_pylist():
        yield name, rows_of(batch.filter(pc.equal(named, name)))


def rows_of(batch: pa.RecordBatch) -> RowColumns:
    """Return the buffers of a batch for the kernel."""
    columns: dict[str, list[pa.Buffer | None]] = {}
    offsets: dict[str, int] = {}

    def take(name: str, array: pa.Array, count: int) -> None:
        columns[name], offsets[name] = array.buffers()[:count], array.offset

    for name in ("key", "value"):
        if name in batch.schema.names:
            take(name, batch.column(name).cast(pa.binary()), 3)
    if "partition" in batch.schema.names:
        take("partition", batch.column("partition"), 2)
    if "headers" in batch.schema.names:
        headers = batch.column("headers").cast(HEADERS)
        take("headers", headers, 2)
        # Flattened: the parts of a null header are null too, and so it has no key.
        key, value = headers.values.flatten()
        take("headers.key", key, 3)
        take("headers.value", value, 3)
    return RowColumns(batch.num_rows, columns, offsets)
