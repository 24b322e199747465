"""The controller's loop beside a store that refuses what it asks."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from pathlib import Path
from typing import Any

import pytest

from plog.cluster import controller_loop, registered_brokers, znodes
from plog.cluster.broker_registration import BrokerRegistration
from plog.cluster.controller_context import LiveBroker
from plog.cluster.controller_events import (
    BrokersRead,
    Effect,
    ElectionsAsked,
    ElectionType,
    Event,
    Feed,
    LeaderAndIsrAnswered,
    LoadUnclean,
    SendLeaderAndIsr,
    UncleanRead,
)
from plog.cluster.controller_store import ControllerMoved
from plog.cluster.features import SUPPORTED
from plog.cluster.store import SessionLost, StoreError, Unreachable, Watch, WatchEvent
from plog.cluster.znodes import BrokerNode, Endpoint, broker_path
from plog.errors import NotController
from plog.protocol.messages.replication import LeaderAndIsrResponse
from plog.types import TopicPartition
from tests.cluster.node import WAIT_S, Node
from tests.waiting import until


@pytest.fixture
def node(log_dirs: list[Path]) -> Iterator[Node]:
    running = Node(log_dirs)
    yield running
    running.stop()


def test_watch_of_the_controller_node_is_armed_once_the_store_answers(
    node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    node.controller.stop()
    monkeypatch.setattr(controller_loop, "RETRY_MS", 1)
    real, refused = node.store.watch_data, [znodes.CONTROLLER] * 2

    def watch_data(path: str, callback: Callable[[WatchEvent], None]) -> Watch:
        if path in refused:
            refused.remove(path)
            raise Unreachable("no answer")
        return real(path, callback)

    monkeypatch.setattr(node.store, "watch_data", watch_data)
    node.controller = node.new_controller()
    node.controller.start()
    assert node.controller.wait_active(WAIT_S)
    epoch = node.controller.epoch
    node.store.delete(znodes.CONTROLLER)
    until(lambda: node.controller.epoch > epoch, "elected again")


def test_controller_whose_node_is_removed_reads_everything_again(node: Node) -> None:
    # Others may have ruled in between: what the machine knows is old.
    node.store.delete(znodes.CONTROLLER)
    until(lambda: node.controller.epoch == 2, "elected again")
    node.settled()
    machine = node.controller.loop.machine
    assert machine is not None
    assert machine.context.epoch == 2


def test_answer_to_an_order_of_an_earlier_election_is_ignored(
    node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    loop = node.controller.loop
    (broker,) = loop.machine.context.brokers.values() if loop.machine else ()
    order, answer = (
        SendLeaderAndIsr(broker.id, (), ()),
        LeaderAndIsrResponse(error_code=0, topics=[]),
    )
    of_the_first = loop._on_response(broker, order)
    node.store.delete(znodes.CONTROLLER)
    until(lambda: node.controller.epoch == 2, "elected again")
    node.settled()
    answers: list[Event] = []
    feed = loop.feed

    def record(event: Event) -> None:
        if isinstance(event, LeaderAndIsrAnswered):
            answers.append(event)
        feed(event)

    monkeypatch.setattr(loop, "feed", record)
    of_the_first(answer)
    node.settled()
    assert not answers
    loop._on_response(broker, order)(answer)
    node.settled()
    assert len(answers) == 1


def test_event_for_later_comes_after_the_answers_of_all_effects(
    node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    loop, seen, later = node.controller.loop, [], BrokersRead({})
    node.controller.stop()

    class Machine:
        def on(self, event: Event) -> list[Effect]:
            seen.append(event)
            return [Feed(later), LoadUnclean(())] if len(seen) == 1 else []

    monkeypatch.setattr(loop, "machine", Machine())
    loop.feed(first := BrokersRead({}))
    assert seen == [first, UncleanRead({}), later]


def test_question_whose_caller_has_gone_ends_no_controller(node: Node) -> None:
    loop = node.controller.loop
    gone: Future[object] = Future()
    gone.cancel()
    loop._futures[-1] = gone
    node.store.delete(znodes.CONTROLLER)
    until(lambda: node.controller.epoch == 2, "elected again")
    node.settled()
    loop.machine = None
    refused: Future[object] = Future()
    refused.cancel()
    loop.ask(lambda token: ElectionsAsked(ElectionType.PREFERRED, (), token), refused)


class Failing(Watch):
    """A watch or a channel that cannot be ended."""

    def __init__(self) -> None:
        self.attempts = 0

    def cancel(self) -> None:
        self.attempts += 1
        raise RuntimeError("cannot be ended")

    close = cancel


@pytest.mark.parametrize("kind", ["watches", "topic watches", "state watches", "channels"])
@pytest.mark.parametrize("reason", [ControllerMoved, SessionLost, StoreError, ValueError])
def test_controller_is_elected_again_though_it_could_not_close_everything(
    node: Node, kind: str, reason: type[Exception]
) -> None:
    loop = node.controller.loop
    node.create("a")
    failing = [Failing(), Failing()]
    topics = [TopicPartition(name, 0) for name in ("b", "c")]
    match kind:
        case "watches":
            loop._watches += failing
        case "topic watches":
            loop._topics._watches.update(zip(("b", "c"), failing, strict=True))
        case "state watches":
            loop._topics._state_watches.update(zip(topics, failing, strict=True))
        case "channels":
            broker, _ = loop._channels[0]
            channels: Any = zip((-2, -1), failing, strict=True)
            loop._channels |= {at: (broker, one) for at, one in channels}
    question: Future[object] = Future()
    loop._futures[-1] = question

    def fail() -> None:
        raise reason("no")

    loop._enqueue("", fail)
    with pytest.raises(NotController):
        question.result(WAIT_S)
    assert [one.attempts for one in failing] == [1, 1]
    loop._enqueue("", loop.elect)
    assert node.controller.wait_active(WAIT_S)
    node.create("c")
    assert [one.attempts for one in failing] == [1, 1]


def test_controller_that_stops_gives_its_role_back_whatever_cannot_be_ended(node: Node) -> None:
    failing = node.controller.loop._election_watches[""] = Failing()
    node.controller.stop()
    assert failing.attempts == 1
    assert node.store.exists(znodes.CONTROLLER) is None


def test_brokers_that_leave_and_join_are_logged(
    node: Node, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, registered_brokers.__name__)
    node.peers[2] = node  # whose fence refuses another broker's orders
    registration, two = BrokerRegistration(node.store, 2), broker_path(2)
    ends = (Endpoint("PLAINTEXT", "127.0.0.1", 9094),)

    def until_logged(line: str) -> None:
        until(lambda: line in caplog.messages, line)

    registration.register(BrokerNode(ends, 0, features=SUPPORTED))
    until_logged("broker 2 has joined the cluster")
    node.store.delete(two)
    until_logged("broker 2 has left the cluster")
    (left,) = [one for one in caplog.records if "has left" in one.getMessage()]
    assert left.levelno == logging.WARNING


def test_broker_that_has_registered_again_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, registered_brokers.__name__)
    before, now = LiveBroker(2, 7, ()), LiveBroker(2, 8, ())
    registered_brokers.log_changes({2: before}, {2: now})
    registered_brokers.log_changes({2: now}, {2: now})
    assert caplog.messages == ["broker 2 has joined the cluster again"]
