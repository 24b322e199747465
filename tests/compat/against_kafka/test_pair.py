"""A case begins once every partition of its topics has a leader."""

from __future__ import annotations

from typing import Any, cast

import pytest

from plog.errors import ErrorCode
from plog.protocol.messages.list_offsets import (
    ListOffsetsPartitionResponse,
    ListOffsetsRequest,
    ListOffsetsResponse,
    ListOffsetsTopicResponse,
)
from plog.protocol.messages.topics import CreatableTopicResult, CreateTopicsResponse
from plog.protocol.schema import Struct
from tests.compat.against_kafka import pair
from tests.compat.against_kafka.pair import Case, KafkaStumbledError, Pair, Side, Topic

CASES: dict[str, Case] = {}
"""No live Kafka is asked here."""
NONE, NO_LEADER = ErrorCode.NONE, ErrorCode.NOT_LEADER_OR_FOLLOWER
TOPICS = {"t": Topic(partitions=2), "u": Topic()}


class ScriptedWire:
    """Creates the topics; the leaders respond in turn, the last response for ever."""

    def __init__(self, *rounds: tuple[ErrorCode, ErrorCode, ErrorCode]) -> None:
        self._rounds = list(rounds)
        self.asked = 0
        self._created: list[str] = []

    def send(self, request: Any, *_: object, **__: object) -> None:
        self._created = [topic.name for topic in request.topics]

    def receive(self, *_: object) -> Struct:
        results = [
            CreatableTopicResult(name=name, error_code=NONE, error_message=None)
            for name in self._created
        ]
        return CreateTopicsResponse(throttle_time_ms=0, topics=results)

    def ask(self, request: ListOffsetsRequest, *_: object) -> Struct:
        codes = iter(self._rounds[min(self.asked, len(self._rounds) - 1)])
        self.asked += 1
        topics = [
            ListOffsetsTopicResponse(
                name=topic.name,
                partitions=[
                    ListOffsetsPartitionResponse(
                        partition_index=part.partition_index, error_code=next(codes)
                    )
                    for part in topic.partitions
                ],
            )
            for topic in request.topics
        ]
        return ListOffsetsResponse(topics=topics)


def side_of(
    monkeypatch: pytest.MonkeyPatch, *rounds: tuple[ErrorCode, ErrorCode, ErrorCode]
) -> tuple[Side, ScriptedWire]:
    wire = ScriptedWire(*rounds)
    with monkeypatch.context() as patch:
        patch.setattr(pair, "speak", lambda port: cast(Any, wire))
        return Side(0, []), wire


def test_case_waits_for_the_leader_of_every_partition(monkeypatch: pytest.MonkeyPatch) -> None:
    kafka, wire = side_of(
        monkeypatch,
        (NO_LEADER, NO_LEADER, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),
        (NONE, NONE, NO_LEADER),
        (NONE, NO_LEADER, NONE),
        (NONE, NONE, NONE),
    )
    plog, _ = side_of(monkeypatch, (NONE, NONE, NONE))
    Pair(kafka, plog, "").begin(Case([], TOPICS))
    assert wire.asked == 4


def test_kafka_without_a_leader_at_the_deadline_has_stumbled(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(pair, "LEADERS_S", 0)
    kafka, _ = side_of(monkeypatch, (NONE, NO_LEADER, NONE))
    plog, _ = side_of(monkeypatch, (NONE, NONE, NONE))
    with pytest.raises(KafkaStumbledError, match="not leading the new topics"):
        Pair(kafka, plog, "").begin(Case([], TOPICS))


def test_case_without_topics_waits_for_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    kafka, wire = side_of(monkeypatch, (NO_LEADER, NO_LEADER, NO_LEADER))
    plog, _ = side_of(monkeypatch, (NONE, NONE, NONE))
    Pair(kafka, plog, "").begin(Case([], {}))
    assert wire.asked == 0
