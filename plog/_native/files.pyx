"""The file and clock calls that the data path makes, behind one table of function pointers.

Owns the table and the system's calls in it; tests put another one there (`faults`). Never decides what
a failure means.
"""

from cpython.buffer cimport PyBUF_SIMPLE, Py_buffer, PyBuffer_Release, PyObject_GetBuffer
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize
from libc.errno cimport EAGAIN, EINTR, EIO, EMFILE, ENFILE, ENOMEM, EOPNOTSUPP, errno
from libc.stdint cimport int64_t, uint8_t
from posix.types cimport off_t

import os

from plog._native.locks cimport load_pointer, store_pointer

NO_DESCRIPTORS = frozenset({EMFILE, ENFILE})
"""The errors of `lacks_descriptor`, for Python."""
NO_RESOURCES = NO_DESCRIPTORS | {ENOMEM}

cdef extern from "<sys/uio.h>" nogil:
    ssize_t c_pwritev "pwritev"(int fd, const iovec* pieces, int count, off_t offset)
    ssize_t c_preadv2 "preadv2"(int fd, const iovec* pieces, int count, off_t offset, int flags)
    int RWF_NOWAIT

cdef extern from "<unistd.h>" nogil:
    ssize_t c_pread "pread"(int fd, void* buffer, size_t size, off_t offset)
    int c_fdatasync "fdatasync"(int fd)
    int c_fsync "fsync"(int fd)
    int c_ftruncate "ftruncate"(int fd, off_t size)

cdef extern from "<fcntl.h>" nogil:
    int sync_file_range(int fd, off_t offset, off_t size, unsigned int flags)
    unsigned int SYNC_FILE_RANGE_WRITE
    int c_open "open"(const char* path, int flags)
    int O_RDONLY
    int O_DIRECTORY
    int O_CLOEXEC

cdef extern from "<sys/sendfile.h>" nogil:
    ssize_t c_sendfile "sendfile"(int to_socket, int fd, off_t* offset, size_t size)

cdef extern from "<time.h>" nogil:
    struct timespec:
        long tv_sec
        long tv_nsec
    int CLOCK_REALTIME
    int CLOCK_MONOTONIC
    int CLOCK_BOOTTIME
    int clock_gettime(int clock, timespec* out)


# --- the system's own -----------------------------------------------------------------------------

cdef enum:
    SAMPLE_BYTES = 256 * 1024


cdef int64_t system_pwritev(
        int fd, const iovec* pieces, int count, int64_t offset) noexcept nogil:
    cdef ssize_t done = c_pwritev(fd, pieces, count, offset)
    return done if done >= 0 else -errno


cdef int64_t system_pread(int fd, void* buffer, size_t size, int64_t offset) noexcept nogil:
    cdef ssize_t done = c_pread(fd, buffer, size, offset)
    return done if done >= 0 else -errno


cdef int64_t system_pread_now(int fd, void* buffer, size_t size, int64_t offset) noexcept nogil:
    cdef iovec piece
    cdef ssize_t done
    piece.iov_base = buffer
    piece.iov_len = size
    done = c_preadv2(fd, &piece, 1, offset, RWF_NOWAIT)
    if done < 0 and errno == EOPNOTSUPP:
        return system_pread(fd, buffer, size, offset)
    return done if done >= 0 else -errno


cdef bint system_is_resident(int fd, int64_t offset, int64_t size) noexcept nogil:
    """By samples, the last byte among them."""
    cdef uint8_t byte
    cdef int64_t last = offset + size - 1
    cdef int64_t at = offset
    while at < last:
        at = min(at + SAMPLE_BYTES, last)
        if system_pread_now(fd, &byte, 1, at) == -EAGAIN:
            return False
    return True


cdef int64_t system_sendfile(
        int to_socket, int fd, int64_t* offset, size_t size) noexcept nogil:
    cdef off_t position = offset[0]
    cdef ssize_t done = c_sendfile(to_socket, fd, &position, size)
    if done < 0:
        return -errno
    offset[0] = position
    return done


cdef void system_begin_writing(int fd) noexcept nogil:
    sync_file_range(fd, 0, 0, SYNC_FILE_RANGE_WRITE)


cdef int system_fdatasync(int fd) noexcept nogil:
    return 0 if c_fdatasync(fd) == 0 else -errno


cdef int system_fsync(int fd) noexcept nogil:
    return 0 if c_fsync(fd) == 0 else -errno


cdef int system_ftruncate(int fd, int64_t size) noexcept nogil:
    return 0 if c_ftruncate(fd, size) == 0 else -errno


cdef int system_open_directory(const char* path) noexcept nogil:
    cdef int fd = c_open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC)
    return fd if fd >= 0 else -errno


