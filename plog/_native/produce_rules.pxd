# What a leader demands of a produced batch, and what a walk through it finds.
from libc.stdint cimport int32_t, int64_t, uint8_t

from plog._native.batch_fields cimport BatchFields

cdef enum:
    MOST_RECORD_ERRORS = 100
    # What batches expand to, but for bombs and the largest: threads do it at the same time.
    EXPANDED_TOGETHER_BYTES = 8 * 1024 * 1024

# What Kafka's leader refuses of a client whatever the records say.
cdef enum:
    HEADER_FINE = 0
    HEADER_BASE_OFFSET = 1
    HEADER_LAST_OFFSET_DELTA = 2
    HEADER_RECORDS_COUNT = 3
    HEADER_COUNT_AND_DELTA = 4
    HEADER_CONTROL = 5
    HEADER_DELETE_HORIZON = 6
    HEADER_PRODUCER_EPOCH = 7
    HEADER_BASE_SEQUENCE = 8
    HEADER_PRODUCER_ID = 9
    HEADER_TRANSACTIONAL = 10

# What can be wrong with a record that reads well.
cdef enum:
    REFUSED_ATTRIBUTES = 1
    REFUSED_OFFSET = 2
    REFUSED_KEY = 3
    REFUSED_TIMESTAMP = 4

# What it demands of the records.
ctypedef struct Rules:
    int64_t oldest
    int64_t newest
    bint any_timestamp
    bint key_required

ctypedef struct Refusal:
    int32_t index
    int32_t why
    int64_t value

ctypedef struct Walk:
    int opened               # a COMPRESSION_ status; but for COMPRESSION_OK the walk has not begun
    int fault                # a RECORD_ reason: the walk ended there
    int64_t fault_at
    int32_t count
    int64_t max_timestamp
    int32_t max_timestamp_offset_delta
    size_t size
    int32_t refused
    bint refused_timestamp
    Refusal refusals[MOST_RECORD_ERRORS]

ctypedef struct Accepted:
    int64_t max_timestamp    # what the header must say
    size_t size              # of the records, expanded

# The bounds of timestamps as of now, without overflow.
cdef Rules rules_at(int64_t now_ms, int64_t before_max_ms, int64_t after_max_ms) noexcept nogil
# HEADER_FINE, or the first rule that the header breaks.
cdef int header_fault(const BatchFields* batch) noexcept nogil
# Through every record of the batch at p, whose header and CRC are right; expands `limit` bytes at most, and waits for
# its turn where it is to be more than EXPANDED_TOGETHER_BYTES: not with a `limit` above that on a reactor.
cdef void walk_batch(const uint8_t* p, const BatchFields* batch, const Rules* rules, size_t limit,
                     Walk* walk) noexcept nogil
# Whether validate_produced would accept these `size` bytes, no more and no less; `out` is then set.
cdef bint is_acceptable(
    const uint8_t* p, int64_t size, const Rules* rules, size_t limit, Accepted* out) noexcept nogil
