"""Fetch sessions: the table by itself, against a model, and on the wire (KIP-227)."""

from __future__ import annotations

import random
import uuid
from dataclasses import dataclass, field

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from plog.errors import (
    ErrorCode,
    FetchSessionIdNotFound,
    FetchSessionTopicIdError,
    InvalidFetchSessionEpoch,
    KafkaError,
)
from plog.handlers.fetch_sessions import (
    EVICT_AFTER_MS,
    MAX_EPOCH,
    Fetch,
    FetchedPartition,
    FetchSessions,
    PartitionKey,
    Partitions,
    must_tell,
)
from plog.protocol.messages.fetch import FetchResponse
from plog.protocol.messages.topics import CreatePartitionsRequest, CreatePartitionsTopic
from plog.types import ZERO_UUID
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

ONE, TWO, THREE = (PartitionKey("t", ZERO_UUID, index) for index in range(3))


def asking(*keys: PartitionKey, offset: int = 0) -> Partitions:
    return Partitions((key, FetchedPartition(offset, 1000)) for key in keys)


def begin(
    table: FetchSessions,
    session: tuple[int, int],
    asked: Partitions | None = None,
    forgotten: tuple[PartitionKey, ...] = (),
    *,
    by_id: bool = False,
    now_ms: int = 0,
) -> Fetch:
    return table.begin(
        *session, asked or Partitions(), forgotten, uses_topic_ids=by_id, now_ms=now_ms
    )


def create(table: FetchSessions, *keys: PartitionKey, now_ms: int = 0) -> int:
    session = begin(table, (0, 0), asking(*keys), now_ms=now_ms).session
    return 0 if session is None else session.session_id


# -- the table


def test_full_request_opens_a_session() -> None:
    table = FetchSessions(10)
    plan = begin(table, (0, 0), asking(ONE, TWO))
    assert plan.session is not None
    assert plan.session.session_id > 0
    assert (plan.session.epoch, plan.is_full, list(plan.partitions)) == (1, True, [ONE, TWO])
    assert len(table) == 1


@pytest.mark.parametrize(
    ("session", "asked"), [((0, -1), asking(ONE)), ((5, -1), asking(ONE)), ((0, 0), Partitions())]
)
def test_request_outside_sessions_opens_none(session: tuple[int, int], asked: Partitions) -> None:
    table = FetchSessions(10)
    plan = begin(table, session, asked)
    assert (plan.session, plan.is_full, plan.partitions) == (None, True, asked)
    assert len(table) == 0


def test_incremental_request_fetches_all_that_is_remembered() -> None:
    table = FetchSessions(10)
    number = create(table, ONE, TWO)
    plan = begin(table, (number, 1))
    assert (plan.is_full, list(plan.partitions)) == (False, [ONE, TWO])
    plan = begin(table, (number, 2), asking(TWO, THREE, offset=9), (ONE,))
    assert {key: part.fetch_offset for key, part in plan.partitions.items()} == {TWO: 9, THREE: 9}


def test_partition_asked_for_and_forgotten_at_once_is_forgotten() -> None:
    table = FetchSessions(10)
    number = create(table, ONE, TWO)
    assert list(begin(table, (number, 1), asking(ONE), (ONE,)).partitions) == [TWO]


def test_what_the_client_was_told_outlives_what_it_asks() -> None:
    table = FetchSessions(10)
    number = create(table, ONE)
    told = begin(table, (number, 1)).partitions[ONE]
    told.told_high_watermark, told.told_log_start_offset = 50, 3
    asked = Partitions({ONE: FetchedPartition(7, 8, 9, 10)})
    assert begin(table, (number, 2), asked).partitions[ONE] == FetchedPartition(7, 8, 9, 10, 50, 3)


def test_session_of_which_everything_is_forgotten_ends() -> None:
    table = FetchSessions(10)
    number = create(table, ONE)
    plan = begin(table, (number, 1), None, (ONE,))
    assert (plan.session, plan.partitions, len(table)) == (None, Partitions(), 0)


@pytest.mark.parametrize("epoch", [0, -1])
def test_full_request_ends_the_session_it_names(epoch: int) -> None:
    table = FetchSessions(10)
    number = create(table, ONE)
    plan = begin(table, (number, epoch), asking(ONE))
    assert (plan.session is None) == (epoch == -1)
    with pytest.raises(FetchSessionIdNotFound):
        begin(table, (number, 1))


