"""Record sets into the buffers of Arrow columns, without a Python object per record.

Owns which batches of a fetch give rows (offsets asked for, no markers, no aborted
data) and where the next call goes on; rows are `column_rows`, their memory
`arrow_buffers`. Knows nothing of pyarrow or Spark but the names of the columns.
Never reads past a batch.
"""

from cpython.buffer cimport PyBUF_SIMPLE, PyBuffer_Release, PyObject_GetBuffer
from libc.stdint cimport INT32_MAX, INT64_MAX, int32_t, int64_t, uint8_t, uint32_t
from libc.stdlib cimport free

from plog._native.aborted_transactions cimport AbortedTransactions
from plog._native.arrow_buffers cimport repeat_number, repeat_text
from plog._native.batch_fields cimport (
    ATTRIBUTE_CODEC,
    ATTRIBUTE_CONTROL,
    BATCH_CUT,
    BATCH_OK,
    BatchFields,
    batch_fault,
    check_batch,
    last_offset,
    read_header,
    size_of,
)
from plog._native.column_rows cimport (
    FILL_DONE,
    FILL_FAULT,
    FILL_FULL,
    FILL_NO_MEMORY,
    Fill,
    Rows,
    rows_drop,
    rows_fill,
    rows_start,
    rows_take,
)
from plog._native.codec_status cimport COMPRESSION_OK
from plog._native.record_view cimport RECORD_OK, compression_fault, open_records, record_fault

from plog._native.records import DECOMPRESSED_LIMIT
from plog.errors import CorruptRecord

COLUMNS = ("key", "value", "topic", "partition", "offset", "timestamp", "timestampType", "headers")
cdef object _COLUMNS = frozenset(COLUMNS)


cdef class ColumnBuilder:
    """Decodes record sets straight into the buffers of Arrow columns."""

    cdef bint with_topic
    cdef bint with_partition
    cdef bytes topic
    cdef int32_t partition
    cdef size_t decompressed_limit
    cdef int64_t most_rows           # what int32 offsets into `topic` allow
    cdef bint busy                   # a thread is inside `append`, without the interpreter lock
    cdef Rows rows
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
        cdef int64_t one_value_bytes
        unknown = frozenset(columns) - _COLUMNS
        if unknown:
            raise ValueError(f"unknown column {', '.join(sorted(unknown))}")
        self.release()
        self.rows.with_key = "key" in columns
        self.rows.with_value = "value" in columns
        self.with_topic = "topic" in columns
        self.with_partition = "partition" in columns
        self.rows.with_offset = "offset" in columns
        self.rows.with_timestamp = "timestamp" in columns
        self.rows.with_timestamp_type = "timestampType" in columns
        self.rows.with_headers = "headers" in columns
        self.topic = topic.encode("utf-8")
        self.partition = partition
        self.decompressed_limit = decompressed_limit
        self.most_rows = INT32_MAX - 1
        one_value_bytes = 4 * self.with_partition
        if self.with_topic:
            one_value_bytes += 4 + len(self.topic)
            self.most_rows = min(self.most_rows, INT32_MAX // max(1, len(self.topic)))
        rows_start(&self.rows, one_value_bytes)

    def __dealloc__(self):
        self.release()

    cdef void release(self):
        rows_drop(&self.rows)
        self.let_go()

    cdef void let_go(self) noexcept nogil:
        free(self.held)
        self.held = NULL

    def __len__(self):
        return self.rows.count

    @property
    def data_bytes(self):
        """Bytes of the buffers so far, but for the validity bits."""
        return self.rows.bytes_used

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
                            None if aborted is None else AbortedTransactions(aborted))
        finally:
            self.busy = False
            PyBuffer_Release(&view)
        return fill.next_offset

    cdef int enter(self) except -1:
        if self.busy:
            raise RuntimeError("another thread appends to this builder")
        return 0

    cdef int append_all(self, const uint8_t* start, const uint8_t* end, Fill* fill,
                        AbortedTransactions aborted) except -1:
        cdef const uint8_t* p = start
        cdef BatchFields batch
        cdef int64_t size
        cdef int64_t reached = 0
        cdef int status
        cdef bint before
        cdef bint left_out
        while p < end and self.rows.count < fill.max_rows and self.rows.bytes_used < fill.max_bytes:
            status = read_header(p, end, &batch)
            if status == BATCH_OK:
                size = size_of(p)
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
            if aborted is None:
                left_out = (batch.attributes & ATTRIBUTE_CONTROL) != 0
            else:
                left_out = aborted.leave_out(p, &batch)
            if not left_out and not before:
                if self.fill_batch(p, &batch, fill) == FILL_FULL:
                    return 0
            fill.next_offset = max(fill.next_offset, min(last_offset(&batch) + 1, fill.end_offset))
            if fill.next_offset == fill.end_offset:
                return 0
            p += size
        return 0

    # -- one batch

    cdef int fill_batch(self, const uint8_t* p, const BatchFields* batch, Fill* fill) except -1:
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
                filled = rows_fill(&self.rows, records, records + size, batch, fill)
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

    # -- columns

    def take(self):
        """Hand over the buffers of each wanted column, in Arrow's physical layout order, and start anew."""
        cdef dict taken = {}
        self.enter()
        if self.with_topic:
            taken["topic"] = repeat_text(self.topic, self.rows.count)
        if self.with_partition:
            taken["partition"] = repeat_number(self.partition, self.rows.count)
        rows_take(&self.rows, taken)
        return taken
