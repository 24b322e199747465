"""Brokers of a simulated cluster: real controllers, members, metadata and fences, model replicas.

A broker's directory outlives its process: which logs it has, by topic id. Everything that a
process does happens in events of the scheduler, one after the other.
"""

from __future__ import annotations

import uuid
from collections import deque
from collections.abc import Callable
from types import SimpleNamespace
from typing import NamedTuple

from plog.cluster import znodes
from plog.cluster.broker_registration import (
    BrokerRegistration,
    create_persistent_paths,
    ensure_cluster_id,
)
from plog.cluster.control_fence import ControlFence
from plog.cluster.control_requests import ControlRequest, ControlResponse
from plog.cluster.controller_context import LiveBroker
from plog.cluster.controller_loop import ControllerLoop
from plog.cluster.member import Member
from plog.cluster.metadata_cache import MetadataCache
from plog.cluster.store import NoNode, Unreachable
from plog.cluster.stray_logs import Topics
from plog.cluster.topic_admin import TopicAdmin
from plog.cluster.znodes import BrokerNode, Endpoint, PartitionStateNode, TopicNode
from plog.errors import ErrorCode, KafkaError
from plog.protocol.messages.replication import (
    LeaderAndIsrPartitionError,
    LeaderAndIsrRequest,
    LeaderAndIsrResponse,
    LeaderAndIsrTopicError,
    StopReplicaPartitionError,
    StopReplicaRequest,
    StopReplicaResponse,
    UpdateMetadataRequest,
)
from plog.settings.definitions import BrokerSettings
from plog.settings.dynamic import DynamicSettings
from plog.types import TopicPartition
from tests.cluster.simulation.scheduler import Scheduler
from tests.cluster.simulation.zookeeper import SESSION_MS, Crashed, SimStore, SimZooKeeper

SETTINGS = SimpleNamespace(
    auto_leader_rebalance_enable=True,
    leader_imbalance_check_interval_seconds=30,
    leader_imbalance_per_broker_percentage=10,
    unclean_leader_election_enable=False,
    delete_topic_enable=True,
)
TICK_MS = 500


class Violation(AssertionError):
    """Something happened that must not."""


class Led(NamedTuple):
    """What a leader epoch is led for."""

    topic_id: uuid.UUID
    partition: TopicPartition
    leader_epoch: int


class SimCluster:
    """ZooKeeper, brokers, and what must hold of them at every step.

    Args:
        mutate: changes a broker's objects, to see that a fault is found.
    """

    def __init__(
        self,
        seed: int,
        count: int = 3,
        mutate: Callable[[Process], None] | None = None,
    ) -> None:
        self.scheduler = Scheduler(seed)
        self.random = self.scheduler.random
        self.zookeeper = SimZooKeeper(self.scheduler)
        self.mutate = mutate or (lambda process: None)
        self.leaders: dict[Led, int] = {}
        self.cut: set[frozenset[int]] = set()
        self.admin = SimStore(self.zookeeper, "admin", lambda: True)
        create_persistent_paths(self.admin)
        ensure_cluster_id(self.admin)
        self.brokers = [SimBroker(self, broker_id) for broker_id in range(count)]
        settings = DynamicSettings(BrokerSettings({}))
        self.topics = TopicAdmin(self.admin, settings, self.random)
        self.zookeeper.on_commit.append(self._check_states)
        self._epochs: dict[str, tuple[int, int]] = {}
        for broker in self.brokers:
            broker.start()

    @property
    def controller_epoch(self) -> int:
        """The written one; 0 before the first election."""
        try:
            return znodes.decode_controller_epoch(
                self.zookeeper.tree.get(znodes.CONTROLLER_EPOCH)[0]
            )
        except NoNode:
            return 0

    def note_leader(self, led: Led, broker_id: int) -> None:
        """One broker leads in one leader epoch, whatever happens."""
        if self.leaders.setdefault(led, broker_id) != broker_id:
            raise Violation(f"{led} is led by {self.leaders[led]} and by {broker_id}")

    def _check_states(self, _: object) -> None:
        """Leader epochs and controller epochs of a partition's state only grow."""
        tree = self.zookeeper.tree
        for path, node in tree.nodes.items():
            if not path.endswith("/state"):
                continue
            state = PartitionStateNode.decode(node.data)
            key = f"{path} of {node.czxid}"
            epochs = state.leader_epoch, state.controller_epoch
            before = self._epochs.get(key, epochs)
            if epochs[0] < before[0] or epochs[1] < before[1]:
                raise Violation(f"{path} went from epochs {before} back to {epochs}")
            self._epochs[key] = epochs

    # -- at the end --------------------------------------------------------------------------

    def heal(self) -> None:
        """Let everything run, and give it time."""
        self.scheduler.note("healed")
        self.cut.clear()
        self.zookeeper.is_up = True
        for broker in self.brokers:
            broker.heal()
        self.scheduler.run(20 * SESSION_MS)

    def check_converged(self) -> None:
        """Check that every broker knows the written state, and obeys it. Raises Violation."""
        tree = self.zookeeper.tree
        live = {int(name) for name in tree.children(znodes.BROKER_IDS)}
        if live != {broker.id for broker in self.brokers}:
            raise Violation(f"registered are {sorted(live)}")
        active = [broker.id for broker in self.brokers if broker.is_controller]
        if len(active) != 1:
            raise Violation(f"controllers are {active}")
        if tree.children(znodes.DELETE_TOPICS):
            raise Violation(f"not deleted: {tree.children(znodes.DELETE_TOPICS)}")
        wanted = self._written()
        for broker in self.brokers:
            broker.check(wanted, live, active[0])

    def _written(
        self,
    ) -> dict[TopicPartition, tuple[uuid.UUID, PartitionStateNode, tuple[int, ...]]]:
        tree = self.zookeeper.tree
        found = {}
        for name in tree.children(znodes.TOPICS):
            node = TopicNode.decode(tree.get(znodes.topic_path(name))[0])
            for index, replicas in node.partitions.items():
                at = TopicPartition(name, index)
                try:
                    data, _ = tree.get(znodes.partition_state_path(at))
                except NoNode:
                    raise Violation(f"{at} has no state") from None
                assert node.topic_id is not None
                found[at] = node.topic_id, PartitionStateNode.decode(data), replicas
        return found


