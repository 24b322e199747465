"""Readable twin of the kernel `offset_map`: a dictionary, which never takes two keys for one."""

from __future__ import annotations

from plog._reference import records
from plog.types import Buffer

BYTES_PER_KEY = 24


class OffsetMap:
    """The last offset of each key, as far as there is room for keys."""

    def __init__(self, memory_bytes: int, load_factor: float = 0.9) -> None:
        self.capacity = int(memory_bytes // BYTES_PER_KEY * load_factor)
        if not 0 < load_factor < 1 or self.capacity < 1:
            raise ValueError(f"{memory_bytes} bytes at a load of {load_factor} hold no key")
        self._offsets: dict[bytes, int] = {}

    @property
    def count(self) -> int:
        """How many keys it holds."""
        return len(self._offsets)

    def add_batch(self, batch: Buffer, from_offset: int = 0) -> bool:
        """Take in one batch's keys; False: the map is full, and some of them are missing."""
        for record in records.walk(batch):
            if record.key is None or record.offset < from_offset:
                continue
            if record.key not in self._offsets and self.count == self.capacity:
                return False
            self._offsets[record.key] = max(record.offset, self.latest(record.key))
        return True

    def latest(self, key: Buffer) -> int:
        """Return the last offset of a key, -1 if it is not known."""
        return self._offsets.get(bytes(key), -1)
