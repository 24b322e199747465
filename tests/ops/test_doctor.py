"""What `plog doctor` finds on a host that is well, and on one that is not."""

from __future__ import annotations

import json
import os
import resource
import socket
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

from plog.ops.doctor import Finding, Verdict, examine
from tests.servers import BrokerProcess, free_port

NOBODY = 65534


def settings(tmp_path: Path, **more: object) -> str:
    given = {
        "log.dirs": tmp_path / "data",
        "listeners": f"PLAINTEXT://127.0.0.1:{free_port()}",
        **{key.replace("_", "."): value for key, value in more.items()},
    }
    path = tmp_path / "server.properties"
    path.write_text("".join(f"{key}={value}\n" for key, value in given.items()))
    return str(path)


def failures(found: list[Finding]) -> list[str]:
    return [one.text for one in found if one.verdict is Verdict.FAILURE]


def warnings(found: list[Finding], what: str) -> list[str]:
    return [one.text for one in found if one.verdict is Verdict.WARNING and one.what == what]


def test_well_kept_host_has_nothing_to_mend(tmp_path: Path) -> None:
    found = examine(settings(tmp_path))
    assert failures(found) == []
    looked_at = {one.what for one in found}
    assert looked_at >= {
        "settings", "log.dirs", "disk space", "file system", "listeners", "memory", "limits",
        "kernel", "processor",
    }  # fmt: skip
    assert all(one.advice for one in found if one.verdict is not Verdict.OK)
    assert not (tmp_path / "data").exists()  # it only looks


def test_running_broker_is_no_fault(tmp_path: Path) -> None:
    with BrokerProcess(tmp_path) as broker:
        properties = tmp_path / "server.properties"
        properties.write_text("".join(f"{k}={v}\n" for k, v in broker.overrides.items()))
        found = examine(str(properties))
        assert failures(found) == []
        texts = [one.text for one in found]
        assert any("in use by a running broker" in text for text in texts)
        assert any("as a broker is running" in text for text in texts)


def test_everything_wrong_with_the_file_is_told(tmp_path: Path) -> None:
    found = failures(examine(settings(tmp_path, num_partitions="few", log_retention_ms="soon")))
    assert len(found) == 2
    assert any("num.partitions" in text for text in found)


def test_keys_without_effect_are_told(tmp_path: Path) -> None:
    found = examine(settings(tmp_path, num_io_threads=8))
    (text,) = warnings(found, "settings")
    assert "num.io.threads" in text


def test_port_of_another_process_is_a_failure(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        found = failures(examine(settings(tmp_path, listeners=f"PLAINTEXT://127.0.0.1:{port}")))
        (text,) = found
        assert "Address already in use" in text
        metrics = failures(examine(settings(tmp_path, metrics_listener=f"127.0.0.1:{port}")))
        (text,) = metrics
        assert "metrics.listener" in text


def test_address_of_another_host_is_a_failure(tmp_path: Path) -> None:
    (text,) = failures(examine(settings(tmp_path, listeners="PLAINTEXT://192.0.2.1:9092")))
    assert "192.0.2.1" in text


def test_directory_named_twice_or_no_directory_is_a_failure(tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to(tmp_path / "data")
    twice = f"{tmp_path / 'data'},{tmp_path / 'link'}"
    found = failures(examine(settings(tmp_path, log_dirs=twice)))
    assert any("named 2 times" in text for text in found), found
    (tmp_path / "file").write_text("")
    found = failures(examine(settings(tmp_path, log_dirs=tmp_path / "file")))
    assert any("is no directory" in text for text in found)


def test_directory_of_another_broker_is_a_failure(tmp_path: Path) -> None:
    with BrokerProcess(tmp_path, overrides={"broker.id": 7}):
        pass
    found = failures(examine(settings(tmp_path, log_dirs=tmp_path / "data0", broker_id=8)))
    assert any("broker" in text and "7" in text for text in found)


def as_nobody(look: Callable[[], list[str]]) -> list[str]:
    """Return what a look finds in a process that is no user's in particular."""
    read, write = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            if os.geteuid() == 0:
                os.setresuid(NOBODY, NOBODY, NOBODY)
            os.write(write, json.dumps(look()).encode())
        finally:
            os._exit(0)
    os.close(write)
    with os.fdopen(read) as answer:
        text = answer.read()
    os.waitpid(child, 0)
    return json.loads(text)


def test_directory_of_another_user_is_a_failure(tmp_path: Path) -> None:
    (tmp_path / "data").mkdir(mode=0o500)
    properties = settings(tmp_path)
    for above in [tmp_path, *tmp_path.parents]:
        if above.owner() == tmp_path.owner():
            above.chmod(above.stat().st_mode | 0o055)
    found = as_nobody(lambda: failures(examine(properties)))
    assert any("may not write there" in text for text in found), found


def in_child(look: Callable[[], None], command: list[str]) -> subprocess.CompletedProcess[str]:
    return subprocess.run(command, preexec_fn=look, capture_output=True, text=True, check=False)


def test_command_tells_and_ends_with_a_status(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "plog", "doctor", settings(tmp_path)]
    well = subprocess.run(command, capture_output=True, text=True, check=False)
    assert well.returncode == 0, well.stdout + well.stderr
    assert "to mend" in well.stdout

    def few_descriptors() -> None:
        resource.setrlimit(resource.RLIMIT_NOFILE, (1000, 1000))

    few = in_child(few_descriptors, [*command, "--json"])
    assert few.returncode == 0
    (limits,) = [one for one in json.loads(few.stdout) if one["what"] == "limits"]
    assert limits["verdict"] == "warning"
    assert "1,000" in limits["text"]
    assert "LimitNOFILE" in limits["advice"]
    wrong = subprocess.run(
        [*command, "--override", "num.partitions=few"], capture_output=True, text=True, check=False
    )
    assert wrong.returncode == 1
    assert "num.partitions" in wrong.stdout