class SimBroker:
    """A broker: its directory, and the process that runs, if one does."""

    def __init__(self, cluster: SimCluster, broker_id: int) -> None:
        self.cluster = cluster
        self.id = broker_id
        self.logs: dict[TopicPartition, uuid.UUID] = {}
        self.process: Process | None = None
        self.last_session = 0
        """Remembered in the directory, as `session_file` does."""
        self._starts = 0

    @property
    def is_controller(self) -> bool:
        """Whether its process believes that it is the controller."""
        return self.process is not None and self.process.controller.is_active.is_set()

    def start(self) -> None:
        """Start a process; it ends the session that the one before has left, as a broker does."""
        if self.process is None:
            self._starts += 1
            self.process = Process(self, self._starts)
            self.process.begin()

    def kill(self) -> None:
        """Kill the process."""
        if self.process is not None:
            self.cluster.scheduler.note(f"broker {self.id} is killed")
            self.process.die()
            self.process = None

    def heal(self) -> None:
        """Have a process run that goes on."""
        if self.process is not None:
            self.process.heal()
        else:
            self.start()

    def check(self, wanted: dict, live: set[int], controller: int) -> None:
        """Check that the process knows the written state, and obeys it. Raises Violation."""
        process = self.process
        assert process is not None
        snapshot = process.metadata.snapshot
        if set(snapshot.brokers) != live:
            raise Violation(
                f"broker {self.id} knows {sorted(snapshot.brokers)}, not {sorted(live)}"
            )
        if snapshot.controller_id != controller:
            raise Violation(f"broker {self.id} knows controller {snapshot.controller_id}")
        known = {
            TopicPartition(topic.name, index): (topic.topic_id, one.leader_id, one.leader_epoch)
            for topic in snapshot.topics.values()
            for index, one in topic.partitions.items()
        }
        written = {
            at: (topic_id, state.leader, state.leader_epoch)
            for at, (topic_id, state, _) in wanted.items()
        }
        if known != written:
            raise Violation(f"broker {self.id} knows {known}, written is {written}")
        mine = {
            at: (topic_id, state)
            for at, (topic_id, state, replicas) in wanted.items()
            if self.id in replicas
        }
        if self.logs != {at: topic_id for at, (topic_id, _) in mine.items()}:
            raise Violation(f"broker {self.id} has logs of {self.logs}, should have {mine}")
        for at, (_, state) in mine.items():
            if state.leader < 0:
                raise Violation(f"{at} has no leader")
            role = process.roles.get(at)
            if role != (state.leader_epoch, state.leader == self.id):
                raise Violation(f"broker {self.id} is at {role} of {at}, written is {state}")


