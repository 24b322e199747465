"""A segment and a range of its log file, as Python holds them.

Owns their Python faces: what `storage` opens, looks up and seals. The files and their pins are
`segment_files`'.
"""

from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize
from libc.errno cimport EIO
from libc.stdint cimport INT64_MAX, int64_t, uint8_t
from libc.stdlib cimport calloc

import os

from plog._native.files cimport calls, read_fully
from plog._native.index cimport OFFSET_ENTRY_BYTES, TIME_ENTRY_BYTES
from plog._native.locks cimport load, pthread_mutex_init
from plog._native.segment_append cimport segment_seal
from plog._native.segment_files cimport SegmentFiles, segment_read_through, segment_release
from plog._native.segment_walk cimport (
    WALK_CORRUPT, WALK_FOUND, WALK_PAST_END, BatchPlace, Window, segment_lookup_offset, segment_lookup_time,
    segment_offset_behind, segment_offset_past)
from plog._native.wire cimport be64


cdef object os_error(int64_t negative):
    return OSError(-negative, os.strerror(-negative))


cdef bytes read_bytes(SegmentFiles* segment, int64_t position, int64_t size):
    """Read what is there of the range. Raises OSError."""
    cdef bytes out = PyBytes_FromStringAndSize(NULL, size)
    cdef char* at = PyBytes_AS_STRING(out)
    cdef int64_t done
    with nogil:
        done = read_fully(segment.log_fd, at, size, position)
    if done < 0:
        raise os_error(done)
    return out if done == size else out[:done]


cdef int read_last_timestamp(SegmentFiles* files) except -1:
    """Of the time index, which has entries."""
    cdef uint8_t entry[TIME_ENTRY_BYTES]
    cdef int64_t entries = files.time_entries
    cdef int64_t done
    with nogil:
        done = read_fully(files.time_index_fd, entry, TIME_ENTRY_BYTES, (entries - 1) * TIME_ENTRY_BYTES)
    if done < 0:
        raise os_error(done)
    if done < TIME_ENTRY_BYTES:
        raise OSError(EIO, f"the time index of segment {files.base_offset} has fewer entries than {entries}")
    files.last_indexed_timestamp = <int64_t>be64(entry)
    return 0


cdef class Segment:
    """A segment's files, pinned for as long as this object lives.

    Takes the descriptors over (the index files' must be readable); they are closed when the last
    pin goes, also when the constructor raises OSError. Only the partition log whose active segment
    it is lets it grow.

    Raises:
        ValueError: numbers that contradict each other; the descriptors stay the caller's.
        OSError: the last time index entry cannot be read.
    """

    def __cinit__(
        self,
        int64_t base_offset,
        *,
        int log_fd,
        int offset_index_fd,
        int time_index_fd,
        int64_t size_bytes,
        int64_t next_offset,
        int64_t offset_entries,
        int64_t time_entries,
        int64_t max_timestamp,
        int64_t max_timestamp_offset,
        int64_t bytes_since_index_entry,
        int64_t first_append_ms,
        int64_t max_index_bytes,
    ):
        cdef SegmentFiles* files
        if (min(base_offset, size_bytes, offset_entries, time_entries, bytes_since_index_entry) < 0
                or next_offset < base_offset or max_index_bytes < 0):
            raise ValueError(
                f"segment {base_offset}: numbers below zero, or an end before the base")
        files = <SegmentFiles*>calloc(1, sizeof(SegmentFiles))
        if files == NULL:
            raise MemoryError
        files.references = 1
        files.base_offset = base_offset
        files.log_fd = log_fd
        files.offset_index_fd = offset_index_fd
        files.time_index_fd = time_index_fd
        files.created_ms = calls().now_ms()
        files.max_offset_entries = max_index_bytes // OFFSET_ENTRY_BYTES
        files.max_time_entries = max_index_bytes // TIME_ENTRY_BYTES
        # Files may be longer than today's limit, and seal() may add an entry to a full time index.
        files.offset_map_bytes = max(
            files.max_offset_entries + 1, offset_entries) * OFFSET_ENTRY_BYTES
        files.time_map_bytes = max(
            files.max_time_entries, time_entries + 1) * TIME_ENTRY_BYTES
        files.size_bytes = files.loaded_bytes = size_bytes
        files.next_offset = next_offset
        files.offset_entries = files.offsets_written = offset_entries
        files.time_entries = files.times_written = time_entries
        files.max_timestamp = max_timestamp
        files.max_timestamp_offset = max_timestamp_offset
        files.first_append_ms = first_append_ms
        files.bytes_since_index_entry = bytes_since_index_entry
        files.last_indexed_timestamp = -1
        pthread_mutex_init(&files.index_lock, NULL)
        pthread_mutex_init(&files.tail_lock, NULL)
        self.files = files
        if time_entries > 0:
            read_last_timestamp(files)

    def __dealloc__(self):
        segment_release(self.files)

    def __repr__(self):
        return f"<Segment {self.base_offset} to {self.next_offset}, {self.size_bytes} bytes>"

    @property
    def base_offset(self):
        """First offset that may be in the segment; the files are named after it."""
        return self.files.base_offset

    @property
    def size_bytes(self):
        """Published bytes of the log file."""
        return load(&self.files.size_bytes)

    @property
    def next_offset(self):
        """Offset behind the last batch; base_offset when empty."""
        return load(&self.files.next_offset)

    @property
    def offset_entries(self):
        """Entries of the offset index; the last ones may not be in its file before `seal`."""
        return load(&self.files.offset_entries)

    @property
    def time_entries(self):
        """Entries of the time index; the last ones may not be in its file before `seal`."""
        return load(&self.files.time_entries)

    @property
    def max_timestamp(self):
        """Largest timestamp of any batch, -1 when there is none."""
        return load(&self.files.max_timestamp)

    @property
    def max_timestamp_offset(self):
        """Last offset of the first batch that has max_timestamp."""
        return load(&self.files.max_timestamp_offset)

    @property
    def first_append_ms(self):
        """Largest timestamp of the first batch, or -1."""
        return load(&self.files.first_append_ms)

    def lookup_offset(self, int64_t target):
        """Return (last offset, position) of the batch that the greatest index entry at or below `target` leads to.

        An entry that does not bound its batch is not used. (base_offset, 0) when there is no other. Raises OSError
        when the index cannot be mapped or the log file cannot be read.
        """
        cdef Window window
        cdef BatchPlace place
        cdef int status
        window.position = window.filled = 0
        window.never_waits = False
        with nogil:
            status = segment_lookup_offset(
                self.files, target, load(&self.files.size_bytes), NULL, &window, &place)
        if status == WALK_FOUND and place.position > 0:
            return place.last_offset, place.position
        if status != WALK_FOUND and status != WALK_PAST_END and status != WALK_CORRUPT:
            raise os_error(status)
        return self.files.base_offset, 0

    def lookup_time(self, int64_t timestamp):
        """Return (timestamp, offset) of the greatest time index entry at or below `timestamp`.

        (-1, base_offset) when there is none. Raises OSError when the index cannot be mapped.
        """
        cdef int64_t found, offset
        cdef int failed = segment_lookup_time(self.files, timestamp, &found, &offset)
        if failed:
            raise os_error(failed)
        return found, offset

    def read(self, int64_t position, int64_t size):
        """Return `size` bytes of the log file, fewer at the published end. Raises OSError."""
        if position < 0 or size < 0:
            raise ValueError(f"cannot read {size} bytes at {position}")
        size = max(min(size, load(&self.files.size_bytes) - position), 0)
        return read_bytes(self.files, position, size)

    def seal(self):
        """Bring the indexes to their files whole, with the final time index entry, as Kafka does
        when a segment is rolled or closed.

        There is no such entry when the last one says it already. Raises OSError, with the files cut
        back.
        """
        cdef int failed
        with nogil:
            failed = segment_seal(self.files)
        if failed:
            raise os_error(failed)

    def sync_indexes(self):
        """Bring both index files to the disk: before a recovery point moves past the segment, which
        is sealed.

        Raises OSError.
        """
        cdef int failed
        with nogil:
            failed = calls().fdatasync(self.files.offset_index_fd)
            if not failed:
                failed = calls().fdatasync(self.files.time_index_fd)
        if failed:
            raise os_error(failed)


