"""The four codecs of record batches, over their C libraries and without the interpreter lock.

Owns the framing Kafka puts around each codec and the bound on what a batch may
expand to. Never decides which codec a batch should have, and never repairs:
bytes that are cut, damaged or followed by anything else are refused whole.

- gzip: RFC 1952 members, one or several.
- snappy: the blocks of xerial's SnappyOutputStream, or one raw block.
- lz4: the LZ4 frame format, one frame or several.
- zstd: RFC 8878 frames, one or several, windows of at most 128 MiB.
"""

from cpython.buffer cimport PyBUF_SIMPLE, PyBuffer_Release, PyObject_GetBuffer
from cpython.bytes cimport PyBytes_FromStringAndSize
from cpython.long cimport PyLong_AsLongLongAndOverflow
from libc.limits cimport UINT_MAX
from libc.stdint cimport PTRDIFF_MAX, int32_t, uint8_t, uint32_t
from libc.stdlib cimport free, malloc, realloc
from libc.string cimport memcmp, memcpy, memset

from plog._native.wire cimport be32, put_int32, read_unsigned_varint

from plog.errors import CorruptRecord

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

cdef extern from "snappy-c.h" nogil:
    enum:
        SNAPPY_OK
    int snappy_compress(const char* data, size_t size, char* out, size_t* out_size) noexcept
    int snappy_uncompress(const char* data, size_t size, char* out, size_t* out_size) noexcept
    size_t snappy_max_compressed_length(size_t size) noexcept

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
    GZIP_WINDOW_BITS = 31  # 32 KiB window, and 16 for gzip's header instead of zlib's
    ZSTD_WINDOW_LOG = 27
    ZSTD_FRAME_MAGIC = 0xFD2FB528
    ZSTD_SKIPPABLE_MAGIC = 0x184D2A50  # and the fifteen after it
    LZ4_MAX_LEVEL = 17     # as far as compression.lz4.level goes; 12 and up are the same
    XERIAL_HEADER_BYTES = 16
    XERIAL_VERSION = 1
    XERIAL_BLOCK_BYTES = 32768
    # A snappy element of 3 bytes yields at most 64.
    SNAPPY_MAX_EXPANSION = 22
    FIRST_EXPANSION = 4
    FIRST_ROOM = 4096

cdef const uint8_t* XERIAL_MAGIC = <const uint8_t*>b"\x82SNAPPY\x00"

NONE = CODEC_NONE
GZIP = CODEC_GZIP
SNAPPY = CODEC_SNAPPY
LZ4 = CODEC_LZ4
ZSTD = CODEC_ZSTD
DEFAULT_LEVEL = COMPRESSION_DEFAULT_LEVEL

NAMES = ("none", "gzip", "snappy", "lz4", "zstd")
LEVELS = (None, (-1, 9), None, (0, LZ4_MAX_LEVEL), (ZSTD_minCLevel(), ZSTD_maxCLevel()))


# Where decompressed bytes gather. There is never room for more than one byte
# beyond the limit; that byte is what proves an output too large.
cdef struct Sink:
    uint8_t* start
    size_t size
    size_t room
    size_t limit


cdef int make_room(Sink* sink, size_t wanted) noexcept nogil:
    # At least `wanted` free bytes, which must not reach further than one beyond the limit.
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


# ---- none


cdef int store(const uint8_t* data, size_t size, Sink* sink) noexcept nogil:
    if size > sink.limit:
        return COMPRESSION_TOO_LARGE
    if make_room(sink, size) != COMPRESSION_OK:
        return COMPRESSION_NO_MEMORY
    if size > 0:
        memcpy(sink.start, data, size)
    sink.size = size
    return COMPRESSION_OK


# ---- gzip


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
    if inflateInit2(&stream, GZIP_WINDOW_BITS) != Z_OK:
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
            &stream, level, Z_DEFLATED, GZIP_WINDOW_BITS, 8, Z_DEFAULT_STRATEGY) != Z_OK:
        return COMPRESSION_NO_MEMORY
    status = make_room(sink, deflateBound(&stream, size))
    if status == COMPRESSION_OK:
        status = deflate_into(&stream, data, size, sink)
    deflateEnd(&stream)
    return status


