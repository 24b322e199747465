"""Rows that Spark gives to the sink, as the kernel and the producer take them; nothing is copied.

Owns which columns the sink has, of which types, and where a row goes.
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
"""Those of Spark's Kafka sink, and what they may be."""
HEADERS = pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))


class NoTopic(PlogError):
    """A row whose column `topic` is null."""


def check(schema: StructType, topic: str | None) -> None:
    """Look whether rows of a schema can be written.

    Args:
        topic: the option; None where the rows name theirs.

    Raises:
        ConfigError: all that is wrong with it.
    """
    faults = []
    for field in schema.fields:
        expected = COLUMNS.get(field.name)
        if expected is None:
            faults.append(f"there is no column {field.name}")
        elif not _fits(field.name, field.dataType):
            told = field.dataType.simpleString()
            faults.append(f"column {field.name} is {told}, and must be {expected}")
    if "value" not in schema.names:
        faults.append("a column value is needed")
    if topic is None and "topic" not in schema.names:
        faults.append("the option topic is needed, or a column topic")
    if faults:
        columns = ", ".join(f"{name} ({what})" for name, what in COLUMNS.items())
        raise ConfigError(f"plog sink: {'; '.join(faults)}; columns are {columns}")


def _fits(name: str, told: DataType) -> bool:
    if name in ("key", "value"):
        return isinstance(told, BYTES)
    if name == "topic":
        return isinstance(told, StringType)
    if name == "partition":
        return isinstance(told, IntegerType)
    if not isinstance(told, ArrayType) or not isinstance(told.elementType, StructType):
        return False
    fields: list[StructField] = told.elementType.fields
    return [(field.name, type(field.dataType)) for field in fields] == [
        ("key", StringType),
        ("value", BinaryType),
    ]


def by_topic(batch: pa.RecordBatch, topic: str | None) -> Iterator[tuple[str, RowColumns]]:
    """Share the rows of a batch out by where they go, each topic's in their order.

    Args:
        topic: the option, which goes before the column.

    Raises:
        NoTopic: a row says of none.
        ValueError: a header without a key, or a negative partition.
    """
    if topic is not None:
        yield topic, rows_of(batch)
        return
    named = batch.column("topic").cast(pa.string())
    if named.null_count:
        raise NoTopic("a row's topic is null; the option topic would be that of all rows")
    for name in pc.unique(named).to_pylist():
        yield name, rows_of(batch.filter(pc.equal(named, name)))


def rows_of(batch: pa.RecordBatch) -> RowColumns:
    """Return what the kernel takes of a batch."""
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
        # Flattened: what a null header hides is null in its parts too, and so has no key.
        key, value = headers.values.flatten()
        take("headers.key", key, 3)
        take("headers.value", value, 3)
    return RowColumns(batch.num_rows, columns, offsets)
