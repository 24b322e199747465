"""Where `plog consume` starts and ends in each partition, if it does not wait for new records.

Owns which partitions still lack these offsets because their leader does not answer, how long it is
asked, and the error that names them. The caller reads the other partitions meanwhile. Owns also how
long the coordinator of a group may be away.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

import click

from plog.cli.offset_places import ask_now, resolve
from plog.cli.output import ELECTION_S, say, some_text

if TYPE_CHECKING:
    from collections.abc import Mapping

    from plog.cli.offset_places import Found
    from plog.client.metadata import Cluster
    from plog.errors import KafkaError
    from plog.types import TopicPartition

ANSWER_S = 30.0
"""How long a leader or a coordinator may take to answer, such as a broker that restarts."""
LOOK_S = 0.5
"""Interval of questions."""
NO_LEADER = -1


class ReadBounds:
    """The offsets of places in partitions, asked again while a leader does not answer.

    Args:
        places: as users give them, such as the start and the end.
    """

    def __init__(self, cluster: Cluster, isolation_level: int, places: Sequence[str]) -> None:
        self._cluster = cluster
        self._isolation_level = isolation_level
        self._places = places
        self._waiting: set[TopicPartition] = set()
        self._faults: dict[TopicPartition, KafkaError] = {}
        self._begun = self._look_at = time.monotonic()
        self._has_said = False

    def wait_for(self, partitions: Iterable[TopicPartition]) -> None:
        """Ask about more partitions, or about the same ones again."""
        self._waiting.update(partitions)
        self._begun = self._look_at = time.monotonic()

    def keep(self, partitions: Iterable[TopicPartition]) -> None:
        """Ask about no others than these any more."""
        self._waiting.intersection_update(partitions)

    @property
    def is_waiting(self) -> bool:
        """Whether some partitions lack their offsets, and may still get them."""
        waited_s = time.monotonic() - self._begun
        if all(self._lacks_leader(at) for at in self._waiting):
            return bool(self._waiting) and waited_s < ELECTION_S
        return waited_s < ANSWER_S

    def look_now_and_then(self) -> dict[TopicPartition, list[int]]:
        """Return the offsets of the partitions whose leaders answer now, one for each place.

        Raises:
            KafkaError: an error that a retry cannot solve.
        """
        if not self._waiting or time.monotonic() < self._look_at:
            return {}
        # One after the other, so that a leader that does not answer is asked once.
        left, found = sorted(self._waiting), []
        for place in self._places:
            found.append(resolve(place, left, self._ask))
            left = [at for at in left if at in found[-1]]
        self._waiting.difference_update(left)
        self._look_at = time.monotonic() + LOOK_S
        return {at: [offsets[at] for offsets in found] for at in left}

    def sleep(self) -> None:
        """Wait until the next question is due; name the partitions once."""
        if not self._has_said:
            self._has_said = True
            for group, names, _ in self._groups(self._waiting):
                say(f"plog: waiting for {group}: {names}", err=True)
        time.sleep(max(self._look_at - time.monotonic(), 0))

    def refuse_unread(self, unread: Sequence[TopicPartition]) -> None:
        """Fail if partitions were not read.

        Raises:
            click.ClickException: the message names them, with their broker if it does not answer.
        """
        lines = [
            f"{group} {'were' if are_several else 'was'} not read: {names}"
            for group, names, are_several in self._groups(unread)
        ]
        if lines:
            raise click.ClickException("\n".join(lines))

    def _ask(self, times: Mapping[TopicPartition, int]) -> Found:
        found, faults = ask_now(self._cluster, times, self._isolation_level)
        self._faults.update(faults)
        return found

    def _lacks_leader(self, at: TopicPartition) -> bool:
        return self._cluster.known_leader(at) is None

    def _groups(self, partitions: Iterable[TopicPartition]) -> list[tuple[str, str, bool]]:
        """Group partitions by leader: a description, their names, and whether there are several."""
        from plog.types import counted

        by_leader: dict[int, list[TopicPartition]] = {}
        for at in sorted(partitions):
            leader = self._cluster.known_leader(at)
            by_leader.setdefault(NO_LEADER if leader is None else leader.leader_id, []).append(at)
        groups = []
        for leader_id, some in sorted(by_leader.items()):
            whose, names = "without a leader", some_text(some)
            if leader_id != NO_LEADER:
                whose = f"of broker {leader_id}"
                names += f" ({self._faults.get(some[0], 'no answer')})"
            groups.append((f"{counted(len(some), 'partition')} {whose}", names, len(some) > 1))
        return groups


class CoordinatorBound:
    """The time in which a group's coordinator has to answer.

    Args:
        wanted: the topics, as the error names them.
    """

    def __init__(self, group: str, wanted: str) -> None:
        self._group, self._wanted = group, wanted
        self._answered = time.monotonic()

    def check(self, *, is_there: bool) -> None:
        """Fail if the coordinator has been away for ANSWER_S.

        Raises:
            click.ClickException: the message names the group and what it wanted.
        """
        now = time.monotonic()
        if is_there:
            self._answered = now
        elif now - self._answered >= ANSWER_S:
            raise click.ClickException(
                f"{self._wanted}: not read, as group {self._group!r} has no coordinator"
            )
