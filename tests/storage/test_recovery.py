"""What recovery makes of every state that a stop can leave a partition directory in."""

from __future__ import annotations

import os
import shutil
import struct
import zlib
from collections.abc import Callable
from pathlib import Path

import pytest

from plog._native.batch import scan
from plog._native.cleaning import empty_batch
from plog.errors import LogDamaged
from plog.storage.filesystem import Filesystem
from plog.storage.leader_epochs import EpochStart, LeaderEpochs
from plog.storage.producer_snapshot import decode_snapshot
from plog.storage.recovery import recover
from plog.storage.segment_scan import CHUNK_BYTES
from plog.storage.segment_verdict import ANY_OFFSET, Known
from plog.storage.transaction_index import decode_aborted
from plog.types import Buffer

from .storage_logs import (
    NOW_MS,
    Crash,
    FaultyFilesystem,
    Settings,
    batch,
    control_batch,
    files_of,
    open_log,
    read_all,
    recovered,
)

SETTINGS = Settings(segment_bytes=3000, index_interval_bytes=500)
BATCH_RECORDS = 10
BATCHES = 20
UNCLEAN = Known(clean_shutdown=False)


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    """Three segments of ten-record batches: as many as fit 3000 bytes, the last one half full."""
    return make(tmp_path / "flights-0")


def make(directory: Path, batches: int = BATCHES) -> Path:
    log = open_log(directory, SETTINGS)
    for n in range(batches):
        data = batch(
            BATCH_RECORDS,
            timestamp=NOW_MS + 1000 * n,
            value=b"v" * 20,
            producer_id=5,
            epoch=0,
            sequence=n * BATCH_RECORDS,
        )
        log.append_as_leader(data, now_ms=NOW_MS)
    log.close()
    for snapshot in directory.glob("*.snapshot"):
        snapshot.unlink()
    return directory


def logs_of(directory: Path) -> list[Path]:
    return sorted(directory.glob("*.log"))


def base_of(path: Path) -> int:
    return int(path.stem)


def batch_positions(path: Path) -> list[int]:
    data, at, found = path.read_bytes(), 0, []
    while at < len(data):
        found.append(at)
        at += 12 + int.from_bytes(data[at + 8 : at + 12], "big")
    return found


def end_of_clean(directory: Path) -> int:
    return recovered(directory, Known(clean_shutdown=True)).log_end_offset


class WritesKept(Filesystem):
    """Keeps in mind what is written to which file."""

    def __init__(self) -> None:
        self.written: dict[str, list[tuple[int, bytes]]] = {}
        self.before_log_write: Callable[[], object] = int

    def pwrite(self, fd: int, data: Buffer, offset: int) -> None:
        name = Path(os.readlink(f"/proc/self/fd/{fd}")).name
        if name.endswith(".log"):
            self.before_log_write()
        self.written.setdefault(name, []).append((offset, bytes(data)))
        super().pwrite(fd, data, offset)

    def of(self, path: Path) -> list[tuple[int, bytes]]:
        return self.written.get(path.name, [])


def test_untouched_log_is_taken_as_it_is(directory: Path) -> None:
    before = files_of(directory)
    for known in (Known(clean_shutdown=True), UNCLEAN):
        found = recovered(directory, known)
        assert found.log_end_offset == BATCHES * BATCH_RECORDS
        assert found.log_start_offset == 0
        assert [segment.base_offset for segment in found.segments] == [
            base_of(path) for path in logs_of(directory)
        ]
    after = files_of(directory)
    for name in before:
        if name.endswith((".log", "checkpoint")):
            assert after[name] == before[name]


def test_scan_and_measure_agree_on_every_number(directory: Path) -> None:
    """A clean start reads ends only, an unclean one everything; both must see the same log."""
    measured = recovered(directory, Known(clean_shutdown=True)).segments
    for path in directory.glob("*.*index"):
        path.unlink()
    # index.interval.bytes of `recovered` is Kafka's; that of the log was smaller.
    rescanned = open_log(directory, SETTINGS, leader=False)
    numbers = [
        (s.base_offset, s.size_bytes, s.next_offset, s.offset_entries, s.time_entries)
        for s in rescanned.native.segments
    ]
    assert numbers == [tuple(segment)[:5] for segment in measured]
    assert [
        (s.max_timestamp, s.max_timestamp_offset, s.first_append_ms)
        for s in rescanned.native.segments
    ] == [(s.max_timestamp, s.max_timestamp_offset, s.first_append_ms) for s in measured]


