"""Arrow columns into record batches, without a Python object per row.

Owns where rows are in the buffers of columns, which partition a key goes to, and how
rows come to stand by partitions; a batch's bytes are `records`'. Knows nothing of pyarrow,
and of topics nothing but a number of partitions. Never reads outside a buffer, whatever is in
it, and whoever writes to it meanwhile: `read_cell` looks at every offset each time it is used.
"""

from cpython.buffer cimport PyBUF_SIMPLE, PyBuffer_Release, PyObject_GetBuffer
from libc.stdint cimport INT32_MAX, int32_t, int64_t, uint8_t, uint32_t
from libc.stdlib cimport calloc, free
from libc.string cimport memcpy, memset

from plog._native.arrow_buffers cimport Growing, drop, hand_over, push32, reserve
from plog._native.murmur2 cimport hash_bytes
from plog._native.records cimport (
    ADD_FULL,
    ADD_OK,
    BatchBuilder,
    Building,
    end_record,
    refuse_record,
    start_record,
    varint_size,
)
from plog._native.wire cimport put_varint

BUFFERS = {
    "key": 3,
    "value": 3,
    "headers": 2,
    "headers.key": 3,
    "headers.value": 3,
    "partition": 2,
    "timestamp_ms": 2,
}

cdef enum:
    MOST_BUFFERS = 18
    MOST_BATCH_BYTES = 0x7FFFFF00
    LENGTHS_BYTES = 10           # of a header's key and value, each as long as it can be

cdef enum:
    ROW_OK = ADD_OK
    ROW_KEY = 100                # above what start_record answers
    ROW_VALUE
    ROW_HEADERS
    ROW_HEADER_KEY
    ROW_HEADER_VALUE
    ROW_HEADER_NULL
    ROW_PARTITION
    ROW_TIMESTAMP
    ROW_NONE
    ROW_CHANGED

cdef dict _FAULTS = {
    ROW_KEY: "its key is not within the data",
    ROW_VALUE: "its value is not within the data",
    ROW_HEADERS: "its headers are not within the items",
    ROW_HEADER_KEY: "a header's key is not within the data",
    ROW_HEADER_VALUE: "a header's value is not within the data",
    ROW_HEADER_NULL: "a header has no key",
    ROW_PARTITION: "its partition is negative",
    ROW_TIMESTAMP: "its timestamp is before 1970",
    ROW_NONE: "it does not exist",
    ROW_CHANGED: "its headers changed while they were read",
}

ctypedef struct Cells:           # of one column
    bint there
    const uint8_t* validity      # NULL where nothing is null
    const uint8_t* offsets       # into the data; of a list, into its items; NULL for numbers
    const uint8_t* data
    int64_t data_size            # of a list: how many items there are
    int64_t first                # the array's, in the buffers

ctypedef struct Row:
    const uint8_t* key
    int64_t key_size             # -1: null
    const uint8_t* value
    int64_t value_size
    int64_t header
    int64_t end_header
    int64_t headers_size         # as they stand in a record, with their count

ctypedef struct Columns:
    int64_t rows
    Cells key
    Cells value
    Cells headers
    Cells header_keys
    Cells header_values
    Cells partition
    Cells timestamp

ctypedef struct Checked:
    int64_t row                  # the one that is wrong
    int64_t largest_row
    int64_t largest_bytes
    int64_t placed
    int32_t largest_partition


# -- cells -----------------------------------------------------------------------------------------

cdef inline bint is_null(const Cells* cells, int64_t index) noexcept nogil:
    index += cells.first
    return cells.validity != NULL and not cells.validity[index >> 3] >> (index & 7) & 1


cdef inline bint read_range(const Cells* cells, int64_t index, int32_t* start, int32_t* end) noexcept nogil:
    # False: not within the data. Buffers may begin at any address.
    memcpy(start, cells.offsets + 4 * (cells.first + index), 4)
    memcpy(end, cells.offsets + 4 * (cells.first + index + 1), 4)
    return 0 <= start[0] <= end[0] <= cells.data_size


