"""Traffic by topic, responses by error, connections by listener, and log lines on the page."""

from __future__ import annotations

import logging
import socket
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from plog._native.faults import Fault
from plog.client.admin import Admin
from plog.errors import ErrorCode
from plog.handlers.request_log import error_text
from plog.handlers.response_errors import ResponseErrors, codes_of, errors_of
from plog.ops import watch
from plog.protocol.api_keys import ApiKey
from plog.protocol.messages.api_versions import ApiVersionsRequest
from plog.protocol.messages.fetch import FetchableTopicResponse, FetchResponse, PartitionData
from plog.protocol.messages.groups import HeartbeatRequest
from plog.protocol.messages.transactions import (
    AddPartitionsToTxnPartitionResult,
    AddPartitionsToTxnResponse,
    AddPartitionsToTxnTopicResult,
)
from tests.coordinator.conftest import await_coordinator
from tests.handlers.running import Running, faults, framed
from tests.handlers.wire import (
    create_topic,
    fetch_one,
    fetch_request,
    fetched,
    make_batch,
    produce,
    produce_request,
    walk_all,
)
from tests.planes import Plane
from tests.servers import free_port
from tests.waiting import until

BATCH = make_batch([b"x" * 100] * 3)
RECORDS, BYTES = "plog_topic_received_records_total", "plog_topic_received_bytes_total"
SENT_RECORDS, SENT = "plog_topic_sent_records_total", "plog_topic_sent_bytes_total"
RESPONSES = "plog_responses_total"
TRAFFIC = (RECORDS, BYTES, SENT_RECORDS, SENT)


@pytest.fixture(scope="module", params=["fast", "python"])
def running(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Running]:
    port, other = free_port(), free_port()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("tests.handlers.running.free_port", lambda: port)
        one = Running(
            tmp_path_factory.mktemp("traffic"),
            metrics_listener="127.0.0.1:0",
            plane=Plane.FAST if request.param == "fast" else Plane.PLAIN,
            listeners=f"PLAINTEXT://127.0.0.1:{port},OTHER://127.0.0.1:{other}",
            listener_security_protocol_map="PLAINTEXT:PLAINTEXT,OTHER:PLAINTEXT",
            offsets_topic_num_partitions=1,
        )
    yield one
    one.stop()


def reading(running: Running) -> watch.Reading:
    return watch.read(f"127.0.0.1:{running.broker.metrics_port}", 0)


def traffic(running: Running, topic: str) -> tuple[float, ...]:
    """Return records and bytes from producers, and those to consumers."""
    page = reading(running)
    return tuple(page.value(name, topic=topic) for name in TRAFFIC)


def test_traffic_is_counted_by_topic(running: Running) -> None:
    topic, _ = create_topic(running.wire, partitions=2)
    other, _ = create_topic(running.wire)
    assert all(topic not in reading(running).labels(name, "topic") for name in TRAFFIC)
    for acks in (-1, 1):
        for partition in (0, 1):
            produce(running.wire, topic, BATCH, partition=partition, acks=acks)
    assert traffic(running, topic) == (12, 4 * len(BATCH), 0, 0)
    sent = 0
    for partition, offset in ((0, 0), (1, 3), (1, 6)):
        (part,) = fetched(running.wire.ask(fetch_request((topic, partition, offset)), 12)).values()
        sent += len(bytes(part.records))
    assert sent == 3 * len(BATCH)
    assert traffic(running, topic) == (12, 4 * len(BATCH), 9, sent)
    assert traffic(running, other) == (0, 0, 0, 0)


def test_records_that_are_sent_are_counted_once(running: Running) -> None:
    topic, _ = create_topic(running.wire)
    for _ in range(40):
        produce(running.wire, topic, BATCH)
    offset = sent = 0
    while offset < 120:  # most responses end in the middle of a batch
        asked = fetch_request((topic, 0, offset), partition_max_bytes=5 * len(BATCH) + 50)
        (part,) = fetched(running.wire.ask(asked, 12)).values()
        sent += len(bytes(part.records))
        offset = walk_all(part.records)[-1].offset + 1
    assert traffic(running, topic) == (120, 40 * len(BATCH), 120, sent)
    fetch_one(running.wire, topic, 118)  # of the records 117 to 119 its reader gets two
    assert traffic(running, topic)[2] == 122


