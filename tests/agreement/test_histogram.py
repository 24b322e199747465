"""Both histograms against each other, and their bounds against what falls within them."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from plog._native import histogram as native
from plog._reference import histogram as reference

# Small ones, each octave's edges, and what no bucket but the last has room for.
TIMES = st.one_of(
    st.integers(-(2**40), 2**40),
    st.integers(0, 64),
    st.builds(lambda octave, by: 2**octave + by, st.integers(2, 40), st.integers(-1, 1)),
)


def test_bounds_are_the_same():
    assert native.upper_bounds() == reference.upper_bounds()


@pytest.mark.parametrize("engine", [native, reference])
def test_buckets_hold_what_their_bounds_say(engine):
    bounds = engine.upper_bounds()
    assert list(bounds) == sorted(set(bounds))
    for at, bound in enumerate(bounds):
        histogram = engine.Histogram()
        histogram.note(bound)
        histogram.note(bound + 1)
        assert histogram.counts[at : at + 2] == (1, 1)
        assert histogram.total_us == 2 * bound + 1
    histogram = engine.Histogram()
    histogram.note(-5)
    histogram.note(2**62)
    assert histogram.counts[0] == histogram.counts[-1] == 1
    assert sum(histogram.counts) == 2


@settings(max_examples=200)
@given(st.lists(TIMES, max_size=50))
def test_native_agrees_with_reference(times):
    ours, expected = native.Histogram(), reference.Histogram()
    for us in times:
        ours.note(us)
        expected.note(us)
    assert ours.counts == expected.counts
    assert ours.total_us == expected.total_us