class Process:
    """One life of a broker."""

    def __init__(self, broker: SimBroker, number: int) -> None:
        self.broker = broker
        self.cluster = broker.cluster
        self.scheduler = broker.cluster.scheduler
        self.owner = f"broker {broker.id}.{number}"
        self.is_alive = True
        self.is_stopped = False
        self.roles: dict[TopicPartition, tuple[int, bool]] = {}
        self._tasks: deque[tuple[str, Callable[[], None]]] = deque()
        self._keys: set[str] = set()
        self._is_scheduled = False
        self.store = SimStore(self.cluster.zookeeper, self.owner, self.is_running)
        self.fence = ControlFence(self.cluster.controller_epoch)
        self.metadata = MetadataCache(self.fence)
        self.controller = ControllerLoop(
            self.store,
            broker_id=broker.id,
            channels=lambda to: SimChannel(self, to),
            settings=lambda: SETTINGS,
            clock=self.scheduler.clock,
            inter_broker_listener="PLAINTEXT",
            enqueue=self.enqueue,
            stands=False,
        )
        self.member: Member | None = None

    def is_running(self) -> bool:
        """Return whether it lives and is not suspended."""
        return self.is_alive and not self.is_stopped

    # -- its life ----------------------------------------------------------------------------

    def begin(self) -> None:
        """Read the store, register, and stand for election; again, if the store does not answer."""
        self.scheduler.note(f"{self.owner} starts")
        self.enqueue("", self._start)

    def _start(self) -> None:
        self.cluster.zookeeper.expire(self.broker.last_session)
        try:
            topics = Topics(self.store)
        except (Unreachable, NoNode):  # no server, or a topic that goes as it is read
            start = f"start of {self.owner}"
            self.scheduler.after(1000, start, lambda: self.enqueue("", self._start))
            return
        for at, topic_id in list(self.broker.logs.items()):
            if topics.why_stray(at, topic_id, self.broker.id) is not None:
                del self.broker.logs[at]
        self.cluster.mutate(self)
        self.member = Member(
            self.store,
            registration=BrokerRegistration(self.store, self.broker.id),
            node=self._node,
            fence=self.fence,
            controller=self,  # type: ignore[arg-type]
            read_again=lambda: None,
            remember=self._remember,
            clock=self.scheduler.clock,
            timeout_ms=SESSION_MS,
        )
        self.member.note_connected()
        self.enqueue("", self.controller.elect)
        self._tick()

    def _remember(self) -> None:
        self.broker.last_session = self.store.session_id

    def _node(self) -> BrokerNode:
        port = 9000 + self.broker.id
        return BrokerNode((Endpoint("PLAINTEXT", "h", port),), self.scheduler.clock.now_ms())

    def stand(self) -> None:
        """For the member: take part in elections."""
        self.controller.stand()

    def resign(self) -> None:
        """For the member: take part in none."""
        self.controller.withdraw()

    def die(self) -> None:
        """Stop existing."""
        self.is_alive = False
        self.controller.resign()
        self.store.die()

    def suspend(self, for_ms: int) -> None:
        """SIGSTOP, and later SIGCONT."""
        self.scheduler.note(f"{self.owner} is suspended for {for_ms} ms")
        self.is_stopped = True
        self.store.disconnect(for_ms)
        self.scheduler.after(for_ms, f"signals of {self.owner}", self.resume)

    def resume(self) -> None:
        """SIGCONT."""
        self.is_stopped = False
        self._schedule()

    def heal(self) -> None:
        """Let it go on, without further faults."""
        self.store.faults = 0.0
        self.store.crash_at = self.store.pause_at = -1
        self.resume()

    def _tick(self) -> None:
        """What happens by time: the member's, and the controller's timers."""
        if not self.is_alive:
            return
        if self.is_running():
            if self.member is not None:
                self.enqueue("member", self.member.run_due)
            due_s = self.controller.seconds_to_timer()
            if due_s is not None and due_s <= 0:
                self.enqueue("timer", self.controller.on_timer)
        self.scheduler.after(TICK_MS, f"ticks of {self.owner}", self._tick)

    # -- its tasks ---------------------------------------------------------------------------

    def enqueue(self, key: str, task: Callable[[], None]) -> None:
        """Have a task run; one with the same key that still waits stands for this one, too."""
        if key and key in self._keys:
            return
        self._keys.add(key)
        self._tasks.append((key, task))
        self._schedule()

    def _schedule(self) -> None:
        if self._tasks and not self._is_scheduled:
            self._is_scheduled = True
            self.scheduler.soon(self.owner, self._run_next)

    def _run_next(self) -> None:
        self._is_scheduled = False
        if not self.is_running() or not self._tasks:
            return
        key, task = self._tasks.popleft()
        self._keys.discard(key)
        try:
            self.controller.run(task)
        except Crashed:
            self.broker.kill()
        self._schedule()

    # -- orders ------------------------------------------------------------------------------

    def obey(self, request: ControlRequest) -> ControlResponse:
        """Do what a controller orders, as `ReplicaManager` and `MetadataCache` do."""
        match request:
            case UpdateMetadataRequest():
                return self.metadata.apply(request)
            case LeaderAndIsrRequest():
                return self._lead_and_follow(request)
            case StopReplicaRequest():
                return self._stop(request)

    def _lead_and_follow(self, request: LeaderAndIsrRequest) -> LeaderAndIsrResponse:
        try:
            self.fence.admit(request.controller_epoch, request.broker_epoch)
        except KafkaError as refusal:
            return LeaderAndIsrResponse(error_code=refusal.code, topics=[])
        topics = []
        for topic in request.topic_states:
            errors = []
            for one in topic.partition_states:
                at = TopicPartition(topic.topic_name, one.partition_index)
                code = self._take_up(at, topic.topic_id, one.leader_epoch, one.leader)
                errors.append(
                    LeaderAndIsrPartitionError(partition_index=at.partition, error_code=code)
                )
            topics.append(LeaderAndIsrTopicError(topic_id=topic.topic_id, partition_errors=errors))
        return LeaderAndIsrResponse(error_code=ErrorCode.NONE, topics=topics)

    def _take_up(
        self, at: TopicPartition, topic_id: uuid.UUID, leader_epoch: int, leader: int
    ) -> ErrorCode:
        if self.broker.logs.setdefault(at, topic_id) != topic_id:
            return ErrorCode.INCONSISTENT_TOPIC_ID
        known = self.roles.get(at)
        if known is not None and leader_epoch <= known[0]:
            return ErrorCode.STALE_CONTROLLER_EPOCH
        leads = leader == self.broker.id
        if leads:
            self.cluster.note_leader(Led(topic_id, at, leader_epoch), self.broker.id)
        self.roles[at] = leader_epoch, leads
        return ErrorCode.NONE

    def _stop(self, request: StopReplicaRequest) -> StopReplicaResponse:
        try:
            self.fence.admit(request.controller_epoch, request.broker_epoch)
        except KafkaError as refusal:
            return StopReplicaResponse(error_code=refusal.code, partition_errors=[])
        errors = []
        for topic in request.topic_states:
            for one in topic.partition_states:
                at = TopicPartition(topic.topic_name, one.partition_index)
                code = ErrorCode.NONE
                known = self.roles.get(at)
                if known is not None and 0 <= one.leader_epoch < known[0]:
                    code = ErrorCode.FENCED_LEADER_EPOCH
                else:
                    self.roles.pop(at, None)
                    if one.delete_partition:
                        self.broker.logs.pop(at, None)
                errors.append(
                    StopReplicaPartitionError(
                        topic_name=at.topic, partition_index=at.partition, error_code=code
                    )
                )
        return StopReplicaResponse(error_code=ErrorCode.NONE, partition_errors=errors)


