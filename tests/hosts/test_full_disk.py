"""A broker whose disk is full: it starts, refuses records early, serves what is there, and goes on.

Clients' records leave `log.dir.reserve.bytes` free, a tenth of a disk as small as these.
"""

from __future__ import annotations

import os
import re
import subprocess
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing
from functools import partial
from pathlib import Path

import pytest

from plog.client.admin import SET, TOPIC, Admin
from plog.client.producer import Producer
from plog.errors import ErrorCode
from plog.protocol.messages.fetch import PartitionData
from plog.types import TopicPartition
from tests.broker.test_lost_replicas import partition_state
from tests.coordinator.conftest import await_coordinator
from tests.coordinator.members import ByHand
from tests.crash.writer import Writer
from tests.handlers.wire import (
    create_topic,
    eventually,
    fetch_one,
    fetch_request,
    fetched,
    make_batch,
    produce,
    speak,
)
from tests.hosts.host import MIB, MemoryBounded, memory, mounted, read_all, wait_until
from tests.servers import BrokerProcess
from tests.transactions.conftest import SETTINGS as COORDINATORS
from tests.transactions.transactor import Transactor, committed_offset, read

TIMEOUT_S = 30
IS_FULL, HAS_SPACE = "is full, writes are refused", "has space again"
FILLER = "filler"


@pytest.fixture(params=["tmpfs", pytest.param("ext4", marks=pytest.mark.long)])
def small_disk(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Path]:
    """A file system of 24 MB; what must also be seen without one is tested at the store.

    One on a disk, which gives space late, wants blocks for what it keeps of files, and has some for
    root alone.
    """
    disk = tmp_path / "disk"
    if request.param == "tmpfs":
        with mounted(disk, "-t", "tmpfs", "-o", "size=24m", "none"):
            yield disk
        return
    image = tmp_path / "image"
    with image.open("wb") as file:
        file.truncate(24 * MIB)
    subprocess.run(["mkfs.ext4", "-q", image], check=True)
    with mounted(disk, "-o", "loop", image):
        yield disk


def fill(disk: Path) -> None:
    """Take every free byte."""
    with (disk / FILLER).open("ab", buffering=0) as file:
        for size in (1 << 20, 4096, 1):
            try:
                while file.write(b"x" * size) == size:
                    pass
            except OSError:
                continue


def fill_but(disk: Path, size: int) -> None:
    """Take every free byte but so many."""
    with (disk / FILLER).open("ab", buffering=0) as file:
        while free_bytes(disk) > size:
            file.write(bytes(64 << 10))


def free_bytes(disk: Path) -> int:
    found = os.statvfs(disk)
    return found.f_bavail * found.f_frsize


NO_SPACE = "no space to recover it"
PARTITIONS = 160
"""More than can be recovered in the space that the coordination store may give up at a start."""


