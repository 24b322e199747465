"""Producers in one partition's log: the ordinary next batch, transactions, and the rest."""

from __future__ import annotations

import errno
import random
from collections.abc import Iterator
from pathlib import Path

import pytest

from plog._native import faults
from plog._native.faults import Fault
from plog._native.log_append import appended
from plog._native.partition_guards import grant_ahead
from plog._native.partition_log import (
    APPENDED,
    DUPLICATE,
    PRODUCER_UNUSUAL,
    ROLL_NEEDED,
    WRITE_FAILED,
    Appended,
    PartitionLog,
    ProducerEntry,
    SequencedBatch,
)

from .partition_logs import CONTROL, TRANSACTIONAL, Directory, make_batch

LAST_SEQUENCE = 2147483647
NEW = ProducerEntry(7, 0, (), -1, -1, -1, 0)


@pytest.fixture(autouse=True)
def real_calls() -> Iterator[None]:
    yield
    faults.inject([])


@pytest.fixture
def directory(tmp_path: Path) -> Directory:
    return Directory(tmp_path / "t-0")


@pytest.fixture
def log(directory: Directory) -> PartitionLog:
    return directory.log()


def forget(log: PartitionLog, *producer_ids: int) -> None:
    for producer_id in producer_ids:
        known = log.producer(producer_id)
        version = 0 if known is None else known.version
        assert log.remove_producer(producer_id, version) is (known is not None)


def send(
    log: PartitionLog,
    sequence: int,
    records: int = 1,
    *,
    producer_id: int = 7,
    epoch: int = 0,
    timestamp: int = 1000,
    attributes: int = 0,
    decided: ProducerEntry | None = None,
) -> Appended:
    batch = make_batch(
        records,
        70,
        producer_id=producer_id,
        epoch=epoch,
        sequence=sequence,
        timestamp=timestamp,
        attributes=attributes,
    )
    return log.append(batch, 0, decided)


def entry_of(log: PartitionLog, producer_id: int = 7) -> ProducerEntry:
    entry = log.producer(producer_id)
    assert entry is not None
    return entry


# --- sequences ------------------------------------------------------------------------------------


def test_unknown_producer_is_for_python_to_decide(log: PartitionLog) -> None:
    assert send(log, 0).status == PRODUCER_UNUSUAL
    assert log.log_end_offset == 0
    assert log.put_producer(NEW, 0)
    assert send(log, 40, 3, timestamp=55).status == APPENDED  # any sequence may come first
    assert entry_of(log) == ProducerEntry(
        7, 0, (SequencedBatch(40, 42, 2, 2, 55),), 55, -1, -1, entry_of(log).version
    )


def test_sixth_batch_back_is_no_duplicate_any_more(log: PartitionLog) -> None:
    log.put_producer(NEW, 0)
    sent = [send(log, n * 2, 2, timestamp=n) for n in range(6)]
    for n in range(1, 6):
        again = send(log, n * 2, 2, timestamp=99)
        assert again[:6] == (DUPLICATE, n * 2, n * 2 + 1, n, 0, 0)
        assert again.base_offset == sent[n].base_offset
    assert send(log, 0, 2).status == PRODUCER_UNUSUAL
    assert log.log_end_offset == 12


@pytest.mark.parametrize(
    ("sequence", "records", "epoch"),
    [
        (11, 1, 0),  # a gap
        (9, 1, 0),  # behind, and not one of the last
        (5, 4, 0),  # begins like the last one, but is shorter
        (6, 5, 0),  # ends like the last one, but is shorter
        (10, 1, 1),  # a new epoch
        (10, 1, -1),  # none
        (-1, 1, 0),  # no sequence
    ],
)
def test_batch_out_of_the_ordinary_is_not_appended(
    log: PartitionLog, sequence: int, records: int, epoch: int
) -> None:
    log.put_producer(NEW, 0)
    send(log, 0, 5)
    send(log, 5, 5)
    before = entry_of(log)
    assert send(log, sequence, records, epoch=epoch).status == PRODUCER_UNUSUAL
    assert entry_of(log) == before
    assert send(log, 10).status == APPENDED


