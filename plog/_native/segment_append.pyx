"""What is added to a segment: batches to its log file, and the entries that are due to its indexes.

Owns Kafka's rule for index entries, the size of a write, and what is cut back when one fails. Never
looks into a batch: what it must know of it comes beside it.
"""

from libc.errno cimport EIO
from libc.stdint cimport int32_t, int64_t, uint8_t
from libc.stdlib cimport calloc, free

from plog._native.files cimport calls, iovec, write_all, write_some
from plog._native.index cimport OFFSET_ENTRY_BYTES, TIME_ENTRY_BYTES
from plog._native.locks cimport pthread_mutex_lock, pthread_mutex_unlock, store
from plog._native.segment_files cimport TAIL_ENTRIES, IndexTail
from plog._native.wire cimport put_int32, put_int64

# What the indexes of a segment will be.
ctypedef struct IndexEnd:
    int64_t offsets_written
    int64_t times_written
    IndexTail tail

cdef enum:
    PIECES_AT_ONCE = 64
    # Up to a page's end. The kernel answers larger writes with larger folios, which it finds less readily: writes of
    # 1 MB took half as much again for a byte as those of 64 to 256 KB.
    LARGEST_WRITE_BYTES = 128 * 1024
    PAGE_BYTES = 4096


# --- writing --------------------------------------------------------------------------------------

cdef inline void put_offset_entry(
        const SegmentFiles* segment, IndexTail* tail, int64_t offset, int64_t position) noexcept nogil:
    cdef uint8_t* entry = tail.offsets + tail.offset_count * OFFSET_ENTRY_BYTES
    put_int32(entry, <int32_t>(offset - segment.base_offset))
    put_int32(entry + 4, <int32_t>position)
    tail.offset_count += 1


cdef inline void put_time_entry(
        const SegmentFiles* segment, IndexTail* tail, int64_t timestamp, int64_t offset) noexcept nogil:
    cdef uint8_t* entry = tail.times + tail.time_count * TIME_ENTRY_BYTES
    put_int64(entry, timestamp)
    put_int32(entry + 8, <int32_t>(offset - segment.base_offset))
    tail.time_count += 1


cdef int cut_indexes(SegmentFiles* segment, int failed, bint* broken) noexcept nogil:
    # Bytes past what is written would be entries to whoever opens the files next. Cutting them is safe beside readers:
    # what they may touch stays.
    if calls().ftruncate(segment.offset_index_fd, segment.offsets_written * OFFSET_ENTRY_BYTES):
        broken[0] = True
    if calls().ftruncate(segment.time_index_fd, segment.times_written * TIME_ENTRY_BYTES):
        broken[0] = True
    return failed


cdef int write_entries(SegmentFiles* segment, IndexEnd* end) noexcept nogil:
    """Those that wait, to the files; nobody finds them there before `publish_entries`."""
    cdef int failed = 0
    # The times first: after a crash the time index holds the maximum of all up to the last offset entry, or of more.
    if end.tail.time_count > 0:
        failed = write_all(
            segment.time_index_fd, end.tail.times, end.tail.time_count * TIME_ENTRY_BYTES,
            end.times_written * TIME_ENTRY_BYTES)
    if not failed and end.tail.offset_count > 0:
        failed = write_all(
            segment.offset_index_fd, end.tail.offsets, end.tail.offset_count * OFFSET_ENTRY_BYTES,
            end.offsets_written * OFFSET_ENTRY_BYTES)
    end.offsets_written += end.tail.offset_count
    end.times_written += end.tail.time_count
    end.tail.offset_count = end.tail.time_count = 0
    return failed


cdef void read_end(SegmentFiles* segment, IndexEnd* end) noexcept nogil:
    # Under index_lock: nobody else changes it.
    end.offsets_written = segment.offsets_written
    end.times_written = segment.times_written
    end.tail.offset_count = end.tail.time_count = 0
    if segment.tail != NULL:
        end.tail = segment.tail[0]


cdef void set_tail(SegmentFiles* segment, IndexTail* tail) noexcept nogil:
    pthread_mutex_lock(&segment.tail_lock)
    segment.tail, tail = tail, segment.tail
    pthread_mutex_unlock(&segment.tail_lock)
    free(tail)


cdef void publish_end(SegmentFiles* segment, const IndexEnd* end) noexcept nogil:
    # Entries may be seen a moment before their batches are published. That is harmless: they lie at or past the
    # published end, where no lookup below it lands.
    pthread_mutex_lock(&segment.tail_lock)
    segment.offsets_written = end.offsets_written
    segment.times_written = end.times_written
    if segment.tail != NULL:
        segment.tail[0] = end.tail
    pthread_mutex_unlock(&segment.tail_lock)
    store(&segment.offset_entries, end.offsets_written + end.tail.offset_count)
    store(&segment.time_entries, end.times_written + end.tail.time_count)


