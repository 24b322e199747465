from collections.abc import Sequence
from typing import NamedTuple

from plog._native.callout import Callout
from plog._native.partition_log import Appended

class AskedPartition(NamedTuple):
    """A partition that Python decides about.

    `records` is a writable view of the bytes that the client sent for it, whatever they are.
    """

    topic: str
    partition: int
    records: memoryview | None

class Written(NamedTuple):
    """Its batch is appended. `append_time_ms` is -1 unless the topic has LogAppendTime."""

    appended: Appended
    append_time_ms: int
    @property
    def error(self) -> int:
        """NONE, always."""

class Refusal(NamedTuple):
    """Its batch is refused, for the records in `record_errors` if any: index in the batch, text."""

    error: int
    message: str | None = None
    record_errors: Sequence[tuple[int, str | None]] = ()
    log_start_offset: int = -1
    leader_id: int = -1
    leader_epoch: int = -1

class ProduceCallout(Callout[AskedPartition, Written | Refusal]):
    """Asks Python about the unusual partitions of a Produce, once."""

    acks: int
    transactional_id: str | None
    timeout_ms: int