def test_batch_of_an_old_epoch_is_unusual_even_if_it_looks_repeated(log: PartitionLog) -> None:
    log.put_producer(NEW._replace(producer_epoch=3), 0)
    send(log, 0, epoch=3)
    assert send(log, 0, epoch=2).status == PRODUCER_UNUSUAL


@pytest.mark.parametrize("records", [1, 2, 3, 10])
def test_sequences_wrap_to_zero(log: PartitionLog, records: int) -> None:
    log.put_producer(NEW, 0)
    first = LAST_SEQUENCE - 1
    assert send(log, first, records).status == APPENDED
    last = (first + records - 1) % (1 << 31)
    assert entry_of(log).batches[0][:2] == (first, last)
    assert send(log, first, records).status == DUPLICATE
    following = (last + 1) % (1 << 31)
    assert send(log, (following + 1) % (1 << 31)).status == PRODUCER_UNUSUAL
    assert send(log, following).status == APPENDED


def test_producers_do_not_disturb_each_other(log: PartitionLog) -> None:
    for producer_id in range(100):
        log.put_producer(NEW._replace(producer_id=producer_id), 0)
    for sequence in range(3):
        for producer_id in range(100):
            assert send(log, sequence, producer_id=producer_id).status == APPENDED
    assert send(log, 3, producer_id=100).status == PRODUCER_UNUSUAL
    forget(log, *range(0, 200, 2))
    assert sorted(e.producer_id for e in log.producers()) == list(range(1, 100, 2))
    for producer_id in range(100):
        ordinary = producer_id % 2 == 1
        status = send(log, 3, producer_id=producer_id).status
        assert status == (APPENDED if ordinary else PRODUCER_UNUSUAL)


def test_batches_without_a_producer_are_not_remembered(log: PartitionLog) -> None:
    assert send(log, -1, producer_id=-1, epoch=-1).status == APPENDED
    assert log.producers() == []


def test_duplicate_is_answered_though_the_segment_is_full(log: PartitionLog) -> None:
    log.put_producer(NEW, 0)
    send(log, 0)
    log.set_limits(
        segment_bytes=71, segment_ms=1 << 40, segment_jitter_ms=0, index_interval_bytes=4096
    )
    assert send(log, 0).status == DUPLICATE
    assert send(log, 1).status == ROLL_NEEDED
    assert send(log, 9).status == PRODUCER_UNUSUAL


def test_failed_write_leaves_the_producer_alone(log: PartitionLog) -> None:
    log.put_producer(NEW, 0)
    send(log, 0)
    before = entry_of(log)
    faults.inject([Fault("pwritev", errno=errno.ENOSPC)])
    assert send(log, 1).status == WRITE_FAILED
    assert send(log, 0, producer_id=8, decided=NEW._replace(producer_id=8)).status == WRITE_FAILED
    faults.inject([])
    assert log.producers() == [before]
    assert send(log, 1).status == APPENDED


# --- what Python publishes ------------------------------------------------------------------------


def test_put_needs_the_version_it_was_decided_upon(log: PartitionLog) -> None:
    assert log.producer(7) is None
    assert not log.put_producer(NEW, 5)
    assert log.put_producer(NEW, 0)
    assert not log.put_producer(NEW._replace(producer_epoch=1), 0)
    first = entry_of(log)
    send(log, 0)
    assert not log.put_producer(NEW._replace(producer_epoch=1), first.version)
    before = entry_of(log).version
    assert log.put_producer(NEW._replace(producer_epoch=1), before)
    assert entry_of(log).producer_epoch == 1
    assert not log.remove_producer(7, before)
    assert entry_of(log).producer_epoch == 1
    forget(log, 7)
    assert log.put_producer(NEW, 0)
    # A version is never given twice, so that an old decision cannot pass for a new one.
    assert entry_of(log).version > first.version