cdef inline bint read_cell(
        const Cells* cells, int64_t index, const uint8_t** data, int64_t* size) noexcept nogil:
    # False: not within the data. A size of -1 is null.
    cdef int32_t start = 0
    cdef int32_t end = 0
    data[0] = NULL
    size[0] = -1
    if not cells.there:
        return True
    if not read_range(cells, index, &start, &end):
        return False
    if not is_null(cells, index):
        data[0] = cells.data + start
        size[0] = end - start
    return True


cdef inline int32_t read_int32(const Cells* cells, int64_t index) noexcept nogil:
    cdef int32_t value
    memcpy(&value, cells.data + 4 * (cells.first + index), 4)
    return value


cdef inline int64_t read_int64(const Cells* cells, int64_t index) noexcept nogil:
    cdef int64_t value
    memcpy(&value, cells.data + 8 * (cells.first + index), 8)
    return value


# -- rows ------------------------------------------------------------------------------------------

cdef int read_row(const Columns* columns, int64_t index, Row* row) noexcept nogil:
    if not read_cell(&columns.key, index, &row.key, &row.key_size):
        return ROW_KEY
    if not read_cell(&columns.value, index, &row.value, &row.value_size):
        return ROW_VALUE
    row.header = 0
    row.end_header = 0
    row.headers_size = 1
    if columns.headers.there:
        return read_headers(columns, index, row)
    return ROW_OK


cdef int read_headers(const Columns* columns, int64_t index, Row* row) noexcept nogil:
    cdef const uint8_t* data
    cdef int32_t start = 0
    cdef int32_t end = 0
    cdef int64_t key_size
    cdef int64_t value_size
    cdef int64_t item
    if not read_range(&columns.headers, index, &start, &end):
        return ROW_HEADERS
    if is_null(&columns.headers, index):
        return ROW_OK
    row.header = start
    row.end_header = end
    row.headers_size = varint_size(<uint32_t>(end - start))
    for item in range(start, end):
        if not read_cell(&columns.header_keys, item, &data, &key_size):
            return ROW_HEADER_KEY
        if not read_cell(&columns.header_values, item, &data, &value_size):
            return ROW_HEADER_VALUE
        if key_size < 0:
            return ROW_HEADER_NULL
        row.headers_size += varint_size(<uint32_t>key_size) + key_size
        row.headers_size += 1 if value_size < 0 else varint_size(<uint32_t>value_size) + value_size
    return ROW_OK


cdef uint8_t* put_headers(const Columns* columns, const Row* row, uint8_t* p) noexcept nogil:
    # NULL: they do not take what they took a moment ago.
    cdef uint8_t* end = p + row.headers_size
    cdef const uint8_t* data
    cdef int64_t size
    cdef int64_t item
    cdef int side
    p = put_varint(p, <int32_t>(row.end_header - row.header))
    for item in range(row.header, row.end_header):
        for side in range(2):
            if not read_cell(&columns.header_keys if side == 0 else &columns.header_values, item, &data, &size):
                return NULL
            if end - p < (1 if size < 0 else varint_size(<uint32_t>size) + size):
                return NULL
            p = put_varint(p, <int32_t>size)
            if size > 0:
                memcpy(p, data, <size_t>size)
                p += size
    return p if p == end else NULL


cdef int check_rows(const Columns* columns, Checked* found) noexcept nogil:
    cdef int64_t index
    cdef int64_t size
    cdef int fault
    cdef int32_t partition
    cdef Row row
    for index in range(columns.rows):
        found.row = index
        fault = read_row(columns, index, &row)
        if fault != ROW_OK:
            return fault
        if columns.partition.there and not is_null(&columns.partition, index):
            partition = read_int32(&columns.partition, index)
            if partition < 0:
                return ROW_PARTITION
            found.placed += 1
            found.largest_partition = max(found.largest_partition, partition)
        if columns.timestamp.there and not is_null(&columns.timestamp, index):
            if read_int64(&columns.timestamp, index) < 0:
                return ROW_TIMESTAMP
        size = max(row.key_size, <int64_t>0) + max(row.value_size, <int64_t>0)
        if row.end_header > row.header:
            size += row.headers_size + LENGTHS_BYTES * (row.end_header - row.header)
        if size > found.largest_bytes:
            found.largest_bytes = size
            found.largest_row = index
    return ROW_OK


