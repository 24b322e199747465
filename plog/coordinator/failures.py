"""What clients are told when a coordinator cannot write to its own log."""

from __future__ import annotations

from plog.errors import ErrorCode, KafkaError

UNAVAILABLE = frozenset(
    {
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        ErrorCode.NOT_ENOUGH_REPLICAS,
        ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND,
        ErrorCode.REQUEST_TIMED_OUT,
    }
)
ELSEWHERE = frozenset({ErrorCode.NOT_LEADER_OR_FOLLOWER, ErrorCode.KAFKA_STORAGE_ERROR})
TOO_LARGE = frozenset({ErrorCode.MESSAGE_TOO_LARGE, ErrorCode.RECORD_LIST_TOO_LARGE})


def told(failure: KafkaError, *, too_large: ErrorCode) -> ErrorCode:
    """Return what a client is told when the coordinator's own append fails."""
    code = ErrorCode(failure.code)
    if code in UNAVAILABLE:
        return ErrorCode.COORDINATOR_NOT_AVAILABLE
    if code in ELSEWHERE:
        return ErrorCode.NOT_COORDINATOR
    return too_large if code in TOO_LARGE else code
