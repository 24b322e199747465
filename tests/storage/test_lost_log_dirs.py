"""Log directories that are missed at a start, and partitions that come back."""

from __future__ import annotations

import shutil
import uuid
from pathlib import Path

import pytest

from plog.errors import KafkaStorageError
from plog.runtime.clock import ManualClock
from plog.storage.log_manager import LogManager
from plog.storage.segment_files import FUTURE_DIRECTORY, leaving_directory_name
from plog.types import TopicPartition, new_directory_id, uuid_to_text

from .log_managers import SETTINGS, fill, lead
from .storage_logs import NOW_MS, broker_settings

IDS = {TopicPartition("t", n): uuid.uuid4() for n in range(2)}
AWAY = new_directory_id()


def start(directories: list[Path], **missed: object) -> LogManager:
    manager = LogManager(
        broker_settings(directories),
        lambda _topic: SETTINGS,
        cluster_id="cluster",
        clock=ManualClock(NOW_MS),
        **missed,
    )
    manager.start(background=False)
    return manager


def filled(directories: list[Path]) -> dict[Path, TopicPartition]:
    """Write into a partition in each directory, and end cleanly."""
    manager = start(directories)
    for tp, topic_id in IDS.items():
        fill(lead(manager.create(tp, topic_id, SETTINGS)), 3)
    held = {manager.get(tp).log_dir: tp for tp in IDS}
    manager.shutdown(1)
    return held


@pytest.mark.parametrize("is_there", [True, False])
def test_directory_that_is_not_mounted_is_offline_and_left_alone(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, is_there: bool
) -> None:
    one, two = directories = [tmp_path / "one", tmp_path / "two"]
    missed = filled(directories)[two]
    two.rename(tmp_path / "away")
    if is_there:
        two.mkdir()
    manager = start(directories, unmounted={two: AWAY}, missing={AWAY: two})
    assert manager.offline_log_dirs == [two]
    (line,) = [r.getMessage() for r in caplog.records if f"log directory {two} " in r.getMessage()]
    for said in (uuid_to_text(AWAY), "Mount its disk and restart", f"plog log-dirs --forget {two}"):
        assert said in line
    for is_only in (True, False):
        reason = manager.reason_absent(missed, IDS[missed], is_only=is_only)
        assert f"{two} (directory.id {uuid_to_text(AWAY)})" in reason
    new = [manager.create(TopicPartition("new", n), uuid.uuid4(), SETTINGS) for n in range(3)]
    assert {log.log_dir for log in new} == {one}
    manager.shutdown(1)
    assert not two.exists() or list(two.iterdir()) == []


def test_directory_that_is_in_no_place_keeps_its_partitions_from_being_made_anew(
    tmp_path: Path,
) -> None:
    one, two = tmp_path / "one", tmp_path / "two"
    missed = filled([one, two])[two]
    manager = start([one], missing={AWAY: two})
    assert f"{two} (directory.id" in manager.reason_absent(missed, IDS[missed], is_only=False)
    manager.shutdown(1)
    manager = start([one])
    assert manager.reason_absent(missed, IDS[missed], is_only=True) is None
    manager.shutdown(1)


def test_broker_whose_directories_are_all_away_does_not_start(tmp_path: Path) -> None:
    with pytest.raises(KafkaStorageError, match="Mount its disk and restart"):
        start([tmp_path / "one"], unmounted={tmp_path / "one": AWAY})


def test_partition_that_is_gone_from_its_directory_is_served_when_it_is_back(
    tmp_path: Path,
) -> None:
    directories = [tmp_path / "one", tmp_path / "two"]
    two, missed = list(filled(directories).items())[1]
    shutil.move(two / str(missed), tmp_path / "away")
    for _ in range(2):
        manager = start(directories)
        assert "Restore it and restart" in manager.reason_absent(missed, IDS[missed], is_only=True)
        # Where it has other replicas it can be filled from them.
        assert manager.reason_absent(missed, IDS[missed], is_only=False) is None
        manager.shutdown(1)
    shutil.move(tmp_path / "away", two / str(missed))
    manager = start(directories)
    assert dict(manager.offline) == {}
    assert manager.get(missed).log_end_offset == 30
    manager.shutdown(1)


@pytest.mark.parametrize("how", ["unmounted", "left out", "failed"])
def test_replica_on_its_way_does_not_take_the_place_of_one_that_is_missing(
    tmp_path: Path, how: str
) -> None:
    one, two = directories = [tmp_path / "one", tmp_path / "two"]
    missed = filled(directories)[two]
    name = leaving_directory_name(missed, FUTURE_DIRECTORY, uuid.uuid4())
    (one / name).mkdir()  # of which nothing had come yet
    two.rename(tmp_path / "away")
    if how == "failed":
        two.write_text("in the way")
        manager = start(directories)
    elif how == "unmounted":
        manager = start(directories, unmounted={two: AWAY}, missing={AWAY: two})
    else:
        manager = start([one], missing={AWAY: two})
    assert manager.get(missed) is None
    assert manager.reason_absent(missed, IDS[missed], is_only=True) is not None
    manager.shutdown(1)
    two.unlink(missing_ok=True)
    (tmp_path / "away").rename(two)
    manager = start(directories)
    assert manager.get(missed).log_end_offset == 30
    manager.shutdown(1)


def test_copy_in_a_directory_that_begins_anew_is_read_whole(tmp_path: Path) -> None:
    """What came back may be an old copy, and nothing that was said of the other is true of it.

    A directory that is missed is not served in, so nobody ends it cleanly or writes of its
    partitions: what is known there is of what is there. One that begins anew knows nothing.
    """
    directories = [tmp_path / "one", tmp_path / "two"]
    two, missed = list(filled(directories).items())[1]
    two.rename(tmp_path / "away")
    start(directories, unmounted={two: AWAY}, missing={AWAY: two}).shutdown(1)
    copy = shutil.copytree(tmp_path / "away" / str(missed), two / str(missed))
    with (copy / "00000000000000000000.log").open("ab") as segment:
        segment.write(b"torn")  # which the shutdown of `one` would excuse, and not look at
    manager = start(directories)
    assert dict(manager.offline) == {}
    assert manager.get(missed).log_end_offset == 30
    assert manager.get(missed).native.durable_end <= 30
    manager.shutdown(1)
    assert not (copy / "00000000000000000000.log").read_bytes().endswith(b"torn")
