"""Reads of one partition's log: which bytes an offset, a size and an upper offset give."""

from __future__ import annotations

import errno
import itertools
import os
import random
import struct
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from plog._native import faults
from plog._native.faults import Fault
from plog._native.partition_log import FileRange, PartitionLog
from plog.errors import CorruptRecord, KafkaStorageError

from .partition_logs import Directory, Placed, make_batch, walk


@pytest.fixture(autouse=True)
def real_calls() -> Iterator[None]:
    yield
    faults.inject([])


@pytest.fixture
def directory(tmp_path: Path) -> Directory:
    return Directory(tmp_path / "t-0")


def expected_read(
    segments: list[list[Placed]],
    fetch_offset: int,
    max_bytes: int,
    upper_offset: int,
    whole_first_batch: bool,
) -> tuple[int, int, int] | None:
    """Say by plain search which (segment number, position, size) a read must give."""
    if fetch_offset >= upper_offset:
        return None
    for number, batches in enumerate(segments):
        held = [b for b in batches if b.last_offset >= fetch_offset]
        if not held:
            continue
        first = held[0]
        if first.base_offset >= upper_offset:
            return None
        size = sum(b.size for b in held if b.base_offset < upper_offset)
        if first.size > max_bytes:
            return (number, first.position, first.size) if whole_first_batch else None
        return number, first.position, min(size, max_bytes)
    return None


def gappy_log(directory: Directory, rng: random.Random) -> tuple[PartitionLog, list[int]]:
    """Make segments as compaction leaves them: missing batches, gaps at ends, an empty one."""
    segments = []
    bases = []
    offset = 7
    for _ in range(4):
        base = offset
        batches = []
        for _ in range(rng.choice([0, 1, 6, 14])):
            offset += rng.choice([0, 0, 0, 3])
            records = rng.randint(1, 4)
            batches.append((offset, records, rng.choice([61, 90, 200, 700, 4096, 9000])))
            offset += records
        offset += rng.choice([0, 1, 5])
        if offset == base:
            offset += 1
        segments.append(directory.written(base, batches, next_offset=offset))
        bases.append(base)
    log = directory.log(segments, log_start_offset=7)
    return log, bases


@pytest.mark.parametrize("seed", range(12))
def test_read_gives_what_a_plain_search_gives(directory: Directory, seed: int) -> None:
    print(f"seed {seed}")
    rng = random.Random(seed)
    log, bases = gappy_log(directory, rng)
    for _ in range(rng.randint(0, 30)):  # and batches that this log wrote itself
        log.append(make_batch(rng.randint(1, 3), rng.choice([61, 100, 5000])), 0)
    contents = [directory.data(base) for base in bases]
    placed = [walk(content) for content in contents]
    end = log.log_end_offset
    uppers = [end, end + 10, *rng.sample(range(7, end + 1), min(end - 7, 12))]
    for fetch_offset, upper in itertools.product(range(5, end + 2), uppers):
        first = expected_read(placed, fetch_offset, 1 << 40, upper, True)
        sizes = {0, 1, 61, 1 << 40}
        if first is not None:
            batch = next(b for b in placed[first[0]] if b.position == first[1])
            near = {batch.size, first[2], rng.randint(1, first[2])}
            sizes |= near | {n - 1 for n in near} | {n + 1 for n in near}
        for max_bytes, whole in itertools.product(sizes, (True, False)):
            wanted = None
            if 7 <= fetch_offset <= end:
                wanted = expected_read(placed, fetch_offset, max_bytes, upper, whole)
            found = log.read(fetch_offset, max_bytes, upper, whole)
            what = (fetch_offset, max_bytes, upper, whole)
            if wanted is None:
                assert found is None, what
                continue
            assert found is not None, what
            number, position, size = wanted
            assert (found.position, found.size, len(found)) == (position, size, size), what
            assert found.read() == contents[number][position : position + size], what
            check_hint(placed, number, found, upper, what)
            check_next_offset(placed[number], found, what)


def check_hint(
    placed: list[list[Placed]], number: int, found: FileRange, upper: int, what: object
) -> None:
    behind = [
        b for b in itertools.chain(*placed[number:]) if b.base_offset >= found.next_offset_hint
    ]
    end = found.position + found.size
    inside = [b for b in placed[number] if found.position <= b.position < end]
    if found.next_offset_hint == -1:
        # Cut by its size: something below the upper offset is left of this segment.
        assert any(b.position + b.size > end and b.base_offset < upper for b in placed[number]), (
            what
        )
        return
    assert inside[-1].position + inside[-1].size == end, what
    assert found.next_offset_hint > inside[-1].last_offset, what
    # No batch is left out between the range and the hint.
    assert not behind or behind[0].position == end or behind[0] not in placed[number], what


def check_next_offset(placed: list[Placed], found: FileRange, what: object) -> None:
    end = found.position + found.size
    whole = [b for b in placed if found.position <= b.position and b.position + b.size <= end]
    others = [b.base_offset for b in placed if b.position + b.size > end]
    assert whole[-1].last_offset < found.next_offset(), what
    assert found.next_offset() <= min(others, default=found.next_offset()), what


