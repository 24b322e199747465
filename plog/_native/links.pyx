"""The lists of a reactor: doubly linked circles, without memory of their own.

Owns how a connection enters and leaves one. Knows nothing of what a list is for.
"""


cdef void link_init(Link* link, Connection* owner) noexcept nogil:
    link.previous = link
    link.next = link
    link.owner = owner


cdef void link_append(Link* sentinel, Link* link) noexcept nogil:
    link_remove(link)
    link.previous = sentinel.previous
    link.next = sentinel
    sentinel.previous.next = link
    sentinel.previous = link


cdef void link_remove(Link* link) noexcept nogil:
    link.previous.next = link.next
    link.next.previous = link.previous
    link.previous = link
    link.next = link
