"""Requests between brokers: the controller's orders, and what brokers ask the controller.

LeaderAndIsr, UpdateMetadata, StopReplica, ControlledShutdown, AlterPartition, AllocateProducerIds.
They are accepted on the listener between brokers only (`registry.handles`). `OrderGate` checks the
orders. They are obeyed in a thread of their own, in the order in which they came: they write files
and wait for disks.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TypeVar

from plog.cluster.control_requests import ControlRequest
from plog.cluster.order_gate import NoResponse
from plog.cluster.replication.alter_partition_messages import (
    TOPIC_IDS_SINCE,
    proposed_in,
    response_of,
)
from plog.cluster.store import SessionLost, Unreachable
from plog.errors import ErrorCode, KafkaError, NotController
from plog.handlers.context import Context
from plog.handlers.registry import handles
from plog.network.control_plane import CloseConnection
from plog.protocol.messages.producers import (
    AllocateProducerIdsRequest,
    AllocateProducerIdsResponse,
)
from plog.protocol.messages.replication import (
    AlterPartitionRequest,
    AlterPartitionResponse,
    AlterPartitionTopic,
    ControlledShutdownRequest,
    ControlledShutdownResponse,
    LeaderAndIsrRequest,
    LeaderAndIsrResponse,
    RemainingPartition,
    StopReplicaRequest,
    StopReplicaResponse,
    UpdateMetadataRequest,
    UpdateMetadataResponse,
)

A = TypeVar("A", bound=ControlRequest)
B = TypeVar("B")


# -- orders of the controller ----------------------------------------------------------------------


@handles(LeaderAndIsrRequest, versions="5-7", between_brokers=True)
async def leader_and_isr(ctx: Context, request: LeaderAndIsrRequest) -> LeaderAndIsrResponse:
    """Lead and follow as the controller says."""
    try:
        ctx.services.gate.admit(request)
    except KafkaError as refusal:
        return LeaderAndIsrResponse(error_code=refusal.code, topics=[])
    return await _obeyed(ctx, ctx.services.replicas.apply_leader_and_isr, request)


@handles(StopReplicaRequest, versions="3-4", between_brokers=True)
async def stop_replica(ctx: Context, request: StopReplicaRequest) -> StopReplicaResponse:
    """Stop replicas, and delete their logs if the controller says so."""
    try:
        ctx.services.gate.admit(request)
    except KafkaError as refusal:
        return StopReplicaResponse(error_code=refusal.code, partition_errors=[])
    return await _obeyed(ctx, ctx.services.replicas.apply_stop_replica, request)


@handles(UpdateMetadataRequest, versions="7-8", between_brokers=True)
async def update_metadata(ctx: Context, request: UpdateMetadataRequest) -> UpdateMetadataResponse:
    """Take in what the controller says of the cluster."""
    try:
        ctx.services.gate.admit(request)
    except KafkaError as refusal:
        return UpdateMetadataResponse(error_code=refusal.code)
    return await _obeyed(ctx, ctx.services.metadata.apply, request)


async def _obeyed(ctx: Context, obey: Callable[[A], B], order: A) -> B:
    """Obey an order in its turn.

    Without a response the controller sends it again. That is why the connection is closed if the
    order cannot be judged now.
    """

    connection = ctx.connection.id

    def check_and_obey() -> B:
        ctx.services.gate.check_in_turn(order, connection)
        return obey(order)

    with ctx.connection.aside():
        loop = asyncio.get_running_loop()
        try:
            return await loop.run_in_executor(ctx.services.orders, check_and_obey)
        except NoResponse as reason:
            raise CloseConnection(str(reason)) from reason
        except (SessionLost, Unreachable) as fault:
            raise CloseConnection(f"the order needs ZooKeeper: {fault}") from fault


# -- questions to the controller -------------------------------------------------------------------


@handles(ControlledShutdownRequest, versions="2-3", between_brokers=True)
async def controlled_shutdown(
    ctx: Context, request: ControlledShutdownRequest
) -> ControlledShutdownResponse:
    """Move leadership off a broker that is about to stop."""
    asked = ctx.services.controller.controlled_shutdown(request.broker_id, request.broker_epoch)
    try:
        with ctx.connection.aside():
            left = await asyncio.wrap_future(asked)
    except KafkaError as refusal:
        return ControlledShutdownResponse(error_code=refusal.code, remaining_partitions=[])
    return ControlledShutdownResponse(
        error_code=ErrorCode.NONE,
        remaining_partitions=[
            RemainingPartition(topic_name=at.topic, partition_index=at.partition)
            for at in sorted(left)
        ],
    )


@handles(AlterPartitionRequest, versions="0-3", between_brokers=True)
async def alter_partition(ctx: Context, request: AlterPartitionRequest) -> AlterPartitionResponse:
    """Have the controller accept in-sync sets that their leader proposes."""
    # Once for each topic: the answer has to be about the same ones.
    names = {id(topic): _name(ctx, topic) for topic in request.topics}

    def name_of(topic: AlterPartitionTopic) -> str | None:
        return names[id(topic)]

    proposed = proposed_in(request, ctx.version, name_of)
    asked = ctx.services.controller.propose_isrs(request.broker_id, request.broker_epoch, proposed)
    try:
        with ctx.connection.aside():
            outcomes = await asyncio.wrap_future(asked)
    except KafkaError as refusal:
        return AlterPartitionResponse(error_code=refusal.code, topics=[])
    return response_of(request, name_of, outcomes)


def _name(ctx: Context, topic: AlterPartitionTopic) -> str | None:
    if ctx.version < TOPIC_IDS_SINCE:
        return topic.topic_name
    return ctx.services.metadata.topic_name(topic.topic_id)


@handles(AllocateProducerIdsRequest, versions="0-0", between_brokers=True)
async def allocate_producer_ids(
    ctx: Context, request: AllocateProducerIdsRequest
) -> AllocateProducerIdsResponse:
    """Give a broker a block of producer ids."""
    try:
        if not ctx.services.controller.is_active:
            raise NotController(f"broker {ctx.services.node_id} is not the controller")
        block = await ctx.in_thread(
            ctx.services.producer_ids.take_block, request.broker_id, request.broker_epoch
        )
    except KafkaError as refusal:
        return AllocateProducerIdsResponse(
            error_code=refusal.code, producer_id_start=-1, producer_id_len=0
        )
    return AllocateProducerIdsResponse(
        error_code=ErrorCode.NONE,
        producer_id_start=block.first,
        producer_id_len=block.last - block.first + 1,
    )
