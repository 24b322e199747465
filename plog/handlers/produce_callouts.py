"""The unusual partitions of a Produce: appends their batches, or refuses them.

Owns the answer to the reactor. What may be appended and how is decided as for a whole request
(`produce`); the reactor waits until the batches are safe, and responds.
"""

from __future__ import annotations

from plog._native.produce_callout import LeaderEndpoint, ProduceCallout, Refusal, Written
from plog.handlers.context import Context
from plog.handlers.produce import (
    ACKS_NONE,
    Appended,
    Asked,
    append_all,
    close_on_error,
    node_endpoints,
)
from plog.network.control_plane import Decided
from plog.types import TopicPartition


async def decide(ctx: Context, callout: ProduceCallout) -> Decided:
    """Append what may be appended; one partition's error leaves the others alone.

    Raises:
        CloseConnection: one is refused, and the client wants no response.
    """
    asked = [Asked(TopicPartition(one.topic, one.partition), one.records) for one in callout.asked]
    parts = await append_all(ctx, callout.acks, callout.transactional_id, asked)
    if callout.acks == ACKS_NONE:
        close_on_error(parts)
    return Decided(
        outcomes=[_outcome(part) for part in parts],
        endpoints=[
            LeaderEndpoint(node.node_id, node.host, node.port, node.rack)
            for node in node_endpoints(ctx, parts)
        ],
    )


def _outcome(part: Appended) -> Written | Refusal:
    said = part.response
    if part.done is not None:
        return Written(part.done, said.log_append_time_ms)
    return Refusal(
        said.error_code,
        said.error_message,
        [(error.batch_index, error.batch_index_error_message) for error in said.record_errors],
        said.log_start_offset,
        said.current_leader.leader_id,
        said.current_leader.leader_epoch,
    )