def test_next_offset_does_not_believe_a_wrong_index_entry(directory: Directory) -> None:
    batches = [(2 * n, 2, 100) for n in range(10)]
    segment = directory.written(0, batches, next_offset=20, index_interval_bytes=150)
    cut = directory.log([segment]).read(0, 550, 20, False)
    assert cut is not None
    assert cut.next_offset() == 10
    entries = directory.offset_index(0)
    # Each entry leads into the middle of a batch.
    wrong = b"".join(struct.pack(">ii", offset, position + 50) for offset, position in entries)
    directory.file(0, "index").write_bytes(wrong)
    assert cut.next_offset() == 10


def test_next_offset_never_waits_for_the_disk(directory: Directory) -> None:
    log = directory.log()
    for _ in range(10):
        log.append(make_batch(2, 100), 0)
    cut, whole = log.read(0, 550, 20, False), log.read(0, 5000, 20, False)
    assert cut is not None
    assert whole is not None
    assert (cut.next_offset(), whole.next_offset()) == (10, 20)
    faults.inject([Fault("pread_now", errno=errno.EAGAIN)])
    assert (cut.next_offset(), whole.next_offset()) == (-1, 20)


def test_read_without_index_entries_walks_from_the_start(directory: Directory) -> None:
    log = directory.log(index_interval_bytes=1 << 30)
    for _ in range(300):
        log.append(make_batch(2, 100), 0)
    for offset in (0, 1, 299, 598, 599):
        found = log.read(offset, 100, 600, False)
        assert found is not None
        assert found.position == offset // 2 * 100
        assert found.read() == directory.data(0)[found.position :][:100]


@pytest.mark.parametrize("at_most", [1, 17, 60, 61, 100])
def test_short_reads_are_finished(directory: Directory, at_most: int) -> None:
    log = directory.log()
    for _ in range(10):
        log.append(make_batch(1, 100), 0)
    faults.inject([Fault("pread", short_bytes=at_most)])
    found = log.read(5, 1000, 8, False)
    assert found is not None
    assert found.read() == directory.data(0)[500:800]


def test_failed_read_is_an_os_error(directory: Directory) -> None:
    log = directory.log()
    log.append(make_batch(1, 100), 0)
    found = log.read(0, 1000, 1, False)
    assert found is not None
    faults.inject([Fault("pread", errno=errno.EIO)])
    for call in (
        lambda: log.read(0, 1000, 1, False),
        found.read,
        lambda: log.segments[0].read(0, 9),
    ):
        with pytest.raises(OSError, match="Input/output error"):
            call()
    faults.inject([])
    assert log.read(0, 1000, 1, False) is not None


def test_upper_offset_hides_what_is_not_committed(directory: Directory) -> None:
    log = directory.log()
    log.set_leader(5, writable=True, sole_replica=False)
    for _ in range(4):
        log.append(make_batch(2, 100), 0)
    log.advance_high_watermark(4)
    found = log.read(0, 1000, log.high_watermark, True)
    assert found is not None
    assert (found.size, found.next_offset_hint) == (200, 4)
    assert log.read(4, 1000, log.high_watermark, True) is None


def damaged(directory: Directory, position: int, data: bytes) -> PartitionLog:
    log = directory.log(index_interval_bytes=1 << 30)
    for _ in range(5):
        log.append(make_batch(2, 100), 0)
    fd = os.open(directory.file(0, "log"), os.O_WRONLY)
    try:
        os.pwrite(fd, data, position)
    finally:
        os.close(fd)
    return log


@pytest.mark.parametrize(
    ("at", "data"),
    [
        (8, struct.pack(">i", 13)),  # a batch shorter than any header
        (8, struct.pack(">i", -1)),
        (8, struct.pack(">i", 48)),  # shorter than a v2 header
        (8, struct.pack(">i", 1 << 30)),  # past the published end
        (16, b"\x03"),  # an unknown magic
        (16, b"\xff"),
        (23, struct.pack(">i", -1)),  # last offset below the base offset
        (0, struct.pack(">q", 3)),  # offsets that do not rise
        (0, struct.pack(">q", -1)),
    ],
)
def test_damaged_header_on_the_way_is_reported(directory: Directory, at: int, data: bytes) -> None:
    log = damaged(directory, 200 + at, data)
    with pytest.raises(CorruptRecord, match="segment 0: no valid batch header at 200"):
        log.read(8, 1000, 10, True)
    with pytest.raises(CorruptRecord, match="segment 0: no valid batch header at 200"):
        log.read(0, 1000, 8, True)
    before = log.read(0, 100, 4, True)  # what lies before it can still be had
    assert before is not None
    assert before.size == 100


def test_file_shorter_than_published_is_reported(directory: Directory) -> None:
    log = damaged(directory, 0, b"")
    pinned = log.read(0, 1000, 10, True)
    assert pinned is not None
    os.truncate(directory.file(0, "log"), 450)
    with pytest.raises(CorruptRecord, match="at 400"):
        log.read(8, 1000, 10, True)
    with pytest.raises(OSError, match="ends before 500"):
        pinned.read()


