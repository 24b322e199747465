"""Appends of a follower: the same log as the leader's, and no batch that is not the leader's."""

from __future__ import annotations

import errno
import random
import struct
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from plog._native import faults, follower_append
from plog._native.batch import restamp_offsets, scan
from plog._native.disk_room import DiskRoom
from plog._native.faults import Fault
from plog._native.follower_append import FetchedAppend
from plog._native.partition_log import DUPLICATE
from plog._native.records import control_batch
from plog.errors import (
    CorruptRecord,
    FencedLeaderEpoch,
    InvalidTxnState,
    KafkaStorageError,
    NotLeaderOrFollower,
)
from plog.storage.leader_epochs import EpochStart, decode_leader_epochs
from plog.storage.log import Log
from plog.storage.log_faults import is_of_full_disk
from plog.storage.log_files import LogFiles
from plog.storage.producer_state import Marker, ProducerReplay
from plog.storage.segment_verdict import Known
from tests.agreement.harness import run_seed

from .followers import (
    SETTINGS,
    assert_same_files,
    cut_in_pieces,
    feed,
    fetch,
    first_unstable,
    follower_of,
    knowledge,
    leader_of_everything,
    put,
    restored,
)
from .histories import History, committed_records
from .partition_logs import CONTROL, crc32c, make_batch
from .storage_logs import (
    NOW_MS,
    Crash,
    FaultyFilesystem,
    Owner,
    Settings,
    append_verified,
    approved,
    batch,
    files_of,
    open_log,
    read_all,
)
from .test_cleaner import SETTINGS as COMPACTED
from .test_cleaner import clean

COMMIT, ABORT = Marker(abort=False, coordinator_epoch=0), Marker(abort=True, coordinator_epoch=0)


@pytest.fixture(autouse=True)
def healthy_disk() -> Iterator[None]:
    yield
    faults.inject([])


def at(data: bytes, base_offset: int, leader_epoch: int) -> bytes:
    """Return a batch with another offset and leader epoch, which its CRC does not cover."""
    moved = bytearray(data)
    restamp_offsets(moved, base_offset, leader_epoch)
    return bytes(moved)


# -- the same log ----------------------------------------------------------------------------------


@settings(max_examples=15, deadline=None)
@given(seed=st.integers(0, 1 << 32), sizes=st.lists(st.integers(1, 25), max_size=30))
def test_fetched_batches_make_the_leaders_log(
    tmp_path_factory: pytest.TempPathFactory, seed: int, sizes: list[int]
) -> None:
    path = tmp_path_factory.mktemp("logs")
    leader = leader_of_everything(path / "leader", seed)
    follower = follower_of(leader, path / "follower")
    replay = ProducerReplay()
    for piece in cut_in_pieces(read_all(leader), sizes):
        end = feed(follower, piece)
        assert end == follower.log_end_offset
        assert follower.high_watermark < end
        follower.native.advance_high_watermark(end)
        unstable = first_unstable(piece, replay)
        assert follower.last_stable_offset == (end if unstable is None else unstable)
    assert knowledge(follower) == knowledge(leader)
    assert_same_files(leader, follower)


def test_history_has_every_kind_of_batch(tmp_path: Path) -> None:
    """The test above is worth what this history holds."""
    leader = leader_of_everything(tmp_path, 1, batches=300)
    headers = scan(read_all(leader))
    assert {header.codec for header in headers} == {0, 1, 2, 3, 4}
    assert any(header.is_control for header in headers)
    assert any(header.is_transactional and header.base_sequence < 0 for header in headers)
    assert any(header.producer_id in range(10, 13) and header.producer_epoch for header in headers)
    assert len(leader.leader_epochs.entries) > 5
    assert len(leader.native.segments) > 5
    assert len(leader.transactions.aborted_between(0, leader.log_end_offset)) > 5
    leader.close()


