# One thread of the reactor: its connections, its inbox, its round.
from plog._native.reactor_types cimport Command, Loop, Shared

# 0, or -errno. Whatever comes of it, `loop_release` frees what there is.
cdef int loop_open(Loop* loop, Shared* shared, int index) noexcept nogil
cdef void loop_release(Loop* loop) noexcept nogil
# The thread's life: returns when `shared.stopping` is set and everything is closed.
cdef void loop_run(Loop* loop) noexcept nogil
# After the thread has ended: free the commands it did not come to.
cdef void loop_discard_letters(Loop* loop) noexcept nogil
cdef void free_command(Shared* shared, Command* command) noexcept nogil
