"""The requests of one connection in the order in which they came, and what may happen to them next.

Owns the order: responses keep that of their requests, and so do the appended batches. A Produce that no
response follows (acks=0) is over when it is done, whatever its place. Every answer here
follows from the stages of the requests (`request_stages`); there is nothing else to remember. Knows neither
sockets, logs nor threads.
"""

from libc.stdint cimport int64_t, uint8_t
from libc.stdlib cimport calloc, free

from plog._native.part_list cimport part_add, parts_release
from plog._native.produce_call cimport ACKS_NONE, ProducePart
from plog._native.reactor_types cimport KIND_OTHER, KIND_PRODUCE, RequestKind
from plog._native.request_stages cimport (
    APPENDED, ASKED, CAME, CHECKED, CHECKING, GATHERED, MALFORMED, ON_DISK, REFUSED, SAFE, SHORT, UNUSUAL, Event,
    Stage, part_advance, parts_in, progress_add, progress_begin, stage_of)

cdef enum:
    MAX_REQUESTS = 64
    # With other threads at once: what Java sends in flight, less the one that is on its way.
    MAX_ASIDE = 4


cdef void line_put(Line* line, Request* request) noexcept nogil:
    progress_begin(&request.progress)
    request.stage = CAME
    request.next = NULL
    if line.first == NULL:
        line.first = request
    else:
        line.last.next = request
    line.last = request
    line.count += 1
    line.stages[request.stage] += 1


cdef void line_remove(Line* line, Request* request) noexcept nogil:
    cdef Request* before = NULL
    cdef Request* at = line.first
    while at != request:
        before = at
        at = at.next
    if before == NULL:
        line.first = request.next
    else:
        before.next = request.next
    if line.last == request:
        line.last = before
    request.next = NULL
    line.stages[request.stage] -= 1
    line.count -= 1


cdef void line_follow(Line* line, Request* request) noexcept nogil:
    if request.progress.broken:
        line.is_broken = True
        line.broken_stage = request.progress.broken_stage
        line.broken_event = request.progress.broken_event
    line.stages[request.stage] -= 1
    request.stage = stage_of(&request.progress)
    line.stages[request.stage] += 1


cdef void parts_advance(Request* request, Event event) noexcept nogil:
    cdef uint8_t* at = <uint8_t*>request.parts.items
    cdef int64_t number
    if request.parts.count == 0:
        part_advance(&request.progress, &request.progress.whole, event)
    for number in range(request.parts.count):
        part_advance(&request.progress, at + number * request.part_bytes, event)


cdef void parts_advance_from(Request* request, Stage stage, Event event) noexcept nogil:
    cdef uint8_t* at = <uint8_t*>request.parts.items
    cdef int64_t number
    for number in range(request.parts.count):
        if at[number * request.part_bytes] == stage:
            part_advance(&request.progress, at + number * request.part_bytes, event)


cdef void request_advance(Line* line, Request* request, Event event) noexcept nogil:
    parts_advance(request, event)
    line_follow(line, request)


cdef bint request_is_aside(const Request* request) noexcept nogil:
    # Python is asked about a Produce or a Fetch, and given any other request whole.
    return (request.stage == CHECKING or request.stage == ON_DISK
            or request.stage == ASKED and request.kind != KIND_OTHER)


cdef inline bint is_passed(const Request* request) noexcept nogil:
    """Later batches of the connection may be appended: those of this request are, or will be first."""
    return request.stage == GATHERED or request.stage >= APPENDED


cdef bint line_is_passed(const Line* line, const Request* until) noexcept nogil:
    cdef const Request* at = line.first
    while at != until and is_passed(at):
        at = at.next
    return at == until


cdef bint line_has_gathered(const Line* line) noexcept nogil:
    cdef const Request* at = line.first
    if line_count(line, GATHERED) > 0:
        return True
    if line_count(line, UNUSUAL) == 0:
        return False
    while at != NULL and parts_in(&at.progress, GATHERED) == 0:
        at = at.next
    return at != NULL


cdef Request* done_in_silence(const Line* line) noexcept nogil:
    """The first request that is done and that no response follows. NULL: there is none."""
    cdef Request* at = NULL
    if line_count(line, SAFE) + line_count(line, REFUSED) > 0:
        at = line.first
        # Its stage first: in an earlier one another thread may have it, and write to `produce`.
        while at != NULL and (at.stage < REFUSED or at.kind != KIND_PRODUCE or at.produce.acks != ACKS_NONE):
            at = at.next
    return at


cdef Step check_last(const Line* line) noexcept nogil:
    """The last request has come: whether it may be looked at."""
    cdef int64_t aside = line_count(line, CHECKING) + line_count(line, CHECKED)
    if line.last.kind != KIND_PRODUCE:
        if line.first == line.last:
            return CHECK
        return WRITE if line_count(line, GATHERED) == line.count - 1 else REST
    # It must not be appended before a request that Python or a disk thread appends.
    if line_count(line, UNUSUAL) + line_count(line, ASKED) + line_count(line, ON_DISK) > 0 or aside >= MAX_ASIDE:
        return REST
    return CHECK_ASIDE if aside > 0 else CHECK


cdef bint line_may_read_on(const Line* line) noexcept nogil:
    if line_count(line, CAME) + line_count(line, MALFORMED) + line_count(line, ASKED) > 0:
        return False
    if line_count(line, ON_DISK) + line_count(line, SHORT) > 0:
        return False
    return line.count < MAX_REQUESTS and line_count(line, CHECKING) + line_count(line, CHECKED) < MAX_ASIDE


