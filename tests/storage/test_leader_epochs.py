from __future__ import annotations

import pytest

from plog.storage.checkpoints import CheckpointDamaged
from plog.storage.leader_epochs import (
    EpochStart,
    LeaderEpochs,
    decode_leader_epochs,
    encode_leader_epochs,
)


def epochs(*pairs: tuple[int, int]) -> LeaderEpochs:
    return LeaderEpochs(EpochStart(*pair) for pair in pairs)


HISTORY = epochs((0, 0), (2, 10), (5, 30))


@pytest.mark.parametrize(
    ("assigned", "result"),
    [
        ((6, 40), epochs((0, 0), (2, 10), (5, 30), (6, 40))),
        ((5, 99), HISTORY),  # known already
        ((-1, 50), HISTORY),  # no epoch
        ((6, 30), epochs((0, 0), (2, 10), (6, 30))),  # 5 wrote nothing after all
        ((6, 20), epochs((0, 0), (2, 10), (6, 20))),
        ((3, 40), epochs((0, 0), (2, 10), (3, 40))),  # 5 is of another history
        ((1, 0), epochs((1, 0))),
    ],
)
def test_assign_keeps_both_columns_rising(assigned: tuple[int, int], result: LeaderEpochs) -> None:
    assert HISTORY.assign(*assigned) == result


@pytest.mark.parametrize(
    ("asked", "answer"),
    [
        (0, (0, 10)),
        (1, (0, 10)),  # the largest known at or below
        (2, (2, 30)),
        (3, (2, 30)),
        (4, (2, 30)),
        (5, (5, 77)),  # the newest ends at the log end
        (6, (-1, -1)),  # newer than all
        (-1, (-1, -1)),
        (-2, (-2, HISTORY.entries[0].start_offset)),  # as Kafka has it: an old one
    ],
)
def test_end_offset_follows_kip_320(asked: int, answer: tuple[int, int]) -> None:
    assert HISTORY.end_offset(asked, 77) == answer


def test_end_offset_of_an_epoch_before_all_is_where_the_first_starts() -> None:
    assert epochs((3, 50), (4, 60)).end_offset(1, 99) == (1, 50)


def test_end_offset_without_epochs_is_unknown() -> None:
    assert LeaderEpochs().end_offset(0, 99) == (-1, -1)


@pytest.mark.parametrize(("offset", "epoch"), [(0, 0), (9, 0), (10, 2), (29, 2), (30, 5), (999, 5)])
def test_epoch_at_an_offset_is_that_which_wrote_it(offset: int, epoch: int) -> None:
    assert HISTORY.epoch_at(offset) == epoch


def test_epoch_at_an_offset_before_all_is_unknown() -> None:
    assert epochs((3, 50)).epoch_at(49) == -1


@pytest.mark.parametrize(
    ("end", "result"),
    [(0, epochs()), (10, epochs((0, 0))), (11, epochs((0, 0), (2, 10))), (31, HISTORY)],
)
def test_truncation_from_the_end_drops_what_starts_there(end: int, result: LeaderEpochs) -> None:
    assert HISTORY.truncate_from_end(end) == result


@pytest.mark.parametrize(
    ("start", "result"),
    [
        (0, HISTORY),
        (5, epochs((0, 5), (2, 10), (5, 30))),
        (10, epochs((2, 10), (5, 30))),
        (15, epochs((2, 15), (5, 30))),
        (99, epochs((5, 99))),
    ],
)
def test_truncation_from_the_start_keeps_the_epoch_that_spans_it(
    start: int, result: LeaderEpochs
) -> None:
    assert HISTORY.truncate_from_start(start) == result


def test_file_is_as_kafka_writes_it() -> None:
    text = "0\n3\n0 0\n2 10\n5 30\n"
    assert encode_leader_epochs(HISTORY) == text
    assert decode_leader_epochs(text, "f") == HISTORY


@pytest.mark.parametrize(
    "text", ["", "0\n1\n0\n", "0\n2\n1 0\n0 5\n", "0\n2\n0 5\n1 5\n", "0\n1\n-1 0\n", "0\n1\nx 0\n"]
)
def test_damaged_file_is_refused(text: str) -> None:
    with pytest.raises(CheckpointDamaged):
        decode_leader_epochs(text, "f")