# ---- snappy


cdef int decompress_snappy_block(const uint8_t* data, size_t size, Sink* sink) noexcept nogil:
    cdef uint32_t claimed = 0
    cdef size_t produced
    if read_unsigned_varint(data, data + size, &claimed) == NULL:
        return COMPRESSION_CORRUPT
    if claimed // SNAPPY_MAX_EXPANSION > size:
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


# ---- lz4


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
        preferences.compressionLevel = max(0, min(level, LZ4_MAX_LEVEL))
    produced = LZ4F_compressFrameBound(size, &preferences)
    if make_room(sink, produced) != COMPRESSION_OK:
        return COMPRESSION_NO_MEMORY
    produced = LZ4F_compressFrame(sink.start, sink.room, data, size, &preferences)
    if LZ4F_isError(produced):
        return COMPRESSION_NO_MEMORY
    sink.size = produced
    return COMPRESSION_OK


# ---- zstd


cdef bint starts_zstd(const uint8_t* p, size_t size) noexcept nogil:
    # A frame, or a skippable one. The library may have been built to read its frames
    # from before version 1 as well; Kafka never had those, so that old code stays unused.
    cdef uint32_t magic
    if size < 4:
        return False
    magic = p[0] | <uint32_t>p[1] << 8 | <uint32_t>p[2] << 16 | <uint32_t>p[3] << 24
    return magic == <uint32_t>ZSTD_FRAME_MAGIC or magic >> 4 == ZSTD_SKIPPABLE_MAGIC >> 4


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
    ZSTD_DCtx_setParameter(context, ZSTD_d_windowLogMax, ZSTD_WINDOW_LOG)
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


# ---- the contract of compression.pxd


cdef int hand_over(int status, Sink* sink, uint8_t** out, size_t* out_size) noexcept nogil:
    if status == COMPRESSION_OK:
        out[0] = sink.start
        out_size[0] = sink.size
    else:
        free(sink.start)
    return status


cdef int compress_bytes(int codec, int level, const uint8_t* data, size_t size,
                        uint8_t** out, size_t* out_size) noexcept nogil:
    cdef Sink sink
    cdef int status = COMPRESSION_UNKNOWN_CODEC
    memset(&sink, 0, sizeof(sink))
    sink.limit = PTRDIFF_MAX - 1
    if make_room(&sink, 1) != COMPRESSION_OK:
        return COMPRESSION_NO_MEMORY
    if codec == CODEC_NONE:
        status = store(data, size, &sink)
    elif codec == CODEC_GZIP:
        status = compress_gzip(level, data, size, &sink)
    elif codec == CODEC_SNAPPY:
        status = compress_snappy(data, size, &sink)
    elif codec == CODEC_LZ4:
        status = compress_lz4(level, data, size, &sink)
    elif codec == CODEC_ZSTD:
        status = compress_zstd(level, data, size, &sink)
    return hand_over(status, &sink, out, out_size)


cdef int decompress_bytes(int codec, const uint8_t* data, size_t size, size_t limit,
                          uint8_t** out, size_t* out_size) noexcept nogil:
    cdef Sink sink
    cdef int status = COMPRESSION_UNKNOWN_CODEC
    memset(&sink, 0, sizeof(sink))
    sink.limit = min(limit, <size_t>(PTRDIFF_MAX - 1))
    if codec == CODEC_SNAPPY or codec == CODEC_NONE:
        status = make_room(&sink, 1)  # they know what they need
    else:
        status = make_room(&sink, min(max(size * FIRST_EXPANSION, <size_t>FIRST_ROOM),
                                      sink.limit + 1))
    if status != COMPRESSION_OK:
        return status
    if codec == CODEC_NONE:
        status = store(data, size, &sink)
    elif codec == CODEC_GZIP:
        status = decompress_gzip(data, size, &sink)
    elif codec == CODEC_SNAPPY:
        status = decompress_snappy(data, size, &sink)
    elif codec == CODEC_LZ4:
        status = decompress_lz4(data, size, &sink)
    elif codec == CODEC_ZSTD:
        status = decompress_zstd(data, size, &sink)
    else:
        status = COMPRESSION_UNKNOWN_CODEC
    return hand_over(status, &sink, out, out_size)


