"""How long a stream retries faults that follow each other.

Pure: faults and times in, whether to retry out. The caller waits, and tries again.
"""

from __future__ import annotations

from plog.errors import KafkaError, UnknownTopicOrPartition


class RetryLimit:
    """The time limit for one series of faults; a success ends the series, and needs a new object.

    The limit for unknown topics is shorter, and slightly above the time after which a missing topic
    counts as deleted. It counts from when brokers began to report nothing else.

    Args:
        timeout_s: the limit for faults in general.
        unknown_topic_grace_s: how long a topic may be missing before it counts as deleted.
    """

    def __init__(self, timeout_s: float, unknown_topic_grace_s: float) -> None:
        self._timeout_s = timeout_s
        self._unknown_timeout_s = min(timeout_s, unknown_topic_grace_s) + 1
        self._since_s: float | None = None
        self._unknown_since_s: float | None = None

    @property
    def has_begun(self) -> bool:
        """Tell whether there was a fault."""
        return self._since_s is not None

    def allows(self, fault: KafkaError, now_s: float) -> bool:
        """Tell whether to retry after one more fault."""
        if self._since_s is None:
            self._since_s = now_s
        since_s, timeout_s = self._since_s, self._timeout_s
        if not isinstance(fault, UnknownTopicOrPartition):
            self._unknown_since_s = None
        else:
            if self._unknown_since_s is None:
                self._unknown_since_s = now_s
            since_s, timeout_s = self._unknown_since_s, self._unknown_timeout_s
        return fault.retriable and now_s - since_s <= timeout_s
