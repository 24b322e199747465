"""Targets over frames: messages in Python, and Produce and Fetch as the fast path reads them."""

from __future__ import annotations

import functools
import os
import struct
from pathlib import Path
from typing import Any

from plog._native import batch, request_forms, validation
from plog._native.log_flush import CommitThread
from plog._native.partition_log import PartitionLog
from plog._native.served import ServedPartitions
from plog._native.topic_traffic import TopicTraffic
from plog._native.work_queue import WorkThread
from plog._reference import codec as reference
from plog.handlers.produced_batches import is_transactional
from plog.protocol import codec, framing
from plog.protocol.messages.fetch import FetchRequest
from plog.protocol.messages.produce import ProduceRequest, ProduceResponse
from plog.types import Buffer
from tests.compat import requests
from tests.storage.partition_logs import log_of, segment_of

from .common import AT_ATTRIBUTES, AT_CRC, AT_LENGTH, HEADER_BYTES, crc32c, exact, said
from .record_targets import LIMIT, NOW_MS

LARGEST_ANSWER = 50 << 20
MOST_MESSAGE_BYTES = 4096
FIRST_VERSION, FIRST_FETCH = 3, 4
"""Of Produce and of Fetch with record batches."""
REPLICA_STATE_SINCE = 15
TOPICS = {
    ("t", 0): False,
    ("t", 1): True,
    **{(requests.TOPIC, index): False for index in range(requests.PARTITIONS)},
}
"""What the fast path serves, and whether records need keys; what clients have written to, too."""


def messages(data: memoryview) -> None:
    """What it is, a byte; then a request with its header, or a response behind key and version."""
    if len(data) < 5:
        return
    is_request = data[0] & 1 == 0
    body = data[1:]
    if is_request:
        header = said(framing.decode_request_header, body)
        if isinstance(header, str):
            return
        (key, version, _, _), at = header
        cls = framing.request_class(key)
    else:
        key, version = struct.unpack_from(">hh", body)
        at = 4
        cls = framing.response_class(key)
    if cls is None:
        return
    low, high = cls.api.versions.low, cls.api.versions.high
    version = low + (version - low) % (high - low + 1)
    found, expected = (said(one.decode, cls, version, body, at) for one in (codec, reference))
    assert found == expected, f"{cls.__name__} v{version}: {found!r}, its twin: {expected!r}"
    if isinstance(found, str):
        assert found.startswith("InvalidRequest: ")
        return
    message, end = found
    assert end <= len(body)
    wire = codec.encode(message, version)
    assert wire == reference.encode(message, version)
    # Unless nothing in it was a NaN.
    again, size = codec.decode(cls, version, wire)
    assert size == len(wire)
    assert codec.encode(again, version) == wire


def fetch_requests(data: memoryview) -> None:
    """A frame: the kernels and Python agree whether it is a request, and on what it says."""
    form = request_forms.read_fetch(data, LARGEST_ANSWER)
    found = read(FetchRequest, data)
    if form is None:
        assert found is None or found[1] < FIRST_FETCH
        return
    if isinstance(form, str):
        assert found is None, form
        return
    assert found is not None, "Python cannot read what the kernels read"
    request, version, _ = found
    by_state = version >= REPLICA_STATE_SINCE
    assert form.replica_id == (request.replica_state.replica_id if by_state else request.replica_id)
    assert form.replica_epoch == (request.replica_state.replica_epoch if by_state else -1)
    assert form.read_committed is (request.isolation_level == 1)
    assert form.max_wait_ms == request.max_wait_ms
    assert form.max_bytes == min(request.max_bytes, LARGEST_ANSWER)
    assert form.min_bytes == min(request.min_bytes, form.max_bytes)
    assert (form.session_id, form.session_epoch) == (request.session_id, request.session_epoch)
    assert form.asked == [
        (
            topic.topic.encode(),
            topic.topic_id.bytes,
            part.partition,
            max(part.current_leader_epoch, -1),
            part.fetch_offset,
            max(part.last_fetched_epoch, -1),
            part.log_start_offset,
            part.partition_max_bytes,
        )
        for topic in request.topics
        for part in topic.partitions
    ]
    assert form.forgotten == [
        (topic.topic.encode(), topic.topic_id.bytes, index)
        for topic in request.forgotten_topics_data
        for index in topic.partitions
    ]


def memory_log() -> PartitionLog:
    """Return an empty partition whose files have no names."""
    files = [os.memfd_create(name) for name in ("log", "index", "timeindex")]
    log = log_of([segment_of(files, max_index_bytes=4096)], Path("/"))
    log.set_limits(
        segment_bytes=1 << 30, segment_ms=1 << 40, segment_jitter_ms=0, index_interval_bytes=4096
    )
    return log


