"""Each published bug has a test, and each test that is named exists."""

from __future__ import annotations

import ast
from collections import Counter
from functools import cache
from typing import NamedTuple

import pytest

from tests.conftest import ROOT

from .published_bugs import BUGS

TESTS = sorted({test for bug in BUGS for test in bug.tests})


class Module(NamedTuple):
    """A module of tests: its functions, and the words that ids of parameters are made of."""

    functions: frozenset[str]
    words: frozenset[str]


@cache
def read_module(path: str) -> Module:
    """Read a module. Parameters may be the files of a folder beside it that it names."""
    functions, words = set(), set()
    for node in ast.walk(ast.parse((ROOT / path).read_text(encoding="utf-8"))):
        match node:
            case ast.FunctionDef(name=name):
                functions.add(name)
                words.add(name)
            case ast.Name(id=name) | ast.Attribute(attr=name) | ast.keyword(arg=str(name)):
                words.add(name)
                words.add(name.lower())
            case ast.Constant(value=str(text)):
                words.add(text)
                if text.isidentifier():
                    folder = (ROOT / path).parent / text
                    words |= {one.stem for one in folder.glob("*.txt")}
            case ast.Constant(value=int(number)):
                words.add(str(number))
    return Module(frozenset(functions), frozenset(words))


def fault_of(test: str) -> str | None:
    """Return why there is no test of this id; None if there is one."""
    path, _, name = test.partition("::")
    function, _, parameters = name.removesuffix("]").partition("[")
    if not (ROOT / path).is_file():
        return f"no file {path}"
    module = read_module(path)
    if function not in module.functions:
        return f"no {function} in {path}"
    if parameters and parameters not in module.words:
        for word in parameters.split("-"):
            if word not in module.words:
                return f"no parameter {word} in {path}"
    return None


def test_each_bug_is_named_once_and_has_tests() -> None:
    numbers = Counter(number for bug in BUGS for number in bug.numbers)
    assert {number for number, count in numbers.items() if count > 1} == set()
    for bug in BUGS:
        assert bug.numbers
        assert bug.tests, bug.numbers
        assert len(set(bug.tests)) == len(bug.tests), bug.numbers
        assert bug.text.endswith("."), bug.numbers


def test_each_test_exists() -> None:
    faults = [fault for test in TESTS if (fault := fault_of(test)) is not None]
    assert not faults, "\n".join(faults)


@pytest.mark.parametrize(
    ("test", "fault"),
    [
        ("tests/cluster/replication/test_no.py::test_a", "no file"),
        ("tests/cluster/replication/test_published_bugs.py::test_no", "no test_no"),
        (
            "tests/scenarios/test_controller_scenarios.py"
            "::test_controller_scenario_plays_as_written[no_file]",
            "no parameter no_file",
        ),
        (
            "tests/cluster/simulation/test_planted_replica_faults.py"
            "::test_planted_fault_of_a_replica_is_found[no_mutant]",
            "no parameter no_mutant",
        ),
    ],
)
def test_missing_test_is_seen(test: str, fault: str) -> None:
    found = fault_of(test)
    assert found is not None
    assert found.startswith(fault)