cdef int64_t system_now_ms() noexcept nogil:
    cdef timespec now
    clock_gettime(CLOCK_REALTIME, &now)
    return <int64_t>now.tv_sec * 1000 + now.tv_nsec // 1000000


cdef int64_t system_monotonic_us() noexcept nogil:
    cdef timespec now
    clock_gettime(CLOCK_MONOTONIC, &now)
    return <int64_t>now.tv_sec * 1000000 + now.tv_nsec // 1000


cdef int64_t system_since_boot_ms() noexcept nogil:
    cdef timespec now
    clock_gettime(CLOCK_BOOTTIME, &now)
    return <int64_t>now.tv_sec * 1000 + now.tv_nsec // 1000000


# --- the table ------------------------------------------------------------------------------------

cdef FileCalls _system
_system.pwritev = system_pwritev
_system.pread = system_pread
_system.pread_now = system_pread_now
_system.is_resident = system_is_resident
_system.sendfile = system_sendfile
_system.begin_writing = system_begin_writing
_system.fdatasync = system_fdatasync
_system.fsync = system_fsync
_system.ftruncate = system_ftruncate
_system.open_directory = system_open_directory
_system.now_ms = system_now_ms
_system.monotonic_us = system_monotonic_us
_system.since_boot_ms = system_since_boot_ms

cdef void* _table = &_system


cdef FileCalls* calls() noexcept nogil:
    return <FileCalls*>load_pointer(&_table)


cdef FileCalls* system_calls() noexcept nogil:
    return &_system


cdef void use_calls(FileCalls* table) noexcept nogil:
    store_pointer(&_table, table)


cdef int64_t write_some(int fd, const iovec* pieces, int count, int64_t offset) noexcept nogil:
    cdef int64_t done = -EINTR
    while done == -EINTR:
        done = calls().pwritev(fd, pieces, count, offset)
    return done if done != 0 else -EIO  # no file does so; going on could go on for ever


cdef int write_all(int fd, const void* data, size_t size, int64_t offset) noexcept nogil:
    cdef iovec piece
    cdef int64_t done
    piece.iov_base = <void*>data
    piece.iov_len = size
    while piece.iov_len > 0:
        done = write_some(fd, &piece, 1, offset)
        if done < 0:
            return <int>done
        piece.iov_base = <uint8_t*>piece.iov_base + done
        piece.iov_len -= done
        offset += done
    return 0


cdef int64_t read_fully(int fd, void* data, size_t size, int64_t offset) noexcept nogil:
    cdef size_t total = 0
    cdef int64_t done
    while total < size:
        done = calls().pread(fd, <uint8_t*>data + total, size - total, offset + total)
        if done == -EINTR:
            continue
        if done < 0:
            return done
        if done == 0:
            break
        total += done
    return total


# --- for Python -----------------------------------------------------------------------------------

cdef object os_error(int64_t negative):
    return OSError(-negative, os.strerror(-negative))


def pwrite(int fd, data, int64_t offset):
    """Write all of `data` at `offset`, over short writes.

    Raises:
        OSError: an unknown part of the bytes may have been written.
    """
    cdef Py_buffer view
    cdef int failed
    PyObject_GetBuffer(data, &view, PyBUF_SIMPLE)
    try:
        with nogil:
            failed = write_all(fd, view.buf, view.len, offset)
    finally:
        PyBuffer_Release(&view)
    if failed:
        raise os_error(failed)


def pread(int fd, Py_ssize_t size, int64_t offset):
    """Read `size` bytes at `offset`; fewer only at the end of the file. Raises OSError."""
    cdef bytes out
    cdef char* at
    cdef int64_t done
    if size < 0:
        raise ValueError(f"cannot read {size} bytes")
    out = PyBytes_FromStringAndSize(NULL, size)
    at = PyBytes_AS_STRING(out)
    with nogil:
        done = read_fully(fd, at, size, offset)
    if done < 0:
        raise os_error(done)
    return out if done == size else out[:done]


def fdatasync(int fd):
    """Bring a file's bytes, and the size they need, to the disk. Raises OSError."""
    cdef int failed
    with nogil:
        failed = calls().fdatasync(fd)
    if failed:
        raise os_error(failed)


def fsync(int fd):
    """Bring a file, or a directory's entries, to the disk. Raises OSError."""
    cdef int failed
    with nogil:
        failed = calls().fsync(fd)
    if failed:
        raise os_error(failed)


def ftruncate(int fd, int64_t size):
    """Cut or extend a file to `size` bytes. Raises OSError."""
    cdef int failed
    with nogil:
        failed = calls().ftruncate(fd, size)
    if failed:
        raise os_error(failed)


def now_ms():
    """Return the wall clock in ms since 1970, shifted as `faults.shift_clock` says."""
    return calls().now_ms()
