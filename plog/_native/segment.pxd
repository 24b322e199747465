# A segment, and a range of its log file, as Python holds them: each is a pin.
from libc.stdint cimport int64_t

from plog._native.segment_files cimport SegmentFiles


cdef class Segment:
    cdef SegmentFiles* files
    cdef object __weakref__


cdef class FileRange:
    cdef SegmentFiles* segment  # a pin of its own
    cdef readonly int64_t position
    cdef readonly int64_t size
    cdef readonly int64_t next_offset_hint

# Takes the caller's pin over.
cdef FileRange new_file_range(SegmentFiles* pinned, int64_t position, int64_t size, int64_t next_offset_hint)
