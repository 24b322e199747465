"""Why a broker stops without a controlled shutdown: its log names the controller and the reason."""

from __future__ import annotations

import asyncio
from concurrent.futures import Future
from types import SimpleNamespace
from typing import Any, cast

import pytest

from plog.cluster import controlled_shutdown
from plog.cluster.controlled_shutdown import move_leaderships
from plog.errors import BrokerNotAvailable, ErrorCode
from plog.protocol.messages.replication import (
    ControlledShutdownRequest,
    ControlledShutdownResponse,
)

OWN = 3
NO_CONTROLLER = SimpleNamespace(is_active=False)


class Controller:
    """Another broker, which answers with a code."""

    def __init__(self, answer: int | Exception) -> None:
        self.answer = answer
        self.asked: list[int] = []

    def ask(
        self, broker_id: int, request: ControlledShutdownRequest, _: type
    ) -> Future[ControlledShutdownResponse]:
        assert request.broker_id == OWN
        self.asked.append(broker_id)
        future: Future[ControlledShutdownResponse] = Future()
        if isinstance(self.answer, Exception):
            future.set_exception(self.answer)
        else:
            future.set_result(
                ControlledShutdownResponse(error_code=self.answer, remaining_partitions=[])
            )
        return future


def stop(controller_id: int, controller: Controller, own: object = NO_CONTROLLER) -> None:
    """Do what a stopping broker does; `own` is its own controller."""
    asyncio.run(
        move_leaderships(
            broker_id=OWN,
            member=cast(Any, SimpleNamespace(has_ended=False)),
            fence=cast(Any, SimpleNamespace(broker_epoch=7)),
            controller=cast(Any, own),
            metadata=cast(
                Any, SimpleNamespace(snapshot=SimpleNamespace(live_controller_id=controller_id))
            ),
            peers=cast(Any, controller),
        )
    )


@pytest.fixture(autouse=True)
def _no_pause(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(controlled_shutdown, "PAUSE_S", 0)


@pytest.mark.parametrize(
    ("controller_id", "answer", "reason"),
    [
        (2, ErrorCode.STALE_BROKER_EPOCH, "controller 2 answered STALE_BROKER_EPOCH"),
        (2, ErrorCode.NOT_CONTROLLER, "controller 2 answered NOT_CONTROLLER"),
        (2, 999, "error code 999: controller 2 answered error code 999"),
        (2, BrokerNotAvailable("no connection"), "controller 2: no connection"),
        (-1, ErrorCode.NONE, "no controller is known"),
        (OWN, ErrorCode.NONE, "this broker is no longer the controller, and knows no other"),
    ],
)
def test_reason_is_logged(
    caplog: pytest.LogCaptureFixture, controller_id: int, answer: int | Exception, reason: str
) -> None:
    controller = Controller(answer)
    stop(controller_id, controller)
    assert set(controller.asked) == ({2} if controller_id == 2 else set())
    assert caplog.messages == [f"stopping without a controlled shutdown: {reason}"]


def test_answer_that_leaves_nothing_is_not_logged(caplog: pytest.LogCaptureFixture) -> None:
    controller = Controller(ErrorCode.NONE)
    stop(2, controller)
    assert controller.asked == [2]
    assert caplog.messages == []


class Active:
    """This broker's controller. Brokers answer its orders late."""

    is_active = True

    def __init__(self, looks: int) -> None:
        self.looks = looks

    def controlled_shutdown(
        self, broker_id: int, broker_epoch: int
    ) -> Future[dict[object, object]]:
        future: Future[dict[object, object]] = Future()
        future.set_result({})
        return future

    @property
    def is_answered(self) -> bool:
        self.looks -= 1
        return self.looks <= 0


def test_controller_that_stops_waits_until_its_orders_are_answered(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    controller = Active(looks=3)
    stop(OWN, Controller(ErrorCode.NONE), controller)
    assert controller.looks == 0
    monkeypatch.setattr(controlled_shutdown, "ANSWERED_WITHIN_S", 0.05)
    controller = Active(looks=1_000_000)
    stop(OWN, Controller(ErrorCode.NONE), controller)
    assert controller.looks > 0, "a broker that hangs does not keep this one"
