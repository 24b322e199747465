# The end of a connection.
from plog._native.reactor_types cimport Connection, Loop

# Close now. `reason` NULL: the connection holds it.
cdef void finish_close(Loop* loop, Connection* c, const char* reason) noexcept nogil
# Read no more, and close once the queued responses are sent. `reason` NULL: the connection holds it.
cdef void begin_close(Loop* loop, Connection* c, const char* reason) noexcept nogil
# Its responses reach no client any more: drop them, do the requests that have come whole, then close. It reads no
# more than the kernel holds now. `reason` NULL: the connection holds it.
cdef void let_go(Loop* loop, Connection* c, const char* reason) noexcept nogil
# Nothing more will be read. Requests that have come whole are appended first.
cdef void end_stream(Loop* loop, Connection* c) noexcept nogil
