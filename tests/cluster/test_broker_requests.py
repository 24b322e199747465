"""Requests between brokers: on which listener, from whom, and what they are answered."""

from __future__ import annotations

import random
import socket
import uuid
from collections.abc import Iterator
from contextlib import ExitStack, closing, suppress
from pathlib import Path

import pytest

from plog.client.admin import Admin
from plog.client.connection import Connection
from plog.cluster.znodes import CONTROLLER_EPOCH, broker_path, decode_controller_epoch
from plog.errors import ErrorCode, NetworkException
from plog.handlers.registry import load
from plog.protocol.framing import encode_request_header
from plog.protocol.messages.producers import (
    AllocateProducerIdsRequest,
    AllocateProducerIdsResponse,
)
from plog.protocol.messages.replication import (
    AlterPartitionRequest,
    AlterPartitionResponse,
    AlterPartitionState,
    AlterPartitionStateResponse,
    AlterPartitionTopic,
    BrokerState,
    ControlledShutdownRequest,
    ControlledShutdownResponse,
    LeaderAndIsrRequest,
    LeaderAndIsrResponse,
    StopReplicaRequest,
    StopReplicaResponse,
    UpdateMetadataBroker,
    UpdateMetadataEndpoint,
    UpdateMetadataRequest,
    UpdateMetadataResponse,
)
from plog.protocol.schema import Struct
from tests.cluster.processes import Brokers
from tests.compat.live_kafka import ZooKeeper
from tests.hostile.frames import framed
from tests.protocol.instances import sample
from tests.servers import BrokerProcess, free_port
from tests.waiting import until

ORDERS: list[tuple[type[Struct], type[Struct]]] = [
    (LeaderAndIsrRequest, LeaderAndIsrResponse),
    (StopReplicaRequest, StopReplicaResponse),
    (UpdateMetadataRequest, UpdateMetadataResponse),
]
OTHERS: list[tuple[type[Struct], type[Struct]]] = [
    (ControlledShutdownRequest, ControlledShutdownResponse),
    (AlterPartitionRequest, AlterPartitionResponse),
    (AllocateProducerIdsRequest, AllocateProducerIdsResponse),
]
MAX_CONNECTIONS = 30
FRAMES = 400
BETWEEN_BROKERS = {4, 5, 6, 7, 56, 67}
EVERY_VERSION = [
    (request, response, version)
    for request, response in [*ORDERS, *OTHERS]
    for version in range(
        load()[request.api.key].min_version, load()[request.api.key].max_version + 1
    )
]


class One:
    """A broker with a listener for clients and one for brokers; it is the controller, too."""

    def __init__(self, brokers: Brokers, internal: int) -> None:
        self.brokers = brokers
        self.internal = internal
        with closing(brokers.store()) as store:
            self.epoch = store.get(broker_path(0))[1].czxid
            self.controller_epoch = decode_controller_epoch(store.get(CONTROLLER_EPOCH)[0])

    def order(self, request: type[Struct], **fields: object) -> Struct:
        """Return an order that says nothing new."""
        good = {"controller_epoch": self.controller_epoch, "broker_epoch": self.epoch}
        given: dict[str, object] = {"controller_id": 0, "topic_states": [], **good, **fields}
        if request is LeaderAndIsrRequest:
            given["live_leaders"] = []
        elif request is UpdateMetadataRequest:
            ports = {"CLIENTS": self.brokers[0].port, "BROKERS": self.internal}
            ends = [
                UpdateMetadataEndpoint(
                    port=port, host="127.0.0.1", listener=name, security_protocol=0
                )
                for name, port in ports.items()
            ]
            given["live_brokers"] = [UpdateMetadataBroker(id=0, endpoints=ends, rack=None)]
        return request(**given)

    def question(self, request: type[Struct], broker_epoch: int) -> Struct:
        """Return a request of broker 0."""
        if request in {order for order, _ in ORDERS}:
            return self.order(request, broker_epoch=broker_epoch)
        more: dict[str, object] = {"topics": []} if request is AlterPartitionRequest else {}
        return request(broker_id=0, broker_epoch=broker_epoch, **more)

    def by_brokers(self) -> Connection:
        return Connection("127.0.0.1", self.internal)

    def by_clients(self) -> Connection:
        return Connection("127.0.0.1", self.brokers[0].port)

    def ask(self, request: Struct, response: type[Struct]) -> Struct:
        with closing(self.by_brokers()) as connection:
            return connection.call(request, response)


