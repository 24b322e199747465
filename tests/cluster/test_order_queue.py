"""The orders to one broker: their order, which are merged, their pauses, the end of a channel."""

from __future__ import annotations

import random
import uuid
from itertools import pairwise

import pytest

from plog.cluster.control_fence import ControlFence
from plog.cluster.control_requests import DRAIN, FULL, INCREMENTAL, ControlRequest, ControlResponse
from plog.cluster.metadata_cache import MetadataCache
from plog.cluster.order_queue import MAX_PAUSE_S, PAUSE_S, OrderQueue
from plog.protocol.messages.replication import (
    LeaderAndIsrLiveLeader,
    LeaderAndIsrPartitionState,
    LeaderAndIsrRequest,
    LeaderAndIsrTopicState,
    StopReplicaRequest,
    StopReplicaResponse,
    UpdateMetadataBroker,
    UpdateMetadataPartitionState,
    UpdateMetadataRequest,
    UpdateMetadataTopicState,
)


def order(number: int) -> StopReplicaRequest:
    return StopReplicaRequest(
        controller_id=number, controller_epoch=1, broker_epoch=1, topic_states=[]
    )


RESPONSE = StopReplicaResponse(error_code=0, partition_errors=[])


def test_next_order_waits_for_the_response_to_the_first() -> None:
    queue, responses = OrderQueue(), list[tuple[int, ControlResponse]]()
    assert queue.first is None
    for number in (1, 2):
        queue.put(order(number), lambda one, number=number: responses.append((number, one)))
    assert queue.first == order(1)
    assert queue.first == order(1)
    queue.note_response(RESPONSE)
    assert queue.first == order(2)
    queue.note_response(RESPONSE)
    assert queue.first is None
    assert responses == [(1, RESPONSE), (2, RESPONSE)]


def test_order_stays_the_first_while_it_fails_and_waits_ever_longer() -> None:
    queue = OrderQueue()
    queue.put(order(1), lambda response: None)
    queue.put(order(2), lambda response: None)
    pauses = [queue.note_failure() for _ in range(8)]
    assert queue.first == order(1)
    assert pauses[0] == PAUSE_S
    assert pauses[-1] == MAX_PAUSE_S
    assert all(later == min(2 * pause, MAX_PAUSE_S) for pause, later in pairwise(pauses))
    queue.note_response(RESPONSE)
    assert queue.note_failure() == PAUSE_S


def test_closed_queue_has_no_order_and_reports_no_response() -> None:
    queue, responses = OrderQueue(), list[ControlResponse]()
    queue.put(order(1), responses.append)
    queue.close()
    assert queue.first is None
    queue.note_response(RESPONSE)
    queue.put(order(2), responses.append)
    assert queue.first is None
    assert responses == []


# -- merging -----------------------------------------------------------------------------------

IDS = {name: uuid.UUID(int=number) for number, name in enumerate("abcdef", 1)}
EPOCHS = {"controller_id": 1, "controller_epoch": 1, "broker_epoch": 1}


def lead(name: str, *epochs: int, is_new: bool = False, leader: int = 2) -> LeaderAndIsrRequest:
    """Return an order for the partitions 0, 1, ... of a topic; an epoch -1: not for this one."""
    states = [
        LeaderAndIsrPartitionState(
            partition_index=index,
            controller_epoch=1,
            leader=leader,
            leader_epoch=epoch,
            isr=[leader],
            partition_epoch=epoch,
            replicas=[1, 2],
            is_new=is_new,
        )
        for index, epoch in enumerate(epochs)
        if epoch >= 0
    ]
    live = LeaderAndIsrLiveLeader(broker_id=leader, host_name="h", port=1)
    topic = LeaderAndIsrTopicState(topic_name=name, topic_id=IDS[name], partition_states=states)
    return LeaderAndIsrRequest(**EPOCHS, topic_states=[topic], live_leaders=[live])


def tell(
    name: str,
    *epochs: int,
    topic_id: uuid.UUID | None = None,
    leader: int = 2,
    is_full: bool = False,
    live: int = 1,
) -> UpdateMetadataRequest:
    """Return an update of the partitions 0, 1, ... of a topic."""
    states = [
        UpdateMetadataPartitionState(
            partition_index=index,
            controller_epoch=1,
            leader=leader,
            leader_epoch=epoch,
            isr=[leader],
            zk_version=epoch,
            replicas=[1, 2],
            offline_replicas=[],
        )
        for index, epoch in enumerate(epochs)
        if epoch >= 0
    ]
    topic = UpdateMetadataTopicState(
        topic_name=name, topic_id=topic_id or IDS[name], partition_states=states
    )
    return UpdateMetadataRequest(
        **EPOCHS,
        type=FULL if is_full else INCREMENTAL,
        topic_states=[topic],
        live_brokers=[UpdateMetadataBroker(id=live, endpoints=[], rack=None)],
    )