cdef object failure(int status, str name, Py_ssize_t size, object limit):
    if status == COMPRESSION_TOO_LARGE:
        return CorruptRecord(f"{name} data of {size} bytes expands beyond the limit of {limit} bytes")
    if status == COMPRESSION_CORRUPT:
        return CorruptRecord(f"{name} data of {size} bytes is corrupt or cut short")
    return MemoryError(f"no memory left to run {name} on {size} bytes")


cdef int checked_codec(object codec) except -2:
    # -1 for a number that names no codec.
    cdef int overflow = 0
    cdef long long number = PyLong_AsLongLongAndOverflow(codec, &overflow)
    if overflow != 0 or number < CODEC_NONE or number > CODEC_ZSTD:
        return -1
    return <int>number


cdef int checked_level(int codec, object level) except? -1:
    cdef int overflow = 0
    cdef long long number = PyLong_AsLongLongAndOverflow(level, &overflow)
    if number == COMPRESSION_DEFAULT_LEVEL or LEVELS[codec] is None:
        return COMPRESSION_DEFAULT_LEVEL
    least, most = LEVELS[codec]
    if overflow != 0 or number < least or number > most:
        raise ValueError(f"{NAMES[codec]} level {level} is not in {least}..{most}")
    return <int>number


def compress(codec, data, level=DEFAULT_LEVEL):
    """Compress a batch's records section in the framing that Kafka gives `codec`.

    `level` is the codec's own (gzip -1..9, lz4 0..17, zstd -131072..22); none and
    snappy have none and ignore it.

    Raises:
        ValueError: no such codec, or a level outside the codec's range.
    """
    cdef Py_buffer view
    cdef uint8_t* out = NULL
    cdef size_t out_size = 0
    cdef int status
    cdef int which = checked_codec(codec)
    if which < 0:
        raise ValueError(f"compression codec {codec} is unknown")
    cdef int how = checked_level(which, level)
    PyObject_GetBuffer(data, &view, PyBUF_SIMPLE)
    try:
        with nogil:
            status = compress_bytes(
                which, how, <const uint8_t*>view.buf, view.len, &out, &out_size)
        if status != COMPRESSION_OK:
            raise failure(status, NAMES[which], view.len, None)
        return PyBytes_FromStringAndSize(<char*>out, out_size)
    finally:
        free(out)
        PyBuffer_Release(&view)


def decompress(codec, data, limit):
    """Expand a batch's records section.

    At most `limit` bytes come back; no more than one byte beyond them is ever held.

    Raises:
        CorruptRecord: not valid data of this codec, cut short, or more than `limit` bytes.
        ValueError: `limit` is negative.
    """
    cdef Py_buffer view
    cdef uint8_t* out = NULL
    cdef size_t out_size = 0
    cdef int overflow = 0
    cdef int status
    cdef int which = checked_codec(codec)
    cdef long long most = PyLong_AsLongLongAndOverflow(limit, &overflow)
    if overflow < 0 or (overflow == 0 and most < 0):
        raise ValueError(f"limit {limit} is negative")
    if overflow > 0 or most > PTRDIFF_MAX:
        most = PTRDIFF_MAX
    if which < 0:
        raise CorruptRecord(f"compression codec {codec} is unknown")
    PyObject_GetBuffer(data, &view, PyBUF_SIMPLE)
    try:
        with nogil:
            status = decompress_bytes(
                which, <const uint8_t*>view.buf, view.len, most, &out, &out_size)
        if status != COMPRESSION_OK:
            raise failure(status, NAMES[which], view.len, limit)
        return PyBytes_FromStringAndSize(<char*>out, out_size)
    finally:
        free(out)
        PyBuffer_Release(&view)
