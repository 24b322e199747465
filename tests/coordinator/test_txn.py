"""A transactional id's machine: scenes with the answers that Kafka's clients expect in them."""

from __future__ import annotations

from dataclasses import replace

import pytest

from plog.coordinator.txn import EPOCH_PER_TRANSACTION, LARGEST_EPOCH, LAST_EPOCH, MOST_WAITING, Txn
from plog.coordinator.txn_connections import Sender, Way
from plog.coordinator.txn_events import NO_PRODUCER, Producer, TxnAnswer, TxnValue, WriteMarkers
from plog.coordinator.txn_states import END_ANSWERS, OF_OUTCOME, TxnState
from plog.errors import ErrorCode
from plog.types import TopicPartition
from tests.coordinator.txn_play import EXPIRATION_MS, TIMEOUT_MS, A, B, Play, at

NONE, AGAIN = ErrorCode.NONE, ErrorCode.CONCURRENT_TRANSACTIONS
FENCED, NOT_MINE = ErrorCode.PRODUCER_FENCED, ErrorCode.INVALID_PRODUCER_ID_MAPPING
BAD_STATE = ErrorCode.INVALID_TXN_STATE
OPEN = TxnValue(
    5, 3, TIMEOUT_MS, TxnState.ONGOING, frozenset({A}), 10 * TIMEOUT_MS, 10 * TIMEOUT_MS
)


# -- the ordinary life of a transaction ------------------------------------------------------------


def test_first_producer_is_of_epoch_0_and_each_later_one_of_the_next() -> None:
    play = Play()
    first = play.producer(play.init())
    assert first == Producer(100, 0)
    assert play.state is TxnState.EMPTY
    assert play.producer(play.init()) == Producer(100, 1)
    assert play.txn.value == TxnValue(
        100, 1, TIMEOUT_MS, TxnState.EMPTY, frozenset(), updated_ms=1_000
    )


@pytest.mark.parametrize("commit", [True, False])
def test_transaction_ends_in_every_partition_that_joined(commit: bool) -> None:
    play = Play()
    producer = play.begun(A)
    play.now_ms += 5
    assert play.error(play.add(producer, B)) is NONE
    assert play.txn.value is not None
    assert (play.txn.value.started_ms, play.txn.value.updated_ms) == (1_000, 1_005)
    assert play.error(play.end(producer, commit=commit)) is NONE
    assert play.markers == [WriteMarkers(producer, commit, frozenset({A, B}))]
    assert play.state is (TxnState.PREPARE_COMMIT if commit else TxnState.PREPARE_ABORT)
    play.mark()
    assert play.state is (TxnState.COMPLETE_COMMIT if commit else TxnState.COMPLETE_ABORT)
    assert play.txn.value.partitions == frozenset()
    assert play.error(play.add(producer, B)) is NONE
    assert play.txn.value.partitions == {B}


def test_partition_that_is_in_it_joins_without_a_record() -> None:
    play = Play()
    producer = play.begun(A, B)
    written = len(play.log)
    assert play.error(play.add(producer, A)) is NONE
    assert len(play.log) == written


def test_nothing_holds_before_it_is_in_the_log() -> None:
    play = Play(stores_at_once=False)
    first = play.init()
    assert first not in play.answers
    assert play.error(play.init()) is AGAIN
    play.store()
    producer = play.producer(first)
    joins = play.add(producer, A)
    assert joins not in play.answers
    assert play.txn.missing(producer, [A]) == {A}
    assert play.error(play.commit(producer)) is AGAIN
    play.store()
    assert play.txn.missing(producer, [A, B]) == {B}
    ends = play.commit(producer)
    assert play.markers == []
    assert play.txn.missing(producer, [A]) is AGAIN
    play.store()
    assert play.error(ends) is NONE
    assert len(play.markers) == 1


