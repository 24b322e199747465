"""Frames whose content would grow many times over as objects: refused for a bounded price."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from functools import partial

import pytest

from plog.protocol import framing
from plog.protocol.api_keys import ApiKey
from plog.protocol.framing import MOST_REQUEST_ELEMENTS, encode_request_header
from plog.protocol.messages.list_offsets import (
    ListOffsetsPartition,
    ListOffsetsRequest,
    ListOffsetsTopic,
)
from tests.handlers.wire import eventually, exchange, speak
from tests.hostile.watch import MIB, Siege, memory, siege

Besieged = Callable[..., contextlib.AbstractContextManager[Siege]]
LARGEST = 100 * MIB
"""`socket.request.max.bytes` by default."""
BESIDES = 64 * MIB
"""What a frame may cost beyond its own bytes."""


def uvarint(number: int) -> bytes:
    out = b""
    while number > 127:
        out += bytes([number & 127 | 128])
        number >>= 7
    return out + bytes([number])


def empty_names(size: int) -> bytes:
    """A Metadata v9 of topics of two bytes: an empty name and no tags."""
    head = encode_request_header(ApiKey.METADATA, 9, 1, "hostile")
    count = (size - len(head) - 4 - 3) // 2
    return head + uvarint(count + 1) + b"\1\0" * count + b"\0\0\0\0"


def nested_arrays(size: int) -> bytes:
    """A DeleteRecords v2 whose topics alone are few: all that is allowed is decoded before."""
    head = encode_request_header(ApiKey.DELETE_RECORDS, 2, 1, "hostile")
    partitions = 100
    topic = b"\1" + uvarint(partitions + 1) + bytes(13) * partitions + b"\0"
    count = (size - len(head) - 3) // len(topic)
    assert count < MOST_REQUEST_ELEMENTS < count * partitions
    return (head + uvarint(count + 1) + topic * count).ljust(size, b"\0")


def tags(size: int) -> bytes:
    """An ApiVersions v3 with nothing but tagged fields that nobody knows."""
    head = encode_request_header(ApiKey.API_VERSIONS, 3, 1, "hostile") + b"\2a\2b"
    return (head + uvarint(size // 4)).ljust(size, b"\0")


def header_tags(size: int) -> bytes:
    head = encode_request_header(ApiKey.API_VERSIONS, 3, 1, "hostile")[:-1]
    return (head + uvarint(size // 4)).ljust(size, b"\0")


@pytest.fixture
def besieged(record_property: Callable[[str, object], None]) -> Besieged:
    """`tests.hostile.watch.siege`, with what it finds told at the end of the run."""
    return partial(siege, report=lambda line: record_property("figures", line))


def closed_by_broker(port: int, frame: bytes) -> bool:
    return exchange(port, frame) is None


@pytest.mark.parametrize("size", [8 * MIB, LARGEST], ids=["8MiB", "100MiB"])
@pytest.mark.parametrize("hostile", [empty_names, nested_arrays, tags, header_tags])
def test_frame_of_tiny_elements_closes_its_connection_for_little_memory(
    own_broker, besieged: Besieged, hostile, size
):
    broker = own_broker()
    frame = hostile(size)
    assert size - 64 < len(frame) <= size
    name = f"{hostile.__name__} {size >> 20} MiB"
    with besieged(broker, name=name, growth=len(frame) + BESIDES):
        before = memory(broker, "VmRSS")
        assert closed_by_broker(broker.port, frame)
        eventually(lambda: memory(broker, "VmRSS") - before <= BESIDES, "given back")
    line = f"past the {MOST_REQUEST_ELEMENTS} elements of one message"
    eventually(lambda: line in broker.log, "logged")
    assert broker.log.count(line) == 1
    assert "Traceback" not in broker.log


def test_request_of_a_hundred_thousand_partitions_is_answered(own_broker, besieged: Besieged):
    broker = own_broker()
    count = 100_000
    request = ListOffsetsRequest(
        replica_id=-1,
        topics=[
            ListOffsetsTopic(
                name=f"t{n}", partitions=[ListOffsetsPartition(partition_index=0, timestamp=-1)]
            )
            for n in range(count)
        ],
    )
    with (
        besieged(broker, name="100,000 partitions", growth=LARGEST + BESIDES),
        contextlib.closing(speak(broker.port)) as wire,
    ):
        assert len(wire.ask(request, 7).topics) == count


def test_request_at_the_bound_is_decoded_and_one_past_it_is_not(own_broker, besieged: Besieged):
    broker = own_broker()
    head = encode_request_header(ApiKey.LIST_OFFSETS, 6, 7, "t") + bytes(5)

    def frame(count: int) -> bytes:
        return head + uvarint(count + 1) + b"\2x\1\0" * count + b"\0"

    with besieged(broker, name="elements at the bound", growth=LARGEST + BESIDES):
        answer = exchange(broker.port, frame(MOST_REQUEST_ELEMENTS))
        assert answer is not None
        assert framing.decode_response_header(ApiKey.LIST_OFFSETS, 6, answer)[0] == 7
        assert closed_by_broker(broker.port, frame(MOST_REQUEST_ELEMENTS + 1))
