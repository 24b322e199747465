"""Requests while the coordination store is away: others are answered, and each ends in its time."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from plog.cluster import store_calls
from plog.cluster.controller import Controller
from plog.cluster.controller_events import Effect, ElectionsAsked, Event
from plog.cluster.controller_machine import ControllerMachine
from plog.cluster.embedded_store import EmbeddedStore
from plog.cluster.features import GROUP_VERSION, TRANSACTION_VERSION
from plog.cluster.store import (
    SessionExpired,
    SessionLost,
    StoreError,
    Unreachable,
    WriteRefused,
)
from plog.errors import ErrorCode, KafkaError, KafkaStorageError, RequestTimedOut
from plog.handlers import context
from plog.handlers.configs import ResourceType
from plog.handlers.groups import GROUP, TRANSACTION
from plog.handlers.list_offsets import CONSUMER
from plog.protocol.messages.configs import (
    AlterableConfig,
    AlterConfigsRequest,
    AlterConfigsResource,
    IncrementalAlterableConfig,
    IncrementalAlterConfigsRequest,
    IncrementalAlterConfigsResource,
)
from plog.protocol.messages.features import FeatureUpdateKey, UpdateFeaturesRequest
from plog.protocol.messages.group_admin import ListGroupsRequest
from plog.protocol.messages.groups import (
    FindCoordinatorRequest,
    JoinGroupRequest,
    JoinGroupRequestProtocol,
)
from plog.protocol.messages.list_offsets import (
    ListOffsetsPartition,
    ListOffsetsRequest,
    ListOffsetsTopic,
)
from plog.protocol.messages.metadata import MetadataRequest, MetadataRequestTopic
from plog.protocol.messages.producers import InitProducerIdRequest
from plog.protocol.messages.topics import (
    CreatePartitionsRequest,
    CreatePartitionsTopic,
    CreateTopicsRequest,
    DeleteTopicsRequest,
    ElectLeadersRequest,
)
from plog.protocol.messages.transactions import ListTransactionsRequest
from plog.protocol.schema import Struct
from plog.settings.alterations import Operation
from tests.handlers.clients import Clients, ask_alone, codes_of
from tests.handlers.running import Running
from tests.handlers.wire import WAIT_MS, create_topic, create_topic_request, eventually


@pytest.mark.parametrize(
    ("fault", "refusal"),
    [
        (Unreachable, RequestTimedOut),
        (SessionExpired, RequestTimedOut),
        (SessionLost, KafkaStorageError),
        (WriteRefused, KafkaStorageError),
    ],
)
def test_only_a_store_on_a_failed_disk_is_a_disk_error(
    fault: type[StoreError], refusal: type[KafkaError]
) -> None:
    with pytest.raises(refusal, match="the coordination store: why"), context.store_refusals():
        raise fault("why")


MOST = store_calls.THREADS + 2
"""queued.max.requests: some wait for a thread."""
TOPICS = [f"t{number}" for number in range(MOST)]
TIMED_OUT = ErrorCode.REQUEST_TIMED_OUT
STORE_METHODS = ("children", "exists", "get", "get_many", "multi", "watch_data")


class Away:
    """The store of a broker in this process, for the threads in which handlers wait for it."""

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        self._is_away = False
        self._is_silent = False
        self._is_back = threading.Event()
        self.calls = 0
        """How many have met a store that was away."""
        for name in STORE_METHODS:
            patch.setattr(EmbeddedStore, name, self._guarded(getattr(EmbeddedStore, name)))

    def _guarded(self, method: Callable[..., Any]) -> Callable[..., Any]:
        def call(store: EmbeddedStore, *arguments: object, **options: object) -> Any:
            if self._is_away and threading.current_thread().name.startswith("store calls"):
                self.calls += 1
                if self._is_silent:
                    raise Unreachable("no answer from the tests' store")
                assert self._is_back.wait(WAIT_MS / 1000)
            return method(store, *arguments, **options)

        return call

    @contextmanager
    def hanging(self) -> Iterator[None]:
        """No call returns."""
        self._is_back.clear()
        self._is_away = True
        try:
            yield
        finally:
            self._is_away = False
            self._is_back.set()

    @contextmanager
    def silent(self) -> Iterator[None]:
        """Every call fails, as after a session's time."""
        self._is_silent = self._is_away = True
        try:
            yield
        finally:
            self._is_silent = self._is_away = False


@pytest.fixture
def away(monkeypatch: pytest.MonkeyPatch) -> Away:
    return Away(monkeypatch)


