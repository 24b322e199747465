from typing import NamedTuple

from plog.types import Buffer

HEADER_BYTES: int

class BatchHeader(NamedTuple):
    """The 61 bytes before the records, with what follows from them.

    `position` is where the batch starts in the buffer it was read from.
    """

    position: int
    base_offset: int
    batch_length: int
    partition_leader_epoch: int
    magic: int
    crc: int
    attributes: int
    last_offset_delta: int
    base_timestamp: int
    max_timestamp: int
    producer_id: int
    producer_epoch: int
    base_sequence: int
    records_count: int

    @property
    def size_bytes(self) -> int: ...  # batch_length + 12
    @property
    def last_offset(self) -> int: ...
    @property
    def next_offset(self) -> int: ...
    @property
    def last_sequence(self) -> int: ...  # wraps past 2147483647 to 0; -1 without a sequence
    @property
    def codec(self) -> int: ...
    @property
    def is_log_append_time(self) -> bool: ...
    @property
    def is_transactional(self) -> bool: ...
    @property
    def is_control(self) -> bool: ...
    @property
    def has_delete_horizon(self) -> bool: ...  # base_timestamp is then that horizon (KIP-534)

def read_header(data: Buffer, pos: int = 0) -> BatchHeader:
    """Header of the batch at `pos`; neither the CRC nor the rest of the batch is looked at.

    Raises:
        CorruptRecord: fewer than 61 bytes, magic not 2, batch_length below 49.
        ValueError: `pos` is outside `data` (so in all of this module).
    """

def check_batch(data: Buffer, pos: int = 0) -> BatchHeader:
    """Header, bounds and CRC of the batch at `pos`, and that its fields agree with each other.

    Raises CorruptRecord.
    """

def scan(data: Buffer) -> list[BatchHeader]:
    """Every batch of a record set, each with its CRC checked; a cut tail is CorruptRecord."""

def whole(data: Buffer, offset: int) -> tuple[int, int]:
    """Where the last batch that is there whole ends, and the offset after it or after `offset`.

    For the record set of a fetch, whose end may cut through a batch. CRCs are not looked at.

    Raises:
        CorruptRecord: a header makes no sense, or ends past the last offset there can be.
    """

def restamp_offsets(buffer: Buffer, base_offset: int, leader_epoch: int, pos: int = 0) -> None:
    """Write base_offset and partition_leader_epoch, outside the CRC. Raises CorruptRecord."""

def restamp_append_time(buffer: Buffer, timestamp_ms: int, pos: int = 0) -> None:
    """Set the LogAppendTime bit, max_timestamp and the CRC. Raises CorruptRecord."""

def restamp_max_timestamp(buffer: Buffer, timestamp_ms: int, pos: int = 0) -> None:
    """Set max_timestamp and the CRC. Raises CorruptRecord."""
