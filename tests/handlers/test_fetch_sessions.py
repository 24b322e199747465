"""Fetch sessions on the wire (KIP-227); their table is tested in tests/agreement."""

from __future__ import annotations

import random
import uuid

import pytest

from plog.errors import ErrorCode
from plog.protocol.messages.fetch import FetchResponse
from plog.protocol.messages.topics import CreatePartitionsRequest, CreatePartitionsTopic
from tests.agreement.harness import run_seed
from tests.handlers.wire import (
    WAIT_MS,
    Speaker,
    create_topic,
    fetch_request,
    fetched,
    fresh_name,
    make_batch,
    produce,
)


class Session:
    """A client's side of a session, in order."""

    def __init__(self, wire: Speaker, *parts: tuple, version: int = 12, **options: int) -> None:
        self.wire, self.version, self.options = wire, version, options
        answer = wire.ask(fetch_request(*parts, session=(0, 0), **options), version)
        assert answer.error_code == 0
        self.number, self.epoch, self.first = answer.session_id, 1, fetched(answer)

    def next(self, *parts: tuple, forgotten: tuple = (), **options: int) -> dict:
        answer = self.ask(*parts, forgotten=forgotten, **options)
        assert (answer.error_code, answer.session_id) == (0, self.number)
        self.epoch += 1
        return fetched(answer)

    def ask(self, *parts: tuple, forgotten: tuple = (), **options: int) -> FetchResponse:
        request = fetch_request(
            *parts,
            session=(self.number, self.epoch),
            forgotten=forgotten,
            **{**self.options, **options},
        )
        return self.wire.ask(request, self.version, wait_ms=WAIT_MS)


@pytest.mark.parametrize("version", [7, 11, 12, 13, 18])
def test_session_tells_changes_only(wire: Speaker, version: int) -> None:
    topic = create_topic(wire, partitions=3)
    name = topic[0] if version < 13 else topic[1]
    session = Session(wire, *((name, index, 0) for index in range(3)), version=version)
    assert session.number > 0
    assert list(session.first) == [(name, index) for index in range(3)]
    assert session.next() == {}
    produce(wire, topic[0], make_batch([b"a"]), partition=1)
    changed = session.next()
    assert list(changed) == [(name, 1)]
    assert changed[name, 1].records
    # Until the client says that it has them, they come again.
    assert list(session.next()) == [(name, 1)]
    assert session.next((name, 1, 1)) == {}
    produce(wire, topic[0], make_batch([b"b"]), partition=0)
    produce(wire, topic[0], make_batch([b"c"]), partition=2)
    assert set(session.next(forgotten=((name, 0),))) == {(name, 2)}
    assert set(session.next((name, 0, 0), (name, 2, 1))) == {(name, 0)}


def test_high_watermark_is_told_when_it_moves_below_the_bytes_wanted(wire: Speaker) -> None:
    topic, _ = create_topic(wire)
    session = Session(wire, (topic, 0, 0))
    produce(wire, topic, make_batch([b"a"]))
    session.next()
    changed = session.next((topic, 0, 1))
    assert changed == {}
    produce(wire, topic, make_batch([b"b"]))
    assert session.next()[topic, 0].high_watermark == 2


@pytest.mark.parametrize(
    ("number", "epoch", "expected"),
    [
        (1, 1, ErrorCode.FETCH_SESSION_ID_NOT_FOUND),
        (0, 5, ErrorCode.FETCH_SESSION_ID_NOT_FOUND),
        (None, 2, ErrorCode.INVALID_FETCH_SESSION_EPOCH),
        (None, 7, ErrorCode.INVALID_FETCH_SESSION_EPOCH),
    ],
)
def test_errors_of_sessions_come_without_topics(
    wire: Speaker, topic: str, number: int | None, epoch: int, expected: ErrorCode
) -> None:
    session = Session(wire, (topic, 0, 0))
    asked = session.number if number is None else number
    answer = wire.ask(fetch_request((topic, 0, 0), session=(asked, epoch)), 12)
    assert (answer.error_code, answer.session_id, answer.responses) == (expected, 0, [])
    assert session.next() == {}


def test_ids_and_names_do_not_mix_on_the_wire(wire: Speaker) -> None:
    topic, topic_id = create_topic(wire)
    session = Session(wire, (topic, 0, 0))
    answer = wire.ask(fetch_request((topic_id, 0, 0), session=(session.number, 1)), 13)
    assert answer.error_code == ErrorCode.FETCH_SESSION_TOPIC_ID_ERROR
    assert answer.responses == []


