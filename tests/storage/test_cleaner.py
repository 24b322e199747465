"""Logs that are compacted: against a dictionary, over crashes, with transactions and producers."""

from __future__ import annotations

import errno
import os
import random
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from plog._native.batch import scan
from plog._native.records import Record, build_batch, control_batch, walk
from plog.errors import InvalidProducerEpoch, KafkaStorageError
from plog.storage.cleaner import Abandoned, Cleaner, Cleaning, TooManyKeys
from plog.storage.log import Log
from plog.storage.producer_state import Marker
from plog.storage.segment_verdict import ANY_OFFSET, Known
from tests.agreement.harness import run_seed

from .disks import LosingFilesystem
from .histories import PRODUCERS, History, committed_records, told
from .storage_logs import (
    NOW_MS,
    Crash,
    FaultyFilesystem,
    Owner,
    Settings,
    append_verified,
    files_of,
    open_log,
    read_all,
)

SETTINGS = Settings(
    cleanup_policy="compact", segment_bytes=2000, index_interval_bytes=200, delete_retention_ms=1000
)
MEMORY = 1 << 16
WAYS = 2
"""In which what was not synced is lost, for each moment at which the power goes."""


def put(log: Log, *pairs: tuple[bytes | None, bytes | None], **options: object) -> int:
    """Append one batch; returns the offset of its first record."""
    data = build_batch([(NOW_MS, key, value, ()) for key, value in pairs], **options)  # type: ignore[arg-type]
    return append_verified(log, bytearray(data))


def marker(offset: int, *, abort: bool) -> bytes:
    return control_batch(
        abort=abort,
        offset=offset,
        timestamp=NOW_MS,
        producer_id=7,
        producer_epoch=0,
        coordinator_epoch=0,
    )


def transactional(offset: int, sequence: int, *records: tuple[bytes, bytes]) -> bytes:
    return build_batch(
        [(NOW_MS, key, value, ()) for key, value in records],
        base_offset=offset,
        leader_epoch=0,
        producer_id=7,
        producer_epoch=0,
        base_sequence=sequence,
        transactional=True,
    )


def clean(
    log: Log,
    checkpoint: int | None = None,
    *,
    now_ms: int = NOW_MS,
    memory: int = MEMORY,
    fs: FaultyFilesystem | None = None,
    throttle: Callable[[int], None] = lambda size: None,
) -> Cleaning:
    """Compact what is below the active segment; all of it is durable before."""
    log.flush()
    dirty = log.dirty_range(checkpoint, now_ms)
    assert dirty is not None
    cleaner = Cleaner(fs or FaultyFilesystem(), key_memory_bytes=memory, load_factor=0.9)
    return cleaner.clean(log, dirty, now_ms=now_ms, throttle=throttle)


def records_of(log: Log, *, control: bool = False) -> list[Record]:
    data = read_all(log)
    found = []
    for header in scan(data):
        if header.is_control == control and header.records_count:
            found += walk(data[header.position : header.position + header.size_bytes])
    return found


def pairs(log: Log) -> list[tuple[int, bytes | None, bytes | None]]:
    return [(record.offset, record.key, record.value) for record in records_of(log)]


# -- single rules ----------------------------------------------------------------------------------


def test_the_last_record_of_each_key_is_left_at_its_offset(tmp_path: Path) -> None:
    log = open_log(tmp_path, SETTINGS)
    put(log, (b"a", b"1"), (b"b", b"1"), (b"a", b"2"))
    put(log, (b"a", b"3"))
    log.roll()
    put(log, (b"b", b"2"))
    done = clean(log)
    assert (done.end, done.keys, done.records, done.kept_records) == (4, 2, 4, 2)
    # The active segment is not looked at: what it supersedes stays for now.
    assert pairs(log) == [(1, b"b", b"1"), (3, b"a", b"3"), (4, b"b", b"2")]
    log.close()