@pytest.fixture(scope="module")
def one(tmp_path_factory: pytest.TempPathFactory, zookeeper: ZooKeeper) -> Iterator[One]:
    internal = free_port()
    running = Brokers(tmp_path_factory.mktemp("one"), zookeeper.bootstrap, count=1)
    running[0].overrides |= {
        "listeners": f"CLIENTS://127.0.0.1:{running[0].port},BROKERS://127.0.0.1:{internal}",
        "listener.security.protocol.map": "CLIENTS:PLAINTEXT,BROKERS:PLAINTEXT",
        "inter.broker.listener.name": "BROKERS",
        "max.connections": MAX_CONNECTIONS,
    }
    with running:
        yield One(running, internal)


def test_only_the_listener_between_brokers_names_them(one: One) -> None:
    with closing(one.by_brokers()) as brokers, closing(one.by_clients()) as clients:
        assert brokers.versions.keys() >= BETWEEN_BROKERS
        assert not BETWEEN_BROKERS & clients.versions.keys()


@pytest.mark.parametrize(("request_type", "response"), ORDERS)
def test_order_on_a_listener_of_clients_costs_the_connection(
    one: One, request_type: type[Struct], response: type[Struct]
) -> None:
    request = one.order(request_type)
    with closing(one.by_clients()) as connection, pytest.raises(NetworkException):
        connection.call(request, response, version=request_type.api.versions.high)
    line = f"{request_type.__name__} is accepted on the listener between brokers only"
    until(lambda: line in one.brokers[0].log, "logged")


@pytest.mark.parametrize(
    ("question", "response"),
    [
        (ControlledShutdownRequest(broker_id=0, broker_epoch=9), ControlledShutdownResponse),
        (AlterPartitionRequest(broker_id=0, broker_epoch=9, topics=[]), AlterPartitionResponse),
        (AllocateProducerIdsRequest(broker_id=0, broker_epoch=9), AllocateProducerIdsResponse),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, Struct) else "",
)
def test_question_on_a_listener_of_clients_costs_the_connection(
    one: One, question: Struct, response: type[Struct]
) -> None:
    with closing(one.by_clients()) as connection, pytest.raises(NetworkException):
        connection.call(question, response, version=question.api.versions.high)
    line = f"{type(question).__name__} is accepted on the listener between brokers only"
    until(lambda: line in one.brokers[0].log, "logged")


def test_start_warns_of_the_listener_that_is_open_to_all(one: One) -> None:
    assert "the listener between brokers, BROKERS at 127.0.0.1:" in one.brokers[0].log
    assert "has no authentication yet" in one.brokers[0].log


def test_order_to_a_broker_that_runs_alone_costs_the_connection(tmp_path: Path) -> None:
    with BrokerProcess(tmp_path) as alone:
        request = StopReplicaRequest(
            controller_id=0, controller_epoch=9, broker_epoch=9, topic_states=[]
        )
        with closing(Connection("127.0.0.1", alone.port)) as connection:
            assert not BETWEEN_BROKERS & connection.versions.keys()
            with pytest.raises(NetworkException):
                connection.call(request, StopReplicaResponse, version=4)
        until(lambda: "this broker runs alone" in alone.log, "logged")
        assert "has no authentication yet" not in alone.log


@pytest.mark.parametrize(("request_type", "response"), ORDERS)
@pytest.mark.parametrize(
    ("fields", "error"),
    [
        ({"broker_epoch": -1}, ErrorCode.STALE_BROKER_EPOCH),
        ({"broker_epoch": 1}, ErrorCode.STALE_BROKER_EPOCH),
        ({"controller_epoch": 0}, ErrorCode.STALE_CONTROLLER_EPOCH),
        ({"controller_id": 7}, ErrorCode.STALE_CONTROLLER_EPOCH),
        ({}, ErrorCode.NONE),
    ],
    ids=[
        "no epoch",
        "earlier life",
        "earlier controller",
        "unknown controller",
        "good",
    ],
)
def test_orders_are_fenced(
    one: One,
    request_type: type[Struct],
    response: type[Struct],
    fields: dict[str, int],
    error: ErrorCode,
) -> None:
    answer = one.ask(one.order(request_type, **fields), response)
    assert answer.error_code == error


