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

class Validation(NamedTuple):
    """What deep validation of a produced batch found.

    `error` is an ErrorCode value:

    - CORRUPT_MESSAGE (2): a magic that there is not, a wrong length or CRC, or records that do not
      expand;
    - INVALID_RECORD (87): no batch, less or more than one, an old magic, header fields a client
      must not send, a record that cannot be read, a wrong count, or (with `record_errors`) a wrong
      offset delta, attributes, a missing key;
    - INVALID_TIMESTAMP (32): a timestamp out of bounds (with `record_errors`), or the LogAppendTime
      bit;
    - UNSUPPORTED_COMPRESSION_TYPE (76): codec 5, 6 or 7;
    - MESSAGE_TOO_LARGE (10): more than decompressed_limit bytes; clients that split batches do so.

    `record_errors` lists (index of the record in the batch, text), at most 100.

    Without an error, `max_timestamp` is what the header must say: the greatest timestamp of the
    records, or with log_append_time now_ms. Like Kafka's leader, the caller stamps it
    (restamp_append_time, or restamp_max_timestamp, which does nothing where the client was right);
    a client's stale value is no reason to refuse. `max_timestamp_offset_delta` is the delta of the
    first record that carries it (0 with log_append_time; -1 when every timestamp is below -1, and
    max_timestamp is then -1). `uncompressed_bytes` counts the header too.
    """

    error: int
    message: str
    record_errors: list[tuple[int, str]]
    max_timestamp_offset_delta: int
    uncompressed_bytes: int
    max_timestamp: int

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

def validate_produced(
    data: Buffer,
    *,
    pos: int = 0,
    now_ms: int,
    before_max_ms: int,
    after_max_ms: int,
    log_append_time: bool,
    key_required: bool,
    decompressed_limit: int,
) -> Validation:
    """Deep validation of one batch from a client, as the leader does before it appends.

    Walks every record (expanding at most `decompressed_limit` bytes): lengths exact, offset deltas
    0..n-1, records_count == last_offset_delta + 1, attributes 0, CreateTime within now -
    before_max_ms .. now + after_max_ms (-1, no timestamp, always passes; none is looked at with
    log_append_time), a key where required, base_offset 0, no control batch, no delete horizon, a
    sequence and an epoch where there is a producer id, a producer id where the batch is
    transactional. The batch must be alone from `pos` to the end. Releases the interpreter lock for
    what is large or compressed.
    """

def restamp_offsets(buffer: Buffer, base_offset: int, leader_epoch: int, pos: int = 0) -> None:
    """Write base_offset and partition_leader_epoch, outside the CRC. Raises CorruptRecord."""

def restamp_append_time(buffer: Buffer, timestamp_ms: int, pos: int = 0) -> None:
    """Set the LogAppendTime bit, max_timestamp and the CRC. Raises CorruptRecord."""

def restamp_max_timestamp(buffer: Buffer, timestamp_ms: int, pos: int = 0) -> None:
    """Set max_timestamp and the CRC. Raises CorruptRecord."""
