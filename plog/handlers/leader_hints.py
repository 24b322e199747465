"""Where the leader of a partition is, for a client that asked another broker (KIP-951).

Owns which refusals of Produce and Fetch name a leader.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from plog._native.callout import LeaderEndpoint
from plog.handlers.context import Context
from plog.types import NO_EPOCH, TopicPartition

NO_LEADER = -1


class Hint(NamedTuple):
    """The leader of a partition and its epoch, as a refusal names them."""

    leader_id: int = NO_LEADER
    leader_epoch: int = NO_EPOCH


NO_HINT = Hint()


def hint_of(ctx: Context, at: TopicPartition) -> Hint:
    """Return the leader of a partition, NO_HINT if it has none."""
    found = ctx.services.metadata.leader(at)
    return NO_HINT if found is None else Hint(found.leader_id, found.leader_epoch)


def endpoints_of(ctx: Context, leader_ids: Iterable[int]) -> list[LeaderEndpoint]:
    """Return the addresses of these leaders, for the client's listener."""
    named = set(leader_ids) - {NO_LEADER}
    return [
        LeaderEndpoint(node.id, node.host, node.port, node.rack)
        for node in (ctx.nodes() if named else ())
        if node.id in named
    ]
