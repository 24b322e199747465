"""Batches that lie, and batches that expand without end: Kafka's error, and nothing appended."""

from __future__ import annotations

import contextlib
import os
import re
import threading
from collections.abc import Callable

import pytest

from plog.errors import ErrorCode, PlogError
from plog.handlers.context import MOST_EXPANDERS
from tests.handlers.test_produce import values
from tests.handlers.wire import create_topic, eventually, make_batch, produce, speak
from tests.hostile.bombs import BOMBS, bomb, headers_bomb, records_bomb
from tests.hostile.conftest import Besiege
from tests.hostile.frames import LYING
from tests.hostile.watch import MIB, memory, read_all
from tests.servers import BrokerProcess

# What each lie is answered with; the first expression that its name begins with counts.
CODES: dict[str, ErrorCode] = {
    "partition_leader_epoch": ErrorCode.NONE,  # the leader writes its own
    "max_timestamp": ErrorCode.NONE,  # and finds its own
    "producer_epoch": ErrorCode.NONE,  # without a producer id nobody looks at them
    "base_sequence": ErrorCode.NONE,
    "attributes -32768": ErrorCode.NONE,  # a bit that means nothing
    "base_timestamp -9": ErrorCode.INVALID_TIMESTAMP,  # further back than can be told
    "base_timestamp": ErrorCode.NONE,  # message.timestamp.*.max.ms have no bound by default
    "magic [01]$": ErrorCode.INVALID_RECORD,  # message sets
    "magic": ErrorCode.CORRUPT_MESSAGE,
    "crc": ErrorCode.CORRUPT_MESSAGE,
    "attributes [567]$": ErrorCode.UNSUPPORTED_COMPRESSION_TYPE,
    "attributes 8$": ErrorCode.INVALID_TIMESTAMP,
    "attributes (16|48|32767|-1)$": ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED,
    "batch_length (-.*|0|1|48)$": ErrorCode.CORRUPT_MESSAGE,
    "compressed: xerial, a header": ErrorCode.INVALID_RECORD,
    "compressed": ErrorCode.CORRUPT_MESSAGE,
    "": ErrorCode.INVALID_RECORD,
}


def code_of(name: str) -> ErrorCode:
    return next(code for begin, code in CODES.items() if re.match(begin, name))


@pytest.mark.parametrize("acks", [-1, 1])
def test_lying_batches_are_refused_by_their_codes(
    broker: BrokerProcess, besiege: Besiege, acks: int
) -> None:
    with besiege(broker) as under, contextlib.closing(speak(broker.port)) as wire:
        topic, _ = create_topic(wire)
        appended = 0
        found = {}
        for name, batch in LYING.items():
            answer = produce(wire, topic, batch, acks=acks)
            found[name] = ErrorCode(answer.error_code)
            if found[name] is ErrorCode.NONE:
                assert answer.base_offset == appended
                appended += 2
            else:
                assert answer.base_offset == -1
                assert answer.error_message
        assert found == {name: code_of(name) for name in LYING}
        # What was taken can be read, and the log goes on behind it.
        assert produce(wire, topic, make_batch([b"true"])).base_offset == appended
        kept = [b"one", b"two"] * (appended // 2) + [b"true"]
        assert read_all(broker.port, topic, appended + 1) == kept
    assert not under.lines.grave()


WITHOUT_ACKS = (
    "magic 3",
    "crc 0",
    "cut at 60",
    "records: key past the end",
    "compressed: lz4, claims 2**63",
    "records_count 2147483647",
)


def test_lying_batches_without_acks_close_their_connections(
    broker: BrokerProcess, besiege: Besiege
) -> None:
    for name in WITHOUT_ACKS:
        with besiege(broker) as under:
            with contextlib.closing(speak(broker.port)) as wire:
                topic, _ = create_topic(wire)
                with pytest.raises(PlogError):
                    produce(wire, topic, LYING[name], acks=0)
            under.lines.expect_closings(1, f"acks=0 failed: {code_of(name).name}")


ONE_BOMB = 192 * MIB
"""128 times max.message.bytes, and what else it takes."""
EXPANDED_TOGETHER = 8 * MIB
"""What expands further waits for its turn."""


@pytest.mark.parametrize("name", BOMBS)
def test_bomb_is_refused_for_bounded_memory(
    broker: BrokerProcess, besiege: Besiege, name: str
) -> None:
    batch = bomb(name)
    assert len(batch) <= MIB
    with (
        besiege(broker, growth=ONE_BOMB) as under,
        contextlib.closing(speak(broker.port)) as wire,
    ):
        topic, _ = create_topic(wire)
        code = ErrorCode(produce(wire, topic, batch).error_code)
        # snappy's 22 times are no bomb: expanded, they are no records.
        small = name in ("snappy", "xerial")
        assert code is (ErrorCode.INVALID_RECORD if small else ErrorCode.MESSAGE_TOO_LARGE)
        assert not values(wire, topic)
    assert not under.lines.grave()


@pytest.mark.parametrize(
    ("made", "compression", "fits"),
    [
        # Sixty million headers in one record: 120 MiB expanded, gigabytes as objects.
        (headers_bomb, "producer", True),
        (headers_bomb, "gzip", True),
        (headers_bomb, "uncompressed", False),
        (records_bomb, "producer", True),
        (records_bomb, "gzip", False),  # which is worse at them than zstd
    ],
)
def test_bomb_of_small_things_is_never_made_into_objects(
    broker: BrokerProcess,
    besiege: Besiege,
    made: Callable[[], bytes],
    compression: str,
    fits: bool,
) -> None:
    batch = made()
    with (
        besiege(broker, growth=3 * ONE_BOMB) as under,
        contextlib.closing(speak(broker.port)) as wire,
    ):
        topic, _ = create_topic(wire, compression_type=compression)
        code = ErrorCode(produce(wire, topic, batch).error_code)
        assert code is (ErrorCode.NONE if fits else ErrorCode.MESSAGE_TOO_LARGE)
    assert not under.lines.grave()


def test_many_bombs_at_once_take_the_memory_of_one(own_broker, besiege: Besiege) -> None:
    broker = own_broker()
    batch = bomb("zstd")
    codes: list[ErrorCode] = []

    def send(topic: str) -> None:
        with contextlib.closing(speak(broker.port)) as wire:
            codes.append(ErrorCode(produce(wire, topic, batch).error_code))

    with contextlib.closing(speak(broker.port)) as wire:
        topic, _ = create_topic(wire)
    before = memory(broker, "VmRSS")
    # As many threads of the fast path expand at once, and as many of the handlers.
    expanders = 2 * min(MOST_EXPANDERS, os.cpu_count() or 1)
    with besiege(broker, growth=ONE_BOMB + expanders * EXPANDED_TOGETHER):
        senders = [threading.Thread(target=send, args=(topic,)) for _ in range(16)]
        for one in senders:
            one.start()
        for one in senders:
            one.join()
    assert codes == [ErrorCode.MESSAGE_TOO_LARGE] * 16
    eventually(lambda: memory(broker, "VmRSS") - before < ONE_BOMB, "given back")
