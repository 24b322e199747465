"""Has waiting requests in the event loop look again when a partition changes without Python.

The fetches of followers move high watermarks in the reactor. Owns the bells of the partitions that
requests wait for, and the descriptor by which they wake the loop.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Iterator
from contextlib import contextmanager

from plog._native.change_bell import ChangeBell
from plog._native.partition_log import PartitionLog
from plog.runtime.purgatory import Purgatory
from plog.types import TopicPartition


class ChangeBells:
    """For one event loop, in its thread."""

    def __init__(
        self, loop: asyncio.AbstractEventLoop, purgatory: Purgatory[TopicPartition]
    ) -> None:
        self._loop = loop
        self._purgatory = purgatory
        self._fd = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self._is_closed = False
        self._bells: dict[ChangeBell, TopicPartition] = {}
        loop.add_reader(self._fd, self._on_ring)

    @contextmanager
    def listening(self, at: TopicPartition, log: PartitionLog) -> Iterator[None]:
        """Touch the partition in the purgatory when it changes, in a block."""
        if self._is_closed:
            yield
            return
        bell = ChangeBell(log, self._fd)
        self._bells[bell] = at
        try:
            yield
        finally:
            bell.close()
            self._bells.pop(bell, None)

    def close(self) -> None:
        """Listen no more."""
        self._is_closed = True
        self._loop.remove_reader(self._fd)
        for bell in self._bells:
            bell.close()
        self._bells.clear()
        os.close(self._fd)

    def _on_ring(self) -> None:
        os.eventfd_read(self._fd)
        for at in {at: None for bell, at in self._bells.items() if bell.take()}:
            self._purgatory.touch(at)