# -- torn tails ------------------------------------------------------------------------------------

Harm = Callable[[bytearray, int], bytes]  # (file, position of the last batch) -> file


def flipped_at(where: int) -> Harm:
    def harm(data: bytearray, last: int) -> bytes:
        data[last + where] ^= 0x10
        return bytes(data)

    return harm


TORN: dict[str, Harm] = {
    "cut in the middle of the records": lambda data, last: bytes(data[: last + 100]),
    "cut in the middle of the header": lambda data, last: bytes(data[: last + 30]),
    "cut after one byte": lambda data, last: bytes(data[: last + 1]),
    "cut before the last byte": lambda data, last: bytes(data[:-1]),
    "flipped in the records": flipped_at(80),
    "flipped in the CRC": flipped_at(18),
    "flipped in the magic": flipped_at(16),
    "flipped in the length": flipped_at(11),
    "zeros in place of the batch": lambda data, last: bytes(data[:last]) + bytes(len(data) - last),
    "zeros in its second half": lambda data, last: bytes(data[: last + 70]) + bytes(5000),
}


@pytest.mark.parametrize("harm", TORN.values(), ids=TORN.keys())
def test_torn_last_batch_past_the_known_end_is_truncated(directory: Path, harm: Harm) -> None:
    path = logs_of(directory)[-1]
    whole = path.read_bytes()
    last = batch_positions(path)[-1]
    path.write_bytes(harm(bytearray(whole), last))
    due = (BATCHES - 1) * BATCH_RECORDS
    found = recovered(directory, UNCLEAN._replace(recovery_point=50, durable_end=due))
    assert found.log_end_offset == due
    assert path.read_bytes() == whole[:last]
    assert found.durable_end == due
    assert [line for line in found.reports if f"truncated to offset {due}" in line]
    # and the log is as good as new
    log = open_log(directory, SETTINGS, known=UNCLEAN._replace(durable_end=due))
    assert log.append_as_leader(batch(1), now_ms=NOW_MS).base_offset == due
    assert len(read_all(log)) == log.size_bytes


@pytest.mark.parametrize("tail", [bytes(1), bytes(100_000), b"\x02" * 300, b"junk" * 1000])
def test_junk_behind_the_last_batch_is_truncated(directory: Path, tail: bytes) -> None:
    path = logs_of(directory)[-1]
    whole = path.read_bytes()
    path.write_bytes(whole + tail)
    end = BATCHES * BATCH_RECORDS
    found = recovered(directory, UNCLEAN._replace(durable_end=end))
    assert found.log_end_offset == end
    assert path.read_bytes() == whole


@pytest.mark.parametrize("harm", TORN.values(), ids=TORN.keys())
@pytest.mark.parametrize("clean", [False, True])
def test_the_same_before_the_known_end_is_damage(directory: Path, harm: Harm, clean: bool) -> None:
    path = logs_of(directory)[-1]
    path.write_bytes(harm(bytearray(path.read_bytes()), batch_positions(path)[-1]))
    before = files_of(directory)
    known = Known(clean_shutdown=clean, durable_end=BATCHES * BATCH_RECORDS)
    with pytest.raises(LogDamaged, match=path.name):
        recovered(directory, known)
    after = files_of(directory)
    assert {n: d for n, d in after.items() if n.endswith(".log")} == {
        n: d for n, d in before.items() if n.endswith(".log")
    }


@pytest.mark.parametrize("which", [0, 1, -2, -1])
@pytest.mark.parametrize("segment", [0, -1])
@pytest.mark.parametrize("at", [0, 2, 5, 6, 7])
@pytest.mark.parametrize("clean", [False, True])
def test_flipped_offset_is_damage_although_no_crc_covers_it(
    directory: Path, which: int, segment: int, at: int, clean: bool
) -> None:
    path = logs_of(directory)[segment]
    data = bytearray(path.read_bytes())
    data[batch_positions(path)[which] + at] ^= 0x20
    path.write_bytes(data)
    if clean and which != -1:
        return  # a clean start reads the ends only; the scrub, or a reader, finds it
    with pytest.raises(LogDamaged, match=path.name):
        recovered(directory, Known(clean_shutdown=clean))
    assert path.read_bytes() == data


