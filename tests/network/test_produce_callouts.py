"""Python is asked about the unusual partitions of a Produce: what it hears, and what it may say."""

from __future__ import annotations

import gc
import select
import struct

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from plog._native.callout import LeaderEndpoint
from plog._native.log_flush import CommitThread
from plog._native.partition_log import APPENDED, Appended, PartitionLog
from plog._native.produce_callout import Refusal, Written
from plog._native.reactor import CALLOUT, CLOSED
from plog._native.served import ServedPartitions
from plog._native.topic_traffic import TopicTraffic
from plog._native.work_queue import WorkThread
from plog.errors import ErrorCode
from plog.protocol import codec, framing
from plog.protocol.messages.produce import (
    BatchIndexAndErrorMessage,
    LeaderIdAndEpoch,
    NodeEndpoint,
    PartitionProduceData,
    PartitionProduceResponse,
    ProduceRequest,
    ProduceResponse,
    TopicProduceData,
    TopicProduceResponse,
)
from tests.fuzz.request_targets import memory_log
from tests.handlers.wire import make_batch
from tests.network.asking import Asking, asking
from tests.network.server import WAIT_S

LATEST, FLEXIBLE_SINCE = 12, 9
VERSIONS = range(3, LATEST + 1)
RECORDS = b"these are no records" * 5


def produce(*parts: tuple[str, int, bytes | None], acks: int = 1) -> ProduceRequest:
    topics = [
        TopicProduceData(
            name=name, partition_data=[PartitionProduceData(index=index, records=data)]
        )
        for name, index, data in parts
    ]
    return ProduceRequest(acks=acks, timeout_ms=1000, topic_data=topics)


def errors(one: Asking) -> list[int]:
    """Return the errors in the next response."""
    response = one.response(ProduceResponse, LATEST)
    return [part.error_code for topic in response.responses for part in topic.partition_responses]


def publish(served: ServedPartitions, log: PartitionLog) -> None:
    """Serve t-0 by a log, as a partition whose Produces are Python's."""
    log.set_leader(0, writable=True, sole_replica=True)
    served.publish(
        "t",
        bytes(16),
        0,
        log,
        CommitThread(),
        WorkThread(),
        TopicTraffic(),
        number=0,
        max_message_bytes=1 << 20,
        decompressed_limit=1 << 20,
        before_max_ms=1 << 60,
        after_max_ms=1 << 60,
        flush_messages=1 << 60,
        flush_before_ack=False,
        key_required=False,
        produce_is_pythons=True,
    )


# -- any request, and any decision about it

TEXTS = st.text(max_size=20)
INT32 = st.integers(-(2**31), 2**31 - 1)
INT64 = st.integers(-(2**63), 2**63 - 1)
PARTS = st.builds(
    PartitionProduceData,
    index=INT32,
    # Less than a batch's header, and never of a transaction.
    records=st.none() | st.binary(max_size=60).map(lambda data: data[:22]),
)
TOPICS = st.lists(
    st.builds(TopicProduceData, name=TEXTS, partition_data=st.lists(PARTS, max_size=4)), max_size=4
)
REFUSALS = st.builds(
    Refusal,
    error=st.just(-1) | st.integers(1, 130),
    message=st.none() | TEXTS,
    record_errors=st.lists(st.tuples(INT32, st.none() | TEXTS), max_size=3),
    log_start_offset=INT64,
    leader_id=st.just(-1) | INT32,
    leader_epoch=st.just(-1) | INT32,
)
ENDPOINTS = st.lists(
    st.builds(LeaderEndpoint, node_id=INT32, host=TEXTS, port=INT32, rack=st.none() | TEXTS),
    max_size=3,
)


def expected(refusal: Refusal, index: int) -> PartitionProduceResponse:
    return PartitionProduceResponse(
        index=index,
        error_code=refusal.error,
        base_offset=-1,
        log_start_offset=refusal.log_start_offset,
        record_errors=[
            BatchIndexAndErrorMessage(batch_index=at, batch_index_error_message=text)
            for at, text in refusal.record_errors
        ],
        error_message=refusal.message,
        current_leader=LeaderIdAndEpoch(
            leader_id=refusal.leader_id, leader_epoch=refusal.leader_epoch
        ),
    )