def test_what_cannot_be_stored_never_was() -> None:
    play = Play(stores_at_once=False)
    lost = play.init()
    play.store(ErrorCode.COORDINATOR_NOT_AVAILABLE)
    assert play.error(lost) is ErrorCode.COORDINATOR_NOT_AVAILABLE
    assert play.txn.is_idle
    first = play.init()
    play.store()
    producer = play.producer(first)
    play.add(producer, A)
    play.store(ErrorCode.NOT_COORDINATOR)
    assert play.state is TxnState.EMPTY
    play.add(producer, A)
    play.store()
    play.commit(producer)
    play.store(ErrorCode.NOT_COORDINATOR)
    assert play.state is TxnState.ONGOING
    assert play.markers == []


def test_completion_that_cannot_be_stored_is_tried_again() -> None:
    play = Play()
    producer = play.begun()
    play.commit(producer)
    play.stores_at_once = False
    play.mark()
    play.store(ErrorCode.COORDINATOR_NOT_AVAILABLE)
    assert (play.later, play.state) == (1, TxnState.PREPARE_COMMIT)
    assert play.error(play.commit(producer)) is AGAIN
    play.stores_at_once = True
    play.mark()
    assert play.state is TxnState.COMPLETE_COMMIT


def test_transaction_waits_for_who_refuses_its_marker_and_does_not_say_it_is_to_have_it() -> None:
    play = Play()
    producer = play.begun(A, B)
    play.commit(producer)
    play.refuse(A)
    play.mark(B)
    assert play.txn.partitions == frozenset()
    assert play.state is TxnState.PREPARE_COMMIT
    assert play.error(play.init()) is play.error(play.commit(producer)) is AGAIN
    joins = play.add(producer, B)
    play.give_up(joins)
    assert play.error(joins) is AGAIN
    play.mark(A)
    assert play.state is TxnState.PREPARE_COMMIT
    play.mark()
    assert play.state is TxnState.COMPLETE_COMMIT
    assert play.error(play.add(producer, A)) is NONE
    assert play.txn.partitions == {A}


def test_who_begins_the_next_transaction_waits_for_the_markers_of_the_last() -> None:
    play = Play()
    producer = play.begun(A)
    play.commit(producer)
    joins, other = play.add(producer, B), play.add(producer, A)
    assert joins not in play.answers
    play.stores_at_once = False
    play.mark()
    late = play.add(producer, A)
    assert not {joins, other, late} & play.answers.keys()
    play.store()  # that the last one is complete
    play.store()  # that the next one has begun
    assert play.error(joins) is NONE
    assert not {other, late} & play.answers.keys()
    play.store()
    assert play.error(other) is play.error(late) is NONE
    assert play.txn.value is not None
    assert play.txn.value.partitions == {A, B}


def test_broker_gets_an_error_at_once_while_markers_are_due_but_waits_for_another_join() -> None:
    play = Play()
    producer = play.begun(A)
    play.commit(producer)
    play.stores_at_once = False
    refused = play.add(producer, B, awaits_markers=False)
    assert play.error(refused) is AGAIN
    play.mark()
    unfinished = play.add(producer, B, awaits_markers=False)
    assert play.error(unfinished) is AGAIN
    play.store()  # that the last one is complete
    joins = play.add(producer, B, awaits_markers=False)
    other = play.add(producer, A, awaits_markers=False)
    assert not {joins, other} & play.answers.keys()
    play.store()
    play.store()
    assert play.error(joins) is play.error(other) is NONE
    assert play.txn.partitions == {A, B}


def test_nobody_waits_for_ever_nor_with_many() -> None:
    play = Play()
    producer = play.begun(A)
    play.commit(producer)
    tokens = [play.add(producer, B) for _ in range(MOST_WAITING + 1)]
    assert play.error(tokens[-1]) is AGAIN
    play.give_up(tokens[0])
    assert play.error(tokens[0]) is AGAIN
    play.give_up(tokens[0])
    play.mark()
    assert {play.error(token) for token in tokens[1:-1]} == {NONE}


# -- who is who ------------------------------------------------------------------------------------


