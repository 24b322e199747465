"""A start on a large partition of `__consumer_offsets`, most of which is superseded.

Owns what is in it, and writing it: commits of a few groups, a batch for each as the broker writes
them, again and again, in segments with their indexes. Compaction leaves the last commits.
"""

from __future__ import annotations

import re
import time
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from bench_coordinator_rows import Row, Turn
from bench_machine import cpu_s_of, memory_of
from bench_servers import Plog, running

from plog._native.batch import restamp_offsets
from plog._native.index import encode_offset_entry, encode_time_entry
from plog._native.records import build_batch
from plog.client.connection import Connection
from plog.coordinator import group_log
from plog.coordinator.group_hash import partition_of
from plog.coordinator.group_log import CommittedOffset
from plog.errors import ErrorCode, NetworkException, RequestTimedOut
from plog.ops.load import LoadError
from plog.protocol.messages.groups import FindCoordinatorRequest, FindCoordinatorResponse
from plog.protocol.messages.offsets import (
    OffsetFetchRequest,
    OffsetFetchRequestTopic,
    OffsetFetchResponse,
)
from plog.storage.leader_epochs import (
    LEADER_EPOCH_FILE,
    EpochStart,
    LeaderEpochs,
    encode_leader_epochs,
)
from plog.storage.producer_snapshot import encode_snapshot
from plog.storage.segment_files import (
    LOG,
    OFFSET_INDEX,
    PRODUCER_SNAPSHOT,
    SEGMENT,
    TIME_INDEX,
    path_of,
)
from plog.storage.shutdown_record import SHUTDOWN_RECORD_FILE
from plog.types import TopicPartition

if TYPE_CHECKING:
    from plog.ops.load import Figures

OFFSETS_TOPIC, OFFSETS_PARTITIONS = "__consumer_offsets", 50
GROUPS = 100
COMMITTED_PARTITIONS = 6
"""Of a commit: so many records are in its batch."""
TOPIC = "bench"
EARLIER, LAST = 1_000, 2_000
"""Committed offsets: what is read in the end is the last one."""
INDEX_INTERVAL_BYTES = 4_096
PATIENCE_S = 600.0
LOOK_AGAIN_S = 0.002
COMPACT_AFTER_MS = 50
COMPACTED = re.compile(
    rf"{OFFSETS_TOPIC}-0 is compacted up to offset \d+:"
    r" (\d+) of (\d+) records are left, .* in ([\d.]+) s"
)


class Written(NamedTuple):
    """What a partition holds."""

    size_bytes: int
    commits: int
    records: int


def groups_of(partition: int, count: int) -> list[str]:
    """Return groups that a partition keeps."""
    found: list[str] = []
    number = 0
    while len(found) < count:
        name = f"group-{number}"
        if partition_of(name, OFFSETS_PARTITIONS) == partition:
            found.append(name)
        number += 1
    return found


def commit_of(group: str, offset: int, now_ms: int) -> bytes:
    """Return a commit as the broker appends it, but for its place."""
    value = group_log.encode_offset(CommittedOffset(offset, committed_ms=now_ms))
    return build_batch(
        (now_ms, group_log.encode_offset_key(group, TopicPartition(TOPIC, partition)), value, ())
        for partition in range(COMMITTED_PARTITIONS)
    )


class Segments:
    """Segments of a partition, written one after the other."""

    def __init__(self, directory: Path, segment_bytes: int) -> None:
        self._directory, self._segment_bytes = directory, segment_bytes
        self._base_offset = self._size_bytes = self._indexed_bytes = 0
        self._pieces: list[bytes] = []
        self._offsets = bytearray()
        self._max_timestamp = 0
        self.next_offset = 0
        self.total_bytes = 0

    def append(self, batch: bytearray, records: int, now_ms: int) -> None:
        """Append a batch, in a new segment if this one is full."""
        if self._size_bytes + len(batch) > self._segment_bytes:
            self.roll()
        restamp_offsets(batch, self.next_offset, 0)
        self.next_offset += records
        if self._size_bytes - self._indexed_bytes > INDEX_INTERVAL_BYTES:
            last = self.next_offset - 1 - self._base_offset
            self._offsets += encode_offset_entry(last, self._size_bytes)
            self._indexed_bytes = self._size_bytes
        self._pieces.append(bytes(batch))
        self._size_bytes += len(batch)
        self.total_bytes += len(batch)
        self._max_timestamp = now_ms

    def roll(self) -> None:
        """Write what there is, and begin a new segment."""
        base = self._base_offset
        with path_of(self._directory, base, LOG).open("wb") as log:
            log.writelines(self._pieces)
        times = b""
        if self._pieces:
            # One moment for all of them: the last batch has the latest.
            times = encode_time_entry(self._max_timestamp, self.next_offset - 1 - base)
        path_of(self._directory, base, OFFSET_INDEX).write_bytes(self._offsets)
        path_of(self._directory, base, TIME_INDEX).write_bytes(times)
        self._pieces.clear()
        self._offsets.clear()
        self._size_bytes = self._indexed_bytes = 0
        self._base_offset = self.next_offset

    def close(self) -> None:
        """End with an empty segment, which compaction leaves alone."""
        self.roll()
        if self.next_offset:
            self.roll()
        snapshot = path_of(self._directory, self.next_offset, PRODUCER_SNAPSHOT)
        snapshot.write_bytes(encode_snapshot([]))
        epochs = LeaderEpochs([EpochStart(0, 0)])
        (self._directory / LEADER_EPOCH_FILE).write_text(encode_leader_epochs(epochs))


