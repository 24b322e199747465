"""Record sets into the buffers of Arrow columns, without a Python object per record.

Owns the layout of Spark's Kafka schema in Arrow's physical form, and which
records of a fetch are rows (offsets asked for, no markers, no aborted data).
Knows nothing of pyarrow or Spark: it hands over memory that speaks the buffer
protocol. Never reads past a batch, never copies what it has once written.
"""

from cpython.buffer cimport PyBUF_SIMPLE, PyBuffer_FillInfo, PyBuffer_Release, PyObject_GetBuffer
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_GET_SIZE
from cpython.unicode cimport PyUnicode_DecodeUTF8
from libc.stdint cimport INT32_MAX, INT64_MAX, INT64_MIN, int32_t, int64_t, uint8_t, uint32_t
from libc.stdlib cimport free, realloc
from libc.string cimport memcpy, memset

from plog._native.batch_fields cimport (
    AT_LEADER_EPOCH,
    ATTRIBUTE_CODEC,
    ATTRIBUTE_CONTROL,
    ATTRIBUTE_LOG_APPEND_TIME,
    ATTRIBUTE_TRANSACTIONAL,
    BATCH_CUT,
    BATCH_OK,
    BatchFields,
    batch_fault,
    check_batch,
    last_offset,
    read_header,
)
from plog._native.compression cimport COMPRESSION_OK
from plog._native.record_view cimport (
    RECORD_MISSING,
    RECORD_OFFSET,
    RECORD_OK,
    RECORD_SURPLUS,
    RECORD_TIMESTAMP,
    HeaderView,
    RecordView,
    add_delta,
    compression_fault,
    open_records,
    read_header_view,
    read_record,
    record_fault,
)
from plog._native.wire cimport be16

from plog._native.records import DECOMPRESSED_LIMIT
from plog.errors import CorruptRecord

COLUMNS = ("key", "value", "topic", "partition", "offset", "timestamp", "timestampType", "headers")
cdef object _COLUMNS = frozenset(COLUMNS)

cdef enum:
    LEAST_CAPACITY = 4096
    BITS_AHEAD = 512
    MOST_CONTROL_BYTES = 65536


# -- memory ----------------------------------------------------------------------------------------

ctypedef struct Growing:
    uint8_t* data
    int64_t size
    int64_t capacity

ctypedef struct Binary:      # offsets has one entry more than there are values
    Growing offsets
    Growing data
    Growing validity         # empty as long as nothing is null


cdef int reserve(Growing* buffer, int64_t extra) noexcept nogil:
    # Amortised; 0, or -1 without memory.
    cdef int64_t needed = buffer.size + extra
    cdef int64_t capacity = buffer.capacity
    cdef uint8_t* data
    if needed <= capacity:
        return 0
    capacity = max(needed, capacity * 2, <int64_t>LEAST_CAPACITY)
    data = <uint8_t*>realloc(buffer.data, <size_t>capacity)
    if data == NULL:
        return -1
    buffer.data = data
    buffer.capacity = capacity
    return 0


cdef inline void push32(Growing* buffer, int32_t value) noexcept nogil:
    # Room was reserved. Arrow's numbers are the machine's.
    memcpy(buffer.data + buffer.size, &value, 4)
    buffer.size += 4


cdef inline void push64(Growing* buffer, int64_t value) noexcept nogil:
    memcpy(buffer.data + buffer.size, &value, 8)
    buffer.size += 8


cdef void drop(Growing* buffer) noexcept nogil:
    free(buffer.data)
    memset(buffer, 0, sizeof(Growing))


cdef void drop_binary(Binary* column) noexcept nogil:
    drop(&column.offsets)
    drop(&column.data)
    drop(&column.validity)


cdef int cover(Growing* bits, int64_t count) noexcept nogil:
    # Bits of so many values and some to come, new ones set.
    cdef int64_t extra = (count + 7) // 8 - bits.size
    if extra > 0:
        extra += BITS_AHEAD
        if reserve(bits, extra) < 0:
            return -1
        memset(bits.data + bits.size, 0xFF, <size_t>extra)
        bits.size += extra
    return 0


cdef inline int set_null(Growing* bits, int64_t index) noexcept nogil:
    if index >> 3 >= bits.size and cover(bits, index + 1) < 0:
        return -1
    bits.data[index >> 3] &= <uint8_t>(~(1 << (index & 7)))
    return 0


