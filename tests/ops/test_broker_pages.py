"""The health checks and the index beside the metrics page, from a broker's start to its end."""

from __future__ import annotations

import asyncio
import threading
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest

from plog import __version__
from plog.broker import Broker
from plog.ops.metrics.topics import Topics
from plog.ops.pages import probes
from plog.ops.pages.broker_pages import BrokerPages
from plog.storage.log_manager import LogManager
from tests.broker.test_start import settings_of
from tests.handlers.running import Running
from tests.servers import free_port
from tests.waiting import until

TIMEOUT_S = 60


def get(port: int, path: str) -> tuple[int, str, str]:
    """Return the status, the type and the text of a page."""
    try:
        response = urllib.request.urlopen(f"http://127.0.0.1:{port}{path}", timeout=TIMEOUT_S)
    except urllib.error.HTTPError as error:
        response = error
    with response:
        return response.status, response.headers["Content-Type"], response.read().decode()


def text(port: int, path: str) -> tuple[int, str]:
    status, content_type, body = get(port, path)
    assert content_type == "text/plain; charset=utf-8"
    assert body.endswith("\n")
    assert body.count("\n") == 1
    return status, body.rstrip("\n")


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    one = Running(tmp_path_factory.mktemp("pages"), metrics_listener="127.0.0.1:0")
    yield one
    one.stop()


def test_running_broker_is_alive_and_ready(running: Running) -> None:
    port = running.broker.metrics_port
    assert text(port, "/healthz") == (200, "alive")
    assert text(port, "/ready") == (200, "ready")
    assert get(port, "/metrics")[0] == 200
    assert get(port, "/health")[0] == 404


def test_index_links_to_every_page(running: Running) -> None:
    status, content_type, page = get(running.broker.metrics_port, "/")
    assert (status, content_type) == (200, "text/html; charset=utf-8")
    assert f"plog {__version__}" in page
    for path in ("/metrics", "/healthz", "/ready"):
        assert f'<a href="{path}">' in page


def test_broker_is_alive_while_a_page_takes_long(
    running: Running, monkeypatch: pytest.MonkeyPatch
) -> None:
    begun, goes_on = threading.Event(), threading.Event()
    collect = Topics.collect

    def slow(topics: Topics) -> object:
        begun.set()
        assert goes_on.wait(TIMEOUT_S)
        return collect(topics)

    monkeypatch.setattr(Topics, "collect", slow)
    port = running.broker.metrics_port
    page = threading.Thread(target=get, args=(port, "/metrics"))
    page.start()
    assert begun.wait(TIMEOUT_S)
    assert text(port, "/healthz") == (200, "alive")
    assert text(port, "/ready") == (200, "ready")
    goes_on.set()
    page.join()


def test_broker_whose_event_loop_is_stuck_is_not_alive(
    running: Running, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(probes, "ALIVE_S", 0.05)
    port = running.broker.metrics_port
    with running.python_busy():
        for _ in range(2):
            status, reason = text(port, "/healthz")
            assert status == 503
            assert reason.startswith("the event loop has not answered for ")
    monkeypatch.undo()
    until(lambda: text(port, "/healthz") == (200, "alive"), "it goes on")


def test_broker_with_a_stuck_network_thread_is_not_alive(
    running: Running, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def none_answers(_within_s: float) -> bool:
        return False

    port = running.broker.metrics_port
    monkeypatch.setattr(running.broker._addresses.pages._probes, "_network_answers", none_answers)
    assert text(port, "/healthz") == (503, "a network thread has not answered for 1 s")


def test_bug_in_a_check_costs_that_check_alone(
    running: Running, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def broken(_within_s: float) -> bool:
        raise RuntimeError("a bug")

    port = running.broker.metrics_port
    monkeypatch.setattr(running.broker._addresses.pages._probes, "_network_answers", broken)
    assert text(port, "/healthz")[0] == 500
    monkeypatch.undo()
    assert text(port, "/healthz") == (200, "alive")


def test_broker_without_log_directories_is_not_ready(
    running: Running, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(LogManager, "live_log_dirs", [])
    assert text(running.broker.metrics_port, "/ready") == (503, "no log directory is online")


def test_start_and_stop_are_reported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    port = free_port()
    seen: dict[str, list[tuple[int, str]]] = {}

    def look(when: str) -> None:
        seen[when] = [text(port, path) for path in ("/healthz", "/ready", "/metrics")]

    load, close_metrics = LogManager.start, BrokerPages.close_metrics

    # Both are called in threads.
    def start(logs: LogManager) -> None:
        look("start")
        load(logs)

    def close(pages: BrokerPages) -> None:
        close_metrics(pages)
        look("stop")

    monkeypatch.setattr(LogManager, "start", start)
    monkeypatch.setattr(LogManager, "loading_progress", (3, 40))
    monkeypatch.setattr(BrokerPages, "close_metrics", close)

    async def scenario() -> None:
        broker = Broker(settings_of(tmp_path, free_port(), metrics_listener=f"127.0.0.1:{port}"))
        await broker.start()
        await broker.stop()

    asyncio.run(scenario())
    assert seen["start"] == [
        (200, "alive"),
        (503, "starting: loading logs: 3 of 40"),
        (503, "no metrics: the broker is starting"),
    ]
    assert seen["stop"] == [
        (200, "alive"),
        (503, "stopping"),
        (503, "no metrics: the broker is stopping"),
    ]
