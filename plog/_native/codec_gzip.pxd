# gzip, over zlib.
from libc.stdint cimport uint8_t

from plog._native.sink cimport Sink

# Each returns a COMPRESSION_ status.
cdef int compress_gzip(int level, const uint8_t* data, size_t size, Sink* sink) noexcept nogil
cdef int decompress_gzip(const uint8_t* data, size_t size, Sink* sink) noexcept nogil
