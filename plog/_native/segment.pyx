"""One segment's files as the data path sees them.

Owns the descriptors, the counted pins that keep them open, the index mappings, and the walk over
batch headers from an index entry to an offset. Never knows which segments a log has, who leads it,
or what a batch holds beyond its header.

Formats: the `.log` file is a sequence of record batches (or of older message set entries, which
begin with the same offset and size); `.index` and `.timeindex` are laid out by
`plog._native.index`.
"""

from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize
from libc.errno cimport EAGAIN, EINTR, EIO, errno
from libc.stdint cimport INT32_MAX, int8_t, int32_t, int64_t, uint8_t
from libc.stdlib cimport calloc, free
from posix.unistd cimport close

import os

from plog._native.batch_fields cimport AT_BATCH_LENGTH, AT_LAST_OFFSET_DELTA, AT_MAGIC, BATCH_HEADER_BYTES
from plog._native.files cimport calls, iovec, read_fully, write_all
from plog._native.index cimport OFFSET_ENTRY_BYTES, TIME_ENTRY_BYTES, search_offset, search_time
from plog._native.locks cimport (
    add, claim_pointer, load, load_pointer, pthread_mutex_destroy, pthread_mutex_init,
    pthread_mutex_lock, pthread_mutex_unlock, store)
from plog._native.wire cimport be32, be64, put_int32, put_int64

cdef extern from "<sys/mman.h>" nogil:
    void* mmap(void* address, size_t size, int protection, int flags, int fd, long offset)
    int munmap(void* address, size_t size)
    int PROT_READ
    int MAP_SHARED
    void* MAP_FAILED

cdef enum:
    # Offset and size, which message sets of every age begin with.
    LOG_OVERHEAD_BYTES = 12
    # What a reader must have to know an entry's age: the overhead, the next 4 bytes and the magic.
    HEADER_UP_TO_MAGIC_BYTES = 17
    # The least of a magic 0 entry: CRC, magic, attributes, key and value length.
    MIN_MESSAGE_BYTES = 14
    INDEXED_AT_ONCE = 64
    PIECES_AT_ONCE = 64
    # Up to a page's end. The kernel answers larger writes with larger folios, which it finds less readily: writes of
    # 1 MB took half as much again for a byte as those of 64 to 256 KB.
    LARGEST_WRITE_BYTES = 128 * 1024
    PAGE_BYTES = 4096


# --- pins -----------------------------------------------------------------------------------------

cdef void segment_retain(SegmentFiles* segment) noexcept nogil:
    add(&segment.references, 1)


cdef void segment_release(SegmentFiles* segment) noexcept nogil:
    if segment == NULL or add(&segment.references, -1) > 0:
        return
    if segment.offset_map != NULL:
        munmap(segment.offset_map, segment.offset_map_bytes)
    if segment.time_map != NULL:
        munmap(segment.time_map, segment.time_map_bytes)
    # A failed close has nothing left to report: what had to be on the disk was synced before.
    close(segment.log_fd)
    close(segment.offset_index_fd)
    close(segment.time_index_fd)
    pthread_mutex_destroy(&segment.index_lock)
    free(segment)


# --- lookups --------------------------------------------------------------------------------------

cdef int mapped(void** slot, int fd, int64_t size, const uint8_t** out) noexcept nogil:
    cdef void* at = load_pointer(slot)
    if at == NULL:
        at = mmap(NULL, size, PROT_READ, MAP_SHARED, fd, 0)
        if at == MAP_FAILED:
            return -errno
        if not claim_pointer(slot, at):  # another thread was first
            munmap(at, size)
            at = load_pointer(slot)
    out[0] = <const uint8_t*>at
    return 0


