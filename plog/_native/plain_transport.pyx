"""How bytes pass through a socket as they are: without TLS.

Owns the system calls of a connection's bytes. Each returns bytes, or -errno.
"""

from libc.errno cimport errno
from libc.stdint cimport int64_t

from plog._native.files cimport calls
from plog._native.reactor_types cimport Connection, Scratch

cdef extern from "<sys/socket.h>" nogil:
    ssize_t recv(int fd, void* buffer, size_t size, int flags)
    ssize_t send(int fd, const void* data, size_t size, int flags)
    enum:
        MSG_MORE
        MSG_NOSIGNAL


cdef int64_t plain_receive(Connection* c, void* buffer, int64_t size) noexcept nogil:
    cdef ssize_t n = recv(c.fd, buffer, size, 0)
    return n if n >= 0 else -errno


cdef int64_t plain_send(Connection* c, const void* data, int64_t size, bint more) noexcept nogil:
    cdef ssize_t n = send(c.fd, data, size, MSG_NOSIGNAL | (MSG_MORE if more else 0))
    return n if n >= 0 else -errno


cdef int64_t plain_send_file(
        Connection* c, int fd, int64_t position, int64_t size, Scratch* scratch) noexcept nogil:
    cdef int64_t at = position
    cdef int64_t n
    if scratch.send_buffer == NULL:
        return calls().sendfile(c.fd, fd, &at, size)
    n = calls().pread(fd, scratch.send_buffer, min(size, scratch.send_bytes), position)
    # What the socket does not take is read again next time: the page cache has it.
    return plain_send(c, scratch.send_buffer, n, n < size) if n > 0 else n


cdef Transport PLAIN
PLAIN.receive = plain_receive
PLAIN.send = plain_send
PLAIN.send_file = plain_send_file


cdef const Transport* plain_transport() noexcept nogil:
    return &PLAIN
