"""The cluster's brokers and their disks: DescribeCluster, DescribeLogDirs, AlterReplicaLogDirs."""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import Mapping
from concurrent.futures import Future
from pathlib import Path

from plog.errors import (
    ErrorCode,
    KafkaError,
    KafkaStorageError,
    LogDirNotFound,
    MismatchedEndpointType,
    ReplicaNotAvailable,
    UnknownTopicOrPartition,
    UnsupportedEndpointType,
)
from plog.handlers.context import Context
from plog.handlers.operations import ALL_OF_CLUSTER, NOT_ASKED
from plog.handlers.registry import handles
from plog.protocol.messages.cluster import (
    AlterReplicaLogDirPartitionResult,
    AlterReplicaLogDirsRequest,
    AlterReplicaLogDirsResponse,
    AlterReplicaLogDirTopicResult,
    DescribeClusterBroker,
    DescribeClusterRequest,
    DescribeClusterResponse,
    DescribeLogDirsPartition,
    DescribeLogDirsRequest,
    DescribeLogDirsResponse,
    DescribeLogDirsResult,
    DescribeLogDirsTopic,
)
from plog.storage.log import Log
from plog.types import TopicPartition

BROKERS, CONTROLLERS = 1, 2
"""Endpoint types of DescribeCluster."""
MOVES_ARE_AWAITED_MS = 500
"""A move that fails at once, or is done soon, is answered so; a longer one goes on by itself."""


@handles(DescribeClusterRequest, versions="0-2")
def describe_cluster(ctx: Context, request: DescribeClusterRequest) -> DescribeClusterResponse:
    """Name the brokers as this listener's clients reach them.

    None is fenced: a broker that is not live is unknown.
    """
    if request.endpoint_type != BROKERS:
        is_other = request.endpoint_type == CONTROLLERS
        kind = MismatchedEndpointType if is_other else UnsupportedEndpointType
        refusal = kind("only endpoint type 1 (brokers) is supported")
        return DescribeClusterResponse(
            error_code=refusal.code,
            error_message=str(refusal),
            cluster_id="",
            brokers=[],
        )
    return DescribeClusterResponse(
        error_code=ErrorCode.NONE,
        cluster_id=ctx.services.cluster_id,
        controller_id=ctx.services.metadata.snapshot.live_controller_id,
        brokers=[
            DescribeClusterBroker(broker_id=node.id, host=node.host, port=node.port, rack=node.rack)
            for node in ctx.nodes()
        ],
        cluster_authorized_operations=(
            ALL_OF_CLUSTER if request.include_cluster_authorized_operations else NOT_ASKED
        ),
    )


# -- DescribeLogDirs


@handles(DescribeLogDirsRequest, versions="0-5")
async def describe_log_dirs(
    ctx: Context, request: DescribeLogDirsRequest
) -> DescribeLogDirsResponse:
    """Say what each log directory of this broker holds, and how full its disk is.

    No directory is cordoned: plog does not have the setting `cordoned.log.dirs`.
    """
    wanted = (
        None
        if request.topics is None
        else {TopicPartition(t.topic, index) for t in request.topics for index in t.partitions}
    )
    manager = ctx.services.logs
    moving = ctx.services.log_moves.moving
    logs = [log for log in manager.logs() if wanted is None or log.topic_partition in wanted]
    results = []
    for path in manager.live_log_dirs:
        coming = {at for at, target in moving.items() if target == path}
        try:
            results.append(
                await ctx.at_disk(
                    path,
                    _describe_dir,
                    path,
                    [(log, _offset_lag(ctx, log)) for log in logs if log.log_dir == path],
                    [log for log in logs if log.topic_partition in coming],
                )
            )
        except KafkaError as refusal:
            results.append(_unusable(path, refusal))
    offline = KafkaStorageError("the log directory is offline")
    results += [_unusable(path, offline) for path in manager.offline_log_dirs]
    return DescribeLogDirsResponse(results=results)


def _unusable(path: Path, refusal: KafkaError) -> DescribeLogDirsResult:
    return DescribeLogDirsResult(error_code=refusal.code, log_dir=str(path), topics=[])


