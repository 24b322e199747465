"""The facts of a host while a broker deletes files on it."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from plog.ops.host_facts import disks


def test_files_deleted_meanwhile_do_not_hide_the_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("kept-0", "gone-0"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "1.log").write_bytes(b"12345")
    (tmp_path / "kept-0" / "0.log").write_bytes(b"123")
    (tmp_path / "checkpoint").write_bytes(b"1234")
    lstat, listdir = Path.lstat, os.listdir

    def delete_before_lstat(path: Path) -> os.stat_result:
        if path.name == "0.log":
            path.unlink()
        return lstat(path)

    def delete_after_listdir(path: Path) -> list[str]:
        found = listdir(path)
        if path == tmp_path:
            (tmp_path / "gone-0" / "1.log").unlink(missing_ok=True)
            (tmp_path / "gone-0").rmdir()
            found.append("gone-file")
        return found

    monkeypatch.setattr(Path, "lstat", delete_before_lstat)
    monkeypatch.setattr(os, "listdir", delete_after_listdir)
    (one,) = disks([tmp_path])
    assert one["bytes"] == {"checkpoint": 4, "kept-0": 5}
    assert one["disk"]["total"] > 0


def test_missing_log_directory_has_an_error(tmp_path: Path) -> None:
    (one,) = disks([tmp_path / "none"])
    assert "No such file or directory" in one["error"]
