"""lz4: the LZ4 frame format, one frame or several, over liblz4."""

from libc.stdint cimport uint8_t
from libc.string cimport memset

from plog._native.codec_status cimport (
    COMPRESSION_CORRUPT, COMPRESSION_DEFAULT_LEVEL, COMPRESSION_NO_MEMORY, COMPRESSION_OK, COMPRESSION_TOO_LARGE)
from plog._native.sink cimport Sink, make_room

cdef extern from "lz4frame.h" nogil:
    enum:
        LZ4F_VERSION
        LZ4F_max64KB
        LZ4F_blockIndependent
    ctypedef struct LZ4F_frameInfo_t:
        int blockSizeID
        int blockMode
    ctypedef struct LZ4F_preferences_t:
        LZ4F_frameInfo_t frameInfo
        int compressionLevel
    ctypedef struct LZ4F_dctx:
        pass
    ctypedef struct LZ4F_decompressOptions_t:
        pass
    unsigned int LZ4F_isError(size_t code) noexcept
    size_t LZ4F_compressFrameBound(size_t size, const LZ4F_preferences_t* preferences) noexcept
    size_t LZ4F_compressFrame(void* out, size_t room, const void* data, size_t size,
                              const LZ4F_preferences_t* preferences) noexcept
    size_t LZ4F_createDecompressionContext(LZ4F_dctx** context, unsigned int version) noexcept
    size_t LZ4F_freeDecompressionContext(LZ4F_dctx* context) noexcept
    size_t LZ4F_decompress(LZ4F_dctx* context, void* out, size_t* out_size, const void* data,
                           size_t* size, const LZ4F_decompressOptions_t* options) noexcept


cdef int read_lz4_frames(
        LZ4F_dctx* context, const uint8_t* data, size_t size, Sink* sink) noexcept nogil:
    cdef size_t consumed, produced, expected
    while True:
        if make_room(sink, 1) != COMPRESSION_OK:
            return COMPRESSION_NO_MEMORY
        consumed = size
        produced = sink.room - sink.size
        expected = LZ4F_decompress(
            context, sink.start + sink.size, &produced, data, &consumed, NULL)
        if LZ4F_isError(expected):
            return COMPRESSION_CORRUPT
        data += consumed
        size -= consumed
        sink.size += produced
        if sink.size > sink.limit:
            return COMPRESSION_TOO_LARGE
        if expected == 0 and size == 0:
            return COMPRESSION_OK
        if consumed == 0 and produced == 0:
            return COMPRESSION_CORRUPT


cdef int decompress_lz4(const uint8_t* data, size_t size, Sink* sink) noexcept nogil:
    cdef LZ4F_dctx* context = NULL
    cdef int status
    if LZ4F_isError(LZ4F_createDecompressionContext(&context, LZ4F_VERSION)):
        return COMPRESSION_NO_MEMORY
    status = read_lz4_frames(context, data, size, sink)
    LZ4F_freeDecompressionContext(context)
    return status


cdef int compress_lz4(int level, const uint8_t* data, size_t size, Sink* sink) noexcept nogil:
    # What Java's reader takes: independent blocks (it refuses linked ones) of 64 KiB.
    cdef LZ4F_preferences_t preferences
    cdef size_t produced
    memset(&preferences, 0, sizeof(preferences))
    preferences.frameInfo.blockSizeID = LZ4F_max64KB
    preferences.frameInfo.blockMode = LZ4F_blockIndependent
    if level != COMPRESSION_DEFAULT_LEVEL:
        preferences.compressionLevel = max(0, min(level, LZ4_MOST_LEVEL))
    produced = LZ4F_compressFrameBound(size, &preferences)
    if make_room(sink, produced) != COMPRESSION_OK:
        return COMPRESSION_NO_MEMORY
    produced = LZ4F_compressFrame(sink.start, sink.room, data, size, &preferences)
    if LZ4F_isError(produced):
        return COMPRESSION_NO_MEMORY
    sink.size = produced
    return COMPRESSION_OK
