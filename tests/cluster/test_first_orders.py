"""A broker has just started, and the controller has not said yet which partitions it leads."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from plog.client.admin import Admin
from plog.cluster.partition import Partition
from plog.coordinator.shards import Shards
from plog.errors import ErrorCode
from plog.handlers import context
from plog.protocol.messages.groups import FindCoordinatorRequest, SyncGroupRequest
from plog.protocol.messages.produce import ProduceRequest, ProduceResponse
from plog.protocol.messages.transactions import EndTxnRequest
from plog.protocol.schema import Struct
from plog.types import TopicPartition
from tests.cluster.processes import Brokers
from tests.compat.live_kafka import ZooKeeper
from tests.coordinator.conftest import GROUP, TRANSACTION
from tests.handlers.running import Running
from tests.handlers.wire import Speaker, create_topic, flat, make_batch, produce_request
from tests.waiting import until

pytestmark = pytest.mark.usefixtures("plane")

PRODUCER_ID = 4_000
PARTITIONS = 3
SILENT_MS = 300
TRIES = 3
LOADS = ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
KNOWS_NO_SUCH = (ErrorCode.UNKNOWN_MEMBER_ID, ErrorCode.INVALID_PRODUCER_ID_MAPPING)
SESSION_MS = 10_000
"""The longest that the server allows: the suspended controller is to keep its session."""


@pytest.fixture
def brokers(tmp_path: Path, zookeeper: ZooKeeper) -> Iterator[Brokers]:
    settings = {"zookeeper_session_timeout_ms": SESSION_MS}
    with Brokers(tmp_path, zookeeper.bootstrap, **settings) as running:
        yield running


def test_requests_that_were_sent_together_are_taken_or_refused_together(brokers: Brokers) -> None:
    """Else a client sees the first refused and the next one with a gap before it.

    librdkafka then takes a new epoch for all partitions, and writes records of others again.
    """
    with Admin(brokers.bootstrap) as admin:
        admin.create_topic("t", partitions=PARTITIONS)
        brokers.all_until(lambda admin: "t" in admin.topics())
        leaders = {at: one.leader_id for at, one in admin.topic("t").partitions.items()}
    place, leader = next(one for one in leaders.items() if one[1] != brokers.controller)
    requests = [
        produce_request([("t", place, make_batch(producer=(PRODUCER_ID, 0, sequence)))])
        for sequence in range(5)
    ]
    for _ in range(TRIES):
        found = sent_at_the_start(brokers, leader, requests)
        if found != [(ErrorCode.NOT_LEADER_OR_FOLLOWER, -1)] * len(requests):
            break  # else it had no log yet, or the controller took longer than requests wait
    assert found == [(ErrorCode.NONE, offset) for offset in range(len(requests))]


def sent_at_the_start(
    brokers: Brokers, leader: int, requests: Sequence[ProduceRequest]
) -> list[tuple[int, int]]:
    """Send requests to a broker before it knows its roles; return error codes and offsets."""
    brokers[leader].kill()
    with brokers[brokers.controller].suspended():
        brokers[leader].start()
        wire = Speaker("127.0.0.1", brokers[leader].port)
        for request in requests:
            wire.send(request, ProduceResponse, version=9)
        assert not wire.ready(SILENT_MS), "it knows nothing yet"
    parts = [flat(wire.receive(ProduceResponse)) for _ in requests]
    wire.close()
    return [(part.error_code, part.base_offset) for (part,) in parts]


@pytest.mark.parametrize("kind", [GROUP, TRANSACTION], ids=["group", "transactional id"])
def test_coordinator_that_does_not_know_its_shards_yet_is_asked_again(
    brokers: Brokers, kind: int
) -> None:
    """NOT_COORDINATOR would be wrong, and some calls of librdkafka end with it."""
    with closing(Speaker("127.0.0.1", brokers[brokers.controller].port)) as wire:
        places = ((key, coordinator_of(wire, kind, key)) for key in map(str, itertools.count()))
        key, coordinator = next(one for one in places if one[1] != brokers.controller)
    request = for_coordinator(kind, key)
    brokers[coordinator].kill()
    brokers[coordinator].start()
    with closing(Speaker("127.0.0.1", brokers[coordinator].port)) as wire:
        assert first_known(wire, request) in KNOWS_NO_SUCH


@pytest.mark.parametrize("kind", [GROUP, TRANSACTION], ids=["group", "transactional id"])
def test_coordinator_learns_of_its_shards_a_little_later(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: int
) -> None:
    """One order names many partitions, and the coordinator hears of them after the last."""
    held: list[Callable[[], object]] = []
    change = Shards._change

    def hold(self: Shards[Any], leading: list[Partition], following: list[Partition]) -> None:
        held.append(partial(self._loop.call_soon_threadsafe, change, self, leading, following))

    monkeypatch.setattr(Shards, "_change", hold)
    running = Running(tmp_path)
    try:
        coordinator_of(running.wire, kind, "key")
        until(lambda: held, "the shards have leaders")
        request = for_coordinator(kind, "key")
        assert running.wire.ask(request, 3).error_code == LOADS
        with monkeypatch.context() as before_the_order:
            before_the_order.setattr(running.broker._replicas, "_partitions", {})
            before_the_order.setattr(context, "MAX_ROLE_WAIT_MS", 100)
            assert running.wire.ask(request, 3).error_code == LOADS
        monkeypatch.undo()
        while held:
            held.pop(0)()
        assert first_known(running.wire, request) in KNOWS_NO_SUCH
    finally:
        running.stop()


def for_coordinator(kind: int, key: str) -> Struct:
    """Return a request of a member, or of a producer, that its coordinator does not know."""
    if kind == GROUP:
        return SyncGroupRequest(group_id=key, generation_id=1, member_id="m", assignments=[])
    return EndTxnRequest(transactional_id=key, producer_id=1, producer_epoch=0, committed=True)


def first_known(wire: Speaker, request: Struct) -> int:
    """Ask again and again, and return the first error code other than `LOADS`."""
    codes: list[int] = []

    def is_known() -> bool:
        codes.append(int(wire.ask(request, 3).error_code))
        return codes[-1] != LOADS

    until(is_known, "the coordinator knows its shards")
    return codes[-1]


def coordinator_of(wire: Speaker, kind: int, key: str) -> int:
    """Return the coordinator of a key, once there is one."""
    request = FindCoordinatorRequest(key_type=kind, coordinator_keys=[key])
    found = []

    def is_found() -> bool:
        found[:] = wire.ask(request, 4).coordinators
        return bool(found[0].error_code == ErrorCode.NONE)

    until(is_found, "a coordinator")
    return int(found[0].node_id)


def test_one_request_waits_in_vain_and_no_later_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(context, "MAX_ROLE_WAIT_MS", 100)
    running = Running(tmp_path)
    try:
        topic, _ = create_topic(running.wire)
        at = TopicPartition(topic, 0)
        replicas = running.broker._replicas
        replicas._partitions.pop(at)._lead_no_more()
        assert replicas.lacks_role(at)
        (part,) = flat(running.wire.ask(produce_request([(topic, 0, make_batch())]), 9))
        assert part.error_code == ErrorCode.NOT_LEADER_OR_FOLLOWER
        assert not replicas.lacks_role(at)
    finally:
        running.stop()
