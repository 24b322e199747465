# The stages of a request and of its partitions, and the one table by which they go on.
from libc.stdint cimport int32_t, uint8_t

# In the order that matters to a request: its stage is the first in which one of its partitions is. First come the
# stages in which a thread works on it, then those in which it goes on at its turn, waits, or is ready.
cpdef enum Stage:
    CAME = 1          # nothing has been done
    MALFORMED = 2     # its bytes are no request
    CHECKING = 3      # a compute thread checks it
    ON_DISK = 4       # a disk thread writes or reads it
    CHECKED = 5       # may be appended
    UNUSUAL = 6       # Python is to be asked
    GATHERED = 7      # in the write of this round
    ASKED = 8         # Python has it
    APPENDED = 9      # in the log, and not safe yet
    SHORT = 10        # read, and the response has too few bytes yet
    REFUSED = 11      # the response has its error,
    SAFE = 12         # its offset,
    READ = 13         # or its records
    OVER = 14         # answered or dropped

cpdef enum Event:
    FOUND_GOOD = 0        # its batch may be appended
    FOUND_LONG = 1        # to check it takes long
    FOUND_COLD = 2        # its disk is slow, or must be asked
    FOUND_UNUSUAL = 3     # Python decides about it
    FOUND_MALFORMED = 4
    TAKEN_IN = 5          # into the write of this round
    WROTE = 6
    NOT_WRITTEN = 7       # the write failed, or was given up
    WAS_REFUSED = 8       # by Python
    WAS_READ = 9
    TOO_LITTLE = 10       # all that was read is less than the request wants
    CHANGED = 11          # a partition has changed
    IS_SAFE = 12          # on all replicas that the request asks for
    IS_LOST = 13          # nothing makes it safe any more
    EXPIRED = 14          # its time is over
    TURN_CAME = 15        # those before it are answered
    ANSWERED = 16         # its response is queued
    CLIENT_LEFT = 17      # its response reaches no client
    CLOSED = 18           # its connection

cdef enum:
    STAGES = 15
    EVENTS = 19

# How many partitions of a request are in each stage. While they are not known, the request counts as one.
ctypedef struct Progress:
    int32_t parts[STAGES]
    uint8_t whole         # the stage of a request whose partitions are not known
    bint broken           # something happened that the table does not have:
    uint8_t broken_stage  # in this stage,
    uint8_t broken_event  # and this event

cdef inline int32_t parts_in(const Progress* progress, int stage) noexcept nogil:
    return progress.parts[stage]

# Filled from TRANSITIONS. 0: there is no such transition.
cdef uint8_t table[STAGES][EVENTS]
# A request has come; its partitions are not known.
cdef void progress_begin(Progress* progress) noexcept nogil
# One of its partitions becomes known, in the stage of the whole.
cdef void progress_add(Progress* progress, uint8_t* stage, bint is_first) noexcept nogil
# Something happens to a partition. Only this function assigns a stage. False: the table does not have it; `progress`
# notes that, and the stage stays.
cdef bint part_advance(Progress* progress, uint8_t* stage, Event event) noexcept nogil
# The request's stage: the first that one of its partitions is in.
cdef Stage stage_of(const Progress* progress) noexcept nogil
