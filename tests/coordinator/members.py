"""Members of groups that speak the protocol by hand, one request at a time."""

from __future__ import annotations

import struct
import threading
import uuid
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, TypeVar

from plog.errors import ErrorCode, NetworkException
from plog.protocol import codec
from plog.protocol.messages.consumer_groups import (
    ConsumerGroupHeartbeatRequest,
    TopicPartitions,
)
from plog.protocol.messages.consumer_protocol import ConsumerProtocolSubscription
from plog.protocol.messages.groups import (
    HeartbeatRequest,
    JoinGroupRequest,
    JoinGroupRequestProtocol,
    LeaveGroupRequest,
    MemberIdentity,
    SyncGroupRequest,
    SyncGroupRequestAssignment,
)
from plog.protocol.messages.offsets import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
    OffsetFetchRequest,
    OffsetFetchRequestGroup,
    OffsetFetchRequestTopics,
)
from plog.types import ZERO_UUID
from tests.handlers.wire import Speaker, id_of, speak

T = TypeVar("T")
TOPIC_IDS_SINCE = 10
"""The version of OffsetCommit and OffsetFetch that has the ids of topics in place of names."""


class Later:
    """An answer that another thread waits for, unless its connection is closed."""

    def __init__(self, ask: Callable[[], Any]) -> None:
        self._answers: list[Any] = []

        def run() -> None:
            # ValueError: closing forgets the request that its answer would belong to.
            with suppress(NetworkException, ValueError):
                self._answers.append(ask())

        self._thread = threading.Thread(target=run, daemon=True)
        self._thread.start()

    def get(self) -> Any:
        """Wait for the answer."""
        self._thread.join(120)
        assert self._answers, "no answer within two minutes"
        return self._answers[0]


def subscription(*topics: str) -> bytes:
    """Return what a member of the classic protocol tells that wants these."""
    told = ConsumerProtocolSubscription(topics=list(topics))
    return struct.pack(">h", 1) + codec.encode(told, 1)


@dataclass
class ByHand:
    """A member: what it was told last is what it says next."""

    port: int
    group: str
    instance: str | None = None
    protocols: Mapping[str, bytes] = field(default_factory=lambda: {"range": b"m"})
    session_ms: int = 30_000
    rebalance_ms: int = 30_000
    member_id: str = ""
    generation: int = -1

    def __post_init__(self) -> None:
        self.wire: Speaker = speak(self.port)

    def close(self) -> None:
        self.wire.close()

    def join(self, version: int = 9) -> Any:
        """Join, twice if the coordinator names the member first; returns the last answer."""
        request = JoinGroupRequest(
            group_id=self.group,
            session_timeout_ms=self.session_ms,
            rebalance_timeout_ms=self.rebalance_ms,
            member_id=self.member_id,
            group_instance_id=self.instance if version >= 5 else None,
            protocol_type="consumer",
            protocols=[
                JoinGroupRequestProtocol(name=name, metadata=metadata)
                for name, metadata in self.protocols.items()
            ],
        )
        answer = self.wire.ask(request, version)
        if answer.error_code == ErrorCode.MEMBER_ID_REQUIRED:
            self.member_id = answer.member_id
            return self.join(version)
        if answer.error_code == ErrorCode.NONE:
            self.member_id, self.generation = answer.member_id, answer.generation_id
        return answer

    def join_later(self) -> Later:
        """Join on a thread of its own."""
        return Later(self.join)

    def sync(self, assignments: Mapping[str, bytes] | None = None, version: int = 5) -> Any:
        """Ask for the assignment; a leader gives everybody's."""
        return self.wire.ask(
            SyncGroupRequest(
                group_id=self.group,
                generation_id=self.generation,
                member_id=self.member_id,
                group_instance_id=self.instance if version >= 3 else None,
                protocol_type="consumer" if version >= 5 else None,
                protocol_name=next(iter(self.protocols)) if version >= 5 else None,
                assignments=[
                    SyncGroupRequestAssignment(member_id=one, assignment=what)
                    for one, what in (assignments or {}).items()
                ],
            ),
            version,
        )

    def enter(self) -> None:
        """Be the only member of a stable group."""
        assert self.join().error_code == ErrorCode.NONE
        assert self.sync({self.member_id: b"all"}).error_code == ErrorCode.NONE

    def beat(self, version: int = 4) -> ErrorCode:
        """Say that the member lives."""
        request = HeartbeatRequest(
            group_id=self.group, generation_id=self.generation, member_id=self.member_id
        )
        return ErrorCode(self.wire.ask(request, version).error_code)

    def leave(self, version: int = 5) -> Any:
        """Leave the group."""
        if version < 3:
            request = LeaveGroupRequest(group_id=self.group, member_id=self.member_id)
        else:
            request = LeaveGroupRequest(
                group_id=self.group, members=[MemberIdentity(member_id=self.member_id)]
            )
        return self.wire.ask(request, version)

    def commit(self, topic: str, offset: int, version: int = 8, **changes: Any) -> ErrorCode:
        """Commit an offset of the topic's first partition."""
        topic_id = id_of(self.wire, topic) if version >= TOPIC_IDS_SINCE else ZERO_UUID
        given: dict[str, Any] = {
            "group_id": self.group,
            "generation_id_or_member_epoch": self.generation if version >= 1 else -1,
            "member_id": self.member_id if version >= 1 else "",
            "topics": [
                OffsetCommitRequestTopic(
                    name=topic,
                    topic_id=topic_id,
                    partitions=[
                        OffsetCommitRequestPartition(
                            partition_index=0,
                            committed_offset=offset,
                            committed_leader_epoch=3 if version >= 6 else -1,
                            committed_metadata="m",
                        )
                    ],
                )
            ],
        }
        answer = self.wire.ask(OffsetCommitRequest(**{**given, **changes}), version)
        assert answer.topics[0].topic_id == topic_id
        return ErrorCode(answer.topics[0].partitions[0].error_code)

    def committed(self, topic: str) -> int:
        """Return what is committed for the topic's first partition; -1 for nothing."""
        (group,) = self.fetch([(topic, [0])])
        assert group.error_code == ErrorCode.NONE
        return int(group.topics[0].partitions[0].committed_offset)

    def fetch(self, topics: list[tuple[str, list[int]]] | None, version: int = 8) -> Any:
        """Return the committed offsets of partitions, or all of them."""
        wanted = (
            None
            if topics is None
            else [
                OffsetFetchRequestTopics(
                    name=name,
                    topic_id=id_of(self.wire, name) if version >= TOPIC_IDS_SINCE else ZERO_UUID,
                    partition_indexes=indexes,
                )
                for name, indexes in topics
            ]
        )
        request = OffsetFetchRequest(
            groups=[OffsetFetchRequestGroup(group_id=self.group, topics=wanted)]
        )
        return self.wire.ask(request, version).groups


