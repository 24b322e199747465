"""The four codecs of record batches, over their C libraries and without the interpreter lock.

Owns which codec a number means and the bound on what a batch may expand to; the framing
that Kafka puts around each codec is `codec_gzip`'s and its neighbours'. Never decides which
codec a batch should have, and never repairs: bytes that are cut, damaged or followed by
anything else are refused whole.
"""

from cpython.buffer cimport PyBUF_SIMPLE, PyBuffer_Release, PyObject_GetBuffer
from cpython.bytes cimport PyBytes_FromStringAndSize
from cpython.long cimport PyLong_AsLongLongAndOverflow
from libc.stdint cimport PTRDIFF_MAX, uint8_t
from libc.stdlib cimport free
from libc.string cimport memcpy, memset

from plog._native.codec_gzip cimport compress_gzip, decompress_gzip
from plog._native.codec_lz4 cimport LZ4_MOST_LEVEL, compress_lz4, decompress_lz4
from plog._native.codec_snappy cimport compress_snappy, decompress_snappy
from plog._native.codec_status cimport (
    COMPRESSION_CORRUPT, COMPRESSION_DEFAULT_LEVEL, COMPRESSION_NO_MEMORY, COMPRESSION_OK, COMPRESSION_TOO_LARGE,
    COMPRESSION_UNKNOWN_CODEC)
from plog._native.codec_zstd cimport compress_zstd, decompress_zstd, zstd_least_level, zstd_most_level
from plog._native.sink cimport Sink, make_room

from plog.errors import CorruptRecord

cdef enum:
    FIRST_EXPANSION = 4
    FIRST_ROOM = 4096

NONE = CODEC_NONE
GZIP = CODEC_GZIP
SNAPPY = CODEC_SNAPPY
LZ4 = CODEC_LZ4
ZSTD = CODEC_ZSTD
DEFAULT_LEVEL = COMPRESSION_DEFAULT_LEVEL

NAMES = ("none", "gzip", "snappy", "lz4", "zstd")
LEVELS = (None, (-1, 9), None, (0, LZ4_MOST_LEVEL), (zstd_least_level(), zstd_most_level()))


cdef int store(const uint8_t* data, size_t size, Sink* sink) noexcept nogil:
    if size > sink.limit:
        return COMPRESSION_TOO_LARGE
    if make_room(sink, size) != COMPRESSION_OK:
        return COMPRESSION_NO_MEMORY
    if size > 0:
        memcpy(sink.start, data, size)
    sink.size = size
    return COMPRESSION_OK


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