@pytest.fixture
def running(away: Away, tmp_path: Path) -> Iterator[Running]:
    one = Running(tmp_path, queued_max_requests=MOST, group_initial_rebalance_delay_ms=0)
    for topic in TOPICS:
        create_topic(one.wire, topic)
    until_coordinated(one, GROUP)
    yield one
    one.stop()


LISTING = ListTransactionsRequest(state_filters=[], producer_id_filters=[])


def until_coordinated(running: Running, kind: int) -> None:
    """Have the coordinators of a kind there, and their shards read."""
    lists = ListGroupsRequest() if kind == GROUP else LISTING
    for request in FindCoordinatorRequest(key="a", key_type=kind), lists:
        eventually(
            lambda request=request: running.wire.ask(request).error_code == ErrorCode.NONE, "ready"
        )


class Kind(NamedTuple):
    """Requests that need the store. `make` gets a number of the request, and its timeout."""

    make: Callable[[int, int], Struct]
    version: int
    coordinates_transactions: bool = False
    """Transactional ids have a coordinator before the store is away."""


def creating(number: int, timeout_ms: int) -> Struct:
    asked = create_topic_request(f"new{number}")
    return CreateTopicsRequest(topics=asked.topics, timeout_ms=timeout_ms)


def growing(number: int, timeout_ms: int) -> Struct:
    topic = CreatePartitionsTopic(name=TOPICS[number], count=2, assignments=None)
    return CreatePartitionsRequest(topics=[topic], timeout_ms=timeout_ms, validate_only=False)


def deleting(number: int, timeout_ms: int) -> Struct:
    return DeleteTopicsRequest(topic_names=[TOPICS[number]], timeout_ms=timeout_ms)


def setting(
    request: type[Struct], resource: type[Struct], config: type[Struct], **operation: int
) -> Callable[[int, int], Struct]:
    """Return what makes requests that set a config of a topic."""

    def make(number: int, _: int) -> Struct:
        asked = resource(
            resource_type=ResourceType.TOPIC,
            resource_name=TOPICS[number],
            configs=[config(name="retention.ms", value="1000", **operation)],
        )
        return request(resources=[asked], validate_only=False)

    return make


replacing = setting(AlterConfigsRequest, AlterConfigsResource, AlterableConfig)
altering = setting(
    IncrementalAlterConfigsRequest,
    IncrementalAlterConfigsResource,
    IncrementalAlterableConfig,
    config_operation=Operation.SET,
)


def updating(_: int, timeout_ms: int) -> Struct:
    update = FeatureUpdateKey(feature=GROUP_VERSION, max_version_level=0, allow_downgrade=True)
    return UpdateFeaturesRequest(timeout_ms=timeout_ms, feature_updates=[update])


def auto_creating(number: int, _: int) -> Struct:
    return MetadataRequest(topics=[MetadataRequestTopic(name=f"new{number}")])


def finding(number: int, _: int) -> Struct:
    return FindCoordinatorRequest(key=f"id{number}", key_type=TRANSACTION)


def idempotent(_: int, __: int) -> Struct:
    return InitProducerIdRequest(transactional_id=None, transaction_timeout_ms=1000)


def transactional(number: int, _: int) -> Struct:
    return InitProducerIdRequest(transactional_id=f"id{number}", transaction_timeout_ms=1000)


KINDS = {
    "CreateTopics": Kind(creating, 5),
    "CreatePartitions": Kind(growing, 1),
    "DeleteTopics": Kind(deleting, 5),
    "AlterConfigs": Kind(replacing, 1),
    "IncrementalAlterConfigs": Kind(altering, 0),
    "UpdateFeatures": Kind(updating, 0),
    "Metadata": Kind(auto_creating, 4),
    "FindCoordinator": Kind(finding, 1),
    "InitProducerId": Kind(idempotent, 1),
    "InitProducerId of a transactional id": Kind(transactional, 1, coordinates_transactions=True),
}
AT_A_TIME = ListOffsetsPartition(partition_index=0, timestamp=1)
OTHERS: dict[str, tuple[Struct, int]] = {
    "Metadata": (MetadataRequest(topics=[MetadataRequestTopic(name=TOPICS[0])]), 4),
    "FindCoordinator": (FindCoordinatorRequest(key="a", key_type=GROUP), 1),
    "ListOffsets": (
        ListOffsetsRequest(
            replica_id=CONSUMER, topics=[ListOffsetsTopic(name=TOPICS[0], partitions=[AT_A_TIME])]
        ),
        1,
    ),
    "JoinGroup": (
        JoinGroupRequest(
            group_id="a",
            session_timeout_ms=6000,
            member_id="",
            protocol_type="consumer",
            protocols=[JoinGroupRequestProtocol(name="range", metadata=b"")],
        ),
        1,
    ),
}


