"""Frames that no client sends: each attack is a named function that makes the bytes of one stream.

A stream is what goes over one connection, lengths included. What should come of it stands beside
it, in the tests that send it.
"""

from __future__ import annotations

import random
import struct
import time
import uuid
from collections.abc import Callable, Iterator

from plog._native.compression import GZIP, LZ4, SNAPPY, ZSTD
from plog.handlers.registry import load
from plog.protocol import codec
from plog.protocol.api_keys import ApiKey
from plog.protocol.framing import encode_request_header
from plog.protocol.schema import Struct
from tests.agreement.batch_headers import stamped
from tests.agreement.batches import MALFORMED_RECORDS, malformed
from tests.agreement.harness import mutations
from tests.compat import requests
from tests.handlers.test_every_version import REQUESTS, Target, every_version
from tests.handlers.wire import fetch_request, make_batch, produce_request
from tests.hostile.sockets import prefixed
from tests.protocol.instances import MESSAGES, sample

LARGEST = 100 << 20
"""`socket.request.max.bytes` by default."""
INT_MAX = 2**31 - 1
UNKNOWN_ID = uuid.UUID(int=77)
Attack = Callable[[random.Random], bytes]

REQUEST_CLASSES = {
    cls.api.key: cls for cls in MESSAGES if cls.__name__.endswith("Request") and cls.api.key >= 0
}


def framed(
    request: Struct, version: int, correlation_id: int = 1, client_id: str = "hostile"
) -> bytes:
    """Return a request as it should be, with its length."""
    return prefixed(
        encode_request_header(type(request).api.key, version, correlation_id, client_id)
        + codec.encode(request, version)
    )


def bare(key: int, version: int, body: bytes = b"") -> bytes:
    """Return a request with a header of version 1, whatever its API should have."""
    return prefixed(struct.pack(">hhih", key, version, 1, 1) + b"h" + body)


def well_formed(topic: str = "nowhere") -> Iterator[tuple[int, int, bytes]]:
    """Yield a request of every API at every served version, of a topic that does not exist."""
    target = Target(topic, UNKNOWN_ID, exists=False)
    for key, version in every_version():
        yield key, version, framed(REQUESTS[key](target, version), version)


def recorded(topic_id: uuid.UUID) -> list[bytes]:
    """Return what real clients have sent of `requests.TOPIC`, as of now, in order, with lengths."""
    now_ms = int(time.time() * 1000)
    return [
        prefixed(one.at(now_ms).frame.replace(requests.TOPIC_ID.bytes, topic_id.bytes))
        for one in requests.all_kept()
        if one.header.api_key not in NOT_AT_RANDOM
    ]


# -- attacks on frames


def size(announced: int, then: bytes = b"") -> Attack:
    return lambda rng: struct.pack(">i", announced) + then


def random_bytes(rng: random.Random) -> bytes:
    return rng.randbytes(rng.randrange(1, 400))


def random_frame(rng: random.Random) -> bytes:
    return prefixed(rng.randbytes(rng.randrange(0, 400)))


def random_body(rng: random.Random) -> bytes:
    """A header that is right, of an API that is served, and nonsense behind it."""
    key, version = rng.choice(every_version())
    return prefixed(
        encode_request_header(key, version, rng.getrandbits(31), "hostile")
        + rng.randbytes(rng.randrange(0, 200))
    )


def unknown_api(rng: random.Random) -> bytes:
    served = load()
    key = rng.choice([k for k in (-1, 4, 5, 6, 7, 8, 11, 17, 24, 71, 99, 32767) if k not in served])
    return bare(key, rng.choice((0, 1, 5, -1)), rng.randbytes(8))


def unknown_version(rng: random.Random) -> bytes:
    key, handler = rng.choice(sorted(load().items()))
    version = rng.choice((handler.max_version + 1, -1, 32767, -32768, 999))
    return bare(key, version, rng.randbytes(rng.randrange(0, 40)))


def absurd_values(rng: random.Random) -> bytes:
    """A request of any API, as it is declared, with values from the edges of their types."""
    key, version = rng.choice(every_version())
    if key in NOT_AT_RANDOM:
        key, version = ApiKey.METADATA, rng.randrange(0, 9)
    message = sample(REQUEST_CLASSES[key], version, rng)
    return framed(message, version, rng.getrandbits(31))


NOT_AT_RANDOM = {ApiKey.CREATE_TOPICS, ApiKey.CREATE_PARTITIONS}
"""By chance these ask for thousands of partitions, which is work and no attack."""


def tiny_elements(rng: random.Random) -> bytes:
    """A Metadata v9 that announces more topics than there are bytes."""
    head = encode_request_header(ApiKey.METADATA, 9, 1, "hostile")
    count = rng.choice((200, 1 << 20, 1 << 31, (1 << 32) - 1))
    return prefixed(head + uvarint(count) + b"\1\0" * rng.randrange(100))


