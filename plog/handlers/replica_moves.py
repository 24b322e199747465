"""Moves of replicas between log directories, beside the requests that ask for them (KIP-113).

Owns a queue for each log directory that something moves to, and the thread of
the move whose turn it is. How a replica is moved, and where moves stand, is
`log_moves`'; a move may take hours, so nobody has to wait for it.
"""

from __future__ import annotations

import logging
import threading
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future
from pathlib import Path

from plog.errors import ErrorCode, KafkaError
from plog.runtime.bounded_lines import BoundedLines
from plog.types import TopicPartition

log = logging.getLogger(__name__)

Move = Callable[[TopicPartition, Path], None]
Queue = deque[tuple[TopicPartition, Future[ErrorCode]]]


class ReplicaMoves:
    """The moves of one broker. Safe from any thread."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._queues: dict[Path, Queue] = {}
        self._lines = BoundedLines(log, "%d further replica moves failed")

    def start(self, move: Move, topic_partition: TopicPartition, target: Path) -> Future[ErrorCode]:
        """Have `move(topic_partition, target)` called after the moves to `target` before it.

        Returns:
            What ends with the move, and with the code of what it raised; that is logged too.
        """
        future: Future[ErrorCode] = Future()
        with self._lock:
            is_first = target not in self._queues
            self._queues.setdefault(target, deque()).append((topic_partition, future))
        if is_first:
            self._begin_next(move, target)
        return future

    def _begin_next(self, move: Move, target: Path) -> None:
        # A daemon: a broker that stops does not wait for terabytes to be copied.
        threading.Thread(
            target=self._run, args=(move, target), name=f"move to {target}", daemon=True
        ).start()

    def _run(self, move: Move, target: Path) -> None:
        queue = self._queues[target]
        topic_partition, future = queue[0]
        code = ErrorCode.UNKNOWN_SERVER_ERROR
        try:
            move(topic_partition, target)
            code = ErrorCode.NONE
        except KafkaError as refusal:
            # Disk errors have been logged as errors where they occurred.
            self._lines.warning("replica move to %s failed: %s", target, refusal)
            code = refusal.code
        finally:
            # Also if a bug ends this thread: the next moves must still run.
            with self._lock:
                queue.popleft()
                if not queue:
                    del self._queues[target]
            future.set_result(code)
            if queue:
                self._begin_next(move, target)
