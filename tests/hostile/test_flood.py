"""A million hostile frames, and streams that break off: the broker is afterwards what it was.

So are its memory, its descriptors and its log. The short forms send a twentieth or less.
"""

from __future__ import annotations

import contextlib
import os
import random
import re
import time
from collections import Counter
from collections.abc import Callable, Iterator
from itertools import combinations
from statistics import median
from typing import Protocol

import pytest

from plog.cluster.config_changes import MOST_NOTICES
from plog.handlers.context import MOST_EXPANDERS
from plog.network.control_plane import CLOSINGS_AT_ONCE, CLOSINGS_PER_S
from plog.protocol.framing import encode_request_header
from plog.protocol.messages.metadata import MetadataRequest
from plog.protocol.messages.topics import DeleteTopicsRequest, DeleteTopicState
from plog.runtime.bounded_lines import AT_ONCE, PER_S
from tests.agreement.harness import run_seed
from tests.compat import requests
from tests.coordinator.conftest import GROUP, TRANSACTION, await_coordinator
from tests.handlers.wire import WAIT_MS, create_topic, eventually, speak
from tests.hostile import frames
from tests.hostile.companion import Companion
from tests.hostile.conftest import Besiege
from tests.hostile.flood import Flood, Kind
from tests.hostile.sockets import prefixed
from tests.hostile.storm import KEPT_WAITING, Storm
from tests.hostile.watch import MIB, descriptors, memory, threads
from tests.protocol.test_golden import table
from tests.servers import BrokerProcess

CONNECTIONS = 128
POOL = 20_000
GROWTH = 24 * MIB
"""What may be resident more after the flood than after its first twentieth."""
PARTS = 10
"""In which the second half is sent, and memory looked at between them: the heap has its size."""
LEFT_BY_FRAME, LEFT_BY_STREAM = 150, 1000
"""Bytes that each may leave behind (`leak`)."""
NOTICES = MOST_NOTICES * 1000
"""Memory that the notices of altered configs take, for a quarter of an hour."""
EXPECTED = (
    "closing connection from|further connections were closed|asks for the coordinator"
    "|further connections asked for a coordinator"
)
"""What the log may warn of."""
BOUNDED = re.compile(
    r" (?:INFO|WARNING|ERROR) (plog\.(?:cluster|coordinator|handlers|storage)\.\w+): "
)
"""In the lines of what clients and administrators ask for, with who tells of it."""
OTHER_LINES = 50
"""In a log, beside all these."""
OPEN_BY_CHANCE = 2
"""Who writes to the log directories opens a file or two for a moment."""
STARTED_WHEN_NEEDED = (os.cpu_count() or 1) + 4 + MOST_EXPANDERS
"""Threads of Python's pool and for batches that expand: never more, never fewer again."""


def golden() -> Iterator[bytes]:
    """Yield the requests of another library, of every API and version, served or not."""
    for one in table():
        if one.cls.__name__.endswith("Request") and len(one.wire) < 4000:
            head = encode_request_header(one.cls.api.key, one.version, 7, "golden")
            yield prefixed(head + one.wire)


def kinds(topic: str, recorded: list[bytes]) -> list[Kind]:
    well_formed = [stream for _, _, stream in frames.well_formed()]
    real = recorded + list(golden())
    return [
        Kind(frames.mutated(recorded), True),
        Kind(frames.mutated(real), True),
        Kind(frames.mutated(well_formed), True),
        Kind(frames.spliced(real), True),
        Kind(frames.spliced(well_formed), True),
        Kind(frames.mutated_stream(real), False),
        Kind(frames.random_bytes, False),
        Kind(frames.random_frame, True),
        Kind(frames.random_body, True),
        Kind(frames.absurd_values, True),
        Kind(frames.unknown_api, True),
        Kind(frames.unknown_version, True),
        Kind(frames.tiny_elements, True),
        Kind(frames.overlong_varint, True),
        Kind(frames.lying_produce(topic), True),
        Kind(frames.damaged_produce(topic), True),
        Kind(frames.absurd_fetch(topic), True),
        Kind(frames.new_session(topic), True),
        Kind(frames.hostile_name, True),
        Kind(frames.size(-1), False),
        Kind(frames.size(frames.INT_MAX, b"x" * 100), False),
    ]


def delete_all_but(broker: BrokerProcess, kept: str) -> None:
    with contextlib.closing(speak(broker.port)) as wire:
        found = {one.name for one in wire.ask(MetadataRequest(topics=None), 8).topics}
        asked = [DeleteTopicState(name=name) for name in sorted(found - {kept})]
        wire.ask(DeleteTopicsRequest(topics=asked, timeout_ms=WAIT_MS), 6)


def leak(resident: list[int]) -> float:
    """Return by how much memory grows from one look to the next: the median over all pairs.

    A leak grows between any two looks. A heap that grows once, or shrinks once, counts little.
    """
    looks = list(enumerate(resident))
    return median((b - a) / (j - i) for (i, a), (j, b) in combinations(looks, 2))


