"""The embedded store's copies: which wins, what damage does, what a kill leaves behind."""

from __future__ import annotations

import os
import queue
import random
import re
import signal
import sqlite3
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from plog.cluster.embedded_store import EmbeddedStore
from plog.cluster.space_reserve import FILE_NAME as RESERVE
from plog.cluster.space_reserve import RESERVE_BYTES
from plog.cluster.store import CreateOp, SessionEvent, SessionLost, StoreError, WriteRefused
from plog.cluster.store_copy import FILE_NAME, CopyDamaged, StoreCopy
from plog.errors import InconsistentLogDirs
from plog.runtime.clock import ManualClock, SystemClock
from tests.agreement.harness import run_seed

WAIT_S = 40


@pytest.fixture
def reopen(log_dirs: list[Path], clock: ManualClock) -> Callable[..., EmbeddedStore]:
    opened: list[EmbeddedStore] = []

    def open_again(directories: list[Path] | None = None, **options) -> EmbeddedStore:
        if opened:
            opened[-1].close()
        opened.append(EmbeddedStore(directories or log_dirs, clock=clock, **options))
        return opened[-1]

    yield open_again
    if opened:
        opened[-1].close()


def test_reopened_store_has_everything_but_ephemerals(reopen) -> None:
    store = reopen()
    assert store.created
    store.create("/a/b", b"kept", make_parents=True)
    store.set("/a/b", b"kept twice")
    store.create("/q_", sequential=True)
    store.create("/e", ephemeral=True)
    stat = store.get("/a/b")[1]
    again = reopen()
    assert not again.created
    assert again.get("/a/b") == (b"kept twice", stat)
    assert again.exists("/e") is None
    assert again.session_id > store.session_id
    again.create("/q_", sequential=True)
    assert again.children("/") == ["a", "q_0000000001", "q_0000000003"]
    assert again.exists("/q_0000000003").czxid > again.session_id


@pytest.mark.parametrize("years", [12, 100, 10_000])
def test_clock_far_ahead_at_a_start_leaves_room_for_the_next_ones(
    log_dirs: list[Path], years: int
) -> None:
    session_ids = []
    now_ms = SystemClock().now_ms()
    for at_ms in (now_ms, now_ms + years * 365 * 86_400_000, now_ms, 0):
        store = EmbeddedStore(log_dirs, clock=ManualClock(at_ms))
        store.create("/q_", sequential=True)
        store.close()
        session_ids.append(store.session_id)
    assert session_ids == sorted(set(session_ids))
    assert session_ids[-1] < 1 << 63


def test_ephemerals_of_a_killed_process_go_on_opening(log_dirs: list[Path], clock) -> None:
    run_writer(log_dirs, "store.create('/e', ephemeral=True); kill()")
    store = EmbeddedStore(log_dirs, clock=clock)
    assert store.exists("/e") is None
    assert store.children("/") == []
    store.close()


def test_a_new_log_dir_gets_a_copy(reopen, log_dirs: list[Path], tmp_path: Path) -> None:
    reopen().create("/a", b"x")
    added = tmp_path / "added"
    added.mkdir()
    reopen([*log_dirs, added])
    assert reopen([added]).get("/a")[0] == b"x"


def test_newest_copy_wins_and_the_other_is_replaced(reopen, log_dirs: list[Path], clock) -> None:
    reopen().create("/a", b"old")
    alone = reopen([log_dirs[1]])
    alone.set("/a", b"new")
    assert reopen().get("/a")[0] == b"new"
    assert reopen([log_dirs[0]]).get("/a")[0] == b"new"


def test_unacknowledged_write_of_a_copy_that_was_away_never_ties(
    reopen, log_dirs: list[Path], clock: ManualClock
) -> None:
    # d0 alone has one more transaction, then is away while d1 writes as many: d1 must win.
    reopen().create("/a", b"old")
    reopen([log_dirs[0]]).set("/a", b"never acknowledged")
    clock.advance(2000)
    reopen([log_dirs[1]]).set("/a", b"acknowledged")
    assert reopen().get("/a")[0] == b"acknowledged"


def damage_header(path: Path, rng: random.Random) -> None:
    path.write_bytes(b"not a database" + path.read_bytes()[14:])


def damage_payload(path: Path, rng: random.Random) -> None:
    raw = bytearray(path.read_bytes())
    at = raw.index(b"precious")
    raw[at] ^= 1
    path.write_bytes(raw)