cdef int segment_lookup_offset(
        SegmentFiles* segment, int64_t target, int64_t* offset, int64_t* position) noexcept nogil:
    cdef int64_t count = load(&segment.offset_entries)
    cdef const uint8_t* entries = NULL
    cdef int64_t number = -1
    cdef int failed
    if count > 0 and target >= segment.base_offset:
        failed = mapped(
            &segment.offset_map, segment.offset_index_fd, segment.offset_map_bytes, &entries)
        if failed:
            return failed
        number = search_offset(entries, count, target - segment.base_offset)
    if number < 0:
        offset[0] = segment.base_offset
        position[0] = 0
    else:
        entries += number * OFFSET_ENTRY_BYTES
        offset[0] = segment.base_offset + <int32_t>be32(entries)
        position[0] = <int32_t>be32(entries + 4)
    return 0


cdef int segment_lookup_time(
        SegmentFiles* segment, int64_t timestamp, int64_t* found, int64_t* offset) noexcept nogil:
    cdef int64_t count = load(&segment.time_entries)
    cdef const uint8_t* entries = NULL
    cdef int64_t number = -1
    cdef int failed
    if count > 0:
        failed = mapped(
            &segment.time_map, segment.time_index_fd, segment.time_map_bytes, &entries)
        if failed:
            return failed
        number = search_time(entries, count, timestamp)
    if number < 0:
        found[0] = -1
        offset[0] = segment.base_offset
    else:
        entries += number * TIME_ENTRY_BYTES
        found[0] = <int64_t>be64(entries)
        offset[0] = segment.base_offset + <int32_t>be32(entries + 8)
    return 0


# --- walking --------------------------------------------------------------------------------------

cdef int64_t fill(Window* window, int fd, int64_t position, int64_t size, int64_t wanted) noexcept nogil:
    cdef int64_t done
    if window.never_waits:
        done = calls().pread_now(fd, window.data, size, position)
        # Of a page that is there and one that is not, the first is read.
        return -EAGAIN if 0 <= done < wanted else done
    return read_fully(fd, window.data, size, position)


cdef int batch_at(
        SegmentFiles* segment, int64_t position, int64_t end, Window* window,
        BatchPlace* place) noexcept nogil:
    """Read the header at `position`; the whole batch must lie before `end`."""
    cdef int64_t wanted = min(end - position, <int64_t>BATCH_HEADER_BYTES)
    cdef int64_t done, length
    cdef const uint8_t* p
    cdef int8_t magic
    cdef int32_t last_offset_delta
    place.position = position
    if position == end:
        return WALK_PAST_END
    if wanted < HEADER_UP_TO_MAGIC_BYTES:
        return WALK_CORRUPT
    if position < window.position or position + wanted > window.position + window.filled:
        window.filled = 0
        done = fill(window, segment.log_fd, position, min(end - position, <int64_t>WINDOW_BYTES), wanted)
        if done < 0:
            return <int>done
        if done < wanted:
            return WALK_CORRUPT  # the file is shorter than what was published
        window.position = position
        window.filled = done
    p = window.data + (position - window.position)
    length = <int32_t>be32(p + AT_BATCH_LENGTH)
    place.base_offset = <int64_t>be64(p)
    place.size = LOG_OVERHEAD_BYTES + length
    magic = <int8_t>p[AT_MAGIC]
    if length < MIN_MESSAGE_BYTES or place.size > end - position:
        return WALK_CORRUPT
    if magic == 2:
        if place.size < BATCH_HEADER_BYTES:
            return WALK_CORRUPT
        last_offset_delta = <int32_t>be32(p + AT_LAST_OFFSET_DELTA)
        if last_offset_delta < 0:
            return WALK_CORRUPT
        place.last_offset = place.base_offset + last_offset_delta
    elif magic == 0 or magic == 1:
        # The offset of an old entry is its own, or its last inner message's.
        place.last_offset = place.base_offset
    else:
        return WALK_CORRUPT
    if place.base_offset < segment.base_offset:
        return WALK_CORRUPT
    return WALK_FOUND


cdef int next_batch(
        SegmentFiles* segment, int64_t end, Window* window, BatchPlace* place) noexcept nogil:
    """Step to the batch behind `place`; offsets must rise."""
    cdef int64_t last_offset = place.last_offset
    cdef int status = batch_at(segment, place.position + place.size, end, window, place)
    if status == WALK_FOUND and place.base_offset <= last_offset:
        return WALK_CORRUPT
    return status