def test_batches_are_written_by_one_call_as_long_as_they_are_usual(tmp_path: Path) -> None:
    leader = open_log(tmp_path / "leader")
    for _ in range(50):
        put(leader, batch())
    data = read_all(leader)
    follower = follower_of(leader, tmp_path / "follower")
    first = scan(data)[0].size_bytes
    feed(follower, data[:first])  # begins the leader epoch
    faults.inject([Fault("pwritev", errno=errno.EIO, after=1)])
    assert feed(follower, data[first:]) == 50
    faults.inject([])
    for log in (leader, follower):
        log.close()


def test_follower_that_crashes_anywhere_goes_on_as_if_it_had_not(tmp_path: Path) -> None:
    seed = run_seed()
    leader = leader_of_everything(tmp_path / "leader", seed, batches=40)
    data = read_all(leader)
    chance = random.Random(seed)
    step = 0
    while True:
        directory = tmp_path / f"follower {step}"
        fs = FaultyFilesystem(crash=True)
        log = follower_of(leader, directory, fs=fs)
        fs.fail_at = fs.operations + step
        try:
            for piece in cut_in_pieces(data, [chance.randint(1, 12) for _ in range(30)]):
                feed(log, piece)
            is_done = True
        except Crash:
            is_done = False
        fs.fail_at = -1
        log.drop()
        follower = follower_of(leader, directory, known=Known(clean_shutdown=False))
        if not is_done:
            feed(follower, fetch(leader, follower))
        assert restored(knowledge(follower)) == restored(knowledge(leader)), (
            f"crash at operation {step}"
        )
        assert read_all(follower) == data
        follower.close()
        if is_done:
            break
        step += 1
    assert step > 20
    leader.close()


def test_gaps_of_compaction_are_followed(tmp_path: Path) -> None:
    history = History(random.Random(run_seed()))
    leader = open_log(tmp_path / "leader", COMPACTED)
    history.write(leader, 80)
    leader.roll()
    history.put(leader)
    clean(leader)
    clean(leader, now_ms=NOW_MS + (1 << 40))  # removes markers and tombstones
    data = read_all(leader)
    headers = scan(data)
    ends = [0, *(header.next_offset for header in headers)]
    assert any(end < header.base_offset for end, header in zip(ends, headers, strict=False))
    owner = Owner()
    follower = follower_of(leader, tmp_path / "follower", owner=owner)
    for piece in cut_in_pieces(data, [1, 3, 5, 7, 9]):
        feed(follower, piece)
    assert read_all(follower) == data
    known = knowledge(follower)
    assert committed_records(follower) == committed_records(leader)
    follower.drop()
    recovered = follower_of(
        leader,
        tmp_path / "follower",
        known=Known(clean_shutdown=False, gaps_legal_below=owner.gaps_below),
    )
    assert restored(knowledge(recovered)) == restored(known)
    assert read_all(recovered) == data
    for log in (leader, recovered):
        log.close()


def test_one_response_makes_gaps_legal_once(tmp_path: Path) -> None:
    class Counting(Owner):
        calls = 0

        def allow_gaps(self, log: Log, end: int) -> None:
            self.calls += 1
            super().allow_gaps(log, end)

    owner = Counting()
    follower = open_log(tmp_path, leader=False, owner=owner)
    follower.become_follower(0)
    feed(follower, b"".join(at(batch(), offset, 0) for offset in (3, 7, 8, 12)))
    assert (owner.calls, owner.gaps_below, follower.log_end_offset) == (1, 12, 13)
    feed(follower, at(batch(), 13, 0))
    assert owner.calls == 1
    follower.close()


def test_batch_larger_than_a_segment_of_this_broker_is_followed(tmp_path: Path) -> None:
    follower = open_log(tmp_path, Settings(segment_bytes=1000), leader=False)
    follower.become_follower(0)
    large = batch(1, value=bytes(5000))
    feed(follower, at(batch(), 0, 0) + at(large, 1, 0) + at(batch(), 2, 0))
    assert [one.base_offset for one in follower.native.segments] == [0, 1, 2]
    follower.close()


