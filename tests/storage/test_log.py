from __future__ import annotations

import errno
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from plog._native import compression, faults
from plog._native.batch import read_header, restamp_append_time, scan
from plog._native.cleaning import empty_batch
from plog._native.faults import Fault
from plog._native.partition_log import APPENDED, DUPLICATE, NOT_WRITABLE
from plog._native.records import walk
from plog.errors import (
    InvalidProducerEpoch,
    KafkaStorageError,
    NotLeaderOrFollower,
    OffsetOutOfRange,
    OutOfOrderSequenceNumber,
    RecordListTooLarge,
)
from plog.storage.leader_epochs import (
    LEADER_EPOCH_FILE,
    EpochStart,
    LeaderEpochs,
    decode_leader_epochs,
)
from plog.storage.log import Log
from plog.storage.segment_verdict import Known
from tests.descriptors import open_at
from tests.waiting import until

from .failing_files import FailingFilesystem
from .storage_logs import (
    NEVER,
    NOW_MS,
    FaultyFilesystem,
    Owner,
    Settings,
    append_verified,
    batch,
    files_of,
    open_log,
    read_all,
)

SMALL = {"segment_bytes": 3000, "index_interval_bytes": 500}


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    return tmp_path / "flights-0"


@pytest.fixture
def owner() -> Owner:
    return Owner()


@pytest.fixture
def inject() -> Iterator[None]:
    yield
    faults.inject([])


def fill(log: Log, batches: int, *, records: int = 10, start: int = 0) -> None:
    for n in range(start, start + batches):
        log.append_as_leader(
            batch(records, timestamp=NOW_MS + 1000 * n, value=b"v" * 20), now_ms=NOW_MS
        )


# -- append and read -------------------------------------------------------------------------------


def test_appended_batches_are_read_back_with_offsets_and_epoch(directory: Path) -> None:
    log = open_log(directory, Settings(**SMALL), leader=False)
    log.become_leader(7, sole_replica=True)
    for n in range(50):
        appended = log.append_as_leader(batch(3, value=b"%d" % n), now_ms=NOW_MS)
        assert (appended.status, appended.base_offset, appended.last_offset) == (
            APPENDED,
            n * 3,
            n * 3 + 2,
        )
    headers = scan(read_all(log))
    assert [header.base_offset for header in headers] == [n * 3 for n in range(50)]
    assert {header.partition_leader_epoch for header in headers} == {7}
    assert log.native.state().segment_count > 1
    assert log.size_bytes == len(read_all(log))


def test_read_outside_the_log_is_refused(directory: Path) -> None:
    log = open_log(directory)
    fill(log, 3)
    assert log.read(30, 1000, NEVER, True) is None
    for offset in (-1, 31):
        with pytest.raises(OffsetOutOfRange, match=f"offset {offset} is not within 0 .. 30"):
            log.read(offset, 1000, NEVER, True)


def test_batch_larger_than_a_segment_is_refused(directory: Path) -> None:
    log = open_log(directory, Settings(segment_bytes=1000))
    with pytest.raises(RecordListTooLarge, match=r"segment\.bytes is 1000"):
        log.append_as_leader(batch(1, value=b"v" * 1000), now_ms=NOW_MS)
    assert log.log_end_offset == 0


def test_append_without_leadership_is_refused(directory: Path) -> None:
    log = open_log(directory, leader=False)
    with pytest.raises(NotLeaderOrFollower):
        log.append_as_leader(batch(1), now_ms=NOW_MS)
    log.become_leader(0, sole_replica=True)
    log.append_as_leader(batch(1), now_ms=NOW_MS)
    log.become_follower(1)
    with pytest.raises(NotLeaderOrFollower):
        log.append_as_leader(batch(1), now_ms=NOW_MS)
    log.drop()
    with pytest.raises(KafkaStorageError):
        log.append_as_leader(batch(1), now_ms=NOW_MS)
    with pytest.raises(KafkaStorageError):
        log.read(0, 1, NEVER, True)
    with pytest.raises(KafkaStorageError):
        log.max_timestamp_offset()


def test_batch_that_is_stamped_with_its_append_time_is_found_by_it(directory: Path) -> None:
    log = open_log(directory)
    data = bytearray(batch(3, timestamp=1))
    restamp_append_time(data, NOW_MS)
    appended = log.append_as_leader(data, now_ms=NOW_MS)
    assert appended.timestamp == NOW_MS
    records = walk(read_all(log))  # checks the CRC
    assert [(record.timestamp, record.timestamp_type) for record in records] == [(NOW_MS, 1)] * 3
    assert log.offset_for_timestamp(NOW_MS) == (0, NOW_MS, 0)


