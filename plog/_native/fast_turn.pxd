# The requests that a reactor answers itself, and those of them that wait.
from libc.stdint cimport int64_t

from plog._native.reactor_types cimport Connection, Frame, Gathered, Loop, Parked



cdef enum FastOutcome:
    FAST_ANSWERED = 0            # the frame is used up, and its answer queued
    FAST_WAITS = 1               # the frame is used up; the connection's next one waits
    FAST_PASSED = 2              # for Python: the frame is as it was
    FAST_NO_MEMORY = 3
    FAST_GATHERED = 4            # the frame is used up: it is answered after the round's write, by `fast_conclude`
    FAST_BESIDE = 6              # the frame is used up: another thread has it, and the connection may read on
    FAST_AFTER_WRITE = 5         # the frame is as it was: to be tried again once what is gathered has been written

# Try to answer the frame of `size` bytes at the buffer's start. With FAST_PASSED, loop.produce says what has been
# appended of it already.
cdef FastOutcome fast_answer(Loop* loop, Connection* c, int64_t size) noexcept nogil
# The round's write is done. FAST_ANSWERED: the answer is queued; FAST_WAITS: it is not, or there is none; FAST_PASSED: it
# is for Python, and `frame` the caller's.
cdef FastOutcome fast_conclude(Loop* loop, Gathered* gathered, int64_t now_ms, Frame* frame) noexcept nogil
# Look at the request of `c` again, which may be settled, or (`expired`) has waited for too long. True: it is answered,
# and the connection to be served. With `frame` filled, it is for Python, and the frame the caller's.
cdef bint fast_look_again(Loop* loop, Connection* c, bint expired, Frame* frame) noexcept nogil
# Another thread has worked on the request.
cdef void fast_done(Parked* parked) noexcept nogil
# Whose turn it is on its connection, of those that other threads have worked on. NULL: of none that is done, or it is
# Python's before that.
cdef Parked* fast_next_done(const Connection* c) noexcept nogil
# Go on with that one. FAST_ANSWERED: its answer is queued; FAST_WAITS: it waits for its partitions,
# or for those before it, or for another thread once more; FAST_PASSED: it is for Python, and `frame` the caller's;
# FAST_GATHERED: it is to be written; FAST_AFTER_WRITE: nothing is done yet. Its connection may read on.
cdef FastOutcome fast_finish(Loop* loop, Parked* parked, Frame* frame) noexcept nogil
# End the waits that serve only the client: a Fetch that waits for bytes, an appended Produce that waits for safety.
# True: the next request may be read.
cdef bint fast_give_up(Connection* c) noexcept nogil
# Forget the request of a connection that is closing.
cdef void fast_drop(Connection* c) noexcept nogil
# A letter that came too late: the request is over.
cdef void fast_discard(Parked* parked) noexcept nogil