def test_lost_tail_before_the_known_end_is_damage(directory: Path) -> None:
    """A file cut exactly between two batches looks whole; the durable end tells."""
    path = logs_of(directory)[-1]
    path.write_bytes(path.read_bytes()[: batch_positions(path)[-1]])
    due = BATCHES * BATCH_RECORDS
    with pytest.raises(LogDamaged, match=f"ends at offset {due - 10}, though .* {due} was on disk"):
        recovered(directory, UNCLEAN._replace(durable_end=due))
    assert recovered(directory, UNCLEAN._replace(durable_end=due - 10)).log_end_offset == due - 10


def test_bad_batch_with_a_valid_one_behind_is_damage_wherever_it_is(directory: Path) -> None:
    path = logs_of(directory)[-1]
    first = batch_positions(path)[0]
    data = bytearray(path.read_bytes())
    data[first + 80] ^= 1
    path.write_bytes(data)
    with pytest.raises(LogDamaged, match="a valid batch follows at byte"):
        recovered(directory, UNCLEAN)
    assert path.read_bytes() == data


def test_flipped_byte_in_an_older_segment_is_damage(directory: Path) -> None:
    path = logs_of(directory)[0]
    data = bytearray(path.read_bytes())
    data[batch_positions(path)[-1] + 80] ^= 1
    path.write_bytes(data)
    with pytest.raises(LogDamaged, match=r"a valid batch follows at byte 0 of 0+\d+\.log"):
        recovered(directory, UNCLEAN)
    # below the recovery point the end of each segment is still looked at
    with pytest.raises(LogDamaged, match=path.name):
        recovered(directory, UNCLEAN._replace(recovery_point=BATCHES * BATCH_RECORDS))


def test_damage_found_before_makes_every_byte_be_read(directory: Path) -> None:
    path = logs_of(directory)[0]
    data = bytearray(path.read_bytes())
    data[80] ^= 1
    path.write_bytes(data)
    known = Known(clean_shutdown=False, recovery_point=BATCHES * BATCH_RECORDS)
    assert recovered(directory, known).log_end_offset == BATCHES * BATCH_RECORDS
    with pytest.raises(LogDamaged):
        recovered(directory, known._replace(read_whole=True))


@pytest.mark.parametrize("cut", ["between batches", "in a batch", "zeros"])
def test_hole_at_a_roll_past_the_known_end_ends_the_log_there(directory: Path, cut: str) -> None:
    """A power cut lost the end of a rolled segment, and kept the beginning of the next."""
    first, *later = logs_of(directory)
    positions = batch_positions(first)
    data = first.read_bytes()
    first.write_bytes(
        {
            "between batches": data[: positions[-1]],
            "in a batch": data[: positions[-1] + 100],
            "zeros": data[: positions[-1]] + bytes(len(data) - positions[-1]),
        }[cut]
    )
    end = base_of(later[0]) - BATCH_RECORDS
    with pytest.raises(LogDamaged):
        recovered(directory, UNCLEAN._replace(durable_end=end + 1))
    found = recovered(directory, UNCLEAN._replace(durable_end=end))
    assert found.log_end_offset == end
    assert logs_of(directory) == [first]
    assert len(found.reports) >= 1


# -- segments --------------------------------------------------------------------------------------


def test_missing_middle_segment_is_damage(directory: Path) -> None:
    middle = logs_of(directory)[1]
    middle.unlink()
    with pytest.raises(LogDamaged, match=r"\d+ offsets are missing"):
        recovered(directory, Known(clean_shutdown=True))
    with pytest.raises(LogDamaged, match=r"\d+ offsets are missing"):
        recovered(directory, UNCLEAN._replace(durable_end=BATCHES * BATCH_RECORDS))


@pytest.mark.parametrize("clean", [False, True])
def test_gap_is_legal_where_compaction_may_have_been(directory: Path, clean: bool) -> None:
    logs_of(directory)[1].unlink()
    for legal_below in (ANY_OFFSET, 180):
        found = recovered(directory, Known(clean_shutdown=clean, gaps_legal_below=legal_below))
        assert found.log_end_offset == BATCHES * BATCH_RECORDS
        assert len(found.segments) == 2


