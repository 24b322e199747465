"""Which requests come late, by the connections of clients as there are."""

from __future__ import annotations

import pytest

from plog.coordinator.txn_connections import ClientConnection, Sender, TxnConnections, Way
from plog.types import TopicPartition

COORDINATOR, PRODUCE, OFFSETS = Way

Connections = dict[Way, int]

CLIENTS: dict[str, list[set[Way]]] = {
    "Java": [{COORDINATOR, PRODUCE, OFFSETS}],
    "librdkafka": [{COORDINATOR}, {PRODUCE, OFFSETS}],
    "franz-go": [{PRODUCE}, {COORDINATOR, OFFSETS}],
}
"""Which kinds of requests share a connection."""

HERE, ELSEWHERE = 0, 1


def at(number: int, broker_id: int = HERE) -> ClientConnection:
    return ClientConnection(broker_id, number)


def sent(way: Way, number: int, broker_id: int = HERE) -> Sender:
    return Sender(way, at(number, broker_id))


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
                assert not heard.is_late(sent(way, by[way])), (turn, way)
                heard.note(sent(way, by[way]))
        assert not heard.is_late(sent(COORDINATOR, by[COORDINATOR]))
        heard.end(at(by[COORDINATOR]))


@pytest.mark.parametrize("client", CLIENTS)
@pytest.mark.parametrize("way", Way)
def test_what_comes_by_a_connection_that_was_given_up_is_late(client: str, way: Way) -> None:
    heard = TxnConnections()
    shares = CLIENTS[client]
    by = {one: number for number, share in enumerate(shares, 1) for one in share}
    for one in Way:
        heard.note(sent(one, by[one]))
    late = sent(way, by[way])
    (share,) = (share for share in shares if way in share)
    by |= dict.fromkeys(share, 9)
    for one in share:  # which ask again
        heard.note(sent(one, 9))
    assert not heard.is_late(late)  # its transaction is still open
    heard.end(at(by[COORDINATOR]))
    assert heard.is_late(late)


def test_grant_counts_as_long_as_nobody_was_asked_and_the_transaction_is_open() -> None:
    heard = TxnConnections()
    a, b = TopicPartition("t", 0), TopicPartition("t", 1)
    heard.grant([a, b], at(4))
    heard.ask([b])
    assert heard.unasked == {a: at(4)}
    heard.end(at(4))
    assert not heard.unasked
    heard.grant([b], at(4))
    assert heard.unasked == {b: at(4)}


def test_a_later_connection_of_another_kind_makes_nothing_late() -> None:
    heard = TxnConnections()
    heard.note(sent(PRODUCE, 1))
    heard.note(sent(OFFSETS, 2))
    heard.end(at(3))
    assert not heard.is_late(sent(PRODUCE, 1))
    assert not heard.is_late(sent(OFFSETS, 2))
    assert heard.is_late(sent(OFFSETS, 1))
    assert heard.is_late(sent(COORDINATOR, 2))


def test_equal_numbers_of_two_brokers_are_two_connections() -> None:
    heard = TxnConnections()
    heard.note(sent(PRODUCE, 7, ELSEWHERE))
    heard.note(sent(COORDINATOR, 7))
    heard.end(at(9))  # the coordinator's connection was given up, that of the writes was not
    assert not heard.is_late(sent(PRODUCE, 7, ELSEWHERE))
    assert heard.is_late(sent(PRODUCE, 6, ELSEWHERE))
    assert heard.is_late(sent(COORDINATOR, 7))
    assert not heard.is_late(sent(PRODUCE, 1))  # of which this broker has seen none


@pytest.mark.parametrize("here", [1, 50])
def test_what_is_late_at_one_broker_says_nothing_of_another(here: int) -> None:
    heard = TxnConnections()
    for way in (COORDINATOR, PRODUCE):  # they share a connection, wherever they go
        heard.note(sent(way, here))
    heard.note(sent(PRODUCE, 20, ELSEWHERE))
    heard.end(at(here + 1))
    assert heard.is_late(sent(PRODUCE, here))
    assert not heard.is_late(sent(PRODUCE, 20, ELSEWHERE))
    heard.note(sent(PRODUCE, 21, ELSEWHERE))
    heard.end(at(here + 1))
    assert heard.is_late(sent(PRODUCE, 20, ELSEWHERE))