class SimChannel:
    """A controller's way to a broker: in order, and again until there is an answer."""

    def __init__(self, process: Process, to: LiveBroker) -> None:
        self._process = process
        self._cluster = process.cluster
        self._scheduler = process.scheduler
        self._to = to.id
        self._queue: deque[tuple[ControlRequest, Callable[[ControlResponse], None]]] = deque()
        self._is_open = True
        self._is_sending = False

    def send(self, request: ControlRequest, on_response: Callable[[ControlResponse], None]) -> None:
        """See `BrokerChannel.send`."""
        self._queue.append((request, on_response))
        self._send_next()

    def close(self) -> None:
        """See `BrokerChannel.close`; requests on their way still arrive."""
        self._is_open = False

    def _send_next(self) -> None:
        if self._is_open and self._queue and not self._is_sending:
            self._is_sending = True
            self._attempt(self._queue[0][0])

    def _attempt(self, request: ControlRequest) -> None:
        """Send a request on its way; and again later, unless there is a response by then."""
        wire = f"wire {self._process.owner} {self._to}"
        self._scheduler.soon(wire, lambda: self._arrive(request))
        self._scheduler.after(
            self._cluster.random.randint(200, 3000), wire, lambda: self._retry(request)
        )

    def _retry(self, request: ControlRequest) -> None:
        if self._waits_for(request):
            self._attempt(request)

    def _waits_for(self, request: ControlRequest) -> bool:
        is_first = bool(self._queue) and self._queue[0][0] is request
        return is_first and self._is_open and self._process.is_alive

    def _arrive(self, request: ControlRequest) -> None:
        target = self._cluster.brokers[self._to].process
        pair = frozenset((self._process.broker.id, self._to))
        if target is not None and target.is_running() and pair not in self._cluster.cut:
            target.enqueue("", lambda: self._obey(target, request))

    def _obey(self, target: Process, request: ControlRequest) -> None:
        response = target.obey(request)
        if self._cluster.random.random() < 0.95:  # else it is lost
            wire = f"wire {self._to} {self._process.owner}"
            self._scheduler.soon(wire, lambda: self._answered(request, response))

    def _answered(self, request: ControlRequest, response: ControlResponse) -> None:
        if self._waits_for(request):
            _, on_response = self._queue.popleft()
            self._is_sending = False
            on_response(response)
            self._send_next()
