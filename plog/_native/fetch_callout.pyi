from collections.abc import Sequence
from typing import NamedTuple

from plog._native.callout import Callout
from plog._native.partition_log import FileRange

class AskedRange(NamedTuple):
    """A partition that Python reads, or refuses: what the request says of it.

    The topic is empty where requests go by ids, unless the partition is served. `bytes_before` were
    found in ordinary partitions between the one asked about before and this: so much of the budget
    is theirs. `is_noted`: an earlier look at the request has taken over what the follower has.
    """

    topic: str
    topic_id: bytes
    partition: int
    offset: int
    max_bytes: int
    leader_epoch: int
    last_epoch: int
    log_start_offset: int
    bytes_before: int
    is_noted: bool

class Found(NamedTuple):
    """The fields of the response for it.

    `records` is b"" for none; `aborted` has (producer id, first offset).
    """

    error: int
    records: FileRange | bytes | None
    high_watermark: int
    last_stable_offset: int
    log_start_offset: int
    aborted: Sequence[tuple[int, int]] | None
    diverging_epoch: int = -1
    diverging_end: int = -1
    leader_id: int = -1
    leader_epoch: int = -1

class FetchCallout(Callout[AskedRange, Found]):
    """Asks Python about the unusual partitions of a Fetch, once for each look at its partitions.

    `max_bytes` is what the partitions before the first of these have left of the response;
    `is_first`: they found nothing, so that the first batch comes whole. `is_followers`: it is of a
    form, and came by a listener, by which followers fetch; `came_ms` is when, by the clock since
    boot. An answer without an error or a divergence says that the follower's position is noted.
    """

    replica_id: int
    replica_epoch: int
    is_followers: bool
    came_ms: int
    read_committed: bool
    max_bytes: int
    is_first: bool
