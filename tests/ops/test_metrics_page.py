"""The metrics page of a running broker, and what `plog top` makes of two readings of it."""

from __future__ import annotations

import fcntl
import json
import os
import pty
import re
import select
import signal
import socket
import subprocess
import sys
import termios
import threading
import time
import urllib.request
from collections.abc import Iterator
from contextlib import closing, suppress
from pathlib import Path
from types import ModuleType

import pytest
from prometheus_client import CollectorRegistry, ProcessCollector, generate_latest
from prometheus_client.metrics_core import Metric
from prometheus_client.openmetrics import parser as openmetrics
from prometheus_client.parser import text_string_to_metric_families

from plog import __version__
from plog._native.reactor import Reactor
from plog.client.admin import Admin
from plog.ops import log_counts, watch
from plog.ops.metrics import cluster, coordinators, disks, lag, network, replication, topics
from plog.ops.metrics.families import BUILD, Collector, Family, label
from plog.ops.watch import Reading, Watch
from plog.protocol.messages.api_versions import ApiVersionsRequest
from plog.types import TopicPartition
from tests.handlers.wire import (
    Speaker,
    create_topic,
    fetch_one,
    make_batch,
    produce,
    speak,
)
from tests.servers import BrokerProcess, free_port
from tests.waiting import until

TIMEOUT_S = 60
OPERATIONS = Path(__file__).parent.parent.parent / "docs" / "OPERATIONS.md"


class Measured(BrokerProcess):
    """A broker with a metrics page."""

    def __init__(self, directory: Path, **overrides: object) -> None:
        self.address = f"127.0.0.1:{free_port()}"
        given = {key.replace("_", "."): value for key, value in overrides.items()}
        super().__init__(
            directory, log_dirs=2, overrides={"metrics.listener": self.address, **given}
        )

    def reading(self) -> Reading:
        return watch.read(self.address, time.monotonic())


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Measured]:
    with Measured(tmp_path_factory.mktemp("metrics")) as running:
        yield running


@pytest.fixture
def wire(broker: Measured) -> Iterator[Speaker]:
    speaker = speak(broker.port)
    yield speaker
    speaker.close()


def test_requests_are_counted_by_api_and_path(broker: Measured, wire: Speaker) -> None:
    create_topic(wire, "counted", 1)
    produce(wire, "counted", make_batch([b"first"]))  # Python's: it makes the producer known
    before = broker.reading()
    for _ in range(20):
        produce(wire, "counted", make_batch([b"x" * 100]))
        fetch_one(wire, "counted", 0)
    after = broker.reading()
    seen = Watch(before, after)
    count = "plog_request_duration_seconds_count"
    for api in ("Produce", "Fetch"):
        grown = after.value(count, api=api, path="fast") - before.value(count, api=api, path="fast")
        assert grown == 20
    found = {one.api: one for one in seen.apis()}
    assert set(found) == {"Produce", "Fetch"}
    for one in found.values():
        p50, p99, p999 = one.percentiles
        assert p50 is not None
        assert p99 is not None
        assert p999 is not None
        assert 0 < p50 <= p99 <= p999 < TIMEOUT_S
        assert one.fast_share == 1
        assert one.per_s == pytest.approx(20 / seen.seconds)
    assert seen.rate("plog_received_bytes_total") * seen.seconds > 20 * 100
    assert after.value("plog_log_end_offsets", topic="counted") == 21
    assert after.value("plog_partitions", topic="counted") == 1
    assert after.value("plog_log_bytes", topic="counted") > 20 * 100
    assert after.value("plog_flush_duration_seconds_count") >= 20
    assert after.value("plog_connections") >= 1
    assert after.value("process_resident_memory_bytes") > 1e6


def test_other_apis_are_pythons_and_why_is_told(broker: Measured, wire: Speaker) -> None:
    before = broker.reading()
    with Admin(broker.bootstrap) as admin:
        admin.topics()
    seen = Watch(before, broker.reading())
    metadata = next(one for one in seen.apis() if one.api == "Metadata")
    assert metadata.fast_share == 0
    assert seen.rate("plog_callouts_total", reason="other API or version") > 0


