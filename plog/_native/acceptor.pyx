"""Accepting connections under the caps: in all, per address, and of the process's descriptors.

Owns the counts and the socket options. Never reads from a connection and never
decides where it goes. All of it runs without the interpreter lock.
"""

from libc.errno cimport ECONNABORTED, EINTR, EMFILE, ENOBUFS, ENOMEM, EPERM, EPROTO, errno
from libc.stdint cimport uint8_t, uint16_t, uint32_t
from libc.stdio cimport snprintf
from libc.stdlib cimport calloc, free, malloc
from libc.string cimport memcmp, memcpy, memset
from posix.fcntl cimport O_CLOEXEC, O_RDONLY, open as c_open
from posix.unistd cimport close

from plog._native.files cimport lacks_descriptor
from plog._native.locks cimport (
    add as atomic_add, load as atomic_load, pthread_mutex_destroy, pthread_mutex_init, pthread_mutex_lock, pthread_mutex_unlock,
)

cdef extern from "<sys/socket.h>" nogil:
    ctypedef uint32_t socklen_t
    struct sockaddr:
        unsigned short sa_family
    struct sockaddr_storage:
        unsigned short ss_family
    int accept4(int fd, sockaddr* address, socklen_t* size, int flags)
    int setsockopt(int fd, int level, int option, const void* value, socklen_t size)
    enum:
        AF_INET
        AF_INET6
        SOCK_CLOEXEC
        SOCK_NONBLOCK
        SOL_SOCKET
        SO_KEEPALIVE
        SO_RCVBUF
        SO_SNDBUF

cdef extern from "<netinet/in.h>" nogil:
    struct in_addr:
        uint32_t s_addr
    struct in6_addr:
        uint8_t s6_addr[16]
    struct sockaddr_in:
        uint16_t sin_port
        in_addr sin_addr
    struct sockaddr_in6:
        uint16_t sin6_port
        in6_addr sin6_addr
    enum:
        IPPROTO_TCP

cdef extern from "<netinet/tcp.h>" nogil:
    enum:
        TCP_NODELAY

cdef extern from "<sys/resource.h>" nogil:
    ctypedef unsigned long rlim_t
    struct rlimit:
        rlim_t rlim_cur
    int getrlimit(int resource, rlimit* limit)
    enum:
        RLIMIT_NOFILE

cdef extern from "<arpa/inet.h>" nogil:
    const char* inet_ntop(int family, const void* address, char* text, socklen_t size)
    uint16_t ntohs(uint16_t value)

cdef enum:
    BUCKETS = 4096
    UNLIMITED = 2147483647
    # Of its descriptors the process keeps from clients one in so many, but no more than so many in all. A log that
    # rolls needs some; without, whoever opens connections and says nothing would keep all others from writing.
    RESERVED_ONE_IN = 16
    MOST_RESERVED = 256

cdef const uint8_t* MAPPED = b"\0\0\0\0\0\0\0\0\0\0\xff\xff"


cdef int door_open(Door* door) noexcept nogil:
    door.connections = 0
    door.accepted = 0
    door.refused = 0
    door.buckets = <AddressCount**>calloc(BUCKETS, sizeof(AddressCount*))
    if door.buckets == NULL:
        return -ENOMEM
    door.spare_fd = c_open(b"/dev/null", O_RDONLY | O_CLOEXEC)
    if door.spare_fd < 0:
        free(door.buckets)
        door.buckets = NULL
        return -errno
    pthread_mutex_init(&door.mutex, NULL)
    return 0


cdef void door_release(Door* door) noexcept nogil:
    cdef AddressCount* count
    cdef AddressCount* next_count
    cdef int i
    if door.buckets == NULL:
        return
    for i in range(BUCKETS):
        count = door.buckets[i]
        while count != NULL:
            next_count = count.next
            free(count)
            count = next_count
    free(door.buckets)
    door.buckets = NULL
    free(door.overrides)
    door.overrides = NULL
    door.override_count = 0
    if door.spare_fd >= 0:
        close(door.spare_fd)
        door.spare_fd = -1
    pthread_mutex_destroy(&door.mutex)


