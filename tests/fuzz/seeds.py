"""Where the corpora begin: what other libraries write, and what the other tests make.

`python -m tests.fuzz.seeds` prints nothing and writes them where `bin/fuzz --keep` looks for new
inputs; it is run again when a target is added or takes its bytes in another form.
"""

from __future__ import annotations

import hashlib
import random
import struct
import uuid
from collections.abc import Iterator
from pathlib import Path

from plog._native.records import control_batch
from plog.protocol import codec, framing
from plog.protocol.messages.fetch import FetchRequest
from plog.protocol.messages.produce import ProduceRequest
from plog.storage import checkpoints, durable_ends, leader_epochs
from plog.storage.producer_snapshot import encode_snapshot
from plog.storage.transaction_index import AbortedTransaction, encode_aborted
from tests.agreement.batches import (
    CODECS,
    COMPRESS,
    MALFORMED_RECORDS,
    NOW_MS,
    SMALL,
    build,
    malformed,
    stamped,
)
from tests.handlers.wire import fetch_request, produce_request
from tests.protocol.instances import VERSIONS, sample
from tests.protocol.test_golden import GOLDEN

from .instrumented import LEARNT
from .request_targets import TOPICS

Seeds = Iterator[tuple[str, bytes]]


def batches() -> Iterator[bytes]:
    for codec_number in CODECS:
        yield build(SMALL, codec_number)
    yield build(SMALL, producer=(5, 0, 17), transactional=True)
    yield stamped(build(SMALL), attributes=0x08, max_timestamp=NOW_MS)
    for abort in (False, True):
        yield control_batch(
            abort=abort,
            offset=3,
            timestamp=NOW_MS,
            producer_id=5,
            producer_epoch=0,
            coordinator_epoch=1,
        )
    for name in MALFORMED_RECORDS:
        yield malformed(name)


def of_records() -> Seeds:
    log = b"".join(build(SMALL, n % 5, base_offset=3 * n) for n in range(6))
    for data in [*batches(), log, log[:-5]]:
        yield "batches", data
        yield "records", data
        yield "appends", data
        for rules in (0, 1, 6, 12, 14):
            yield "validation", bytes([rules]) + data
        for asked in ((0, 9, 100, 9000, 0, 0), (1, 9, 2, 9000, 5, 1), (0, 9, 100, 60, 0, 0)):
            yield "columns", struct.pack(">BHBHBB", *asked) + data
        for head in (bytes(6), bytes([1, 0, 0, 6, 0, 1]), bytes([2, 0, 0, 3, 0, 1])):
            yield "segments", head + data
    idempotent = [build(SMALL, producer=(5, 0, sequence)) for sequence in (0, 3, 3, 7, 0)]
    opened = build(SMALL, producer=(5, 1, 0), transactional=True)
    yield "appends", b"".join([*idempotent, opened, opened, idempotent[0]])
    index = struct.pack(">iiii", 2, 78, 5, 240)
    times = struct.pack(">qi", NOW_MS + 5, 1)
    for how in (0, 1, 4):
        yield "segments", bytes([how, len(index), len(times), 3, 0, 1]) + index + times + log
    for number, compress in COMPRESS.items():
        for data in (b"", b"a", b"plog" * 20, random.Random(1).randbytes(50), bytes(3000)):
            yield "codecs", bytes([number]) + compress(data)
            yield "codecs", bytes([number]) + 2 * compress(data)
    for data in ("00", "7f", "ffffffff0f", "ffffffffffffffffff01", "80808080808000"):
        yield "varints", bytes.fromhex(data)


def of_frames() -> Seeds:
    rng = random.Random(1)
    for golden in GOLDEN:
        yield from of_message(golden.cls, golden.version, golden.wire)
    for cls, version in VERSIONS:
        yield from of_message(cls, version, codec.encode(sample(cls, version, rng), version))
    for version in range(4, 18):
        for parts in ([("t", 0, 5)], [("t", 0, 5), ("t", 1, 0), ("topic-with-a-name", 0, 9)]):
            named = [(uuid.UUID(int=n + 1) if version > 12 else name, index, offset)
                     for n, (name, index, offset) in enumerate(parts)]  # fmt: skip
            forgotten = [at[:2] for at in named] if version > 6 else []
            session = (7, 3) if version > 6 else (0, -1)
            request = fetch_request(*named, session=session, forgotten=forgotten)
            yield "fetch_requests", framed(FetchRequest, version, codec.encode(request, version))
    for version in range(3, 12):
        for number in CODECS if version > 6 else range(4):
            data = build([(NOW_MS, b"k", b"v" * 30, [("h", b"1")])], number)
            request = produce_request([(topic, index, data) for topic, index in TOPICS])
            frame = framed(ProduceRequest, version, codec.encode(request, version))
            yield "produce_requests", frame


def of_message(cls: type, version: int, wire: bytes) -> Seeds:
    if cls.__name__.endswith("Response"):
        yield "messages", b"\x01" + struct.pack(">hh", cls.api.key, version) + wire
        return
    frame = framed(cls, version, wire)
    yield "messages", b"\x00" + frame
    if cls is FetchRequest:
        yield "fetch_requests", frame
    if cls is ProduceRequest:
        yield "produce_requests", frame


def framed(cls: type, version: int, wire: bytes) -> bytes:
    return framing.encode_request_header(cls.api.key, version, 7, "client") + wire


def of_files() -> Seeds:
    offsets = struct.pack(">iiiiii", 0, 0, 5, 4096, 9, 9000)
    times = struct.pack(">qiqiqi", 1, 2, 5, 6, 7, 6)
    for entries in (b"", offsets, times, offsets[:12], offsets + bytes(8)):
        for target in (0, 105, 1 << 40):
            yield "indexes", struct.pack(">qq", 100, target) + entries
    aborted = [AbortedTransaction(1, 0, 5, 6), AbortedTransaction(2, 3, 9, 20)]
    key = durable_ends.SlotKey(uuid.UUID(int=5), 3)
    epochs = "0\n2\n0 0\n3 100\n"
    files = [
        encode_aborted(aborted),
        encode_snapshot([]) + bytes(4),
        b"0\n2\nflights 0 17\nflights 1 4\n",
        epochs.encode(),
        checkpoints.encode_partition_metadata(uuid.UUID(int=77)).encode(),
        durable_ends.encode_slot(key, 1000),
    ]
    assert leader_epochs.decode_leader_epochs(epochs, "file")
    snapshot = struct.pack(">hIi", 1, 0, 2)
    for producer in (5, 6):
        snapshot += struct.pack(">qhiqiqiq", producer, 0, 9, 17, 2, NOW_MS, -1, -1)
    files.append(b"")
    for number, content in enumerate(files[:-1]):
        yield "small_files", bytes([number]) + content
    yield "small_files", b"\x01" + snapshot


def write(directory: Path) -> None:
    for seeds in (of_records, of_frames, of_files):
        for target, data in seeds():
            path = directory / target / hashlib.sha1(data).hexdigest()
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(data)


if __name__ == "__main__":
    write(LEARNT)