@functools.cache
def served() -> ServedPartitions:
    """Return what the fast path serves here: TOPICS, without a broker."""
    partitions = ServedPartitions(WorkThread())
    for number, ((topic, index), key_required) in enumerate(TOPICS.items()):
        partitions.publish(
            topic,
            bytes(15) + bytes([number + 1]),
            index,
            memory_log(),
            CommitThread(),
            WorkThread(),
            TopicTraffic(),
            number=number,
            max_message_bytes=MOST_MESSAGE_BYTES,
            decompressed_limit=LIMIT,
            before_max_ms=10_000,
            after_max_ms=1_000,
            flush_messages=1 << 60,
            flush_before_ack=False,
            key_required=key_required,
            produce_is_pythons=False,
        )
    return partitions


def produce_requests(data: memoryview) -> None:
    """A frame: the kernels and Python agree whether it is a request, and on what it says."""
    check_produce(exact(data))
    check_produce(exact(with_right_records(data)))


def with_right_records(data: Buffer) -> Buffer:
    """Have each batch of a request be one in length and CRC, as far as the request can be read."""
    found = bytearray(data)
    request = read(ProduceRequest, found)
    if request is None:
        return found
    for topic in request[0].topic_data:
        for part in topic.partition_data:
            if part.records is not None and len(part.records) >= HEADER_BYTES:
                records = part.records
                struct.pack_into(">i", records, AT_LENGTH, len(records) - 12)
                crc = crc32c(bytes(records[AT_ATTRIBUTES:]))
                struct.pack_into(">I", records, AT_CRC, crc)
    return found


def read(cls: Any, frame: Buffer) -> tuple[Any, int, int] | None:
    """Read a frame as Python does: the request, its version and its end."""
    header = said(framing.decode_request_header, frame)
    if isinstance(header, str) or header[0].api_key != cls.api.key:
        return None
    found = said(
        codec.decode,
        cls,
        header[0].api_version,
        frame,
        header[1],
        most_elements=framing.MOST_REQUEST_ELEMENTS,
    )
    return None if isinstance(found, str) else (found[0], header[0].api_version, found[1])


def check_produce(frame: memoryview) -> None:
    """Compare the kernels with Python on one frame."""
    before = exact(frame)
    in_reactor = request_forms.check_produce(served(), exact(frame), NOW_MS, True)
    form = request_forms.check_produce(served(), frame, NOW_MS, False)
    found = read(ProduceRequest, before)
    if form is None:
        assert in_reactor is None
        assert found is None or found[1] < FIRST_VERSION
        return
    assert in_reactor is None or in_reactor == form, "the thread beside the reactor finds the same"
    if isinstance(form, str):
        assert found is None, form
        return
    assert found is not None, "Python cannot read what the kernels read"
    request, version, _ = found
    assert (form.acks, form.timeout_ms) == (request.acks, request.timeout_ms)
    parts = [
        (number, topic.name, part)
        for number, topic in enumerate(request.topic_data)
        for part in topic.partition_data
    ]
    assert len(parts) == len(form.parts)
    is_refused = request.acks not in (-1, 0, 1) or (
        request.transactional_id is None
        and any(part.records is not None and is_transactional(part.records) for _, _, part in parts)
    )
    for (topic, name, part), (at_topic, index, at, size, is_good) in zip(
        parts, form.parts, strict=True
    ):
        assert (at_topic, index) == (topic, part.index)
        assert size == (-1 if part.records is None else len(part.records))
        assert at is None or bytes(before[at : at + size]) == bytes(part.records)
        if not is_good:
            continue
        assert not is_refused
        judged = judge(part.records, TOPICS[name, index])
        assert judged.error == 0, judged
        stamped = batch.check_batch(frame[at : at + size])
        assert stamped.max_timestamp == judged.max_timestamp
    names = [
        (topic.name, [part.index for part in topic.partition_data]) for topic in request.topic_data
    ]
    check_answer(form.answer, version, names)


def judge(records: Buffer, key_required: bool) -> Any:
    return validation.validate_produced(
        records,
        now_ms=NOW_MS,
        before_max_ms=10_000,
        after_max_ms=1_000,
        log_append_time=False,
        key_required=key_required,
        decompressed_limit=LIMIT,
    )


def check_answer(answer: bytes, version: int, expected: list[tuple[str, list[int]]]) -> None:
    """Read the answer's form as a client does."""
    assert struct.unpack_from(">i", answer) == (len(answer) - 4,)
    _, at = framing.decode_response_header(0, version, answer[4:])
    response, end = codec.decode(ProduceResponse, version, answer[4:], at)
    assert end == len(answer) - 4
    assert expected == [
        (topic.name, [part.index for part in topic.partition_responses])
        for topic in response.responses
    ]
