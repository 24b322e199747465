"""Where the page's figures come from, in a broker of the tests' own process."""

from __future__ import annotations

import gc
import logging
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from prometheus_client import CollectorRegistry, generate_latest

from plog._native.disk_room import DiskRoom
from plog._native.faults import Fault
from plog._native.partition_log import PartitionState
from plog.client.admin import Admin
from plog.ops import watch
from plog.ops.metrics.topics import Topics
from plog.ops.watch import Reading
from plog.protocol.messages.api_versions import ApiVersionsRequest
from plog.protocol.messages.metadata import MetadataRequest
from plog.protocol.schema import Struct
from plog.storage.full_log_dirs import FullLogDirs
from plog.storage.live_log_dir import LiveLogDir
from plog.types import TopicPartition
from tests.handlers.running import Running, faults, framed, receive
from tests.handlers.wire import (
    WAIT_MS,
    create_topic,
    create_topic_request,
    fetch_request,
    make_batch,
    produce,
    produce_request,
)
from tests.planes import Plane
from tests.waiting import until

VERSIONS = ApiVersionsRequest(client_software_name="m", client_software_version="1")


@pytest.fixture
def running(tmp_path: Path) -> Iterator[Running]:
    directory = tmp_path / 'odd "name" \\n'
    directory.mkdir()
    one = Running(directory, metrics_listener="127.0.0.1:0")
    yield one
    one.stop()


def reading(running: Running) -> Reading:
    return watch.read(f"127.0.0.1:{running.broker.metrics_port}", 0)


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


@pytest.mark.parametrize("served_by", list(Plane), ids=str)
def test_appended_records_never_fall_and_log_ends_may(tmp_path: Path, served_by: Plane) -> None:
    running = Running(tmp_path, metrics_listener="127.0.0.1:0", plane=served_by)
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
    assert running.fast_requests == (4 if served_by is Plane.FAST else 0)
    assert appended() == (records + 12, size + 4 * len(batch), 12)
    with Admin(f"127.0.0.1:{running.port}") as admin:
        admin.delete_topic("falls")
    assert appended() == (records + 12, size + 4 * len(batch), 0)
    running.stop()


@pytest.mark.parametrize("served_by", list(Plane), ids=str)
def test_directory_without_room_is_seen_to_refuse_records(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, served_by: Plane
) -> None:
    rooms: dict[Path, DiskRoom] = {}

    def look(_: FullLogDirs, live: LiveLogDir) -> None:
        rooms[live.path] = live.room

    monkeypatch.setattr(FullLogDirs, "look", look)
    running = Running(tmp_path, metrics_listener="127.0.0.1:0", plane=served_by)
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


# -- the network


@pytest.mark.parametrize("served_by", list(Plane), ids=str)
def test_connections_are_counted_and_those_turned_away(tmp_path: Path, served_by: Plane) -> None:
    inside = 5  # the two that it begins with are among them
    running = Running(
        tmp_path, metrics_listener="127.0.0.1:0", max_connections=inside, plane=served_by
    )

    def told() -> tuple[float, float, float]:
        now = reading(running)
        return (
            now.value("plog_connections"),
            now.value("plog_connections_accepted_total"),
            now.value("plog_connections_refused_total"),
        )

    running.ask(VERSIONS, 3)
    running.wire.ask(VERSIONS, 3)
    assert told() == (2, 2, 0)
    with ExitStack() as guests:
        for count in range(3, inside + 1):
            guest = guests.enter_context(running.connect())
            guest.sendall(framed(VERSIONS, 3, 1))
            assert receive(guest)
            assert told() == (count, count, 0)
        for refused in range(1, 5):
            assert was_turned_away(running)
            assert told() == (inside, inside + refused, refused)
    until(lambda: told() == (2, inside + 4, 4), "they have gone, and are counted still")
    running.stop()


def was_turned_away(running: Running) -> bool:
    with running.connect() as guest:
        try:
            return guest.recv(1) == b""
        except ConnectionResetError:
            return True


@pytest.mark.parametrize("served_by", list(Plane), ids=str)
@pytest.mark.parametrize("sendfile", ["true", "false"])
def test_bytes_are_those_that_came_and_those_that_went(
    tmp_path: Path, served_by: Plane, sendfile: str
) -> None:
    running = Running(
        tmp_path,
        metrics_listener="127.0.0.1:0",
        plane=served_by,
        socket_sendfile_enable=sendfile,
    )
    names = "plog_received_bytes_total", "plog_sent_bytes_total"
    # `running.wire` has asked for the versions. Its bytes are counted after the client has them.
    until(lambda: running.broker.reactor_stats.bytes_out, "the first response is counted")
    before = reading(running)
    large = make_batch([b"v" * 300_000])
    asked: list[tuple[Struct, int]] = [
        (VERSIONS, 3),
        (create_topic_request("t"), 7),
        (produce_request([("t", 0, large)], acks=1), 9),
        (produce_request([("t", 0, large)], acks=0), 9),  # to which there is no answer
        (produce_request([("t", 0, large)], acks=-1), 9),
        (fetch_request(("t", 0, 0)), 12),
        (fetch_request(("t", 7, 0)), 12),
    ]
    received = sent = 0
    for number, (request, version) in enumerate(asked):
        frame = framed(request, version, number)
        running.socket.sendall(frame)
        received += len(frame)
        if getattr(request, "acks", 1) != 0:
            sent += 4 + len(running.receive())
    assert received > 900_000
    assert sent > 900_000

    def told() -> tuple[float, ...]:
        now = reading(running)
        return tuple(now.value(name) - before.value(name) for name in names)

    until(lambda: told() == (received, sent), "so many bytes")
    running.stop()


