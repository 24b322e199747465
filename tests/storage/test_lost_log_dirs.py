"""Partitions that were missed at a start, and come back."""

from __future__ import annotations

import shutil
import uuid
from pathlib import Path

from plog.runtime.clock import ManualClock
from plog.storage.log_manager import LogManager
from plog.types import TopicPartition

from .log_managers import SETTINGS, fill, lead
from .storage_logs import NOW_MS, broker_settings


def start(directories: list[Path]) -> LogManager:
    manager = LogManager(
        broker_settings(directories),
        lambda _topic: SETTINGS,
        cluster_id="cluster",
        clock=ManualClock(NOW_MS),
    )
    manager.start(background=False)
    return manager


def test_partition_that_is_put_back_where_it_was_missed_is_served(tmp_path: Path) -> None:
    _, two = directories = [tmp_path / "one", tmp_path / "two"]
    manager = start(directories)
    ids = {TopicPartition("t", n): uuid.uuid4() for n in range(2)}
    for tp, topic_id in ids.items():
        fill(lead(manager.create(tp, topic_id, SETTINGS)), 3)
    (missed,) = (tp for tp in ids if manager.get(tp).log_dir == two)
    end = manager.get(missed).log_end_offset
    manager.shutdown(1)
    shutil.move(two, tmp_path / "away")
    manager = start(directories)
    assert "put it back" in manager.reason_lost(missed, ids[missed])
    manager.shutdown(1)
    shutil.copytree(tmp_path / "away" / str(missed), two / str(missed))
    manager = start(directories)
    assert dict(manager.offline) == {}
    assert manager.get(missed).log_end_offset == end
    manager.shutdown(1)
    manager = start(directories)
    assert manager.reason_lost(missed, ids[missed]) is None
    manager.shutdown(1)