def test_roll_comes_with_size_time_and_index(directory: Path) -> None:
    by_size = open_log(directory, Settings(segment_bytes=3000))
    fill(by_size, 20)
    assert by_size.native.state().segment_count == 3

    by_time = open_log(directory.with_name("flights-1"), Settings(segment_ms=5000))
    fill(by_time, 20)
    # a second apart: a segment ends when its first batch is more than five seconds old
    assert [s.base_offset for s in by_time.native.segments] == [0, 60, 120, 180]

    by_index = open_log(
        directory.with_name("flights-2"), Settings(index_interval_bytes=0, segment_index_bytes=40)
    )
    fill(by_index, 20)
    assert by_index.native.state().segment_count > 3


@pytest.mark.parametrize(
    ("policy", "rolls"), [("compact", True), ("compact,delete", True), ("delete", False)]
)
def test_no_record_waits_in_the_active_segment_for_longer_than_it_may(
    directory: Path, policy: str, rolls: bool
) -> None:
    limits = {"segment_ms": 60_000, "max_compaction_lag_ms": 5000, "cleanup_policy": policy}
    log = open_log(directory, Settings(**limits))
    for timestamp in (NOW_MS, NOW_MS + 5000, NOW_MS + 5001):
        log.append_as_leader(batch(timestamp=timestamp), now_ms=NOW_MS)
    assert log.native.state().segment_count == (2 if rolls else 1)
    log.update_settings(Settings(**limits | {"cleanup_policy": "delete"}))
    log.append_as_leader(batch(timestamp=NOW_MS + 20_000), now_ms=NOW_MS)
    assert log.native.state().segment_count == (2 if rolls else 1)


def test_roll_leaves_kafkas_files(directory: Path, owner: Owner) -> None:
    log = open_log(directory, Settings(**SMALL), owner=owner)
    fill(log, 20)
    names = set(files_of(directory))
    bases = [segment.base_offset for segment in log.native.segments]
    for base in bases:
        for kind in (".log", ".index", ".timeindex"):
            assert f"{base:020d}{kind}" in names
    # snapshots at the last two bases
    assert {name for name in names if name.endswith(".snapshot")} == {
        f"{base:020d}.snapshot" for base in bases[-2:]
    }
    assert owner.commits >= len(bases) - 1  # the rolled segments' flush was asked for


def test_jitter_is_drawn_for_each_segment(directory: Path) -> None:
    drawn: list[int] = []

    def draw(limit: int) -> int:
        drawn.append(limit)
        return limit - 1

    log = open_log(directory, Settings(segment_bytes=3000))
    log._draw = draw
    log.update_settings(Settings(segment_bytes=3000, segment_ms=10_000, segment_jitter_ms=8_000))
    fill(log, 4)
    # ten seconds, less 7999 ms
    assert [s.base_offset for s in log.native.segments] == [0, 30]
    assert drawn == [8000, 8000]


def test_flush_is_asked_for_after_so_many_records(directory: Path, owner: Owner) -> None:
    log = open_log(directory, Settings(flush_messages=25), owner=owner)
    fill(log, 2)
    assert owner.commits == 0
    fill(log, 1)
    assert owner.commits == 1
    assert log.flush() == 30
    fill(log, 1)
    assert owner.commits == 1


def test_flush_is_due_by_count_and_by_time(directory: Path) -> None:
    log = open_log(directory, Settings(flush_messages=25, flush_ms=1000))
    assert not log.is_flush_due(5000)
    fill(log, 1)
    assert not log.is_flush_due(5999)
    assert log.is_flush_due(6000)
    log.flush()
    assert not log.is_flush_due(9000)


# -- producers -------------------------------------------------------------------------------------


def produce(log: Log, sequence: int, *, epoch: int = 0, pid: int = 9, records: int = 10) -> tuple:
    appended = log.append_as_leader(
        batch(records, producer_id=pid, epoch=epoch, sequence=sequence), now_ms=NOW_MS
    )
    return appended.status, appended.base_offset


def test_idempotent_producer_survives_restarts(directory: Path) -> None:
    log = open_log(directory, Settings(**SMALL))
    for n in range(8):
        assert produce(log, n * 10) == (APPENDED, n * 10)
    for known in (Known(clean_shutdown=False), Known(clean_shutdown=True)):
        for n in range(3, 8):
            assert produce(log, n * 10) == (DUPLICATE, n * 10)
        with pytest.raises(OutOfOrderSequenceNumber):
            produce(log, 20)  # no longer remembered
        with pytest.raises(OutOfOrderSequenceNumber):
            produce(log, 90)
        if known.clean_shutdown:
            log.close()
        else:
            log.drop()
        log = open_log(directory, Settings(**SMALL), known=known)
    assert produce(log, 80) == (APPENDED, 80)