def test_stranger_and_the_fenced_are_told_apart() -> None:
    play = Play()
    producer = play.begun()
    stranger, late = Producer(7, 0), Producer(producer.id, producer.epoch - 1)
    early = Producer(producer.id, producer.epoch + 1)
    for who, error in ((stranger, NOT_MINE), (late, FENCED), (early, FENCED)):
        assert play.error(play.add(who, B)) is error
        assert play.error(play.commit(who)) is error
        assert play.txn.missing(who, [A]) is error
    assert play.state is TxnState.ONGOING


def test_unknown_transactional_id_has_no_producer() -> None:
    play = Play()
    assert play.error(play.add(Producer(1, 0), A)) is NOT_MINE
    assert play.error(play.commit(Producer(1, 0))) is NOT_MINE
    assert play.error(play.commit(Producer(1, 0), raises=True)) is NOT_MINE
    assert play.txn.is_idle


def test_new_producer_ends_the_old_ones_transaction_first() -> None:
    play = Play()
    old = play.begun(A, B)
    assert play.error(play.init()) is AGAIN
    assert play.markers == [WriteMarkers(Producer(old.id, 1), False, frozenset({A, B}))]
    assert play.error(play.commit(old)) is FENCED
    assert play.error(play.add(old, A)) is FENCED
    assert play.error(play.init()) is AGAIN  # markers are on their way
    play.mark()
    assert play.producer(play.init()) == Producer(old.id, 2)


def test_new_producer_whose_fence_is_not_stored_fences_again_under_the_same_epoch() -> None:
    play = Play()
    old = play.begun()
    play.stores_at_once = False
    first = play.init()
    play.store(ErrorCode.COORDINATOR_NOT_AVAILABLE)
    assert play.error(first) is ErrorCode.COORDINATOR_NOT_AVAILABLE
    play.init()
    play.store()
    assert play.markers[0].producer == Producer(old.id, old.epoch + 1)


# -- a producer that goes on (KIP-360) -------------------------------------------------------------


def test_producer_that_goes_on_gets_the_next_epoch_also_when_it_asks_again() -> None:
    play = Play()
    was = play.producer(play.init())
    told = play.producer(play.init(was))
    assert told == Producer(was.id, was.epoch + 1)
    assert play.producer(play.init(was)) == told  # it had not heard
    assert play.producer(play.init(told)) == Producer(was.id, told.epoch + 1)
    assert play.error(play.init(was)) is FENCED


def test_producer_cannot_go_on_after_a_new_one() -> None:
    play = Play()
    was = play.producer(play.init())
    play.init()
    assert play.error(play.init(was)) is FENCED
    assert play.error(play.init(Producer(7, 0))) is FENCED


def test_zombie_that_would_go_on_does_not_end_its_successors_transaction() -> None:
    play = Play()
    zombie = play.producer(play.init())
    play.begun()
    assert play.error(play.init(zombie)) is FENCED
    assert play.state is TxnState.ONGOING


def test_epochs_that_are_used_up_bring_a_new_producer_id() -> None:
    old = TxnValue(5, LAST_EPOCH, TIMEOUT_MS, TxnState.EMPTY, updated_ms=0)
    play = Play(old)
    assert play.txn.needs_producer_id
    was = Producer(5, LAST_EPOCH)
    told = play.producer(play.init(was))
    assert told == Producer(100, 0)
    assert play.txn.value is not None
    assert play.txn.value.previous_producer_id == 5
    assert play.producer(play.init(was)) == told
    assert play.error(play.init(Producer(5, LAST_EPOCH - 1))) is FENCED


def test_fence_of_the_last_epoch_is_the_largest() -> None:
    play = Play(TxnValue(5, LAST_EPOCH, TIMEOUT_MS, TxnState.ONGOING, frozenset({A}), 0, 0))
    assert play.error(play.init()) is AGAIN
    assert play.markers[0].producer == Producer(5, LARGEST_EPOCH)
    play.mark()
    assert play.producer(play.init()).epoch == 0


# -- EndTxn again ----------------------------------------------------------------------------------


