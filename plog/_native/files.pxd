# The table of file and clock calls that the data path makes, so that tests can put short writes, EIO,
# ENOSPC, delays, lost un-synced bytes and clock jumps underneath the real code.
from libc.errno cimport EMFILE, ENFILE
from libc.stdint cimport int64_t

cdef extern from "<sys/uio.h>" nogil:
    struct iovec:
        void* iov_base
        size_t iov_len


# The process (EMFILE) or the host (ENFILE) has no file descriptor left. That says nothing about the disk. The one
# place that names these errors: Python has them as `files.NO_DESCRIPTORS`.
cdef inline bint lacks_descriptor(int error) noexcept nogil:
    return error == EMFILE or error == ENFILE


# Each call behaves as the system call of its name, but returns -errno instead of setting errno.
ctypedef struct FileCalls:
    int64_t (*pwritev)(int fd, const iovec* pieces, int count, int64_t offset) noexcept nogil
    int64_t (*pread)(int fd, void* buffer, size_t size, int64_t offset) noexcept nogil
    # As pread, but -EAGAIN when the disk would have to be asked. A file system that cannot tell asks it.
    int64_t (*pread_now)(int fd, void* buffer, size_t size, int64_t offset) noexcept nogil
    # In the page cache, as far as is known; whoever asks has just read the first byte.
    bint (*is_resident)(int fd, int64_t offset, int64_t size) noexcept nogil
    int64_t (*sendfile)(int to_socket, int fd, int64_t* offset, size_t size) noexcept nogil
    # Let the disk write what it can; what comes of it only a sync tells.
    void (*begin_writing)(int fd) noexcept nogil
    int (*fdatasync)(int fd) noexcept nogil
    int (*fsync)(int fd) noexcept nogil
    int (*ftruncate)(int fd, int64_t size) noexcept nogil
    int (*open_directory)(const char* path) noexcept nogil  # for its fsync; the descriptor is the caller's to close
    int64_t (*now_ms)() noexcept nogil         # wall clock, ms since 1970
    int64_t (*monotonic_us)() noexcept nogil   # stands still while the host sleeps
    int64_t (*since_boot_ms)() noexcept nogil  # goes on; of the clock of `Clock.since_boot_ms`

cdef FileCalls* calls() noexcept nogil
# What `calls` returns from now on, for every kernel; only `faults` changes it, and only for tests. A table stays where
# it is for ever, as threads may still be in it.
cdef void use_calls(FileCalls* table) noexcept nogil
# The system's own, whatever `calls` returns.
cdef FileCalls* system_calls() noexcept nogil
# As pwritev, but never interrupted: at least a byte was written, or -errno.
cdef int64_t write_some(int fd, const iovec* pieces, int count, int64_t offset) noexcept nogil
# Loops over short writes (and EINTR); 0, or -errno with an unknown part written.
cdef int write_all(int fd, const void* data, size_t size, int64_t offset) noexcept nogil
# Loops over short reads; bytes read (less than size only at the end of the file), or -errno.
cdef int64_t read_fully(int fd, void* data, size_t size, int64_t offset) noexcept nogil
