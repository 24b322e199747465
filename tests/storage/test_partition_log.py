"""One partition's log: what an append leaves on the disk, when it asks for a roll, how it fails."""

from __future__ import annotations

import errno
import os
import struct
from collections.abc import Iterator
from pathlib import Path

import pytest

from plog._native import faults, files
from plog._native.faults import Fault
from plog._native.partition_log import (
    APPENDED,
    NOT_WRITABLE,
    ROLL_NEEDED,
    WRITE_FAILED,
    PartitionLog,
)
from plog.errors import CorruptRecord, KafkaStorageError
from tests.descriptors import open_at

from .partition_logs import Directory, crc32c, make_batch, walk

NOW_MS = 1_700_000_000_000
ENTRIES_AT_ONCE = 32
"""Index entries are written together; seal writes what there is."""
NO_LIMITS = {
    "segment_bytes": 1 << 30,
    "segment_ms": 1 << 40,
    "segment_jitter_ms": 0,
    "index_interval_bytes": 4096,
}


@pytest.fixture(autouse=True)
def real_calls() -> Iterator[None]:
    yield
    faults.inject([])


@pytest.fixture
def directory(tmp_path: Path) -> Directory:
    return Directory(tmp_path / "t-0")


# --- append ---------------------------------------------------------------------------------------


def test_appended_batches_carry_offsets_and_epoch(directory: Directory) -> None:
    log = directory.log()
    batches = [make_batch(3, 100), make_batch(1, 61), make_batch(5, 200)]
    results = [log.append(batch, NOW_MS) for batch in batches]
    assert [(r.status, r.base_offset, r.last_offset) for r in results] == [
        (APPENDED, 0, 2),
        (APPENDED, 3, 3),
        (APPENDED, 4, 8),
    ]
    assert directory.data(0) == b"".join(batches)  # stamped in place
    placed = walk(directory.data(0))
    assert [(p.base_offset, p.last_offset, p.leader_epoch) for p in placed] == [
        (0, 2, 5),
        (3, 3, 5),
        (4, 8, 5),
    ]
    for batch in batches:  # neither field is in the CRC's range
        assert crc32c(bytes(batch[21:])) == struct.unpack_from(">I", batch, 17)[0]
    assert log.state() == (0, 9, 0, 9, 9, 5, 361, 1)


def test_append_leaves_other_bytes_alone(directory: Directory) -> None:
    log = directory.log()
    before = make_batch(2, 80, timestamp=77)
    appended = bytearray(before)
    log.append(appended, NOW_MS)
    assert appended[8:12] == before[8:12]
    assert appended[16:] == before[16:]


def test_index_entries_follow_kafkas_rule(directory: Directory) -> None:
    interval = 300
    log = directory.log(index_interval_bytes=interval)
    rounds = 15
    sizes = [100, 250, 61, 400, 90, 90, 90, 90, 90, 301, 61, 61] * rounds
    of_round = [50, 40, 60, 60, 55, 70, 10, 20, 90, 90, 95, 99]
    stamps = [100 * number + stamp for number in range(rounds) for stamp in of_round]
    offsets: list[tuple[int, int]] = []
    times: list[tuple[int, int]] = []
    written: tuple[list[tuple[int, int]], list[tuple[int, int]]] = ([], [])
    segment = log.segments[0]
    position = since = next_offset = 0
    latest, latest_offset, indexed = -1, 0, -1
    for number, (size, stamp) in enumerate(zip(sizes, stamps, strict=True)):
        records = number % 3 + 1
        log.append(make_batch(records, size, timestamp=stamp), NOW_MS)
        last_offset = next_offset + records - 1
        if stamp > latest:
            latest, latest_offset = stamp, last_offset
        # Counted before this batch, and more than the interval.
        if since > interval:
            offsets.append((last_offset, position))
            if latest > indexed:
                times.append((latest, latest_offset))
                indexed = latest
            since = 0
            if len(offsets) % ENTRIES_AT_ONCE == 0:
                written = list(offsets), list(times)
        since += size
        position += size
        next_offset = last_offset + 1
        assert (directory.offset_index(0), directory.time_index(0)) == written
        assert (segment.offset_entries, segment.time_entries) == (len(offsets), len(times))
    assert len(offsets) > len(times) > ENTRIES_AT_ONCE
    assert len(offsets) % ENTRIES_AT_ONCE > 1
    assert (segment.max_timestamp, segment.max_timestamp_offset) == (latest, latest_offset)
    assert segment.first_append_ms == stamps[0]

    def check_lookups() -> None:
        for target in range(next_offset + 2):
            expected = max((e for e in offsets if e[0] <= target), default=(0, 0))
            assert segment.lookup_offset(target) == expected
        for stamp in range(-2, stamps[-1] + 2):
            expected = max((e for e in times if e[0] <= stamp), default=(-1, 0))
            assert segment.lookup_time(stamp) == expected

    check_lookups()
    segment.seal()
    times.append((latest, latest_offset))
    assert directory.offset_index(0) == offsets
    assert directory.time_index(0) == times
    check_lookups()
    segment.seal()  # already says it
    assert directory.time_index(0) == times


