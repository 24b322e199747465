# The lists of a reactor, in which a connection stands at most once each.
from plog._native.reactor_types cimport Connection, Link

# In no list.
cdef void link_init(Link* link, Connection* owner) noexcept nogil
# Put `link` last, wherever it was before.
cdef void link_append(Link* sentinel, Link* link) noexcept nogil
cdef void link_remove(Link* link) noexcept nogil
