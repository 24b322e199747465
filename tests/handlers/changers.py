"""Those who change a broker's topics and disks beneath the clients of `stress`."""

from __future__ import annotations

from collections.abc import Callable

from plog._native import faults
from plog._native.faults import Fault
from plog.errors import ErrorCode
from plog.protocol.messages.cluster import (
    AlterReplicaLogDir,
    AlterReplicaLogDirsRequest,
    AlterReplicaLogDirTopic,
    DescribeLogDirsRequest,
)
from plog.protocol.messages.configs import (
    IncrementalAlterableConfig,
    IncrementalAlterConfigsRequest,
    IncrementalAlterConfigsResource,
)
from plog.protocol.messages.list_offsets import (
    ListOffsetsPartition,
    ListOffsetsRequest,
    ListOffsetsTopic,
)
from plog.protocol.messages.metadata import MetadataRequest
from plog.protocol.messages.topics import (
    CreatePartitionsRequest,
    CreatePartitionsTopic,
    DeleteRecordsPartition,
    DeleteRecordsRequest,
    DeleteRecordsTopic,
    DeleteTopicsRequest,
)
from plog.storage.log_manager import LogManager
from plog.types import TopicPartition
from tests.handlers.stress import CUT, PASSING, SMALLEST_SEGMENT, At, World, fetch_one_of
from tests.handlers.wire import WAIT_MS, Speaker, flat, make_batch, produce_request, speak

MOST_PARTITIONS = 8


class Changer:
    """Does one thing after another to the topics, as administrators do."""

    def __init__(self, world: World) -> None:
        self.world = world

    def run(self) -> None:
        self._rng = self.world.rng()
        self._wire = speak(self.world.port)
        actions = self._actions()
        while not self.world.stop.wait(self._rng.choice((0.001, 0.02, 0.1))):
            self._rng.choice(actions)()
        self._wire.close()

    def _actions(self) -> list[Callable[[], None]]:
        """Return what to choose from; what is there more than once is done more often."""
        return [
            *[self._delete_records] * 3,
            *[self._alter_configs] * 4,
            *[self._move_replica] * 4,
            *[self._look] * 2,
        ]

    def _anywhere(self) -> At:
        return self.world.anywhere(self._rng)

    def _delete_records(self) -> None:
        topic, index = self._anywhere()
        part = fetch_one_of(self._wire, (topic, index), 0)
        if part.error_code not in (ErrorCode.NONE, ErrorCode.OFFSET_OUT_OF_RANGE):
            return
        start, end = part.log_start_offset, part.high_watermark
        upto = start + (end - start) // self._rng.choice((2, 4, 20))
        entry = DeleteRecordsPartition(partition_index=index, offset=upto)
        request = DeleteRecordsRequest(
            topics=[DeleteRecordsTopic(name=topic, partitions=[entry])], timeout_ms=WAIT_MS
        )
        (result,) = self._wire.ask(request, 2).topics[0].partitions
        # Another may have deleted beyond it meanwhile.
        passed = (ErrorCode.NONE, ErrorCode.OFFSET_OUT_OF_RANGE, *PASSING)
        assert result.error_code in passed, result
        self.world.count("records deleted")

    def _alter_configs(self) -> None:
        topic, _ = self._anywhere()
        self.alter(self._wire, topic, *self._setting())
        self.world.count("configs altered")

    def _setting(self) -> tuple[str, object]:
        rng = self._rng
        return rng.choice((
            ("segment.bytes", rng.choice((SMALLEST_SEGMENT, 60_000, 1_000_000))),
            ("segment.ms", rng.choice((200, 604_800_000))),
            ("max.message.bytes", rng.choice((7_000_000, 8_000_000))),
            ("flush.before.ack", rng.choice(("true", "false"))),
            # The fast path leaves these topics alone; most of the time there shall be others.
            ("compression.type", rng.choice(("producer",) * 5 + ("lz4",))),
            ("message.timestamp.type", rng.choice(("CreateTime",) * 5 + ("LogAppendTime",))),
            ("index.interval.bytes", rng.choice((100, 4096))),
            ("retention.bytes", self._retention_bytes()),
            ("file.delete.delay.ms", rng.choice((0, 100))),
        ))  # fmt: skip

    def _retention_bytes(self) -> int:
        return self._rng.choice((-1, 500_000))

    @staticmethod
    def alter(wire: Speaker, topic: str, name: str, value: object) -> None:
        entry = IncrementalAlterableConfig(name=name, config_operation=0, value=str(value))
        resource = IncrementalAlterConfigsResource(
            resource_type=2, resource_name=topic, configs=[entry]
        )
        request = IncrementalAlterConfigsRequest(resources=[resource], validate_only=False)
        (result,) = wire.ask(request, 1).responses
        assert result.error_code == ErrorCode.NONE, result

    def _move_replica(self) -> None:
        topic, index = self._anywhere()
        asked = AlterReplicaLogDirTopic(name=topic, partitions=[index])
        target = str(self._rng.choice(self.world.log_dirs))
        request = AlterReplicaLogDirsRequest(dirs=[AlterReplicaLogDir(path=target, topics=[asked])])
        (part,) = self._wire.ask(request, 2).results[0].partitions
        assert part.error_code in (ErrorCode.NONE, ErrorCode.REASSIGNMENT_IN_PROGRESS), part
        self.world.count("replicas moved")

    def _look(self) -> None:
        """Ask what others ask meanwhile; what is answered is tested elsewhere."""
        topic, index = self._anywhere()
        asked = ListOffsetsPartition(partition_index=index, timestamp=self._rng.choice((-1, -2, 0)))
        self._wire.ask(
            ListOffsetsRequest(
                replica_id=-1,
                isolation_level=0,
                topics=[ListOffsetsTopic(name=topic, partitions=[asked])],
            ),
            6,
        )
        self._wire.ask(DescribeLogDirsRequest(topics=None), 4)
        assert self._wire.ask(MetadataRequest(topics=None), 9).brokers


