"""Where the fuzzer begins: what clients send, what other libraries write, what other tests make."""

from __future__ import annotations

import functools
import itertools
import random
import struct
import uuid
from collections import defaultdict
from collections.abc import Iterator

from plog._native.partition_log import ProducerEntry, SequencedBatch
from plog._native.records import control_batch
from plog.client.assignors import (
    COOPERATIVE_STICKY,
    STICKY,
    Subscription,
    encode_assignment,
    encode_subscription,
)
from plog.coordinator import group_log, txn_log
from plog.coordinator.classic_group import ClassicGroup
from plog.coordinator.group_log import CommittedOffset
from plog.coordinator.txn_events import TxnValue
from plog.coordinator.txn_states import NEXT_STATES, TxnState
from plog.protocol import codec, framing
from plog.protocol.api_keys import ApiKey
from plog.protocol.messages.fetch import FetchRequest
from plog.protocol.messages.group_records import (
    GroupMetadataKey,
    GroupMetadataValue,
    MemberMetadata,
    OffsetCommitValue,
)
from plog.protocol.messages.groups import JoinGroupRequest, SyncGroupRequest
from plog.protocol.messages.produce import ProduceRequest
from plog.protocol.schema import Struct
from plog.storage import checkpoints, durable_ends
from plog.storage.producer_snapshot import encode_snapshot
from plog.storage.transaction_index import AbortedTransaction, encode_aborted
from plog.types import TopicPartition
from tests.agreement.batch_headers import stamped
from tests.agreement.batches import (
    CODECS,
    COMPRESS,
    MALFORMED_RECORDS,
    NOW_MS,
    SMALL,
    build,
    malformed,
)
from tests.compat import requests
from tests.handlers.wire import fetch_request, produce_request
from tests.protocol.instances import VERSIONS, sample
from tests.protocol.test_golden import GOLDEN

from .file_targets import BESIDE
from .request_targets import TOPICS

Seeds = Iterator[tuple[str, bytes]]

EPOCHS = b"0\n2\n0 0\n3 4\n"
_BATCH = SequencedBatch(0, 2, 2, 2, NOW_MS)
SNAPSHOT = encode_snapshot(
    ProducerEntry(number, 0, (_BATCH,), NOW_MS, -1, transaction)
    for number, transaction in ((5, -1), (6, 1))
)


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
    for request in requests.all_kept():
        yield from request.at(NOW_MS).batches()


def start(known: tuple[int, ...], log: bytes, **beside: bytes) -> bytes:
    """Return what a broker finds: the target `segments` says what the numbers are."""
    files = [beside.get(kind, b"") for kind in BESIDE]
    return bytes([*known, *map(len, files)]) + b"".join(files) + log


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
        for known in ((0, 0, 0, 0), (1, 6, 0, 1), (2, 3, 0, 1)):
            yield "segments", start(known, data)
    idempotent = [build(SMALL, producer=(5, 0, sequence)) for sequence in (0, 3, 3, 7, 0)]
    opened = build(SMALL, producer=(5, 1, 0), transactional=True)
    yield "appends", b"".join([*idempotent, opened, opened, idempotent[0]])
    beside = {
        "index": struct.pack(">iiii", 2, 78, 5, 240),
        "timeindex": struct.pack(">qi", NOW_MS + 5, 1),
        "txnindex": encode_aborted([AbortedTransaction(5, 0, 5, 6)]),
        "snapshot": SNAPSHOT,
        "epochs": EPOCHS,
    }
    for how in (0, 1, 2, 4):
        for data in (log, b"".join([*idempotent[:2], opened])):
            yield "segments", start((how, 3, 0, 3), data, **beside)
            for kind, content in beside.items():
                yield "segments", start((how, 3, 0, 6), data, **{kind: content})
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
    for version in range(3, 13):
        for number in CODECS if version > 6 else range(4):
            data = build([(NOW_MS, b"k", b"v" * 30, [("h", b"1")])], number)
            request = produce_request([(topic, index, data) for topic, index in TOPICS])
            frame = framed(ProduceRequest, version, codec.encode(request, version))
            yield "produce_requests", frame


def of_clients() -> Seeds:
    """Yield what real clients have sent, at the moment of the targets."""
    for request in requests.all_kept():
        frame = request.at(NOW_MS).frame
        yield "messages", b"\0" + frame
        if request.header.api_key == ApiKey.FETCH:
            yield "fetch_requests", frame
        if request.header.api_key == ApiKey.PRODUCE:
            yield "produce_requests", frame
        if isinstance(request.message, JoinGroupRequest):
            for protocol in request.message.protocols:
                yield "members", of_members(protocol.metadata, b"", protocol.metadata)
        if isinstance(request.message, SyncGroupRequest):
            for member in request.message.assignments:
                yield "members", of_members(b"", member.assignment, b"")


def of_members(told: bytes, assignment: bytes, other: bytes) -> bytes:
    return struct.pack(">HH", len(told), len(assignment)) + told + assignment + other


def of_message(cls: type[Struct], version: int, wire: bytes) -> Seeds:
    is_request = cls.__name__.endswith("Request")
    head = framed(cls, version, b"") if is_request else struct.pack(">hh", cls.api.key, version)
    # A decoder for each, made first: of all versions they would take longer than a short run has.
    if version in (cls.api.versions.low, cls.api.versions.high):
        yield "messages", bytes([not is_request]) + head + wire
    if cls is FetchRequest:
        yield "fetch_requests", head + wire
    if cls is ProduceRequest:
        yield "produce_requests", head + wire