cdef inline uint32_t bucket_of(const uint8_t* address) noexcept nogil:
    # FNV-1a; an attacker who owns many addresses can at worst make chains as long as their number.
    cdef uint32_t value = 2166136261u
    cdef int i
    for i in range(ADDRESS_BYTES):
        value = (value ^ address[i]) * 16777619u
    return (value ^ (value >> 15)) % BUCKETS


cdef inline bint counts_addresses(const Door* door) noexcept nogil:
    return door.max_connections_per_ip < UNLIMITED or door.override_count > 0


cdef int64_t most_of(const Door* door, const uint8_t* address) noexcept nogil:
    """How many connections the address may have."""
    cdef int64_t at
    for at in range(door.override_count):
        if memcmp(door.overrides[at].address, address, ADDRESS_BYTES) == 0:
            return door.overrides[at].most
    return door.max_connections_per_ip


cdef int count_in(Door* door, const uint8_t* address, int64_t most) noexcept nogil:
    """1: counted; 0: the address has all it may have; -1: no memory."""
    cdef AddressCount** at
    cdef AddressCount* count
    cdef int found = 1
    pthread_mutex_lock(&door.mutex)
    at = &door.buckets[bucket_of(address)]
    count = at[0]
    while count != NULL and memcmp(count.address, address, ADDRESS_BYTES) != 0:
        count = count.next
    if count == NULL:
        if most <= 0:
            found = 0
        else:
            count = <AddressCount*>malloc(sizeof(AddressCount))
            if count == NULL:
                found = -1
            else:
                memcpy(count.address, address, ADDRESS_BYTES)
                count.connections = 1
                count.next = at[0]
                at[0] = count
    elif count.connections >= most:
        found = 0
    else:
        count.connections += 1
    pthread_mutex_unlock(&door.mutex)
    return found


cdef void door_leave(Door* door, int listener_id, const uint8_t* address) noexcept nogil:
    cdef AddressCount** at
    cdef AddressCount* count
    atomic_add(&door.connections, -1)
    atomic_add(&door.by_listener[listener_id], -1)
    if not counts_addresses(door):
        return
    pthread_mutex_lock(&door.mutex)
    at = &door.buckets[bucket_of(address)]
    while at[0] != NULL and memcmp(at[0].address, address, ADDRESS_BYTES) != 0:
        at = &at[0].next
    count = at[0]
    if count != NULL:
        count.connections -= 1
        if count.connections == 0:
            at[0] = count.next
            free(count)
    pthread_mutex_unlock(&door.mutex)


cdef void describe(const sockaddr_storage* name, Guest* guest) noexcept nogil:
    """Fill in the guest's address and its text, host:port."""
    cdef char host[PEER_BYTES]
    cdef const sockaddr_in* four
    cdef const sockaddr_in6* six
    host[0] = 0
    memset(guest.address, 0, ADDRESS_BYTES)
    if name.ss_family == AF_INET:
        four = <const sockaddr_in*>name
        memcpy(guest.address, MAPPED, 12)
        memcpy(guest.address + 12, &four.sin_addr, 4)
        inet_ntop(AF_INET, &four.sin_addr, host, sizeof(host))
        snprintf(guest.peer, sizeof(guest.peer), "%s:%d", host, <int>ntohs(four.sin_port))
    elif name.ss_family == AF_INET6:
        six = <const sockaddr_in6*>name
        memcpy(guest.address, &six.sin6_addr, ADDRESS_BYTES)
        if memcmp(guest.address, MAPPED, 12) == 0:
            inet_ntop(AF_INET, guest.address + 12, host, sizeof(host))
            snprintf(guest.peer, sizeof(guest.peer), "%s:%d", host, <int>ntohs(six.sin6_port))
        else:
            inet_ntop(AF_INET6, &six.sin6_addr, host, sizeof(host))
            snprintf(guest.peer, sizeof(guest.peer), "[%s]:%d", host, <int>ntohs(six.sin6_port))
    else:
        snprintf(guest.peer, sizeof(guest.peer), "unknown")


# In both functions a refused option is no reason to turn anyone away: connections work without it.

