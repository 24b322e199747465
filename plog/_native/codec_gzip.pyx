"""gzip: RFC 1952 members, one or several, over zlib."""

from libc.limits cimport UINT_MAX
from libc.stdint cimport uint8_t
from libc.string cimport memset

from plog._native.codec_status cimport (
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


ctypedef int (*Coder)(z_stream* stream, int flush) noexcept nogil


cdef int run(Coder coder, int last_flush, z_stream* stream, size_t* left, Sink* sink) noexcept nogil:
    """Have zlib read of the `left` bytes at next_in what it can, and write what there is room for; its result.

    `last_flush` goes with the last bytes: zlib counts in unsigned int, and may be given less than all.
    """
    cdef unsigned int fed = <unsigned int>min(left[0], <size_t>UINT_MAX)
    cdef unsigned int given
    cdef int result
    if make_room(sink, 1) != COMPRESSION_OK:
        return Z_MEM_ERROR
    given = <unsigned int>min(sink.room - sink.size, <size_t>UINT_MAX)
    stream.avail_in = fed
    stream.next_out = sink.start + sink.size
    stream.avail_out = given
    result = coder(stream, last_flush if fed == left[0] else Z_NO_FLUSH)
    left[0] -= fed - stream.avail_in
    sink.size += given - stream.avail_out
    return result


cdef int inflate_into(z_stream* stream, size_t left, Sink* sink) noexcept nogil:
    cdef int result
    while True:
        result = run(inflate, Z_NO_FLUSH, stream, &left, sink)
        if sink.size > sink.limit:
            return COMPRESSION_TOO_LARGE
        if result == Z_STREAM_END:
            if left == 0:
                return COMPRESSION_OK
            inflateReset(stream)  # another member follows
        elif result == Z_MEM_ERROR:
            return COMPRESSION_NO_MEMORY
        elif result != Z_OK or (left == 0 and stream.avail_out > 0):
            return COMPRESSION_CORRUPT


cdef int decompress_gzip(const uint8_t* data, size_t size, Sink* sink) noexcept nogil:
    cdef z_stream stream
    cdef int status
    memset(&stream, 0, sizeof(stream))
    if inflateInit2(&stream, WINDOW_BITS) != Z_OK:
        return COMPRESSION_NO_MEMORY
    stream.next_in = <uint8_t*>data
    status = inflate_into(&stream, size, sink)
    inflateEnd(&stream)
    return status


cdef int deflate_into(z_stream* stream, size_t left, Sink* sink) noexcept nogil:
    cdef int result
    while True:
        result = run(deflate, Z_FINISH, stream, &left, sink)
        if result == Z_STREAM_END:
            return COMPRESSION_OK
        if result == Z_MEM_ERROR:
            return COMPRESSION_NO_MEMORY


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
        stream.next_in = <uint8_t*>data
        status = deflate_into(&stream, size, sink)
    deflateEnd(&stream)
    return status
