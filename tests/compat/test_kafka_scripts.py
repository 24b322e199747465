"""Kafka's scripts without a JVM print the same as Kafka's own, and end with the same status."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import NamedTuple

import pytest

from tests.compat.kafka_tools import Tools
from tests.compat.script_cases import (
    DIFFERENCES,
    Case,
    plain,
    read_cases,
    run_kafka,
    run_plog,
    shown,
)
from tests.compat.script_steps import STEPS
from tests.conftest import ROOT
from tests.planes import Plane
from tests.servers import BrokerProcess

KAFKA = Tools("3.9.1")
PATHS = sorted((Path(__file__).parent / "kafka_scripts").glob("*.txt"))
OVERRIDES: dict[str, object] = {
    "auto.create.topics.enable": "false",
    "group.initial.rebalance.delay.ms": 0,
    "offsets.topic.num.partitions": 3,
    "transaction.state.log.num.partitions": 3,
}


class Side(NamedTuple):
    """A broker, and the directory of the files that its command lines read and write."""

    broker: BrokerProcess
    directory: Path


@pytest.fixture
def sides(plane: Plane, tmp_path: Path) -> Iterator[list[Side]]:
    """Return Kafka's side and plog's side."""
    with ExitStack() as ended:
        found = []
        for name in ("kafka", "plog1"):  # of one length, as columns are
            directory = tmp_path / name
            directory.mkdir()
            broker = BrokerProcess(directory, overrides=OVERRIDES)
            found.append(Side(ended.enter_context(broker), directory))
        yield found


def test_page_lists_the_differences() -> None:
    page = (ROOT / "docs" / "MIGRATION.md").read_text()
    section = page.partition("### Differences from Kafka's scripts\n")[2].partition("\n#")[0]
    listed = re.findall(r"^- \*\*([\w-]+)\*\*:", section, re.MULTILINE)
    met = {name for path in PATHS for case in read_cases(path).cases for name in case.differences}
    assert sorted(met) == sorted(listed) == sorted(DIFFERENCES)


@pytest.mark.parametrize(
    "path",
    [
        pytest.param(path, marks=pytest.mark.long) if path.stem.endswith("_long") else path
        for path in PATHS
    ],
    ids=lambda path: path.stem,
)
def test_script_prints_the_same_as_kafkas(path: Path, sides: list[Side]) -> None:
    cases, files = read_cases(path)
    for side in sides:
        for name, text in files.items():
            (side.directory / name).write_text(text.replace("{server}", side.broker.bootstrap))
    with ExitStack() as ended:
        faults = [fault for case in cases for fault in _compare(case, sides, ended)]
    assert not faults, "\n".join(faults)


def _compare(case: Case, sides: list[Side], ended: ExitStack) -> Iterator[str]:
    """Run a case on both sides; yield the lines that show how they differ."""
    if case.is_step:
        name, *arguments = case.words
        for side in sides:
            STEPS[name](side.broker, ended, *arguments)
        return
    results = []
    for side in sides:
        server = side.broker.bootstrap
        words = case.words_for(server, side.directory)
        is_kafka = side is sides[0]
        result = run_kafka(KAFKA, words, case.stdin) if is_kafka else run_plog(words, case.stdin)
        results.append(plain(result, server, side.directory))
    same = list(results)
    for name in case.differences:
        same = [DIFFERENCES[name](result) for result in same]
    kafka, plog = results
    # A difference that is gone must leave the list, too.
    if same[0] != same[1] or (case.differences and kafka == plog):
        yield f"{case}  {case.differences}"
        yield from (f"  kafka  {line}" for line in shown(kafka))
        yield from (f"  plog   {line}" for line in shown(plog))
