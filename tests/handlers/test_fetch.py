"""Fetch: where it reads from, how much, how long it waits, and what it refuses."""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from plog.errors import ErrorCode
from plog.handlers.registry import load
from plog.protocol.messages.fetch import FetchRequest, FetchResponse, ReplicaState
from plog.protocol.messages.metadata import MetadataRequest, MetadataRequestTopic
from plog.protocol.messages.topics import (
    DeleteRecordsPartition,
    DeleteRecordsRequest,
    DeleteRecordsTopic,
    DeleteTopicsRequest,
)
from plog.types import TopicPartition
from tests.handlers.wire import (
    WAIT_MS,
    Speaker,
    create_topic,
    fetch_one,
    fetch_request,
    fetched,
    make_batch,
    produce,
    speak,
    walk_all,
)
from tests.leader_epochs import pass_epochs
from tests.servers import BrokerProcess

EVERY_VERSION = range(load()[1].min_version, load()[1].max_version + 1)


def offsets(data: Any) -> list[int]:
    return [record.offset for record in walk_all(data)]


def fill(connection: Speaker, topic: str, batches: int, size: int = 3) -> list[int]:
    """Append batches of `size` records; return the batches' sizes in bytes."""
    made = [make_batch([b"x" * 20] * size) for _ in range(batches)]
    for batch in made:
        assert produce(connection, topic, batch).error_code == 0
    return [len(batch) for batch in made]


def delete_before(connection: Speaker, topic: str, offset: int) -> None:
    part = DeleteRecordsPartition(partition_index=0, offset=offset)
    asked = DeleteRecordsTopic(name=topic, partitions=[part])
    answer = connection.ask(DeleteRecordsRequest(topics=[asked], timeout_ms=WAIT_MS))
    assert answer.topics[0].partitions[0].error_code == 0


def named(version: int, topic: tuple[str, uuid.UUID]) -> str | uuid.UUID:
    return topic[0] if version < 13 else topic[1]


# -- where


@pytest.mark.parametrize("version", EVERY_VERSION)
@pytest.mark.parametrize(
    ("offset", "expected"),
    [
        (2, list(range(9))),  # inside a batch that begins below the log start
        (3, list(range(3, 9))),
        (4, list(range(3, 9))),  # inside a batch: from its beginning
        (8, [6, 7, 8]),
        (9, []),
    ],
)
def test_reads_from_the_batch_that_holds_the_offset(
    wire: Speaker, version: int, offset: int, expected: list[int]
) -> None:
    topic = create_topic(wire)
    fill(wire, topic[0], 3)
    delete_before(wire, topic[0], 2)
    part = fetch_one(wire, named(version, topic), offset, version=version)
    assert part.error_code == 0
    assert offsets(part.records) == expected
    assert part.high_watermark == 9
    assert part.last_stable_offset == 9
    assert part.log_start_offset == (2 if version >= 5 else -1)


@pytest.mark.parametrize("version", EVERY_VERSION)
@pytest.mark.parametrize("offset", [0, 1, 10, 2**60, -1])
def test_offset_outside_the_log_is_refused_at_once(
    wire: Speaker, version: int, offset: int
) -> None:
    topic = create_topic(wire)
    fill(wire, topic[0], 3)
    delete_before(wire, topic[0], 2)
    begun = time.monotonic()
    part = fetch_one(wire, named(version, topic), offset, version=version, max_wait_ms=WAIT_MS)
    assert part.error_code == ErrorCode.OFFSET_OUT_OF_RANGE
    assert (part.high_watermark, part.last_stable_offset) == (-1, -1)
    assert part.log_start_offset == (2 if version >= 5 else -1)
    assert not part.records
    assert time.monotonic() - begun < 5


# -- how long


def test_wait_at_the_end_ends_with_its_time(wire: Speaker, topic: str) -> None:
    begun = time.monotonic()
    part = fetch_one(wire, topic, 0, max_wait_ms=300)
    assert 0.25 < time.monotonic() - begun < 5
    assert (part.error_code, bytes(part.records or b"")) == (0, b"")