def test_records_without_a_key_go(tmp_path: Path) -> None:
    log = open_log(tmp_path, SETTINGS)
    put(log, (None, b"1"), (b"a", b"1"))
    log.roll()
    clean(log)
    assert pairs(log) == [(1, b"a", b"1")]
    log.close()


def test_tombstones_stay_for_delete_retention_ms_after_they_were_first_met(tmp_path: Path) -> None:
    log = open_log(tmp_path, SETTINGS)
    put(log, (b"a", b"1"), (b"a", None), (b"b", b"1"))
    log.roll()
    end = clean(log).end
    assert pairs(log) == [(1, b"a", None), (2, b"b", b"1")]
    assert records_of(log)[0].timestamp == NOW_MS
    clean(log, None, now_ms=NOW_MS + 999)
    assert pairs(log) == [(1, b"a", None), (2, b"b", b"1")]
    clean(log, None, now_ms=NOW_MS + 1000)
    assert pairs(log) == [(2, b"b", b"1")]
    assert end == 3
    log.close()


def test_what_was_clean_is_compared_with_what_came_since(tmp_path: Path) -> None:
    log = open_log(tmp_path, SETTINGS)
    put(log, (b"a", b"1"), (b"b", b"1"))
    log.roll()
    end = clean(log).end
    put(log, (b"a", b"2"))
    log.roll()
    done = clean(log, end)
    assert done.keys == 1
    assert pairs(log) == [(1, b"b", b"1"), (2, b"a", b"2")]
    log.close()


def test_segments_that_have_shrunk_become_one(tmp_path: Path) -> None:
    log = open_log(tmp_path, SETTINGS)
    for n in range(10):
        put(log, (b"k", b"%d" % n * 300))
        log.roll()
    assert len(log.native.segments) == 11
    end = clean(log).end
    shrunk = len(log.native.segments)
    assert shrunk < 11
    put(log, (b"k", b"last"))
    log.roll()
    clean(log, end)
    assert len(log.native.segments) <= 3
    assert pairs(log) == [(10, b"k", b"last")]
    log.close()


def test_memory_for_few_keys_takes_several_passes(tmp_path: Path) -> None:
    log = open_log(tmp_path, SETTINGS)
    for _ in range(2):
        for n in range(40):
            put(log, (b"%d" % n, b"v" * 50))
    log.roll()
    passes, end = 0, None
    while end != log.native.segments[-1].base_offset:
        done = clean(log, end, memory=20 * 24)
        assert done.keys <= 18
        end, passes = done.end, passes + 1
    assert passes > 2
    assert [offset for offset, *_ in pairs(log)] == list(range(40, 80))
    log.close()


def test_a_batch_of_more_keys_than_there_is_memory_for_is_refused(tmp_path: Path) -> None:
    owner = Owner()
    log = open_log(tmp_path, SETTINGS, owner=owner)
    put(log, *((b"%d" % n, b"") for n in range(30)))
    log.roll()
    with pytest.raises(TooManyKeys, match=r"log\.cleaner\.dedupe\.buffer\.size"):
        clean(log, memory=20 * 24)
    assert not owner.damage
    log.close()


@pytest.mark.parametrize("checkpoint", [None, 13])
def test_throttle_is_told_of_all_that_is_read_for_keys_read_and_written(
    tmp_path: Path, checkpoint: int | None
) -> None:
    log = open_log(tmp_path, SETTINGS)
    for n in range(60):
        put(log, (b"%d" % (n % 20), b"v" * 50))
    log.roll()
    batches = scan(read_all(log))
    told: list[int] = []
    done = clean(log, checkpoint, throttle=told.append)
    for_keys = sum(one.size_bytes for one in batches if one.base_offset >= (checkpoint or 0))
    read, written = sum(one.size_bytes for one in batches), len(read_all(log))
    assert (done.read_bytes, done.written_bytes) == (read, written)
    assert 0 < written < read
    assert sum(told) == for_keys + read + written
    # Not of much at once, which would be waited for in one go.
    assert max(told) <= SETTINGS.segment_bytes
    log.close()