def test_disks_are_told(broker: Measured, wire: Speaker) -> None:
    now = broker.reading()
    for log_dir in broker.log_dirs:
        assert now.value("plog_log_dir_online", log_dir=str(log_dir)) == 1
        assert now.value("plog_log_dir_free_bytes", log_dir=str(log_dir)) > 0
    assert now.value("plog_offline_partitions") == 0


def test_log_directory_that_is_lost_is_offline_with_its_partitions(tmp_path: Path) -> None:
    broker = Measured(tmp_path, log_flush_offset_checkpoint_interval_ms=100)
    lost, kept = broker.log_dirs
    with broker, closing(speak(broker.port)) as client:
        create_topic(client, "t", 5)
        of_lost, of_kept = (len(list(log_dir.glob("t-*"))) for log_dir in (lost, kept))
        assert of_lost > 0 < of_kept
        assert of_lost + of_kept == 5

        def told() -> tuple[list[float], list[float], float]:
            now = broker.reading()
            online, held = (
                [now.value(name, log_dir=str(log_dir)) for log_dir in (lost, kept)]
                for name in ("plog_log_dir_online", "plog_partitions")
            )
            return online, held, now.value("plog_offline_partitions")

        assert told() == ([1, 1], [of_lost, of_kept], 0)
        # Not removed: checkpoints are written into it meanwhile.
        lost.rename(lost.with_name("away"))
        until(lambda: told() == ([0, 1], [0, of_kept], of_lost), "the directory is offline")
        now = broker.reading()
        assert now.value("plog_missing_log_dirs") == 0  # it was there at the start
        # Of what does not work there is nothing else to say.
        for name in ("free_bytes", "refusing", "slow"):
            assert now.labels(f"plog_log_dir_{name}", "log_dir") == [str(kept)]
        command = [sys.executable, "-m", "plog", "top", "--metrics", broker.address]
        top = subprocess.run(
            [*command, "--every", "0.1", "--count", "1"],
            capture_output=True,
            text=True,
            timeout=TIMEOUT_S,
            check=True,
        )
        assert f"   {of_lost} partitions OFFLINE" in top.stdout


def test_log_directory_that_is_left_out_is_missed(tmp_path: Path) -> None:
    broker = Measured(tmp_path)
    with broker:
        assert broker.reading().value("plog_missing_log_dirs") == 0
    kept = broker.log_dirs[1]
    broker.overrides["log.dirs"] = kept
    with broker:
        now = broker.reading()
        assert now.value("plog_missing_log_dirs") == 1
        assert now.labels("plog_log_dir_online", "log_dir") == [str(kept)]
        command = [sys.executable, "-m", "plog", "top", "--metrics", broker.address]
        top = subprocess.run(
            [*command, "--every", "0.1", "--count", "1"],
            capture_output=True,
            text=True,
            timeout=TIMEOUT_S,
            check=True,
        )
    assert "   1 log directories MISSING" in top.stdout


def test_deleted_topic_is_gone_from_the_page(broker: Measured, wire: Speaker) -> None:
    create_topic(wire, "passing", 2)
    produce(wire, "passing", make_batch([b"x"]))
    assert broker.reading().value("plog_partitions", topic="passing") == 2
    with Admin(broker.bootstrap) as admin:
        admin.delete_records({TopicPartition("passing", 0): 1})
        admin.delete_topic("passing")
    assert "passing" not in broker.reading().labels("plog_partitions", "topic")