cdef void door_prepare(Door* door, int listening_fd) noexcept nogil:
    # Connections inherit both; TCP's window scale is fixed by the buffer before the connection is there.
    if door.send_buffer_bytes > 0:
        setsockopt(listening_fd, SOL_SOCKET, SO_SNDBUF, &door.send_buffer_bytes, sizeof(int))
    if door.receive_buffer_bytes > 0:
        setsockopt(listening_fd, SOL_SOCKET, SO_RCVBUF, &door.receive_buffer_bytes, sizeof(int))


cdef void set_options(int fd) noexcept nogil:
    cdef int on = 1
    setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof(on))
    setsockopt(fd, SOL_SOCKET, SO_KEEPALIVE, &on, sizeof(on))


cdef bint is_reserved(int fd) noexcept nogil:
    """Is it among the last descriptors? The kernel gives out the lowest that is free."""
    cdef rlimit limit
    if getrlimit(RLIMIT_NOFILE, &limit) < 0 or limit.rlim_cur > UNLIMITED:
        return False
    return fd >= <int>(limit.rlim_cur - min(limit.rlim_cur // RESERVED_ONE_IN, <rlim_t>MOST_RESERVED))


cdef int turn_away(Door* door, Guest* guest) noexcept nogil:
    atomic_add(&door.refused, 1)  # before the client can know
    close(guest.fd)
    guest.fd = -1
    return DOOR_REFUSED


cdef int door_admit(Door* door, int listening_fd, int listener_id, bint is_exempt, Guest* guest) noexcept nogil:
    cdef sockaddr_storage name
    cdef socklen_t size = sizeof(name)
    cdef int64_t most
    cdef int error
    cdef int counted
    cdef bint out_of_descriptors = False
    if door.spare_fd < 0:
        door.spare_fd = c_open(b"/dev/null", O_RDONLY | O_CLOEXEC)
    while True:
        size = sizeof(name)
        memset(&name, 0, sizeof(name))
        guest.fd = accept4(listening_fd, <sockaddr*>&name, &size, SOCK_NONBLOCK | SOCK_CLOEXEC)
        if guest.fd >= 0:
            break
        error = errno
        if error == EINTR or error == ECONNABORTED or error == EPROTO or error == EPERM:
            continue  # that one is gone (or a firewall forbade it); the next may wait
        if error == EMFILE and not out_of_descriptors and door.spare_fd >= 0:
            # Left in the backlog it would keep the listener readable for ever: take it on the spare
            # descriptor and close it, so that the client learns now.
            out_of_descriptors = True
            close(door.spare_fd)
            door.spare_fd = -1
            continue
        if out_of_descriptors:
            door.spare_fd = c_open(b"/dev/null", O_RDONLY | O_CLOEXEC)
        if lacks_descriptor(error) or error == ENOBUFS or error == ENOMEM:
            return DOOR_EXHAUSTED
        return DOOR_EMPTY
    atomic_add(&door.accepted, 1)
    describe(&name, guest)
    if out_of_descriptors:
        snprintf(guest.reason, sizeof(guest.reason), "the process has no file descriptor left")
        turn_away(door, guest)
        door.spare_fd = c_open(b"/dev/null", O_RDONLY | O_CLOEXEC)
        return DOOR_REFUSED
    if is_reserved(guest.fd):
        snprintf(guest.reason, sizeof(guest.reason), "the process has no file descriptor left for clients")
        return turn_away(door, guest)
    if not is_exempt and atomic_load(&door.connections) >= door.max_connections:
        snprintf(guest.reason, sizeof(guest.reason), "max.connections (%lld) reached",
                 <long long>door.max_connections)
        return turn_away(door, guest)
    if counts_addresses(door):
        most = UNLIMITED if is_exempt else most_of(door, guest.address)
        counted = count_in(door, guest.address, most)
        if counted == 0:
            snprintf(guest.reason, sizeof(guest.reason), "max.connections.per.ip%s (%lld) reached",
                     <const char*>b"" if most == door.max_connections_per_ip else <const char*>b".overrides",
                     <long long>most)
            return turn_away(door, guest)
        if counted < 0:
            snprintf(guest.reason, sizeof(guest.reason), "out of memory")
            return turn_away(door, guest)
    atomic_add(&door.connections, 1)
    atomic_add(&door.by_listener[listener_id], 1)
    set_options(guest.fd)
    return DOOR_ADMITTED
