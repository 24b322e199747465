"""Refuses the orders of a controller that has been replaced, and orders for a process before this.

Owns the newest controller epoch this broker has seen and its own broker epoch. One
object, shared by all that takes orders; safe from any thread.
"""

from __future__ import annotations

import threading

from plog.errors import KafkaError, StaleBrokerEpoch, StaleControllerEpoch

NO_BROKER_EPOCH = -1


class ControlFence:
    """What a control request must pass before it is obeyed.

    Args:
        controller_epoch: that of the newest controller when this broker started.
    """

    def __init__(self, controller_epoch: int = 0) -> None:
        self._lock = threading.Lock()
        self._controller_epoch = controller_epoch
        self.broker_epoch = NO_BROKER_EPOCH
        """Set at every registration: the transaction that created this broker's node."""

    @property
    def controller_epoch(self) -> int:
        """The newest controller epoch seen."""
        return self._controller_epoch

    def is_beyond(self, controller_epoch: int, broker_epoch: int) -> bool:
        """Return whether a request has an epoch that this broker has not heard of yet."""
        with self._lock:
            return controller_epoch > self._controller_epoch or broker_epoch > self.broker_epoch

    def is_stale(self, controller_epoch: int, broker_epoch: int) -> bool:
        """Return whether `admit` refuses a request with these epochs."""
        with self._lock:
            return self._refusal(controller_epoch, broker_epoch) is not None

    def admit(self, controller_epoch: int, broker_epoch: int) -> None:
        """Let a request in, and remember its controller epoch.

        Raises:
            StaleControllerEpoch: a newer controller has spoken.
            StaleBrokerEpoch: it was meant for a registration before the present one.
        """
        with self._lock:
            if (refusal := self._refusal(controller_epoch, broker_epoch)) is not None:
                raise refusal
            self._controller_epoch = controller_epoch

    def _refusal(self, controller_epoch: int, broker_epoch: int) -> KafkaError | None:
        if broker_epoch != NO_BROKER_EPOCH and broker_epoch < self.broker_epoch:
            return StaleBrokerEpoch(
                f"stale broker epoch {broker_epoch}, the current one is {self.broker_epoch}"
            )
        if controller_epoch < self._controller_epoch:
            return StaleControllerEpoch(
                f"stale controller epoch {controller_epoch},"
                f" the current one is {self._controller_epoch}"
            )
        return None
