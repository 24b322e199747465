"""A transition that the table of requests lacks closes one connection, and is counted.

Each test takes a transition out of the table for one request.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from plog._native.faults import set_transition
from plog._native.request_stages import ABORTS, Event, Stage
from plog.protocol.messages.metadata import MetadataRequest
from plog.protocol.schema import Struct
from tests.handlers.running import Running, end_of, framed
from tests.handlers.wire import create_topic, eventually, fetch_request, make_batch, produce_request

pytestmark = pytest.mark.skipif(ABORTS, reason="ends the process in this build")


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    started = Running(tmp_path_factory.mktemp("broken"))
    yield started
    started.stop()


@contextmanager
def without(stage: Stage, event: Event) -> Iterator[None]:
    before = set_transition(stage, event, 0)
    assert before
    try:
        yield
    finally:
        set_transition(stage, event, before)


def request_of(kind: str, topic: str) -> tuple[Struct, int]:
    if kind == "metadata":
        return MetadataRequest(topics=[]), 9
    if kind == "fetch":
        return fetch_request((topic, 0, 0)), 12
    if kind == "waiting fetch":
        return fetch_request((topic, 1, 0), max_wait_ms=1), 12
    acks = -1 if kind == "acks=all" else 1
    return produce_request([(topic, 0, make_batch()), (topic, 1, make_batch())], acks=acks), 9


@pytest.mark.parametrize(
    ("kind", "stage", "event"),
    [
        ("acks=1", Stage.CAME, Event.FOUND_GOOD),
        ("acks=1", Stage.CHECKED, Event.TAKEN_IN),
        ("acks=1", Stage.GATHERED, Event.WROTE),
        ("acks=1", Stage.APPENDED, Event.IS_SAFE),
        ("acks=1", Stage.SAFE, Event.ANSWERED),
        ("acks=all", Stage.APPENDED, Event.IS_SAFE),
        ("fetch", Stage.CAME, Event.WAS_READ),
        ("fetch", Stage.READ, Event.ANSWERED),
        ("waiting fetch", Stage.READ, Event.TOO_LITTLE),
        ("waiting fetch", Stage.SHORT, Event.EXPIRED),
        ("metadata", Stage.CAME, Event.FOUND_UNUSUAL),
        ("metadata", Stage.UNUSUAL, Event.TURN_CAME),
        ("metadata", Stage.ASKED, Event.ANSWERED),
    ],
)
def test_missing_transition_closes_its_connection_only(
    running: Running, caplog: pytest.LogCaptureFixture, kind: str, stage: Stage, event: Event
) -> None:
    topic = create_topic(running.wire, partitions=2)[0]
    if kind == "fetch":
        running.ask(*request_of("acks=1", topic))
    before = running.broker.reactor_stats
    with caplog.at_level(logging.INFO), running.connect() as client:
        with without(stage, event):
            client.sendall(framed(*request_of(kind, topic), 1))
            while client.recv(1 << 16):
                pass
        eventually(
            lambda: running.broker.reactor_stats.broken == before.broken + 1, "it is counted"
        )
        line = f"internal error: event {event.value} in stage {stage.value} of a request"
        eventually(lambda: line in caplog.text, "it is logged")
    assert running.broker.reactor_stats.waiting == before.waiting
    end = end_of(running, topic)
    running.ask(*request_of("acks=all", topic))
    assert end_of(running, topic) == end + 1
