"""gzip: RFC 1952 members, one or several, over zlib."""

from libc.limits cimport UINT_MAX
from libc.stdint cimport uint8_t
from libc.string cimport memset

from plog._native.compression cimport (
    COMPRESSION_CORRUPT, COMPRESSION_DEFAULT_LEVEL, COMPRESSION_NO_MEMORY, COMPRESSION_OK, COMPRESSION_TOO_LARGE)
from plog._native.sink cimport Sink, make_room

cdef extern from "zlib.h" nogil:
    enum:
        Z_OK
        Z_STREAM_END
        Z_MEM_ERROR
        Z_NO_FLUSH
        Z_FINISH
        Z_DEFLATED
        Z_DEFAULT_STRATEGY
        Z_DEFAULT_COMPRESSION
    ctypedef struct z_stream:
        uint8_t* next_in
        unsigned int avail_in
        uint8_t* next_out
        unsigned int avail_out
    int inflateInit2(z_stream* stream, int window_bits) noexcept
    int inflate(z_stream* stream, int flush) noexcept
    int inflateReset(z_stream* stream) noexcept
    int inflateEnd(z_stream* stream) noexcept
    int deflateInit2(z_stream* stream, int level, int method, int window_bits, int memory_level,
                     int strategy) noexcept
    unsigned long deflateBound(z_stream* stream, unsigned long size) noexcept
    int deflate(z_stream* stream, int flush) noexcept
    int deflateEnd(z_stream* stream) noexcept

cdef enum:
    WINDOW_BITS = 31  # 32 KiB window, and 16 for gzip's header instead of zlib's


cdef int inflate_into(
        z_stream* stream, const uint8_t* data, size_t size, Sink* sink) noexcept nogil:
    cdef unsigned int fed, given
    cdef int result
    while True:
        if make_room(sink, 1) != COMPRESSION_OK:
            return COMPRESSION_NO_MEMORY
        fed = <unsigned int>min(size, <size_t>UINT_MAX)
        given = <unsigned int>min(sink.room - sink.size, <size_t>UINT_MAX)
        stream.next_in = <uint8_t*>data
        stream.avail_in = fed
        stream.next_out = sink.start + sink.size
        stream.avail_out = given
        result = inflate(stream, Z_NO_FLUSH)
        data += fed - stream.avail_in
        size -= fed - stream.avail_in
        sink.size += given - stream.avail_out
        if sink.size > sink.limit:
            return COMPRESSION_TOO_LARGE
        if result == Z_STREAM_END:
            if size == 0:
                return COMPRESSION_OK
            inflateReset(stream)  # another member follows
        elif result == Z_MEM_ERROR:
            return COMPRESSION_NO_MEMORY
        elif result != Z_OK or (size == 0 and stream.avail_out > 0):
            return COMPRESSION_CORRUPT


cdef int decompress_gzip(const uint8_t* data, size_t size, Sink* sink) noexcept nogil:
    cdef z_stream stream
    cdef int status
    memset(&stream, 0, sizeof(stream))
    if inflateInit2(&stream, WINDOW_BITS) != Z_OK:
        return COMPRESSION_NO_MEMORY
    status = inflate_into(&stream, data, size, sink)
    inflateEnd(&stream)
    return status


cdef int deflate_into(
        z_stream* stream, const uint8_t* data, size_t size, Sink* sink) noexcept nogil:
    cdef unsigned int fed, given
    cdef int result
    while True:
        if make_room(sink, 1) != COMPRESSION_OK:
            return COMPRESSION_NO_MEMORY
        fed = <unsigned int>min(size, <size_t>UINT_MAX)
        given = <unsigned int>min(sink.room - sink.size, <size_t>UINT_MAX)
        stream.next_in = <uint8_t*>data
        stream.avail_in = fed
        stream.next_out = sink.start + sink.size
        stream.avail_out = given
        result = deflate(stream, Z_FINISH if fed == size else Z_NO_FLUSH)
        data += fed - stream.avail_in
        size -= fed - stream.avail_in
        sink.size += given - stream.avail_out
        if result == Z_STREAM_END:
            return COMPRESSION_OK


cdef int compress_gzip(int level, const uint8_t* data, size_t size, Sink* sink) noexcept nogil:
    cdef z_stream stream
    cdef int status
    if level == COMPRESSION_DEFAULT_LEVEL:
        level = Z_DEFAULT_COMPRESSION
    level = max(-1, min(level, 9))
    memset(&stream, 0, sizeof(stream))
    if deflateInit2(
            &stream, level, Z_DEFLATED, WINDOW_BITS, 8, Z_DEFAULT_STRATEGY) != Z_OK:
        return COMPRESSION_NO_MEMORY
    status = make_room(sink, deflateBound(&stream, size))
    if status == COMPRESSION_OK:
        status = deflate_into(&stream, data, size, sink)
    deflateEnd(&stream)
    return status
