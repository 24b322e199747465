from collections.abc import Iterable, Sequence
from typing import NamedTuple, TypeAlias

from plog.types import Buffer

DECOMPRESSED_LIMIT: int
"""What `walk` allows when it is not told: 2 GiB, as much as any batch that is let in takes."""

Headers: TypeAlias = Sequence[tuple[str, Buffer | None]]

class Record(NamedTuple):
    """One record. `timestamp` is ms since 1970; `timestamp_type` 0 CreateTime, 1 LogAppendTime."""

    offset: int
    timestamp: int
    timestamp_type: int
    key: bytes | None
    value: bytes | None
    headers: tuple[tuple[str, bytes | None], ...]

def walk(batch: Buffer, *, pos: int = 0, decompressed_limit: int = ...) -> list[Record]:
    """Every record of one batch (control batches too). The CRC is checked.

    Offset deltas must rise, within last_offset_delta; they may have gaps (compaction). Timestamps
    are max_timestamp for all when the batch says LogAppendTime. Header keys that are not UTF-8 get
    U+FFFD where they are not, as in Java.

    Raises:
        CorruptRecord: as check_batch; the records do not expand, or to more than
            `decompressed_limit` bytes; a record is malformed, missing or too many.
    """

class BatchBuilder:
    """Collects records of one batch v2; the fields a broker owns are left for it to stamp.

    A builder serves one thread at a time: RuntimeError while another compresses.
    """

    def __init__(
        self,
        *,
        codec: int = 0,
        level: int = ...,
        log_append_time: bool = False,
        producer_id: int = -1,
        producer_epoch: int = -1,
        base_sequence: int = -1,
        transactional: bool = False,
    ) -> None:
        """Raises ValueError: an unknown codec, or a level that it does not take."""

    def append(
        self,
        timestamp: int,
        key: Buffer | None,
        value: Buffer | None,
        headers: Headers = (),
    ) -> int:
        """Add a record and return the uncompressed size of the batch so far, in bytes.

        Raises:
            MessageTooLarge: the batch would pass 2 GB.
            ValueError: `timestamp` is 2**63 ms or more from the first one.
        """
    def __len__(self) -> int: ...
    @property
    def uncompressed_bytes(self) -> int: ...
    def set_producer(self, producer_id: int, producer_epoch: int, base_sequence: int) -> None:
        """Say who produces, and the sequence of the first record; before `build`."""

    def build(self, base_offset: int = 0, leader_epoch: int = -1) -> bytes:
        """Return the batch: header, records (compressed where asked), CRC. May be called again.

        base_timestamp is the first record's, max_timestamp the greatest.

        Raises ValueError without a record.
        """

def build_batch(
    records: Iterable[tuple[int, Buffer | None, Buffer | None, Headers]],
    *,
    codec: int = 0,
    base_offset: int = 0,
    leader_epoch: int = -1,
    log_append_time: bool = False,
    producer_id: int = -1,
    producer_epoch: int = -1,
    base_sequence: int = -1,
    transactional: bool = False,
) -> bytes: ...
def control_batch(
    *,
    abort: bool,
    offset: int,
    timestamp: int,
    producer_id: int,
    producer_epoch: int,
    coordinator_epoch: int,
    leader_epoch: int = -1,
) -> bytes:
    """The 78-byte transaction marker."""
