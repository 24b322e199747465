# The memory of requests: from the bytes in a connection's buffer to the last letter about them.
from plog._native.reactor_types cimport Connection, Loop, Request, RequestKind

# A request that has come: the last of its connection. Its bytes are in the connection's buffer. NULL: no memory.
cdef Request* request_new(Loop* loop, Connection* c) noexcept nogil
# Its kind is known now.
cdef void request_set_kind(Request* request, RequestKind kind) noexcept nogil
# Forget its partitions: another thread reads it again.
cdef void request_forget_parts(Request* request) noexcept nogil
# Cut its bytes out of the connection's buffer, and count them. False: no memory.
cdef bint request_cut(Request* request) noexcept nogil
# The connection's buffer goes on behind it.
cdef void request_leave_buffer(Request* request) noexcept nogil
# Copy its bytes, which are behind the connection's buffer. False: no memory.
cdef bint request_copy(Request* request) noexcept nogil
# Its bytes are not needed any more.
cdef void request_free_bytes(Request* request) noexcept nogil
# It waits, or another thread has it: count what it takes besides its bytes.
cdef void request_count_memory(Request* request) noexcept nogil
# Python has it, and its bytes.
cdef void request_forget_memory(Request* request) noexcept nogil
# It leaves its connection and its partitions: freed now, or when its letter comes.
cdef void request_end(Request* request) noexcept nogil
# It waits for nothing more.
cdef void request_stop_listening(Request* request) noexcept nogil
# Free a request whose letter came when it was over.
cdef void request_free(Request* request) noexcept nogil
# The thread of the loop has ended.
cdef void requests_release(Loop* loop) noexcept nogil
