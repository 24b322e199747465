"""`bin/cluster`, which runs a ZooKeeper and brokers on one machine: what it says and does."""

from __future__ import annotations

import importlib.util
import os
import re
import signal
import socket
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType, SimpleNamespace

import pytest

from plog.client.admin import Admin
from plog.client.producer import Producer
from tests.cli.test_cluster import PLOG_CONFIGS, Pair
from tests.compat.live_kafka import KAFKA_3_9
from tests.servers import free_port
from tests.several_brokers import until_topic_is_known
from tests.waiting import until
from tests.whole_topic import read_topic

PATIENCE_S = 60.0
SESSION_MS = 5_000
SCRIPT = Path(__file__).resolve().parent.parent / "bin" / "lib" / "cluster.py"


@pytest.fixture
def script(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """The script, with a place of its own and without brokers."""
    spec = importlib.util.spec_from_file_location("bin_lib_cluster", SCRIPT)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    monkeypatch.setattr(module, "PLACE", tmp_path)
    monkeypatch.setattr(module, "CONFIGS", [])
    return module


def add_broker(script: ModuleType, name: str, port: int, *, is_running: bool) -> None:
    """Add a broker's properties and, for one that runs, this process as its own."""
    config = script.PLACE / f"{name}.properties"
    config.write_text(f"listeners=PLAINTEXT://127.0.0.1:{port}\n")
    script.CONFIGS.append(config)
    if is_running:
        pid = os.getpid()
        script.pid_file(name).write_text(f"{pid} {script.start_time(pid)}\n")


def test_broker_that_does_not_run_is_to_be_started_by_the_script(
    script: ModuleType, capfd: pytest.CaptureFixture[str]
) -> None:
    with Pair(PLOG_CONFIGS, [(1,), (2,)]) as fake:
        port = int(fake.bootstrap.rpartition(":")[2])
        add_broker(script, "cluster-1", port, is_running=True)
        add_broker(script, "cluster-2", free_port(), is_running=False)
        with pytest.raises(SystemExit) as ended:
            script.show()
    said = capfd.readouterr()
    assert ended.value.code == 1
    assert "cluster-2    does not run" in said.out
    assert said.err.splitlines()[-1] == (
        "bin/cluster: `bin/cluster start` starts what does not run: zookeeper, cluster-2"
    )
    assert "plog server" not in said.err


def test_cluster_that_runs_needs_no_advice(
    script: ModuleType, capfd: pytest.CaptureFixture[str]
) -> None:
    with Pair(PLOG_CONFIGS, [(1,)]) as fake:
        port = int(fake.bootstrap.rpartition(":")[2])
        for name in (script.ZOOKEEPER, "cluster-1"):
            add_broker(script, name, port, is_running=True)
        with pytest.raises(SystemExit):
            script.show()
    assert "bin/cluster" not in capfd.readouterr().err


def test_port_that_is_in_use_is_found_before_anything_is_started(
    script: ModuleType, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    launched: list[list[str]] = []

    def launch(command: list[str], **_: object) -> SimpleNamespace:
        launched.append(command)
        return SimpleNamespace(pid=os.getpid())

    monkeypatch.setattr(script, "ZOOKEEPER_PORT", free_port())
    monkeypatch.setattr(script, "jars", lambda: script.PLACE)
    monkeypatch.setattr(script, "wait_for", lambda *_: None)
    monkeypatch.setattr(script.subprocess, "Popen", launch)
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = other.getsockname()[1]
        add_broker(script, "cluster-1", port, is_running=False)
        with pytest.raises(SystemExit):
            script.start()
    assert launched == []
    assert capfd.readouterr().err == (
        f"bin/cluster: port {port} of 127.0.0.1, which cluster-1 needs, is in use by another"
        " program. Nothing is started\n"
    )


def test_start_that_fails_later_says_how_to_stop_the_others(
    script: ModuleType, capfd: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit):
        script.wait_for("cluster-1", free_port())
    assert "`bin/cluster stop` stops the others" in capfd.readouterr().err


@pytest.fixture
def real(script: ModuleType, monkeypatch: pytest.MonkeyPatch) -> Iterator[ModuleType]:
    """The script with its own properties files, on free ports; what it starts is ended."""
    zookeeper = free_port()
    monkeypatch.setattr(script, "ZOOKEEPER_PORT", zookeeper)
    monkeypatch.setattr(script, "jars", lambda: KAFKA_3_9.jars)
    monkeypatch.setattr(script, "CONFIGS", [])
    for shipped in sorted((SCRIPT.parents[2] / "config").glob("cluster-*.properties")):
        text = shipped.read_text().replace("timeout.ms=18000", f"timeout.ms={SESSION_MS}")
        text = text.replace(":2181/", f":{zookeeper}/")
        config = script.PLACE / shipped.name
        config.write_text(re.sub(r"127\.0\.0\.1:9\d{3}$", _on_free_port, text, flags=re.MULTILINE))
        script.CONFIGS.append(config)
    try:
        yield script
    finally:
        script.stop()


def _on_free_port(_: re.Match[str]) -> str:
    return f"127.0.0.1:{free_port()}"


def status_of(command: Callable[[], None]) -> int:
    """Return the exit status of a command that shows the cluster at its end."""
    with pytest.raises(SystemExit) as ended:
        command()
    assert isinstance(ended.value.code, int)
    return ended.value.code


def test_cluster_is_started_and_goes_on_after_a_kill_and_a_restart(
    real: ModuleType, capfd: pytest.CaptureFixture[str]
) -> None:
    assert status_of(real.start) == 0
    shown = capfd.readouterr().out
    assert [line.split()[:2] for line in shown.splitlines()[:4]] == [
        [name, "process"] for name in real.names()
    ]
    bootstrap = ",".join(f"127.0.0.1:{real.port_of(one)}" for one in real.CONFIGS)
    with Admin(bootstrap) as admin:
        assert {node.node_id for node in admin.nodes()} == {1, 2, 3}
        admin.create_topic("t")
        until_topic_is_known(bootstrap, "t")
        assert all(len(part.replicas) == 3 for part in admin.topic("t").partitions.values())
    with Producer(bootstrap) as producer:
        producer.send("t", b"before").result(PATIENCE_S)
        os.kill(real.running("cluster-2"), signal.SIGKILL)
        until(lambda: real.running("cluster-2") is None, "it has ended")
        producer.send("t", b"while it is away").result(PATIENCE_S)
        capfd.readouterr()
        status_of(real.show)
        assert "cluster-2    does not run" in capfd.readouterr().out
        assert status_of(real.start) == 0
        real.restart(1)
        producer.send("t", b"after").result(PATIENCE_S)
    found = {record.value for record in read_topic(bootstrap, "t")}
    assert found == {b"before", b"while it is away", b"after"}
    capfd.readouterr()
    real.remove()
    assert capfd.readouterr().out.splitlines()[:-1] == [
        f"stopped {name}" for name in reversed([*real.names()])
    ]
    assert all(real.running(name) is None for name in real.names())
    assert not any((real.PLACE / one.stem).exists() for one in real.CONFIGS)
