from plog.types import Buffer

NONE: int
GZIP: int
SNAPPY: int
LZ4: int
ZSTD: int

DEFAULT_LEVEL: int
"""The level each codec takes by itself: gzip 6, lz4 fast, zstd 3."""

def compress(codec: int, data: Buffer, level: int = ...) -> bytes:
    """Compress a batch's records section in the framing that Kafka gives `codec`.

    Raises:
        ValueError: no such codec, or a level outside the codec's range.
    """

def decompress(codec: int, data: Buffer, limit: int) -> bytes:
    """Expand a batch's records section.

    Raises:
        CorruptRecord: not valid data of this codec, cut short, or more than `limit` bytes.
        ValueError: `limit` is negative.
    """
