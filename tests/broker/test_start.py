"""How a broker starts, refuses to start, and stops: one line that says why, and status 1."""

from __future__ import annotations

import asyncio
import errno
import gc
import os
import re
import signal
import socket
import subprocess
import sys
import threading
import time
import urllib.request
from collections.abc import Iterator, Sequence
from pathlib import Path
from pkgutil import resolve_name

import pytest

from plog.broker import Broker
from plog.client.admin import Admin
from plog.client.producer import Producer
from plog.errors import ConfigError, ErrorCode, KafkaStorageError
from plog.network.listeners import listen_on
from plog.ops.service_manager import ServiceManager
from plog.server import serve
from plog.settings.definitions import BrokerSettings
from plog.storage.log_dir import CLEAN_SHUTDOWN_FILE, META_PROPERTIES
from plog.wiring.start_progress import Stage
from tests.descriptors import open_at
from tests.handlers.wire import create_topic, make_batch, produce, speak
from tests.planes import broker_settings
from tests.servers import BrokerProcess, free_port

TIMEOUT_S = 90


def run(*arguments: object) -> subprocess.CompletedProcess[str]:
    """Run `plog server` to its end."""
    return subprocess.run(
        [sys.executable, "-m", "plog", "server", *map(str, arguments)],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=TIMEOUT_S,
        check=False,
    )


def overrides(log_dirs: object, **values: object) -> list[str]:
    given = {key.replace("_", "."): value for key, value in values.items()}
    settings = broker_settings(free_port(), str(log_dirs), given)
    return [word for key, value in settings.items() for word in ("--override", f"{key}={value}")]


def refusal(ended: subprocess.CompletedProcess[str]) -> str:
    """Return what a refused start says in the end: one line, no traceback, status 1."""
    assert ended.returncode == 1, ended.stderr
    assert "Traceback" not in ended.stderr
    (line,) = [line for line in ended.stderr.splitlines() if line.startswith("plog: ")]
    return line


def content(directory: Path) -> dict[str, bytes]:
    return {
        str(path.relative_to(directory)): path.read_bytes()
        for path in sorted(directory.rglob("*"))
        if path.is_file()
    }


def meta(path: Path, broker_id: int, cluster_id: str = "c") -> Path:
    path.mkdir(exist_ok=True)
    text = f"version=0\nbroker.id={broker_id}\ncluster.id={cluster_id}\n"
    (path / META_PROPERTIES).write_text(text)
    return path


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[BrokerProcess]:
    made = BrokerProcess(tmp_path)
    yield made
    made.kill()


# -- refused ---------------------------------------------------------------------------------------


@pytest.mark.usefixtures("plane")
def test_second_broker_on_a_log_directory_is_refused_before_it_writes(
    broker: BrokerProcess, tmp_path: Path
) -> None:
    broker.start()
    with Admin(broker.bootstrap) as admin:
        admin.create_topic("t", partitions=1)  # answered once the start has written what it writes
    with Producer(broker.bootstrap) as producer:
        producer.send("t", b"before").result(TIMEOUT_S)
    log_dirs = f"{tmp_path / 'own'},{broker.log_dirs[0]}"
    with broker.suspended():  # it writes too, now and then
        before = content(broker.log_dirs[0])
        line = refusal(run(*overrides(log_dirs=log_dirs, broker_id=7)))
        after = content(broker.log_dirs[0])
    assert line == (
        f"plog: log directory {broker.log_dirs[0]} is in use by another broker process"
        " (its file .lock is locked)"
    )
    assert after == before
    # Who has both the directory and the port is not disturbed either.
    again = run(*overrides(log_dirs=broker.log_dirs[0], listeners=broker.overrides["listeners"]))
    assert refusal(again) == line
    with Producer(broker.bootstrap) as producer:
        assert producer.send("t", b"after").result(TIMEOUT_S).offset == 1
    broker.stop()


@pytest.mark.parametrize("what", ["listener PLAINTEXT", "metrics.listener"])
def test_port_in_use_is_told_before_anything_is_written_or_recovered(
    broker: BrokerProcess, what: str
) -> None:
    broker.start()
    with Admin(broker.bootstrap) as admin:
        admin.create_topic("t", partitions=1)
    broker.kill()  # so that there is something to recover
    before = content(broker.log_dirs[0])
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        values = {"metrics_listener": f"127.0.0.1:{port}"}
        if what != "metrics.listener":
            values = {"listeners": f"PLAINTEXT://127.0.0.1:{port}"}
        ended = run(*overrides(log_dirs=broker.log_dirs[0], **values))
    assert refusal(ended) == (
        f"plog: {what}: cannot listen on 127.0.0.1:{port}: Address already in use"
    )
    assert len(ended.stderr.splitlines()) == 1, ended.stderr
    assert content(broker.log_dirs[0]) == before


