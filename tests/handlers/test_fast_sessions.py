"""Fetch sessions (KIP-227) on the fast path: as the handlers keep them, request by request."""

from __future__ import annotations

import random

import pytest

from plog.errors import ErrorCode
from plog.protocol.messages.fetch import FetchResponse
from plog.protocol.messages.topics import DeleteTopicsRequest
from tests.agreement.harness import run_seed
from tests.handlers.running import (
    Running,
    decoded,
    records_of,
)
from tests.handlers.twins import (
    GONE,
    IDS_SINCE,
    Twins,
    TwinSession,
)
from tests.handlers.wire import (
    WAIT_MS,
    create_topic,
    fetch_request,
    make_batch,
    produce_request,
)


@pytest.mark.parametrize("version", range(7, 18))
def test_session_is_answered_alike_in_every_version(twins: Twins, version: int) -> None:
    one, other = twins.create_topic(), twins.create_topic()
    parts = [(one, 0, 0), (other, 2, 0), (one, 1, 0), (one, 2, 0)]
    session = TwinSession(twins, *parts, version=version)
    assert len(session.first) == 4 if version < IDS_SINCE else session.first
    assert session.next() == {}
    for index in (1, 2):
        twins.ask(produce_request([(one, index, make_batch([b"a", b"b"]))]), 9)
    assert session.next()
    assert session.next((one, 1, 2))
    assert session.next(forgotten=((one, 2),)) == {}
    twins.ask(produce_request([(other, 2, make_batch([b"c"]))], acks=1), 9)
    assert session.next((one, 2, 1), max_bytes=1)
    assert session.next((one, 2, 2), (other, 2, 1)) == {}


def test_session_goes_on_by_whichever_path_its_requests_take(twins: Twins) -> None:
    topic = twins.create_topic()
    session = TwinSession(twins, *((topic, index, 0) for index in range(3)))
    twins.ask(produce_request([(topic, 1, make_batch())]), 9)
    for epoch in (5, -1, 5, 0):  # an epoch that is not the leader's yet, every other time
        asked = {} if epoch == -1 else {"leader_epoch": epoch}
        told = session.next((topic, 0, 0), fast=epoch <= 0, **asked)
        code = ErrorCode.UNKNOWN_LEADER_EPOCH if epoch > 0 else ErrorCode.NONE
        assert {part.error_code for part in told.values()} <= {code, ErrorCode.NONE}
        # It is the session's: a request that says nothing of the partition meets it again.
        session.next(fast=epoch <= 0)


def test_wrong_epoch_of_a_session_leaves_it_as_it_was(twins: Twins) -> None:
    topic = twins.create_topic()
    session = TwinSession(twins, (topic, 0, 0))
    session.epoch = 7
    session.next()
    session.epoch = 1
    assert session.next() == {}


def test_session_ends_when_all_is_forgotten(twins: Twins) -> None:
    topic = twins.create_topic()
    session = TwinSession(twins, (topic, 0, 0))
    assert session.next(forgotten=((topic, 0),)) == {}
    assert session.next() == {}  # it is unknown now


def test_topic_that_goes_from_under_a_session_is_told_by_the_handler(twins: Twins) -> None:
    topic, gone = twins.create_topic(), twins.create_topic()
    session = TwinSession(twins, (topic, 0, 0), (gone, 0, 0))
    for one in twins.both:
        one.wire.ask(DeleteTopicsRequest(topic_names=[gone], timeout_ms=WAIT_MS), 3)
    told = session.next(fast=False)
    assert told[gone, 0].error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    assert session.next(forgotten=((gone, 0),)) == {}


def test_random_sessions_are_answered_alike(twins: Twins) -> None:
    draw = random.Random(run_seed())
    topics = [twins.create_topic(segment_bytes=4096) for _ in range(3)]
    every = [(topic, index) for topic in topics for index in range(3)]
    sessions = [
        TwinSession(twins, *((*at, 0) for at in draw.sample(every, 5)), version=version)
        for version in (7, 11, 12)
    ]
    ends = dict.fromkeys(every, 0)
    for _ in range(200):
        for at in draw.sample(every, draw.randrange(3)):
            batch = make_batch([b"v" * draw.randint(0, 300)])
            twins.fast.ask(produce_request([(*at, batch)]), 9)
            twins.plain.ask(produce_request([(*at, batch)]), 9)
            ends[at] += 1
        before = twins.fast.fast_requests
        draw.choice(sessions).next(
            *((*at, draw.randint(0, ends[at])) for at in draw.sample(every, draw.randrange(3))),
            forgotten=tuple(draw.sample(every, draw.randrange(2))),
            fast=True,
            max_bytes=draw.choice([1, 600, 1 << 20]),
            partition_max_bytes=draw.choice([0, 500, 1 << 20]),
        )
        assert twins.fast.fast_requests == before + 1


def test_session_waits_and_is_woken(fast: Running) -> None:
    topic, _ = create_topic(fast.wire)
    opened = decoded(FetchResponse, 12, fast.ask(fetch_request((topic, 0, 0), session=(0, 0)), 12))
    for epoch in (1, 2, 3):
        fast.send(fetch_request(session=(opened.session_id, epoch), max_wait_ms=WAIT_MS), 12)
        if epoch > 1:  # what it has been told of and did not take comes at once
            assert records_of(fast.receive()) > 61
            continue
        fast.until_waiting()
        fast.wire.ask(produce_request([(topic, 0, make_batch())]), 9)
        assert records_of(fast.receive()) > 61


def test_session_that_is_overtaken_while_it_waits_says_so(fast: Running) -> None:
    topic, _ = create_topic(fast.wire)
    opened = decoded(FetchResponse, 12, fast.ask(fetch_request((topic, 0, 0), session=(0, 0)), 12))
    fast.send(fetch_request(session=(opened.session_id, 1), max_wait_ms=WAIT_MS), 12)
    fast.until_waiting()
    taken = fast.wire.ask(fetch_request(session=(opened.session_id, 2)), 12)
    assert (taken.error_code, taken.session_id) == (0, opened.session_id)
    fast.wire.ask(produce_request([(topic, 0, make_batch())]), 9)
    overtaken = decoded(FetchResponse, 12, fast.receive())
    assert overtaken.error_code == ErrorCode.INVALID_FETCH_SESSION_EPOCH
    assert overtaken.responses == []


def test_session_waits_on_when_its_topic_becomes_unusual(fast: Running) -> None:
    topic, _ = create_topic(fast.wire)
    opened = decoded(FetchResponse, 12, fast.ask(fetch_request((topic, 0, 0), session=(0, 0)), 12))
    fast.send(fetch_request(session=(opened.session_id, 1), max_wait_ms=WAIT_MS), 12)
    fast.until_waiting()
    fast.wire.ask(DeleteTopicsRequest(topic_names=[topic], timeout_ms=WAIT_MS), 3)
    told = decoded(FetchResponse, 12, fast.receive())
    assert (told.error_code, told.session_id) == (0, opened.session_id)
    assert told.responses[0].partitions[0].error_code in GONE
    # It was counted once: the next request is the session's second.
    again = decoded(FetchResponse, 12, fast.ask(fetch_request(session=(opened.session_id, 2)), 12))
    assert (again.error_code, again.session_id) == (0, opened.session_id)