def test_new_epoch_starts_at_zero_and_fences_the_old(directory: Path) -> None:
    log = open_log(directory)
    assert produce(log, 4711) == (APPENDED, 0)  # unknown: any sequence
    with pytest.raises(OutOfOrderSequenceNumber):
        produce(log, 4721, epoch=1)
    assert produce(log, 0, epoch=1) == (APPENDED, 10)
    with pytest.raises(InvalidProducerEpoch):
        produce(log, 4721, epoch=0)
    assert produce(log, 10, epoch=1) == (APPENDED, 20)


def test_unusual_batch_that_also_needs_a_roll_is_appended(directory: Path) -> None:
    log = open_log(directory, Settings(**SMALL))
    for n in range(30):
        assert produce(log, 0, pid=n) == (APPENDED, n * 10)
    assert log.native.state().segment_count > 1


def test_silent_producers_are_forgotten(directory: Path) -> None:
    log = open_log(directory)
    produce(log, 0, pid=1)
    produce(log, 0, pid=2)
    assert log.expire_producers(NOW_MS + 1008, 1000) == 0
    assert log.expire_producers(NOW_MS + 1009, 1000) == 2
    assert produce(log, 500, pid=1) == (APPENDED, 20)


def test_producer_of_old_records_is_not_silent_while_it_writes(directory: Path) -> None:
    log = open_log(directory)
    later = NOW_MS + 10**9  # by the records' timestamps all producers have long been silent
    produce(log, 0)
    assert log.expire_producers(later, 1000) == 0
    produce(log, 10)
    assert log.expire_producers(later, 1000) == 0
    assert produce(log, 10) == (DUPLICATE, 10)
    assert log.expire_producers(later, 1000) == 1


@pytest.mark.parametrize("transactional", [True, False])
def test_producer_that_writes_while_the_silent_are_forgotten_is_not(
    directory: Path, monkeypatch: pytest.MonkeyPatch, transactional: bool
) -> None:
    log = open_log(directory)
    produce(log, 0, pid=3)
    again = batch(5, producer_id=3, epoch=0, sequence=10, transactional=transactional)
    later = NOW_MS + 10**9
    assert log.expire_producers(later, 1000) == 0
    look = log._silent_producers.look

    def look_and_be_overtaken(*arguments: object, **options: object) -> object:
        found = look(*arguments, **options)  # type: ignore[arg-type]
        append_verified(log, bytearray(again))
        return found

    monkeypatch.setattr(log._silent_producers, "look", look_and_be_overtaken)
    assert log.expire_producers(later, 1000) == 0
    known = log.native.producer(3)
    assert known is not None
    assert known.current_txn_first_offset == (10 if transactional else -1)
    assert log.native.append(bytearray(again), NOW_MS).status == DUPLICATE


def test_transaction_holds_the_last_stable_offset(directory: Path) -> None:
    log = open_log(directory)
    fill(log, 1)
    data = batch(5, producer_id=3, epoch=0, sequence=0, transactional=True)
    assert append_verified(log, data) == 10
    fill(log, 1)
    assert log.high_watermark == 25
    assert log.last_stable_offset == 10
    log.drop()
    log = open_log(directory)
    assert log.last_stable_offset == 10


# -- timestamps ------------------------------------------------------------------------------------


@pytest.mark.parametrize("codec", [compression.NONE, compression.ZSTD])
def test_offset_for_timestamp_is_exact_to_the_record(directory: Path, codec: int) -> None:
    log = open_log(directory, Settings(**SMALL))
    times: list[int] = []
    for n in range(60):
        # within a batch rising, between batches jumping back and forth
        start = NOW_MS + (n * 7919) % 6000
        log.append_as_leader(
            batch(8, timestamp=start, step=3, value=b"v" * 30, codec=codec), now_ms=NOW_MS
        )
        times += [start + 3 * k for k in range(8)]
    assert log.native.state().segment_count > 2
    for asked in range(NOW_MS - 1, NOW_MS + 6030, 13):
        wanted = next((o for o, time in enumerate(times) if time >= asked), None)
        found = log.offset_for_timestamp(asked)
        assert (found and found.offset) == wanted, asked
        if found is not None and wanted is not None:
            assert found.timestamp == times[wanted]
    largest = log.max_timestamp_offset()
    assert largest is not None
    assert (largest.offset, largest.timestamp) == (times.index(max(times)), max(times))


def test_timestamp_search_starts_at_the_log_start(directory: Path) -> None:
    log = open_log(directory)
    fill(log, 3)
    log.delete_records_before(15)
    assert log.offset_for_timestamp(0) == (15, NOW_MS + 1005, 0)
    log.delete_records_before(30)
    assert log.offset_for_timestamp(0) is None
    assert log.max_timestamp_offset() is None


