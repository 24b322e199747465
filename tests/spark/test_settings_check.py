"""Warnings of settings that a session lacks: which ones, and once. Real sessions: test_session."""

from __future__ import annotations

from pathlib import Path

import pytest
from pyspark import TaskContext

from plog.spark import settings_check
from plog.spark.session_settings import BATCH_BYTES, BATCH_RECORDS, PUSHDOWN, SETTINGS, UNIX_SOCKET
from plog.spark.settings_check import missing_in_planning, missing_in_task, warn_once


@pytest.mark.parametrize(
    ("socket", "pushdown", "pushes_filters", "missing"),
    [
        ("True", True, True, []),
        (None, False, True, [UNIX_SOCKET, PUSHDOWN]),
        ("false", None, True, [UNIX_SOCKET]),
        ("True", False, False, []),
    ],
)
def test_planner_lacks_a_setting(
    monkeypatch: pytest.MonkeyPatch,
    socket: str | None,
    pushdown: bool | None,
    pushes_filters: bool,
    missing: list[str],
) -> None:
    monkeypatch.delenv("PYTHON_UNIX_DOMAIN_ENABLED", raising=False)
    if socket is not None:
        monkeypatch.setenv("PYTHON_UNIX_DOMAIN_ENABLED", socket)

    def plan(enable_pushdown: bool | None) -> list[str]:
        return missing_in_planning(pushes_filters=pushes_filters)

    assert plan(pushdown) == missing


def test_task_lacks_the_settings_that_its_session_does_not_set(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    assert missing_in_task() == ()
    task = object.__new__(TaskContext)  # the class keeps those that it makes itself
    monkeypatch.setattr(TaskContext, "get", lambda: task)
    task._localProperties = {BATCH_RECORDS: "10000"}
    assert missing_in_task() == (BATCH_BYTES,)


def test_warning_comes_once_in_a_session(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    for name in ("one", "other"):
        (tmp_path / name).mkdir()
    for directories in (f"{tmp_path}/one,{tmp_path}/other", f"{tmp_path}/one", f"{tmp_path}/other"):
        monkeypatch.setenv("SPARK_LOCAL_DIRS", directories)
        warn_once([UNIX_SOCKET])
        warn_once([])
    lines = [record.getMessage() for record in caplog.records]
    assert len(lines) == 2  # "other" is the directory of another session
    assert lines[0].startswith(f"plog: {UNIX_SOCKET} is not true. Rows reach Python through a")
    assert f"Add to spark-defaults.conf: {UNIX_SOCKET} {SETTINGS[UNIX_SOCKET]} (" in lines[0]


@pytest.mark.parametrize("directory", [None, "/nowhere/at/all"])
def test_session_without_a_directory_is_warned_all_the_same(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, directory: str | None
) -> None:
    monkeypatch.delenv(settings_check.DIRECTORIES_VARIABLE, raising=False)
    if directory is not None:
        monkeypatch.setenv(settings_check.DIRECTORIES_VARIABLE, directory)
    warn_once([BATCH_RECORDS])
    assert f"{BATCH_RECORDS} is not set" in caplog.text
