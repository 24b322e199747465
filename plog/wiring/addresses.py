"""The addresses of a broker: bound before anything is loaded, listened on when it can serve.

Owns the sockets of the listeners and of the metrics page, and the pages' server. Never accepts a
client: the reactor does.
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Awaitable, Callable, Sequence
from contextlib import AsyncExitStack
from typing import TYPE_CHECKING

from plog.cluster.features import SUPPORTED
from plog.cluster.znodes import BrokerNode, Endpoint
from plog.network.listeners import BoundListener, bind, bind_listeners, cap_by_address, listen
from plog.settings.definitions import BrokerSettings
from plog.settings.listeners import Address

if TYPE_CHECKING:
    from plog.ops.pages.broker_pages import BrokerPages

METRICS_LISTENER = "metrics.listener"
METRICS_BACKLOG = 8


class Addresses:
    """Where a broker is reached.

    Args:
        undo: gets what closes the sockets again.
    """

    def __init__(self, settings: BrokerSettings, undo: AsyncExitStack) -> None:
        self._settings = settings
        self._undo = undo
        self.listeners = settings.parsed_listeners()
        self.bound: list[BoundListener] = []
        """The listeners with their ports, once claimed."""
        self.pages: BrokerPages | None = None
        """The pages, if settings name an address for them."""
        self.caps: Sequence[tuple[bytes, int]] = ()
        """The most connections of single addresses."""

    @property
    def inter_broker_listener(self) -> str:
        """The name of the listener by which brokers reach each other."""
        return self._settings.inter_broker_name()

    def claim(
        self,
        *,
        network_answers: Callable[[float], Awaitable[bool]],
        progress: Callable[[], object],
        log_dirs_left: Callable[[], int],
    ) -> None:
        """Bind every address, or say at once that one cannot be had; serve the metrics' address.

        Hosts that settings cap are resolved for the same reason. No client is accepted: until the
        broker is ready, clients are refused and try again, instead of waiting in a backlog for as
        long as a recovery takes. The arguments are those of `Probes`.

        Raises:
            ConfigError: an address is in use, not this host's, or not resolvable.
        """
        address = self._settings.metrics_listener
        if address is not None:
            metrics = self._bind_metrics(address)
            # Imported only by brokers that serve the pages.
            from plog.ops.pages.broker_pages import BrokerPages
            from plog.ops.pages.probes import Probes

            probes = Probes(
                asyncio.get_running_loop(),
                network_answers=network_answers,
                progress=progress,
                log_dirs_left=log_dirs_left,
            )
            self.pages = BrokerPages(metrics, probes)
            self.pages.start()
            self._undo.push_async_callback(asyncio.to_thread, self.pages.stop)
        self.bound = bind_listeners(self.listeners)
        self._undo.callback(self.close)
        self.caps = cap_by_address(self._settings.max_connections_per_ip_overrides)

    def _bind_metrics(self, address: Address) -> socket.socket:
        metrics = bind(METRICS_LISTENER, address.host, address.port)
        self._undo.callback(metrics.close)
        listen(METRICS_LISTENER, metrics, METRICS_BACKLOG)
        return metrics

    def close(self) -> None:
        """Close the sockets of the listeners."""
        for one in self.bound:
            one.socket.close()

    def broker_node(self, timestamp_ms: int) -> BrokerNode:
        """Return what the registration says of this broker."""
        return BrokerNode(
            endpoints=tuple(
                Endpoint(
                    one.name,
                    one.advertised_host,
                    one.advertised_port,
                    one.security_protocol.value,
                )
                for one, _ in self.bound
                if one.is_advertised
            ),
            timestamp_ms=timestamp_ms,
            rack=self._settings.broker_rack,
            features=SUPPORTED,
        )
