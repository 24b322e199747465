"""The lines that `plog produce` names after a refusal."""

from __future__ import annotations

import pytest

from plog.cli.line_outcomes import LineOutcomes
from plog.client.producer import ProducerClosed
from plog.errors import InvalidRecord, OtherRecordRefused, TopicAuthorizationFailed


def caused(error, batch):
    error.__cause__ = batch
    return error


def outcomes_of(errors):
    """Report the outcomes of lines 1, 2, 3, ...: errors, or None for a line that is written."""
    outcomes = LineOutcomes()
    for number, error in enumerate(errors, 1):
        outcomes.of(number)(None, error)
    return outcomes


DENIED = TopicAuthorizationFailed("not authorized")
BATCH = InvalidRecord("4 of 5 records refused")
BAD = [caused(InvalidRecord(f"bad {n}"), BATCH) for n in range(4)]
SAME = BAD[0]
OTHER = caused(OtherRecordRefused("another one"), BATCH)


@pytest.mark.parametrize(
    ("errors", "text"),
    [
        ([DENIED], "line 1 of f: not authorized (wrote nothing)"),
        ([None, DENIED, DENIED], "lines 2-3 of f: not authorized (wrote 1 record)"),
        ([DENIED, None, DENIED], "2 of lines 1-3 of f: not authorized (wrote 1 record)"),
        ([ProducerClosed("gone"), DENIED], "line 2 of f: not authorized (wrote nothing)"),
        ([ProducerClosed("gone")], "line 1 of f: gone (wrote nothing)"),
        (
            [OTHER, BAD[0]],
            "line 2 of f: bad 0 (its batch, lines 1-2, was not written; wrote nothing)",
        ),
        (
            [None, *BAD, OTHER],
            "line 2 of f: bad 0; line 3 of f: bad 1; line 4 of f: bad 2; and 1 more line"
            " (its batch, lines 2-6, was not written; wrote 1 record)",
        ),
        (
            [SAME, SAME, OTHER, SAME],
            "3 of lines 1-4 of f: bad 0 (its batch, lines 1-4, was not written; wrote nothing)",
        ),
    ],
)
def test_text_names_the_lines_of_the_first_batch(errors, text):
    fault = outcomes_of(errors).fault(" of f")
    assert str(fault) == text
    assert type(fault) is type(next(e for e in errors if str(e) in text))


def test_first_batch_is_that_of_the_first_line():
    outcomes = LineOutcomes()
    later, earlier = InvalidRecord("later"), InvalidRecord("earlier")
    for number, error in [(5, later), (6, later), (2, earlier), (1, earlier)]:
        outcomes.of(number)(None, error)
    assert str(outcomes.fault("")) == "lines 1-2: earlier (wrote nothing)"