@pytest.mark.parametrize("by", ["DeleteRecords", "retention"])
def test_leader_epochs_that_could_not_be_moved_to_the_log_start_are_moved_by_the_retry(
    directory: Path, by: str
) -> None:
    fs = FailingFilesystem(0, errno.EMFILE)
    log = open_log(directory, Settings(**SMALL, retention_bytes=4000), fs=fs)
    fill(log, 30)
    log.flush()

    def moves_start() -> None:
        if by == "DeleteRecords":
            log.delete_records_before(150)
        log.apply_retention(NOW_MS)

    with fs.armed(), pytest.raises(KafkaStorageError):
        moves_start()
    moves_start()
    assert log.native.segments[0].base_offset > 0
    text = (directory / LEADER_EPOCH_FILE).read_text()
    assert decode_leader_epochs(text, "").entries == (EpochStart(0, log.log_start_offset),)


def test_max_timestamp_below_the_log_start_is_not_told(directory: Path) -> None:
    log = open_log(directory)
    log.append_as_leader(batch(2, timestamp=NOW_MS + 5000), now_ms=NOW_MS)
    log.append_as_leader(batch(4, timestamp=NOW_MS), now_ms=NOW_MS)
    assert log.max_timestamp_offset() == (1, NOW_MS + 5001, 0)
    log.delete_records_before(3)
    assert log.max_timestamp_offset() == (5, NOW_MS + 3, 0)


def test_batch_without_records_is_not_found_by_time(directory: Path) -> None:
    log = open_log(directory)
    log.append_as_leader(batch(2, timestamp=NOW_MS), now_ms=NOW_MS)
    log.append_as_leader(batch(1, timestamp=NOW_MS + 5000), now_ms=NOW_MS)
    log.close()
    path = directory / "00000000000000000000.log"
    data = path.read_bytes()
    last = scan(data)[-1].position
    path.write_bytes(data[:last] + empty_batch(data[last:]))
    log = open_log(directory)
    assert log.offset_for_timestamp(NOW_MS + 2) is None
    assert log.max_timestamp_offset() == (1, NOW_MS + 1, 0)
    log.close()


def test_search_of_an_empty_log_finds_nothing(directory: Path) -> None:
    log = open_log(directory)
    assert log.offset_for_timestamp(0) is None
    assert log.max_timestamp_offset() is None


def test_records_without_timestamps_are_not_found_by_time(directory: Path) -> None:
    log = open_log(directory)
    log.append_as_leader(batch(3, timestamp=-1, step=0), now_ms=NOW_MS)
    assert log.offset_for_timestamp(0) is None
    assert log.max_timestamp_offset() is None


# -- leader epochs ---------------------------------------------------------------------------------


def test_leader_epochs_are_written_before_the_recovery_point_passes_them(directory: Path) -> None:
    log = open_log(directory)
    fill(log, 2)
    log.become_leader(3, sole_replica=True)
    log.become_leader(3, sole_replica=True)
    fill(log, 1)
    assert log.epoch_end_offset(0) == (0, 20)
    assert log.epoch_end_offset(2) == (0, 20)
    assert log.epoch_end_offset(3) == (3, 30)
    assert log.epoch_end_offset(4) == (-1, -1)
    assert (log.epoch_at(19), log.epoch_at(20)) == (0, 3)
    file = directory / "leader-epoch-checkpoint"
    assert file.read_text() == "0\n1\n0 0\n"
    log.flush()
    assert log.recovery_point() == 30
    assert file.read_text() == "0\n2\n0 0\n3 20\n"
    # An epoch without records is not written: a start would drop it.
    log.become_leader(4, sole_replica=True)
    assert log.recovery_point() == 30
    assert file.read_text() == "0\n2\n0 0\n3 20\n"
    assert log.epoch_end_offset(3) == (3, 30)
    fill(log, 1)
    log.close()
    assert file.read_text() == "0\n3\n0 0\n3 20\n4 30\n"


def test_epoch_that_cannot_be_written_down_does_not_lead(directory: Path, owner: Owner) -> None:
    fs = FaultyFilesystem()
    log = open_log(directory, fs=fs, owner=owner, leader=False)
    fs.fail_at = fs.operations
    with pytest.raises(KafkaStorageError):
        log.become_leader(5, sole_replica=True)
    assert [error.errno for error in owner.errors] == [errno.EIO]
    with pytest.raises(NotLeaderOrFollower):
        log.append_as_leader(batch(1), now_ms=NOW_MS)


# -- retention and deletion ------------------------------------------------------------------------


