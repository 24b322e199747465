"""Log directories that go while the broker runs, each in its own way; the others serve on.

What was acknowledged there is served again when the directory is back.
"""

from __future__ import annotations

import errno
import shutil
import subprocess
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, suppress
from pathlib import Path

import pytest

from plog.client.admin import Admin
from plog.errors import ErrorCode
from plog.protocol.messages.cluster import DescribeLogDirsRequest
from tests.broker.test_lost_replicas import partition_state
from tests.broker.test_start import content, overrides, refusal, run
from tests.crash.test_kill import check
from tests.crash.writer import Writer
from tests.handlers.wire import create_topic, fetch_one, make_batch, produce, speak
from tests.hosts.host import (
    MIB,
    Host,
    MemoryBounded,
    mount,
    mounted,
    read_all,
    unmount,
    wait_until,
)
from tests.servers import BrokerProcess

LOST = ["unmounted", "renamed", "removed", "read-only", "failing"]
KEPT = "kept"
"""The directory, and the topic in it, that nothing happens to."""
GONE = (ErrorCode.LEADER_NOT_AVAILABLE, -1, [0])


@pytest.fixture
def bound(tmp_path: Path) -> Iterator[Path]:
    """A mount point; what is mounted there lives on in `disk`."""
    place, disk = tmp_path / LOST[0], tmp_path / "disk"
    disk.mkdir()
    with mounted(place, "--bind", disk):
        yield place


@pytest.mark.usefixtures("plane")
def test_lost_log_directories_take_their_partitions_and_no_others(
    tmp_path: Path, host: Host, bound: Path, memory_bounded: MemoryBounded
) -> None:
    log_dirs = {name: tmp_path / name for name in [*LOST, KEPT]}
    away = tmp_path / "away"
    lose: dict[str, Callable[[], object]] = {
        "unmounted": lambda: unmount(bound),
        "renamed": lambda: log_dirs["renamed"].rename(away),
        "removed": lambda: shutil.rmtree(log_dirs["removed"]),
        "read-only": lambda: host.fail_writes(log_dirs["read-only"], errno.EROFS, syncs=False),
        "failing": lambda: host.fail_writes(log_dirs["failing"], errno.EIO, syncs=True),
    }
    broker = BrokerProcess(
        tmp_path,
        overrides={"log.dirs": ",".join(map(str, log_dirs.values()))},
        environment=host.environment,
    )
    with broker, closing(speak(broker.port)) as client, ExitStack() as stack:
        for name, path in log_dirs.items():
            create_topic(client, name)
            assert (path / f"{name}-0").is_dir()
        writers = {
            name: stack.enter_context(Writer(broker.bootstrap, name, 1, pause_s=0.02))
            for name in log_dirs
        }
        for number, name in enumerate(LOST):
            writers[name].wait_for_more(10)
            with memory_bounded(broker, f"a log directory that is {name}", 32 * MIB):
                lose[name]()
                wait_until(
                    lambda path=log_dirs[name]: f"log directory {path} is offline" in broker.log,
                    f"told: {name}",
                    broker,
                )
                wait_until(
                    lambda name=name: partition_state(client, name) == GONE, "leaderless", broker
                )
                for other in [*LOST[number + 1 :], KEPT]:
                    writers[other].wait_for_more(5)
                    assert partition_state(client, other) == (ErrorCode.NONE, 0, [])
            answer = produce(client, name, make_batch())
            assert answer.error_code == ErrorCode.KAFKA_STORAGE_ERROR
            assert fetch_one(client, name, 0).error_code == ErrorCode.KAFKA_STORAGE_ERROR
        told = {
            result.log_dir: result.error_code
            for result in client.ask(DescribeLogDirsRequest(topics=None)).results
        }
        assert told == {
            str(path): ErrorCode.NONE if name == KEPT else ErrorCode.KAFKA_STORAGE_ERROR
            for name, path in log_dirs.items()
        }
        writers[KEPT].stop()
    for name, path in log_dirs.items():
        said = broker.log.count(f"log directory {path} is offline")
        assert said == (name != KEPT), broker.log
    assert "cannot start replica" not in broker.log
    assert "Traceback" not in broker.log
    # Every directory but the removed one is back.
    host.heal()
    mount(bound, "--bind", tmp_path / "disk")
    shutil.rmtree(log_dirs["renamed"], ignore_errors=True)
    away.rename(log_dirs["renamed"])
    with broker:
        for name in set(log_dirs) - {"removed"}:
            check(writers[name], {0: read_all(broker, name)})


def test_disk_that_is_not_mounted_at_a_start_is_not_taken_for_a_new_one(
    tmp_path: Path, memory_bounded: MemoryBounded
) -> None:
    broker = BrokerProcess(tmp_path, log_dirs=2)
    place, away = broker.log_dirs[0], tmp_path / "away"
    with broker, closing(speak(broker.port)) as client:
        topics = [create_topic(client, name)[0] for name in ("gone", KEPT)]
        assert (place / "gone-0").is_dir()
        for topic in topics:
            assert produce(client, topic, make_batch([b"before"])).error_code == ErrorCode.NONE
    place.rename(away)
    place.mkdir()
    for _ in range(2):
        with (
            broker,
            memory_bounded(broker, "a log directory that is not mounted at a start", 32 * MIB),
            closing(speak(broker.port)) as client,
        ):
            wait_until(lambda: partition_state(client, "gone") == GONE, "leaderless", broker)
            code = produce(client, "gone", make_batch([b"meanwhile"])).error_code
            assert code == ErrorCode.KAFKA_STORAGE_ERROR
            assert produce(client, KEPT, make_batch([b"meanwhile"])).error_code == ErrorCode.NONE
    assert list(place.iterdir()) == []
    place.rmdir()
    away.rename(place)
    with broker, closing(speak(broker.port)) as client:
        assert read_all(broker, "gone") == ["before"]
        assert read_all(broker, KEPT) == ["before", "meanwhile", "meanwhile"]
        assert produce(client, "gone", make_batch([b"after"])).base_offset == 1
    # Without its records it has to be deleted first.
    shutil.rmtree(place)
    with broker, Admin(broker.bootstrap) as admin, closing(speak(broker.port)) as client:
        wait_until(lambda: partition_state(client, "gone") == GONE, "leaderless", broker)
        admin.delete_topic("gone")
        assert produce(client, create_topic(client, "gone")[0], make_batch()).base_offset == 0
        assert produce(client, create_topic(client, "new")[0], make_batch()).base_offset == 0
    with broker:
        assert read_all(broker, "gone") == read_all(broker, "new") == ["v"]