def test_memory_of_requests_is_told_while_they_come_and_no_longer(running: Running) -> None:
    def told() -> float:
        return reading(running).value("plog_request_memory_bytes")

    create_topic(running.wire, "t")
    until(lambda: told() == 0, "nobody says anything")
    frame = framed(produce_request([("t", 0, make_batch([b"v" * 900_000]))], acks=1), 9, 1)
    half = len(frame) // 2
    running.socket.sendall(frame[:half])
    until(lambda: told() >= half, "a half has come")
    assert told() <= 2 * len(frame) + (1 << 20)
    running.socket.sendall(frame[half:])
    running.receive()
    until(lambda: told() == 0, "it is answered")


def test_requests_that_wait_are_told(running: Running) -> None:
    def told() -> tuple[float, float]:
        now = reading(running)
        return now.value("plog_requests_waiting"), now.value("plog_request_memory_bytes")

    create_topic(running.wire, "t")
    until(lambda: told() == (0, 0), "nobody waits")
    ask = framed(fetch_request(("t", 0, 0), max_wait_ms=WAIT_MS), 12, 1)
    with ExitStack() as stack:
        readers = [stack.enter_context(running.connect()) for _ in range(3)]
        for count, reader in enumerate(readers, 1):
            reader.sendall(ask)
            until(lambda count=count: told()[0] == count, f"{count} wait")
            kept = count * (len(ask) - 4)  # what they ask
            until(lambda kept=kept: told()[1] >= kept, "that is in the memory")
        produce(running.wire, "t", make_batch())
        for reader in readers:
            assert len(receive(reader)) > 61
        until(lambda: told() == (0, 0), "nobody waits any more")


# -- why requests are Python's

CALLOUTS = "plog_callouts_total"


def reasons(running: Running) -> dict[str, int]:
    """Return the counts by reason. Reasons that were never seen are not on the page."""
    now = reading(running)
    seen = {
        reason: int(now.value(CALLOUTS, reason=reason)) for reason in now.labels(CALLOUTS, "reason")
    }
    assert all(seen.values())
    return {**dict.fromkeys(list(ASKED), 0), **seen}


def of_producer(sequence: int) -> bytes:
    return make_batch(producer=(77, 0, sequence))


def of(data: bytes | None, *, topic: str = "t", index: int = 0) -> tuple[Struct, int]:
    return produce_request([(topic, index, data)], acks=1), 9


def fetch(*parts: tuple[str, int, int], **options: Any) -> tuple[Struct, int]:
    return fetch_request(*parts, **options), 12


ASKED: dict[str, dict[str, tuple[Struct, int]]] = {
    "other API or version": {
        "ApiVersions": (VERSIONS, 3),
        "Metadata": (MetadataRequest(topics=[]), 9),
    },
    "unusual request": {
        "unknown acks": (produce_request([("t", 0, make_batch())], acks=7), 9),
        "a follower": fetch(("t", 0, 0), replica_id=1),
        "a debugging consumer": fetch(("t", 0, 0), replica_id=-2),
    },
    "unusual partition": {
        "a Produce to none that there is": of(make_batch(), index=7),
        "a Fetch from none that there is": fetch(("t", 0, 0), ("t", 7, 0)),
        "a topic that is not there": of(make_batch(), topic="none"),
        "another's timestamps": of(make_batch(), topic="log-append-time"),
        "another's codec": of(make_batch(), topic="gzip"),
    },
    "unusual batch": {
        "nothing": of(None),
        "junk": of(b"\x00" * 70),
        "two batches": of(make_batch() * 2),
        "a bad checksum": of(make_batch([b"abc"])[:-3] + b"zzz"),
        "one too large": of(make_batch([b"v" * 2_000_000])),
    },
    "unusual append": {
        "a producer's first": of(of_producer(0)),
        "a gap in a producer's numbers": of(of_producer(40)),
    },
    "unusual read": {
        "an offset that is not there": fetch(("t", 0, 10**12)),
        "another epoch": fetch(("t", 0, 0), leader_epoch=5),
    },
}


@pytest.fixture(scope="module")
def asked_of(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    one = Running(tmp_path_factory.mktemp("reasons"), metrics_listener="127.0.0.1:0")
    create_topic(one.wire, "t")
    create_topic(one.wire, "o")
    create_topic(one.wire, "log-append-time", message_timestamp_type="LogAppendTime")
    create_topic(one.wire, "gzip", compression_type="gzip")
    yield one
    one.stop()


@pytest.mark.parametrize(
    ("reason", "what"), [(reason, what) for reason, cases in ASKED.items() for what in cases]
)
def test_what_goes_to_python_is_counted_once_with_its_reason(
    asked_of: Running, reason: str, what: str
) -> None:
    before = reasons(asked_of)
    for count in (1, 2) if what != "a producer's first" else (1,):
        asked_of.ask(*ASKED[reason][what])
        assert reasons(asked_of) == {**before, reason: before[reason] + count}


def test_what_is_answered_fast_has_no_reason(asked_of: Running) -> None:
    before, fast = reasons(asked_of), asked_of.fast_requests
    for _ in range(3):
        asked_of.ask(*of(make_batch()))
        asked_of.ask(*fetch(("t", 0, 0)))
        asked_of.ask(*fetch(("t", 0, 0), ("o", 0, 0), ("t", 0, 0)))  # named twice
        asked_of.ask(*fetch(("t", 0, 0), session=(7, 3)))  # no such session
    assert (reasons(asked_of), asked_of.fast_requests) == (before, fast + 12)


def test_every_reason_has_a_case(asked_of: Running) -> None:
    assert set(asked_of.broker.reactor_stats.callouts) == set(ASKED)


# -- the page


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
    registry = CollectorRegistry()
    registry.register(Topics(logs))
    text = generate_latest(registry).decode()
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
