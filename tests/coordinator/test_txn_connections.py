"""Which requests come late, by the connections of clients as there are."""

from __future__ import annotations

import pytest

from plog.coordinator.txn_connections import Sender, TxnConnections, Way
from plog.types import TopicPartition

COORDINATOR, PRODUCE, OFFSETS = Way

Connections = dict[Way, int]

CLIENTS: dict[str, list[set[Way]]] = {
    "Java": [{COORDINATOR, PRODUCE, OFFSETS}],
    "librdkafka": [{COORDINATOR}, {PRODUCE, OFFSETS}],
    "franz-go": [{PRODUCE}, {COORDINATOR, OFFSETS}],
}
"""Which kinds of requests share a connection."""


@pytest.mark.parametrize("client", CLIENTS)
@pytest.mark.parametrize("order", [1, -1])
def test_nothing_of_a_client_is_late_however_often_it_connects(client: str, order: int) -> None:
    heard = TxnConnections()
    number = 0
    by: Connections = {}
    shares = CLIENTS[client][::order]
    for turn in range(6):
        for share in shares:
            if turn % 3 == 0 or (turn % 3 == 1 and share is shares[-1]):
                number += 1
                by |= dict.fromkeys(share, number)
        for way in Way:
            for _ in range(2):
                assert not heard.is_late(Sender(way, by[way])), (turn, way)
                heard.note(Sender(way, by[way]))
        assert not heard.is_late(Sender(COORDINATOR, by[COORDINATOR]))
        heard.end(by[COORDINATOR])


@pytest.mark.parametrize("client", CLIENTS)
@pytest.mark.parametrize("way", Way)
def test_what_comes_by_a_connection_that_was_given_up_is_late(client: str, way: Way) -> None:
    heard = TxnConnections()
    shares = CLIENTS[client]
    by = {one: number for number, share in enumerate(shares, 1) for one in share}
    for one in Way:
        heard.note(Sender(one, by[one]))
    late = Sender(way, by[way])
    (share,) = (share for share in shares if way in share)
    by |= dict.fromkeys(share, 9)
    for one in share:  # which ask again
        heard.note(Sender(one, 9))
    assert not heard.is_late(late)  # its transaction is still open
    heard.end(by[COORDINATOR])
    assert heard.is_late(late)


def test_leave_counts_as_long_as_nobody_was_asked_and_the_transaction_is_open() -> None:
    heard = TxnConnections()
    a, b = TopicPartition("t", 0), TopicPartition("t", 1)
    heard.give([a, b], 4)
    heard.ask([b])
    assert heard.unasked == {a: 4}
    heard.end(4)
    assert not heard.unasked
    heard.give([b], 4)
    assert heard.unasked == {b: 4}


def test_a_later_connection_of_another_kind_makes_nothing_late() -> None:
    heard = TxnConnections()
    heard.note(Sender(PRODUCE, 1))
    heard.note(Sender(OFFSETS, 2))
    heard.end(3)
    assert not heard.is_late(Sender(PRODUCE, 1))
    assert not heard.is_late(Sender(OFFSETS, 2))
    assert heard.is_late(Sender(OFFSETS, 1))
    assert heard.is_late(Sender(COORDINATOR, 2))
