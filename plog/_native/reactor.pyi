from collections.abc import Sequence
from typing import NamedTuple

from plog._native.fetch_callout import FetchCallout
from plog._native.fetch_sessions import SessionCache
from plog._native.histogram import Histogram
from plog._native.produce_callout import ProduceCallout
from plog._native.served import ServedPartitions

# Kinds of Event.
OPENED: int
REQUEST: int
CLOSED: int
REFUSED: int
LEFT: int
CALLOUT: int
MAY_JOIN: int

class Event(NamedTuple):
    """What the reactor tells the control plane.

    `frame` is a writable memoryview over the request without its length prefix (REQUEST only); its
    memory is freed, and counted off `queued_max_bytes`, when the view goes. `peer` is "host:port"
    (OPENED and REFUSED). Every OPENED is followed by one CLOSED. REFUSED tells of a connection
    turned away at the door, by a cap or for want of descriptors; at most one a second, with
    connection id 0: `ReactorStats.refused` counts them all. LEFT: no
    answer reaches the client any more, but requests that came before may still follow. CALLOUT:
    Python decides about some partitions of a Produce or a Fetch. MAY_JOIN: a follower has all that
    it needs to be in sync; of each there is one such event at a time.
    """

    kind: int
    connection_id: int
    listener_id: int
    frame: memoryview | None
    peer: str
    reason: str  # CLOSED, REFUSED: why
    received_us: int  # REQUEST: when its last byte was read, monotonic
    abnormal: bool  # CLOSED: for a broken rule or a failure, not because one side wished to
    callout: ProduceCallout | FetchCallout | None  # CALLOUT
    joiner: tuple[int, int] | None  # MAY_JOIN: the partition's number (-1: gone), the broker's id

class ReactorStats(NamedTuple):
    connections: int
    connections_by_listener: tuple[int, ...]  # by listener id
    accepted: int  # those refused included
    refused: int
    closed: int
    requests: int
    responses: int
    bytes_in: int
    bytes_out: int
    queued_bytes: int  # memory of requests not yet answered and of receive buffers
    fast_requests: int  # answered, or waiting to be, without Python
    callouts: dict[str, int]  # questions to Python, and requests that it got whole, by the reason
    waiting: int  # requests that wait in the reactor, now
    produce_times: Histogram  # from when a request was read to its answer, of those without Python
    produce_asked_times: Histogram  # the same, of those that Python was asked about
    fetch_times: Histogram
    fetch_asked_times: Histogram
    produce_responses: dict[int, int]  # by error code
    fetch_responses: dict[int, int]  # the same
    broken: int  # connections closed because a request's table of stages lacks what happened

class Reactor:
    """Accepts, cuts frames and sends answers; its threads never take the interpreter lock.

    Per connection one request is handed over at a time; later ones stay in its buffer (or in the
    kernel) until `respond`, `skip` or `close`. A connection that breaks a limit is closed, with the
    reason in its CLOSED event. Connection ids are never used twice.

    While requests and receive buffers take more than `queued_max_bytes` nothing is read, but for
    one request per thread that is already half there. When answers that are not taken hold more
    than `answers_max_bytes` in memory, connections are closed, beginning with the one that has
    stood still for longest; this is looked at once a second. 0 or less stands for the defaults.
    An `idle_timeout_ms` of 0 or less lets connections idle for ever.
    """

    def __init__(
        self,
        *,
        threads: int = 1,
        max_request_bytes: int = 104857600,
        queued_max_bytes: int = 536870912,
        answers_max_bytes: int = 536870912,
        max_connections: int = 2147483647,
        max_connections_per_ip: int = 2147483647,
        max_connections_per_ip_overrides: Sequence[tuple[bytes, int]] = (),
        idle_timeout_ms: int = 600000,
        send_buffer_bytes: int = -1,
        receive_buffer_bytes: int = -1,
        use_sendfile: bool = True,
        served: ServedPartitions | None = None,
        sessions: SessionCache | None = None,
    ) -> None:
        """With `served` and `sessions`, ordinary requests for those partitions are answered here.

        Raises ValueError, or OSError when descriptors are short."""
    def add_listener(
        self,
        fd: int,
        listener_id: int,
        *,
        may_be_fast: bool = True,
        is_exempt: bool = False,
        is_between_brokers: bool = False,
    ) -> None:
        """Accept from this listening socket (duplicated, made non-blocking). Before or after start.

        Without `may_be_fast`, every request of its clients is handed over. With `is_exempt` they
        are let in and read from beyond the limits of connections and of requests' memory. Only with
        `is_between_brokers` may followers fetch.

        Raises OSError.
        """
    def start(self) -> None: ...
    def stop(self, drain_ms: int = 0) -> None:
        """Stop accepting and reading, send queued answers for up to drain_ms, close everything.

        Joins the threads. The CLOSED events, and any other not yet taken, can still be taken.
        """
    @property
    def wake_fd(self) -> int:
        """An eventfd, readable while events wait."""
    def take(self, limit: int = 256) -> list[Event]: ...
    def respond(self, connection_id: int, pieces: Sequence[bytes | bytearray | memoryview]) -> None:
        """Queue one answer, without its length prefix (the reactor writes it), and read on.

        An unknown id is ignored, and so is an answer to nothing. Raises ValueError when the answer
        has more bytes than its prefix can say.
        """
    def skip(self, connection_id: int) -> None:
        """No answer (acks=0): read on."""
    def mute(self, connection_id: int, for_ms: int) -> None:
        """Do not read from the connection for so long (quotas); call before respond."""
    def close(self, connection_id: int, reason: str = "") -> None:
        """Close once the answers queued before are sent."""
    def knock(self) -> None:
        """Have every thread turn once more; nothing after `stop`."""
    def turns(self) -> list[int]:
        """How often each thread has looked for what is to be done."""
    def stats(self) -> ReactorStats: ...