@pytest.mark.parametrize("state", [s for s in TxnState if (s, True) in END_ANSWERS])
@pytest.mark.parametrize("commit", [True, False])
def test_end_by_state(state: TxnState, commit: bool) -> None:
    partitions = frozenset({A}) if state in (1, 2, 3) else frozenset()
    play = Play(TxnValue(5, 3, TIMEOUT_MS, state, partitions, 0, 0))
    token = play.end(Producer(5, 3), commit=commit)
    expected = END_ANSWERS[state, commit]
    assert play.error(token) is (NONE if expected is None else expected)
    assert len(play.log) == (2 if state is TxnState.ONGOING else 1)


def test_partitions_join_one_after_another() -> None:
    play = Play(stores_at_once=False)
    first = play.init()
    play.store()
    producer = play.producer(first)
    one, other = play.add(producer, A), play.add(producer, B)
    play.store()
    assert play.error(one) is NONE
    assert other not in play.answers
    assert play.error(play.commit(producer)) is AGAIN
    play.store()
    assert play.error(other) is NONE
    assert play.txn.missing(producer, [A, B]) == frozenset()


def test_partition_that_waits_joins_although_the_one_before_could_not() -> None:
    play = Play(stores_at_once=False)
    first = play.init()
    play.store()
    producer = play.producer(first)
    lost, other = play.add(producer, A), play.add(producer, B)
    play.store(ErrorCode.NOT_COORDINATOR)
    assert play.error(lost) is ErrorCode.NOT_COORDINATOR
    play.store()
    assert play.error(other) is NONE
    assert play.txn.missing(producer, [A, B]) == {A}


@pytest.mark.parametrize("commit", [True, False])
def test_end_by_a_connection_before_that_of_the_last_end_is_an_earlier_transactions(
    commit: bool,
) -> None:
    play = Play()
    producer = play.begun()
    play.connection = 8  # the one that comes late was asked again by it
    assert play.error(play.commit(producer)) is NONE
    play.mark()
    assert play.error(play.add(producer, A)) is NONE
    play.connection = 7
    assert play.error(play.end(producer, commit=commit)) is ErrorCode.INVALID_PRODUCER_EPOCH
    assert play.state is TxnState.ONGOING
    play.connection = 9  # its client has connected anew
    assert play.error(play.end(producer, commit=commit)) is NONE


@pytest.mark.parametrize("is_open", [False, True])
def test_partitions_that_join_by_a_connection_before_the_last_ends_are_of_an_earlier_transaction(
    is_open: bool,
) -> None:
    play = Play()
    producer = play.begun()
    play.connection = 8
    assert play.error(play.add(producer, A)) is NONE  # which has been asked again
    assert play.error(play.commit(producer)) is NONE
    play.mark()
    if is_open:
        assert play.error(play.add(producer, B)) is NONE
    before = play.log[-1]
    play.connection = 7
    assert play.error(play.add(producer, A)) is ErrorCode.INVALID_PRODUCER_EPOCH
    assert play.log[-1] is before
    play.connection = 9
    assert play.error(play.add(producer, A)) is NONE


def test_writes_come_late_by_the_connections_of_their_kind_and_of_those_that_share_them() -> None:
    play = Play()
    producer = play.begun()  # by 7
    ways = (Way.PRODUCE, Way.OFFSETS)
    for way, by in ((Way.PRODUCE, 3), (Way.OFFSETS, 7)):
        assert play.txn.takes(producer, Sender(way, at(by)))
    play.connection = 8
    assert play.error(play.commit(producer)) is NONE
    assert play.txn.takes(Producer(producer.id, producer.epoch + 1), Sender(Way.OFFSETS, at(1)))
    for by, taken in ((2, [False, False]), (3, [True, False]), (7, [True, False]), (8, [True] * 2)):
        assert [play.txn.takes(producer, Sender(way, at(by))) for way in ways] == taken, by
    play.mark()
    again = play.producer(play.init())
    assert play.txn.takes(again, Sender(Way.OFFSETS, at(1)))


@pytest.mark.parametrize("raises", [False, True])
def test_producer_of_a_new_epoch_may_have_an_older_connection(raises: bool) -> None:
    play = Play()
    play.connection = 9
    first = play.begun()
    play.commit(first)
    play.mark()
    play.connection = 5
    second = play.producer(play.init())
    assert play.error(play.add(second, A)) is NONE
    assert play.error(play.commit(second, raises=raises)) is NONE


