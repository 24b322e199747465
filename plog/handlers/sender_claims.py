"""What a request between brokers claims of its sender, read before its body is decoded.

Where one listener serves brokers and clients, clients must not get the privileges of brokers: a
place before all other requests, and larger requests. Without authentication every claim can be
forged. An order of the controller proves the most: it has the epoch of this broker's registration,
which no response to a client contains. All other requests have the client id alone.
"""

from __future__ import annotations

import struct
from collections.abc import Collection, Mapping
from typing import Final, NamedTuple

from plog.cluster.control_fence import NO_BROKER_EPOCH
from plog.cluster.peer_link import broker_of
from plog.protocol.api_keys import ApiKey
from plog.protocol.framing import RequestHeader

KRAFT_SINCE: Final[Mapping[int, int]] = {
    ApiKey.LEADER_AND_ISR: 7,
    ApiKey.STOP_REPLICA: 4,
    ApiKey.UPDATE_METADATA: 8,
}
"""The orders. From these versions on a Boolean stands before the epochs: `is_kraft_controller`."""
_EPOCHS: Final = struct.Struct(">iiq")
_EPOCHS_WITH_KRAFT: Final = struct.Struct(">i?iq")


class SenderClaims(NamedTuple):
    """What this broker knows, to compare claims with."""

    broker_epoch: int
    brokers: Collection[int]
    """Those that are registered."""

    def is_order(self, header: RequestHeader, frame: memoryview, pos: int) -> bool:
        """Return whether a request is an order for this registration of this broker."""
        since = KRAFT_SINCE.get(header.api_key)
        if since is None or self.broker_epoch == NO_BROKER_EPOCH:
            return False
        form = _EPOCHS_WITH_KRAFT if header.api_version >= since else _EPOCHS
        if len(frame) - pos < form.size:
            return False
        return bool(form.unpack_from(frame, pos)[-1] == self.broker_epoch)

    def is_of_broker(self, header: RequestHeader, frame: memoryview, pos: int) -> bool:
        """Return whether a request is an order, or names a registered broker as its sender."""
        if header.api_key in KRAFT_SINCE:
            return self.is_order(header, frame, pos)
        return broker_of(header.client_id or "") in self.brokers
