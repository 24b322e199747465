"""How the controller reaches a broker: the interface, and the way inside one process.

A channel keeps the order of what is sent through it. Never decides anything; what is
refused comes back as an error code in the response.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from functools import partial
from typing import Protocol

from plog.cluster import control_requests
from plog.cluster.control_requests import ControlRequest, ControlResponse
from plog.cluster.controller_context import LiveBroker
from plog.cluster.metadata_cache import MetadataCache
from plog.cluster.replica_manager import ReplicaManager
from plog.protocol.messages.replication import (
    LeaderAndIsrRequest,
    StopReplicaRequest,
    UpdateMetadataRequest,
)


class BrokerChannel(Protocol):
    """Carries requests to one broker, in order, until closed.

    `send` and `close` are called on the controller's thread. `on_response` may run on any
    thread, during `send` or later, and must only enqueue; after `close` it is not called.
    """

    def send(self, request: ControlRequest, on_response: Callable[[ControlResponse], None]) -> None:
        """Send a request; a network channel retries until the broker answers or is gone."""
        ...

    @property
    def is_answered(self) -> bool:
        """Whether the broker has answered all requests. Any thread may ask."""
        ...

    def close(self) -> None:
        """Give up what is not answered yet."""
        ...


ChannelFactory = Callable[[LiveBroker], BrokerChannel]


class InProcessChannel:
    """Hands requests to the broker in whose process the controller runs."""

    def __init__(self, replica_manager: ReplicaManager, metadata_cache: MetadataCache) -> None:
        self._replica_manager = replica_manager
        self._metadata_cache = metadata_cache

    def send(self, request: ControlRequest, on_response: Callable[[ControlResponse], None]) -> None:
        """Have the request done before returning."""
        match request:
            case LeaderAndIsrRequest(type=control_requests.DRAIN):
                # It waits for followers, and the controller has other work.
                drain = partial(self._obey, request, on_response)
                threading.Thread(target=drain, name="drain", daemon=True).start()
            case LeaderAndIsrRequest():
                self._obey(request, on_response)
            case UpdateMetadataRequest():
                on_response(self._metadata_cache.apply(request))
            case StopReplicaRequest():
                on_response(self._replica_manager.apply_stop_replica(request))

    def _obey(
        self, request: LeaderAndIsrRequest, on_response: Callable[[ControlResponse], None]
    ) -> None:
        on_response(self._replica_manager.apply_leader_and_isr(request))

    @property
    def is_answered(self) -> bool:
        """Nothing waits."""
        return True

    def close(self) -> None:
        """Nothing waits."""
