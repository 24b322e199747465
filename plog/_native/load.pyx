"""The load generator behind `plog perf`: clients in C, since Python's would be slower than the broker.

Its sources are those of `asv_bench/load`, which `bin/bench` builds with servers of its
own to compare with. It ends the process when a server's answer makes no sense, so it
runs in one that is there for nothing else.
"""

from libc.stdlib cimport free, malloc

cdef extern from "load.h" nogil:
    int load_main(int argc, char** argv)


def main(arguments):
    """Run `produce` or `fetch` with its options (asv_bench/load/options.c); print its figures as JSON."""
    cdef list encoded = [b"load", *(str(argument).encode() for argument in arguments)]
    cdef int count = <int>len(encoded)
    cdef int number
    cdef char** argv = <char**>malloc((count + 1) * sizeof(char*))
    cdef int status
    if argv == NULL:
        raise MemoryError
    for number in range(count):
        argv[number] = encoded[number]
    argv[count] = NULL
    with nogil:
        status = load_main(count, argv)
    free(argv)
    return status
