"""kazoo's client, as the store on ZooKeeper uses it.

Owns how often servers are tried, and for how long the servers keep the session: they may give
another time than a broker asks for, which kazoo does not keep. No request blocks its caller.
"""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Sequence
from typing import Any, Final, NamedTuple

from kazoo.client import KazooClient
from kazoo.handlers.threading import SequentialThreadingHandler
from kazoo.protocol.connection import CLOSE_RESPONSE, ConnectionHandler
from kazoo.protocol.serialization import Connect
from kazoo.retry import KazooRetry
from kazoo.security import ACL, CREATOR_ALL_ACL, READ_ACL_UNSAFE

from plog.settings.definitions import BrokerSettings
from plog.settings.listeners import Address, format_address

_quiet = logging.getLogger("plog.cluster.kazoo")
_quiet.setLevel(logging.ERROR)
"""kazoo's own lines: one for each attempt to connect. The store says what matters of them."""

ATTEMPTS_IN_A_SESSION = 3
"""How often a server that does not answer is tried, at least, before the session is over."""
RECONNECT_S = 0.1


class Session(NamedTuple):
    """What another process needs to take a session over. The password is a secret."""

    id: int
    password: bytes


class Access(NamedTuple):
    """The user that a broker is to ZooKeeper, and the rights to its nodes."""

    digest: str = ""
    """User and password, user:password; empty: no user."""
    protects_nodes: bool = False
    """Only this user may change the nodes that it creates; others may read them."""

    @classmethod
    def of(cls, settings: BrokerSettings) -> Access:
        """Return what a broker's settings say."""
        digest = settings.zookeeper_digest
        return cls("" if digest is None else digest.reveal(), settings.zookeeper_set_acl)

    @property
    def auth(self) -> list[tuple[str, str]]:
        """What kazoo authenticates by."""
        return [("digest", self.digest)] if self.digest else []

    @property
    def acl(self) -> list[ACL] | None:
        """The rights that new nodes get; None: every client may do everything."""
        if not self.protects_nodes:
            return None
        return [*CREATOR_ALL_ACL, *READ_ACL_UNSAFE]


OPEN: Final = Access()


class Client(KazooClient):  # type: ignore[misc]  # it has no types
    """A client of ZooKeeper.

    Args:
        servers: the servers of one ensemble.
        timeout_s: for how long they are asked to keep the session while it is silent.
        session: one to take over.
    """

    def __init__(
        self,
        servers: Sequence[Address],
        timeout_s: float,
        access: Access = OPEN,
        session: tuple[int, bytes] | None = None,
    ) -> None:
        # A server that starts leaves a connection without a response, and `_Connection` waits for
        # it for a part of the session's time: a server alone is named again.
        times = -(-ATTEMPTS_IN_A_SESSION // len(servers))
        super().__init__(
            hosts=",".join(format_address(server) for server in [*servers] * times),
            handler=_Handler(),
            timeout=timeout_s,
            client_id=session,
            auth_data=access.auth,
            default_acl=access.acl,
            connection_retry=KazooRetry(max_tries=-1, delay=RECONNECT_S, max_delay=1.0),
            logger=_quiet,
        )
        self.has_ended_session = False
        """Whether a server has answered the end of the session."""
        self._connection = _Connection(self, self._conn_retry.copy(), logger=self.logger)
        self.note_session_timeout(round(timeout_s * 1000))

    def note_session_timeout(self, timeout_ms: int) -> None:
        """Note for how long the servers keep the session while it is silent."""
        self.session_timeout_ms = timeout_ms
        self.handler.connect_s = self.attempt_s

    @property
    def attempt_s(self) -> float:
        """How long one server is tried: a part of the session's time, not all of it."""
        return float(self.session_timeout_ms) / 1000 / len(self.hosts)


class _Connection(ConnectionHandler):  # type: ignore[misc]  # it has no types
    def _invoke(self, timeout: float, request: Any, xid: int | None = None) -> Any:
        if not isinstance(request, Connect):
            return super()._invoke(timeout, request, xid)
        response, zxid = super()._invoke(min(timeout, self.client.attempt_s), request, xid)
        if response.time_out > 0:  # otherwise the session has expired
            self.client.note_session_timeout(response.time_out)
        return response, zxid

    def _read_response(self, header: Any, buffer: bytes, offset: int) -> Any:
        response = super()._read_response(header, buffer, offset)
        if response == CLOSE_RESPONSE:
            self.client.has_ended_session = True
        return response


class _Handler(SequentialThreadingHandler):  # type: ignore[misc]  # it has no types
    """kazoo's threads. A host that is off is tried for `connect_s`."""

    connect_s: float

    def create_connection(self, *args: Any, timeout: float, **options: Any) -> Any:
        """Connect to a server."""
        return super().create_connection(*args, timeout=min(timeout, self.connect_s), **options)

    def create_socket_pair(self) -> tuple[_WakeUp, _WakeUp]:
        """Return the two ends by which callers wake kazoo's thread."""
        wake_up = _WakeUp()
        return wake_up, wake_up


class _WakeUp:
    """Both ends of kazoo's socket pair: it sends a byte for each request, and receives that again.

    A socket has room for 278 bytes, and then blocks the callers for as long as there is no
    connection. This counts the bytes instead.
    """

    def __init__(self) -> None:
        self._fd = os.eventfd(0, os.EFD_SEMAPHORE | os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        # A late send must not write to another file, which has got the descriptor since.
        self._lock = threading.Lock()

    def fileno(self) -> int:
        """Return what kazoo's thread waits for."""
        return self._fd

    def send(self, data: bytes) -> int:
        """Add bytes. Raises OSError: it is closed."""
        with self._lock:
            os.eventfd_write(self._fd, len(data))
        return len(data)

    def recv(self, size: int) -> bytes:
        """Take one byte: kazoo asks for no more. Raises BlockingIOError: there is none."""
        assert size == 1
        os.eventfd_read(self._fd)
        return b"\0"

    def close(self) -> None:
        """Close it. Twice is once."""
        with self._lock:
            fd, self._fd = self._fd, -1
            if fd >= 0:
                os.close(fd)
