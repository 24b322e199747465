# The texts of an answer to a callout, in one block of memory with what points to them.
from libc.stdint cimport int32_t, int64_t, uint8_t

from plog._native.produce_call cimport RecordError
from plog._native.response_fields cimport Texts

# The free rest of the block.
ctypedef struct Room:
    RecordError* errors
    uint8_t* texts

# Of a text for the response; a very long one is cut.
cdef bytes text_bytes(object text)
# None: null.
cdef object text_of(const uint8_t* text, int32_t size)
# (node id, host, port, rack), the texts as bytes.
cdef list nodes_of(endpoints)
# In the place of what was there: the endpoints, and room for so many errors and so many `more` bytes of texts.
cdef int put_nodes(Texts* texts, list nodes, int64_t errors, int64_t more, Room* room) except -1
cdef const uint8_t* put_text(Room* room, bytes text, int32_t* size) noexcept
