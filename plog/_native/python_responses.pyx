"""Responses that Python made, as the bytes that a connection sends."""

from libc.stdint cimport INT32_MAX
from libc.string cimport memcpy

from plog._native.connection cimport memory_piece, piece_bytes
from plog._native.reactor_types cimport PREFIX_BYTES
from plog._native.wire cimport put_int32


cdef int fill_answer(Command* command, list pieces) except -1:
    cdef bytes body = b"".join(pieces)  # which copies nothing of one piece
    cdef Py_ssize_t size = len(body)
    if size > INT32_MAX:
        raise ValueError(f"a response of {size} bytes exceeds the largest length prefix")
    command.first = command.last = memory_piece(PREFIX_BYTES + size)
    if command.first == NULL:
        raise MemoryError
    put_int32(piece_bytes(command.first), <int>size)
    memcpy(piece_bytes(command.first) + PREFIX_BYTES, <const char*>body, size)
    command.size = PREFIX_BYTES + size
    return 0
