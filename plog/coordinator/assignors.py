"""Who of a consumer group gets which partitions: the server's assignors (KIP-848), pure functions.

Each takes what the members want and have, and how many partitions the topics have, and returns
what each is to have: every partition of a topic that somebody wants is given to exactly one who
wants it. `uniform` balances the number of partitions and moves as few as it can; `range_` gives
each member consecutive partitions of every topic, so that topics of equal size are joined.
"""

from __future__ import annotations

import uuid
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping
from typing import NamedTuple, TypeAlias


class IdPartition(NamedTuple):
    """A partition of the topic with this id."""

    topic_id: uuid.UUID
    partition: int


Partitions: TypeAlias = frozenset[IdPartition]
NOTHING: Partitions = frozenset()


class Wish(NamedTuple):
    """What a member wants, and what it has been given before."""

    topics: frozenset[uuid.UUID]
    given: Partitions = NOTHING


Wishes: TypeAlias = Mapping[str, Wish]
Sizes: TypeAlias = Mapping[uuid.UUID, int]
"""How many partitions each topic has; one that is not there has none."""


def uniform(wishes: Wishes, sizes: Sizes) -> dict[str, Partitions]:
    """Give everybody as many partitions as the others, as far as their wishes allow."""
    held, free = _kept(wishes, sizes)
    if len({wish.topics for wish in wishes.values()}) <= 1:
        _level(held, free)
    else:
        _hand_out(wishes, held, free)
        _even_out(wishes, held)
    return {member: frozenset(partitions) for member, partitions in held.items()}


def _kept(
    wishes: Wishes, sizes: Sizes
) -> tuple[dict[str, set[IdPartition]], dict[IdPartition, None]]:
    """Return what each member may keep, and what nobody has, in an order that does not vary."""
    wanted = sorted({topic for wish in wishes.values() for topic in wish.topics} & sizes.keys())
    free = {IdPartition(topic, index): None for topic in wanted for index in range(sizes[topic])}
    held: dict[str, set[IdPartition]] = {}
    for member in sorted(wishes):
        wish = wishes[member]
        mine = held[member] = set()
        for at in wish.given:
            if at.topic_id in wish.topics and at in free:
                del free[at]
                mine.add(at)
    return held, free


def _level(held: dict[str, set[IdPartition]], free: dict[IdPartition, None]) -> None:
    """Have all hold the same number, or one more: those that hold most, if it must be so."""
    if not held:
        return
    least, extra = divmod(sum(map(len, held.values())) + len(free), len(held))
    by_size = sorted(held, key=lambda member: -len(held[member]))
    quota = {member: least + (place < extra) for place, member in enumerate(by_size)}
    pool = list(free)
    for member, mine in held.items():
        for at in sorted(mine)[quota[member] :]:
            mine.discard(at)
            pool.append(at)
    rest = iter(pool)
    for member, mine in held.items():
        for _ in range(quota[member] - len(mine)):
            mine.add(next(rest))


def _hand_out(
    wishes: Wishes, held: dict[str, set[IdPartition]], free: Iterable[IdPartition]
) -> None:
    """Give what nobody has to those who want it and have least; rarely wanted topics first."""
    fans = _fans(wishes)
    for at in sorted(free, key=lambda at: (len(fans[at.topic_id]), at)):
        held[min(fans[at.topic_id], key=lambda member: len(held[member]))].add(at)


def _even_out(wishes: Wishes, held: dict[str, set[IdPartition]]) -> None:
    """Move partitions, one at a time, as long as that makes two members more equal.

    It ends: each move makes the sum of the squares of what they hold smaller.
    """
    fans = _fans(wishes)
    moved = True
    while moved:
        moved = False
        for topic in sorted(fans):
            holders: defaultdict[str, list[IdPartition]] = defaultdict(list)
            for member in fans[topic]:
                holders[member] = sorted(at for at in held[member] if at.topic_id == topic)
            while True:
                giver = max(
                    (member for member in fans[topic] if holders[member]),
                    key=lambda member: len(held[member]),
                    default=None,
                )
                taker = min(fans[topic], key=lambda member: len(held[member]))
                if giver is None or len(held[giver]) - len(held[taker]) <= 1:
                    break
                at = holders[giver].pop()
                held[giver].discard(at)
                held[taker].add(at)
                holders[taker].append(at)
                moved = True


def _fans(wishes: Wishes) -> dict[uuid.UUID, list[str]]:
    """Return who wants each topic, in an order that does not vary."""
    fans: defaultdict[uuid.UUID, list[str]] = defaultdict(list)
    for member in sorted(wishes):
        for topic in wishes[member].topics:
            fans[topic].append(member)
    return fans


def range_(wishes: Wishes, sizes: Sizes) -> dict[str, Partitions]:
    """Give consecutive partitions of each topic to those who want it.

    The order of the members is the same for all topics. Where they all want the same it is that of
    what they had, and who has nothing yet comes last, so that the others' ranges are cut and not
    exchanged; else it is that of their names.
    """
    order = sorted(wishes)
    if len({wish.topics for wish in wishes.values()}) <= 1:
        order.sort(key=lambda member: _first_number(wishes[member].given))
    given: dict[str, set[IdPartition]] = {member: set() for member in order}
    for topic in {topic for wish in wishes.values() for topic in wish.topics} & sizes.keys():
        takers = [member for member in order if topic in wishes[member].topics]
        least, extra = divmod(sizes[topic], len(takers))
        begin = 0
        for place, member in enumerate(takers):
            end = begin + least + (place < extra)
            given[member].update(IdPartition(topic, index) for index in range(begin, end))
            begin = end
    return {member: frozenset(partitions) for member, partitions in given.items()}


def _first_number(partitions: Partitions) -> float:
    return min((at.partition for at in partitions), default=float("inf"))


ASSIGNORS: Mapping[str, Callable[[Wishes, Sizes], dict[str, Partitions]]] = {
    "uniform": uniform,
    "range": range_,
}
"""By the names that clients choose them by."""
