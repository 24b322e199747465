"""What a follower does with an answer: which check comes first, and that logs come to agree."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from plog.cluster.replication.fetch_decisions import (
    Answer,
    Asked,
    Decision,
    Do,
    Range,
    Replica,
    ask,
    decide,
    decide_by_epoch_end,
    decide_by_range,
    high_watermark_after,
)
from plog.errors import ErrorCode
from plog.storage.leader_epochs import EpochEnd, EpochStart, LeaderEpochs

EPOCHS = LeaderEpochs([EpochStart(1, 0), EpochStart(3, 10), EpochStart(4, 20)])
REPLICA = Replica(
    leader_epoch=6,
    log_start_offset=0,
    log_end_offset=30,
    durable_end=30,
    high_watermark=12,
    epochs=EPOCHS,
)


def answer(
    error: ErrorCode = ErrorCode.NONE,
    *,
    diverging: EpochEnd | None = None,
    high_watermark: int = 25,
    log_start_offset: int = 0,
) -> Answer:
    return Answer(error, high_watermark, log_start_offset, diverging)


def test_follower_asks_from_what_is_durable_with_the_epoch_of_its_last_batch() -> None:
    assert ask(REPLICA) == Asked(6, 30, 4)
    assert ask(REPLICA._replace(durable_end=20)) == Asked(6, 20, 3)
    begun = EPOCHS.assign(5, 30)
    assert ask(REPLICA._replace(epochs=begun)) == Asked(6, 30, 4), "epoch 5 has no batch"
    empty = REPLICA._replace(log_start_offset=30)
    assert ask(empty) == Asked(6, 30, -1), "no batch is left"


def test_batches_are_appended_and_bring_both_ends() -> None:
    found = decide(REPLICA, ask(REPLICA), answer(high_watermark=27, log_start_offset=3))
    assert found == Decision(Do.APPEND, high_watermark=27, log_start_offset=3)


@pytest.mark.parametrize(
    "change",
    [
        {"leader_epoch": 7},
        {"durable_end": 20},
        {"epochs": LeaderEpochs([EpochStart(5, 0)])},
    ],
    ids=["another leader epoch", "cut since", "another history"],
)
@pytest.mark.parametrize("error", [ErrorCode.NONE, ErrorCode.FENCED_LEADER_EPOCH])
def test_answer_to_another_question_is_ignored(change: dict, error: ErrorCode) -> None:
    asked = ask(REPLICA)
    diverging = EpochEnd(1, 5)
    now = REPLICA._replace(**change)
    assert decide(now, asked, answer(error, diverging=diverging)) == Decision(Do.FETCH_AGAIN)
    assert decide_by_range(now, asked, Range(50, 60)) == Decision(Do.FETCH_AGAIN)
    assert decide_by_epoch_end(now, asked, diverging) == Decision(Do.FETCH_AGAIN)


def test_answer_is_ignored_while_its_predecessor_is_being_written() -> None:
    asked = ask(REPLICA)
    assert decide(REPLICA._replace(log_end_offset=40), asked, answer()).do is Do.FETCH_AGAIN


@pytest.mark.parametrize(
    ("error", "do"),
    [
        (ErrorCode.OFFSET_OUT_OF_RANGE, Do.ASK_RANGE),
        (ErrorCode.FENCED_LEADER_EPOCH, Do.AWAIT_ORDER),
        (ErrorCode.UNKNOWN_LEADER_EPOCH, Do.FETCH_LATER),
        (ErrorCode.NOT_LEADER_OR_FOLLOWER, Do.FETCH_LATER),
        (ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, Do.FETCH_LATER),
        (ErrorCode.UNKNOWN_TOPIC_ID, Do.FETCH_LATER),
        (ErrorCode.INCONSISTENT_TOPIC_ID, Do.FETCH_LATER),
        (ErrorCode.KAFKA_STORAGE_ERROR, Do.FETCH_LATER),
        (ErrorCode.REPLICA_NOT_AVAILABLE, Do.FETCH_LATER),
        (ErrorCode.UNKNOWN_SERVER_ERROR, Do.FETCH_LATER),
    ],
)
def test_errors(error: ErrorCode, do: Do) -> None:
    assert decide(REPLICA, ask(REPLICA), answer(error)) == Decision(do)


@pytest.mark.parametrize(
    ("diverging", "decision"),
    [
        (EpochEnd(4, 25), Decision(Do.CUT, 25)),
        (EpochEnd(3, 15), Decision(Do.CUT, 15)),
        (EpochEnd(3, 28), Decision(Do.CUT, 20)),  # its epoch 3 is longer: here 4 begins
        (EpochEnd(2, 15), Decision(Do.CUT, 10)),  # epoch 2 is unknown here
        (EpochEnd(1, 0), Decision(Do.CUT, 0)),
        (EpochEnd(4, 40), Decision(Do.FETCH_LATER)),  # nothing to cut: it contradicts itself
    ],
)
def test_log_is_cut_where_it_parts_and_nothing_else_is_believed(
    diverging: EpochEnd, decision: Decision
) -> None:
    asked = ask(REPLICA)
    assert decide(REPLICA, asked, answer(diverging=diverging)) == decision
    assert decide_by_epoch_end(REPLICA, asked, diverging) == (
        decision if diverging != (4, 40) else Decision(Do.FETCH_AGAIN)
    )


def test_log_that_parts_below_its_start_begins_again() -> None:
    started = REPLICA._replace(
        log_start_offset=22, epochs=EPOCHS.truncate_from_start(22), high_watermark=22
    )
    assert decide(started, ask(started), answer(diverging=EpochEnd(1, 5))) == Decision(
        Do.RESTART, 5
    )
    assert decide(started, ask(started), answer(diverging=EpochEnd(4, 22))) == Decision(Do.CUT, 22)


@pytest.mark.parametrize(
    ("found", "decision"),
    [
        (Range(0, 25), Decision(Do.CUT, 25)),
        (Range(0, 0), Decision(Do.CUT, 0)),
        (Range(40, 50), Decision(Do.RESTART, 40)),
        (Range(0, 30), Decision(Do.FETCH_LATER)),
        (Range(30, 50), Decision(Do.FETCH_LATER)),
    ],
)
def test_log_outside_the_leaders_is_brought_into_it(found: Range, decision: Decision) -> None:
    assert decide_by_range(REPLICA, ask(REPLICA), found) == decision


def test_leader_that_does_not_know_the_epoch_is_asked_for_its_range() -> None:
    assert decide_by_epoch_end(REPLICA, ask(REPLICA), EpochEnd(-1, -1)).do is Do.ASK_RANGE


def test_high_watermark_follows_the_leaders_within_the_log() -> None:
    assert high_watermark_after(REPLICA, 25) == 25
    assert high_watermark_after(REPLICA, 35) == 30
    assert high_watermark_after(REPLICA, 5) == 12


# --- two logs -------------------------------------------------------------------------------------


def epochs_of(log: list[int]) -> LeaderEpochs:
    return LeaderEpochs(EpochStart(epoch, log.index(epoch)) for epoch in sorted(set(log)))


@st.composite
def histories(draw: st.DrawFn) -> tuple[list[int], list[int]]:
    """Two logs of records' epochs as unclean elections leave them.

    All records of an epoch come from one leader: up to the end of the shorter part,
    both logs agree about every epoch that they got from the same log.
    """
    logs: list[list[int]] = [[], []]
    for epoch in range(draw(st.integers(1, 5))):
        leader = draw(st.integers(0, 1))
        copied = draw(st.integers(0, 2))
        logs[leader] += [epoch] * draw(st.integers(0, 3))
        if copied:
            # The other one follows for a while, from where they part.
            common = 0
            while common < min(map(len, logs)) and logs[0][common] == logs[1][common]:
                common += 1
            end = draw(st.integers(common, len(logs[leader])))
            logs[1 - leader] = logs[leader][:end]
    return logs[0], logs[1]


@given(histories())
def test_follower_comes_to_have_the_leaders_log_in_few_steps(
    logs: tuple[list[int], list[int]],
) -> None:
    leader, mine = logs
    epoch = 9
    leads = epochs_of(leader).assign(epoch, len(leader))
    for _ in range(len(leads.entries) + 2):
        replica = Replica(epoch, 0, len(mine), len(mine), 0, epochs_of(mine))
        asked = ask(replica)
        diverging = leads.divergence(asked.last_epoch, asked.position, len(leader))
        if diverging is None:
            break
        found = decide(replica, asked, answer(diverging=diverging))
        assert found.do is Do.CUT
        mine = mine[: found.offset]
    else:
        raise AssertionError("it cuts for ever")
    assert mine == leader[: len(mine)]
