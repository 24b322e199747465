"""Fetches that ask for everything, for nothing or for ever, and sessions without end."""

from __future__ import annotations

import contextlib
import struct
from collections.abc import Callable
from pathlib import Path

from plog._native.fetch_sessions import MOST_BYTES, PART_BYTES
from plog.errors import ErrorCode
from plog.protocol.framing import encode_request_header
from plog.protocol.messages.fetch import FetchResponse
from tests.handlers.running import decoded
from tests.handlers.wire import (
    create_topic,
    exchange,
    fetch_one,
    fetch_request,
    make_batch,
    produce,
    speak,
)
from tests.hostile.conftest import Besiege
from tests.hostile.frames import INT_MAX
from tests.hostile.watch import MIB
from tests.planes import Plane
from tests.servers import BrokerProcess

OUT_OF_RANGE = ErrorCode.OFFSET_OUT_OF_RANGE
LONG_MAX = 2**63 - 1
# What is asked, and what is answered: a code, and whether records come.
ABSURD: dict[str, tuple[dict[str, int], ErrorCode, bool]] = {
    "offset -1": ({"offset": -1}, OUT_OF_RANGE, False),
    "offset -2**63": ({"offset": -LONG_MAX - 1}, OUT_OF_RANGE, False),
    "offset 2**63-1": ({"offset": LONG_MAX}, OUT_OF_RANGE, False),
    "offset past the end": ({"offset": 2}, OUT_OF_RANGE, False),
    "every limit at its most": (
        {"max_bytes": INT_MAX, "partition_max_bytes": INT_MAX, "min_bytes": INT_MAX},
        ErrorCode.NONE,
        True,
    ),
    "a wait of -1": ({"max_wait_ms": -1, "min_bytes": INT_MAX}, ErrorCode.NONE, True),
    "a wait of -2**31": ({"max_wait_ms": -INT_MAX - 1, "min_bytes": 1}, ErrorCode.NONE, True),
    "min_bytes -2**31": ({"min_bytes": -INT_MAX - 1}, ErrorCode.NONE, True),
    "an isolation that there is not": ({"isolation_level": 7}, ErrorCode.NONE, True),
    "a leader epoch to come": (
        {"leader_epoch": INT_MAX},
        ErrorCode.UNKNOWN_LEADER_EPOCH,
        False,
    ),
    "a replica that there is not": ({"replica_id": 77}, ErrorCode.NOT_LEADER_OR_FOLLOWER, False),
}


def test_absurd_fetches_are_answered_within_bounds(broker: BrokerProcess, besiege: Besiege) -> None:
    with besiege(broker) as under, contextlib.closing(speak(broker.port)) as wire:
        topic, _ = create_topic(wire)
        assert produce(wire, topic, make_batch([b"v"])).error_code == 0
        for name, (asked, code, has_records) in ABSURD.items():
            given = {"offset": 0, **asked}
            part = fetch_one(wire, topic, given.pop("offset"), **given)
            assert ErrorCode(part.error_code) is code, name
            assert bool(part.records) is has_records, name
    assert not under.lines.grave()


def test_sessions_beyond_the_slots_are_not_opened_and_fetches_are_answered(
    own_broker: Callable[..., BrokerProcess], besiege: Besiege
) -> None:
    broker = own_broker(max_incremental_fetch_session_cache_slots=100)
    with besiege(broker, growth=16 * MIB), contextlib.closing(speak(broker.port)) as wire:
        topic, _ = create_topic(wire)
        assert produce(wire, topic, make_batch([b"v"])).error_code == 0
        opened = 0
        for _ in range(5000):
            answer = wire.ask(fetch_request((topic, 0, 0), session=(0, 0)), 12)
            assert answer.error_code == 0
            assert answer.responses[0].partitions[0].records
            opened += answer.session_id != 0
        assert opened == 100
        # Nor does asking for one that nobody has cost anything.
        for number in range(1, 2000):
            answer = wire.ask(fetch_request(session=(number, 7)), 12)
            assert answer.error_code in (
                ErrorCode.FETCH_SESSION_ID_NOT_FOUND,
                ErrorCode.INVALID_FETCH_SESSION_EPOCH,
            )


MANY, LONG_NAME = 50_000, b"n" * 32_000


def test_long_name_of_many_partitions_takes_its_memory_once(
    tmp_path: Path, besiege: Besiege
) -> None:
    """Of plog itself: the oracle has a name for each."""
    head = encode_request_header(1, 4, 7, "hostile")
    fixed = struct.pack(">iiiib", -1, 0, 0, INT_MAX, 0)
    parts = b"".join(struct.pack(">iqi", index, 0, 1 << 20) for index in range(MANY))
    topic = struct.pack(">h", len(LONG_NAME)) + LONG_NAME + struct.pack(">i", MANY) + parts
    # A name for each partition would be 1.6 GB.
    with (
        BrokerProcess(tmp_path, plane=Plane.FAST) as broker,
        besiege(broker, growth=256 * MIB) as under,
    ):
        for topics in (1, 2):  # the second names each partition again
            answer = exchange(
                broker.port, head + fixed + struct.pack(">i", topics) + topics * topic
            )
            assert answer is not None
            found = decoded(FetchResponse, 4, answer).responses
            codes = {part.error_code for one in found for part in one.partitions}
            assert codes == {ErrorCode.UNKNOWN_TOPIC_OR_PARTITION}
            assert sum(len(one.partitions) for one in found) in (MANY, topics * MANY)
        under.bystander.go_on(5)


TOPICS, PARTITIONS, NAME_BYTES = 1000, 10, 249


def large_session() -> bytes:
    """A Fetch v11 without its length that opens a session of many topics with long names."""
    head = encode_request_header(1, 11, 7, "hostile")
    fixed = struct.pack(">iiiibii", -1, 0, 0, INT_MAX, 0, 0, 0)
    parts = b"".join(
        struct.pack(">h", NAME_BYTES)
        + (b"%08d" % number).ljust(NAME_BYTES, b"n")
        + struct.pack(">i", PARTITIONS)
        + b"".join(struct.pack(">iiqqi", index, -1, 0, -1, 1 << 20) for index in range(PARTITIONS))
        for number in range(TOPICS)
    )
    return head + fixed + struct.pack(">i", TOPICS) + parts + struct.pack(">ih", 0, 0)


def test_sessions_of_any_size_take_bounded_memory(tmp_path: Path, besiege: Besiege) -> None:
    """Of plog's own sessions: those of the oracle are objects of Python."""
    with BrokerProcess(tmp_path, plane=Plane.FAST) as broker:
        open_large_sessions(broker, besiege)


def open_large_sessions(broker: BrokerProcess, besiege: Besiege) -> None:
    each = TOPICS * PARTITIONS * (PART_BYTES + NAME_BYTES)
    frame = large_session()
    outcomes = []
    # Beside the sessions, a request, its answer and copies of both: 4 to 6 in all were seen.
    # If nothing bounded the sessions, they would take twice as much.
    with besiege(broker, growth=MOST_BYTES + 8 * len(frame)) as under:
        for _ in range(2 * MOST_BYTES // each):
            answer = exchange(broker.port, frame)
            assert answer is not None
            told = decoded(FetchResponse, 11, answer)
            assert told.error_code == 0
            outcomes.append(told.session_id != 0)
        under.bystander.go_on(10)
    assert outcomes.count(True) == MOST_BYTES // each
    # Once there is no room there is none for others either.
    assert not any(outcomes[outcomes.count(True) :])
