# What the codecs of record batches return, and the level that stands for each codec's own.
cdef enum:
    # The level each codec takes by itself: gzip 6, lz4 fast, zstd 3. Snappy has none.
    COMPRESSION_DEFAULT_LEVEL = -2147483648

cdef enum:
    COMPRESSION_OK = 0
    COMPRESSION_CORRUPT = -1     # the input is not of this codec, or is cut short
    COMPRESSION_TOO_LARGE = -2   # the output would exceed the limit
    COMPRESSION_NO_MEMORY = -3
    COMPRESSION_UNKNOWN_CODEC = -4
