"""`bin/cluster`, which runs a ZooKeeper and brokers on one machine: what `start` and `show` say."""

from __future__ import annotations

import importlib.util
import os
import socket
from pathlib import Path
from types import ModuleType, SimpleNamespace

import pytest

from tests.cli.test_cluster import PLOG_CONFIGS, Pair
from tests.servers import free_port

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