def test_loaded_producers_replace_the_old_ones(log: PartitionLog) -> None:
    log.put_producer(NEW, 0)
    send(log, 0)
    old = entry_of(log)
    batches = tuple(SequencedBatch(n, n, 10 + n, 0, n) for n in range(5))
    loaded = [ProducerEntry(9, 2, batches, 77, 4, -1), NEW]
    log.load_producers(loaded)
    assert sorted(e._replace(version=0) for e in log.producers()) == sorted(loaded)
    assert not log.put_producer(NEW, old.version)
    assert send(log, 5, producer_id=9, epoch=2).status == APPENDED
    assert entry_of(log, 9).batches[-1][:2] == (5, 5)


@pytest.mark.parametrize(
    "wrong",
    [
        NEW._replace(producer_id=-1),
        NEW._replace(batches=(SequencedBatch(0, 0, 0, 0, 0),) * 6),
        NEW._replace(current_txn_first_offset=-2),
    ],
)
def test_impossible_entry_is_refused(log: PartitionLog, wrong: ProducerEntry) -> None:
    for call in (
        lambda: log.put_producer(wrong, 0),
        lambda: log.load_producers([NEW, wrong]),
        lambda: send(log, 0, decided=wrong),
    ):
        with pytest.raises(ValueError, match=r"produc"):
            call()
    assert log.producers() == []


def test_decided_entry_is_published_with_its_batch_only(log: PartitionLog) -> None:
    decided = NEW._replace(producer_epoch=1)
    log.set_limits(
        segment_bytes=71, segment_ms=1 << 40, segment_jitter_ms=0, index_interval_bytes=4096
    )
    send(log, -1, producer_id=-1, epoch=-1)
    assert send(log, 0, epoch=1, decided=decided).status == ROLL_NEEDED
    assert log.producer(7) is None
    log.set_limits(
        segment_bytes=1000, segment_ms=1 << 40, segment_jitter_ms=0, index_interval_bytes=4096
    )
    assert send(log, 0, epoch=1, decided=decided).base_offset == 1
    assert entry_of(log).batches == (SequencedBatch(0, 0, 1, 0, 1000),)
    # The entry has changed since, so the same decision does not hold.
    assert send(log, 1, epoch=1, decided=decided).status == PRODUCER_UNUSUAL
    bumped = entry_of(log)._replace(producer_epoch=2, batches=())
    assert send(log, 0, epoch=2, decided=bumped).status == APPENDED
    assert entry_of(log).producer_epoch == 2
    assert [b.last_offset for b in entry_of(log).batches] == [2]
    # Nor does another producer's.
    assert send(log, 1, producer_id=8, decided=NEW).status == PRODUCER_UNUSUAL


# --- transactions ---------------------------------------------------------------------------------


def begin(log: PartitionLog, producer_id: int) -> int:
    entry = log.producer(producer_id) or NEW._replace(producer_id=producer_id)
    sequence = entry.batches[-1].last_sequence + 1 if entry.batches else 0
    assert (
        send(log, sequence, producer_id=producer_id, attributes=TRANSACTIONAL).status
        == PRODUCER_UNUSUAL
    )
    sent = send(log, sequence, producer_id=producer_id, attributes=TRANSACTIONAL, decided=entry)
    assert sent.status == APPENDED
    return sent.base_offset


def end(log: PartitionLog, producer_id: int) -> int:
    entry = entry_of(log, producer_id)
    marker = {"producer_id": producer_id, "attributes": TRANSACTIONAL | CONTROL}
    assert send(log, -1, **marker).status == PRODUCER_UNUSUAL
    closed = entry._replace(current_txn_first_offset=-1, coordinator_epoch=3)
    sent = send(log, -1, **marker, decided=closed)
    assert sent.status == APPENDED
    after = entry_of(log, producer_id)
    assert after.batches == entry.batches  # a marker has no sequence
    assert after.coordinator_epoch == 3
    return sent.base_offset


