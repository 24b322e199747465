# A mutex-protected list that one side fills and another empties, with an eventfd that is readable while
# something lies in it. The reactors' inboxes and the events for Python are mailboxes.
from libc.stdint cimport int64_t

from plog._native.locks cimport pthread_mutex_t

# First member of whatever is put in a mailbox.
ctypedef struct Letter:
    Letter* next

ctypedef struct Mailbox:
    pthread_mutex_t mutex
    Letter* first
    Letter* last
    int64_t count
    int wake_fd
    bint closed

# 0, or -errno.
cdef int mailbox_open(Mailbox* box) noexcept nogil
# The letters still inside must have been taken before.
cdef void mailbox_release(Mailbox* box) noexcept nogil
# Put a chain of `count` letters in. False when the mailbox is closed: the chain stays the caller's.
cdef bint mailbox_put(Mailbox* box, Letter* first, Letter* last, int64_t count) noexcept nogil
# Take up to `limit` letters, oldest first, as a chain (NULL: none).
cdef Letter* mailbox_take(Mailbox* box, int64_t limit) noexcept nogil
# How many letters lie in it.
cdef int64_t mailbox_count(Mailbox* box) noexcept nogil
# Refuse letters from now on.
cdef void mailbox_close(Mailbox* box) noexcept nogil
# Make the eventfd readable without a letter.
cdef void mailbox_knock(Mailbox* box) noexcept nogil
