"""The texts of the checkout get plainer: the markers of unclear English may only become fewer."""

from __future__ import annotations

from collections import Counter

import pytest

from tests import plain_english

PAGES = {path for path in plain_english.text_files() if path.suffix == ".md"}
MAX_MARKERS_PER_10_000_WORDS = 5
MAX_LONG_SENTENCES = 0.06  # of a page's sentences; the pages that were compared have 0.06 to 0.15


def test_counts_are_those_recorded():
    now, before = plain_english.counts_of_now(), plain_english.recorded()
    risen = plain_english.risen_counts(now, before)
    assert not risen, "write plainer:\n" + "\n".join(risen)
    fallen = plain_english.risen_counts(before, now)
    assert not fallen, "lower the record (python -m tests.plain_english --lower):\n" + "\n".join(
        fallen
    )


def test_pages_have_next_to_no_markers():
    """As the pages of other brokers and protocol libraries: 0 to 3 for each marker."""
    words, found = 0, Counter[str]()
    for path in PAGES:
        text = path.read_text(encoding="utf-8")
        words += len(text.split())
        found += plain_english.count(text, is_page=False)
    assert sum(found.values()) * 10_000 / words <= MAX_MARKERS_PER_10_000_WORDS, found


@pytest.mark.parametrize(
    "path", sorted(PAGES), ids=lambda path: str(path.relative_to(plain_english.ROOT))
)
def test_few_sentences_of_a_page_are_long(path):
    sentences = plain_english.sentences(path.read_text(encoding="utf-8"))
    long = [s for s in sentences if len(s.split()) > plain_english.MAX_SENTENCE_WORDS]
    assert len(long) <= max(1, MAX_LONG_SENTENCES * len(sentences)), long


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