def ending(
    offset: int, producer_id: int, *, kind: int = 0, epoch: int = 0, emptied: bool = False
) -> bytes:
    """Return a control batch: of a kind, or as compaction leaves it."""
    made = bytearray(
        control_batch(
            abort=True,
            offset=offset,
            timestamp=NOW_MS,
            producer_id=producer_id,
            producer_epoch=epoch,
            coordinator_epoch=3,
            leader_epoch=0,
        )
    )
    made[68:70] = struct.pack(">h", kind)
    if emptied:
        del made[61:]
        made[8:12], made[57:61] = struct.pack(">i", len(made) - 12), bytes(4)
    made[17:21] = struct.pack(">I", crc32c(bytes(made[21:])))
    return bytes(made)


@pytest.mark.parametrize("emptied", [False, True])
@pytest.mark.parametrize("kind", [0, 1, 2, 5])
@pytest.mark.parametrize("epoch", [0, 1])
@pytest.mark.parametrize("producer_id", [-1, 5, 6, 7])
def test_control_batch_means_what_recovery_makes_of_it(
    tmp_path: Path, producer_id: int, epoch: int, kind: int, emptied: bool
) -> None:
    log = open_log(tmp_path, leader=False)
    log.become_follower(0)
    feed(
        log,
        at(batch(1, producer_id=5, epoch=0, sequence=0), 0, 0)
        + at(batch(1, producer_id=6, epoch=0, sequence=0, transactional=True), 1, 0)
        + ending(2, producer_id, kind=kind, epoch=epoch, emptied=emptied)
        + at(batch(), 3, 0),
    )
    known = knowledge(log)
    log.drop()
    log = open_log(tmp_path, leader=False)
    assert knowledge(log) == known
    is_marker = kind < 2 and not emptied
    assert log.last_stable_offset == (4 if is_marker and producer_id == 6 else 1)
    log.close()


def test_control_batch_without_a_control_record_is_refused(tmp_path: Path) -> None:
    log = open_log(tmp_path, leader=False)
    log.become_follower(0)
    broken = at(make_batch(1, 100, producer_id=5, epoch=0, attributes=CONTROL), 1, 0)
    with pytest.raises(CorruptRecord, match="batch at offset 1"):
        feed(log, at(batch(), 0, 0) + broken + at(batch(), 2, 0))
    assert log.log_end_offset == 1
    log.close()


# -- refusals --------------------------------------------------------------------------------------

FETCHED = [at(batch(2), 10, 4), at(batch(3, codec=3), 12, 4), at(batch(1), 15, 4)]
TEXTS = {
    "cut header": (b"".join(FETCHED)[:-50], "only 22 bytes|only .* bytes are left"),
    "cut records": (b"".join(FETCHED)[:-1], "batch at .*: only .* bytes are left, it takes"),
    "below the log end": (at(FETCHED[0], 9, 4), "offset 9.*reaches offset 10"),
    "out of order": (FETCHED[0] + FETCHED[2] + FETCHED[1], "offset 12.*reaches offset 16"),
    "twice": (FETCHED[0] * 2, "offset 10.*reaches offset 12"),
    "too far": (FETCHED[0] + at(FETCHED[1], 1 << 32, 4), "missing since 12"),
    "older epoch": (at(FETCHED[0], 10, 2), "leader epoch 2 after 3"),
    "epoch goes back": (FETCHED[0] + at(FETCHED[1], 12, 3), "offset 12.*leader epoch 3 after 4"),
    "newer epoch": (FETCHED[0] + at(FETCHED[1], 12, 5), "leader epoch 5, but the fetch's was 4"),
    "magic": (FETCHED[0][:16] + b"\x01" + FETCHED[0][17:], "magic 1, must be 2"),
    "crc": (FETCHED[0][:-1] + b"\xff", "CRC is"),
    "zeroes": (FETCHED[0] + bytes(100), "magic 0, must be 2"),
}


def check(data: bytes) -> int:
    return follower_append.check(data, log_end_offset=10, last_epoch=3, leader_epoch=4)


