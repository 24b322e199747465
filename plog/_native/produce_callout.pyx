"""Python is asked about the unusual partitions of a Produce: what it gets, and how it answers.

Owns the question and the answer, from both sides of the interpreter lock. The request's reactor has neither lock
nor lent bytes meanwhile. Decides nothing.
"""

from typing import NamedTuple

cimport cython
from libc.stdint cimport int16_t, int32_t, int64_t, uint8_t
from libc.string cimport memset

from plog._native.callout cimport Callout
from plog._native.callout_texts cimport Room, put_nodes, put_text, text_bytes, text_of
from plog._native.error_counts cimport ERROR_CODES, FIRST_ERROR
from plog._native.log_append cimport AppendResult, AppendStatus
from plog._native.partition cimport AppendPlace
from plog._native.produce_call cimport ProduceCall, ProducePart, ProduceTopic, produce_part, produce_topic
from plog._native.produce_path cimport produce_begin_wait, produce_was_written
from plog._native.request_stages cimport ASKED, WAS_REFUSED, part_advance, parts_in
from plog._native.response_fields cimport NO_EPOCH, NO_NODE, NO_OFFSET, NO_TEXT

cdef enum:
    UNKNOWN_SERVER_ERROR = -1


class AskedPartition(NamedTuple):
    topic: str
    partition: int
    records: memoryview | None


class Written(NamedTuple):
    appended: object
    append_time_ms: int

    @property
    def error(self):
        return 0


class Refusal(NamedTuple):
    error: int
    message: str | None = None
    record_errors: tuple = ()
    log_start_offset: int = NO_OFFSET
    leader_id: int = NO_NODE
    leader_epoch: int = NO_EPOCH


# --- the question ---------------------------------------------------------------------------------

cdef list asked_of(const ProduceCall* call, object frame, const uint8_t* base):
    cdef const ProduceTopic* topic
    cdef const ProducePart* part
    cdef int64_t number
    cdef int32_t named = -1
    cdef list asked = []
    name = None
    for number in range(call.parts.count):
        part = produce_part(call, number)
        if part.stage != ASKED:
            continue
        if part.topic != named:
            named = part.topic
            topic = produce_topic(call, named)
            name = text_of(topic.name, topic.name_size)
        records = None if part.size == NO_TEXT else frame[part.records - base:part.records - base + part.size]
        asked.append(AskedPartition(name, part.index, records))
    return asked


cdef ProduceCallout produce_callout_about(object owner, Request* request, object frame):
    cdef ProduceCallout callout = ProduceCallout.__new__(ProduceCallout)
    cdef ProduceCall* call = &request.produce
    callout.owner = owner
    callout.request = request
    callout.correlation_id = call.head.correlation_id
    callout.client_id = text_of(call.client_id, call.client_id_size)
    callout.size = request.size
    callout._frame = frame
    callout.acks = call.acks
    callout.version = call.head.version
    callout.transactional_id = text_of(call.writer.transactional_id, call.writer.transactional_id_size)
    callout.timeout_ms = call.timeout_ms
    callout.count = parts_in(&request.progress, ASKED)
    return callout


# --- the answer -----------------------------------------------------------------------------------

cdef int refuse(ProduceCall* call, ProducePart* part, Room* room, tuple refusal) except -1:
    """Say it of one partition; `refusal` has its texts as bytes."""
    part.error = refusal[0]
    part.message = put_text(room, refusal[1], &part.message_size)
    part.record_errors = room.errors
    part.record_error_count = <int32_t>len(refusal[2])
    for index, message in refusal[2]:
        room.errors.index = index
        room.errors.message = put_text(room, message, &room.errors.message_size)
        room.errors += 1
    part.result.base_offset = NO_OFFSET
    part.result.log_start_offset = refusal[3]
    part.leader_id = refusal[4]
    part.leader_epoch = refusal[5]
    part_advance(call.progress, &part.stage, WAS_REFUSED)
    return 0


cdef int note_written(Request* request, ProducePart* part, object written) except -1:
    cdef AppendResult result
    cdef object appended = written.appended
    memset(&result, 0, sizeof(result))
    result.status = <AppendStatus><int>appended.status
    result.base_offset = appended.base_offset
    result.last_offset = appended.last_offset
    result.timestamp = appended.timestamp
    result.log_start_offset = appended.log_start_offset
    result.place = AppendPlace(appended.log_id, appended.truncations, appended.leader_epoch)
    part.append_time = written.append_time_ms
    produce_was_written(request.loop.shared.served, &request.produce, part, &result)
    return 0


cdef object with_bytes(object outcome):
    """A refusal, its texts as bytes. Raises here for what the response cannot state, before anything is decided."""
    cdef int16_t error
    cdef int64_t log_start_offset
    cdef int32_t leader_id, leader_epoch, index
    if isinstance(outcome, Written):
        return outcome
    error, log_start_offset = outcome.error, outcome.log_start_offset
    leader_id, leader_epoch = outcome.leader_id, outcome.leader_epoch
    if error == 0 or not FIRST_ERROR <= error < FIRST_ERROR + ERROR_CODES:
        raise ValueError(f"error {error} refuses nothing")
    errors = []
    for number, message in outcome.record_errors:
        index = number
        errors.append((index, text_bytes(message)))
    return error, text_bytes(outcome.message), errors, log_start_offset, leader_id, leader_epoch


cdef int64_t texts_room(list outcomes):
    cdef int64_t size = 0
    for outcome in outcomes:
        if isinstance(outcome, Written):
            continue
        size += len(outcome[1] or b"")
        for _, message in outcome[2]:
            size += len(message or b"")
    return size


cdef int64_t errors_in(list outcomes):
    cdef int64_t count = 0
    for outcome in outcomes:
        if not isinstance(outcome, Written):
            count += len(outcome[2])
    return count


@cython.no_gc_clear  # as its base
cdef class ProduceCallout(Callout):
    cdef list asked_parts(self):
        return asked_of(&self.request.produce, self._frame, self.request.bytes)

    cdef list checked(self, list outcomes):
        return [with_bytes(outcome) for outcome in outcomes]

    cdef int put(self, list checked, list nodes) except -1:
        cdef ProduceCall* call = &self.request.produce
        cdef ProducePart* part
        cdef Room room
        cdef int64_t number
        put_nodes(&call.texts, nodes, errors_in(checked), texts_room(checked), &room)
        rest = iter(checked)
        for number in range(call.parts.count):
            part = produce_part(call, number)
            if part.stage == ASKED:
                outcome = next(rest)
                if isinstance(outcome, Written):
                    note_written(self.request, part, outcome)
                else:
                    refuse(call, part, &room, outcome)
        return 0

    cdef void refuse_rest(self, Request* request) noexcept nogil:
        cdef ProducePart* part
        cdef int64_t number
        for number in range(request.produce.parts.count):
            part = produce_part(&request.produce, number)
            if part.stage == ASKED:
                part.error = UNKNOWN_SERVER_ERROR
                part.result.base_offset = part.result.log_start_offset = NO_OFFSET
                part_advance(request.produce.progress, &part.stage, WAS_REFUSED)

    cdef void conclude(self, Request* request) noexcept nogil:
        produce_begin_wait(&request.produce)
