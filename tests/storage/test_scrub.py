from __future__ import annotations

import threading
import time
from pathlib import Path

import pytest

from plog.storage.log import Log
from plog.storage.scrub import ROUND_INTERVAL_MS, Scrub
from plog.storage.segment_verdict import ANY_OFFSET, Known
from tests.descriptors import open_at

from .storage_logs import NOW_MS, Settings, batch, open_log


@pytest.fixture
def log(tmp_path: Path) -> Log:
    log = open_log(tmp_path / "flights-0", Settings(segment_bytes=3000))
    for n in range(30):
        log.append_as_leader(batch(10, timestamp=NOW_MS + n, value=b"v" * 20), now_ms=NOW_MS)
    log.flush()
    return log


def flip(path: Path, at: int) -> None:
    data = bytearray(path.read_bytes())
    data[at] ^= 4
    path.write_bytes(data)


def path_of(log: Log, segment: int) -> Path:
    return log.directory / f"{log.native.segments[segment].base_offset:020d}.log"


def damage_found(log: Log) -> list[str]:
    damage: list[str] = []
    Scrub(lambda: [log], lambda log, reason: damage.append(reason)).step(1 << 30, 0)
    return damage


def test_round_reads_every_durable_byte_in_small_steps(log: Log) -> None:
    damage: list[str] = []
    scrub = Scrub(lambda: [log], lambda log, reason: damage.append(reason))
    checked = [scrub.step(400, n) for n in range(40)]
    assert sum(checked) == log.size_bytes
    assert max(checked) < 400 + 400  # at most one batch more than asked
    assert damage == []
    # the next round waits its time
    assert scrub.step(400, ROUND_INTERVAL_MS - 1) == 0
    assert scrub.step(400, ROUND_INTERVAL_MS) > 0


def test_damage_is_told_with_its_place(log: Log) -> None:
    path = path_of(log, 1)
    flip(path, 400)
    (reason,) = damage_found(log)
    assert str(path) in reason
    assert "CRC" in reason


def test_damage_in_the_active_segment_is_found(log: Log) -> None:
    path = path_of(log, -1)
    flip(path, path.stat().st_size // 2)
    (reason,) = damage_found(log)
    assert str(path) in reason


def test_offset_out_of_order_is_damage_although_no_crc_covers_it(log: Log) -> None:
    # Its third byte from the right is far above the durable end.
    path = path_of(log, -1)
    flip(path, 5)
    (reason,) = damage_found(log)
    assert str(path) in reason
    assert "base offset" in reason


def test_gaps_that_compaction_may_have_left_are_no_damage(tmp_path: Path) -> None:
    log = open_log(tmp_path / "flights-0", known=Known(False, gaps_legal_below=ANY_OFFSET))
    for _ in range(3):
        log.append_as_leader(batch(10), now_ms=NOW_MS)
    log.close()
    (path,) = log.directory.glob("*.log")
    data = path.read_bytes()
    third = len(data) // 3
    path.write_bytes(data[:third] + data[2 * third :])
    again = open_log(log.directory, known=Known(True, gaps_legal_below=ANY_OFFSET))
    assert again.log_end_offset == 30
    assert damage_found(again) == []


def test_round_ends_where_the_log_was_durable_when_it_came(log: Log) -> None:
    durable = log.size_bytes
    path = path_of(log, -1)
    sealed = sum(segment.size_bytes for segment in log.native.segments[:-1])
    damage: list[str] = []
    scrub = Scrub(lambda: [log], lambda log, reason: damage.append(reason))
    checked = 0
    for _ in range(len(log.native.segments[:-1]) * 10):
        checked += scrub.step(1, 0) if checked <= sealed else 0
    assert sealed < checked < durable
    # What is written meanwhile is the next round's, and so is what is wrong with it.
    at = path.stat().st_size
    log.append_as_leader(batch(10), now_ms=NOW_MS)
    flip(path, at + 90)
    log.flush()
    checked += scrub.step(1 << 30, 0)
    assert (checked, damage) == (durable, [])
    scrub.step(1 << 30, ROUND_INTERVAL_MS)
    assert len(damage) == 1


def test_bytes_that_are_not_durable_are_left_alone(tmp_path: Path) -> None:
    log = open_log(tmp_path / "flights-0")
    log.append_as_leader(batch(10), now_ms=NOW_MS)
    flip(path_of(log, -1), 90)
    assert damage_found(log) == []
    log.flush()
    assert len(damage_found(log)) == 1


def test_scrub_beside_appends_and_rolls_finds_nothing(tmp_path: Path) -> None:
    log = open_log(tmp_path / "flights-0", Settings(segment_bytes=3000))
    stop = threading.Event()

    def append() -> None:
        while not stop.is_set():
            log.append_as_leader(batch(10, value=b"v" * 20), now_ms=NOW_MS)
            log.flush()

    writer = threading.Thread(target=append)
    writer.start()
    found = []
    try:
        deadline = time.monotonic() + 60
        while len(log.native.segments) < 5 and time.monotonic() < deadline:
            found += damage_found(log)
    finally:
        stop.set()
        writer.join()
    assert found == []
    assert len(log.native.segments) >= 5


def test_segment_deleted_under_the_scrub_is_no_damage(log: Log) -> None:
    damage: list[str] = []
    scrub = Scrub(lambda: [log], lambda log, reason: damage.append(reason))
    scrub.step(400, 0)
    log.update_settings(Settings(retention_bytes=1))
    log.apply_retention(NOW_MS)
    assert scrub.step(1 << 30, 0) > 0
    assert damage == []


def test_scrub_keeps_no_file_open_that_is_gone(log: Log) -> None:
    # A round takes hours; space that was let go shall not come back only then.
    first, *others = log.native.segments
    scrub = Scrub(lambda: [log], lambda log, reason: pytest.fail(reason))
    assert 0 < scrub.step(400, 0) < first.size_bytes
    del first, others
    log.update_settings(Settings(retention_bytes=1))
    log.apply_retention(NOW_MS)
    assert {Path(name).stem for name in open_at(log.directory)} == {
        f"{segment.base_offset:020d}" for segment in log.native.segments
    }
    scrub.step(400, 0)
    log.drop()
    assert open_at(log.directory) == []


def test_log_that_goes_away_ends_quietly(log: Log) -> None:
    scrub = Scrub(lambda: [log], lambda log, reason: pytest.fail(reason))
    scrub.step(400, 0)
    log.drop()
    scrub.step(1 << 30, 0)