cdef int segment_find(
        SegmentFiles* segment, int64_t target, int64_t end, Window* window,
        BatchPlace* place) noexcept nogil:
    cdef int64_t offset, position
    cdef int status = segment_lookup_offset(segment, target, &offset, &position)
    if status:
        return status
    place.position = position
    if position < 0 or position > end:
        return WALK_CORRUPT
    status = batch_at(segment, position, end, window, place)
    while status == WALK_FOUND and place.last_offset < target:
        status = next_batch(segment, end, window, place)
    return status


cdef int segment_find_upper(
        SegmentFiles* segment, const BatchPlace* first, int64_t upper_offset, int64_t end,
        int64_t enough, Window* window, int64_t* found, int64_t* next_offset) noexcept nogil:
    cdef int64_t offset, position
    cdef BatchPlace place = first[0]
    # The batch of an entry at or below upper_offset - 1 lies wholly below upper_offset.
    cdef int status = segment_lookup_offset(segment, upper_offset - 1, &offset, &position)
    next_offset[0] = -1
    if status:
        return status
    if position > first.position:
        found[0] = position
        if position > end:
            return WALK_CORRUPT
        if position > enough:
            return WALK_FOUND
        status = batch_at(segment, position, end, window, &place)
    while status == WALK_FOUND and place.base_offset < upper_offset:
        if place.position + place.size > enough:
            found[0] = place.position + place.size
            return WALK_FOUND
        status = next_batch(segment, end, window, &place)
    found[0] = place.position
    if status == WALK_FOUND:
        next_offset[0] = place.base_offset
    return WALK_FOUND if status == WALK_PAST_END else status


# --- writing --------------------------------------------------------------------------------------

cdef inline void put_offset_entry(
        const SegmentFiles* segment, uint8_t* entry, int64_t offset, int64_t position) noexcept nogil:
    put_int32(entry, <int32_t>(offset - segment.base_offset))
    put_int32(entry + 4, <int32_t>position)


cdef inline void put_time_entry(
        const SegmentFiles* segment, uint8_t* entry, int64_t timestamp, int64_t offset) noexcept nogil:
    put_int64(entry, timestamp)
    put_int32(entry + 8, <int32_t>(offset - segment.base_offset))


cdef int write_time_entry(
        SegmentFiles* segment, int64_t timestamp, int64_t offset, int64_t number) noexcept nogil:
    cdef uint8_t entry[TIME_ENTRY_BYTES]
    put_time_entry(segment, entry, timestamp, offset)
    return write_all(
        segment.time_index_fd, entry, TIME_ENTRY_BYTES, number * TIME_ENTRY_BYTES)


cdef int cut_indexes(
        SegmentFiles* segment, int failed, bint* broken) noexcept nogil:
    # Bytes past the counts would be entries to whoever opens the files next. Cutting them is safe beside readers: what
    # they may touch stays.
    if calls().ftruncate(segment.offset_index_fd, segment.offset_entries * OFFSET_ENTRY_BYTES):
        broken[0] = True
    if calls().ftruncate(segment.time_index_fd, segment.time_entries * TIME_ENTRY_BYTES):
        broken[0] = True
    return failed


