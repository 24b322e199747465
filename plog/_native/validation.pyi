from typing import NamedTuple

from plog.types import Buffer

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
    (`batch.restamp_append_time`, or `restamp_max_timestamp`, which does nothing where the client
    was right); a client's stale value is no reason to refuse. `max_timestamp_offset_delta` is the
    delta of the first record that carries it (0 with log_append_time; -1 when every timestamp is
    below -1, and max_timestamp is then -1). `uncompressed_bytes` counts the header too.
    """

    error: int
    message: str
    record_errors: list[tuple[int, str]]
    max_timestamp_offset_delta: int
    uncompressed_bytes: int
    max_timestamp: int

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

    Raises:
        ValueError: `pos` is outside `data`.
    """