cdef Step read_on(const Connection* c, int64_t now_us, bint draining) noexcept nogil:
    if not line_may_read_on(&c.line) or c.closing or draining or c.unsent_bytes > MAX_UNSENT_BYTES:
        return REST
    # While requests wait, further ones are read; the end of the stream is found once they are answered.
    if c.peer_closed and c.line.first != NULL:
        return REST
    return READ_LATER if c.muted_until_us > now_us else READ_ON


cdef Step line_step(const Connection* c, int64_t now_us, bint draining, Request** request) noexcept nogil:
    cdef const Line* line = &c.line
    cdef Request* first = line.first
    request[0] = first
    if first == NULL:
        return read_on(c, now_us, draining)
    if c.gone and first.stage >= APPENDED:
        return DROP
    if first.stage >= REFUSED:
        return ANSWER
    request[0] = done_in_silence(line)
    if request[0] != NULL:
        return ANSWER
    request[0] = first
    if first.stage == MALFORMED:
        return CLOSE
    if first.stage == UNUSUAL:
        # Python is not asked while the reactor holds partitions.
        return WRITE if parts_in(&first.progress, GATHERED) > 0 else ASK
    if (first.stage == APPENDED or first.stage == SHORT) and not first.listens:
        return WAIT
    while request[0] != NULL and is_passed(request[0]):
        request[0] = request[0].next
    if request[0] != NULL and request[0].stage == CHECKED:
        return APPEND
    request[0] = line.last
    if line.last.stage == CAME:
        return check_last(line)
    return read_on(c, now_us, draining)


cdef bint line_owes_appends(const Line* line) noexcept nogil:
    return line_count(line, CHECKING) + line_count(line, GATHERED) + line_count(line, ON_DISK) + line_count(line, CHECKED) + line_count(line, UNUSUAL) > 0


cdef bint line_has_appended(const Line* line) noexcept nogil:
    if line.first == NULL or line_count(line, UNUSUAL) > 0 or line.first.kind != KIND_PRODUCE:
        return False
    return line.first.stage != ASKED or line.count > 1


# --- for scripts ----------------------------------------------------------------------------------

cdef class RequestLine:
    """The line of a connection without a socket: each thing that happens is a call."""

    cdef Connection c
    cdef list _numbers
    cdef int64_t _came

    def __cinit__(self):
        self._numbers = []

    def __dealloc__(self):
        while self.c.line.first != NULL:
            self._free(self.c.line.first)

    cdef void _free(self, Request* request):
        line_remove(&self.c.line, request)
        parts_release(&request.produce.parts)
        free(request)

    cdef Request* _request(self, int64_t number) except NULL:
        cdef Request* request = self.c.line.first
        for known in self._numbers:
            if known == number:
                return request
            request = request.next
        raise KeyError(number)

    def come(self, int kind, int acks=1):
        """A request has come; its partitions are not known. Returns its number, from 1."""
        cdef Request* request = <Request*>calloc(1, sizeof(Request))
        if request == NULL:
            raise MemoryError
        request.kind = <RequestKind>kind
        request.produce.acks = acks
        request.parts = &request.produce.parts
        request.part_bytes = sizeof(ProducePart)
        line_put(&self.c.line, request)
        self._came += 1
        self._numbers.append(self._came)
        return self._came

    def know(self, int64_t number, int64_t partitions):
        """Its partitions become known, in the stage of the whole."""
        cdef Request* request = self._request(number)
        cdef ProducePart* part
        cdef int64_t at
        for at in range(partitions):
            part = <ProducePart*>part_add(request.parts, request.part_bytes)
            if part == NULL:
                raise MemoryError
            progress_add(&request.progress, &part.stage, at == 0)

    def happen(self, int64_t number, int event, partition=None):
        """Something happens to each partition, or to one. Returns whether the table has it."""
        cdef Request* request = self._request(number)
        if partition is None:
            request_advance(&self.c.line, request, <Event>event)
        else:
            part_advance(
                &request.progress, &(<ProducePart*>request.parts.items)[<int64_t>partition].stage, <Event>event)
            line_follow(&self.c.line, request)
        return not request.progress.broken

    def wait(self, int64_t number):
        """It stands in the lists of its partitions."""
        self._request(number).listens = True

    def leave(self, int64_t number):
        """It leaves the line."""
        self._free(self._request(number))
        self._numbers.remove(number)

    def step(
            self, *, bint client_left=False, bint client_sends_no_more=False, int64_t unsent_bytes=0,
            bint muted=False, bint closing=False, bint draining=False):
        """The next step, and the number of the request that it is about (None: of none)."""
        cdef Request* request = NULL
        cdef Request* at = self.c.line.first
        cdef int step
        self.c.gone, self.c.peer_closed, self.c.closing = client_left, client_sends_no_more, closing
        self.c.unsent_bytes, self.c.muted_until_us = unsent_bytes, muted
        step = line_step(&self.c, 0, draining, &request)
        if request == NULL:
            return step, None
        for number in self._numbers:
            if at == request:
                return step, number
            at = at.next

    def stage(self, int64_t number):
        return self._request(number).stage

    def parts(self, int64_t number):
        cdef Request* request = self._request(number)
        cdef int64_t at
        return [(<ProducePart*>request.parts.items)[at].stage for at in range(request.parts.count)]

    @property
    def numbers(self):
        return list(self._numbers)

    @property
    def may_read_on(self):
        return line_may_read_on(&self.c.line) != 0

    @property
    def owes_appends(self):
        return line_owes_appends(&self.c.line) != 0
