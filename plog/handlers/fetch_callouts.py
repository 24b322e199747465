"""The unusual partitions of a Fetch: reads them, or refuses them.

Owns the answer to the reactor. How a partition is read is decided as for a whole request (`fetch`);
the reactor knows whether that is enough, waits for more, and responds.
"""

from __future__ import annotations

import uuid

from plog._native.fetch_callout import FetchCallout, Found
from plog._native.produce_callout import LeaderEndpoint
from plog.handlers.context import Context
from plog.handlers.fetch import READ_COMMITTED, REPLICA_STATE_SINCE, Read, Reading, node_endpoints
from plog.handlers.fetch_sessions import FetchedPartition, PartitionKey
from plog.network.control_plane import Decided
from plog.protocol.messages.fetch import FetchRequest, ReplicaState


async def decide(ctx: Context, callout: FetchCallout) -> Decided:
    """Read what may be read; one partition's error leaves the others alone."""
    partitions = {
        PartitionKey(one.topic, uuid.UUID(bytes=one.topic_id), one.partition): FetchedPartition(
            one.offset, one.max_bytes, one.leader_epoch, one.last_epoch
        )
        for one in callout.asked
    }
    reading = Reading(ctx, _request(callout), partitions, is_first=callout.is_first)
    reading.look()
    if reading.cold_dir is not None:
        with ctx.connection.while_open():
            await ctx.services.replicas.disks.in_thread(reading.cold_dir, reading.read_through)
    reads = list(reading.reads.values())
    return Decided(
        outcomes=[_found(read) for read in reads],
        endpoints=[
            LeaderEndpoint(node.node_id, node.host, node.port, node.rack)
            for node in node_endpoints(ctx, reads)
        ],
    )


def _request(callout: FetchCallout) -> FetchRequest:
    """Return what the request says of all of its partitions."""
    is_new_form = callout.version >= REPLICA_STATE_SINCE
    return FetchRequest(
        replica_id=-1 if is_new_form else callout.replica_id,
        replica_state=ReplicaState(replica_id=callout.replica_id if is_new_form else -1),
        max_wait_ms=0,
        min_bytes=0,
        max_bytes=callout.max_bytes,
        isolation_level=READ_COMMITTED if callout.read_committed else 0,
        topics=[],
    )


def _found(read: Read) -> Found:
    said = read.data
    aborted = said.aborted_transactions
    return Found(
        said.error_code,
        said.records,
        said.high_watermark,
        said.last_stable_offset,
        said.log_start_offset,
        None if aborted is None else [(one.producer_id, one.first_offset) for one in aborted],
        said.diverging_epoch.epoch,
        said.diverging_epoch.end_offset,
        said.current_leader.leader_id,
        said.current_leader.leader_epoch,
    )
