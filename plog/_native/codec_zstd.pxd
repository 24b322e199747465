# zstd frames, over libzstd.
from libc.stdint cimport uint8_t

from plog._native.sink cimport Sink

# Each returns a COMPRESSION_ status.
cdef int compress_zstd(int level, const uint8_t* data, size_t size, Sink* sink) noexcept nogil
cdef int decompress_zstd(const uint8_t* data, size_t size, Sink* sink) noexcept nogil

# The range of its levels, which is the library's.
cdef int zstd_least_level() noexcept nogil
cdef int zstd_most_level() noexcept nogil
