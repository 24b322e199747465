"""The number of partitions of an internal topic: a key's partition is its hash modulo this number.

Owns the number, fixed when this broker first knows the topic. If the topic grew, most keys would
belong to other partitions than those that keep their records: groups without offsets, transactions
without an outcome. So partitions that another program adds get no keys. From any thread.
"""

from __future__ import annotations

import logging
import threading
import uuid

from plog.cluster.metadata_cache import MetadataCache, MetadataSnapshot
from plog.types import counted

log = logging.getLogger(__name__)


class PartitionCount:
    """The number of partitions that a topic has, or will have once it exists.

    Args:
        planned: the number while the topic does not exist.
    """

    def __init__(self, metadata: MetadataCache, topic: str, planned: int) -> None:
        self._metadata = metadata
        self._topic = topic
        self._lock = threading.Lock()
        self._count = self._largest_seen = planned
        self._topic_id: uuid.UUID | None = None
        self.close = metadata.subscribe(self._look)
        """Stop following the metadata."""

    def __call__(self) -> int:
        """Return the number."""
        self._look(self._metadata.snapshot)
        return self._count

    def _look(self, snapshot: MetadataSnapshot) -> None:
        topic = snapshot.topics.get(self._topic)
        if topic is None:
            return
        number = max(topic.partitions) + 1
        with self._lock:
            if topic.topic_id != self._topic_id:
                self._topic_id, self._count, self._largest_seen = topic.topic_id, number, number
            elif number > self._largest_seen:
                self._largest_seen = number
                log.warning(
                    "%s was extended to %s: this broker goes on with %d, because the others have"
                    " no state. Remove them from the topic's node before a broker restarts.",
                    self._topic,
                    counted(number, "partition"),
                    self._count,
                )
