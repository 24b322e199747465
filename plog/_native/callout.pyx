"""A callout of any kind: it is answered once, at its end by an error at the latest.

Owns that rule, and the way back to the reactor. The request stays with its reactor; its partitions are Python's
until the answer. Decides nothing.
"""

from typing import NamedTuple

cimport cython

from plog._native.callout_texts cimport nodes_of
from plog._native.lanes cimport lane_post


class LeaderEndpoint(NamedTuple):
    node_id: int
    host: str
    port: int
    rack: str | None


@cython.no_gc_clear  # the answer at its end needs `owner`
cdef class Callout:
    @property
    def asked(self):
        # Only now: of many partitions that takes much memory.
        if self._asked is None and self.request != NULL:
            self._asked = self.asked_parts()
        return self._asked

    def answer(self, outcomes, endpoints=()):
        cdef Request* request = self.request
        cdef list checked = self.checked(list(outcomes))
        cdef list nodes = nodes_of(endpoints)
        if request == NULL:
            raise RuntimeError("a callout is answered once")
        if len(checked) != self.count:
            raise ValueError(f"{len(checked)} outcomes of {self.count} partitions")
        self.put(checked, nodes)
        go_back(self)

    def give_up(self):
        if self.request != NULL:
            self.refuse_rest(self.request)
            go_back(self)

    def __dealloc__(self):
        if self.request != NULL:
            self.refuse_rest(self.request)
            go_back(self)

    cdef list asked_parts(self):
        raise NotImplementedError

    cdef list checked(self, list outcomes):
        raise NotImplementedError

    cdef int put(self, list checked, list nodes) except -1:
        raise NotImplementedError

    cdef void refuse_rest(self, Request* request) noexcept nogil:
        pass

    cdef void conclude(self, Request* request) noexcept nogil:
        pass


cdef void go_back(Callout callout) noexcept:
    """To the reactor, which may free the request at once."""
    cdef Request* request = callout.request
    callout.request = NULL
    with nogil:
        callout.conclude(request)
        lane_post(request)