def test_offsets_in_indexes_are_relative(directory: Directory) -> None:
    base = 5_000_000_000
    log = directory.log([directory.segment(base)], log_start_offset=base, index_interval_bytes=61)
    for stamp in range(5):
        log.append(make_batch(10, 62, timestamp=stamp), NOW_MS)
    log.segments[0].seal()
    assert directory.offset_index(base) == [(19, 62), (29, 124), (39, 186), (49, 248)]
    assert directory.time_index(base) == [(1, 19), (2, 29), (3, 39), (4, 49)]
    assert log.segments[0].lookup_offset(base + 30) == (base + 29, 124)
    assert log.segments[0].lookup_time(2) == (2, base + 29)


def test_reopened_segment_goes_on_where_it_ended(directory: Directory) -> None:
    log = directory.log(index_interval_bytes=100)
    for stamp in range(4):
        log.append(make_batch(1, 70, timestamp=stamp), NOW_MS)
    log.close()
    # As recovery makes them; seal would add the last time.
    directory.file(0, "index").write_bytes(struct.pack(">ii", 2, 140))
    directory.file(0, "timeindex").write_bytes(struct.pack(">qi", 2, 2))
    reopened = directory.segment(
        0,
        size_bytes=280,
        next_offset=4,
        offset_entries=1,
        time_entries=1,
        max_timestamp=3,
        max_timestamp_offset=3,
        bytes_since_index_entry=140,
        first_append_ms=0,
    )
    log = directory.log([reopened], index_interval_bytes=100)
    # Time 2 is the last entry: 2 again is no progress, but 3 was seen and not yet indexed.
    assert log.append(make_batch(1, 70, timestamp=2), NOW_MS).base_offset == 4
    reopened.seal()
    assert directory.offset_index(0) == [(2, 140), (4, 280)]
    assert directory.time_index(0) == [(2, 2), (3, 3)]


@pytest.mark.parametrize(
    "damage",
    [
        lambda batch: batch[:-1],
        lambda batch: batch + b"\0",
        lambda batch: batch[:60],
        lambda batch: bytearray(),
        lambda batch: batch[:16] + b"\x01" + batch[17:],
        lambda batch: batch[:8] + b"\xff\xff\xff\xff" + batch[12:],
        lambda batch: batch[:23] + b"\xff\xff\xff\xff" + batch[27:],
    ],
)
def test_bytes_that_are_no_batch_are_refused(directory: Directory, damage) -> None:
    log = directory.log()
    with pytest.raises(CorruptRecord):
        log.append(bytearray(damage(make_batch(2, 80))), NOW_MS)
    assert directory.data(0) == b""
    assert log.log_end_offset == 0


def test_readonly_buffer_is_refused(directory: Directory) -> None:
    with pytest.raises(BufferError):
        directory.log().append(bytes(make_batch()), NOW_MS)


def test_nothing_is_writable_before_a_leader_is_set(directory: Directory) -> None:
    log = PartitionLog(
        [directory.segment(0)],
        log_start_offset=0,
        high_watermark=0,
        durable_end=0,
        leader_epoch=0,
        directory=directory.path,
        index_interval_bytes=4096,
    )
    assert log.append(make_batch(), NOW_MS).status == NOT_WRITABLE
    log.set_leader(1, writable=True, sole_replica=False)
    assert log.append(make_batch(), NOW_MS).status == APPENDED
    assert (log.leader_epoch, log.high_watermark) == (1, 0)
    assert walk(directory.data(0))[0].leader_epoch == 1
    log.set_leader(2, writable=False, sole_replica=False)
    assert log.append(make_batch(), NOW_MS).status == NOT_WRITABLE


