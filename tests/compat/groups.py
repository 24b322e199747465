"""Members of consumer groups, each a program of its own that tells what it has and reads."""

from __future__ import annotations

import itertools
import json
import re
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TypeAlias

import pytest

from plog.client.group_admin import GroupAdmin
from plog.client.producer import Producer
from plog.coordinator.group_states import GroupState
from plog.errors import GroupIdNotFound
from tests.compat.clients import PATIENCE_S
from tests.compat.jvm import HostedProgram
from tests.compat.programs import JAVA, MEMBER, FranzGo, Java

SCRIPT = Path(__file__).with_name("group_member.py")
PYTHON = ["confluent-kafka", "kafka-python", "aiokafka"]
Client: TypeAlias = str | Java | FranzGo
CLIENTS: list[Client] = [*PYTHON, *JAVA]
"""Other people's; "plog" is started beside them."""
NEW_JAVA_IN_EVERY_RUN = [
    pytest.param(client, marks=pytest.mark.long) if client is JAVA[0] else client
    for client in CLIENTS
]
"""For tests of a group that Java's two releases form alike: the old one runs with `--long`."""
BEAT_MS = 300
SESSION_MS = 3_000
"""How long a killed member is waited for; ten heartbeats, as the machine may be busy."""
LONG_SESSION_MS = 300_000
"""As long as a test may take: nobody's ends within one, however late who was killed or has left is
back. With 60 s a JVM that was 88 s in starting came back to a group that had rebalanced, which is
what Kafka does too. librdkafka takes none beyond its max.poll.interval.ms, which is this."""
CLASSES = {
    "range": "org.apache.kafka.clients.consumer.RangeAssignor",
    "sticky": "org.apache.kafka.clients.consumer.StickyAssignor",
    "cooperative-sticky": "org.apache.kafka.clients.consumer.CooperativeStickyAssignor",
}
Place = tuple[int, int]
"""Partition and offset of a record."""


def name_of(client: Client) -> str:
    return client if isinstance(client, str) else client.name


@dataclass(frozen=True)
class GroupSettings:
    """What the members of one group have in common."""

    bootstrap: str
    group: str
    topic: str
    assignor: str = "range"
    session_ms: int = SESSION_MS
    protocol: str = "classic"
    """`consumer` is that of KIP-848, where the assignor is the broker's, and so are the times."""

    pattern: str = ""
    """An expression behind ^ that they subscribe to instead of the topic."""

    def start(
        self, client: Client, instance: str | None, log: Path, *, may_be_killed: bool
    ) -> subprocess.Popen[str] | HostedProgram:
        """Start a member; one of Java's that is not to be killed, in the JVM of all such."""
        if isinstance(client, Java) and not may_be_killed:
            log.touch()
            return client.start(MEMBER, self._of_java(instance), log)
        with log.open("wb") as stderr:
            return subprocess.Popen(
                self._command(client, instance),
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=stderr,
                text=True,
            )

    def _command(self, client: Client, instance: str | None) -> list[str]:
        if isinstance(client, Java):
            return [*client.member_command(client.built()), *self._of_java(instance)]
        topic = self.pattern or self.topic
        if isinstance(client, FranzGo):
            assert self.protocol == "consumer"
            static = [instance] if instance else []
            told = [self.bootstrap, self.group, topic, self.assignor, *static]
            return [*client.member_command(client.built()), *told]
        given = {**vars(self), "topic": topic, "beat_ms": BEAT_MS, "instance": instance}
        return [sys.executable, str(SCRIPT), client, json.dumps(given)]

    def _of_java(self, instance: str | None) -> list[str]:
        static = [f"group.instance.id={instance}"] if instance else []
        return [
            self.pattern or self.topic,
            f"bootstrap.servers={self.bootstrap}",
            f"group.id={self.group}",
            "auto.offset.reset=earliest",
            "enable.auto.commit=false",
            *static,
            *self._protocol_of_java(),
        ]

    def _protocol_of_java(self) -> list[str]:
        if self.protocol == "consumer":
            return ["group.protocol=consumer", f"group.remote.assignor={self.assignor}"]
        return [
            f"session.timeout.ms={self.session_ms}",
            f"heartbeat.interval.ms={BEAT_MS}",
            f"partition.assignment.strategy={CLASSES[self.assignor]}",
        ]


