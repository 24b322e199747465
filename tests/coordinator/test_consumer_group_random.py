"""Members of a consumer group that come, go, lose answers and are slow, at random.

Each client has a view of its own: its epoch, and the partitions that it uses. Whatever happens, no
two that are alive may use one partition; what stands in the log is what the group is; and once
nobody comes or goes any more, everybody has what it is to have, evenly.
"""

from __future__ import annotations

import random
from dataclasses import dataclass, field

from hypothesis import given, settings
from hypothesis import strategies as st

from plog.coordinator.consumer_events import Rules
from plog.coordinator.group_events import Leaving
from plog.errors import ErrorCode
from tests.coordinator.consumer_play import ConsumerPlay, parts

STEPS = 200
TOPICS = {"a": 5, "b": 3}
GONE = (ErrorCode.FENCED_MEMBER_EPOCH, ErrorCode.UNKNOWN_MEMBER_ID)


@dataclass
class Client:
    """A client of either protocol."""

    name: str
    topics: tuple[str, ...]
    is_classic: bool
    epoch: int = 0
    uses: set[str] = field(default_factory=set)
    may_use: set[str] = field(default_factory=set)
    must_tell_all: bool = True
    must_join: bool = True

    def forget(self) -> None:
        self.epoch, self.must_tell_all, self.must_join = 0, True, True
        self.uses, self.may_use = set(), set()

    # -- the consumer protocol ---------------------------------------------------------------

    def beat(self, play: ConsumerPlay, *, is_lost: bool) -> None:
        # While it is about to take what it was told, it says nothing of what it owns, as clients
        # do: an answer that then is lost may have told it less.
        is_settled = self.must_join or self.uses == self.may_use
        told: dict[str, object] = {"owned": parts(*self.uses) if is_settled else None}
        if self.must_tell_all:
            told |= {"topics": frozenset(self.topics), "rebalance_timeout_ms": 30_000}
        answer = play.beat(self.name, self.epoch, **told)
        if is_lost:
            self.must_tell_all = True
            return
        if answer.error in GONE:
            self.forget()
            return
        assert answer.error is ErrorCode.NONE, answer
        self.epoch, self.must_tell_all, self.must_join = answer.epoch, False, False
        if answer.assigned is not None:
            self.may_use = set(play.names(answer.assigned))

    def revoke(self) -> None:
        self.uses &= self.may_use

    def take(self) -> None:
        """Use what is new; what it is to give up has been given up first."""
        if self.uses <= self.may_use:
            self.uses = set(self.may_use)

    # -- the classic protocol ----------------------------------------------------------------

    def go_on(self, play: ConsumerPlay, *, is_lost: bool) -> None:
        if not self.must_join:
            error = play.heartbeat(self.name, self.epoch)
            if error is ErrorCode.REBALANCE_IN_PROGRESS:
                self.must_join = True
            elif error is not ErrorCode.NONE:
                self.forget()
            return
        joined = play.join(self.name, *self.topics, owned=tuple(sorted(self.uses)))
        assert joined.error is ErrorCode.NONE
        if is_lost:
            return
        synced = play.sync(self.name, joined.generation)
        if synced.error is ErrorCode.REBALANCE_IN_PROGRESS:
            return
        assert synced.error is ErrorCode.NONE
        self.epoch, self.must_join = joined.generation, False
        self.may_use = set(play.assigned(synced))
        if not self.uses <= self.may_use:
            self.revoke()
            self.must_join = True
        self.uses = set(self.may_use)


class Story:
    """What happens to a group."""

    def __init__(self, seed: int) -> None:
        self.chance = random.Random(seed)
        self.play = ConsumerPlay(
            TOPICS, Rules(assignors=("range",) if seed % 3 == 0 else ("uniform",))
        )
        self.clients: list[Client] = []
        self.born = 0

    def step(self) -> None:
        match self.chance.randrange(30):
            case 0 if len(self.clients) < 5:
                self._be_born()
            case 1 if self.clients:
                self._die(self.chance.choice(self.clients))
            case 2:
                self.play.pass_ms(self.chance.choice([100, 9_000, 31_000]))
                self._notice()
            case 3:
                self.play.restart()
            case 4:
                size = self.chance.randrange(1, 6)
                self.play.set_topics({**TOPICS, "a": size if self.chance.random() < 0.3 else 5})
            case _ if self.clients:
                self._move(self.chance.choice(self.clients))
        self.check()

    def _be_born(self) -> None:
        self.born += 1
        topics = self.chance.choice([("a",), ("b",), ("a", "b"), ("a", "b")])
        # Of the classic protocol only where the group is a consumer group already.
        is_classic = bool(self.play.group.table.members) and self.chance.random() < 0.4
        self.clients.append(Client(f"m{self.born}", topics, is_classic))

    def _die(self, client: Client) -> None:
        self.clients.remove(client)
        if client.name in self.play.group.table.members and self.chance.random() < 0.6:
            if client.is_classic:
                self.play.leave(Leaving(client.name))
            else:
                self.play.beat(client.name, -1)

    def _move(self, client: Client) -> None:
        is_lost = self.chance.random() < 0.2
        if client.is_classic:
            client.go_on(self.play, is_lost=is_lost)
            return
        match self.chance.randrange(3):
            case 0:
                client.revoke()
            case 1:
                client.take()
            case _:
                client.beat(self.play, is_lost=is_lost)

    def _notice(self) -> None:
        """Have clients that were given up stop: their own timers tell them before the group's."""
        for client in self.clients:
            if client.name not in self.play.group.table.members:
                client.forget()

    def check(self) -> None:
        used = [at for client in self.clients for at in client.uses]
        assert len(used) == len(set(used)), "a partition is used twice"
        assert dict(self.play.read()) == dict(self.play.group.table)  # type: ignore[call-overload]
        table = self.play.group.table
        assert table.size == sum(
            one.size for one in (*table.members.values(), *table.regexes.values())
        )

    def settle(self) -> None:
        """Have nobody come or go any more, and no answer be lost."""
        self.play.set_topics(TOPICS)
        for _ in range(25):
            self.play.pass_ms(5_000)
            self._notice()
            for client in self.clients:
                if client.is_classic:
                    client.go_on(self.play, is_lost=False)
                else:
                    client.beat(self.play, is_lost=False)
                    client.revoke()
                    client.take()
                self.check()
        table = self.play.group.table
        assert table.members.keys() == {client.name for client in self.clients}
        for client in self.clients:
            assert client.uses == set(self.play.names(table.target(client.name))), client
            assert client.epoch == table.epoch
        wanted = {topic for client in self.clients for topic in client.topics}
        used = {at for client in self.clients for at in client.uses}
        assert used == {f"{topic}-{n}" for topic in wanted for n in range(TOPICS[topic])}
        if (
            len({client.topics for client in self.clients}) == 1
            and self.play.group.assignor == "uniform"
        ):
            numbers = [len(client.uses) for client in self.clients]
            assert max(numbers) - min(numbers) <= 1


@given(st.integers(0, 1 << 32))
@settings(max_examples=150)
def test_no_partition_is_ever_used_twice_and_all_ends_even(seed: int) -> None:
    story = Story(seed)
    for _ in range(STEPS):
        story.step()
    story.settle()