@pytest.mark.usefixtures("plane")
@pytest.mark.parametrize(
    ("end", "left"),
    [
        pytest.param("stop", 0, id="stopped, no byte is left"),
        pytest.param("kill", 0, id="killed, no byte is left"),
        pytest.param("kill", 2 * MIB, id="killed, a part of the reserve is left"),
    ],
)
def test_broker_starts_on_a_full_disk_and_goes_on_when_there_is_space(
    small_disk: Path,
    memory_bounded: MemoryBounded,
    record_property: Callable[[str, object], None],
    end: str,
    left: int,
) -> None:
    log_dirs = (small_disk / "data", small_disk.parent / "other")
    overrides: dict[str, object] = {
        "log.dirs": ",".join(map(str, log_dirs)),
        "log.levels": "plog.storage.log_manager=DEBUG",  # single partitions
    }
    broker = BrokerProcess(small_disk.parent, overrides=overrides)
    batch = make_batch([b"v" * 5000])
    take_space = partial(fill_but, size=left) if left else fill
    try:
        broker.start()
        with closing(speak(broker.port)) as client:
            topic, _ = create_topic(client, partitions=PARTITIONS)
            here = [n for n in range(PARTITIONS) if (log_dirs[0] / f"{topic}-{n}").is_dir()]
            other = min(set(range(PARTITIONS)) - set(here))
            for partition in here:
                for offset in range(3):
                    answer = produce(client, topic, batch, partition=partition)
                    assert answer.base_offset == offset
        usual = memory(broker, "VmHWM")
        for _ in range(2):
            take_space(small_disk)
            getattr(broker, end)()
            if end == "kill":  # as if the disk had not got so far yet
                for index in log_dirs[0].glob("*/*index"):
                    index.unlink()
            take_space(small_disk)
            # A stop that the folded WAL of the store leaves a block to may be a clean one.
            is_clean = (log_dirs[0] / ".kafka_cleanshutdown").exists()
            lines_before = len(broker.log.splitlines())
            broker.start()
        peak = memory(broker, "VmHWM")
        record_property(
            "figures",
            f"a start on a full disk ({end}, {left / MIB:.0f} MiB left): memory at most"
            f" {peak / MIB:.0f} MiB, {usual / MIB:.0f} without records",
        )
        assert peak - usual <= 32 * MIB

        def lines(words: str) -> int:
            return sum(words in line for line in broker.log.splitlines()[lines_before:])

        def findall(pattern: str) -> list[str]:
            return re.findall(pattern, "\n".join(broker.log.splitlines()[lines_before:]))

        with (
            closing(speak(broker.port)) as client,
            memory_bounded(broker, f"a disk that is full at the start ({end})", 32 * MIB),
        ):

            def code(partition: int, acks: int = -1) -> int:
                return produce(client, topic, batch, partition=partition, acks=acks).error_code

            def fetch(partition: int) -> PartitionData:
                request = fetch_request((topic, partition, 0))
                (found,) = fetched(client.ask(request, 12)).values()
                return found

            eventually(lambda: code(other) == ErrorCode.NONE, "served")
            take_space(small_disk)
            for partition in here:
                for acks in (1, -1):
                    assert code(partition, acks) == ErrorCode.KAFKA_STORAGE_ERROR
                assert code(other) == ErrorCode.NONE
            found = {one: fetch(one) for one in here}
            offline = {one for one in here if found[one].error_code != ErrorCode.NONE}
            for one in here:
                wanted = ErrorCode.KAFKA_STORAGE_ERROR if one in offline else ErrorCode.NONE
                assert found[one].error_code == wanted
                assert one in offline or len(found[one].records or b"") == 3 * len(batch)
            # What is offline could not be recovered, or could not write its leader epoch down.
            unrecovered = lines(NO_SPACE)
            refused = lines(f"cannot start replica {topic}-") + sum(
                int(count) for count in findall(rf"start replicas of (\d+) partitions of {topic}:")
            )
            assert unrecovered + refused == len(offline), broker.log
            assert bool(unrecovered) == (left == 0 and not is_clean), broker.log
            # After a kill the store folds its WAL in, and perhaps gives up nothing for the others.
            assert end == "kill" or len(offline) < len(here)
            assert left == 0 or not offline
            (small_disk / FILLER).unlink()
            # A leader that has just come back may go once more, and leaves a batch unacknowledged
            # that is in its log. So the producer is one that may try again.
            again = make_batch([b"v" * 5000], producer=(4711, 0, 0))
            assert len(again) == len(batch)
            for one in here:
                eventually(
                    lambda one=one: not produce(client, topic, again, partition=one).error_code,
                    "taken again",
                    TIMEOUT_S,
                )
                assert len(fetch(one).records or b"") == 4 * len(batch)
            recovered = re.findall(rf"{topic}-\d+ recovered and online", broker.log)
            assert len(recovered) == unrecovered == lines(NO_SPACE), broker.log
            eventually(lambda: lines(IS_FULL) == lines(HAS_SPACE) <= 1, "told once", TIMEOUT_S)
        assert "Traceback" not in broker.log
        broker.stop()
        # Nothing is left for the next start to recover.
        assert all((one / ".kafka_cleanshutdown").exists() for one in log_dirs)
    finally:
        broker.kill()


