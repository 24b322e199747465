"""zstd: RFC 8878 frames, windows of at most 128 MiB, over libzstd."""

from libc.stdint cimport uint8_t, uint32_t

from plog._native.codec_status cimport (
    COMPRESSION_CORRUPT, COMPRESSION_DEFAULT_LEVEL, COMPRESSION_NO_MEMORY, COMPRESSION_OK, COMPRESSION_TOO_LARGE)
from plog._native.sink cimport Sink, make_room

cdef extern from "zstd.h" nogil:
    ctypedef struct ZSTD_DCtx:
        pass
    ctypedef struct ZSTD_inBuffer:
        const void* src
        size_t size
        size_t pos
    ctypedef struct ZSTD_outBuffer:
        void* dst
        size_t size
        size_t pos
    enum:
        ZSTD_CLEVEL_DEFAULT
        ZSTD_d_windowLogMax
    int ZSTD_minCLevel() noexcept
    int ZSTD_maxCLevel() noexcept
    unsigned int ZSTD_isError(size_t code) noexcept
    size_t ZSTD_compressBound(size_t size) noexcept
    size_t ZSTD_compress(void* out, size_t room, const void* data, size_t size, int level) noexcept
    ZSTD_DCtx* ZSTD_createDCtx() noexcept
    size_t ZSTD_freeDCtx(ZSTD_DCtx* context) noexcept
    size_t ZSTD_DCtx_setParameter(ZSTD_DCtx* context, int parameter, int value) noexcept
    size_t ZSTD_decompressStream(ZSTD_DCtx* context, ZSTD_outBuffer* out,
                                 ZSTD_inBuffer* data) noexcept

cdef extern from "zstd_errors.h" nogil:
    enum:
        ZSTD_error_memory_allocation
    int ZSTD_getErrorCode(size_t code) noexcept

cdef enum:
    WINDOW_LOG = 27
    FRAME_MAGIC = 0xFD2FB528
    SKIPPABLE_MAGIC = 0x184D2A50  # and the fifteen after it


cdef bint starts_zstd(const uint8_t* p, size_t size) noexcept nogil:
    # A frame, or a skippable one. The library may have been built to read its frames
    # from before version 1 as well; Kafka never had those, so that old code stays unused.
    cdef uint32_t magic
    if size < 4:
        return False
    magic = p[0] | <uint32_t>p[1] << 8 | <uint32_t>p[2] << 16 | <uint32_t>p[3] << 24
    return magic == <uint32_t>FRAME_MAGIC or magic >> 4 == SKIPPABLE_MAGIC >> 4


cdef int read_zstd_frames(
        ZSTD_DCtx* context, const uint8_t* data, size_t size, Sink* sink) noexcept nogil:
    cdef ZSTD_inBuffer fed
    cdef ZSTD_outBuffer given
    cdef size_t expected = 0  # nothing more of this frame
    fed.src = data
    fed.size = size
    fed.pos = 0
    while True:
        if make_room(sink, 1) != COMPRESSION_OK:
            return COMPRESSION_NO_MEMORY
        if expected == 0 and not starts_zstd(data + fed.pos, size - fed.pos):
            return COMPRESSION_CORRUPT
        given.dst = sink.start
        given.size = sink.room
        given.pos = sink.size
        expected = ZSTD_decompressStream(context, &given, &fed)
        sink.size = given.pos
        if sink.size > sink.limit:
            return COMPRESSION_TOO_LARGE
        if ZSTD_isError(expected):
            if ZSTD_getErrorCode(expected) == ZSTD_error_memory_allocation:
                return COMPRESSION_NO_MEMORY
            return COMPRESSION_CORRUPT
        if fed.pos == fed.size:
            if expected == 0:
                return COMPRESSION_OK
            if given.pos < given.size:
                return COMPRESSION_CORRUPT


cdef int decompress_zstd(const uint8_t* data, size_t size, Sink* sink) noexcept nogil:
    cdef ZSTD_DCtx* context = ZSTD_createDCtx()
    cdef int status
    if context == NULL:
        return COMPRESSION_NO_MEMORY
    ZSTD_DCtx_setParameter(context, ZSTD_d_windowLogMax, WINDOW_LOG)
    status = read_zstd_frames(context, data, size, sink)
    ZSTD_freeDCtx(context)
    return status


cdef int compress_zstd(int level, const uint8_t* data, size_t size, Sink* sink) noexcept nogil:
    cdef size_t produced = ZSTD_compressBound(size)
    if level == COMPRESSION_DEFAULT_LEVEL:
        level = ZSTD_CLEVEL_DEFAULT
    if make_room(sink, produced) != COMPRESSION_OK:
        return COMPRESSION_NO_MEMORY
    produced = ZSTD_compress(sink.start, sink.room, data, size, level)
    if ZSTD_isError(produced):
        return COMPRESSION_NO_MEMORY
    sink.size = produced
    return COMPRESSION_OK


cdef int zstd_least_level() noexcept nogil:
    return ZSTD_minCLevel()


cdef int zstd_most_level() noexcept nogil:
    return ZSTD_maxCLevel()