def come_and_go(world: World) -> None:
    """Create and delete topics, some again under the same name, and add partitions to others."""
    rng, wire = world.rng(), speak(world.port)
    while not world.stop.wait(rng.choice((0.01, 0.1, 0.3))):
        if rng.random() < 0.2:
            add_partition(world, wire, rng.choice(list(world.partitions)))
        topic = rng.choice(("passing-0", "passing-1", "passing-2"))
        if topic in world.passing:
            world.passing.remove(topic)
            request = DeleteTopicsRequest(topic_names=[topic], timeout_ms=WAIT_MS)
            (result,) = wire.ask(request, 3).responses
            assert result.error_code == ErrorCode.NONE, result
            world.count("topics deleted")
        else:
            world.create(wire, topic, rng.randint(1, 3), segment_bytes=SMALLEST_SEGMENT)
            world.passing.append(topic)
            world.count("topics created")
    wire.close()


def add_partition(world: World, wire: Speaker, topic: str) -> None:
    old = world.partitions[topic]
    if old >= MOST_PARTITIONS:
        return
    entry = CreatePartitionsTopic(name=topic, count=old + 1, assignments=None)
    request = CreatePartitionsRequest(topics=[entry], timeout_ms=WAIT_MS, validate_only=False)
    (result,) = wire.ask(request, 3).results
    assert result.error_code == ErrorCode.NONE, result
    world.until_led(wire, topic, range(old, old + 1))
    world.partitions[topic] = old + 1
    world.count("partitions added")


def cut_back(world: World, manager: LogManager) -> None:
    """Write a log and cut it back, as a follower does, while others read it."""
    rng, wire = world.rng(), speak(world.port)
    world.create(wire, CUT, 1, segment_bytes=SMALLEST_SEGMENT)
    world.passing.append(CUT)
    while not world.stop.wait(rng.choice((0.001, 0.01))):
        for _ in range(rng.randint(1, 20)):
            data = make_batch([rng.randbytes(rng.choice((10, 2000)))] * rng.randint(1, 5))
            answer = wire.ask(produce_request([(CUT, 0, data)], acks=rng.choice((-1, 1))), 9)
            assert flat(answer)[0].error_code == ErrorCode.NONE, answer
        log = manager.get(TopicPartition(CUT, 0))
        assert log is not None
        log.truncate_to(rng.randint(max(log.log_end_offset - 40, 0), log.log_end_offset))
        world.count("logs cut back")
    wire.close()


def trouble_disks(world: World) -> None:
    """Let one directory's disk be slow, or calls do less than they were asked to, for moments."""
    rng = world.rng()
    try:
        while not world.stop.wait(rng.choice((0.05, 0.3, 1.0))):
            there = str(rng.choice(world.log_dirs)) + "/"
            faults.inject(rng.choice((
                [Fault("pwritev", delay_us=50_000, times=5, path_prefix=there)],
                [Fault("fdatasync", delay_us=100_000, times=5, path_prefix=there)],
                [Fault("pread", delay_us=20_000, times=5, path_prefix=there)],
                [Fault("pwritev", short_bytes=70, times=20, path_prefix=there)],
                [Fault("sendfile", short_bytes=100, times=200)],
                [
                    Fault("is_resident", errno=11, path_prefix=there),
                    Fault("pread_now", errno=11, path_prefix=there),
                    Fault("pread", delay_us=5_000, times=20, path_prefix=there),
                ],
            )))  # fmt: skip
            world.count("disks troubled")
            world.stop.wait(rng.choice((0.05, 0.2)))
            faults.inject([])
    finally:
        faults.inject([])
