"""Faults underneath the real code, a clock that is wrong, and a journal of what has been synced: for tests.

Owns the rules, the journal and a second table of file and clock calls, which consult them and then make
the system's (`files`). It is in use only while there is something to do: watching costs a lock for every
call. Nothing in plog imports this kernel.
"""

from cpython.bytes cimport PyBytes_AS_STRING
from libc.errno cimport EIO, errno
from libc.stdint cimport int64_t, uint8_t
from libc.stdio cimport snprintf
from libc.string cimport memcpy, strlen, strncmp
from posix.types cimport off_t

import os

from plog._native.files cimport FileCalls, iovec, system_calls, use_calls
from plog._native.locks cimport (
    load, pthread_mutex_init, pthread_mutex_lock, pthread_mutex_t, pthread_mutex_unlock, store)
from plog._native.request_stages cimport table

cdef extern from "<unistd.h>" nogil:
    ssize_t c_write "write"(int fd, const void* data, size_t size)
    ssize_t c_readlink "readlink"(const char* path, char* buffer, size_t size)

cdef extern from "<sys/stat.h>" nogil:
    struct stat_t "stat":
        unsigned long long st_dev
        unsigned long long st_ino
        unsigned long st_nlink
        unsigned int st_mode
        off_t st_size
    int c_fstat "fstat"(int fd, stat_t* out)
    bint S_ISDIR(unsigned int mode)

cdef extern from "<time.h>" nogil:
    struct timespec:
        long tv_sec
        long tv_nsec
    int nanosleep(const timespec* asked, timespec* left)

cdef enum:
    CALL_PWRITEV = 0
    CALL_PREAD = 1
    CALL_SENDFILE = 2
    CALL_FDATASYNC = 3
    CALL_FSYNC = 4
    CALL_FTRUNCATE = 5
    CALL_IS_RESIDENT = 6
    CALL_PREAD_NOW = 7
    CALL_OPEN_DIRECTORY = 8
    MAX_RULES = 64
    MAX_PATH_BYTES = 1024
    MAX_PIECES = 64

ctypedef struct Rule:
    int call
    int errno_value
    int64_t short_bytes
    int64_t delay_us
    int64_t after
    int64_t times
    int fd
    char path_prefix[MAX_PATH_BYTES]

ctypedef struct Action:
    int errno_value
    int64_t short_bytes  # -1: the whole

cdef pthread_mutex_t _rules_lock
pthread_mutex_init(&_rules_lock, NULL)
# All under _rules_lock.
cdef Rule _rules[MAX_RULES]
cdef int _rule_count = 0
# -1: nothing is written down.
cdef int64_t _journal_fd = -1

cdef int64_t _clock_shift_ms = 0

cdef FileCalls* _system = system_calls()


# --- rules ----------------------------------------------------------------------------------------

cdef int64_t path_of(int fd, char* out, size_t room) noexcept nogil:
    # The descriptor's path by /proc, zero-terminated; its length, or -errno.
    cdef char link[64]
    cdef ssize_t size
    snprintf(link, sizeof(link), b"/proc/self/fd/%d", fd)
    size = c_readlink(link, out, room - 1)
    if size < 0:
        return -errno
    out[size] = 0
    return size


cdef void consult(int call, int fd, const char* path, Action* action) noexcept nogil:
    """Find what the next call of this kind should do, and sleep what it should sleep.

    The call is on `fd`, or without a descriptor (-1) on `path`. Rules that let it through count it
    and leave it to the rules behind them.
    """
    cdef char linked[MAX_PATH_BYTES]
    cdef bint asked = path != NULL
    cdef int64_t delay_us = 0
    cdef timespec pause
    cdef Rule* rule
    cdef int number
    action.errno_value = 0
    action.short_bytes = -1
    pthread_mutex_lock(&_rules_lock)
    for number in range(_rule_count):
        rule = &_rules[number]
        if rule.call != call or rule.times == 0 or (rule.fd >= 0 and rule.fd != fd):
            continue
        if rule.path_prefix[0] != 0:
            if not asked:
                asked = True
                if path_of(fd, linked, sizeof(linked)) >= 0:
                    path = linked
            if path == NULL or strncmp(path, rule.path_prefix, strlen(rule.path_prefix)) != 0:
                continue
        if rule.after > 0:
            rule.after -= 1
            continue
        if rule.times > 0:
            rule.times -= 1
        action.errno_value = rule.errno_value
        action.short_bytes = rule.short_bytes
        delay_us = rule.delay_us
        break
    pthread_mutex_unlock(&_rules_lock)
    if delay_us > 0:
        pause.tv_sec = delay_us // 1000000
        pause.tv_nsec = (delay_us % 1000000) * 1000
        while nanosleep(&pause, &pause) != 0:
            pass


