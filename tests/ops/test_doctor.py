"""What `plog doctor` finds on a host that is well, and on one that is not."""

from __future__ import annotations

import json
import os
import pwd
import resource
import shlex
import shutil
import socket
import subprocess
import sys
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import NamedTuple

import pytest

from plog.cli.doctor import command
from plog.cluster.store_copy import FILE_NAME
from plog.ops.doctor.examination import examine
from plog.ops.doctor.findings import Finding, Verdict
from plog.ops.doctor.units import unit_of
from plog.storage.log_dir import DIRECTORY_ID, META_PROPERTIES, decode_properties
from tests.conftest import ROOT
from tests.handlers.wire import create_topic, speak
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
        assert any("in use by the running broker" in text for text in texts)


def test_everything_wrong_with_the_file_is_told(tmp_path: Path) -> None:
    wrong = {"num_partitions": "few", "log_retention_ms": "soon"}
    examined = examine(settings(tmp_path, **wrong, num_io_threads=8))
    found = failures(examined)
    assert len(found) == 2
    assert any("num.partitions" in text for text in found)
    ignored, not_checked = warnings(examined, "settings")
    assert "`num.io.threads` has no effect in plog" in ignored
    assert not_checked == "log directories and listeners are not checked yet"


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
    assert any("appears 2 times" in text for text in found), found
    (tmp_path / "file").write_text("")
    found = failures(examine(settings(tmp_path, log_dirs=tmp_path / "file")))
    assert any("is not a directory" in text for text in found)


def test_directory_of_another_broker_is_a_failure(tmp_path: Path) -> None:
    with BrokerProcess(tmp_path, overrides={"broker.id": 7}):
        pass
    found = failures(examine(settings(tmp_path, log_dirs=tmp_path / "data0", broker_id=8)))
    assert any("broker" in text and "7" in text for text in found)


@pytest.mark.parametrize("ended", ["stopped", "killed"])
@pytest.mark.parametrize("how", ["there", "not mounted", "left out"])
def test_directory_that_the_broker_had_is_missed(tmp_path: Path, ended: str, how: str) -> None:
    broker = BrokerProcess(tmp_path, log_dirs=2).start()
    with closing(speak(broker.port)) as client:
        for topic in ("one", "two"):
            create_topic(client, topic)
    (broker.stop if ended == "stopped" else broker.kill)()
    lost, kept = broker.log_dirs
    named = [lost, kept]
    directory_id = decode_properties((lost / META_PROPERTIES).read_text())[DIRECTORY_ID]
    if how != "there":
        shutil.rmtree(lost)
    if how == "not mounted":
        lost.mkdir()
    elif how == "left out":
        named = [kept]
    before = files_of(*named)
    properties = settings(tmp_path, log_dirs=",".join(map(str, named)))
    found = examine(properties)
    assert files_of(*named) == before
    if how == "there":
        assert failures(found) == []
        assert "no log directory is missing" in [one.text for one in found]
        return
    (finding,) = (one for one in found if one.verdict is Verdict.FAILURE)
    assert finding.text.startswith(f"{lost} ")
    assert f"(directory.id {directory_id})" in finding.text
    assert finding.text.endswith("would be offline: 1")
    assert finding.advice.endswith(f"plog log-dirs --forget {directory_id} {properties}")


def files_of(*directories: Path) -> dict[Path, tuple[int, int]]:
    found = {path: path.stat() for one in directories for path in (one, *one.rglob("*"))}
    return {path: (stat.st_mtime_ns, stat.st_size) for path, stat in found.items()}


def test_store_that_cannot_be_read_is_told(tmp_path: Path) -> None:
    with BrokerProcess(tmp_path) as broker:
        pass
    (place,) = broker.log_dirs
    (place / FILE_NAME).write_bytes(b"no store" * 1000)
    (text,) = (
        text
        for text in warnings(examine(settings(tmp_path, log_dirs=place)), "log.dirs")
        if "cannot check for missing" in text
    )
    assert str(place / FILE_NAME) in text
    assert (place / FILE_NAME).read_bytes() == b"no store" * 1000


def test_directory_of_kraft_is_a_failure(tmp_path: Path) -> None:
    (tmp_path / "data" / "__cluster_metadata-0").mkdir(parents=True)
    (text,) = failures(examine(settings(tmp_path)))
    assert "a KRaft broker's directory" in text


