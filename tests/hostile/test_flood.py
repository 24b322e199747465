"""A million hostile frames: the broker is the same afterwards, and so are its memory and its log.

The short form sends a twentieth of them.
"""

from __future__ import annotations

import contextlib
import os
import random
import re
import time
from collections.abc import Callable, Iterator

import pytest

from plog.handlers.context import MOST_EXPANDERS
from plog.network.control_plane import CLOSINGS_AT_ONCE, CLOSINGS_PER_S
from plog.protocol.framing import encode_request_header
from plog.protocol.messages.metadata import MetadataRequest
from plog.protocol.messages.topics import DeleteTopicsRequest, DeleteTopicState
from tests.agreement.harness import run_seed
from tests.compat import traffic
from tests.compat.recorder import Recorder
from tests.handlers.wire import WAIT_MS, create_topic, eventually, speak
from tests.hostile import frames
from tests.hostile.conftest import Besiege
from tests.hostile.flood import Flood, Kind
from tests.hostile.sockets import prefixed
from tests.hostile.watch import MIB, descriptors, memory, threads
from tests.protocol.test_golden import table
from tests.servers import BrokerProcess

CONNECTIONS = 64
POOL = 20_000
GROWTH = 24 * MIB
"""What may be resident more after the flood than after its first twentieth."""
OTHER_LINES = 50
"""In a log, beside those of closed connections: of topics that were made and deleted."""
OPEN_BY_CHANCE = 2
"""Who writes to the log directories opens a file or two for a moment."""
STARTED_WHEN_NEEDED = (os.cpu_count() or 1) + 4 + MOST_EXPANDERS
"""Threads of Python's pool and for batches that expand: never more, never fewer again."""


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> list[bytes]:
    """What librdkafka sends while it writes and reads, with lengths."""
    broker = BrokerProcess(tmp_path_factory.mktemp("recorded"))
    recorder = Recorder(broker.port)
    broker.overrides["advertised.listeners"] = f"PLAINTEXT://127.0.0.1:{recorder.port}"
    with broker:
        with contextlib.closing(speak(broker.port)) as wire:
            create_topic(wire, "hostile", 2)
        shape = traffic.Shape(partitions=2, rounds=4, records_per_round=2)
        traffic.run(traffic.Confluent(), f"127.0.0.1:{recorder.port}", ["hostile"], shape)
        recorder.close()
    # The largest would make the flood one of bytes.
    found = [prefixed(one.request) for one in recorder.exchanges if len(one.request) < 4000]
    assert len({one.header.api_key for one in recorder.exchanges}) >= 4
    return found


def golden() -> Iterator[bytes]:
    """Yield the requests of another library, of every API and version, served or not."""
    for one in table():
        if one.cls.__name__.endswith("Request") and len(one.wire) < 4000:
            head = encode_request_header(one.cls.api.key, one.version, 7, "golden")
            yield prefixed(head + one.wire)


def kinds(recorded: list[bytes], topic: str) -> list[Kind]:
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


@pytest.mark.usefixtures("plane")
@pytest.mark.timeout(1500)
@pytest.mark.parametrize(
    "count", [50_000, pytest.param(1_000_000, marks=pytest.mark.long)], ids=["short", "million"]
)
def test_flood_of_hostile_frames_leaves_the_broker_as_it_was(
    own_broker: Callable[..., BrokerProcess],
    besiege: Besiege,
    record_property: Callable[[str, object], None],
    recorded: list[bytes],
    count: int,
) -> None:
    broker = own_broker(auto_create_topics_enable="false")
    with besiege(broker, growth=64 * MIB, pause_s=0.01) as under:
        open_before = descriptors(broker)
        with contextlib.closing(speak(broker.port)) as wire:
            topic, _ = create_topic(wire, "hostile", 2)
        flood = Flood(
            broker.port,
            kinds(recorded, topic),
            random.Random(run_seed()),
            connections=CONNECTIONS,
            pool=POOL,
        )
        flood.send(count // 20)
        memory_before, threads_before = memory(broker, "VmRSS"), threads(broker)
        began = time.monotonic()
        flood.send(count - count // 20)
        took_s = time.monotonic() - began
        flood.close()
        under.bystander.go_on()
        memory_after, threads_after = memory(broker, "VmRSS"), threads(broker)
        # Time stamps far apart have rolled segments, which hold descriptors as long as they are.
        delete_all_but(broker, under.bystander.topic)
        eventually(
            lambda: descriptors(broker) <= open_before + OPEN_BY_CHANCE, "descriptors come back"
        )
        open_after = descriptors(broker)
    lines = under.lines.all()
    told = len(under.lines.closings())
    record_property(
        "figures",
        f"{count} frames over {flood.connections} connections in {took_s:.0f} s: "
        f"{dict(flood.outcomes)}; memory {memory_before / MIB:.1f} to "
        f"{memory_after / MIB:.1f} MiB, {open_before} to {open_after} descriptors, "
        f"{threads_before} to {threads_after} threads; "
        f"{len(lines)} lines, {told} of closed connections and {under.lines.untold()} counted",
    )
    assert sum(flood.outcomes.values()) == count
    assert memory_after - memory_before < GROWTH
    assert threads_after <= threads_before + STARTED_WHEN_NEEDED
    seconds = took_s * 1.1 + 10
    assert told <= CLOSINGS_AT_ONCE + CLOSINGS_PER_S * seconds
    assert len(lines) <= told + seconds + OTHER_LINES
    strange = [
        line
        for line in under.lines.grave()
        if not re.search("closing connection from|further connections were closed", line)
    ]
    assert not strange
