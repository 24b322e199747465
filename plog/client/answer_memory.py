"""Memory for the answers of one connection: used again once nobody looks into it any more.

A fresh buffer of megabytes is zeroed and faulted in page by page, which costs a
reader of large fetches about a tenth of its time.
"""

from __future__ import annotations

KEPT_BUFFERS = 2
"""One answer is being decoded while the next is received."""
WORTH_KEEPING_BYTES = 64 * 1024


class AnswerMemory:
    """Hands out buffers for answers, and finds by itself which of them are free again."""

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
