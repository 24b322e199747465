"""What a job keeps of its settings in a checkpoint, without Spark."""

from __future__ import annotations

import importlib
import json
from pathlib import Path
from types import ModuleType

import click
import pytest

from tests.conftest import ROOT


@pytest.fixture
def checkpoints(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(ROOT / "spark")
    return importlib.import_module("checkpoints")


def begin(checkpoint: Path) -> None:
    """Leave what a query leaves that has planned a batch."""
    (checkpoint / "offsets").mkdir(parents=True)
    (checkpoint / "offsets" / "0").touch()


@pytest.mark.parametrize("query", ["", "report"])
def test_checkpoint_that_was_begun_with_another_window_is_refused(
    checkpoints: ModuleType, tmp_path: Path, query: str
) -> None:
    """Its query's, or one of those in it."""
    checkpoint = f"file://{tmp_path}"
    checkpoints.keep_settings(checkpoint, {"window": "5m", "slide": "1m"})
    begin(tmp_path / query)
    checkpoints.keep_settings(checkpoint, {"window": "5m", "slide": "1m"})
    with pytest.raises(click.UsageError, match=r"with --window 5m; --window 10m needs"):
        checkpoints.keep_settings(checkpoint, {"window": "10m", "slide": "1m"})
    # What was refused has changed nothing.
    checkpoints.keep_settings(checkpoint, {"window": "5m", "slide": "1m"})
    assert [one.name for one in tmp_path.glob("*job.json*")] == ["job.json"]


def test_settings_of_a_run_that_began_no_query_are_no_obstacle(
    checkpoints: ModuleType, tmp_path: Path
) -> None:
    checkpoints.keep_settings(str(tmp_path / "c"), {"window": "5m"})
    checkpoints.keep_settings(str(tmp_path / "c"), {"window": "10m"})
    begin(tmp_path / "c")
    with pytest.raises(click.UsageError, match="with --window 10m"):
        checkpoints.keep_settings(str(tmp_path / "c"), {"window": "5m"})


def test_what_an_older_checkpoint_does_not_say_is_taken_from_the_next_run(
    checkpoints: ModuleType, tmp_path: Path
) -> None:
    begin(tmp_path)
    checkpoints.keep_settings(str(tmp_path), {"window": "5m", "gone": "1"})
    checkpoints.keep_settings(str(tmp_path), {"window": "5m", "by": "user"})
    assert json.loads((tmp_path / "job.json").read_text()) == {
        "window": "5m",
        "gone": "1",
        "by": "user",
    }
    with pytest.raises(click.UsageError, match="--by user"):
        checkpoints.keep_settings(str(tmp_path), {"window": "5m", "by": "address"})


def test_file_that_cannot_be_read_is_named(checkpoints: ModuleType, tmp_path: Path) -> None:
    begin(tmp_path)
    (tmp_path / "job.json").write_text("{")
    with pytest.raises(click.UsageError, match=r"/job\.json: Expecting"):
        checkpoints.keep_settings(str(tmp_path), {"window": "5m"})


def test_settings_of_another_filesystem_are_not_kept(
    checkpoints: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    checkpoints.keep_settings("hdfs://nn:9000/c", {"window": "5m"})
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("path", "local"),
    [
        ("/a/b", "/a/b"),
        ("a/b:c", "a/b:c"),
        ("file:/a/b", "/a/b"),
        ("file:///a/b", "/a/b"),
        ("file://host/a", None),
        ("hdfs://nn:9000/c", None),
        ("s3a://bucket/c", None),
    ],
)
def test_local_path_is_that_of_this_host(
    checkpoints: ModuleType, path: str, local: str | None
) -> None:
    assert checkpoints.local_path(path) == (local and Path(local))


@pytest.mark.parametrize(
    ("directory", "path"),
    [
        ("hdfs://nn:9000/c", "hdfs://nn:9000/c/report"),
        ("hdfs://nn:9000/", "hdfs://nn:9000/report"),
        ("/c/", "/c/report"),
    ],
)
def test_name_in_a_directory_leaves_a_uri_as_it_is(
    checkpoints: ModuleType, directory: str, path: str
) -> None:
    assert checkpoints.below(directory, "report") == path
