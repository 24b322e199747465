# Why Python decides about a request, or about a partition of it.
cdef enum Reason:
    REASON_NONE = 0
    REASON_SWITCHED_OFF = 1
    REASON_OTHER_API = 2
    REASON_REQUEST = 3
    REASON_PARTITION = 4
    REASON_BATCH = 5
    REASON_APPEND = 6
    REASON_READ = 7

cdef enum:
    REASONS = 8
