"""ApiVersions (KIP-35, KIP-511): what this broker serves, derived from the registry."""

from __future__ import annotations

import re

from plog.errors import ErrorCode
from plog.handlers.context import Context
from plog.handlers.registry import HANDLERS, handles
from plog.protocol.messages.api_versions import (
    ApiVersion,
    ApiVersionsRequest,
    ApiVersionsResponse,
)

SOFTWARE = re.compile(r"[a-zA-Z0-9](?:[a-zA-Z0-9\-.]*[a-zA-Z0-9])?")
"""What KIP-511 allows in a client's name and version."""

NO_FEATURES_EPOCH = 0
"""As from a Kafka broker with ZooKeeper, where nothing has ever been finalised."""


@handles(ApiVersionsRequest, versions="0-4")
def api_versions(ctx: Context, request: ApiVersionsRequest) -> ApiVersionsResponse:
    """Answer with every API and remember what software asks."""
    if ctx.version >= 3:
        named = (request.client_software_name, request.client_software_version)
        if not all(SOFTWARE.fullmatch(part) for part in named):
            return ApiVersionsResponse(error_code=ErrorCode.INVALID_REQUEST, api_keys=[])
        ctx.connection.client_software_name, ctx.connection.client_software_version = named
    return ApiVersionsResponse(
        error_code=ErrorCode.NONE,
        api_keys=[
            ApiVersion(
                api_key=key, min_version=handler.advertised_min, max_version=handler.max_version
            )
            for key, handler in sorted(HANDLERS.items())
            if handler.is_on(ctx.services.settings.broker())
        ],
        finalized_features_epoch=NO_FEATURES_EPOCH,
    )
