from collections.abc import Sequence
from typing import NamedTuple

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

class LeaderEndpoint(NamedTuple):
    """Where a leader that a refusal names is to be reached."""

    node_id: int
    host: str
    port: int
    rack: str | None

class ProduceCallout:
    """Asks Python about the unusual partitions of a Produce, once.

    One that goes without an answer is answered with UNKNOWN_SERVER_ERROR. `size` is that of the
    request, in bytes.
    """

    size: int
    correlation_id: int
    client_id: str | None
    acks: int
    version: int
    transactional_id: str | None
    @property
    def asked(self) -> list[AskedPartition]:
        """The partitions in the order of the request; to be looked at before the answer."""

    def answer(
        self,
        outcomes: Sequence[Written | Refusal],
        endpoints: Sequence[LeaderEndpoint | tuple[int, str, int, str | None]] = (),
    ) -> None:
        """Say what became of each partition in `asked`, in that order.

        Raises RuntimeError when it has been answered.
        """
    def give_up(self) -> None:
        """Answer with UNKNOWN_SERVER_ERROR, unless it has been answered."""
