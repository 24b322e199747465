"""The orders to one broker: their order, their pauses, and the end of a channel."""

from __future__ import annotations

from itertools import pairwise

from plog.cluster.control_requests import ControlResponse
from plog.cluster.order_queue import MAX_PAUSE_S, PAUSE_S, OrderQueue
from plog.protocol.messages.replication import (
    StopReplicaRequest,
    StopReplicaResponse,
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