def test_answer_that_was_lost_with_its_connection_is_told_by_any() -> None:
    play = Play()
    producer = play.begun()
    play.connection = 8
    assert play.error(play.commit(producer)) is NONE
    play.mark()
    play.connection = 7
    assert play.error(play.commit(producer)) is NONE


# -- version 2 (KIP-890) ---------------------------------------------------------------------------


@pytest.mark.parametrize("commit", [True, False])
def test_each_end_raises_the_epoch_and_is_told_again(commit: bool) -> None:
    play = Play()
    first = play.begun(version=EPOCH_PER_TRANSACTION)
    token = play.end(first, commit=commit, raises=True)
    second = play.producer(token)
    assert second == Producer(first.id, first.epoch + 1)
    assert play.markers == [WriteMarkers(second, commit, frozenset({A}), EPOCH_PER_TRANSACTION)]
    assert play.error(play.end(first, commit=commit, raises=True)) is AGAIN
    assert play.error(play.end(first, commit=not commit, raises=True)) is AGAIN
    play.mark()
    assert play.producer(play.end(first, commit=commit, raises=True)) == second
    assert play.error(play.end(first, commit=not commit, raises=True)) is BAD_STATE


@pytest.mark.parametrize("commit", [True, False])
def test_next_transaction_that_is_given_up_at_once_waits_for_the_markers(commit: bool) -> None:
    """Java's client says so also of one that it has sent nothing of."""
    play = Play()
    first = play.begun(version=EPOCH_PER_TRANSACTION)
    second = play.producer(play.end(first, commit=commit, raises=True))
    assert play.error(play.abort(second, raises=True)) is AGAIN
    play.mark()
    assert play.producer(play.abort(second, raises=True)).epoch == second.epoch + 1


def test_late_end_does_not_touch_the_next_transaction() -> None:
    play = Play()
    first = play.begun(version=EPOCH_PER_TRANSACTION)
    second = play.producer(play.commit(first, raises=True))
    play.mark()
    assert play.error(play.add(second, B, version=EPOCH_PER_TRANSACTION)) is NONE
    assert play.error(play.commit(first, raises=True)) is FENCED
    assert play.error(play.add(first, B)) is FENCED
    assert play.state is TxnState.ONGOING


def test_abort_without_a_transaction_raises_the_epoch_and_a_commit_is_refused() -> None:
    play = Play()
    first = play.producer(play.init())
    assert play.error(play.commit(first, raises=True)) is BAD_STATE
    second = play.producer(play.abort(first, raises=True))
    assert second.epoch == first.epoch + 1
    assert play.markers == [WriteMarkers(second, False, frozenset(), EPOCH_PER_TRANSACTION)]
    play.mark()
    assert play.error(play.commit(second, raises=True)) is BAD_STATE
    assert play.producer(play.abort(first, raises=True)) == second


def test_end_under_the_last_epoch_brings_a_new_producer_id() -> None:
    value = TxnValue(
        5, LAST_EPOCH, TIMEOUT_MS, TxnState.ONGOING, frozenset({A}), 0, 0, client_version=2
    )
    play = Play(value)
    old = Producer(5, LAST_EPOCH)
    token = play.commit(old, raises=True)
    told = play.producer(token)
    assert told.epoch == 0
    assert told.id != 5
    assert play.markers == [
        WriteMarkers(Producer(5, LARGEST_EPOCH), True, frozenset({A}), EPOCH_PER_TRANSACTION)
    ]
    assert play.error(play.commit(old, raises=True)) is AGAIN
    assert play.txn.value is not None
    assert play.txn.value.producer == Producer(5, LARGEST_EPOCH)
    play.mark()
    assert play.txn.value.producer == told
    assert play.producer(play.commit(old, raises=True)) == told
    assert play.error(play.add(told, B, version=EPOCH_PER_TRANSACTION)) is NONE
    assert play.error(play.commit(old, raises=True)) is NOT_MINE


