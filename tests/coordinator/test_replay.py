"""Partitions of internal topics as a start reads them: logs that compaction has been through."""

from __future__ import annotations

from pathlib import Path

import pytest

from plog._native.cleaning import empty_batch
from plog._native.records import build_batch, control_batch
from plog.coordinator.replay import Entry, replay
from plog.storage.log import Log
from plog.storage.segment_verdict import ANY_OFFSET, Known
from tests.storage.storage_logs import NOW_MS, Settings, open_log

KNOWN = Known(clean_shutdown=False, gaps_legal_below=ANY_OFFSET)


def opened(directory: Path, *batches: bytes, active: int) -> Log:
    """Return a log of these batches whose active segment, at an offset, is empty."""
    (directory / "00000000000000000000.log").write_bytes(b"".join(batches))
    (directory / f"{active:020d}.log").touch()
    return open_log(directory, Settings(cleanup_policy="compact"), known=KNOWN)


def written(offset: int, key: bytes, value: bytes, **options: object) -> bytes:
    return build_batch(
        [(NOW_MS, key, value, ())],
        base_offset=offset,
        leader_epoch=0,
        **options,  # type: ignore[arg-type]
    )


def marker(offset: int, producer_id: int) -> bytes:
    return control_batch(
        abort=False,
        offset=offset,
        timestamp=NOW_MS,
        producer_id=producer_id,
        producer_epoch=0,
        coordinator_epoch=0,
    )


def test_markers_that_were_emptied_are_passed_by(tmp_path: Path) -> None:
    log = opened(
        tmp_path,
        empty_batch(marker(1, 8)),
        written(2, b"a", b"1", producer_id=7, producer_epoch=0, transactional=True),
        marker(3, 7),
        empty_batch(marker(5, 8)),
        active=6,
    )
    found = replay(log, chunk_bytes=100)
    assert found.table == {b"a": Entry(b"1", 2)}
    assert not found.undecided
    assert found.end_offset == 6
    log.close()


def test_gap_at_the_end_is_none_of_losses(tmp_path: Path) -> None:
    """Cleaners have left such that kept no batch for the end of what they had cleaned."""
    log = opened(tmp_path, written(2, b"a", b"1"), active=6)
    found = replay(log, chunk_bytes=100)
    assert found.table == {b"a": Entry(b"1", 2)}
    assert found.end_offset == log.log_end_offset == 6
    log.close()


def test_file_that_has_lost_its_end_is_told_from_a_gap(tmp_path: Path) -> None:
    log = opened(tmp_path, written(2, b"a", b"1"), written(3, b"b", b"1"), active=6)
    path = tmp_path / "00000000000000000000.log"
    path.write_bytes(path.read_bytes()[:-1])
    with pytest.raises(OSError, match="ends before"):
        replay(log, chunk_bytes=100)
    log.drop()