def damage_by_cutting(path: Path, rng: random.Random) -> None:
    raw = path.read_bytes()
    path.write_bytes(raw[: len(raw) // 2])


def damage_by_losing_a_row(path: Path, rng: random.Random) -> None:
    with sqlite3.connect(path) as db:
        db.execute("DELETE FROM node WHERE path='/a'")
    db.close()


def damage_by_a_changed_type(path: Path, rng: random.Random) -> None:
    with sqlite3.connect(path) as db:
        db.execute("UPDATE node SET path=CAST(path AS BLOB) WHERE path='/a'")
    db.close()


def damage_by_foreign_tables(path: Path, rng: random.Random) -> None:
    path.unlink()
    with sqlite3.connect(path) as db:
        db.execute("CREATE TABLE mine (x)")
    db.close()


DAMAGES = [
    damage_header,
    damage_payload,
    damage_by_cutting,
    damage_by_losing_a_row,
    damage_by_a_changed_type,
    damage_by_foreign_tables,
]


@pytest.mark.parametrize("damage", DAMAGES, ids=lambda damage: damage.__name__)
def test_damaged_copy_is_set_aside_and_replaced(
    reopen, log_dirs: list[Path], damage, caplog: pytest.LogCaptureFixture
) -> None:
    reopen().create("/a", b"precious")
    reopen().close()
    damage(log_dirs[0] / FILE_NAME, random.Random(1))
    assert reopen().get("/a")[0] == b"precious"
    assert "coordination store damaged" in caplog.text
    assert [path for path in log_dirs[0].iterdir() if ".damaged-" in path.name]
    assert reopen([log_dirs[0]]).get("/a")[0] == b"precious"


@pytest.mark.parametrize("option", ["elsewhere", "unreadable", "refill"])
def test_damaged_copies_are_not_replaced_where_that_could_lose_topics(
    reopen, log_dirs: list[Path], tmp_path: Path, option: str
) -> None:
    reopen().create("/a", b"precious")
    reopen().close()
    other = tmp_path / "not-mounted"
    directories, options, message = {
        "elsewhere": (log_dirs, {"elsewhere": [other]}, f"{other} may hold one: mount it"),
        "unreadable": ([*log_dirs, other], {}, f"{other} may hold one: mount it"),
        "refill": (log_dirs, {"refill": False}, "from a backup, or start the broker"),
    }[option]
    whole = (log_dirs[1] / FILE_NAME).read_bytes()
    for directory in log_dirs:
        (directory / FILE_NAME).write_bytes(b"no database" * 1000)
    before = {path: path.read_bytes() for directory in log_dirs for path in directory.iterdir()}
    with pytest.raises(CopyDamaged, match=re.escape(message)):
        reopen(directories, **options)
    assert {path: path.read_bytes() for path in before} == before
    # One whole copy is enough.
    (log_dirs[1] / FILE_NAME).write_bytes(whole)
    assert reopen(directories, **options).get("/a")[0] == b"precious"


@pytest.mark.parametrize("damage", DAMAGES, ids=lambda damage: damage.__name__)
def test_when_every_copy_is_damaged_an_empty_store_is_made(
    reopen, log_dirs, damage, caplog: pytest.LogCaptureFixture
) -> None:
    reopen().create("/a", b"precious")
    reopen().close()
    for directory in log_dirs:
        damage(directory / FILE_NAME, random.Random(1))
    before = [(directory / FILE_NAME).read_bytes() for directory in log_dirs]
    store = reopen()
    assert store.created
    assert "no copy of the coordination store is whole" in caplog.text
    assert store.children("/") == []
    for directory, data in zip(log_dirs, before, strict=True):
        (aside,) = [p for p in directory.glob("*.damaged-*") if p.suffix[-1].isdigit()]
        assert aside.read_bytes() == data
    store.create("/b")
    assert not reopen().created


def test_random_flipped_byte_is_seen_or_harmless(reopen, log_dirs: list[Path]) -> None:
    rng = random.Random(run_seed())
    store = reopen([log_dirs[0]])
    nodes = {f"/n{number}": rng.randbytes(200) for number in range(50)}
    store.multi([CreateOp(path, data) for path, data in nodes.items()])
    store.close()
    path = log_dirs[0] / FILE_NAME
    good = path.read_bytes()
    for _ in range(60):
        raw = bytearray(good)
        at = rng.randrange(len(raw))
        raw[at] ^= 1 << rng.randrange(8)
        path.write_bytes(raw)
        try:
            store = EmbeddedStore([log_dirs[0]], clock=ManualClock())
        except StoreError:
            continue
        if store.created:
            store.close()
            continue
        found = {f"/{name}": store.get(f"/{name}")[0] for name in store.children("/")}
        store.close()
        assert found == nodes, f"byte {at} changed what is read"


def test_copies_of_different_stores_refuse_to_open(reopen, log_dirs: list[Path]) -> None:
    reopen([log_dirs[0]]).create("/a")
    reopen([log_dirs[1]]).create("/b")
    with pytest.raises(InconsistentLogDirs, match="different stores"):
        reopen()


def test_second_process_is_refused(embedded: EmbeddedStore, log_dirs: list[Path]) -> None:
    embedded.create("/a")
    with pytest.raises(InconsistentLogDirs, match="in use"):
        EmbeddedStore(log_dirs, clock=ManualClock())


def test_missing_directory_is_reported_and_the_other_serves(reopen, log_dirs, tmp_path) -> None:
    failed: queue.Queue[tuple[Path, Exception]] = queue.Queue()
    store = reopen([tmp_path / "gone", log_dirs[0]], on_copy_failed=lambda *why: failed.put(why))
    store.create("/a")
    directory, error = failed.get(timeout=WAIT_S)
    assert directory == tmp_path / "gone"
    assert isinstance(error, OSError)
    assert store.directories == [log_dirs[0]]
    with pytest.raises(StoreError, match="no log directory"):
        EmbeddedStore([tmp_path / "gone"], clock=ManualClock())


def failing(copy: StoreCopy, code: int) -> Callable[..., None]:
    def apply(*_: object) -> None:
        error = sqlite3.OperationalError(f"made to fail in {copy.directory.name}")
        error.sqlite_errorcode = code
        raise error

    return apply


def test_copy_that_fails_is_dropped_and_the_last_one_ends_the_session(
    reopen, log_dirs: list[Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    failed: queue.Queue[tuple[Path, Exception]] = queue.Queue()
    session: queue.Queue[SessionEvent] = queue.Queue()
    store = reopen(on_copy_failed=lambda *why: failed.put(why))
    store.watch_session(session.put)
    first, second = store._copies
    monkeypatch.setattr(first, "apply", failing(first, sqlite3.SQLITE_IOERR))
    store.create("/a")
    assert failed.get(timeout=WAIT_S)[0] == log_dirs[0]
    assert store.directories == [log_dirs[1]]
    monkeypatch.setattr(second, "apply", failing(second, sqlite3.SQLITE_IOERR))
    with pytest.raises(SessionLost, match="last copy failed"):
        store.create("/b")
    assert session.get(timeout=WAIT_S) is SessionEvent.LOST
    with pytest.raises(SessionLost):
        store.get("/a")
    assert reopen().children("/") == ["a"]


def test_full_disks_refuse_the_write_and_keep_the_store(reopen, monkeypatch) -> None:
    store = reopen()
    store.create("/a", b"1")
    with monkeypatch.context() as full:
        for copy in store._copies:
            full.setattr(copy, "apply", failing(copy, sqlite3.SQLITE_FULL))
        with pytest.raises(WriteRefused):
            store.set("/a", b"2")
    assert store.get("/a")[0] == b"1"
    store.set("/a", b"3")
    assert reopen().get("/a")[0] == b"3"


def full_until(copy: StoreCopy, reserve_bytes: int, real) -> Callable[..., None]:
    """A disk that has room for the store once the reserve is as small as that."""

    def write(*args: object, **options: object) -> None:
        if (copy.directory / RESERVE).stat().st_size > reserve_bytes:
            failing(copy, sqlite3.SQLITE_FULL)()
        real(*args, **options)

    return write


def test_full_disk_gives_the_store_what_was_kept_for_it(reopen, log_dirs, monkeypatch) -> None:
    store = reopen()
    reserves = [directory / RESERVE for directory in log_dirs]
    assert [path.stat().st_size for path in reserves] == [RESERVE_BYTES] * 2
    assert all(path.stat().st_blocks * 512 >= RESERVE_BYTES for path in reserves)
    no_room = os.statvfs_result([4096, 4096, 0, 0, 0, 0, 0, 0, 0, 255])
    with monkeypatch.context() as full:
        full.setattr(os, "statvfs", lambda path: no_room)
        for copy in store._copies:
            full.setattr(
                copy, "_write_once", full_until(copy, RESERVE_BYTES // 2, copy._write_once)
            )
        store.create("/a", b"written all the same")
        assert [path.stat().st_size for path in reserves] == [RESERVE_BYTES // 2] * 2
        for copy in store._copies:
            full.setattr(copy, "_write_once", full_until(copy, -1, copy._write_once))
        with pytest.raises(WriteRefused):
            store.create("/b")
        assert [path.stat().st_size for path in reserves] == [0, 0]
        assert reopen().children("/") == ["a"]
        assert [path.stat().st_size for path in reserves] == [0, 0]
    # There is room again: it is kept once more.
    reopen().create("/b")
    assert [path.stat().st_size for path in reserves] == [RESERVE_BYTES] * 2


def test_reserve_that_cannot_be_written_is_done_without(reopen, log_dirs, caplog) -> None:
    for directory in log_dirs:
        (directory / RESERVE).mkdir()
    store = reopen()
    store.create("/a")
    assert "cannot reserve space" in caplog.text


def test_real_full_disk_is_told_from_a_failing_one(log_dirs: list[Path]) -> None:
    # A file size limit stands for a full disk; SQLite reports it as a failing write or as full.
    done = subprocess.run(
        [sys.executable, "-c", WRITER, "limit_file_size(); grow_until_refused()"]
        + [str(directory) for directory in log_dirs[:1]],
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode == 0, done.stderr
    store = EmbeddedStore([log_dirs[0]], clock=SystemClock())
    acknowledged = int(done.stdout)
    assert len(store.children("/grown")) in (acknowledged, acknowledged + 1)
    store.close()


def test_closed_store_refuses_everything(embedded: EmbeddedStore) -> None:
    embedded.close()
    embedded.close()
    for call in (
        lambda: embedded.get("/"),
        lambda: embedded.create("/a"),
        lambda: embedded.children("/"),
        lambda: embedded.watch_data("/a", lambda event: None),
    ):
        with pytest.raises(SessionLost):
            call()


def test_empty_store_opens_quickly(tmp_path: Path) -> None:
    EmbeddedStore([tmp_path], clock=SystemClock()).close()
    times = []
    for _ in range(5):
        started = time.perf_counter()
        store = EmbeddedStore([tmp_path], clock=SystemClock())
        times.append(time.perf_counter() - started)
        store.close()
    assert min(times) < 0.02


# --- kill -9 ------------------------------------------------------------------------------------

WRITER = r"""
import os, resource, signal, sys, threading
from pathlib import Path
from plog.cluster.embedded_store import EmbeddedStore
from plog.cluster.space_reserve import FILE_NAME as RESERVE
from plog.cluster.space_reserve import RESERVE_BYTES
from plog.cluster.store import CreateOp, SetOp, StoreError
from plog.cluster.store_copy import StoreCopy
from plog.runtime.clock import SystemClock

def kill():
    os.kill(os.getpid(), signal.SIGKILL)

def limit_file_size():
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (400_000, 400_000))

def grow_until_refused():
    done = 0
    try:
        store.create("/grown")
        while True:
            store.create(f"/grown/{done}", b"x" * 10_000)
            done += 1
    except StoreError:
        print(done)

def die_between_copies():
    "The second copy's commit never comes."
    apply, copies = StoreCopy.apply, iter(store._copies)
    def once(self, *args):
        if self is store._copies[1]:
            kill()
        apply(self, *args)
    StoreCopy.apply = once

def count():
    "Two nodes always equal, written together; every acknowledged number is printed."
    number = int(store.get("/left")[0]) if store.exists("/left") else -1
    if number < 0:
        store.multi([CreateOp("/left", b"0"), CreateOp("/right", b"0")])
        number = 0
    while True:
        number += 1
        store.multi([SetOp("/left", b"%d" % number), SetOp("/right", b"%d" % number)])
        print(number, flush=True)

store = EmbeddedStore([Path(name) for name in sys.argv[2:]], clock=SystemClock())
exec(sys.argv[1])
"""


def run_writer(log_dirs: list[Path], script: str) -> str:
    done = subprocess.run(
        [sys.executable, "-c", WRITER, script, *map(str, log_dirs)],
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode == -signal.SIGKILL, done.stderr
    return done.stdout


def test_kill_between_copies_leaves_the_newest_whole(log_dirs: list[Path], reopen) -> None:
    run_writer(
        log_dirs,
        "store.create('/a', b'1'); die_between_copies();"
        "store.multi([SetOp('/a', b'2'), CreateOp('/b')])",
    )
    store = reopen()
    assert store.get("/a")[0] == b"2"
    assert store.children("/") == ["a", "b"]
    assert reopen([log_dirs[1]]).get("/a")[0] == b"2"


def test_kill_under_load_loses_nothing_acknowledged(log_dirs: list[Path], reopen) -> None:
    rng = random.Random(run_seed())
    acknowledged = 0
    for _ in range(6):
        writer = subprocess.Popen(
            [sys.executable, "-c", WRITER, "count()", *map(str, log_dirs)], stdout=subprocess.PIPE
        )
        assert writer.stdout is not None
        for _ in range(rng.randrange(1, 60)):
            acknowledged = int(writer.stdout.readline())
        os.kill(writer.pid, signal.SIGKILL)
        for line in writer.stdout.read().split(b"\n")[:-1]:
            acknowledged = int(line)
        writer.wait()
        writer.stdout.close()
        store = reopen(rng.sample(log_dirs, 2))
        left, right = int(store.get("/left")[0]), int(store.get("/right")[0])
        assert left == right
        assert acknowledged <= left <= acknowledged + 1
        store.close()
