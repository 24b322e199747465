/* Between a broker and libc: a wall clock that a test sets, and a disk that refuses writes.
 *
 * The file that PLOG_TEST_HOST names is mapped, and holds what the test wants; see tests/hosts/host.py.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/time.h>
#include <sys/uio.h>
#include <time.h>
#include <unistd.h>

struct host {
    int64_t clock_shift_ms;
    int64_t write_errno;     /* of every change below `prefix`; 0: none fails */
    int64_t syncs_fail;      /* fsync and fdatasync too */
    char prefix[1000];
};

static volatile struct host* host;

__attribute__((constructor)) static void map_host(void) {
    const char* path = getenv("PLOG_TEST_HOST");
    int fd = path ? open(path, O_RDONLY | O_CLOEXEC) : -1;
    void* mapped = fd < 0 ? MAP_FAILED : mmap(NULL, sizeof(struct host), PROT_READ, MAP_SHARED, fd, 0);
    if (fd >= 0) close(fd);
    if (mapped != MAP_FAILED) host = mapped;
}

#define REAL(name) ((__typeof__(&name))dlsym(RTLD_NEXT, #name))

/* --- the clock ------------------------------------------------------------------------------- */

static int is_wall(clockid_t clock) { return clock == CLOCK_REALTIME || clock == CLOCK_REALTIME_COARSE; }

int clock_gettime(clockid_t clock, struct timespec* out) {
    static __typeof__(&clock_gettime) real;
    if (!real) real = REAL(clock_gettime);
    int result = real(clock, out);
    if (result == 0 && host && is_wall(clock)) {
        int64_t ms = host->clock_shift_ms;
        out->tv_sec += ms / 1000;
        out->tv_nsec += ms % 1000 * 1000000;
        if (out->tv_nsec < 0) out->tv_nsec += 1000000000, out->tv_sec -= 1;
        if (out->tv_nsec >= 1000000000) out->tv_nsec -= 1000000000, out->tv_sec += 1;
    }
    return result;
}

int gettimeofday(struct timeval* restrict out, void* restrict zone) {
    struct timespec now;
    (void)zone;
    clock_gettime(CLOCK_REALTIME, &now);
    out->tv_sec = now.tv_sec;
    out->tv_usec = now.tv_nsec / 1000;
    return 0;
}

time_t time(time_t* out) {
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    if (out) *out = now.tv_sec;
    return now.tv_sec;
}

/* --- the disk -------------------------------------------------------------------------------- */

static int is_below(const char* path) {
    char prefix[sizeof host->prefix];
    memcpy(prefix, (const void*)host->prefix, sizeof prefix);
    size_t size = strlen(prefix);
    return size && strncmp(path, prefix, size) == 0 && (path[size] == '/' || path[size] == 0);
}

static int path_fails(const char* path) {
    if (!host || !host->write_errno || !is_below(path)) return 0;
    errno = (int)host->write_errno;
    return 1;
}

static int fd_fails(int fd) {
    char link[64], path[PATH_MAX];
    if (!host || !host->write_errno) return 0;
    snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
    ssize_t size = readlink(link, path, sizeof path - 1);
    if (size < 0) return 0;
    path[size] = 0;
    return path_fails(path);
}

#define FAILING_ON_FD(result, name, parameters, arguments) \
    result name parameters { \
        static __typeof__(&name) real; \
        if (!real) real = REAL(name); \
        return fd_fails(fd) ? -1 : real arguments; \
    }
#define FAILING_ON_PATH(name, parameters, arguments) \
    int name parameters { \
        static __typeof__(&name) real; \
        if (!real) real = REAL(name); \
        return path_fails(path) ? -1 : real arguments; \
    }

FAILING_ON_FD(ssize_t, pwritev, (int fd, const struct iovec* v, int n, off_t at), (fd, v, n, at))
FAILING_ON_FD(ssize_t, pwritev64, (int fd, const struct iovec* v, int n, off64_t at), (fd, v, n, at))
FAILING_ON_FD(ssize_t, pwrite, (int fd, const void* data, size_t size, off_t at), (fd, data, size, at))
FAILING_ON_FD(ssize_t, pwrite64, (int fd, const void* data, size_t size, off64_t at), (fd, data, size, at))
FAILING_ON_FD(ssize_t, write, (int fd, const void* data, size_t size), (fd, data, size))
FAILING_ON_FD(int, ftruncate, (int fd, off_t size), (fd, size))
FAILING_ON_FD(int, ftruncate64, (int fd, off64_t size), (fd, size))
FAILING_ON_PATH(mkdir, (const char* path, mode_t mode), (path, mode))
FAILING_ON_PATH(unlink, (const char* path), (path))
FAILING_ON_PATH(rmdir, (const char* path), (path))
FAILING_ON_PATH(rename, (const char* path, const char* to), (path, to))

int fsync(int fd) {
    static __typeof__(&fsync) real;
    if (!real) real = REAL(fsync);
    return host && host->syncs_fail && fd_fails(fd) ? -1 : real(fd);
}

int fdatasync(int fd) {
    static __typeof__(&fdatasync) real;
    if (!real) real = REAL(fdatasync);
    return host && host->syncs_fail && fd_fails(fd) ? -1 : real(fd);
}

#define OPENING(name) \
    int name(const char* path, int flags, ...) { \
        static __typeof__(&name) real; \
        va_list more; \
        va_start(more, flags); \
        mode_t mode = va_arg(more, mode_t); \
        va_end(more); \
        if (!real) real = REAL(name); \
        if (flags & (O_WRONLY | O_RDWR | O_CREAT | O_TRUNC) && path_fails(path)) return -1; \
        return real(path, flags, mode); \
    }

OPENING(open)
OPENING(open64)
