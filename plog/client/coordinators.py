"""Finds the brokers that coordinate groups or transactional ids, and asks them.

Owns no state: every call looks for the coordinator anew, and again while one is chosen, loads or
moves. What is asked, and what an answer means, is its callers' business.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import TypeVar

from plog.client.connection import Connection
from plog.client.metadata import Cluster, Node
from plog.errors import ErrorCode, KafkaError, error_for
from plog.protocol.messages.groups import FindCoordinatorRequest, FindCoordinatorResponse

T = TypeVar("T")

GROUP, TRANSACTION = 0, 1
"""What FindCoordinator is asked about."""
MOVED = frozenset(
    {
        ErrorCode.COORDINATOR_NOT_AVAILABLE,
        ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
        ErrorCode.NOT_COORDINATOR,
    }
)
"""Errors after which the same request may do on another broker, or a little later."""
RETRY_BACKOFF_S = 0.1
HINTS: Mapping[int, str] = {
    ErrorCode.COORDINATOR_NOT_AVAILABLE: "no broker coordinates it at the moment",
    ErrorCode.COORDINATOR_LOAD_IN_PROGRESS: "its coordinator is still reading what it knows",
    ErrorCode.NOT_COORDINATOR: "its coordinator is moving",
}
"""What a code means here, where the brokers send no words with it."""


class Coordinators:
    """The coordinators of one kind of keys. Not thread-safe, as its cluster is not.

    Args:
        key_type: GROUP or TRANSACTION.
        kind: what errors call a key, such as "group".
        timeout_ms: how long a call waits for a coordinator.
    """

    def __init__(self, cluster: Cluster, key_type: int, kind: str, *, timeout_ms: int) -> None:
        self._cluster = cluster
        self._key_type = key_type
        self._kind = kind
        self._timeout_ms = timeout_ms

    def ask(self, key: str, ask: Callable[[Node, Connection], T]) -> T:
        """Return what `ask` makes of a key's coordinator; it is called again after MOVED.

        Raises:
            KafkaError: no coordinator is found in time, or what `ask` raised.
        """

        def attempt() -> T:
            node = self._find(key)
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

    def _find(self, key: str) -> Node:
        what = f"{self._kind} {key!r}"
        answer = self._cluster.ask_any(
            FindCoordinatorRequest(key=key, key_type=self._key_type), FindCoordinatorResponse
        )
        code = answer.error_code
        if code != ErrorCode.NONE:
            why = answer.error_message or HINTS.get(code) or error_for(code)
            raise error_for(code, f"{what}: {why}")
        if answer.node_id not in self._cluster.nodes:
            self._cluster.refresh([])
        node = self._cluster.nodes.get(answer.node_id)
        if node is None:  # it left between the two answers
            raise error_for(
                ErrorCode.COORDINATOR_NOT_AVAILABLE,
                f"{what}: its coordinator, broker {answer.node_id}, is away",
            )
        return node
