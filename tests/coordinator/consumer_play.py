"""Runs a consumer group's machine by hand: a clock that is set, records that are kept as bytes."""

from __future__ import annotations

import itertools
import uuid
from collections.abc import Mapping

from plog.cluster.metadata_cache import MetadataSnapshot, PartitionMetadata, TopicMetadata
from plog.coordinator import consumer_log
from plog.coordinator.assignors import IdPartition, Partitions
from plog.coordinator.consumer_events import (
    Beat,
    ConsumerEffect,
    ConsumerEvent,
    Downgrade,
    NewEpoch,
    Resolution,
    Resolve,
    Rules,
    StoreRecords,
)
from plog.coordinator.consumer_group import ConsumerGroup
from plog.coordinator.consumer_table import Record, Resolved, Table
from plog.coordinator.group_events import (
    Answer,
    BeatAnswer,
    Heartbeat,
    Join,
    JoinAnswer,
    Leave,
    Leaving,
    Left,
    Protocol,
    SetTimer,
    StopTimer,
    Sync,
    SyncAnswer,
    Timer,
    TimerFired,
)
from plog.coordinator.subscriptions import read_assignment
from plog.coordinator.topic_regex import Pattern
from plog.errors import ErrorCode
from plog.protocol import codec
from plog.protocol.messages.consumer_protocol import (
    ConsumerProtocolSubscription,
    TopicPartitions,
)


def topic_id(name: str) -> uuid.UUID:
    """Return the id that a topic has in all plays."""
    return uuid.uuid5(uuid.NAMESPACE_DNS, name)


def cluster_of(sizes: Mapping[str, int], version: int = 1) -> MetadataSnapshot:
    """Return a cluster with these topics."""
    topics = {
        name: TopicMetadata(
            name,
            topic_id(name),
            {index: PartitionMetadata(index, 0, 0, (0,), (0,), (), 0) for index in range(size)},
        )
        for name, size in sizes.items()
    }
    return MetadataSnapshot(
        version=version, topics=topics, topic_names={topic_id(name): name for name in sizes}
    )


def parts(*names: str) -> Partitions:
    """Return partitions by names such as `a-0`."""
    return frozenset(
        IdPartition(topic_id(topic), int(number))
        for topic, _, number in (name.rpartition("-") for name in names)
    )


