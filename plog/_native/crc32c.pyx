"""CRC-32C (Castagnoli): the checksum of record batches v2 and of producer snapshots.

Owns the choice of the fastest implementation that this processor has, made once
at import and proven there. Never guesses: an implementation that disagrees with
the tables stops the import, because a wrong checksum would condemn a whole log.
"""

from cpython.buffer cimport PyBUF_SIMPLE, PyBuffer_Release, PyObject_GetBuffer
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_GET_SIZE
from cpython.long cimport PyLong_AsLongLongAndOverflow
from libc.stdint cimport UINT32_MAX, uint8_t, uint32_t
from libc.string cimport memset

cdef extern from "crc32c_impl.h" nogil:
    ctypedef uint32_t (*plog_crc_function)(uint32_t crc, const uint8_t* data, size_t size) noexcept
    enum:
        PLOG_CRC_LONG
        PLOG_CRC_SHORT
    void plog_crc_build_tables() noexcept
    uint32_t plog_crc_by_table(uint32_t crc, const uint8_t* data, size_t size) noexcept
    uint32_t plog_crc_by_instruction(uint32_t crc, const uint8_t* data, size_t size) noexcept
    const char* plog_crc_instruction_name() noexcept

cdef enum:
    # From here on a checksum takes longer than handing the lock over.
    RELEASE_AT_BYTES = 32768

cdef plog_crc_function chosen = plog_crc_by_table


cdef uint32_t crc32c_update(uint32_t crc, const uint8_t* data, size_t size) noexcept nogil:
    return chosen(crc, data, size)


cdef uint32_t checked_crc(object crc) except? 0:
    cdef int overflow = 0
    cdef long long value = PyLong_AsLongLongAndOverflow(crc, &overflow)
    if overflow != 0 or value < 0 or value > UINT32_MAX:
        raise OverflowError(f"crc {crc} is not an unsigned 32-bit number")
    return <uint32_t>value


cdef uint32_t checksum(plog_crc_function function, object data, uint32_t crc) except? 0:
    cdef Py_buffer view
    if type(data) is bytes and PyBytes_GET_SIZE(data) < RELEASE_AT_BYTES:
        return function(crc, <const uint8_t*>PyBytes_AS_STRING(data), PyBytes_GET_SIZE(data))
    PyObject_GetBuffer(data, &view, PyBUF_SIMPLE)
    if view.len < RELEASE_AT_BYTES:
        crc = function(crc, <const uint8_t*>view.buf, view.len)
    else:
        with nogil:
            crc = function(crc, <const uint8_t*>view.buf, view.len)
    PyBuffer_Release(&view)
    return crc


def crc32c(data, crc=0):
    """Return the CRC-32C of `data`, appended to what `crc` already covers.

    Raises:
        OverflowError: `crc` is not an unsigned 32-bit number.
    """
    return checksum(chosen, data, checked_crc(crc))


def implementation():
    """Name the code chosen at run time: ``sse4.2``, ``armv8`` or ``table``."""
    return IMPLEMENTATIONS[0]


def _implementations():
    """Names of all implementations this processor can run, the fastest first."""
    return IMPLEMENTATIONS


def _crc32c_with(name, data, crc=0):
    """`crc32c` by the named implementation, for the agreement tests."""
    if name not in IMPLEMENTATIONS:
        raise ValueError(f"this processor has no CRC-32C implementation {name!r}")
    return checksum(
        plog_crc_by_table if name == "table" else plog_crc_by_instruction, data, checked_crc(crc))


cdef int prove(plog_crc_function function) except -1:
    # Long enough for every loop: three long blocks, three short ones, words, bytes.
    cdef uint8_t probe[3 * PLOG_CRC_LONG + 3 * PLOG_CRC_SHORT + 15]
    cdef size_t at
    memset(probe, 0, sizeof(probe))
    for at in range(sizeof(probe)):
        probe[at] = <uint8_t>(at * at + (at >> 8))
    if function(7, probe, sizeof(probe)) != plog_crc_by_table(7, probe, sizeof(probe)):
        raise RuntimeError("this processor's CRC-32C instruction disagrees with the tables")
    return 0


cdef tuple choose():
    global chosen
    cdef const char* name = plog_crc_instruction_name()
    plog_crc_build_tables()
    # The check value that every catalogue of CRCs lists for CRC-32C.
    if plog_crc_by_table(0, <const uint8_t*>b"123456789", 9) != <uint32_t>0xE3069283:
        raise RuntimeError("the CRC-32C tables are wrong: the build is broken")
    if name == NULL:
        return ("table",)
    prove(plog_crc_by_instruction)
    chosen = plog_crc_by_instruction
    return (name.decode("ascii"), "table")


IMPLEMENTATIONS = choose()
