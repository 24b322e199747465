"""Parsers of strangers' bytes, tried by a fuzzer that sees which branches of their C it reaches.

Inputs that did so once, and those that broke something, are tried in every run with the kernels as
they are. Then clang builds kernels that can be watched, and libFuzzer looks for new inputs for a
while; docs/TESTING.md says what to do with one that it finds.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from tests.agreement.harness import forked
from tests.fuzz import corpora, instrumented
from tests.fuzz.common import exact
from tests.fuzz.corpora import Known
from tests.fuzz.seeds import seeds
from tests.fuzz.targets import TARGETS, planted

SECONDS = int(os.environ.get("PLOG_FUZZ_SECONDS", "0"))
NEW = 300
"""Without PLOG_FUZZ_SECONDS: a count instead of a time, so that a seed tries the same inputs."""
LONG_SECONDS = int(os.environ.get("PLOG_FUZZ_SECONDS", "300"))

# The first of them that needs the kernels builds them: more than a minute, if nobody else is busy.
pytestmark = pytest.mark.timeout(1200)
each_target = pytest.mark.parametrize("name", TARGETS)


@each_target
def test_known_inputs_break_nothing(name, tmp_path, monkeypatch):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))  # a forked child removes nothing
    seeds()  # or each child would make them

    def check(case: tuple[str, bytes]) -> None:
        TARGETS[name](exact(case[1]).toreadonly())

    assert forked(check, Known(name)) >= 5


@pytest.fixture(scope="module")
def kernels() -> None:
    """Kernels that can be watched, built if need be."""
    try:
        instrumented.build()
    except instrumented.NoClang as missing:
        pytest.skip(str(missing))


def look_for(name: str, seconds: int, learnt: Path | None = None) -> None:
    learnt_before = [] if learnt else list((corpora.LEARNT / name).glob("*"))
    least = len(list(Known(name))) + len(learnt_before) + NEW
    limits = [f"-max_total_time={seconds}"] if seconds else []
    # A busy machine may take all the time for those that are known.
    for limit in [*limits, f"-runs={least}"]:
        run = corpora.fuzz_for(name, limit, learnt)
        edges, features = run.reached
        print(f"{name}: {run.executions} inputs, {edges} edges, {features} features")
        if run.status or run.found:
            pytest.fail(f"{name}, kept in {corpora.FOUND}:\n{run.report()}", pytrace=False)
        if run.executions >= least:
            return
    pytest.fail(f"{name}: {run.executions} inputs of {least} were tried\n{run.output[-2000:]}")


@pytest.mark.usefixtures("kernels")
@each_target
def test_fuzzing_for_a_moment_finds_nothing(name, tmp_path):
    look_for(name, SECONDS, tmp_path)


@pytest.mark.long
@pytest.mark.timeout(LONG_SECONDS + 1200)
@pytest.mark.usefixtures("kernels")
@each_target
def test_fuzzing_for_minutes_finds_nothing(name):
    look_for(name, LONG_SECONDS)


# -- whether it would find something ---------------------------------------------------------------


@pytest.mark.usefixtures("kernels")
def test_planted_mistake_is_found_through_the_branches_of_a_kernel(tmp_path):
    corpus = tmp_path / "corpus"
    corpus.mkdir()
    run = instrumented.fuzz("planted", "-seed=1", "-runs=2000000", corpora=[corpus])
    assert run.status != 0, run.output
    assert "AssertionError: this was to be found" in run.report()
    (found,) = run.found
    assert found.read_bytes().hex() in run.report()
    with pytest.raises(AssertionError, match="this was to be found"):
        planted(exact(found.read_bytes()))
    # What led there was told by kernels: many inputs, each of which had reached something new.
    assert len(list(corpus.iterdir())) > 20


@pytest.mark.usefixtures("kernels")
def test_nothing_guides_the_fuzzer_where_kernels_are_not_instrumented(tmp_path):
    run = instrumented.fuzz("planted", "-runs=1000", corpora=[tmp_path], kernels=None)
    assert "no interesting inputs were found. Is the code instrumented" in run.output
    assert list(tmp_path.iterdir()) == []


@pytest.mark.usefixtures("kernels")
def test_sanitizer_sees_one_byte_too_many(tmp_path):
    corpus = tmp_path / "corpus"
    corpus.mkdir()
    (corpus / "input").write_bytes(b"plog")
    run = instrumented.fuzz("planted_overrun", "-runs=1000", corpora=[corpus])
    assert run.status != 0, run.output
    assert "AddressSanitizer: heap-buffer-overflow" in run.report()
    assert [path.read_bytes() for path in run.found] == [b"plog"]


def test_command_says_which_targets_there_are():
    said = subprocess.run(
        [sys.executable, "-m", "tests.fuzz", "--help"],
        cwd=instrumented.ROOT,
        capture_output=True,
        text=True,
        check=True,
    ).stdout
    for name in TARGETS:
        assert name in said


def test_command_refuses_a_target_that_there_is_not():
    done = subprocess.run(
        [sys.executable, "-m", "tests.fuzz", "weather"],
        cwd=instrumented.ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 2
    assert "there is no target weather" in done.stderr