@dataclass
class Consumer:
    """A member of a consumer group (KIP-848): what it was told last is what it says next."""

    port: int
    group: str
    topics: tuple[str, ...] = ()
    regex: str | None = None
    instance: str | None = None
    assignor: str | None = None
    member_id: str = field(default_factory=lambda: str(uuid.uuid4()))
    epoch: int = 0
    has: dict[uuid.UUID, list[int]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.wire: Speaker = speak(self.port)

    def close(self) -> None:
        self.wire.close()

    def join(self, version: int = 1, **changes: Any) -> Any:
        """Send the first heartbeat."""
        given: dict[str, Any] = {
            "member_epoch": 0,
            "instance_id": self.instance,
            "rebalance_timeout_ms": 30_000,
            "subscribed_topic_names": list(self.topics),
            "subscribed_topic_regex": self.regex if version >= 1 else None,
            "server_assignor": self.assignor,
            "topic_partitions": [],
        }
        return self.beat(version, **{**given, **changes})

    def beat(self, version: int = 1, **changes: Any) -> Any:
        """Send a heartbeat, and take over what it is answered."""
        given: dict[str, Any] = {
            "group_id": self.group,
            "member_id": self.member_id,
            "member_epoch": self.epoch,
        }
        request = ConsumerGroupHeartbeatRequest(**{**given, **changes})
        answer = self.wire.ask(request, version)
        if answer.error_code == ErrorCode.NONE:
            self.member_id, self.epoch = answer.member_id, answer.member_epoch
            if answer.assignment is not None:
                topics = answer.assignment.topic_partitions
                self.has = {one.topic_id: one.partitions for one in topics}
        return answer

    def tell(self, version: int = 1) -> Any:
        """Send a heartbeat that tells what the member owns: what it was told to have."""
        owned = [
            TopicPartitions(topic_id=topic, partitions=numbers)
            for topic, numbers in self.has.items()
        ]
        return self.beat(version, topic_partitions=owned)

    def numbers(self) -> list[int]:
        """Return what the member has of its only topic."""
        return [number for numbers in self.has.values() for number in numbers]

    def leave(self, epoch: int = -1) -> Any:
        """Leave the group."""
        return self.beat(member_epoch=epoch, instance_id=self.instance)