def test_retention_by_size_renames_then_leaves_to_the_owner(directory: Path, owner: Owner) -> None:
    settings = Settings(**SMALL, retention_bytes=3500)
    log = open_log(directory, settings, owner=owner)
    fill(log, 40)
    count = log.native.state().segment_count
    held = log.read(0, 1000, NEVER, True)
    assert held is not None
    lines = log.apply_retention(NOW_MS)
    assert len(lines) == 1
    assert "more than retention.bytes" in lines[0]
    assert log.native.state().segment_count < count
    assert log.log_start_offset == log.native.segments[0].base_offset > 0
    assert log.size_bytes >= 3500
    assert owner.renamed
    assert all(path.name.endswith(".deleted") and path.exists() for path in owner.renamed)
    assert len(held.read()) == len(held)  # pinned
    with pytest.raises(OffsetOutOfRange):
        log.read(0, 1000, NEVER, True)
    assert log.apply_retention(NOW_MS) == []
    # after a restart the log begins where it did
    start, end = log.log_start_offset, log.log_end_offset
    log.drop()
    log = open_log(directory, settings)
    assert (log.log_start_offset, log.log_end_offset) == (start, end)
    assert not list(directory.glob("*.deleted"))


def test_retention_by_time_takes_the_active_segment_too(directory: Path) -> None:
    log = open_log(directory, Settings(**SMALL, retention_ms=1000))
    fill(log, 20)
    assert log.apply_retention(NOW_MS + 19_000 + 1009) == [
        "flights-0: deleted 2 segments from offset 0 to 179, older than retention.ms"
    ]
    assert log.apply_retention(NOW_MS + 19_000 + 1010)
    assert (log.log_start_offset, log.log_end_offset) == (200, 200)
    assert log.size_bytes == 0
    assert log.leader_epochs == LeaderEpochs([EpochStart(0, 200)])
    fill(log, 1)
    assert len(scan(read_all(log))) == 1
    assert log.apply_retention(NOW_MS) == []


