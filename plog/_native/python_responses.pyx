"""Responses that Python made: bytes and ranges of files, as the pieces that a connection sends.

Owns the copy of the bytes and the pins of the files until they are sent.
"""

from cpython.buffer cimport PyBUF_SIMPLE, Py_buffer, PyBuffer_Release, PyObject_GetBuffer
from libc.stdint cimport INT32_MAX, int64_t, uint8_t
from libc.stdlib cimport calloc, free
from libc.string cimport memcpy

from plog._native.connection cimport file_piece, memory_piece, piece_bytes
from plog._native.reactor_types cimport PREFIX_BYTES, Piece
from plog._native.segment cimport FileRange
from plog._native.segment_files cimport SegmentFiles, segment_release, segment_retain
from plog._native.wire cimport put_int32


cdef void unpin_segment(void* pin) noexcept nogil:
    segment_release(<SegmentFiles*>pin)


cdef int append_piece(Command* command, Piece* piece) except -1:
    if piece == NULL:
        raise MemoryError
    if command.first == NULL:
        command.first = piece
    else:
        command.last.next = piece
    command.last = piece
    return 0


cdef int append_range(Command* command, FileRange file_range) except -1:
    cdef Piece* piece = file_piece(
        file_range.segment.log_fd, file_range.position, file_range.size, file_range.segment, unpin_segment)
    if piece != NULL:
        segment_retain(file_range.segment)
    return append_piece(command, piece)


cdef int append_views(Command* command, Py_buffer* views, Py_ssize_t count, int64_t room) except -1:
    """Copy neighbouring pieces of memory into one, after `room` bytes that are left free."""
    cdef int64_t size = room
    cdef uint8_t* at
    cdef Piece* piece
    cdef Py_ssize_t i
    for i in range(count):
        size += views[i].len
    piece = memory_piece(size)
    append_piece(command, piece)
    at = piece_bytes(piece) + room
    for i in range(count):
        memcpy(at, views[i].buf, views[i].len)
        at += views[i].len
    return 0


cdef int fill_answer(Command* command, list pieces) except -1:
    cdef Py_ssize_t count = len(pieces)
    cdef Py_ssize_t opened = 0
    cdef Py_ssize_t run_start = 0
    cdef Py_ssize_t i
    cdef int64_t size = 0
    cdef Py_buffer* views = <Py_buffer*>calloc(count + 1, sizeof(Py_buffer))
    if views == NULL:
        raise MemoryError
    try:
        for i in range(count):
            piece = pieces[i]
            if isinstance(piece, FileRange):
                size += (<FileRange>piece).size
            else:
                PyObject_GetBuffer(piece, &views[i], PyBUF_SIMPLE)
                size += views[i].len
            opened = i + 1
        if size > INT32_MAX:
            raise ValueError(f"a response of {size} bytes exceeds the largest length prefix")
        for i in range(count):
            piece = pieces[i]
            if isinstance(piece, FileRange):
                if i > run_start or i == 0:
                    append_views(command, views + run_start, i - run_start, PREFIX_BYTES if run_start == 0 else 0)
                append_range(command, <FileRange>piece)
                run_start = i + 1
        if count > run_start or count == 0:
            append_views(command, views + run_start, count - run_start, PREFIX_BYTES if run_start == 0 else 0)
        put_int32(piece_bytes(command.first), <int>size)
        command.size = PREFIX_BYTES + size
    finally:
        for i in range(opened):
            PyBuffer_Release(&views[i])  # nothing, for a FileRange
        free(views)
    return 0
