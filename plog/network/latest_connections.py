"""The connections by which other brokers send orders and markers, to recognise late ones.

A broker that gets no response sends again, by a new connection. What it sent first may still wait
in a socket of this broker: an order would delete the log of a topic that was created again
meanwhile, a marker would end the producer's next transaction if that has the same epoch (before
KIP-890). So once a sender has used a connection, what comes by an earlier one is late. Pure, and
without memory over a restart: sockets do not survive one. The memory is bounded, as a program that
is no broker may use any number of names.
"""

from __future__ import annotations

from typing import Final

MAX_SENDERS: Final = 1_000
"""More than a cluster has brokers. The sender that was silent for longest is forgotten."""


class LatestConnections:
    """The latest connection of each sender. Later connections have higher numbers."""

    def __init__(self) -> None:
        self._latest: dict[str, int] = {}

    def is_late(self, sender: str, connection: int) -> bool:
        """Return whether a request has been sent again meanwhile; note its connection if not."""
        latest = self._latest.pop(sender, 0)
        self._latest[sender] = max(latest, connection)  # the last one: dicts keep their order
        if len(self._latest) > MAX_SENDERS:
            del self._latest[next(iter(self._latest))]
        return connection < latest
