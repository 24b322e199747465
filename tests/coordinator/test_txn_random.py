"""Random lives of a transactional id: what its producer was told holds, whatever else happens."""

from __future__ import annotations

import random
from dataclasses import dataclass, field

import pytest

from plog.coordinator.txn import EPOCH_PER_TRANSACTION, LAST_EPOCH
from plog.coordinator.txn_events import Producer, TxnValue
from plog.coordinator.txn_states import PREPARED, TxnState
from plog.errors import ErrorCode
from tests.agreement.harness import run_seed
from tests.coordinator.txn_play import EXPIRATION_MS, TIMEOUT_MS, A, B, Play

STEPS = 400
MAX_STEPS = 10_000
NEAR = 4
"""A life that begins so near to the last epoch gets there."""
OUTCOME = {TxnState.COMPLETE_COMMIT: True, TxnState.COMPLETE_ABORT: False}


@dataclass
class Life:
    """A machine, the producers that live, and what became of each transaction."""

    chance: random.Random
    raises: bool
    play: Play = field(default_factory=lambda: Play(stores_at_once=False))
    producers: list[Producer] = field(default_factory=list)
    ends: dict[int, tuple[Producer, bool]] = field(default_factory=dict)
    inits: list[int] = field(default_factory=list)

    def step(self) -> None:
        play, chance = self.play, self.chance
        if play.unstored and chance.random() < 0.6:
            failed = chance.random() < 0.15
            play.store(ErrorCode.COORDINATOR_NOT_AVAILABLE if failed else ErrorCode.NONE)
            return
        if chance.random() < 0.3:
            value = play.txn.value
            if value is not None and value.state in PREPARED and not play.unstored:
                if chance.random() < 0.2:
                    play.refuse(A)
                else:
                    play.mark()
                return
        self.ask()

    def ask(self) -> None:
        play, chance = self.play, self.chance
        who = chance.choice(self.producers[-3:]) if self.producers else None
        kind = chance.random()
        if who is None or kind < 0.1:
            was = who if chance.random() < 0.5 else None
            self.inits.append(play.init(was))
        elif kind < 0.5:
            version = EPOCH_PER_TRANSACTION if self.raises else 0
            play.add(who, chance.choice([A, B]), version=version)
        elif kind < 0.95:
            commit = chance.random() < 0.7
            token = play.end(who, commit=commit, raises=self.raises)
            self.ends[token] = (who, commit)
        else:
            play.wait(chance.choice([1, TIMEOUT_MS + 1, EXPIRATION_MS]))
        self.hear()

    def hear(self) -> None:
        for token in [*self.inits, *self.ends]:
            answer = self.play.answers.get(token)
            if answer is None or answer.error is not ErrorCode.NONE or answer.producer.id < 0:
                continue
            assert answer.producer.epoch <= LAST_EPOCH, answer
            if answer.producer not in self.producers:
                self.producers.append(answer.producer)


@pytest.mark.parametrize("raises", [False, True], ids=["v1", "v2"])
@pytest.mark.parametrize("seed", range(60))
def test_random_life(seed: int, raises: bool) -> None:
    live(Life(random.Random(run_seed() + seed), raises))


@pytest.mark.parametrize("raises", [False, True], ids=["v1", "v2"])
@pytest.mark.parametrize("seed", range(60))
def test_random_life_near_the_last_epoch(seed: int, raises: bool) -> None:
    chance = random.Random(run_seed() + seed)
    first = Producer(5, LAST_EPOCH - chance.randrange(NEAR))
    value = TxnValue(*first, TIMEOUT_MS, TxnState.EMPTY, updated_ms=0)
    life = Life(chance, raises, Play(value, stores_at_once=False), [first])
    live(life, first.id)


def live(life: Life, first_id: int | None = None) -> None:
    """Let it happen, and check the responses and the stored values.

    Args:
        first_id: the life goes on until the producer has another id than this one.
    """
    play = life.play

    def is_over() -> bool:
        return first_id is None or any(
            one is not None and one.producer_id != first_id for one in play.log
        )

    for step in range(MAX_STEPS):
        if step >= STEPS and is_over():
            break
        life.step()
        life.hear()
    assert is_over()
    while play.unstored:
        play.store()
        life.hear()
    for token in play.asked:
        play.give_up(token)
    assert set(play.answers) == set(play.asked)  # each once, which the play itself looks after
    check_log(play)
    check_ends(life)


def check_log(play: Play) -> None:
    """Epochs of an id only rise, a decision stands, and no id comes back."""
    epochs: dict[int, int] = {}
    order: list[int] = []
    for before, after in zip([None, *play.log], play.log, strict=False):
        if after is None:
            continue
        assert after.producer_epoch >= epochs.get(after.producer_id, 0)
        epochs[after.producer_id] = after.producer_epoch
        if after.producer_id not in order:
            order.append(after.producer_id)
        assert after.producer_id == order[-1]
        if before is not None and before.state in PREPARED:
            assert OUTCOME[after.state] is PREPARED[before.state]


def check_ends(life: Life) -> None:
    """Who was told that its transaction is committed, or aborted, finds it so in the log."""
    for token, (who, commit) in life.ends.items():
        answer = life.play.answers[token]
        if answer.error is not ErrorCode.NONE:
            continue
        epochs = {who.epoch, who.epoch + 1} if life.raises else {who.epoch}
        decided = {
            PREPARED[value.state]
            for value in life.play.log
            if value is not None
            and value.state in PREPARED
            and value.producer_id == who.id
            and value.producer_epoch in epochs
        }
        assert commit in decided, (who, commit, decided)
        if life.raises:
            # An epoch has one transaction, so that there is one outcome.
            mine = [
                PREPARED[value.state]
                for value in life.play.log
                if value is not None
                and value.state in PREPARED
                and value.producer == Producer(who.id, who.epoch + 1)
            ]
            assert mine == [commit], (who, commit, mine)
