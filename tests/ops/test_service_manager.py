"""What a broker tells the service manager, over a real socket."""

from __future__ import annotations

import asyncio
import logging
import os
import re
import signal
import socket
import sys
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from plog import server
from plog._native.faults import Fault, inject
from plog.broker import Broker
from plog.ops.service_manager import ServiceManager
from plog.protocol.messages.produce import ProduceResponse
from plog.settings.definitions import BrokerSettings
from plog.wiring.start_progress import Stage, StartProgress
from tests.handlers.wire import create_topic, eventually, make_batch, produce_request, speak
from tests.planes import broker_settings
from tests.servers import START_TIMEOUT_S, BrokerProcess, free_port

EXTEND = "EXTEND_TIMEOUT_USEC"


class Listener:
    """A service manager's end: the assignments of each datagram."""

    def __init__(self, name: str) -> None:
        self.name = name
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self._socket.bind("\0" + name[1:] if name.startswith("@") else name)
        self._socket.settimeout(START_TIMEOUT_S)

    def fill(self) -> None:
        """Send until the kernel takes no more for whoever does not read."""
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sender:
            sender.setblocking(False)
            sender.connect(self._socket.getsockname())
            with suppress(BlockingIOError):
                while True:
                    sender.send(b"FILLED=1")

    def heard(self) -> dict[str, str]:
        text = self._socket.recv(1 << 16).decode()
        return dict(line.split("=", 1) for line in text.split("\n"))

    def until(self, key: str) -> tuple[dict[str, str], list[dict[str, str]]]:
        """Return the first datagram that assigns `key`, and those before it."""
        before: list[dict[str, str]] = []
        while key not in (told := self.heard()):
            before.append(told)
        return told, before

    def close(self) -> None:
        self._socket.close()


@pytest.fixture(params=["path", "abstract"])
def listener(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Listener]:
    name = str(tmp_path / "notify")
    listener = Listener(
        name if request.param == "path" else f"@plog-{os.getpid()}-{time.time_ns()}"
    )
    yield listener
    listener.close()


def started(broker: BrokerProcess) -> None:
    """Wait until a broker has told that it is ready, or tried to."""
    eventually(lambda: "listening on" in broker.log, "the start is over")
    wire = speak(broker.port)
    create_topic(wire, "any", 1)  # which the loop answers, so it has turned since
    wire.close()


def test_start_life_and_stop_are_told(listener: Listener, tmp_path: Path) -> None:
    environment = {"NOTIFY_SOCKET": listener.name, "WATCHDOG_USEC": "300000"}
    with BrokerProcess(tmp_path, environment=environment) as broker:
        ready, before = listener.until("READY")
        assert ready == {
            "READY": "1",
            "STATUS": f"listening on PLAINTEXT://127.0.0.1:{broker.port}",
        }
        assert before
        assert all({"STATUS"} <= told.keys() <= {"STATUS", EXTEND} for told in before)
        assert not any("WATCHDOG" in told for told in before)
        for _ in range(5):
            assert listener.until("WATCHDOG") == ({"WATCHDOG": "1"}, [])
    stopping, before = listener.until("STOPPING")
    assert stopping == {
        "STOPPING": "1",
        "STATUS": "stopping: flushing what is not on disk yet",
    }
    assert all(told == {"WATCHDOG": "1"} for told in before)


HANG_S = 3
HANGING = f"""
import pathlib, signal, sys, time
from plog._native.faults import Fault, inject
from plog.cli import main

directory = sys.argv.pop(1)

def hang_the_loop(*_):
    time.sleep({HANG_S})

def hang_the_next_write(*_):
    # The first slow one keeps its network thread: nobody knows yet that the disk is slow.
    inject([Fault("pwritev", delay_us={HANG_S} * 1_000_000, times=1, path_prefix=directory)])
    pathlib.Path(directory, "will-hang").touch()

signal.signal(signal.SIGUSR1, hang_the_loop)
signal.signal(signal.SIGUSR2, hang_the_next_write)
main(sys.argv[1:])
"""
"""A broker that hangs on request. Handlers run in the main thread, which is the event loop's."""


@pytest.mark.parametrize("what", ["event loop", "network thread"])
def test_broker_of_which_a_part_hangs_gives_no_sign_of_life(tmp_path: Path, what: str) -> None:
    listener = Listener(str(tmp_path / "notify"))
    with BrokerProcess(
        tmp_path,
        launcher=[sys.executable, "-c", HANGING, str(tmp_path), "server"],
        environment={"NOTIFY_SOCKET": listener.name, "WATCHDOG_USEC": "300000"},
    ) as broker:
        listener.until("READY")
        wire = speak(broker.port)
        create_topic(wire, "t", 1)
        first = produce_request([("t", 0, make_batch([b"first"]))], acks=1)
        wire.ask(first, 9)
        if what == "event loop":
            os.kill(broker.pid, signal.SIGUSR1)
        else:
            os.kill(broker.pid, signal.SIGUSR2)
            eventually((tmp_path / "will-hang").exists, "the next write hangs")
            wire.send(first, ProduceResponse, version=9)
        # A busy machine may take a while until it hangs, and afterwards until it goes on.
        silence, since = 0.0, time.monotonic()
        latest = since + 10 * HANG_S
        while silence < HANG_S / 2 and since < latest:
            listener.until("WATCHDOG")
            silence = time.monotonic() - since
            since += silence
        assert silence >= HANG_S / 2
        for _ in range(3):
            listener.until("WATCHDOG")
        wire.close()
    listener.close()