def test_request_that_both_paths_append_is_counted_once(running: Running) -> None:
    topic, _ = create_topic(running.wire, partitions=3)
    new = make_batch([b"v"], producer=(56, 0, 0))  # Python's, and what follows
    request = produce_request([(topic, 0, BATCH), (topic, 1, new), (topic, 2, BATCH)], acks=-1)
    running.ask(request, 9)
    assert traffic(running, topic) == (7, 2 * len(BATCH) + len(new), 0, 0)


def test_batch_that_is_refused_or_known_is_not_counted(running: Running) -> None:
    topic, _ = create_topic(running.wire)
    first = make_batch([b"v"], producer=(55, 0, 0))
    for _ in range(2):
        assert produce(running.wire, topic, first).error_code == ErrorCode.NONE
    gap = make_batch([b"v"], producer=(55, 0, 7))
    assert produce(running.wire, topic, gap).error_code == ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
    assert produce(running.wire, topic, BATCH[:-1]).error_code != ErrorCode.NONE
    assert traffic(running, topic) == (1, len(first), 0, 0)


def test_counts_survive_rolls_and_go_with_the_topic(running: Running) -> None:
    topic, _ = create_topic(running.wire, segment_bytes=1000)
    for _ in range(10):
        produce(running.wire, topic, BATCH)
    page = reading(running)
    assert page.value("plog_log_segments", topic=topic) >= 5
    assert traffic(running, topic) == (30, 10 * len(BATCH), 0, 0)
    with Admin(f"127.0.0.1:{running.port}") as admin:
        admin.delete_topic(topic)
        assert topic not in reading(running).labels(RECORDS, "topic")
    create_topic(running.wire, topic)
    produce(running.wire, topic, BATCH)
    assert traffic(running, topic) == (3, len(BATCH), 0, 0)


# -- responses


def responses(running: Running, api: str) -> dict[str, int]:
    """Return the responses of an API by error."""
    samples = reading(running).samples.get(RESPONSES, {})
    found = {
        dict(labels)["error"]: count for labels, count in samples.items() if ("api", api) in labels
    }
    assert all(found.values())
    return found


def grown(running: Running, api: str, before: dict[str, int]) -> dict[str, int]:
    now = responses(running, api)
    return {
        error: now[error] - before.get(error, 0)
        for error in now
        if now[error] > before.get(error, 0)
    }


def test_responses_are_counted_by_error(running: Running) -> None:
    topic, _ = create_topic(running.wire)
    produced, fetched = responses(running, "Produce"), responses(running, "Fetch")
    for _ in range(3):
        produce(running.wire, topic, BATCH)
        fetch_one(running.wire, topic, 0)
    assert grown(running, "Produce", produced) == {"NONE": 3}
    assert grown(running, "Fetch", fetched) == {"NONE": 3}
    produce(running.wire, topic, BATCH, partition=7)
    assert grown(running, "Produce", produced) == {"NONE": 3, "UNKNOWN_TOPIC_OR_PARTITION": 1}
    running.ask(fetch_request((topic, 0, 0), (topic, 5, 0), (topic, 6, 0)), 12)
    running.ask(fetch_request((topic, 0, 99)), 12)
    assert grown(running, "Fetch", fetched) == {
        "NONE": 3,
        "UNKNOWN_TOPIC_OR_PARTITION": 1,
        "OFFSET_OUT_OF_RANGE": 1,
    }


def test_request_without_a_response_is_not_counted(running: Running) -> None:
    topic, _ = create_topic(running.wire)
    before = responses(running, "Produce")
    running.socket.sendall(framed(produce_request([(topic, 0, BATCH)], acks=0), 9, 1))
    until(lambda: traffic(running, topic)[0] == 3, "it is appended")
    assert grown(running, "Produce", before) == {}


def test_acks_all_that_times_out_is_counted(running: Running) -> None:
    topic, _ = create_topic(running.wire, partitions=2)
    before = responses(running, "Produce")
    directory = f"{running.directory}/{topic}-0"
    with faults(Fault("fdatasync", delay_us=300_000, path_prefix=directory)):
        request = produce_request([(topic, 0, BATCH), (topic, 1, BATCH)], acks=-1, timeout_ms=1)
        running.ask(request, 9)
    assert grown(running, "Produce", before) == {"REQUEST_TIMED_OUT": 1}


