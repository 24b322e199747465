# The door: accepts from listening sockets and turns away what is over a cap.
from libc.stdint cimport int64_t, uint8_t

from plog._native.locks cimport pthread_mutex_t

cdef enum:
    ADDRESS_BYTES = 16  # IPv6, or IPv4 mapped into it
    PEER_BYTES = 64     # "[ffff:...:ffff]:65535" and its NUL
    MAX_LISTENERS = 64

cdef enum:
    DOOR_ADMITTED = 1
    DOOR_REFUSED = 2    # accepted and closed at once: `reason` says why
    DOOR_EMPTY = 3      # no client waits
    DOOR_EXHAUSTED = 4  # no descriptor or memory: try again later, do not spin

# How many connections one address has; a chain per bucket.
ctypedef struct AddressCount:
    AddressCount* next
    uint8_t address[ADDRESS_BYTES]
    int64_t connections

# How many connections one address may have, if not as many as others.
ctypedef struct AddressLimit:
    uint8_t address[ADDRESS_BYTES]
    int64_t most

ctypedef struct Door:
    int64_t max_connections
    int64_t max_connections_per_ip
    AddressLimit* overrides   # few; freed by `door_release`
    int64_t override_count
    int send_buffer_bytes     # -1: the system's
    int receive_buffer_bytes
    int64_t connections       # atomic: those inside
    int64_t by_listener[MAX_LISTENERS]  # atomic: of each listener
    int64_t accepted          # atomic, also counts the refused
    int64_t refused           # atomic
    int spare_fd              # given up for a moment when the process is out of descriptors
    pthread_mutex_t mutex     # protects the counts by address
    AddressCount** buckets

ctypedef struct Guest:
    int fd
    uint8_t address[ADDRESS_BYTES]
    char peer[PEER_BYTES]
    char reason[96]

# 0, or -errno.
cdef int door_open(Door* door) noexcept nogil
cdef void door_release(Door* door) noexcept nogil
# Set the buffer sizes of connections to come on their listening socket.
cdef void door_prepare(Door* door, int listening_fd) noexcept nogil
# Accept one connection; with DOOR_ADMITTED `guest` holds its descriptor (non-blocking, options set), counted.
# Those that are exempt are counted, and never too many.
cdef int door_admit(Door* door, int listening_fd, int listener_id, bint is_exempt, Guest* guest) noexcept nogil
# A connection that was admitted is gone.
cdef void door_leave(Door* door, int listener_id, const uint8_t* address) noexcept nogil