def test_wait_at_the_end_ends_with_an_append(
    wire: Speaker, other_wire: Speaker, topic: str
) -> None:
    wire.send(fetch_request((topic, 0, 0), max_wait_ms=WAIT_MS), FetchResponse, version=12)
    assert not wire.ready(150)
    produce(other_wire, topic, make_batch([b"a"]))
    (part,) = fetched(wire.receive(FetchResponse)).values()
    assert offsets(part.records) == [0]


def test_min_bytes_count_over_all_partitions(wire: Speaker, other_wire: Speaker) -> None:
    topic, _ = create_topic(wire, partitions=3)
    batch = make_batch([b"x" * 500])
    asked = fetch_request(
        *((topic, index, 0) for index in range(3)), max_wait_ms=WAIT_MS, min_bytes=2 * len(batch)
    )
    wire.send(asked, FetchResponse, version=12)
    produce(other_wire, topic, batch, partition=0)
    assert not wire.ready(150)
    produce(other_wire, topic, batch, partition=2)
    parts = fetched(wire.receive(FetchResponse))
    assert [len(part.records or b"") for part in parts.values()] == [len(batch), 0, len(batch)]


def test_min_bytes_beyond_max_bytes_do_not_wait(wire: Speaker, topic: str) -> None:
    (size,) = fill(wire, topic, 1)
    begun = time.monotonic()
    part = fetch_one(wire, topic, 0, max_wait_ms=WAIT_MS, min_bytes=2**31 - 1, max_bytes=size)
    assert len(part.records or b"") == size
    assert time.monotonic() - begun < 5


@pytest.mark.parametrize("min_bytes", [0, -5])
def test_without_min_bytes_nothing_is_waited_for(wire: Speaker, topic: str, min_bytes: int) -> None:
    begun = time.monotonic()
    fetch_one(wire, topic, 0, max_wait_ms=WAIT_MS, min_bytes=min_bytes)
    assert time.monotonic() - begun < 5


def test_an_error_beside_an_empty_partition_is_answered_at_once(wire: Speaker, topic: str) -> None:
    asked = fetch_request((topic, 0, 0), ("nowhere", 0, 0), max_wait_ms=WAIT_MS)
    begun = time.monotonic()
    parts = fetched(wire.ask(asked, 12))
    assert [p.error_code for p in parts.values()] == [0, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION]
    assert time.monotonic() - begun < 5


def test_fetch_of_nothing_is_answered_at_once(wire: Speaker) -> None:
    begun = time.monotonic()
    assert wire.ask(fetch_request(max_wait_ms=WAIT_MS), 12).responses == []
    assert time.monotonic() - begun < 5


@pytest.mark.parametrize("version", [12, 17, 18])
def test_deletion_of_the_topic_ends_a_wait(
    wire: Speaker, other_wire: Speaker, version: int
) -> None:
    topic = create_topic(wire)
    asked = fetch_request((named(version, topic), 0, 0), max_wait_ms=WAIT_MS)
    wire.send(asked, FetchResponse, version=version, wait_ms=WAIT_MS)
    assert not wire.ready(100)
    begun = time.monotonic()
    other_wire.ask(DeleteTopicsRequest(topic_names=[topic[0]], timeout_ms=WAIT_MS), 5)
    (part,) = fetched(wire.receive(FetchResponse)).values()
    assert time.monotonic() - begun < 5
    assert part.error_code in (
        ErrorCode.NOT_LEADER_OR_FOLLOWER,
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        ErrorCode.UNKNOWN_TOPIC_ID,
    )


def test_client_that_goes_away_while_it_waits_disturbs_nobody(
    wire: Speaker, other_wire: Speaker, topic: str
) -> None:
    other_wire.send(fetch_request((topic, 0, 0), max_wait_ms=WAIT_MS), FetchResponse, version=12)
    other_wire.close()
    assert produce(wire, topic, make_batch()).error_code == 0
    assert offsets(fetch_one(wire, topic, 0).records) == [0]


# -- how much


def test_first_batch_comes_whole_however_large(wire: Speaker, topic: str) -> None:
    sizes = fill(wire, topic, 2)
    for limits in ({"max_bytes": 1}, {"partition_max_bytes": 1}, {"max_bytes": 0}):
        part = fetch_one(wire, topic, 0, **limits)
        assert len(part.records or b"") == sizes[0]


