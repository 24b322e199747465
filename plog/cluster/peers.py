"""What this broker asks other brokers: one attempt each, the response as a future.

Owns a thread and a connection for each broker that was asked and is still registered, and where
brokers listen. Requests to one broker go in order, each after the response to the one before. A
caller that needs more at a time has `Peers` of its own. Never retries.
"""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable
from concurrent.futures import Future
from functools import partial
from typing import TypeVar

from plog.cluster.metadata_cache import MetadataCache
from plog.cluster.peer_link import Address, PeerLink
from plog.errors import BrokerNotAvailable
from plog.protocol.schema import Struct

R = TypeVar("R", bound=Struct)


class Peers:
    """The other brokers, as one purpose reaches them. Safe from any thread.

    Args:
        listener: the name of the listener between brokers.
        purpose: names the threads.
        timeout_ms: how long a response may take.
    """

    def __init__(
        self,
        metadata: MetadataCache,
        *,
        broker_id: int,
        listener: str,
        purpose: str,
        timeout_ms: int,
    ) -> None:
        self._metadata = metadata
        self._broker_id = broker_id
        self._listener = listener
        self._purpose = purpose
        self._timeout_ms = timeout_ms
        self._lock = threading.Lock()
        self._peers: dict[int, _Peer] = {}
        self._is_closed = False
        self._follow_no_more = metadata.subscribe(lambda _: self._drop_gone())

    def ask(
        self, broker_id: int, request: Struct, response: type[R], *, at_most: int | None = None
    ) -> Future[R]:
        """Send a request to a broker; `at_most` as in `PeerLink.call`.

        The future gets BrokerNotAvailable if the broker is not known, this one stops or no thread
        can be started, and the errors of `PeerLink.call`.
        """
        future: Future[R] = Future()
        with self._lock:
            if self._is_closed:
                future.set_exception(BrokerNotAvailable("this broker stops"))
                return future
            peer = self._peers.get(broker_id)
            if peer is None:
                try:
                    self._address(broker_id)
                except BrokerNotAvailable as unknown:
                    future.set_exception(unknown)
                    return future
                link = PeerLink(
                    self._broker_id,
                    partial(self._address, broker_id),
                    timeout_ms=self._timeout_ms,
                )
                try:
                    peer = _Peer(f"{self._purpose} {broker_id}", link)
                except RuntimeError as no_thread:  # the system allows no more
                    future.set_exception(BrokerNotAvailable(str(no_thread)))
                    return future
                self._peers[broker_id] = peer
            peer.put(partial(peer.link.call, request, response, at_most=at_most), future)
        return future

    def close(self) -> None:
        """Have every question fail that is not answered, and end the threads."""
        self._follow_no_more()
        with self._lock:
            self._is_closed = True
            peers = list(self._peers.values())
        for peer in peers:
            peer.close()

    def _drop_gone(self) -> None:
        """End the threads of brokers that are not registered any more; their questions fail."""
        with self._lock:
            known = self._metadata.snapshot.brokers
            gone = [self._peers.pop(one) for one in [*self._peers] if one not in known]
        for peer in gone:
            peer.close()

    def _address(self, broker_id: int) -> Address:
        return known_address(self._metadata, self._listener, broker_id)


def known_address(metadata: MetadataCache, listener: str, broker_id: int) -> Address:
    """Return where a broker listens for other brokers. Raises BrokerNotAvailable."""
    broker = metadata.snapshot.brokers.get(broker_id)
    endpoint = None if broker is None else broker.endpoint(listener)
    if endpoint is None:
        raise BrokerNotAvailable(f"broker {broker_id} has no listener {listener} now")
    return Address(endpoint.host, endpoint.port)


class _Peer:
    """The thread of one broker. It ends when it is closed, after every question has failed."""

    def __init__(self, name: str, link: PeerLink) -> None:
        self.link = link
        self._queue: queue.SimpleQueue[tuple[Callable[[], object], Future[object]] | None] = (
            queue.SimpleQueue()
        )
        threading.Thread(target=self._run, name=name, daemon=True).start()

    def put(self, call: Callable[[], object], future: Future[R]) -> None:
        self._queue.put((call, future))  # type: ignore[arg-type]

    def close(self) -> None:
        self._queue.put(None)
        self.link.interrupt()

    def _run(self) -> None:
        while (item := self._queue.get()) is not None:
            call, future = item
            if not future.set_running_or_notify_cancel():
                continue
            try:
                future.set_result(call())
            except Exception as error:  # noqa: BLE001 - the caller gets it, of any kind
                future.set_exception(error)
        self.link.close()
