"""Tries every state that a model reaches, the nearest first, until one breaks what must hold."""

from __future__ import annotations

from collections import Counter, deque
from typing import NamedTuple

from tests.cluster.replication.model import Model, beginning, lost
from tests.cluster.replication.names import canonical


class Found(NamedTuple):
    """What a search has found.

    Attributes:
        states: how many there are; with a `path`, how many were seen until then.
        steps: how often each kind of step was taken.
        path: the shortest way to a state that must not be. Each step names brokers as they are
            called in the state before it. Empty: there is none.
    """

    states: int
    steps: Counter[str]
    path: tuple[str, ...] = ()


def explore(model: Model) -> Found:
    """Search the whole space.

    A state that was seen is known by its hash of 64 bits, for want of memory. Among n states, two
    have the same one by chance of n * n / 2**65: among five millions, one in a million.
    """
    first = canonical(model.settled(beginning()))
    came: dict[int, tuple[int, str]] = {hash(first): (0, "")}
    waiting = deque([first])
    steps: Counter[str] = Counter()
    while waiting:
        state = waiting.popleft()
        before = hash(state)
        for name, reached in model.steps(state):
            steps[name.partition(" ")[0]] += 1
            if lost(reached) is not None:
                return Found(len(came), steps, (*_path_to(before, came), name))
            alike = canonical(model.settled(reached))
            key = hash(alike)
            if key not in came:
                came[key] = before, name
                waiting.append(alike)
    return Found(len(came), steps)


def _path_to(key: int, came: dict[int, tuple[int, str]]) -> list[str]:
    path = []
    while came[key][1]:
        key, name = came[key]
        path.append(name)
    return path[::-1]
