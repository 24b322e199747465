# What reactors have other threads do: writes and cold reads of a slow disk, and what takes the processor for long.
# One queue for each log directory, so that a slow one keeps nobody from another, and one for computing.
from libc.stdint cimport int64_t

from plog._native.letter_queue cimport LetterQueue
from plog._native.mailbox cimport Letter

# First member of what is to be done. `work` does it, and posts the result by the letter.
ctypedef struct Task:
    Letter letter
    int ask                      # for who gets the letter: as a Command's
    void (*work)(Task* task) noexcept nogil

ctypedef struct WorkQueue:
    int64_t references           # atomic
    LetterQueue tasks
    int64_t slow                 # atomic: so many calls must be fast before the disk is called fast again; 0: it is
    int64_t steady_us            # so long after a slow call is it called fast at the soonest; 0: it has no neighbours
    int64_t slow_us              # atomic: the moment of the last slow call

cdef void work_retain(WorkQueue* queue) noexcept nogil
cdef void work_release(WorkQueue* queue) noexcept nogil
# Do `task` soon. False: the queue is stopped.
cdef bint work_ask(WorkQueue* queue, Task* task) noexcept nogil
# How long a call may take until the rest is left to the disk's thread.
cdef int64_t work_patience_us(const WorkQueue* queue) noexcept nogil
# A call on the queue's disk took so long.
cdef void work_note_time(WorkQueue* queue, int64_t took_us) noexcept nogil


cdef class WorkThread:
    cdef WorkQueue* queue        # a pin
