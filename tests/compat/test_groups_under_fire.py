"""Groups under fire: members come, leave and are killed, the broker is killed, producers go on.

Whatever was acknowledged must have been read, no committed offset may go back or be forgotten, and
the group finds its peace as soon as it is let alone. The seed says who is killed in which order,
and not what everybody does in that moment.
"""

from __future__ import annotations

import itertools
import random
import threading
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import NamedTuple

import pytest

from plog.client.admin import Admin
from plog.client.consumer import Consumer
from plog.client.group_admin import GroupAdmin
from plog.coordinator.group_log import OffsetKey, decode_key, decode_offset
from plog.coordinator.group_states import GroupState
from plog.errors import KafkaError
from plog.types import TopicPartition
from tests.agreement.harness import run_seed
from tests.compat.groups import GroupSettings, Member, Members, Place
from tests.compat.programs import JAVA, Java
from tests.crash.test_kill import check, read_all
from tests.crash.writer import Writer
from tests.planes import Plane
from tests.servers import BrokerProcess
from tests.waiting import until

TOPIC, GROUP, PARTITIONS = "t", "g", 6
SETTINGS: dict[str, object] = {
    "offsets.topic.num.partitions": 3,
    "log.cleaner.enable": "false",  # the history of commits is looked at
    "group.initial.rebalance.delay.ms": 0,
    "group.min.session.timeout.ms": 100,
    "group.consumer.min.session.timeout.ms": 3_000,
    "group.consumer.session.timeout.ms": 3_000,
    "group.consumer.min.heartbeat.interval.ms": 300,
    "group.consumer.heartbeat.interval.ms": 300,
}
MOST_MEMBERS = 4
BROKER_DIES, STATIC = 0.35, 0.3
"""So many of all events, and so many of those who come."""
QUIET_S, AWAY_S = (0.1, 3.0), (0.0, 4.0)
"""Between two events; for how long the broker is gone, in every other case."""
PAUSE_S = 0.02
"""Of the writer, after a record for each partition."""


class Kind(NamedTuple):
    """What members are like."""

    client: str | Java
    protocol: str
    assignor: str

    @property
    def may_be_static(self) -> bool:
        """Whether whoever takes a killed member's name is just that member, come back.

        A member of KIP-848 keeps its name until its session ends. librdkafka's forgets its id when
        its session ends, joins anew, and its heartbeat of before is then told to be another's,
        which is fatal to it.
        """
        return self.protocol == "classic" and isinstance(self.client, Java)


CLASSIC_CLIENTS: list[str | Java] = ["confluent-kafka", *JAVA]
CONSUMERS = [Kind(client, "consumer", "uniform") for client in ("confluent-kafka", JAVA[-1])]
GROUPS = {
    "eager": [Kind(client, "classic", "range") for client in CLASSIC_CLIENTS],
    "cooperative": [Kind(client, "classic", "cooperative-sticky") for client in CLASSIC_CLIENTS],
    "consumer": CONSUMERS,
    "both": [*(Kind(client, "classic", "range") for client in CLASSIC_CLIENTS), *CONSUMERS],
}


class Tops:
    """The greatest offset of each partition in lists that grow."""

    def __init__(self) -> None:
        self._taken: Counter[int] = Counter()
        self._tops: dict[int, int] = {}

    def __call__(self, lists: Iterable[list[Place]]) -> Mapping[int, int]:
        for number, places in enumerate(lists):
            new = places[self._taken[number] :]
            self._taken[number] += len(new)
            for partition, offset in new:
                self._tops[partition] = max(offset, self._tops.get(partition, offset))
        return self._tops


class Watch:
    """Looks at what the group has committed, and whether that goes back, on its own thread."""

    def __init__(self, bootstrap: str, members: list[Member]) -> None:
        self.failures: list[str] = []
        self.looks = 0
        self._bootstrap = bootstrap
        self._members = members
        self._committed, self._polled = Tops(), Tops()
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run)

    def __enter__(self) -> Watch:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()

    def _run(self) -> None:
        seen: dict[int, int] = {}
        with GroupAdmin(self._bootstrap) as admin:
            while not self._stop.wait(0.05):
                told = dict(self._committed(member.committed for member in self._members))
                try:
                    answer = admin.committed(GROUP)
                except KafkaError:
                    continue  # its coordinator is away
                now = {at.partition: offset for at, offset in answer.items()}
                self.looks += 1
                for before in (seen, told):
                    if any(now.get(at, -1) < offset for at, offset in before.items()):
                        self.failures.append(f"committed was {before}, and is {now}")
                seen = now
                self._check_was_read(seen)

    def _check_was_read(self, seen: dict[int, int]) -> None:
        def is_read() -> bool:
            tops = self._polled(member.polled for member in self._members)
            return all(tops.get(at, -1) >= offset - 1 for at, offset in seen.items())

        try:
            until(is_read, timeout_s=10)  # what a member says may be on its way
        except AssertionError:
            self.failures.append(f"committed is {seen}, which nobody has read")