# --- rolls ----------------------------------------------------------------------------------------


def test_full_segment_asks_for_a_roll(directory: Directory) -> None:
    log = directory.log()
    log.set_limits(**(NO_LIMITS | {"segment_bytes": 200}))
    assert log.append(make_batch(1, 100), NOW_MS).status == APPENDED
    assert log.append(make_batch(1, 100), NOW_MS).status == APPENDED
    refused = make_batch(1, 61)
    assert log.append(refused, NOW_MS).status == ROLL_NEEDED
    assert refused == make_batch(1, 61)
    directory.roll(log)
    assert log.append(refused, NOW_MS).base_offset == 2
    assert walk(directory.data(2))[0].base_offset == 2


def test_end_stands_still_once_a_roll_is_asked(directory: Directory) -> None:
    log = directory.log()
    log.set_limits(**(NO_LIMITS | {"segment_bytes": 200}))
    assert log.append(make_batch(1, 100), NOW_MS).status == APPENDED
    assert log.append(make_batch(1, 150), NOW_MS).status == ROLL_NEEDED
    fits = make_batch(1, 70)
    assert log.append(fits, NOW_MS).status == ROLL_NEEDED
    log.replace_segments(log.segments)  # not a roll
    assert log.append(fits, NOW_MS).status == ROLL_NEEDED
    directory.roll(log)
    assert log.append(fits, NOW_MS).status == APPENDED


def test_empty_segment_takes_a_batch_of_any_size(directory: Directory) -> None:
    log = directory.log()
    log.set_limits(**(NO_LIMITS | {"segment_bytes": 100}))
    assert log.append(make_batch(1, 500), NOW_MS).status == APPENDED


@pytest.mark.parametrize(
    ("stamp", "status"), [(1000, APPENDED), (1090, APPENDED), (1091, ROLL_NEEDED)]
)
def test_roll_by_time_goes_by_record_time(directory: Directory, stamp: int, status: int) -> None:
    log = directory.log()
    log.set_limits(**(NO_LIMITS | {"segment_ms": 100, "segment_jitter_ms": 10}))
    assert log.append(make_batch(timestamp=1000), NOW_MS).status == APPENDED
    # A later clock alone does not roll.
    assert log.append(make_batch(timestamp=stamp), NOW_MS + (1 << 40)).status == status


@pytest.mark.parametrize(("age_s", "status"), [(89, APPENDED), (91, ROLL_NEEDED)])
def test_roll_without_record_time_goes_by_age(
    directory: Directory, age_s: int, status: int
) -> None:
    log = directory.log()
    created_ms = files.now_ms()
    log.set_limits(**(NO_LIMITS | {"segment_ms": 100_000, "segment_jitter_ms": 10_000}))
    assert log.append(make_batch(timestamp=-1), created_ms).status == APPENDED
    assert log.append(make_batch(timestamp=5), created_ms + age_s * 1000).status == status


def test_full_offset_index_asks_for_a_roll(directory: Directory) -> None:
    log = directory.log([directory.segment(0, max_index_bytes=31)], index_interval_bytes=61)
    statuses = [log.append(make_batch(1, 62, timestamp=-1), NOW_MS).status for _ in range(5)]
    assert statuses == [APPENDED] * 4 + [ROLL_NEEDED]  # 3 entries of 8 bytes
    log.segments[0].seal()
    assert len(directory.offset_index(0)) == 3


def test_time_index_keeps_its_last_place_for_the_seal(directory: Directory) -> None:
    log = directory.log([directory.segment(0, max_index_bytes=36)], index_interval_bytes=61)
    statuses = [log.append(make_batch(1, 62, timestamp=n), NOW_MS).status for n in range(4)]
    assert statuses == [APPENDED] * 3 + [ROLL_NEEDED]
    directory.roll(log)
    assert directory.time_index(0) == [(1, 1), (2, 2)]  # which say all already


