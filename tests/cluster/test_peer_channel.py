"""The thread of a channel to another broker: it repeats what fails, and ends when it is closed."""

from __future__ import annotations

import queue
import threading
from typing import cast

import pytest

from plog.cluster.control_requests import ControlResponse
from plog.cluster.controller_context import LiveBroker
from plog.cluster.peer_channel import PeerChannel
from plog.cluster.peer_link import PeerLink
from plog.errors import NetworkException
from plog.protocol.messages.replication import StopReplicaRequest, StopReplicaResponse

WITHIN_S = 20
RESPONSE = StopReplicaResponse(error_code=0, partition_errors=[])


class Link:
    """A `PeerLink` whose calls return what the test puts."""

    def __init__(self) -> None:
        self.called: queue.Queue[int] = queue.Queue()
        self.outcomes: queue.Queue[StopReplicaResponse | Exception] = queue.Queue()
        self.closed = threading.Event()

    def call(self, request: StopReplicaRequest, response: type) -> StopReplicaResponse:
        self.called.put(request.controller_epoch)
        outcome = self.outcomes.get(timeout=WITHIN_S)
        if isinstance(outcome, Exception):
            raise outcome
        return outcome

    def interrupt(self) -> None:
        self.outcomes.put(NetworkException("closed"))

    def close(self) -> None:
        self.closed.set()


def opened() -> tuple[Link, PeerChannel]:
    link = Link()
    return link, PeerChannel(LiveBroker(1, 1, (), None), cast("PeerLink", link))


def order(number: int) -> StopReplicaRequest:
    return StopReplicaRequest(
        controller_id=0, controller_epoch=number, broker_epoch=1, topic_states=[]
    )


def test_order_is_repeated_until_its_response_and_then_comes_the_next() -> None:
    link, channel = opened()
    responses: queue.Queue[ControlResponse] = queue.Queue()
    channel.send(order(1), responses.put)
    channel.send(order(2), responses.put)
    assert not channel.is_answered
    for outcome in (NetworkException("no response"), ValueError("no response"), RESPONSE, RESPONSE):
        link.outcomes.put(outcome)
    assert [link.called.get(timeout=WITHIN_S) for _ in range(4)] == [1, 1, 1, 2]
    assert [responses.get(timeout=WITHIN_S) for _ in range(2)] == [RESPONSE, RESPONSE]
    assert channel.is_answered
    channel.close()
    assert link.closed.wait(WITHIN_S)


def test_failure_that_stays_the_same_is_logged_once(caplog: pytest.LogCaptureFixture) -> None:
    link, channel = opened()
    responses: queue.Queue[ControlResponse] = queue.Queue()
    channel.send(order(1), responses.put)
    for reason in ("refused", "refused", "silent", "refused"):
        link.outcomes.put(NetworkException(reason))
    link.outcomes.put(RESPONSE)
    assert responses.get(timeout=WITHIN_S) == RESPONSE
    channel.close()
    assert caplog.messages == [
        "no response from broker 1, trying again: refused",
        "no response from broker 1, trying again: silent",
    ]


def test_closed_channel_ends_the_call_under_way_and_makes_no_other() -> None:
    link, channel = opened()
    responses: queue.Queue[ControlResponse] = queue.Queue()
    channel.send(order(1), responses.put)
    channel.send(order(2), responses.put)
    assert link.called.get(timeout=WITHIN_S) == 1
    channel.close()
    assert link.closed.wait(WITHIN_S)
    assert link.called.empty()
    assert responses.empty()


def test_response_that_comes_to_a_closed_channel_is_not_reported() -> None:
    link, channel = opened()
    responses: queue.Queue[ControlResponse] = queue.Queue()
    channel.send(order(1), responses.put)
    assert link.called.get(timeout=WITHIN_S) == 1
    with channel._changed:  # the thread cannot report while the channel is being closed
        link.outcomes.put(RESPONSE)
        channel.close()
    assert link.closed.wait(WITHIN_S)
    assert responses.empty()


def test_channel_that_is_closed_while_it_waits_ends() -> None:
    link, channel = opened()
    channel.close()
    assert link.closed.wait(WITHIN_S)
    assert link.called.empty()
