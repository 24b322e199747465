"""Two brokers that must give the same answers: one with the fast path, one without."""

from __future__ import annotations

import re
import struct
import uuid
from collections.abc import Callable
from pathlib import Path

from plog.errors import ErrorCode
from plog.protocol.messages.fetch import FetchResponse
from plog.protocol.schema import Struct
from tests.handlers.running import (
    Running,
    decoded,
)
from tests.handlers.wire import (
    create_topic,
    fetch_request,
    fresh_name,
)
from tests.planes import Plane

PRODUCE_VERSIONS = range(3, 13)
FETCH_VERSIONS = range(4, 19)
IDS_SINCE = 13
CODECS = {"none": 0, "gzip": 1, "snappy": 2, "lz4": 3, "zstd": 4}


def without_times(frame: bytes) -> bytes:
    """Messages name the time at which a timestamp was refused."""
    return re.sub(rb"\b\d{13}\b", b"T" * 13, frame)


class Twins:
    """A broker with the fast path and one without, whose answers must not differ."""

    def __init__(self, directory: Path) -> None:
        self.fast = Running(directory / "fast", num_partitions=3)
        self.plain = Running(directory / "plain", num_partitions=3, plane=Plane.PLAIN)
        self.both = (self.fast, self.plain)
        self.ids_of: dict[Running, dict[str, uuid.UUID]] = {one: {} for one in self.both}

    def create_topic(self, partitions: int = 3, **configs: object) -> str:
        name = fresh_name()
        ids = [create_topic(one.wire, name, partitions, **configs)[1] for one in self.both]
        self.ids = dict(zip(self.both, ids, strict=True))
        for one, topic_id in self.ids.items():
            self.ids_of[one][name] = topic_id
        return name

    def id_of(self, one: Running, topic: str) -> uuid.UUID:
        return self.ids_of[one][topic]

    def ask(self, request: Struct, version: int, *, fast: bool = True) -> bytes:
        """Return the answer of both; `fast` says by which way the first has to give it."""
        before = self.fast.fast_requests
        answer, expected = (one.ask(request, version) for one in self.both)
        assert without_times(answer) == without_times(expected)
        assert (self.fast.fast_requests > before) is fast, self.fast.callouts
        return answer

    def ask_by_id(
        self, request_of: Callable[[uuid.UUID], Struct], version: int, *, fast: bool = True
    ) -> None:
        """Ask each with the topic id it knows; the answers differ in that alone."""
        before = self.fast.fast_requests
        answer, expected = (
            one.ask(request_of(self.ids[one]), version).replace(self.ids[one].bytes, b"I" * 16)
            for one in self.both
        )
        assert answer == expected
        assert (self.fast.fast_requests > before) is fast, self.fast.callouts


GONE = (ErrorCode.NOT_LEADER_OR_FOLLOWER, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
"""What a request hears whose topic is deleted under it: first of no leader, then of no topic."""


class TwinSession:
    """A consumer's session with each of the twins; their ids differ, and nothing else."""

    def __init__(
        self, twins: Twins, *parts: tuple, version: int = 12, fast: bool = True, **options: int
    ) -> None:
        self.twins, self.version, self.options = twins, version, options
        self.numbers = dict.fromkeys(twins.both, 0)
        self.epoch = 0
        self.first = self.next(*parts, fast=fast)

    def next(self, *parts: tuple, forgotten: tuple = (), fast: bool = True, **options: int) -> dict:
        before = self.twins.fast.fast_requests
        frames = []
        for one in self.twins.both:

            def named(topic: str, one: Running = one) -> str | uuid.UUID:
                return topic if self.version < IDS_SINCE else self.twins.id_of(one, topic)

            request = fetch_request(
                *((named(topic), index, offset) for topic, index, offset in parts),
                session=(self.numbers[one], self.epoch),
                forgotten=[(named(topic), index) for topic, index in forgotten],
                **{**self.options, **options},
            )
            frame = one.ask(request, self.version)
            answer = decoded(FetchResponse, self.version, frame)
            if self.epoch == 0:
                assert answer.session_id > 0
                self.numbers[one] = answer.session_id
            assert answer.session_id in (0, self.numbers[one])
            frame = frame.replace(struct.pack(">i", self.numbers[one]), b"NNNN")
            for topic_id in self.twins.ids_of[one].values():
                frame = frame.replace(topic_id.bytes, b"I" * 16)
            frames.append(frame)
        assert frames[0] == frames[1]
        assert (self.twins.fast.fast_requests > before) is fast, self.twins.fast.callouts
        self.epoch += 1
        return {
            (topic.topic, part.partition_index): part
            for topic in answer.responses
            for part in topic.partitions
        }
