"""The texts of an answer to a callout, in one block of memory with what points to them.

Owns their layout. Never says what they mean.
"""

from libc.stdlib cimport malloc
from libc.string cimport memcpy

from plog._native.request cimport LONGEST_STRING
from plog._native.response_fields cimport NO_TEXT, Endpoint, texts_release

cdef enum:
    SURELY_SHORT = LONGEST_STRING // 4  # in characters


cdef bytes text_bytes(object text):
    cdef bytes found
    if text is None:
        return None
    found = text.encode()
    return found if len(found) <= LONGEST_STRING else text[:SURELY_SHORT].encode()


cdef object text_of(const uint8_t* text, int32_t size):
    return None if size == NO_TEXT else text[:size].decode()


cdef list nodes_of(endpoints):
    cdef int32_t node, port
    nodes = []
    for node_id, host, port_number, rack in endpoints:
        node, port = node_id, port_number  # raises for what the response cannot state
        nodes.append((node, text_bytes(host), port, text_bytes(rack)))
    return nodes


cdef int64_t nodes_room(list nodes):
    cdef int64_t size = len(nodes) * sizeof(Endpoint)
    for _, host, _, rack in nodes:
        size += len(host) + len(rack or b"")
    return size


cdef const uint8_t* put_text(Room* room, bytes text, int32_t* size) noexcept:
    cdef const uint8_t* source
    cdef uint8_t* at = room.texts
    if text is None:
        size[0] = NO_TEXT
        return NULL
    source = text
    size[0] = <int32_t>len(text)
    memcpy(at, source, size[0])
    room.texts += size[0]
    return at


cdef int put_nodes(Texts* texts, list nodes, int64_t errors, int64_t more, Room* room) except -1:
    cdef Endpoint* endpoint
    texts_release(texts)
    texts.bytes = nodes_room(nodes) + errors * sizeof(RecordError) + more
    texts.block = malloc(texts.bytes + 1)
    if texts.block == NULL:
        texts.bytes = 0
        raise MemoryError
    endpoint = <Endpoint*>texts.block
    texts.endpoints = endpoint
    room.errors = <RecordError*>(endpoint + len(nodes))
    room.texts = <uint8_t*>(room.errors + errors)
    for node, host, port, rack in nodes:
        endpoint.node_id = node
        endpoint.port = port
        endpoint.host = put_text(room, host, &endpoint.host_size)
        endpoint.rack = put_text(room, rack, &endpoint.rack_size)
        endpoint += 1
    texts.endpoint_count = <int32_t>len(nodes)
    return 0