def test_a_damaged_batch_replaces_nothing(tmp_path: Path) -> None:
    owner = Owner()
    log = open_log(tmp_path, SETTINGS, owner=owner)
    put(log, (b"a", b"1"), (b"a", b"2"))
    log.roll()
    log.flush()
    (path, *_) = sorted(tmp_path.glob("*.log"))
    data = bytearray(path.read_bytes())
    data[-1] ^= 1
    path.write_bytes(data)
    with pytest.raises(KafkaStorageError, match="damaged"):
        clean(log)
    assert path.read_bytes() == data
    assert owner.damage
    log.drop()


def test_offsets_in_gaps_are_read_on_behind_them(tmp_path: Path) -> None:
    log = open_log(tmp_path, SETTINGS)
    for n in range(30):
        put(log, (b"k", b"%02d" % n * 40))
    log.roll()
    put(log, (b"x", b""))
    clean(log)
    for offset in range(31):
        found = log.read(offset, 1 << 20, log.log_end_offset, True)
        assert found is not None
        first = walk(found.read()[: scan(found.read())[0].size_bytes])[0]
        assert first.offset == max(offset, 29) if offset <= 29 else first.offset == 30
    log.close()


def test_records_without_a_timestamp_are_no_younger_for_being_compacted(tmp_path: Path) -> None:
    settings = Settings(cleanup_policy="compact,delete", segment_bytes=2000, retention_ms=60_000)
    log = open_log(tmp_path, settings)
    for key in (b"a", b"a", b"b"):
        append_verified(log, bytearray(build_batch([(-1, key, b"v", ())])))
    log.roll()
    log.flush()
    written_s = NOW_MS / 1000 - 61
    os.utime(tmp_path / "00000000000000000000.log", (written_s, written_s))
    clean(log)
    assert [offset for offset, *_ in pairs(log)] == [1, 2]
    assert log.apply_retention(NOW_MS)
    assert not pairs(log)
    log.close()


def test_what_is_replaced_is_away_for_good_before_the_rest_gets_its_name(tmp_path: Path) -> None:
    """Else a power cut may bring a segment back beside what replaces it."""
    told: list[tuple[str, str]] = []

    class Recorder(FaultyFilesystem):
        def rename(self, old: Path, new: Path) -> None:
            told.append((old.suffix, new.suffix))
            super().rename(old, new)

        def sync_directory(self, path: Path) -> None:
            told.append(("sync", ""))
            super().sync_directory(path)

    log = open_log(tmp_path, SETTINGS, fs=Recorder())
    for n in range(3):
        put(log, (b"k", b"%d" % n))
        log.roll()
    told.clear()
    clean(log, fs=Recorder())
    log.close()
    steps = [
        "sync" if old == "sync" else new if new in (".swap", ".deleted") else "final"
        for old, new in told
        if old == "sync" or new in (".swap", ".deleted") or old == ".swap"
    ]
    order = [one for at, one in enumerate(steps) if not at or one != steps[at - 1]]
    begin = order.index(".swap")
    assert order[begin : begin + 6] == [".swap", "sync", ".deleted", "sync", "final", "sync"]


# -- producers and transactions --------------------------------------------------------------------