# --- the journal ----------------------------------------------------------------------------------

cdef int write_journal(const char* line, size_t size) noexcept nogil:
    # One write a line, and under the lock, so that nobody closes the journal meanwhile.
    cdef ssize_t done = size
    cdef int failed = 0
    pthread_mutex_lock(&_rules_lock)
    if _journal_fd >= 0:
        done = c_write(<int>_journal_fd, line, size)
        if done < 0:
            failed = -errno
    pthread_mutex_unlock(&_rules_lock)
    if not failed and <size_t>done != size:
        failed = -EIO
    return failed


cdef int note_sync(int fd, const stat_t* before) noexcept nogil:
    """Write down that what the file held before the sync is durable.

    A journal that cannot be written fails the sync: a test must not run on with a wrong journal.
    """
    cdef char path[MAX_PATH_BYTES]
    cdef char line[MAX_PATH_BYTES + 128]
    cdef int64_t size
    cdef int length
    if before.st_nlink == 0:
        return 0  # unlinked: nothing of it can come back
    size = path_of(fd, path, sizeof(path))
    if size < 0:
        return <int>size
    if S_ISDIR(before.st_mode):
        length = snprintf(line, sizeof(line), b"dir %s\n", path)
    else:
        length = snprintf(
            line, sizeof(line), b"sync %llu %llu %lld %s\n",
            <unsigned long long>before.st_dev, <unsigned long long>before.st_ino,
            <long long>before.st_size, path)
    return write_journal(line, length)


# --- the watched calls ----------------------------------------------------------------------------

cdef int64_t watched_pwritev(
        int fd, const iovec* pieces, int count, int64_t offset) noexcept nogil:
    cdef Action action
    cdef iovec cut[MAX_PIECES]
    cdef int64_t left, done
    cdef int used = 0
    consult(CALL_PWRITEV, fd, NULL, &action)
    if action.short_bytes < 0:
        return -action.errno_value if action.errno_value else _system.pwritev(fd, pieces, count, offset)
    left = action.short_bytes
    while used < count and used < MAX_PIECES and left > 0:
        cut[used] = pieces[used]
        if <int64_t>cut[used].iov_len > left:
            cut[used].iov_len = left
        left -= cut[used].iov_len
        used += 1
    done = _system.pwritev(fd, cut, used, offset)
    return -action.errno_value if action.errno_value else done


cdef int64_t watched_pread(int fd, void* buffer, size_t size, int64_t offset) noexcept nogil:
    cdef Action action
    consult(CALL_PREAD, fd, NULL, &action)
    if action.errno_value:
        return -action.errno_value
    if 0 <= action.short_bytes < <int64_t>size:
        size = action.short_bytes
    return _system.pread(fd, buffer, size, offset)


cdef int64_t watched_pread_now(int fd, void* buffer, size_t size, int64_t offset) noexcept nogil:
    cdef Action action
    consult(CALL_PREAD_NOW, fd, NULL, &action)
    return -action.errno_value if action.errno_value else _system.pread_now(fd, buffer, size, offset)


cdef bint watched_is_resident(int fd, int64_t offset, int64_t size) noexcept nogil:
    cdef Action action
    consult(CALL_IS_RESIDENT, fd, NULL, &action)
    return not action.errno_value and _system.is_resident(fd, offset, size)


cdef int64_t watched_sendfile(
        int to_socket, int fd, int64_t* offset, size_t size) noexcept nogil:
    cdef Action action
    consult(CALL_SENDFILE, fd, NULL, &action)
    if action.errno_value:
        return -action.errno_value
    if 0 <= action.short_bytes < <int64_t>size:
        size = action.short_bytes
    return _system.sendfile(to_socket, fd, offset, size)


cdef int watched_sync(int call, int fd) noexcept nogil:
    cdef Action action
    cdef stat_t before
    cdef bint noted = load(&_journal_fd) >= 0
    cdef int failed
    # Bytes that arrive while the sync runs are not promised by it, so the size is read first.
    if noted and c_fstat(fd, &before) != 0:
        return -errno
    consult(call, fd, NULL, &action)
    if action.errno_value:
        return -action.errno_value
    failed = _system.fdatasync(fd) if call == CALL_FDATASYNC else _system.fsync(fd)
    if failed or not noted:
        return failed
    return note_sync(fd, &before)


cdef int watched_fdatasync(int fd) noexcept nogil:
    return watched_sync(CALL_FDATASYNC, fd)


cdef int watched_fsync(int fd) noexcept nogil:
    return watched_sync(CALL_FSYNC, fd)


