"""What `bin/demo` finds of an earlier run of its own."""

from __future__ import annotations

import importlib.util
import os
from pathlib import Path

import pytest

from plog.storage.filesystem import Filesystem
from plog.storage.log_dir import LogDir
from tests.conftest import ROOT


def test_broker_of_an_earlier_run_is_found_by_its_process(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(ROOT / "spark")
    spec = importlib.util.spec_from_file_location("demo", ROOT / "spark" / "demo.py")
    assert spec is not None
    assert spec.loader is not None
    demo = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(demo)
    assert demo.running_broker(tmp_path) is None
    log_dir = LogDir(Filesystem(), tmp_path / "log")
    log_dir.open()
    assert demo.running_broker(tmp_path) == os.getpid()
    log_dir.unlock()
    assert demo.running_broker(tmp_path) is None