@pytest.mark.parametrize("is_marked", [False, True])
def test_new_producer_id_of_a_last_epoch_waits_for_the_markers(is_marked: bool) -> None:
    value = TxnValue(
        5, LAST_EPOCH, TIMEOUT_MS, TxnState.ONGOING, frozenset({A}), 0, 0, client_version=2
    )
    play = Play(value)
    told = play.producer(play.commit(Producer(5, LAST_EPOCH), raises=True))
    play.stores_at_once = False
    if is_marked:
        play.mark()  # and not stored yet
    joins = play.add(told, B, version=EPOCH_PER_TRANSACTION)
    stranger = Producer(told.id, told.epoch + 1)
    assert play.error(play.add(stranger, B, version=EPOCH_PER_TRANSACTION)) is NOT_MINE
    assert play.error(play.commit(told, raises=True)) is AGAIN
    assert joins not in play.answers
    if not is_marked:
        play.mark()
    play.store()
    play.store()
    assert play.error(joins) is NONE
    assert play.state is TxnState.ONGOING


def test_end_under_an_epoch_that_none_can_follow_brings_a_new_producer_id() -> None:
    value = TxnValue(5, LARGEST_EPOCH, TIMEOUT_MS, TxnState.ONGOING, frozenset({A}), 0, 0)
    play = Play(value)  # Kafka may have written it
    told = play.producer(play.commit(value.producer, raises=True))
    assert (told.epoch, play.markers[0].producer) == (0, Producer(5, LARGEST_EPOCH))


def test_client_of_version_1_may_follow_one_of_version_2() -> None:
    play = Play()
    first = play.begun(version=EPOCH_PER_TRANSACTION)
    second = play.producer(play.commit(first, raises=True))
    play.mark()
    assert play.error(play.add(second, A)) is NONE
    assert play.answers[play.commit(second)] == TxnAnswer(NONE, NO_PRODUCER)


@pytest.mark.parametrize("commit", [True, False])
def test_transaction_that_version_2_began_may_end_by_version_1(commit: bool) -> None:
    play = Play()
    producer = play.begun(version=EPOCH_PER_TRANSACTION)
    assert play.error(play.end(producer, commit=commit)) is NONE
    # A marker of version 2 has an epoch of its own: this one would end nothing.
    assert play.markers == [WriteMarkers(producer, commit, frozenset({A}))]
    play.mark()
    assert play.error(play.end(producer, commit=commit)) is NONE
    assert play.error(play.add(producer, A, version=EPOCH_PER_TRANSACTION)) is NONE


# -- time ------------------------------------------------------------------------------------------


def test_transaction_that_takes_too_long_is_aborted_and_its_producer_fenced() -> None:
    play = Play()
    producer = play.begun()
    play.wait(TIMEOUT_MS)
    assert play.state is TxnState.ONGOING
    play.wait(1)
    assert play.markers == [
        WriteMarkers(Producer(producer.id, producer.epoch + 1), False, frozenset({A}))
    ]
    assert play.error(play.commit(producer)) is FENCED
    play.mark()
    assert play.state is TxnState.COMPLETE_ABORT
    assert play.error(play.commit(producer)) is FENCED


@pytest.mark.parametrize("step_ms", [10 * TIMEOUT_MS, -10 * TIMEOUT_MS])
def test_clock_that_is_set_neither_ends_a_transaction_nor_keeps_it(step_ms: int) -> None:
    play = Play()
    play.begun()
    play.now_ms += step_ms
    play.wait(TIMEOUT_MS)
    assert play.state is TxnState.ONGOING
    play.wait(1)
    assert play.state is TxnState.PREPARE_ABORT


@pytest.mark.parametrize("age_ms", [0, 10, TIMEOUT_MS])
def test_transaction_that_was_read_is_as_old_as_the_clock_says(age_ms: int) -> None:
    play = Play(OPEN)
    play.now_ms = OPEN.started_ms + age_ms
    play.wait(0)
    play.now_ms -= 10 * TIMEOUT_MS  # from now on the time counts that passes
    play.wait(TIMEOUT_MS - age_ms)
    assert play.state is TxnState.ONGOING
    play.wait(1)
    assert play.state is TxnState.PREPARE_ABORT


