from plog.types import Buffer

BYTES_PER_KEY: int

class OffsetMap:
    """The last offset of each key, in memory that is set beforehand; keys are known by 128 bits.

    The hash is keyed anew for each map, so that nobody can choose keys that are taken for others.
    """

    capacity: int  # keys that it takes
    count: int  # keys that it holds

    def __init__(self, memory_bytes: int, load_factor: float = 0.9) -> None:
        """Raises ValueError: memory for less than one key; MemoryError."""

    def add_batch(self, batch: Buffer, from_offset: int = 0) -> bool:
        """Take in the keys of one batch's records at or behind an offset; records without a key are
        nobody's. False: the map is full, and some of them are missing.

        Raises CorruptRecord: the batch cannot be read. Its CRC is not looked at.
        """

    def latest(self, key: Buffer) -> int:
        """Return the last offset of a key, -1 if it is not known."""
