# A queue of letters for threads that have nothing else to wait for: a mailbox with a condition in an eventfd's place.
from plog._native.locks cimport pthread_mutex_t
from plog._native.mailbox cimport Letter

cdef extern from "<pthread.h>" nogil:
    ctypedef struct pthread_cond_t:
        pass

ctypedef struct LetterQueue:
    pthread_mutex_t lock
    pthread_cond_t filled
    Letter* first
    Letter* last
    bint stopped

cdef void queue_init(LetterQueue* queue) noexcept nogil
# The letters still inside must have been taken before.
cdef void queue_destroy(LetterQueue* queue) noexcept nogil
# False: the queue is stopped, and the letter stays the caller's.
cdef bint queue_put(LetterQueue* queue, Letter* letter) noexcept nogil
# Wait for the oldest letter; NULL: the queue is stopped, and empty.
cdef Letter* queue_take(LetterQueue* queue) noexcept nogil
# The same, of all that are there, chained from the oldest on.
cdef Letter* queue_take_all(LetterQueue* queue) noexcept nogil
# Refuse letters from now on, and have nobody wait.
cdef void queue_stop(LetterQueue* queue) noexcept nogil
