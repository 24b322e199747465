"""The metrics page of a running broker, and what `plog top` makes of two readings of it."""

from __future__ import annotations

import json
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest

from plog._native.histogram import Histogram, upper_bounds
from plog.client.admin import Admin
from plog.ops import watch
from plog.ops.watch import Reading, Watch
from plog.types import TopicPartition
from tests.handlers.wire import Speaker, create_topic, fetch_one, make_batch, produce, speak
from tests.servers import BrokerProcess, free_port

TIMEOUT_S = 60


class Measured(BrokerProcess):
    """A broker with a metrics page."""

    def __init__(self, directory: Path) -> None:
        self.address = f"127.0.0.1:{free_port()}"
        super().__init__(directory, log_dirs=2, overrides={"metrics.listener": self.address})

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
    assert after.value("plog_log_end_offsets_total", topic="counted") == 21
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
    assert seen.rate("plog_handed_over_total", reason="other API or version") > 0


def test_disks_are_told(broker: Measured, wire: Speaker) -> None:
    now = broker.reading()
    for log_dir in broker.log_dirs:
        assert now.value("plog_log_dir_online", log_dir=str(log_dir)) == 1
        assert now.value("plog_log_dir_free_bytes", log_dir=str(log_dir)) > 0
    assert now.value("plog_offline_partitions") == 0


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
        assert running.stdout is not None
        assert running.returncode == 0
        return running.stdout.read().decode()

    figures = json.loads(said(top("--json")))
    (produced,) = [one for one in figures["apis"] if one["api"] == "Produce"]
    assert produced["per_s"] > 0
    assert next(one for one in figures["topics"] if one["topic"] == "shown")["records_per_s"] > 0
    screen = said(top())
    for text in ("Produce", "per second", "p99.9", "shown", "connections"):
        assert text in screen


def test_nobody_there_is_said_with_what_to_do() -> None:
    address = f"127.0.0.1:{free_port()}"
    done = subprocess.run(
        [sys.executable, "-m", "plog", "top", "--metrics", address],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 1
    assert "metrics.listener" in done.stderr
    assert "Traceback" not in done.stderr


def test_readers_that_say_nothing_do_not_keep_others_away(broker: Measured) -> None:
    host, _, port = broker.address.partition(":")
    silent = [socket.create_connection((host, int(port))) for _ in range(4)]
    assert broker.reading().value("plog_connections") >= 0
    for one in silent:
        one.sendall(b"GET /metrics HTTP/1.1\r\nx: " + b"y" * 10_000)
        one.close()
    with pytest.raises(urllib.error.HTTPError):
        urllib.request.urlopen(f"http://{broker.address}/other", data=b"x" * 10)
    assert broker.reading().value("plog_connections") >= 0


def test_address_that_is_taken_keeps_the_broker_from_starting(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        broker = BrokerProcess(tmp_path, overrides={"metrics.listener": address})
        with pytest.raises(AssertionError, match=r"metrics\.listener: cannot listen on"):
            broker.start()


def test_buckets_hold_what_their_bounds_say() -> None:
    bounds = upper_bounds()
    assert list(bounds) == sorted(set(bounds))
    for at, bound in enumerate(bounds):
        histogram = Histogram()
        histogram.note(bound)
        histogram.note(bound + 1)
        assert histogram.counts[at : at + 2] == (1, 1)
        assert histogram.total_us == 2 * bound + 1
    histogram = Histogram()
    histogram.note(-5)
    histogram.note(2**62)
    assert histogram.counts[0] == histogram.counts[-1] == 1
    assert sum(histogram.counts) == 2


def test_percentiles_lie_in_their_buckets() -> None:
    def page(counts: dict[str, int]) -> Reading:
        lines = [f'h_bucket{{le="{le}"}} {count}' for le, count in counts.items()]
        return watch.parse("# TYPE h histogram\n" + "\n".join(lines) + "\n", 0.0)

    nothing = page({"1.0": 5, "2.0": 5, "+Inf": 5})
    some = page({"1.0": 5, "2.0": 105, "+Inf": 105})
    assert Watch(nothing, nothing).percentiles("h") == (None, None, None)
    assert Watch(nothing, some).percentiles("h") == (1.5, 1.99, pytest.approx(1.999))
    late = page({"1.0": 5, "2.0": 5, "+Inf": 15})
    assert Watch(nothing, late).percentiles("h") == (2.0, 2.0, 2.0)
