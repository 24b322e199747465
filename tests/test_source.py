"""The source itself: style, types, and shell scripts that parse."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
IN_BIN = sorted(one for one in (ROOT / "bin").rglob("*") if "__pycache__" not in one.parts)
SCRIPTS = [*IN_BIN, ROOT / ".ci" / "run"]


WRONG_CALL = re.compile(
    r"""\[call-arg\]$                       # an argument is missing, or there is one too many
    | has\ incompatible\ type\ "(?!None")[A-Z]\w+";\ expected\ "(str|bytes|int|Path)"
    """,
    re.VERBOSE,
)
"""Of what mypy says about tests: calls that do not fit a function that has changed."""


def succeed(*command: str) -> None:
    """Run a command; if it fails, so does the test, with all that it said."""
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    if done.returncode:
        pytest.fail(f"{' '.join(command)}\n{done.stdout}{done.stderr}", pytrace=False)


def test_ruff_finds_nothing():
    succeed(sys.executable, "-m", "ruff", "check", ".")


def test_ruff_would_format_nothing_otherwise():
    succeed(sys.executable, "-m", "ruff", "format", "--check", ".")


def test_types_are_right_in_strict_mode():
    succeed(sys.executable, "-m", "mypy")


def test_tests_call_their_helpers_with_what_these_take():
    """Tests are not typed strictly, and many run only where Spark or Kafka is."""
    command = sys.executable, "-m", "mypy", "tests"
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert "checked" in done.stdout.splitlines()[-1], done.stdout + done.stderr
    wrong = [line for line in done.stdout.splitlines() if WRONG_CALL.search(line)]
    assert not wrong, "\n".join(wrong)


@pytest.mark.parametrize(
    "path",
    [p for p in SCRIPTS if p.is_file() and p.suffix != ".py"],
    ids=lambda p: str(p.relative_to(ROOT)),
)
def test_shell_script_parses(path):
    succeed("bash", "-n", str(path))