class Attackers(Protocol):
    """Whoever sends many hostile things over many connections."""

    outcomes: Counter[str]
    """What came of each of them."""
    connections: int
    """How many there were."""

    def send(self, count: int) -> None: ...
    def close(self) -> None: ...


Gather = Callable[[int, str, list[bytes]], Attackers]
"""Makes them, of a port, a topic that there is, and what real clients send about it."""
Endure = Callable[[Gather, int, int], None]


@pytest.fixture
def endure(
    own_broker: Callable[..., BrokerProcess],
    besiege: Besiege,
    record_property: Callable[[str, object], None],
) -> Endure:
    """Have attackers send so many that may leave so many bytes; find the broker as it was."""

    def check(gather: Gather, count: int, left_by_each: int) -> None:
        broker = own_broker(auto_create_topics_enable="false")
        with contextlib.closing(speak(broker.port)) as wire:
            for kind in (GROUP, TRANSACTION):  # their topics stay, however they come to be
                await_coordinator(wire, "any", kind)
        with (
            besiege(broker, growth=64 * MIB) as under,
            contextlib.closing(Companion(broker.port)) as companion,
        ):
            open_before = descriptors(broker)
            with contextlib.closing(speak(broker.port)) as wire:
                topic, topic_id = create_topic(wire, requests.TOPIC, requests.PARTITIONS)
            companion.go_on()
            attackers = gather(broker.port, topic, frames.recorded(topic_id))
            first, part = count // 20, count // 2 // PARTS
            attackers.send(first)
            memory_before, threads_before = memory(broker, "VmRSS"), threads(broker)
            began = time.monotonic()
            attackers.send(count - first - PARTS * part)
            resident = [memory(broker, "VmRSS")]
            for _ in range(PARTS):
                attackers.send(part)
                resident.append(memory(broker, "VmRSS"))
            took_s = time.monotonic() - began
            attackers.close()
            under.bystander.go_on()
            companion.go_on()
            companion.stop()
            memory_after, threads_after = memory(broker, "VmRSS"), threads(broker)
            # Time stamps far apart have rolled segments, which hold descriptors while they are.
            delete_all_but(broker, under.bystander.topic)
            eventually(
                lambda: descriptors(broker) <= open_before + OPEN_BY_CHANCE, "descriptors come back"
            )
            open_after = descriptors(broker)
        lines = under.lines.all()
        told = len(under.lines.closings())
        left = leak(resident) / part
        record_property(
            "figures",
            f"{count} over {attackers.connections} connections in {took_s:.0f} s: "
            f"{dict(attackers.outcomes)}; memory {memory_before / MIB:.1f} to "
            f"{memory_after / MIB:.1f} MiB, {left:.0f} bytes by each; "
            f"{open_before} to {open_after} descriptors, "
            f"{threads_before} to {threads_after} threads; "
            f"{len(companion.committed)} transactions beside it; "
            f"{len(lines)} lines, {told} of closed connections and {under.lines.untold()} counted",
        )
        assert sum(attackers.outcomes.values()) == count
        assert attackers.outcomes[KEPT_WAITING] <= 1 + count // 20_000
        assert memory_after - memory_before < GROWTH + NOTICES
        assert left < left_by_each, resident
        assert threads_after <= threads_before + STARTED_WHEN_NEEDED
        seconds = took_s * 1.1 + 10
        assert told <= CLOSINGS_AT_ONCE + CLOSINGS_PER_S * seconds
        bounded = Counter(found[1] for line in lines if (found := BOUNDED.search(line)))
        for source, count_of_it in bounded.items():
            # Of several kinds at most, and their numbers once a second.
            assert count_of_it <= 3 * (AT_ONCE + (PER_S + 1) * seconds), source
        assert len(lines) - bounded.total() <= told + seconds + OTHER_LINES
        strange = [line for line in under.lines.grave() if not re.search(EXPECTED, line)]
        assert not strange

    return check


@pytest.mark.usefixtures("plane")
@pytest.mark.timeout(1500)
@pytest.mark.parametrize(
    "count", [50_000, pytest.param(1_000_000, marks=pytest.mark.long)], ids=["short", "million"]
)
def test_flood_of_hostile_frames_leaves_the_broker_as_it_was(endure: Endure, count: int) -> None:
    rng = random.Random(run_seed())

    def gather(port: int, topic: str, recorded: list[bytes]) -> Flood:
        return Flood(port, kinds(topic, recorded), rng, connections=CONNECTIONS, pool=POOL)

    endure(gather, count, LEFT_BY_FRAME)


@pytest.mark.usefixtures("plane")
@pytest.mark.timeout(1500)
@pytest.mark.parametrize(
    "count", [10_000, pytest.param(300_000, marks=pytest.mark.long)], ids=["short", "long"]
)
def test_storm_of_broken_streams_leaves_the_broker_as_it_was(endure: Endure, count: int) -> None:
    rng = random.Random(run_seed())

    def gather(port: int, topic: str, recorded: list[bytes]) -> Storm:
        return Storm(port, frames.damaged_sequence(recorded), rng, connections=CONNECTIONS)

    endure(gather, count, LEFT_BY_STREAM)