@pytest.mark.parametrize("epoch", [2, 3, 100, -2, MAX_EPOCH])
def test_wrong_epoch_is_refused_and_changes_nothing(epoch: int) -> None:
    table = FetchSessions(10)
    number = create(table, ONE)
    with pytest.raises(InvalidFetchSessionEpoch):
        begin(table, (number, epoch), asking(TWO), (ONE,))
    assert list(begin(table, (number, 1)).partitions) == [ONE]


def test_epoch_wraps_to_1() -> None:
    table = FetchSessions(10)
    number = create(table, ONE)
    session = begin(table, (number, 1)).session
    assert session is not None
    session.epoch = MAX_EPOCH
    begin(table, (number, MAX_EPOCH))
    assert session.epoch == 1
    begin(table, (number, 1))


def test_names_and_ids_do_not_mix_in_a_session() -> None:
    table = FetchSessions(10)
    number = create(table, ONE)
    with pytest.raises(FetchSessionTopicIdError):
        begin(table, (number, 1), by_id=True)
    begin(table, (number, 1))


def test_full_table_refuses_while_its_sessions_are_young() -> None:
    table = FetchSessions(2)
    assert create(table, ONE)
    assert create(table, ONE)
    assert create(table, ONE, TWO, THREE, now_ms=EVICT_AFTER_MS) == 0
    assert len(table) == 2


def test_session_unused_for_long_gives_way() -> None:
    table = FetchSessions(2)
    first, second = create(table, ONE, TWO), create(table, ONE, TWO)
    begin(table, (first, 1), now_ms=1)
    assert create(table, ONE, now_ms=EVICT_AFTER_MS + 1)
    begin(table, (first, 2), now_ms=EVICT_AFTER_MS + 1)
    with pytest.raises(FetchSessionIdNotFound):
        begin(table, (second, 1))


def test_old_small_session_gives_way_to_a_larger_one_only() -> None:
    table = FetchSessions(2)
    small, large = create(table, ONE), create(table, ONE, TWO, THREE)
    now_ms = EVICT_AFTER_MS + 1
    begin(table, (small, 1), now_ms=now_ms)
    begin(table, (large, 1), now_ms=now_ms)
    assert create(table, ONE, now_ms=now_ms) == 0
    assert create(table, ONE, TWO, now_ms=now_ms)
    with pytest.raises(FetchSessionIdNotFound):
        begin(table, (small, 2))
    begin(table, (large, 2), now_ms=now_ms)


def test_table_without_slots_opens_no_session() -> None:
    assert create(FetchSessions(0), ONE, now_ms=10 * EVICT_AFTER_MS) == 0


def test_rotation_puts_the_answered_last() -> None:
    session = begin(FetchSessions(1), (0, 0), asking(ONE, TWO, THREE)).session
    assert session is not None
    session.rotate([ONE, PartitionKey("gone", ZERO_UUID, 0)])
    assert list(session.partitions) == [TWO, THREE, ONE]


# -- what is told


QUIET = {"has_error": False, "has_records": False, "diverging": False}


@pytest.mark.parametrize(
    ("change", "told"),
    [
        ({}, False),
        ({"has_error": True, "high_watermark": -1, "log_start_offset": -1}, True),
        ({"has_records": True}, True),
        ({"diverging": True}, True),
        ({"high_watermark": 11}, True),
        ({"log_start_offset": 4}, True),
    ],
)
def test_partition_is_told_when_something_has_changed(change: dict[str, int], told: bool) -> None:
    partition = FetchedPartition(0, 1)
    assert must_tell(partition, **QUIET, high_watermark=10, log_start_offset=3)
    facts = {**QUIET, "high_watermark": 10, "log_start_offset": 3, **change}
    assert must_tell(partition, **facts) is told
    # Recovery from an error is told, even to the very numbers of before.
    again = must_tell(partition, **QUIET, high_watermark=10, log_start_offset=3)
    assert again is (told and not ({"has_records", "diverging"} & set(change)))


# -- against a model


