"""Failed appends of a coordinator to its own log: the error for clients, the level for the log.

A bug is an error, too: a task that dies of it would leave clients without an answer.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager

from plog.errors import ErrorCode, KafkaError, UnknownServerError

log = logging.getLogger(__name__)

UNAVAILABLE = frozenset(
    {
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        ErrorCode.NOT_ENOUGH_REPLICAS,
        ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND,
        ErrorCode.REQUEST_TIMED_OUT,
    }
)
ELSEWHERE = frozenset({ErrorCode.NOT_LEADER_OR_FOLLOWER, ErrorCode.KAFKA_STORAGE_ERROR})
PASSING = frozenset(
    {
        ErrorCode.REQUEST_TIMED_OUT,
        ErrorCode.NOT_LEADER_OR_FOLLOWER,
        ErrorCode.NOT_COORDINATOR,
        ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
    }
)
"""A busy disk, a start, a stop or a move causes these. Clients retry, and nothing is wrong."""
TOO_LARGE = frozenset({ErrorCode.MESSAGE_TOO_LARGE, ErrorCode.RECORD_LIST_TOO_LARGE})


@contextmanager
def bugs_are_errors(what: str) -> Iterator[None]:
    """Turn an unforeseen exception into UnknownServerError, and log it; `what` failed."""
    try:
        yield
    except KafkaError:
        raise
    except Exception as bug:
        log.exception("%s failed with an internal error", what)
        raise UnknownServerError(f"{what}: {bug!r}") from bug


def told(failure: KafkaError, *, too_large: ErrorCode) -> ErrorCode:
    """Return what a client is told when the coordinator's own append fails."""
    code = ErrorCode(failure.code)
    if code in UNAVAILABLE:
        return ErrorCode.COORDINATOR_NOT_AVAILABLE
    if code in ELSEWHERE:
        return ErrorCode.NOT_COORDINATOR
    return too_large if code in TOO_LARGE else code


def log_level(failure: KafkaError) -> int:
    """Return the level of the log line about a failed append: WARNING unless the cause passes."""
    return logging.INFO if failure.code in PASSING else logging.WARNING
