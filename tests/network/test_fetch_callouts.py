"""Python is asked about the unusual partitions of a Fetch: what it hears, and what it may say."""

from __future__ import annotations

import gc
import struct
import uuid

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from plog._native.callout import LeaderEndpoint
from plog._native.fetch_callout import Found
from plog._native.reactor import CALLOUT, CLOSED
from plog.errors import ErrorCode
from plog.protocol import codec, framing
from plog.protocol.messages.fetch import (
    AbortedTransaction,
    EpochEndOffset,
    FetchableTopicResponse,
    FetchPartition,
    FetchRequest,
    FetchResponse,
    FetchTopic,
    LeaderIdAndEpoch,
    NodeEndpoint,
    PartitionData,
    ReplicaState,
)
from plog.types import ZERO_UUID
from tests.network.asking import Asking, asking

LATEST = 17
VERSIONS = range(4, LATEST + 2)
IDS_SINCE, TAGS_SINCE, EPOCHS_SINCE, STATE_SINCE, LEADERS_SINCE = 13, 12, 9, 15, 16

TEXTS = st.text(max_size=20)
INT32 = st.integers(-(2**31), 2**31 - 1)
INT64 = st.integers(-(2**63), 2**63 - 1)
EPOCHS = st.integers(-1, 2**31 - 1)
PARTS = st.builds(
    FetchPartition,
    partition=INT32,
    current_leader_epoch=EPOCHS,
    fetch_offset=INT64,
    last_fetched_epoch=EPOCHS,
    partition_max_bytes=INT32,
)
TOPICS = st.lists(
    st.builds(
        FetchTopic,
        topic=TEXTS,
        topic_id=st.uuids(),
        partitions=st.lists(PARTS, max_size=4, unique_by=lambda part: part.partition),
    ),
    max_size=4,
    unique_by=(lambda topic: topic.topic, lambda topic: topic.topic_id),
)
FOUND = st.builds(
    Found,
    error=st.just(0) | st.integers(-1, 130),
    records=st.sampled_from([b"", None]),
    high_watermark=INT64,
    last_stable_offset=INT64,
    log_start_offset=INT64,
    aborted=st.none() | st.lists(st.tuples(INT64, INT64), max_size=3),
    diverging_epoch=EPOCHS,
    diverging_end=INT64,
    leader_id=st.just(-1) | INT32,
    leader_epoch=st.just(-1) | INT32,
)
ENDPOINTS = st.lists(
    st.builds(LeaderEndpoint, node_id=INT32, host=TEXTS, port=INT32, rack=st.none() | TEXTS),
    max_size=3,
)


def expected(found: Found, partition: int, version: int) -> PartitionData:
    data = PartitionData(
        partition_index=partition,
        error_code=found.error,
        high_watermark=found.high_watermark,
        last_stable_offset=found.last_stable_offset,
        log_start_offset=found.log_start_offset,
        aborted_transactions=None
        if found.aborted is None
        else [AbortedTransaction(producer_id=who, first_offset=at) for who, at in found.aborted],
        records=found.records,
    )
    if version >= TAGS_SINCE:
        data.current_leader = LeaderIdAndEpoch(
            leader_id=found.leader_id, leader_epoch=found.leader_epoch
        )
        if found.diverging_epoch != -1:
            data.diverging_epoch = EpochEndOffset(
                epoch=found.diverging_epoch, end_offset=found.diverging_end
            )
    return data


def in_form(topics: list[FetchTopic], version: int) -> list[FetchTopic]:
    """Return the topics as a version names them: by name, or by id."""
    for topic in topics:
        if version >= IDS_SINCE:
            topic.topic = ""
        else:
            topic.topic_id = ZERO_UUID
        for part in topic.partitions:
            if version < EPOCHS_SINCE:
                part.current_leader_epoch = -1
            if version < TAGS_SINCE:
                part.last_fetched_epoch = -1
    return topics


