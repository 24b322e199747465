# lz4 frames, over liblz4.
from libc.stdint cimport uint8_t

from plog._native.sink cimport Sink

cdef enum:
    LZ4_MOST_LEVEL = 17  # as far as compression.lz4.level goes; 12 and up are the same

# Each returns a COMPRESSION_ status.
cdef int compress_lz4(int level, const uint8_t* data, size_t size, Sink* sink) noexcept nogil
cdef int decompress_lz4(const uint8_t* data, size_t size, Sink* sink) noexcept nogil
