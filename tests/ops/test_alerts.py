"""Each alert of config/prometheus-alerts.yml fires in a real Prometheus, by a real fault.

The brokers of a test go wrong at the same time, and one stays well: it must not cause an alert.
Durations and limits of the rules are shortened, so that minutes become seconds.
"""

from __future__ import annotations

import os
import re
import resource
import socket
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing
from pathlib import Path
from threading import Event

import pytest

from plog.client.group_admin import GroupAdmin
from plog.errors import ErrorCode
from plog.types import TopicPartition
from tests.conftest import ROOT
from tests.coordinator.conftest import GROUP, TRANSACTION, await_coordinator
from tests.coordinator.members import ByHand
from tests.handlers.wire import create_topic, fetch_one, make_batch, produce, speak
from tests.hosts.host import MIB, mounted
from tests.ops.prometheus import Prometheus, binaries
from tests.servers import BrokerProcess, free_port
from tests.transactions.transactor import Transactor
from tests.waiting import until

RULES = ROOT / "config" / "prometheus-alerts.yml"
SHORTER = {
    "for: 1m": "for: 1s",
    "for: 5m": "for: 1s",
    "for: 10m": "for: 1s",
    "for: 30m": "for: 1s",
    "[5m]": "[5s]",
    "offset 5m": "offset 5s",
    "[10m]": "[5s]",
    "[15m]": "[2m]",
    "[1h]": "[1m]",
    "[6h]": "[5s]",
    ", 86400)": ", 120)",
    "> 600": "> 1",
    "> 60 ": "> 1 ",
    "> 4\n": "> 1\n",
    "> 900": "> 1",
}
COORDINATORS = {
    "offsets.topic.num.partitions": 1,
    "transaction.state.log.num.partitions": 1,
    "group.initial.rebalance.delay.ms": 0,
    "group.members.max.bytes": MIB,
}
MEMBERS = 40
"""Each takes a seventeenth of the free memory; the broker gives a group a sixteenth at most."""
SLOW_DISK = [
    *("strace", "-D", "-f", "--seccomp-bpf", "-q", "-o", "/dev/null", "-e", "signal=none"),
    *("-e", "trace=fdatasync", "-e", "inject=fdatasync:delay_enter=700000"),
    *(sys.executable, "-m", "plog", "server"),
]
PATIENCE_S = 120
GROUPS = ("plog", "plog-cluster", "plog-replicas")
"""Each has a test of its own."""


def alerts(group: str = "plog") -> list[str]:
    """Return the alerts of a group."""
    _, _, rest = RULES.read_text().partition(f"  - name: {group}\n")
    return re.findall(r"- alert: (\w+)", rest.partition("  - name: ")[0])


def shortened() -> str:
    text = RULES.read_text()
    for duration, shorter in SHORTER.items():
        assert duration in text, duration
        text = text.replace(duration, shorter)
    assert not re.findall(r"(?:for: |\[|offset )\d+[mhd]", re.sub(r"\[[12]m\]", "", text))
    return text


class Watched(BrokerProcess):
    """A broker with a metrics page."""

    def __init__(self, directory: Path, *, launcher: list[str] | None = None, **more: int) -> None:
        directory.mkdir()
        self.page = f"127.0.0.1:{free_port()}"
        overrides: dict[str, object] = {
            **COORDINATORS,
            "metrics.listener": self.page,
            **{key.replace("_", "."): value for key, value in more.items()},
        }
        super().__init__(directory, log_dirs=2, overrides=overrides, launcher=launcher)


