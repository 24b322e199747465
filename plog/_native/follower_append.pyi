from typing import Final, NamedTuple

from plog._native.partition_log import PartitionLog, ProducerEntry
from plog.types import Buffer

DONE: Final = 0
ROLL_NEEDED: Final = 1
UNUSUAL: Final = 2
WRITE_FAILED: Final = 3
NOT_FOLLOWER: Final = 4
OTHER_EPOCH: Final = 5

class FetchedAppend(NamedTuple):
    """The result of one append of fetched batches.

    `status`: DONE, or why the batch at `position` is not appended:

    - ROLL_NEEDED: a new segment comes first.
    - UNUSUAL: it has another leader epoch, is a control batch, or its producer or producer epoch is
      new; or the entry of its producer has changed since it was decided about.
    - WRITE_FAILED, with its errno: the disk is full or has failed.
    - NOT_FOLLOWER: the log accepts appends of clients, or is closed or (with an errno) offline.
    - OTHER_EPOCH: the log has another leader epoch than the fetch had.

    The batches before `position` are appended, except after a failed write (errors of the disk).
    """

    status: int
    position: int
    errno: int

def check(batches: Buffer, *, log_end_offset: int, last_epoch: int, leader_epoch: int) -> int:
    """Check fetched batches before any of them is appended.

    Each batch must be whole, with magic 2 and the right structure and CRC, and begin at the end of
    the log and of the batch before it, or later: compaction leaves gaps. Leader epochs must not
    fall below `last_epoch`, the log's last batch's, nor rise above `leader_epoch`, the fetch's.

    Returns:
        the base offset of the last batch with a gap before it; -1 without a gap.

    Raises:
        CorruptRecord: the text says which batch, and why.
    """

def append(
    log: PartitionLog,
    batches: Buffer,
    position: int = 0,
    *,
    now_ms: int,
    leader_epoch: int,
    latest_epoch: int,
    is_decided: bool = False,
    decided: ProducerEntry | None = None,
) -> FetchedAppend:
    """Append checked batches from `position` on, in one write, until one is unusual.

    Args:
        leader_epoch: of the fetch.
        latest_epoch: the newest leader epoch that the log knows.
        is_decided: append one batch, whatever it is. Its producer becomes `decided` first, and the
            batch is noted there; None: nothing is noted of it.
    """