class Fire:
    """A broker, a group, a writer, and who comes, goes and is killed when, by a seed."""

    def __init__(self, directory: Path, kinds: list[Kind], seed: int) -> None:
        self._chance = random.Random(seed)
        self._kinds = kinds
        (directory / "data").mkdir(parents=True)
        self.broker = BrokerProcess(directory / "data", overrides=SETTINGS).start()
        with Admin(self.broker.bootstrap) as admin:
            admin.create_topic(TOPIC, partitions=PARTITIONS)
        settings = GroupSettings(self.broker.bootstrap, GROUP, TOPIC)
        self._members = Members(settings, PARTITIONS, directory)
        self.all: list[Member] = []
        self._active: dict[Member, str | None] = {}
        """Who is in the group, and under which name if that stays theirs."""
        self._leaving: dict[Member, str | None] = {}
        self._names = {"one", "other", "third"}
        self.counts: Counter[str] = Counter()

    def __repr__(self) -> str:
        return f"{dict(self.counts)}; {list(self._active)}; the broker: {self.broker.log[-3000:]}"

    # -- events --------------------------------------------------------------------------------

    def go_on(self, events: int) -> None:
        """Let so many things happen; once at least the broker is killed."""
        surely = self._chance.randrange(events)
        for number in range(events):
            self._await_those_who_leave(anyhow=False)
            happens = self._kill_broker if number == surely else self._pick()
            happens()
            time.sleep(self._chance.uniform(*QUIET_S))
        if not self._active:
            self._come()

    def _pick(self) -> Callable[[], None]:
        if self._chance.random() < BROKER_DIES:
            return self._kill_broker
        if not self._active:
            return self._come
        happens = [self._leave, self._kill]
        if len(self._active) < MOST_MEMBERS:
            happens += [self._come] * 3
        return self._chance.choice(happens)

    def _come(self) -> None:
        kind = self._chance.choice(self._kinds)
        name = None
        if kind.may_be_static and self._names and self._chance.random() < STATIC:
            name = self._chance.choice(sorted(self._names))
            self._names.remove(name)
        member = self._members.start(
            kind.client,
            name,
            may_be_killed=True,
            protocol=kind.protocol,
            assignor=kind.assignor,
        )
        self.all.append(member)
        self._active[member] = name
        self.counts["come" if name is None else "come under a name"] += 1

    def _leave(self) -> None:
        member = self._chance.choice(list(self._active))
        self._check_is_alive()
        member.begin_to_leave()
        self._leaving[member] = self._active.pop(member)
        self.counts["leave"] += 1

    def _kill(self) -> None:
        member = self._chance.choice(list(self._active))
        self._check_is_alive()
        member.kill()
        self._free(self._active.pop(member))
        self.counts["killed"] += 1

    def _kill_broker(self) -> None:
        self.broker.kill()
        if self._chance.random() < 0.5:
            time.sleep(self._chance.uniform(*AWAY_S))
        self.broker.start()
        self.counts["broker killed"] += 1

    def _free(self, name: str | None) -> None:
        if name is not None:
            self._names.add(name)

    def _await_those_who_leave(self, *, anyhow: bool) -> None:
        for member in list(self._leaving):
            if anyhow or not member.is_alive:
                member.await_end()
                self._free(self._leaving.pop(member))

    def _check_is_alive(self) -> None:
        gone = [member for member in self._active if not member.is_alive]
        assert not gone, (gone, self)

    # -- peace ---------------------------------------------------------------------------------

    def find_peace(self) -> None:
        """Wait until everybody has a share, and has read and committed what there was by then."""
        self._await_those_who_leave(anyhow=True)
        self._members.await_share(*self._active)
        with GroupAdmin(self.broker.bootstrap) as admin:
            await_committed(admin, ends(admin))

    def end_in_peace(self) -> None:
        """Have the group read a little more, each record once, and go; then somebody else, too.

        Who comes to the group that nobody is in any more begins where it ended: what came late, or
        was committed and lost, would be read then.
        """
        self._read_more_and_go()
        self._come()
        self._read_more_and_go(from_the_first=True)

    def _read_more_and_go(self, *, from_the_first: bool = False) -> None:
        """`from_the_first`: also what they have read until now is to be new."""
        self.find_peace()
        shares = {member: set(member.has) for member in self._active}
        with GroupAdmin(self.broker.bootstrap) as admin:
            first = ends(admin)
            # A commit reaches the broker before this process reads the lines of its member.
            until(lambda: self._have_polled_to(first), "the lines of members")
            counts = {
                member: 0 if from_the_first else len(member.polled) for member in self._active
            }
            with Writer(self.broker.bootstrap, TOPIC, PARTITIONS) as writer:
                writer.wait_for_more(100)
                writer.stop()
            last = ends(admin)
            await_committed(admin, last)
            for member in self._active:
                member.begin_to_leave()
            for member in self._active:
                member.await_end()
            assert ends(admin) == last, self
            assert lag(admin, last) == dict.fromkeys(last, 0), self
            until(lambda: admin.describe(GROUP).state == GroupState.EMPTY.value, "empty")
        polled = {member: member.polled[counts[member] :] for member in self._active}
        assert sorted(itertools.chain.from_iterable(polled.values())) == [
            (at, offset) for at in range(PARTITIONS) for offset in range(first[at], last[at])
        ], self
        assert all({at for at, _ in polled[member]} == shares[member] for member in polled), self
        for name in self._active.values():
            self._free(name)
        self._active.clear()

    def _have_polled_to(self, last: Mapping[int, int]) -> bool:
        polled = {place for member in self.all for place in member.polled}
        return all((at, end - 1) in polled for at, end in last.items() if end)

    def check_history(self) -> None:
        """Check what was read in all, and each commit there was."""
        read = defaultdict(set)
        for member in self.all:
            for partition, offset in member.polled:
                read[partition].add(offset)
        with GroupAdmin(self.broker.bootstrap) as admin:
            last = ends(admin)
        unread = {at: sorted(set(range(end)) - read[at])[:10] for at, end in last.items()}
        assert not any(unread.values()), (unread, self)
        commits = all_commits(self.broker.bootstrap)
        for partition, offsets in commits.items():
            back = [(a, b) for a, b in itertools.pairwise(offsets) if b < a]
            assert not back, (partition, back, self)
        for member in self.all:
            lost = {place for place in member.committed if place[1] not in commits[place[0]]}
            assert not lost, (lost, member)
        self.counts["records"] = sum(last.values())
        self.counts["commits"] = sum(map(len, commits.values()))

    def end(self) -> None:
        self._members.end()
        self.broker.kill()