def test_transaction_of_a_time_to_come_is_as_if_it_had_just_begun() -> None:
    play = Play(OPEN)
    play.now_ms = OPEN.started_ms - 10 * TIMEOUT_MS
    play.wait(0)
    play.wait(TIMEOUT_MS)
    assert play.state is TxnState.ONGOING
    play.wait(1)
    assert play.state is TxnState.PREPARE_ABORT


def test_each_transaction_has_its_own_time() -> None:
    play = Play()
    producer = play.begun()
    play.wait(TIMEOUT_MS - 1)
    play.commit(producer)
    play.mark()
    play.add(producer, A)
    play.wait(TIMEOUT_MS)
    play.add(producer, B)  # which does not begin it anew
    assert play.state is TxnState.ONGOING
    play.wait(1)
    assert play.state is TxnState.PREPARE_ABORT


@pytest.mark.parametrize("version", [1, EPOCH_PER_TRANSACTION])
def test_producer_that_took_too_long_goes_on_under_the_next_epoch(version: int) -> None:
    play = Play()
    producer = play.begun(version=version)
    play.wait(TIMEOUT_MS + 1)
    assert play.error(play.init(was=producer)) is AGAIN
    play.mark()
    after = Producer(producer.id, producer.epoch + 1)
    for _ in range(2):  # as often as it asks
        assert play.producer(play.init(was=producer)) == after
    assert play.producer(play.init()) == Producer(producer.id, producer.epoch + 2)
    assert play.error(play.init(was=producer)) is FENCED
    assert play.error(play.init(was=after)) is FENCED


def test_producer_that_took_too_long_is_told_its_next_epoch_when_it_aborts_too() -> None:
    play = Play()
    producer = play.begun(version=EPOCH_PER_TRANSACTION)
    play.wait(TIMEOUT_MS + 1)
    assert play.error(play.commit(producer, raises=True)) is AGAIN
    assert play.error(play.abort(producer, raises=True)) is AGAIN
    play.mark()
    assert play.error(play.commit(producer, raises=True)) is BAD_STATE
    assert play.producer(play.abort(producer, raises=True)).epoch == producer.epoch + 1
    assert play.state is TxnState.COMPLETE_ABORT


def test_producer_that_goes_on_in_the_middle_of_its_transaction_is_told_the_next_epoch() -> None:
    play = Play()
    producer = play.begun(version=EPOCH_PER_TRANSACTION)
    assert play.error(play.init(was=producer)) is AGAIN
    play.mark()
    assert play.producer(play.init(was=producer)).epoch == producer.epoch + 1


def test_producer_that_took_too_long_under_the_last_epoch_goes_on_by_another_id() -> None:
    value = TxnValue(5, LAST_EPOCH, TIMEOUT_MS, TxnState.ONGOING, frozenset({A}), 0, 0)
    play = Play(value)
    play.wait(TIMEOUT_MS + 1)
    play.mark()
    after = play.producer(play.init(was=value.producer))
    assert after.id != 5
    assert after.epoch == 0


def test_fenced_producer_with_epochs_of_its_own_is_not_told_the_next_one() -> None:
    play = Play()
    producer = play.begun(version=EPOCH_PER_TRANSACTION)
    assert play.error(play.init()) is AGAIN
    for _ in range(2):  # before the markers are written, and after
        assert play.error(play.abort(producer, raises=True)) is FENCED
        assert play.error(play.commit(producer, raises=True)) is FENCED
        assert play.error(play.init(was=producer)) is not NONE
        play.mark()
    assert play.state is TxnState.COMPLETE_ABORT
    again = play.producer(play.init())
    assert again.epoch == producer.epoch + 3