@pytest.mark.parametrize("limit", [-1, -(2**31)])
def test_negative_limits_count_as_none_at_all(wire: Speaker, topic: str, limit: int) -> None:
    sizes = fill(wire, topic, 2)
    assert len(fetch_one(wire, topic, 0, partition_max_bytes=limit).records or b"") == sizes[0]
    assert len(fetch_one(wire, topic, 0, max_bytes=limit).records or b"") == sizes[0]


def test_partition_limit_cuts_what_comes_after_the_first_batch(wire: Speaker, topic: str) -> None:
    sizes = fill(wire, topic, 3)
    part = fetch_one(wire, topic, 0, partition_max_bytes=sizes[0] + sizes[1] + 10)
    assert len(part.records or b"") <= sizes[0] + sizes[1] + 10
    assert offsets(part.records) == list(range(6))


def test_budget_goes_to_partitions_in_the_order_of_the_request(wire: Speaker) -> None:
    topic, _ = create_topic(wire, partitions=4)
    batch = make_batch([b"x" * 200])
    for index in (0, 1, 2):
        produce(wire, topic, batch, partition=index)
    order = [3, 2, 0, 1]  # the first one is empty, and does not use up the first's privilege
    asked = fetch_request(*((topic, index, 0) for index in order), max_bytes=len(batch) + 10)
    parts = fetched(wire.ask(asked, 12))
    assert [index for _, index in parts] == order
    assert [len(part.records or b"") for part in parts.values()] == [0, len(batch), 0, 0]
    asked = fetch_request(*((topic, index, 0) for index in order), max_bytes=1)
    parts = fetched(wire.ask(asked, 12))
    assert [len(part.records or b"") for part in parts.values()] == [0, len(batch), 0, 0]
    assert all(part.high_watermark == (index != 3) for (_, index), part in parts.items())


def test_brokers_limit_holds_whatever_is_asked(own_broker: Callable[..., BrokerProcess]) -> None:
    broker = own_broker(fetch_max_bytes=1024)
    connection = speak(broker.port)
    topic, _ = create_topic(connection)
    batch = make_batch([b"x" * 300])
    for _ in range(10):
        produce(connection, topic, batch)
    part = fetch_one(connection, topic, 0)
    assert len(part.records or b"") <= 1024
    assert len(offsets(part.records)) == 1024 // len(batch)
    connection.close()


def test_a_partition_of_a_thousand_batches_is_read_through(wire: Speaker) -> None:
    topic, _ = create_topic(wire, segment_bytes=5000)
    fill(wire, topic, 200)
    seen: list[int] = []
    while len(seen) < 600:
        part = fetch_one(wire, topic, len(seen), partition_max_bytes=1500)
        found = [offset for offset in offsets(part.records) if offset >= len(seen)]
        assert found
        seen += found
    assert seen == list(range(600))


# -- isolation


@pytest.mark.parametrize("version", EVERY_VERSION)
def test_aborted_transactions_are_null_only_for_uncommitted_readers(
    wire: Speaker, version: int
) -> None:
    topic = create_topic(wire)
    fill(wire, topic[0], 1)
    for level, expected in ((0, None), (1, [])):
        part = fetch_one(wire, named(version, topic), 0, version=version, isolation_level=level)
        assert part.aborted_transactions == expected
        assert offsets(part.records) == [0, 1, 2]


# -- epochs


@pytest.fixture
def second_epoch(own_broker: Callable[..., BrokerProcess]) -> Iterator[tuple[Speaker, str, int]]:
    """A topic with offsets 0 to 2 of leader epoch 0 and 3 to 5 of a later one."""
    broker = own_broker()
    connection = speak(broker.port)
    topic, _ = create_topic(connection)
    fill(connection, topic, 1)
    connection.close()
    broker.stop()
    pass_epochs(broker, TopicPartition(topic, 0), 2)
    broker.start()
    connection = speak(broker.port)
    fill(connection, topic, 1)
    kept = bytes(fetch_one(connection, topic, 3).records or b"")
    epoch = int.from_bytes(kept[12:16], "big")
    assert epoch >= 2
    yield connection, topic, epoch
    connection.close()


