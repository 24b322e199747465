"""InitProducerId: ids that nobody had before, whatever becomes of the broker; FindCoordinator."""

from __future__ import annotations

import time
from collections.abc import Callable

import pytest

from plog.cluster.producer_ids import BLOCK_SIZE
from plog.errors import ErrorCode
from plog.protocol.messages.groups import FindCoordinatorRequest
from plog.protocol.messages.producers import InitProducerIdRequest, InitProducerIdResponse
from tests.handlers.wire import WAIT_MS, Speaker, make_batch, produce, speak
from tests.servers import BrokerProcess

GROUP, TRANSACTION, SHARE = 0, 1, 2


def init(
    connection: Speaker,
    *,
    transactional_id: str | None = None,
    producer: tuple[int, int] = (-1, -1),
    version: int = 4,
) -> InitProducerIdResponse:
    request = InitProducerIdRequest(
        transactional_id=transactional_id,
        transaction_timeout_ms=60_000,
        producer_id=producer[0],
        producer_epoch=producer[1],
    )
    return connection.ask(request, version)


@pytest.mark.parametrize("version", range(6))
def test_new_id_begins_at_epoch_0_and_serves(wire: Speaker, topic: str, version: int) -> None:
    one, two = init(wire, version=version), init(wire, version=version)
    assert (one.error_code, one.producer_epoch, two.producer_epoch) == (0, 0, 0)
    assert 0 <= one.producer_id < two.producer_id
    batch = make_batch(producer=(one.producer_id, 0, 0))
    assert produce(wire, topic, batch).error_code == 0


def test_producer_that_names_its_id_gets_another(wire: Speaker) -> None:
    first = init(wire)
    for epoch in (0, 5, 32767):
        again = init(wire, producer=(first.producer_id, epoch))
        assert (again.error_code, again.producer_epoch) == (0, 0)
        assert again.producer_id != first.producer_id


@pytest.mark.parametrize(
    ("transactional_id", "producer", "expected"),
    [
        ("", (-1, -1), ErrorCode.INVALID_REQUEST),
        (None, (5, -1), ErrorCode.INVALID_REQUEST),
        (None, (-1, 5), ErrorCode.INVALID_REQUEST),
        ("t", (-1, 5), ErrorCode.INVALID_REQUEST),
    ],
)
def test_what_is_no_plain_producer_is_refused(
    wire: Speaker, transactional_id: str | None, producer: tuple[int, int], expected: ErrorCode
) -> None:
    answer = init(wire, transactional_id=transactional_id, producer=producer)
    assert ErrorCode(answer.error_code) is expected
    assert (answer.producer_id, answer.producer_epoch) == (-1, -1)


def test_ids_are_new_over_blocks_restarts_and_kills(
    own_broker: Callable[..., BrokerProcess],
) -> None:
    broker = own_broker(log_dirs=2)
    seen: set[int] = set()
    total = 0
    for end in (broker.stop, broker.kill, broker.kill, broker.stop):
        connection = speak(broker.port)
        count = BLOCK_SIZE + 5 if total == 0 else 3
        for _ in range(count):
            connection.send(
                InitProducerIdRequest(transactional_id=None, transaction_timeout_ms=0),
                InitProducerIdResponse,
                version=4,
            )
        seen |= {connection.receive(InitProducerIdResponse).producer_id for _ in range(count)}
        total += count
        assert len(seen) == total
        connection.close()
        end()
        broker.start()


# -- FindCoordinator


@pytest.mark.parametrize("version", range(1, 7))
@pytest.mark.parametrize(
    ("key_type", "expected"),
    [
        (SHARE, ErrorCode.INVALID_REQUEST),
        (9, ErrorCode.INVALID_REQUEST),
    ],
)
def test_nobody_coordinates(
    wire: Speaker, version: int, key_type: int, expected: ErrorCode
) -> None:
    if version < 4:
        request = FindCoordinatorRequest(key="k", key_type=key_type)
        answer = wire.ask(request, version)
        assert (answer.error_code, answer.node_id, answer.host, answer.port) == (
            expected,
            -1,
            "",
            -1,
        )
        assert answer.error_message
        return
    request = FindCoordinatorRequest(key_type=key_type, coordinator_keys=["a", "b"])
    answer = wire.ask(request, version)
    assert [(c.key, c.error_code, c.node_id) for c in answer.coordinators] == [
        ("a", expected, -1),
        ("b", expected, -1),
    ]


@pytest.mark.parametrize(
    ("version", "key_type"),
    [(version, GROUP) for version in range(7)]
    + [(version, TRANSACTION) for version in range(1, 7)],
)
def test_there_is_a_coordinator_once_its_topic_is_made(
    broker: BrokerProcess, wire: Speaker, version: int, key_type: int
) -> None:
    def find() -> tuple[int, str, int]:
        if version < 4:
            request = FindCoordinatorRequest(key="g", key_type=key_type)
            answer = wire.ask(request, version)
        else:
            (answer,) = wire.ask(
                FindCoordinatorRequest(key_type=key_type, coordinator_keys=["g"]), version
            ).coordinators
        return answer.error_code, answer.host, answer.port

    found = find()
    until = time.monotonic() + WAIT_MS / 1000
    while found[0] == ErrorCode.COORDINATOR_NOT_AVAILABLE:
        assert time.monotonic() < until
        time.sleep(0.05)
        found = find()
    assert found == (ErrorCode.NONE, "127.0.0.1", broker.port)


def test_no_keys_no_coordinators(wire: Speaker) -> None:
    assert wire.ask(FindCoordinatorRequest(coordinator_keys=[]), 4).coordinators == []
