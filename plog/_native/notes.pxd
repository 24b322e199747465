# What a reactor tells Python of: notes, which lie in the mailbox of events after each round.
from libc.stdint cimport int64_t

from plog._native.reactor_types cimport Connection, Loop, Note



cdef inline char* note_text(Note* note) noexcept nogil:
    return <char*>(note + 1)

# NULL: no memory. `text_bytes` may follow it; `connection` NULL: about none.
cdef Note* note_new(int kind, Connection* c, int64_t text_bytes) noexcept nogil
cdef void note_free(Note* note) noexcept nogil
# Python gets it at the end of the round.
cdef void add_note(Loop* loop, Note* note) noexcept nogil
# The end of the round.
cdef void post_notes(Loop* loop) noexcept nogil
