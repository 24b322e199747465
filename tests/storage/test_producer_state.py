"""The producers' rules, and that the struct's rule of the ordinary batch is the same one."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from plog._native.batch import BatchHeader, read_header
from plog._native.partition_log import (
    APPENDED,
    DUPLICATE,
    PRODUCER_UNUSUAL,
    ProducerEntry,
    SequencedBatch,
)
from plog.errors import (
    InvalidProducerEpoch,
    InvalidRecord,
    InvalidTxnState,
    KafkaError,
    OutOfOrderSequenceNumber,
    TransactionCoordinatorFenced,
)
from plog.storage.producer_state import (
    MAX_SEQUENCE,
    ONLY_ZERO_NEXT,
    Marker,
    ProducerReplay,
    Verdict,
    WindowRefill,
    apply,
    check,
    complete,
    decide,
    decide_marker,
    decide_own,
    expired,
    next_sequence,
    sequenced,
)
from tests.agreement.harness import run_seed

from .storage_logs import NOW_MS, batch, open_log

PID = 77


def entry(
    *batches: SequencedBatch, epoch: int = 3, txn: int = -1, timestamp: int = 5
) -> ProducerEntry:
    return ProducerEntry(PID, epoch, batches, timestamp, -1, txn, 0)


def seen(first: int, last: int, last_offset: int = 100) -> SequencedBatch:
    return SequencedBatch(first, last, last_offset, (last - first) % (1 << 31), 5)


def header(
    sequence: int, count: int = 10, *, epoch: int = 3, transactional: bool = False, base: int = 0
) -> BatchHeader:
    data = batch(
        count, producer_id=PID, epoch=epoch, sequence=sequence, transactional=transactional
    )
    return read_header(data)._replace(base_offset=base)


FIVE = [seen(n * 10, n * 10 + 9, n * 10 + 9) for n in range(5)]


@pytest.mark.parametrize(
    ("known", "given", "verdict"),
    [
        (None, header(0), Verdict.UNUSUAL),
        (entry(), header(4711), Verdict.ORDINARY),  # nothing known: any sequence
        (entry(seen(0, 9)), header(10), Verdict.ORDINARY),
        (entry(seen(0, 9)), header(11), Verdict.UNUSUAL),
        (entry(seen(0, 9)), header(9), Verdict.UNUSUAL),
        (entry(seen(0, 9)), header(0), Verdict.DUPLICATE),
        (entry(seen(0, 9)), header(0, 9), Verdict.UNUSUAL),  # same start, other end
        (entry(*FIVE), header(0), Verdict.DUPLICATE),
        (entry(*FIVE), header(40), Verdict.DUPLICATE),
        (entry(*FIVE), header(50), Verdict.ORDINARY),
        (entry(*FIVE[1:]), header(0), Verdict.UNUSUAL),  # forgotten
        (entry(seen(0, 9)), header(10, epoch=4), Verdict.UNUSUAL),
        (entry(seen(0, 9)), header(10, epoch=2), Verdict.UNUSUAL),
        (entry(ONLY_ZERO_NEXT), header(0), Verdict.ORDINARY),
        (entry(ONLY_ZERO_NEXT), header(1), Verdict.UNUSUAL),
        (entry(seen(MAX_SEQUENCE - 9, MAX_SEQUENCE)), header(0), Verdict.ORDINARY),
        (entry(seen(MAX_SEQUENCE - 9, MAX_SEQUENCE)), header(1), Verdict.UNUSUAL),
        (entry(seen(MAX_SEQUENCE - 4, 4)), header(5), Verdict.ORDINARY),
        (entry(seen(MAX_SEQUENCE - 4, 4)), header(MAX_SEQUENCE - 4), Verdict.DUPLICATE),
        (entry(seen(0, 9)), header(10, transactional=True), Verdict.UNUSUAL),
        (entry(seen(0, 9), txn=50), header(10, transactional=True), Verdict.ORDINARY),
        (entry(seen(0, 9), txn=50), header(10), Verdict.UNUSUAL),
        (entry(seen(0, 9), txn=50), header(0), Verdict.DUPLICATE),
    ],
)
def test_check_knows_the_ordinary_batch(
    known: ProducerEntry | None, given: BatchHeader, verdict: Verdict
) -> None:
    assert check(known, given)[0] is verdict


def test_batch_without_producer_is_ordinary() -> None:
    assert check(None, read_header(batch(1))) == (Verdict.ORDINARY, None)


@pytest.mark.parametrize("producer_id", [-1, -2, -(1 << 63)])
def test_negative_producer_id_is_none(producer_id: int) -> None:
    """As for Kafka, and for the struct: a batch in the log may have any."""
    nobodys = header(0, transactional=True)._replace(producer_id=producer_id)
    assert check(None, nobodys) == (Verdict.ORDINARY, None)
    replay = ProducerReplay()
    replay.on_batch(nobodys)
    assert replay.on_marker(nobodys, Marker(abort=True, coordinator_epoch=0)) is None
    assert replay.entries == {}


def test_duplicate_comes_with_its_first_copy() -> None:
    assert check(entry(*FIVE), header(20)) == (Verdict.DUPLICATE, FIVE[2])


@pytest.mark.parametrize(
    ("known", "given", "refusal"),
    [
        (entry(seen(0, 9)), header(10, epoch=2), InvalidProducerEpoch),
        (entry(seen(0, 9)), header(0, epoch=2), InvalidProducerEpoch),
        (entry(seen(0, 9)), header(10, epoch=4), OutOfOrderSequenceNumber),
        (entry(seen(0, 9)), header(20), OutOfOrderSequenceNumber),
        (entry(*FIVE[1:]), header(0), OutOfOrderSequenceNumber),  # 45, not 46, in 3.9
        (entry(ONLY_ZERO_NEXT), header(5), OutOfOrderSequenceNumber),
        (entry(seen(0, 9), txn=50), header(10), InvalidTxnState),
        (None, header(0)._replace(base_sequence=-1), InvalidRecord),
        (entry(), header(0)._replace(base_sequence=-1), InvalidRecord),
    ],
)
def test_decide_refuses(
    known: ProducerEntry | None, given: BatchHeader, refusal: type[KafkaError]
) -> None:
    with pytest.raises(refusal):
        decide(known, given)


def test_decide_accepts_any_sequence_of_an_unknown_producer() -> None:
    assert decide(None, header(4711)) == ProducerEntry(PID, 3, (), -1, -1, -1, 0)


def test_decide_lets_a_new_epoch_start_at_zero() -> None:
    old = entry(*FIVE)._replace(version=9, coordinator_epoch=6)
    assert decide(old, header(0, epoch=4)) == old._replace(producer_epoch=4, batches=())


def test_decide_lets_a_transaction_begin() -> None:
    known = entry(seen(0, 9))
    begins = header(10, transactional=True)
    assert decide(known, begins, is_verified=True) == known
    with pytest.raises(InvalidTxnState, match="outside an ongoing transaction"):
        decide(known, begins)
    with pytest.raises(InvalidTxnState):
        decide(None, header(0, transactional=True))


def test_decide_own_takes_what_has_no_numbers() -> None:
    known = entry(seen(0, 9))
    own = header(-1, transactional=True)
    assert decide_own(known, own, is_verified=True) == known
    assert decide_own(entry(seen(0, 9), txn=50), own, is_verified=False).producer_id == PID
    assert decide_own(None, own, is_verified=True).batches == ()
    later = header(-1, epoch=4, transactional=True)
    assert decide_own(known, later, is_verified=True).producer_epoch == 4
    for refused in (None, known):
        with pytest.raises(InvalidTxnState):
            decide_own(refused, own, is_verified=False)
    with pytest.raises(InvalidProducerEpoch):
        decide_own(known, header(-1, epoch=2, transactional=True), is_verified=True)


def test_marker_with_an_epoch_of_its_own_does_not_end_a_later_transaction() -> None:
    ends = Marker(abort=False, coordinator_epoch=6, has_own_epoch=True)
    before = entry(epoch=2, txn=10)
    after = decide_marker(before, header(-1, epoch=3), ends)
    assert (after.producer_epoch, after.current_txn_first_offset) == (3, -1)
    # The same again, of a coordinator that does not know that it is there.
    assert decide_marker(after, header(-1, epoch=3), ends) == after
    later = after._replace(current_txn_first_offset=20)
    with pytest.raises(InvalidProducerEpoch):
        decide_marker(later, header(-1, epoch=3), ends)
    plain = ends._replace(has_own_epoch=False)
    assert decide_marker(later, header(-1, epoch=3), plain).current_txn_first_offset == -1


def test_transaction_with_an_epoch_of_its_own_begins_at_0() -> None:
    first, later = header(0, transactional=True), header(4, transactional=True)
    for known in (None, entry()):
        with pytest.raises(OutOfOrderSequenceNumber):
            decide(known, later, is_verified=True, from_zero=True)
        assert decide(known, first, is_verified=True, from_zero=True)
        assert decide(known, later, is_verified=True)
    # Its client was of version 1 until now, where epochs last.
    assert decide(entry(seen(0, 3)), later, is_verified=True, from_zero=True)
    with pytest.raises(OutOfOrderSequenceNumber):
        decide(entry(seen(0, 2)), later, is_verified=True, from_zero=True)
    with pytest.raises(OutOfOrderSequenceNumber):
        decide(entry(seen(0, 3), epoch=2), later, is_verified=True, from_zero=True)


def test_decide_marker_fences_older_producers_and_older_coordinators() -> None:
    known = entry(seen(0, 9), txn=50)._replace(coordinator_epoch=6)
    ends = Marker(abort=True, coordinator_epoch=6)
    decided = decide_marker(known, header(-1), ends)
    assert (decided.current_txn_first_offset, decided.version) == (-1, known.version)
    assert decide_marker(None, header(-1), ends).coordinator_epoch == 6
    assert decide_marker(known, header(-1, epoch=4), ends).producer_epoch == 4
    with pytest.raises(InvalidProducerEpoch):
        decide_marker(known, header(-1, epoch=2), ends)
    with pytest.raises(TransactionCoordinatorFenced):
        decide_marker(known, header(-1), Marker(abort=True, coordinator_epoch=5))


@pytest.mark.parametrize(
    ("sequence", "by", "result"),
    [(0, 1, 1), (MAX_SEQUENCE, 1, 0), (MAX_SEQUENCE - 1, 5, 3), (-1, 1, 0)],
)
def test_next_sequence_wraps(sequence: int, by: int, result: int) -> None:
    assert next_sequence(sequence, by) == result


# -- the same rule in the struct -------------------------------------------------------------------


def test_struct_and_python_judge_random_batches_alike(tmp_path: Path) -> None:
    """Drives a real log with near-miss batches; each is judged by both, then by Python alone."""
    chance = random.Random(run_seed())
    log = open_log(tmp_path / "flights-0")
    native = log.native
    judged = dict.fromkeys(Verdict, 0)
    for _ in range(3000):
        pid = chance.randrange(3)
        known = native.producer(pid)
        last = known.batches[-1].last_sequence if known and known.batches else 0
        epoch = (known.producer_epoch if known else 0) + chance.choice([0] * 12 + [1, -1])
        count = chance.randint(1, 3)
        sequence = (last + chance.choice([1, 1, 1, 1, 1, 0, 2, -2, -5])) % (1 << 31)
        if known and known.batches and chance.random() < 0.2:
            old = chance.choice(known.batches)
            sequence, count = old.first_sequence, old.offset_delta + 1
        if chance.random() < 0.02:
            sequence = chance.choice([0, MAX_SEQUENCE - 1])
        transactional = chance.random() < 0.1
        data = batch(
            count,
            producer_id=pid,
            epoch=max(epoch, 0),
            sequence=sequence,
            transactional=transactional,
        )
        given = read_header(data)
        verdict, copy = check(known, given)
        judged[verdict] += 1
        appended = native.append(data, NOW_MS)
        match verdict:
            case Verdict.ORDINARY:
                assert appended.status == APPENDED
            case Verdict.DUPLICATE:
                assert copy is not None
                assert appended.status == DUPLICATE
                assert appended.last_offset == copy.last_offset
                assert appended.base_offset == copy.last_offset - copy.offset_delta
                assert appended.timestamp == copy.timestamp
            case Verdict.UNUSUAL:
                assert appended.status == PRODUCER_UNUSUAL
                try:
                    decided = decide(known, given)
                except KafkaError:
                    continue
                appended = native.append(data, NOW_MS, decided)
                assert appended.status == APPENDED
        if appended.status == APPENDED:
            # Replay by Python gives what the struct remembers.
            after = native.producer(pid)
            assert after is not None
            replayed = apply(known, read_header(data))
            if known is None or known.producer_epoch != given.producer_epoch or known.batches:
                assert after._replace(version=0) == replayed._replace(version=0)
    assert min(judged.values()) > 100, judged


# -- replay ----------------------------------------------------------------------------------------


def test_apply_does_not_question_the_log() -> None:
    known = entry(seen(0, 9))
    gap = header(500, epoch=1, base=40)  # a gap and an old epoch
    assert apply(known, gap) == known._replace(
        producer_epoch=1, batches=(sequenced(gap),), last_timestamp=gap.max_timestamp
    )


def test_apply_remembers_five_batches() -> None:
    known: ProducerEntry | None = None
    for n in range(7):
        known = apply(known, header(n * 10, base=n * 10))
    assert known is not None
    assert [one.first_sequence for one in known.batches] == [20, 30, 40, 50, 60]


def test_marker_ends_the_transaction_and_fences_by_a_newer_epoch() -> None:
    known = apply(None, header(0, transactional=True, base=40))
    assert known.current_txn_first_offset == 40
    marker = header(0, 1, epoch=4, base=50)
    after, completed = complete(known, marker, Marker(abort=True, coordinator_epoch=8))
    assert completed == (PID, 40, 50, True)
    assert after.current_txn_first_offset == -1
    assert after.coordinator_epoch == 8
    assert after.producer_epoch == 4
    assert check(after, header(0, epoch=4))[0] is Verdict.ORDINARY
    assert check(after, header(1, epoch=4))[0] is Verdict.UNUSUAL


def test_marker_of_the_same_epoch_keeps_the_sequence() -> None:
    known = apply(None, header(0, transactional=True, base=40))
    after, _ = complete(known, header(0, 1, base=50), Marker(False, 1))
    assert check(after, header(10, transactional=False))[0] is Verdict.ORDINARY


def test_marker_without_data_completes_nothing() -> None:
    replay = ProducerReplay()
    assert replay.on_marker(header(0, 1, base=9), Marker(True, 2)) is None
    assert replay.entries[PID].coordinator_epoch == 2


def test_emptied_marker_tells_the_epoch_and_completes_nothing() -> None:
    replay = ProducerReplay()
    replay.on_batch(header(0, transactional=True, base=40))
    replay.on_emptied_marker(header(-1, epoch=4, base=50)._replace(records_count=0))
    after = replay.entries[PID]
    assert (after.producer_epoch, after.batches) == (4, ())
    assert after.current_txn_first_offset == 40
    # Of an epoch that is known already it tells nothing, and what is known stays.
    replay.on_batch(header(0, epoch=4, base=51))
    before = replay.entries[PID]
    replay.on_emptied_marker(header(-1, epoch=4, base=61)._replace(records_count=0))
    assert replay.entries[PID] == before
    nobodys = header(-1, base=62)._replace(producer_id=-1, records_count=0)
    replay.on_emptied_marker(nobodys)
    assert list(replay.entries) == [PID]


def test_emptied_marker_is_enough_to_fence_a_producer() -> None:
    replay = ProducerReplay()
    replay.on_emptied_marker(header(-1, epoch=4, base=50)._replace(records_count=0))
    known = replay.entries[PID]
    with pytest.raises(InvalidProducerEpoch):
        decide(known, header(0, epoch=3))
    assert check(known, header(0, epoch=4))[0] is Verdict.ORDINARY


def test_replay_knows_the_first_unstable_offset() -> None:
    replay = ProducerReplay()
    assert replay.first_unstable_offset() is None
    replay.on_batch(header(0, transactional=True, base=40))
    replay.on_batch(header(0, transactional=True, base=30)._replace(producer_id=5))
    assert replay.first_unstable_offset() == 30
    replay.on_marker(header(0, 1, base=60)._replace(producer_id=5), Marker(False, 0))
    assert replay.first_unstable_offset() == 40


# -- the window of five ----------------------------------------------------------------------------


def test_refill_finds_the_four_batches_before() -> None:
    refill = WindowRefill([entry(seen(60, 69, 69))])
    for n in (6, 5, 4, 3, 2, 1):
        refill.on_batch(header(n * 10, base=n * 10))
    assert [one.first_sequence for one in refill.entries[PID].batches] == [20, 30, 40, 50, 60]
    assert not refill.wanting


def test_refill_stops_at_the_first_sequence() -> None:
    refill = WindowRefill([entry(seen(10, 19, 19))])
    assert refill.wanting
    refill.on_batch(header(0, base=0))
    assert len(refill.entries[PID].batches) == 2
    assert not refill.wanting


@pytest.mark.parametrize(
    "stranger",
    [header(0, epoch=2, base=0), header(3, base=0)],
    ids=["another epoch", "no neighbour"],
)
def test_refill_stops_where_the_chain_breaks(stranger: BatchHeader) -> None:
    refill = WindowRefill([entry(seen(10, 19, 19))])
    refill.on_batch(stranger)
    assert refill.entries[PID].batches == (seen(10, 19, 19),)
    assert not refill.wanting


def test_refill_wants_nothing_of_producers_without_batches() -> None:
    assert not WindowRefill([entry(), entry(ONLY_ZERO_NEXT), entry(*FIVE)]).wanting


# -- expiry ----------------------------------------------------------------------------------------


def test_only_silent_producers_outside_transactions_expire() -> None:
    silent = entry(timestamp=1000)
    in_transaction = entry(timestamp=1000, txn=4)
    young = entry(timestamp=1001)
    found = expired([silent, in_transaction, young], now_ms=2000, expiration_ms=1000)
    assert list(found) == [silent]