def queue_of(*orders: ControlRequest) -> list[ControlRequest]:
    """Return the requests for orders that are put while an earlier one waits for a response."""
    queue = OrderQueue()
    queue.put(order(0), lambda response: None)
    for one in orders:
        queue.put(one, lambda response: None)
    sent = []
    queue.note_response(RESPONSE)
    while queue.first is not None:
        sent.append(queue.first)
        queue.note_response(RESPONSE)
    return sent


def kinds(*orders: ControlRequest) -> str:
    """Return L, U and S for the requests for these orders."""
    return "".join(type(one).__name__[0] for one in queue_of(*orders))


L, U, S, FULL_U = lead("a", 0), tell("a", 0), order(0), tell("a", 0, is_full=True)
DRAINS = lead("a", 0)
DRAINS.type = DRAIN


@pytest.mark.parametrize(
    ("orders", "sent"),
    [
        ([L, L, L], "L"),
        ([U, U, U], "U"),
        ([U, L, U, L], "UL"),  # a later update comes before what needs it
        ([L, U, L, U, L, U], "LUL"),  # no order comes before an update that it may need
        ([S, S], "SS"),
        ([L, S, L], "LSL"),
        ([U, S, U], "USU"),
        ([U, L, S, S, U, L, U, L], "ULSSUL"),
        ([U, FULL_U, U, U], "UUU"),
        ([FULL_U, FULL_U], "UU"),
        ([FULL_U, L, U, L, U], "ULUL"),
        ([L, DRAINS, DRAINS, L, L], "LLLL"),
    ],
)
def test_orders_that_wait_are_merged_unless_one_would_come_too_early(
    orders: list[ControlRequest], sent: str
) -> None:
    assert kinds(*orders) == sent


@pytest.mark.parametrize("make", [lead, tell])
@pytest.mark.parametrize("field", EPOCHS)
def test_orders_of_different_epochs_stay_apart(make, field: str) -> None:
    later = make("a", 1)
    setattr(later, field, 2)
    assert queue_of(make("a", 0), later) == [make("a", 0), later]


@pytest.mark.parametrize("make", [lead, tell])
def test_order_that_may_have_been_sent_stays_as_it_is(make) -> None:
    queue, responses = OrderQueue(), list[str]()
    for number in range(3):
        queue.put(make("a", number), lambda response, name=number: responses.append(name))
    queue.note_failure()
    assert queue.first == make("a", 0)
    queue.note_response(RESPONSE)
    assert queue.first == make("a", 2)
    queue.note_response(RESPONSE)
    assert responses == [0, 2]


def test_later_order_supersedes_the_one_for_the_same_partition() -> None:
    first, second = lead("a", 0, 0, is_new=True), lead("a", -1, 1, 0, leader=3)
    before = repr((first, second))
    (merged,) = queue_of(first, second, lead("b", 0))
    states = {
        (topic.topic_name, one.partition_index): (one.leader, one.leader_epoch, one.is_new)
        for topic in merged.topic_states
        for one in topic.partition_states
    }
    assert states == {
        ("a", 0): (2, 0, True),
        ("a", 1): (3, 1, True),
        ("a", 2): (3, 0, False),
        ("b", 0): (2, 0, False),
    }
    assert {one.broker_id for one in merged.live_leaders} == {2, 3}
    assert repr((first, second)) == before


def test_merged_updates_say_what_they_said_one_by_one() -> None:
    rng = random.Random(5)
    for _ in range(300):
        apart, merged = (MetadataCache(ControlFence()) for _ in range(2))
        known = tell("a", 0, 0)
        orders: list[ControlRequest] = []
        made = 100
        ids = dict(IDS)
        for _ in range(rng.randint(2, 6)):
            name = rng.choice("ab")
            if rng.random() < 0.3:  # it is deleted and created again: no id comes back
                made += 1
                ids[name] = uuid.UUID(int=made)
            partitions = rng.choice([(1,), (1, 1), (-1, 2)])
            leader, live = rng.choice([1, 2, -1, -2]), rng.choice([1, 2])
            orders.append(tell(name, *partitions, topic_id=ids[name], leader=leader, live=live))
        (sent,) = queue_of(*orders)
        for cache, given in ((apart, [known, *orders]), (merged, [known, sent])):
            for one in given:
                assert cache.apply(one).error_code == 0
        assert merged.snapshot.topics == apart.snapshot.topics, orders
        assert merged.snapshot.topic_names == apart.snapshot.topic_names
        assert merged.snapshot.brokers == apart.snapshot.brokers


def test_unreachable_broker_collects_no_more_orders_than_there_are_partitions() -> None:
    orders = [make("abc"[number % 3], number) for number in range(300) for make in (lead, tell)]
    sent = queue_of(*orders)
    assert len(sent) == 3
    assert sum(len(one.topic_states) for one in sent) <= 9