def test_missing_first_segment_is_damage_where_epochs_follow_every_deletion(
    directory: Path,
) -> None:
    first, second, _ = logs_of(directory)
    first.unlink()
    for clean in (True, False):
        known = Known(clean_shutdown=clean, starts_with_its_epochs=True)
        with pytest.raises(LogDamaged, match=f"begins at offset {base_of(second)}, though nothing"):
            recovered(directory, known)
        # A start offset that lies behind it explains the gap, and so does another's directory.
        explained = known._replace(log_start_offset=base_of(second))
        assert recovered(directory, explained).log_start_offset == base_of(second)
        (directory / "leader-epoch-checkpoint").write_text("0\n1\n0 0\n")
        recovered(directory, known._replace(starts_with_its_epochs=False))
        (directory / "leader-epoch-checkpoint").write_text("0\n1\n0 0\n")


def test_deleted_segments_are_not_missed(directory: Path) -> None:
    log = open_log(directory, SETTINGS)
    log.delete_records_before(base_of(logs_of(directory)[1]) + 5)
    log.update_settings(Settings(segment_bytes=3000, retention_bytes=1))
    assert log.apply_retention(NOW_MS)
    assert not (directory / f"{0:020d}.log").exists()
    log.close()
    for clean in (True, False):
        recovered(directory, Known(clean_shutdown=clean, starts_with_its_epochs=True))


def test_overlapping_segments_are_damage(directory: Path) -> None:
    first, second, _ = logs_of(directory)
    shutil.copy(second, directory / f"{base_of(second) - 5:020d}.log")
    with pytest.raises(LogDamaged, match=r"the segment before it ends at|base offset .*, expected"):
        recovered(directory, Known(clean_shutdown=True))
    assert first.exists()


def test_batch_of_another_place_is_damage(directory: Path) -> None:
    """Right CRC, wrong offset: not the cut end of a write, so nothing is thrown away."""
    *_, last = logs_of(directory)
    first = logs_of(directory)[0]
    data = last.read_bytes()
    data += first.read_bytes()[: batch_positions(first)[1]]
    last.write_bytes(data)
    with pytest.raises(LogDamaged, match=r"base offset 0, expected 200"):
        recovered(directory, UNCLEAN)
    assert last.read_bytes() == data


def test_empty_directory_becomes_an_empty_log(tmp_path: Path) -> None:
    found = recovered(tmp_path, UNCLEAN)
    assert (found.log_start_offset, found.log_end_offset) == (0, 0)
    assert [path.name for path in logs_of(tmp_path)] == ["00000000000000000000.log"]


def test_empty_directory_of_a_log_that_was_not_empty_is_damage(tmp_path: Path) -> None:
    with pytest.raises(LogDamaged, match="everything up to offset 40 was on disk"):
        recovered(tmp_path, UNCLEAN._replace(durable_end=40))
    found = recovered(tmp_path, UNCLEAN._replace(durable_end=40, log_start_offset=40))
    assert (found.log_start_offset, found.log_end_offset) == (40, 40)


def test_log_that_ends_before_its_start_offset_begins_anew(directory: Path) -> None:
    found = recovered(directory, UNCLEAN._replace(log_start_offset=999))
    assert (found.log_start_offset, found.log_end_offset) == (999, 999)
    assert [path.name for path in logs_of(directory)] == ["00000000000000000999.log"]


def test_old_message_format_is_named_and_left_alone(tmp_path: Path) -> None:
    message = struct.pack(">bbqi", 1, 0, NOW_MS, -1) + struct.pack(">i", 3) + b"old"
    entry = struct.pack(">qiI", 0, len(message) + 4, zlib.crc32(message)) + message
    path = tmp_path / "00000000000000000000.log"
    path.write_bytes(entry * 3)
    with pytest.raises(LogDamaged, match=r"message format before 0\.11"):
        recovered(tmp_path, UNCLEAN)
    assert path.read_bytes() == entry * 3


# -- bytes that may be in the page cache alone -----------------------------------------------------


