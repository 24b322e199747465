# A request that is not answered at once, and why others went to Python. Types only; `waiting` has what works on them.
from libc.stdint cimport int16_t, int64_t, uint8_t

from plog._native.connection cimport Budget, Connection
from plog._native.fetch_call cimport FetchCall
from plog._native.mailbox cimport Mailbox
from plog._native.produce_path cimport ProduceCall
from plog._native.served cimport ServedTable
from plog._native.work_queue cimport Task

# Why a request went to Python.
cdef enum:
    PASSED_SWITCHED_OFF = 0
    PASSED_OTHER_API = 1
    PASSED_FORM = 2
    PASSED_PARTITION = 3
    PASSED_BATCH = 4
    PASSED_APPEND = 5
    PASSED_READ = 6
    PASSED_REASONS = 7

# A request's bytes, malloc'ed and counted.
ctypedef struct Frame:
    void* base                   # NULL: there are none
    uint8_t* data
    int64_t size
    int64_t capacity
    int64_t received_us          # when its last byte was read

# Where a request is while it is parked.
cdef enum ParkedStage:
    PARKED_WAITS = 0             # for its partitions, for its turn to be answered, or to go to Python
    PARKED_IN_WORK = 1           # by another thread, whose `produce` or `fetch` then is
    PARKED_DONE = 2              # so far: for those before it on its connection
    PARKED_GATHERED = 3          # with the round's others, to be written

# A request that waits for its partitions to change, or is worked on by another thread. Its letter lies in the inbox of
# its loop once they have changed, or the work is done.
ctypedef struct Parked:
    Task task                    # its `ask` is ASK_RECHECK or ASK_FINISH
    int64_t posted               # atomic: the letter lies in the inbox, or is on its way
    bint over                    # answered or dropped: freed when the letter comes
    ParkedStage stage
    bint checked                 # the Produce may be appended
    bint appends                 # the thread that works on the Produce appends it: it is the disk's
    int outcome                  # of the work
    int passed                   # why it is for Python, if its frame is kept for that
    ServedTable* served
    Mailbox* inbox
    Budget* budget
    int64_t* waiting             # how many there are, of the same loop
    Connection* connection
    Parked* after                # on its connection
    bint listens                 # it stands in its partitions' lists: the connection's first does
    int64_t deadline_us
    int16_t api_key              # says which of these it is
    ProduceCall produce
    FetchCall fetch
    Frame frame                  # for Python, if the request turns out unusual
    int64_t counted_bytes        # of what it takes besides, in the budget