def test_port_that_two_of_the_settings_name_is_a_failure(tmp_path: Path) -> None:
    port = free_port()
    both = {"listeners": f"PLAINTEXT://127.0.0.1:{port}", "metrics_listener": f"127.0.0.1:{port}"}
    (text,) = failures(examine(settings(tmp_path, **both)))
    assert "Address already in use" in text


def test_address_of_another_host_is_a_failure_while_a_broker_runs_too(tmp_path: Path) -> None:
    with BrokerProcess(tmp_path) as broker:
        elsewhere = "PLAINTEXT://192.0.2.1:9092"
        properties = settings(tmp_path, log_dirs=broker.log_dirs[0], listeners=elsewhere)
        bind, connect = failures(examine(properties))
    assert "192.0.2.1" in bind
    assert "does not answer at PLAINTEXT://192.0.2.1:9092" in connect


def test_link_to_no_directory_is_a_failure(tmp_path: Path) -> None:
    (tmp_path / "data").symlink_to(tmp_path / "not mounted")
    (text,) = failures(examine(settings(tmp_path)))
    assert "not mounted, which does not exist" in text
    (text,) = failures(examine(settings(tmp_path, log_dirs=tmp_path / "data" / "plog")))
    assert "not mounted, which does not exist" in text
    (tmp_path / "loop").symlink_to(tmp_path / "loop")
    (text,) = failures(examine(settings(tmp_path, log_dirs=tmp_path / "loop")))
    assert "loop, which does not exist" in text


class Mounted(NamedTuple):
    mountpoint: str
    fstype: str


