"""Where the page's figures come from, in a broker of the tests' own process."""

from __future__ import annotations

import gc
import logging
import time
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from plog._native.disk_room import DiskRoom
from plog._native.faults import Fault
from plog._native.partition_log import PartitionState
from plog.client.admin import Admin
from plog.ops import watch
from plog.ops.metrics_page import topics_of, write
from plog.storage.full_log_dirs import FullLogDirs
from plog.storage.live_log_dir import LiveLogDir
from plog.types import TopicPartition
from tests.handlers.running import Running, faults, framed
from tests.handlers.wire import create_topic, make_batch, produce, produce_request


@pytest.fixture
def running(tmp_path: Path) -> Iterator[Running]:
    directory = tmp_path / 'odd "name" \\n'
    directory.mkdir()
    one = Running(directory, metrics_listener="127.0.0.1:0")
    yield one
    one.stop()


def test_directory_that_is_gone_costs_its_sample_and_no_other(
    running: Running, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    address = f"127.0.0.1:{running.broker.metrics_port}"
    before = watch.read(address, 0)
    assert before.labels("plog_log_dir_free_bytes", "log_dir") == [str(running.directory)]

    def gone(path: Path) -> None:
        raise FileNotFoundError(2, "No such file or directory", str(path))

    monkeypatch.setattr("shutil.disk_usage", gone)
    after = watch.read(address, 0)
    assert after.labels("plog_log_dir_free_bytes", "log_dir") == []
    assert after.value("plog_log_dir_online", log_dir=str(running.directory)) == 1
    assert set(before.samples) - set(after.samples) == {"plog_log_dir_free_bytes"}
    assert not caplog.records


def test_disk_that_counts_as_slow_is_told(running: Running) -> None:
    address = f"127.0.0.1:{running.broker.metrics_port}"
    name = "plog_log_dir_slow"
    before = watch.read(address, 0)
    assert before.labels(name, "log_dir") == [str(running.directory)]
    assert before.having(name, "log_dir") == []
    replicas = running.broker._replicas
    assert replicas is not None
    replicas.disks.note_append(running.directory, 30_000)
    assert watch.read(address, 0).having(name, "log_dir") == [str(running.directory)]
    for _ in range(64):
        replicas.disks.note_append(running.directory, 0)
    assert watch.read(address, 0).having(name, "log_dir") == []


@pytest.mark.parametrize("fast", ["true", "false"])
def test_appended_records_never_fall_and_log_ends_may(tmp_path: Path, fast: str) -> None:
    running = Running(tmp_path, metrics_listener="127.0.0.1:0", fast_path_enable=fast)
    address = f"127.0.0.1:{running.broker.metrics_port}"
    batch = make_batch([b"x" * 100] * 3)

    def appended() -> tuple[float, float, float]:
        now = watch.read(address, 0)
        return (
            now.value("plog_appended_records_total"),
            now.value("plog_appended_bytes_total"),
            now.value("plog_log_end_offsets", topic="falls"),
        )

    create_topic(running.wire, "falls", 1)
    records, size, _ = appended()  # by this whole process
    for _ in range(4):
        produce(running.wire, "falls", batch)
    assert running.fast_requests == (4 if fast == "true" else 0)
    assert appended() == (records + 12, size + 4 * len(batch), 12)
    with Admin(f"127.0.0.1:{running.port}") as admin:
        admin.delete_topic("falls")
    assert appended() == (records + 12, size + 4 * len(batch), 0)
    running.stop()


@pytest.mark.parametrize("fast", ["true", "false"])
def test_directory_without_room_is_seen_to_refuse_records(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fast: str
) -> None:
    rooms: dict[Path, DiskRoom] = {}

    def look(_: FullLogDirs, live: LiveLogDir) -> None:
        rooms[live.path] = live.room

    monkeypatch.setattr(FullLogDirs, "look", look)
    running = Running(tmp_path, metrics_listener="127.0.0.1:0", fast_path_enable=fast)
    address = f"127.0.0.1:{running.broker.metrics_port}"

    def told() -> tuple[float, float]:
        now = watch.read(address, 0)
        return (
            now.value("plog_log_dir_refusing", log_dir=str(tmp_path)),
            now.value("plog_log_dir_refused_writes_total", log_dir=str(tmp_path)),
        )

    create_topic(running.wire, "full", 1)
    assert told() == (0, 0)
    rooms[tmp_path].left = 0
    assert told() == (1, 0)
    for _ in range(3):
        running.ask(produce_request([("full", 0, make_batch())], acks=1), 9)
    assert told() == (1, 3)
    assert running.fast_requests == 0
    rooms[tmp_path].left = 10_000
    running.ask(produce_request([("full", 0, make_batch())], acks=1), 9)
    assert told() == (0, 3)
    running.stop()


def test_wait_for_the_disk_counts_also_of_a_request_that_is_pythons_after_it(
    running: Running,
) -> None:
    topic, _ = create_topic(running.wire)
    first, third = (framed(produce_request([(topic, 0, make_batch())]), 9, n) for n in (1, 3))
    # A producer that is new is the handler's, once the one before it is safe.
    records = make_batch(producer=(1000, 0, 0))
    second = framed(produce_request([(topic, 0, records)]), 9, 2)
    prefix = f"{running.directory}/{topic}-0"
    with faults(Fault("fdatasync", delay_us=1_000_000, times=1, path_prefix=prefix)):
        running.socket.sendall(first + second)
        running.until_waiting(2)
        time.sleep(0.3)  # what is read later counts from later
        running.socket.sendall(third)
        for _ in range(3):
            running.receive()
    page = watch.read(f"127.0.0.1:{running.broker.metrics_port}", 0)
    name = "plog_request_duration_seconds"
    assert page.value(f"{name}_count", api="Produce", path="python") == 1
    assert page.value(f"{name}_sum", api="Produce", path="python") >= 1


def test_page_of_many_topics_gives_the_garbage_collector_nothing_to_do() -> None:
    held = [
        SimpleNamespace(
            topic_partition=TopicPartition(f"topic{topic}", partition),
            log_dir=Path("/data"),
            native=SimpleNamespace(state=lambda: PartitionState(0, 9, 9, 9, 9, 0, 1000, 2)),
        )
        for topic in range(2000)
        for partition in range(3)
    ]
    logs: Any = SimpleNamespace(logs=lambda: held)
    runs = []

    def count(phase: str, info: dict[str, int]) -> None:
        if phase == "start":
            runs.append(info["generation"])

    gc.collect()
    gc.callbacks.append(count)
    text = write(topics_of(logs))
    gc.callbacks.remove(count)
    assert len(runs) < 5  # an object for each sample would make it thirty
    page = watch.parse(text, 0)
    assert page.value("plog_partitions", topic="topic7", log_dir="/data") == 3
    assert page.value("plog_log_bytes") == 6_000_000
    assert page.value("plog_log_end_offsets", topic="topic1999") == 27
    assert page.value("plog_log_segments", topic="topic0") == 6


def test_log_says_where_the_page_is(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO):
        one = Running(tmp_path, metrics_listener="127.0.0.1:0")
    one.stop()
    assert f"metrics at http://127.0.0.1:{one.broker.metrics_port}/metrics" in caplog.messages
