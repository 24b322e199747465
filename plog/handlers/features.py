"""UpdateFeatures: raises or lowers what the whole cluster may do (KIP-584)."""

from __future__ import annotations

from collections import Counter

from plog.cluster.features import Change, Direction
from plog.errors import ErrorCode, InvalidRequest, KafkaError
from plog.handlers.context import Context
from plog.handlers.registry import handles
from plog.protocol.messages.features import (
    FeatureUpdateKey,
    UpdatableFeatureResult,
    UpdateFeaturesRequest,
    UpdateFeaturesResponse,
)

DIRECTIONS_SINCE = 1
"""Before this version a request says whether a level may become lower, and no more."""
TOGETHER_SINCE = 2
"""From this version on there is one answer for all changes."""


@handles(UpdateFeaturesRequest, versions="0-2")
async def update_features(ctx: Context, request: UpdateFeaturesRequest) -> UpdateFeaturesResponse:
    """Make the changes one by one, or all or none from version 2 on."""
    if not request.feature_updates:
        return _refused(InvalidRequest("the request names no feature"))
    times = Counter(one.feature for one in request.feature_updates)
    if "" in times or max(times.values()) > 1:
        return _refused(InvalidRequest("a feature name is empty or appears twice"))
    ctx.ends_in(request.timeout_ms)
    refusals: dict[str, KafkaError] = {}
    for one in request.feature_updates:
        try:
            await ctx.in_thread(ctx.services.features.check, _change(ctx, one))
        except KafkaError as refusal:
            refusals[one.feature] = refusal
    if ctx.version >= TOGETHER_SINCE and refusals:
        return _refused(next(iter(refusals.values())))
    for one in request.feature_updates:
        if one.feature in refusals or request.validate_only:
            continue
        try:
            await ctx.in_thread(ctx.services.features.update, _change(ctx, one))
        except KafkaError as refusal:
            refusals[one.feature] = refusal
    if ctx.version >= TOGETHER_SINCE and refusals:
        return _refused(next(iter(refusals.values())))
    return UpdateFeaturesResponse(
        error_code=ErrorCode.NONE,
        results=[
            UpdatableFeatureResult(
                feature=one.feature,
                error_code=refusals[one.feature].code if one.feature in refusals else 0,
                error_message=str(refusals[one.feature]) if one.feature in refusals else None,
            )
            for one in request.feature_updates
        ],
    )


def _change(ctx: Context, asked: FeatureUpdateKey) -> Change:
    if ctx.version < DIRECTIONS_SINCE:
        direction = Direction.DOWN if asked.allow_downgrade else Direction.UP
        return Change(asked.feature, asked.max_version_level, direction)
    try:
        direction = Direction(asked.upgrade_type)
    except ValueError:
        raise InvalidRequest(f"unknown upgrade type {asked.upgrade_type}") from None
    return Change(asked.feature, asked.max_version_level, direction)


def _refused(refusal: KafkaError) -> UpdateFeaturesResponse:
    return UpdateFeaturesResponse(error_code=refusal.code, error_message=str(refusal))
