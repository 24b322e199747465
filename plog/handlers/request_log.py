"""A log line at DEBUG for each request that Python answers, or is asked about.

A line has the API and its version, the correlation id, the client's address and id, the time from
the request's arrival to the answer, and the errors in that. Of a Produce or a Fetch it has the
errors of the partitions that Python was asked about. An ordinary one has no line, and a Fetch that
waits may have several. Never has contents: these may be secrets. The metrics page counts all
requests.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping

from plog.errors import ErrorCode
from plog.network.connections import Connection
from plog.protocol.framing import RequestHeader

log = logging.getLogger(__name__)

NO_RESPONSE, NO_ERROR = "no response", "no error"


def is_logged() -> bool:
    """Return whether requests are logged now."""
    return log.isEnabledFor(logging.DEBUG)


def log_request(
    api: str,
    connection: Connection,
    header: RequestHeader,
    took_us: int,
    errors: Mapping[int, int] | None,
) -> None:
    """Log an answered request with the number of each error; without a response for acks=0."""
    log.debug(
        "%s v%d, id %d, from %s, client %.100r: %.2f ms, %s",
        api,
        header.api_version,
        header.correlation_id,
        connection.peer,
        header.client_id,
        took_us / 1000,
        NO_RESPONSE if errors is None else error_text(errors),
    )


def error_text(errors: Mapping[int, int]) -> str:
    """Return the errors of a response by name, each with its number if it is there repeatedly."""
    if not errors:
        return NO_ERROR
    return ", ".join(
        _name(code) + (f" ({count} times)" if count > 1 else "")
        for code, count in sorted(errors.items())
    )


def _name(code: int) -> str:
    try:
        return ErrorCode(code).name
    except ValueError:
        return str(code)