def test_top_shows_and_tells(broker: Measured, wire: Speaker) -> None:
    create_topic(wire, "shown", 1)

    def top(*arguments: str) -> subprocess.Popen[bytes]:
        command = [sys.executable, "-m", "plog", "top", "--metrics", broker.address]
        return subprocess.Popen(
            [*command, "--every", "1", "--count", "1", *arguments], stdout=subprocess.PIPE
        )

    def said(running: subprocess.Popen[bytes]) -> str:
        while running.poll() is None:
            produce(wire, "shown", make_batch([b"x" * 100]))
            wire.ask(ApiVersionsRequest(), 0)
        assert running.stdout is not None
        assert running.returncode == 0
        return running.stdout.read().decode()

    figures = json.loads(said(top("--json")))
    (produced,) = [one for one in figures["apis"] if one["api"] == "Produce"]
    assert produced["per_s"] > 0
    assert produced["fast_share"] > 0.9
    assert 0 < produced["percentiles"][0] <= produced["percentiles"][-1] < 60
    assert 0 < figures["flush_p99_s"] < 60
    assert 1 << 24 < figures["resident_memory_bytes"] < 1 << 31
    assert figures["received_bytes_per_s"] > figures["appended_bytes_per_s"]
    assert figures["sent_bytes_per_s"] > 0
    assert next(one for one in figures["topics"] if one["topic"] == "shown")["offsets_per_s"] > 0
    assert figures["appended_records_per_s"] > 0
    callouts = figures["callouts_per_s"]
    asked = next(one for one in figures["apis"] if one["api"] == "ApiVersions")
    assert callouts["other API or version"] == pytest.approx(asked["per_s"], rel=0.2)
    # One that nobody has written to yet counts as slow where there are several.
    assert set(figures["slow_log_dirs"]) <= set(map(str, broker.log_dirs))
    assert figures["appended_bytes_per_s"] > 100 * figures["appended_records_per_s"]
    screen = said(top())
    for text in ("Produce", "PER SECOND", "P99.9", "shown", "connections", "other API or version"):
        assert text in screen
    took = r"[\d.]+ (us|ms|s)"
    for shown in (
        rf"^ *Produce +[\d.,]+ +(9\d\.\d|100\.0)% +{took} +{took} +{took}",
        r"in [\d.]+ [kM]B/s +out [\d.]+ [kM]B/s +appended [\d,]+ records/s \([\d.]+ [kM]B/s\)",
        r"^ *other API or version +[1-9][\d,]*\.\d",
        rf"memory [\d.]+ MB +CPU \d+% +flush p99 {took}",
    ):
        assert re.search(shown, screen, re.MULTILINE), (shown, screen)


class Terminal:
    """A terminal with a command in it, which may be interrupted from its keyboard."""

    HIDE_CURSOR, SHOW_CURSOR = b"\x1b[?25l", b"\x1b[?25h"

    def __init__(self, command: list[str]) -> None:
        self._leader, self._follower = pty.openpty()
        self._before = termios.tcgetattr(self._follower)
        self._said = bytearray()
        self.running = subprocess.Popen(
            command,
            stdin=self._follower,
            stdout=self._follower,
            stderr=self._follower,
            env={**os.environ, "TERM": "xterm", "COLUMNS": "200", "LINES": "50"},
            start_new_session=True,
            preexec_fn=self._take,
        )

    @staticmethod
    def _take() -> None:
        fcntl.ioctl(0, termios.TIOCSCTTY, 0)

    def text(self) -> str:
        """Return all that was shown until now, one screen behind the other."""
        while select.select([self._leader], [], [], 0)[0]:
            self._said += os.read(self._leader, 65536)
        return re.sub(r"\x1b\[[0-9;?]*[a-zA-Z]", "", self._said.decode("utf-8", "replace"))

    def press(self, key: bytes) -> None:
        os.write(self._leader, key)

    def has_ended(self) -> bool:
        self.text()  # nobody ends who waits to be read
        return self.running.poll() is not None

    def is_as_before(self) -> bool:
        """Whether its settings are, and its cursor is there."""
        shown = self._said.rfind(self.SHOW_CURSOR) > self._said.rfind(self.HIDE_CURSOR)
        return shown and termios.tcgetattr(self._follower) == self._before

    def close(self) -> None:
        if self.running.poll() is None:
            self.running.kill()
        self.running.wait()
        os.close(self._leader)
        os.close(self._follower)


