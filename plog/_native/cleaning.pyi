from typing import NamedTuple

from plog._native.offset_map import OffsetMap
from plog.types import Buffer

class Cleaned(NamedTuple):
    """What is left of a batch: `data` is None where it is the batch as it was."""

    records: int  # that are left
    data: bytes | None  # b"": nothing is left
    has_tombstones: bool  # among those that are left

def clean_batch(
    batch: Buffer,
    latest: OffsetMap,
    *,
    known_to: int,
    drop_tombstones: bool,
    horizon_ms: int = -1,
) -> Cleaned:
    """Return a batch without the records that later ones of the same key have superseded.

    Offsets, sequences and producers stay as they are. Records at or behind the offset `known_to`
    stay, those without a key do not. What is rewritten is compressed as it was.

    Args:
        drop_tombstones: records without a value go as well.
        horizon_ms: if tombstones are left: since when they may go, to be written into the batch
            (KIP-534); -1 for a batch that says it already.

    Raises:
        CorruptRecord: the batch cannot be read. Its CRC is not looked at.
    """

def set_delete_horizon(batch: Buffer, horizon_ms: int) -> bytes:
    """Return a batch that says since when its tombstones or its marker may go (KIP-534).

    The horizon takes the place of the base timestamp; the records' own times stay.

    Raises:
        CorruptRecord: the batch cannot be read.
    """

def empty_batch(batch: Buffer) -> bytes:
    """Return a batch's header without any records: what keeps a producer's state (61 bytes)."""
