"""The stages of a request and of its partitions, and the one table by which they go on.

Owns the table: the kernels look it up, docs/REQUESTS.md prints it, and the scripts of
tests/scenarios/requests walk it. Knows neither connections, logs nor threads.
"""

from libc.stdint cimport uint8_t
from libc.string cimport memset

cdef extern from *:
    """
    #ifdef NDEBUG
    #define ABORTS_AT_MISSING 0
    #else
    #define ABORTS_AT_MISSING 1
    #endif
    """
    const bint ABORTS_AT_MISSING

cdef extern from "<assert.h>" nogil:
    void assert_in_table "assert"(bint is_in_table)  # of debug builds

ABORTS = bool(ABORTS_AT_MISSING)

# (stage, event, stage after it, meaning)
TRANSITIONS = (
    # It has come, and the reactor looks at it.
    (Stage.CAME, Event.FOUND_GOOD, Stage.CHECKED, "its batch may be appended"),
    (Stage.CAME, Event.FOUND_LONG, Stage.CHECKING, "a compute thread expands and checks its batch"),
    (Stage.CAME, Event.FOUND_COLD, Stage.ON_DISK, "its disk is slow, or has the records"),
    (Stage.CAME, Event.FOUND_UNUSUAL, Stage.UNUSUAL, "Python decides"),
    (Stage.CAME, Event.FOUND_MALFORMED, Stage.MALFORMED, "the connection closes when its turn comes"),
    (Stage.CAME, Event.WAS_READ, Stage.READ, "a range of its log is pinned, or there is nothing"),
    # A compute thread has it.
    (Stage.CHECKING, Event.FOUND_GOOD, Stage.CHECKED, "its batch may be appended"),
    (Stage.CHECKING, Event.FOUND_UNUSUAL, Stage.UNUSUAL, "Python decides"),
    (Stage.CHECKING, Event.FOUND_MALFORMED, Stage.MALFORMED, "the connection closes when its turn comes"),
    # It is appended after the earlier requests of its connection.
    (Stage.CHECKED, Event.TAKEN_IN, Stage.GATHERED, "it is written with the other batches of this round"),
    (Stage.CHECKED, Event.FOUND_COLD, Stage.ON_DISK, "its disk is slow: a disk thread appends it"),
    (Stage.CHECKED, Event.WROTE, Stage.APPENDED, "it was written by itself"),
    (Stage.CHECKED, Event.NOT_WRITTEN, Stage.UNUSUAL, "Python appends it, or refuses it"),
    (Stage.GATHERED, Event.WROTE, Stage.APPENDED, "the write of this round has it"),
    (Stage.GATHERED, Event.NOT_WRITTEN, Stage.UNUSUAL, "Python appends it, or refuses it"),
    # A disk thread has it.
    (Stage.ON_DISK, Event.FOUND_GOOD, Stage.CHECKED, "its batch may be appended by this thread"),
    (Stage.ON_DISK, Event.FOUND_UNUSUAL, Stage.UNUSUAL, "Python decides"),
    (Stage.ON_DISK, Event.FOUND_MALFORMED, Stage.MALFORMED, "the connection closes when its turn comes"),
    (Stage.ON_DISK, Event.WROTE, Stage.APPENDED, "the disk thread wrote it"),
    (Stage.ON_DISK, Event.NOT_WRITTEN, Stage.UNUSUAL, "Python appends it, or refuses it"),
    (Stage.ON_DISK, Event.WAS_READ, Stage.READ, "a range of its log is pinned, or there is nothing"),
    # It is the first of its connection, and Python's turn.
    (Stage.UNUSUAL, Event.FOUND_COLD, Stage.ON_DISK, "a disk thread reads the whole request"),
    (Stage.UNUSUAL, Event.TURN_CAME, Stage.ASKED, "Python has it"),
    (Stage.ASKED, Event.WROTE, Stage.APPENDED, "Python appended it"),
    (Stage.ASKED, Event.WAS_READ, Stage.READ, "Python pinned a range of its log, or there is nothing"),
    (Stage.ASKED, Event.WAS_REFUSED, Stage.REFUSED, "the response has its error"),
    (Stage.ASKED, Event.ANSWERED, Stage.OVER, "by Python, which had the whole request"),
    # A Produce waits for its safety.
    (Stage.APPENDED, Event.IS_SAFE, Stage.SAFE, "all replicas that the request asks for have it"),
    (Stage.APPENDED, Event.IS_LOST, Stage.REFUSED, "the leader has changed, or its log directory has failed"),
    (Stage.APPENDED, Event.EXPIRED, Stage.REFUSED, "it is not safe in time"),
    # A Fetch waits for bytes.
    (Stage.READ, Event.FOUND_COLD, Stage.ON_DISK, "a disk thread reads the whole request"),
    (Stage.READ, Event.TOO_LITTLE, Stage.SHORT, "the request waits for more bytes"),
    (Stage.SHORT, Event.CHANGED, Stage.CAME, "it is read again"),
    (Stage.SHORT, Event.EXPIRED, Stage.CAME, "it is read for the last time"),
    # The response is queued.
    (Stage.SAFE, Event.ANSWERED, Stage.OVER, ""),
    (Stage.REFUSED, Event.ANSWERED, Stage.OVER, ""),
    (Stage.READ, Event.ANSWERED, Stage.OVER, ""),
    # The client has gone. A request that was read whole is appended all the same.
    (Stage.APPENDED, Event.CLIENT_LEFT, Stage.OVER, "no client waits for its safety"),
    (Stage.SHORT, Event.CLIENT_LEFT, Stage.OVER, "no client waits for its bytes"),
    (Stage.SAFE, Event.CLIENT_LEFT, Stage.OVER, ""),
    (Stage.REFUSED, Event.CLIENT_LEFT, Stage.OVER, ""),
    (Stage.READ, Event.CLIENT_LEFT, Stage.OVER, ""),
    # The connection is closed. A request that a thread has is over when that is done, and the round is written first.
    *((stage, Event.CLOSED, Stage.OVER, "") for stage in Stage
      if stage not in (Stage.CHECKING, Stage.ON_DISK, Stage.GATHERED, Stage.OVER)),
)

memset(table, 0, sizeof(table))
for _stage, _event, _after, _ in TRANSITIONS:
    table[<int>_stage][<int>_event] = <uint8_t><int>_after


cdef Stage stage_after(Stage stage, Event event) noexcept nogil:
    return <Stage>table[<int>stage][<int>event]


cdef void progress_begin(Progress* progress) noexcept nogil:
    memset(progress, 0, sizeof(Progress))
    progress.whole = CAME
    progress.parts[progress.whole] = 1


cdef void progress_add(Progress* progress, uint8_t* stage, bint is_first) noexcept nogil:
    stage[0] = progress.whole
    if not is_first:
        progress.parts[progress.whole] += 1


cdef bint part_advance(Progress* progress, uint8_t* stage, Event event) noexcept nogil:
    cdef uint8_t after = stage_after(<Stage>stage[0], event)
    assert_in_table(after != 0)
    if after == 0:
        if not progress.broken:  # the first one says most
            progress.broken = True
            progress.broken_stage = stage[0]
            progress.broken_event = event
        return False
    progress.parts[stage[0]] -= 1
    progress.parts[after] += 1
    stage[0] = after
    return True


cdef Stage stage_of(const Progress* progress) noexcept nogil:
    cdef int stage
    for stage in range(<int>CAME, <int>OVER):
        if progress.parts[stage] > 0:
            return <Stage>stage
    return OVER