def test_top_is_live_in_a_terminal_and_gives_it_back(broker: Measured, wire: Speaker) -> None:
    create_topic(wire, "watched", 1)
    command = [sys.executable, "-m", "plog", "top", "--metrics", broker.address, "--every", "0.2"]
    terminal = Terminal(command)
    try:

        def figures(words: str) -> list[float]:
            """Write a record, and return what stood behind the words, once for each reading."""
            produce(wire, "watched", make_batch([b"x" * 1000]))
            found = re.findall(rf"{words} +([\d.,]+)", terminal.text())
            return [float(one.replace(",", "")) for one in found]

        until(lambda: sum(rate > 0 for rate in figures("Produce")) > 1, "it shows two readings")
        # The topic's size, in kB.
        until(lambda: len(set(figures("watched +1"))) > 2, "it shows what has grown")
        for words in (f"plog at {broker.address}", " connections ", "P99.9", "OFFSETS/S"):
            assert words in terminal.text()
        assert not terminal.is_as_before()  # or it would say nothing afterwards
        terminal.press(b"\x03")
        until(terminal.has_ended, "it ends")
        assert terminal.running.returncode in (130, -signal.SIGINT)
        assert "Traceback" not in terminal.text()
        assert terminal.is_as_before()
    finally:
        terminal.close()


def test_readers_that_send_a_byte_now_and_then_keep_nobody_away_and_no_stop(tmp_path: Path) -> None:
    broker = Measured(tmp_path).start()
    place = ("127.0.0.1", int(broker.address.partition(":")[2]))
    over = threading.Event()

    def drip() -> None:
        with suppress(OSError), socket.create_connection(place) as reader:
            while not over.wait(1):
                reader.sendall(b"x")

    slow = [threading.Thread(target=drip) for _ in range(20)]
    for one in slow:
        one.start()
    try:
        for _ in range(3):
            assert broker.reading().value("plog_connections") >= 0
        broker.stop()
    finally:
        broker.kill()
        over.set()
        for one in slow:
            one.join()


def page_of(address: str, *names: str) -> str:
    query = "&".join(f"name[]={name}" for name in names)
    with urllib.request.urlopen(f"http://{address}/metrics?{query}", timeout=TIMEOUT_S) as answer:
        return answer.read().decode()


def test_page_may_be_asked_for_some_names_only(broker: Measured, wire: Speaker) -> None:
    create_topic(wire, "some.names", 1)
    count = "plog_request_duration_seconds_count"
    page = page_of(broker.address, "plog_connections", "plog_partitions", count, "plog_none")
    found = watch.parse(page, 0)
    assert set(found.samples) == {"plog_connections", "plog_partitions", count}
    assert found.value("plog_partitions", topic="some.names") == 1
    assert found.value(count, api="CreateTopics", path="python") > 0
    assert page_of(broker.address, "plog_none") == ""
    assert "version=" in page_of(broker.address, BUILD)
    assert watch.parse(page_of(broker.address, "process_open_fds"), 0).value("process_open_fds") > 9


def declared_in(*parts: ModuleType) -> set[str]:
    """Return the names of the families of modules."""
    return {
        family.name
        for part in parts
        for collector in vars(part).values()
        if isinstance(collector, type) and issubclass(collector, Collector)
        for family in collector.families
    }


def test_names_follow_prometheus_rules_and_the_docs_know_them(
    broker: Measured, wire: Speaker
) -> None:
    create_topic(wire, "of-which-there-are-samples")
    families = list(text_string_to_metric_families(page_of(broker.address)))
    names = [family.name for family in families]
    assert len(set(names)) == len(names)
    for family in families:
        assert family.documentation
        assert family.samples, family
        for sample in family.samples:
            assert sample.name.endswith("_total") == (family.type == "counter"), sample
    declared = declared_in(network, disks, coordinators, lag, topics, log_counts) | {BUILD}
    shown = {name for name in names if name.startswith("plog_")}
    assert shown <= {name.removesuffix("_total") for name in declared}
    text = OPERATIONS.read_text("utf-8")
    named = {name.removesuffix("_count") for name in re.findall(r"`(plog_[a-z_]+)", text)}
    assert named - declared_in(cluster, replication) == declared
    _, _, section = text.partition("### The fast path")
    section, _, _ = section.partition("\n## ")
    documented = set(re.findall(r"^\| `([^`]+)` \|", section, re.MULTILINE))
    assert documented == set(Reactor().stats().callouts)