@pytest.mark.parametrize("kind", KINDS.values(), ids=KINDS)
def test_requests_that_wait_for_the_store_keep_no_others_waiting(
    running: Running, away: Away, kind: Kind
) -> None:
    if kind.coordinates_transactions:
        until_coordinated(running, TRANSACTION)
    waiting = Clients(running.port)
    with away.hanging():
        before = running.requests
        for number in range(MOST):
            waiting.send(kind.make(number, WAIT_MS), kind.version)
        running.until_read(before + MOST)
        eventually(lambda: away.calls > 0, "a call waits for the store")
        for request, version in OTHERS.values():
            (answer,) = ask_alone(running.port, request, version)
            assert {*codes_of(answer)} <= {ErrorCode.NONE}, answer
        assert waiting.answered == 0
    for answer in waiting.receive():
        assert TIMED_OUT not in codes_of(answer), answer


def test_requests_that_have_no_room_to_wait_are_refused(
    running: Running, away: Away, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(store_calls, "FULL_S", 0.01)
    waiting, refused = Clients(running.port), Clients(running.port)
    with away.hanging():
        before = running.requests
        for number in range(MOST):
            waiting.send(creating(number, WAIT_MS), 5)
        running.until_read(before + MOST)
        for number in range(MOST, 3 * MOST):
            refused.send(creating(number, WAIT_MS), 5)
        for answer in refused.receive():
            assert [*codes_of(answer)] == [TIMED_OUT]
        assert waiting.answered == 0
    for answer in waiting.receive():
        assert [*codes_of(answer)] == [ErrorCode.NONE]


def all_at_once(make: Callable[[int, int], Struct], timeout_ms: int = WAIT_MS) -> Struct:
    """Return one request for what `make` requests of each topic."""
    first, *others = (make(number, timeout_ms) for number in range(MOST))
    for one in others:
        for name in type(one).__annotations__:
            if isinstance(parts := getattr(one, name), list):
                getattr(first, name).extend(parts)
    return first


WHOLE: dict[str, tuple[Struct, int, ErrorCode]] = {
    "CreateTopics": (all_at_once(creating), 5, TIMED_OUT),
    "CreatePartitions": (all_at_once(growing), 1, TIMED_OUT),
    "DeleteTopics": (all_at_once(deleting), 5, TIMED_OUT),
    "AlterConfigs": (all_at_once(replacing), 1, TIMED_OUT),
    "IncrementalAlterConfigs": (all_at_once(altering), 0, TIMED_OUT),
    "Metadata": (all_at_once(auto_creating), 4, TIMED_OUT),
    "FindCoordinator": (
        FindCoordinatorRequest(key_type=TRANSACTION, coordinator_keys=TOPICS),
        4,
        ErrorCode.COORDINATOR_NOT_AVAILABLE,
    ),
}


@pytest.mark.parametrize(("request_", "version", "code"), WHOLE.values(), ids=WHOLE)
def test_request_asks_a_silent_store_once(
    running: Running, away: Away, request_: Struct, version: int, code: ErrorCode
) -> None:
    with away.silent():
        (answer,) = ask_alone(running.port, request_, version)
    assert [*codes_of(answer)].count(code) == MOST, answer
    assert away.calls == 1


def test_features_ask_a_silent_store_once(running: Running, away: Away) -> None:
    updates = [
        FeatureUpdateKey(feature=name, max_version_level=0, allow_downgrade=True)
        for name in (GROUP_VERSION, TRANSACTION_VERSION)
    ]
    with away.silent():
        (answer,) = ask_alone(running.port, UpdateFeaturesRequest(feature_updates=updates), 0)
    assert [one.error_code for one in answer.results] == [TIMED_OUT] * 2
    assert away.calls == 1


WITH_TIMEOUT = ("CreateTopics", "CreatePartitions", "DeleteTopics", "UpdateFeatures")


@pytest.mark.parametrize("name", WITH_TIMEOUT)
def test_request_ends_within_its_own_timeout(away: Away, tmp_path: Path, name: str) -> None:
    """A session's time is longer than this test waits."""
    running = Running(tmp_path, zookeeper_session_timeout_ms=100 * WAIT_MS)
    kind = KINDS[name]
    try:
        create_topic(running.wire, TOPICS[0])
        with away.hanging():
            (answer,) = ask_alone(running.port, kind.make(0, 1), kind.version)
        assert TIMED_OUT in codes_of(answer)
    finally:
        running.stop()


@pytest.mark.parametrize("name", [name for name in KINDS if name not in WITH_TIMEOUT])
def test_other_requests_end_within_a_sessions_time(away: Away, tmp_path: Path, name: str) -> None:
    running = Running(tmp_path, zookeeper_session_timeout_ms=50)
    kind = KINDS[name]
    try:
        create_topic(running.wire, TOPICS[0])
        if kind.coordinates_transactions:
            until_coordinated(running, TRANSACTION)
        with away.hanging():
            (answer,) = ask_alone(running.port, kind.make(0, 0), kind.version)
        assert {*codes_of(answer)} & {TIMED_OUT, ErrorCode.COORDINATOR_NOT_AVAILABLE}
    finally:
        running.stop()


def test_producer_ids_of_the_present_block_need_no_store(running: Running, away: Away) -> None:
    (first,) = ask_alone(running.port, idempotent(0, 0), 1)
    with away.hanging():
        (second,) = ask_alone(running.port, idempotent(0, 0), 1)
    assert (second.error_code, second.producer_id) == (ErrorCode.NONE, first.producer_id + 1)
    assert away.calls == 0


ELECTING = ElectLeadersRequest(topic_partitions=None, timeout_ms=WAIT_MS)
IMPATIENT = ElectLeadersRequest(topic_partitions=None, timeout_ms=1)


class BusyController:
    """The controller of a broker in this process, whose thread waits for the store."""

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        self._started: list[Controller] = []
        self.elections = 0
        """How many it has begun."""
        start, on = Controller.start, ControllerMachine.on

        def starting(controller: Controller) -> Future[None]:
            self._started.append(controller)
            return start(controller)

        def counting(machine: ControllerMachine, event: Event) -> list[Effect]:
            self.elections += isinstance(event, ElectionsAsked)
            return on(machine, event)

        patch.setattr(Controller, "start", starting)
        patch.setattr(ControllerMachine, "on", counting)

    @contextmanager
    def waiting(self) -> Iterator[None]:
        """It does nothing."""
        (controller,) = self._started
        is_back = threading.Event()
        controller._enqueue("", lambda: assert_set(is_back))
        try:
            yield
        finally:
            is_back.set()


def assert_set(event: threading.Event) -> None:
    assert event.wait(WAIT_MS / 1000)


@pytest.fixture
def controller(monkeypatch: pytest.MonkeyPatch) -> BusyController:
    """That of `running`."""
    monkeypatch.setattr(context, "MIN_STORE_MS", 1)
    monkeypatch.setattr(store_calls, "FULL_S", 0.01)
    return BusyController(monkeypatch)


def elect_at_last(running: Running) -> None:
    """Ask until there is room: elections keep theirs until the controller has passed them."""

    def is_done() -> bool:
        (answer,) = ask_alone(running.port, ELECTING, 1)
        assert answer.error_code in (ErrorCode.NONE, TIMED_OUT)
        return answer.error_code == ErrorCode.NONE

    eventually(is_done, "the election is done")


def test_elections_that_were_given_up_are_never_begun(
    controller: BusyController, running: Running
) -> None:
    with controller.waiting():
        for _ in range(2 * MOST):
            (answer,) = ask_alone(running.port, IMPATIENT, 1)
            assert answer.error_code == TIMED_OUT
    elect_at_last(running)
    assert controller.elections == 1


def test_elections_of_clients_that_have_gone_are_never_begun(
    controller: BusyController, running: Running
) -> None:
    connections = running.broker.reactor_stats.connections
    with controller.waiting():
        before, clients = running.requests, Clients(running.port)
        for _ in range(MOST):
            clients.send(ELECTING, 1)
        running.until_read(before + MOST)
        clients.close()
        eventually(
            lambda: running.broker.reactor_stats.connections == connections, "they have gone"
        )
        (answer,) = ask_alone(running.port, *OTHERS["Metadata"])  # the event loop has heard of it
        assert {*codes_of(answer)} == {ErrorCode.NONE}
    elect_at_last(running)
    assert controller.elections == 1


def test_elections_that_have_no_room_to_wait_are_refused(
    controller: BusyController, running: Running
) -> None:
    waiting = Clients(running.port)
    with controller.waiting():
        before = running.requests
        for _ in range(MOST):
            waiting.send(ELECTING, 1)
        running.until_read(before + MOST)
        (refused,) = ask_alone(running.port, ELECTING, 1)
        assert refused.error_code == TIMED_OUT
        assert waiting.answered == 0
    assert [answer.error_code for answer in waiting.receive()] == [ErrorCode.NONE] * MOST
