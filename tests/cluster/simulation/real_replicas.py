"""The replicas of a simulated broker, as in a real one: `ReplicaManager`, `LogManager` and logs.

Each order is obeyed by `ModelReplicas`, too: both must agree. Clients append to what the broker
leads, and every log must have exactly the records that were appended. A killed process leaves its
directory as it is, and the next one loads it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from plog._native.batch import read_header
from plog._native.partition_log import APPENDED, Appended
from plog._native.records import control_batch
from plog.cluster.control_requests import ControlRequest
from plog.cluster.partition import ACKS_ALL, Partition
from plog.cluster.replica_manager import ReplicaManager
from plog.cluster.store import SessionLost, StoreError
from plog.cluster.stray_logs import StrayLog, Topics, find_strays, set_aside
from plog.cluster.znodes import ConfigEntity
from plog.errors import KafkaError
from plog.protocol.messages.replication import (
    LeaderAndIsrRequest,
    LeaderAndIsrResponse,
    StopReplicaRequest,
    StopReplicaResponse,
)
from plog.settings.definitions import TopicSettings
from plog.storage.checkpoints import load_topic_id
from plog.storage.filesystem import Filesystem
from plog.storage.log import Log
from plog.storage.log_manager import LogManager
from plog.storage.producer_state import Marker
from plog.storage.segment_files import STRAY_DIRECTORY, parse_directory_name
from plog.types import TopicPartition
from tests.cluster.in_sync_sets import unasked_keeper
from tests.cluster.simulation.contents import Hosted
from tests.cluster.simulation.model_replicas import ModelReplicas, Role
from tests.cluster.simulation.zookeeper import Crashed
from tests.storage.log_managers import abandon
from tests.storage.storage_logs import batch, broker_settings

if TYPE_CHECKING:
    from tests.cluster.simulation.broker import Process

A = TypeVar("A", LeaderAndIsrRequest, StopReplicaRequest)
B = TypeVar("B", LeaderAndIsrResponse, StopReplicaResponse)

TOPIC_SETTINGS = TopicSettings()
FILES = Filesystem()
STORAGE_TASKS = 0.1
"""How often the log manager's tasks run, per tick; they may be late."""
APPENDS = 0.2
"""How often a client appends to one of a broker's replicas, per tick."""


