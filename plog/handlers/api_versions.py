"""ApiVersions (KIP-35, KIP-511): what this broker serves, derived from the registry."""

from __future__ import annotations

import re

from plog.cluster.features import NO_LEVEL, SUPPORTED
from plog.errors import ErrorCode
from plog.handlers.context import Context
from plog.handlers.registry import HANDLERS, handles
from plog.protocol.messages.api_versions import (
    ApiVersion,
    ApiVersionsRequest,
    ApiVersionsResponse,
    FinalizedFeatureKey,
    SupportedFeatureKey,
)

SOFTWARE = re.compile(r"[a-zA-Z0-9](?:[a-zA-Z0-9\-.]*[a-zA-Z0-9])?")
"""What KIP-511 allows in a client's name and version."""

LEVEL_ZERO_SINCE = 4
"""Clients of earlier versions fail to read of a feature whose lowest level is 0 (KAFKA-17011)."""


@handles(ApiVersionsRequest, versions="0-5")
def api_versions(ctx: Context, request: ApiVersionsRequest) -> ApiVersionsResponse:
    """Answer with every API and remember what software asks."""
    if ctx.version >= 3:
        named = (request.client_software_name, request.client_software_version)
        if not all(SOFTWARE.fullmatch(part) for part in named):
            return ApiVersionsResponse(error_code=ErrorCode.INVALID_REQUEST, api_keys=[])
        # A proxy or a stale address has led the client to another broker (KIP-1242).
        broker = (ctx.services.cluster_id, ctx.services.node_id)
        if request.cluster_id is not None and (request.cluster_id, request.node_id) != broker:
            return ApiVersionsResponse(error_code=ErrorCode.REBOOTSTRAP_REQUIRED, api_keys=[])
        ctx.connection.client_software_name, ctx.connection.client_software_version = named
    finalized = ctx.services.features.finalized
    return ApiVersionsResponse(
        error_code=ErrorCode.NONE,
        api_keys=[
            ApiVersion(
                api_key=key, min_version=handler.advertised_min, max_version=handler.max_version
            )
            for key, handler in sorted(HANDLERS.items())
            if handler.is_on(ctx.services.settings.broker())
            and (ctx.connection.listener.is_inter_broker or not handler.between_brokers)
        ],
        supported_features=[
            SupportedFeatureKey(name=name, min_version=lowest, max_version=highest)
            for name, (lowest, highest) in SUPPORTED.items()
            if lowest > NO_LEVEL or ctx.version >= LEVEL_ZERO_SINCE
        ],
        finalized_features_epoch=finalized.epoch,
        finalized_features=[
            FinalizedFeatureKey(name=name, max_version_level=level, min_version_level=level)
            for name, level in finalized.levels.items()
        ],
    )