def test_the_last_batch_of_a_producer_stays_without_its_records(tmp_path: Path) -> None:
    log = open_log(tmp_path, SETTINGS)
    put(log, (b"a", b"1"), producer_id=7, producer_epoch=0, base_sequence=0)
    put(log, (b"a", b"2"), producer_id=7, producer_epoch=0, base_sequence=1)
    put(log, (b"a", b"3"))
    log.roll()
    clean(log)
    assert pairs(log) == [(2, b"a", b"3")]
    headers = [
        (one.base_offset, one.records_count, one.base_sequence) for one in scan(read_all(log))
    ]
    assert headers == [(1, 0, 1), (2, 1, -1)]
    log.close()
    known = Known(clean_shutdown=False, gaps_legal_below=ANY_OFFSET)
    (tmp_path / "00000000000000000003.snapshot").unlink(missing_ok=True)
    log = open_log(tmp_path, SETTINGS, known=known)
    entry = log.native.producer(7)
    assert entry is not None
    assert entry.batches[-1].last_sequence == 1
    put(log, (b"a", b"4"), producer_id=7, producer_epoch=0, base_sequence=2)
    log.close()


def test_aborted_records_go_at_once_and_their_marker_later(tmp_path: Path) -> None:
    directory = tmp_path / "log"
    directory.mkdir()
    (directory / "00000000000000000000.log").write_bytes(
        build_batch([(NOW_MS, b"a", b"1", ())], leader_epoch=0)
        + transactional(1, 0, (b"a", b"aborted"), (b"b", b"aborted"))
        + marker(3, abort=True)
        + transactional(4, 2, (b"b", b"kept"))
        + marker(5, abort=False)
    )
    log = open_log(directory, SETTINGS)
    log.roll()
    end = clean(log).end
    assert pairs(log) == [(0, b"a", b"1"), (4, b"b", b"kept")]
    assert [one.offset for one in records_of(log, control=True)] == [3, 5]
    assert [one.last_offset for one in log.transactions.aborted_between(0, end)] == [3]
    # Nothing of the aborted one is left: its marker may go, after a while.
    clean(log, None, now_ms=NOW_MS + 1)
    assert [one.offset for one in records_of(log, control=True)] == [3, 5]
    clean(log, None, now_ms=NOW_MS + 1001)
    assert [one.offset for one in records_of(log, control=True)] == [5]
    assert pairs(log) == [(0, b"a", b"1"), (4, b"b", b"kept")]
    log.close()
    assert pairs(reopened(directory)) == [(0, b"a", b"1"), (4, b"b", b"kept")]


def test_a_marker_stays_as_long_as_records_of_its_transaction_in_whichever_segment(
    tmp_path: Path,
) -> None:
    log = open_log(tmp_path / "log", SETTINGS)
    numbers = {"producer_id": 7, "producer_epoch": 0}
    put(log, (b"a", b"1" * 1500), **numbers, base_sequence=0, transactional=True)
    log.roll()
    put(log, (b"b", b"1" * 1500))
    log.transactions.append_marker(7, 0, Marker(abort=False, coordinator_epoch=0), now_ms=NOW_MS)
    put(log, (b"c", b"1"), **numbers, base_sequence=1)  # the marker is not its producer's last
    log.roll()
    for late_ms in (0, 1001, 2002):
        clean(log, now_ms=NOW_MS + late_ms)
    assert [one.offset for one in records_of(log, control=True)] == [2]
    log.close()
    # Or whoever reads the log anew would find the transaction open.
    log = reopened(tmp_path / "log", by_log_alone=True)
    assert log.last_stable_offset == 4
    put(log, (b"a", b"2"))
    log.roll()
    for late_ms in (3003, 4004, 5005):
        clean(log, now_ms=NOW_MS + late_ms)
    assert not records_of(log, control=True)
    log.close()


def test_what_a_producer_commits_outlives_its_aborted_transaction_and_that_ones_marker(
    tmp_path: Path,
) -> None:
    log = open_log(tmp_path / "log", SETTINGS)

    def transact(sequence: int, value: bytes, *, abort: bool) -> None:
        numbers = {"producer_id": 7, "producer_epoch": 0, "base_sequence": sequence}
        put(log, (b"a", value), **numbers, transactional=True)
        ends = Marker(abort=abort, coordinator_epoch=0)
        log.transactions.append_marker(7, 0, ends, now_ms=NOW_MS)

    transact(0, b"aborted", abort=True)
    transact(1, b"1", abort=False)
    log.roll()
    for late_ms in (0, 1001, 2002):
        clean(log, now_ms=NOW_MS + late_ms)
    assert [one.offset for one in records_of(log, control=True)] == [3]
    assert told(log) == {b"a": b"1"}
    assert not log.transactions.aborted_between(0, log.log_end_offset)
    clean(log, now_ms=NOW_MS + 3003)
    assert pairs(log) == [(2, b"a", b"1")]
    log.close()


