# The partitions of a Fetch: how they are looked up, and the memory of their names.
from plog._native.fetch_call cimport FetchCall, FetchPart
from plog._native.partition_names cimport PartitionName, Wanted
from plog._native.served cimport Served, ServedTable

# A pin, or NULL.
cdef Served* fetch_find(ServedTable* table, const FetchCall* call, const PartitionName* name) noexcept nogil
# One more partition to read. The caller's pin goes along, even without memory, which is NULL.
cdef FetchPart* fetch_add_part(FetchCall* call, Served* served, const Wanted* wanted) noexcept nogil
# Copy the names of those that are not served, which lie in the buffer or in the session. False: no memory.
cdef bint fetch_keep_names(FetchCall* call) noexcept nogil
# Of a partition that Python has read: have changes wake its request, whatever has come in its place in the table.
cdef void fetch_find_again(ServedTable* table, const FetchCall* call, FetchPart* part) noexcept nogil