def test_index_entry_past_the_end_is_not_used(directory: Directory) -> None:
    segment = directory.written(0, [(n, 1, 100) for n in range(10)], next_offset=10)
    directory.file(0, "index").write_bytes(struct.pack(">iiii", 2, 5000, 6, -7))
    log = directory.log([segment])
    for offset in (3, 7):
        found = log.read(offset, 1000, 10, True)
        assert found is not None
        assert found.position == 100 * offset


def test_old_message_sets_are_walked(directory: Directory) -> None:
    # Magic 1 then magic 0: offset, size, CRC, magic, attributes, (timestamp,) key, value.
    def entry(offset: int, magic: int) -> bytes:
        message = struct.pack(">Ibb", 0, magic, 0) + b"\0" * 8 * magic
        message += struct.pack(">ii", -1, 0)
        return struct.pack(">qi", offset, len(message)) + message

    entries = [entry(0, 0), entry(3, 1), entry(4, 1), entry(6, 0)]
    content = b"".join(entries)
    directory.file(0, "log").write_bytes(content)
    log = directory.log([directory.segment(0, size_bytes=len(content), next_offset=7)])
    for fetch_offset, upper, skipped, kept in (
        (0, 7, 0, 4),
        (1, 7, 1, 3),  # the wrapper whose last offset is 3
        (4, 6, 2, 1),
        (5, 7, 3, 1),
    ):
        found = log.read(fetch_offset, 1000, upper, True)
        assert found is not None
        assert found.read() == b"".join(entries[skipped : skipped + kept])


def test_pins_outlive_the_segments(directory: Directory) -> None:
    log = directory.log()
    for _ in range(3):
        log.append(make_batch(2, 100), 0)
    expected = directory.data(0)
    directory.roll(log)
    log.append(make_batch(2, 100), 0)
    old = log.read(0, 1000, 6, True)
    new = log.read(6, 1000, 8, True)
    assert old is not None
    assert new is not None
    log.replace_segments(log.segments[1:])
    for suffix in ("log", "index", "timeindex"):
        directory.file(0, suffix).unlink()
    assert log.read(0, 1000, 8, True) is None
    log.close()
    del log
    assert old.read() == expected
    assert walk(new.read())[0].base_offset == 6


def test_closed_or_offline_log_is_a_storage_error(directory: Directory) -> None:
    log = directory.log()
    log.append(make_batch(), 0)
    log.offline()
    with pytest.raises(KafkaStorageError):
        log.read(0, 1000, 1, True)


def test_range_is_made_by_reads_only() -> None:
    with pytest.raises(TypeError):
        FileRange()
    empty = FileRange.__new__(FileRange)
    assert (len(empty), empty.read()) == (0, b"")


# -- what is not in the page cache


@pytest.fixture
def large_log(directory: Directory) -> PartitionLog:
    """Return a log of 5 batches, of 100,000 bytes each."""
    batches = [(number, 1, 100_000) for number in range(5)]
    return directory.log([directory.written(0, batches, next_offset=5)])


def test_read_that_may_not_wait_gives_what_another_does(large_log: PartitionLog) -> None:
    for args in ((0, 1 << 20, 5, True), (3, 10, 5, True), (3, 10, 5, False), (5, 10, 5, True)):
        assert repr(large_log.read(*args, False)) == repr(large_log.read(*args))


def test_read_that_may_not_wait_says_when_it_would(large_log: PartitionLog) -> None:
    faults.inject([Fault("pread_now", errno=errno.EAGAIN)])
    with pytest.raises(BlockingIOError):
        large_log.read(3, 10, 5, True, False)
    found = large_log.read(3, 10, 5, True)
    assert found is not None
    assert len(found) == 100_000


def test_range_tells_whether_it_is_in_the_page_cache(large_log: PartitionLog) -> None:
    found = large_log.read(1, 300_000, 5, True)
    assert found is not None
    assert found.is_resident()  # it has just been written
    faults.inject([Fault("is_resident", errno=errno.EAGAIN)])
    assert not found.is_resident()


def test_range_is_read_through_to_its_end(large_log: PartitionLog) -> None:
    found = large_log.read(1, 300_000, 5, True)
    assert found is not None
    faults.inject([Fault("pread", delay_us=20_000)])
    begun = time.monotonic()
    found.read_through()
    assert time.monotonic() - begun >= 5 * 0.02  # in pieces of 64 KB


def test_range_that_cannot_be_read_through_is_told_by_who_reads_it(large_log: PartitionLog) -> None:
    found = large_log.read(1, 300_000, 5, True)
    assert found is not None
    faults.inject([Fault("pread", errno=errno.EIO)])
    found.read_through()
    with pytest.raises(OSError, match="Input/output"):
        found.read()


def test_range_of_nothing_asks_no_disk() -> None:
    empty = FileRange.__new__(FileRange)
    assert empty.is_resident()
    empty.read_through()
