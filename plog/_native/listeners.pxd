# Accepting connections, for all loops.
from plog._native.reactor_types cimport Listener, Loop

# Accept what waits at a listener, but not more than a turn may.
cdef void welcome(Loop* loop, Listener* listener) noexcept nogil
# Watch it, or try again at the next tick.
cdef void listen_on(Loop* loop, Listener* listener) noexcept nogil
cdef void close_listeners(Loop* loop) noexcept nogil
