"""The rules of tests/conftest.py, on a small run of their own."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

CONFTEST = Path(__file__).with_name("conftest.py")

TESTS = """
import pytest

def test_passes():
    pass

def test_skips():
    pytest.skip("no such server")

@pytest.mark.skipif(True, reason="not here")
def test_is_skipped_by_mark():
    pass

@pytest.mark.xfail(strict=True)
def test_fails_as_expected():
    assert False

@pytest.mark.long
def test_takes_long():
    pass
"""


@pytest.mark.parametrize(
    ("no_skip", "options", "summary"),
    [
        ("", [], "1 passed, 2 skipped, 1 deselected, 1 xfailed"),
        ("0", ["--long"], "2 passed, 2 skipped, 1 xfailed"),
        ("1", [], "1 failed, 1 passed, 1 deselected, 1 xfailed, 1 error"),
    ],
)
def test_skips_fail_where_they_must_and_long_tests_are_left_out(
    tmp_path, no_skip, options, summary
):
    shutil.copy(CONFTEST, tmp_path / "conftest.py")
    (tmp_path / "test_small.py").write_text(TESTS)
    (tmp_path / "pytest.ini").write_text("[pytest]\nmarkers =\n    long: takes long\n")
    done = run(tmp_path, no_skip, options)
    assert summary in done.stdout.splitlines()[-1]
    assert ("skipped where nothing may be skipped" in done.stdout) is (no_skip == "1")
    assert "not here" in done.stdout or no_skip != "1"


def test_module_that_is_skipped_whole_fails_where_nothing_may_be(tmp_path):
    shutil.copy(CONFTEST, tmp_path / "conftest.py")
    (tmp_path / "test_small.py").write_text("import pytest\npytest.importorskip('no_such_module')")
    assert run(tmp_path, "", []).returncode == pytest.ExitCode.NO_TESTS_COLLECTED
    assert "no_such_module" in run(tmp_path, "1", []).stdout
    assert run(tmp_path, "1", []).returncode == pytest.ExitCode.INTERRUPTED


def run(directory: Path, no_skip: str, options: list[str]) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", *options],
        cwd=directory,
        env=os.environ | {"PLOG_NO_SKIP": no_skip, "PYTHONPATH": str(CONFTEST.parents[1])},
        capture_output=True,
        text=True,
        check=False,
    )