def test_seal_of_a_full_time_index_still_fits(directory: Directory) -> None:
    segment = directory.segment(0, max_index_bytes=36)
    log = directory.log([segment], index_interval_bytes=100)
    stamp = 0
    while log.append(make_batch(1, 62, timestamp=stamp), NOW_MS).status == APPENDED:
        stamp += 1
    segment.seal()
    assert directory.time_index(0) == [(2, 2), (4, 4)]
    # As if the limit had been larger when these were written.
    full = directory.segment(
        0,
        size_bytes=5 * 62,
        next_offset=5,
        offset_entries=2,
        time_entries=2,
        max_timestamp=7,
        max_timestamp_offset=4,
        max_index_bytes=0,
    )
    full.seal()
    assert directory.time_index(0) == [(2, 2), (4, 4), (7, 4)]
    assert full.lookup_time(9) == (7, 4)


def test_offset_out_of_an_indexs_reach_asks_for_a_roll(directory: Directory) -> None:
    end = (1 << 31) - 1
    segment = directory.segment(
        0,
        size_bytes=61,
        next_offset=end,
        max_timestamp=0,
        max_timestamp_offset=0,
        first_append_ms=0,
    )
    os.truncate(directory.file(0, "log"), 61)
    log = directory.log([segment])
    assert log.append(make_batch(2), NOW_MS).status == ROLL_NEEDED
    log.set_limits(**NO_LIMITS)  # which takes the question back
    assert log.append(make_batch(1), NOW_MS).last_offset == end
    assert log.append(make_batch(1), NOW_MS).status == ROLL_NEEDED


# --- failed writes --------------------------------------------------------------------------------


@pytest.mark.parametrize("suffix", ["log", "index", "timeindex"])
@pytest.mark.parametrize("short_bytes", [-1, 0, 5])
@pytest.mark.parametrize("error", [errno.ENOSPC, errno.EIO])
def test_failed_write_is_cut_back(
    directory: Directory, suffix: str, short_bytes: int, error: int
) -> None:
    log = directory.log(index_interval_bytes=61)
    for stamp in range(ENTRIES_AT_ONCE):  # the first batch has no entry
        log.append(make_batch(2, 100, timestamp=stamp), NOW_MS)
    before = {s: directory.data(0, s) for s in ("log", "index", "timeindex")}
    state = log.state()
    faults.inject(
        [
            Fault(
                "pwritev",
                errno=error,
                short_bytes=short_bytes,
                path_prefix=str(directory.file(0, suffix)),
            )
        ]
    )
    for _ in range(2):
        failed = log.append(make_batch(2, 100, timestamp=90), NOW_MS)
        assert (failed.status, failed.errno) == (WRITE_FAILED, error)
        assert {s: directory.data(0, s) for s in before} == before
        assert log.state() == state
    faults.inject([])
    end = 2 * ENTRIES_AT_ONCE
    assert log.append(make_batch(2, 100, timestamp=90), NOW_MS).base_offset == end
    entries = [(2 * n + 1, 100 * n) for n in range(1, ENTRIES_AT_ONCE + 1)]
    assert directory.offset_index(0) == entries
    assert directory.time_index(0)[-1] == (90, end + 1)
    assert log.segments[0].lookup_offset(end) == entries[-2]


@pytest.mark.parametrize("at_most", [1, 7, 60])
def test_short_writes_are_finished(directory: Directory, at_most: int) -> None:
    faults.inject([Fault("pwritev", short_bytes=at_most)])
    log = directory.log(index_interval_bytes=61)
    batches = [make_batch(2, 100, timestamp=stamp) for stamp in range(4)]
    for batch in batches:
        assert log.append(batch, NOW_MS).status == APPENDED
    log.segments[0].seal()
    assert directory.data(0) == b"".join(batches)
    assert directory.offset_index(0) == [(3, 100), (5, 200), (7, 300)]


def test_failed_cut_back_takes_the_log_offline(directory: Directory) -> None:
    log = directory.log()
    log.append(make_batch(), NOW_MS)
    changes = log.change_count
    faults.inject([Fault("pwritev", errno=errno.EIO, short_bytes=9), Fault("ftruncate", errno=5)])
    assert log.append(make_batch(), NOW_MS).status == WRITE_FAILED
    faults.inject([])
    assert log.change_count > changes
    refused = log.append(make_batch(), NOW_MS)
    assert (refused.status, refused.errno) == (NOT_WRITABLE, errno.EIO)
    with pytest.raises(KafkaStorageError):
        log.read(0, 1000, 1, True)
    with pytest.raises(OSError, match="Input/output error"):
        log.flush()


# --- what is published ----------------------------------------------------------------------------