def test_every_api_between_brokers_is_here() -> None:
    between = {key for key, handler in load().items() if handler.between_brokers}
    assert BETWEEN_BROKERS == between == {request.api.key for request, _, _ in EVERY_VERSION}


@pytest.mark.parametrize(("request_type", "response", "version"), EVERY_VERSION)
def test_broker_of_an_earlier_life_is_refused_at_every_version(
    one: One, request_type: type[Struct], response: type[Struct], version: int
) -> None:
    asked = one.question(request_type, broker_epoch=one.epoch - 1)
    with closing(one.by_brokers()) as connection:
        answer = connection.call(asked, response, version=version)
    assert answer.error_code == ErrorCode.STALE_BROKER_EPOCH


@pytest.mark.parametrize(
    ("request_type", "response", "version"),
    [case for case in EVERY_VERSION if case[0] is not ControlledShutdownRequest],
)
def test_registered_broker_is_answered_at_every_version(
    one: One, request_type: type[Struct], response: type[Struct], version: int
) -> None:
    with closing(one.by_brokers()) as connection:
        answer = connection.call(
            one.question(request_type, broker_epoch=one.epoch), response, version=version
        )
    assert answer.error_code == ErrorCode.NONE


@pytest.mark.parametrize(("request_type", "response"), ORDERS)
@pytest.mark.parametrize(
    "fields",
    [{"broker_epoch": 1 << 40}, {"controller_epoch": 1 << 30}],
    ids=["no life", "no controller"],
)
def test_order_by_an_epoch_that_is_unknown_costs_the_connection(
    one: One, request_type: type[Struct], response: type[Struct], fields: dict[str, int]
) -> None:
    """The controller sends it again: it may be known here only later."""
    with pytest.raises(NetworkException):
        one.ask(one.order(request_type, **fields), response)
    until(lambda: "does not show one of them here yet" in one.brokers[0].log, "logged")


@pytest.mark.parametrize(("request_type", "response"), ORDERS)
def test_order_by_an_earlier_connection_is_late(
    one: One, request_type: type[Struct], response: type[Struct]
) -> None:
    with closing(one.by_brokers()) as first, closing(one.by_brokers()) as second:
        assert first.versions
        assert second.call(one.order(request_type), response).error_code == ErrorCode.NONE
        with pytest.raises(NetworkException):
            first.call(one.order(request_type), response)
    until(lambda: "sent its orders again by a later connection" in one.brokers[0].log, "logged")


@pytest.mark.parametrize(("request_type", "response"), ORDERS)
@pytest.mark.parametrize(
    "forged",
    [{"broker_epoch": 1 << 40}, {"controller_epoch": 1 << 30}, {"controller_epoch": 0}],
    ids=["no life", "no controller", "earlier controller"],
)
def test_order_with_wrong_epochs_does_not_make_the_controllers_late(
    one: One, request_type: type[Struct], response: type[Struct], forged: dict[str, int]
) -> None:
    with closing(one.by_brokers()) as controllers:
        assert controllers.versions
        with suppress(NetworkException):
            answer = one.ask(one.order(request_type, **forged), response)
            assert answer.error_code == ErrorCode.STALE_CONTROLLER_EPOCH
        order = one.order(request_type)
        assert controllers.call(order, response).error_code == ErrorCode.NONE


@pytest.mark.parametrize(
    ("broker_id", "offset", "error"),
    [
        (0, 0, ErrorCode.NONE),
        (0, -1, ErrorCode.STALE_BROKER_EPOCH),
        (7, 0, ErrorCode.BROKER_ID_NOT_REGISTERED),
    ],
)
def test_producer_ids_are_given_in_blocks_to_registered_brokers(
    one: One, broker_id: int, offset: int, error: ErrorCode
) -> None:
    asked = AllocateProducerIdsRequest(broker_id=broker_id, broker_epoch=one.epoch + offset)
    blocks = [one.ask(asked, AllocateProducerIdsResponse) for _ in range(2)]
    assert [block.error_code for block in blocks] == [error, error]
    if error is ErrorCode.NONE:
        first, second = (block.producer_id_start for block in blocks)
        assert second >= first + blocks[0].producer_id_len == first + 1000