def test_bytes_past_the_known_end_are_written_again(directory: Path) -> None:
    first, second, third = logs_of(directory)
    before = [path.read_bytes() for path in (first, second, third)]
    positions = batch_positions(second)
    end = base_of(second) + 2 * BATCH_RECORDS
    fs = WritesKept()
    found = recovered(directory, UNCLEAN._replace(durable_end=end), fs)
    assert found.durable_end == end
    assert fs.of(first) == []
    assert fs.of(second) == [(positions[2], second.read_bytes()[positions[2] :])]
    assert fs.of(third) == [(0, third.read_bytes())]
    assert [path.read_bytes() for path in (first, second, third)] == before


def test_batch_that_reaches_past_the_known_end_is_written_again_whole(directory: Path) -> None:
    _, _, third = logs_of(directory)
    fs = WritesKept()
    recovered(directory, UNCLEAN._replace(durable_end=base_of(third) + BATCH_RECORDS + 1), fs)
    second_batch = batch_positions(third)[1]
    assert fs.of(third) == [(second_batch, third.read_bytes()[second_batch:])]


@pytest.mark.parametrize(
    "known",
    [
        UNCLEAN._replace(durable_end=BATCHES * BATCH_RECORDS),
        UNCLEAN._replace(recovery_point=BATCHES * BATCH_RECORDS),
        # No page cache outlives the machine: what was read came from the disk.
        UNCLEAN._replace(machine_restarted=True),
        Known(clean_shutdown=True),
    ],
)
def test_bytes_known_to_be_on_disk_are_not_written_again(directory: Path, known: Known) -> None:
    fs = WritesKept()
    recovered(directory, known, fs)
    assert [fs.of(path) for path in logs_of(directory)] == [[], [], []]


def test_torn_tail_goes_and_what_is_left_is_written_again(directory: Path) -> None:
    *_, third = logs_of(directory)
    whole = third.read_bytes()
    third.write_bytes(whole + b"\x37" * 300)
    fs = WritesKept()
    recovered(directory, UNCLEAN, fs)
    assert fs.of(third) == [(0, whole)]
    assert third.read_bytes() == whole


def test_large_tail_is_written_again_in_pieces(tmp_path: Path) -> None:
    log = open_log(tmp_path / "flights-0")
    for _ in range(40):
        log.append_as_leader(batch(value=b"v" * 100_000), now_ms=NOW_MS)
    log.drop()
    (path,) = logs_of(tmp_path / "flights-0")
    fs = WritesKept()
    recovered(tmp_path / "flights-0", UNCLEAN, fs)
    writes = fs.of(path)
    assert b"".join(data for _, data in writes) == path.read_bytes()
    assert [at for at, _ in writes] == [
        sum(len(data) for _, data in writes[:number]) for number in range(len(writes))
    ]
    assert 2 <= len(writes) <= 10
    assert max(len(data) for _, data in writes) < CHUNK_BYTES + 200_000


def test_bytes_that_change_before_they_are_written_again_are_damage(directory: Path) -> None:
    """The page cache may give up a page between two looks, and the disk have another."""
    first, second, _ = logs_of(directory)
    changed = bytearray(second.read_bytes())
    changed[100] ^= 1
    fs = WritesKept()
    fs.before_log_write = lambda: second.write_bytes(changed)
    with pytest.raises(LogDamaged, match=f"{second.name} at byte 0.*an earlier read succeeded"):
        recovered(directory, UNCLEAN, fs)
    assert fs.of(first)
    assert fs.of(second) == []


def test_indexes_of_what_is_read_are_written_again(directory: Path) -> None:
    """They may be in the page cache alone, as the bytes they follow from."""
    fs = WritesKept()
    _, second, third = logs_of(directory)
    known = UNCLEAN._replace(recovery_point=base_of(second) + 1)
    found = recover(fs, directory, known, index_interval_bytes=500)
    assert found.read_from == base_of(second)
    indexes = {name for name in fs.written if name.endswith("index")}
    assert indexes == {
        path.with_suffix(suffix).name
        for path in (second, third)
        for suffix in (".index", ".timeindex")
        if path.with_suffix(suffix).stat().st_size
    }
    assert len(indexes) == 3
    for name in indexes:
        assert fs.written[name] == [(0, (directory / name).read_bytes())]


# -- indexes ---------------------------------------------------------------------------------------


