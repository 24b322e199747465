from __future__ import annotations

import errno
import shutil
import subprocess
import sys
import uuid
from collections.abc import Callable
from pathlib import Path

import pytest

from plog._native import faults
from plog.errors import InconsistentLogDirs, KafkaStorageError
from plog.storage.filesystem import Filesystem
from plog.storage.log_dir import (
    LOCK_FILE,
    KRaftLogDir,
    LogDir,
    common_identity,
    decode_properties,
    is_locked,
    lock_log_dirs,
)
from plog.types import new_directory_id, uuid_from_text, uuid_to_text

from .storage_logs import Crash

AN_ID = "SGVsbG8gZGlyZWN0b3J5IQ"

HOLD = """
import sys
from pathlib import Path
from plog.storage.filesystem import Filesystem
from plog.storage.log_dir import LogDir
LogDir(Filesystem(), Path(sys.argv[1])).open()
print("locked", flush=True)
sys.stdin.read()
"""


@pytest.fixture
def log_dir(tmp_path: Path) -> LogDir:
    return LogDir(Filesystem(), tmp_path / "deep" / "logs")


def test_missing_directories_are_made(log_dir: LogDir) -> None:
    log_dir.open()
    assert log_dir.path.is_dir()
    log_dir.unlock()


def test_second_broker_on_one_directory_is_refused(log_dir: LogDir) -> None:
    log_dir.open()
    with pytest.raises(InconsistentLogDirs, match="in use by another broker"):
        LogDir(Filesystem(), log_dir.path).open()
    log_dir.unlock()
    again = LogDir(Filesystem(), log_dir.path)
    again.open()
    again.unlock()


POSIX_LOCK = """
import fcntl, sys
lock = open(sys.argv[1], "r+")
fcntl.lockf(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
print("locked", flush=True)
sys.stdin.read()
"""


def test_lock_of_javas_kind_and_ours_exclude_each_other(log_dir: LogDir) -> None:
    log_dir.open()
    assert is_locked(log_dir.path)
    command = [sys.executable, "-c", POSIX_LOCK, str(log_dir.path / LOCK_FILE)]
    refused = subprocess.run(command, capture_output=True, text=True, check=False)
    assert "BlockingIOError" in refused.stderr
    log_dir.unlock()
    assert not is_locked(log_dir.path)
    holder = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    try:
        assert holder.stdout is not None
        assert holder.stdout.readline() == "locked\n"
        assert is_locked(log_dir.path)
        with pytest.raises(InconsistentLogDirs):
            log_dir.open()
    finally:
        holder.kill()
        holder.communicate()