def test_port_in_use_leaves_nothing_in_a_new_directory(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        listeners = f"PLAINTEXT://127.0.0.1:{taken.getsockname()[1]}"
        refusal(run(*overrides(log_dirs=tmp_path / "d", listeners=listeners)))
    assert [path.name for path in (tmp_path / "d").iterdir()] == [".lock"]


def test_directory_of_another_broker_is_refused_untouched(tmp_path: Path) -> None:
    directory = meta(tmp_path / "d", 7)
    before = content(directory)
    line = refusal(run(*overrides(log_dirs=directory, broker_id=3)))
    assert "belongs to broker 7, not 3 (set broker.id=7, or use an empty directory)" in line
    assert {k: v for k, v in content(directory).items() if k != ".lock"} == before


def test_directories_of_two_clusters_are_refused_untouched(tmp_path: Path) -> None:
    one, two = meta(tmp_path / "1", 0, "one"), meta(tmp_path / "2", 0, "two")
    line = refusal(run(*overrides(log_dirs=f"{one},{two}")))
    assert line.endswith("the directory belongs to cluster two, not one")
    assert [path.name for path in two.iterdir() if path.name != ".lock"] == [META_PROPERTIES]


def test_directory_of_a_later_version_is_refused(tmp_path: Path) -> None:
    (tmp_path / META_PROPERTIES).write_text("version=7\n")
    assert "version 0 expected, not '7'" in refusal(run(*overrides(log_dirs=tmp_path)))


def test_directory_of_kraft_is_refused_untouched_with_what_can_be_done(tmp_path: Path) -> None:
    text = "version=1\nnode.id=1\ncluster.id=c\ndirectory.id=AbCdEfGhIjKlMnOpQrStUw\n"
    (tmp_path / META_PROPERTIES).write_text(text)
    (tmp_path / "__cluster_metadata-0").mkdir()
    (tmp_path / "flights-0").mkdir()
    before = content(tmp_path)
    line = refusal(run(*overrides(log_dirs=tmp_path)))
    assert f"{tmp_path}: it holds __cluster_metadata-0: a KRaft broker's directory" in line
    assert "start plog on an empty directory, and copy the topics" in line
    assert {k: v for k, v in content(tmp_path).items() if k != ".lock"} == before


def test_no_usable_log_directory_is_named_with_its_reason(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    inside = tmp_path / "file" / "data"
    line = refusal(run(*overrides(log_dirs=f"{inside},/proc/plog")))
    assert line.startswith("plog: no log directory can be used: ")
    assert f"{inside}: Not a directory; /proc/plog: " in line


def test_directory_named_twice_is_refused(tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to(tmp_path)
    line = refusal(run(*overrides(log_dirs=f"{tmp_path},{tmp_path / 'link'}")))
    assert line == f"plog: log.dirs names {tmp_path} twice"


def test_properties_file_is_refused_with_all_its_faults(tmp_path: Path) -> None:
    path = tmp_path / "server.properties"
    path.write_text(
        "listeners=PLAINTEXT://127.0.0.1:0\nnum.partitions=many\nlog.segment.byte=1\nbroker.id=-5\n"
    )
    ended = run(path, "--override", "nonsense")
    assert ended.returncode == 1
    assert ended.stderr.splitlines() == [
        f"plog: {path}:2: `num.partitions`: 'many' is not a whole number",
        f"plog: {path}:3: `log.segment.byte`: unknown key; did you mean `log.segment.bytes`?",
        f"plog: {path}:4: `broker.id`: -5 is below -1",
        "plog: --override: 'nonsense' is not of the form key=value",
    ]


def test_zookeeper_that_does_not_answer_is_one_line(tmp_path: Path) -> None:
    settings = {"zookeeper_connect": f"127.0.0.1:{free_port()}/plog"}
    settings["zookeeper_connection_timeout_ms"] = "500"
    line = refusal(run(*overrides(log_dirs=tmp_path, **settings)))
    assert line.startswith("plog: no ZooKeeper answers at 127.0.0.1:")


def test_missing_properties_file_is_named(tmp_path: Path) -> None:
    ended = run(tmp_path / "nowhere.properties")
    assert ended.returncode != 0
    assert "nowhere.properties" in ended.stderr
    assert "Traceback" not in ended.stderr


# -- started all the same --------------------------------------------------------------------------


@pytest.mark.usefixtures("plane")
def test_unusable_log_directory_is_left_out_and_the_others_serve(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    good = tmp_path / "good"
    broker = BrokerProcess(
        tmp_path, overrides={"log.dirs": f"{tmp_path / 'file' / 'bad'},/proc/plog,{good}"}
    )
    with broker:
        with Admin(broker.bootstrap) as admin:
            admin.create_topic("t", partitions=2)
        with Producer(broker.bootstrap) as producer:
            producer.send("t", b"value").result(TIMEOUT_S)
    assert (good / "t-0").is_dir()
    for bad in (tmp_path / "file" / "bad", Path("/proc/plog")):
        assert len(re.findall(f"log directory {bad} is offline: ", broker.log)) == 1


def test_keys_without_effect_are_warned_of_once_each(tmp_path: Path) -> None:
    path = tmp_path / "server.properties"
    path.write_text("num.io.threads=8\nbackground.threads=100\nnum.io.threads=9\n")
    broker = BrokerProcess(tmp_path, launcher=[sys.executable, "-m", "plog", "server", str(path)])
    with broker:
        pass
    warnings = [line for line in broker.log.splitlines() if " WARNING " in line]
    for key in ("num.io.threads", "background.threads"):
        assert len([w for w in warnings if f"`{key}`" in w and "no effect" in w]) == 1


def test_generated_broker_id_is_kept(tmp_path: Path) -> None:
    broker = BrokerProcess(
        tmp_path, overrides={"broker.id": -1, "queued.max.request.bytes": -1}, log_dirs=2
    )
    ids = set()
    for harm in range(3):
        with broker, Admin(broker.bootstrap) as admin:
            if not harm:
                admin.create_topic("t")
            ids.add(admin.controller_id())
        for directory in broker.log_dirs[:harm]:
            (directory / META_PROPERTIES).unlink()
    assert ids == {1001}
    # With every meta.properties gone, its topics tell who it was.
    for directory in broker.log_dirs:
        (directory / META_PROPERTIES).unlink(missing_ok=True)
    with broker, Admin(broker.bootstrap) as admin:
        assert admin.controller_id() == 1001
    for directory in broker.log_dirs:
        assert "broker.id=1001" in (directory / META_PROPERTIES).read_text()


SLOW_LEADERSHIP = """
import sys, time
from plog.cluster.replica_manager import ReplicaManager
apply = ReplicaManager.apply_leader_and_isr
def slowly(self, request):
    time.sleep(0.5)
    return apply(self, request)
ReplicaManager.apply_leader_and_isr = slowly
from plog.cli import main
from tests.planes import take_plane
take_plane()
main(sys.argv[1:])
"""


@pytest.mark.usefixtures("plane")
def test_first_request_finds_the_leaders_of_before(tmp_path: Path) -> None:
    broker = BrokerProcess(tmp_path, launcher=[sys.executable, "-c", SLOW_LEADERSHIP, "server"])
    with broker:
        connection = speak(broker.port)
        topic, _ = create_topic(connection)
        connection.close()
    with broker:
        connection = speak(broker.port)
        assert produce(connection, topic, make_batch()).error_code == ErrorCode.NONE
        connection.close()


STAGES = {
    "plog.broker.find_log_dirs": Stage.LOG_DIRS,
    "plog.wiring.base.open_store": Stage.STORE,
    "plog.storage.log_manager.LogManager.start": Stage.LOGS,
    "plog.cluster.member.Member.start": Stage.REGISTRATION,
    "plog.cluster.metadata_cache.MetadataCache.until": Stage.FIRST_ORDERS,
}
"""The stage in which a start calls a function first."""


def test_start_shows_its_stage(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    broker = Broker(settings_of(tmp_path, free_port()))
    seen: dict[str, Stage] = {}

    def note(name: str) -> None:
        function = resolve_name(name)

        def noted(*arguments: object, **named: object) -> object:
            seen.setdefault(name, broker.start_progress.stage)
            return function(*arguments, **named)

        monkeypatch.setattr(name, noted)

    for name in STAGES:
        note(name)

    async def scenario() -> None:
        await broker.start()
        await broker.stop()

    asyncio.run(scenario())
    assert seen == STAGES


# -- signals ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("numbers", [[signal.SIGTERM] * 2, [signal.SIGINT], [signal.SIGINT] * 3])
def test_signals_stop_the_broker_cleanly(
    broker: BrokerProcess, numbers: Sequence[signal.Signals]
) -> None:
    broker.start()
    with Admin(broker.bootstrap) as admin:
        admin.create_topic("t", partitions=20)
    process = broker._process
    assert process is not None
    for number in numbers:
        process.send_signal(number)
        time.sleep(0.005)  # else the system makes one signal of them
    assert process.wait(TIMEOUT_S) == 0
    assert broker.log.rstrip().endswith("stopped")
    assert (broker.log_dirs[0] / CLEAN_SHUTDOWN_FILE).exists()


SLOW_RECOVERY = """
import sys, time
from plog.storage import live_log_dir
recover = live_log_dir.recover
def slowly(*args, **options):
    print("recovering", flush=True)
    time.sleep(0.5 if sys.argv[1] == "short" else 3600)
    return recover(*args, **options)
live_log_dir.recover = slowly
from plog.cli import main
main(["server", *sys.argv[2:]])
"""


@pytest.mark.parametrize("length", ["short", "long"])
def test_sigterm_during_recovery_ends_the_start(tmp_path: Path, length: str) -> None:
    broker = BrokerProcess(tmp_path)
    with broker:
        with Admin(broker.bootstrap) as admin:
            admin.create_topic("t", partitions=3)
        with Producer(broker.bootstrap) as producer:
            producer.send("t", b"value", partition=1).result(TIMEOUT_S)
    (broker.log_dirs[0] / CLEAN_SHUTDOWN_FILE).unlink()
    process = subprocess.Popen(
        [sys.executable, "-c", SLOW_RECOVERY, length, *overrides(log_dirs=broker.log_dirs[0])],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        assert process.stdout is not None
        assert process.stdout.readline() == "recovering\n"
        process.send_signal(signal.SIGTERM)
        _, errors = process.communicate(timeout=TIMEOUT_S)
    finally:
        process.kill()
        process.wait()
    assert process.returncode == 0, errors
    assert "Traceback" not in errors
    assert "stopping before the start is complete" in errors
    assert not (broker.log_dirs[0] / CLEAN_SHUTDOWN_FILE).exists()
    with broker, Admin(broker.bootstrap) as admin:
        assert len(admin.topic("t").partitions) == 3


FULL_PIPE = """
import asyncio, threading, time
from plog.broker import Broker
start = Broker.start
def fill(loop):
    # 100 at a time from each thread: a socketpair takes some 280 bytes that nobody reads.
    def call():
        for _ in range(100):
            loop.call_soon_threadsafe(lambda: None)
    threads = [threading.Thread(target=call) for _ in range(10)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    print("full", flush=True)
    time.sleep(0.5)
async def start_and_fill(self):
    await start(self)
    loop = asyncio.get_running_loop()
    loop.call_later(0.1, fill, loop)
Broker.start = start_and_fill
from plog.cli import main
main()
"""


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_one_signal_stops_a_broker_whose_event_loop_is_behind(
    tmp_path: Path, number: signal.Signals
) -> None:
    process = subprocess.Popen(
        [sys.executable, "-c", FULL_PIPE, "server", *overrides(log_dirs=tmp_path / "data")],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        assert process.stdout is not None
        assert process.stdout.readline() == "full\n"
        process.send_signal(number)
        _, errors = process.communicate(timeout=TIMEOUT_S)
    finally:
        process.kill()
        process.wait()
    assert process.returncode == 0, errors
    assert "Exception ignored" not in errors
    assert errors.rstrip().endswith("stopped")
    assert (tmp_path / "data" / CLEAN_SHUTDOWN_FILE).exists()


# -- in one process --------------------------------------------------------------------------------


def settings_of(directory: Path, port: int, **values: object) -> BrokerSettings:
    given = {key.replace("_", "."): value for key, value in values.items()}
    settings = broker_settings(port, str(directory), given)
    return BrokerSettings({key: str(value) for key, value in settings.items()})


PARTS = [
    "plog.cluster.store_choice.create_persistent_paths",
    "plog.wiring.base.take_inventory",
    "plog.wiring.parts.ReplicaManager",
    "plog.wiring.parts.BrokerRegistration",
    "plog.wiring.parts.Services",
    "plog.broker.Reactor",
    "plog.broker.listen_on",
    "plog.broker.Dispatcher",
    "plog.wiring.parts.Controller.start",
    "plog.network.control_plane.ControlPlane.start",
]


@pytest.mark.parametrize("part", [*PARTS, "port"])
def test_failed_start_leaves_no_thread_and_no_lock(
    tmp_path: Path, part: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    threads = set(threading.enumerate())

    def fails(*_: object, **__: object) -> None:
        raise ConfigError("no")

    async def scenario() -> None:
        with socket.create_server(("127.0.0.1", 0)) as taken:
            port = taken.getsockname()[1]
            with monkeypatch.context() as patch:
                if part != "port":
                    port = free_port()
                    patch.setattr(part, fails)
                with pytest.raises(ConfigError):
                    await Broker(settings_of(tmp_path / "d", port)).start()
        left = [t for t in threading.enumerate() if t not in threads and "asyncio" not in t.name]
        assert left == []
        assert open_at(tmp_path) == []
        # and the directory serves, at the same port
        again = Broker(settings_of(tmp_path / "d", port))
        await again.start()
        await again.stop()

    asyncio.run(scenario())
    assert set(threading.enumerate()) <= threads


def test_cancelled_start_gives_everything_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    begun, go_on = threading.Event(), threading.Event()

    def waits(*_: object) -> None:
        begun.set()
        go_on.wait(TIMEOUT_S)

    async def scenario() -> None:
        with monkeypatch.context() as patch:
            patch.setattr("plog.storage.log_loading.LogLoading._load_in_threads", waits)
            port = free_port()
            start = asyncio.create_task(Broker(settings_of(tmp_path, port)).start())
            await asyncio.to_thread(begun.wait, TIMEOUT_S)
            with pytest.raises(ConnectionRefusedError):  # and does not wait in a backlog
                await asyncio.open_connection("127.0.0.1", port)
            start.cancel()
            with pytest.raises(asyncio.CancelledError):
                await start
        go_on.set()

    asyncio.run(scenario())
    for thread in threading.enumerate():
        if thread.name == "load logs":
            thread.join(TIMEOUT_S)
    assert open_at(tmp_path) == []
    assert not (tmp_path / CLEAN_SHUTDOWN_FILE).exists()


def test_want_of_descriptors_is_one_line_and_no_traceback(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(*_: object, **__: object) -> None:
        raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))

    monkeypatch.setattr("plog.broker.Reactor", fails)
    broker = Broker(settings_of(tmp_path, free_port()))
    with pytest.raises(KafkaStorageError, match=r"cannot start: .* Too many open files"):
        asyncio.run(serve(broker, ServiceManager({}), 0))
    assert (tmp_path / CLEAN_SHUTDOWN_FILE).exists()


def test_process_that_has_started_does_not_look_for_garbage_in_what_it_holds(
    tmp_path: Path,
) -> None:
    async def scenario() -> None:
        broker = Broker(settings_of(tmp_path, free_port()))
        running = asyncio.create_task(serve(broker, ServiceManager({}), 0))
        async with asyncio.timeout(TIMEOUT_S):
            while gc.get_freeze_count() == 0:
                assert not running.done()
                await asyncio.sleep(0.01)
        assert not any(one is broker for one in gc.get_objects())
        os.kill(os.getpid(), signal.SIGTERM)
        assert await running == 0

    gc.unfreeze()
    try:
        asyncio.run(scenario())
    finally:
        gc.unfreeze()


def test_metrics_are_there_before_clients_are_let_in(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    port, metrics = free_port(), free_port()
    pages: list[bytes] = []

    def looks(*given: object) -> None:
        with urllib.request.urlopen(f"http://127.0.0.1:{metrics}/metrics", timeout=60) as answer:
            pages.append(answer.read())
        listen_on(*given)

    async def scenario() -> None:
        broker = Broker(settings_of(tmp_path, port, metrics_listener=f"127.0.0.1:{metrics}"))
        await broker.start()
        await broker.stop()

    monkeypatch.setattr("plog.broker.listen_on", looks)
    asyncio.run(scenario())
    (page,) = pages
    assert b"plog_connections" in page