@given(
    version=st.sampled_from(VERSIONS),
    topics=TOPICS,
    acks=st.sampled_from([-1, 1, 2, -5]),
    transactional_id=st.none() | TEXTS,
    client=st.none() | TEXTS,
    endpoints=ENDPOINTS,
    data=st.data(),
)
@settings(max_examples=150, deadline=None)
def test_whatever_is_asked_and_decided_is_what_both_sides_say(
    version: int,
    topics: list[TopicProduceData],
    acks: int,
    transactional_id: str | None,
    client: str | None,
    endpoints: list[LeaderEndpoint],
    data: st.DataObject,
) -> None:
    request = ProduceRequest(
        transactional_id=transactional_id, acks=acks, timeout_ms=5, topic_data=topics
    )
    sent = [
        (topic.name, part.index, part.records) for topic in topics for part in topic.partition_data
    ]
    decided = [data.draw(REFUSALS) for _ in sent]
    with asking() as one:
        one.send(request, version, client)
        if sent:
            callout = one.callout()
            assert (callout.acks, callout.version) == (acks, version)
            assert callout.transactional_id == transactional_id
            assert callout.client_id == client
            asked = [
                (each.topic, each.partition, None if each.records is None else bytes(each.records))
                for each in callout.asked
            ]
            assert asked == sent
            callout.answer(decided, endpoints)
            del callout
        rest = iter(decided)
        response = ProduceResponse(
            responses=[
                TopicProduceResponse(
                    name=topic.name,
                    partition_responses=[
                        expected(next(rest), part.index) for part in topic.partition_data
                    ],
                )
                for topic in topics
            ],
            node_endpoints=[NodeEndpoint(**each._asdict()) for each in endpoints] if sent else [],
        )
        if version < 10:
            for topic in response.responses:
                for part in topic.partition_responses:
                    part.current_leader = LeaderIdAndEpoch()
            response.node_endpoints = []
        head = framing.encode_response_header(0, version, 1)
        assert one.client.answer() == head + codec.encode(response, version)


# -- what becomes of a callout


def written(offset: int) -> Written:
    appended = Appended(
        status=APPENDED,
        base_offset=offset,
        last_offset=offset,
        timestamp=-1,
        log_start_offset=0,
        errno=0,
    )
    return Written(appended, append_time_ms=123)


@pytest.mark.parametrize("acks", [1, -1])
def test_batch_that_python_has_appended_is_acknowledged_if_it_is_served(acks: int) -> None:
    """One that is not served by now is led by another broker."""
    with asking() as one:
        one.send(produce(("t", 0, RECORDS), acks=acks), LATEST)
        one.callout().answer([written(7)])
        (part,) = one.response(ProduceResponse, LATEST).responses[0].partition_responses
        if acks == 1:
            assert (part.error_code, part.base_offset) == (ErrorCode.NONE, 7)
            assert part.log_append_time_ms == 123
        else:
            assert part.error_code == ErrorCode.NOT_LEADER_OR_FOLLOWER
            assert part.base_offset == part.log_append_time_ms == part.log_start_offset == -1


def test_batch_is_safe_in_the_log_that_python_has_appended_it_to() -> None:
    """The partition has moved to another log since the request came."""
    served = ServedPartitions(WorkThread())
    publish(served, memory_log())
    with asking(served) as one:
        one.send(produce(("t", 0, make_batch())), LATEST)
        callout = one.callout()
        moved = memory_log()
        publish(served, moved)
        appended = moved.append(bytearray(make_batch()), 0)
        assert appended.status == APPENDED
        callout.answer([Written(appended, append_time_ms=-1)])
        del callout
        (part,) = one.response(ProduceResponse, LATEST).responses[0].partition_responses
        assert (part.error_code, part.base_offset) == (ErrorCode.NONE, 0)


