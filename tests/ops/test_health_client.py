"""`plog health`: a broker with a page, one without, and none."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

import pytest
from click.testing import CliRunner

from plog.cli.health import command
from plog.ops.health_client import Unhealthy, ask_page
from plog.ops.pages.paths import HEALTH, METRICS, READY
from plog.settings.listeners import Address
from tests.servers import BrokerProcess, free_port


@contextmanager
def page(
    answers: dict[str, int], text: str = "starting: loading logs: 3 of 10"
) -> Iterator[Address]:
    """Serve paths with a status each, and 404 for all others; the text is the same."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(answers.get(self.path, 404))
            self.end_headers()
            self.wfile.write(f"{text}\n".encode())

        def log_message(self, *_: object) -> None:
            pass

    with HTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            yield Address("127.0.0.1", server.server_port)
        finally:
            server.shutdown()
            thread.join()


@pytest.mark.parametrize(
    ("answers", "path", "word"),
    [
        ({HEALTH: 200, READY: 503}, HEALTH, "healthy"),
        ({HEALTH: 200, READY: 200}, READY, "ready"),
        ({METRICS: 200}, HEALTH, "healthy"),  # an older release
        ({HEALTH: 200, READY: 503}, READY, None),
        ({METRICS: 200}, READY, None),
        ({HEALTH: 500, METRICS: 200}, HEALTH, None),
        ({}, HEALTH, None),
    ],
)
def test_status_of_the_path_decides(answers: dict[str, int], path: str, word: str | None) -> None:
    with page(answers) as address:
        if word is not None:
            assert ask_page(address, path) == word
            return
        with pytest.raises(Unhealthy, match="loading logs: 3 of 10"):
            ask_page(address, path)


def test_broker_is_asked_by_its_page_or_else_by_its_listener(tmp_path: Path) -> None:
    def health(*arguments: str) -> tuple[int, str]:
        done = CliRunner().invoke(command, arguments)
        return done.exit_code, done.output

    metrics = f"metrics.listener=127.0.0.1:{free_port()}"
    with BrokerProcess(tmp_path, overrides=dict([metrics.split("=")])) as broker:
        listeners = f"listeners=PLAINTEXT://{broker.bootstrap}"
        assert health("--override", listeners, "--override", metrics) == (0, "healthy\n")
        assert health("--override", listeners, "--override", "metrics.listener=") == (
            0,
            "healthy\n",
        )
    for setting in (metrics, "metrics.listener="):
        status, text = health("--override", listeners, "--override", setting)
        assert status == 1
        assert "Connection refused" in text
