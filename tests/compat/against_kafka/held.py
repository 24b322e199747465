"""The holding of a case to both brokers: their answers differ where docs/SKIPPED.md says so."""

from __future__ import annotations

import time
from collections.abc import Callable

from tests.compat.against_kafka.compare import Difference, differences, facts
from tests.compat.against_kafka.differences import no_more, unlisted
from tests.compat.against_kafka.pair import Case, Pair, Step

SETTLED_S = 20


def held(
    pair: Pair, name: str, case: Case, ready: Callable[[Pair, Case], None] | None = None
) -> None:
    """Run a case; compare what is observed with what is listed.

    Args:
        ready: waits until both know what is made for the case.
    """
    pair.begin(case)
    if ready is not None:
        ready(pair, case)
    section, observed = pair.listed_under, set[Difference]()
    for number, step in enumerate(case.steps, 1):
        where = f"{number}/" if len(case.steps) > 1 else ""
        deadline = time.monotonic() + SETTLED_S
        while True:
            found, has_come = observe(pair, step)
            found = {one._replace(path=where + one.path) for one in found}
            is_settled = has_come and not (step.settles and unlisted(section, name, found))
            if is_settled or time.monotonic() > deadline:
                break
            time.sleep(0.05)
        assert has_come, f"{where}{step.until} has not come; so far: {sorted(observed)}"
        observed |= found
    wrong = unlisted(section, name, observed) + no_more(section, name, observed)
    assert not wrong, "\n".join(wrong)


def observe(pair: Pair, step: Step) -> tuple[set[Difference], bool]:
    """Ask both once; tell too whether both say what is waited for."""
    answers = pair.ask(step)
    if answers is None:
        return set(), True
    kafka, plog = (
        facts(side, answer, step.version) for side, answer in zip(pair.sides, answers, strict=True)
    )
    if step.until is None:
        return differences(kafka, plog), True
    path, text = step.until
    return differences(kafka, plog), kafka.get(path) == text == plog.get(path)
