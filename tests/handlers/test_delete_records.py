"""DeleteRecords of a partition with followers, which a test plays by requests on a socket."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from pathlib import Path

import pytest

from plog.cluster.metadata_cache import BrokerMetadata
from plog.cluster.partition import Partition
from plog.errors import ErrorCode
from plog.protocol.messages.fetch import FetchRequest
from plog.protocol.messages.topics import (
    DeleteRecordsPartition,
    DeleteRecordsPartitionResult,
    DeleteRecordsRequest,
    DeleteRecordsResponse,
    DeleteRecordsTopic,
)
from plog.runtime.purgatory import Purgatory
from plog.types import TopicPartition
from tests.handlers.running import Running, decoded, framed, receive
from tests.handlers.test_fast_followers import EPOCH, ONE, TWO, follow, lead
from tests.handlers.wire import WAIT_MS, create_topic, make_batch, produce_request
from tests.planes import Plane
from tests.waiting import until


class Stage(Running):
    """A broker that leads a partition of four records with two followers."""

    def __init__(self, directory: Path, plane: Plane) -> None:
        super().__init__(directory, plane=plane)
        self.topic, _ = create_topic(self.wire, partitions=2)
        for index in range(2):
            lead(self, self.topic, index, counted=(ONE,), others=(TWO,))
        self.followers = self.connect()
        for _ in range(4):
            self.wire.ask(produce_request([(self.topic, 0, make_batch())], acks=1), 9)

    @property
    def purgatory(self) -> Purgatory[TopicPartition]:
        return self.broker._replicas._on_change.__self__

    def partition(self, index: int) -> Partition:
        return self.broker._replicas.leader(TopicPartition(self.topic, index))

    def stop(self) -> None:
        self.followers.close()
        super().stop()

    def set_alive(self, *others: int) -> None:
        """Have the broker hear from the controller which others live."""
        metadata = self.broker._replicas._metadata
        me = metadata.snapshot.brokers[0]
        brokers = {one: BrokerMetadata(one, me.rack, me.endpoints) for one in (0, *others)}
        metadata._snapshot = dataclasses.replace(metadata.snapshot, brokers=brokers)
        for listener in metadata._listeners:
            listener(metadata.snapshot)

    def fetch(self, broker_id: int, log_start_offset: int, offset: int = 4) -> None:
        request: FetchRequest = follow((self.topic, 0, offset), broker_id=broker_id)
        request.topics[0].partitions[0].log_start_offset = log_start_offset
        self.followers.sendall(framed(request, 12, 1))
        assert receive(self.followers)

    def send_deletion(self, *asked: tuple[int, int], timeout_ms: int = WAIT_MS) -> None:
        parts = [DeleteRecordsPartition(partition_index=one, offset=upto) for one, upto in asked]
        topics = [DeleteRecordsTopic(name=self.topic, partitions=parts)]
        self.send(DeleteRecordsRequest(topics=topics, timeout_ms=timeout_ms), 2)

    def deleted(self) -> list[DeleteRecordsPartitionResult]:
        return decoded(DeleteRecordsResponse, 2, self.receive()).topics[0].partitions

    def until_deletion_waits(self) -> None:
        until(lambda: len(self.purgatory), "DeleteRecords waits")


@pytest.fixture
def stage(tmp_path: Path, plane: Plane) -> Iterator[Stage]:
    one = Stage(tmp_path, plane)
    one.fetch(ONE, 0)
    yield one
    one.stop()


def test_it_waits_until_live_followers_have_deleted(stage: Stage) -> None:
    stage.set_alive(ONE, TWO)
    stage.fetch(TWO, 0, offset=3)
    stage.send_deletion((0, 3))
    stage.until_deletion_waits()
    stage.fetch(ONE, 3)
    stage.fetch(TWO, 2, offset=3)
    assert len(stage.purgatory) == 1, "broker 2 is not in sync, and counts as well"
    stage.fetch(TWO, 3, offset=3)
    (found,) = stage.deleted()
    assert (found.error_code, found.low_watermark) == (ErrorCode.NONE, 3)


def test_low_watermark_is_that_of_all_live_replicas(stage: Stage) -> None:
    stage.set_alive(ONE)
    stage.fetch(ONE, 2)
    stage.send_deletion((0, 1))
    (found,) = stage.deleted()
    assert (found.error_code, found.low_watermark) == (ErrorCode.NONE, 1)
    stage.send_deletion((0, 2), timeout_ms=0)
    (found,) = stage.deleted()
    assert (found.error_code, found.low_watermark) == (ErrorCode.NONE, 2)


def test_follower_that_is_away_is_not_waited_for(stage: Stage) -> None:
    stage.set_alive()
    stage.send_deletion((0, 3))
    (found,) = stage.deleted()
    assert (found.error_code, found.low_watermark) == (ErrorCode.NONE, 3)


def test_follower_that_dies_is_waited_for_no_more(stage: Stage) -> None:
    stage.set_alive(ONE)
    stage.send_deletion((0, 3))
    stage.until_deletion_waits()
    stage.set_alive()
    (found,) = stage.deleted()
    assert (found.error_code, found.low_watermark) == (ErrorCode.NONE, 3)


def test_follower_that_has_not_fetched_is_waited_for(stage: Stage) -> None:
    stage.set_alive(ONE, TWO)
    stage.fetch(ONE, 3)
    stage.send_deletion((0, 3), timeout_ms=0)
    (found,) = stage.deleted()
    assert (found.error_code, found.low_watermark) == (ErrorCode.REQUEST_TIMED_OUT, -1)
    assert stage.partition(0).log.log_start_offset == 3, "it goes on all the same"


def test_partitions_that_are_done_are_so_beside_one_that_is_not(stage: Stage) -> None:
    stage.set_alive(ONE)
    stage.send_deletion((0, 3), (1, 0), (7, 0), timeout_ms=0)
    behind, never_fetched, unknown = stage.deleted()
    assert (behind.error_code, behind.low_watermark) == (ErrorCode.REQUEST_TIMED_OUT, 0)
    assert never_fetched.error_code == ErrorCode.REQUEST_TIMED_OUT
    assert unknown.error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    stage.send_deletion((1, 0), (0, 3))
    stage.until_deletion_waits()
    stage.fetch(ONE, 3)
    stage.set_alive()
    assert [one.error_code for one in stage.deleted()] == [ErrorCode.NONE] * 2


def test_leader_that_is_deposed_says_so(stage: Stage) -> None:
    stage.set_alive(ONE)
    stage.send_deletion((0, 3))
    stage.until_deletion_waits()
    partition = stage.partition(0)
    known = partition.leadership
    partition.make_follower(known._replace(leader=ONE, leader_epoch=EPOCH + 1), partition.log)
    (found,) = stage.deleted()
    assert (found.error_code, found.low_watermark) == (ErrorCode.NOT_LEADER_OR_FOLLOWER, -1)