def test_errors_of_other_apis_are_counted(running: Running) -> None:
    await_coordinator(running.wire, "g")
    before = responses(running, "Heartbeat")
    running.wire.ask(HeartbeatRequest(group_id="g", generation_id=1, member_id="m"), 4)
    assert grown(running, "Heartbeat", before) == {"UNKNOWN_MEMBER_ID": 1}
    before = responses(running, "ApiVersions")
    running.socket.sendall(
        framed(ApiVersionsRequest(), 3, 1).replace(b"\x00\x12\x00\x03", b"\x00\x12\x00\x7f")
    )
    running.receive()
    assert grown(running, "ApiVersions", before) == {"UNSUPPORTED_VERSION": 1}


@pytest.mark.parametrize("page", [True, False])
def test_responses_are_counted_for_a_page_only(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, page: bool
) -> None:
    noted: list[int] = []
    monkeypatch.setattr(ResponseErrors, "note", lambda _, api_key, response: noted.append(api_key))
    one = Running(tmp_path, **({"metrics_listener": "127.0.0.1:0"} if page else {}))
    try:
        one.wire.ask(HeartbeatRequest(group_id="g", generation_id=1, member_id="m"), 4)
    finally:
        one.stop()
    assert (ApiKey.HEARTBEAT in noted) is page


def data_of(code: int) -> PartitionData:
    return PartitionData(partition_index=0, error_code=code, high_watermark=0, records=b"")


@pytest.mark.parametrize(
    ("codes", "expected"),
    [([], {0}), ([0, 0], {0}), ([0, 3], {3}), ([3, 3, 6], {3, 6})],
)
def test_response_has_the_errors_of_all_its_parts(codes: list[int], expected: set[int]) -> None:
    topics = [FetchableTopicResponse(topic="t", partitions=[data_of(code)]) for code in codes]
    assert set(codes_of(FetchResponse(responses=topics))) == expected
    refused = FetchResponse(error_code=70, responses=topics)
    assert set(codes_of(refused)) == (expected - {0}) | {70}


def test_partitions_of_a_transaction_have_errors_of_another_name() -> None:
    joined = [
        AddPartitionsToTxnPartitionResult(partition_index=0, partition_error_code=code)
        for code in (0, 48)
    ]
    topic = AddPartitionsToTxnTopicResult(name="t", results_by_partition=joined)
    response: Any = AddPartitionsToTxnResponse(results_by_topic_v3_and_below=[topic])
    assert set(codes_of(response)) == {48}
    assert error_text(errors_of(response)) == "INVALID_TXN_STATE"  # in the log of requests, too


# -- connections and log lines


def test_connections_are_counted_by_listener(running: Running) -> None:
    def open_now() -> tuple[float, ...]:
        page = reading(running)
        names = ("PLAINTEXT", "OTHER")
        return tuple(page.value("plog_connections", listener=name) for name in names)

    assert open_now()[1] == 0
    inside = open_now()[0]
    other = running.broker.bound[1].listener.port
    with closing(socket.create_connection(("127.0.0.1", other))):
        until(lambda: open_now() == (inside, 1), "it is inside")
    until(lambda: open_now() == (inside, 0), "it has left")


def test_log_lines_are_counted_from_warning_up(running: Running) -> None:
    def lines() -> dict[str, float]:
        page = reading(running)
        levels = page.labels("plog_log_lines_total", "level")
        assert levels == ["CRITICAL", "ERROR", "WARNING"]
        return {level: page.value("plog_log_lines_total", level=level) for level in levels}

    before = lines()
    log = logging.getLogger("plog.test")
    for level, count in (
        (logging.INFO, 1),
        (logging.WARNING, 2),
        (logging.ERROR, 3),
        (logging.ERROR + 1, 1),
        (logging.CRITICAL, 1),
    ):
        for _ in range(count):
            log.log(level, "a line")
    grown_by = {level: count - before[level] for level, count in lines().items()}
    assert grown_by == {"CRITICAL": 1, "ERROR": 4, "WARNING": 2}


def test_lines_of_a_broker_that_has_stopped_are_not_counted(tmp_path: Path) -> None:
    one = Running(tmp_path, metrics_listener="127.0.0.1:0")
    handlers = list(logging.getLogger().handlers)
    one.stop()
    assert len(logging.getLogger().handlers) == len(handlers) - 1
