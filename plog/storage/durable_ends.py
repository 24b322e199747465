"""The file `durable-ends` of a log directory, so that acknowledged records survive kill -9.

Each partition has a slot with the offset up to which its bytes are known to be on disk. The
partition's struct rewrites the slot with one pwrite after each fdatasync and before each
truncation. So recovery can distinguish a torn tail (past the durable end, never acknowledged) from
damage (before it).

Owns the layout and the assignment of the slots. Only the struct writes an end that clients rely on.

    at  0  topic id        16 bytes
    at 16  partition       i32
    at 20  durable end     i64
    at 28  CRC-32C         u32, of the 28 bytes before it

A torn or unused slot fails its CRC, and so is free. A power cut can leave an older, lower end; then
recovery only checks more.
"""

from __future__ import annotations

import struct
import threading
import uuid
from pathlib import Path
from typing import NamedTuple

from plog._native.crc32c import crc32c
from plog.storage.filesystem import Filesystem

DURABLE_ENDS_FILE = "durable-ends"
SLOT_BYTES = 32
KEY_BYTES = 20

_KEY = struct.Struct(">16si")
_KEY_END = struct.Struct(">16siq")
_SLOT = struct.Struct(">16siqI")
_FREE = bytes(SLOT_BYTES)


class SlotKey(NamedTuple):
    """The owner of a slot. A recreated topic has another id, so it never finds the old end."""

    topic_id: uuid.UUID
    partition: int

    def encode(self) -> bytes:
        """Return the slot's first 20 bytes."""
        return _KEY.pack(self.topic_id.bytes, self.partition)


def encode_slot(key: SlotKey, durable_end: int) -> bytes:
    """Encode one slot, 32 bytes."""
    body = _KEY_END.pack(key.topic_id.bytes, key.partition, durable_end)
    return body + crc32c(body).to_bytes(4, "big")


def decode_slot(data: bytes) -> tuple[SlotKey, int] | None:
    """Decode one slot; return None if it is free or torn."""
    if len(data) != SLOT_BYTES:
        return None
    topic_id, partition, durable_end, crc = _SLOT.unpack(data)
    if crc != crc32c(data[:-4]) or partition < 0 or durable_end < 0:
        return None
    return SlotKey(uuid.UUID(bytes=topic_id), partition), durable_end


class DurableEnds:
    """The open file of one log directory. Safe to call from several threads."""

    def __init__(self, fs: Filesystem, path: Path) -> None:
        self._fs = fs
        self.path = path
        self._lock = threading.Lock()
        self._positions: dict[SlotKey, int] = {}
        self._ends: dict[SlotKey, int] = {}
        self._free: list[int] = []
        self._next_position = 0
        self.fd = -1

    def open(self) -> None:
        """Open or create the file, and read every slot. Raises OSError."""
        made = not self._fs.exists(self.path)
        self.fd = self._fs.open_file(self.path, create=True)
        if made:
            self._fs.sync_directory(self.path.parent)
        data = self._fs.pread(self.fd, self._fs.size_bytes(self.fd), 0)
        for position in range(0, len(data), SLOT_BYTES):
            self._next_position = position + SLOT_BYTES
            slot = decode_slot(data[position : position + SLOT_BYTES])
            if slot is None:
                self._free.append(position)
                continue
            key, durable_end = slot
            if key in self._positions:
                # plog never writes this: `release` is durable before a slot is reused.
                # With the higher end recovery is stricter.
                self._ends[key] = max(self._ends[key], durable_end)
                self._fs.pwrite(self.fd, _FREE, position)
                self._free.append(position)
                continue
            self._positions[key] = position
            self._ends[key] = durable_end

    def close(self) -> None:
        """Close the file; no partition may flush afterwards."""
        if self.fd >= 0:
            fd, self.fd = self.fd, -1
            self._fs.close(fd)

    def durable_end(self, key: SlotKey) -> int | None:
        """Return the end that `open` found for a partition, or None."""
        return self._ends.get(key)

    def ends(self) -> list[tuple[SlotKey, int]]:
        """Return the slots that `open` found, with their ends."""
        with self._lock:
            return list(self._ends.items())

    def keys(self) -> list[SlotKey]:
        """Return the keys of all slots."""
        with self._lock:
            return list(self._positions)

    def position_for(self, key: SlotKey) -> int:
        """Return the position of a partition's slot; assign a free one if it has none."""
        with self._lock:
            position = self._positions.get(key)
            if position is None:
                if self._free:
                    position = self._free.pop()
                else:
                    position = self._next_position
                    self._next_position += SLOT_BYTES
                self._positions[key] = position
            return position

    def release(self, key: SlotKey) -> None:
        """Free the slot of a partition that leaves this directory. Its log must be closed.

        Durable at once: otherwise a partition that returns could have two slots.

        Raises:
            OSError: the slot is still the partition's.
        """
        with self._lock:
            self._ends.pop(key, None)
            position = self._positions.get(key)
            if position is None:
                return
            self._fs.pwrite(self.fd, _FREE, position)
            self._fs.fdatasync(self.fd)
            del self._positions[key]
            self._free.append(position)

    def sync(self) -> None:
        """Sync the file, together with the checkpoints. Raises OSError."""
        self._fs.fdatasync(self.fd)