class ConsumerPlay:
    """A group, its timers and its answers; tokens are numbers."""

    def __init__(self, sizes: Mapping[str, int], rules: Rules | None = None) -> None:
        self.rules = rules or Rules()
        self.cluster = cluster_of(sizes)
        self.group = ConsumerGroup("g", self.rules)
        self.log: dict[bytes, bytes] = {}
        self.now_ms = 0
        self.timers: dict[Timer, int] = {}
        self.answers: dict[object, object] = {}
        self.reasons: list[tuple[int, str]] = []
        self.unresolved: list[frozenset[str]] = []
        self.downgrades: list[str] = []
        self._tokens = itertools.count(1)

    def set_topics(self, sizes: Mapping[str, int]) -> None:
        """Have the cluster's topics change."""
        self.cluster = cluster_of(sizes, self.cluster.version + 1)

    # -- requests ----------------------------------------------------------------------------

    def beat(self, member_id: str, epoch: int, **told: object) -> BeatAnswer:
        """Send a heartbeat; returns its answer."""
        token = next(self._tokens)
        self.feed(Beat(token, member_id, epoch, **told))  # type: ignore[arg-type]
        answer = self.answers[token]
        assert isinstance(answer, BeatAnswer)
        return answer

    def enter(self, member_id: str, *topics: str, **told: object) -> BeatAnswer:
        """Have somebody join."""
        given: dict[str, object] = {
            "topics": frozenset(topics),
            "owned": frozenset(),
            "rebalance_timeout_ms": 30_000,
            **told,
        }
        return self.beat(member_id, 0, **given)

    def join(self, member_id: str, *topics: str, **told: object) -> JoinAnswer:
        """Have a member of the classic protocol join; `owned` are names of partitions."""
        token = next(self._tokens)
        owned = told.pop("owned", ())
        assert isinstance(owned, tuple)
        subscription = ConsumerProtocolSubscription(
            topics=list(topics),
            owned_partitions=[
                TopicPartitions(topic=name.rpartition("-")[0], partitions=[int(name[-1])])
                for name in owned
            ],
        )
        given: dict[str, object] = {
            "instance_id": None,
            "protocol_type": "consumer",
            "protocols": (Protocol("range", b"\0\1" + codec.encode(subscription, 1)),),
            **told,
        }
        self.feed(
            Join(
                token=token,
                member_id=member_id,
                new_member_id=f"new-{token}",
                client_id="c",
                client_host="/h",
                rebalance_timeout_ms=30_000,
                session_timeout_ms=10_000,
                **given,  # type: ignore[arg-type]
            )
        )
        answer = self.answers[token]
        assert isinstance(answer, JoinAnswer)
        return answer

    def sync(self, member_id: str, generation: int, **told: object) -> SyncAnswer:
        """Have a member of the classic protocol ask for its assignment."""
        token = next(self._tokens)
        given: dict[str, object] = {"instance_id": None, **told}
        self.feed(
            Sync(
                token,
                member_id,
                generation=generation,
                protocol_type=None,
                protocol_name=None,
                assignments={},
                **given,  # type: ignore[arg-type]
            )
        )
        answer = self.answers[token]
        assert isinstance(answer, SyncAnswer)
        return answer

    def heartbeat(self, member_id: str, generation: int) -> ErrorCode:
        """Send a heartbeat of the classic protocol."""
        token = next(self._tokens)
        self.feed(Heartbeat(token, member_id, None, generation))
        answer = self.answers[token]
        assert isinstance(answer, ErrorCode)
        return answer

    def leave(self, *members: Leaving) -> tuple[ErrorCode, ...]:
        """Send a LeaveGroup; returns its answer."""
        token = next(self._tokens)
        self.feed(Leave(token, members))
        answer = self.answers[token]
        assert isinstance(answer, Left)
        return answer.errors

    # -- what else happens -------------------------------------------------------------------

    def resolve(self) -> None:
        """Find out what the expressions match that were asked about first."""
        topics = self.cluster.topics
        self.feed(
            Resolution(
                {
                    regex: Resolved(
                        Pattern(regex).matching(topics), self.cluster.version, self.now_ms
                    )
                    for regex in self.unresolved.pop(0)
                }
            )
        )

    def pass_ms(self, duration_ms: int) -> None:
        """Let time pass, and timers fire on their way."""
        end_ms = self.now_ms + duration_ms
        while self.timers:
            timer = min(self.timers, key=self.timers.__getitem__)
            if self.timers[timer] > end_ms:
                break
            self.now_ms = self.timers.pop(timer)
            self.feed(TimerFired(timer))
        self.now_ms = end_ms

    def restart(self) -> None:
        """Have the broker start anew on what is in the log."""
        self.group = ConsumerGroup("g", self.rules, self.read())
        self.timers.clear()
        self.unresolved.clear()
        self.execute(self.group.resume())

    def read(self) -> Table:
        """Return what the log says."""
        table = Table()
        for key, value in self.log.items():
            found = consumer_log.decode_key(key)
            assert found is not None
            assert found.group == "g"
            table.apply(Record(found.key, consumer_log.decode_value(found.key.kind, value)))
        return table

    def feed(self, event: ConsumerEvent) -> None:
        """Have the machine take in an event, and execute what it wants."""
        self.group.cluster, self.group.now_ms = self.cluster, self.now_ms
        self.execute(self.group.on(event))

    def execute(self, effects: list[ConsumerEffect]) -> None:
        """Do what the machine wants, in its order."""
        for effect in effects:
            match effect:
                case StoreRecords(records):
                    for record in records:
                        key = consumer_log.encode_key("g", record.key)
                        value = consumer_log.encode_value(record)
                        self.log.pop(key, None)
                        if value is not None:
                            self.log[key] = value
                case Answer(token, answer):
                    assert token not in self.answers, "answered twice"
                    self.answers[token] = answer
                case SetTimer(timer, after_ms):
                    self.timers[timer] = self.now_ms + after_ms
                case StopTimer(timer):
                    self.timers.pop(timer, None)
                case NewEpoch(epoch, reason):
                    self.reasons.append((epoch, reason))
                case Resolve(regexes):
                    self.unresolved.append(regexes)
                case Downgrade(reason):
                    self.downgrades.append(reason)

    # -- what is seen ------------------------------------------------------------------------

    def names(self, partitions: Partitions) -> list[str]:
        """Return partitions by names such as `a-0`."""
        known = {topic_id(name): name for name in "abcdefgh"} | dict(self.cluster.topic_names)
        return sorted(f"{known[at.topic_id]}-{at.partition}" for at in partitions)

    def assigned(self, answer: SyncAnswer) -> list[str]:
        """Return what a member of the classic protocol may use."""
        found = read_assignment(answer.assignment)
        assert found is not None
        return sorted(
            f"{topic.topic}-{number}"
            for topic in found.assigned_partitions
            for number in topic.partitions
        )
