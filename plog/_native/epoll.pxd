# Linux's epoll.
from libc.stdint cimport uint32_t

cdef extern from "<sys/epoll.h>" nogil:
    ctypedef union epoll_data_t:
        void* ptr
    struct epoll_event:
        uint32_t events
        epoll_data_t data
    int epoll_create1(int flags)
    int epoll_ctl(int epoll_fd, int op, int fd, epoll_event* event)
    int epoll_wait(int epoll_fd, epoll_event* events, int most, int timeout_ms)
    enum:
        EPOLL_CLOEXEC
        EPOLL_CTL_ADD
        EPOLL_CTL_DEL
        EPOLLERR
        EPOLLET
        EPOLLHUP
        EPOLLIN
        EPOLLOUT
        EPOLLRDHUP