def test_leader_epochs_fence_both_ways(second_epoch: tuple[Speaker, str, int]) -> None:
    connection, topic, epoch = second_epoch
    for asked, expected in [
        (-1, ErrorCode.NONE),
        (epoch, ErrorCode.NONE),
        (epoch - 1, ErrorCode.FENCED_LEADER_EPOCH),
        (epoch + 1, ErrorCode.UNKNOWN_LEADER_EPOCH),
    ]:
        for version in (9, 12):
            part = fetch_one(connection, topic, 0, version=version, leader_epoch=asked)
            assert ErrorCode(part.error_code) is expected


def test_epochs_below_version_9_fence_nobody(wire: Speaker, topic: str) -> None:
    assert fetch_one(wire, topic, 0, version=8, leader_epoch=500).error_code == 0


def test_client_ahead_of_the_leader_gets_no_hint(wire: Speaker) -> None:
    _, topic_id = create_topic(wire)
    answer = wire.ask(fetch_request((topic_id, 0, 0), leader_epoch=9), 16)
    (part,) = fetched(answer).values()
    assert part.error_code == ErrorCode.UNKNOWN_LEADER_EPOCH
    assert (part.current_leader.leader_id, answer.node_endpoints) == (-1, [])


def test_fenced_client_is_told_leader_and_address(
    second_epoch: tuple[Speaker, str, int],
) -> None:
    connection, topic, epoch = second_epoch
    topic_id = _topic_id(connection, topic)
    for version in (15, 16, 17, 18):
        answer = connection.ask(fetch_request((topic_id, 0, 0), leader_epoch=0), version)
        (part,) = fetched(answer).values()
        assert part.error_code == ErrorCode.FENCED_LEADER_EPOCH
        if version < 16:
            assert (part.current_leader.leader_id, answer.node_endpoints) == (-1, [])
        else:
            assert (part.current_leader.leader_id, part.current_leader.leader_epoch) == (0, epoch)
            ((node),) = answer.node_endpoints
            assert f"{node.host}:{node.port}" == connection.peer


def _topic_id(connection: Speaker, topic: str) -> uuid.UUID:
    answer = connection.ask(MetadataRequest(topics=[MetadataRequestTopic(name=topic)]), 12)
    return answer.topics[0].topic_id


def test_logs_that_have_parted_are_told_where(second_epoch: tuple[Speaker, str, int]) -> None:
    connection, topic, epoch = second_epoch
    for last_epoch, offset, expected in [
        (-1, 5, None),
        (epoch, 5, None),
        (0, 3, None),  # the reader is where its epoch ended
        (0, 4, (0, 3)),  # it has a record of epoch 0 that this log has not
        (0, 6, (0, 3)),
    ]:
        part = fetch_one(
            connection, topic, offset, last_fetched_epoch=last_epoch, max_wait_ms=WAIT_MS
        )
        assert part.error_code == 0
        found = (part.diverging_epoch.epoch, part.diverging_epoch.end_offset)
        assert found == (expected or (-1, -1))
        if expected is not None:
            assert not part.records
            assert part.high_watermark == 6
    unknown = fetch_one(connection, topic, 4, last_fetched_epoch=epoch + 7)
    assert unknown.error_code == ErrorCode.OFFSET_OUT_OF_RANGE


def test_offset_below_the_start_is_out_of_range_whatever_the_epochs(
    second_epoch: tuple[Speaker, str, int],
) -> None:
    connection, topic, _ = second_epoch
    delete_before(connection, topic, 4)
    part = fetch_one(connection, topic, 1, last_fetched_epoch=0)
    assert part.error_code == ErrorCode.OFFSET_OUT_OF_RANGE
    assert part.diverging_epoch.epoch == -1


# -- topic ids


