"""Frozen inputs of the benchmarks. Only append; never change what is here.

A changed input would make results before and after incomparable. Nothing here is
built by plog, so that a benchmark cannot be moved by the code it measures: random
bytes come from a seeded generator, encodings are written out by hand.
"""

from __future__ import annotations

import os
import random
import struct

import cramjam
import crcmod.predefined

ENGINES = ["native", "reference"]

VARINTS: dict[int, bytes] = {
    1: bytes.fromhex("7e"),
    3: bytes.fromhex("feff7f"),
    5: bytes.fromhex("feffffff0f"),
}
"""Zigzag varints by width in bytes."""

VARLONGS: dict[int, bytes] = {
    1: bytes.fromhex("7e"),
    6: bytes.fromhex("fefffffffe03"),
    10: bytes.fromhex("feffffffffffffffff01"),
}

_CARRIERS = ("9E", "AA", "AS", "B6", "DL", "EV", "F9", "FL", "HA", "MQ", "UA", "US", "VX", "WN")
_AIRPORTS = ("ATL", "BOS", "CLT", "DEN", "FLL", "IAD", "LAX", "MCO", "MIA", "ORD", "RDU", "SFO")


def _json_events(size: int, seed: int) -> bytes:
    # Written by hand and not by a JSON library: its spacing is part of what is frozen.
    rng = random.Random(seed)
    events = []
    written = 0
    number = 0
    while written < size:
        date = f"2013-{rng.randrange(1, 13):02d}-{rng.randrange(1, 29):02d}"
        event = (
            f'{{"id":{number},"time":"{date}T{rng.randrange(24):02d}:{rng.randrange(60):02d}:00Z",'
            f'"carrier":"{rng.choice(_CARRIERS)}","flight":{rng.randrange(1, 6000)},'
            f'"tail":"N{rng.randrange(4000):05d}","origin":"{rng.choice(("EWR", "JFK", "LGA"))}",'
            f'"dest":"{rng.choice(_AIRPORTS)}","dep_delay":{rng.randrange(-20, 180)},'
            f'"arr_delay":{rng.randrange(-40, 200)},"distance":{rng.randrange(80, 2600)}}}'
        ).encode()
        events.append(event)
        written += len(event)
        number += 1
    return b"".join(events)[:size]


JSON_EVENTS: bytes = _json_events(1 << 20, seed=1)
"""1 MiB of JSON events of about 190 bytes, one behind the other."""

NOISE: bytes = random.Random(2).randbytes(1 << 20)
"""1 MiB that no codec makes smaller."""

KEYS: dict[int, bytes] = {size: random.Random(size).randbytes(size) for size in (4, 16, 100)}
"""Record keys by size."""

GZIP, SNAPPY, LZ4, ZSTD = 1, 2, 3, 4
"""Codecs by their number in a batch's attributes."""


def _xerial(plain: bytes) -> bytes:
    framed = [b"\x82SNAPPY\0", struct.pack(">ii", 1, 1)]
    for at in range(0, len(plain), 32768):
        block = bytes(cramjam.snappy.compress_raw(plain[at : at + 32768]))
        framed += [struct.pack(">i", len(block)), block]
    return b"".join(framed)


def compressed_events(codec: int, size: int) -> bytes:
    """Return the first `size` bytes of JSON_EVENTS as another library compresses them."""
    plain = JSON_EVENTS[:size]
    if codec == SNAPPY:
        return _xerial(plain)
    module = {GZIP: cramjam.gzip, LZ4: cramjam.lz4, ZSTD: cramjam.zstd}[codec]
    return bytes(module.compress(plain))


OFFSET_INDEX: bytes = b"".join(
    struct.pack(">ii", 20 * entry + 19, 4100 * entry) for entry in range(1, 100_001)
)
"""100,000 entries, 20 offsets and 4,100 bytes apart."""

TIME_INDEX: bytes = b"".join(
    struct.pack(">qi", 1_357_000_000_000 + 250 * entry, 20 * entry + 19)
    for entry in range(1, 100_001)
)
"""100,000 entries, 250 ms and 20 offsets apart."""


def _plain_batch(size: int) -> bytes:
    # Magic 2, one record; the filler behind the header is no record, and the CRC is not its own.
    header = struct.pack(">qiibI", 0, size - 12, -1, 2, 0)
    header += struct.pack(">hiqqqhii", 0, 0, 1000, 1000, -1, -1, -1, 1)
    return header + NOISE[: size - len(header)]


PLAIN_BATCHES: dict[int, bytes] = {size: _plain_batch(size) for size in (200, 4096, 65536)}
"""Record batches by size, of one record and no producer, for code that looks at headers only."""

BATCH_TIME_MS = 1_357_000_000_000
"""Timestamp of the first record in every batch of RECORD_BATCHES; the others follow 1 ms apart."""


def _zigzag(value: int) -> bytes:
    raw = (value << 1) ^ (value >> 63)
    out = bytearray()
    while raw > 0x7F:
        out.append(raw & 0x7F | 0x80)
        raw >>= 7
    out.append(raw)
    return bytes(out)


