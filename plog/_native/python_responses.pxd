# Responses that Python made.
from plog._native.reactor_types cimport Command

# Turn the pieces of a response into the command's: length prefix and memory copied together, files pinned.
cdef int fill_answer(Command* command, list pieces) except -1
