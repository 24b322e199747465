"""The choice of tests that run on several brokers."""

from __future__ import annotations

import ast
import os
import subprocess
import sys

import pytest

from tests.conftest import ROOT
from tests.one_broker import ONE_BROKER, is_of, reason_of
from tests.several_brokers import IN_EVERY_RUN, SUITES

SOME = ("tests/compat/test_clients.py", "tests/compat/test_late_requests.py", "tests/test_types.py")


def run(*options: str) -> str:
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *options],
        cwd=ROOT,
        env=os.environ | {"PLOG_NO_SKIP": ""},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout
    return done.stdout


@pytest.mark.parametrize(
    "test", [*IN_EVERY_RUN, *(one for all_ in ONE_BROKER.values() for one in all_)]
)
def test_chosen_tests_exist(test: str) -> None:
    assert test.startswith(SUITES)
    path, _, name = test.partition("::")
    assert (ROOT / path).is_dir() is path.endswith("/")
    if name:
        tree = ast.parse((ROOT / path).read_text())
        assert name in {one.name for one in tree.body if isinstance(one, ast.FunctionDef)}


def test_no_test_of_every_run_needs_one_broker() -> None:
    assert [one for one in IN_EVERY_RUN if reason_of(one)] == []


def test_name_means_a_folder_a_file_or_a_test() -> None:
    test = "tests/compat/test_admin.py::test_topic[fast-1]"
    for these in (
        "tests/compat/",
        "tests/compat/test_admin.py",
        "tests/compat/test_admin.py::test_topic",
    ):
        assert is_of(test, these)
    for these in ("tests/compat", "tests/compat/test_admin.py::test_top", "tests/compat/test_a"):
        assert not is_of(test, these)


def test_option_keeps_the_ids_of_tests_of_clients() -> None:
    one, three = (run("--collect-only", *options, *SOME) for options in ((), ("--brokers", "3")))
    ids = [[line for line in text.splitlines() if "::" in line] for text in (one, three)]
    assert any(line.startswith(SOME[-1]) for line in ids[0])
    assert ids[1] == [line for line in ids[0] if line.startswith(SUITES)]


def test_skips_say_why_in_one_line() -> None:
    shown = run("--brokers", "3", "-rs", "tests/compat/test_late_requests.py")
    assert "needs one broker: a proxy stands before a single broker" in shown
    assert "passed" not in shown
