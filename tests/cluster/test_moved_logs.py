"""Orders that a partition gets in the last step of its log's move, when the old log is locked."""

from __future__ import annotations

import threading
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from plog.errors import NotLeaderOrFollower
from plog.runtime.clock import ManualClock
from plog.settings.definitions import BrokerSettings, TopicSettings
from plog.storage.filesystem import Filesystem
from plog.storage.log import Log
from plog.storage.log_manager import LogManager
from plog.storage.log_moves import LogMoves
from tests.storage.log_managers import abandon
from tests.storage.storage_logs import NOW_MS, batch, broker_settings

from .test_replica_manager import A0, ID, ME, NONE, OTHER_ID, PEER, Broker


class SlowFilesystem(Filesystem):
    """Calls back before a copy takes its log's place."""

    before: Callable[[], object] | None = None

    def rename(self, source: Path, target: Path) -> None:
        if source.name.endswith("-future") and self.before is not None:
            self.before()
        super().rename(source, target)


class MovingBroker(Broker):
    """A broker that leads A0, in the first of two log directories."""

    def __init__(self, dirs: list[Path]) -> None:
        self.fs = SlowFilesystem()
        self.manager = LogManager(
            broker_settings(dirs, broker_id=ME),
            lambda topic: TopicSettings(BrokerSettings(), {}),
            cluster_id="cluster",
            clock=ManualClock(NOW_MS),
            fs=self.fs,
        )
        self.manager.start(background=False)
        super().__init__(self.manager)
        self.moves = LogMoves(self.manager, self.fs)
        self.moves.on_log_moved(self.replicas.on_log_moved)
        assert self.lead() == NONE

    @property
    def log(self) -> Log:
        partition = self.replicas.get(A0)
        assert partition is not None
        assert partition.log is self.manager.get(A0)
        return partition.log

    def move_while(self, order: Callable[[], object], method: str, target: Path) -> None:
        """Move A0; call `order` when its old log is locked, and go on once it calls `method`."""
        old = self.log
        called = threading.Event()
        real = getattr(old, method)

        def call(*args: object, **options: object) -> None:
            called.set()
            real(*args, **options)

        setattr(old, method, call)
        ordering = threading.Thread(target=order)

        def before() -> None:
            ordering.start()
            assert called.wait(60)

        self.fs.before = before
        self.moves.move(A0, target)
        ordering.join()
        moved = self.manager.get(A0)
        assert moved is not None
        assert moved.log_dir == target


@pytest.fixture
def target(tmp_path: Path) -> Path:
    return tmp_path / "two"


@pytest.fixture
def broker(tmp_path: Path, target: Path) -> Iterator[MovingBroker]:
    made = MovingBroker([tmp_path / "one", target])
    yield made
    abandon(made.manager)


def append(log: Log) -> int:
    return log.append_as_leader(batch(1), now_ms=NOW_MS).leader_epoch


def test_settings_that_change_reach_the_moved_log(broker: MovingBroker, target: Path) -> None:
    changed = TopicSettings(BrokerSettings(), {"retention.ms": "12345", "min.insync.replicas": "2"})
    broker.move_while(
        lambda: broker.replicas.update_topic_settings("a", changed), "update_settings", target
    )
    assert broker.log.settings.retention_ms == 12345
    append(broker.log)
    assert broker.log.high_watermark == 0  # one replica is in sync, and two are needed


def test_new_leader_epoch_reaches_the_moved_log(broker: MovingBroker, target: Path) -> None:
    codes: list[int] = []
    broker.move_while(lambda: codes.append(broker.lead(epoch=3)), "become_leader", target)
    assert codes == [NONE]
    assert append(broker.log) == 3
    assert broker.log.epoch_at(0) == 3


def test_order_to_follow_reaches_the_moved_log(broker: MovingBroker, target: Path) -> None:
    codes: list[int] = []
    broker.move_while(
        lambda: codes.append(broker.lead(leader=PEER, epoch=3)), "become_follower", target
    )
    assert codes == [NONE]
    with pytest.raises(NotLeaderOrFollower):
        append(broker.log)
    assert broker.lead(epoch=4) == NONE
    assert append(broker.log) == 4


def test_replica_that_is_stopped_as_its_log_moves_can_lead_again(
    broker: MovingBroker, target: Path
) -> None:
    codes: list[int] = []
    broker.move_while(lambda: codes.append(broker.stop(delete=False)), "become_follower", target)
    assert codes == [NONE]
    with pytest.raises(NotLeaderOrFollower):
        _ = broker.log
    assert broker.lead(epoch=3, new=False) == NONE
    assert append(broker.log) == 3


@pytest.mark.parametrize("topic_id", [ID, OTHER_ID], ids=["replica", "topic"])
def test_log_that_has_moved_is_not_that_of_the_next_replica(
    broker: MovingBroker, target: Path, topic_id: uuid.UUID
) -> None:
    append(broker.log)

    def replace(*_: object) -> None:
        assert broker.stop() == NONE
        assert broker.lead(topic_id=topic_id) == NONE

    moves = LogMoves(broker.manager, broker.fs)
    moves.on_log_moved(replace)
    moves.on_log_moved(broker.replicas.on_log_moved)
    moves.move(A0, target)
    assert broker.log.topic_id == topic_id
    assert broker.log.log_end_offset == 0
    append(broker.log)