@pytest.mark.parametrize("version", range(13, 18))
def test_topics_go_by_id_from_version_13_on(wire: Speaker, version: int) -> None:
    topic, topic_id = create_topic(wire)
    fill(wire, topic, 1)
    answer = wire.ask(fetch_request((topic_id, 0, 0)), version)
    (entry,) = answer.responses
    assert (entry.topic, entry.topic_id) == ("", topic_id)
    assert offsets(entry.partitions[0].records) == [0, 1, 2]
    for unknown in (uuid.UUID(int=99), uuid.UUID(int=0)):
        part = fetch_one(wire, unknown, 0, version=version, max_wait_ms=WAIT_MS)
        assert part.error_code == ErrorCode.UNKNOWN_TOPIC_ID


def test_id_of_a_deleted_topic_is_not_that_of_the_next_of_its_name(wire: Speaker) -> None:
    topic, old_id = create_topic(wire)
    wire.ask(DeleteTopicsRequest(topic_names=[topic], timeout_ms=WAIT_MS), 5)
    assert fetch_one(wire, old_id, 0, version=13).error_code == ErrorCode.UNKNOWN_TOPIC_ID
    _, new_id = create_topic(wire, topic)
    assert new_id != old_id
    assert fetch_one(wire, old_id, 0, version=13).error_code == ErrorCode.UNKNOWN_TOPIC_ID
    assert fetch_one(wire, new_id, 0, version=13).error_code == 0


# -- who


@pytest.mark.parametrize(
    ("epoch", "expected"),
    [(-1, ErrorCode.NOT_LEADER_OR_FOLLOWER), (0, ErrorCode.UNKNOWN_LEADER_EPOCH)],
)
def test_brokers_without_a_replica_get_nothing(
    wire: Speaker, epoch: int, expected: ErrorCode
) -> None:
    topic, topic_id = create_topic(wire)
    asked = fetch_request((topic, 0, 0), replica_id=5, leader_epoch=epoch)
    (part,) = fetched(wire.ask(asked, 12)).values()
    assert part.error_code == expected
    asked = fetch_request((topic_id, 0, 0), leader_epoch=epoch)
    asked.replica_state = ReplicaState(replica_id=5, replica_epoch=1)
    (part,) = fetched(wire.ask(asked, 15)).values()
    assert part.error_code == expected


def test_debugging_consumer_reads(wire: Speaker, topic: str) -> None:
    fill(wire, topic, 1)
    assert offsets(fetch_one(wire, topic, 0, replica_id=-2).records) == [0, 1, 2]


# -- zstd


@pytest.mark.parametrize("version", EVERY_VERSION)
def test_zstd_batches_of_producers_are_handed_to_every_version(wire: Speaker, version: int) -> None:
    topic = create_topic(wire)
    produce(wire, topic[0], make_batch([b"plain"]))
    produce(wire, topic[0], make_batch([b"zstd"], codec=4))
    part = fetch_one(wire, named(version, topic), 0, version=version)
    assert part.error_code == 0
    assert offsets(part.records) == [0, 1]


@pytest.mark.parametrize("version", EVERY_VERSION)
def test_topics_that_are_zstd_as_a_whole_need_version_10(wire: Speaker, version: int) -> None:
    topic = create_topic(wire, compression_type="zstd")
    produce(wire, topic[0], make_batch([b"plain"]))
    part = fetch_one(wire, named(version, topic), 0, version=version)
    if version < 10:
        assert part.error_code == ErrorCode.UNSUPPORTED_COMPRESSION_TYPE
        assert not part.records
    else:
        assert part.error_code == 0
        assert offsets(part.records) == [0]


def test_requests_of_a_connection_are_answered_in_order(
    wire: Speaker, other_wire: Speaker, topic: str
) -> None:
    other, _ = create_topic(wire)
    fill(wire, other, 1)
    requests: list[FetchRequest] = [
        fetch_request((topic, 0, 0), max_wait_ms=WAIT_MS),
        fetch_request((other, 0, 0)),
    ]
    for request in requests:
        wire.send(request, FetchResponse, version=12)
    assert not wire.ready(100)
    produce(other_wire, topic, make_batch())
    answers = [wire.receive(FetchResponse) for _ in requests]
    assert [answer.responses[0].topic for answer in answers] == [topic, other]