cdef int index_batches(
        SegmentFiles* segment, const SegmentBatch* batches, int64_t count, int64_t index_interval_bytes,
        bint* broken) noexcept nogil:
    # Under index_lock. Kafka's rule: after so many bytes an offset entry, and a time entry if time has moved on.
    cdef uint8_t offsets[INDEXED_AT_ONCE * OFFSET_ENTRY_BYTES]
    cdef uint8_t times[INDEXED_AT_ONCE * TIME_ENTRY_BYTES]
    cdef int64_t offset_entries = segment.offset_entries
    cdef int64_t time_entries = segment.time_entries
    cdef int64_t position = segment.size_bytes
    cdef int64_t since_entry = segment.bytes_since_index_entry
    cdef int64_t latest = segment.max_timestamp
    cdef int64_t latest_offset = segment.max_timestamp_offset
    cdef int64_t indexed_timestamp = segment.last_indexed_timestamp
    cdef int64_t new_offsets = 0
    cdef int64_t new_times = 0
    cdef int64_t number
    cdef int failed
    for number in range(count):
        if batches[number].max_timestamp > latest:
            latest = batches[number].max_timestamp
            latest_offset = batches[number].last_offset
        if since_entry > index_interval_bytes:
            put_offset_entry(
                segment, offsets + new_offsets * OFFSET_ENTRY_BYTES, batches[number].last_offset, position)
            new_offsets += 1
            if latest > indexed_timestamp:
                put_time_entry(segment, times + new_times * TIME_ENTRY_BYTES, latest, latest_offset)
                new_times += 1
                indexed_timestamp = latest
            since_entry = 0
        since_entry += batches[number].size
        position += batches[number].size
        if new_offsets == INDEXED_AT_ONCE or (number == count - 1 and new_offsets > 0):
            failed = write_all(segment.offset_index_fd, offsets, new_offsets * OFFSET_ENTRY_BYTES,
                               offset_entries * OFFSET_ENTRY_BYTES)
            if not failed and new_times > 0:
                failed = write_all(segment.time_index_fd, times, new_times * TIME_ENTRY_BYTES,
                                   time_entries * TIME_ENTRY_BYTES)
            if failed:
                return cut_indexes(segment, failed, broken)
            offset_entries += new_offsets
            time_entries += new_times
            new_offsets = new_times = 0
    # Entries may be seen a moment before their batches are published. That is harmless: they lie at or past the
    # published end, where no lookup below it lands.
    segment.bytes_since_index_entry = since_entry
    segment.last_indexed_timestamp = indexed_timestamp
    store(&segment.offset_entries, offset_entries)
    store(&segment.time_entries, time_entries)
    return 0


cdef int write_batches(
        int fd, const SegmentBatch* batches, int64_t count, int64_t position) noexcept nogil:
    """One after the other, by as few calls as are cheap."""
    cdef iovec pieces[PIECES_AT_ONCE]
    cdef int64_t number = 0
    cdef int64_t within = 0      # of batches[number]: written already
    cdef int64_t next_number, room, done
    cdef int used
    while number < count:
        used = 0
        next_number = number
        room = LARGEST_WRITE_BYTES - position % PAGE_BYTES
        while next_number < count and used < PIECES_AT_ONCE and room > 0:
            pieces[used].iov_base = <void*>batches[next_number].data
            pieces[used].iov_len = batches[next_number].size
            if next_number == number:
                pieces[used].iov_base = <void*>(batches[number].data + within)
                pieces[used].iov_len -= within
            pieces[used].iov_len = min(<int64_t>pieces[used].iov_len, room)
            room -= pieces[used].iov_len
            used += 1
            next_number += 1
        done = calls().pwritev(fd, pieces, used, position)
        if done == -EINTR:
            continue
        if done < 0:
            return <int>done
        if done == 0:
            return -EIO  # no file does so; going on could go on for ever
        position += done
        within += done
        while number < count and within >= batches[number].size:
            within -= batches[number].size
            number += 1
    return 0


cdef int segment_write(
        SegmentFiles* segment, const SegmentBatch* batches, int64_t count, int64_t index_interval_bytes,
        bint* broken) noexcept nogil:
    cdef int64_t position = segment.size_bytes
    cdef int failed
    broken[0] = False
    failed = write_batches(segment.log_fd, batches, count, position)
    if not failed:
        pthread_mutex_lock(&segment.index_lock)
        failed = index_batches(segment, batches, count, index_interval_bytes, broken)
        pthread_mutex_unlock(&segment.index_lock)
    if failed and calls().ftruncate(segment.log_fd, position):
        broken[0] = True
    return failed


