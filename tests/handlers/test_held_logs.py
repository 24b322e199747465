"""Logs that somebody holds who waits for a disk: their clients wait for it, and no others do."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path

import pytest

from plog._native.faults import Fault
from plog.errors import ErrorCode
from plog.protocol.messages.cluster import (
    AlterReplicaLogDir,
    AlterReplicaLogDirsRequest,
    AlterReplicaLogDirTopic,
)
from plog.protocol.messages.groups import HeartbeatRequest
from plog.protocol.messages.metadata import MetadataRequest
from plog.protocol.messages.offsets import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
    OffsetCommitResponse,
)
from plog.protocol.messages.produce import ProduceResponse
from plog.protocol.messages.producers import (
    DescribeProducersRequest,
    DescribeProducersResponse,
    TopicRequest,
)
from plog.storage.log import Log
from plog.types import TopicPartition
from tests.coordinator.conftest import await_coordinator
from tests.coordinator.members import Later
from tests.handlers.running import Running, decoded, faults, framed, receive
from tests.handlers.test_slow_disks import (
    PRODUCE,
    disk_of,
    make_fast,
    make_slow,
    require_unanswered,
    unusual,
)
from tests.handlers.wire import create_topic, eventually, flat, speak
from tests.planes import Plane
from tests.transactions.transactor import Transactor


@pytest.fixture
def two_disks(plane: Plane, tmp_path: Path) -> Iterator[Running]:
    """A broker with two log directories, of which topic "t" has a partition each."""
    one = Running(
        tmp_path,
        log_dirs=f"{tmp_path / 'disk0'},{tmp_path / 'disk1'}",
        offsets_topic_num_partitions=1,
        transaction_state_log_num_partitions=1,
    )
    create_topic(one.wire, "t", 2)
    yield one
    one.stop()


def log_of(running: Running, topic: str, index: int) -> Log:
    assert running.broker._loading is not None
    found = running.broker._loading.get(TopicPartition(topic, index))
    assert found is not None
    return found


def served_log(running: Running) -> Log | None:
    assert running.broker._replicas is not None
    partition = running.broker._replicas.get(TopicPartition("t", 0))
    return partition and partition.hosted_log


def is_held(log: Log) -> bool:
    """Whether somebody has the lock that is taken by whatever is unusual."""
    if log._lock.acquire(blocking=False):
        log._lock.release()
        return False
    return True


@contextmanager
def slow_snapshot(running: Running, log: Log) -> Iterator[None]:
    """Have the producers of a log written down as it rolls, on a disk that takes its time."""
    path = f"{log.directory}/{log.log_end_offset:020d}.snapshot"
    with faults(Fault("fsync", delay_us=1_500_000, times=1, path_prefix=path)):
        log.roll()
        yield


@contextmanager
def slow_checkpoint(running: Running, log: Log) -> Iterator[None]:
    """Have the indexes of a rolled segment brought to such a disk, as before each checkpoint."""
    snapshot = log.directory / f"{log.log_end_offset:020d}.snapshot"
    index = f"{log.directory}/{log.native.segments[-1].base_offset:020d}.index"
    log.roll()
    eventually(snapshot.exists, "written")
    eventually(lambda: not is_held(log), "free")
    log.flush()
    syncing = threading.Thread(target=log.recovery_point)
    with faults(Fault("fdatasync", delay_us=1_500_000, times=1, path_prefix=index)):
        syncing.start()
        yield
        syncing.join()


@contextmanager
def slow_move(running: Running, log: Log) -> Iterator[None]:
    """Have a log moved to such a disk, from one that is fast."""
    at = log.topic_partition
    (target,) = {path for path in running.directory.glob("disk*") if path != log.log_dir}
    asked = AlterReplicaLogDirTopic(name=at.topic, partitions=[at.partition])
    moves = AlterReplicaLogDirsRequest(dirs=[AlterReplicaLogDir(path=str(target), topics=[asked])])
    with (
        running.connect() as client,
        faults(Fault("fsync", delay_us=300_000, path_prefix=f"{target}/{at}")),
    ):
        client.sendall(framed(moves, 2, 1))
        yield
        receive(client)


Hold = Callable[[Running, Log], AbstractContextManager[None]]


@pytest.mark.parametrize("hold", [slow_snapshot, slow_checkpoint, slow_move])
def test_log_that_is_held_for_a_disk_keeps_nobody_waiting(two_disks: Running, hold: Hold) -> None:
    for index in (0, 1):
        two_disks.ask(unusual(index), PRODUCE)
        make_fast(two_disks, index)
    log = log_of(two_disks, "t", 0)
    with hold(two_disks, log):
        eventually(lambda: is_held(log), "held")
        two_disks.send(unusual(0), PRODUCE)
        for _ in range(10):
            two_disks.wire.ask(unusual(1), PRODUCE)
            two_disks.wire.ask(MetadataRequest(topics=[]))
        assert is_held(log)
        require_unanswered(two_disks.socket)
        (part,) = flat(decoded(ProduceResponse, PRODUCE, two_disks.receive()))
    if hold is slow_move:  # it is another log now: the client asks again
        assert part.error_code in (ErrorCode.NOT_LEADER_OR_FOLLOWER, ErrorCode.KAFKA_STORAGE_ERROR)
        eventually(lambda: served_log(two_disks) is not log, "moved")
        (part,) = flat(two_disks.wire.ask(unusual(0), PRODUCE))
    assert (part.error_code, part.base_offset) == (ErrorCode.NONE, 1)


def test_offsets_that_are_committed_as_their_log_moves_keep_nobody_waiting(
    two_disks: Running,
) -> None:
    await_coordinator(two_disks.wire, "g")
    part = OffsetCommitRequestPartition(
        partition_index=0, committed_offset=1, committed_metadata=None
    )
    topic = OffsetCommitRequestTopic(name="t", partitions=[part])
    commit = OffsetCommitRequest(group_id="g", topics=[topic])
    beat = HeartbeatRequest(group_id="g", generation_id=1, member_id="m")

    def told(answer: OffsetCommitResponse) -> int:
        return int(answer.topics[0].partitions[0].error_code)

    eventually(lambda: told(two_disks.wire.ask(commit, 8)) == ErrorCode.NONE, "committed")
    log = log_of(two_disks, "__consumer_offsets", 0)
    for index in (0, 1):
        two_disks.ask(unusual(index), PRODUCE)
        make_fast(two_disks, index)
    with slow_move(two_disks, log):
        eventually(lambda: is_held(log), "held")
        two_disks.send(commit, 8)
        for index in (0, 1) * 5:
            two_disks.wire.ask(unusual(index), PRODUCE)
            assert two_disks.wire.ask(beat, 4).error_code == ErrorCode.UNKNOWN_MEMBER_ID
        assert is_held(log)
        require_unanswered(two_disks.socket)
        assert told(decoded(OffsetCommitResponse, 8, two_disks.receive())) != ErrorCode.NONE
    assert log_of(two_disks, "__consumer_offsets", 0) is not log
    eventually(lambda: told(two_disks.wire.ask(commit, 8)) == ErrorCode.NONE, "committed again")


@pytest.mark.parametrize("own_epochs", [False, True])
def test_transaction_that_begins_in_a_log_that_is_held_keeps_nobody_waiting(
    two_disks: Running, own_epochs: bool
) -> None:
    at = TopicPartition("t", 0)
    one = Transactor(speak(two_disks.port), "x", own_epochs=own_epochs).start()
    one.join(at)
    for index in (0, 1):
        two_disks.ask(unusual(index), PRODUCE)
        make_fast(two_disks, index)
    log = log_of(two_disks, "t", 0)
    with slow_checkpoint(two_disks, log):
        eventually(lambda: is_held(log), "held")
        read = two_disks.requests
        writing = Later(lambda: one.produce(at, b"v").error_code)
        two_disks.until_read(read + 1)
        for _ in range(10):
            two_disks.wire.ask(unusual(1), PRODUCE)
        assert is_held(log)
        assert writing.get() == ErrorCode.NONE
    one.finish(commit=True)
    one.wire.close()


def test_producers_of_a_log_that_is_being_written_are_told_and_keep_nobody_waiting(
    two_disks: Running,
) -> None:
    make_slow(two_disks, 0)
    asked = TopicRequest(name="t", partition_indexes=[0])
    slow = disk_of(two_disks, 0)
    with (
        two_disks.connect() as client,
        faults(Fault("pwritev", delay_us=1_500_000, path_prefix=slow, times=1)),
    ):
        two_disks.send(unusual(0), PRODUCE)
        for _ in range(5):
            two_disks.wire.ask(unusual(1), PRODUCE)
        client.sendall(framed(DescribeProducersRequest(topics=[asked]), 0, 1))
        for _ in range(10):
            two_disks.wire.ask(unusual(1), PRODUCE)
        require_unanswered(two_disks.socket)
        require_unanswered(client)
        two_disks.receive()
        (topic,) = decoded(DescribeProducersResponse, 0, receive(client)).topics
    assert len(topic.partitions[0].active_producers) == 2