class RealReplicas:
    """A process's replicas. Of use after `prepare` and `load`."""

    def __init__(self, process: Process, directory: Path) -> None:
        self._process = process
        self._broker = process.broker
        self._cluster = process.cluster
        self._invariants = process.cluster.invariants
        self._contents = process.cluster.contents
        self._random = process.scheduler.random
        self.directory = directory
        directory.mkdir(exist_ok=True)
        self._model = ModelReplicas(process)
        self.logs: LogManager | None = None
        self.manager: ReplicaManager | None = None
        self._is_loaded = False
        self._reads = 0
        """How often the settings were read for the present order."""

    # -- its life ----------------------------------------------------------------------------

    def prepare(self) -> None:
        """Make the empty log manager and replica manager."""
        self.logs = LogManager(
            broker_settings([self.directory], broker_id=self._broker.id),
            lambda topic: TOPIC_SETTINGS,
            cluster_id="simulated",
            clock=self._process.scheduler.clock,
        )
        self.manager = ReplicaManager(
            broker_id=self._broker.id,
            logs=self.logs,
            metadata=self._process.metadata,
            fence=self._process.fence,
            settings_of=self._read_settings,
            on_change=lambda at: None,
            log_dir_failed=lambda: self._report("a log directory fails"),
            in_sync_sets=unasked_keeper(self._broker.id, self._process.scheduler.clock),
            drain=lambda led: None,
        )

    def load(self, topics: Topics) -> None:
        """Set strays aside, and load the logs, as a broker that starts."""
        before = dict(self._broker.logs)
        self._model.load(topics)
        for at in before.keys() - self._broker.logs.keys():
            self._contents.set_aside(Hosted(self._broker.id, before[at], at))
        set_aside(FILES, self.find_strays(topics))
        assert self.logs is not None
        self._is_loaded = True
        self.logs.start(background=False)
        self.check()

    def find_strays(self, topics: Topics) -> list[StrayLog]:
        """Return the logs that topics do not have here."""
        return find_strays(FILES, [self.directory], topics=topics, broker_id=self._broker.id)

    def shut_down(self) -> None:
        """Close the logs as a broker that stops."""
        if self._is_loaded and self.logs is not None:
            self.logs.shutdown(self._process.fence.broker_epoch)
        self.logs = self.manager = None

    def close(self) -> None:
        """Leave everything as a killed process does."""
        if self._is_loaded and self.logs is not None:
            abandon(self.logs)
        self.logs = self.manager = None

    def on_tick(self) -> None:
        """Run the log manager's tasks; a client appends, even if this broker does not lead."""
        if not self._is_loaded or self.manager is None or self.logs is None:
            return
        if self._random.random() < STORAGE_TASKS:
            self.logs.scheduler.run_due()
        partitions = self.manager.partitions
        if partitions and self._random.random() < APPENDS:
            try:
                self.append(self._random.choice(partitions).topic_partition)
            except KafkaError:
                return  # it does not lead, or has not heard that it does

    def _report(self, violation: str) -> None:
        self._invariants.report(f"{self._process.owner}: {violation}")

    # -- orders ------------------------------------------------------------------------------

    @property
    def roles(self) -> dict[TopicPartition, Role]:
        """The roles of all replicas."""
        return self._model.roles

    def apply_leader_and_isr(self, request: LeaderAndIsrRequest) -> LeaderAndIsrResponse:
        """See `ReplicaManager.apply_leader_and_isr`."""
        obey = self._real.apply_leader_and_isr
        return self._obeyed(request, obey, self._model.apply_leader_and_isr)

    def apply_stop_replica(self, request: StopReplicaRequest) -> StopReplicaResponse:
        """See `ReplicaManager.apply_stop_replica`."""
        obey = self._real.apply_stop_replica
        return self._obeyed(request, obey, self._model.apply_stop_replica)

    @property
    def _real(self) -> ReplicaManager:
        if self.manager is None:
            raise SessionLost("the process is gone")
        return self.manager

    def _read_settings(self, topics: Sequence[str]) -> dict[str, TopicSettings]:
        with self._process.scheduler.undivided():  # the manager's lock is held
            self._process.store.get_many([ConfigEntity.topic(one).path for one in topics])
        self._reads += 1
        return dict.fromkeys(topics, TOPIC_SETTINGS)

    def _obeyed(self, order: A, obey: Callable[[A], B], model: Callable[[A], B]) -> B:
        self._reads = 0
        before = dict(self._broker.logs)
        try:
            response: B | None = obey(order)
        except (StoreError, Crashed):
            if self._reads:  # everything is done, and the last read has failed
                self._compare(order, None, model(order))
            raise
        self._compare(order, response, model(order))
        for at in before.keys() - self._broker.logs.keys():
            self._contents.delete(Hosted(self._broker.id, before[at], at))
        return response

    def _compare(self, order: ControlRequest, response: B | None, wanted: B) -> None:
        """The model agrees about an order, and it has changed no log."""
        if response is not None and response != wanted:
            self._report(f"answers {response}, not {wanted}")
        real = {
            one.topic_partition: Role(one.leadership.leader_epoch, one.is_leader)
            for one in self._real.partitions
        }
        if real != self.roles:
            self._report(f"has the roles {real}, not {self.roles}")
        self._check_logs()

    # -- clients -----------------------------------------------------------------------------

    def append(self, at: TopicPartition) -> None:
        """Append a record as a client does. Raises KafkaError."""
        partition = self._real.leader(at)
        value = b"%d at %d" % (self._random.getrandbits(32), self._process.scheduler.now_ms)
        self.append_batch(partition, batch(value=value))

    def append_batch(self, partition: Partition, records: bytearray, **options: object) -> None:
        """Append a batch of one record. Raises KafkaError."""
        now_ms = self._process.scheduler.clock.now_ms()
        appended = partition.append(records, acks=ACKS_ALL, now_ms=now_ms, **options)  # type: ignore[arg-type]
        if appended.status == APPENDED:
            epoch = read_header(records).partition_leader_epoch
            if epoch != partition.leadership.leader_epoch:
                self._report(f"{partition}: a batch has leader epoch {epoch}")
            self._note(partition, appended, bytes(records))

    def append_marker(self, partition: Partition, producer: tuple[int, int], one: Marker) -> None:
        """End a producer's transaction. Raises KafkaError."""
        now_ms = self._process.scheduler.clock.now_ms()
        appended = partition.append_marker(*producer, one, now_ms=now_ms)
        written = control_batch(
            abort=one.abort,
            offset=appended.base_offset,
            timestamp=now_ms,
            producer_id=producer[0],
            producer_epoch=producer[1],
            coordinator_epoch=one.coordinator_epoch,
        )
        self._note(partition, appended, written)

    def _note(self, partition: Partition, appended: Appended, written: bytes) -> None:
        log = partition.log
        if log.topic_id != partition.topic_id:
            self._report(f"{partition} is served from a log of topic id {log.topic_id}")
        hosted = self._hosted(log)
        if appended.base_offset != self._contents.count(hosted):
            self._report(f"{hosted} appends at {appended.base_offset}")
        self._contents.append(hosted, written)
        self._invariants.check_append(self._broker, partition)

    # -- logs --------------------------------------------------------------------------------

    def _hosted(self, log: Log) -> Hosted:
        return Hosted(self._broker.id, log.topic_id, log.topic_partition)

    def _check_logs(self) -> None:
        """There are the logs that there should be, each with as many records as it should have."""
        assert self.logs is not None
        logs = self.logs.logs()
        found = {log.topic_partition: log.topic_id for log in logs}
        if found != self._broker.logs:
            self._report(f"has logs of {found}, not {self._broker.logs}")
        for log in logs:
            wanted = self._contents.count(self._hosted(log))
            if log.native.log_end_offset != wanted:
                self._report(f"{log.topic_partition} ends at {log.native.log_end_offset}")

    def check(self) -> None:
        """Every log has the records that were appended, and so have those that were set aside."""
        assert self.logs is not None
        self._check_logs()
        for log in self.logs.logs():
            if (wrong := self._contents.differs(self._hosted(log), log.directory)) is not None:
                self._report(wrong)
        aside = {self._aside(path): path for path in self.directory.glob("*" + STRAY_DIRECTORY)}
        wanted = {one for one in self._contents.aside if one.broker_id == self._broker.id}
        if aside.keys() != wanted:
            self._report(f"has set {aside} aside, not {wanted}")
        for one, path in aside.items():
            if (wrong := self._contents.differs(one, path)) is not None:
                self._report(wrong)

    def _aside(self, path: Path) -> Hosted:
        parsed = parse_directory_name(path.name)
        assert parsed is not None
        return Hosted(self._broker.id, load_topic_id(FILES, path), parsed.topic_partition)
