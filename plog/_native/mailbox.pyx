"""The lists through which threads hand each other work: a mutex, a chain and an eventfd.

Owns neither the letters nor their meaning. Never takes the interpreter lock,
never allocates.
"""

from libc.errno cimport errno
from libc.stdint cimport int64_t, uint64_t
from posix.unistd cimport close, read, write

from plog._native.locks cimport (
    pthread_mutex_destroy, pthread_mutex_init, pthread_mutex_lock, pthread_mutex_unlock,
)

cdef extern from "<sys/eventfd.h>" nogil:
    int eventfd(unsigned int initial, int flags)
    enum:
        EFD_CLOEXEC
        EFD_NONBLOCK


cdef int mailbox_open(Mailbox* box) noexcept nogil:
    box.first = NULL
    box.last = NULL
    box.count = 0
    box.closed = False
    box.wake_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)
    if box.wake_fd < 0:
        return -errno
    pthread_mutex_init(&box.mutex, NULL)
    return 0


cdef void mailbox_release(Mailbox* box) noexcept nogil:
    if box.wake_fd >= 0:
        close(box.wake_fd)
        pthread_mutex_destroy(&box.mutex)
        box.wake_fd = -1


cdef bint mailbox_put(Mailbox* box, Letter* first, Letter* last, int64_t count) noexcept nogil:
    cdef bint was_empty
    last.next = NULL
    pthread_mutex_lock(&box.mutex)
    if box.closed:
        pthread_mutex_unlock(&box.mutex)
        return False
    was_empty = box.first == NULL
    if was_empty:
        box.first = first
    else:
        box.last.next = first
    box.last = last
    box.count += count
    pthread_mutex_unlock(&box.mutex)
    # Outside the lock: whoever empties the mailbox in between leaves one wake-up too many, never one too few.
    if was_empty:
        mailbox_knock(box)
    return True


cdef Letter* mailbox_take(Mailbox* box, int64_t limit) noexcept nogil:
    cdef Letter* first
    cdef Letter* last
    cdef int64_t taken = 1
    cdef uint64_t wakes
    pthread_mutex_lock(&box.mutex)
    first = box.first
    if first != NULL:
        if limit >= box.count:
            last = box.last
            taken = box.count
        else:
            last = first
            while taken < limit:
                last = last.next
                taken += 1
        box.first = last.next
        last.next = NULL
        box.count -= taken
    if box.first == NULL:
        # Under the lock, so that a letter put in after it finds the mailbox empty and knocks again.
        box.last = NULL
        read(box.wake_fd, &wakes, sizeof(wakes))
    pthread_mutex_unlock(&box.mutex)
    return first


cdef int64_t mailbox_count(Mailbox* box) noexcept nogil:
    cdef int64_t count
    pthread_mutex_lock(&box.mutex)
    count = box.count
    pthread_mutex_unlock(&box.mutex)
    return count


cdef void mailbox_close(Mailbox* box) noexcept nogil:
    pthread_mutex_lock(&box.mutex)
    box.closed = True
    pthread_mutex_unlock(&box.mutex)


cdef void mailbox_knock(Mailbox* box) noexcept nogil:
    cdef uint64_t one = 1
    # Fails only when the counter is full, and then the eventfd is readable as it is.
    write(box.wake_fd, &one, sizeof(one))
