# Responses that Python made.
from plog._native.reactor_types cimport Command

# Copy the pieces of a response into the command, behind a length prefix.
cdef int fill_answer(Command* command, list pieces) except -1
