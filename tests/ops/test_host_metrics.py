"""`plog host-metrics`: what its figures come to, and what it does while others are away."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NamedTuple

import psutil
import pytest

from plog.client.admin import Admin
from plog.client.consumer import Consumer
from plog.client.producer import Producer
from plog.errors import UnknownTopicOrPartition
from plog.ops import host_metrics
from plog.ops.host_metrics import (
    Agent,
    AgentSettings,
    FileSystem,
    HostReading,
    Outage,
    broker_figures,
    host_figures,
    read_host,
)
from plog.ops.watch import parse
from tests.conftest import ROOT
from tests.servers import BrokerProcess, free_port
from tests.waiting import until

GIB = 1 << 30

BEFORE = HostReading(
    at_s=100.0,
    cpu_s={"user": 50, "system": 20, "idle": 900, "iowait": 30, "steal": 0, "guest": 9},
    load=0.5,
    memory_bytes=4 * GIB,
    available_bytes=3 * GIB,
    swapped_bytes=0,
    file_systems=(FileSystem("/", 100, 60), FileSystem("/data", 1000, 100)),
    disk_bytes=(1000, 5000),
    network_bytes=(10, 20),
    network_faults=3,
)
AFTER = HostReading(
    at_s=110.0,
    cpu_s={"user": 55, "system": 21, "idle": 910, "iowait": 33, "steal": 1, "guest": 14},
    load=1.5,
    memory_bytes=4 * GIB,
    available_bytes=GIB,
    swapped_bytes=7,
    file_systems=(FileSystem("/", 100, 60), FileSystem("/data", 1000, 50)),
    disk_bytes=(1100, 5300),
    network_bytes=(510, 20),
    network_faults=8,
)  # fmt: skip


def test_figures_are_of_what_came_between_two_readings() -> None:
    found = host_figures(BEFORE, AFTER)
    assert found == pytest.approx(
        {
            "load_1m": 1.5,
            "memory_used_share": 0.75,
            "memory_available_bytes": GIB,
            "swap_used_bytes": 7,
            "cpu_used_share": 0.35,  # 7 of 20 seconds; guests are in `user`
            "cpu_iowait_share": 0.15,
            "cpu_steal_share": 0.05,
            "disk_used_share": 0.95,  # of the fullest
            "disk_free_bytes": 50,
            "network_received_bytes_per_s": 50,
            "network_sent_bytes_per_s": 0,
            "disk_read_bytes_per_s": 10,
            "disk_written_bytes_per_s": 30,
            "network_faults_per_s": 0.5,
        }
    )


def test_what_a_host_does_not_tell_is_absent_and_what_went_back_is_none() -> None:
    before = replace(BEFORE, disk_bytes=None)
    found = host_figures(before, replace(AFTER, file_systems=(), network_bytes=(1, 2)))
    assert not [name for name in found if name.startswith("disk_")]
    assert found["network_received_bytes_per_s"] == found["network_sent_bytes_per_s"] == 0
    still = host_figures(BEFORE, replace(AFTER, cpu_s=BEFORE.cpu_s))
    assert not [name for name in still if name.startswith("cpu_")]


def test_this_host_has_all_figures_within_their_bounds() -> None:
    before = read_host()
    sum(range(2_000_000))  # so that processors' ticks, of 10 ms, have moved
    found = host_figures(before, read_host())
    assert {"cpu_used_share", "memory_used_share", "disk_used_share"} <= found.keys()
    assert all(0 <= value <= 1 for name, value in found.items() if name.endswith("_share")), found
    assert all(value >= 0 for value in found.values()), found


class Part(NamedTuple):
    """A mount, as psutil has it."""

    mountpoint: str
    opts: str


class Usage(NamedTuple):
    used: int
    free: int


def test_image_that_is_mounted_is_not_the_fullest_disk(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    data, snap = tmp_path / "data", tmp_path / "snap"
    usages = {"/": Usage(40, 60), str(data): Usage(90, 10), str(snap): Usage(100, 0)}
    parts = [Part("/", "ro"), Part(str(data), "rw,noatime"), Part(str(snap), "ro,nodev")]
    monkeypatch.setattr(psutil, "disk_partitions", lambda: parts)
    monkeypatch.setattr(psutil, "disk_usage", usages.__getitem__)
    # Each is another file system.
    numbers = {mount: number for number, mount in enumerate(usages)}
    system = SimpleNamespace(
        stat=lambda mount: SimpleNamespace(st_dev=numbers[mount]), getloadavg=os.getloadavg
    )
    monkeypatch.setattr(host_metrics, "os", system)
    reading = read_host()
    assert reading.file_systems == (FileSystem("/", 100, 60), FileSystem(str(data), 100, 10))
    assert host_figures(reading, replace(reading, at_s=reading.at_s + 1))["disk_used_share"] == 0.9


class Transfers(NamedTuple):
    """Of a disk or a link, as psutil has them."""

    read_bytes: int = 0
    write_bytes: int = 0
    bytes_recv: int = 0
    bytes_sent: int = 0
    errin: int = 0
    errout: int = 0
    dropin: int = 0
    dropout: int = 0


def counted_devices(
    root: Path,
    monkeypatch: pytest.MonkeyPatch,
    disks: dict[str, bool],
    links: dict[str, bool],
    partitions: Sequence[str] = (),
) -> HostReading:
    """Read a host that has these devices, each of which has moved 1 byte; True: it is hardware."""
    for kind, devices in (("block", disks), ("class/net", links)):
        for name, is_hardware in devices.items():
            (root / kind / name / ("device" if is_hardware else "")).mkdir(parents=True)
    moved = Transfers(1, 1, 1, 1, 1)
    disk_counters = dict.fromkeys([*disks, *partitions], moved)
    link_counters = dict.fromkeys(links, moved)
    monkeypatch.setattr(host_metrics, "SYSFS", root)
    monkeypatch.setattr(psutil, "disk_io_counters", lambda perdisk: disk_counters)
    monkeypatch.setattr(psutil, "net_io_counters", lambda pernic: link_counters)
    return read_host()


def test_bytes_are_counted_once_whatever_is_stacked_on_a_device(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    disks = {"sda": True, "nvme0n1": True, "dm-0": False, "md0": False, "loop0": False}
    links = {"lo": False, "bond0": False, "eth0": True, "eth1": True, "docker0": False}
    found = counted_devices(tmp_path, monkeypatch, disks, links, ["sda1", "nvme0n1p1"])
    assert (found.disk_bytes, found.network_bytes, found.network_faults) == ((2, 2), (2, 2), 2)


@pytest.mark.parametrize(
    ("disks", "partitions", "bytes_moved"),
    [
        (["xvda", "xvdb", "loop0", "ram0", "zram0", "dm-0", "md0"], ["xvda1"], (2, 2)),
        (["dm-0", "loop0"], [], (2, 2)),
        ([], ["disk0", "disk1"], (2, 2)),  # a host without sysfs
        ([], [], None),
    ],
)
def test_devices_count_where_none_is_known_to_be_hardware(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    disks: list[str],
    partitions: list[str],
    bytes_moved: tuple[int, int] | None,
) -> None:
    links = {"lo": False, "eth0": False}  # as in a container
    given = dict.fromkeys(disks, False)
    found = counted_devices(tmp_path, monkeypatch, given, links, partitions)
    assert (found.disk_bytes, found.network_bytes) == (bytes_moved, (1, 1))


PAGE = """\
plog_connections {connections}
plog_offline_partitions 1
plog_log_bytes{{topic="a",log_dir="x"}} 30
plog_log_bytes{{topic="b",log_dir="x"}} 12
plog_received_bytes_total {received}
plog_flush_duration_seconds_bucket{{le="0.5"}} {flushes}
plog_flush_duration_seconds_bucket{{le="+Inf"}} {flushes}
"""


def test_broker_has_figures_as_far_as_its_page_has_been_read() -> None:
    one = parse(PAGE.format(connections=2, received=100, flushes=0), 10.0)
    two = parse(PAGE.format(connections=3, received=400, flushes=9), 12.0)
    assert broker_figures(one, None) == broker_figures(None, None) == {"broker_up": 0}
    first = broker_figures(None, one)
    assert first["broker_up"] == 1
    assert first["broker_log_bytes"] == 42
    assert not [name for name in first if name.endswith("_s")]
    both = broker_figures(one, two)
    assert both["broker_connections"] == 3
    assert both["broker_received_bytes_per_s"] == 150
    assert 0.4 < both["broker_flush_p99_s"] <= 0.5
    assert "broker_produce_p99_s" not in both  # nobody wrote


def test_outage_is_told_once_and_its_end_too() -> None:
    told: list[str] = []
    outage = Outage(told.append)
    outage.ends("it never began")
    outage.begins("away")
    outage.begins("still away")
    outage.ends("there")
    outage.ends("still there")
    outage.begins("away again")
    assert told == ["away", "there", "away again"]


# -- with a broker -----------------------------------------------------------------------------


@pytest.fixture(scope="module")
def metrics_port() -> int:
    return free_port()


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory, metrics_port: int) -> Iterator[BrokerProcess]:
    overrides = {
        "metrics.listener": f"127.0.0.1:{metrics_port}",
        "auto.create.topics.enable": "false",
    }
    with BrokerProcess(tmp_path_factory.mktemp("agent"), overrides=overrides) as running:
        yield running


def records(broker: BrokerProcess, topic: str) -> list[tuple[bytes | None, dict[str, Any]]]:
    """Return the keys and values of a topic; [] where there is none."""
    with Consumer(broker.bootstrap, auto_offset_reset="earliest") as consumer:
        try:
            partitions = consumer.partitions_for(topic)
        except UnknownTopicOrPartition:
            return []
        consumer.assign(partitions)
        ends = consumer.end_offsets(partitions)
        found = []
        while any(consumer.position(at) < end for at, end in ends.items()):
            found += [(one.key, json.loads(one.value or b"")) for one in consumer.poll()]
        return found


@contextmanager
def agent(settings: AgentSettings) -> Iterator[list[str]]:
    """Run an agent in a thread; yield what it tells, and end it with nothing lost."""
    told: list[str] = []
    lost: list[int] = []
    stop = threading.Event()
    running = Agent(settings, stop, told.append)
    thread = threading.Thread(target=lambda: lost.append(running.run()))
    thread.start()
    try:
        yield told
    finally:
        stop.set()
        thread.join(60)
    assert lost == [0]


def command_line(broker: BrokerProcess, *arguments: object) -> list[str]:
    return [
        *(sys.executable, "-m", "plog", "host-metrics", "--bootstrap-server", broker.bootstrap),
        *map(str, arguments),
    ]


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_agent_publishes_until_a_signal_ends_it(
    broker: BrokerProcess, metrics_port: int, number: int
) -> None:
    topic = f"published{number}"
    running = subprocess.Popen(
        command_line(
            broker, topic, "--every", "0.1", "--host", "büro", "--partitions", 2,
            "--metrics", f"127.0.0.1:{metrics_port}",
        ),
        cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
    )  # fmt: skip
    until(lambda: len(records(broker, topic)) >= 3, "are three records there")
    running.send_signal(number)
    assert running.communicate(timeout=60) == (b"", b"")
    assert running.returncode == 0
    found = records(broker, topic)
    for key, value in found:
        assert (key, value["host"]) == ("büro".encode(), "büro")
        assert value["time"].endswith("Z")
        assert 0 < value["seconds"] < 60
        assert {"load_1m", "memory_used_share", "network_sent_bytes_per_s"} <= value[
            "figures"
        ].keys()
        assert value["figures"]["broker_up"] == 1
        assert {"/"} <= {disk["mount"] for disk in value["disks"]}
    assert any(value["figures"]["broker_appended_records_per_s"] > 0 for _, value in found)
    with Admin(broker.bootstrap) as admin:
        assert len(admin.topic(topic).partitions) == 2


def test_agent_ends_after_a_count_into_a_topic_that_is_there(broker: BrokerProcess) -> None:
    with Admin(broker.bootstrap) as admin:
        admin.create_topic("counted", partitions=1)
    done = subprocess.run(
        command_line(broker, "counted", "--every", "0.1", "--count", 2, "--no-create"),
        cwd=ROOT, capture_output=True, timeout=60, check=False,
    )  # fmt: skip
    assert (done.returncode, done.stdout, done.stderr) == (0, b"", b"")
    found = records(broker, "counted")
    assert len(found) == 2
    assert not [name for _, value in found for name in value["figures"] if "broker" in name]


def test_topic_that_is_missing_and_not_to_be_created_ends_the_agent(broker: BrokerProcess) -> None:
    done = subprocess.run(
        command_line(broker, "missing", "--no-create"),
        cwd=ROOT, capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip
    assert done.returncode == 1
    (line,) = done.stderr.splitlines()
    assert "missing" in line


def test_records_of_a_restart_arrive_and_it_is_told_once(
    broker: BrokerProcess, metrics_port: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(host_metrics, "ANSWER_S", 1.0)
    page = f"127.0.0.1:{metrics_port}"
    settings = AgentSettings(broker.bootstrap, "restarted", "a", every_s=0.1, metrics=page)
    with agent(settings) as told:

        def of(address: str) -> list[str]:
            return [text for text in list(told) if address in text]

        def are_away(count: int) -> bool:
            return [len(of(one)) % 2 for one in (broker.bootstrap, page)] == [count, count]

        until(lambda: len(records(broker, "restarted")) >= 3, "are three records there")
        broker.stop()
        until(lambda: are_away(1), "is told that page and cluster are away")
        broker.start()
        until(lambda: are_away(0), "is told that both are there again")
        before = len(records(broker, "restarted"))
        until(lambda: len(records(broker, "restarted")) >= before + 3, "are more records there")
    # However long it lasts: once that it began, once that it ended.
    assert all("no acknowledgements from" in text for text in of(broker.bootstrap)[::2]), told
    assert all("acknowledges records again" in text for text in of(broker.bootstrap)[1::2]), told
    assert all("no metrics page" in text for text in of(page)[::2]), told
    assert all("is available again" in text for text in of(page)[1::2]), told
    # What was measured while the broker was away was kept, and the page's absence is in it.
    seen = [value["figures"]["broker_up"] for _, value in records(broker, "restarted")]
    assert seen[-1] == 1
    assert 0 in seen


def test_agent_that_is_first_waits_for_the_cluster(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(host_metrics, "RETRY_S", 0.1)
    late = BrokerProcess(tmp_path)
    with ExitStack() as last:
        last.callback(late.kill)  # after the agent, which has written all
        told = last.enter_context(agent(AgentSettings(late.bootstrap, "early", "a", every_s=0.1)))
        until(lambda: told, "is told that nobody is there")
        late.start()
        until(lambda: len(records(late, "early")) >= 2, "are two records there")
    assert f"waiting for {late.bootstrap}" in told[0]
    assert told[1] == f"connected to {late.bootstrap}"


def test_agent_that_waits_ends_by_a_signal(tmp_path: Path) -> None:
    running = subprocess.Popen(
        command_line(BrokerProcess(tmp_path)), cwd=ROOT, stderr=subprocess.PIPE, text=True
    )
    assert running.stderr is not None
    assert "waiting for" in running.stderr.readline()
    running.terminate()
    assert running.communicate(timeout=60) == (None, "")
    assert running.returncode == 0


def test_topic_that_is_deleted_under_the_agent_is_there_again(
    broker: BrokerProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(host_metrics, "ANSWER_S", 0.5)
    monkeypatch.setattr(host_metrics, "BLOCK_MS", 500)
    with agent(AgentSettings(broker.bootstrap, "deleted", "a", every_s=0.1)) as told:
        until(lambda: len(records(broker, "deleted")) >= 2, "are two records there")
        with Admin(broker.bootstrap) as admin:
            first = admin.topic("deleted").topic_id
            admin.delete_topic("deleted")
            until(
                lambda: (
                    "deleted" not in (found := admin.topics()) or found["deleted"].topic_id != first
                )
            )
        until(lambda: len(records(broker, "deleted")) >= 2, "are two records there again")
        until(lambda: len(told) % 2 == 0, "is told that it goes on")


def test_record_waits_for_a_topic_that_is_still_being_deleted(
    broker: BrokerProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Until it is gone, it cannot be created again, and nothing can be sent to it."""
    send, refusals = Producer.send, iter(range(3))

    def refuse_at_first(producer: Producer, topic: str, *arguments: Any, **more: Any) -> Any:
        if next(refusals, None) is not None:
            raise UnknownTopicOrPartition(f"topic {topic!r} does not exist")
        return send(producer, topic, *arguments, **more)

    monkeypatch.setattr(Producer, "send", refuse_at_first)
    with agent(AgentSettings(broker.bootstrap, "late", "a", every_s=0.1)):
        until(lambda: len(records(broker, "late")) >= 2, "are two records there")


def test_records_that_nobody_takes_are_counted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(host_metrics, "CLOSE_S", 0.2)
    told: list[str] = []
    stop = threading.Event()
    with BrokerProcess(tmp_path) as broker:
        running = Agent(
            AgentSettings(broker.bootstrap, "lost", "a", every_s=0.1), stop, told.append
        )
        lost: list[int] = []
        thread = threading.Thread(target=lambda: lost.append(running.run()))
        thread.start()
        until(lambda: len(records(broker, "lost")) >= 1, "is a record there")
    until(lambda: running.waiting >= 2, "do two records wait")
    stop.set()
    thread.join(60)
    assert lost[0] >= 2
    assert f"{lost[0]} records not written" in told[-1]