@pytest.mark.usefixtures("plane")
def test_disk_that_others_fill_is_refused_early_and_taken_again(
    small_disk: Path, memory_bounded: MemoryBounded
) -> None:
    log_dirs = (small_disk / "data", small_disk.parent / "other")
    overrides: dict[str, object] = {"log.dirs": ",".join(map(str, log_dirs))}
    with (
        BrokerProcess(small_disk.parent, overrides=overrides) as broker,
        closing(speak(broker.port)) as client,
        memory_bounded(broker, "a disk that others fill", 32 * MIB),
    ):
        (full, _), (other, _) = create_topic(client), create_topic(client)
        assert (log_dirs[0] / f"{full}-0").is_dir()
        batch = make_batch([b"v" * 100])
        for offset in range(3):
            assert produce(client, full, batch).base_offset == offset
        fill_but(small_disk, 2 * MIB)
        taken = 3

        def is_refused() -> bool:
            nonlocal taken
            code = produce(client, full, batch).error_code
            taken += code == ErrorCode.NONE
            return code == ErrorCode.KAFKA_STORAGE_ERROR

        eventually(is_refused, "refused")
        for acks in (1, -1):
            for _ in range(20):
                answer = produce(client, full, batch, acks=acks)
                assert answer.error_code == ErrorCode.KAFKA_STORAGE_ERROR
        assert free_bytes(small_disk) > MIB
        # It leads all the same, and does whatever is no record.
        assert partition_state(client, full) == (ErrorCode.NONE, 0, [])
        records = fetch_one(client, full, 0).records
        assert records is not None
        assert len(records) == taken * len(batch)
        assert produce(client, other, batch).error_code == ErrorCode.NONE
        with Admin(broker.bootstrap) as admin:
            at = TopicPartition(full, 0)
            assert admin.delete_records({at: 2}) == {at: 2}
            admin.delete_topic(create_topic(client)[0])
        with Producer(broker.bootstrap) as producer:
            waiting = producer.send(full, b"waits")
            wait_until(lambda: broker.log.count(IS_FULL) == 1, "told", broker)
            assert not waiting.done()
            (small_disk / FILLER).unlink()
            assert waiting.result(TIMEOUT_S).offset == taken
        assert produce(client, full, batch).base_offset == taken + 1
        wait_until(lambda: HAS_SPACE in broker.log, "told", broker)
        assert broker.log.count(IS_FULL) == broker.log.count(HAS_SPACE) == 1


@pytest.mark.usefixtures("plane")
@pytest.mark.parametrize("left", [0, 2 * MIB], ids=["no byte", "a part of the reserve"])
def test_coordinators_on_a_full_disk_refuse_and_go_on_when_there_is_space(
    small_disk: Path, memory_bounded: MemoryBounded, left: int
) -> None:
    with (
        BrokerProcess(
            small_disk.parent, overrides={**COORDINATORS, "log.dirs": small_disk / "data"}
        ) as broker,
        ExitStack() as connections,
    ):
        client, first, second = (
            connections.enter_context(closing(speak(broker.port))) for _ in range(3)
        )
        topic, _ = create_topic(client)
        at = TopicPartition(topic, 0)
        member, late = ByHand(broker.port, "g"), ByHand(broker.port, "late")
        connections.callback(member.close)
        connections.callback(late.close)
        for group in ("g", "late"):
            await_coordinator(client, group)
        member.enter()
        assert member.commit(topic, 1) == ErrorCode.NONE
        commits, aborts = Transactor(first, "commits").start(), Transactor(second, "aborts").start()
        commits.send(at, b"kept")
        aborts.send(at, b"dropped")
        with memory_bounded(broker, "coordinators on a full disk", 32 * MIB):
            fill_but(small_disk, 2 * MIB)
            safe = 1  # what was answered last

            def is_refused() -> bool:
                nonlocal safe
                code = member.commit(topic, safe + 1)
                safe += code == ErrorCode.NONE
                return code == ErrorCode.NOT_COORDINATOR

            eventually(is_refused, "refused", TIMEOUT_S)
            if left == 0:  # now that it is seen: the files' last blocks have room as yet
                fill(small_disk)
            for _ in range(20):
                assert member.commit(topic, 1000) == ErrorCode.NOT_COORDINATOR
                assert commits.end(commit=True) == ErrorCode.NOT_COORDINATOR
                assert aborts.end(commit=False) == ErrorCode.NOT_COORDINATOR
                assert aborts.add(TopicPartition(topic, 0)) == [ErrorCode.NONE]  # is there already
                assert Transactor(client, "new").init() == ErrorCode.NOT_COORDINATOR
                # Who was in the group stays, and is told what it has committed.
                assert member.beat() == ErrorCode.NONE
                assert member.committed(topic) == safe
            assert late.join().error_code == ErrorCode.NONE
            assert late.sync({late.member_id: b"all"}).error_code == ErrorCode.NOT_COORDINATOR
            # One line of the log directory tells of them all.
            assert "transactional id" not in broker.log
            assert "cannot be stored" not in broker.log
            assert read(client, at) == []
            assert read(client, at, committed=False) == [b"kept", b"dropped"]
            for group in ("g", "late"):
                await_coordinator(client, group)  # which is here all the same
            (small_disk / FILLER).unlink()
            wait_until(lambda: member.commit(topic, 2000) == ErrorCode.NONE, "again", broker)
            commits.finish(commit=True)
            aborts.finish(commit=False)
            Transactor(client, "new").start()
            late.enter()
            assert member.beat() == ErrorCode.NONE
        wait_until(lambda: HAS_SPACE in broker.log, "told", broker)
        assert broker.log.count(IS_FULL) == broker.log.count(HAS_SPACE) == 1
        broker.kill()
        broker.start()
        with closing(speak(broker.port)) as again:
            await_coordinator(again, "g")
            assert committed_offset(again, "g", at) == (ErrorCode.NONE, 2000)
            eventually(lambda: read(again, at) == [b"kept"], "read", TIMEOUT_S)
        assert "Traceback" not in broker.log
        assert "failed with an internal error" not in broker.log


