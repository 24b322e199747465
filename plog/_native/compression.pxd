# The four codecs of record batches, called without the interpreter lock.
from libc.stdint cimport uint8_t

cdef enum:
    CODEC_NONE = 0
    CODEC_GZIP = 1
    CODEC_SNAPPY = 2
    CODEC_LZ4 = 3
    CODEC_ZSTD = 4

cdef enum:
    # The level each codec takes by itself: gzip 6, lz4 fast, zstd 3. Snappy has none.
    COMPRESSION_DEFAULT_LEVEL = -2147483648

cdef enum:
    COMPRESSION_OK = 0
    COMPRESSION_CORRUPT = -1     # the input is not of this codec, or is cut short
    COMPRESSION_TOO_LARGE = -2   # the output would exceed the limit
    COMPRESSION_NO_MEMORY = -3
    COMPRESSION_UNKNOWN_CODEC = -4

# Both store malloc'ed memory into `out` on COMPRESSION_OK (the caller frees it) and
# leave it alone otherwise. Memory grows with the output that really appears, never on
# the word of a length field: beside the output there are at most the codec's own
# window (lz4: 4 MiB blocks; zstd: 128 MiB, touched only as output fills it) and, for
# snappy, which must know its size beforehand, 22 times the input. Levels beyond a
# codec's range count as the nearest one within.
cdef int compress_bytes(int codec, int level, const uint8_t* data, size_t size,
                        uint8_t** out, size_t* out_size) noexcept nogil
cdef int decompress_bytes(int codec, const uint8_t* data, size_t size, size_t limit,
                          uint8_t** out, size_t* out_size) noexcept nogil
