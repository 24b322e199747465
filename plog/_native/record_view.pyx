"""The records behind a batch's header: opened in place or expanded, and the words for what is wrong.

Owns how bytes become records that C can walk through; the loop that reads one record
is in record_view.pxd, inlined into every kernel. Makes no Python object of a record,
and judges nothing but whether it can be read.
"""

from libc.stdint cimport int64_t, uint8_t

from plog._native.batch_fields cimport AT_LEADER_EPOCH, ATTRIBUTE_CODEC, BATCH_HEADER_BYTES, BatchFields
from plog._native.codec_status cimport (
    COMPRESSION_NO_MEMORY, COMPRESSION_OK, COMPRESSION_TOO_LARGE, COMPRESSION_UNKNOWN_CODEC)
from plog._native.compression cimport CODEC_NONE, CODEC_ZSTD, decompress_bytes

cdef tuple _RECORD_FAULTS = (
    "",
    "its length does not fit",
    "a field does not fit in its length",
    "a header does not fit in its length",
    "bytes are left over in its length",
    "its timestamp overflows",
    "its offset delta does not fit the batch",
    "it is missing",
    "bytes are left over behind the last record",
)


cdef int open_records(const uint8_t* p, const BatchFields* batch, size_t limit, const uint8_t** records,
                      size_t* size, uint8_t** owned) noexcept nogil:
    cdef int codec = batch.attributes & ATTRIBUTE_CODEC
    cdef size_t stored = <size_t>(<int64_t>batch.batch_length + AT_LEADER_EPOCH - BATCH_HEADER_BYTES)
    cdef int status
    owned[0] = NULL
    if codec == CODEC_NONE:
        records[0] = p + BATCH_HEADER_BYTES
        size[0] = stored
        return COMPRESSION_OK
    if codec > CODEC_ZSTD:
        return COMPRESSION_UNKNOWN_CODEC
    status = decompress_bytes(codec, p + BATCH_HEADER_BYTES, stored, limit, owned, size)
    records[0] = owned[0]
    return status


cdef str compression_fault(int status, int codec, size_t limit):
    if status == COMPRESSION_NO_MEMORY:
        raise MemoryError
    if status == COMPRESSION_UNKNOWN_CODEC:
        return f"codec {codec} is unknown"
    if status == COMPRESSION_TOO_LARGE:
        return f"records take more than {limit} bytes uncompressed"
    return f"records are not valid data of codec {codec}"


cdef str record_fault(int fault, int64_t index, int64_t at):
    return f"record {index} at byte {at} of the records: {_RECORD_FAULTS[fault]}"
