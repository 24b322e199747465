"""A Kafka and plog side by side: what a case is, and the asking of both."""

from __future__ import annotations

import itertools
import re
import uuid
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple, TypeAlias

from plog.client.offsets import LATEST
from plog.errors import ErrorCode, NetworkException, RequestTimedOut
from plog.protocol import framing
from plog.protocol.messages.consumer_groups import ConsumerGroupHeartbeatResponse
from plog.protocol.messages.groups import JoinGroupResponse
from plog.protocol.messages.list_offsets import (
    ListOffsetsPartition,
    ListOffsetsRequest,
    ListOffsetsTopic,
)
from plog.protocol.messages.producers import InitProducerIdResponse
from plog.protocol.messages.topics import (
    CreatableTopic,
    CreatableTopicConfig,
    CreateTopicsRequest,
)
from plog.protocol.messages.transactions import EndTxnResponse
from plog.protocol.schema import Struct
from plog.types import ZERO_UUID
from tests.handlers.wire import WAIT_MS, Speaker, eventually, produce, speak

LEADERS_S = 60
LIST_OFFSETS_VERSION = 5
UNKNOWN_ID = uuid.UUID(int=2**100 + 1)
CLOSED = "the connection is closed"
PREFIX = re.compile(r"c\d+-")
"""What the names of a case's topics and groups begin with, so that no two cases meet."""
MEMBER_ID = re.compile(r"-[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}$")
"""How the ids of a group's members end."""


Made: TypeAlias = "Callable[[Side], Struct]"
"""What makes a request for one side, as it knows its topics' ids and its sessions."""


class Topic(NamedTuple):
    """A topic that a case needs: made before it, with these batches in partition 0."""

    partitions: int = 1
    configs: Mapping[str, str] = {}
    batches: Sequence[bytes] = ()


class Step(NamedTuple):
    """One request.

    Attributes:
        request: None to hear the answer of one that was sent `later`.
        settles: whether it is asked until the answers are what they should be: for late effects.
        until: a path and what both must say there; it is asked until they do.
        via: a connection of the case's own, of one member of a group: it goes by the id that it
            was given there last.
        later: whether the answer is left for a step without a request, as it has to wait.
    """

    request: Made | None
    version: int
    settles: bool = False
    until: tuple[str, str] | None = None
    via: str = ""
    later: bool = False


@dataclass(frozen=True)
class Case:
    """Requests, one after another, whose answers must be alike."""

    steps: Sequence[Step]
    topics: Mapping[str, Topic] = field(default_factory=lambda: {"t": Topic()})


def one(request: Made, version: int, **topics: Topic) -> Case:
    """Return a case of one request; without topics it has the empty topic `t`."""
    return Case([Step(request, version)], topics or {"t": Topic()})