def test_the_epoch_of_a_marker_outlives_its_transaction(tmp_path: Path) -> None:
    log = open_log(tmp_path / "log", SETTINGS)
    numbers = {"producer_id": 7, "producer_epoch": 0, "base_sequence": 0}
    put(log, (b"a", b"aborted"), **numbers, transactional=True)
    fences = Marker(abort=True, coordinator_epoch=0)
    log.transactions.append_marker(7, 3, fences, now_ms=NOW_MS)
    put(log, (b"b", b"1"))
    log.roll()
    for late_ms in (0, 1001, 2002):
        clean(log, now_ms=NOW_MS + late_ms)
    left = [(one.base_offset, one.records_count) for one in scan(read_all(log))]
    assert left == [(1, 0), (2, 1)]
    assert not log.transactions.aborted_between(0, log.log_end_offset)
    log.close()
    log = reopened(tmp_path / "log", by_log_alone=True)
    with pytest.raises(InvalidProducerEpoch):
        put(log, (b"a", b"of who is fenced"), **numbers)
    # What comes of the epoch has its batches kept instead.
    put(log, (b"b", b"2"), producer_id=7, producer_epoch=3, base_sequence=0)
    log.roll()
    clean(log, now_ms=NOW_MS + 3003)
    assert [one.base_offset for one in scan(read_all(log))] == [3]
    log.close()


@pytest.mark.parametrize("last", ["marker", "tombstone"])
def test_the_last_batch_of_what_is_cleaned_stays_without_its_records(
    tmp_path: Path, last: str
) -> None:
    """Else a log whose active segment is empty ends with offsets that nothing is at."""

    def left() -> list[tuple[int, int]]:
        return [(one.base_offset, one.records_count) for one in scan(read_all(log))]

    log = open_log(tmp_path / "log", SETTINGS)
    put(log, (b"a", b"1"), producer_id=7, producer_epoch=0, base_sequence=0, transactional=True)
    put(log, (b"b", b"1"))
    put(log, (b"a", b"2"))
    ends = Marker(abort=False, coordinator_epoch=0)
    log.transactions.append_marker(7, 0, ends, now_ms=NOW_MS)
    if last == "tombstone":
        put(log, (b"a", None))
    end = log.log_end_offset
    for _ in range(2):  # the second look finds that it has not written since the first
        log.expire_producers(NOW_MS, 0)
    log.roll()
    for late_ms in (0, 1001, 2002, 3003):
        clean(log, now_ms=NOW_MS + late_ms)
    log.drop()  # as after kill -9 between the roll and the batch that it was for
    log = reopened(tmp_path / "log")
    assert log.log_end_offset == end
    assert left()[-1] == (end - 1, 0)
    put(log, (b"c", b"1"))
    log.roll()
    clean(log, now_ms=NOW_MS + 4004)
    assert left()[-2:] == [(1 if last == "tombstone" else 2, 1), (end, 1)]
    log.close()


def test_an_open_transaction_is_left_alone_with_all_behind_it(tmp_path: Path) -> None:
    log = open_log(tmp_path, SETTINGS)
    put(log, (b"a", b"1"), (b"a", b"2"))
    log.roll()
    put(log, (b"a", b"3"), producer_id=7, producer_epoch=0, base_sequence=0, transactional=True)
    log.roll()
    put(log, (b"a", b"4"))
    log.roll()
    assert clean(log).end == 2
    assert [offset for offset, *_ in pairs(log)] == [1, 2, 3]
    log.close()


