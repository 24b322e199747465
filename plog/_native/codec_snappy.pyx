"""snappy: the blocks of xerial's SnappyOutputStream, as Java clients write them, or one raw block."""

from libc.stdint cimport int32_t, uint8_t, uint32_t
from libc.string cimport memcmp, memcpy

from plog._native.codec_status cimport COMPRESSION_CORRUPT, COMPRESSION_NO_MEMORY, COMPRESSION_OK, COMPRESSION_TOO_LARGE
from plog._native.sink cimport Sink, make_room
from plog._native.wire cimport be32, put_int32, read_unsigned_varint

cdef extern from "snappy-c.h" nogil:
    enum:
        SNAPPY_OK
    int snappy_compress(const char* data, size_t size, char* out, size_t* out_size) noexcept
    int snappy_uncompress(const char* data, size_t size, char* out, size_t* out_size) noexcept
    size_t snappy_max_compressed_length(size_t size) noexcept

cdef enum:
    XERIAL_HEADER_BYTES = 16
    XERIAL_VERSION = 1
    XERIAL_BLOCK_BYTES = 32768
    # A snappy element of 3 bytes yields at most 64.
    MOST_EXPANSION = 22

cdef const uint8_t* XERIAL_MAGIC = <const uint8_t*>b"\x82SNAPPY\x00"


cdef int decompress_snappy_block(const uint8_t* data, size_t size, Sink* sink) noexcept nogil:
    cdef uint32_t claimed = 0
    cdef size_t produced
    if read_unsigned_varint(data, data + size, &claimed) == NULL:
        return COMPRESSION_CORRUPT
    if claimed // MOST_EXPANSION > size:
        return COMPRESSION_CORRUPT
    if claimed > sink.limit - sink.size:
        return COMPRESSION_TOO_LARGE
    if make_room(sink, claimed) != COMPRESSION_OK:
        return COMPRESSION_NO_MEMORY
    produced = sink.room - sink.size
    if snappy_uncompress(
            <const char*>data, size, <char*>sink.start + sink.size, &produced) != SNAPPY_OK:
        return COMPRESSION_CORRUPT
    sink.size += produced
    return COMPRESSION_OK


cdef bint starts_xerial(const uint8_t* p, const uint8_t* end) noexcept nogil:
    return end - p >= XERIAL_HEADER_BYTES and memcmp(p, XERIAL_MAGIC, 8) == 0


cdef int decompress_snappy(const uint8_t* data, size_t size, Sink* sink) noexcept nogil:
    cdef const uint8_t* p = data
    cdef const uint8_t* end = data + size
    cdef int32_t block_bytes
    cdef int status
    if not starts_xerial(p, end):
        return decompress_snappy_block(data, size, sink)
    while p < end:
        if starts_xerial(p, end):
            # At the start, or between blocks where two streams were joined.
            if <int32_t>be32(p + 8) < XERIAL_VERSION:
                return COMPRESSION_CORRUPT
            p += XERIAL_HEADER_BYTES
            continue
        if end - p < 4:
            return COMPRESSION_CORRUPT
        block_bytes = <int32_t>be32(p)
        p += 4
        if block_bytes <= 0 or block_bytes > end - p:
            return COMPRESSION_CORRUPT
        status = decompress_snappy_block(p, block_bytes, sink)
        if status != COMPRESSION_OK:
            return status
        p += block_bytes
    return COMPRESSION_OK


cdef int compress_snappy(const uint8_t* data, size_t size, Sink* sink) noexcept nogil:
    cdef size_t blocks = (size + XERIAL_BLOCK_BYTES - 1) // XERIAL_BLOCK_BYTES
    cdef size_t block_bytes, produced
    cdef uint8_t* p
    if make_room(sink, XERIAL_HEADER_BYTES + blocks * (
            4 + snappy_max_compressed_length(XERIAL_BLOCK_BYTES))) != COMPRESSION_OK:
        return COMPRESSION_NO_MEMORY
    memcpy(sink.start, XERIAL_MAGIC, 8)
    p = put_int32(sink.start + 8, XERIAL_VERSION)
    p = put_int32(p, XERIAL_VERSION)  # the oldest version that can read it
    while size > 0:
        block_bytes = min(size, <size_t>XERIAL_BLOCK_BYTES)
        produced = snappy_max_compressed_length(block_bytes)
        snappy_compress(<const char*>data, block_bytes, <char*>p + 4, &produced)
        p = put_int32(p, <int32_t>produced) + produced
        data += block_bytes
        size -= block_bytes
    sink.size = p - sink.start
    return COMPRESSION_OK
