# Where a codec's output gathers. There is never room for more than one byte beyond the limit; that byte is what proves
# an output too large.
from libc.stdint cimport uint8_t
from libc.stdlib cimport realloc

from plog._native.codec_status cimport COMPRESSION_NO_MEMORY, COMPRESSION_OK

ctypedef struct Sink:
    uint8_t* start
    size_t size
    size_t room
    size_t limit


# At least `wanted` free bytes, which must not reach further than one beyond the limit.
cdef inline int make_room(Sink* sink, size_t wanted) noexcept nogil:
    cdef size_t room = sink.room
    cdef uint8_t* start
    if room - sink.size >= wanted:
        return COMPRESSION_OK
    room = room * 2 if room <= sink.limit // 2 else sink.limit + 1
    if room < sink.size + wanted:
        room = sink.size + wanted
    start = <uint8_t*>realloc(sink.start, room)
    if start == NULL:
        return COMPRESSION_NO_MEMORY
    sink.start = start
    sink.room = room
    return COMPRESSION_OK
