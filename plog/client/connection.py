"""One TCP connection to one broker: frames out, frames in, in order.

Owns the socket, the negotiation of versions (ApiVersions) and the matching of
answers to requests. Knows nothing of topics or leaders, and never retries.
One thread uses a connection at a time; `interrupt` alone may come from another.
"""

from __future__ import annotations

import contextlib
import select
import socket
import struct
import time
from collections import deque
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

LARGEST_ANSWER = 1 << 30
"""An answer that claims to be larger is not Kafka's protocol."""
FIRST_READ_BYTES = 8 << 20
"""Memory for an answer begins here and doubles with what really arrives.

Above the usual size of a fetch: to grow costs a copy, which is a third of the reader's time.
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
"""Where this client stays below what it could speak.

ApiVersions 5 names the broker that the client expects, which this client does not check; a broker
before Kafka 4.4 would refuse it first. From 13 on, Fetch wants topic ids, which not all know who
ask (see `fetcher.send_fetch`), and so does OffsetCommit from 10 on; later versions of
FindCoordinator and OffsetFetch ask for many groups at once, in another form. Transactions are those
of version 1: AddPartitionsToTxn 4 is what brokers ask each other, and later versions of the others
are for the producers of version 2 (KIP-890).
"""
CONNECT_TIMEOUT_MS = 10_000

_SIZE = struct.Struct(">i")
_ERROR_CODE = struct.Struct(">h")


class BrokerUnreachable(NetworkException):
    """No connection could be opened: nobody listens there, or the name is unknown."""


def introduction() -> ApiVersionsRequest:
    """Return the request for versions, which says what asks.

    The "+" before a build (plog/__init__.py) is none of what KIP-511 allows in a version, and
    brokers refuse whoever sends it.
    """
    version = __version__.replace("+", "-")
    return ApiVersionsRequest(client_software_name="plog", client_software_version=version)


class _Pending(NamedTuple):
    correlation_id: int
    response: type[Struct]
    version: int
    deadline: float  # time.monotonic()


class Connection:
    """A connection to `host:port`, opened and negotiated by the constructor.

    Args:
        host: a name or an address; IPv6 without brackets.
        client_id: what the broker's logs call this client.
        timeout_ms: how long each answer may take, from the request on.
        connect_timeout_ms: how long opening the connection may take.

    Raises:
        BrokerUnreachable: nobody answers at this address.
        NetworkException: whoever answers is no broker.
        RequestTimedOut: it accepts the connection and then says nothing.
    """

    def __init__(
        self,
        host: str,
        port: int,
        *,
        client_id: str = "plog",
        timeout_ms: int = 30_000,
        connect_timeout_ms: int = CONNECT_TIMEOUT_MS,
    ) -> None:
        self.peer = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
        self._client_id = client_id
        self._timeout_s = timeout_ms / 1000
        self._correlation_id = 0
        self._pending: deque[_Pending] = deque()
        self._memory = AnswerMemory()
        self._ranges: dict[int, tuple[int, int]] = {}
        wait_s = min(connect_timeout_ms, timeout_ms) / 1000
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
            self._negotiate()
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        """Close the socket; unanswered requests are lost."""
        self._pending.clear()
        self._socket.close()

    def interrupt(self) -> None:
        """Make the thread that waits for an answer give up with NetworkException. Thread-safe.

        The connection is of no more use; its own thread still closes it.
        """
        # It may be closed already, by either side.
        with contextlib.suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)

    def fileno(self) -> int:
        """Return the socket's descriptor for poll, -1 when closed."""
        return self._socket.fileno()

    @property
    def in_flight(self) -> int:
        """Number of requests whose answers have not been read."""
        return len(self._pending)

    @property
    def deadline(self) -> float | None:
        """When (time.monotonic()) the oldest answer is overdue; None with none to come."""
        return self._pending[0].deadline if self._pending else None

    @property
    def is_usable(self) -> bool:
        """Whether a request may be sent: open, and not known to be closed by the broker.

        Brokers close idle connections; that shows as bytes to read when no answer is due.
        """
        return self.fileno() >= 0 and (bool(self._pending) or not self.ready(0))

    def version_for(self, request: type[Struct], *, at_most: int | None = None) -> int:
        """Return the highest version both sides speak.

        Args:
            at_most: in place of MAX_VERSION's.

        Raises:
            UnsupportedVersion: there is none.
        """
        low, high = self._ranges.get(request.api.key, (0, -1))
        most = MAX_VERSION.get(request.api.key, high) if at_most is None else at_most
        best = min(high, request.api.versions.high, most)
        if best < max(low, request.api.versions.low):
            raise UnsupportedVersion(f"{self.peer} does not serve {request.__name__}")
        return best

    def serves(self, request: type[Struct]) -> bool:
        """Tell whether there is a version of a request that both sides speak."""
        try:
            self.version_for(request)
        except UnsupportedVersion:
            return False
        return True

    def call(
        self, request: Struct, response: type[R], *, version: int | None = None, wait_ms: int = 0
    ) -> R:
        """Send a request and wait for its answer; no other may be in flight."""
        if self._pending:
            raise ValueError(f"{len(self._pending)} answers are still to be read")
        self.send(request, response, version=version, wait_ms=wait_ms)
        try:
            return self.receive(response)
        except BaseException:
            # By Ctrl-C, say: its answer would be taken for the next one's.
            self.close()
            raise

    def send(
        self,
        request: Struct,
        response: type[Struct] | None,
        *,
        version: int | None = None,
        wait_ms: int = 0,
    ) -> None:
        """Send a request; its answer is read by `receive`, unless `response` is None (acks=0).

        Args:
            wait_ms: how long the request asks the broker to wait before it answers; comes on top
                of the time an answer may take.

        Raises:
            UnsupportedVersion, MalformedBytes: the request cannot be encoded; nothing was sent.
            NetworkException: the connection is lost.
            RequestTimedOut: the broker does not read; the connection is lost.
        """
        spoken = self.version_for(type(request)) if version is None else version
        header_id = (self._correlation_id + 1) & 0x7FFFFFFF
        header = framing.encode_request_header(
            type(request).api.key, spoken, header_id, self._client_id
        )
        body = codec.encode(request, spoken)
        self._correlation_id = header_id
        deadline = time.monotonic() + self._timeout_s + wait_ms / 1000
        self._write(
            b"".join((_SIZE.pack(len(header) + len(body)), header, body)),
            deadline,
            type(request).__name__,
        )
        if response is not None:
            self._pending.append(_Pending(header_id, response, spoken, deadline))

    def ready(self, timeout_ms: float) -> bool:
        """Wait until bytes of an answer, or the end of the connection, are there."""
        if self.fileno() < 0:
            return True  # `receive` then says so
        return bool(self._readable.poll(max(timeout_ms, 0)))

    def receive(self, response: type[R]) -> R:
        """Read the answer to the oldest request in flight.

        Raises:
            NetworkException: the broker closed the connection or sent something else.
            RequestTimedOut: no answer came in time; the connection is closed.
            ValueError: no such answer is due.
        """
        if not self._pending or self._pending[0].response is not response:
            raise ValueError(f"no {response.__name__} is due from {self.peer}")
        asked, frame, pos = self._answer()
        try:
            answer, _ = codec.decode(response, asked.version, frame, pos)
        except InvalidRequest as fault:
            raise self._lost(f"malformed {response.__name__}: {fault}") from fault
        return answer

    def _answer(self) -> tuple[_Pending, memoryview, int]:
        """Read the next frame; return what it answers, the frame and where its body begins."""
        asked = self._pending[0]
        (size,) = _SIZE.unpack(self._read(_SIZE.size, asked.deadline))
        if not 4 <= size <= LARGEST_ANSWER:
            raise self._lost(f"an answer of {size} bytes; is that a Kafka broker?")
        frame = self._read(size, asked.deadline)
        try:
            correlation_id, pos = framing.decode_response_header(
                asked.response.api.key, asked.version, frame
            )
        except InvalidRequest as fault:
            raise self._lost(f"malformed response header: {fault}") from fault
        if correlation_id != asked.correlation_id:
            raise self._lost(f"answer {correlation_id} came where {asked.correlation_id} was due")
        self._pending.popleft()
        return asked, frame, pos

    def _negotiate(self) -> None:
        """Learn the broker's versions, asking in ever older versions until one is understood."""
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
        asked, frame, pos = self._answer()
        # A broker that does not know our version answers in version 0 (KIP-511), and says so
        # in the error code, which is at the same place in every version.
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
                    raise RequestTimedOut(f"{self.peer} does not take {what}") from None
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
                    self.close()
                    raise RequestTimedOut(f"no answer from {self.peer} in time") from None
                continue
            except OSError as fault:
                raise self._lost(fault.strerror or str(fault)) from fault
            if count == 0:
                raise self._lost("the broker closed the connection")
            got += count
        return memoryview(buffer)[:size]

    def _lost(self, why: str) -> NetworkException:
        self.close()
        return NetworkException(f"connection to {self.peer}: {why}")