def test_what_a_response_cannot_say_is_refused_before_anything_is_decided() -> None:
    with asking() as one:
        one.send(produce(("t", 0, RECORDS)), LATEST)
        callout = one.callout()
        for wrong in (Refusal(0), Refusal(500), Refusal(-2)):
            with pytest.raises(ValueError, match="refuses nothing"):
                callout.answer([wrong])
        with pytest.raises(OverflowError):
            callout.answer([Refusal(3, leader_id=1 << 40)])
        with pytest.raises(OverflowError):
            callout.answer([Refusal(3)], [LeaderEndpoint(1, "host", 1 << 40, None)])
        callout.answer([Refusal(3)])
        del callout
        assert errors(one) == [3]


def test_response_from_elsewhere_is_ignored_while_python_decides() -> None:
    with asking() as one:
        one.send(produce(("t", 0, RECORDS)), LATEST)
        event = one.event(CALLOUT)
        one.reactor.respond(event.connection_id, [b"unasked"])
        one.reactor.skip(event.connection_id)
        assert event.callout is not None
        event.callout.answer([Refusal(3)])
        del event
        assert errors(one) == [3]


def test_memory_of_topics_is_counted_while_python_decides() -> None:
    count = 100_000
    with asking() as one:
        topics = [TopicProduceData(name="", partition_data=[]) for _ in range(count)]
        request = produce(("a-topic-that-is-not-there", 0, RECORDS))
        request.topic_data += topics
        one.send(request, LATEST)
        callout = one.callout()
        assert one.reactor.stats().queued_bytes > count * 20
        callout.answer([Refusal(3)])
        del callout
        assert len(one.response(ProduceResponse, LATEST).responses) == count + 1


@pytest.mark.parametrize("how", ["dropped", "given up"])
def test_callout_without_an_answer_is_an_error_and_the_connection_goes_on(how: str) -> None:
    with asking() as one:
        for _ in range(2):
            one.send(produce(("t", 0, RECORDS)), LATEST)
            callout = one.callout()
            if how == "given up":
                callout.give_up()
                with pytest.raises(RuntimeError):
                    callout.answer([Refusal(3)])
            del callout
            gc.collect()
            (part,) = one.response(ProduceResponse, LATEST).responses[0].partition_responses
            assert part.error_code == ErrorCode.UNKNOWN_SERVER_ERROR


def test_callout_is_answered_once_and_about_all_that_it_asks() -> None:
    with asking() as one:
        one.send(produce(("t", 0, RECORDS), ("u", 1, None)), LATEST)
        callout = one.callout()
        with pytest.raises(ValueError, match="1 outcomes of 2 partitions"):
            callout.answer([Refusal(3)])
        callout.answer([Refusal(3), Refusal(5)])
        with pytest.raises(RuntimeError):
            callout.answer([Refusal(3), Refusal(5)])
        assert errors(one) == [3, 5]
        del callout


def test_later_request_is_not_asked_about_before_the_answer() -> None:
    with asking() as one:
        one.send(produce(("t", 0, RECORDS)), LATEST)
        one.send(produce(("u", 0, RECORDS)), LATEST)
        first = one.callout()
        assert [each.topic for each in first.asked] == ["t"]
        assert select.select([one.reactor.wake_fd], [], [], 0.2)[0] == []
        first.answer([Refusal(3)])
        one.callout().answer([Refusal(5)])
        assert one.client.answer()
        assert one.response(ProduceResponse, LATEST).responses[0].name == "u"
        del first


def test_nothing_is_said_where_the_client_wants_no_response() -> None:
    with asking() as one:
        one.send(produce(("t", 0, RECORDS), acks=0), LATEST)
        one.callout().answer([written(3)])
        one.send(produce(("u", 0, RECORDS)), LATEST)
        one.callout().answer([Refusal(3)])
        assert one.response(ProduceResponse, LATEST).responses[0].name == "u"


def test_very_long_text_is_cut() -> None:
    with asking() as one:
        one.send(produce(("t", 0, RECORDS)), LATEST)
        one.callout().answer([Refusal(42, "é" * 40_000, [(0, "é" * 20_000)])])
        (part,) = one.response(ProduceResponse, LATEST).responses[0].partition_responses
        assert part.error_message == "é" * 8191
        assert part.record_errors[0].batch_index_error_message == "é" * 8191


# -- the end of a connection


