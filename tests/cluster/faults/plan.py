"""What `bin/chaos` does in which order. The seed alone decides.

A round has every fault of one broker alone, some of them two at a time, during moves and during a
rolling restart, every fault of several brokers, and the planned work alone.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass

from . import planned, power, strikes
from .scene import Role
from .strikes import Strike

OF_ONE: tuple[Strike, ...] = (*strikes.ON_ONE_HOST, *strikes.CUTS, power.lose_power)
OF_SEVERAL: tuple[Strike, ...] = (
    strikes.restart_zookeeper,
    power.two_lose_power,
    power.all_lose_power,
)
PLANNED: tuple[Strike, ...] = (
    planned.reassign,
    planned.rolling_restart,
    planned.elect_preferred,
)
OF_ALL = {strikes.restart_zookeeper, power.all_lose_power, *PLANNED}
"""They have no victim."""
WORDS = {
    Role.CONTROLLER: "the controller",
    Role.GROUPS: "a group's coordinator",
    Role.TRANSACTIONS: "a transaction's coordinator",
    Role.LEADER: "a leader",
    Role.PLAIN: "a follower",
}
PAIRS = 3
"""So many steps of a round strike two brokers at once."""
DURING_MOVES = 3
DURING_RESTARTS = 2
WAITS = 0.5
"""How often all is to recover before the next step."""


@dataclass(frozen=True)
class Step:
    """Strikes at the same time, each at a broker with a role.

    Attributes:
        seed: for the choices within the strikes.
        waits: whether all is to recover before the next step.
    """

    strikes: tuple[tuple[Strike, Role], ...]
    seed: int
    waits: bool

    def in_words(self, victims: Sequence[int]) -> str:
        """Return the step in words, with the brokers that have the roles."""
        return "; ".join(
            words_of(strike)
            if strike in OF_ALL
            else f"{words_of(strike)}: {WORDS[role]} (broker {victim})"
            for (strike, role), victim in zip(self.strikes, victims, strict=True)
        )


def words_of(strike: Strike) -> str:
    """Return the name of a strike as words."""
    return strike.__name__.replace("_", " ")


def round_of(seed: int) -> list[Step]:
    """Return the steps of a round."""
    chance = random.Random(seed)
    chosen: list[tuple[Strike, ...]] = [(one,) for one in (*OF_ONE, *OF_SEVERAL, *PLANNED)]
    chosen += [tuple(chance.sample(OF_ONE, 2)) for _ in range(PAIRS)]
    chosen += [(planned.reassign_during(one),) for one in chance.sample(OF_ONE, DURING_MOVES)]
    chosen += [
        (planned.rolling_restart_during(one),) for one in chance.sample(OF_ONE, DURING_RESTARTS)
    ]
    chance.shuffle(chosen)
    roles = list(Role)
    return [
        Step(
            tuple((strike, chance.choice(roles)) for strike in at_once),
            chance.randrange(2**32),
            chance.random() < WAITS,
        )
        for at_once in chosen
    ]
