"""A case that fails is run again, and only what Kafka alone said otherwise is let pass."""

from __future__ import annotations

from typing import Any, cast

import pytest

from plog.errors import ErrorCode
from plog.protocol.messages.groups import HeartbeatRequest, HeartbeatResponse
from tests.compat.against_kafka.differences import FROM_3_9
from tests.compat.against_kafka.held import held
from tests.compat.against_kafka.pair import Case, KafkaStumbledError, Pair, Step

CASES: dict[str, Case] = {}
CASE = Case([Step(lambda side: HeartbeatRequest(group_id="g"), 4)], {})
FINE, OTHER = ErrorCode.NONE, ErrorCode.NOT_CONTROLLER
STUMBLES = None


class Scripted:
    """Answers in turn, of Kafka and of plog."""

    listed_under = FROM_3_9

    def __init__(self, *answers: tuple[ErrorCode | None, ErrorCode]) -> None:
        self.sides = (object(), object())
        self._answers = list(answers)
        self.begun = 0

    def begin(self, case: Case) -> None:
        self.begun += 1

    def ask(self, step: Step) -> tuple[Any, Any]:
        kafka, plog = self._answers.pop(0)
        if kafka is STUMBLES:
            raise KafkaStumbledError("too much to do")
        return HeartbeatResponse(error_code=kafka), HeartbeatResponse(error_code=plog)


@pytest.mark.parametrize(
    ("answers", "passes"),
    [
        pytest.param([(FINE, FINE)], True, id="alike at once"),
        pytest.param([(OTHER, FINE), (FINE, FINE)], True, id="Kafka alone said otherwise"),
        pytest.param([(STUMBLES, FINE), (FINE, FINE)], True, id="Kafka stumbled"),
        pytest.param([(FINE, OTHER), (FINE, FINE)], False, id="plog said otherwise once"),
        pytest.param([(OTHER, FINE), (OTHER, OTHER)], False, id="plog changed to be alike"),
        pytest.param([(OTHER, FINE), (OTHER, FINE)], False, id="they differ"),
        pytest.param([(STUMBLES, FINE), (OTHER, FINE)], False, id="stumbled, then they differ"),
        pytest.param([(STUMBLES, FINE), (STUMBLES, FINE)], False, id="nothing is known"),
    ],
)
def test_only_what_kafka_alone_said_otherwise_is_let_pass(
    answers: list[tuple[ErrorCode | None, ErrorCode]], passes: bool
) -> None:
    pair = Scripted(*answers)
    if passes:
        held(cast(Pair, pair), "none", CASE)
    else:
        with pytest.raises(AssertionError):
            held(cast(Pair, pair), "none", CASE)
    assert pair.begun == len(answers)
