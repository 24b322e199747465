# CRC-32C (Castagnoli), the checksum of record batches v2 and of producer snapshots.
from libc.stdint cimport uint8_t, uint32_t

# `crc` is the checksum so far, 0 for none.
cdef uint32_t crc32c_update(uint32_t crc, const uint8_t* data, size_t size) noexcept nogil
