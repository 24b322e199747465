"""A log line at DEBUG for each request that a handler answers.

A line has the API and its version, the correlation id, the client's address and id, the time from
the request's arrival to its response, and the errors in the response. Never has contents: these may
be secrets. Requests that the network threads answer themselves, Produce and ordinary Fetch, have no
line; the metrics page counts them.
"""

from __future__ import annotations

import logging

from plog.errors import ErrorCode
from plog.handlers.response_errors import errors_of
from plog.network.connections import Connection
from plog.protocol.framing import RequestHeader
from plog.protocol.schema import Struct

log = logging.getLogger(__name__)

NO_RESPONSE, NO_ERROR = "no response", "no error"


def is_logged() -> bool:
    """Return whether requests are logged now."""
    return log.isEnabledFor(logging.DEBUG)


def log_request(
    api: str, connection: Connection, header: RequestHeader, took_us: int, response: Struct | None
) -> None:
    """Log an answered request; without a response for acks=0."""
    log.debug(
        "%s v%d, id %d, from %s, client %.100r: %.2f ms, %s",
        api,
        header.api_version,
        header.correlation_id,
        connection.peer,
        header.client_id,
        took_us / 1000,
        NO_RESPONSE if response is None else error_text(response),
    )


def error_text(response: Struct) -> str:
    """Return the errors of a response by name, each with its number if it is there repeatedly."""
    found = errors_of(response)
    if not found:
        return NO_ERROR
    return ", ".join(
        _name(code) + (f" ({count} times)" if count > 1 else "")
        for code, count in sorted(found.items())
    )


def _name(code: int) -> str:
    try:
        return ErrorCode(code).name
    except ValueError:
        return str(code)