def test_page_is_openmetrics_for_a_reader_that_accepts_it(broker: Measured, wire: Speaker) -> None:
    create_topic(wire, "open.metrics")

    def page(accept: str) -> tuple[str, str]:
        request = urllib.request.Request(
            f"http://{broker.address}/metrics", headers={"Accept": accept}
        )
        with urllib.request.urlopen(request, timeout=TIMEOUT_S) as response:
            return response.headers["Content-Type"], response.read().decode()

    prometheus = "application/openmetrics-text;version=1.0.0;q=0.5,text/plain;version=0.0.4;q=0.2"
    content_type, text = page(prometheus)
    assert content_type.startswith("application/openmetrics-text; version=1.0.0; charset=utf-8")
    families = {family.name: family for family in openmetrics.text_string_to_metric_families(text)}
    (build,) = families["plog_build"].samples
    assert build.labels == {"version": __version__}
    assert families["plog_appended_records"].type == "counter"
    assert {"topic": "open.metrics", "log_dir": str(broker.log_dirs[0])}.keys() == (
        families["plog_partitions"].samples[0].labels.keys()
    )
    of_version = "application/openmetrics-text;version="
    for accept in ("text/plain", "*/*", f"{of_version}x", f"{of_version}\t9", f"{of_version}1\x7f"):
        content_type, text = page(accept)
        assert content_type == "text/plain; version=0.0.4; charset=utf-8"
        assert "# EOF" not in text


def test_process_is_told_as_other_programs_tell_theirs(broker: Measured) -> None:
    seen = broker.reading()
    theirs = ProcessCollector(registry=None, pid=lambda: broker.pid).collect()
    families = {one.name: one for one in text_string_to_metric_families(page_of(broker.address))}
    assert {one.name for one in theirs} == {one for one in families if one.startswith("process_")}
    expected = {sample.name: sample.value for one in theirs for sample in one.samples}
    for one in theirs:
        assert families[one.name].type == one.type
    assert seen.value("process_max_fds") == expected["process_max_fds"]
    for name, by in (
        ("process_start_time_seconds", 2),
        ("process_resident_memory_bytes", 100e6),
        ("process_virtual_memory_bytes", 1e9),
        ("process_cpu_seconds_total", TIMEOUT_S),
        ("process_open_fds", 20),
    ):
        assert seen.value(name) == pytest.approx(expected[name], abs=by)


def test_address_that_is_taken_keeps_the_broker_from_starting(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        broker = BrokerProcess(tmp_path, overrides={"metrics.listener": address})
        with pytest.raises(AssertionError, match=r"metrics\.listener: cannot listen on"):
            broker.start()


class _One(Collector):
    """One sample."""

    def __init__(self, family: Family, value: str) -> None:
        self.families = (family,)
        self._value = value

    def collect(self) -> Iterator[Metric]:
        yield self.families[0].of([((label(self._value),), 1)])


def test_label_is_printable_and_read_back_as_it_is_printed():
    hostile = 'a\n"b\\c\x1b[31m\u2028\ud800'
    registry = CollectorRegistry()
    registry.register(_One(Family("x", "X.", ("topic",)), hostile))
    _, _, text = generate_latest(registry).decode().partition("\n")
    assert text.replace("\n", "").isprintable()
    assert text.count("\n") == 2
    (family,) = text_string_to_metric_families(text)
    (sample,) = family.samples
    assert sample.labels == {"topic": r'a\n"b\c\x1b[31m\u2028\ud800'}


@pytest.mark.parametrize("count", [1, 16, 17, 1000])
def test_large_family_lets_other_threads_run(monkeypatch: pytest.MonkeyPatch, count: int) -> None:
    pauses: list[int] = []
    values: list[float] = []

    def sleep(wait_s: float) -> None:
        assert wait_s == 0
        pauses.append(len(values))

    monkeypatch.setattr("time.sleep", sleep)
    family = Family("x", "X.", ("topic",)).of(((str(n),), n) for n in range(count))
    values.extend(sample.value for sample in family.samples)
    assert values == list(range(count))
    assert pauses == list(range(0, count, 16))
