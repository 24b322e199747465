from plog._native.log_flush import CommitThread
from plog._native.partition_log import PartitionLog
from plog._native.topic_traffic import TopicTraffic
from plog._native.work_queue import WorkThread

class ServedPartitions:
    """What the fast path may serve; shared with the reactor that serves it. Thread-safe.

    Large compressed batches are looked at by `compute`.
    """

    def __init__(self, compute: WorkThread) -> None: ...
    def __len__(self) -> int: ...
    def set_fetch_max_bytes(self, size: int) -> None:
        """Set the broker's fetch.max.bytes."""

    def publish(
        self,
        topic: str,
        topic_id: bytes,
        index: int,
        log: PartitionLog,
        commits: CommitThread,
        disk: WorkThread,
        traffic: TopicTraffic,
        *,
        number: int,
        max_message_bytes: int,
        decompressed_limit: int,
        before_max_ms: int,
        after_max_ms: int,
        flush_messages: int,
        flush_before_ack: bool,
        key_required: bool,
        produce_is_pythons: bool,
    ) -> None:
        """Serve a partition that this broker leads, or serve it anew by other settings.

        Unless `produce_is_pythons`, its topic has CreateTime and leaves compression to the
        producer. `number` names it in a failed flush (`CommitThread.run`); `commits` flushes its
        log directory, `disk` works on that while it is slow. `traffic` counts for the topic.
        """

    def withdraw(self, topic: str, index: int) -> None:
        """Refuse requests for a partition from now on; one in hand may still be served."""
