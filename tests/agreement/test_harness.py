"""The harness itself must fail when a child does, or every forked test would pass."""

from __future__ import annotations

import ctypes
import faulthandler
import itertools
import mmap
import time

import pytest

from plog.errors import MalformedBytes

from .harness import forked, mutations, outcome


def test_cases_that_pass_are_counted():
    assert forked(lambda case: None, [1, 2, 3]) == 3


def crash(case):
    if case == "bad":
        faulthandler.disable()  # it dies on purpose: no trace in the run's output
        ctypes.string_at(0)


def refuse(case):
    assert case != "bad", "it is bad"


def hoard(case):
    if case == "bad":
        # A mapping is always new memory; an allocation may be met from what earlier tests freed.
        mmap.mmap(-1, 100 << 20)


def wait(case):
    if case == "bad":
        time.sleep(60)


def loop(case):
    while case == "bad":
        pass


@pytest.mark.parametrize(
    ("check", "bound", "report"),
    [
        (crash, {}, "died by SIGSEGV at case 2: 'bad'"),
        (refuse, {}, "failed at case 2: 'bad'(.|\n)*it is bad"),
        (hoard, {"memory_bytes": 64 << 20}, "failed at case 2: 'bad'(.|\n)*Cannot allocate memory"),
        (loop, {"cpu_s": 1}, "died by SIGXCPU at case 2: 'bad'"),
        (wait, {"wall_s": 1}, "died by SIGALRM at case 2: 'bad'"),
    ],
)
def test_case_that_fails_in_the_child_is_named(check, bound, report):
    with pytest.raises(AssertionError, match=report):
        forked(check, ["good", "good", "bad", "good"], **bound)


def test_outcome_lets_through_what_no_kernel_may_raise():
    def refuse(error):
        raise error

    assert outcome(refuse, MalformedBytes("cut")) == ("error", MalformedBytes, "cut")
    assert outcome(len, b"ab") == ("value", 2)
    with pytest.raises(IndexError):
        outcome(refuse, IndexError("not on purpose"))


def test_mutations_of_one_seed_are_the_same():
    originals = [b"abcdef" * 5, b"x"]
    first = list(mutations(originals, 200, 7))
    assert first == list(mutations(originals, 200, 7))
    assert first != list(mutations(originals, 200, 8))
    assert len(set(first)) > 100
    assert list(itertools.islice(mutations(originals, 200, 7), 50)) == first[:50]
