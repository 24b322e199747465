# A request that waits in the reactor, and why others went to Python. Types only; `fast_turn` has what works on them.
from libc.stdint cimport int16_t, int64_t, uint8_t

from plog._native.connection cimport Budget, Connection
from plog._native.fetch_path cimport FetchCall
from plog._native.mailbox cimport Letter, Mailbox
from plog._native.produce_path cimport ProduceCall

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

# A request that waits. Its partitions' waiters leave its letter in the inbox of its loop.
ctypedef struct Parked:
    Letter letter
    int ask                      # as a Command's: ASK_RECHECK
    int64_t posted               # atomic: the letter lies in the inbox
    bint over                    # answered or dropped: freed when the letter comes
    Mailbox* inbox
    int64_t* waiting             # how many there are, of the same loop
    Budget* budget
    Connection* connection
    int64_t deadline_us
    int16_t api_key              # says which of these it is
    ProduceCall produce
    FetchCall fetch
    # A Fetch keeps its frame, malloc'ed and counted, for Python to answer what turns out unusual.
    uint8_t* frame
    int64_t frame_size
