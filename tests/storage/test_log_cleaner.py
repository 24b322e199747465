"""Whose turn it is to be compacted, at which pace, and what is remembered of it."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path

import pytest

from plog._native.batch import scan
from plog._native.records import build_batch, walk
from plog.errors import KafkaStorageError
from plog.runtime.clock import ManualClock
from plog.runtime.trusted_time import DOUBT_MS
from plog.storage.cleaner import Cleaner, Cleaning
from plog.storage.compaction import DirtyRange
from plog.storage.filesystem import Filesystem
from plog.storage.live_log_dir import LiveLogDir
from plog.storage.log import Log
from plog.storage.log_manager import LogManager
from plog.storage.log_moves import LogMoves
from plog.storage.pace import Pace
from plog.storage.scrub import Scrub
from plog.types import TopicPartition
from tests.waiting import PATIENCE_S, until

from .log_managers import A0, A1, B0, ID_A, ID_B, SETTINGS, Start, lead
from .storage_logs import NOW_MS, Settings, broker_settings, read_all
from .test_cleaner import records_of

YEAR_MS = 365 * 86_400_000
COMPACTED = Settings(
    cleanup_policy="compact",
    segment_bytes=2000,
    index_interval_bytes=200,
    file_delete_delay_ms=1000,
)


def put(log: Log, *keys: bytes, value: bytes | None = b"v", at_ms: int = NOW_MS) -> None:
    data = build_batch([(at_ms, key, value, ()) for key in keys])
    log.append_as_leader(bytearray(data), now_ms=at_ms)


def make(manager: LogManager, at: TopicPartition, settings=COMPACTED) -> Log:
    return lead(manager.create(at, ID_A if at.topic == "a" else ID_B, settings))


def dirty(log: Log, count: int = 10) -> None:
    """Have a log hold one key so often, all of it durable and below the active segment."""
    for n in range(count):
        put(log, b"k", value=b"%d" % n * 40)
    log.roll()
    log.flush()


def offsets_and_keys(log: Log) -> list[tuple[int, bytes | None]]:
    data = read_all(log)
    return [
        (record.offset, record.key)
        for header in scan(data)
        if header.records_count
        for record in walk(data[header.position : header.position + header.size_bytes])
    ]


def checkpoint(manager: LogManager, log: Log) -> int | None:
    return manager.dirs[log.log_dir].cleaner_offsets.stored.get(log.topic_partition)


def test_what_is_due_is_compacted_and_remembered(start: Start, caplog) -> None:
    manager = start()
    log = make(manager, A0)
    dirty(log)
    end = log.log_end_offset
    with caplog.at_level("INFO"):
        assert manager.cleaner.clean_now() == 1
    assert checkpoint(manager, log) == end
    assert "a-0 is compacted up to offset 10: 1 of 10 records are left" in caplog.text
    assert manager.cleaner.clean_now() == 0
    manager.shutdown()


def test_other_policies_are_left_alone(start: Start) -> None:
    manager = start()
    log = make(manager, A0, Settings(cleanup_policy="delete", segment_bytes=2000))
    dirty(log)
    assert manager.cleaner.clean_now() == 0
    log.update_settings(COMPACTED)
    assert manager.cleaner.clean_now() == 1
    manager.shutdown()


def test_the_dirtiest_comes_first_and_what_is_overdue_before_it(
    start: Start, clock: ManualClock, caplog
) -> None:
    manager = start()
    little = Settings(cleanup_policy="compact", segment_bytes=2000, max_compaction_lag_ms=1000)
    logs = [make(manager, A0), make(manager, A1), make(manager, B0, little)]
    for log in logs:
        dirty(log)
    manager.cleaner.clean_now()
    dirty(logs[0], 10)
    dirty(logs[1], 100)
    put(logs[2], b"x")
    logs[2].roll()
    logs[2].flush()
    clock.advance(2000)
    caplog.clear()
    with caplog.at_level("INFO"):
        assert manager.cleaner.clean_now() == 3
    order = [
        line.getMessage().split()[0] for line in caplog.records if "compacted" in line.getMessage()
    ]
    assert order == ["b-0", "a-1", "a-0"]
    manager.shutdown()


def test_a_log_is_overdue_by_its_first_dirty_batch_whatever_came_behind_it(
    start: Start, clock: ManualClock
) -> None:
    manager = start()
    late = Settings(
        cleanup_policy="compact",
        segment_bytes=2000,
        min_cleanable_dirty_ratio=0.9,
        max_compaction_lag_ms=60_000,
    )
    log = make(manager, A0, late)
    dirty(log, 30)
    assert manager.cleaner.clean_now() == 1
    for ms in (0, 50_000):
        data = build_batch([(NOW_MS + ms, b"k", b"v", ())])
        log.append_as_leader(bytearray(data), now_ms=NOW_MS)
    log.roll()
    log.flush()
    clock.advance(60_000)
    assert manager.cleaner.clean_now() == 0
    clock.advance(1)
    assert manager.cleaner.clean_now() == 1
    manager.shutdown()


def test_a_log_that_cannot_be_read_is_given_up_and_others_go_on(start: Start, caplog) -> None:
    manager = start()
    bad, good = make(manager, A0), make(manager, A1)
    dirty(bad, 30)
    dirty(good)
    path = sorted(bad.directory.glob("*.log"))[0]
    data = bytearray(path.read_bytes())
    data[70] ^= 1
    path.write_bytes(data)
    assert manager.cleaner.clean_now() == 2
    assert "a-0 is not compacted for 300 s" in caplog.text
    assert checkpoint(manager, good) == 10
    assert A0 in manager.offline
    manager.shutdown()


def full_disk(*_: object, **__: object) -> None:
    raise KafkaStorageError("no space left on device")


def test_what_a_full_disk_has_stopped_is_compacted_later(start: Start, clock: ManualClock) -> None:
    manager = start()
    log = make(manager, A0)
    dirty(log)
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(Cleaner, "clean", full_disk)
        assert manager.cleaner.clean_now() == 1
    assert checkpoint(manager, log) is None
    assert manager.cleaner.clean_now() == 0
    clock.advance(300_000)
    assert manager.cleaner.clean_now() == 1
    assert checkpoint(manager, log) == 10
    manager.shutdown()


def test_a_recreated_partition_is_not_taken_for_clean(start: Start) -> None:
    manager = start()
    log = make(manager, A0)
    dirty(log)
    manager.cleaner.clean_now()
    manager.delete(A0)
    again = make(manager, A0)
    assert checkpoint(manager, again) is None
    dirty(again, 20)
    assert manager.cleaner.clean_now() == 1
    manager.shutdown()


def test_a_partition_that_is_deleted_when_its_pass_ends_leaves_nothing_behind(
    start: Start,
) -> None:
    manager = start()
    log = make(manager, A0)
    dirty(log)
    cleaner = manager.cleaner
    guarded = cleaner._guarded
    deleting = threading.Thread(target=manager.delete, args=[A0])

    def remember(of: Log, task: Callable[[], object]) -> bool:
        deleting.start()
        deleting.join(0.5)
        return guarded(of, task)

    cleaner._guarded = remember
    assert cleaner.clean_now() == 1
    deleting.join()
    assert checkpoint(manager, log) is None
    assert A0 not in manager.dirs[log.log_dir].gaps.stored
    manager.shutdown()


def test_a_partition_whose_deletion_was_cut_short_is_not_taken_for_clean_when_made_again(
    start: Start,
) -> None:
    manager = start()
    log = make(manager, A0)
    dirty(log)
    manager.cleaner.clean_now()
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(LiveLogDir, "forget", lambda self, tp, slot: None)
        manager.delete(A0)
    manager.shutdown()
    again = start()
    log = make(again, A0)
    live = again.dirs[log.log_dir]
    assert A0 not in {**live.cleaner_offsets.stored, **live.gaps.stored}
    again.shutdown()


def test_a_pass_that_fails_for_an_unknown_reason_ends_no_thread(
    start: Start, clock: ManualClock, caplog
) -> None:
    manager = start(log_cleaner_backoff_ms=10)
    logs = [make(manager, at) for at in (A0, A1)]
    for log in logs:
        dirty(log)
    clean = Cleaner.clean

    def fail_for_one(self: Cleaner, log: Log, *args: object, **options: object) -> Cleaning:
        if log is logs[0]:
            raise MemoryError("no memory is left for keys")
        return clean(self, log, *args, **options)

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(Cleaner, "clean", fail_for_one)
        manager.cleaner.start()
        until(lambda: checkpoint(manager, logs[1]) == 10)
        until(lambda: "a-0 is not compacted for 300 s: MemoryError" in caplog.text)
    clock.advance(300_000)
    until(lambda: checkpoint(manager, logs[0]) == 10)
    manager.shutdown()


def test_threads_that_see_the_end_of_a_pause_at_once_go_on(
    start: Start, clock: ManualClock
) -> None:
    manager = start()
    log = make(manager, A0)
    dirty(log)
    cleaner = manager.cleaner
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(Cleaner, "clean", full_disk)
        assert cleaner.clean_now() == 1
    clock.advance(300_000)
    both = threading.Barrier(2)

    class Together:
        """Has both threads look at the time before either goes on, unless a lock is held."""

        def monotonic_ms(self) -> int:
            with suppress(threading.BrokenBarrierError):
                both.wait(1)
            return clock.monotonic_ms()

    cleaner._clock = Together()  # type: ignore[assignment]
    with ThreadPoolExecutor(2) as threads:
        assert sum(threads.map(lambda _: cleaner.clean_now(), range(2))) == 1
    assert checkpoint(manager, log) == 10
    manager.shutdown()


def test_a_bug_in_the_choice_of_a_log_ends_no_thread(start: Start, caplog) -> None:
    manager = start(log_cleaner_backoff_ms=10)
    log = make(manager, A0)
    dirty(log)
    cleaner = manager.cleaner
    logs, failures = cleaner._logs, iter([RuntimeError("changed size during iteration")])

    def fail_first() -> Sequence[Log]:
        for failure in failures:
            raise failure
        return logs()

    cleaner._logs = fail_first
    cleaner.start()
    until(lambda: checkpoint(manager, log) == 10)
    assert "a log cleaner thread failed with an internal error and continues" in caplog.text
    assert "changed size during iteration" in caplog.text
    manager.shutdown()


def test_a_clock_that_is_suddenly_ahead_makes_nothing_old_enough(
    start: Start, clock: ManualClock
) -> None:
    manager = start()
    young = Settings(cleanup_policy="compact", segment_bytes=2000, min_compaction_lag_ms=3_600_000)
    log = make(manager, A0, young)
    dirty(log)
    clock.jump_to(NOW_MS + 10 * YEAR_MS)
    assert manager.cleaner.clean_now() == 0
    clock.advance(DOUBT_MS)  # it stays so
    assert manager.cleaner.clean_now() == 1
    manager.shutdown()


def test_deletions_do_not_go_by_a_clock_that_is_suddenly_ahead(
    start: Start, clock: ManualClock
) -> None:
    manager = start()
    log = make(manager, A0)
    put(log, b"gone", value=None)
    dirty(log)
    assert manager.cleaner.clean_now() == 1
    clock.jump_to(NOW_MS + 10 * YEAR_MS)
    for is_there in (True, False):
        dirty(log, 20)
        assert manager.cleaner.clean_now() == 1
        assert (b"gone" in {record.key for record in records_of(log)}) == is_there
        clock.advance(DOUBT_MS)  # it stays so
    manager.shutdown()


OLD, NEW = [(0, b"old"), (1, b"k")], [(n, b"k") for n in range(2, 12)]
"""What is written; one of the first is of a key that nobody writes any more."""


@pytest.mark.parametrize(
    ("policy", "left", "left_later"),
    [
        ("delete", NEW, []),
        ("compact", [OLD[0], NEW[-1]], [OLD[0], NEW[-1]]),
        ("compact,delete", NEW[-1:], []),
    ],
)
def test_one_log_may_be_compacted_and_have_its_oldest_records_deleted(
    start: Start,
    clock: ManualClock,
    policy: str,
    left: list[tuple[int, bytes]],
    left_later: list[tuple[int, bytes]],
) -> None:
    manager = start(log_retention_check_interval_ms=1000)
    settings = Settings(cleanup_policy=policy, segment_bytes=2000, retention_ms=10_000)
    log = make(manager, A0, settings)

    def pass_s(seconds: int) -> None:
        log.roll()
        log.flush()
        for _ in range(seconds):
            clock.advance(1000)
            manager.scheduler.run_due()
        manager.cleaner.clean_now()

    pass_s(60)  # when retention begins
    put(log, b"old", b"k", at_ms=clock.now_ms())
    pass_s(8)
    assert offsets_and_keys(log) == OLD
    for _ in NEW:
        put(log, b"k", at_ms=clock.now_ms())
    pass_s(8)
    assert offsets_and_keys(log) == left
    pass_s(8)
    assert offsets_and_keys(log) == left_later
    manager.shutdown()
    again = start()
    log = again.get(A0)
    assert log is not None
    assert offsets_and_keys(log) == left_later
    again.shutdown()


def test_no_threads_compact_nothing_and_a_line_says_so(
    start: Start, dirs: list[Path], caplog: pytest.LogCaptureFixture
) -> None:
    manager = start(log_cleaner_backoff_ms=10, log_cleaner_threads=0)
    log = make(manager, A0)
    dirty(log)
    cleaner = manager.cleaner
    for _ in range(2):
        cleaner.start()
    assert caplog.messages.count("no log is compacted: log.cleaner.threads=0") == 1
    assert cleaner._threads == []
    assert checkpoint(manager, log) != 10
    one = broker_settings(dirs, log_cleaner_backoff_ms=10, log_cleaner_threads=1)
    cleaner._settings = lambda: one
    cleaner.start()
    until(lambda: checkpoint(manager, log) == 10)
    manager.shutdown()


def test_threads_compact_by_themselves_and_stop(start: Start) -> None:
    manager = start(log_cleaner_backoff_ms=10, log_cleaner_threads=2)
    logs = [make(manager, at) for at in (A0, A1, B0)]
    for log in logs:
        dirty(log)
    manager.cleaner.start()
    until(lambda: all(checkpoint(manager, log) == 10 for log in logs))
    manager.shutdown()
    assert not [one for one in threading.enumerate() if one.name.startswith("log cleaner")]


def test_what_another_thread_has_cleaned_since_the_look_is_not_cleaned_again(start: Start) -> None:
    manager = start()
    log = make(manager, A0)
    dirty(log)
    cleaner = manager.cleaner
    look = cleaner._dirty

    def look_and_be_overtaken(of: Log, now_ms: int) -> DirtyRange | None:
        found = look(of, now_ms)
        cleaner._dirty = look
        assert cleaner.clean_now() == 1
        return found

    cleaner._dirty = look_and_be_overtaken
    assert cleaner.clean_now() == 0
    dirty(log)  # nor is it taken for being at work
    assert cleaner.clean_now() == 1
    manager.shutdown()


def test_memory_for_keys_is_shared_by_the_threads_and_filled_as_the_settings_say(
    start: Start,
) -> None:
    keys_at_once, slot_bytes = 10, 24
    manager = start(
        log_cleaner_backoff_ms=10,
        log_cleaner_threads=2,
        log_cleaner_dedupe_buffer_size=2 * 2 * keys_at_once * slot_bytes,
        log_cleaner_io_buffer_load_factor=0.5,
    )
    whole = Settings(cleanup_policy="compact", segment_bytes=2000, min_cleanable_dirty_ratio=0)
    logs = [make(manager, at, whole) for at in (A0, A1)]
    for log in logs:
        for n in range(70):
            put(log, b"%d" % (n % 35))
        log.roll()
        log.flush()
    passes: dict[TopicPartition, list[tuple[int | None, int, int]]] = {A0: [], A1: []}
    clean = Cleaner.clean

    def watched(self: Cleaner, log: Log, *args: object, **options: object) -> Cleaning:
        begun = checkpoint(manager, log)
        done = clean(self, log, *args, **options)
        passes[log.topic_partition].append((begun, done.end, done.keys))
        return done

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(Cleaner, "clean", watched)
        manager.cleaner.start()
        until(lambda: all(checkpoint(manager, log) == 70 for log in logs))
    ends = range(keys_at_once, 71, keys_at_once)
    for log in logs:
        assert passes[log.topic_partition] == [
            (end - keys_at_once or None, end, keys_at_once) for end in ends
        ]
        assert offsets_and_keys(log) == [(35 + n, b"%d" % n) for n in range(35)]
    manager.shutdown()


class Watched(Pace):
    """Keeps in mind of what it was asked; who asks waits before anybody else has the lock."""

    def __init__(self, clock: ManualClock) -> None:
        super().__init__(clock)
        self.looks: list[int] = []

    def left_ms(self, told: int, bytes_per_second: float) -> int:
        self.looks.append(told)
        return super().left_ms(told, bytes_per_second)


def waiting(start: Start, clock: ManualClock, *at: TopicPartition) -> tuple[LogManager, Watched]:
    """Start a manager whose cleaner's threads wait, each with one log, for a clock that stands.

    Minutes pass before one looks again by itself.
    """
    manager = start(
        log_cleaner_backoff_ms=10,
        log_cleaner_threads=len(at),
        log_cleaner_io_max_bytes_per_second=1,
    )
    pace = manager.cleaner._pace = Watched(clock)
    for one in at:
        dirty(make(manager, one), 30)
    manager.cleaner.start()
    until(lambda: len(set(pace.looks)) == len(at) and manager.cleaner._at_work == set(at))
    return manager, pace


def at_once(task: Callable[..., object], *args: object) -> None:
    """Do what must not take as long as somebody waits for the pace."""
    thread = ThreadPoolExecutor(1)
    try:
        thread.submit(task, *args).result(PATIENCE_S)
    finally:
        thread.shutdown(wait=False)


def test_a_slow_pace_ends_at_once_when_the_broker_stops(start: Start, clock: ManualClock) -> None:
    manager, _ = waiting(start, clock, A0)
    log = manager.get(A0)
    assert log is not None
    at_once(manager.shutdown)
    assert checkpoint(manager, log) is None


@pytest.mark.parametrize("end", ["delete", "move"])
def test_what_is_deleted_or_moved_is_let_go_of_at_once(
    start: Start, clock: ManualClock, dirs: list[Path], end: str
) -> None:
    manager, _ = waiting(start, clock, A0)
    log = manager.get(A0)
    assert log is not None
    if end == "delete":
        at_once(manager.delete, A0)
        assert manager.get(A0) is None
    else:
        (target,) = [one for one in dirs if one != log.log_dir]
        at_once(LogMoves(manager, Filesystem()).move, A0, target)
        moved = manager.get(A0)
        assert moved is not None
        assert moved.log_dir == target
        assert moved.log_end_offset == 30
    manager.shutdown()


def test_who_waits_for_another_partition_looks_and_waits_on(
    start: Start, clock: ManualClock
) -> None:
    manager, pace = waiting(start, clock, A0, A1)
    looks = list(pace.looks)
    at_once(manager.delete, A0)
    until(lambda: len(pace.looks) > len(looks))
    assert set(pace.looks) == set(looks)  # of the same bytes: nobody has gone on
    assert manager.cleaner._at_work == {A1}
    manager.shutdown()


def test_a_pace_that_is_raised_is_gone_by_at_once(
    start: Start, clock: ManualClock, dirs: list[Path]
) -> None:
    manager, _ = waiting(start, clock, A0, A1)
    logs = [manager.get(at) for at in (A0, A1)]
    raised = broker_settings(dirs, log_cleaner_backoff_ms=10, log_cleaner_threads=2)
    cleaner = manager.cleaner
    cleaner._settings = lambda: raised
    cleaner.start()
    until(lambda: all(log is not None and checkpoint(manager, log) == 30 for log in logs))
    manager.shutdown()


def test_time_that_passes_pays(start: Start, clock: ManualClock) -> None:
    manager, _ = waiting(start, clock, A0)
    log = manager.get(A0)
    assert log is not None

    def is_clean() -> bool:
        clock.advance(3_600_000)
        manager.cleaner.start()  # has it look
        return checkpoint(manager, log) == 30

    until(is_clean)
    manager.shutdown()


def test_gaps_that_compaction_has_left_are_no_damage(start: Start) -> None:
    manager = start()
    log = make(manager, A0)
    for n in range(3):
        dirty(log, 30)
        put(log, b"other %d" % n)
        log.roll()
        log.flush()
        manager.cleaner.clean_now()
        scrub = Scrub(manager.logs, manager.on_damage)
        while scrub.step(1 << 20, 0):
            pass
        assert manager.get(A0) is log, manager.offline
    manager.shutdown()


def test_gaps_are_known_where_a_log_has_moved_to(start: Start, dirs: list[Path]) -> None:
    manager = start()
    log = make(manager, A0)
    dirty(log, 30)
    put(log, b"last")
    manager.cleaner.clean_now()
    log.update_settings(SETTINGS)  # which let nothing be compacted any more
    (target,) = [one for one in dirs if one != log.log_dir]
    LogMoves(manager, Filesystem()).move(A0, target)
    moved = manager.get(A0)
    assert moved is not None
    assert checkpoint(manager, moved) == 30
    manager.shutdown()


def test_what_was_compacted_is_served_after_a_restart(start: Start) -> None:
    manager = start()
    log = make(manager, A0)
    dirty(log, 30)
    put(log, b"last")
    manager.cleaner.clean_now()
    manager.shutdown()
    again = start()
    log = again.get(A0)
    assert log is not None
    assert (log.log_start_offset, log.log_end_offset) == (0, 31)
    found = log.read(0, 1 << 20, 31, True)
    assert found is not None
    assert checkpoint(again, log) == 30
    again.shutdown()