def test_lock_of_a_killed_process_is_free(tmp_path: Path) -> None:
    holder = subprocess.Popen(
        [sys.executable, "-c", HOLD, str(tmp_path)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        assert holder.stdout is not None
        assert holder.stdout.readline() == "locked\n"
        with pytest.raises(InconsistentLogDirs):
            LogDir(Filesystem(), tmp_path).open()
    finally:
        holder.kill()
        holder.communicate()
    log_dir = LogDir(Filesystem(), tmp_path)
    log_dir.open()
    log_dir.unlock()


def test_claim_writes_an_identity_that_later_starts_check(log_dir: LogDir) -> None:
    log_dir.open()
    log_dir.claim(3, "cluster-a")
    path = log_dir.path / "meta.properties"
    values = decode_properties(path.read_text())
    assert log_dir.directory_id is not None
    assert uuid_from_text(values.pop("directory.id")) == log_dir.directory_id
    assert values == {"version": "0", "broker.id": "3", "cluster.id": "cluster-a"}
    before = path.read_bytes()
    again = LogDir(Filesystem(), log_dir.path)
    again.claim(3, "cluster-a")
    assert again.directory_id == log_dir.directory_id
    assert path.read_bytes() == before
    with pytest.raises(InconsistentLogDirs, match="belongs to broker 3, not 4"):
        log_dir.claim(4, "cluster-a")
    with pytest.raises(InconsistentLogDirs, match="cluster cluster-a, not cluster-b"):
        log_dir.claim(3, "cluster-b")
    log_dir.unlock()


@pytest.mark.parametrize(
    ("text", "broker_id", "directory_id"),
    [
        ("#\n#Mon Nov 20 10:00:00 UTC 2026\nversion=0\nbroker.id=7\ncluster.id=abc\n", 7, None),
        (f"version=0\nbroker.id=7\ncluster.id=abc\ndirectory.id={AN_ID}\n", 7, AN_ID),
        ("! old\nversion = 0\n", None, None),
    ],
)
def test_identities_that_kafka_wrote_are_understood_and_kept(
    log_dir: LogDir, text: str, broker_id: int | None, directory_id: str | None
) -> None:
    log_dir.open()
    path = log_dir.path / "meta.properties"
    path.write_text(text)
    identity = log_dir.identity()
    assert identity is not None
    assert identity.broker_id == broker_id
    log_dir.claim(7, "abc")
    given = uuid_to_text(log_dir.directory_id)
    if directory_id is None:
        assert path.read_text() == f"{text.rstrip()}\ndirectory.id={given}\n"
    else:
        assert given == directory_id
        assert path.read_text() == text
    log_dir.unlock()


@pytest.mark.parametrize(
    "text",
    [
        "",
        "xyz",
        AN_ID + "A",
        AN_ID[:-2] + "=A",
        "\ufffd" * 22,
        "A" * 22,  # Kafka's first hundred stand for no directory
        "AAAAAAAAAAAAAAAAAAAAYw",
    ],
)
def test_directory_id_that_is_none_is_refused(log_dir: LogDir, text: str) -> None:
    log_dir.open()
    path = log_dir.path / "meta.properties"
    path.write_text(f"version=0\nbroker.id=7\ncluster.id=abc\ndirectory.id={text}\n")
    before = path.read_bytes()
    with pytest.raises(InconsistentLogDirs, match="is not the id of a directory"):
        log_dir.claim(7, "abc")
    assert path.read_bytes() == before
    log_dir.unlock()


def test_ids_that_are_drawn_are_none_of_kafkas_and_no_options(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    option = uuid.UUID(bytes=b"\xf8" + bytes(15))
    drawn = iter([uuid.UUID(int=0), uuid.UUID(int=99), option, uuid.UUID(int=100)])
    monkeypatch.setattr(uuid, "uuid4", lambda: next(drawn))
    assert new_directory_id() == uuid.UUID(int=100)


def test_copies_of_one_directory_are_refused_by_their_names(tmp_path: Path) -> None:
    dirs = lock_log_dirs(Filesystem(), [tmp_path / name for name in "ab"])
    dirs[0].claim(7, "one")
    shutil.copy(dirs[0].path / "meta.properties", dirs[1].path)
    with pytest.raises(InconsistentLogDirs, match=rf"{dirs[0].path} and {dirs[1].path} are copies"):
        common_identity(dirs, 7)
    for log_dir in dirs:
        log_dir.unlock()


def test_directory_on_a_full_disk_has_no_id_yet(
    log_dir: LogDir, caplog: pytest.LogCaptureFixture
) -> None:
    class Full(Filesystem):
        def write_bytes(self, path: Path, data: object, *, sync: bool = True) -> None:
            raise OSError(errno.ENOSPC, "No space left on device", str(path))

    log_dir.open()
    path = log_dir.path / "meta.properties"
    path.write_text("version=0\nbroker.id=7\ncluster.id=abc\n")
    full = LogDir(Full(), log_dir.path)
    full.claim(7, "abc")
    assert full.directory_id is None
    assert "cannot add directory.id to" in caplog.text
    log_dir.claim(7, "abc")
    assert log_dir.directory_id is not None
    log_dir.unlock()


@pytest.mark.parametrize("text", ["version=2\n", "version=10\nnode.id=7\n"])
def test_identity_of_a_later_version_is_refused(log_dir: LogDir, text: str) -> None:
    log_dir.open()
    path = log_dir.path / "meta.properties"
    path.write_text(text)
    with pytest.raises(InconsistentLogDirs, match=r"meta\.properties"):
        log_dir.claim(7, "abc")
    with pytest.raises(InconsistentLogDirs, match=r"meta\.properties"):
        common_identity([log_dir], 7)
    assert path.read_text() == text
    log_dir.unlock()


def kraft_formatted(path: Path) -> None:
    text = "version=1\nnode.id=7\ncluster.id=abc\ndirectory.id=AbCdEfGhIjKlMnOpQrStUw\n"
    (path / "meta.properties").write_text(text)


def kraft_controlled(path: Path) -> None:
    (path / "__cluster_metadata-0").mkdir()


@pytest.mark.parametrize("kraft", [kraft_formatted, kraft_controlled])
def test_directory_of_kraft_is_refused_with_what_can_be_done(
    log_dir: LogDir, kraft: Callable[[Path], None]
) -> None:
    log_dir.open()
    kraft(log_dir.path)
    before = sorted(log_dir.path.rglob("*"))
    for refused in (lambda: common_identity([log_dir], 7), lambda: log_dir.claim(7, "abc")):
        with pytest.raises(KRaftLogDir, match=r"a KRaft broker's directory.*MirrorMaker"):
            refused()
    assert sorted(log_dir.path.rglob("*")) == before
    log_dir.unlock()


LONG_ID = f"version=0\nbroker.id={'9' * 5000}\n"  # more digits than int() takes


@pytest.mark.parametrize(
    "text",
    [
        "",
        "\0\0\0",
        "version=\xb2\n",
        "version=0\nbroker.id=seven\n",
        "version=0\nbroker.id=\n",
        LONG_ID,
    ],
)
def test_damaged_identity_is_written_anew_and_reported(
    log_dir: LogDir, text: str, caplog: pytest.LogCaptureFixture
) -> None:
    log_dir.open()
    path = log_dir.path / "meta.properties"
    path.write_text(text)
    assert common_identity([log_dir], -1).broker_id is None
    log_dir.claim(7, "abc")
    assert f"rewriting {path} for broker 7" in caplog.text
    drawn = log_dir.directory_id
    log_dir.claim(7, "abc")
    assert log_dir.directory_id == drawn
    # What is known of it from elsewhere stays.
    path.write_text(text)
    log_dir.lost_id = known = new_directory_id()
    log_dir.claim(7, "abc")
    assert log_dir.directory_id == known
    log_dir.unlock()


def test_directories_tell_whose_they_are(tmp_path: Path) -> None:
    fs = Filesystem()
    paths = [tmp_path / name for name in "abc"]
    dirs = lock_log_dirs(fs, paths)
    assert common_identity(dirs, -1).broker_id is None
    dirs[1].claim(7, "one")
    assert vars(common_identity(dirs, -1)) == {
        "broker_id": 7,
        "cluster_id": "one",
        "directory_id": None,
    }
    with pytest.raises(InconsistentLogDirs, match="belongs to broker 7, not 8"):
        common_identity(dirs, 8)
    dirs[2].claim(7, "two")
    with pytest.raises(InconsistentLogDirs, match="belongs to cluster two, not one"):
        common_identity(dirs, 7)
    (paths[2] / "meta.properties").unlink()
    dirs[2].claim(9, "one")
    with pytest.raises(InconsistentLogDirs, match="belongs to broker 9, not 7"):
        common_identity(dirs, -1)
    for log_dir in dirs:
        log_dir.unlock()


def test_locking_leaves_out_what_cannot_be_used(tmp_path: Path) -> None:
    fs = Filesystem()
    good, bad = tmp_path / "good", tmp_path / "file" / "bad"
    (tmp_path / "file").write_text("in the way")
    (locked,) = lock_log_dirs(fs, [bad, good])
    assert locked.path == good
    with pytest.raises(InconsistentLogDirs, match="in use by another broker process"):
        lock_log_dirs(fs, [tmp_path / "other", good])
    locked.unlock()
    # The refused attempt gave back what it had locked.
    for log_dir in lock_log_dirs(fs, [tmp_path / "other", good]):
        log_dir.unlock()
    with pytest.raises(KafkaStorageError, match=r"no log directory .*bad: Not a directory"):
        lock_log_dirs(fs, [bad])
    (tmp_path / "link").symlink_to(good)
    with pytest.raises(InconsistentLogDirs, match="twice"):
        lock_log_dirs(fs, [good, tmp_path / "link"])


def test_removed_marker_stays_removed_although_the_start_that_removed_it_died(
    tmp_path: Path, log_dir: LogDir
) -> None:
    class Dies(Filesystem):
        def sync_directory(self, path: Path) -> None:
            raise Crash

    log_dir.open()
    log_dir.mark_clean_shutdown(42)
    with pytest.raises(Crash):
        LogDir(Dies(), log_dir.path).take_clean_shutdown()
    journal = tmp_path / "journal"
    faults.record_durability(str(journal))
    try:
        assert not log_dir.take_clean_shutdown()
    finally:
        faults.record_durability("")
    assert journal.read_text() == f"dir {log_dir.path}\n"
    log_dir.unlock()


def test_clean_shutdown_marker_counts_once(log_dir: LogDir) -> None:
    log_dir.open()
    assert not log_dir.take_clean_shutdown()
    log_dir.mark_clean_shutdown(42)
    marker = log_dir.path / ".kafka_cleanshutdown"
    assert marker.read_bytes() == b'{"version":0,"brokerEpoch":42}'
    assert log_dir.take_clean_shutdown()
    assert not log_dir.take_clean_shutdown()
    marker.touch()  # older Kafkas leave it empty
    assert log_dir.take_clean_shutdown()
    log_dir.unlock()
