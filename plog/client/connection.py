"""One TCP connection to one broker: frames out, frames in, in order.

Owns the socket, the negotiation of versions (ApiVersions) and the matching of
responses to requests. Knows nothing of topics or leaders, and never retries.
One thread uses a connection at a time; only `interrupt` may come from another.
"""

from __future__ import annotations

import contextlib
import logging
import select
import socket
import struct
import time
from collections import deque
from collections.abc import Callable, Mapping
from typing import NamedTuple, TypeVar

from plog import __version__
from plog.client.answer_memory import AnswerMemory
from plog.errors import (
    ErrorCode,
    InvalidRequest,
    NetworkException,
    RequestTimedOut,
    UnsupportedVersion,
    error_for,
)
from plog.protocol import codec, framing
from plog.protocol.api_keys import ApiKey
from plog.protocol.messages.api_versions import ApiVersionsRequest, ApiVersionsResponse
from plog.protocol.schema import Struct
from plog.types import Buffer

R = TypeVar("R", bound=Struct)

log = logging.getLogger(__name__)

MAX_RESPONSE_BYTES = 1 << 30
"""A response that claims to be larger is not Kafka's protocol."""
FIRST_READ_BYTES = 8 << 20
"""The first size of a response's buffer, which doubles as bytes arrive.

Above the usual size of a fetch: growing copies the bytes, which takes a third of the reader's time.
"""
MAX_VERSION: dict[int, int] = {
    ApiKey.API_VERSIONS: 4,
    ApiKey.PRODUCE: 11,
    ApiKey.FETCH: 12,
    ApiKey.OFFSET_COMMIT: 9,
    ApiKey.FIND_COORDINATOR: 3,
    ApiKey.OFFSET_FETCH: 7,
    ApiKey.INIT_PRODUCER_ID: 4,
    ApiKey.ADD_PARTITIONS_TO_TXN: 3,
    ApiKey.ADD_OFFSETS_TO_TXN: 3,
    ApiKey.END_TXN: 3,
    ApiKey.TXN_OFFSET_COMMIT: 3,
}
"""The newest version that this client sends, where the protocol has newer ones.

ApiVersions 5 names the broker that the client expects, which this client does not check; a broker
before Kafka 4.4 would refuse it first. From 13 on, Fetch requires topic ids, which not every caller
knows (see `fetcher.send_fetch`), and so does OffsetCommit from 10 on. Later versions of
FindCoordinator and OffsetFetch ask for many groups at once, in another form. Transactions are those
of version 1: brokers send AddPartitionsToTxn 4 to each other, and later versions of the other
requests are for producers of version 2 (KIP-890).
"""
CONNECT_TIMEOUT_MS = 10_000
SAY_AFTER_MS = 5_000
"""How long a response may take before a warning names the broker that it is due from."""

_SIZE = struct.Struct(">i")
_ERROR_CODE = struct.Struct(">h")


class BrokerUnreachable(NetworkException):
    """No connection could be opened: nothing listens at the address, or its name is unknown."""