cdef inline int push_bytes(Binary* column, int64_t index, const uint8_t* data, int32_t size) noexcept nogil:
    # Room in offsets and data was reserved.
    if size > 0:
        memcpy(column.data.data + column.data.size, data, <size_t>size)
        column.data.size += size
    elif size < 0 and set_null(&column.validity, index) < 0:
        return -1
    push32(&column.offsets, <int32_t>column.data.size)
    return 0


cdef int push_bytes_reserving(Binary* column, int64_t index, const uint8_t* data, int32_t size) noexcept nogil:
    if reserve(&column.offsets, 4) < 0 or reserve(&column.data, max(size, 0)) < 0:
        return -1
    return push_bytes(column, index, data, size)


cdef int push_text(Binary* column, int64_t index, const uint8_t* data, int32_t size) noexcept nogil:
    # What is not UTF-8 becomes U+FFFD, as in Java; almost every header key is ASCII.
    cdef int32_t i
    cdef uint8_t seen = 0
    for i in range(size):
        seen |= data[i]
    if seen >= 0x80:
        return push_decoded(column, index, data, size)
    return push_bytes_reserving(column, index, data, size)


cdef int push_decoded(Binary* column, int64_t index, const uint8_t* data, int32_t size) noexcept with gil:
    cdef bytes text
    try:
        text = PyUnicode_DecodeUTF8(<char*>data, size, "replace").encode("utf-8")
    except MemoryError:
        return -1
    return push_bytes_reserving(
        column, index, <const uint8_t*>PyBytes_AS_STRING(text), <int32_t>PyBytes_GET_SIZE(text))


cdef class ColumnBuffer:
    """Memory of a column, freed with this object; read it through the buffer protocol."""

    cdef uint8_t* data
    cdef Py_ssize_t size

    def __dealloc__(self):
        free(self.data)

    def __len__(self):
        return self.size

    def __getbuffer__(self, Py_buffer* view, int flags):
        PyBuffer_FillInfo(view, self, self.data, self.size, 1, flags)


cdef ColumnBuffer hand_over(Growing* buffer):
    # Even an empty buffer has an address. What was reserved but never written takes no memory.
    cdef ColumnBuffer taken = ColumnBuffer()
    if reserve(buffer, 1) < 0:
        raise MemoryError
    taken.data = buffer.data
    taken.size = buffer.size
    buffer.data = NULL
    buffer.size = 0
    buffer.capacity = 0
    return taken


cdef object hand_over_bits(Growing* bits, int64_t count):
    if bits.size == 0:
        return None
    if cover(bits, count) < 0:
        raise MemoryError
    bits.size = (count + 7) // 8
    if count & 7:
        bits.data[bits.size - 1] &= <uint8_t>((1 << (count & 7)) - 1)
    return hand_over(bits)


cdef int start_offsets(Growing* offsets) except -1:
    if reserve(offsets, 4) < 0:
        raise MemoryError
    push32(offsets, 0)
    return 0


cdef list hand_over_binary(Binary* column, int64_t count):
    cdef object validity = hand_over_bits(&column.validity, count)
    cdef list taken = [validity, hand_over(&column.offsets), hand_over(&column.data)]
    start_offsets(&column.offsets)
    return taken


cdef list repeat_text(bytes text, int64_t count):
    # No more than 2 GB: append stops before.
    cdef Growing offsets
    cdef Growing data
    cdef int64_t size = PyBytes_GET_SIZE(text)
    cdef int64_t i
    memset(&offsets, 0, sizeof(offsets))
    memset(&data, 0, sizeof(data))
    if reserve(&offsets, 4 * (count + 1)) < 0 or reserve(&data, size * count) < 0:
        free(offsets.data)
        raise MemoryError
    push32(&offsets, 0)
    for i in range(count):
        memcpy(data.data + data.size, PyBytes_AS_STRING(text), <size_t>size)
        data.size += size
        push32(&offsets, <int32_t>data.size)
    return [None, hand_over(&offsets), hand_over(&data)]


cdef list repeat_number(int32_t number, int64_t count):
    cdef Growing data
    cdef int64_t i
    memset(&data, 0, sizeof(data))
    if reserve(&data, 4 * count) < 0:
        raise MemoryError
    for i in range(count):
        push32(&data, number)
    return [None, hand_over(&data)]


# -- rows ------------------------------------------------------------------------------------------

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


