"""Find the broker that coordinates a group or a transactional id, and connect to it.

Owns the look-up (FindCoordinator), the meaning of its errors, and for administrative clients the
wait while a coordinator moves. Consumers and producers decide themselves how long they wait.
"""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Callable
from enum import IntEnum
from typing import TypeVar

from plog.client.attempts import retry
from plog.client.connection import Connection
from plog.client.metadata import Cluster, Node
from plog.errors import CoordinatorNotAvailable, ErrorCode, KafkaError, error_for
from plog.protocol.messages.groups import FindCoordinatorRequest, FindCoordinatorResponse
from plog.protocol.schema import Struct

R = TypeVar("R", bound=Struct)
T = TypeVar("T")

log = logging.getLogger(__name__)

SILENT_S = 1.0
"""How long an administrative call waits before it says so; a group's first coordinator is slow."""
MOVED = frozenset(
    {
        ErrorCode.COORDINATOR_NOT_AVAILABLE,
        ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
        ErrorCode.NOT_COORDINATOR,
    }
)
"""Errors after which the same request may succeed on another broker, or a little later."""
HINTS: dict[int, str] = {
    ErrorCode.COORDINATOR_NOT_AVAILABLE: "no broker coordinates it at the moment",
    ErrorCode.COORDINATOR_LOAD_IN_PROGRESS: "its coordinator is still loading its log",
    ErrorCode.NOT_COORDINATOR: "its coordinator is moving",
}
"""What a code means here, if the brokers send no message with it."""


class KeyType(IntEnum):
    """The type of a coordinator's keys."""

    GROUP = 0
    TRANSACTION = 1

    def named(self, key: str) -> str:
        """Return a key of this type as messages name it."""
        return f"group {key!r}" if self is KeyType.GROUP else f"transactional id {key!r}"


def find_coordinator(cluster: Cluster, kind: KeyType, key: str) -> Node:
    """Ask any broker which broker coordinates a group or a transactional id.

    Raises:
        CoordinatorNotAvailable: no broker does at the moment.
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
    if node is None:  # it left between the two responses
        raise CoordinatorNotAvailable(
            f"{kind.named(key)}: its coordinator, broker {answer.node_id}, is down"
        )
    return node


def open_coordinator(cluster: Cluster, kind: KeyType, key: str) -> Connection:
    """Return a new connection, which the caller owns. Raises as `find_coordinator` and `open`."""
    return cluster.open(find_coordinator(cluster, kind, key).node_id)


class Coordinator:
    """The coordinator of one key, with a connection that is opened for the first request.

    One thread uses it at a time; only `interrupt` may come from another.

    Args:
        connections: by broker, shared with other keys of the same thread; its own by default.
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
        self._opening_at = self._opened_at = 0.0

    def call(self, request: Struct, response: type[R]) -> R:
        """Return the coordinator's response. Raises as `find_coordinator`, `open` and `call`."""
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
        opening_at = time.monotonic()
        self._connections[node_id] = connection = self._cluster.open(node_id)
        self._opening_at, self._opened_at = opening_at, time.monotonic()
        return connection

    @property
    def _connection(self) -> Connection | None:
        return None if self._node_id is None else self._connections.get(self._node_id)

    def is_newer_than(self, other: Coordinator) -> bool:
        """Return whether this connection was begun when the other one was open already.

        Only then has the broker accepted them in this order.
        """
        return self._opening_at >= other._opened_at

    def forget(self) -> None:
        """Look the coordinator up again before the next `call`."""
        node_id, self._node_id = self._node_id, None
        connection = None if node_id is None else self._connections.pop(node_id, None)
        if connection is not None:
            connection.close()

    def interrupt(self) -> None:
        """Make the thread that waits for a response give up with NetworkException. Thread-safe."""
        connection = self._connection
        if connection is not None:
            connection.interrupt()


class Coordinators:
    """The coordinators of all keys of a type, for administrative clients. Not thread-safe.

    Owns no state: every call looks the coordinator up, and again while it is elected, loads or
    moves.

    Args:
        timeout_ms: how long a call waits for a coordinator.
    """

    def __init__(self, cluster: Cluster, kind: KeyType, *, timeout_ms: int) -> None:
        self._cluster = cluster
        self._kind = kind
        self._timeout_ms = timeout_ms

    def ask(self, key: str, ask: Callable[[Node, Connection], T]) -> T:
        """Call `ask` with a key's coordinator and return its result; again after MOVED.

        Raises:
            KafkaError: no coordinator is found in time, or `ask` raised it.
        """

        def attempt() -> T:
            node = find_coordinator(self._cluster, self._kind, key)
            return ask(node, self._cluster.connection(node.node_id))

        return self.settled(attempt, f"the coordinator of {self._kind.named(key)}")

    def settled(self, attempt: Callable[[], T], awaited: str) -> T:
        """Try again while a coordinator is elected, loads or moves.

        Args:
            awaited: names the coordinator in the warning about a longer wait.
        """
        warn_at = time.monotonic() + SILENT_S

        def warn_once(_: KafkaError) -> None:
            nonlocal warn_at
            if time.monotonic() >= warn_at:
                warn_at = math.inf
                log.warning("waiting for %s", awaited)

        return retry(
            attempt,
            timeout_s=self._timeout_ms / 1000,
            may_pass=lambda fault: fault.code in MOVED,
            before_next=warn_once,
        )