def test_answer_for_a_client_that_has_gone_is_forgotten() -> None:
    with asking() as one:
        one.send(produce(("t", 0, RECORDS)), LATEST)
        callout = one.callout()
        one.client.reset()
        one.event(CLOSED)
        records = callout.asked[0].records
        callout.answer([Refusal(3)])
        assert records is not None
        assert bytes(records) == RECORDS
        del callout, records


def test_answer_after_the_reactor_has_stopped_is_forgotten() -> None:
    with asking() as one:
        one.send(produce(("t", 0, RECORDS)), LATEST)
        callout = one.callout()
        one.reactor.stop()
        callout.answer([Refusal(3)])
        del callout


def test_question_that_was_not_read_is_forgotten_with_its_reactor() -> None:
    with asking() as one:
        one.send(produce(("t", 0, RECORDS)), LATEST)
        assert select.select([one.reactor.wake_fd], [], [], WAIT_S)[0]
        one.reactor.stop()
        one.events += one.reactor.take()


def test_reactor_that_closes_a_connection_sends_no_answer() -> None:
    with asking() as one:
        one.send(produce(("t", 0, RECORDS)), LATEST)
        event = one.event(CALLOUT)
        one.reactor.close(event.connection_id, "enough")
        assert event.callout is not None
        event.callout.give_up()
        del event
        assert one.client.is_closed_by_server()
        assert one.event(CLOSED).reason == "enough"


# -- malformed requests


def tagged(section: bytes) -> bytes:
    """Return the body of a Produce of no topics with these tagged fields."""
    return b"\0" + struct.pack(">hi", 1, 5) + b"\1" + section


MALFORMED = {
    "cut": (codec.encode(produce(("t", 0, RECORDS)), LATEST)[:-5], "a partition is cut short"),
    "no topics": (b"\0" + struct.pack(">hi", 1, 5) + b"\0\0", "it has no topics"),
    "null name": (
        b"\0" + struct.pack(">hi", 1, 5) + b"\2\0\1\0\0",
        "the name of a topic is cut short, or is no text",
    ),
    "no text": (
        b"\0" + struct.pack(">hi", 1, 5) + b"\2\2\xff\1\0\0",
        "the name of a topic is cut short, or is no text",
    ),
    "no text for an id": (
        b"\2\xc0" + struct.pack(">hi", 1, 5) + b"\1\0",
        "the transactional id is cut short, or is no text",
    ),
    "end": (b"\0\0", "it ends before its topics"),
    "tags that do not ascend": (tagged(b"\2\1\0\1\0"), "its tagged fields are malformed"),
    "a tag too long": (tagged(b"\1\1\5"), "its tagged fields are malformed"),
    "too many": (
        b"\0" + struct.pack(">hi", 1, 5) + b"\x92\xa1\x0f" + b"\2t\1\0" * 250_001 + b"\0",
        "it has too many partitions, or there is no memory for them",
    ),
}


@pytest.mark.parametrize("what", MALFORMED)
def test_malformed_request_closes_the_connection_after_the_answers_before_it(what: str) -> None:
    body, fault = MALFORMED[what]
    with asking() as one:
        one.send(produce(("t", 0, RECORDS)), LATEST)
        one.send_body(0, body, LATEST)
        one.callout().answer([Refusal(3)])
        one.response(ProduceResponse, LATEST)
        assert one.client.is_closed_by_server()
        closed = one.event(CLOSED)
        assert closed.reason == f"ProduceRequest v{LATEST}: {fault}"
        assert closed.abnormal


def test_tagged_fields_of_every_place_are_skipped() -> None:
    tags = b"\2\5\3abc\7\0"
    body = (
        b"\0" + struct.pack(">hi", 1, 5) + b"\2\2t\2" + struct.pack(">i", 4) + b"\4abc"
        + tags + tags + tags
    )  # fmt: skip
    header = struct.pack(">hhih", 0, LATEST, 1, -7) + tags
    with asking() as one:
        one.number = 1
        one.client.sendall(struct.pack(">i", len(header + body)) + header + body)
        callout = one.callout()
        ((topic, partition, records),) = callout.asked
        assert records is not None
        assert (topic, partition, bytes(records)) == ("t", 4, b"abc")
        callout.answer([Refusal(3)])
        assert one.response(ProduceResponse, LATEST).responses[0].partition_responses[0].index == 4
        del callout, records