def write_commits(
    directory: Path, groups: list[str], size_bytes: int, segment_bytes: int
) -> Written:
    """Replace an empty partition's files by commits of groups, in turns."""
    for kind in SEGMENT:
        path_of(directory, 0, kind).unlink(missing_ok=True)
    now_ms = int(time.time() * 1000)
    earlier = [bytearray(commit_of(group, EARLIER, now_ms)) for group in groups]
    last = [bytearray(commit_of(group, LAST, now_ms)) for group in groups]
    one_turn = sum(map(len, earlier))
    segments = Segments(directory, segment_bytes)
    commits = 0
    while segments.total_bytes + 2 * one_turn <= size_bytes:
        for batch in earlier:
            segments.append(batch, COMMITTED_PARTITIONS, now_ms)
        commits += len(groups)
    for batch in last:
        segments.append(batch, COMMITTED_PARTITIONS, now_ms)
    segments.close()
    return Written(segments.total_bytes, commits + len(groups), segments.next_offset)


def log_bytes(directory: Path) -> int:
    """Return the size of a partition's segments, without those on their way out."""
    return sum(path.stat().st_size for path in directory.glob(f"*{LOG}"))


def measure_start(turn: Turn, _row: Row, _contestant: str) -> Figures:
    """Start on a large partition, compact it, start again."""
    extent = turn.extent
    settings: dict[str, object] = {
        "offsets_topic_num_partitions": OFFSETS_PARTITIONS,
        "offsets_topic_segment_bytes": extent.segment_bytes,
        "log_cleaner_enable": "false",
    }
    with running(turn.where, **settings) as server:
        groups = groups_of(0, GROUPS)
        await_coordinator(server, groups[0], at_first=True)
        server.stop()
        partition = server.log_dir / f"{OFFSETS_TOPIC}-0"
        begun = time.monotonic()
        written = write_commits(partition, groups, extent.offsets_bytes, extent.segment_bytes)
        writing_s = time.monotonic() - begun
        # The record is of the files before. The first start reads all batches, its stop writes one.
        (server.log_dir / SHUTDOWN_RECORD_FILE).unlink()
        start_and_stop(server, groups)
        before = start_and_stop(server, groups)
        cleaned = _compact(server)
        after = start_and_stop(server, groups)
        return {
            "size_bytes": written.size_bytes,
            "commits": written.commits,
            "records": written.records,
            "writing_s": writing_s,
            **{f"before_{name}": value for name, value in before.items()},
            **cleaned,
            "size_after_bytes": log_bytes(partition),
            **{f"after_{name}": value for name, value in after.items()},
        }


def start_and_stop(server: Plog, groups: list[str]) -> dict[str, float]:
    """Start a broker; return when it answers, and when its coordinator does, and stop it."""
    server.restart(log_cleaner_enable="false")
    assert server.start_s is not None
    up = time.monotonic() - server.start_s
    await_coordinator(server, groups[0])
    answers_s = time.monotonic() - up
    for group in groups:
        if (found := _committed(server, group)) != LAST:
            raise LoadError(f"{group} has committed {LAST}, and the broker says {found}")
    cpu_s, memory = cpu_s_of(server.pid), memory_of(server.pid)
    server.stop()
    return {
        "broker_s": server.start_s,
        "coordinator_s": answers_s,
        "cpu_s": cpu_s,
        "rss_mb": memory.rss_mb,
    }


def _compact(server: Plog) -> dict[str, float]:
    """Have the broker compact; return how long it took, by what it says."""
    told = len(COMPACTED.findall(server.log.read_text()))
    server.restart(log_cleaner_enable="true", log_cleaner_backoff_ms=COMPACT_AFTER_MS)
    deadline = time.monotonic() + PATIENCE_S
    while len(found := COMPACTED.findall(server.log.read_text())) <= told:
        if time.monotonic() > deadline or not server.is_running:
            raise LoadError(f"it does not compact:\n{server.log.read_text()[-2000:]}")
        time.sleep(0.05)
    cpu_s, memory = cpu_s_of(server.pid), memory_of(server.pid)
    server.stop()
    kept, records, seconds = found[-1]
    return {
        "compacting_s": float(seconds),
        "compacting_cpu_s": cpu_s,
        "compacted_records": int(records),
        "kept_records": int(kept),
        "compacting_rss_mb": memory.rss_mb,
    }


def await_coordinator(server: Plog, group: str, *, at_first: bool = False) -> None:
    """Wait until a group's offsets are told; the first who asks for it has the topic made."""
    deadline = time.monotonic() + PATIENCE_S
    while time.monotonic() < deadline:
        with suppress(NetworkException, RequestTimedOut):
            if at_first:
                _find_coordinator(server, group)
            if _committed(server, group) is not None:
                return
        time.sleep(LOOK_AGAIN_S)
    raise LoadError(f"its groups have no coordinator:\n{server.log.read_text()[-2000:]}")


def _find_coordinator(server: Plog, group: str) -> None:
    connection = Connection("127.0.0.1", server.port)
    try:
        connection.call(FindCoordinatorRequest(key=group), FindCoordinatorResponse)
    finally:
        connection.close()


def _committed(server: Plog, group: str) -> int | None:
    """Return what a group has committed, -1 if nothing; None while the coordinator cannot say."""
    topic = OffsetFetchRequestTopic(name=TOPIC, partition_indexes=[COMMITTED_PARTITIONS - 1])
    request = OffsetFetchRequest(group_id=group, topics=[topic])
    connection = Connection("127.0.0.1", server.port)
    try:
        answer = connection.call(request, OffsetFetchResponse)
    finally:
        connection.close()
    if answer.error_code != ErrorCode.NONE:
        return None
    return int(answer.topics[0].partitions[0].committed_offset)