cdef int watched_ftruncate(int fd, int64_t size) noexcept nogil:
    cdef Action action
    consult(CALL_FTRUNCATE, fd, NULL, &action)
    if action.errno_value:
        return -action.errno_value
    return _system.ftruncate(fd, size)


cdef int watched_open_directory(const char* path) noexcept nogil:
    cdef Action action
    consult(CALL_OPEN_DIRECTORY, -1, path, &action)
    return -action.errno_value if action.errno_value else _system.open_directory(path)


cdef int64_t watched_now_ms() noexcept nogil:
    return _system.now_ms() + load(&_clock_shift_ms)


cdef FileCalls _watched
_watched = _system[0]
_watched.pwritev = watched_pwritev
_watched.pread = watched_pread
_watched.pread_now = watched_pread_now
_watched.is_resident = watched_is_resident
_watched.sendfile = watched_sendfile
_watched.fdatasync = watched_fdatasync
_watched.fsync = watched_fsync
_watched.ftruncate = watched_ftruncate
_watched.open_directory = watched_open_directory
_watched.now_ms = watched_now_ms


# --- for Python -----------------------------------------------------------------------------------

CALLS = (
    "pwritev", "pread", "sendfile", "fdatasync", "fsync", "ftruncate", "is_resident", "pread_now", "open_directory")


class Fault:
    """One rule: what the matching calls do instead of (or before) the system call.

    With `errno` and `short_bytes` together a write writes so much and then fails.

    Raises:
        ValueError: no such call, or a path longer than a rule can hold.
    """

    def __init__(
        self,
        call,
        *,
        errno=0,
        short_bytes=-1,
        delay_us=0,
        after=0,
        times=-1,
        fd=-1,
        path_prefix="",
    ):
        if call not in CALLS:
            raise ValueError(f"no call {call!r}; there are {', '.join(CALLS)}")
        if len(os.fsencode(path_prefix)) >= MAX_PATH_BYTES:
            raise ValueError(f"a path prefix of more than {MAX_PATH_BYTES - 1} bytes")
        self.call = call
        self.errno = errno
        self.short_bytes = short_bytes
        self.delay_us = delay_us
        self.after = after
        self.times = times
        self.fd = fd
        self.path_prefix = path_prefix


cdef void choose_table() noexcept:
    cdef bint watched = _rule_count > 0 or load(&_journal_fd) >= 0 or load(&_clock_shift_ms) != 0
    use_calls(&_watched if watched else _system)


def inject(faults):
    """Replace the table's functions by ones that consult `faults`, first match first.

    An empty list restores the system calls.

    Raises:
        ValueError: more rules than there is room for.
    """
    global _rule_count
    cdef Rule fresh[MAX_RULES]
    cdef bytes prefix
    cdef int count = len(faults)
    cdef int number
    if count > MAX_RULES:
        raise ValueError(f"{count} faults; at most {MAX_RULES} can be injected at once")
    for number in range(count):
        fault = faults[number]
        prefix = os.fsencode(fault.path_prefix)
        fresh[number].call = CALLS.index(fault.call)
        fresh[number].errno_value = fault.errno
        fresh[number].short_bytes = fault.short_bytes
        fresh[number].delay_us = fault.delay_us
        fresh[number].after = fault.after
        fresh[number].times = fault.times
        fresh[number].fd = fault.fd
        memcpy(fresh[number].path_prefix, PyBytes_AS_STRING(prefix), len(prefix) + 1)
    with nogil:
        pthread_mutex_lock(&_rules_lock)
        for number in range(count):
            _rules[number] = fresh[number]
        _rule_count = count
        pthread_mutex_unlock(&_rules_lock)
    choose_table()


def shift_clock(int64_t ms):
    """Let now_ms run ahead of the system's clock (or behind it) by `ms` from now on."""
    store(&_clock_shift_ms, ms)
    choose_table()


def set_transition(int stage, int event, int after):
    """Change the stage that follows an event in the table of requests (0: none); return what it was.

    The table is the whole process's.
    """
    cdef int before = table[stage][event]
    table[stage][event] = <uint8_t>after
    return before


def record_durability(journal_path):
    """Write down what has been synced, in a file that survives kill -9; "" stops it.

    Lines: ``sync <dev> <ino> <size> <path>`` after a successful fdatasync or fsync of a file, with
    the size that the file had before the call, ``dir <path>`` after one of a directory. Each is one
    write in append mode. Raises OSError.
    """
    cdef int64_t old
    cdef int64_t fresh = -1
    if journal_path:
        fresh = os.open(journal_path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o644)
    with nogil:
        pthread_mutex_lock(&_rules_lock)
        old = _journal_fd
        store(&_journal_fd, fresh)
        pthread_mutex_unlock(&_rules_lock)
    choose_table()
    if old >= 0:
        os.close(old)