class Side:
    """One of the two brokers, in the middle of a case."""

    def __init__(self, port: int, log_dirs: Sequence[Path]) -> None:
        self.port = port
        self.log_dirs = log_dirs
        self.wire: Speaker = speak(port)
        self.prefix = ""
        self._ids: dict[str, uuid.UUID] = {}
        self._due: dict[str, type[Struct] | None] = {}
        self._lines: dict[str, Speaker] = {}
        self.members: dict[str, str] = {}
        """The members' ids, by the names of their connections."""
        self.generation = -1
        """Of the last JoinGroup that had one."""
        self.epochs: dict[str, int] = {}
        """Of the members of consumer groups, by the names of their connections."""
        self.session_id = 0
        """Of the last Fetch that had one."""
        self.producer_id = -1
        """Of the last InitProducerId."""
        self.producers: dict[str, tuple[int, int]] = {}
        """The transactional producers, id and epoch, by the names of their connections: as they
        were told last, which EndTxn does too from version 5 on (KIP-890)."""

    def begin(self, prefix: str, topics: Mapping[str, Topic]) -> None:
        """Forget the case before, and have this one's topics made."""
        self.prefix, self.session_id, self.producer_id = prefix, 0, -1
        self._ids, self.members, self.generation, self.epochs = {}, {}, -1, {}
        self.producers = {}
        for line in self._lines.values():
            line.close()
        self._lines = {}
        request = CreateTopicsRequest(
            topics=[
                CreatableTopic(
                    name=self.name(name),
                    num_partitions=topic.partitions,
                    replication_factor=1,
                    assignments=[],
                    configs=[
                        CreatableTopicConfig(name=key, value=value)
                        for key, value in topic.configs.items()
                    ],
                )
                for name, topic in topics.items()
            ],
            timeout_ms=WAIT_MS,
        )
        self.send(request, 7)

    def fill(self, topics: Mapping[str, Topic]) -> None:
        """Receive the new topics, wait for their leaders, and write the batches into them."""
        for made in self.receive().topics:
            assert made.error_code == ErrorCode.NONE, made
            self._ids[made.name] = made.topic_id
        if topics:
            eventually(lambda: self._leads(topics), "leading the new topics", LEADERS_S)
        for name, topic in topics.items():
            for batch in topic.batches:
                wrote = produce(self.wire, self.name(name), batch)
                assert wrote.error_code == ErrorCode.NONE, wrote

    def _leads(self, topics: Mapping[str, Topic]) -> bool:
        """Tell whether every partition has its leader.

        Kafka responds to CreateTopics before that, and its metadata may name a leader too early.
        Only the leader itself knows the last offset.
        """
        request = ListOffsetsRequest(
            replica_id=-1,
            isolation_level=0,
            topics=[
                ListOffsetsTopic(
                    name=self.name(name),
                    partitions=[
                        ListOffsetsPartition(partition_index=number, timestamp=LATEST)
                        for number in range(topic.partitions)
                    ],
                )
                for name, topic in topics.items()
            ],
        )
        answer = self.wire.ask(request, LIST_OFFSETS_VERSION)
        found = [part.error_code for topic in answer.topics for part in topic.partitions]
        return all(code == ErrorCode.NONE for code in found)

    def name(self, topic: str) -> str:
        """Return what the case's topic is really called."""
        return self.prefix + topic

    def id(self, topic: str | None) -> uuid.UUID:
        """Return the id of a topic of the case; one of no topic for others, zero for None."""
        return ZERO_UUID if topic is None else self._ids.get(self.name(topic), UNKNOWN_ID)

    def send(self, request: Struct, version: int, via: str = "") -> None:
        """Ask for what `receive` returns."""
        self._due[via] = framing.response_class(type(request).api.key)
        self._line(via).send(request, self._due[via], version=version)

    def receive(self, via: str = "") -> Any:
        """Return the answer, or CLOSED; remember what later steps refer to."""
        try:
            answer = self._line(via).receive(self._due[via])
        except RequestTimedOut:
            self._hang_up(via)
            raise
        except NetworkException:
            self._hang_up(via)
            return CLOSED
        self.session_id = getattr(answer, "session_id", 0) or self.session_id
        self.producer_id = getattr(answer, "producer_id", self.producer_id)
        if isinstance(answer, InitProducerIdResponse | EndTxnResponse) and answer.producer_id >= 0:
            self.producers[via] = answer.producer_id, answer.producer_epoch
        if isinstance(answer, JoinGroupResponse):
            if answer.error_code in (ErrorCode.NONE, ErrorCode.MEMBER_ID_REQUIRED):
                self.members[via] = answer.member_id
            if answer.generation_id >= 0:
                self.generation = answer.generation_id
        if isinstance(answer, ConsumerGroupHeartbeatResponse) and not answer.error_code:
            assert answer.member_id is not None
            self.members[via], self.epochs[via] = answer.member_id, answer.member_epoch
        return answer

    def _line(self, via: str) -> Speaker:
        if not via:
            return self.wire
        if via not in self._lines:
            self._lines[via] = speak(self.port)
        return self._lines[via]

    def _hang_up(self, via: str) -> None:
        if via:
            self._lines.pop(via).close()
        else:
            self.wire = speak(self.port)

    def plain_text(self, text: str) -> str:
        """Return a text of an answer without what is this side's alone, or this case's."""
        for number, path in enumerate(self.log_dirs):
            text = text.replace(str(path), f"<log dir {number}>")
        text = text.replace(f"127.0.0.1:{self.port}", "<address>")
        for name, member_id in self.members.items():
            if text == member_id:
                return MEMBER_ID.sub(f"-<{name}>", text) if MEMBER_ID.search(text) else f"<{name}>"
        text = MEMBER_ID.sub("-<somebody>", text)
        return text.removeprefix(self.prefix)

    def name_of(self, topic_id: uuid.UUID) -> str:
        """Return the name of a topic of this case by its id; of others, only that it is none."""
        if topic_id == ZERO_UUID:
            return "zero"
        for name, known in self._ids.items():
            if known == topic_id:
                return f"id of {self.plain_text(name)}"
        return "an id"


class Names(Side):
    """No broker, but what requests are made for: it knows which names they have."""

    def __init__(self) -> None:
        self.prefix, self.session_id, self.producer_id, self.generation = "", 0, -1, -1
        self.members, self.producers = {}, {}
        self.epochs = defaultdict(int)
        self.asked = set[str]()

    def name(self, topic: str) -> str:
        self.asked.add(topic)
        return topic

    def id(self, topic: str | None) -> uuid.UUID:
        self.asked.add(topic or "")
        return UNKNOWN_ID


def case_of(steps: Sequence[Step], topics: Mapping[str, Topic]) -> Case:
    """Return a case that has those of the topics that its requests name.

    Each takes a live Kafka longer to make than most requests take it.
    """
    names = Names()
    for step in steps:
        if step.request is not None:
            step.request(names)
    return Case(steps, {name: one for name, one in topics.items() if name in names.asked})


_numbers = itertools.count()


class KafkaStumbledError(Exception):
    """The live Kafka, of an overloaded machine, did not do what was only to prepare a comparison,
    or did not answer in time: nothing is known of plog."""


class Pair:
    """Both brokers.

    Args:
        listed_under: the section of docs/SKIPPED.md that has their differences.
    """

    def __init__(self, kafka: Side, plog: Side, listed_under: str) -> None:
        self.kafka, self.plog = kafka, plog
        self.listed_under = listed_under

    def begin(self, case: Case) -> None:
        """Make a case's topics on both, by the same fresh names.

        Raises:
            KafkaStumbledError: it did not.
        """
        prefix = f"c{next(_numbers)}-"
        # Each has half of a processor's work to do meanwhile.
        for side in self.sides:
            side.begin(prefix, case.topics)
        self.plog.fill(case.topics)
        try:
            self.kafka.fill(case.topics)
        except (AssertionError, RequestTimedOut) as stumbled:
            raise KafkaStumbledError(f"making the topics: {stumbled}") from stumbled

    @property
    def sides(self) -> tuple[Side, Side]:
        return self.kafka, self.plog

    def ask(self, step: Step) -> tuple[Any, Any] | None:
        """Return both answers, if they are not to be heard later.

        Raises:
            KafkaStumbledError: it did not answer in time.
        """
        if step.request is not None:
            for side in self.sides:
                side.send(step.request(side), step.version, step.via)
        if step.later:
            return None
        plog = self.plog.receive(step.via)
        try:
            kafka = self.kafka.receive(step.via)
        except RequestTimedOut as stumbled:
            raise KafkaStumbledError(f"no answer in {WAIT_MS} ms") from stumbled
        return kafka, plog
