from typing import NamedTuple

from plog._native.served import ServedPartitions
from plog.types import Buffer

# For tests only: nothing in plog imports it.

class FetchForm(NamedTuple):
    """What a Fetch says; bytes are as they stand in the frame."""

    replica_id: int
    replica_epoch: int
    max_wait_ms: int
    min_bytes: int
    max_bytes: int
    read_committed: bool
    session_id: int
    session_epoch: int
    # topic, its id, index, leader epoch, offset, last fetched epoch, log start offset,
    # max bytes
    asked: list[tuple[bytes, bytes, int, int, int, int, int, int]]
    forgotten: list[tuple[bytes, bytes, int]]

class ProduceForm(NamedTuple):
    """What a Produce says, and the response's form before anything is appended."""

    acks: int
    timeout_ms: int
    # number of its topic, index, position in the frame (None: null), size, may it be appended
    parts: list[tuple[int, int, int | None, int, bool]]
    answer: bytes  # with its length prefix

def read_fetch(frame: Buffer, largest_bytes: int) -> FetchForm | str | None:
    """Read a frame, from the API key on.

    Returns the fault of a malformed one; None: it is no Fetch.
    """

def check_produce(
    served: ServedPartitions, frame: Buffer, now_ms: int, in_reactor: bool
) -> ProduceForm | str | None:
    """Read a frame and check its batches, whose max_timestamp it restamps.

    Returns the fault of a malformed one; None: another thread is to do it, or it is no Produce.
    """
