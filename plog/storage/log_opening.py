"""Opens a partition's log over the files that recovery left.

Owns how what recovery found becomes the struct and the log around it. Never recovers
anything itself, and decides nothing: `recovery` has judged the files, the log's settings
and its owner are the caller's.
"""

from __future__ import annotations

import uuid
from pathlib import Path

from plog._native.partition_log import PartitionLog
from plog.settings.definitions import TopicSettings
from plog.storage.filesystem import Filesystem
from plog.storage.incomplete_mark import lack_of
from plog.storage.log import Log
from plog.storage.log_owner import LogOwner
from plog.storage.recovery import RecoveredLog
from plog.storage.segment import KEPT_DESCRIPTORS, open_segment
from plog.types import TopicPartition


def open_log(
    recovered: RecoveredLog,
    *,
    topic_partition: TopicPartition,
    topic_id: uuid.UUID | None,
    directory: Path,
    settings: TopicSettings,
    high_watermark: int,
    owner: LogOwner,
    fs: Filesystem,
    monotonic_ms: int,
    keep_free: int = KEPT_DESCRIPTORS,
) -> Log:
    """Open the files that recovery left.

    Args:
        keep_free: as `open_segment`.

    Raises OSError.
    """
    lack = lack_of(fs, directory)  # before any file is open: a failure here would leave them so
    native = PartitionLog(
        [
            open_segment(
                fs,
                directory,
                numbers,
                max_index_bytes=settings.segment_index_bytes,
                keep_free=keep_free,
            )
            for numbers in recovered.segments
        ],
        log_start_offset=recovered.log_start_offset,
        high_watermark=min(
            max(high_watermark, recovered.log_start_offset), recovered.log_end_offset
        ),
        durable_end=recovered.durable_end,
        leader_epoch=recovered.epochs.latest,
        directory=directory,
        index_interval_bytes=settings.index_interval_bytes,
    )
    native.load_producers(recovered.producers)
    unsynced = [
        segment
        for segment in native.segments[:-1]
        if recovered.read_from is not None and segment.base_offset >= recovered.read_from
    ]
    return Log(
        topic_partition=topic_partition,
        topic_id=topic_id,
        directory=directory,
        settings=settings,
        native=native,
        epochs=recovered.epochs,
        aborted=recovered.aborted,
        owner=owner,
        fs=fs,
        monotonic_ms=monotonic_ms,
        gaps_legal_below=recovered.gaps_legal_below,
        unsynced=unsynced,
        lack=lack,
    )