cdef int fill_rows(
        const Columns* columns, const uint8_t* order, int64_t* at, int64_t end, int64_t timestamp_ms,
        int64_t limit_bytes, Building* batch, int64_t* index) noexcept nogil:
    # `at` moves to the first row that is not taken; a fault is of the row `index`.
    cdef int32_t entry
    cdef int64_t timestamp
    cdef int fault
    cdef uint8_t* p = NULL
    cdef Row row
    while at[0] < end:
        memcpy(&entry, order + 4 * at[0], 4)
        index[0] = entry
        if not 0 <= entry < columns.rows:
            return ROW_NONE
        fault = read_row(columns, entry, &row)
        if fault != ROW_OK:
            return fault
        timestamp = timestamp_ms
        if columns.timestamp.there and not is_null(&columns.timestamp, entry):
            timestamp = read_int64(&columns.timestamp, entry)
        fault = start_record(
            batch, timestamp, row.key, row.key_size, row.value, row.value_size, row.headers_size, limit_bytes, &p)
        if fault != ADD_OK:
            return fault
        if row.headers_size == 1:
            p[0] = 0
            p += 1
        else:
            p = put_headers(columns, &row, p)
            if p == NULL:
                return ROW_CHANGED
        end_record(batch, timestamp, p)
        at[0] += 1
    return ADD_OK