def _record_batch(count: int, key_size: int, value_size: int, headers: bytes, codec: int) -> bytes:
    # Magic 2. Values are slices of JSON_EVENTS, `headers` the bytes from their count on.
    records = []
    for index in range(count):
        body = b"\0" + _zigzag(index) + _zigzag(index)
        body += _zigzag(-1) if key_size == 0 else _zigzag(key_size) + (b"%016d" % index)[-key_size:]
        at = index * value_size % (len(JSON_EVENTS) - value_size)
        body += _zigzag(value_size) + JSON_EVENTS[at : at + value_size] + headers
        records.append(_zigzag(len(body)) + body)
    section = b"".join(records)
    if codec:
        module = {GZIP: cramjam.gzip, LZ4: cramjam.lz4, ZSTD: cramjam.zstd}[codec]
        section = bytes(module.compress(section))
    last = count - 1
    covered = struct.pack(">hiqq", codec, last, BATCH_TIME_MS, BATCH_TIME_MS + last)
    covered += struct.pack(">qhii", -1, -1, -1, count) + section
    crc = crcmod.predefined.mkCrcFun("crc-32c")(covered)
    return struct.pack(">qiibI", 0, len(covered) + 9, -1, 2, crc) + covered


RECORD_BATCHES: dict[str, bytes] = {
    "1 x 100 B": _record_batch(1, 0, 100, b"\0", 0),
    "150 x 100 B": _record_batch(150, 0, 100, b"\0", 0),
    "8000 x 100 B keyed": _record_batch(8000, 16, 100, b"\0", 0),
    "8000 x 100 B headers": _record_batch(8000, 0, 100, b"\x04\x02a\x021\x02b\x01", 0),
    "1000 x 1000 B keyed": _record_batch(1000, 16, 1000, b"\0", 0),
    "8000 x 100 B lz4": _record_batch(8000, 0, 100, b"\0", LZ4),
    "8000 x 100 B zstd": _record_batch(8000, 0, 100, b"\0", ZSTD),
}
"""Record batches a producer may send: records x value size, and what is special."""


def _uvarint(value: int) -> bytes:
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


def _list_offsets_request(partitions: int, flexible: bool) -> bytes:
    # Latest offsets (-1) at leader epoch 3; flexible since v6.
    if flexible:
        topic = b"\x07orders" + _uvarint(partitions + 1)
        topic += b"".join(struct.pack(">iiqx", i, 3, -1) for i in range(partitions)) + b"\0"
        return struct.pack(">ib", -1, 0) + b"\x02" + topic + b"\0"
    topic = b"\0\x06orders" + struct.pack(">i", partitions)
    topic += b"".join(struct.pack(">iiq", i, 3, -1) for i in range(partitions))
    return struct.pack(">ibi", -1, 0, 1) + topic


def _fetch_request(partitions: int) -> bytes:
    topic = b"\x07orders" + _uvarint(partitions + 1)
    for i in range(partitions):
        topic += struct.pack(">iiqiqix", i, 3, 1000 + i, -1, -1, 1 << 20)
    head = struct.pack(">iiiibii", -1, 500, 1, 50 << 20, 0, 0, -1)
    return head + b"\x02" + topic + b"\0" + b"\x01" + b"\x01" + b"\0"


def _produce_request(partitions: int) -> bytes:
    records = PLAIN_BATCHES[4096]
    topic = b"\0\x06orders" + struct.pack(">i", partitions)
    for i in range(partitions):
        topic += struct.pack(">ii", i, len(records)) + records
    return struct.pack(">hhii", -1, -1, 30_000, 1) + topic


def _metadata_response(topics: int, partitions: int) -> bytes:
    out = struct.pack(">ib", 0, 4)
    for node in range(3):
        out += struct.pack(">i", node) + b"\x0a127.0.0.1" + struct.pack(">i", 9092 + node) + b"\0\0"
    out += b"\0" + struct.pack(">i", 0) + _uvarint(topics + 1)
    for topic in range(topics):
        out += b"\0\0" + b"\x0dtopic-%06d" % topic + b"\0" + _uvarint(partitions + 1)
        for i in range(partitions):
            out += struct.pack(">hiii", 0, i, i % 3, 5)
            out += b"\x04" + struct.pack(">iii", 0, 1, 2) + b"\x03" + struct.pack(">ii", 0, 1)
            out += b"\x01\0"
        out += struct.pack(">ix", -(2**31))
    return out + struct.pack(">ix", -(2**31))


MESSAGES: dict[str, tuple[str, int, bytes]] = {
    "list_offsets 100": ("ListOffsetsRequest", 5, _list_offsets_request(100, False)),
    "list_offsets 100 flexible": ("ListOffsetsRequest", 7, _list_offsets_request(100, True)),
    "fetch 100 flexible": ("FetchRequest", 12, _fetch_request(100)),
    "produce 20 x 4 KiB": ("ProduceRequest", 7, _produce_request(20)),
    "metadata 100 x 10 flexible": ("MetadataResponse", 9, _metadata_response(100, 10)),
}
"""Messages by what and how many partitions they hold: (name, version, bytes)."""


def at_length(count: int) -> int:
    """Return a count or a size for one sample: a fiftieth of it in tests."""
    return count // 50 if os.environ.get("PLOG_BENCH_SHORT") else count