def test_fenced_producer_of_the_last_epoch_is_not_told_the_largest() -> None:
    value = TxnValue(
        5, LAST_EPOCH, TIMEOUT_MS, TxnState.ONGOING, frozenset({A}), 0, 0, client_version=2
    )
    play = Play(value)
    play.wait(TIMEOUT_MS + 1)
    for _ in range(2):  # before the markers are written, and after
        assert play.error(play.abort(value.producer, raises=True)) is FENCED
        assert play.error(play.commit(value.producer, raises=True)) is FENCED
        play.mark()
    assert play.state is TxnState.COMPLETE_ABORT
    assert play.producer(play.init()).epoch == 0


def test_what_nobody_uses_is_forgotten() -> None:
    play = Play()
    producer = play.begun()
    play.commit(producer)
    play.mark()
    play.wait(EXPIRATION_MS - 1)
    assert play.forgotten == 0
    play.wait(1)
    assert (play.forgotten, play.log[-1]) == (1, None)
    assert play.txn.is_idle
    assert play.error(play.add(producer, A)) is NOT_MINE
    assert play.producer(play.init(producer)) != producer


def test_neither_time_disturbs_what_is_being_decided() -> None:
    play = Play()
    producer = play.begun()
    play.commit(producer)
    play.wait(10 * EXPIRATION_MS)
    assert play.state is TxnState.PREPARE_COMMIT
    play.stores_at_once = False
    play.mark()
    play.wait(10 * EXPIRATION_MS)
    assert len(play.unstored) == 1


# -- after a crash ---------------------------------------------------------------------------------


LIFE = ["EMPTY", "ONGOING", "PREPARE", "COMPLETE"]
"""What is stored of a first transaction, one after the other."""


@pytest.mark.parametrize("raises", [False, True], ids=["v1", "v2"])
@pytest.mark.parametrize("commit", [True, False], ids=["commit", "abort"])
@pytest.mark.parametrize("stored", LIFE)
def test_coordinator_goes_on_from_whatever_was_stored_last(
    stored: str, commit: bool, raises: bool
) -> None:
    before = Play()
    producer = before.begun(A, B, version=EPOCH_PER_TRANSACTION if raises else 0)
    before.end(producer, commit=commit, raises=raises)
    before.mark()
    prepared, complete = OF_OUTCOME[commit]
    assert [value and value.state for value in before.log] == [
        TxnState.EMPTY,
        TxnState.ONGOING,
        prepared,
        complete,
    ]
    after = Play(before.log[LIFE.index(stored)])
    after.do(after.txn.resume())
    ended = Producer(producer.id, producer.epoch + raises)
    version = EPOCH_PER_TRANSACTION if raises else 0
    markers = [WriteMarkers(ended, commit, frozenset({A, B}), version)]
    assert after.markers == (markers if stored == "PREPARE" else [])
    if stored == "EMPTY":
        assert after.error(after.commit(producer, raises=raises)) is BAD_STATE
        assert after.error(after.add(producer, A)) is NONE
        return
    if stored == "ONGOING":
        assert after.txn.missing(producer, [A, B]) == frozenset()
        assert after.error(after.end(producer, commit=commit, raises=raises)) is NONE
        assert after.markers == markers
    if stored != "COMPLETE":
        assert after.error(after.end(producer, commit=commit, raises=raises)) is AGAIN
        after.mark()
    assert after.state is complete
    again = after.end(producer, commit=commit, raises=raises)
    assert after.answers[again] == TxnAnswer(NONE, ended if raises else NO_PRODUCER)
    assert after.error(after.end(producer, commit=not commit, raises=raises)) is BAD_STATE
    assert len(after.log) == 1 + LIFE[::-1].index(stored)


def test_an_answer_to_a_store_of_before_is_not_taken() -> None:
    play = Play(stores_at_once=False)
    play.init()
    stored = play.unstored[0]
    play.store()
    txn = play.txn
    play.unstored.append(replace(stored))
    play.store()
    assert isinstance(txn, Txn)
    assert play.state is TxnState.EMPTY


def test_partitions_of_other_topics_are_missing() -> None:
    play = Play()
    producer = play.begun(A)
    other = TopicPartition("a", 1)
    assert play.txn.missing(producer, [A, other]) == {other}