# -- what comes in between -------------------------------------------------------------------------


def test_a_log_whose_oldest_segments_go_meanwhile_is_given_up(tmp_path: Path) -> None:
    settings = Settings(
        cleanup_policy="compact,delete", segment_bytes=2000, retention_bytes=1, retention_ms=-1
    )
    log = open_log(tmp_path, settings)
    for n in range(4):
        put(log, (b"k", b"%d" % n * 500))
        log.roll()
    log.flush()
    gone = []

    def retain(size: int) -> None:
        if not gone:
            gone.append(log.apply_retention(NOW_MS))

    with pytest.raises(Abandoned):
        clean(log, throttle=retain)
    assert gone[0]
    assert not [path for path in tmp_path.iterdir() if path.suffix in (".cleaned", ".swap")]
    log.close()


def test_appends_and_rolls_go_on_meanwhile(tmp_path: Path) -> None:
    log = open_log(tmp_path, SETTINGS)
    put(log, (b"a", b"1"), (b"a", b"2"))
    log.roll()
    count = 0

    def append(size: int) -> None:
        nonlocal count
        count += 1
        put(log, (b"n", b"%d" % count))
        log.roll()

    clean(log, throttle=append)
    assert count
    assert [offset for offset, *_ in pairs(log)] == [1, *range(2, 2 + count)]
    log.close()


# -- crashes ---------------------------------------------------------------------------------------


def reopened(directory: Path, *, by_log_alone: bool = False, **options: object) -> Log:
    """Open a log again; `by_log_alone` without what its snapshots say of producers."""
    if by_log_alone:
        for path in directory.glob("*.snapshot"):
            path.unlink()
    known = Known(clean_shutdown=False, gaps_legal_below=ANY_OFFSET)
    return open_log(directory, SETTINGS, known=known, **options)  # type: ignore[arg-type]


def check_readers(log: Log, history: History, where: str = "") -> None:
    """Check how far readers of committed records get, and what they and the log know then."""
    assert log.last_stable_offset == history.stable_end(log), where
    assert told(log) == history.table(log), where
    assert producers_of(log) == history.producers(), where


def producers_of(log: Log) -> dict[int, tuple[int, int]]:
    """Return the epoch of each producer, and the sequence that has to come next."""
    return {
        entry.producer_id: (
            entry.producer_epoch,
            entry.batches[-1].last_sequence + 1 if entry.batches else 0,
        )
        for entry in log.native.producers()
    }


@pytest.mark.parametrize("seed", range(6))
def test_reader_knows_what_the_dictionary_knows(tmp_path: Path, seed: int) -> None:
    chance = random.Random(run_seed() + seed)
    history = History(chance)
    log = open_log(tmp_path / "log", SETTINGS)
    end, now_ms = None, NOW_MS
    for _ in range(12):
        history.write(log, 25)
        if chance.random() < 0.2:
            history.end_all(log)
        before = {record.offset: record for record in records_of(log)}
        end = clean(log, end, now_ms=now_ms, memory=chance.choice([MEMORY, 14 * 24])).end
        after = records_of(log)
        check_readers(log, history)
        assert all(before[record.offset] == record for record in after)
        assert [record.offset for record in after] == sorted(record.offset for record in after)
        clean_keys = [record.key for record in after if record.offset < end]
        assert len(clean_keys) == len(set(clean_keys))
        committed = committed_records(log)
        start = chance.randrange(log.log_end_offset)
        assert committed_records(log, start) == [one for one in committed if one.offset >= start]
        now_ms += chance.choice([0, 500, 2000])
        if chance.random() < 0.4:
            log.drop() if chance.random() < 0.5 else log.close()
            log = reopened(tmp_path / "log", by_log_alone=chance.random() < 0.5)
            check_readers(log, history)
    log.close()