def overlong_varint(rng: random.Random) -> bytes:
    head = encode_request_header(ApiKey.METADATA, 9, 1, "hostile")
    return prefixed(head + b"\xff" * rng.choice((5, 9, 10, 64)) + rng.choice((b"", b"\x01")))


def uvarint(number: int) -> bytes:
    out = bytearray()
    while number > 127:
        out.append(number & 127 | 128)
        number >>= 7
    out.append(number)
    return bytes(out)


# -- attacks on batches


HEADER_LIES: dict[str, tuple[int, ...]] = {
    "base_offset": (-1, 1, 2**63 - 1, -(2**63)),
    "partition_leader_epoch": (INT_MAX, -2),
    "magic": (-128, -1, 0, 1, 3, 127),
    "crc": (0, 2**32 - 1),
    "attributes": (5, 6, 7, 8, 0x10, 0x20, 0x30, 0x40, 0x7FFF, -1, -32768),
    "last_offset_delta": (-1, 0, 2, INT_MAX, -INT_MAX - 1),
    "base_timestamp": (-1, -2, 2**63 - 1, -(2**63)),
    "max_timestamp": (-1, -2, 2**63 - 1, -(2**63)),
    "producer_id": (-2, 2**63 - 1, -(2**63)),
    "producer_epoch": (0, 32767, -32768),
    "base_sequence": (0, INT_MAX, -INT_MAX - 1),
    "records_count": (-1, 0, 1, 3, INT_MAX, -INT_MAX - 1),
}
"""Each field of a batch's header, and what it may lie; the CRC is right but where it is the lie."""

LENGTHS = (-INT_MAX - 1, -1, 0, 1, 48, 49, 50, 70, 1000, INT_MAX - 12, INT_MAX)


def two_records() -> bytes:
    return make_batch([b"one", b"two"])


def lying_headers() -> Iterator[tuple[str, bytes]]:
    """Yield batches of two records, each with one lie in its header."""
    for name, values in HEADER_LIES.items():
        for value in values:
            yield f"{name} {value}", stamped(two_records(), **{name: value})
    for length in LENGTHS:
        yield f"batch_length {length}", stamped(two_records(), batch_length=length)
    true = two_records()
    for cut in (0, 1, 8, 12, 17, 60, 61, len(true) - 1):
        yield f"cut at {cut}", true[:cut]
    yield "followed by a byte", true + b"\0"
    yield "followed by itself", true + true
    yield "overlapping itself", stamped(true, batch_length=len(true) - 12 + 20) + true[20:]


COMPRESSED_JUNK: dict[str, tuple[int, bytes]] = {
    "gzip, nothing": (GZIP, b""),
    "gzip, a header": (GZIP, b"\x1f\x8b\x08\0\0\0\0\0\0\3"),
    "gzip, junk": (GZIP, b"\x1f\x8b\x08\0\0\0\0\0\0\3" + b"\xff" * 40),
    "snappy, claims 4 GB": (SNAPPY, b"\xff\xff\xff\xff\x0f" + b"\0" * 20),
    "snappy, claims and is empty": (SNAPPY, b"\xff\xff\x03"),
    "snappy, a varint without end": (SNAPPY, b"\xff" * 12),
    "snappy, copies from before": (SNAPPY, b"\x20\x01\xff\xff\x01\xff\xff"),
    "xerial, a header": (SNAPPY, b"\x82SNAPPY\0\0\0\0\1\0\0\0\1"),
    "xerial, a block of 2 GB": (SNAPPY, b"\x82SNAPPY\0\0\0\0\1\0\0\0\1\x7f\xff\xff\xff\0"),
    "xerial, a block of -1": (SNAPPY, b"\x82SNAPPY\0\0\0\0\1\0\0\0\1\xff\xff\xff\xff\0"),
    "lz4, a magic": (LZ4, b"\x04\x22\x4d\x18"),
    "lz4, junk": (LZ4, b"\x04\x22\x4d\x18\x60\x40\x82" + b"\xff" * 30),
    "lz4, claims 2**63": (LZ4, b"\x04\x22\x4d\x18\x68\x40" + b"\xff" * 9 + b"\0" * 9),
    "zstd, a magic": (ZSTD, b"\x28\xb5\x2f\xfd"),
    "zstd, claims 2**63": (ZSTD, b"\x28\xb5\x2f\xfd\xe0" + b"\xff" * 8 + b"\1\0\0"),
    "zstd, a window of 2 GB": (ZSTD, b"\x28\xb5\x2f\xfd\x00\xa8" + b"\xff" * 20),
    "zstd, a skippable frame without end": (ZSTD, b"\x50\x2a\x4d\x18\xff\xff\xff\x7f"),
}
"""Bytes that no compressor wrote, claims among them of more than there is memory."""


def with_codec(number: int, body: bytes, *, count: int = 2) -> bytes:
    """Return a batch whose records are `body`, said to be of a codec."""
    batch = stamped(
        two_records()[:61],
        attributes=number,
        records_count=count,
        last_offset_delta=count - 1,
    )
    return stamped(batch + body, batch_length=49 + len(body))


