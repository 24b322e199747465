"""FindCoordinator: which broker coordinates a group or a transactional id."""

from __future__ import annotations

from plog.errors import CoordinatorNotAvailable, InvalidRequest, KafkaError
from plog.handlers.context import Context
from plog.handlers.registry import handles
from plog.protocol.messages.groups import (
    Coordinator,
    FindCoordinatorRequest,
    FindCoordinatorResponse,
)

GROUP, TRANSACTION = 0, 1
NO_NODE, NO_PORT = -1, -1
BATCHED_SINCE = 4
"""From this version on a request holds many keys (KIP-699)."""


@handles(FindCoordinatorRequest, versions="0-6")
def find_coordinator(ctx: Context, request: FindCoordinatorRequest) -> FindCoordinatorResponse:
    """Answer for each key (one before version 4)."""
    if ctx.version >= BATCHED_SINCE:
        return FindCoordinatorResponse(
            coordinators=[_find(request.key_type, key) for key in request.coordinator_keys]
        )
    only = _find(request.key_type, request.key)
    return FindCoordinatorResponse(
        error_code=only.error_code,
        error_message=only.error_message,
        node_id=only.node_id,
        host=only.host,
        port=only.port,
    )


def _find(key_type: int, key: str) -> Coordinator:
    # Until groups and transactions are served nobody coordinates them; this code makes clients
    # say so and try again, instead of giving up for good.
    refusal: KafkaError = CoordinatorNotAvailable("this broker coordinates nothing")
    if key_type not in (GROUP, TRANSACTION):
        refusal = InvalidRequest(f"coordinator type {key_type} is unknown")
    return Coordinator(
        key=key,
        node_id=NO_NODE,
        host="",
        port=NO_PORT,
        error_code=refusal.code,
        error_message=str(refusal),
    )