cdef class RowColumns:
    """Rows in the buffers of Arrow columns."""

    cdef Columns columns
    cdef Checked found
    cdef Py_buffer views[MOST_BUFFERS]
    cdef int held

    def __cinit__(self):
        self.held = 0
        memset(&self.columns, 0, sizeof(Columns))
        memset(&self.found, 0, sizeof(Checked))
        self.found.largest_partition = -1

    def __init__(self, int64_t rows, columns, array_offsets=None):
        cdef int fault
        cdef dict firsts = dict(array_offsets or {})
        if self.held or self.columns.rows:
            raise RuntimeError("these rows already have columns")
        unknown = (frozenset(columns) | frozenset(firsts)) - frozenset(BUFFERS)
        if unknown:
            raise ValueError(f"unknown column {', '.join(sorted(unknown))}")
        if not 0 <= rows < INT32_MAX:
            raise ValueError(f"{rows} rows")
        if len({name in columns for name in ("headers", "headers.key", "headers.value")}) > 1:
            raise ValueError("headers need their keys and values")
        for name, count in BUFFERS.items():
            if len(columns.get(name, range(count))) != count:
                raise ValueError(f"{name}: {len(columns[name])} buffers, not {count}")
            if not 0 <= firsts.get(name, 0) < INT32_MAX:
                raise ValueError(f"{name}: begins at {firsts[name]}")
        enough("key", self.hold_binary("key", columns, firsts, &self.columns.key), rows)
        enough("value", self.hold_binary("value", columns, firsts, &self.columns.value), rows)
        enough("headers", self.hold_headers(columns, firsts), rows)
        enough("partition", self.hold_numbers("partition", columns, firsts, 4, &self.columns.partition), rows)
        enough("timestamp_ms", self.hold_numbers("timestamp_ms", columns, firsts, 8, &self.columns.timestamp), rows)
        self.columns.rows = rows
        with nogil:
            fault = check_rows(&self.columns, &self.found)
        if fault != ROW_OK:
            raise row_fault(fault, self.found.row)

    def __dealloc__(self):
        cdef int i
        for i in range(self.held):
            PyBuffer_Release(&self.views[i])

    def __len__(self):
        return self.columns.rows

    @property
    def largest(self):
        """The row that takes most, and its bytes."""
        return self.found.largest_row, self.found.largest_bytes

    @property
    def placed(self):
        """How many rows name their partition."""
        return self.found.placed

    @property
    def largest_partition(self):
        """The greatest that a row names; -1 where none does."""
        return self.found.largest_partition

    # -- buffers

    cdef const uint8_t* hold(self, object buffer, int64_t* size) except? NULL:
        # None stands for a buffer without bytes.
        cdef Py_buffer* view
        size[0] = 0
        if buffer is None:
            return NULL
        view = &self.views[self.held]
        PyObject_GetBuffer(buffer, view, PyBUF_SIMPLE)
        self.held += 1
        size[0] = view.len
        return <const uint8_t*>view.buf

    cdef int64_t hold_validity(self, object buffer, int64_t first, Cells* cells) except -1:
        # How many values there are bits for, from the first one.
        cdef int64_t size
        cells.there = True
        cells.first = first
        cells.validity = self.hold(buffer, &size)
        return INT32_MAX if buffer is None else max(8 * size - first, <int64_t>0)

    cdef int64_t hold_offsets(self, object buffer, Cells* cells) except -1:
        cdef int64_t size
        cells.offsets = self.hold(buffer, &size)
        return max(size // 4 - 1 - cells.first, <int64_t>0)

    cdef int64_t hold_binary(self, str name, columns, dict firsts, Cells* cells) except -1:
        # How many values the buffers have.
        cdef int64_t bits
        cdef int64_t count
        if name not in columns:
            return INT32_MAX
        validity, offsets, data = columns[name]
        bits = self.hold_validity(validity, firsts.get(name, 0), cells)
        count = min(bits, self.hold_offsets(offsets, cells))
        cells.data = self.hold(data, &cells.data_size)
        return count

    cdef int64_t hold_numbers(self, str name, columns, dict firsts, int width, Cells* cells) except -1:
        cdef int64_t bits
        if name not in columns:
            return INT32_MAX
        validity, data = columns[name]
        bits = self.hold_validity(validity, firsts.get(name, 0), cells)
        cells.data = self.hold(data, &cells.data_size)
        return min(bits, max(cells.data_size // width - cells.first, <int64_t>0))

    cdef int64_t hold_headers(self, columns, dict firsts) except -1:
        cdef Cells* lists = &self.columns.headers
        cdef int64_t bits
        cdef int64_t keys
        if "headers" not in columns:
            return INT32_MAX
        keys = self.hold_binary("headers.key", columns, firsts, &self.columns.header_keys)
        lists.data_size = min(keys, self.hold_binary("headers.value", columns, firsts, &self.columns.header_values))
        validity, offsets = columns["headers"]
        bits = self.hold_validity(validity, firsts.get("headers", 0), lists)
        return min(bits, self.hold_offsets(offsets, lists))

    # -- partitions

    def partitions(self, int32_t count, int32_t sticky):
        """Return each row's partition as a column of int32."""
        cdef Growing chosen
        cdef int64_t index = 0
        cdef int fault = ROW_OK
        if count < 1:
            raise ValueError(f"a topic of {count} partitions")
        memset(&chosen, 0, sizeof(Growing))
        if reserve(&chosen, 4 * self.columns.rows) < 0:
            raise MemoryError
        with nogil:
            fault = self.choose(count, sticky, &chosen, &index)
        if fault == ROW_PARTITION:
            drop(&chosen)
            raise ValueError(f"row {index}: its partition is not one of {count}")
        if fault != ROW_OK:
            drop(&chosen)
            raise row_fault(fault, index)
        return hand_over(&chosen)

    cdef int choose(self, int32_t count, int32_t sticky, Growing* chosen, int64_t* index) noexcept nogil:
        cdef const Columns* columns = &self.columns
        cdef const uint8_t* key
        cdef int64_t size
        cdef int32_t partition
        cdef int64_t i
        for i in range(columns.rows):
            index[0] = i
            if columns.partition.there and not is_null(&columns.partition, i):
                partition = read_int32(&columns.partition, i)
                if not 0 <= partition < count:
                    return ROW_PARTITION
            elif not read_cell(&columns.key, i, &key, &size):
                return ROW_KEY
            elif size < 0:
                partition = sticky
            else:
                partition = <int32_t>((hash_bytes(key, <size_t>size) & 0x7FFFFFFF) % <uint32_t>count)
            push32(chosen, partition)
        return ROW_OK

    # -- batches

    def fill(self, BatchBuilder builder not None, order, int64_t start, int64_t end, int64_t timestamp_ms,
             int64_t limit_bytes):
        """Append rows to a builder; return the place of the first one that is not taken."""
        cdef Py_buffer view
        cdef Building before
        cdef int64_t at = start
        cdef int64_t index = 0
        cdef int64_t most = min(limit_bytes, <int64_t>MOST_BATCH_BYTES)
        cdef int fault = ADD_OK
        PyObject_GetBuffer(order, &view, PyBUF_SIMPLE)
        try:
            if not 0 <= start <= end <= view.len // 4:
                raise ValueError(f"places {start} to {end} of {view.len // 4}")
            if builder.busy:
                raise RuntimeError("another thread builds this batch")
            before = builder.batch
            builder.busy = True
            with nogil:
                fault = fill_rows(&self.columns, <const uint8_t*>view.buf, &at, end, timestamp_ms, most,
                                  &builder.batch, &index)
            builder.busy = False
        finally:
            PyBuffer_Release(&view)
        if fault != ADD_OK and fault != ADD_FULL:
            # As it was, but for the memory.
            builder.batch.size = before.size
            builder.batch.count = before.count
            builder.batch.base_timestamp = before.base_timestamp
            builder.batch.max_timestamp = before.max_timestamp
            if fault < ROW_KEY:
                refuse_record(fault, &builder.batch, timestamp_ms, 0)
            raise row_fault(fault, index)
        return at


cdef object row_fault(int fault, int64_t row):
    return ValueError(f"row {row}: {_FAULTS[fault]}")


cdef int enough(str name, int64_t count, int64_t rows) except -1:
    if count < rows:
        raise ValueError(f"{name}: {count} values for {rows} rows")
    return 0


# -- order -----------------------------------------------------------------------------------------

def group(partitions, int32_t groups):
    """Sort rows by their partition, and leave those of one as they stand."""
    cdef Py_buffer view
    cdef Growing order
    cdef int64_t* starts = NULL
    cdef int64_t wrong = -1
    memset(&order, 0, sizeof(Growing))
    if groups < 1:
        raise ValueError(f"{groups} groups")
    PyObject_GetBuffer(partitions, &view, PyBUF_SIMPLE)
    try:
        if view.len % 4 or view.len // 4 >= INT32_MAX:
            raise ValueError(f"{view.len} bytes are not a column of int32")
        # Two for each group: where it starts, and where its next row goes.
        starts = <int64_t*>calloc(2 * (<size_t>groups + 1), sizeof(int64_t))
        if starts == NULL or reserve(&order, view.len) < 0:
            raise MemoryError
        with nogil:
            wrong = sort_rows(<const uint8_t*>view.buf, view.len // 4, groups, starts, &order)
        if wrong >= 0:
            raise ValueError(f"row {wrong}: its partition is not one of {groups}")
        begun = [starts[i] for i in range(groups + 1)]
        return hand_over(&order), begun
    finally:
        PyBuffer_Release(&view)
        free(starts)
        drop(&order)


cdef int64_t sort_rows(
        const uint8_t* partitions, int64_t rows, int32_t groups, int64_t* starts, Growing* order) noexcept nogil:
    # -1, or the row whose partition is none of the groups.
    cdef int64_t* next_at = starts + groups + 1
    cdef int32_t partition
    cdef int32_t row
    cdef int32_t i
    for row in range(<int32_t>rows):
        memcpy(&partition, partitions + 4 * <int64_t>row, 4)
        if not 0 <= partition < groups:
            return row
        starts[partition + 1] += 1
    for i in range(groups):
        starts[i + 1] += starts[i]
        next_at[i] = starts[i]
    for row in range(<int32_t>rows):
        memcpy(&partition, partitions + 4 * <int64_t>row, 4)
        # It may have changed since it was counted.
        if not 0 <= partition < groups or next_at[partition] == starts[partition + 1]:
            return row
        memcpy(order.data + 4 * next_at[partition], &row, 4)
        next_at[partition] += 1
    order.size = 4 * rows
    return -1