def test_append_while_retention_rolls_is_spared(
    directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = open_log(directory, Settings(**SMALL, retention_ms=1000))
    fill(log, 35)
    roll, active = log.roll, log.native.segments[-1].base_offset
    assert active > 0

    def roll_after_an_append() -> None:
        log.append_as_leader(batch(timestamp=NOW_MS + 10**6), now_ms=NOW_MS + 10**6)
        roll()

    monkeypatch.setattr(log, "roll", roll_after_an_append)
    (line,) = log.apply_retention(NOW_MS + 10**6)
    assert line.endswith(f"to {active - 1}, older than retention.ms")
    assert (log.log_start_offset, log.log_end_offset) == (active, 351)
    assert scan(read_all(log))[-1].base_offset == 350


def test_retention_of_segments_without_timestamps_goes_by_their_files(directory: Path) -> None:
    log = open_log(directory, Settings(**SMALL, retention_ms=1000))
    for _ in range(20):
        log.append_as_leader(batch(10, timestamp=-1, step=0, value=b"v" * 20), now_ms=NOW_MS)
    modified_ms = max(path.stat().st_mtime_ns for path in directory.glob("*.log")) // 1_000_000
    assert log.apply_retention(modified_ms) == []
    assert log.apply_retention(modified_ms + 1_001)
    assert log.log_start_offset == 200


def test_retention_spares_what_is_not_committed(directory: Path) -> None:
    log = open_log(directory, Settings(**SMALL, retention_ms=1), leader=False)
    log.become_leader(0, sole_replica=False)
    fill(log, 20)
    assert log.apply_retention(NOW_MS + 10**9) == []
    log.native.advance_high_watermark(95)
    log.apply_retention(NOW_MS + 10**9)
    assert log.log_start_offset == 90


def test_compacted_topic_keeps_old_segments(directory: Path) -> None:
    log = open_log(directory, Settings(**SMALL, retention_ms=1, cleanup_policy="compact"))
    fill(log, 20)
    assert log.apply_retention(NOW_MS + 10**9) == []


def test_delete_records_moves_the_start_and_never_back(directory: Path) -> None:
    log = open_log(directory, Settings(**SMALL))
    fill(log, 20)
    assert log.delete_records_before(95) == 95
    assert log.delete_records_before(50) == 95
    with pytest.raises(OffsetOutOfRange):
        log.read(94, 1000, NEVER, True)
    found = log.read(95, 1000, NEVER, True)
    assert found is not None
    for offset in (201, -2):
        with pytest.raises(OffsetOutOfRange):
            log.delete_records_before(offset)
    assert len(log.apply_retention(NOW_MS)) == 1
    assert log.native.segments[0].base_offset == 90
    assert log.delete_records_before(-1) == 200


# -- truncation ------------------------------------------------------------------------------------


@pytest.mark.parametrize("offset", [1, 5, 10, 89, 90, 91, 100, 155, 179, 180, 181, 190, 199])
def test_truncated_log_ends_at_a_batch_and_goes_on(
    directory: Path, owner: Owner, offset: int
) -> None:
    settings = Settings(**SMALL)
    log = open_log(directory, settings, owner=owner)
    for n in range(20):
        log.become_leader(n // 5, sole_replica=True)
        data = batch(
            10, timestamp=NOW_MS + 1000 * n, value=b"v" * 20, producer_id=1, epoch=0,
            sequence=10 * n,
        )  # fmt: skip
        log.append_as_leader(data, now_ms=NOW_MS)
    log.flush()
    pinned = log.read(0, 1 << 20, NEVER, True)
    assert pinned is not None
    log.become_follower(4)
    assert log.truncate_to(offset)
    whole = offset // 10 * 10
    assert log.log_end_offset == whole
    assert log.native.durable_end == whole
    assert log.high_watermark == whole
    assert owner.lowered == [whole]
    headers = scan(read_all_bytes(directory))
    assert [header.base_offset for header in headers] == list(range(0, whole, 10))
    assert log.leader_epochs.latest == (whole - 1) // 50
    remembered = log.native.producer(1)
    batches = remembered.batches if remembered else ()
    assert [b.last_offset for b in batches] == [o + 9 for o in range(0, whole, 10)][-5:]
    for n in range(whole // 10):
        at = log.offset_for_timestamp(NOW_MS + 1000 * n)
        assert at is not None
        assert at.offset == 10 * n
    log.become_leader(9, sole_replica=True)
    assert log.append_as_leader(batch(3), now_ms=NOW_MS).base_offset == whole
    log.flush()
    size = log.size_bytes
    log.drop()
    log = open_log(
        directory,
        settings,
        known=Known(clean_shutdown=False, durable_end=whole + 3),
    )
    assert (log.log_end_offset, log.size_bytes) == (whole + 3, size)


def read_all_bytes(directory: Path) -> bytes:
    return b"".join(path.read_bytes() for path in sorted(directory.glob("*.log")))


def test_truncation_past_the_end_does_nothing(directory: Path, owner: Owner) -> None:
    log = open_log(directory, owner=owner)
    fill(log, 2)
    assert not log.truncate_to(20)
    assert not log.truncate_to(25)
    assert owner.lowered == []


@pytest.mark.parametrize("offset", [0, 5, 200, 1000])
def test_restarted_log_is_empty_at_the_offset(directory: Path, offset: int) -> None:
    log = open_log(directory, Settings(**SMALL))
    fill(log, 20)
    log.restart_at(offset)
    assert (log.log_start_offset, log.log_end_offset) == (offset, offset)
    assert log.high_watermark == offset
    assert log.size_bytes == 0
    fill(log, 1)
    assert scan(read_all(log))[0].base_offset == offset
    log.flush()
    log.drop()
    log = open_log(directory, Settings(**SMALL), known=Known(False, durable_end=offset + 10))
    assert (log.log_start_offset, log.log_end_offset) == (offset, offset + 10)


# -- the disk fails --------------------------------------------------------------------------------


@pytest.mark.usefixtures("inject")
def test_full_disk_refuses_appends_and_nothing_else(directory: Path, owner: Owner) -> None:
    log = open_log(directory, owner=owner)
    fill(log, 1)
    faults.inject([Fault("pwritev", errno=errno.ENOSPC, path_prefix=str(directory))])
    with pytest.raises(KafkaStorageError, match="No space left"):
        fill(log, 1)
    assert owner.errors == []
    assert owner.full == 1
    assert len(scan(read_all(log))) == 1
    faults.inject([])
    fill(log, 1)
    assert log.log_end_offset == 20


@pytest.mark.usefixtures("inject")
def test_failed_write_takes_the_log_dir_offline(directory: Path, owner: Owner) -> None:
    log = open_log(directory, owner=owner)
    faults.inject([Fault("pwritev", errno=errno.EIO, path_prefix=str(directory))])
    with pytest.raises(KafkaStorageError, match="Input/output"):
        fill(log, 1)
    assert [error.errno for error in owner.errors] == [errno.EIO]


@pytest.mark.usefixtures("inject")
@pytest.mark.parametrize("error", [errno.EIO, errno.ENOSPC])
def test_failed_flush_is_final(directory: Path, owner: Owner, error: int) -> None:
    log = open_log(directory, owner=owner)
    fill(log, 1)
    faults.inject([Fault("fdatasync", errno=error, times=1, path_prefix=str(directory))])
    with pytest.raises(KafkaStorageError):
        log.flush()
    assert [found.errno for found in owner.errors] == [error]
    with pytest.raises(KafkaStorageError):
        log.flush()
    assert log.native.durable_end == 0
    with pytest.raises(KafkaStorageError):
        fill(log, 1)


@pytest.mark.usefixtures("inject")
@pytest.mark.parametrize("call", [Log.flush, Log.sync_names])
@pytest.mark.parametrize(("error", "told"), [(errno.EIO, [errno.EIO]), (errno.EMFILE, [])])
def test_directory_that_cannot_be_opened_is_told(
    directory: Path, owner: Owner, call, error: int, told: list[int]
) -> None:
    log = open_log(directory, owner=owner)
    fill(log, 1)
    faults.inject([Fault("open_directory", errno=error, times=1, path_prefix=str(directory))])
    with pytest.raises(KafkaStorageError):
        call(log)
    assert [found.errno for found in owner.errors] == told
    assert log.durable_end == 0


@pytest.mark.parametrize(
    ("error", "told", "commits"), [(errno.EIO, [errno.EIO], 0), (errno.EMFILE, [], 1)]
)
def test_failed_flush_of_the_data_path_is_told_or_made_again(
    directory: Path, owner: Owner, error: int, told: list[int], commits: int
) -> None:
    log = open_log(directory, owner=owner)
    log.flush_failed(error)
    assert ([found.errno for found in owner.errors], owner.commits) == (told, commits)


@pytest.mark.usefixtures("inject")
def test_failed_read_takes_the_log_dir_offline(directory: Path, owner: Owner) -> None:
    log = open_log(directory, owner=owner)
    fill(log, 1)
    faults.inject([Fault("pread", errno=errno.EIO, path_prefix=str(directory))])
    with pytest.raises(KafkaStorageError):
        log.read(0, 1000, NEVER, True)
    with pytest.raises(KafkaStorageError):
        log.offset_for_timestamp(NOW_MS)
    assert [error.errno for error in owner.errors] == [errno.EIO] * 2


def test_bad_header_on_the_way_is_damage(directory: Path, owner: Owner) -> None:
    log = open_log(directory, owner=owner)
    fill(log, 2)
    path = directory / "00000000000000000000.log"
    with path.open("r+b") as file:
        file.seek(16)
        file.write(b"\x09")
    with pytest.raises(KafkaStorageError, match="damaged"):
        log.read(5, 1000, NEVER, True)
    with pytest.raises(KafkaStorageError, match="damaged"):
        log.offset_for_timestamp(NOW_MS)
    assert len(owner.damage) == 2
    assert owner.errors == []


def test_roll_that_fails_at_any_operation_loses_nothing(tmp_path: Path) -> None:
    """The append that needed the roll is refused; the next one, or a restart, is fine."""
    settings = Settings(**SMALL)
    for fail_at in range(40):
        owner = Owner()
        fs = FaultyFilesystem()
        log = open_log(tmp_path / f"flights-{fail_at}", settings, fs=fs, owner=owner)
        fill(log, 9)
        fs.fail_at = fs.operations + fail_at
        refused = 0
        try:
            fill(log, 1, start=9)
        except KafkaStorageError:
            refused = 1
        failed = bool(owner.errors)
        assert refused <= failed
        fs.fail_at = -1
        fill(log, 1, start=10)
        end = log.log_end_offset
        assert end == 100 + 10 * (1 - refused)
        data = read_all(log)
        log.drop()
        log = open_log(tmp_path / f"flights-{fail_at}", settings)
        assert log.log_end_offset == end
        assert read_all(log) == data
        log.drop()
        if not failed:
            break
    else:
        pytest.fail("a roll takes more operations than this test tries")
    assert fail_at > 5


# -- the end ---------------------------------------------------------------------------------------


def test_closed_log_is_loaded_without_reading_it(directory: Path) -> None:
    settings = Settings(**SMALL)
    log = open_log(directory, settings)
    fill(log, 20)
    state = log.native.state()
    log.close()
    log.close()  # harmless
    assert log.native.durable_end == 200
    again = open_log(directory, settings, known=Known(clean_shutdown=True), leader=False)
    assert again.native.state()._replace(high_watermark=0, last_stable_offset=0) == (
        state._replace(durable_end=200, high_watermark=0, last_stable_offset=0)
    )


@pytest.mark.usefixtures("inject")
def test_close_with_a_failed_disk_says_so(directory: Path, owner: Owner) -> None:
    log = open_log(directory, owner=owner)
    fill(log, 1)
    faults.inject([Fault("fdatasync", errno=errno.EIO, path_prefix=str(directory))])
    with pytest.raises(KafkaStorageError):
        log.close()
    assert [error.errno for error in owner.errors] == [errno.EIO]
    with pytest.raises(KafkaStorageError):
        log.append_as_leader(batch(1), now_ms=NOW_MS)


@pytest.mark.parametrize("end", [Log.close, Log.drop])
def test_end_of_a_log_closes_the_descriptors_of_all_segments(
    directory: Path, end: Callable[[Log], None]
) -> None:
    log = open_log(directory, Settings(**SMALL))
    fill(log, 20)
    assert len(log.native.segments) > 2
    end(log)
    # Not once the garbage collector finds the log, which may take minutes.
    assert open_at(directory) == []


def test_recovery_point_waits_for_the_rolled_indexes(directory: Path) -> None:
    log = open_log(directory, Settings(**SMALL))
    fill(log, 20)
    assert log.recovery_point() == 0
    log.flush()
    assert log.recovery_point() == 200


@pytest.mark.usefixtures("inject")
def test_recovery_point_waits_for_the_indexes_that_recovery_read(directory: Path) -> None:
    log = open_log(directory, Settings(**SMALL))
    fill(log, 20)
    log.drop()
    again = open_log(directory, Settings(**SMALL))
    again.flush()
    sealed = again.native.segments[1].base_offset
    index = str(directory / f"{sealed:020d}.index")
    faults.inject([Fault("fdatasync", errno=errno.EIO, path_prefix=index)])
    with pytest.raises(KafkaStorageError):
        again.recovery_point()


def test_indexes_of_a_segment_that_ends_at_the_recovery_point_are_made_anew(
    directory: Path,
) -> None:
    log = open_log(directory, Settings(index_interval_bytes=100))
    fill(log, 20)
    log.flush()
    point = log.recovery_point()
    log.roll()  # syncs nothing: it may be the event loop's
    assert log.native.segments[1].base_offset == point == 200
    log.drop()
    index = directory / f"{0:020d}.index"
    whole = index.read_bytes()
    index.write_bytes(whole[:16])  # what a power cut may leave
    known = Known(clean_shutdown=False, recovery_point=point, durable_end=point)
    again = open_log(directory, Settings(index_interval_bytes=100), known=known)
    assert index.read_bytes() == whole
    assert again.log_end_offset == point


@pytest.mark.usefixtures("inject")
@pytest.mark.parametrize("suffix", ["index", "timeindex"])
def test_seal_for_which_there_was_no_room_is_made_up_for(directory: Path, suffix: str) -> None:
    log = open_log(directory, Settings(index_interval_bytes=100))
    fill(log, 20)
    (segment,) = log.native.segments
    entries = segment.offset_entries, segment.time_entries
    assert min(entries) > 5
    sizes = {kind: directory / f"{0:020d}.{kind}" for kind in ("index", "timeindex")}
    faults.inject([Fault("pwritev", errno=errno.ENOSPC, path_prefix=str(sizes[suffix]))])
    with pytest.raises(KafkaStorageError, match="No space left"):
        log.roll()
    assert [path.stat().st_size for path in sizes.values()] == [0, 0]
    faults.inject([])
    fill(log, 5)
    log.flush()
    log.recovery_point()
    assert sizes["index"].stat().st_size == 8 * entries[0]
    assert sizes["timeindex"].stat().st_size >= 12 * entries[1]


def test_threads_append_while_segments_roll_and_go(directory: Path) -> None:
    log = open_log(directory, Settings(**SMALL, retention_bytes=20_000))
    stop = threading.Event()
    seen: list[int] = []

    def produce_many(pid: int) -> None:
        for n in range(150):
            appended = log.append_as_leader(
                batch(2, producer_id=pid, epoch=0, sequence=2 * n, value=b"v" * 50), now_ms=NOW_MS
            )
            assert appended.status == APPENDED
            seen.append(appended.base_offset)

    def housekeep() -> None:
        while not stop.is_set():
            log.apply_retention(NOW_MS)
            log.flush()
            log.recovery_point()

    keeper = threading.Thread(target=housekeep)
    keeper.start()
    writers = [threading.Thread(target=produce_many, args=(pid,)) for pid in range(3)]
    for writer in writers:
        writer.start()
    for writer in writers:
        writer.join()
    stop.set()
    keeper.join()
    assert sorted(seen) == [2 * n for n in range(450)]
    headers = scan(read_all(log))
    assert [h.base_offset for h in headers] == list(range(log.log_start_offset, 900, 2))
    assert read_header(read_all(log)).base_offset == log.log_start_offset


def test_closing_what_is_being_dropped_is_no_failure(tmp_path: Path) -> None:
    log = open_log(tmp_path)
    log.append_as_leader(batch(1), now_ms=NOW_MS)
    with log._lock:
        dropping = threading.Thread(target=log.drop)
        dropping.start()
        until(lambda: log.native.append(batch(1), NOW_MS).status == NOT_WRITABLE, "offline")
        log.close()
    dropping.join()