class Faults:
    """Brokers by name, each with its faults; `expected` has the alerts that they cause."""

    def __init__(self, directory: Path, small_disk: Path) -> None:
        self.stopping = Event()
        self._small_disk = small_disk
        self.brokers = {
            "well": Watched(directory / "well"),
            "killed": Watched(directory / "killed"),
            "lost disk": Watched(
                directory / "lost disk", log_flush_offset_checkpoint_interval_ms=100
            ),
            "missing disk": Watched(directory / "missing disk"),
            "full disk": Watched(directory / "full disk"),
            "slow disk": Watched(directory / "slow disk", launcher=SLOW_DISK),
            "clients": Watched(directory / "clients", max_connections_per_ip=30 + MEMBERS),
            "descriptors": Watched(directory / "descriptors"),
        }
        self.brokers["full disk"].overrides["log.dirs"] = small_disk / "data"
        self.expected = {
            ("PlogRestarts", "killed"),
            ("PlogDown", "killed"),
            ("PlogPartitionsOffline", "lost disk"),
            ("PlogLogDirOffline", "lost disk"),
            ("PlogMarkersDue", "lost disk"),
            ("PlogServerErrors", "lost disk"),
            ("PlogErrorLines", "lost disk"),
            ("PlogLogDirMissing", "missing disk"),
            ("PlogDiskFillsUp", "full disk"),
            ("PlogDiskFull", "full disk"),
            ("PlogFlushSlow", "slow disk"),
            ("PlogGroupLag", "clients"),
            ("PlogGroupMembersFull", "clients"),
            ("PlogTransactionOpen", "clients"),
            ("PlogConnectionsRefused", "clients"),
            ("PlogDescriptorsLow", "descriptors"),
        }

    def well(self, broker: Watched) -> None:
        """Write and read a topic, with nothing wrong."""
        with closing(speak(broker.port)) as client:
            create_topic(client, "t", 1)
            while not self.stopping.wait(0.1):
                assert produce(client, "t", make_batch()).error_code == ErrorCode.NONE
                fetch_one(client, "t", 0)

    def killed(self, broker: Watched) -> None:
        """Restart a broker three times, each time after Prometheus has seen it; then kill it."""
        for _ in range(3):
            self.stopping.wait(1.5)
            broker.kill()
            broker.start()
        self.stopping.wait(1.5)
        broker.kill()

    def lost_disk(self, broker: Watched) -> None:
        """Lose a disk with a partition of an open transaction, then commit it."""
        with closing(speak(broker.port)) as client:
            create_topic(client, "t", 4)
            transactor = Transactor(client, "writer").start()
            (lost,) = (
                log_dir
                for log_dir in broker.log_dirs
                if not list(log_dir.glob("__transaction_state-*"))
            )
            numbers = [int(found.name.rpartition("-")[2]) for found in lost.glob("t-*")]
            places = [TopicPartition("t", number) for number in numbers]
            transactor.join(*places)
            for place in places:
                transactor.produce(place, b"v")
            # Not removed: the broker writes checkpoints into it meanwhile.
            lost.rename(lost.with_name("away"))
            until(lambda: "ERROR" in broker.log, "an error is logged")
            transactor.end(commit=True)
            while not self.stopping.wait(0.5):
                produce(client, "t", make_batch(), partition=places[0].partition)

    def missing_disk(self, broker: Watched) -> None:
        """Start a broker without one of its disks."""
        with closing(speak(broker.port)) as client:
            create_topic(client, "t", 4)
        broker.stop()
        broker.log_dirs[1].rename(broker.log_dirs[1].with_name("away"))
        broker.start()

    def full_disk(self, broker: Watched) -> None:
        """Fill a disk of 64 MB, slowly enough for a forecast."""
        with closing(speak(broker.port)) as client:
            create_topic(client, "t", 1)
            batch = make_batch([bytes(1 << 19)])
            while not self.stopping.wait(0.05):
                produce(client, "t", batch)

    def slow_disk(self, broker: Watched) -> None:
        """Write with acks=all on a disk whose flushes take 0.7 s."""
        with closing(speak(broker.port)) as client:
            create_topic(client, "t", 1)
            while not self.stopping.is_set():
                produce(client, "t", make_batch())

    def clients(self, broker: Watched) -> None:
        """Have clients that leave a lag, an open transaction, many members, and connections."""
        with ExitStack() as opened:
            client = opened.enter_context(closing(speak(broker.port)))
            create_topic(client, "t", 1)
            for kind in (GROUP, TRANSACTION):
                await_coordinator(client, "any", kind)
            produce(client, "t", make_batch())
            with GroupAdmin(broker.bootstrap) as admin:
                admin.commit("readers", {TopicPartition("t", 0): 0})
            transactor = Transactor(client, "writer").start()
            transactor.join(TopicPartition("t", 0))
            for number in range(MEMBERS):
                protocols = {"range": bytes(int(MIB / 17 * (15 / 16) ** number))}
                member = ByHand(broker.port, f"group{number}", protocols=protocols)
                opened.enter_context(closing(member))
                member.join()
            address = ("127.0.0.1", broker.port)
            for _ in range(40):
                opened.enter_context(socket.create_connection(address))
            while not self.stopping.wait(0.5):
                produce(client, "t", make_batch())
                socket.create_connection(address).close()

    def descriptors(self, broker: Watched) -> None:
        """Lower the limit of open files to little more than a broker with clients uses."""
        with ExitStack() as opened:
            for _ in range(50):
                address = ("127.0.0.1", broker.port)
                opened.enter_context(socket.create_connection(address))
            limit, hard = resource.prlimit(broker.pid, resource.RLIMIT_NOFILE)
            while not self.stopping.wait(0.5):  # a start closes some files late on a busy host
                used = len(os.listdir(f"/proc/{broker.pid}/fd"))
                limit = min(limit, used + 10)
                resource.prlimit(broker.pid, resource.RLIMIT_NOFILE, (limit, hard))


@pytest.fixture
def faults(tmp_path: Path) -> Iterator[Faults]:
    with mounted(tmp_path / "disk", "-t", "tmpfs", "-o", "size=64m", "none"):
        yield Faults(tmp_path, tmp_path / "disk")


def test_promtool_accepts_the_rules() -> None:
    done = subprocess.run(
        [binaries() / "promtool", "check", "rules", RULES],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert f"{sum(len(alerts(group)) for group in GROUPS)} rules found" in done.stdout


def test_each_alert_is_fired_by_its_fault(tmp_path: Path, faults: Faults) -> None:
    assert {name for name, _ in faults.expected} == set(alerts())
    fired: set[tuple[str, str]] = set()
    texts: set[str] = set()
    brokers = faults.brokers
    with ExitStack() as stack:
        for broker in brokers.values():
            broker.start()
            stack.callback(broker.kill)
        pages = {name: broker.page for name, broker in brokers.items()}
        prometheus = stack.enter_context(Prometheus(tmp_path / "prometheus", pages, shortened()))
        for name in brokers:
            until(lambda name=name: prometheus.query(f'up{{instance="{name}"}} == 1'), "it is read")
        pool = stack.enter_context(ThreadPoolExecutor(len(brokers)))
        stack.callback(faults.stopping.set)
        running = [
            pool.submit(getattr(faults, name.replace(" ", "_")), broker)
            for name, broker in brokers.items()
        ]

        def all_have_fired() -> bool:
            fired.update(prometheus.firing())
            texts.update(prometheus.texts())
            for one in running:
                if one.done():
                    one.result()
            return faults.expected <= fired

        try:
            until(all_have_fired, "fired", PATIENCE_S)
        except AssertionError as error:
            raise AssertionError(f"not fired: {sorted(faults.expected - fired)}") from error
        faults.stopping.set()
        for one in running:
            one.result()
    assert not {name for name, instance in fired if instance == "well"}
    assert len(texts) >= 2 * len(alerts())
    assert not [text for text in texts if "{{" in text or "<no value>" in text or "<error" in text]
