"""Python is asked about the unusual partitions of a Fetch: what it gets, and how it answers.

Owns the question and the answer, from both sides of the interpreter lock. Decides nothing.
"""

from typing import NamedTuple

cimport cython
from libc.stdint cimport int16_t, int32_t, int64_t
from libc.stdlib cimport malloc

from plog._native.callout cimport Callout
from plog._native.callout_texts cimport Room, put_nodes, text_of
from plog._native.error_counts cimport ERROR_CODES, FIRST_ERROR
from plog._native.fetch_call cimport AbortedFound, FetchCall, FetchPart, fetch_bytes, fetch_is_followers, fetch_part
from plog._native.fetch_parts cimport fetch_find_again
from plog._native.fetch_path cimport fetch_budget, fetch_fit, fetch_forget_outcome
from plog._native.fetch_turn cimport fetch_conclude
from plog._native.log_read cimport READ_FOUND
from plog._native.partition_names cimport is_same_topic
from plog._native.request_stages cimport ASKED, WAS_READ, WAS_REFUSED, part_advance, parts_in
from plog._native.response_fields cimport NO_EPOCH, NO_OFFSET
from plog._native.segment cimport FileRange
from plog._native.segment_files cimport segment_retain
from plog._native.served cimport TOPIC_ID_BYTES

cdef enum:
    UNKNOWN_SERVER_ERROR = -1

class AskedRange(NamedTuple):
    topic: str
    topic_id: bytes
    partition: int
    offset: int
    max_bytes: int
    leader_epoch: int
    last_epoch: int
    log_start_offset: int
    bytes_before: int
    is_noted: bool


class Found(NamedTuple):
    error: int
    records: object
    high_watermark: int
    last_stable_offset: int
    log_start_offset: int
    aborted: object
    diverging_epoch: int = -1
    diverging_end: int = -1
    leader_id: int = -1
    leader_epoch: int = -1


# --- the question ---------------------------------------------------------------------------------

cdef list asked_of(const FetchCall* call):
    cdef const FetchPart* before = NULL
    cdef const FetchPart* part
    cdef int64_t bytes_before = 0
    cdef int64_t number
    cdef list asked = []
    topic = topic_id = None
    for number in range(call.parts.count):
        part = fetch_part(call, number)
        if part.stage != ASKED:
            bytes_before += part.read.size if before != NULL else 0
            continue
        if before == NULL or not is_same_topic(&part.name, &before.name):  # one object for all of a topic
            topic = text_of(part.name.topic, part.name.topic_size)
            topic_id = <bytes>part.name.topic_id[:TOPIC_ID_BYTES]
        before = part
        asked.append(AskedRange(
            topic, topic_id, part.name.index, part.offset, part.max_bytes, part.leader_epoch, part.last_epoch,
            part.log_start_offset, bytes_before, part.is_noted != 0))
        bytes_before = 0
    return asked


cdef FetchCallout fetch_callout_about(object owner, Request* request):
    cdef FetchCallout callout = FetchCallout.__new__(FetchCallout)
    cdef FetchCall* call = &request.fetch
    callout.owner = owner
    callout.request = request
    callout.version = call.head.version
    callout.correlation_id = call.head.correlation_id
    callout.client_id = text_of(call.client_id, call.client_id_size)
    callout.size = request.size + fetch_bytes(call)
    callout.replica_id = call.replica_id
    callout.replica_epoch = call.replica_epoch
    callout.is_followers = fetch_is_followers(call)
    callout.came_ms = call.came_ms
    callout.read_committed = call.read_committed
    callout.max_bytes = fetch_budget(call, &callout.is_first)
    callout.count = parts_in(&request.progress, ASKED)
    return callout


# --- the answer -----------------------------------------------------------------------------------

