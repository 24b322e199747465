"""What the jobs have in common, without Spark: words of options, and of what ends a query."""

from __future__ import annotations

import importlib
from types import ModuleType

import click
import pytest

from tests.conftest import ROOT

TRACEBACK = """[STREAM_FAILED] Query [id = 1, runId = 2] terminated with exception: [PYTHON] Error
  File "python_streaming_sink_runner.py", line 267, in main
  File "sink.py", line 140, in _decide
{last}
"""


@pytest.fixture
def job(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(ROOT / "spark")
    return importlib.import_module("job")


@pytest.mark.parametrize(
    ("last", "told"),
    [
        (
            "plog.spark.two_phases.ChangedBatch: batch 1 stands; failOnChangedBatch=false",
            "ChangedBatch: batch 1 stands; failOnChangedBatch=false",
        ),
        ("plog.errors.UnknownTopicOrPartition: no", "UnknownTopicOrPartition: no"),
        ("plog.spark.offsets.DataLoss: gone", "DataLoss: gone"),
        # What the user cannot mend is for whoever mends plog.
        ("plog.errors.NetworkException: away", None),
        ("plog.spark.sink.MixedUp: parts", None),
        ("ValueError: plog.errors.DataLoss: x", None),
    ],
)
def test_query_that_is_refused_ends_with_the_words_of_the_refusal(
    job: ModuleType, last: str, told: str | None
) -> None:
    found = job.REFUSAL.search(TRACEBACK.format(last=last))
    assert (found and found[1]) == told


def test_refusals_are_errors_that_there_are(job: ModuleType) -> None:
    names = job.REFUSAL.pattern.partition("(?:")[2].partition(")")[0].split("|")
    modules = ["errors", "spark.two_phases", "spark.decisions", "spark.offsets"]
    modules += ["spark.open_transactions"]
    there = {name for one in modules for name in vars(importlib.import_module(f"plog.{one}"))}
    assert set(names) <= there


@pytest.mark.parametrize(
    ("text", "pair"),
    [("a=b", ("a", "b")), ("kafka.x=a=b", ("kafka.x", "a=b")), ("a=", ("a", ""))],
)
def test_further_option_is_a_name_and_a_value(
    job: ModuleType, text: str, pair: tuple[str, str]
) -> None:
    assert job.KeyValue().convert(text, None, None) == pair


@pytest.mark.parametrize("text", ["", "a", "=b"])
def test_what_is_no_further_option_is_refused(job: ModuleType, text: str) -> None:
    with pytest.raises(click.BadParameter, match="is not NAME=VALUE"):
        job.KeyValue().convert(text, None, None)
