"""The pages of a broker: metrics, health checks, and an index of them.

Owns the order in which a start and a stop open and close them. The health checks
answer from the start of the process on; the metrics page is there while the broker runs.
"""

from __future__ import annotations

import logging
import socket
import threading
from http import HTTPStatus

from plog import __version__
from plog.ops.log_counts import LogCounts
from plog.ops.metrics.page import MetricsPage, Sources
from plog.ops.pages.paths import HEALTH, METRICS, READY
from plog.ops.pages.probes import Phase, Probes
from plog.ops.pages.server import STOP_S, Page, PageServer, Request

log = logging.getLogger(__name__)

HTML = "text/html; charset=utf-8"
INDEX = f"""<!DOCTYPE html>
<title>plog</title>
<h1>plog {__version__}</h1>
<ul>
<li><a href="{METRICS}">{METRICS}</a>: metrics for Prometheus
<li><a href="{HEALTH}">{HEALTH}</a>: whether the broker is alive
<li><a href="{READY}">{READY}</a>: whether the broker is ready for clients
</ul>
"""


class BrokerPages:
    """Serves the pages at a listening socket, from `start` to `stop`."""

    def __init__(self, listening: socket.socket, probes: Probes) -> None:
        self._host, self._port = listening.getsockname()[:2]
        self._probes = probes
        self._metrics: MetricsPage | None = None
        self._log_counts = LogCounts()
        self._writing = threading.Lock()
        pages = {
            "/": lambda _: Page(INDEX.encode(), HTML),
            METRICS: self._metrics_page,
            HEALTH: lambda _: _answer(self._probes.not_alive(), "alive"),
            READY: lambda _: _answer(self._probes.not_ready(), "ready"),
        }
        self._server = PageServer(listening, pages)

    @property
    def port(self) -> int:
        """The port of the listening socket."""
        return int(self._port)

    def start(self) -> None:
        """Start serving the pages, and counting log lines. There are no metrics yet."""
        logging.getLogger().addHandler(self._log_counts)
        self._server.start()
        host = f"[{self._host}]" if ":" in self._host else self._host
        log.info("metrics at http://%s:%d%s", host, self._port, METRICS)

    def open_metrics(self, sources: Sources) -> None:
        """Serve the metrics page from now on."""
        self._metrics = MetricsPage(sources, self._log_counts)

    def set_ready(self) -> None:
        """Report the broker as ready from now on."""
        self._probes.phase = Phase.RUNNING

    def close_metrics(self) -> None:
        """Report the broker as stopping; wait at most STOP_S for a page that is being written."""
        self._probes.phase = Phase.STOPPING
        self._metrics = None
        if self._writing.acquire(timeout=STOP_S):
            self._writing.release()

    def stop(self) -> None:
        """Stop serving the pages."""
        logging.getLogger().removeHandler(self._log_counts)
        self._server.stop()

    def _metrics_page(self, request: Request) -> Page:
        with self._writing:
            metrics = self._metrics  # a stop takes it away meanwhile
            if metrics is None:
                return _answer(f"no metrics: the broker is {self._probes.phase.value}", "")
            return Page(*metrics.write(request.names, request.accept))


def _answer(failure: str | None, success: str) -> Page:
    if failure is None:
        return Page(f"{success}\n".encode())
    return Page(f"{failure}\n".encode(), status=HTTPStatus.SERVICE_UNAVAILABLE)
