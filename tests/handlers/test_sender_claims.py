"""Requests between brokers on a listener that clients use too: privileges of brokers."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from plog.cluster.control_fence import NO_BROKER_EPOCH
from plog.cluster.peer_link import CLIENT_ID, broker_of
from plog.handlers.dispatch import Dispatcher
from plog.handlers.registry import load
from plog.handlers.sender_claims import KRAFT_SINCE
from plog.network.control_plane import CloseConnection
from plog.protocol import codec, framing
from plog.protocol.messages.producers import AllocateProducerIdsRequest
from plog.protocol.messages.replication import (
    AlterPartitionRequest,
    ControlledShutdownRequest,
    LeaderAndIsrRequest,
    LeaderAndIsrTopicState,
    StopReplicaRequest,
    StopReplicaTopicState,
    UpdateMetadataRequest,
    UpdateMetadataTopicState,
)
from plog.protocol.messages.transactions import AddPartitionsToTxnRequest, WriteTxnMarkersRequest
from plog.protocol.schema import Struct

EPOCH, OTHER_EPOCH = 2**40 + 7, 2**40 + 8
REGISTERED, UNREGISTERED = 1, 2
ORDERS: list[type[Struct]] = [LeaderAndIsrRequest, StopReplicaRequest, UpdateMetadataRequest]
VERSIONS = [
    (order, version)
    for order in ORDERS
    for version in range(load()[order.api.key].min_version, load()[order.api.key].max_version + 1)
]
STATES: dict[type[Struct], Any] = {
    LeaderAndIsrRequest: LeaderAndIsrTopicState,
    StopReplicaRequest: StopReplicaTopicState,
    UpdateMetadataRequest: UpdateMetadataTopicState,
}
INTERNAL: Any = SimpleNamespace(listener=SimpleNamespace(is_inter_broker=True))
CLIENTS: Any = SimpleNamespace(listener=SimpleNamespace(is_inter_broker=False))


def dispatcher(epoch: int = EPOCH) -> tuple[Dispatcher, list[Struct]]:
    """Return one whose handlers do nothing, and the requests that they got."""
    got: list[Struct] = []

    def handle(context: object, request: Struct) -> None:
        got.append(request)

    services: Any = SimpleNamespace(
        gate=SimpleNamespace(broker_epoch=epoch),
        metadata=SimpleNamespace(snapshot=SimpleNamespace(brokers={REGISTERED: None})),
        settings=SimpleNamespace(broker=lambda: SimpleNamespace(zookeeper_connect="a:1")),
    )
    handlers = {key: one._replace(function=handle) for key, one in load().items()}
    return Dispatcher(services, handlers, None), got


def order(kind: type[Struct], broker_epoch: int, **fields: Any) -> Struct:
    given: dict[str, Any] = {
        "controller_id": 3,
        "controller_epoch": 4,
        "broker_epoch": broker_epoch,
        "topic_states": [],
    }
    if kind is LeaderAndIsrRequest:
        given["live_leaders"] = []
    if kind is UpdateMetadataRequest:
        given["live_brokers"] = []
    return kind(**given, **fields)


def frame_of(request: Struct, version: int, client_id: str = "a client") -> memoryview:
    key = type(request).api.key
    header = framing.encode_request_header(key, version, 1, client_id)
    return memoryview(header + codec.encode(request, version))


@pytest.mark.parametrize(("kind", "version"), VERSIONS)
def test_order_is_urgent_if_it_has_the_epoch_of_this_registration(
    kind: type[Struct], version: int
) -> None:
    made, _ = dispatcher()
    mine, other = (frame_of(order(kind, epoch), version) for epoch in (EPOCH, OTHER_EPOCH))
    assert made.is_urgent(INTERNAL, mine)
    assert not made.is_urgent(CLIENTS, mine)
    assert not made.is_urgent(INTERNAL, other)
    from_broker = frame_of(order(kind, OTHER_EPOCH), version, CLIENT_ID.format(REGISTERED))
    assert not made.is_urgent(INTERNAL, from_broker)


def test_every_order_is_in_the_table() -> None:
    assert {*KRAFT_SINCE} == {kind.api.key for kind in ORDERS}


def test_no_order_is_urgent_before_this_broker_is_registered() -> None:
    made, _ = dispatcher(NO_BROKER_EPOCH)
    assert not made.is_urgent(INTERNAL, frame_of(order(StopReplicaRequest, NO_BROKER_EPOCH), 4))


@pytest.mark.parametrize(
    ("request_", "version"),
    [
        (ControlledShutdownRequest(broker_id=REGISTERED, broker_epoch=1), 3),
        (AlterPartitionRequest(broker_id=REGISTERED, broker_epoch=1, topics=[]), 3),
        (AllocateProducerIdsRequest(broker_id=REGISTERED, broker_epoch=1), 0),
        (WriteTxnMarkersRequest(markers=[]), 1),
        (AddPartitionsToTxnRequest(transactions=[]), 4),
    ],
)
def test_other_requests_are_urgent_if_they_name_a_registered_broker(
    request_: Struct, version: int
) -> None:
    made, _ = dispatcher()

    def is_urgent(client_id: str) -> bool:
        return made.is_urgent(INTERNAL, frame_of(request_, version, client_id))

    assert is_urgent(CLIENT_ID.format(REGISTERED))
    assert not is_urgent(CLIENT_ID.format(UNREGISTERED))
    assert not is_urgent("a client")


def test_frames_that_end_early_are_not_urgent() -> None:
    made, _ = dispatcher()
    whole = frame_of(order(StopReplicaRequest, EPOCH), 4)
    urgent = [end for end in range(len(whole) + 1) if made.is_urgent(INTERNAL, whole[:end])]
    epoch_ends = bytes(whole).index(EPOCH.to_bytes(8, "big")) + 8
    assert urgent == [*range(epoch_ends, len(whole) + 1)]


@pytest.mark.parametrize(("kind", "version"), VERSIONS)
@pytest.mark.parametrize("epoch", [EPOCH, OTHER_EPOCH])
def test_only_an_order_for_this_registration_may_be_larger_than_clients_requests(
    monkeypatch: pytest.MonkeyPatch, kind: type[Struct], version: int, epoch: int
) -> None:
    monkeypatch.setattr(framing, "MOST_REQUEST_ELEMENTS", 3)
    made, got = dispatcher()
    large: Any = order(kind, epoch)
    large.topic_states = [STATES[kind](topic_name=f"t{n}", partition_states=[]) for n in range(4)]
    frame = frame_of(large, version)
    connection: Any = SimpleNamespace(**vars(INTERNAL), received_us=0)
    if epoch == EPOCH:
        made(connection, frame)
        assert len(got) == 1
    else:
        with pytest.raises(CloseConnection, match="past the 3 elements of one message"):
            made(connection, frame)
        assert not got


@pytest.mark.parametrize(
    ("client_id", "broker_id"),
    [
        ("plog-broker-12", 12),
        ("plog-broker-", None),
        ("plog-broker-x", None),
        ("plog-broker--1", None),
        ("plog-broker-\u0663", None),
        ("plog-broker-" + "9" * 5000, None),
        ("other-broker-1", None),
        ("", None),
    ],
)
def test_client_ids_name_brokers(client_id: str, broker_id: int | None) -> None:
    assert broker_of(client_id) == broker_id
