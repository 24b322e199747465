# The stages of a request and of its partitions, and the one table by which they go on.
from libc.stdint cimport int32_t, uint8_t

# In the order that matters to a request: its stage is the first in which one of its partitions is. First come the
# stages in which a thread works on it, then those in which it goes on at its turn, waits, or is ready.
cpdef enum Stage:
    CAME = 1          # nothing has been done
    CHECKING = 2      # a compute thread checks it
    GATHERED = 3      # in the write of this round
    ON_DISK = 4       # a disk thread writes or reads it
    CHECKED = 5       # may be appended
    UNUSUAL = 6       # Python is to be asked
    ASKED = 7         # Python has it
    APPENDED = 8      # in the log, and not safe yet
    SHORT = 9         # read, and the response has too few bytes yet
    REFUSED = 10      # the response has its error,
    SAFE = 11         # its offset,
    READ = 12         # or its records
    OVER = 13         # answered or dropped

cpdef enum Event:
    FOUND_GOOD = 0        # its batch may be appended
    FOUND_LONG = 1        # to check it takes long
    FOUND_COLD = 2        # its disk is slow, or must be asked
    FOUND_UNUSUAL = 3     # Python decides about it
    TAKEN_IN = 4          # into the write of this round
    WROTE = 5
    NOT_WRITTEN = 6       # the write failed, or was given up
    WAS_READ = 7
    TOO_LITTLE = 8        # all that was read is less than the request wants
    CHANGED = 9           # a partition has changed
    IS_SAFE = 10          # on all replicas that the request asks for
    IS_LOST = 11          # nothing makes it safe any more
    EXPIRED = 12          # its time is over
    TURN_CAME = 13        # those before it are answered
    ANSWERED = 14         # its response is queued
    CLIENT_LEFT = 15      # its response reaches no client
    CLOSED = 16           # its connection

cdef enum:
    STAGES = 14
    EVENTS = 17

# How many partitions of a request are in each stage. While they are not known, the request counts as one.
ctypedef struct Progress:
    int32_t parts[STAGES]
    uint8_t whole         # the stage of a request whose partitions are not known
    bint broken           # something happened that the table does not have:
    uint8_t broken_stage  # in this stage,
    uint8_t broken_event  # and this event

# Filled from TRANSITIONS. 0: there is no such transition.
cdef uint8_t table[STAGES][EVENTS]
# The stage after `event`, or 0.
cdef Stage stage_after(Stage stage, Event event) noexcept nogil
# A request has come; its partitions are not known.
cdef void progress_begin(Progress* progress) noexcept nogil
# One of its partitions becomes known, in the stage of the whole.
cdef void progress_add(Progress* progress, uint8_t* stage, bint is_first) noexcept nogil
# Something happens to a partition. Only this function assigns a stage. False: the table does not have it; `progress`
# notes that, and the stage stays.
cdef bint part_advance(Progress* progress, uint8_t* stage, Event event) noexcept nogil
# The request's stage: the first that one of its partitions is in.
cdef Stage stage_of(const Progress* progress) noexcept nogil