def address_of(host: str, port: int) -> str:
    """Return an address as messages name it and `bootstrap_servers` takes it."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def introduction() -> ApiVersionsRequest:
    """Return the request for versions, with this client's name and version.

    KIP-511 does not allow the "+" before a build (plog/__init__.py) in a version: brokers refuse
    such a request.
    """
    version = __version__.replace("+", "-")
    return ApiVersionsRequest(client_software_name="plog", client_software_version=version)


class _Pending(NamedTuple):
    """A request without its response; times are time.monotonic()."""

    correlation_id: int
    request: type[Struct]
    response: type[Struct]
    version: int
    sent_at: float
    deadline: float


class Connection:
    """A connection to `host:port`, opened and negotiated by the constructor.

    Args:
        host: a name or an address; IPv6 without brackets.
        client_id: what the broker's logs call this client.
        timeout_ms: how long each response may take, from the request on.
        setup_timeout_ms: how long the response to ApiVersions may take; by default, and at most,
            `timeout_ms`. Opening the connection may take as long, CONNECT_TIMEOUT_MS at most.
        opened: called with the connection once its socket is connected, before the negotiation:
            from then on another thread may `interrupt` it.

    Raises:
        BrokerUnreachable: no connection could be opened.
        NetworkException: the server at this address is not a Kafka broker.
        RequestTimedOut: the server accepts the connection, but does not answer.
    """

    def __init__(
        self,
        host: str,
        port: int,
        *,
        client_id: str = "plog",
        timeout_ms: int = 30_000,
        setup_timeout_ms: int | None = None,
        opened: Callable[[Connection], None] | None = None,
    ) -> None:
        self.peer = address_of(host, port)
        self._client_id = client_id
        self._timeout_s = min(setup_timeout_ms or timeout_ms, timeout_ms) / 1000
        self._correlation_id = 0
        self._pending: deque[_Pending] = deque()
        self._memory = AnswerMemory()
        self._ranges: dict[int, tuple[int, int]] = {}
        wait_s = min(self._timeout_s, CONNECT_TIMEOUT_MS / 1000)
        try:
            self._socket = socket.create_connection((host, port), wait_s)
        except (OSError, UnicodeError) as fault:  # UnicodeError: a name that no host can have
            why = (fault.strerror if isinstance(fault, OSError) else None) or str(fault)
            raise BrokerUnreachable(f"cannot connect to {self.peer}: {why}") from fault
        try:
            self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            self._socket.setblocking(False)
            self._readable = select.poll()
            self._readable.register(self._socket, select.POLLIN)
            self._writable = select.poll()
            self._writable.register(self._socket, select.POLLOUT)
            if opened is not None:
                opened(self)
            self._negotiate()
            self._timeout_s = timeout_ms / 1000
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        """Close the socket; unanswered requests are lost."""
        self._pending.clear()
        self._socket.close()

    def interrupt(self) -> None:
        """Make the thread that waits for a response give up with NetworkException. Thread-safe.

        The connection cannot be used afterwards; its own thread still closes it.
        """
        # It may be closed already, by either side.
        with contextlib.suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)

    def fileno(self) -> int:
        """Return the socket's descriptor for poll, -1 when closed."""
        return self._socket.fileno()

    @property
    def in_flight(self) -> int:
        """Number of requests whose responses have not been read."""
        return len(self._pending)

    @property
    def deadline(self) -> float | None:
        """When (time.monotonic()) the oldest request times out; None without a request."""
        return self._pending[0].deadline if self._pending else None

    @property
    def is_overdue(self) -> bool:
        """Whether the oldest request in flight has timed out: `receive` then raises."""
        return bool(self._pending) and time.monotonic() >= self._pending[0].deadline

    @property
    def waited_s(self) -> float:
        """How long the oldest request in flight has waited for its response; 0 without one."""
        return time.monotonic() - self._pending[0].sent_at if self._pending else 0.0

    def timed_out(self) -> RequestTimedOut:
        """Return the error for the oldest request in flight, after its deadline."""
        asked = self._pending[0]
        waited_s = asked.deadline - asked.sent_at
        return RequestTimedOut(
            f"{self.peer} did not answer {_name(asked.request)}"
            f" within {round(waited_s, 1) if waited_s >= 1 else round(waited_s, 3):g} s"
        )

    @property
    def is_usable(self) -> bool:
        """Whether a request may be sent: open, and not known to be closed by the broker.

        Brokers close idle connections; that shows as bytes to read when no response is due.
        """
        return self.fileno() >= 0 and (bool(self._pending) or not self.ready(0))

    @property
    def versions(self) -> Mapping[int, tuple[int, int]]:
        """The lowest and the highest version of each API that the broker supports, by its key."""
        return self._ranges

    def version_for(self, request: type[Struct], *, at_most: int | None = None) -> int:
        """Return the highest version that both sides support.

        Args:
            at_most: in place of MAX_VERSION's.

        Raises:
            UnsupportedVersion: there is none.
        """
        low, high = self._ranges.get(request.api.key, (0, -1))
        most = MAX_VERSION.get(request.api.key, high) if at_most is None else at_most
        best = min(high, request.api.versions.high, most)
        if best < max(low, request.api.versions.low):
            raise UnsupportedVersion(f"{self.peer} does not support {_name(request)}")
        return best

    def serves(self, request: type[Struct]) -> bool:
        """Return whether both sides support a version of a request."""
        try:
            self.version_for(request)
        except UnsupportedVersion:
            return False
        return True

    def call(
        self,
        request: Struct,
        response: type[R],
        *,
        version: int | None = None,
        wait_ms: int = 0,
        timeout_ms: int | None = None,
    ) -> R:
        """Send a request and wait for its response; no other may be in flight."""
        if self._pending:
            raise ValueError(f"{len(self._pending)} responses have not been read yet")
        self.send(request, response, version=version, wait_ms=wait_ms, timeout_ms=timeout_ms)
        try:
            self._await_answer()
            return self.receive(response)
        except BaseException:
            # By Ctrl-C, for example: the next call would read this response.
            self.close()
            raise

    def send(
        self,
        request: Struct,
        response: type[Struct] | None,
        *,
        version: int | None = None,
        wait_ms: int = 0,
        timeout_ms: int | None = None,
    ) -> None:
        """Send a request; `receive` reads its response, unless `response` is None (acks=0).

        Args:
            wait_ms: how long the request asks the broker to wait before it answers; added to the
                timeout.
            timeout_ms: how long the response may take; by default, and at most, the connection's
                `timeout_ms`.

        Raises:
            UnsupportedVersion, MalformedBytes: the request cannot be encoded; nothing was sent.
            NetworkException: the connection is lost.
            RequestTimedOut: the broker does not read the request; the connection is lost.
        """
        spoken = self.version_for(type(request)) if version is None else version
        header_id = (self._correlation_id + 1) & 0x7FFFFFFF
        header = framing.encode_request_header(
            type(request).api.key, spoken, header_id, self._client_id
        )
        body = codec.encode(request, spoken)
        self._correlation_id = header_id
        sent_at = time.monotonic()
        timeout_s = self._timeout_s
        if timeout_ms is not None:
            timeout_s = min(timeout_ms / 1000, timeout_s)
        deadline = sent_at + timeout_s + wait_ms / 1000
        self._write(
            b"".join((_SIZE.pack(len(header) + len(body)), header, body)),
            deadline,
            _name(type(request)),
        )
        if response is not None:
            self._pending.append(
                _Pending(header_id, type(request), response, spoken, sent_at, deadline)
            )

    def ready(self, timeout_ms: float) -> bool:
        """Wait until bytes of a response, or the end of the connection, can be read."""
        if self.fileno() < 0:
            return True  # `receive` then raises
        return bool(self._readable.poll(max(timeout_ms, 0)))

    def receive(self, response: type[R]) -> R:
        """Read the response to the oldest request in flight.

        Raises:
            NetworkException: the broker closed the connection or sent something else.
            RequestTimedOut: no response came in time; the connection is closed.
            ValueError: no request waits for such a response.
        """
        if not self._pending or self._pending[0].response is not response:
            raise ValueError(f"no request to {self.peer} waits for a {response.__name__}")
        asked, frame, pos = self._answer()
        try:
            answer, _ = codec.decode(response, asked.version, frame, pos)
        except InvalidRequest as fault:
            raise self._lost(f"malformed {response.__name__}: {fault}") from fault
        return answer

    def _await_answer(self) -> None:
        """Wait for the response to the only request; name the broker if it takes long."""
        asked = self._pending[0]
        left_ms = (asked.deadline - time.monotonic()) * 1000
        if left_ms > SAY_AFTER_MS and not self.ready(SAY_AFTER_MS):
            log.warning("waiting for %s to answer %s", self.peer, _name(asked.request))

    def _answer(self) -> tuple[_Pending, memoryview, int]:
        """Read the next frame; return its request, the frame and the position of its body."""
        asked = self._pending[0]
        (size,) = _SIZE.unpack(self._read(_SIZE.size, asked.deadline))
        if not 4 <= size <= MAX_RESPONSE_BYTES:
            raise self._lost(f"a response of {size} bytes; is this a Kafka broker?")
        frame = self._read(size, asked.deadline)
        try:
            correlation_id, pos = framing.decode_response_header(
                asked.response.api.key, asked.version, frame
            )
        except InvalidRequest as fault:
            raise self._lost(f"malformed response header: {fault}") from fault
        if correlation_id != asked.correlation_id:
            raise self._lost(f"correlation id {correlation_id} in place of {asked.correlation_id}")
        self._pending.popleft()
        return asked, frame, pos

    def _negotiate(self) -> None:
        """Learn the broker's versions, asking in older versions until the broker supports one."""
        version = MAX_VERSION[ApiKey.API_VERSIONS]
        while True:
            answer = self._ask_versions(version)
            if answer.error_code != ErrorCode.UNSUPPORTED_VERSION or version == 0:
                break
            served = {entry.api_key: entry.max_version for entry in answer.api_keys}
            version = max(0, min(version - 1, served.get(ApiKey.API_VERSIONS, 0)))
        if answer.error_code != ErrorCode.NONE:
            raise error_for(answer.error_code, f"{self.peer} refused ApiVersions")
        self._ranges = {e.api_key: (e.min_version, e.max_version) for e in answer.api_keys}

    def _ask_versions(self, version: int) -> ApiVersionsResponse:
        self.send(introduction(), ApiVersionsResponse, version=version)
        self._await_answer()
        asked, frame, pos = self._answer()
        # A broker that does not know our version answers in version 0 (KIP-511). Its error code
        # says so, which is at the same place in every version.
        if len(frame) - pos < _ERROR_CODE.size:
            raise self._lost(f"an ApiVersionsResponse of {len(frame) - pos} bytes")
        (error_code,) = _ERROR_CODE.unpack_from(frame, pos)
        spoken = 0 if error_code == ErrorCode.UNSUPPORTED_VERSION else asked.version
        try:
            answer, _ = codec.decode(ApiVersionsResponse, spoken, frame, pos)
        except InvalidRequest as fault:
            raise self._lost(f"malformed ApiVersionsResponse: {fault}") from fault
        return answer

    def _write(self, data: Buffer, deadline: float, what: str) -> None:
        left = memoryview(data)
        while left:
            try:
                left = left[self._socket.send(left) :]
            except BlockingIOError:
                if not self._writable.poll(max(deadline - time.monotonic(), 0) * 1000):
                    self.close()
                    raise RequestTimedOut(f"{self.peer} did not read {what} in time") from None
            except OSError as fault:
                raise self._lost(f"sending {what}: {fault.strerror or fault}") from fault

    def _read(self, size: int, deadline: float) -> memoryview:
        buffer = self._memory.take(min(size, FIRST_READ_BYTES))
        got = 0
        while got < size:
            if got == len(buffer):
                # Grow with what really arrives, not with what the length claims.
                buffer.extend(bytes(min(len(buffer), size - got)))
            try:
                with memoryview(buffer) as view:
                    count = self._socket.recv_into(view[got:size])
            except BlockingIOError:
                left_s = deadline - time.monotonic()
                if left_s <= 0 or not self._readable.poll(left_s * 1000):
                    late = self.timed_out()
                    self.close()
                    raise late from None
                continue
            except OSError as fault:
                raise self._lost(fault.strerror or str(fault)) from fault
            if count == 0:
                asked = _name(self._pending[0].request)
                raise self._lost(f"the broker closed the connection before it answered {asked}")
            got += count
        return memoryview(buffer)[:size]

    def _lost(self, why: str) -> NetworkException:
        self.close()
        return NetworkException(f"connection to {self.peer}: {why}")


def _name(request: type[Struct]) -> str:
    """Return how Kafka calls a request: Metadata, not MetadataRequest."""
    return request.__name__.removesuffix("Request")
