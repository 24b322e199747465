"""Decides whether a broker obeys an order of the controller that came over the network.

Owns the connections by which orders came. An order is checked when it arrives, and again in its
turn: `admit`, then `check_in_turn`. `ControlFence` refuses epochs of earlier controllers, and of
earlier lives of this broker.
"""

from __future__ import annotations

from plog.cluster.broker_registration import BrokerRegistration
from plog.cluster.control_fence import NO_BROKER_EPOCH, ControlFence
from plog.cluster.control_requests import ControlRequest
from plog.cluster.metadata_cache import MetadataCache
from plog.errors import PlogError, StaleBrokerEpoch, StaleControllerEpoch
from plog.network.latest_connections import LatestConnections
from plog.protocol.messages.replication import UpdateMetadataRequest


class NoResponse(PlogError):
    """The order gets no response, and is not obeyed. The controller sends it again."""


class SentAgain(NoResponse):
    """The controller has sent the order again meanwhile, by a later connection."""


class OrderGate:
    """What orders pass before they are obeyed.

    Args:
        metadata: knows whether the sender is registered.
        registration: looks up epochs that the fence has not seen.
    """

    def __init__(
        self, fence: ControlFence, metadata: MetadataCache, registration: BrokerRegistration
    ) -> None:
        self._fence = fence
        self._metadata = metadata
        self._registration = registration
        self._connections = LatestConnections()

    @property
    def broker_epoch(self) -> int:
        """The epoch of this broker's registration, which orders have to name."""
        return self._fence.broker_epoch

    def admit(self, order: ControlRequest) -> None:
        """Check an order as it arrives: it has an epoch, and comes from a registered broker.

        Raises:
            StaleBrokerEpoch, StaleControllerEpoch: it is refused.
        """
        if order.broker_epoch == NO_BROKER_EPOCH:
            raise StaleBrokerEpoch("the request has no broker epoch")
        if isinstance(order, UpdateMetadataRequest):
            is_registered = any(broker.id == order.controller_id for broker in order.live_brokers)
        else:
            is_registered = order.controller_id in self._metadata.snapshot.brokers
        if not is_registered:
            raise StaleControllerEpoch(f"broker {order.controller_id} is not registered")

    def check_in_turn(self, order: ControlRequest, connection: int) -> None:
        """Look up epochs that this broker has not heard of yet, and note the connection.

        Only orders with the right epochs are noted: a forged one would have the controller's
        connection closed. The caller obeys one order at a time, and so `ControlFence` refuses stale
        epochs after this.

        Args:
            connection: by which it came; later ones have higher numbers.

        Raises:
            NoResponse: the coordination store has none like these, or they are of the process
                before this one.
            SentAgain: the controller has sent it again meanwhile.
            StoreError: the store cannot be asked.
        """
        epochs = order.controller_epoch, order.broker_epoch
        if self._fence.is_beyond(*epochs) and not self._registration.has_epochs(*epochs):
            raise NoResponse(
                f"an order of controller epoch {order.controller_epoch} for broker epoch"
                f" {order.broker_epoch}: ZooKeeper does not show one of them here yet. The"
                " controller sends it again"
            )
        if self._fence.is_stale(*epochs):
            return
        if self._connections.is_late(str(order.controller_id), connection):
            raise SentAgain("the controller has sent its orders again by a later connection")