cdef void segment_publish(SegmentFiles* segment, const SegmentBatch* batches, int64_t count) noexcept nogil:
    cdef int64_t size = segment.size_bytes
    cdef int64_t number
    if size == 0:
        store(&segment.first_append_ms, batches[0].max_timestamp)
    for number in range(count):
        size += batches[number].size
        if batches[number].max_timestamp > segment.max_timestamp:
            store(&segment.max_timestamp_offset, batches[number].last_offset)
            store(&segment.max_timestamp, batches[number].max_timestamp)
    store(&segment.size_bytes, size)
    store(&segment.next_offset, batches[count - 1].last_offset + 1)


# --- for Python -----------------------------------------------------------------------------------

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
        cdef uint8_t entry[TIME_ENTRY_BYTES]
        cdef int64_t done
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
        files.size_bytes = size_bytes
        files.next_offset = next_offset
        files.offset_entries = offset_entries
        files.time_entries = time_entries
        files.max_timestamp = max_timestamp
        files.max_timestamp_offset = max_timestamp_offset
        files.first_append_ms = first_append_ms
        files.bytes_since_index_entry = bytes_since_index_entry
        files.last_indexed_timestamp = -1
        pthread_mutex_init(&files.index_lock, NULL)
        self.files = files
        if time_entries > 0:
            with nogil:
                done = read_fully(
                    time_index_fd, entry, TIME_ENTRY_BYTES, (time_entries - 1) * TIME_ENTRY_BYTES)
            if done < 0:
                raise os_error(done)
            if done < TIME_ENTRY_BYTES:
                raise OSError(EIO, f"the time index of segment {base_offset} has fewer entries "
                                   f"than {time_entries}")
            files.last_indexed_timestamp = <int64_t>be64(entry)

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
        """Entries of the offset index."""
        return load(&self.files.offset_entries)

    @property
    def time_entries(self):
        """Entries of the time index."""
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
        """Return (offset, position) of the greatest index entry at or below `target`.

        (base_offset, 0) when there is none. Raises OSError when the index cannot be mapped.
        """
        cdef int64_t offset, position
        cdef int failed = segment_lookup_offset(self.files, target, &offset, &position)
        if failed:
            raise os_error(failed)
        return offset, position

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
        """Append the final time index entry, as Kafka does when a segment is rolled or closed.

        Does nothing when the last entry says it already. Raises OSError, with the file cut back.
        """
        cdef SegmentFiles* files = self.files
        cdef int failed = 0
        with nogil:
            pthread_mutex_lock(&files.index_lock)
            if (files.max_timestamp > files.last_indexed_timestamp
                    and (files.time_entries + 1) * TIME_ENTRY_BYTES <= files.time_map_bytes):
                failed = write_time_entry(
                    files, files.max_timestamp, files.max_timestamp_offset, files.time_entries)
                if failed:
                    calls().ftruncate(files.time_index_fd, files.time_entries * TIME_ENTRY_BYTES)
                else:
                    files.last_indexed_timestamp = files.max_timestamp
                    store(&files.time_entries, files.time_entries + 1)
            pthread_mutex_unlock(&files.index_lock)
        if failed:
            raise os_error(failed)

    def sync_indexes(self):
        """Bring both index files to the disk: before a recovery point moves past the segment.

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

    def read(self):
        """Return the bytes.

        Raises:
            OSError: they cannot be read, or the file has been cut since.
        """
        cdef bytes out
        if self.segment == NULL:  # made by __new__ alone
            return b""
        out = read_bytes(self.segment, self.position, self.size)
        if len(out) < self.size:
            raise OSError(EIO, f"segment {self.segment.base_offset} ends before "
                               f"{self.position + self.size}")
        return out


cdef FileRange new_file_range(
        SegmentFiles* pinned, int64_t position, int64_t size, int64_t next_offset_hint):
    cdef FileRange made = FileRange.__new__(FileRange)
    made.segment = pinned
    made.position = position
    made.size = size
    made.next_offset_hint = next_offset_hint
    return made
