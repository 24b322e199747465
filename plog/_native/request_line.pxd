# The requests of one connection in the order in which they came, and what comes next. Pure: it touches neither
# sockets, logs nor memory.
from libc.stdint cimport int64_t

from plog._native.reactor_types cimport Connection, Line, Request
from plog._native.request_stages cimport Event, Stage

cdef enum:
    # A connection reads no request while its client has left more of its responses unread.
    MAX_UNSENT_BYTES = 256 * 1024

# The next thing to do for a connection.
cpdef enum Step:
    REST = 0          # nothing, until something happens
    READ_ON = 1       # read the next request
    CHECK = 2         # look at the last one, which has come
    CHECK_ASIDE = 3   # have a compute thread look at it: those before it are with such threads
    WRITE = 4         # write what the round has gathered, then ask again
    APPEND = 5        # take its batches into the write of the round
    ASK = 6           # ask Python about it, or hand it over
    WAIT = 7          # let it wait for its partitions
    ANSWER = 8        # queue its response
    DROP = 9          # forget it: only its client waits for it
    READ_LATER = 10   # read the next request once the connection is not muted any more
    CLOSE = 11        # close the connection: the first one is malformed

# How many of its requests are in a stage.
cdef inline int64_t line_count(const Line* line, int stage) noexcept nogil:
    return line.stages[stage]

# The last one. It has come, and nothing has been done.
cdef void line_put(Line* line, Request* request) noexcept nogil
# A request leaves the line.
cdef void line_remove(Line* line, Request* request) noexcept nogil
# The partitions of a request have gone on: count it in the stage of the first of them.
cdef void line_follow(Line* line, Request* request) noexcept nogil
# Something happens to each partition of a request, or to the whole while they are not known. Its connection still
# counts it in the stage that it had: another thread may call this for a request that it has.
cdef void parts_advance(Request* request, Event event) noexcept nogil
# The same, to those of one stage only.
cdef void parts_advance_from(Request* request, Stage stage, Event event) noexcept nogil
# To each partition, and its connection counts it in its new stage.
cdef void request_advance(Line* line, Request* request, Event event) noexcept nogil
# The next step, and the request that it is about (a step that is about none leaves any there). It depends on the stages of the connection's requests,
# and on the client: whether it has gone, sends more, takes its responses, is muted. `draining`: the broker stops.
cdef Step line_step(const Connection* c, int64_t now_us, bint draining, Request** request) noexcept nogil
# Whether the batches of all requests before `until` are appended, or will be before any that is tried now.
cdef bint line_is_passed(const Line* line, const Request* until) noexcept nogil
# Whether the write of the round has a batch of one of its requests.
cdef bint line_has_gathered(const Line* line) noexcept nogil
# Whether another thread has it, and with it the stages of its partitions.
cdef bint request_is_aside(const Request* request) noexcept nogil
# Whether a request that was read whole is still to be appended, by whichever thread or by Python at its turn.
cdef bint line_owes_appends(const Line* line) noexcept nogil
# Whether the first of its Produces is appended, or on the way, so that its client should hear of it.
cdef bint line_has_appended(const Line* line) noexcept nogil
