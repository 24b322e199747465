"""What the reactor may answer without Python: the partitions that this broker leads.

Owns what is published to the reactor, under which number, and the threads beside it: those that
flush for acks=all, those that work on slow disks, and those that expand large compressed requests.
Never answers a request; Python decides about what is not published.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from plog._native.log_flush import CommitThread
from plog._native.served import ServedPartitions
from plog._native.work_queue import WorkThread
from plog.cluster.disks import Disks
from plog.protocol.record_batch import decompressed_limit
from plog.types import TopicPartition

if TYPE_CHECKING:
    from plog.cluster.partition import Partition

CREATE_TIME = "CreateTime"
PRODUCER = "producer"
COMPACT = "compact"
MOST_COMPUTE_THREADS = 8
"""However many processors there are; each expands as much as a fast network brings."""


def _ignore_joiner(at: TopicPartition, broker_id: int) -> None:
    pass


class FastPath:
    """Publishes partitions to the reactor. Thread-safe.

    Args:
        disks: whose marks and queues it shares with Python.
        guarded: topics whose Produces Python decides about: not every client may write them.
    """

    def __init__(self, disks: Disks, guarded: frozenset[str] = frozenset()) -> None:
        compute = WorkThread()
        self.served = ServedPartitions(compute)
        self._guarded = guarded
        self._lock = threading.Lock()
        # Numbers are never used twice: a flush may fail, or a change be told, after its partition
        # has gone.
        self._numbers: dict[TopicPartition, int] = {}
        self._partitions: dict[int, Partition] = {}
        self._next_number = 0
        self._disks = disks
        self._served_disks: dict[Path, tuple[CommitThread, WorkThread]] = {}
        self._threads: list[threading.Thread] = []
        self._workers = [compute]
        self._stopped = False
        self.on_may_join: Callable[[TopicPartition, int], None] = _ignore_joiner
        """Called with each fetch until the follower counts, in any thread; must be quick."""
        for number in range(min(len(os.sched_getaffinity(0)), MOST_COMPUTE_THREADS)):
            self._begin(f"compute {number}", compute.run)

    def publish(self, partition: Partition) -> None:
        """Serve a partition as it is now, or withdraw it where this broker does not lead."""
        settings = partition.settings
        log = partition.hosted_log
        at = partition.topic_partition
        if log is None or not partition.is_leader:
            self.withdraw(at)
            return
        with self._lock:
            if self._stopped:
                return
            number = self._numbers.get(at)
            if number is None:
                number = self._numbers[at] = self._next_number
                self._next_number += 1
            self._partitions[number] = partition
            self.served.publish(
                at.topic,
                partition.topic_id.bytes,
                at.partition,
                log.native,
                *self._disk_of(log.log_dir),
                partition.traffic,
                number=number,
                max_message_bytes=settings.max_message_bytes,
                decompressed_limit=decompressed_limit(settings.max_message_bytes),
                before_max_ms=settings.message_timestamp_before_max_ms,
                after_max_ms=settings.message_timestamp_after_max_ms,
                flush_messages=settings.flush_messages,
                flush_before_ack=settings.flush_before_ack,
                key_required=COMPACT in settings.cleanup_policy,
                produce_is_pythons=(
                    at.topic in self._guarded
                    or settings.message_timestamp_type != CREATE_TIME
                    or settings.compression_type != PRODUCER
                ),
            )

    def may_join_by_number(self, number: int, broker_id: int) -> None:
        """The reactor has found that a follower may join a partition's in-sync set."""
        partition = self._partitions.get(number)
        if partition is not None:
            self.may_join(partition, broker_id)

    def may_join(self, partition: Partition, broker_id: int) -> None:
        """Call `on_may_join` for a follower."""
        self.on_may_join(partition.topic_partition, broker_id)

    def withdraw(self, at: TopicPartition) -> None:
        """Serve a partition no more; what is under way is answered as it was."""
        with self._lock:
            self.served.withdraw(at.topic, at.partition)
            number = self._numbers.pop(at, None)
            if number is not None:
                del self._partitions[number]

    def stop(self) -> None:
        """Serve nothing more, do what was asked for, and end the threads."""
        with self._lock:
            self._stopped = True
            for at in self._numbers:
                self.served.withdraw(at.topic, at.partition)
            for commits, _ in self._served_disks.values():
                commits.stop()
            for worker in self._workers:
                worker.stop()
        for thread in self._threads:
            thread.join()

    def _disk_of(self, log_dir: Path) -> tuple[CommitThread, WorkThread]:
        found = self._served_disks.get(log_dir)
        if found is None:
            commits, worker = found = CommitThread(), self._disks.worker(log_dir)
            self._served_disks[log_dir] = found
            self._workers.append(worker)
            self._begin(f"commit {log_dir}", partial(self._commit, commits))
            self._begin(f"disk {log_dir}", worker.run)
        return found

    def _begin(self, name: str, run: Callable[[], None]) -> None:
        thread = threading.Thread(target=run, name=name, daemon=True)
        self._threads.append(thread)
        thread.start()

    def _commit(self, commits: CommitThread) -> None:
        while (failed := commits.run()) is not None:
            number, error = failed
            partition = self._partitions.get(number)
            log = None if partition is None else partition.hosted_log
            if log is not None:
                log.flush_failed(error)
