"""A broker that starts reads all settings once: there may be many topics, and a slow store."""

from __future__ import annotations

from pathlib import Path

import pytest

from plog.cluster.config_changes import ConfigChanges
from tests.handlers.running import Running
from tests.waiting import until


def test_settings_are_read_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    steps: list[str] = []
    process, read_all, again = (
        ConfigChanges.process,
        ConfigChanges._apply_all,
        ConfigChanges.read_again,
    )

    def processing(changes: ConfigChanges) -> None:
        steps.append("begin")
        process(changes)
        steps.append("end")

    def reading(changes: ConfigChanges) -> None:
        steps.append("read all")
        read_all(changes)

    def asking(changes: ConfigChanges) -> None:
        steps.append("asked")
        again(changes)

    monkeypatch.setattr(ConfigChanges, "process", processing)
    monkeypatch.setattr(ConfigChanges, "_apply_all", reading)
    monkeypatch.setattr(ConfigChanges, "read_again", asking)
    running = Running(tmp_path)
    until(lambda: has_processed(steps[steps.index("asked") :]), "changes are read")
    running.stop()
    assert steps.count("read all") == 1


def has_processed(steps: list[str]) -> bool:
    """Return whether changes were read from begin to end."""
    return "begin" in steps and "end" in steps[steps.index("begin") :]
