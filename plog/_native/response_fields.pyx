"""Fields that the responses to Produce and to Fetch share (KIP-951).

Owns their bytes.
"""

from plog._native.request cimport length_size, put_length, put_string, string_size, varint_size
from plog._native.wire cimport put_int8, put_int32, put_unsigned_varint


cdef uint8_t* put_leader(uint8_t* p, int32_t tag, int32_t leader_id, int32_t leader_epoch) noexcept nogil:
    p = put_int8(p, <int>tag)
    p = put_int8(p, LEADER_BYTES)
    p = put_int32(p, leader_id)
    p = put_int32(p, leader_epoch)
    return put_int8(p, 0)


cdef int64_t contents_size(const Texts* texts) noexcept nogil:
    cdef int64_t size = length_size(texts.endpoint_count, True)
    cdef int32_t number
    for number in range(texts.endpoint_count):
        size += 4 + string_size(texts.endpoints[number].host_size, True)
        size += 4 + string_size(texts.endpoints[number].rack_size, True) + 1
    return size


cdef int64_t endpoints_size(const Texts* texts) noexcept nogil:
    cdef int64_t contents = contents_size(texts)
    return 1 + varint_size(<unsigned int>contents) + contents


cdef uint8_t* put_endpoints(uint8_t* p, const Texts* texts) noexcept nogil:
    cdef const Endpoint* endpoint
    cdef int32_t number
    p = put_int8(p, 0)
    p = put_unsigned_varint(p, <unsigned int>contents_size(texts))
    p = put_length(p, texts.endpoint_count, True)
    for number in range(texts.endpoint_count):
        endpoint = &texts.endpoints[number]
        p = put_int32(p, endpoint.node_id)
        p = put_string(p, endpoint.host, endpoint.host_size, True)
        p = put_int32(p, endpoint.port)
        p = put_string(p, endpoint.rack, endpoint.rack_size, True)
        p = put_int8(p, 0)
    return p
