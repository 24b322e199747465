"""The server's assignors for consumer groups (KIP-848), as pure functions.

Each takes the members' subscriptions and assignments, and the topics' numbers of partitions, and
returns the target assignments. Every partition of a subscribed topic goes to exactly one of the
subscribed members. `uniform` balances the number of partitions and moves as few as possible.
`range_` gives each member consecutive partitions of every topic, so that topics of equal size are
joined.
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
    """A member's subscribed topics and its previous assignment."""

    topics: frozenset[uuid.UUID]
    given: Partitions = NOTHING


Wishes: TypeAlias = Mapping[str, Wish]
Sizes: TypeAlias = Mapping[uuid.UUID, int]
"""Number of partitions by topic; a missing topic has none."""


def uniform(wishes: Wishes, sizes: Sizes) -> dict[str, Partitions]:
    """Balance the numbers of partitions, as far as the subscriptions allow."""
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
    """Return the partitions that each member keeps, and the free ones in a stable order."""
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
    """Give all members the same number or one more; those with the most get the extra ones."""
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
    """Give free partitions to the subscribed members with the fewest; rare topics first."""
    fans = _fans(wishes)
    for at in sorted(free, key=lambda at: (len(fans[at.topic_id]), at)):
        held[min(fans[at.topic_id], key=lambda member: len(held[member]))].add(at)


def _even_out(wishes: Wishes, held: dict[str, set[IdPartition]]) -> None:
    """Move partitions, one at a time, while a move makes two members more equal.

    This terminates, because each move lowers the sum of the squares of the members' numbers.
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
    """Return the subscribed members of each topic, in a stable order."""
    fans: defaultdict[uuid.UUID, list[str]] = defaultdict(list)
    for member in sorted(wishes):
        for topic in wishes[member].topics:
            fans[topic].append(member)
    return fans


def range_(wishes: Wishes, sizes: Sizes) -> dict[str, Partitions]:
    """Give consecutive partitions of each topic to its subscribed members.

    The order of the members is the same for all topics. With equal subscriptions it is the order of
    their previous partitions, and new members come last, so that existing ranges shrink but do not
    swap. Otherwise it is the order of their names.
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
"""The assignors by the names that clients use."""
