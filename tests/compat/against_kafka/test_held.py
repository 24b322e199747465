"""A case that fails is run again; what Kafka alone said otherwise is let pass, told and counted."""

from __future__ import annotations

from collections import Counter
from typing import Any, cast

import pytest

from plog.errors import ErrorCode
from plog.protocol.messages.groups import HeartbeatRequest, HeartbeatResponse
from tests.compat.against_kafka.differences import FROM_3_9
from tests.compat.against_kafka.held import MOST_EXCUSED, Excuses, held
from tests.compat.against_kafka.pair import Case, KafkaStumbledError, Pair, Step

CASES: dict[str, Case] = {}
HEARTBEAT = HeartbeatRequest(group_id="g", generation_id=1, member_id="m")
CASE = Case([Step(lambda side: HEARTBEAT, 4)], {})
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
    pair, told = Scripted(*answers), Told()
    if passes:
        held(cast(Pair, pair), told.of("a"), "none", CASE)
    else:
        with pytest.raises(AssertionError):
            held(cast(Pair, pair), told.of("a"), "none", CASE)
    assert pair.begun == len(answers)
    assert len(told) == (passes and len(answers) > 1)


class Told(list[object]):
    """What was told of excused cases, and the counts of one run."""

    def __init__(self) -> None:
        super().__init__()
        self._excused: Counter[str] = Counter()

    def of(self, file: str) -> Excuses:
        return Excuses(file, self._excused, lambda *told: self.append(told))


EXCUSED = [(OTHER, FINE), (FINE, FINE)]


def test_what_was_excused_is_told_with_what_was_wrong() -> None:
    told = Told()
    held(cast(Pair, Scripted(*EXCUSED)), told.of("a"), "none", CASE)
    ((name, text),) = told
    assert name == "figures"
    assert text.startswith("none: Kafka answered otherwise")
    assert "| `error_code` | `NOT_CONTROLLER` | `NONE` |" in text


def test_more_than_a_few_excused_cases_of_a_file_fail() -> None:
    told = Told()
    for _ in range(MOST_EXCUSED):
        held(cast(Pair, Scripted(*EXCUSED)), told.of("a"), "none", CASE)
    with pytest.raises(AssertionError, match="Kafka answered otherwise"):
        held(cast(Pair, Scripted(*EXCUSED)), told.of("a"), "none", CASE)
    held(cast(Pair, Scripted(*EXCUSED)), told.of("b"), "none", CASE)


@pytest.fixture
def excused() -> Counter[str]:
    """Not those of the run: what is excused here is made up."""
    return Counter()


def test_fixture_hands_through_where_it_is_told(
    excuses: Excuses, excused: Counter[str], request: pytest.FixtureRequest
) -> None:
    properties = request.node.user_properties
    before = list(properties)
    held(cast(Pair, Scripted(*EXCUSED)), excuses, "none", CASE)
    (found,) = properties[len(before) :]
    del properties[len(before) :]  # the run's own figures have nothing of it
    assert found[0] == "figures"
    assert excused == {request.path.relative_to(request.config.rootpath).as_posix(): 1}
