# Why Python decides about a request, or about a partition of it.
cdef enum Reason:
    REASON_NONE = 0
    REASON_OTHER_API = 1
    REASON_REQUEST = 2
    REASON_PARTITION = 3
    REASON_BATCH = 4
    REASON_APPEND = 5
    REASON_READ = 6

cdef enum:
    REASONS = 7