def test_transaction_opens_at_its_first_batch(log: PartitionLog) -> None:
    send(log, -1, producer_id=-1, epoch=-1)
    assert begin(log, 7) == 1
    assert entry_of(log).current_txn_first_offset == 1
    assert send(log, 1, attributes=TRANSACTIONAL).status == APPENDED
    assert entry_of(log).current_txn_first_offset == 1
    assert send(log, 2).status == PRODUCER_UNUSUAL  # forgets that it is in a transaction
    assert send(log, 1, attributes=TRANSACTIONAL).status == DUPLICATE
    assert (log.high_watermark, log.last_stable_offset) == (3, 1)
    assert end(log, 7) == 3
    assert (log.high_watermark, log.last_stable_offset) == (4, 4)


def test_earliest_open_transaction_holds_the_stable_offset(log: PartitionLog) -> None:
    firsts = {producer_id: begin(log, producer_id) for producer_id in (1, 2, 3, 4)}
    assert firsts == {1: 0, 2: 1, 3: 2, 4: 3}
    end(log, 2)
    assert log.last_stable_offset == 0
    end(log, 1)
    assert log.last_stable_offset == 2
    forget(log, 3)
    assert log.last_stable_offset == 3
    end(log, 4)
    assert log.last_stable_offset == log.log_end_offset


def test_records_are_counted_once_they_are_written_and_markers_are_none(log: PartitionLog) -> None:
    records, size = appended()
    assert send(log, 0, 5, decided=NEW).status == APPENDED
    assert send(log, 0, 5).status == DUPLICATE
    assert appended()[0] == records + 5
    begin(log, 8)
    end(log, 8)
    assert appended()[0] == records + 6
    assert appended()[1] == size + log.state().size_bytes
    faults.inject([Fault("pwritev", errno=errno.EIO)])
    assert send(log, 5, 5).status == WRITE_FAILED
    assert appended() == (records + 6, size + log.state().size_bytes)


def test_marker_above_the_high_watermark_ends_nothing_yet(log: PartitionLog) -> None:
    log.set_leader(6, writable=True, sole_replica=False)
    begin(log, 1)  # 0
    begin(log, 2)  # 1
    assert end(log, 2) == 2
    assert end(log, 1) == 3
    for high_watermark, stable in ((1, 0), (2, 0), (3, 0), (4, 4)):
        log.advance_high_watermark(high_watermark)
        assert log.last_stable_offset == stable
    begin(log, 1)  # 4
    log.advance_high_watermark(5)
    assert log.last_stable_offset == 4


def test_truncation_takes_markers_back(directory: Directory, log: PartitionLog) -> None:
    log.set_leader(6, writable=True, sole_replica=False)
    begin(log, 1)
    entry = entry_of(log, 1)
    end(log, 1)
    log.truncate([directory.segment(0, size_bytes=70, next_offset=1)], 1)
    log.load_producers([entry])
    log.advance_high_watermark(1)
    assert log.last_stable_offset == 0
    assert end(log, 1) == 1
    log.advance_high_watermark(2)
    assert log.last_stable_offset == 2


def test_loaded_transactions_are_open(log: PartitionLog) -> None:
    for _ in range(10):
        send(log, -1, producer_id=-1, epoch=-1)
    entries = [
        NEW._replace(producer_id=n, current_txn_first_offset=first)
        for n, first in enumerate([6, 3, -1, 9, 3])
    ]
    log.load_producers(entries)
    assert log.last_stable_offset == 3
    for gone, stable in ((1, 3), (3, 3), (4, 6), (0, 10)):
        forget(log, gone)
        assert log.last_stable_offset == stable


def test_stable_offset_is_never_below_the_log_start(log: PartitionLog) -> None:
    begin(log, 1)
    send(log, 1, producer_id=1, attributes=TRANSACTIONAL)
    log.set_log_start_offset(1)
    assert log.last_stable_offset == 1


