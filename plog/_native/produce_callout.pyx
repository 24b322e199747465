"""Python is asked about the unusual partitions of a Produce: what it gets, and how it answers.

Owns the question and the answer, from both sides of the interpreter lock. The request stays with its reactor,
which has neither lock nor lent bytes meanwhile; its partitions are Python's until the answer. Decides nothing.
"""

from typing import NamedTuple

cimport cython
from libc.stdint cimport int16_t, int32_t, int64_t, uint8_t
from libc.stdlib cimport free
from libc.string cimport memset

from plog._native.callout_texts cimport Room, nodes_of, nodes_room, put_text, room_of, text_bytes, text_of
from plog._native.error_counts cimport ERROR_CODES, FIRST_ERROR
from plog._native.lanes cimport lane_post
from plog._native.log_append cimport AppendResult, AppendStatus
from plog._native.partition cimport AppendPlace
from plog._native.produce_call cimport ProduceCall, ProducePart, ProduceTopic, RecordError, produce_part, produce_topic
from plog._native.produce_path cimport produce_begin_wait, produce_was_written
from plog._native.request_stages cimport ASKED, WAS_REFUSED, part_advance, parts_in
from plog._native.response_fields cimport NO_EPOCH, NO_NODE, NO_OFFSET, NO_TEXT, Endpoint

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


class LeaderEndpoint(NamedTuple):
    node_id: int
    host: str
    port: int
    rack: str | None


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


cdef ProduceCallout callout_about(object owner, Request* request, object frame):
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


@cython.no_gc_clear  # the answer at its end needs `owner`
cdef class ProduceCallout:
    @property
    def asked(self):
        # Only now: of many partitions that takes much memory.
        if self._asked is None and self.request != NULL:
            self._asked = asked_of(&self.request.produce, self._frame, self.request.bytes)
        return self._asked

    def answer(self, outcomes, endpoints=()):
        cdef Request* request = self.request
        cdef ProduceCall* call
        cdef ProducePart* part
        cdef Room room
        cdef int64_t number
        cdef list decided = [with_bytes(outcome) for outcome in outcomes]
        cdef list nodes = nodes_of(endpoints)
        if request == NULL:
            raise RuntimeError("a callout is answered once")
        if len(decided) != self.count:
            raise ValueError(f"{len(decided)} outcomes of {self.count} partitions")
        call = &request.produce
        free(call.texts)
        call.texts = NULL
        call.texts_bytes = 0
        call.texts = room_of(nodes, errors_in(decided), texts_room(decided), &room)
        call.texts_bytes = nodes_room(nodes) + errors_in(decided) * sizeof(RecordError) + texts_room(decided)
        call.endpoints = <const Endpoint*>call.texts
        call.endpoint_count = <int32_t>len(nodes)
        rest = iter(decided)
        for number in range(call.parts.count):
            part = produce_part(call, number)
            if part.stage == ASKED:
                outcome = next(rest)
                if isinstance(outcome, Written):
                    note_written(request, part, outcome)
                else:
                    refuse(call, part, &room, outcome)
        self.request = NULL
        with nogil:
            produce_begin_wait(call)
            lane_post(request)

    def give_up(self):
        if self.request != NULL:
            refuse_all(self.request)
            self.request = NULL

    def __dealloc__(self):
        if self.request != NULL:
            refuse_all(self.request)


cdef void refuse_all(Request* request) noexcept nogil:
    """Python could not decide."""
    cdef ProducePart* part
    cdef int64_t number
    for number in range(request.produce.parts.count):
        part = produce_part(&request.produce, number)
        if part.stage == ASKED:
            part.error = UNKNOWN_SERVER_ERROR
            part.result.base_offset = part.result.log_start_offset = NO_OFFSET
            part_advance(request.produce.progress, &part.stage, WAS_REFUSED)
    lane_post(request)