def lying_batches() -> Iterator[tuple[str, bytes]]:
    """Yield every batch that lies in one way, by name."""
    yield from lying_headers()
    for name in MALFORMED_RECORDS:
        yield f"records: {name}", malformed(name)
    for name, (number, body) in COMPRESSED_JUNK.items():
        yield f"compressed: {name}", with_codec(number, body)


LYING = dict(lying_batches())


def lying_produce(topic: str) -> Attack:
    def make(rng: random.Random) -> bytes:
        batch = rng.choice(list(LYING.values()))
        version = rng.randrange(3, 13)
        return framed(produce_request([(topic, 0, batch)], acks=rng.choice((1, -1, 0))), version)

    return make


def damaged_produce(topic: str) -> Attack:
    def make(rng: random.Random) -> bytes:
        originals = [make_batch([b"a" * 50, b"b"], codec=rng.randrange(5))]
        (batch,) = mutations(originals, 1, rng.getrandbits(32))
        if rng.random() < 0.5 and len(batch) >= 61:
            batch = stamped(batch)
        version = rng.randrange(3, 13)
        return framed(produce_request([(topic, 0, batch)], acks=rng.choice((1, -1))), version)

    return make


def absurd_fetch(topic: str) -> Attack:
    edges = (-INT_MAX - 1, -1, 0, 1, INT_MAX)

    def make(rng: random.Random) -> bytes:
        version = rng.randrange(4, 13)
        offset = rng.choice((-(2**63), -1, 0, 1, 2**62, 2**63 - 1))
        request = fetch_request(
            (topic, rng.choice((0, 0, 0, -1, 7, INT_MAX)), offset),
            max_wait_ms=rng.choice((-INT_MAX - 1, -1, 0, 1)),
            min_bytes=rng.choice(edges),
            max_bytes=rng.choice(edges),
            partition_max_bytes=rng.choice(edges),
            session=(rng.choice((0, 1, -1, INT_MAX)), rng.choice((-1, 0, 1, INT_MAX))),
            isolation_level=rng.choice((0, 1, 2, -1)),
        )
        return framed(request, version)

    return make


def new_session(topic: str) -> Attack:
    return lambda rng: framed(fetch_request((topic, 0, 0), session=(0, 0)), rng.randrange(7, 13))


HOSTILE_NAMES = (
    "../../etc/passwd",
    "..",
    ".",
    "",
    "a/b",
    "/etc/passwd",
    "a\0b",
    "\n",
    "x" * 250,
    "x" * 5000,
    "größe",
    "a b",
    "%2e%2e%2f",
    "..\\..\\a",
    "~root",
    "${jndi:ldap://a}",
)


def hostile_name(rng: random.Random) -> bytes:
    target = Target(rng.choice(HOSTILE_NAMES), UNKNOWN_ID, exists=False)
    keys = (ApiKey.METADATA, ApiKey.LIST_OFFSETS, ApiKey.DESCRIBE_CONFIGS, ApiKey.DELETE_RECORDS)
    key = rng.choice(keys)
    handler = load()[key]
    version = rng.randrange(handler.min_version, handler.max_version + 1)
    return framed(REQUESTS[key](target, version), version)


def mutated(originals: list[bytes]) -> Attack:
    """Damage a frame's content: its length is made right, or is damaged as well."""

    def make(rng: random.Random) -> bytes:
        (frame,) = mutations([rng.choice(originals)[4:]], 1, rng.getrandbits(32))
        return prefixed(frame)

    return make


def spliced(originals: list[bytes]) -> Attack:
    """The beginning of one frame, the end of another."""

    def make(rng: random.Random) -> bytes:
        one, other = rng.choice(originals)[4:], rng.choice(originals)[4:]
        return prefixed(one[: rng.randrange(len(one))] + other[rng.randrange(len(other)) :])

    return make


def mutated_stream(originals: list[bytes]) -> Attack:
    """Several frames in one go, damaged across their lengths."""

    def make(rng: random.Random) -> bytes:
        stream = b"".join(rng.choice(originals) for _ in range(rng.randrange(1, 4)))
        (damaged,) = mutations([stream], 1, rng.getrandbits(32))
        return damaged

    return make


def damaged_sequence(originals: list[bytes]) -> Attack:
    """Some requests of a client in their order, of which one or the other is not as it was sent."""

    def make(rng: random.Random) -> bytes:
        begin = rng.randrange(len(originals))
        frames = originals[begin : begin + rng.randrange(1, 16)]
        for _ in range(rng.randrange(4)):
            at, other = rng.randrange(len(frames)), rng.randrange(len(frames))
            match rng.randrange(6):
                case 0 | 1:
                    frames[at] = mutated(frames)(rng)
                case 2:
                    frames[at] = spliced(originals)(rng)
                case 3:
                    frames.insert(at, frames[other])
                case 4:
                    frames[at], frames[other] = frames[other], frames[at]
                case 5:
                    frames[at] = mutated_stream(frames)(rng)
        return b"".join(frames)

    return make