def test_start_says_how_many_logs_are_loaded(tmp_path: Path) -> None:
    listener = Listener(str(tmp_path / "notify"))
    with BrokerProcess(tmp_path) as broker:
        wire = speak(broker.port)
        create_topic(wire, "many", 5)
        wire.close()
    # Each log takes a while: the indexes are read from a slow disk.
    slow = (
        "import sys, time\n"
        "from plog.storage import live_log_dir\n"
        "from plog.cli import main\n"
        "load = live_log_dir.LiveLogDir.load\n"
        "def slowly(*given, **named):\n"
        "    time.sleep(0.7)\n"
        "    return load(*given, **named)\n"
        "live_log_dir.LiveLogDir.load = slowly\n"
        "main(sys.argv[1:])\n"
    )
    again = BrokerProcess(
        tmp_path,
        launcher=[sys.executable, "-c", slow, "server"],
        environment={"NOTIFY_SOCKET": listener.name},
    )
    with again:
        _, before = listener.until("READY")
    told = [one["STATUS"] for one in before]
    assert any(text.startswith("loading logs: ") and text.endswith(" of 5") for text in told), told
    assert len(set(told)) == len(told)  # each once
    assert all(one[EXTEND] == "600000000" for one in before)
    listener.close()


class Progress:
    """A broker that starts, and its service manager: one look for each step."""

    def __init__(self, steps: list[StartProgress | int]) -> None:
        self._steps = iter(steps)
        self._reached = StartProgress(Stage.LOG_DIRS)
        self.sent: list[dict[str, object]] = []

    @property
    def start_progress(self) -> StartProgress:
        match next(self._steps, None):
            case None:
                raise asyncio.CancelledError
            case int(size):  # of a log that is read
                with Path("/dev/zero").open("rb") as file:
                    file.read(size)
            case StartProgress() as reached:
                self._reached = reached
        return self._reached

    def tell(self, **assignments: object) -> None:
        self.sent.append(assignments)


def test_start_has_more_time_for_as_long_as_it_comes_further() -> None:
    none, first = (StartProgress(Stage.LOGS, loaded, 5) for loaded in (0, 1))
    registering = StartProgress(Stage.REGISTRATION, 1, 5)
    start = Progress([none, none, first, 2 * server.PROGRESS_BYTES, 0, registering])
    with suppress(asyncio.CancelledError):
        asyncio.run(server._tell_progress(start, start))  # type: ignore[arg-type]
    assert [EXTEND in one for one in start.sent] == [True, False, True, True, False, True]


