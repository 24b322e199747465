"""Buffers for the responses of one connection, reused once no memoryview refers to them.

The kernel zeroes a new buffer of megabytes page by page, which costs a reader of large fetches
about a tenth of its time.
"""

from __future__ import annotations

KEPT_BUFFERS = 2
"""One response is being decoded while the next is received."""
WORTH_KEEPING_BYTES = 64 * 1024


class AnswerMemory:
    """Hands out buffers for responses, and finds out which of them are free again."""

    def __init__(self) -> None:
        self._kept: list[bytearray] = []  # oldest first

    def take(self, size: int) -> bytearray:
        """Return a buffer of at least `size` bytes that no memoryview refers to; contents vary."""
        for buffer in self._kept:
            if len(buffer) >= size and _is_free(buffer):
                return buffer
        buffer = bytearray(size)
        if size >= WORTH_KEEPING_BYTES:
            self._kept = [*self._kept[1 - KEPT_BUFFERS :], buffer]
        return buffer


def _is_free(buffer: bytearray) -> bool:
    try:
        # Refused while a memoryview of the buffer exists; moves no bytes otherwise.
        last = buffer.pop()
    except BufferError:
        return False
    buffer.append(last)
    return True