def test_a_crash_at_any_step_loses_nothing(tmp_path: Path) -> None:
    history = History(random.Random(run_seed()))
    log = open_log(tmp_path / "origin", SETTINGS)
    history.write(log, 15)
    history.end_all(log)
    log.roll()
    history.put(log, PRODUCERS[0])  # which stays open
    log.close()
    origin = files_of(tmp_path / "origin")
    step, crashed = 0, True
    while crashed:
        directory = tmp_path / f"crash{step}"
        directory.mkdir()
        for name, data in origin.items():
            (directory / name).write_bytes(data)
        fs = FaultyFilesystem()
        log = reopened(directory, fs=fs)
        fs.fail_at, fs._crash = fs.operations + step, True
        crashed = False
        try:
            clean(log, fs=fs)
        except Crash:
            crashed = True
        log.native.close()
        where = f"after a crash at step {step}"
        log = reopened(directory)
        check_readers(log, history, where)
        suffixes = {path.suffix for path in directory.iterdir()}
        assert not suffixes & {".cleaned", ".swap", ".deleted"}
        for now_ms in (NOW_MS, NOW_MS + 2000):  # and what is due then
            assert clean(log, now_ms=now_ms).end == log.native.segments[-1].base_offset
            check_readers(log, history, where)
        log.close()
        log = reopened(directory, by_log_alone=True)
        check_readers(log, history, where)
        log.close()
        step += 1
    assert step > 10


class Hasty(Owner):
    """Removes what is put away at once, so that nobody finds it any more."""

    def __init__(self, fs: FaultyFilesystem, gaps_below: int) -> None:
        super().__init__(gaps_below=gaps_below)
        self._fs = fs

    def allow_gaps(self, log: Log, end: int) -> None:
        self.gaps_below = max(self.gaps_below, end)

    def remove_later(self, log: Log, paths: Sequence[Path], delay_ms: int) -> None:
        for path in paths:
            self._fs.unlink(path)


def made(directory: Path, files: dict[str, bytes]) -> Path:
    """Make a directory of such files."""
    directory.mkdir()
    for name, data in files.items():
        (directory / name).write_bytes(data)
    return directory


def test_a_power_cut_at_any_step_loses_nothing(tmp_path: Path) -> None:
    """Of whatever was not synced by then, nothing may be there afterwards, or anything."""
    chance = random.Random(run_seed())
    history = History(chance)
    log = open_log(tmp_path / "origin", SETTINGS)
    history.write(log, 10)
    history.end_all(log)
    log.roll()
    history.put(log, PRODUCERS[0])  # which stays open
    end = log.log_end_offset
    log.close()
    origin = files_of(tmp_path / "origin")

    def start(fs: LosingFilesystem, owner: Owner) -> Log:
        # All of it was on disk, so that whatever is missing is damage.
        known = Known(
            clean_shutdown=False,
            machine_restarted=True,
            recovery_point=end,
            gaps_legal_below=owner.gaps_below,
        )
        return open_log(fs.directory, SETTINGS, known=known, fs=fs, owner=owner)

    def live(fs: LosingFilesystem, gaps_below: int) -> tuple[bool, int]:
        """Start and compact; tell whether the power went first, and below what gaps may be."""
        owner, log = Hasty(fs, gaps_below), None
        try:
            log = start(fs, owner)
            for now_ms in (NOW_MS, NOW_MS + 2000):  # later ones replace what has replaced others
                clean(log, now_ms=now_ms, fs=fs)
        except Crash:
            return True, owner.gaps_below
        finally:
            if log is not None:
                log.native.close()
        return False, owner.gaps_below

    step, cut = 0, True
    while cut:
        first = LosingFilesystem(made(tmp_path / f"{step}", origin), fail_at=step)
        cut, gaps_below = live(first, 0)
        for way in range(WAYS):
            directory = made(tmp_path / f"{step}-{way}", first.left(chance))
            again = LosingFilesystem(directory, fail_at=chance.randrange(60))
            cut_again, gaps_end = live(again, gaps_below)
            where = f"cut at step {step}, way {way}{', and again' if cut_again else ''}"
            directory = made(tmp_path / f"{step}-{way}-left", again.left(chance))
            log = start(LosingFilesystem(directory), Owner(gaps_below=gaps_end))
            check_readers(log, history, where)
            log.close()
        step += 1
    assert step > 10


