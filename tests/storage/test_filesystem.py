from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path

import pytest

from plog.storage.filesystem import ENDLESS, Filesystem
from tests.agreement.harness import forked
from tests.descriptors import few_descriptors, open_at

from .storage_logs import Crash, FaultyFilesystem


@pytest.fixture
def fs() -> Filesystem:
    return Filesystem()


def test_bytes_are_written_and_read_where_told(fs: Filesystem, tmp_path: Path) -> None:
    with fs.opened(tmp_path / "f", exclusive=True) as fd:
        fs.pwrite(fd, b"world", 6)
        fs.pwrite(fd, memoryview(b"hello "), 0)
        assert fs.pread(fd, 100, 3) == b"lo world"
        fs.ftruncate(fd, 5)
        assert fs.size_bytes(fd) == 5
        fs.fdatasync(fd)
    assert fs.read_bytes(tmp_path / "f") == b"hello"
    with pytest.raises(FileExistsError), fs.opened(tmp_path / "f", exclusive=True):
        pass
    with pytest.raises(FileNotFoundError):
        fs.read_bytes(tmp_path / "g")


def test_descriptors_do_not_reach_child_processes(fs: Filesystem, tmp_path: Path) -> None:
    with fs.opened(tmp_path / "f", create=True) as fd:
        assert not os.get_inheritable(fd)


def test_missing_file_may_be_unlinked_if_so_asked(fs: Filesystem, tmp_path: Path) -> None:
    fs.unlink(tmp_path / "f", missing_ok=True)
    with pytest.raises(FileNotFoundError):
        fs.unlink(tmp_path / "f")


def test_tree_is_removed_without_following_links(fs: Filesystem, tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "kept").write_text("x")
    tree = tmp_path / "tree"
    (tree / "inner").mkdir(parents=True)
    (tree / "inner" / "file").write_text("x")
    (tree / "link").symlink_to(outside)
    fs.remove_tree(tree)
    assert not tree.exists()
    assert (outside / "kept").exists()


def test_text_that_is_not_utf8_is_left_to_the_parser(fs: Filesystem, tmp_path: Path) -> None:
    (tmp_path / "f").write_bytes(b"a\xffb")
    assert fs.read_text(tmp_path / "f") == "a\ufffdb"


@pytest.mark.parametrize("crash", [False, True])
def test_replacement_is_old_or_new_whatever_fails(tmp_path: Path, crash: bool) -> None:
    path = tmp_path / "f"
    seen = set()
    for fail_at in range(20):
        path.write_text("old")
        fs = FaultyFilesystem(fail_at, crash=crash)
        try:
            fs.replace_text(path, "new, and longer")
        except (OSError, Crash):
            seen.add(path.read_text())
        else:
            break
    assert seen == {"old", "new, and longer"}
    assert path.read_text() == "new, and longer"


def test_replacement_leaves_no_descriptor_open(tmp_path: Path) -> None:
    for fail_at in range(12):
        try:
            FaultyFilesystem(fail_at).replace_text(tmp_path / "f", "x")
        except OSError:
            continue
    assert open_at(tmp_path) == []


def test_file_system_that_tells_of_no_space_has_no_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = Filesystem().space(tmp_path)
    assert 0 < found.free_bytes < found.total_bytes < ENDLESS.total_bytes
    nothing = os.statvfs_result([4096, 4096, 0, 0, 0, 0, 0, 0, 0, 255])
    monkeypatch.setattr(os, "statvfs", lambda path: nothing)
    assert Filesystem().space(tmp_path) == ENDLESS


@pytest.mark.parametrize("free", range(7))
@pytest.mark.parametrize("where", ["low", "high", "spread"])
def test_free_descriptors_are_counted_wherever_they_are(
    fs: Filesystem, free: int, where: str
) -> None:
    # In a process with one thread: others open and close files at any time.
    assert forked(lambda case: count_free(fs, *case), [(free, where)]) == 1


def count_free(fs: Filesystem, free: int, where: str) -> None:
    with few_descriptors(20):
        taken = []
        with suppress(OSError):
            while True:
                taken.append(os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC))
        step = {"low": 1, "high": -1, "spread": 3}[where]
        for fd in taken[::step][:free]:
            os.close(fd)
            taken.remove(fd)
        try:
            found = [fs.has_descriptors(count) for count in range(1, 9)]
        finally:
            for fd in taken:
                os.close(fd)
    assert found == [count <= free for count in range(1, 9)]
