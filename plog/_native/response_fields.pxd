# What the responses to Produce and to Fetch share: what they say for "none", a leader's hint, and where leaders are to be
# reached (KIP-951).
from libc.stdint cimport int32_t, int64_t, uint8_t
from libc.stdlib cimport free

cdef enum:
    NO_OFFSET = -1
    NO_TIMESTAMP = -1
    NO_NODE = -1
    NO_EPOCH = -1
    NO_TEXT = -1                 # the size of one that is null
    LEADER_BYTES = 4 + 4 + 1     # id, epoch, tagged fields

# Where a leader that a partition names is to be reached.
ctypedef struct Endpoint:
    int32_t node_id
    int32_t port
    const uint8_t* host
    int32_t host_size
    const uint8_t* rack
    int32_t rack_size

# What Python gave for a response: where leaders are, and other texts of it.
ctypedef struct Texts:
    void* block                  # owned: all of it
    int64_t bytes
    const Endpoint* endpoints
    int32_t endpoint_count

cdef inline void texts_release(Texts* texts) noexcept nogil:
    free(texts.block)
    texts.block = NULL
    texts.bytes = 0
    texts.endpoint_count = 0

# The tagged field, with its number and its size before it.
cdef uint8_t* put_leader(uint8_t* p, int32_t tag, int32_t leader_id, int32_t leader_epoch) noexcept nogil
# The tagged field 0 of both, with its number and its size.
cdef int64_t endpoints_size(const Texts* texts) noexcept nogil
cdef uint8_t* put_endpoints(uint8_t* p, const Texts* texts) noexcept nogil