def test_stage_of_a_start_is_logged_and_sent(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(server, "TELL_START_S", 1)
    start = Progress([StartProgress(stage, 2, 2) for stage in Stage])
    with caplog.at_level(logging.INFO, server.log.name), suppress(asyncio.CancelledError):
        asyncio.run(server._tell_progress(start, start))  # type: ignore[arg-type]
    assert [one["STATUS"] for one in start.sent] == [
        "checking log directories",
        "waiting for the coordination store",
        "loading logs: 2 of 2",
        "registering",
        "waiting for the controller's first orders",
    ]
    store, logs, *rest = caplog.messages  # none in the first second
    assert re.fullmatch(r"loading logs: 2 of 2, \d+\.\d GB read", logs)
    assert [store, *rest] == [
        "waiting for the coordination store",
        "registering",
        "waiting for the controller's first orders",
    ]


def test_what_lasts_is_told_again_when_the_manager_was_busy(tmp_path: Path) -> None:
    busy = Listener(str(tmp_path / "notify"))
    busy.fill()
    with BrokerProcess(tmp_path, environment={"NOTIFY_SOCKET": busy.name}) as broker:
        started(broker)
        ready, before = busy.until("READY")
        assert ready["STATUS"] == f"listening on PLAINTEXT://127.0.0.1:{broker.port}"
        assert all(told == {"FILLED": "1"} for told in before)
    busy.close()


def test_last_of_ready_and_stopping_is_what_a_busy_manager_hears_last(tmp_path: Path) -> None:
    busy = Listener(str(tmp_path / "notify"))
    busy.fill()

    async def tell() -> dict[str, str]:
        manager = ServiceManager({"NOTIFY_SOCKET": busy.name})
        manager.tell(READY=1, STATUS="listening")
        manager.tell(WATCHDOG=1)
        manager.tell(STOPPING=1, STATUS="stopping")
        told, _ = await asyncio.get_running_loop().run_in_executor(None, busy.until, "STOPPING")
        return told

    told = asyncio.run(tell())
    assert told == {"READY": "1", "STATUS": "stopping", "STOPPING": "1"}
    assert list(told).index("STOPPING") > list(told).index("READY")
    busy.close()


def test_status_is_told_when_it_changes(tmp_path: Path) -> None:
    listener = Listener(str(tmp_path / "notify"))
    manager = ServiceManager({"NOTIFY_SOCKET": listener.name})
    for text in ("one", "one", "two"):
        manager.tell(STATUS=text)
    manager.tell(STATUS="two", READY=1)
    assert [listener.heard() for _ in range(3)] == [
        {"STATUS": "one"},
        {"STATUS": "two"},
        {"READY": "1"},
    ]
    listener.close()


def test_watchdogs_kill_leaves_in_the_log_where_every_thread_stood(tmp_path: Path) -> None:
    # Without a core file, wherever this machine would put one.
    launcher = ["prlimit", "--core=0", sys.executable, "-m", "plog", "server"]
    broker = BrokerProcess(tmp_path, launcher=launcher).start()
    started(broker)
    os.kill(broker.pid, signal.SIGABRT)
    assert broker.wait() == -signal.SIGABRT
    assert "Fatal Python error: Aborted" in broker.log
    assert len(re.findall(r"^(Current thread|Thread) 0x", broker.log, re.MULTILINE)) > 1
    assert "in run_forever" in broker.log  # the event loop


def test_nobody_listens_and_the_broker_runs(tmp_path: Path) -> None:
    gone = tmp_path / "gone"
    with BrokerProcess(tmp_path, environment={"NOTIFY_SOCKET": str(gone)}) as broker:
        speak(broker.port).close()
    complaints = [line for line in broker.log.splitlines() if "NOTIFY_SOCKET" in line]
    assert len(complaints) == 1
    assert "No such file or directory" in complaints[0]


@pytest.mark.parametrize(
    ("environment", "expected_s"),
    [
        ({}, 0.0),
        ({"WATCHDOG_USEC": "1000000"}, 0.0),  # nobody to tell
        ({"NOTIFY_SOCKET": "/x", "WATCHDOG_USEC": "1500000"}, 1.5),
        ({"NOTIFY_SOCKET": "/x", "WATCHDOG_USEC": "1500000", "WATCHDOG_PID": "1"}, 0.0),
        ({"NOTIFY_SOCKET": "/x", "WATCHDOG_USEC": "soon"}, 0.0),
        ({"NOTIFY_SOCKET": "/x", "WATCHDOG_USEC": ""}, 0.0),
        ({"NOTIFY_SOCKET": "/x"}, 0.0),
    ],
)
def test_watchdog_is_for_the_process_that_is_named(
    environment: dict[str, str], expected_s: float
) -> None:
    assert ServiceManager(environment).watchdog_s == expected_s
    own = {"WATCHDOG_PID": str(os.getpid())}
    if "WATCHDOG_PID" not in environment:
        assert ServiceManager({**environment, **own}).watchdog_s == expected_s


def test_text_cannot_smuggle_an_assignment_in(tmp_path: Path) -> None:
    listener = Listener(str(tmp_path / "notify"))
    ServiceManager({"NOTIFY_SOCKET": listener.name}).tell(STATUS="one\nREADY=1")
    assert listener.heard() == {"STATUS": "one READY=1"}
    listener.close()


def test_network_thread_that_hangs_is_not_alive(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.CRITICAL)  # of the disk, which is slow on purpose
    port = free_port()
    given = broker_settings(port, str(tmp_path), {})
    broker = Broker(BrokerSettings({key: str(value) for key, value in given.items()}))

    async def look() -> tuple[bool, bool, bool]:
        await broker.start()
        try:
            loop = asyncio.get_running_loop()
            wire = await loop.run_in_executor(None, speak, port)
            await loop.run_in_executor(None, create_topic, wire, "t", 1)
            first = produce_request([("t", 0, make_batch([b"first"]))], acks=1)
            await loop.run_in_executor(None, wire.ask, first, 9)
            before = await broker.is_alive(5)
            # The first slow write keeps its thread: nobody knows yet that the disk is slow.
            inject([Fault("pwritev", delay_us=2_000_000, times=1, path_prefix=str(tmp_path))])
            read = broker.reactor_stats.requests
            asked = loop.run_in_executor(None, wire.ask, first, 9)
            while broker.reactor_stats.requests == read:
                await asyncio.sleep(0.001)
            during = await broker.is_alive(0.1)
            await asked
            after = await broker.is_alive(5)
            wire.close()
            return before, during, after
        finally:
            inject([])
            await broker.stop()

    assert asyncio.run(look()) == (True, False, True)