cdef int index_batches(
        SegmentFiles* segment, const SegmentBatch* batches, int64_t count, int64_t index_interval_bytes,
        bint* broken) noexcept nogil:
    # Under index_lock. Kafka's rule: after so many bytes an offset entry, and a time entry if time has moved on.
    cdef IndexEnd end
    cdef int64_t position = segment.size_bytes
    cdef int64_t since_entry = segment.bytes_since_index_entry
    cdef int64_t latest = segment.max_timestamp
    cdef int64_t latest_offset = segment.max_timestamp_offset
    cdef int64_t indexed_timestamp = segment.last_indexed_timestamp
    cdef int64_t number
    cdef bint is_due = False
    cdef int failed = 0
    for number in range(count):
        if batches[number].max_timestamp > latest:
            latest = batches[number].max_timestamp
            latest_offset = batches[number].last_offset
        if since_entry > index_interval_bytes:
            if not is_due:
                is_due = True
                read_end(segment, &end)
            put_offset_entry(segment, &end.tail, batches[number].last_offset, position)
            if latest > indexed_timestamp:
                put_time_entry(segment, &end.tail, latest, latest_offset)
                indexed_timestamp = latest
            if end.tail.offset_count == TAIL_ENTRIES:
                failed = write_entries(segment, &end)
                if failed:
                    return cut_indexes(segment, failed, broken)
            since_entry = 0
        since_entry += batches[number].size
        position += batches[number].size
    if is_due:
        if segment.tail == NULL and end.tail.offset_count > 0:
            set_tail(segment, <IndexTail*>calloc(1, sizeof(IndexTail)))
            if segment.tail == NULL:  # without memory for them they go to the files at once
                failed = write_entries(segment, &end)
        if failed:
            return cut_indexes(segment, failed, broken)
        publish_end(segment, &end)
    segment.bytes_since_index_entry = since_entry
    segment.last_indexed_timestamp = indexed_timestamp
    return 0


cdef int write_batches(
        int fd, const SegmentBatch* batches, int64_t* whole, int64_t position, int64_t patience_us,
        int64_t* longest_us) noexcept nogil:
    """One after the other, by as few calls as are cheap."""
    cdef iovec pieces[PIECES_AT_ONCE]
    cdef int64_t number = 0
    cdef int64_t within = 0      # of batches[number]: written already
    cdef int64_t count = whole[0]
    cdef int64_t next_number, room, done, begun_us
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
        begun_us = calls().monotonic_us()
        done = write_some(fd, pieces, used, position)
        if done < 0:
            return <int>done
        position += done
        within += done
        while number < count and within >= batches[number].size:
            within -= batches[number].size
            number += 1
        longest_us[0] = max(longest_us[0], calls().monotonic_us() - begun_us)
        if longest_us[0] > patience_us:
            break
    whole[0] = number
    return 0


cdef int segment_write(
        SegmentFiles* segment, const SegmentBatch* batches, int64_t* count, int64_t index_interval_bytes,
        int64_t patience_us, int64_t* longest_us, bint* broken) noexcept nogil:
    cdef int64_t asked = count[0]
    cdef int64_t end = segment.size_bytes
    cdef int64_t begun_us, number
    cdef int failed
    longest_us[0] = 0
    broken[0] = False
    failed = write_batches(segment.log_fd, batches, count, end, patience_us, longest_us)
    if not failed and count[0] > 0:
        begun_us = calls().monotonic_us()
        pthread_mutex_lock(&segment.index_lock)
        failed = index_batches(segment, batches, count[0], index_interval_bytes, broken)
        pthread_mutex_unlock(&segment.index_lock)
        longest_us[0] = max(longest_us[0], calls().monotonic_us() - begun_us)
    if failed:
        count[0] = 0
    if count[0] < asked:
        for number in range(count[0]):
            end += batches[number].size
        if calls().ftruncate(segment.log_fd, end):
            broken[0] = True
            failed = failed or -EIO
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


cdef int segment_seal(SegmentFiles* segment) noexcept nogil:
    cdef IndexEnd end
    cdef bint broken = False
    cdef int failed
    pthread_mutex_lock(&segment.index_lock)
    read_end(segment, &end)
    failed = write_entries(segment, &end)
    if not failed and (
            segment.max_timestamp > segment.last_indexed_timestamp
            and (end.times_written + 1) * TIME_ENTRY_BYTES <= segment.time_map_bytes):
        put_time_entry(segment, &end.tail, segment.max_timestamp, segment.max_timestamp_offset)
        failed = write_entries(segment, &end)
        if not failed:
            segment.last_indexed_timestamp = segment.max_timestamp
    if failed:
        cut_indexes(segment, failed, &broken)
    else:
        publish_end(segment, &end)
        set_tail(segment, NULL)
    pthread_mutex_unlock(&segment.index_lock)
    return failed