def test_what_a_start_puts_in_the_place_of_others_is_alone_after_a_power_cut(
    tmp_path: Path,
) -> None:
    class Stopping(FaultyFilesystem):
        def rename(self, old: Path, new: Path) -> None:
            if new.suffix == ".deleted":
                raise Crash
            super().rename(old, new)

    chance = random.Random(run_seed())
    log = open_log(tmp_path / "origin", SETTINGS, fs=Stopping())
    for n in range(4):
        put(log, (b"k", b"%d" % n))
        log.roll()
    with pytest.raises(Crash):
        clean(log, fs=Stopping())
    log.native.close()
    origin = files_of(tmp_path / "origin")
    assert [name for name in origin if name.endswith(".log.swap")]
    step, cut = 0, True
    while cut:
        fs = LosingFilesystem(made(tmp_path / f"{step}", origin), fail_at=step)
        cut = False
        try:
            reopened(tmp_path / f"{step}", fs=fs).native.close()
        except Crash:
            cut = True
        for way in range(12):
            log = reopened(made(tmp_path / f"{step}-{way}", fs.left(chance)))
            assert pairs(log) == [(3, b"k", b"3")], f"cut at step {step}"
            log.close()
        step += 1
    assert step > 10


def test_what_replaces_others_is_on_disk_before_it_counts(tmp_path: Path) -> None:
    """Its indexes, too, which a start believes if they read well."""
    kinds = set()

    class Watched(LosingFilesystem):
        def rename(self, old: Path, new: Path) -> None:
            if new.suffix == ".swap":
                assert self.is_on_disk(old), old.name
                kinds.add(Path(new.stem).suffix)
            super().rename(old, new)

    log = open_log(tmp_path, SETTINGS)
    numbers = {"producer_id": 7, "producer_epoch": 0, "base_sequence": 0}
    put(log, (b"a", b"aborted"), **numbers, transactional=True)
    log.transactions.append_marker(7, 0, Marker(abort=True, coordinator_epoch=0), now_ms=NOW_MS)
    for n in range(20):
        put(log, (b"%d" % n, b"v" * 60))
    log.roll()
    log.flush()
    log.close()
    fs = Watched(tmp_path)
    log = reopened(tmp_path, fs=fs)
    fs.settle()
    clean(log, fs=fs)
    assert kinds == {".log", ".index", ".timeindex", ".txnindex"}
    log.close()


@pytest.mark.parametrize("error", [errno.EIO, errno.ENOSPC])
def test_an_error_at_any_step_loses_nothing(tmp_path: Path, error: int) -> None:
    chance = random.Random(run_seed())
    step, failed = 0, True
    while failed:
        history = History(chance)
        fs, owner = FaultyFilesystem(error=error), Owner()
        log = open_log(tmp_path / f"{step}", SETTINGS, fs=fs, owner=owner)
        history.write(log, 12)
        history.end_all(log)
        log.roll()
        history.put(log, PRODUCERS[0])
        log.flush()
        fs.fail_at = fs.operations + step
        failed = False
        try:
            clean(log, fs=fs)
        except KafkaStorageError:
            failed = True
        check_readers(log, history)
        assert bool(owner.errors) == (failed and error == errno.EIO)
        log.native.close()
        log = reopened(tmp_path / f"{step}")
        check_readers(log, history)
        log.close()
        step += 1
    assert step > 10
