"""Where in a segment an offset or a timestamp is.

Owns the index mappings, made on first use, the search in them and in the entries that are not written
yet, and the walk over batch headers from an index entry to an offset. Never knows what a batch holds beyond its header.

Formats: the `.log` file is a sequence of record batches (or of older message set entries, which
begin with the same offset and size); `.index` and `.timeindex` are laid out by
`plog._native.index`.
"""

from libc.errno cimport EAGAIN, errno
from libc.stdint cimport int8_t, int32_t, int64_t, uint8_t, uint32_t
from libc.string cimport memcpy

from plog._native.batch_fields cimport AT_BATCH_LENGTH, AT_LAST_OFFSET_DELTA, AT_MAGIC, BATCH_HEADER_BYTES
from plog._native.files cimport calls, read_fully
from plog._native.index cimport OFFSET_ENTRY_BYTES, TIME_ENTRY_BYTES, search_offset, search_position, search_time
from plog._native.locks cimport claim_pointer, load, load_pointer, pthread_mutex_lock, pthread_mutex_unlock
from plog._native.wire cimport be32, be64

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


ctypedef int64_t (*Search)(const uint8_t* entries, uint32_t count, int64_t key) noexcept nogil


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


cdef int64_t copy_greatest(
        const uint8_t* entries, int64_t count, int entry_bytes, Search search, int64_t key,
        uint8_t* entry) noexcept nogil:
    """Copy the greatest entry at or below `key`; its number, or -1."""
    cdef int64_t number = search(entries, <uint32_t>count, key)
    if number >= 0:
        memcpy(entry, entries + number * entry_bytes, entry_bytes)
    return number


cdef int segment_offset_past(SegmentFiles* segment, int64_t position, int64_t* offset) noexcept nogil:
    cdef Window window
    cdef BatchPlace place
    cdef const uint8_t* entries = NULL
    cdef uint8_t[OFFSET_ENTRY_BYTES] entry
    cdef bint is_found = False
    cdef int64_t written, number
    cdef int failed, status
    pthread_mutex_lock(&segment.tail_lock)
    written = segment.offsets_written
    if segment.tail != NULL:
        number = search_position(segment.tail.offsets, <uint32_t>segment.tail.offset_count, position)
        is_found = number < segment.tail.offset_count
        if is_found:
            memcpy(entry, segment.tail.offsets + number * OFFSET_ENTRY_BYTES, OFFSET_ENTRY_BYTES)
    pthread_mutex_unlock(&segment.tail_lock)
    if written > 0:
        failed = mapped(&segment.offset_map, segment.offset_index_fd, segment.offset_map_bytes, &entries)
        if failed:
            return failed
        number = search_position(entries, <uint32_t>written, position)
        if number < written:
            memcpy(entry, entries + number * OFFSET_ENTRY_BYTES, OFFSET_ENTRY_BYTES)
            window.position = window.filled = 0
            window.never_waits = True
            # An entry that is wrong, or cannot be checked at once, is not used: the segment's end is right, too.
            is_found = (fits(segment, entry, 0, load(&segment.size_bytes), &window, &place, &status)
                        and status == WALK_FOUND)
    offset[0] = segment.base_offset + <int32_t>be32(entry) if is_found else load(&segment.next_offset)
    return 0


cdef int segment_offset_behind(
        SegmentFiles* segment, int64_t position, int64_t end, int64_t* offset) noexcept nogil:
    cdef Window window
    cdef BatchPlace place
    cdef const uint8_t* entries = NULL
    cdef uint8_t[OFFSET_ENTRY_BYTES] entry
    cdef int64_t size = load(&segment.size_bytes)
    cdef int64_t written
    cdef int64_t number = 0
    cdef int status
    pthread_mutex_lock(&segment.tail_lock)
    written = segment.offsets_written
    if segment.tail != NULL:
        number = search_position(segment.tail.offsets, <uint32_t>segment.tail.offset_count, end)
        if number > 0:
            memcpy(entry, segment.tail.offsets + (number - 1) * OFFSET_ENTRY_BYTES, OFFSET_ENTRY_BYTES)
    pthread_mutex_unlock(&segment.tail_lock)
    if number == 0 and written > 0:
        status = mapped(&segment.offset_map, segment.offset_index_fd, segment.offset_map_bytes, &entries)
        if status:
            return status
        number = search_position(entries, <uint32_t>written, end)
        if number > 0:
            memcpy(entry, entries + (number - 1) * OFFSET_ENTRY_BYTES, OFFSET_ENTRY_BYTES)
    window.position = window.filled = 0
    window.never_waits = True
    # An entry that is wrong is not used: the walk from `position` is right, too.
    if number == 0 or not fits(segment, entry, position, size, &window, &place, &status):
        status = batch_at(segment, position, size, &window, &place)
    while status == WALK_FOUND:
        offset[0] = place.base_offset
        if place.position + place.size > end:
            return 0
        offset[0] = place.last_offset + 1
        status = next_batch(segment, size, &window, &place)
    return 0 if status == WALK_PAST_END else status