# --- against a model ------------------------------------------------------------------------------


class Model:
    """The rule of the ordinary next batch, the plain way."""

    def __init__(self) -> None:
        self.end = 0
        self.epochs: dict[int, int] = {}
        self.batches: dict[int, list[SequencedBatch]] = {}

    def append(self, producer_id: int, epoch: int, first: int, records: int, stamp: int) -> tuple:
        last = (first + records - 1) % (1 << 31)
        known = self.batches.get(producer_id, [])
        if self.epochs.get(producer_id) != epoch:
            return (PRODUCER_UNUSUAL, -1, -1, -1)
        for batch in known[-5:]:
            if (batch.first_sequence, batch.last_sequence) == (first, last):
                return (
                    DUPLICATE,
                    batch.last_offset - batch.offset_delta,
                    batch.last_offset,
                    batch.timestamp,
                )
        if known and (known[-1].last_sequence + 1) % (1 << 31) != first:
            return (PRODUCER_UNUSUAL, -1, -1, -1)
        base, self.end = self.end, self.end + records
        known.append(SequencedBatch(first, last, self.end - 1, records - 1, stamp))
        return (APPENDED, base, self.end - 1, stamp)


@pytest.mark.parametrize("seed", range(8))
def test_random_sequences_agree_with_the_model(log: PartitionLog, seed: int) -> None:
    print(f"seed {seed}")
    rng = random.Random(seed)
    model = Model()
    statuses = []
    ids = [rng.randrange(1 << 62) for _ in range(3)] + list(range(1000, 1012))
    for step in range(4000):
        producer_id = rng.choice(ids)
        known = model.batches.get(producer_id, [])
        kind = rng.random()
        if producer_id not in model.epochs or kind < 0.02:
            entry = log.producer(producer_id)
            assert (entry is None) == (producer_id not in model.epochs)
            epoch = model.epochs.get(producer_id, -1) + 1
            fresh = ProducerEntry(producer_id, epoch, (), -1, -1, -1)
            assert log.put_producer(fresh, 0 if entry is None else entry.version)
            model.epochs[producer_id] = epoch
            model.batches[producer_id] = []
            continue
        if kind < 0.03:
            forget(log, producer_id)
            del model.epochs[producer_id], model.batches[producer_id]
            continue
        first, records = rng.choice([0, LAST_SEQUENCE - 2, 5]), rng.randint(1, 4)
        if known and kind < 0.3:  # a copy of a late batch, or nearly one
            batch = rng.choice(known[-8:])
            first, records = batch.first_sequence, batch.offset_delta + rng.choice([1, 1, 1, 2])
        elif known:
            first = (known[-1].last_sequence + rng.choice([1] * 9 + [0, 2])) % (1 << 31)
        epoch = model.epochs[producer_id] + rng.choice([0] * 20 + [-1, 1])
        sent = send(log, first, records, producer_id=producer_id, epoch=epoch, timestamp=step)
        expected = model.append(producer_id, epoch, first, records, step)
        assert sent[:4] == expected, step
        statuses.append(sent.status)
    assert set(statuses) == {APPENDED, DUPLICATE, PRODUCER_UNUSUAL}
    assert log.log_end_offset == model.end
    remembered = {e.producer_id: (e.producer_epoch, list(e.batches)) for e in log.producers()}
    assert remembered == {
        producer_id: (epoch, model.batches[producer_id][-5:])
        for producer_id, epoch in model.epochs.items()
    }


# -- the guards of who begins a transaction --------------------------------------------------------
# What they are good for shows with requests: tests/handlers/test_fast_transactions.py. Their life
# is in test_partition_guards.py.


def test_handlers_batch_has_no_use_of_what_is_granted_ahead(log: PartitionLog) -> None:
    send(log, 0, decided=NEW)
    assert grant_ahead(log, 7, 0, b"x", 1)
    assert send(log, 1, attributes=TRANSACTIONAL).status == PRODUCER_UNUSUAL
