"""The common parts of the jobs, without Spark: options, and the errors that end a query."""

from __future__ import annotations

import importlib
from collections.abc import Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

import click
import pytest
from click.testing import CliRunner
from py4j.protocol import Py4JNetworkError

from plog.cli import output
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
            "plog.spark.two_phases.ChangedBatch: batch 1 is already committed",
            "ChangedBatch: batch 1 is already committed",
        ),
        ("plog.errors.UnknownTopicOrPartition: no", "UnknownTopicOrPartition: no"),
        ("plog.spark.offsets.DataLoss: gone", "DataLoss: gone"),
        ("plog.errors.OffsetOutOfRange: t-0 has", "OffsetOutOfRange: t-0 has"),
        # The user cannot resolve these; plog's developers need the traceback.
        ("plog.errors.NetworkException: away", None),
        ("plog.spark.sink.InconsistentTasks: parts", None),
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
    with pytest.raises(click.BadParameter, match="use NAME=VALUE"):
        job.KeyValue().convert(text, None, None)


@pytest.mark.parametrize(
    ("duration_ms", "text"),
    [
        (90_000, "90s"),
        (300_000, "5m"),
        (7_200_000, "2h"),
        (172_800_000, "2d"),
        (5_400_000, "90m"),
        (1_500, "1500ms"),
    ],
)
def test_duration_is_written_as_an_option_reads_it(
    job: ModuleType, duration_ms: int, text: str
) -> None:
    assert job.duration_option(duration_ms) == text
    assert output.duration_ms(text) == duration_ms


def configured(job: ModuleType, toml: str, path: Path, arguments: Sequence[str] = ()) -> Any:
    """Return what a command is given of its options by a config file."""

    @click.command()
    @job.config_option
    @click.option("--topic", "topics", multiple=True)
    @click.option("--window")
    @job.source_option
    def command(**given: Any) -> Any:
        return given

    path.write_text(toml)
    given = ["--config", str(path), *arguments]
    return command.main(given, standalone_mode=False)


@pytest.mark.parametrize(
    ("toml", "topics"),
    [
        ('topic = "flights"', ("flights",)),
        ('topic = ["flights", "more"]', ("flights", "more")),
        ("topic = 7", ("7",)),
        ("topic = []", ()),
    ],
)
def test_option_that_may_be_repeated_takes_one_value_from_a_config_file(
    job: ModuleType, tmp_path: Path, toml: str, topics: tuple[str, ...]
) -> None:
    assert configured(job, toml, tmp_path / "c.toml")["topics"] == topics


@pytest.mark.parametrize(
    ("toml", "pairs"),
    [
        ('source-option = "a=b"', (("a", "b"),)),
        ('source-option = ["a=b", "c=d=e"]', (("a", "b"), ("c", "d=e"))),
        (
            # A name with dots is a table in a table, unless it is quoted.
            "[source-option]\nfailOnDataLoss = false\nkafka.fetch.max.bytes = 1_000\n"
            '"kafka.check.crcs" = true\n',
            (
                ("failOnDataLoss", "false"),
                ("kafka.fetch.max.bytes", "1000"),
                ("kafka.check.crcs", "true"),
            ),
        ),
    ],
)
def test_further_options_may_be_a_table_of_a_config_file(
    job: ModuleType, tmp_path: Path, toml: str, pairs: tuple[tuple[str, str], ...]
) -> None:
    assert configured(job, toml, tmp_path / "c.toml")["source_options"] == pairs


@pytest.mark.parametrize("value", ['["5m", "10m"]', "{ a = 1 }"])
def test_several_values_of_an_option_that_takes_one_are_refused(
    job: ModuleType, tmp_path: Path, value: str
) -> None:
    with pytest.raises(click.BadParameter, match=r"c\.toml: window takes one value"):
        configured(job, f"window = {value}", tmp_path / "c.toml")


def test_table_of_an_option_that_has_no_names_is_refused(job: ModuleType, tmp_path: Path) -> None:
    with pytest.raises(click.BadParameter, match=r"c\.toml: topic takes one value or a list"):
        configured(job, "[topic]\na = 1", tmp_path / "c.toml")


def test_command_line_goes_before_a_config_file(job: ModuleType, tmp_path: Path) -> None:
    toml = 'topic = "flights"\nwindow = "5m"'
    given = configured(job, toml, tmp_path / "c.toml", ["--topic", "more"])
    assert (given["topics"], given["window"]) == (("more",), "5m")


def test_query_is_stopped_if_there_is_a_jvm_still(job: ModuleType) -> None:
    """That of spark-submit hears of Ctrl-C too, and may be gone."""

    class Query:
        def stop(self) -> None:
            raise Py4JNetworkError("Answer from Java side is empty")

    job.stop(Query())


@pytest.mark.parametrize(
    ("arguments", "in_file", "variable", "used"),
    [
        (["--bootstrap-server", "line:1"], "file:1", "variable:1", "line:1"),
        ([], "file:1", "variable:1", "file:1"),
        ([], None, "variable:1", "variable:1"),
        ([], None, "", "127.0.0.1:9092"),
    ],
)
def test_broker_is_that_of_the_line_the_file_the_variable_or_this_host(
    job: ModuleType,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    arguments: list[str],
    in_file: str | None,
    variable: str,
    used: str,
) -> None:
    @click.command()
    @job.config_option
    @job.bootstrap_option
    def main(bootstrap_server: str) -> None:
        click.echo(bootstrap_server)

    monkeypatch.setenv("PLOG_BOOTSTRAP_SERVER", variable)
    config = tmp_path / "job.toml"
    config.write_text("" if in_file is None else f'bootstrap-server = "{in_file}"\n')
    done = CliRunner().invoke(main, ["--config", str(config), *arguments])
    assert done.output == f"{used}\n"


@pytest.mark.parametrize(
    "path",
    sorted([*ROOT.glob("spark/*.py"), *ROOT.glob("examples/*.py")]),
    ids=lambda path: path.name,
)
def test_program_that_names_a_broker_knows_the_variable(path: Path) -> None:
    text = path.read_text("utf-8")
    if '"--bootstrap-server",' in text:
        assert "PLOG_BOOTSTRAP_SERVER" in text.partition('"--bootstrap-server",')[2][:300]
    assert '"--bootstrap-server", default' not in text