cdef int segment_lookup_time(
        SegmentFiles* segment, int64_t timestamp, int64_t* found, int64_t* offset) noexcept nogil:
    cdef const uint8_t* entries = NULL
    cdef uint8_t[TIME_ENTRY_BYTES] entry
    cdef int64_t number = -1
    cdef int64_t written
    cdef int failed
    pthread_mutex_lock(&segment.tail_lock)
    written = segment.times_written
    if segment.tail != NULL:
        number = copy_greatest(
            segment.tail.times, segment.tail.time_count, TIME_ENTRY_BYTES, search_time, timestamp, entry)
    pthread_mutex_unlock(&segment.tail_lock)
    if number < 0 and written > 0:
        failed = mapped(&segment.time_map, segment.time_index_fd, segment.time_map_bytes, &entries)
        if failed:
            return failed
        number = copy_greatest(entries, written, TIME_ENTRY_BYTES, search_time, timestamp, entry)
    found[0] = -1 if number < 0 else <int64_t>be64(entry)
    offset[0] = segment.base_offset + (0 if number < 0 else <int32_t>be32(entry + 8))
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
    cdef bint is_among_small
    cdef const uint8_t* p
    cdef int8_t magic
    cdef int32_t last_offset_delta
    place.position = position
    if position == end:
        return WALK_PAST_END
    if wanted < HEADER_UP_TO_MAGIC_BYTES:
        return WALK_CORRUPT
    if position < window.position or position + wanted > window.position + window.filled:
        # Behind a small batch there may be others; a large one's neighbour lies outside of any window.
        is_among_small = window.filled > 0 and position - window.position < WINDOW_BYTES
        window.filled = 0
        done = fill(
            window, segment.log_fd, position, min(end - position, <int64_t>WINDOW_BYTES) if is_among_small else wanted,
            wanted)
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


cdef bint fits(
        SegmentFiles* segment, const uint8_t* entry, int64_t least, int64_t end, Window* window,
        BatchPlace* place, int* status) noexcept nogil:
    """Return whether an entry leads past `least` to a batch that it bounds; *status is that of reading it."""
    cdef int64_t position = <int32_t>be32(entry + 4)
    status[0] = WALK_CORRUPT
    if least < position < end:  # the first batch has no entry
        status[0] = batch_at(segment, position, end, window, place)
        if status[0] == WALK_FOUND and place.last_offset > segment.base_offset + <int32_t>be32(entry):
            status[0] = WALK_CORRUPT
    return status[0] != WALK_CORRUPT


cdef int segment_lookup_offset(
        SegmentFiles* segment, int64_t target, int64_t end, const BatchPlace* known, Window* window,
        BatchPlace* place) noexcept nogil:
    cdef int64_t relative = target - segment.base_offset
    cdef const uint8_t* entries = NULL
    cdef uint8_t[OFFSET_ENTRY_BYTES] entry
    cdef int64_t number = -1
    cdef int64_t least = 0 if known == NULL else known.position
    cdef int64_t written
    cdef int status
    pthread_mutex_lock(&segment.tail_lock)
    written = segment.offsets_written
    if segment.tail != NULL:
        number = copy_greatest(
            segment.tail.offsets, segment.tail.offset_count, OFFSET_ENTRY_BYTES, search_offset, relative, entry)
    pthread_mutex_unlock(&segment.tail_lock)
    if number >= 0 and fits(segment, entry, least, end, window, place, &status):
        return status
    if written > 0 and relative >= 0:
        status = mapped(&segment.offset_map, segment.offset_index_fd, segment.offset_map_bytes, &entries)
        if status:
            return status
        number = search_offset(entries, <uint32_t>written, relative)
        while number >= 0:
            memcpy(entry, entries + number * OFFSET_ENTRY_BYTES, OFFSET_ENTRY_BYTES)
            if <int32_t>be32(entry) <= relative:
                if fits(segment, entry, least, end, window, place, &status):
                    return status
                if known != NULL and 0 < <int32_t>be32(entry + 4) <= least:
                    break
            number -= 1  # the entry is wrong: its file is damaged
    if known != NULL:
        place[0] = known[0]
        return WALK_FOUND
    return batch_at(segment, 0, end, window, place)


