from plog.types import Buffer

OFFSET_ENTRY_BYTES: int
TIME_ENTRY_BYTES: int

def lookup_offset(entries: Buffer, base_offset: int, target: int) -> tuple[int, int]:
    """(offset, position) of the greatest entry at or below `target`, else (base_offset, 0).

    Raises:
        CorruptRecord: the size of `entries` is not a multiple of 8.
    """

def lookup_time(entries: Buffer, base_offset: int, timestamp: int) -> tuple[int, int]:
    """(timestamp, offset) of the greatest entry at or below `timestamp`, else (-1, base_offset).

    Raises:
        CorruptRecord: the size of `entries` is not a multiple of 12.
        OverflowError: `timestamp` does not fit 64 bits.
    """

def encode_offset_entry(relative_offset: int, position: int) -> bytes:
    """8 bytes; OverflowError unless both are 0 or more and fit 31 bits."""

def encode_time_entry(timestamp: int, relative_offset: int) -> bytes:
    """12 bytes; OverflowError unless both are 0 or more and fit 63 and 31 bits."""

def check_offset_index(entries: Buffer, base_offset: int) -> int:
    """Number of entries.

    Raises CorruptRecord: size no multiple of 8, offsets or positions not rising.
    """

def check_time_index(entries: Buffer, base_offset: int) -> int:
    """Number of entries.

    Raises CorruptRecord: size no multiple of 12, timestamps not rising, offsets falling.
    """