def _offset_lag(ctx: Context, log: Log) -> int:
    partition = ctx.services.replicas.get(log.topic_partition)
    return 0 if partition is None else partition.offset_lag


def _describe_dir(
    path: Path, here: list[tuple[Log, int]], coming: list[Log]
) -> DescribeLogDirsResult:
    """Describe a directory by its logs and their lags, and the logs that move to it."""
    topics: dict[str, list[DescribeLogDirsPartition]] = {}
    for log, offset_lag in here:
        topics.setdefault(log.topic_partition.topic, []).append(
            DescribeLogDirsPartition(
                partition_index=log.topic_partition.partition,
                partition_size=log.size_bytes,
                offset_lag=offset_lag,
                is_future_key=False,
            )
        )
    for log in coming:
        topics.setdefault(log.topic_partition.topic, []).append(
            DescribeLogDirsPartition(
                partition_index=log.topic_partition.partition,
                partition_size=log.size_bytes,
                # Nothing of a copy counts before all of it does.
                offset_lag=log.log_end_offset - log.log_start_offset,
                is_future_key=True,
            )
        )
    try:
        disk = shutil.disk_usage(path)
    except OSError as error:
        raise KafkaStorageError(f"{path}: {error}") from error
    return DescribeLogDirsResult(
        error_code=ErrorCode.NONE,
        log_dir=str(path),
        topics=[
            DescribeLogDirsTopic(name=name, partitions=entries) for name, entries in topics.items()
        ],
        total_bytes=disk.total,
        usable_bytes=disk.free,
    )


# -- AlterReplicaLogDirs


@handles(AlterReplicaLogDirsRequest, versions="0-2")
async def alter_replica_log_dirs(
    ctx: Context, request: AlterReplicaLogDirsRequest
) -> AlterReplicaLogDirsResponse:
    """Begin to move replicas between this broker's log directories.

    DescribeLogDirs shows how far they are: `is_future_key` until a move is done.
    """
    begun: list[tuple[TopicPartition, asyncio.Future[ErrorCode] | ErrorCode]] = []
    for asked in request.dirs:
        for topic in asked.topics:
            for index in topic.partitions:
                at = TopicPartition(topic.name, index)
                try:
                    begun.append((at, asyncio.wrap_future(_begin_move(ctx, at, Path(asked.path)))))
                except KafkaError as refusal:
                    begun.append((at, refusal.code))
    moves = [outcome for _, outcome in begun if not isinstance(outcome, ErrorCode)]
    if moves:
        with ctx.connection.while_open():
            await asyncio.wait(moves, timeout=MOVES_ARE_AWAITED_MS / 1000)
    outcomes: dict[str, list[AlterReplicaLogDirPartitionResult]] = {}
    for at, outcome in begun:
        code = outcome if isinstance(outcome, ErrorCode) else ErrorCode.NONE
        if isinstance(outcome, asyncio.Future) and outcome.done():
            code = outcome.result()
        outcomes.setdefault(at.topic, []).append(
            AlterReplicaLogDirPartitionResult(partition_index=at.partition, error_code=code)
        )
    return AlterReplicaLogDirsResponse(results=_by_topic(outcomes))


def _begin_move(ctx: Context, at: TopicPartition, target: Path) -> Future[ErrorCode]:
    logs = ctx.services.logs
    if target in logs.offline_log_dirs:
        raise KafkaStorageError(f"log directory {target} is offline")
    if target not in logs.live_log_dirs:
        raise LogDirNotFound(f"{target} is not one of this broker's log directories")
    if at in logs.offline:
        raise KafkaStorageError(f"{at} is offline: {logs.offline[at]}")
    if not ctx.services.metadata.contains(at):
        raise UnknownTopicOrPartition(f"{at} does not exist")
    if logs.get(at) is None:
        raise ReplicaNotAvailable(f"no replica of {at} here")
    return ctx.services.replica_moves.start(ctx.services.log_moves.move, at, target)


def _by_topic(
    outcomes: Mapping[str, list[AlterReplicaLogDirPartitionResult]],
) -> list[AlterReplicaLogDirTopicResult]:
    return [
        AlterReplicaLogDirTopicResult(topic_name=name, partitions=results)
        for name, results in outcomes.items()
    ]
