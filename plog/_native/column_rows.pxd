# Records as rows of Arrow columns, in Spark's Kafka schema: which columns are wanted, and the rows so far.
from libc.stdint cimport int32_t, int64_t, uint8_t

from plog._native.arrow_buffers cimport Binary, Growing
from plog._native.batch_fields cimport BatchFields

ctypedef struct Rows:
    bint with_key
    bint with_value
    bint with_offset
    bint with_timestamp
    bint with_timestamp_type
    bint with_headers
    int64_t fixed_bytes      # of a row
    int64_t count
    int64_t bytes_used
    int64_t headers_used
    Binary key
    Binary value
    Binary header_key
    Binary header_value
    Growing offset
    Growing timestamp
    Growing timestamp_type
    Growing headers
    Growing headers_validity

cdef enum:
    FILL_DONE = 0        # the batch, or the offsets asked for, are at their end
    FILL_FULL = 1        # a limit is reached; `next_offset` is the record that did not go in
    FILL_FAULT = 2
    FILL_NO_MEMORY = 3

ctypedef struct Fill:
    int64_t start_offset
    int64_t end_offset
    int64_t max_rows
    int64_t max_bytes
    # Where the walk through the records of a batch stands.
    int64_t at
    int32_t index
    int32_t last_delta
    int64_t next_offset
    int fault

# Makes zeroed memory hold no rows of the columns that are set. A row counts `one_value_bytes` more, for columns whose
# value never changes and that are kept elsewhere. MemoryError.
cdef int rows_start(Rows* rows, int64_t one_value_bytes) except -1
# Frees all memory; no rows are left.
cdef void rows_drop(Rows* rows) noexcept nogil
# The records from start + fill.at to `end`, as far as they are asked for and have room. A FILL_ reason.
cdef int rows_fill(Rows* rows, const uint8_t* start, const uint8_t* end, const BatchFields* batch,
                   Fill* fill) noexcept nogil
# The buffers of each wanted column into `taken`, by its name; the rows start anew. MemoryError.
cdef int rows_take(Rows* rows, dict taken) except -1