@pytest.mark.parametrize("case", TEXTS)
def test_refused_response_changes_nothing(tmp_path: Path, case: str) -> None:
    data, text = TEXTS[case]
    log = open_log(tmp_path, leader=False)
    log.become_follower(4)
    feed(log, at(batch(10), 0, 3))
    before = log.native.state(), log.leader_epochs, files_of(tmp_path)
    with pytest.raises(CorruptRecord, match=text):
        feed(log, data)
    assert (log.native.state(), log.leader_epochs, files_of(tmp_path)) == before
    assert feed(log, b"".join(FETCHED)) == 16
    log.close()


def test_every_flipped_bit_is_refused_but_in_an_offset_behind_which_nothing_comes() -> None:
    data = b"".join(FETCHED)
    assert check(data) == -1
    last = len(data) - len(FETCHED[-1])
    accepted = []
    for number in range(len(data) * 8):
        flipped = bytearray(data)
        flipped[number // 8] ^= 0x80 >> number % 8
        try:
            check(bytes(flipped))
        except CorruptRecord:
            continue
        accepted.append(number)
    # The CRC does not cover offsets, and a compacted log may have a gap there.
    offset_bits = range(last * 8, last * 8 + 64)
    assert set(accepted) <= set(offset_bits)
    assert len(accepted) < 32


def test_log_of_a_leader_is_refused(tmp_path: Path) -> None:
    log = open_log(tmp_path)
    for leads in (True, False):
        log.native.set_leader(0, leads=True, writable=leads, sole_replica=True)
        with pytest.raises(NotLeaderOrFollower):
            feed(log, at(batch(), 0, 0))
    assert log.log_end_offset == 0
    log.close()


@pytest.mark.parametrize(
    "data", [at(batch(), 0, 3), at(batch(), 0, 9), b"junk"], ids=["right", "newer", "junk"]
)
def test_epoch_that_has_changed_since_the_fetch_is_refused(tmp_path: Path, data: bytes) -> None:
    """By that alone: what an outdated leader has sent is no damage."""
    log = open_log(tmp_path, leader=False)
    log.become_follower(4)
    for epoch in (3, 5):
        with pytest.raises(FencedLeaderEpoch, match=f"leader epoch {epoch}, but the log is in 4"):
            log.append_as_follower(data, leader_epoch=epoch, now_ms=NOW_MS)
    assert log.log_end_offset == 0
    log.close()


@pytest.mark.parametrize("end", [Log.close, Log.drop, Log.go_offline, Log.retire])
def test_log_that_is_closed_offline_or_moved_is_refused(
    tmp_path: Path, end: Callable[[Log], None]
) -> None:
    log = open_log(tmp_path, leader=False)
    log.become_follower(0)
    end(log)
    with pytest.raises((KafkaStorageError, NotLeaderOrFollower)):
        feed(log, at(batch(), 0, 0))
    assert (tmp_path / f"{0:020d}.log").read_bytes() == b""
    log.drop()


def refusal_of(log: Log, batches: bytes) -> KafkaStorageError | None:
    """Feed batches; return why the disk did not take them all."""
    try:
        feed(log, batches)
    except KafkaStorageError as refusal:
        return refusal
    return None


def test_full_disk_refuses_what_has_no_room_and_nothing_is_lost(tmp_path: Path) -> None:
    leader = leader_of_everything(tmp_path / "leader", 3)
    data = read_all(leader)
    owner, room = Owner(), DiskRoom()
    follower = follower_of(leader, tmp_path / "follower", owner=owner)
    follower.native.set_room(room)
    room.left = 0
    refused = 0
    while rest := fetch(leader, follower):
        refusal = refusal_of(follower, rest)
        if refusal is not None:
            refused += 1
            assert is_of_full_disk(refusal)
            assert (owner.full, owner.errors) == (refused, [])
            room.left += 500
    assert refused > 5
    assert read_all(follower) == data
    assert knowledge(follower) == knowledge(leader)
    assert_same_files(leader, follower)


def test_failed_write_is_undone(tmp_path: Path) -> None:
    leader = leader_of_everything(tmp_path / "leader", 4)
    owner = Owner()
    follower = follower_of(leader, tmp_path / "follower", owner=owner)
    failed = 0
    while rest := fetch(leader, follower):
        faults.inject([Fault("pwritev", errno=errno.ENOSPC, short_bytes=5, after=failed % 3)])
        before = follower.log_end_offset
        refusal = refusal_of(follower, rest)
        faults.inject([])
        assert refusal is None or is_of_full_disk(refusal)
        failed += refusal is not None
        producers = knowledge(follower).producers
        replay = ProducerReplay()
        if follower.log_end_offset:
            first_unstable(read_all(follower), replay)
        assert producers == sorted(replay.entries.values())
        if follower.log_end_offset == before:
            feed(follower, cut_in_pieces(rest, [1])[0])
    assert failed > 3
    # Snapshots are missing where their own writes have failed.
    assert_same_files(leader, follower, except_suffixes=(".snapshot",))


# -- leader epochs ---------------------------------------------------------------------------------


def test_epoch_without_records_gives_way_to_the_leaders_older_one(tmp_path: Path) -> None:
    """An unclean leader had led in epoch 7 and written nothing: its log goes on with epoch 5."""
    log = open_log(tmp_path, leader=False)
    log.become_follower(5)
    feed(log, at(batch(10), 0, 5))
    log.become_leader(7, sole_replica=True)
    log._segments.set_epochs(log.leader_epochs)  # as a checkpoint may write it
    log.become_follower(8)
    feed(log, at(batch(), 10, 5) + at(batch(), 11, 6) + at(batch(), 12, 8))
    entries = (EpochStart(5, 0), EpochStart(6, 11), EpochStart(8, 12))
    assert log.leader_epochs.entries == entries
    log.drop()
    log = open_log(tmp_path, leader=False)
    assert log.leader_epochs.entries == entries
    log.close()


def test_older_epoch_is_durable_before_its_first_batch(tmp_path: Path) -> None:
    log = open_log(tmp_path, leader=False)
    log.become_follower(5)
    feed(log, at(batch(10), 0, 5))
    log.become_leader(7, sole_replica=True)
    log._segments.set_epochs(log.leader_epochs)
    log.become_follower(8)
    segment = str(tmp_path / f"{0:020d}.log")
    faults.inject([Fault("pwritev", errno=errno.EIO, path_prefix=segment)])
    with pytest.raises(KafkaStorageError):
        feed(log, at(batch(), 10, 5))
    assert log.log_end_offset == 10
    text = (tmp_path / "leader-epoch-checkpoint").read_text()
    assert decode_leader_epochs(text, "").entries == (EpochStart(5, 0),)
    log.drop()


# -- after the follower ----------------------------------------------------------------------------


def test_follower_that_becomes_leader_knows_duplicates_and_open_transactions(
    tmp_path: Path,
) -> None:
    leader = open_log(tmp_path / "leader")
    for sequence in range(3):
        put(leader, batch(1, producer_id=5, epoch=0, sequence=sequence))
    append_verified(leader, batch(1, producer_id=6, epoch=0, sequence=0, transactional=True))
    log = follower_of(leader, tmp_path / "follower")
    feed(log, read_all(leader))
    log.become_leader(1, sole_replica=True)
    again = log.append_as_leader(batch(1, producer_id=5, epoch=0, sequence=1), now_ms=NOW_MS)
    assert (again.status, again.base_offset) == (DUPLICATE, 1)
    assert log.last_stable_offset == 3
    log.transactions.append_marker(6, 0, COMMIT, now_ms=NOW_MS)
    assert log.last_stable_offset == log.log_end_offset == 5
    for one in (leader, log):
        one.close()


def test_guard_from_before_does_not_begin_a_transaction_after_the_leaders_marker(
    tmp_path: Path,
) -> None:
    log = open_log(tmp_path)
    begins = batch(1, producer_id=5, epoch=0, sequence=0, transactional=True)
    guard = approved(log, begins)
    log.become_follower(1)
    marker = control_batch(
        abort=True, offset=1, timestamp=NOW_MS, producer_id=5, producer_epoch=0,
        coordinator_epoch=0, leader_epoch=1,
    )  # fmt: skip
    feed(log, at(begins, 0, 1) + marker)
    log.become_leader(2, sole_replica=True)
    late = batch(1, producer_id=5, epoch=0, sequence=1, transactional=True)
    with pytest.raises(InvalidTxnState):
        log.append_as_leader(late, now_ms=NOW_MS, guard=guard)
    log.close()


def test_abort_is_known_before_its_marker_is_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = open_log(tmp_path, leader=False)
    log.become_follower(0)
    feed(log, at(batch(1, producer_id=6, epoch=0, sequence=0, transactional=True), 0, 0))
    known: list[tuple[int, int]] = []
    append = follower_append.append

    def watched(*args: Any, **options: Any) -> FetchedAppend:
        if options["is_decided"]:
            known.append((log.log_end_offset, len(log.transactions.aborted_between(0, 1))))
        return append(*args, **options)

    monkeypatch.setattr(follower_append, "append", watched)
    feed(log, ending(1, 6))
    assert known == [(1, 1)]
    assert len(log.transactions.aborted_between(0, 2)) == 1
    log.close()


def test_epoch_is_known_though_the_index_of_its_first_marker_could_not_be_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = open_log(tmp_path, leader=False)
    log.become_follower(2)
    feed(log, at(batch(1, producer_id=6, epoch=0, sequence=0, transactional=True), 0, 1))

    def fail(*args: object) -> None:
        raise OSError(errno.ENOSPC, "no room")

    with monkeypatch.context() as patched:
        patched.setattr(LogFiles, "append_aborted", fail)
        with pytest.raises(KafkaStorageError):
            feed(log, at(ending(1, 6), 1, 2) + at(batch(), 2, 2))
    assert log.log_end_offset == 2
    feed(log, at(batch(), 2, 2))
    assert log.leader_epochs.entries == (EpochStart(1, 0), EpochStart(2, 1))
    known = knowledge(log)
    log.close()
    log = open_log(tmp_path, leader=False)
    assert restored(knowledge(log)) == restored(known)
    assert len(log.transactions.aborted_between(0, 3)) == 1
    log.close()


def test_marker_shows_to_readers_once_the_high_watermark_has_passed_it(tmp_path: Path) -> None:
    leader = open_log(tmp_path / "leader")
    append_verified(leader, batch(2, producer_id=6, epoch=0, sequence=0, transactional=True))
    leader.transactions.append_marker(6, 0, ABORT, now_ms=NOW_MS)
    log = follower_of(leader, tmp_path / "follower")
    feed(log, read_all(leader))
    assert log.transactions.aborted_between(0, 3)
    log.native.advance_high_watermark(2)
    assert log.last_stable_offset == 0
    log.native.advance_high_watermark(3)
    assert log.last_stable_offset == 3
    for one in (leader, log):
        one.close()


def test_follower_takes_the_leaders_log_start_offset_below_its_high_watermark(
    tmp_path: Path,
) -> None:
    log = open_log(tmp_path, SETTINGS, leader=False)
    log.become_follower(3)
    feed(log, at(batch(10), 0, 2) + at(batch(10), 10, 3))
    log.native.advance_high_watermark(15)
    assert log.delete_records_before(12) == 12
    assert log.delete_records_before(4) == 12
    assert log.leader_epochs.entries == (EpochStart(3, 12),)
    log.close()


def test_append_after_a_truncation_whose_cut_failed_finds_a_cut_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = open_log(tmp_path, leader=False)
    log.become_follower(1)
    feed(log, at(batch(), 0, 0) + at(batch(value=bytes(500)), 1, 0))

    def fail(*args: object) -> None:
        raise OSError(errno.ENOSPC, "no cut")

    with monkeypatch.context() as patched:
        patched.setattr(LogFiles, "cut", fail)
        with pytest.raises(KafkaStorageError):
            log.truncate_to(1)
    assert log.log_end_offset == 1
    feed(log, at(batch(), 1, 1))
    data = (tmp_path / f"{0:020d}.log").read_bytes()
    assert [header.base_offset for header in scan(data)] == [0, 1]
    log.close()
