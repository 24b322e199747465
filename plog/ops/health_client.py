"""Asks a broker whether it is healthy, as service managers of containers do."""

from __future__ import annotations

import urllib.error
import urllib.request
from http import HTTPStatus
from http.client import HTTPException

from plog.client.connection import Connection, address_of
from plog.errors import PlogError
from plog.ops.pages.paths import HEALTH, METRICS, READY
from plog.settings.listeners import EVERYWHERE, Address, Listener

WAIT_S = 5.0


class Unhealthy(PlogError):
    """The broker does not answer as a healthy one does."""

    def __init__(self, place: str, reason: str) -> None:
        super().__init__(f"{place}: {reason}")
        self.reason = reason


def ask_page(page: Address, path: str, wait_s: float = WAIT_S) -> str:
    """Ask a path of the metrics listener; return a word for the answer.

    An older release has no HEALTH, only the metrics page: that it answers is health enough.

    Raises:
        Unhealthy: it answers with an error, or not at all.
    """
    address = address_of(EVERYWHERE.get(page.host, page.host), page.port)
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    try:
        with opener.open(f"http://{address}{path}", timeout=wait_s) as response:
            response.read()
    except urllib.error.HTTPError as error:
        if error.code == HTTPStatus.NOT_FOUND and path == HEALTH:
            return ask_page(page, METRICS, wait_s)
        reason = error.read().decode(errors="replace").strip()
        raise Unhealthy(f"{address}{path}", reason or str(error)) from error
    except (OSError, HTTPException) as error:
        cause = error.reason if isinstance(error, urllib.error.URLError) else error
        why = (cause.strerror if isinstance(cause, OSError) else None) or str(cause)
        raise Unhealthy(f"{address}{path}", why) from error
    return "ready" if path == READY else "healthy"


def ask_listener(listener: Listener) -> str:
    """Connect to a listener as a client does.

    Raises:
        PlogError: the broker does not answer.
    """
    host = EVERYWHERE.get(listener.host, listener.host)
    Connection(host, listener.port, timeout_ms=int(WAIT_S * 1000)).close()
    return "healthy"
