"""What a reactor tells Python of: connections, requests that are Python's, changes.

Owns a note's memory and the round's list of them. Python frees what it has taken.
"""

from libc.stdint cimport int64_t
from libc.stdlib cimport free, malloc
from libc.string cimport memset

from plog._native.mailbox cimport mailbox_put
from plog._native.partition cimport partition_release
from plog._native.reactor_types cimport Connection, Loop, Note


cdef Note* note_new(int kind, Connection* c, int64_t text_bytes) noexcept nogil:
    cdef Note* note = <Note*>malloc(sizeof(Note) + text_bytes + 1)
    if note == NULL:
        return NULL
    memset(note, 0, sizeof(Note))
    note.kind = kind
    if c != NULL:
        note.connection_id = c.id
        note.listener_id = c.listener_id
    note_text(note)[0] = 0
    return note


cdef void note_free(Note* note) noexcept nogil:
    partition_release(note.partition)
    free(note.base)
    free(note)


cdef void add_note(Loop* loop, Note* note) noexcept nogil:
    note.letter.next = NULL
    if loop.notes_first == NULL:
        loop.notes_first = &note.letter
    else:
        loop.notes_last.next = &note.letter
    loop.notes_last = &note.letter
    loop.notes_count += 1


cdef void post_notes(Loop* loop) noexcept nogil:
    if loop.notes_first != NULL:
        mailbox_put(&loop.shared.events, loop.notes_first, loop.notes_last, loop.notes_count)
        loop.notes_first = NULL
        loop.notes_last = NULL
        loop.notes_count = 0