def test_closed_session_is_gone(wire: Speaker, topic: str) -> None:
    session = Session(wire, (topic, 0, 0))
    closing = wire.ask(fetch_request((topic, 0, 0), session=(session.number, -1)), 12)
    assert (closing.error_code, closing.session_id) == (0, 0)
    assert list(fetched(closing)) == [(topic, 0)]
    assert session.ask().error_code == ErrorCode.FETCH_SESSION_ID_NOT_FOUND


def test_forgetting_everything_ends_the_session(wire: Speaker, topic: str) -> None:
    session = Session(wire, (topic, 0, 0))
    answer = session.ask(forgotten=((topic, 0),))
    assert (answer.error_code, answer.session_id, answer.responses) == (0, 0, [])
    assert session.ask().error_code == ErrorCode.FETCH_SESSION_ID_NOT_FOUND


def test_errors_and_the_recovery_from_them_are_told(wire: Speaker) -> None:
    topic, _ = create_topic(wire, partitions=1)
    session = Session(wire, (topic, 0, 0), (topic, 1, 0))
    assert session.first[topic, 1].error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    # An error is told each time.
    for _ in range(2):
        (missing,) = session.next().values()
        assert missing.error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    growing = CreatePartitionsTopic(name=topic, count=2, assignments=None)
    wire.ask(CreatePartitionsRequest(topics=[growing], timeout_ms=WAIT_MS, validate_only=False), 3)
    recovered = session.next()
    assert [(key, part.error_code) for key, part in recovered.items()] == [((topic, 1), 0)]
    assert session.next() == {}


def test_unknown_id_in_a_session_is_told_each_time(wire: Speaker) -> None:
    _, topic_id = create_topic(wire)
    unknown = uuid.uuid4()
    session = Session(wire, (topic_id, 0, 0), (unknown, 0, 0), version=13)
    for _ in range(2):
        assert [(key, part.error_code) for key, part in session.next().items()] == [
            ((unknown, 0), ErrorCode.UNKNOWN_TOPIC_ID)
        ]


def test_every_partition_has_its_turn_under_a_small_budget(wire: Speaker) -> None:
    topic, _ = create_topic(wire, partitions=4)
    for index in range(4):
        for _ in range(3):
            produce(wire, topic, make_batch([b"x" * 100]), partition=index)
    session = Session(wire, *((topic, index, 0) for index in range(4)), max_bytes=1)
    turns = [index for (_, index), part in session.first.items() if part.records]
    for _ in range(7):
        answer = session.next((topic, turns[-1], turns.count(turns[-1])))
        turns += [index for (_, index), part in answer.items() if part.records]
    assert turns == [0, 1, 2, 3, 0, 1, 2, 3]


def test_wait_in_a_session_ends_with_an_append(
    wire: Speaker, other_wire: Speaker, topic: str
) -> None:
    session = Session(wire, (topic, 0, 0))
    request = fetch_request(session=(session.number, 1), max_wait_ms=WAIT_MS)
    wire.send(request, FetchResponse, version=12, wait_ms=WAIT_MS)
    assert not wire.ready(100)
    produce(other_wire, topic, make_batch([b"a"]))
    assert list(fetched(wire.receive(FetchResponse))) == [(topic, 0)]


def test_sessions_follow_random_appends(wire: Speaker) -> None:
    chance = random.Random(run_seed())
    topic, _ = create_topic(wire, fresh_name(), partitions=5)
    session = Session(wire, *((topic, index, 0) for index in range(5)), max_bytes=400)
    ends, read = [0] * 5, [0] * 5
    for _ in range(120):
        for _ in range(chance.randrange(3)):
            index = chance.randrange(5)
            produce(wire, topic, make_batch([b"x" * chance.randrange(200)]), partition=index)
            ends[index] += 1
        changed = {index for index in range(5) if chance.random() < 0.5}
        answer = session.next(*((topic, index, read[index]) for index in changed))
        for (_, index), part in answer.items():
            assert (part.error_code, part.high_watermark) == (0, ends[index])
            if part.records and index in changed:
                read[index] += 1
    while read != ends:
        before = list(read)
        answer = session.next(*((topic, index, read[index]) for index in range(5)))
        for (_, index), part in answer.items():
            read[index] += bool(part.records)
        assert read != before
