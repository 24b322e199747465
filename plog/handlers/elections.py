"""ElectLeaders: preferred leaders, or (on purpose) unclean ones. The controller elects."""

from __future__ import annotations

from collections.abc import Iterable
from functools import partial

from plog.cluster.controller_events import ElectionType
from plog.errors import ErrorCode, InvalidRequest, KafkaError
from plog.handlers.context import Context
from plog.handlers.registry import handles
from plog.protocol.messages.topics import (
    ElectLeadersRequest,
    ElectLeadersResponse,
    PartitionResult,
    ReplicaElectionResult,
)
from plog.types import TopicPartition

TOP_LEVEL_ERROR_SINCE = 1
"""From this version on an answer has a code of its own."""


@handles(ElectLeadersRequest, versions="0-2")
async def elect_leaders(ctx: Context, request: ElectLeadersRequest) -> ElectLeadersResponse:
    """Let the controller elect preferred leaders, or (on purpose) unclean ones."""
    asked = (
        None
        if request.topic_partitions is None
        else [
            TopicPartition(topic.topic, index)
            for topic in request.topic_partitions
            for index in topic.partitions
        ]
    )
    try:
        election = ElectionType(request.election_type)
    except ValueError:
        refusal = InvalidRequest(f"unknown election type {request.election_type}")
        return _not_elected(ctx, refusal, asked or ())
    ctx.ends_in(request.timeout_ms)
    elect = partial(ctx.services.controller.elect_leaders, election, asked)
    try:
        outcomes = await ctx.from_controller(elect)
    except KafkaError as refusal:
        return _not_elected(ctx, refusal, asked or ())
    by_topic: dict[str, list[PartitionResult]] = {}
    for at, code in outcomes.items():
        if asked is None and code == ErrorCode.ELECTION_NOT_NEEDED:
            continue  # of all partitions, only those that something was done about
        by_topic.setdefault(at.topic, []).append(_elected(at, code))
    return ElectLeadersResponse(replica_election_results=_elections(by_topic))


def _elected(at: TopicPartition, code: ErrorCode) -> PartitionResult:
    return PartitionResult(
        partition_id=at.partition,
        error_code=code,
        error_message=None if code == ErrorCode.NONE else code.name,
    )


def _not_elected(
    ctx: Context, refusal: KafkaError, asked: Iterable[TopicPartition]
) -> ElectLeadersResponse:
    """Answer for all partitions: by one code, and where a version has none, by each one's."""
    by_topic: dict[str, list[PartitionResult]] = {}
    for at in asked:
        by_topic.setdefault(at.topic, []).append(_elected(at, refusal.code))
    return ElectLeadersResponse(
        error_code=refusal.code if ctx.version >= TOP_LEVEL_ERROR_SINCE else ErrorCode.NONE,
        replica_election_results=_elections(by_topic),
    )


def _elections(by_topic: dict[str, list[PartitionResult]]) -> list[ReplicaElectionResult]:
    return [
        ReplicaElectionResult(topic=topic, partition_result=results)
        for topic, results in by_topic.items()
    ]