@pytest.mark.usefixtures("plane")
def test_producers_go_on_by_themselves_whatever_gives_the_space_back(
    small_disk: Path, memory_bounded: MemoryBounded
) -> None:
    log_dirs = (small_disk / "data", small_disk.parent / "other")
    broker = BrokerProcess(
        small_disk.parent,
        overrides={
            "log.dirs": ",".join(map(str, log_dirs)),
            "log.initial.task.delay.ms": 0,
            "log.retention.check.interval.ms": 300,
            "log.segment.bytes": MIB,
            "log.segment.delete.delay.ms": 100,
        },
    )
    at = TopicPartition("t", 0)

    def told(words: str, times: int) -> None:
        wait_until(lambda: broker.log.count(words) >= times, f"told: {words}", broker)

    with broker, Admin(broker.bootstrap) as admin:
        for name in ("ballast", "other", "t"):
            admin.create_topic(name, partitions=1)
        assert {path.name for path in log_dirs[0].glob("*-0")} == {"ballast-0", "t-0"}
        with Producer(broker.bootstrap) as producer:
            for topic, count in (("ballast", 30), ("t", 120)):
                for _ in range(count):
                    producer.send(topic, b"b" * 100_000)
            producer.flush()

        def retain(key: str, value: int) -> None:
            admin.alter_configs(TOPIC, "t", [(key, SET, str(value))])

        ways: list[Callable[[], object]] = [
            lambda: admin.delete_topic("ballast"),
            lambda: admin.delete_records({at: 50}),
            partial(retain, "retention.bytes", 4 * MIB),
            partial(retain, "retention.ms", 1),
        ]
        with (
            memory_bounded(broker, "a disk that is full four times", 64 * MIB),
            Writer(broker.bootstrap, "t", 1, padding=1000, pause_s=0.005) as writer,
            Writer(broker.bootstrap, "other", 1, pause_s=0.01) as bystander,
        ):
            for times, give_back in enumerate(ways, 1):
                fill_but(small_disk, 2 * MIB)
                told(IS_FULL, times)
                assert free_bytes(small_disk) > MIB
                bystander.wait_for_more(20)
                assert read_all(broker, "t")
                give_back()
                told(HAS_SPACE, times)
                writer.wait_for_more(100)
            writer.stop()
            bystander.stop()
        kept = [value for value in read_all(broker, "t") if value.startswith("0-")]
        assert read_all(broker, "other") == bystander.acknowledged[0]
    assert not writer.failures
    assert not bystander.failures
    assert kept == writer.acknowledged[0][len(writer.acknowledged[0]) - len(kept) :]
    lines = [line for line in broker.log.splitlines() if IS_FULL in line or HAS_SPACE in line]
    assert [IS_FULL in line for line in lines] == [True, False] * len(ways)
    assert "Traceback" not in broker.log
