"""What the fast path reads in a frame of Produce or Fetch, as Python objects: for tests.

Owns nothing: the forms are `produce_path`'s and `fetch_request`'s, called here as the reactor
calls them, on a frame that no connection has sent. Nothing is appended, and nothing read.
"""

from typing import NamedTuple

from libc.stdint cimport int64_t, uint8_t
from libc.string cimport memset

from plog._native.fetch_call cimport FETCH_KEY, FETCH_SINCE, FETCH_UNTIL, FetchCall
from plog._native.fetch_path cimport fetch_release
from plog._native.fetch_request cimport fetch_read_request
from plog._native.partition_names cimport PartitionName, Wanted
from plog._native.produce_answer cimport produce_answer_bytes
from plog._native.produce_call cimport PRODUCE_KEY, PRODUCE_SINCE, PRODUCE_UNTIL, ProduceCall, ProducePart, produce_part
from plog._native.produce_path cimport (
    PRODUCE_BESIDE, PRODUCE_MALFORMED, ProduceOutcome, produce_check, produce_release)
from plog._native.request cimport read_head
from plog._native.request_stages cimport CHECKED, Progress, progress_begin
from plog._native.response_fields cimport NO_TEXT
from plog._native.served cimport TOPIC_ID_BYTES, ServedPartitions


class FetchForm(NamedTuple):
    replica_id: int
    replica_epoch: int
    max_wait_ms: int
    min_bytes: int
    max_bytes: int
    read_committed: bool
    session_id: int
    session_epoch: int
    asked: list
    forgotten: list


class ProduceForm(NamedTuple):
    acks: int
    timeout_ms: int
    parts: list
    answer: bytes


cdef tuple name_of(const PartitionName* name):
    return name.topic[:name.topic_size], name.topic_id[:TOPIC_ID_BYTES], name.index


def read_fetch(const uint8_t[::1] frame not None, int64_t largest_bytes):
    cdef const uint8_t* p = &frame[0] if len(frame) else NULL
    cdef const uint8_t* end = p + len(frame)
    cdef FetchCall call
    cdef const Wanted* wanted
    cdef int64_t number
    memset(&call, 0, sizeof(call))
    try:
        p = read_head(p, end, &call.head)
        if p == NULL or call.head.api_key != FETCH_KEY or not FETCH_SINCE <= call.head.version <= FETCH_UNTIL:
            return None
        if not fetch_read_request(&call, largest_bytes, p, end):
            return call.fault.decode()
        asked = []
        for number in range(call.asked.count):
            wanted = &(<const Wanted*>call.asked.items)[number]
            asked.append((
                *name_of(&wanted.name), wanted.leader_epoch, wanted.offset, wanted.last_epoch, wanted.log_start_offset,
                wanted.max_bytes))
        return FetchForm(
            call.replica_id, call.replica_epoch, call.max_wait_ms, call.min_bytes, call.max_bytes,
            bool(call.read_committed), call.session_id, call.session_epoch, asked,
            [name_of(&(<const PartitionName*>call.forgotten.items)[number]) for number in range(call.forgotten.count)])
    finally:
        fetch_release(&call)


def check_produce(
        ServedPartitions served not None, uint8_t[::1] frame not None, int64_t now_ms, bint in_reactor):
    cdef uint8_t* start = &frame[0] if len(frame) else NULL
    cdef const uint8_t* end = start + len(frame)
    cdef const uint8_t* p
    cdef ProduceCall call
    cdef const ProducePart* part
    cdef int64_t number
    cdef Progress progress
    cdef ProduceOutcome outcome
    memset(&call, 0, sizeof(call))
    progress_begin(&progress)
    call.progress = &progress
    try:
        p = read_head(start, end, &call.head)
        if p == NULL or call.head.api_key != PRODUCE_KEY or not PRODUCE_SINCE <= call.head.version <= PRODUCE_UNTIL:
            return None
        outcome = produce_check(&served.table, &call, p, end, now_ms, in_reactor)
        if outcome == PRODUCE_MALFORMED:
            return call.fault.decode()
        if outcome == PRODUCE_BESIDE:
            return None
        parts = []
        for number in range(call.parts.count):
            part = produce_part(&call, number)
            parts.append((
                part.topic, part.index, None if part.size == NO_TEXT else part.records - start, part.size,
                part.stage == CHECKED))
        return ProduceForm(call.acks, call.timeout_ms, parts, produce_answer_bytes(&call))
    finally:
        produce_release(&call)
