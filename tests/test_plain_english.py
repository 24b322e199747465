"""The texts of the checkout get plainer: the markers of unclear English may only become fewer."""

from __future__ import annotations

from collections import Counter

import pytest

from tests import plain_english


def test_counts_are_those_recorded():
    now, before = plain_english.counts_of_now(), plain_english.recorded()
    risen = plain_english.risen_counts(now, before)
    assert not risen, "write plainer:\n" + "\n".join(risen)
    fallen = plain_english.risen_counts(before, now)
    assert not fallen, "lower the record (python -m tests.plain_english --lower):\n" + "\n".join(
        fallen
    )


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("Whoever asks is told.", {"whoever": 1, "told": 1}),
        ("told_of = nobody_else  # begins anew", {"told": 1, "somebody": 1, "anew": 1}),
        ("All but\nfor what is left.", {"but for": 1, "what is": 1}),
        ("Who writes is closed. Who writes? The client.", {"who": 1}),
        ("# Who waits stays.", {"who": 1}),
        ("The client that retold Canewdon's story buttons up.", {}),
    ],
)
def test_markers_are_counted(text, expected):
    assert plain_english.count(text, is_page=False) == expected


def test_long_sentences_are_counted_in_prose_alone():
    long = " ".join(["word"] * 31)
    page = f"A short one. {long}.\n\n- {long}\n\n```\n{long}\n```\n\n| {long} |\n\n    {long}\n"
    assert plain_english.count(page, is_page=True) == {plain_english.LONG_SENTENCE: 2}


def test_a_count_that_rises_is_named():
    risen = plain_english.risen_counts({"a": Counter(told=2)}, {"a": Counter(told=1)})
    assert risen == ["a: told 1 -> 2"]