def test_file_system_that_is_read_only_at_a_start_keeps_what_it_has(
    tmp_path: Path, bound: Path, memory_bounded: MemoryBounded
) -> None:
    broker = BrokerProcess(tmp_path, overrides={"log.dirs": f"{bound},{tmp_path / KEPT}"})
    with broker, closing(speak(broker.port)) as client:
        for name in (bound.name, KEPT):
            create_topic(client, name)
            assert produce(client, name, make_batch([b"before"])).error_code == ErrorCode.NONE
        assert (bound / f"{bound.name}-0").is_dir()
    mount(bound, "-o", "remount,bind,ro")
    before = content(bound)
    for end in (broker.kill, broker.stop):
        broker.start()
        try:
            with (
                memory_bounded(broker, "a log directory that is read-only at a start", 32 * MIB),
                closing(speak(broker.port)) as client,
            ):
                wait_until(
                    lambda: partition_state(client, bound.name) == GONE, "leaderless", broker
                )
                code = produce(client, bound.name, make_batch([b"meanwhile"])).error_code
                assert code == ErrorCode.KAFKA_STORAGE_ERROR
                assert produce(client, KEPT, make_batch([b"meanwhile"])).error_code == 0
                other, _ = create_topic(client)
                assert produce(client, other, make_batch()).error_code == ErrorCode.NONE
        finally:
            end()
        told = f"log directory {bound} is offline: [Errno {errno.EROFS}] Read-only file system"
        assert broker.log.count(told) == 1, broker.log
        assert "Traceback" not in broker.log
        broker.log_path.unlink()
    alone = refusal(run(*overrides(log_dirs=bound)))
    assert f"no log directory can be used: {bound}: Read-only file system" in alone
    assert content(bound) == before
    mount(bound, "-o", "remount,bind,rw")
    with broker:
        assert read_all(broker, bound.name) == ["before"]
        assert read_all(broker, KEPT) == ["before", "meanwhile", "meanwhile"]


DISK_BYTES = 64 * MIB


def stop_writes(image: Path, place: Path) -> None:
    """Have the file system find an error: it makes itself read-only."""
    device = subprocess.run(
        ["findmnt", "-no", "SOURCE", place], capture_output=True, text=True, check=True
    ).stdout.strip()
    Path(f"/sys/fs/ext4/{Path(device).name}/trigger_fs_error").write_text("of a test")


def take_the_rest(image: Path, place: Path) -> None:
    """Have the disk below the file system turn out to be smaller than it said."""
    mount(image.parent, "-o", "remount,size=24m")
    with (image.parent / "filler").open("wb", buffering=0) as file, suppress(OSError):
        while file.write(bytes(4096)):
            pass


@pytest.mark.long
@pytest.mark.usefixtures("plane")
@pytest.mark.parametrize("harm", [stop_writes, take_the_rest])
def test_file_system_that_fails_loses_nothing_acknowledged(
    tmp_path: Path, harm: Callable[[Path, Path], None], memory_bounded: MemoryBounded
) -> None:
    place, below = tmp_path / "bad", tmp_path / "below"
    image = below / "image"
    broker = BrokerProcess(tmp_path, overrides={"log.dirs": f"{place},{tmp_path / KEPT}"})
    with mounted(below, "-t", "tmpfs", "-o", "size=128m", "none"):
        with image.open("wb") as file:
            file.truncate(DISK_BYTES)
        subprocess.run(["mkfs.ext4", "-q", image], check=True)
        with mounted(place, "-o", "loop,errors=remount-ro", image):
            with broker, closing(speak(broker.port)) as client, ExitStack() as stack:
                writers = []
                for name in ("bad", KEPT):
                    create_topic(client, name)
                    made = Writer(broker.bootstrap, name, 1, padding=20_000, pause_s=0.01)
                    writers.append(stack.enter_context(made))
                writers[0].wait_for_more(50)
                with memory_bounded(broker, f"a file system that fails: {harm.__name__}", 32 * MIB):
                    harm(image, place)
                    wait_until(
                        lambda: f"log directory {place} is offline" in broker.log, "told", broker
                    )
                    writers[1].wait_for_more(50)
                writers[1].stop()
            assert "Traceback" not in broker.log
        (below / "filler").unlink(missing_ok=True)
        mount(below, "-o", "remount,size=128m")
        subprocess.run(["fsck.ext4", "-fy", image], capture_output=True, check=False)
        place.rmdir()
        with mounted(place, "-o", "loop", image), broker:
            for writer, name in zip(writers, ("bad", KEPT), strict=True):
                check(writer, {0: read_all(broker, name)})
            broker.stop()
