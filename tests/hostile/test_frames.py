"""Frames that no client sends, to a broker that serves others meanwhile."""

from __future__ import annotations

import contextlib
import random
import socket
import struct
from collections import Counter
from collections.abc import Callable

import pytest

from plog.errors import ErrorCode
from plog.handlers.registry import load
from plog.protocol.api_keys import ApiKey
from plog.protocol.messages.api_versions import ApiVersionsResponse
from tests.agreement.harness import run_seed
from tests.handlers.running import decoded
from tests.handlers.wire import create_topic, fetch_one, make_batch, produce_request, speak
from tests.hostile import frames
from tests.hostile.conftest import Besiege
from tests.hostile.frames import INT_MAX, LARGEST, bare, framed, prefixed, size, well_formed
from tests.hostile.sockets import answers, connect, reset, send_streams
from tests.hostile.verdicts import Fate, verdict
from tests.hostile.watch import MIB, LogLines, Siege
from tests.servers import BrokerProcess

MOST_PARTITIONS = 1000
"""A damaged request may ask for so many of a topic."""

# One stream, and what the line says with which its connection is closed.
CLOSING: dict[str, tuple[frames.Attack, str]] = {
    "size -1": (size(-1), "request of negative size -1"),
    "size -2**31": (size(-INT_MAX - 1), f"request of negative size {-INT_MAX - 1}"),
    "size 0": (size(0), "request of 0 bytes has no room for a header"),
    **{
        f"size {n}": (size(n, bytes(n)), f"request of {n} bytes has no room for a header")
        for n in range(1, 8)
    },
    "size beyond the largest": (size(LARGEST + 1), "exceeds socket.request.max.bytes"),
    "size 2**31-1": (size(INT_MAX, b"x" * 1000), f"request of {INT_MAX} bytes exceeds"),
    "HTTP": (lambda rng: b"GET / HTTP/1.1\r\nHost: a\r\n\r\n", "(looks like HTTP)"),
    "TLS": (lambda rng: b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03", "(looks like TLS)"),
    "header of zeros": (lambda rng: prefixed(bytes(8)), "request header"),
    "client id of 32767 bytes": (
        lambda rng: prefixed(struct.pack(">hhih", 3, 1, 1, 32767)),
        "request header",
    ),
    "client id that is no UTF-8": (
        lambda rng: prefixed(struct.pack(">hhih", 3, 1, 1, 2) + b"\xff\xfe" + b"\0" * 4),
        "request header",
    ),
    "more topics than bytes": (
        lambda rng: bare(3, 1, struct.pack(">i", INT_MAX)),
        "MetadataRequest v1",
    ),
    "more topics than bytes, by varint": (frames.tiny_elements, "MetadataRequest v9"),
    "varint without end": (frames.overlong_varint, "MetadataRequest v9"),
}


def test_each_stream_closes_its_connection_with_one_line(
    broker: BrokerProcess, besiege: Besiege
) -> None:
    rng = random.Random(run_seed())
    with besiege(broker) as under:
        for name, (make, text) in CLOSING.items():
            lines = LogLines(broker)
            (outcome,) = send_streams(broker.port, [make(rng)])
            assert outcome.ended, name
            assert not outcome.data, name
            lines.expect_closings(1, text)
    assert len(under.lines.grave()) == len(CLOSING)


def test_apis_that_nobody_serves_close_their_connections(
    own_broker: Callable[[], BrokerProcess], besiege: Besiege
) -> None:
    broker = own_broker()
    keys = [key for key in (*range(-2, 128), 32767, -32768) if key not in load()]
    streams = [bare(key, version, bytes(8)) for key in keys for version in (0, 1)]
    with besiege(broker) as under:
        for outcome in send_streams(broker.port, streams):
            assert outcome.ended
            assert not outcome.data
        under.lines.expect_closings(len(streams), "is not supported")


def test_versions_that_nobody_serves_close_their_connections(
    own_broker: Callable[[], BrokerProcess], besiege: Besiege
) -> None:
    broker = own_broker()
    streams = [
        bare(key, version, bytes(8))
        for key, handler in load().items()
        if key != ApiKey.API_VERSIONS
        for version in (handler.min_version - 1, handler.max_version + 1, 999, 32767, -32768)
    ]
    with besiege(broker) as under:
        for outcome in send_streams(broker.port, streams):
            assert outcome.ended
            assert not outcome.data
        under.lines.expect_closings(len(streams), "is not supported; supported are v")


def test_unknown_version_of_api_versions_is_answered_in_version_0(
    broker: BrokerProcess, besiege: Besiege
) -> None:
    newest = load()[ApiKey.API_VERSIONS].max_version
    with besiege(broker) as under:
        for version in (newest + 1, 999, 32767, -1, -32768):
            no_tags = b"\0" if version >= 3 else b""  # of the header; the body is nobody's to read
            stream = bare(ApiKey.API_VERSIONS, version, no_tags + b"\xff" * 9)
            (outcome,) = send_streams(broker.port, [stream])
            (answer,) = answers(bytes(outcome.data))
            told = decoded(ApiVersionsResponse, 0, answer)
            assert ErrorCode(told.error_code) is ErrorCode.UNSUPPORTED_VERSION
    assert not under.lines.grave()


def test_streams_cut_at_every_byte_by_clients_that_go_leave_nothing(
    broker: BrokerProcess, besiege: Besiege
) -> None:
    with contextlib.closing(speak(broker.port)) as wire:
        topic, _ = create_topic(wire)
        whole = framed(produce_request([(topic, 0, make_batch([b"cut"]))]), 9)
        with besiege(broker) as under:
            for leave in (socket.socket.close, reset):
                for cut in range(len(whole)):
                    sock = connect(broker.port)
                    sock.sendall(whole[:cut])
                    leave(sock)
        assert not under.lines.grave()
        assert not fetch_one(wire, topic, 0).records


def test_requests_cut_at_every_byte_are_answered_or_closed(
    own_broker: Callable[[], BrokerProcess], besiege: Besiege
) -> None:
    broker = own_broker()
    # Every API at its newest version: the length is right, what it holds stops in the middle.
    newest = {key: stream[4:] for key, _, stream in well_formed()}
    streams = [prefixed(frame[:cut]) for frame in newest.values() for cut in range(len(frame))]
    with besiege(broker) as under:
        outcomes = send_streams(broker.port, streams)
        closed = [one for one in outcomes if one.ended]
        # Some make sense all the same: what is missing was tags, or names of ApiVersions.
        assert len(closed) >= 0.95 * len(streams)
        assert not any(one.data for one in closed)
        under.lines.expect_closings(len(closed))


def send_as_judged(broker: BrokerProcess, under: Siege, streams: list[bytes]) -> Counter[Fate]:
    """Send streams, and see that of each comes what must.

    Nobody says that it says no more, but where that alone need end a connection: who is to be
    closed is closed by the broker, with a line, and nobody else is.
    """
    fates: dict[Fate, list[tuple[bytes, str]]] = {fate: [] for fate in Fate}
    for stream in streams:
        found = verdict(stream)
        fates[found.fate].append((stream, found.reason))
    answered = [stream for stream, _ in fates[Fate.ANSWERED]]
    for stream, outcome in zip(answered, send_streams(broker.port, answered), strict=True):
        told = [answer[:4] for answer in answers(bytes(outcome.data))]
        assert told == [stream[8:12]], stream.hex()  # the correlation id
        assert not outcome.ended, stream.hex()
    assert not under.lines.closings()
    closed = [stream for stream, _ in fates[Fate.CLOSED]]
    for stream, outcome in zip(closed, send_streams(broker.port, closed), strict=True):
        assert outcome.ended, stream.hex()
        assert not outcome.data, stream.hex()
    under.lines.expect_closings(len(closed))
    reasons = {reason for _, reason in fates[Fate.CLOSED]}
    for line in under.lines.closings():
        assert any(f": {reason}" in line for reason in reasons), line
    rest = [stream for stream, _ in fates[Fate.OPEN]]
    lines = LogLines(broker)
    send_streams(broker.port, rest, half_close=True, frames=[INT_MAX] * len(rest))
    assert len(lines.closings()) + lines.untold() <= len(rest)
    return Counter({fate: len(found) for fate, found in fates.items()})


@pytest.mark.parametrize("kind", ["mutated", "spliced", "mutated_stream"])
def test_damaged_requests_of_every_version_are_answered_or_closed(
    own_broker: Callable[[], BrokerProcess], besiege: Besiege, kind: str
) -> None:
    broker = own_broker()
    rng = random.Random(run_seed())
    originals = [stream for _, _, stream in well_formed()]
    make = getattr(frames, kind)(originals)
    with besiege(broker) as under:
        fates = send_as_judged(broker, under, [make(rng) for _ in range(1500)])
    assert fates[Fate.CLOSED] >= 100, fates
    assert fates[Fate.ANSWERED] >= 50, fates


NONSENSE: dict[str, tuple[frames.Attack, Fate]] = {
    "bytes": (frames.random_bytes, Fate.CLOSED),
    "frames": (frames.random_frame, Fate.CLOSED),
    "bodies": (frames.random_body, Fate.CLOSED),
    "values from the edges": (frames.absurd_values, Fate.ANSWERED),
}
"""Each with what must come of most of them, or of many."""


@pytest.mark.parametrize("name", NONSENSE)
def test_nonsense_is_answered_or_closed(
    own_broker: Callable[[], BrokerProcess], besiege: Besiege, name: str
) -> None:
    broker = own_broker()
    rng = random.Random(run_seed())
    make, ordinary = NONSENSE[name]
    with besiege(broker) as under:
        fates = send_as_judged(broker, under, [make(rng) for _ in range(1000)])
    assert fates[ordinary] >= 400, fates


def test_announced_sizes_take_no_memory(broker: BrokerProcess, besiege: Besiege) -> None:
    hoard = []
    with besiege(broker, growth=16 * MIB) as under:
        for _ in range(200):
            sock = connect(broker.port)
            sock.sendall(struct.pack(">i", LARGEST) + b"x" * 100)
            hoard.append(sock)
        under.bystander.go_on()
        for sock in hoard:
            sock.close()
    assert not under.lines.grave()


def test_pipelined_nonsense_behind_good_requests_takes_no_answer_away(
    broker: BrokerProcess, besiege: Besiege
) -> None:
    good = [
        framed(frames.REQUESTS[18](frames.Target("t", frames.UNKNOWN_ID, True), 3), 3, n)
        for n in range(50)
    ]
    with besiege(broker) as under:
        sock = connect(broker.port)
        sock.sendall(b"".join(good) + struct.pack(">i", -7))
        data = bytearray()
        while more := sock.recv(1 << 16):
            data += more
        sock.close()
        found = [struct.unpack_from(">i", answer)[0] for answer in answers(bytes(data))]
        assert found == list(range(50))
        under.lines.expect_closings(1, "request of negative size -7")
