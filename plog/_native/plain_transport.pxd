# How bytes pass through a socket as they are.
from plog._native.reactor_types cimport Transport

cdef const Transport* plain_transport() noexcept nogil