def test_high_watermark_follows_only_a_sole_replica(directory: Directory) -> None:
    log = directory.log()
    log.set_leader(6, writable=True, sole_replica=False)
    log.append(make_batch(5), NOW_MS)
    assert (log.high_watermark, log.last_stable_offset) == (0, 0)
    assert log.advance_high_watermark(3)
    assert not log.advance_high_watermark(3)
    assert not log.advance_high_watermark(2)
    assert (log.high_watermark, log.last_stable_offset) == (3, 3)
    assert log.advance_high_watermark(99)
    assert log.high_watermark == 5
    log.append(make_batch(1), NOW_MS)
    log.set_leader(7, writable=True, sole_replica=True)
    assert log.high_watermark == 6


def test_log_start_offset_pushes_the_high_watermark(directory: Directory) -> None:
    log = directory.log()
    log.set_leader(6, writable=True, sole_replica=False)
    log.append(make_batch(5), NOW_MS)
    log.set_log_start_offset(4)
    assert log.state()[:5] == (4, 5, 0, 4, 4)
    assert log.append(make_batch(1), NOW_MS).log_start_offset == 4
    with pytest.raises(ValueError, match="past the end"):
        log.set_log_start_offset(7)


def test_segments_that_do_not_fit_are_refused(directory: Directory) -> None:
    log = directory.log()
    log.append(make_batch(5), NOW_MS)
    (active,) = log.segments
    for wrong, message in (
        ([], "at least one"),
        ([active, directory.segment(4)], "begins below the end"),
        ([active, directory.segment(6)], "the log at 5"),
        ([active, active], "begins below the end"),
    ):
        with pytest.raises(ValueError, match=message):
            log.replace_segments(wrong)
    with pytest.raises(TypeError):
        log.replace_segments([None])  # type: ignore[list-item]
    assert log.segments == [active]


@pytest.mark.parametrize("wrong", [{"log_start_offset": 1}, {"durable_end": 1}])
def test_ends_past_the_log_are_refused(directory: Directory, wrong: dict[str, int]) -> None:
    with pytest.raises(ValueError, match="the log ends at 0"):
        directory.log(**wrong)


def test_truncation_lowers_every_offset(directory: Directory) -> None:
    log = directory.log()
    log.append(make_batch(5, 100), NOW_MS)
    log.append(make_batch(5, 100), NOW_MS)
    log.flush()
    kept = directory.segment(0, size_bytes=100, next_offset=5)
    log.truncate([kept], 5)
    os.truncate(directory.file(0, "log"), 100)
    assert log.state() == (0, 5, 5, 5, 5, 5, 100, 1)
    assert log.append(make_batch(2, 100), NOW_MS).base_offset == 5
    assert len(walk(directory.data(0))) == 2
    with pytest.raises(ValueError, match="past 3"):
        log.truncate([kept], 3)


def test_truncation_may_start_anew_at_a_later_offset(directory: Directory) -> None:
    log = directory.log()
    log.append(make_batch(5, 100), NOW_MS)
    log.truncate([directory.segment(90)], 90)
    assert log.state() == (0, 90, 0, 5, 5, 5, 0, 1)
    log.set_log_start_offset(90)
    assert log.append(make_batch(1, 100), NOW_MS).base_offset == 90
    assert log.flush() == 91


def test_closed_log_refuses_everything(directory: Directory) -> None:
    log = directory.log()
    log.append(make_batch(), NOW_MS)
    log.close()
    assert log.append(make_batch(), NOW_MS).status == NOT_WRITABLE
    assert log.segments == []
    for call in (
        lambda: log.read(0, 1, 1, True),
        log.flush,
        lambda: log.replace_segments([directory.segment(1)]),
        lambda: log.truncate([directory.segment(1)], 1),
    ):
        with pytest.raises(KafkaStorageError):
            call()
    log.close()


def test_close_after_a_flush_lets_late_flushes_be(directory: Directory) -> None:
    log = directory.log()
    log.append(make_batch(), NOW_MS)
    log.flush()
    log.close()
    assert log.flush() == 1


def test_every_change_is_counted(directory: Directory) -> None:
    log = directory.log()
    log.set_leader(5, writable=True, sole_replica=False)
    for change in (
        lambda: log.append(make_batch(), NOW_MS),
        lambda: log.flush(),
        lambda: log.advance_high_watermark(1),
        lambda: log.set_log_start_offset(1),
        lambda: log.set_leader(6, writable=True, sole_replica=True),
        lambda: directory.roll(log),
        lambda: log.load_producers([]),
        lambda: log.truncate([directory.segment(1)], 1),
        lambda: log.offline(),
        lambda: log.close(),
    ):
        before = log.change_count
        change()
        assert log.change_count > before