@dataclass
class ModelSession:
    epoch: int
    by_id: bool
    partitions: dict[PartitionKey, int]
    created_ms: int
    used_ms: int
    order: int = field(default=0)


class Model:
    """The same rules, by looking at everything each time."""

    def __init__(self, slots: int) -> None:
        self.slots = slots
        self.sessions: dict[int, ModelSession] = {}
        self.turn = 0

    def begin(self, number, epoch, asked, forgotten, by_id, now_ms, opened):
        """Return an error's name or the partitions' offsets; `opened` is the table's new id."""
        self.turn += 1
        if epoch in (0, -1):
            self.sessions.pop(number, None)
            may_open = epoch == 0 and bool(asked)
            if may_open and len(self.sessions) >= self.slots:
                may_open = self.evict(len(asked), now_ms)
            assert bool(opened) == may_open
            if may_open:
                self.sessions[opened] = ModelSession(
                    1, by_id, dict(asked), now_ms, now_ms, self.turn
                )
            return dict(asked)
        session = self.sessions.get(number)
        if session is None:
            return FetchSessionIdNotFound
        if session.epoch != epoch:
            return InvalidFetchSessionEpoch
        if session.by_id != by_id:
            return FetchSessionTopicIdError
        session.partitions.update(asked)
        for key in forgotten:
            session.partitions.pop(key, None)
        if not session.partitions:
            del self.sessions[number]
            return {}
        session.epoch += 1
        session.used_ms, session.order = now_ms, self.turn
        return session.partitions

    def evict(self, size: int, now_ms: int) -> bool:
        by_use = sorted(self.sessions.items(), key=lambda item: item[1].order)
        stale = [n for n, s in by_use[:1] if now_ms - s.used_ms > EVICT_AFTER_MS]
        smaller = sorted(
            (len(s.partitions), s.order, n)
            for n, s in by_use
            if now_ms - s.created_ms > EVICT_AFTER_MS and len(s.partitions) < size
        )
        victims = stale or [n for *_, n in smaller[:1]]
        for number in victims:
            del self.sessions[number]
        return bool(victims)


KEYS = [PartitionKey("t", ZERO_UUID, index) for index in range(4)]
STEPS = st.lists(
    st.tuples(
        st.integers(0, 4),  # which session, by age; 4: one that there is not
        st.sampled_from(["next", "next", "next", "wrong", "full", "final"]),
        st.dictionaries(st.sampled_from(KEYS), st.integers(0, 99)),
        st.lists(st.sampled_from(KEYS), max_size=2),
        st.sampled_from([False] * 9 + [True]),
        st.sampled_from([0, 1, 1000, EVICT_AFTER_MS // 2, EVICT_AFTER_MS + 1]),
    ),
    max_size=40,
)


@settings(max_examples=150, deadline=None)
@given(st.integers(0, 3), STEPS)
def test_table_behaves_as_the_model(slots: int, steps: list[tuple]) -> None:
    table, model = FetchSessions(slots, seed=1), Model(slots)
    now_ms = 0
    for which, kind, offsets, forgotten, by_id, passed_ms in steps:
        now_ms += passed_ms
        numbers = list(model.sessions)
        number = numbers[which] if which < len(numbers) else 0
        known = model.sessions.get(number)
        right = 1 if known is None else known.epoch
        epoch = {"next": right, "wrong": right + 1, "full": 0, "final": -1}[kind]
        asked = Partitions((key, FetchedPartition(at, 10)) for key, at in offsets.items())
        found: object
        opened = 0
        try:
            plan = table.begin(number, epoch, asked, forgotten, uses_topic_ids=by_id, now_ms=now_ms)
            found = {key: part.fetch_offset for key, part in plan.partitions.items()}
            if plan.is_full and plan.session is not None:
                opened = plan.session.session_id
        except KafkaError as refusal:
            found = type(refusal)
        assert found == model.begin(number, epoch, offsets, forgotten, by_id, now_ms, opened)
        assert len(table) == len(model.sessions) <= slots


# -- on the wire


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


@pytest.mark.parametrize("version", [7, 11, 12, 13, 17])
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
    seed = random.randrange(2**32)
    print(f"seed {seed}")
    chance = random.Random(seed)
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
