"""The holding of a case to both brokers: their answers differ where docs/SKIPPED.md says so.

A Kafka that stumbles is no difference: its session with ZooKeeper expires, or a deletion takes a
minute, where the machine has too much to do. So a case that finds what is not listed is run once
more, and what counts then is whether **plog** said the same both times. If so, and nothing is
wrong now, it was Kafka that had answered otherwise; what it said is told among the run's figures.
More than a few such cases of one file fail all the same. Whatever plog says in one run and not in
the other is wrong.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable
from itertools import starmap
from typing import NamedTuple

from tests.compat.against_kafka.compare import Difference, differences, facts
from tests.compat.against_kafka.differences import no_more, unlisted
from tests.compat.against_kafka.pair import Case, KafkaStumbledError, Pair, Step

SETTLED_S = 20
MOST_EXCUSED = 3
"""Cases of one file in a run."""


class Excuses:
    """Tells of the cases that passed though Kafka alone had answered otherwise, and bounds them.

    Args:
        file: whose cases these are.
        excused: how many there were of each file in this run.
        record: takes ("figures", text), as pytest's `record_property`.
    """

    def __init__(
        self, file: str, excused: Counter[str], record: Callable[[str, object], None]
    ) -> None:
        self._file, self._excused, self._record = file, excused, record

    def excuse(self, name: str, wrong: list[str]) -> None:
        """Let a case pass.

        Args:
            wrong: what was not as it is listed when it ran first.

        Raises:
            AssertionError: there are too many of this file.
        """
        self._excused[self._file] += 1
        count = self._excused[self._file]
        told = f"{name}: Kafka answered otherwise when asked again, and plog the same"
        text = f"{told} ({count} of {MOST_EXCUSED} in {self._file}): {'; '.join(wrong)}"
        self._record("figures", text)
        assert count <= MOST_EXCUSED, text


def held(
    pair: Pair,
    excuses: Excuses,
    name: str,
    case: Case,
    ready: Callable[[Pair, Case], None] | None = None,
) -> None:
    """Run a case; compare what is observed with what is listed.

    Args:
        ready: waits until both know what is made for the case.
    """
    first = _run(pair, name, case, ready)
    if not first.wrong:
        return
    again = _run(pair, name, case, ready)
    if again.wrong or not first.is_kafkas_alone(again):
        raise AssertionError("\n".join(first.wrong))
    excuses.excuse(name, first.wrong)


class Run(NamedTuple):
    """What one run of a case found.

    Attributes:
        plog: what plog said last in each step, None where a Kafka that stumbled ended the run.
        wrong: lines, none if all is as it is listed.
    """

    plog: list[dict[str, str]] | None
    wrong: list[str]

    def is_kafkas_alone(self, again: Run) -> bool:
        """Tell whether plog said the same in another run, as far as this one went."""
        if self.plog is None or again.plog is None:
            return True
        return not any(starmap(differences, zip(self.plog, again.plog, strict=False)))


def _run(pair: Pair, name: str, case: Case, ready: Callable[[Pair, Case], None] | None) -> Run:
    section, observed = pair.listed_under, set[Difference]()
    plog: list[dict[str, str]] = []
    try:
        pair.begin(case)
        if ready is not None:
            ready(pair, case)
        for number, step in enumerate(case.steps, 1):
            where = f"{number}/" if len(case.steps) > 1 else ""
            deadline = time.monotonic() + SETTLED_S
            while True:
                seen = observe(pair, step)
                found = {one._replace(path=where + one.path) for one in seen.found}
                is_settled = seen.has_come and not (step.settles and unlisted(section, name, found))
                if is_settled or time.monotonic() > deadline:
                    break
                time.sleep(0.05)
            plog.append(seen.plog)
            observed |= found
            if not seen.has_come:
                told = f"{where}{step.until} has not come; so far: {sorted(observed)}"
                return Run(plog, [told])
    except KafkaStumbledError as stumbled:
        return Run(None, [f"Kafka: {stumbled}"])
    return Run(plog, unlisted(section, name, observed) + no_more(section, name, observed))


class Seen(NamedTuple):
    """What both said to one request.

    Attributes:
        has_come: whether both said what the step waits for.
    """

    found: set[Difference]
    has_come: bool
    plog: dict[str, str]


def observe(pair: Pair, step: Step) -> Seen:
    """Ask both once."""
    answers = pair.ask(step)
    if answers is None:
        return Seen(set(), True, {})
    kafka, plog = (
        facts(side, answer, step.version) for side, answer in zip(pair.sides, answers, strict=True)
    )
    found = differences(kafka, plog)
    if step.until is None:
        return Seen(found, True, plog)
    path, text = step.until
    return Seen(found, kafka.get(path) == text == plog.get(path), plog)
