"""Which broker coordinates a group or a transactional id, and a connection to it.

Owns the look-up (FindCoordinator), what its refusals mean, and for administrators the wait while a
coordinator moves; who works with one alone decides by itself how long it waits.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from enum import IntEnum
from typing import TypeVar

from plog.client.connection import Connection
from plog.client.metadata import Cluster, Node
from plog.errors import CoordinatorNotAvailable, ErrorCode, KafkaError, error_for
from plog.protocol.messages.groups import FindCoordinatorRequest, FindCoordinatorResponse
from plog.protocol.schema import Struct

R = TypeVar("R", bound=Struct)
T = TypeVar("T")

RETRY_BACKOFF_S = 0.1
"""How long to wait for a coordinator that is chosen, loads or moves, before it is asked again."""
MOVED = frozenset(
    {
        ErrorCode.COORDINATOR_NOT_AVAILABLE,
        ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
        ErrorCode.NOT_COORDINATOR,
    }
)
"""Errors after which the same request may do on another broker, or a little later."""
HINTS: dict[int, str] = {
    ErrorCode.COORDINATOR_NOT_AVAILABLE: "no broker coordinates it at the moment",
    ErrorCode.COORDINATOR_LOAD_IN_PROGRESS: "its coordinator is still reading what it knows",
    ErrorCode.NOT_COORDINATOR: "its coordinator is moving",
}
"""What a code means here, where the brokers send no words with it."""


class KeyType(IntEnum):
    """What a coordinator is asked for."""

    GROUP = 0
    TRANSACTION = 1

    def named(self, key: str) -> str:
        """Return how messages call a key of this type."""
        return f"group {key!r}" if self is KeyType.GROUP else f"transactional id {key!r}"


def find_coordinator(cluster: Cluster, kind: KeyType, key: str) -> Node:
    """Ask any broker who coordinates a group or a transactional id.

    Raises:
        CoordinatorNotAvailable: nobody does at the moment.
        KafkaError: another refusal, or no broker answers.
    """
    answer = cluster.ask_any(
        FindCoordinatorRequest(key=key, key_type=kind), FindCoordinatorResponse
    )
    code = answer.error_code
    if code != ErrorCode.NONE:
        why = answer.error_message or HINTS.get(code) or error_for(code)
        raise error_for(code, f"{kind.named(key)}: {why}")
    node = cluster.nodes.get(answer.node_id)
    if node is None or (node.host, node.port) != (answer.host, answer.port):
        cluster.refresh([])
        node = cluster.nodes.get(answer.node_id)
    if node is None:  # it left between the two answers
        raise CoordinatorNotAvailable(
            f"{kind.named(key)}: its coordinator, broker {answer.node_id}, is away"
        )
    return node


def open_coordinator(cluster: Cluster, kind: KeyType, key: str) -> Connection:
    """Return a new connection of the caller's own. Raises as `find_coordinator`, and `open`."""
    return cluster.open(find_coordinator(cluster, kind, key).node_id)


class Coordinator:
    """The coordinator of one key, with a connection that is opened when it is first asked.

    One thread uses it at a time; `interrupt` alone may come from another.

    Args:
        connections: by broker, shared with other keys of the same thread; its own by default.

    Attributes:
        opened_at: when (time.monotonic()) the connection was opened last.
    """

    def __init__(
        self,
        cluster: Cluster,
        kind: KeyType,
        key: str,
        connections: dict[int, Connection] | None = None,
    ) -> None:
        self._cluster = cluster
        self._kind, self._key = kind, key
        self._connections = {} if connections is None else connections
        self._node_id: int | None = None
        self.opened_at = 0.0

    def call(self, request: Struct, response: type[R]) -> R:
        """Ask it something. Raises as `find_coordinator`, `open`, and when it does not answer."""
        connection = self._connection
        if connection is None or not connection.is_usable:
            connection = self._connect()
        return connection.call(request, response)

    def _connect(self) -> Connection:
        self.forget()
        node_id = find_coordinator(self._cluster, self._kind, self._key).node_id
        self._node_id = node_id
        connection = self._connection
        if connection is not None and connection.is_usable:
            return connection
        if connection is not None:
            connection.close()
        self._connections[node_id] = connection = self._cluster.open(node_id)
        self.opened_at = time.monotonic()
        return connection

    @property
    def _connection(self) -> Connection | None:
        return None if self._node_id is None else self._connections.get(self._node_id)

    def forget(self) -> None:
        """Look for it again before the next `call`."""
        node_id, self._node_id = self._node_id, None
        connection = None if node_id is None else self._connections.pop(node_id, None)
        if connection is not None:
            connection.close()

    def interrupt(self) -> None:
        """Make the thread that waits for an answer give up with NetworkException. Thread-safe."""
        connection = self._connection
        if connection is not None:
            connection.interrupt()


class Coordinators:
    """The coordinators of all keys of a type, for who asks about many. Not thread-safe.

    Owns no state: every call looks for the coordinator anew, and again while one is chosen, loads
    or moves.

    Args:
        timeout_ms: how long a call waits for a coordinator.
    """

    def __init__(self, cluster: Cluster, kind: KeyType, *, timeout_ms: int) -> None:
        self._cluster = cluster
        self._kind = kind
        self._timeout_ms = timeout_ms

    def ask(self, key: str, ask: Callable[[Node, Connection], T]) -> T:
        """Return what `ask` makes of a key's coordinator; it is called again after MOVED.

        Raises:
            KafkaError: no coordinator is found in time, or what `ask` raised.
        """

        def attempt() -> T:
            node = find_coordinator(self._cluster, self._kind, key)
            return ask(node, self._cluster.connection(node.node_id))

        return self.settled(attempt)

    def settled(self, attempt: Callable[[], T]) -> T:
        """Try again while a coordinator is chosen, loads or moves."""
        deadline = time.monotonic() + self._timeout_ms / 1000
        while True:
            try:
                return attempt()
            except KafkaError as fault:
                if fault.code not in MOVED or time.monotonic() >= deadline:
                    raise
            time.sleep(RETRY_BACKOFF_S)