@given(
    version=st.sampled_from(VERSIONS),
    topics=TOPICS,
    replica=st.just(-1) | INT32,
    isolation=st.sampled_from([0, 1]),
    max_bytes=INT32,
    client=st.none() | TEXTS,
    rack=TEXTS,
    endpoints=ENDPOINTS,
    data=st.data(),
)
@settings(max_examples=150, deadline=None)
def test_whatever_is_asked_and_found_is_what_both_sides_say(
    version: int,
    topics: list[FetchTopic],
    replica: int,
    isolation: int,
    max_bytes: int,
    client: str | None,
    rack: str,
    endpoints: list[LeaderEndpoint],
    data: st.DataObject,
) -> None:
    topics = in_form(topics, version)
    request = FetchRequest(
        replica_id=-1 if version >= STATE_SINCE else replica,
        replica_state=ReplicaState(replica_id=replica if version >= STATE_SINCE else -1),
        max_wait_ms=0,
        min_bytes=1,
        max_bytes=max_bytes,
        isolation_level=isolation,
        topics=topics,
        rack_id=rack if version >= 11 else "",
    )
    sent = [(topic, part) for topic in topics for part in topic.partitions]
    found = [data.draw(FOUND) for _ in sent]
    with asking() as one:
        one.send(request, version, client)
        if sent:
            callout = one.callout()
            assert (callout.version, callout.client_id) == (version, client)
            assert callout.replica_id == replica
            assert callout.read_committed is (isolation == 1)
            assert callout.is_first
            assert [tuple(each) for each in callout.asked] == [
                (
                    topic.topic,
                    topic.topic_id.bytes,
                    part.partition,
                    part.fetch_offset,
                    part.partition_max_bytes,
                    part.current_leader_epoch,
                    part.last_fetched_epoch,
                    part.log_start_offset,
                    0,
                    False,
                )
                for topic, part in sent
            ]
            callout.answer(found, endpoints)
            del callout
        rest = iter(found)
        response = FetchResponse(
            error_code=0,
            responses=[
                FetchableTopicResponse(
                    topic=topic.topic,
                    topic_id=topic.topic_id,
                    partitions=[
                        expected(next(rest), part.partition, version) for part in topic.partitions
                    ],
                )
                for topic in topics
                if topic.partitions
            ],
            node_endpoints=[NodeEndpoint(**each._asdict()) for each in endpoints]
            if sent and version >= LEADERS_SINCE
            else [],
        )
        head = framing.encode_response_header(1, version, 1)
        assert one.client.answer() == head + codec.encode(response, version)


def fetch(*parts: tuple[str, int, int], **options: int) -> FetchRequest:
    return FetchRequest(
        max_wait_ms=0,
        min_bytes=0,
        max_bytes=1 << 20,
        topics=[
            FetchTopic(
                topic=name,
                partitions=[
                    FetchPartition(partition=index, fetch_offset=offset, partition_max_bytes=100)
                ],
            )
            for name, index, offset in parts
        ],
        **options,
    )


REFUSED = Found(3, b"", -1, -1, -1, None)
NAMES = 12
"""The newest version that goes by names."""


def outcomes(one: Asking, version: int = NAMES) -> list[tuple[str, int, int]]:
    response = one.response(FetchResponse, version)
    assert response.error_code == 0
    return [
        (topic.topic, part.partition_index, part.error_code)
        for topic in response.responses
        for part in topic.partitions
    ]


def test_partition_that_is_named_twice_is_asked_about_once_as_it_was_named_last() -> None:
    with asking() as one:
        one.send(fetch(("t", 0, 5), ("u", 1, 6), ("t", 0, 7)), NAMES)
        callout = one.callout()
        assert [(each.topic, each.partition, each.offset) for each in callout.asked] == [
            ("t", 0, 7),
            ("u", 1, 6),
        ]
        callout.answer([REFUSED, REFUSED])
        del callout
        assert outcomes(one) == [("t", 0, 3), ("u", 1, 3)]


