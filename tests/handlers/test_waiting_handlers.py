"""Handlers that wait for a log, other brokers or the controller: they keep no others waiting."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from concurrent.futures import Future
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from plog.cluster.controller import Controller
from plog.coordinator.group_coordinator import GroupCoordinator
from plog.coordinator.group_endings import GroupEndings
from plog.coordinator.txn_coordinator import TxnCoordinator
from plog.errors import CoordinatorNotAvailable, ErrorCode
from plog.protocol.messages.consumer_groups import ConsumerGroupHeartbeatRequest
from plog.protocol.messages.group_admin import DeleteGroupsRequest
from plog.protocol.messages.groups import (
    HeartbeatRequest,
    JoinGroupRequest,
    LeaveGroupRequest,
    SyncGroupRequest,
)
from plog.protocol.messages.metadata import MetadataRequest
from plog.protocol.messages.offsets import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
)
from plog.protocol.messages.producers import InitProducerIdRequest
from plog.protocol.messages.topics import ElectLeadersRequest
from plog.protocol.messages.transactions import (
    AddOffsetsToTxnRequest,
    AddPartitionsToTxnRequest,
    AddPartitionsToTxnTopic,
    AddPartitionsToTxnTransaction,
    EndTxnRequest,
    WritableTxnMarker,
    WritableTxnMarkerTopic,
    WriteTxnMarkersRequest,
)
from plog.protocol.schema import Struct
from tests.handlers.clients import Clients, ask_alone, codes_of
from tests.handlers.running import Running
from tests.handlers.wire import WAIT_MS, create_topic, eventually

MOST = 3
PRODUCER: dict[str, Any] = {"transactional_id": "id", "producer_id": 1, "producer_epoch": 0}
MEMBER: dict[str, Any] = {"group_id": "a", "generation_id": 1, "member_id": "m"}
OFFSET = OffsetCommitRequestPartition(
    partition_index=0, committed_offset=0, committed_metadata=None
)
MARKER = WritableTxnMarker(
    producer_id=1,
    producer_epoch=0,
    transaction_result=True,
    topics=[WritableTxnMarkerTopic(name="t", partition_indexes=[0])],
    coordinator_epoch=0,
)
JOINING = ConsumerGroupHeartbeatRequest(
    group_id="a",
    member_id="m",
    member_epoch=0,
    rebalance_timeout_ms=1000,
    subscribed_topic_names=["t"],
    topic_partitions=[],
)


def joining(*transactional_ids: str) -> AddPartitionsToTxnRequest:
    return AddPartitionsToTxnRequest(
        transactions=[
            AddPartitionsToTxnTransaction(
                transactional_id=one,
                producer_id=1,
                producer_epoch=0,
                topics=[AddPartitionsToTxnTopic(name="t", partitions=[0])],
            )
            for one in transactional_ids
        ]
    )


class Case(NamedTuple):
    """A request, at a version, and the method that its handler waits for."""

    owner: type
    method: str
    request: Struct
    version: int


CASES = {
    "JoinGroup": Case(
        GroupCoordinator,
        "join",
        JoinGroupRequest(
            group_id="a",
            session_timeout_ms=6000,
            member_id="",
            protocol_type="consumer",
            protocols=[],
        ),
        1,
    ),
    "SyncGroup": Case(GroupCoordinator, "sync", SyncGroupRequest(**MEMBER, assignments=[]), 1),
    "Heartbeat": Case(GroupCoordinator, "beat", HeartbeatRequest(**MEMBER), 1),
    "LeaveGroup": Case(
        GroupCoordinator, "leave", LeaveGroupRequest(group_id="a", member_id="m"), 1
    ),
    "OffsetCommit": Case(
        GroupCoordinator,
        "commit",
        OffsetCommitRequest(
            group_id="a", topics=[OffsetCommitRequestTopic(name="t", partitions=[OFFSET])]
        ),
        2,
    ),
    "ConsumerGroupHeartbeat": Case(GroupCoordinator, "beat_as_consumer", JOINING, 1),
    "DeleteGroups": Case(GroupEndings, "delete", DeleteGroupsRequest(groups_names=["a"]), 1),
    "InitProducerId": Case(
        TxnCoordinator,
        "init",
        InitProducerIdRequest(transactional_id="id", transaction_timeout_ms=1000),
        1,
    ),
    "AddOffsetsToTxn": Case(
        TxnCoordinator,
        "add",
        AddOffsetsToTxnRequest(**PRODUCER, group_id="a"),
        1,
    ),
    "AddPartitionsToTxn": Case(TxnCoordinator, "add", joining("id"), 4),
    "EndTxn": Case(TxnCoordinator, "end", EndTxnRequest(**PRODUCER, committed=True), 1),
    "WriteTxnMarkers": Case(
        TxnCoordinator,
        "write_marker",
        WriteTxnMarkersRequest(markers=[MARKER]),
        1,
    ),
    "ElectLeaders": Case(
        Controller,
        "elect_leaders",
        ElectLeadersRequest(topic_partitions=None, timeout_ms=WAIT_MS),
        1,
    ),
}


PARTS = {
    "AddPartitionsToTxn": Case(TxnCoordinator, "add", joining("a", "b", "c"), 4),
    "DeleteGroups": Case(
        GroupEndings, "delete", DeleteGroupsRequest(groups_names=["a", "b", "c"]), 1
    ),
}
"""Requests of three parts, which wait each."""


class Waits:
    """What handlers wait for in vain, until it is refused."""

    def __init__(self, patch: pytest.MonkeyPatch, case: Case) -> None:
        self._all: list[Future[Any]] = []
        waits = self._begin if case.owner is Controller else self._wait
        patch.setattr(case.owner, case.method, lambda *_, **__: waits())

    @property
    def count(self) -> int:
        return len(self._all)

    def _begin(self) -> Future[Any]:
        self._all.append(Future())
        return self._all[-1]

    async def _wait(self) -> Any:
        return await asyncio.wrap_future(self._begin())

    def end(self) -> None:
        for one in self._all:
            one.set_exception(CoordinatorNotAvailable("the wait is over"))


@pytest.fixture
def running(tmp_path: Path) -> Iterator[Running]:
    one = Running(tmp_path, queued_max_requests=MOST)
    create_topic(one.wire, "t")
    yield one
    one.stop()


@pytest.fixture
def waits(monkeypatch: pytest.MonkeyPatch, case: Case) -> Waits:
    return Waits(monkeypatch, case)


@pytest.fixture
def clients(running: Running) -> Clients:
    return Clients(running.port)


@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_handlers_that_wait_keep_no_others_waiting(
    running: Running, waits: Waits, clients: Clients, case: Case
) -> None:
    for _ in range(MOST):
        clients.send(case.request, case.version)
    eventually(lambda: waits.count == MOST, "all are under way")
    (answer,) = ask_alone(running.port, MetadataRequest(topics=None), 4)
    assert [topic.error_code for topic in answer.topics] == [ErrorCode.NONE]
    assert clients.answered == 0
    waits.end()
    assert len(clients.receive()) == MOST


@pytest.mark.parametrize("case", PARTS.values(), ids=PARTS)
def test_parts_of_a_request_wait_at_the_same_time(
    waits: Waits, clients: Clients, case: Case
) -> None:
    clients.send(case.request, case.version)
    eventually(lambda: waits.count == 3, "all wait")
    waits.end()
    (answer,) = clients.receive()
    codes = [code for code in codes_of(answer) if code != ErrorCode.NONE]
    assert codes == [ErrorCode.COORDINATOR_NOT_AVAILABLE] * 3
