from plog._native.arrow_buffers import ColumnBuffer
from plog.types import Buffer

COLUMNS: tuple[str, ...]

class ColumnBuilder:
    """Decodes record sets straight into the buffers of Arrow columns.

    Columns, in Spark's Kafka schema: key, value (binary), topic (string), partition (int32),
    offset (int64), timestamp (us, UTC), timestampType (int32), headers (list of struct).
    Only the wanted ones are filled.

    A builder serves one thread at a time (RuntimeError otherwise).

    A record without headers has null in `headers`, as in Spark's own Kafka source. Header keys
    that are not UTF-8 get U+FFFD where they are not, as in Java. A timestamp that microseconds
    cannot tell becomes the nearest one that they can.
    """

    def __init__(
        self,
        columns: frozenset[str],
        topic: str,
        partition: int,
        *,
        decompressed_limit: int = ...,
    ) -> None:
        """Raises ValueError: a name that is not in COLUMNS."""

    def append(
        self,
        records: Buffer,
        start_offset: int,
        end_offset: int,
        max_rows: int = ...,
        aborted: list[tuple[int, int]] | None = None,
        max_bytes: int = ...,
    ) -> int:
        """Decode records with start_offset <= offset < end_offset; return the next one wanted.

        Control batches, and (when `aborted` lists (producer id, first offset)) aborted
        transactions, give no rows but do move the returned offset. A batch cut at the end of
        `records` is left for the next call.

        It stops early, returning the offset of the record that did not go in, once the builder
        holds `max_rows` rows or `max_bytes` of data_bytes (so by one row more at most), or where
        Arrow's 32-bit offsets end. Call it again with the same `records` and `aborted` (the list
        belongs to the bytes of one fetch) after `take`; what was consumed is skipped by its
        headers, and a compressed batch is not expanded twice.

        Raises:
            CorruptRecord: a batch or record that cannot be read. Drop the builder then.
            ValueError: `start_offset` is negative.
        """

    def __len__(self) -> int: ...
    @property
    def data_bytes(self) -> int:
        """Bytes of the buffers so far, but for validity bits and offsets' first entries."""

    def take(self) -> dict[str, list[ColumnBuffer | None]]:
        """Hand over the buffers of each wanted column and start anew. With n = len(builder) before:

        - key, value: [validity, offsets, data], n values
        - topic: [None, offsets, data], n values
        - partition, offset, timestamp, timestampType: [None, data], n values
        - headers: [validity, offsets], n lists; their items, m = the last of these offsets, are
          "headers.key": [None, offsets, data] and "headers.value": [validity, offsets, data]

        So pyarrow.Array.from_buffers(type, n, [...]) takes each as it is; headers' items are
        structs without nulls: from_buffers(struct type, m, [None], children=[key, value]). offsets
        are int32, one more than there are values; validity is None where nothing is null, else
        bits, lowest first.
        """