def ends(admin: GroupAdmin) -> dict[int, int]:
    places = [TopicPartition(TOPIC, at) for at in range(PARTITIONS)]
    return {at.partition: end for at, (_, end) in admin.bounds(places).items()}


def lag(admin: GroupAdmin, wanted: Mapping[int, int]) -> dict[int, int]:
    """Return how far what is committed is from there."""
    found = admin.committed(GROUP)
    return {at: end - found.get(TopicPartition(TOPIC, at), 0) for at, end in wanted.items()}


def await_committed(admin: GroupAdmin, wanted: Mapping[int, int]) -> None:
    until(lambda: max(lag(admin, wanted).values()) <= 0, "all committed")


def all_commits(bootstrap: str) -> dict[int, list[int]]:
    """Return every offset that the group has committed, of each partition in the log's order."""
    found: dict[int, list[int]] = defaultdict(list)
    with Consumer(bootstrap, max_poll_records=100_000) as consumer:
        places = consumer.partitions_for("__consumer_offsets")
        consumer.assign(places)
        consumer.seek_to_beginning()
        last = consumer.end_offsets(places)
        while any(consumer.position(at) < last[at] for at in places):
            for record in consumer.poll(5000):
                key = decode_key(record.key or b"")
                if isinstance(key, OffsetKey) and key.group == GROUP and record.value:
                    offset = decode_offset(record.value).offset
                    found[key.topic_partition.partition].append(offset)
    return found


def go_through(directory: Path, group: str, rounds: int, events: int) -> None:
    fire = Fire(directory, GROUPS[group], run_seed())
    try:
        with Watch(fire.broker.bootstrap, fire.all) as watch:
            with Writer(fire.broker.bootstrap, TOPIC, PARTITIONS, pause_s=PAUSE_S) as writer:
                for _ in range(rounds):
                    fire.go_on(events)
                    fire.find_peace()
                    assert not watch.failures, (watch.failures, fire)
                writer.stop()
            check(writer, read_all(fire.broker.bootstrap, TOPIC))
            fire.end_in_peace()
        assert not watch.failures, (watch.failures, fire)
        fire.check_history()
        assert "failed with an internal error" not in fire.broker.log, fire.broker.log
        print(f"{group}: {dict(fire.counts)}, {watch.looks} looks at what is committed")
        assert fire.counts["broker killed"] > 0, fire
    finally:
        fire.end()


SHORT = {Plane.FAST: ("cooperative", "consumer"), Plane.PLAIN: ("both",)}


@pytest.mark.timeout(240)
def test_group_outlives_its_broker_and_its_members(plane: Plane, tmp_path: Path) -> None:
    for group in SHORT[plane]:
        go_through(tmp_path / group, group, rounds=1, events=5)


@pytest.mark.long
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("group", GROUPS)
def test_group_outlives_them_for_long(plane: Plane, tmp_path: Path, group: str) -> None:
    go_through(tmp_path, group, rounds=6, events=16)