def framed(cls: type[Struct], version: int, wire: bytes) -> bytes:
    return framing.encode_request_header(cls.api.key, version, 7, "client") + wire


def of_files() -> Seeds:
    offsets = struct.pack(">iiiiii", 0, 0, 5, 4096, 9, 9000)
    times = struct.pack(">qiqiqi", 1, 2, 5, 6, 7, 6)
    for entries in (b"", offsets, times, offsets[:12], offsets + bytes(8)):
        for target in (0, 105, 1 << 40):
            yield "indexes", struct.pack(">qq", 100, target) + entries
    aborted = [AbortedTransaction(1, 0, 5, 6), AbortedTransaction(2, 3, 9, 20)]
    key = durable_ends.SlotKey(uuid.UUID(int=5), 3)
    files = [
        encode_aborted(aborted),
        SNAPSHOT,
        b"0\n2\nflights 0 17\nflights 1 4\n",
        EPOCHS,
        checkpoints.encode_partition_metadata(uuid.UUID(int=77)).encode(),
        durable_ends.encode_slot(key, 1000),
        b"#Mon\nversion=1\nnode.id=3\ncluster.id=x\\u0041\ndirectory.id: y\n",
    ]
    for number, content in enumerate(files):
        yield "small_files", bytes([number]) + content


def of_coordinators() -> Seeds:
    owned = (TopicPartition("t", 0), TopicPartition("t", 1))
    told = [
        encode_subscription(Subscription(("t", "other"), owned, 3), assignor)
        for assignor in (STICKY, COOPERATIVE_STICKY)
    ]
    yield "members", of_members(told[0], encode_assignment(owned), told[1])
    yield "members", of_members(told[1], b"", b"")
    for version in range(4):
        yield "members", of_members(struct.pack(">h", version) + told[1][2:], b"", told[0])
    groups, txns = [*_group_records()], [*_txn_records()]
    for whose, records in ((0, groups), (4, groups), (1, txns)):
        for key, value in records:
            head = struct.pack(">BH", whose, len(key))
            yield "coordinator_records", head + key + value
            yield "coordinator_records", struct.pack(">BH", whose | 2, len(key)) + key + value
        for attempt in range(2):
            yield "coordinator_logs", bytes([whose]) + b"".join(_log_of(records, abort=attempt))


def _group_records() -> Iterator[tuple[bytes, bytes]]:
    key = group_log.encode_offset_key("g", TopicPartition("t", 1))
    yield key, group_log.encode_offset(CommittedOffset(5, 3, "m", NOW_MS))
    yield key, group_log.encode_offset(CommittedOffset(5, -1, "", NOW_MS, NOW_MS + 1))
    offset = OffsetCommitValue(offset=5, metadata="m", commit_timestamp=NOW_MS)
    for version in range(5):
        yield key, struct.pack(">h", version) + codec.encode(offset, version)
    key = group_log.encode_group_key("g")
    yield key, group_log.encode_group(ClassicGroup("g", 4), {}, NOW_MS)
    members = [
        MemberMetadata(
            member_id=name,
            group_instance_id=instance,
            client_id="c",
            client_host="/h",
            session_timeout=10_000,
            subscription=encode_subscription(Subscription(("t",)), STICKY),
            assignment=encode_assignment([TopicPartition("t", 1)]),
        )
        for name, instance in (("a", None), ("b", "one"))
    ]
    for version in range(5):
        group = GroupMetadataValue(
            protocol_type="consumer", generation=2, protocol="sticky", leader="b", members=members
        )
        yield key, struct.pack(">h", version) + codec.encode(group, version)
    yield struct.pack(">h", 3) + codec.encode(GroupMetadataKey(group="g"), 2), b"later"


def _txn_records() -> Iterator[tuple[bytes, bytes]]:
    key = txn_log.encode_key("id")
    partitions = frozenset({TopicPartition("t", 1), TopicPartition("u", 0)})
    for state in NEXT_STATES:
        in_it = partitions if state in (TxnState.ONGOING, TxnState.PREPARE_COMMIT) else frozenset()
        value = TxnValue(5, 1, 1000, state, in_it, NOW_MS, NOW_MS - 2000)
        yield key, txn_log.encode_value(value)
        newer = TxnValue(5, 32766, 1000, state, in_it, NOW_MS, NOW_MS, 4, 6, 2)
        yield key, txn_log.encode_value(newer)


def _log_of(records: list[tuple[bytes, bytes]], *, abort: int) -> Iterator[bytes]:
    """Yield batches of records, without and in a transaction, and its marker."""
    written = [(NOW_MS, key, value, ()) for key, value in records]
    yield build(written[:3])
    yield build([*written[3:], (NOW_MS, written[0][1], None, ())], 3, base_offset=3)
    at = len(written) + 1
    yield build(written[:2], base_offset=at, producer=(5, 0, 0), transactional=True)
    yield control_batch(
        abort=bool(abort),
        offset=at + 2,
        timestamp=NOW_MS,
        producer_id=5,
        producer_epoch=0,
        coordinator_epoch=1,
    )
    yield build(written[2:4], base_offset=at + 3, producer=(6, 0, 0), transactional=True)


@functools.cache
def seeds() -> dict[str, list[bytes]]:
    """Return the seeds of each target."""
    found = defaultdict(list)
    for target, data in itertools.chain(
        of_records(), of_frames(), of_clients(), of_files(), of_coordinators()
    ):
        found[target].append(data)
    return {target: sorted(set(inputs)) for target, inputs in found.items()}
