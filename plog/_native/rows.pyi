from collections.abc import Mapping, Sequence

from plog._native.arrow_buffers import ColumnBuffer
from plog._native.records import BatchBuilder
from plog.types import Buffer

BUFFERS: dict[str, int]
"""Columns, and the number of buffers of each."""

class RowColumns:
    """Rows in the buffers of Arrow columns; they are kept, and must not change.

    Buffers are in Arrow's physical layout order, None where there is none. With n rows:

    - key, value: [validity, offsets, data], n values
    - headers: [validity, offsets], n lists; their items are "headers.key" and "headers.value":
      [validity, offsets, data], so that a struct's own nulls must be in its children's
    - partition: [validity, data], n int32; null: by the key
    - timestamp_ms: [validity, data], n int64 since 1970; null: the one that `fill` is given

    Offsets are int32, one more than there are values; validity is bits, lowest first. A column that
    is left out is null everywhere. So what `ColumnBuilder.take` gives (but for its other columns)
    is what goes in here.
    """

    def __init__(
        self,
        rows: int,
        columns: Mapping[str, Sequence[ColumnBuffer | Buffer | None]],
        array_offsets: Mapping[str, int] | None = None,
    ) -> None:
        """Look at every row.

        Args:
            array_offsets: which value of the buffers is a column's first; 0 where not told.

        Raises:
            ValueError: a column that there is none of, or with other buffers, or too small ones;
                the first row with offsets that fall, or leave the data, with a header that has no
                key, with a negative partition, or a timestamp before 1970.
        """

    def __len__(self) -> int: ...
    @property
    def largest(self) -> tuple[int, int]:
        """The first row of those that take most, and at least its bytes in a record: of its key,
        value and headers with their lengths. (0, 0) where there are none."""

    @property
    def placed(self) -> int:
        """How many rows name their partition."""

    @property
    def largest_partition(self) -> int:
        """The greatest that a row names; -1 where none does."""

    def partitions(self, count: int, sticky: int) -> ColumnBuffer:
        """Return each row's partition as a column of int32.

        That is the one it names, or its key's as Java's default partitioner has it among `count`,
        or without a key `sticky`, which may be any number.

        Raises:
            ValueError: `count` is less than 1; a row names none of its partitions.
        """

    def fill(
        self,
        builder: BatchBuilder,
        order: ColumnBuffer | Buffer,
        start: int,
        end: int,
        timestamp_ms: int,
        limit_bytes: int,
    ) -> int:
        """Append the rows that `order` (int32) names at start <= place < end; return the place of
        the first that is not taken.

        The batch, uncompressed, does not pass `limit_bytes`, unless its first record alone does.
        The interpreter lock is let go meanwhile, and the builder serves nobody else.

        Raises (and the builder is as it was):
            ValueError: places outside of `order`, or a row that there is none of; the timestamp is
                too far from the first one of the batch; a buffer has changed.
            MessageTooLarge: a row that no batch can hold.
        """

def group(partitions: ColumnBuffer | Buffer, groups: int) -> tuple[ColumnBuffer, list[int]]:
    """Sort rows by their partition, and leave those of one as they stand.

    Returns the numbers of the rows (int32), and where each group's begin among them, with the end
    of the last.

    Raises:
        ValueError: a partition is none of the groups; it is no column of int32.
    """