def test_file_system_is_that_of_what_a_link_leads_to(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    memory = tmp_path / "memory"
    memory.mkdir()
    (tmp_path / "data").symlink_to(memory)
    mounted = [Mounted("/", "ext4"), Mounted(str(memory), "tmpfs")]
    monkeypatch.setattr("psutil.disk_partitions", lambda all: mounted)
    (text,) = warnings(examine(settings(tmp_path)), "file system")
    assert "tmpfs" in text


@pytest.mark.parametrize(
    ("kind", "advice"),
    [
        ("nfs", "use a local disk"),
        ("nfs4", "use a local disk"),
        ("cifs", "use a local disk"),
        ("smb3", "use a local disk"),
        ("fuse.sshfs", "use a local disk"),
        ("9p", "use a local disk"),
        ("tmpfs", "may not survive a restart"),
        ("ramfs", "may not survive a restart"),
        ("overlay", "may not survive a restart"),
        ("ext4", None),
        ("xfs", None),
    ],
)
def test_file_systems_that_keep_nothing_or_lie_are_warned_of(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str, advice: str | None
) -> None:
    place = tmp_path / "data"
    place.mkdir()
    # One inside the other, and a neighbour whose name begins alike.
    mounted = [
        Mounted(str(place), kind),
        Mounted("/", "btrfs"),
        Mounted(str(tmp_path), "zfs"),
        Mounted(str(tmp_path / "dat"), "vfat"),
    ]
    monkeypatch.setattr("psutil.disk_partitions", lambda all: mounted)
    (finding,) = of(examine(settings(tmp_path, log_dirs=place / "plog")), "file system")
    assert finding.text == f"{place / 'plog'} is on {kind}"
    if advice is None:
        assert finding.verdict is Verdict.OK
    else:
        assert finding.verdict is Verdict.WARNING
        assert advice in finding.advice


def test_memory_of_requests_is_what_the_broker_makes_of_the_setting(tmp_path: Path) -> None:
    def memory(queued: int) -> Finding:
        found = examine(settings(tmp_path, queued_max_request_bytes=queued))
        return next(one for one in found if one.what == "memory")

    assert "may use 512 MB" in memory(-1).text
    assert memory(1 << 60).verdict is Verdict.WARNING


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
    (tmp_path / "data").mkdir(mode=0o555)
    properties = settings(tmp_path)
    let_everybody_in(tmp_path)
    (text,) = as_nobody(lambda: failures(examine(properties)))
    assert f"may not write to {tmp_path / 'data'}" in text


def test_directory_that_the_user_may_not_look_into_is_a_failure(tmp_path: Path) -> None:
    (tmp_path / "data").mkdir(mode=0o700)
    (tmp_path / "data" / "below").mkdir()
    properties = settings(tmp_path, log_dirs=tmp_path / "data" / "below" / "plog")
    let_everybody_in(tmp_path)
    if os.geteuid() != 0:
        (tmp_path / "data").chmod(0)
    (text,) = as_nobody(lambda: failures(examine(properties)))
    assert f"may not read {tmp_path / 'data'}" in text


def test_files_that_another_user_left_are_a_failure_with_what_mends_it(tmp_path: Path) -> None:
    data = tmp_path / "data"
    (data / "t-0").mkdir(parents=True)
    (data / "lost+found").mkdir(mode=0o700)  # the file system's own
    for name in (".lock", "plog-store.sqlite", "t-0/00000000000000000000.log"):
        (data / name).touch()
    for path in (data, data / "t-0", data / ".lock"):
        path.chmod(0o777)
    for name in ("plog-store.sqlite", "t-0/00000000000000000000.log"):
        (data / name).chmod(0o444)
    properties = settings(tmp_path)
    let_everybody_in(tmp_path)
    refused = as_nobody(
        lambda: [
            one.text + one.advice
            for one in examine(properties)
            if one.verdict is Verdict.FAILURE and one.what == "log.dirs"
        ]
    )
    (text,) = refused
    assert "plog-store.sqlite" in text
    assert "00000000000000000000.log" in text
    assert ".lock" not in text
    assert "lost+found" not in text
    assert f"chown -R {pwd.getpwuid(NOBODY if os.geteuid() == 0 else os.geteuid())[0]}" in text


def let_everybody_in(path: Path) -> None:
    for above in [path, *path.parents]:
        if above.owner() == path.owner():
            above.chmod(above.stat().st_mode | 0o055)


@pytest.fixture
def unit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The packaged unit, as if it were installed, for the test's own properties."""
    places = tmp_path / "etc/systemd/system", tmp_path / "usr/lib/systemd/system"
    for place in places:
        place.mkdir(parents=True)
    monkeypatch.setattr("plog.ops.doctor.units.PLACES", places)
    text = (ROOT / "systemd" / "plog.service").read_text()
    properties = tmp_path / "server.properties"
    installed = places[1] / "plog.service"
    installed.write_text(text.replace("/etc/plog/server.properties", str(properties)))
    return installed


def test_records_under_tmp_are_lost_by_the_unit_and_warned_of_without(
    tmp_path: Path, unit: Path
) -> None:
    for place in ("/tmp/kafka-logs", "/var/tmp/kafka-logs", "/tmp/../tmp/kafka-logs"):
        found = examine(settings(tmp_path, log_dirs=place))
        assert any("a private /tmp" in text for text in failures(found)), found
    unit.unlink()
    found = examine(settings(tmp_path, log_dirs=f"/tmp/plog-{os.getpid()}"))
    assert failures(found) == []
    assert any("hosts clear /tmp" in text for text in warnings(found, "log.dirs"))


def refused(properties: str) -> list[Finding]:
    return [one for one in examine(properties) if "does not let the broker write" in one.text]


@pytest.mark.usefixtures("unit")
def test_unit_lets_write_where_the_package_keeps_records(tmp_path: Path) -> None:
    assert refused(settings(tmp_path, log_dirs="/var/lib/plog/data,/var/lib/plog/more")) == []


@pytest.mark.usefixtures("unit")
@pytest.mark.parametrize("place", ["/data/disk0", "/home/x/records", "/data/disk 0"])
def test_what_the_unit_does_not_let_write_comes_with_a_drop_in_that_lets_it(
    tmp_path: Path, place: str
) -> None:
    properties = settings(tmp_path, log_dirs=f"/var/lib/plog/data,{place}")
    (finding,) = refused(properties)
    assert finding.verdict is Verdict.WARNING
    assert place in finding.text
    assert "/var/lib/plog/data" not in finding.text
    made, *written, reload = finding.commands
    assert (made, reload) == (
        f"install -d -o plog -g plog -m 750 {shlex.quote(place)}",
        "systemctl daemon-reload",
    )
    subprocess.run(["sh", "-e", "-c", "\n".join(written)], check=True)
    assert refused(properties) == []
    (drop_in,) = (tmp_path / "etc").rglob("*.conf")
    name = shlex.quote(place)
    assert f"[Unit]\nRequiresMountsFor={name}\n[Service]\nReadWritePaths={name}\n" in (
        drop_in.read_text()
    )


def test_unit_that_systemd_would_complain_of_is_read_as_far_as_it_goes(
    tmp_path: Path, unit: Path
) -> None:
    properties = settings(tmp_path, log_dirs="/data/disk0")
    unit.write_text(f"=\n'\n[Service]\nExecStart=plog 'server {properties}\nPrivateTmp\n")
    found = unit_of(properties)
    assert found is not None
    assert found.lets_write(Path("/data/disk0"))
    assert not found.has_own_tmp


def test_several_brokers_units_are_told_apart_by_their_settings(tmp_path: Path, unit: Path) -> None:
    properties = settings(tmp_path, log_dirs="/var/lib/plog/one/data")
    one = Path(properties).rename(tmp_path / "one.properties")
    assert unit_of(str(one)) is None
    several = unit.read_text().replace(properties, f"{tmp_path}/%i.properties")
    several = several.replace("StateDirectory=plog", "StateDirectory=plog/%i")
    (unit.parent / "plog@.service").write_text(several)
    found = unit_of(str(one))
    assert found is not None
    assert found.name == "plog@one.service"
    assert found.lets_write(Path("/var/lib/plog/one/data"))
    assert not found.lets_write(Path("/var/lib/plog/two/data"))
    shared = unit.parent / "plog@.service.d"
    shared.mkdir()
    (shared / "disks.conf").write_text("[Service]\nReadWritePaths=-/data /more\n")
    own = tmp_path / "etc/systemd/system/plog@one.service.d"
    own.mkdir()
    (own / "zz.conf").write_text(
        "[Service]\n# not\n;either\nReadWritePaths=\nReadWritePaths=\\\n /own\n"
    )
    found = unit_of(str(one))
    assert found is not None
    assert not found.lets_write(Path("/data/x"))
    assert found.lets_write(Path("/own/x"))


@pytest.mark.parametrize(
    ("binds", "seen", "writable"),
    [
        ("BindPaths=/mnt/disk:/home/x:rbind", "/mnt/disk/data", True),
        ("BindPaths=-/mnt/disk:/home", "/mnt/disk/x/data", True),
        ("BindPaths=/home/x/data", "/home/x/data", True),
        ("BindPaths=/mnt/disk:/home\nBindReadOnlyPaths=/srv:/home/x", "/srv/data", False),
        ("BindPaths=/mnt/disk:/elsewhere", "/home/x/data", False),
    ],
)
def test_what_the_unit_binds_is_looked_at_where_the_host_has_it(
    tmp_path: Path, unit: Path, binds: str, seen: str, writable: bool
) -> None:
    properties = settings(tmp_path, log_dirs="/home/x/data")
    with unit.open("a") as appended:
        appended.write(f"\n[Service]\n{binds}\n")
    texts = [one.text for one in examine(properties) if one.what == "log.dirs"]
    assert any(text.startswith(f"{seen} ") for text in texts), texts
    shown = f"plog.service sees {seen} as /home/x/data; checked {seen}"
    assert (shown in texts) is (seen != "/home/x/data")
    assert (refused(properties) == []) is writable


def test_units_own_root_is_looked_into_and_told_of(tmp_path: Path, unit: Path) -> None:
    root = tmp_path / "root"
    root.mkdir()
    properties = Path(settings(tmp_path, log_dirs="/data/one,/var/lib/plog/data"))
    properties = properties.rename(root / "server.properties")
    text = unit.read_text().replace(f"{tmp_path}/server.properties", "/server.properties")
    unit.write_text(f"{text}\n[Service]\nRootDirectory={root}\n")
    found = examine(str(properties))
    texts = [one.text for one in found]
    assert f"plog.service sees {root}/data/one as /data/one; checked {root}/data/one" in texts
    assert any(text.startswith("/var/lib/plog/data ") for text in texts)  # systemd binds it
    (text,) = [text for text in warnings(found, "log.dirs") if "has its own root" in text]
    assert f"RootDirectory={root}" in text
    assert refused(str(properties)) == []


Kernel = Callable[..., None]


@pytest.fixture
def kernel(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Kernel:
    """Have the kernel's settings be these, and no others."""
    place = tmp_path / "proc"
    monkeypatch.setattr("plog.ops.doctor.host.KERNEL", place)

    def be(**values: object) -> None:
        for name, value in values.items():
            path = place / name.replace("__", "/")
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(f"{value}\n")

    return be


def of(found: list[Finding], what: str) -> list[Finding]:
    return [one for one in found if one.what == what]


@pytest.mark.parametrize(
    ("name", "value", "is_well", "wanted"),
    [
        ("vm.max_map_count", 65_530, False, 262_144),  # the kernel's default
        ("vm.max_map_count", 262_143, False, 262_144),
        ("vm.max_map_count", 262_144, True, None),
        ("vm.swappiness", 60, False, 1),  # the kernel's default
        ("vm.swappiness", 11, False, 1),
        ("vm.swappiness", 10, True, None),
        ("vm.swappiness", 0, True, None),
        ("vm.overcommit_memory", 2, False, 0),
        ("vm.overcommit_memory", 1, True, None),
        ("vm.overcommit_memory", 0, True, None),
    ],
)
def test_kernels_settings_are_told_with_what_mends_them(
    tmp_path: Path, kernel: Kernel, name: str, value: int, is_well: bool, wanted: int | None
) -> None:
    kernel(**{name.replace(".", "__"): value})
    (finding,) = of(examine(settings(tmp_path)), "kernel")
    assert finding.text == f"{name} is {value:,}"
    if is_well:
        assert (finding.verdict, finding.advice) == (Verdict.OK, "")
    else:
        assert (finding.verdict, finding.advice) == (Verdict.WARNING, f"sysctl {name}={wanted}")


def test_kernel_that_does_not_tell_is_not_judged(tmp_path: Path, kernel: Kernel) -> None:
    kernel(vm__swappiness="much")
    found = examine(settings(tmp_path, socket_send_buffer_bytes=1 << 20))
    assert of(found, "kernel") == of(found, "socket buffers") == []
    assert [one.text for one in of(found, "listeners") if "somaxconn" in one.text] == []


@pytest.mark.parametrize(("most", "verdict"), [(4095, Verdict.WARNING), (4096, Verdict.OK)])
def test_backlog_that_the_kernel_would_cut_is_warned_of(
    tmp_path: Path, kernel: Kernel, most: int, verdict: Verdict
) -> None:
    kernel(net__core__somaxconn=most)
    found = examine(settings(tmp_path, socket_listen_backlog_size=4096))
    (finding,) = [one for one in of(found, "listeners") if "somaxconn" in one.text]
    assert finding.verdict is verdict
    assert finding.text == f"socket.listen.backlog.size=4096, the kernel's somaxconn is {most}"
    assert (finding.advice == "sysctl net.core.somaxconn=4096") is (verdict is Verdict.WARNING)


def test_address_that_only_this_host_could_find_is_warned_of(tmp_path: Path) -> None:
    port = free_port()
    everywhere = {"listeners": f"PLAINTEXT://0.0.0.0:{port}"}
    local = f"PLAINTEXT://localhost:{port}"
    (text,) = warnings(
        examine(settings(tmp_path, advertised_listeners=local, **everywhere)), "listeners"
    )
    assert text == f"PLAINTEXT://0.0.0.0:{port} is advertised to clients as localhost"
    elsewhere = f"PLAINTEXT://broker.example:{port}"
    found = examine(settings(tmp_path, advertised_listeners=elsewhere, **everywhere))
    assert [text for text in warnings(found, "listeners") if "advertised to clients" in text] == []


def test_listener_of_a_kraft_controller_is_warned_of(tmp_path: Path) -> None:
    ports = [free_port(), free_port()]
    given = settings(
        tmp_path,
        listeners=f"PLAINTEXT://127.0.0.1:{ports[0]},CONTROLLER://127.0.0.1:{ports[1]}",
        listener_security_protocol_map="PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT",
    )
    (text,) = warnings(examine(given), "listeners")
    assert text.startswith(f"CONTROLLER://127.0.0.1:{ports[1]} looks like a KRaft controller's")


SEND, RECEIVE = "socket.send.buffer.bytes", "socket.receive.buffer.bytes"


def test_socket_buffers_that_the_kernel_would_cut_are_warned_of(
    tmp_path: Path, kernel: Kernel
) -> None:
    kernel(net__core__wmem_max=212_992, net__core__rmem_max=212_992)

    def found(**buffers: int) -> list[Finding]:
        return of(examine(settings(tmp_path, **buffers)), "socket buffers")

    assert found() == found(socket_send_buffer_bytes=-1, socket_receive_buffer_bytes=-1) == []
    send, receive = found(socket_send_buffer_bytes=212_993, socket_receive_buffer_bytes=212_992)
    assert send.verdict is Verdict.WARNING
    assert f"{SEND}=212993" in send.text
    assert send.advice.startswith("sysctl net.core.wmem_max=212993")
    assert receive.verdict is Verdict.OK
    send, receive = found(socket_send_buffer_bytes=212_992, socket_receive_buffer_bytes=212_993)
    assert send.verdict is Verdict.OK
    assert receive.verdict is Verdict.WARNING
    assert receive.advice.startswith("sysctl net.core.rmem_max=212993")


@pytest.mark.parametrize("size", [102_400, 4096])
@pytest.mark.parametrize(
    ("key", "costs"),
    [(SEND, "large fetches by a fifth"), (RECEIVE, "batches of 64 KB by a quarter")],
)
def test_socket_buffers_as_kafkas_file_has_them_are_warned_of(
    tmp_path: Path, key: str, costs: str, size: int
) -> None:
    (finding,) = of(examine(settings(tmp_path, **{key: size})), "socket buffers")
    assert finding.verdict is Verdict.WARNING
    assert f"{key}={size}" in finding.text
    assert costs in finding.text
    assert finding.advice.startswith(f"remove {key}")


@pytest.mark.parametrize(("free", "verdict"), [(99, Verdict.WARNING), (100, Verdict.OK)])
def test_disk_with_little_space_is_warned_of(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, free: int, verdict: Verdict
) -> None:
    class Usage(NamedTuple):
        total: int
        used: int
        free: int

    roomy, full = tmp_path / "roomy", tmp_path / "full"
    roomy.mkdir()
    full.mkdir()
    usages = {
        roomy: Usage(1000 << 20, 0, 1000 << 20),
        full: Usage(1000 << 20, (1000 - free) << 20, free << 20),
    }
    monkeypatch.setattr("shutil.disk_usage", usages.__getitem__)
    found = examine(settings(tmp_path, log_dirs=f"{roomy},{full}"))
    one, other = of(found, "disk space")
    assert (one.verdict, other.verdict) == (Verdict.OK, verdict)
    assert other.text == f"{full}: {free} MB of 1,000 MB free"
    assert ("retention.bytes" in other.advice) is (verdict is Verdict.WARNING)


def test_processor_without_an_instruction_for_checksums_is_warned_of(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for by, verdict in (("sse4.2", "ok"), ("armv8", "ok"), ("table", "warning")):
        monkeypatch.setattr("plog._native.crc32c.implementation", lambda by=by: by)
        (finding,) = of(examine(settings(tmp_path)), "processor")
        assert (finding.text, finding.verdict.value) == (f"CRC-32C uses {by}", verdict)


@pytest.mark.parametrize(("hard", "verdict"), [(99_999, Verdict.WARNING), (100_000, Verdict.OK)])
def test_descriptors_are_the_hard_limits(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, hard: int, verdict: Verdict
) -> None:
    # The broker raises its own soft limit.
    monkeypatch.setattr("resource.getrlimit", lambda which: (1024, hard))
    (finding,) = of(examine(settings(tmp_path)), "limits")
    assert (finding.verdict, finding.text) == (verdict, f"at most {hard:,} open file descriptors")


@pytest.mark.usefixtures("unit")
def test_looking_as_another_user_than_the_units_is_told(tmp_path: Path) -> None:
    (text,) = warnings(examine(settings(tmp_path)), "user")
    assert "runs as plog" in text


def in_child(look: Callable[[], None], command: list[str]) -> subprocess.CompletedProcess[str]:
    return subprocess.run(command, preexec_fn=look, capture_output=True, text=True, check=False)


def test_command_tells_and_ends_with_a_status(tmp_path: Path) -> None:
    doctor = [sys.executable, "-m", "plog", "doctor", settings(tmp_path)]
    well = subprocess.run(doctor, capture_output=True, text=True, check=False)
    assert well.returncode == 0, well.stdout + well.stderr
    assert "0 failures" in well.stdout

    def few_descriptors() -> None:
        resource.setrlimit(resource.RLIMIT_NOFILE, (1000, 1000))

    few = in_child(few_descriptors, [*doctor, "--json"])
    assert few.returncode == 0
    (limits,) = [one for one in json.loads(few.stdout) if one["what"] == "limits"]
    assert limits["verdict"] == "warning"
    assert "1,000" in limits["text"]
    assert "LimitNOFILE" in limits["advice"]
    wrong = subprocess.run(
        [*doctor, "--override", "num.partitions=few"], capture_output=True, text=True, check=False
    )
    assert wrong.returncode == 1
    assert "num.partitions" in wrong.stdout


@pytest.mark.usefixtures("unit")
def test_commands_to_paste_are_lines_of_their_own(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    properties = settings(tmp_path, log_dirs="/data/disk0")
    command.main([properties], standalone_mode=False)
    (finding,) = refused(properties)
    assert set(finding.commands) <= set(capsys.readouterr().out.splitlines())
