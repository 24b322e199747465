"""Damage to derived files during a clean stop: the next start serves what it served, or refuses.

A derived file follows from the batches (indexes, snapshots, leader epochs) or from the broker's
own acts (checkpoints, partition.metadata). The sweep cuts, empties, deletes and flips them, starts
again, and compares every answer of the log with the answers of the undamaged one.
"""

from __future__ import annotations

import os
import random
import shutil
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

from plog._native.batch import read_header
from plog._native.partition_log import APPENDED, DUPLICATE
from plog.errors import InconsistentLogDirs, KafkaError, KafkaStorageError
from plog.runtime.clock import ManualClock
from plog.storage.index_files import position_at, position_below
from plog.storage.log import Log
from plog.storage.log_dir import META_PROPERTIES
from plog.storage.log_manager import LogManager
from plog.storage.producer_state import Marker
from plog.storage.segment_files import LOG
from plog.storage.shutdown_record import MARKED_BYTES, SHUTDOWN_RECORD_FILE
from tests.agreement.harness import run_seed

from .log_managers import A0, ID_A, abandon
from .storage_logs import NOW_MS, Settings, append_verified, batch, broker_settings

DAY_MS = 24 * 60 * 60 * 1000
SETTINGS = Settings(
    segment_bytes=2500, index_interval_bytes=250, retention_ms=2 * DAY_MS, file_delete_delay_ms=0
)
ABORT, COMMIT = Marker(abort=True, coordinator_epoch=1), Marker(abort=False, coordinator_epoch=1)
DERIVED = (".index", ".timeindex", ".txnindex", ".snapshot", "leader-epoch-checkpoint")
"""What a start can check against the batches when there is no shutdown record."""

Answers = dict[str, object]
Damage = Callable[[Path, random.Random], str]


class Case(NamedTuple):
    file: str  # relative to the log directory
    damage: str
    at: int  # the byte to flip; of the others, not used
    with_record: bool


def start(path: Path, settings: Settings = SETTINGS) -> LogManager:
    manager = LogManager(
        broker_settings([path]),
        lambda topic: settings,
        cluster_id="cluster",
        clock=ManualClock(NOW_MS),
    )
    manager.start(background=False)
    return manager