class Member:
    """A program in a group; what it tells is gathered by a thread."""

    def __init__(
        self, name: str, program: subprocess.Popen[str] | HostedProgram, log: Path
    ) -> None:
        self.name = name
        self.assignments: list[list[int]] = []
        """What it had after every change."""
        self.polled: list[Place] = []
        self.committed: list[Place] = []
        """Next offsets that it was told are committed."""
        self.read: list[Place] = []
        """What it has polled and committed."""
        self._log = log
        self._program = program
        assert program.stdout is not None
        self._reader = threading.Thread(target=self._gather, args=[program.stdout])
        self._reader.start()

    def __repr__(self) -> str:
        return f"{self.name}: {self.assignments} {len(self.read)} read; {self._log.read_text()}"

    @property
    def has(self) -> list[int]:
        return self.assignments[-1] if self.assignments else []

    @property
    def is_alive(self) -> bool:
        return self._program.poll() is None

    def _gather(self, said: Iterable[str]) -> None:
        for line in said:
            event: dict[str, Any] = json.loads(line)
            if "assigned" in event:
                self.assignments.append(event["assigned"])
            for what in ("polled", "committed", "read"):
                getattr(self, what).extend((at, offset) for at, offset in event.get(what, ()))

    def leave(self) -> None:
        """Have it close, which it does with status 0."""
        self.begin_to_leave()
        self.await_end()

    def begin_to_leave(self) -> None:
        """Have it close, some time."""
        assert self._program.stdin is not None
        self._program.stdin.close()

    def await_end(self) -> None:
        """Wait until it has left."""
        status = self._program.wait(PATIENCE_S)
        self._reader.join()
        assert status == 0, self

    def kill(self) -> None:
        """End it by SIGKILL."""
        assert isinstance(self._program, subprocess.Popen), "start it with `may_be_killed`"
        self.end()

    def end(self) -> None:
        """End it anyhow; in a JVM that others share it leaves some time later."""
        self._program.kill()
        self._program.wait()
        self._reader.join()


class Members:
    """Those who are in a group now."""

    def __init__(self, settings: GroupSettings, partitions: int, logs: Path) -> None:
        self.settings = settings
        self._partitions = range(partitions)
        self._logs = logs
        self._numbers = itertools.count()
        self._all: list[Member] = []
        self._written = 0

    def start(
        self,
        client: Client,
        instance: str | None = None,
        *,
        may_be_killed: bool = False,
        **changes: str,
    ) -> Member:
        """Start a member, with the group's settings but for `changes`."""
        log = self._logs / f"member-{next(self._numbers)}.log"
        settings = replace(self.settings, **changes)  # type: ignore[arg-type]
        program = settings.start(client, instance, log, may_be_killed=may_be_killed)
        member = Member(name_of(client), program, log)
        self._all.append(member)
        return member

    def await_share(self, *members: Member) -> None:
        """Wait until just these have something each, and together every partition once, for good.

        For a moment that may be so while the group still moves partitions (KIP-848).
        """

        def is_shared() -> bool:
            assert all(member.is_alive for member in members), members
            is_settled = self._is_stable(admin)
            has = [member.has for member in members]
            together = sorted(itertools.chain.from_iterable(has))
            return is_settled and all(has) and together == list(self._partitions)

        with GroupAdmin(self.settings.bootstrap) as admin:
            self._await(is_shared)

    def _is_stable(self, admin: GroupAdmin) -> bool:
        try:
            return admin.describe(self.settings.group).state == GroupState.STABLE.value
        except GroupIdNotFound:
            return False  # nobody has joined yet

    def write_and_await(self, *members: Member, each: int = 10) -> None:
        """Write to every partition; each record is read once, by whoever has its partition.

        Who gets no turn for as long as its session lasts loses what it has, on a busy machine. Once
        anybody has been told something else, a record is for any of those who have had its
        partition meanwhile.
        """
        before = {member: list(member.assignments) for member in members}
        counts = {member: len(member.read) for member in members}
        with Producer(self.settings.bootstrap) as producer:
            for n, partition in itertools.product(range(each), self._partitions):
                producer.send(self.settings.topic, b"%d" % n, partition=partition)
            producer.flush(PATIENCE_S)
        self._written += each * len(self._partitions)
        self._await(lambda: sum(len(member.read) for member in self._all) >= self._written)
        stood_still = all(member.assignments == told for member, told in before.items())
        for member, told in before.items():
            has_read = {at for at, _ in member.read[counts[member] :]}
            has_had = set().union(*member.assignments[len(told) - 1 :])
            assert has_read == has_had if stood_still else has_read <= has_had, self._all
        read = sorted(place for member in self._all for place in member.read)
        ends = range(self._written // len(self._partitions))
        assert read == [(at, offset) for at in self._partitions for offset in ends], self._all

    def _await(self, holds: Callable[[], bool]) -> None:
        until = time.monotonic() + PATIENCE_S
        while not holds():
            assert time.monotonic() < until, self._all
            time.sleep(0.05)

    def rebalances(self, log: str) -> int:
        """Count those of the group that a broker's log tells of."""
        return len(re.findall(rf"group '{self.settings.group}' rebalances ", log))

    def end(self) -> None:
        """End those who are left."""
        for member in self._all:
            member.end()


def come_and_go(group: Members, client: Client) -> None:
    """Have members of a client share a group's partitions, one join, one die and one leave."""
    first = group.start(client)
    group.await_share(first)
    group.write_and_await(first)
    second = group.start(client, may_be_killed=True)
    group.await_share(first, second)
    assert len(first.has) == len(second.has)
    group.write_and_await(first, second)
    second.kill()
    group.await_share(first)
    group.write_and_await(first)
    first.leave()
    third = group.start(client)
    group.await_share(third)
    group.write_and_await(third)  # nothing of what others have read
    third.leave()
