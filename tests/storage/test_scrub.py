from __future__ import annotations

from pathlib import Path

import pytest

from plog.storage.log import Log
from plog.storage.scrub import ROUND_INTERVAL_MS, Scrub

from .storage_logs import NOW_MS, Settings, batch, open_log


@pytest.fixture
def log(tmp_path: Path) -> Log:
    log = open_log(tmp_path / "flights-0", Settings(segment_bytes=3000))
    for n in range(30):
        log.append_as_leader(batch(10, timestamp=NOW_MS + n, value=b"v" * 20), now_ms=NOW_MS)
    return log


def cold_bytes(log: Log) -> int:
    return sum(segment.size_bytes for segment in log.native.segments[:-1])


def test_round_reads_every_cold_byte_in_small_steps(log: Log) -> None:
    damage: list[str] = []
    scrub = Scrub(lambda: [log], lambda log, reason: damage.append(reason))
    checked = [scrub.step(400, n) for n in range(40)]
    assert sum(checked) == cold_bytes(log)
    assert max(checked) < 400 + 400  # at most one batch more than asked
    assert damage == []
    # the next round waits its time
    assert scrub.step(400, ROUND_INTERVAL_MS - 1) == 0
    assert scrub.step(400, ROUND_INTERVAL_MS) > 0


def test_damage_is_told_with_its_place(log: Log) -> None:
    second = log.native.segments[1].base_offset
    path = log.directory / f"{second:020d}.log"
    data = bytearray(path.read_bytes())
    data[400] ^= 4
    path.write_bytes(data)
    damage: list[str] = []
    scrub = Scrub(lambda: [log], lambda log, reason: damage.append(reason))
    scrub.step(1 << 30, 0)
    (reason,) = damage
    assert str(path) in reason
    assert "CRC" in reason


def test_segment_deleted_under_the_scrub_is_no_damage(log: Log) -> None:
    damage: list[str] = []
    scrub = Scrub(lambda: [log], lambda log, reason: damage.append(reason))
    scrub.step(400, 0)
    log.update_settings(Settings(retention_bytes=1))
    log.apply_retention(NOW_MS)
    assert scrub.step(1 << 30, 0) > 0
    assert damage == []


def test_log_that_goes_away_ends_quietly(log: Log) -> None:
    scrub = Scrub(lambda: [log], lambda log, reason: pytest.fail(reason))
    scrub.step(400, 0)
    log.drop()
    scrub.step(1 << 30, 0)