cdef class FileRange:
    """Bytes of a segment's log file, pinned: the reactor sends it by sendfile, others read it.

    `next_offset_hint` is the offset at which the next batch starts, or -1 when the range was cut by
    its size and nobody looked.
    """

    def __init__(self):
        raise TypeError("a FileRange comes from PartitionLog.read")

    def __dealloc__(self):
        segment_release(self.segment)

    def __len__(self):
        return self.size

    def __repr__(self):
        return f"<FileRange of {self.size} bytes at {self.position}>"

    def end_offset(self):
        """Return an offset that its batches lie below: that of the next one, or of the nearest in the index.

        Raises OSError when the index cannot be mapped.
        """
        cdef int64_t offset = self.next_offset_hint
        cdef int failed
        if offset < 0 and self.segment != NULL:
            failed = segment_offset_past(self.segment, self.position + self.size, &offset)
            if failed:
                raise os_error(failed)
        return offset

    def next_offset(self):
        """Return the offset behind the last whole batch, -1 if that needs the disk or a header is damaged."""
        cdef int64_t offset = self.next_offset_hint
        cdef int failed = 0
        if offset < 0 and self.segment != NULL:
            with nogil:
                failed = segment_offset_behind(
                    self.segment, self.position, self.position + self.size, &offset)
        return -1 if failed else offset

    def is_resident(self):
        """Whether the bytes are in the page cache, by samples: sending them then keeps nobody waiting."""
        cdef bint resident = True
        if self.segment != NULL and self.size > 0:
            with nogil:
                resident = calls().is_resident(self.segment.log_fd, self.position, self.size)
        return resident

    def read_through(self):
        """Have the disk bring the bytes into the page cache; what cannot be read, who sends it finds."""
        if self.segment != NULL:
            with nogil:
                segment_read_through(self.segment, self.position, self.size)

    def read(self, int64_t max_bytes=INT64_MAX):
        """Return the first `max_bytes` of the bytes.

        Raises:
            OSError: they cannot be read, or the file has been cut since.
        """
        cdef bytes out
        cdef int64_t size = min(self.size, max_bytes)
        if self.segment == NULL:  # made by __new__ alone
            return b""
        out = read_bytes(self.segment, self.position, size)
        if len(out) < size:
            raise OSError(EIO, f"segment {self.segment.base_offset} ends before {self.position + size}")
        return out


cdef FileRange new_file_range(
        SegmentFiles* pinned, int64_t position, int64_t size, int64_t next_offset_hint):
    cdef FileRange made = FileRange.__new__(FileRange)
    made.segment = pinned
    made.position = position
    made.size = size
    made.next_offset_hint = next_offset_hint
    return made
