# Other threads that work on a request, and the letters by which it comes back to its loop.
from plog._native.reactor_types cimport Loop, Request
from plog._native.work_queue cimport Task, WorkQueue

# Have a thread of `queue` do `work`. `produce` or `fetch` and the stages of its partitions are that thread's until its
# letter comes.
cdef void lane_ask(Request* request, WorkQueue* queue, void (*work)(Task* task) noexcept nogil) noexcept nogil
# In that thread: the work is done.
cdef void lane_post(Request* request) noexcept nogil
# Let the first request of a connection wait until one of its partitions changes, or its deadline. False: one has
# changed since it was looked at, and no letter says so.
cdef bint wait_for(Loop* loop, Request* request) noexcept nogil