@pytest.mark.parametrize("topics", [1, 2])
def test_name_of_many_unknown_partitions_is_kept_once(topics: int) -> None:
    name = "n" * 32_767
    parts = [(name, number, 0) for number in range(3000)]
    request = fetch(*parts[: topics - 1])
    request.topics.append(
        FetchTopic(
            topic=name,
            partitions=[
                FetchPartition(partition=number, fetch_offset=0, partition_max_bytes=1)
                for number in range(1, 3000)
            ],
        )
    )
    with asking() as one:
        one.send(request, NAMES)
        callout = one.callout()
        assert one.reactor.stats().queued_bytes < 4 << 20
        assert len({id(asked.topic) for asked in callout.asked}) == topics
        callout.answer([REFUSED] * len(callout.asked))
        del callout
        assert len(outcomes(one)) == 2998 + topics


def test_memory_of_aborted_transactions_is_counted_while_the_response_waits() -> None:
    many = [(1, number) for number in range(100_000)]
    with asking() as one:
        one.send(fetch(("t", 0, 5)), NAMES)
        one.callout().answer([Found(0, b"", 9, 9, 0, many)])
        response = one.response(FetchResponse, NAMES)
        assert len(response.responses[0].partitions[0].aborted_transactions) == len(many)


def test_response_counts_as_one_without_errors_only_if_it_has_none() -> None:
    with asking() as one:
        one.send(fetch(("t", 0, 5), ("u", 0, 5)), NAMES)
        one.callout().answer([REFUSED, Found(0, b"", 9, 9, 0, None)])
        assert outcomes(one) == [("t", 0, 3), ("u", 0, 0)]
        one.send(fetch(("t", 0, 5)), NAMES)
        one.callout().answer([Found(0, b"", 9, 9, 0, None)])
        assert outcomes(one) == [("t", 0, 0)]
        assert one.reactor.stats().fetch_responses == {0: 1, 3: 1}


def test_session_names_errors_and_changes_only() -> None:
    """Each response names an error; a partition without changes is named once."""
    with asking() as one:
        one.send(fetch(("t", 0, 5), ("u", 1, 6), session_epoch=0), NAMES)
        fine = Found(0, b"", 9, 9, 0, None)
        one.callout().answer([REFUSED, fine])
        session = one.response(FetchResponse, NAMES).session_id
        assert session > 0
        one.send(fetch(session_id=session, session_epoch=1), NAMES)
        one.callout().answer([REFUSED, fine])
        assert outcomes(one) == [("t", 0, 3)]
        one.send(fetch(session_id=session, session_epoch=2), NAMES)
        one.callout().answer([fine, fine])
        assert outcomes(one) == [("t", 0, 0)]


@pytest.mark.parametrize(
    ("session", "epoch", "code"),
    [
        (77, 3, ErrorCode.FETCH_SESSION_ID_NOT_FOUND),
        (None, 5, ErrorCode.INVALID_FETCH_SESSION_EPOCH),
    ],
)
def test_session_that_there_is_not_is_refused_without_python(
    session: int | None, epoch: int, code: int
) -> None:
    with asking() as one:
        one.send(fetch(("t", 0, 5), session_epoch=0), NAMES)
        one.callout().answer([REFUSED])
        known = one.response(FetchResponse, NAMES).session_id
        one.send(fetch(session_id=session or known, session_epoch=epoch), NAMES)
        response = one.response(FetchResponse, NAMES)
        assert (response.error_code, response.session_id, response.responses) == (code, 0, [])


@pytest.mark.parametrize("how", ["dropped", "given up"])
def test_callout_without_an_answer_is_an_error_and_the_connection_goes_on(how: str) -> None:
    with asking() as one:
        for _ in range(2):
            one.send(fetch(("t", 0, 5)), NAMES)
            callout = one.callout()
            if how == "given up":
                callout.give_up()
                with pytest.raises(RuntimeError):
                    callout.answer([REFUSED])
            del callout
            gc.collect()
            assert outcomes(one) == [("t", 0, ErrorCode.UNKNOWN_SERVER_ERROR)]


