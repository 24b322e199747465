"""The guards of a partition: their life, beside a plain model of it."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from plog._native.partition_guards import (
    MOST_GRANTED_AHEAD,
    TxnGuard,
    approve,
    ask,
    end,
    grant_ahead,
    guard_count,
    is_granted,
    is_of,
    refuse,
    revoke,
    succeed,
)
from plog._native.partition_log import PartitionLog

from .partition_logs import Directory

NAME = b"a transactional id"


@pytest.fixture
def log(tmp_path: Path) -> PartitionLog:
    """An empty log that this broker leads."""
    return new_log(tmp_path / "t-0")


def new_log(path: Path) -> PartitionLog:
    made = Directory(path).log()
    made.set_leader(1, writable=True, sole_replica=True)
    return made


def lets_begin(log: PartitionLog, guard: TxnGuard) -> bool:
    return is_granted(log, guard, guard.producer_id, guard.producer_epoch)


def test_guard_lets_its_producer_begin_once_the_coordinator_has_approved_it(
    log: PartitionLog,
) -> None:
    guard = ask(log, 7, 1)
    assert not lets_begin(log, guard)
    approve(log, guard)
    assert lets_begin(log, guard)
    assert not is_granted(log, guard, 7, 2)
    assert not is_granted(log, guard, 8, 1)
    end(log, 7, 1)
    assert not lets_begin(log, guard)
    approve(log, guard)  # the answer comes after the marker
    assert not lets_begin(log, guard)
    assert guard_count(log) == 0


def test_so_many_producers_are_granted_something_ahead(log: PartitionLog) -> None:
    for producer_id in range(MOST_GRANTED_AHEAD):
        assert grant_ahead(log, producer_id, 0, NAME, 1)
    assert not grant_ahead(log, MOST_GRANTED_AHEAD, 0, NAME, 1)
    assert grant_ahead(log, 7, 1, NAME, 2)  # in place of its last one
    asked = ask(log, MOST_GRANTED_AHEAD, 0)  # which does not count
    approve(log, asked)
    assert lets_begin(log, asked)
    end(log, MOST_GRANTED_AHEAD, 0)
    for producer_id in (300, 7, 7, 255, 0):
        revoke(log, producer_id)
    for producer_id in (300, 301, 302):
        assert grant_ahead(log, producer_id, 0, NAME, 1)
    assert not grant_ahead(log, 303, 0, NAME, 1)


@pytest.mark.parametrize("how", ["leader", "producers"])
def test_what_was_granted_ahead_ends_with_what_it_was_granted_for(
    log: PartitionLog, how: str
) -> None:
    asked = ask(log, 1, 0)
    approve(log, asked)
    for producer_id in (0, 1, 2):
        assert grant_ahead(log, producer_id, 0, NAME, 1)
    if how == "leader":
        log.set_leader(1, writable=True, sole_replica=True)
    else:
        log.load_producers([])
    assert guard_count(log) == 1
    assert lets_begin(log, asked), "its coordinator was asked"


def test_empty_transactional_id_is_granted_nothing_ahead(log: PartitionLog) -> None:
    assert not grant_ahead(log, 7, 0, b"", 1)
    assert guard_count(log) == 0


def test_guards_go_along_when_another_log_takes_the_place(tmp_path: Path) -> None:
    before, after, another = (new_log(tmp_path / f"t-{number}") for number in range(3))
    guards = [ask(before, producer_id, 0) for producer_id in (7, 8, 9)]
    succeed(after, before)
    # The answers of the coordinator come to the log that was asked.
    approve(before, guards[0])
    approve(after, guards[1])
    refuse(before, guards[2])
    assert [lets_begin(after, guard) for guard in guards] == [True, True, False]
    assert is_of(after, guards[0])
    assert not is_of(another, guards[0])
    assert (guard_count(after), guard_count(another)) == (2, 0)
    before.close()
    assert lets_begin(after, guards[0])


# -- random lives ----------------------------------------------------------------------------------


@dataclass
class Held:
    """A guard as the model has it."""

    producer_id: int
    epoch: int
    from_zero: bool
    number: int = -1  # until Python asks
    is_granted: bool = False
    holders: int = 0
    is_ahead: bool = False


class Model:
    """The rules, in plain words."""

    def __init__(self) -> None:
        self.held: list[Held] = []

    def of(self, producer_id: int) -> list[Held]:
        return [one for one in self.held if one.producer_id == producer_id]

    def one(self, producer_id: int, epoch: int, from_zero: bool) -> Held:
        for held in self.of(producer_id):
            if (held.epoch, held.from_zero) == (epoch, from_zero):
                return held
        self.held.append(Held(producer_id, epoch, from_zero))
        return self.held[-1]

    def numbered(self, number: int) -> Held | None:
        return next((one for one in self.held if one.number == number), None)

    def is_fenced(self, producer_id: int, epoch: int) -> bool:
        return any(one.is_granted and one.epoch > epoch for one in self.of(producer_id))

    def fence(self, producer_id: int, epoch: int) -> None:
        self.held = [
            one for one in self.held if one.producer_id != producer_id or one.epoch >= epoch
        ]


PRODUCERS = st.integers(0, 2)
EPOCHS = st.integers(0, 2)
STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("ask"), PRODUCERS, EPOCHS, st.booleans()),
        st.tuples(st.sampled_from(["approve", "refuse"]), st.integers(0, 30)),
        st.tuples(st.just("grant"), PRODUCERS, EPOCHS),
        st.tuples(st.just("revoke"), PRODUCERS),
        st.tuples(st.just("end"), PRODUCERS, EPOCHS),
    ),
    max_size=40,
)


@given(steps=STEPS)
@settings(max_examples=300, deadline=None)
def test_any_life_is_that_of_the_model(steps: list[tuple[object, ...]]) -> None:
    with TemporaryDirectory() as directory:
        log = new_log(Path(directory) / "t-0")
        live(log, Model(), steps)
        log.close()


def live(log: PartitionLog, model: Model, steps: list[tuple[object, ...]]) -> None:
    asked: list[TxnGuard] = []
    for kind, *of in steps:
        match kind, of:
            case "ask", [int(who), int(epoch), bool(from_zero)]:
                asked.append(ask(log, who, epoch, from_zero=from_zero))
                held = model.one(who, epoch, from_zero)
                if held.holders == 0:
                    held.number = asked[-1].number
                held.holders += 1
                assert held.number == asked[-1].number
            case "approve", [int(number)] if number < len(asked):
                approve(log, asked[number])
                found = model.numbered(asked[number].number)
                if found is not None and not model.is_fenced(found.producer_id, found.epoch):
                    found.is_granted = True
                    model.fence(found.producer_id, found.epoch)
            case "refuse", [int(number)] if number < len(asked):
                found = model.numbered(asked[number].number)
                if found is None or found.holders == 0:
                    continue  # each holder refuses once
                refuse(log, asked[number])
                found.holders -= 1
            case "grant", [int(who), int(epoch)]:
                is_fenced = model.is_fenced(who, epoch)
                assert grant_ahead(log, who, epoch, NAME, 1) is not is_fenced
                if not is_fenced:
                    model.fence(who, epoch)
                    held = model.one(who, epoch, False)
                    held.is_granted = held.is_ahead = True
            case "revoke", [int(who)]:
                revoke(log, who)
                for held in model.of(who):
                    held.is_ahead = False
            case "end", [int(who), int(epoch)]:
                end(log, who, epoch)
                model.fence(who, epoch + 1)
        model.held = [one for one in model.held if one.holders or one.is_ahead]
        assert guard_count(log) == len(model.held)
        for guard in asked:
            found = model.numbered(guard.number)
            assert lets_begin(log, guard) == (found is not None and found.is_granted), guard