# --- segments -------------------------------------------------------------------------------------


def test_segment_reads_published_bytes_only(directory: Directory) -> None:
    log = directory.log()
    batch = make_batch(1, 100)
    log.append(batch, NOW_MS)
    with directory.file(0, "log").open("ab") as log_file:
        log_file.write(b"unpublished")
    (segment,) = log.segments
    assert segment.read(0, 1000) == batch
    assert segment.read(90, 5) == batch[90:95]
    assert segment.read(100, 5) == segment.read(500, 5) == b""
    with pytest.raises(ValueError, match="-1"):
        segment.read(-1, 5)


def test_descriptors_are_closed_with_the_last_pin(directory: Directory) -> None:
    log = directory.log(index_interval_bytes=61)
    for _ in range(3):
        log.append(make_batch(1, 100), NOW_MS)
    pinned = log.read(0, 1000, 3, True)
    assert pinned is not None
    assert len(open_at(directory.path)) == 3
    log.close()
    assert len(open_at(directory.path)) == 3
    del log
    assert len(open_at(directory.path)) == 3
    assert len(pinned.read()) == 300
    del pinned
    assert open_at(directory.path) == []


def test_segment_with_a_short_time_index_is_refused(directory: Directory) -> None:
    with pytest.raises(OSError, match="fewer entries than 2"):
        directory.segment(0, time_entries=2)


@pytest.mark.parametrize("wrong", [{"size_bytes": -1}, {"next_offset": -1}, {"offset_entries": -1}])
def test_segment_with_impossible_numbers_is_refused(
    directory: Directory, wrong: dict[str, int]
) -> None:
    with pytest.raises(ValueError, match="segment 0"):
        directory.segment(0, **wrong)


def test_failed_seal_is_cut_back(directory: Directory) -> None:
    log = directory.log()
    log.append(make_batch(), NOW_MS)
    (segment,) = log.segments
    faults.inject([Fault("pwritev", errno=errno.ENOSPC, short_bytes=5)])
    with pytest.raises(OSError, match="No space left"):
        segment.seal()
    faults.inject([])
    assert directory.data(0, "timeindex") == b""
    segment.seal()
    assert directory.time_index(0) == [(1000, 0)]


def test_time_index_is_never_behind_the_offset_index(directory: Directory) -> None:
    """What a crash between the two writes leaves: recovery trusts the times up to it."""
    log = directory.log(index_interval_bytes=61)
    for stamp in range(3):
        log.append(make_batch(2, 100, timestamp=stamp), NOW_MS)
    (segment,) = log.segments
    for suffix, entries in (("timeindex", 0), ("index", 2)):
        path = str(directory.file(0, suffix))
        faults.inject(
            [Fault("pwritev", errno=errno.EIO, path_prefix=path), Fault("ftruncate", errno=5)]
        )
        with pytest.raises(OSError, match="Input/output"):
            segment.seal()
        faults.inject([])
        assert len(directory.time_index(0)) == entries
        assert directory.offset_index(0) == []


@pytest.mark.parametrize("suffix", ["index", "timeindex"])
def test_failed_seal_keeps_the_entries_that_wait(directory: Directory, suffix: str) -> None:
    log = directory.log(index_interval_bytes=61)
    for stamp in range(3):
        log.append(make_batch(2, 100, timestamp=stamp), NOW_MS)
    (segment,) = log.segments
    path = str(directory.file(0, suffix))
    faults.inject([Fault("pwritev", errno=errno.ENOSPC, short_bytes=5, path_prefix=path)])
    with pytest.raises(OSError, match="No space left"):
        segment.seal()
    faults.inject([])
    assert directory.data(0, "index") == directory.data(0, "timeindex") == b""
    assert (segment.lookup_offset(4), segment.lookup_time(1)) == ((3, 100), (1, 3))
    log.append(make_batch(2, 100, timestamp=3), NOW_MS)
    segment.seal()
    assert directory.offset_index(0) == [(3, 100), (5, 200), (7, 300)]
    assert directory.time_index(0) == [(1, 3), (2, 5), (3, 7)]