def test_what_a_response_cannot_say_is_refused_before_anything_is_decided() -> None:
    with asking() as one:
        one.send(fetch(("t", 0, 5), ("u", 0, 5)), NAMES)
        callout = one.callout()
        with pytest.raises(ValueError, match="1 outcomes of 2 partitions"):
            callout.answer([REFUSED])
        with pytest.raises(ValueError, match="error 500"):
            callout.answer([REFUSED, REFUSED._replace(error=500)])
        with pytest.raises(OverflowError):
            callout.answer([REFUSED, REFUSED._replace(leader_id=1 << 40)])
        with pytest.raises(TypeError):
            callout.answer([REFUSED, REFUSED._replace(records=b"bytes")])
        callout.answer([REFUSED, REFUSED])
        del callout
        assert outcomes(one) == [("t", 0, 3), ("u", 0, 3)]


def test_answer_for_a_client_that_has_gone_is_forgotten() -> None:
    with asking() as one:
        one.send(fetch(("t", 0, 5)), NAMES)
        callout = one.callout()
        one.client.reset()
        one.event(CLOSED)
        callout.answer([REFUSED])
        del callout


def test_answer_after_the_reactor_has_stopped_is_forgotten() -> None:
    with asking() as one:
        one.send(fetch(("t", 0, 5)), NAMES)
        callout = one.callout()
        one.reactor.stop()
        callout.answer([REFUSED])
        del callout


def test_response_from_elsewhere_is_ignored_while_python_decides() -> None:
    with asking() as one:
        one.send(fetch(("t", 0, 5)), NAMES)
        event = one.event(CALLOUT)
        one.reactor.respond(event.connection_id, [b"unasked"])
        one.reactor.skip(event.connection_id)
        assert event.callout is not None
        event.callout.answer([REFUSED])
        del event
        assert outcomes(one) == [("t", 0, 3)]


HEAD = struct.pack(">iiibii", 0, 0, 100, 0, 0, -1)
"""From max_wait_ms to session_epoch."""
MALFORMED = {
    "cut": (codec.encode(fetch(("t", 0, 5)), 15)[:-12], "a partition is cut short"),
    "no topics": (HEAD + b"\0", "a list is cut short, or is null"),
    "no rack": (HEAD + b"\1\1\0\0", "the rack is cut short, or is no text"),
    "tags that do not ascend": (HEAD + b"\1\1\1\2\5\0\5\0", "its tagged fields are malformed"),
    "a short replica state": (HEAD + b"\1\1\1\1\1\4\0\0\0\0", "its tagged fields are malformed"),
}


@pytest.mark.parametrize("what", MALFORMED)
def test_malformed_request_closes_the_connection_after_the_answers_before_it(what: str) -> None:
    body, fault = MALFORMED[what]
    with asking() as one:
        one.send(fetch(("t", 0, 5)), NAMES)
        one.send_body(1, body, 15)
        one.callout().answer([REFUSED])
        assert outcomes(one) == [("t", 0, 3)]
        assert one.client.is_closed_by_server()
        closed = one.event(CLOSED)
        assert closed.reason == f"FetchRequest v15: {fault}"
        assert closed.abnormal


def test_response_has_the_topic_ids_of_the_request() -> None:
    topic = uuid.uuid4()
    request = fetch(("", 4, 5))
    request.topics[0].topic_id = topic
    with asking() as one:
        one.send(request, LATEST)
        one.callout().answer([REFUSED._replace(error=100, aborted=[])])
        (said,) = one.response(FetchResponse, LATEST).responses
        assert said.topic_id == topic
        assert said.partitions[0].aborted_transactions == []