def zero_tail(data: bytes) -> bytes:
    """What a Kafka that crashed leaves: the preallocated file."""
    return data + bytes(10_485_756 // 12 * 12 - len(data))


INDEX_HARM: dict[str, Callable[[Path], object]] = {
    "missing": lambda path: path.unlink(),
    "empty": lambda path: path.write_bytes(b""),
    "zero tail": lambda path: path.write_bytes(zero_tail(path.read_bytes())),
    "odd size": lambda path: path.write_bytes(path.read_bytes()[:-1]),
    "too short": lambda path: path.write_bytes(path.read_bytes()[:24]),
    "garbage": lambda path: path.write_bytes(b"\xff" * 24),
    "unordered": lambda path: path.write_bytes(path.read_bytes()[24:] + path.read_bytes()[:24]),
}


@pytest.mark.parametrize("clean", [False, True])
@pytest.mark.parametrize("kind", [".index", ".timeindex"])
@pytest.mark.parametrize("harm", INDEX_HARM.values(), ids=INDEX_HARM.keys())
def test_harmed_index_is_rebuilt_or_still_right(
    directory: Path, harm: Callable[[Path], object], kind: str, clean: bool
) -> None:
    for path in logs_of(directory):
        harm(path.with_suffix(kind))
    log = open_log(directory, SETTINGS, known=Known(clean_shutdown=clean))
    assert log.log_end_offset == BATCHES * BATCH_RECORDS
    for offset in range(BATCHES * BATCH_RECORDS):
        found = log.read(offset, 1, offset + 1, True)
        assert found is not None
        base = int.from_bytes(found.read()[:8], "big")
        assert base == offset // BATCH_RECORDS * BATCH_RECORDS
    for n in range(BATCHES):
        at = log.offset_for_timestamp(NOW_MS + 1000 * n)
        assert at is not None
        assert at.offset == n * BATCH_RECORDS


def test_indexes_rebuilt_are_those_that_were_written(directory: Path) -> None:
    before = files_of(directory)
    for path in directory.glob("*.*index"):
        path.unlink()
    open_log(directory, SETTINGS, leader=False)
    after = files_of(directory)
    for name, data in before.items():
        if name.endswith("index"):
            assert after[name] == data, name


def test_index_without_its_segment_is_removed(directory: Path) -> None:
    for kind in (".index", ".timeindex", ".txnindex"):
        (directory / f"00000000000000099999{kind}").write_bytes(b"")
    recovered(directory, Known(clean_shutdown=True))
    assert not list(directory.glob("*99999*"))


# -- what follows from the batches -----------------------------------------------------------------


def test_producer_window_survives_with_all_five_batches(directory: Path) -> None:
    for known in (UNCLEAN, Known(clean_shutdown=True)):
        (entry,) = recovered(directory, known).producers
        assert entry.producer_id == 5
        assert [b.first_sequence for b in entry.batches] == [150, 160, 170, 180, 190]
        # The first round has left a snapshot with only the newest of them.
        snapshots = sorted(directory.glob("*.snapshot"))
        assert snapshots
        (kept,) = decode_snapshot(snapshots[-1].read_bytes())
        assert len(kept.batches) == 1


@pytest.mark.parametrize("harm", [b"", b"\0" * 40, b"junk"])
def test_damaged_snapshot_is_replaced_by_a_replay(directory: Path, harm: bytes) -> None:
    end = directory / f"{BATCHES * BATCH_RECORDS:020d}.snapshot"
    end.write_bytes(harm)
    found = recovered(directory, Known(clean_shutdown=True))
    assert [b.first_sequence for b in found.producers[0].batches] == [150, 160, 170, 180, 190]
    assert not end.exists()
    assert any(end.name in line for line in found.reports)


def test_snapshot_past_the_end_is_removed(directory: Path) -> None:
    stray = directory / "00000000000000009999.snapshot"
    stray.write_bytes(b"from another life")
    recovered(directory, UNCLEAN)
    assert not stray.exists()


def test_aborted_transactions_are_indexed_again(tmp_path: Path) -> None:
    log = open_log(tmp_path / "flights-0", leader=False)
    native = log.native
    native.set_leader(0, writable=True, sole_replica=True)
    path = log.directory / "00000000000000000000.log"
    log.drop()
    pieces = bytearray()
    offset = 0

    def put(data: bytes | bytearray, records: int) -> None:
        nonlocal offset
        changed = bytearray(data)
        changed[:8] = offset.to_bytes(8, "big")
        pieces.extend(changed)
        offset += records

    put(batch(5, producer_id=1, epoch=0, sequence=0, transactional=True), 5)
    put(batch(3, producer_id=2, epoch=0, sequence=0, transactional=True), 3)
    marker = {"timestamp": NOW_MS, "producer_epoch": 0, "coordinator_epoch": 4}
    put(control_batch(abort=True, offset=8, producer_id=1, **marker), 1)
    put(control_batch(abort=False, offset=9, producer_id=2, **marker), 1)
    put(batch(2, producer_id=2, epoch=0, sequence=3, transactional=True), 2)
    path.write_bytes(pieces)
    found = recovered(log.directory, UNCLEAN)
    assert decode_aborted(path.with_suffix(".txnindex").read_bytes()) == [(1, 0, 8, 5)]
    states = {entry.producer_id: entry for entry in found.producers}
    assert states[1].current_txn_first_offset == -1
    assert states[1].coordinator_epoch == 4
    assert states[2].current_txn_first_offset == 10


@pytest.mark.parametrize("known", [UNCLEAN, Known(clean_shutdown=True)])
def test_control_batch_that_was_emptied_is_no_damage(tmp_path: Path, known: Known) -> None:
    """Kafka's cleaner leaves such for their producers, and at the end of what it has cleaned."""
    directory = tmp_path / "flights-0"
    directory.mkdir()
    ended = {"timestamp": NOW_MS, "producer_id": 1, "coordinator_epoch": 4}
    written = batch(3, producer_id=1, epoch=0, sequence=0, transactional=True) + b"".join(
        control_batch(abort=True, offset=offset, producer_epoch=epoch, **ended)
        for offset, epoch in ((3, 0), (4, 1))
    )
    end = scan(written)[2].position
    path = directory / "00000000000000000000.log"
    path.write_bytes(written[:end] + empty_batch(bytes(written[end:])))
    found = recovered(directory, known._replace(gaps_legal_below=ANY_OFFSET))
    (entry,) = found.producers
    assert (entry.producer_epoch, entry.current_txn_first_offset) == (1, -1)
    assert found.log_end_offset == 5


def test_leader_epochs_come_from_the_file_and_the_batches(tmp_path: Path) -> None:
    directory = tmp_path / "flights-0"
    log = open_log(directory, leader=False)
    for epoch in (3, 4, 9):
        log.become_leader(epoch, sole_replica=True)
        for _ in range(2):
            log.append_as_leader(batch(5), now_ms=NOW_MS)
    log.become_leader(12, sole_replica=True)
    log.close()
    wanted = LeaderEpochs([EpochStart(3, 0), EpochStart(4, 10), EpochStart(9, 20)])
    file = directory / "leader-epoch-checkpoint"
    assert file.read_text() == "0\n4\n3 0\n4 10\n9 20\n12 30\n"
    for text in (None, "junk", "0\n1\n3 0\n", "0\n4\n3 0\n4 10\n9 20\n12 30\n"):
        for known in (UNCLEAN, Known(clean_shutdown=True)):
            file.unlink(missing_ok=True)
            if text is not None:
                file.write_text(text)
            found = recovered(directory, known)
            if known.clean_shutdown and text == "0\n1\n3 0\n":
                continue  # a file that reads well is believed after a clean shutdown
            assert found.epochs == wanted, (text, known)
            assert file.read_text() == "0\n3\n3 0\n4 10\n9 20\n"


# -- replacement of segments (docs/FORMATS.md) -----------------------------------------------------


def rename(directory: Path, number: int, suffix: str) -> None:
    path = logs_of(directory)[number]
    for kind in (".log", ".index", ".timeindex"):
        source = path.with_suffix(kind)
        source.rename(source.with_name(source.name + suffix))


def copy(directory: Path, number: int, suffix: str) -> None:
    path = logs_of(directory)[number]
    for kind in (".log", ".index", ".timeindex"):
        source = path.with_suffix(kind)
        shutil.copy(source, source.with_name(source.name + suffix))


def names(directory: Path) -> set[str]:
    return {path.name for path in directory.iterdir() if not path.name.endswith(".snapshot")}


def test_cleaned_files_are_removed(directory: Path) -> None:
    before = names(directory)
    copy(directory, 0, ".cleaned")
    copy(directory, 1, ".cleaned")
    recovered(directory, UNCLEAN)
    assert names(directory) == before


def test_swap_beside_older_cleaned_files_is_undone(directory: Path) -> None:
    """Renamed from the highest base offset down: as long as one is .cleaned, nothing counts."""
    before = names(directory)
    copy(directory, 0, ".cleaned")
    copy(directory, 1, ".swap")
    recovered(directory, UNCLEAN)
    assert names(directory) == before


def test_swap_replaces_the_segments_it_covers(directory: Path) -> None:
    """The merged segment is whole, one old one not renamed away yet."""
    first, second, _ = logs_of(directory)
    merged = first.read_bytes() + second.read_bytes()
    (directory / (first.name + ".swap")).write_bytes(merged)
    found = recovered(directory, UNCLEAN)
    assert found.log_end_offset == BATCHES * BATCH_RECORDS
    assert first.read_bytes() == merged
    assert not second.exists()
    assert not second.with_suffix(".index").exists()
    line = f"completed a compaction: {first.name} put in place, 1 old segment removed"
    assert line in found.reports


def test_empty_swap_is_named_when_it_takes_its_place(directory: Path) -> None:
    """Compaction may remove every batch of a segment: it has no last offset to report."""
    last = logs_of(directory)[-1]
    (directory / (last.name + ".swap")).touch()
    rename(directory, -1, ".deleted")
    found = recovered(directory, UNCLEAN)
    assert last.read_bytes() == b""
    line = f"completed a compaction: {last.name} put in place, 0 old segments removed"
    assert line in found.reports


def test_swap_whose_old_segments_are_gone_becomes_final(directory: Path) -> None:
    before = names(directory)
    copy(directory, 1, ".swap")
    rename(directory, 1, ".deleted")
    found = recovered(directory, Known(clean_shutdown=True))
    assert found.log_end_offset == BATCHES * BATCH_RECORDS
    assert names(directory) == before


def test_damaged_swap_replaces_nothing(directory: Path) -> None:
    first = logs_of(directory)[0]
    data = bytearray(first.read_bytes())
    data[100] ^= 1
    (directory / (first.name + ".swap")).write_bytes(data)
    before = files_of(directory)
    with pytest.raises(LogDamaged, match=r"\.swap at byte 0"):
        recovered(directory, UNCLEAN)
    assert files_of(directory) == before


def test_deleted_and_temporary_files_are_removed(directory: Path) -> None:
    before = names(directory)
    for name in ("00000000000000000007.log.deleted", "00000000000000000007.index.tmp"):
        (directory / name).write_bytes(b"x")
    recovered(directory, Known(clean_shutdown=True))
    assert names(directory) == before


# -- recovery itself is interrupted ----------------------------------------------------------------


@pytest.mark.parametrize("crash", [False, True], ids=["error", "crash"])
def test_recovery_stopped_at_any_operation_ends_the_same_when_repeated(
    tmp_path: Path, crash: bool
) -> None:
    """Torn tail, hole at a roll, lost indexes, an unfinished swap: all at once."""

    def harmed(directory: Path) -> Path:
        make(directory)
        copy(directory, 0, ".swap")
        last = logs_of(directory)[-1]
        last.write_bytes(last.read_bytes()[:-7])
        for path in directory.glob("*.timeindex"):
            path.unlink()
        return directory

    wanted = recovered(harmed(tmp_path / "wanted"), UNCLEAN)
    after = files_of(tmp_path / "wanted")
    for fail_at in range(500):
        directory = harmed(tmp_path / f"at-{fail_at}")
        fs = FaultyFilesystem(fail_at, crash=crash)
        try:
            recovered(directory, UNCLEAN, fs)
        except (Crash, OSError):
            pass
        else:
            break
        found = recovered(directory, UNCLEAN)
        assert found.segments == wanted.segments
        assert found.producers == wanted.producers
        assert files_of(directory) == after
        shutil.rmtree(directory)
    else:
        pytest.fail("recovery takes more operations than this test tries")
    assert fail_at > 10