cdef int check(object found) except -1:
    """Raise for what the response cannot state, before anything is decided."""
    cdef int16_t error = found.error
    cdef int64_t number
    cdef int32_t small
    if not FIRST_ERROR <= error < FIRST_ERROR + ERROR_CODES:
        raise ValueError(f"error {error}")
    records = found.records
    if not (records is None or isinstance(records, FileRange) and (<FileRange>records).segment != NULL or records == b""):
        raise TypeError("records lie in a file")
    for value in (found.high_watermark, found.last_stable_offset, found.log_start_offset, found.diverging_end):
        number = value
    for value in (found.diverging_epoch, found.leader_id, found.leader_epoch):
        small = value
    for producer_id, first_offset in found.aborted or ():
        number = producer_id
        number = first_offset
    return 0


cdef int put_aborted(FetchCall* call, FetchPart* part, object aborted) except -1:
    cdef int64_t number = 0
    part.lists_aborted = aborted is not None
    if not aborted:
        return 0
    part.aborted_found = <AbortedFound*>malloc(len(aborted) * sizeof(AbortedFound))
    if part.aborted_found == NULL:
        raise MemoryError
    for producer_id, first_offset in aborted:
        part.aborted_found[number].producer_id = producer_id
        part.aborted_found[number].first_offset = first_offset
        number += 1
    part.aborted_count = number
    call.aborted_bytes += number * sizeof(AbortedFound)
    return 0


cdef int put_range(FetchPart* part, FileRange found) except -1:
    segment_retain(found.segment)
    part.read.status = READ_FOUND
    part.read.segment = found.segment
    part.read.base_offset = found.segment.base_offset
    part.read.position = found.position
    part.read.size = found.size
    part.read.next_offset_hint = found.next_offset_hint
    return 0


cdef int put_found(Request* request, FetchPart* part, object found) except -1:
    part.error = found.error
    part.read.high_watermark = found.high_watermark
    part.read.last_stable_offset = found.last_stable_offset
    part.read.log_start_offset = found.log_start_offset
    part.diverging_epoch = found.diverging_epoch
    part.diverging_end = found.diverging_end
    part.leader_id = found.leader_id
    part.hint_epoch = found.leader_epoch
    part.records_are_null = found.records is None
    if (fetch_is_followers(&request.fetch) and not part.is_noted and part.error == 0
            and part.diverging_epoch == NO_EPOCH):
        part.is_noted = True
        if part.remembered == NULL:
            part.known_high_watermark = part.read.high_watermark
    put_aborted(&request.fetch, part, found.aborted)
    if isinstance(found.records, FileRange):
        put_range(part, <FileRange>found.records)
    fetch_find_again(request.loop.shared.served, &request.fetch, part)
    part_advance(request.fetch.progress, &part.stage, WAS_READ if part.error == 0 else WAS_REFUSED)
    return 0


@cython.no_gc_clear  # as its base
cdef class FetchCallout(Callout):
    cdef list asked_parts(self):
        return asked_of(&self.request.fetch)

    cdef list checked(self, list outcomes):
        for outcome in outcomes:
            check(outcome)
        return outcomes

    cdef int put(self, list checked, list nodes) except -1:
        cdef FetchCall* call = &self.request.fetch
        cdef FetchPart* part
        cdef Room room
        cdef int64_t number
        put_nodes(&call.texts, nodes, 0, 0, &room)
        rest = iter(checked)
        for number in range(call.parts.count):
            part = fetch_part(call, number)
            if part.stage == ASKED:
                put_found(self.request, part, next(rest))
        return 0

    cdef void refuse_rest(self, Request* request) noexcept nogil:
        cdef FetchPart* part
        cdef int64_t number
        for number in range(request.fetch.parts.count):
            part = fetch_part(&request.fetch, number)
            if part.stage == ASKED:
                fetch_forget_outcome(part)
                part.error = UNKNOWN_SERVER_ERROR
                part.read.high_watermark = part.read.last_stable_offset = part.read.log_start_offset = NO_OFFSET
                part_advance(request.fetch.progress, &part.stage, WAS_REFUSED)

    cdef void conclude(self, Request* request) noexcept nogil:
        fetch_fit(&request.fetch)
        fetch_conclude(request)
