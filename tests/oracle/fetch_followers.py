"""Fetches of followers: who may send them, and what the leader takes over from them.

Owns that each position is noted once for a request; the rules are the partition's.
"""

from __future__ import annotations

from collections.abc import Mapping

from plog.cluster.partition import Partition
from plog.handlers.context import Context
from plog.protocol.messages.fetch import FetchRequest
from tests.oracle.fetch_sessions import FetchedPartition, PartitionKey

CONSUMER = -1
LAST_EPOCH_SINCE = 12
"""In older versions a follower does not say which epoch its last batch has."""
REPLICA_STATE_SINCE = 15


class Follower:
    """The broker that fetches, and what it knows and has said by one request."""

    def __init__(
        self, broker_id: int, broker_epoch: int, came_ms: int, known: dict[PartitionKey, int]
    ) -> None:
        self._broker = broker_id, broker_epoch
        self._came_ms = came_ms
        self._known = known
        self._noted: set[PartitionKey] = set()

    @classmethod
    def of(
        cls,
        ctx: Context,
        request: FetchRequest,
        broker_id: int,
        known: dict[PartitionKey, int],
    ) -> Follower | None:
        """Return whose request it is; None: no follower's, or not by the way that they come."""
        if (
            broker_id <= CONSUMER
            or ctx.version < LAST_EPOCH_SINCE
            or not ctx.connection.listener.is_inter_broker
        ):
            return None
        is_new_form = ctx.version >= REPLICA_STATE_SINCE
        broker_epoch = request.replica_state.replica_epoch if is_new_form else -1
        return cls(broker_id, broker_epoch, ctx.services.clock.since_boot_ms(), known)

    def check(self, partition: Partition, wanted: FetchedPartition) -> None:
        """Refuse one that is no replica, or names no leader epoch."""
        partition.check_follower(*self._broker, wanted.current_leader_epoch)

    def note(self, key: PartitionKey, partition: Partition, wanted: FetchedPartition) -> None:
        """Take over where it reads on, once, if the log reaches there."""
        log = partition.log
        is_within = log.log_start_offset <= wanted.fetch_offset <= log.log_end_offset
        if key in self._noted or not is_within:
            return
        partition.note_follower(
            *self._broker,
            wanted.current_leader_epoch,
            wanted.fetch_offset,
            wanted.log_start_offset,
            self._came_ms,
        )
        self._noted.add(key)
        self._known.setdefault(key, partition.shown_to_followers)

    def has_news(self, high_watermarks: Mapping[PartitionKey, int]) -> bool:
        """Tell whether one is above what it knows."""
        return any(found > self._known.get(key, found) for key, found in high_watermarks.items())