cdef int segment_check_order(
        SegmentFiles* segment, const BatchPlace* first, int64_t end, int64_t gaps_legal_below, Window* window,
        int64_t* bad) noexcept nogil:
    cdef int64_t loaded = segment.loaded_bytes
    cdef int64_t next_offset, expected
    cdef BatchPlace place = first[0]
    cdef bint is_known
    cdef int status = WALK_FOUND
    end = min(end, loaded)  # this process has given the later ones their offsets
    if place.position >= end:
        return WALK_FOUND
    pthread_mutex_lock(&segment.tail_lock)
    is_known = segment.ordered_from <= place.position and end <= segment.ordered_to
    pthread_mutex_unlock(&segment.tail_lock)
    if is_known:
        return WALK_FOUND
    next_offset = load(&segment.next_offset)
    expected = segment.base_offset if place.position == 0 else place.base_offset
    while status == WALK_FOUND:
        bad[0] = place.position
        if (place.last_offset >= next_offset
                or (place.base_offset > expected and place.base_offset > gaps_legal_below)):
            return WALK_CORRUPT
        if place.position >= end:
            break  # the batch behind the range has vouched for its last one
        expected = place.last_offset + 1
        status = next_batch(segment, loaded, window, &place)
    if status != WALK_FOUND and status != WALK_PAST_END:
        bad[0] = place.position
        return status
    pthread_mutex_lock(&segment.tail_lock)
    if first.position <= segment.ordered_to and segment.ordered_from <= place.position:
        segment.ordered_from = min(segment.ordered_from, first.position)
        segment.ordered_to = max(segment.ordered_to, place.position)
    else:
        segment.ordered_from = first.position
        segment.ordered_to = place.position
    pthread_mutex_unlock(&segment.tail_lock)
    return WALK_FOUND


cdef int walk_to(
        SegmentFiles* segment, int64_t target, int64_t end, int64_t gaps_legal_below, Window* window,
        BatchPlace* place) noexcept nogil:
    """Step from `place` to the batch that holds `target`, or comes first behind it."""
    cdef int64_t expected
    cdef int status = WALK_FOUND
    while status == WALK_FOUND and place.last_offset < target:
        expected = place.last_offset + 1
        status = next_batch(segment, end, window, place)
        if status == WALK_FOUND and place.base_offset > expected and place.base_offset > gaps_legal_below:
            return WALK_CORRUPT
    if (status == WALK_FOUND and place.position < segment.loaded_bytes
            and (place.last_offset >= load(&segment.next_offset)
                 or (place.base_offset > target and place.base_offset > gaps_legal_below))):
        return WALK_CORRUPT  # else the caller would take the batch for one past its limit
    return status


cdef int segment_find(
        SegmentFiles* segment, int64_t target, int64_t end, int64_t gaps_legal_below, Window* window,
        BatchPlace* place) noexcept nogil:
    cdef int status = segment_lookup_offset(segment, target, end, NULL, window, place)
    cdef bint is_indexed = place.position > 0
    if status == WALK_FOUND:
        status = walk_to(segment, target, end, gaps_legal_below, window, place)
    if status == WALK_CORRUPT and is_indexed:  # the entry may have been wrong
        status = batch_at(segment, 0, end, window, place)
        if status == WALK_FOUND:
            status = walk_to(segment, target, end, gaps_legal_below, window, place)
    return status


cdef int walk_to_upper(
        SegmentFiles* segment, int64_t upper_offset, int64_t end, int64_t enough, Window* window,
        BatchPlace* place, int64_t* found, int64_t* next_offset) noexcept nogil:
    """`segment_find_upper` from `place` on."""
    cdef int status = WALK_FOUND
    next_offset[0] = -1
    while status == WALK_FOUND and place.base_offset < upper_offset:
        if place.position + place.size > enough:
            found[0] = place.position + place.size
            return WALK_FOUND
        status = next_batch(segment, end, window, place)
    found[0] = place.position
    if status == WALK_FOUND:
        next_offset[0] = place.base_offset
    return WALK_FOUND if status == WALK_PAST_END else status


cdef int segment_find_upper(
        SegmentFiles* segment, const BatchPlace* first, int64_t upper_offset, int64_t end,
        int64_t enough, Window* window, int64_t* found, int64_t* next_offset) noexcept nogil:
    cdef BatchPlace place
    # The batch of an entry at or below upper_offset - 1 lies wholly below upper_offset.
    cdef int status = segment_lookup_offset(segment, upper_offset - 1, end, first, window, &place)
    cdef bint is_indexed = place.position > first.position
    if status == WALK_FOUND:
        status = walk_to_upper(segment, upper_offset, end, enough, window, &place, found, next_offset)
    if status == WALK_CORRUPT and is_indexed:  # the entry may have been wrong
        place = first[0]
        status = walk_to_upper(segment, upper_offset, end, enough, window, &place, found, next_offset)
    return status
