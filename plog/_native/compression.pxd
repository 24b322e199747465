# The four codecs of record batches, called without the interpreter lock.
from libc.stdint cimport uint8_t

cdef enum:
    CODEC_NONE = 0
    CODEC_GZIP = 1
    CODEC_SNAPPY = 2
    CODEC_LZ4 = 3
    CODEC_ZSTD = 4

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