cdef inline int64_t microseconds(int64_t timestamp_ms) noexcept nogil:
    # A time that Arrow cannot tell becomes the nearest one that it can.
    if timestamp_ms > INT64_MAX // 1000:
        return INT64_MAX
    if timestamp_ms < -(INT64_MAX // 1000):
        return INT64_MIN
    return timestamp_ms * 1000


cdef class ColumnBuilder:
    """Decodes record sets straight into the buffers of Arrow columns."""

    cdef bint with_key, with_value, with_topic, with_partition
    cdef bint with_offset, with_timestamp, with_timestamp_type, with_headers
    cdef bytes topic
    cdef int32_t partition
    cdef size_t decompressed_limit
    cdef int64_t fixed_bytes         # of a row
    cdef int64_t most_rows           # what int32 offsets into `topic` allow
    cdef bint busy                   # a thread is inside `append`, without the interpreter lock
    cdef int64_t rows
    cdef int64_t bytes_used
    cdef int64_t headers_used
    cdef Binary key
    cdef Binary value
    cdef Binary header_key
    cdef Binary header_value
    cdef Growing offset
    cdef Growing timestamp
    cdef Growing timestamp_type
    cdef Growing headers
    cdef Growing headers_validity
    # A compressed batch that did not go in whole is kept open for the next call.
    cdef uint8_t* held
    cdef size_t held_size
    cdef int64_t held_base_offset
    cdef uint32_t held_crc
    cdef int32_t held_length
    cdef Fill held_at

    def __init__(
        self,
        columns,
        str topic,
        int32_t partition,
        *,
        size_t decompressed_limit=DECOMPRESSED_LIMIT,
    ):
        unknown = frozenset(columns) - _COLUMNS
        if unknown:
            raise ValueError(f"there is no column {', '.join(sorted(unknown))}")
        self.release()
        self.with_key = "key" in columns
        self.with_value = "value" in columns
        self.with_topic = "topic" in columns
        self.with_partition = "partition" in columns
        self.with_offset = "offset" in columns
        self.with_timestamp = "timestamp" in columns
        self.with_timestamp_type = "timestampType" in columns
        self.with_headers = "headers" in columns
        self.topic = topic.encode("utf-8")
        self.partition = partition
        self.decompressed_limit = decompressed_limit
        self.fixed_bytes = (
            4 * (self.with_key + self.with_value + self.with_partition + self.with_timestamp_type + self.with_headers)
            + 8 * (self.with_offset + self.with_timestamp)
        )
        self.most_rows = INT32_MAX - 1
        if self.with_topic:
            self.fixed_bytes += 4 + len(self.topic)
            self.most_rows = min(self.most_rows, INT32_MAX // max(1, len(self.topic)))
        start_offsets(&self.key.offsets)
        start_offsets(&self.value.offsets)
        start_offsets(&self.header_key.offsets)
        start_offsets(&self.header_value.offsets)
        start_offsets(&self.headers)

    def __dealloc__(self):
        self.release()

    cdef void release(self):
        drop_binary(&self.key)
        drop_binary(&self.value)
        drop_binary(&self.header_key)
        drop_binary(&self.header_value)
        drop(&self.offset)
        drop(&self.timestamp)
        drop(&self.timestamp_type)
        drop(&self.headers)
        drop(&self.headers_validity)
        self.let_go()
        self.rows = 0
        self.bytes_used = 0
        self.headers_used = 0

    cdef void let_go(self) noexcept nogil:
        free(self.held)
        self.held = NULL

    def __len__(self):
        return self.rows

    @property
    def data_bytes(self):
        """Bytes of the buffers so far, but for the validity bits."""
        return self.bytes_used

    # -- one batch

    cdef int push_headers(self, const RecordView* record, const uint8_t* end) noexcept nogil:
        cdef const uint8_t* p = record.headers
        cdef HeaderView header
        cdef int64_t before = self.header_key.data.size + self.header_value.data.size
        cdef int32_t i
        if record.headers_count == 0:
            # Spark's own Kafka source gives null here, and no empty array.
            if set_null(&self.headers_validity, self.rows) < 0:
                return -1
        for i in range(record.headers_count):
            p = read_header_view(p, end, &header)
            if p == NULL:
                return -2
            if push_text(&self.header_key, self.headers_used, header.key, header.key_size) < 0:
                return -1
            if push_bytes_reserving(&self.header_value, self.headers_used, header.value, header.value_size) < 0:
                return -1
            self.headers_used += 1
        push32(&self.headers, <int32_t>self.headers_used)
        self.bytes_used += (
            self.header_key.data.size + self.header_value.data.size - before + 8 * <int64_t>record.headers_count)
        return 0

    cdef bint has_room(self, const RecordView* record, const uint8_t* end) noexcept nogil:
        # Arrow's 32-bit offsets; a header key may grow threefold when it is not UTF-8.
        cdef int64_t headers
        if record.key_size > INT32_MAX - self.key.data.size:
            return False
        if record.value_size > INT32_MAX - self.value.data.size:
            return False
        if self.with_headers and record.headers_count:
            headers = end - record.headers
            if 3 * headers > INT32_MAX - self.header_key.data.size:
                return False
            if headers > INT32_MAX - self.header_value.data.size:
                return False
            if record.headers_count > INT32_MAX - self.headers_used:
                return False
        return True

    cdef int reserve_rows(self, int64_t rows, int64_t size) noexcept nogil:
        # `size` bytes of records hold no more than that of values. Keys are small, or there are none.
        if self.with_key and reserve(&self.key.offsets, 4 * rows) < 0:
            return -1
        if self.with_value:
            if reserve(&self.value.offsets, 4 * rows) < 0 or reserve(&self.value.data, size) < 0:
                return -1
        if self.with_offset and reserve(&self.offset, 8 * rows) < 0:
            return -1
        if self.with_timestamp and reserve(&self.timestamp, 8 * rows) < 0:
            return -1
        if self.with_timestamp_type and reserve(&self.timestamp_type, 4 * rows) < 0:
            return -1
        if self.with_headers and reserve(&self.headers, 4 * rows) < 0:
            return -1
        return 0

    cdef int fill(self, const uint8_t* start, const uint8_t* end, const BatchFields* batch,
                  Fill* fill) noexcept nogil:
        cdef const uint8_t* p = start + fill.at
        cdef const uint8_t* after
        cdef RecordView record
        cdef bint append_time = (batch.attributes & ATTRIBUTE_LOG_APPEND_TIME) != 0
        cdef int64_t timestamp
        cdef int64_t offset
        cdef int pushed
        cdef int64_t rows = min(<int64_t>(batch.records_count - fill.index), (end - p) // 7 + 1)
        if self.reserve_rows(min(rows, fill.max_rows - self.rows), end - p) < 0:
            return FILL_NO_MEMORY
        while fill.index < batch.records_count:
            fill.at = p - start
            if p == end:
                fill.fault = RECORD_MISSING
                return FILL_FAULT
            after = read_record(p, end, &record, &fill.fault)
            if after == NULL:
                return FILL_FAULT
            if not add_delta(batch.base_timestamp, record.timestamp_delta, &timestamp):
                fill.fault = RECORD_TIMESTAMP
                return FILL_FAULT
            if record.offset_delta <= fill.last_delta or record.offset_delta > batch.last_offset_delta:
                fill.fault = RECORD_OFFSET
                return FILL_FAULT
            offset = batch.base_offset + record.offset_delta
            if offset >= fill.end_offset:
                fill.next_offset = fill.end_offset
                return FILL_DONE
            if offset >= fill.start_offset:
                if self.rows >= fill.max_rows or self.bytes_used >= fill.max_bytes or not self.has_room(&record, after):
                    fill.next_offset = offset
                    return FILL_FULL
                if self.with_key:
                    if (record.key_size > self.key.data.capacity - self.key.data.size
                            and reserve(&self.key.data, record.key_size) < 0):
                        return FILL_NO_MEMORY
                    if push_bytes(&self.key, self.rows, record.key, record.key_size) < 0:
                        return FILL_NO_MEMORY
                    self.bytes_used += max(record.key_size, 0)
                if self.with_value:
                    if push_bytes(&self.value, self.rows, record.value, record.value_size) < 0:
                        return FILL_NO_MEMORY
                    self.bytes_used += max(record.value_size, 0)
                if self.with_offset:
                    push64(&self.offset, offset)
                if self.with_timestamp:
                    push64(&self.timestamp, microseconds(batch.max_timestamp if append_time else timestamp))
                if self.with_timestamp_type:
                    push32(&self.timestamp_type, append_time)
                if self.with_headers:
                    pushed = self.push_headers(&record, after)
                    if pushed < 0:
                        fill.fault = RECORD_OK
                        return FILL_NO_MEMORY if pushed == -1 else FILL_FAULT
                self.bytes_used += self.fixed_bytes
                self.rows += 1
            fill.last_delta = record.offset_delta
            fill.index += 1
            p = after
        if p != end:
            fill.fault = RECORD_SURPLUS
            fill.at = p - start
            return FILL_FAULT
        fill.next_offset = min(last_offset(batch) + 1, fill.end_offset)
        return FILL_DONE

    cdef int fill_batch(self, const uint8_t* p, const uint8_t* end, Py_ssize_t pos, const BatchFields* batch,
                        Fill* fill) except -1:
        # FILL_DONE or FILL_FULL; the checksum was right, unless the batch is held from last time.
        cdef const uint8_t* records = NULL
        cdef uint8_t* owned = NULL
        cdef size_t size = 0
        cdef int opened = COMPRESSION_OK
        cdef int filled = FILL_DONE
        fill.at = 0
        fill.index = 0
        fill.last_delta = -1
        with nogil:
            if self.holds(batch):
                records = self.held
                size = self.held_size
                owned = self.held
                self.held = NULL
                if fill.start_offset >= self.held_at.next_offset:
                    fill.at = self.held_at.at
                    fill.index = self.held_at.index
                    fill.last_delta = self.held_at.last_delta
            else:
                self.let_go()
                opened = open_records(p, batch, self.decompressed_limit, &records, &size, &owned)
            if opened == COMPRESSION_OK:
                filled = self.fill(records, records + size, batch, fill)
            if filled == FILL_FULL and owned != NULL:
                self.held = owned
                self.held_size = size
                self.held_base_offset = batch.base_offset
                self.held_crc = batch.crc
                self.held_length = batch.batch_length
                self.held_at = fill[0]
            else:
                free(owned)
        if opened != COMPRESSION_OK:
            raise CorruptRecord(
                compression_fault(opened, batch.attributes & ATTRIBUTE_CODEC, self.decompressed_limit))
        if filled == FILL_NO_MEMORY:
            raise MemoryError
        if filled == FILL_FAULT:
            raise CorruptRecord(record_fault(fill.fault, fill.index, fill.at))
        return filled

    cdef bint holds(self, const BatchFields* batch) noexcept nogil:
        return (
            self.held != NULL
            and self.held_base_offset == batch.base_offset
            and self.held_crc == batch.crc
            and self.held_length == batch.batch_length
        )

    # -- a record set

    def append(
        self,
        records,
        int64_t start_offset,
        int64_t end_offset,
        int64_t max_rows=INT32_MAX,
        aborted=None,
        int64_t max_bytes=INT64_MAX,
    ):
        """Decode the records with start_offset <= offset < end_offset; return the next offset to ask for."""
        cdef Py_buffer view
        cdef Fill fill
        fill.start_offset = start_offset
        fill.end_offset = end_offset
        fill.max_rows = min(max_rows, self.most_rows)
        fill.max_bytes = max_bytes
        fill.next_offset = start_offset
        fill.fault = RECORD_OK
        if start_offset < 0:
            raise ValueError(f"start_offset is {start_offset}")
        if start_offset >= end_offset:
            return start_offset
        self.enter()
        PyObject_GetBuffer(records, &view, PyBUF_SIMPLE)
        self.busy = True
        try:
            self.append_all(<const uint8_t*>view.buf, <const uint8_t*>view.buf + view.len, &fill,
                            None if aborted is None else Aborted(aborted))
        finally:
            self.busy = False
            PyBuffer_Release(&view)
        return fill.next_offset

    cdef int enter(self) except -1:
        if self.busy:
            raise RuntimeError("another thread appends to this builder")
        return 0

    cdef int append_all(self, const uint8_t* start, const uint8_t* end, Fill* fill, Aborted aborted) except -1:
        cdef const uint8_t* p = start
        cdef BatchFields batch
        cdef int64_t size
        cdef int64_t reached = 0
        cdef int status
        cdef bint before
        while p < end and self.rows < fill.max_rows and self.bytes_used < fill.max_bytes:
            status = read_header(p, end, &batch)
            if status == BATCH_OK:
                size = <int64_t>batch.batch_length + AT_LEADER_EPOCH
                if end - p < size:
                    status = BATCH_CUT
            if status == BATCH_CUT:
                return 0
            # Batches before the first row, and one held open, are known by their headers alone.
            before = (
                status == BATCH_OK
                and batch.base_offset >= 0
                and batch.last_offset_delta >= 0
                and batch.base_offset < fill.start_offset - batch.last_offset_delta
                and not (aborted is not None and batch.attributes & ATTRIBUTE_CONTROL)
            )
            if status == BATCH_OK and not before and not self.holds(&batch):
                with nogil:
                    status = check_batch(p, end, &batch)
            if status != BATCH_OK:
                raise CorruptRecord(batch_fault(status, p, end, p - start))
            if batch.base_offset < reached:
                raise CorruptRecord(
                    f"batch at {p - start}: base_offset {batch.base_offset} is below {reached},"
                    " where the batch before it ends"
                )
            reached = last_offset(&batch) + 1
            if batch.base_offset >= fill.end_offset:
                fill.next_offset = fill.end_offset
                return 0
            if not self.is_left_out(p, &batch, aborted) and not before:
                if self.fill_batch(p, end, p - start, &batch, fill) == FILL_FULL:
                    return 0
            fill.next_offset = max(fill.next_offset, min(last_offset(&batch) + 1, fill.end_offset))
            if fill.next_offset == fill.end_offset:
                return 0
            p += size
        return 0

    cdef bint is_left_out(self, const uint8_t* p, const BatchFields* batch, Aborted aborted) except -1:
        if aborted is not None:
            aborted.begin(last_offset(batch))
        if batch.attributes & ATTRIBUTE_CONTROL:
            if aborted is not None and is_abort_marker(p, batch):
                aborted.producers.discard(batch.producer_id)
            return True
        return (
            aborted is not None
            and batch.attributes & ATTRIBUTE_TRANSACTIONAL
            and batch.producer_id in aborted.producers
        )

    def take(self):
        """Hand over the buffers of each wanted column, in Arrow's physical layout order, and start anew."""
        cdef dict taken = {}
        cdef int64_t rows = self.rows
        self.enter()
        if self.with_key:
            taken["key"] = hand_over_binary(&self.key, rows)
        if self.with_value:
            taken["value"] = hand_over_binary(&self.value, rows)
        if self.with_topic:
            taken["topic"] = repeat_text(self.topic, rows)
        if self.with_partition:
            taken["partition"] = repeat_number(self.partition, rows)
        if self.with_offset:
            taken["offset"] = [None, hand_over(&self.offset)]
        if self.with_timestamp:
            taken["timestamp"] = [None, hand_over(&self.timestamp)]
        if self.with_timestamp_type:
            taken["timestampType"] = [None, hand_over(&self.timestamp_type)]
        if self.with_headers:
            taken["headers"] = [hand_over_bits(&self.headers_validity, rows), hand_over(&self.headers)]
            start_offsets(&self.headers)
            taken["headers.key"] = hand_over_binary(&self.header_key, self.headers_used)
            taken["headers.value"] = hand_over_binary(&self.header_value, self.headers_used)
        self.rows = 0
        self.bytes_used = 0
        self.headers_used = 0
        return taken


cdef class Aborted:
    """The aborted transactions of one fetch, begun in order of their first offsets."""

    cdef list transactions       # (first offset, producer id)
    cdef Py_ssize_t begun
    cdef set producers           # those whose data is left out until their marker

    def __init__(self, aborted):
        self.transactions = sorted((first, producer) for producer, first in aborted)
        self.begun = 0
        self.producers = set()

    cdef int begin(self, int64_t offset) except -1:
        cdef int64_t first
        cdef int64_t producer
        while self.begun < len(self.transactions):
            first, producer = self.transactions[self.begun]
            if first > offset:
                break
            self.producers.add(producer)
            self.begun += 1
        return 0


cdef bint is_abort_marker(const uint8_t* p, const BatchFields* batch) except -1:
    # Key of a control record: version, type; type 0 is ABORT. An emptied batch marks nothing.
    cdef const uint8_t* records = NULL
    cdef uint8_t* owned = NULL
    cdef size_t size = 0
    cdef RecordView record
    cdef int fault = RECORD_OK
    cdef int opened
    if batch.records_count == 0:
        return False
    opened = open_records(p, batch, MOST_CONTROL_BYTES, &records, &size, &owned)
    if opened != COMPRESSION_OK:
        raise CorruptRecord(
            compression_fault(opened, batch.attributes & ATTRIBUTE_CODEC, MOST_CONTROL_BYTES))
    try:
        if read_record(records, records + size, &record, &fault) == NULL:
            raise CorruptRecord(record_fault(fault, 0, 0))
        if record.key_size < 4:
            raise CorruptRecord(f"a control record's key has {record.key_size} bytes")
        return be16(record.key + 2) == 0
    finally:
        free(owned)
