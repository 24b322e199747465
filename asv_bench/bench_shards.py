"""How long a broker loads a partition of `__consumer_offsets` with a million commits.

Each commit has a batch of one record, as a consumer of one partition writes it. Either they replace
each other, as between two compactions, or each is of another partition and stays.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from bench_coordinator_rows import LOAD_KEPT, Row, Turn
from bench_offsets import (
    EARLIER,
    LAST,
    OFFSETS_PARTITIONS,
    OFFSETS_TOPIC,
    TOPIC,
    Segments,
    Written,
    await_coordinator,
    groups_of,
    start_and_stop,
)
from bench_servers import running

from plog._native.records import build_batch
from plog.coordinator import group_log
from plog.coordinator.group_log import CommittedOffset
from plog.storage.segment_files import SEGMENT, path_of
from plog.storage.shutdown_record import SHUTDOWN_RECORD_FILE
from plog.types import TopicPartition

if TYPE_CHECKING:
    from plog.ops.load import Figures

PARTITIONS = 100
"""Of each group."""
FEW_GROUPS = 10
"""Groups whose commits replace each other."""
CHECKED_GROUPS = 100
"""Groups whose offsets are compared after a start."""


class Commits(NamedTuple):
    """The commits of a partition: each of the groups commits every partition in turns."""

    groups: list[str]
    turns: int

    def batches(self) -> Iterator[bytearray]:
        """Yield a batch for each commit, without its place in the log."""
        now_ms = int(time.time() * 1000)
        for turn in range(self.turns):
            offset = LAST if turn + 1 == self.turns else EARLIER
            value = group_log.encode_offset(CommittedOffset(offset, committed_ms=now_ms))
            for group in self.groups:
                for partition in range(PARTITIONS):
                    key = group_log.encode_offset_key(group, TopicPartition(TOPIC, partition))
                    yield bytearray(build_batch([(now_ms, key, value, ())]))


def commits_of(row: Row, count: int) -> Commits:
    """Return the commits of a row: `count` or a few less."""
    if row.name == LOAD_KEPT:
        return Commits(groups_of(0, count // PARTITIONS), 1)
    return Commits(groups_of(0, FEW_GROUPS), max(1, count // (FEW_GROUPS * PARTITIONS)))


def write(directory: Path, commits: Commits, segment_bytes: int) -> Written:
    """Replace an empty partition's files by commits."""
    for kind in SEGMENT:
        path_of(directory, 0, kind).unlink(missing_ok=True)
    segments = Segments(directory, segment_bytes)
    now_ms = int(time.time() * 1000)
    for batch in commits.batches():
        segments.append(batch, 1, now_ms)
    segments.close()
    return Written(segments.total_bytes, segments.next_offset, segments.next_offset)


def measure_load(turn: Turn, row: Row, _contestant: str) -> Figures:
    """Start on the partition, until its groups' offsets are returned."""
    settings: dict[str, object] = {
        "offsets_topic_num_partitions": OFFSETS_PARTITIONS,
        "offsets_topic_segment_bytes": turn.extent.segment_bytes,
        "log_cleaner_enable": "false",
    }
    commits = commits_of(row, turn.extent.commits)
    with running(turn.where, **settings) as server:
        await_coordinator(server, commits.groups[0], at_first=True)
        server.stop()
        partition = server.log_dir / f"{OFFSETS_TOPIC}-0"
        written = write(partition, commits, turn.extent.segment_bytes)
        # The record is of the files before: the first start reads all batches.
        (server.log_dir / SHUTDOWN_RECORD_FILE).unlink()
        checked = commits.groups[:CHECKED_GROUPS]
        start_and_stop(server, checked)
        found = start_and_stop(server, checked)
    return {
        "commits": written.commits,
        "size_bytes": written.size_bytes,
        "kept": len(commits.groups) * PARTITIONS,
        "load_s": found["coordinator_s"] - found["broker_s"],
        **found,
    }