def write_history(log: Log, rng: random.Random) -> None:
    """Write small segments: producers, transactions of both ends, epochs, times in disorder."""
    sequences = {7: 0, 8: 0}
    for n in range(90):
        old = n < 40 or rng.random() < 0.7
        timestamp = NOW_MS - (DAY_MS * 3 if old else 0) + n
        if n % 30 == 0:
            log.become_leader(n // 30, sole_replica=True)
        match n % 6:
            case 0 | 1:
                log.append_as_leader(batch(2, timestamp=timestamp), now_ms=NOW_MS)
            case 2 | 3:
                producer = 7 if n % 6 == 2 else 8
                data = batch(
                    3, timestamp=timestamp, producer_id=producer, epoch=0,
                    sequence=sequences[producer],
                )  # fmt: skip
                log.append_as_leader(data, now_ms=NOW_MS)
                sequences[producer] += 3
            case 4:
                append_verified(
                    log,
                    batch(
                        2, timestamp=timestamp, producer_id=20 + n, epoch=0, sequence=0,
                        transactional=True,
                    ),
                )  # fmt: skip
            case 5:
                marker = ABORT if rng.random() < 0.7 else COMMIT
                log.transactions.append_marker(19 + n, 0, marker, now_ms=NOW_MS - DAY_MS * 3)
    append_verified(log, batch(1, producer_id=99, epoch=0, sequence=0, transactional=True))


def answers(log: Log) -> Answers:
    """Return what clients see of a log; the last ones change it."""
    found: Answers = {
        "topic id": log.topic_id,
        "start": log.log_start_offset,
        "end": log.log_end_offset,
        "high watermark": log.high_watermark,
        "last stable offset": log.last_stable_offset,
        "leader epochs": log.leader_epochs,
        "epoch ends": [log.epoch_end_offset(epoch) for epoch in range(4)],
        "max timestamp": log.max_timestamp_offset(),
        "open": log.transactions.has_open(99),
    }
    found["uncommitted"] = _fetch_all(log, log.log_end_offset)
    found["committed"] = _fetch_all(log, log.last_stable_offset)
    times = {NOW_MS + n - days * DAY_MS for n in range(-1, 92, 3) for days in (0, 3)}
    found["by time"] = [log.offset_for_timestamp(time) for time in sorted(times)]
    end = log.log_end_offset
    for producer in (7, 8, 20, 21):
        entry = log.native.producer(producer)
        found[f"producer {producer}"] = entry and (entry.producer_epoch, entry.batches)
    log.become_leader(5, sole_replica=True)
    found["sequences"] = [
        _append(log, producer, sequence) for producer in (7, 8) for sequence in (42, 42, 45, 90, 45)
    ]
    log.truncate_to(end)
    log.apply_retention(NOW_MS + 1000)
    found["after retention"] = log.log_start_offset
    return found


def _fetch_all(log: Log, upper: int) -> list[object]:
    fetched: list[object] = []
    offset = log.log_start_offset
    while offset < upper:
        found, aborted = log.transactions.read_committed(
            lambda at=offset: log.read(at, 700, upper, True), offset, upper
        )
        if found is None:
            break
        data = found.read()
        ends = _end_of(data)
        # An index entry may bound a range from above: more of them than are needed do no harm.
        fetched.append((data, [a for a in aborted if a.first_offset < ends]))
        offset = ends
    return fetched


def _end_of(data: bytes) -> int:
    """Return the offset behind the last whole batch."""
    at = end = 0
    while at + 61 <= len(data):
        header = read_header(data, at)
        if at + header.size_bytes > len(data):
            break
        end, at = header.next_offset, at + header.size_bytes
    return end


def _append(log: Log, producer: int, sequence: int) -> object:
    data = batch(3, producer_id=producer, epoch=0, sequence=sequence)
    try:
        status = log.append_as_leader(data, now_ms=NOW_MS).status
    except KafkaError as error:
        return type(error).__name__
    return {APPENDED: "appended", DUPLICATE: "duplicate"}[status]


@pytest.fixture(scope="module")
def undamaged(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a log directory after a clean stop, of a log whose first records were deleted."""
    path = tmp_path_factory.mktemp("derived") / "logs"
    manager = start(path)
    log = manager.create(A0, ID_A, SETTINGS)
    write_history(log, random.Random(1))
    log.flush()
    log.delete_records_before(11)
    manager.shutdown()
    return path


def outcome(path: Path) -> tuple[dict[str, Answers], list[str]]:
    """Start on a directory; return the answers of each partition, and why others are refused."""
    try:
        manager = start(path)
    except InconsistentLogDirs as error:
        return {}, [str(error)]
    found, refused = {}, list(manager.offline.values())
    try:
        for log in manager.logs():
            try:
                found[str(log.topic_partition)] = answers(log)
            except KafkaStorageError as error:
                refused.append(str(error))
    finally:
        abandon(manager)
        for log in manager.logs():
            log.drop()
    return found, refused


def files_of(path: Path) -> list[str]:
    return sorted(str(f.relative_to(path)) for f in path.rglob("*") if f.is_file())


def cases(path: Path, rng: random.Random) -> Iterator[Case]:
    """Yield every whole-file damage, with and without a record, then each byte of each file."""
    derived = [name for name in files_of(path) if not name.endswith((LOG, ".lock"))]
    flips = []
    for name in derived:
        for with_record in (True, False):
            if not with_record and not name.endswith(DERIVED):
                continue  # nothing else says what these held
            for damage in ("cut", "emptied", "deleted"):
                yield Case(name, damage, 0, with_record)
            flips += [
                Case(name, "flipped", at, with_record) for at in range((path / name).stat().st_size)
            ]
    rng.shuffle(flips)
    yield from flips


def damage(path: Path, case: Case, rng: random.Random) -> str:
    """Damage one file as a case says; return a description."""
    file = path / case.file
    if not case.with_record:
        (path / SHUTDOWN_RECORD_FILE).unlink()
    data = bytearray(file.read_bytes())
    match case.damage:
        case "deleted":
            file.unlink()
            return "deleted"
        case "emptied":
            os.truncate(file, 0)
            return "emptied"
        case "cut":
            size = rng.randrange(max(len(data), 1))
            os.truncate(file, size)
            return f"cut to {size} of {len(data)}"
    bit = rng.randrange(8)
    data[case.at] ^= 1 << bit
    file.write_bytes(data)
    return f"byte {case.at}, bit {bit}"


def sweep(undamaged: Path, scratch: Path, count: int) -> Counter[str]:
    rng = random.Random(run_seed())
    expected, refused = outcome(_copy(undamaged, scratch / "expected"))
    assert len(expected) == 1
    assert not refused
    assert all(found["committed"] and found["after retention"] > 40 for found in expected.values())
    everything = list(cases(undamaged, rng))
    whole = [case for case in everything if case.damage != "flipped"]
    chosen = whole if len(whole) <= count // 2 else rng.sample(whole, count // 2)
    flips = everything[len(whole) :]
    while len(chosen) < count:
        chosen += flips[: count - len(chosen)]  # a second round flips other bits
    seen: Counter[str] = Counter()
    for case in chosen:
        path = _copy(undamaged, scratch / "damaged")
        what = f"{case.file} {damage(path, case, rng)}, {case}"
        found, refused = outcome(path)
        for tp, answer in found.items():
            wrong = [key for key, value in answer.items() if value != expected[tp][key]]
            shown = [(key, answer[key], expected[tp][key]) for key in wrong]
            assert not wrong, f"{what}: {tp} answers otherwise: {shown}"
        if len(found) < len(expected):
            assert refused, f"{what}: a partition is missing without a reason"
            assert case.file == META_PROPERTIES, f"{what}: refused: {refused}"
        seen["refused" if refused else "right"] += 1
    print(seen)
    return seen


def sweep_base_offsets(undamaged: Path, scratch: Path, count: int) -> Counter[str]:
    """Flip bits of base offsets, which no CRC covers: reads and lookups are right, or refused."""
    rng = random.Random(run_seed())
    expected, _ = outcome(_copy(undamaged, scratch / "expected"))
    flips = [
        (file, at, bit)
        for file in files_of(undamaged)
        if file.endswith(LOG)
        for at in _positions((undamaged / file).read_bytes())
        for bit in range(64)
    ]
    seen: Counter[str] = Counter()
    for file, at, bit in rng.sample(flips, min(count, len(flips))):
        path = _copy(undamaged, scratch / "damaged")
        data = bytearray((path / file).read_bytes())
        data[at + bit // 8] ^= 1 << bit % 8
        (path / file).write_bytes(data)
        found, refused = outcome(path)
        for tp, answer in found.items():
            wrong = [key for key, value in answer.items() if value != expected[tp][key]]
            assert not wrong, f"{file} byte {at}, bit {bit}: {tp} answers otherwise: {wrong}"
        assert found or refused
        seen["refused" if refused else "right"] += 1
    print(seen)
    return seen


LARGE = Settings(
    segment_bytes=60 << 20, index_interval_bytes=60, message_timestamp_before_max_ms=1 << 62
)
LARGE_BATCHES = 16_000


@pytest.fixture(scope="module")
def large(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a log directory after a clean stop, whose shutdown record has no mark of most of the
    entries of its indexes. Batch n holds the offsets 2n and 2n + 1, and begins 2n ms
    after NOW_MS.
    """
    path = tmp_path_factory.mktemp("large") / "logs"
    manager = start(path, LARGE)
    log = manager.create(A0, ID_A, LARGE)
    log.become_leader(0, sole_replica=True)
    for n in range(LARGE_BATCHES):
        log.append_as_leader(batch(2, timestamp=NOW_MS + 2 * n), now_ms=NOW_MS)
    log.flush()
    manager.shutdown()
    (index,) = path.glob("a-0/*.index")
    assert index.stat().st_size > 2 * MARKED_BYTES
    return path


def damage_unmarked(file: Path, kind: str, rng: random.Random) -> tuple[str, int]:
    """Damage an index before its mark; return a description, and the entry's batch."""
    entry_bytes = 8 if file.suffix == ".index" else 12
    data = bytearray(file.read_bytes())
    entries = (len(data) - MARKED_BYTES) // entry_bytes
    entry = rng.randrange(entries)
    at = entry * entry_bytes
    match kind:
        case "flipped":
            byte, bit = rng.randrange(entry_bytes), rng.randrange(8)
            data[at + byte] ^= 1 << bit
            what = f"entry {entry}, byte {byte}, bit {bit}"
        case "zeros":
            size = min(4096, entries * entry_bytes - at)
            data[at : at + size] = bytes(size)
            what = f"{size} zeros at entry {entry}"
        case _:
            data[at : at + entry_bytes] = rng.randbytes(entry_bytes)
            what = f"entry {entry} of random bytes"
    file.write_bytes(data)
    return f"{file.name}: {what}", entry + 1


def sweep_large(large: Path, scratch: Path, count: int) -> int:
    """Damage the unmarked part of an index; all lookups near the entry and elsewhere are right."""
    rng = random.Random(run_seed())
    for number in range(count):
        path = _copy(large, scratch / "damaged")
        suffix = ("index", "index", "timeindex")[number % 3]
        (file,) = path.glob(f"a-0/*.{suffix}")
        kind = ("flipped", "flipped", "zeros", "random")[number % 4]
        what, near = damage_unmarked(file, kind, rng)
        manager = start(path, LARGE)
        try:
            (log,) = manager.logs()
            log.become_leader(1, sole_replica=True)
            batches = {*range(0, LARGE_BATCHES, 997), *range(max(near - 4, 0), near + 600, 3)}
            for n in sorted(batches):
                _check_lookups(log, n, what)
            assert dict(manager.offline) == {}, what
        finally:
            abandon(manager)
            for log in manager.logs():
                log.drop()
    return count


def _check_lookups(log: Log, n: int, what: str) -> None:
    for offset in (2 * n, 2 * n + 1):
        found = log.read(offset, 1, log.log_end_offset, True)
        assert found is not None, what
        header = read_header(found.read())
        assert (header.base_offset, header.last_offset) == (2 * n, 2 * n + 1), what
    upper = min(2 * n + 8, log.log_end_offset)
    found = log.read(2 * n, 1 << 20, upper, True)
    assert found is not None, what
    assert _end_of(found.read()) == upper, what
    by_time = log.offset_for_timestamp(NOW_MS + 2 * n)
    assert by_time is not None, what
    assert by_time.offset == 2 * n, what


@pytest.mark.parametrize("target", range(0, 40, 3))
def test_no_lookup_at_a_start_believes_an_index_entry(undamaged: Path, target: int) -> None:
    log = next(file for file in sorted(undamaged.glob("a-0/*.log")) if file.stat().st_size > 2000)
    base, data = int(log.stem), log.read_bytes()
    offsets = log.with_suffix(".index").read_bytes()
    starts = {at: read_header(data, at) for at in _positions(data)}

    def read(position: int, size: int) -> bytes:
        return data[position : position + size]

    for bit in range(len(offsets) * 8):
        damaged = bytearray(offsets)
        damaged[bit // 8] ^= 1 << bit % 8
        found = position_at(read, bytes(damaged), base, base + target)
        assert found == 0 or starts[found].base_offset <= base + target
        below = position_below(read, bytes(damaged), base, target * 60)
        assert below in starts
        assert below <= target * 60


COMPACTED = Settings(cleanup_policy="compact", segment_bytes=1000, index_interval_bytes=250)


@pytest.fixture(scope="module")
def compacted(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a log directory after a clean stop, of a log in which gaps are legal."""
    path = tmp_path_factory.mktemp("compacted") / "logs"
    manager = start(path, COMPACTED)
    log = manager.create(A0, ID_A, COMPACTED)
    log.become_leader(0, sole_replica=True)
    for _ in range(40):
        log.append_as_leader(batch(2), now_ms=NOW_MS)
    log.flush()
    manager.shutdown()
    return path


def test_shorter_log_files_are_noticed_where_gaps_are_legal(
    compacted: Path, tmp_path: Path
) -> None:
    logs = sorted(compacted.glob("a-0/*.log"))
    assert len(logs) > 3
    cuts = [(log.relative_to(compacted), at) for log in logs for at in (-1, *_ends(log))]
    assert len(cuts) >= 40
    for name, at in cuts:
        path = _copy(compacted, tmp_path / "damaged")
        if at < 0:
            (path / name).unlink()
        else:
            os.truncate(path / name, at)
        manager = start(path, COMPACTED)
        assert [*manager.offline] == [A0], f"{name}, {at}"
        assert "at the clean shutdown" in manager.offline[A0]
        abandon(manager)


def _ends(log: Path) -> list[int]:
    """Return the batch boundaries of a file, without its end."""
    return list(_positions(log.read_bytes()))


def _positions(data: bytes) -> Iterator[int]:
    at = 0
    while at < len(data):
        yield at
        at += read_header(data, at).size_bytes


def _copy(source: Path, target: Path) -> Path:
    shutil.rmtree(target, ignore_errors=True)
    return Path(shutil.copytree(source, target))


def test_damaged_derived_files_are_not_believed(undamaged: Path, tmp_path: Path) -> None:
    assert sweep(undamaged, tmp_path, 500)["right"] > 450


def test_damaged_entries_without_a_mark_are_not_believed(large: Path, tmp_path: Path) -> None:
    assert sweep_large(large, tmp_path, 24) == 24


def test_flipped_base_offsets_are_not_served(undamaged: Path, tmp_path: Path) -> None:
    assert sweep_base_offsets(undamaged, tmp_path, 100)["refused"] > 50


@pytest.mark.long
@pytest.mark.timeout(3600)
def test_every_flipped_base_offset(undamaged: Path, tmp_path: Path) -> None:
    assert sweep_base_offsets(undamaged, tmp_path, 10_000)["refused"] > 1000


@pytest.mark.long
@pytest.mark.timeout(3600)
def test_many_damaged_derived_files(undamaged: Path, tmp_path: Path) -> None:
    assert sweep(undamaged, tmp_path, 10_000)["right"] > 9_000


@pytest.mark.long
@pytest.mark.timeout(3600)
def test_many_damaged_entries_without_a_mark(large: Path, tmp_path: Path) -> None:
    assert sweep_large(large, tmp_path, 2_000) == 2_000
