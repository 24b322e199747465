# The memory of requests that Python has.
from plog._native.reactor_types cimport Note, Shared

# A writable view of the bytes that `note` holds, whose memory it takes over. `owner` keeps `shared`.
cdef object frame_view(object owner, Shared* shared, Note* note)
