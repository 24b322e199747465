"""A transition outside the table aborts a debug build, and a release build refuses it."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from plog._native.request_stages import ABORTS
from tests.conftest import ROOT

KERNEL = "request_stages"
PROGRAM = """
from plog._native.request_line import RequestLine
from plog._native.request_stages import Event, Stage

line = RequestLine()
number = line.come(0)
print(line.happen(number, Event.FOUND_GOOD), Stage(line.stage(number)).name, flush=True)
print(line.happen(number, Event.ANSWERED), Stage(line.stage(number)).name, flush=True)
"""


def link_into(folder: Path, names: list[Path]) -> None:
    folder.mkdir()
    for path in names:
        (folder / path.name).symlink_to(path)


def build_debug_kernel(copy: Path) -> None:
    """Build one kernel in a tree that has the others as they are here."""
    package, native = ROOT / "plog", ROOT / "plog" / "_native"
    link_into(copy, [ROOT / "setup.py"])
    link_into(copy / "plog", [path for path in package.iterdir() if path.name != "_native"])
    built_here = (f"{KERNEL}.c", f"{KERNEL}.cpython", "cython_shared", "__pycache__")
    link_into(
        copy / "plog" / "_native",
        [path for path in native.iterdir() if not path.name.startswith(built_here)],
    )
    link_into(copy / "asv_bench", [ROOT / "asv_bench" / "load"])
    done = subprocess.run(
        [sys.executable, "setup.py", "-q", "build_ext", "--inplace"],
        cwd=copy,
        env={**os.environ, "PLOG_BUILD": "debug", "PLOG_KERNELS": KERNEL},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr


def play(tree: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", PROGRAM],
        cwd=tree,
        env={**os.environ, "PYTHONPATH": str(tree), "PYTHONDONTWRITEBYTECODE": "1"},
        capture_output=True,
        text=True,
        check=False,
    )


def test_transition_outside_the_table_aborts_a_debug_build(tmp_path: Path) -> None:
    copy = tmp_path / "plog-debug"
    build_debug_kernel(copy)
    done = play(copy)
    assert done.stdout == "True CHECKED\n"
    assert done.returncode == -signal.SIGABRT
    line = done.stderr.strip().splitlines()[-1]
    assert KERNEL in line
    assert "part_advance: Assertion" in line


@pytest.mark.skipif(ABORTS, reason="the kernels are a debug build")
def test_transition_outside_the_table_is_refused_by_a_release_build() -> None:
    done = play(ROOT)
    assert done.stdout == "True CHECKED\nFalse CHECKED\n"
    assert done.returncode == 0