@pytest.mark.parametrize(
    ("broker_id", "offset", "error"),
    [
        (7, 0, ErrorCode.BROKER_NOT_AVAILABLE),
        (0, -1, ErrorCode.STALE_BROKER_EPOCH),
    ],
)
def test_controlled_shutdown_is_for_registered_brokers(
    one: One, broker_id: int, offset: int, error: ErrorCode
) -> None:
    asked = ControlledShutdownRequest(broker_id=broker_id, broker_epoch=one.epoch + offset)
    assert one.ask(asked, ControlledShutdownResponse).error_code == error


def test_leader_proposes_its_in_sync_set(one: One) -> None:
    with Admin(one.brokers.bootstrap) as admin:
        admin.create_topic("proposed", partitions=1)
        topic_id = admin.topic("proposed").topic_id

    def propose(isr: list[int], of: uuid.UUID = topic_id) -> AlterPartitionStateResponse:
        state = AlterPartitionState(
            partition_index=0,
            leader_epoch=0,
            new_isr_with_epochs=[BrokerState(broker_id=one) for one in isr],
            partition_epoch=0,
        )
        answer = one.ask(
            AlterPartitionRequest(
                broker_id=0,
                broker_epoch=one.epoch,
                topics=[AlterPartitionTopic(topic_id=of, partitions=[state])],
            ),
            AlterPartitionResponse,
        )
        assert answer.error_code == ErrorCode.NONE
        (topic,) = answer.topics
        assert topic.topic_id == of
        (partition,) = topic.partitions
        return partition

    same = propose([0])
    assert same.error_code == ErrorCode.NONE
    assert (same.leader_id, same.leader_epoch, same.isr, same.partition_epoch) == (0, 0, [0], 0)
    assert propose([0, 1]).error_code == ErrorCode.INVALID_REQUEST
    assert propose([0], uuid.uuid4()).error_code == ErrorCode.UNKNOWN_TOPIC_ID


def test_clients_beyond_their_limit_do_not_keep_brokers_out(one: One) -> None:
    address = ("127.0.0.1", one.brokers[0].port)
    with ExitStack() as undo:
        for _ in range(MAX_CONNECTIONS + 5):
            undo.enter_context(socket.create_connection(address))
        until(lambda: f"max.connections ({MAX_CONNECTIONS}) reached" in one.brokers[0].log, "full")
        assert one.ask(one.order(StopReplicaRequest), StopReplicaResponse).error_code == 0


def hostile_frame(rng: random.Random) -> bytes:
    request, _, version = rng.choice(EVERY_VERSION)
    if rng.random() < 0.7:
        return framed(sample(request, version, rng), version, rng.getrandbits(31))
    header = encode_request_header(request.api.key, version, rng.getrandbits(31), "hostile")
    body = header + rng.randbytes(rng.randrange(0, 200))
    return len(body).to_bytes(4, "big") + body


def test_hostile_requests_between_brokers_change_nothing(one: One) -> None:
    rng = random.Random(FRAMES)
    with Admin(one.brokers.bootstrap) as admin:
        before = admin.topics()
        for _ in range(FRAMES):
            with socket.create_connection(("127.0.0.1", one.internal), 20) as client:
                client.sendall(hostile_frame(rng))
                client.shutdown(socket.SHUT_WR)
                while client.recv(1 << 16):
                    pass
        assert admin.topics() == before
    assert one.ask(one.order(StopReplicaRequest), StopReplicaResponse).error_code == 0
    assert "Traceback" not in one.brokers[0].log


def test_second_broker_of_one_id_is_refused(one: One, tmp_path: Path) -> None:
    twin = BrokerProcess(
        tmp_path,
        overrides={"broker.id": 0, "zookeeper.connect": one.brokers.connect},
    )
    with suppress(AssertionError):  # it listens for a moment, or has ended already
        twin.start()
    assert twin.wait() == 1
    assert "broker id 0 is registered by another process" in twin.log
