"""Brokers of a simulated cluster: real controllers, members, metadata and gates, model replicas.

A broker's directory outlives its process: which logs it has, by topic id. Everything that a
process does happens in events of the scheduler. Each of its threads has one at a time.
"""

from __future__ import annotations

import uuid
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future
from types import SimpleNamespace
from typing import TYPE_CHECKING, NamedTuple, cast

from plog.cluster.broker_registration import BrokerRegistration, read_controller_epoch
from plog.cluster.channels import BrokerChannel, InProcessChannel
from plog.cluster.control_fence import ControlFence
from plog.cluster.control_requests import ControlRequest, ControlResponse
from plog.cluster.controller import Controller
from plog.cluster.controller_context import LiveBroker
from plog.cluster.controller_events import IsrsProposed, ProposedIsr
from plog.cluster.controller_loop import ControllerLoop
from plog.cluster.controller_store import ControllerMoved
from plog.cluster.member import Member
from plog.cluster.metadata_cache import MetadataCache
from plog.cluster.order_gate import NoResponse, OrderGate, SentAgain
from plog.cluster.replica_manager import ReplicaManager
from plog.cluster.store import StoreError
from plog.cluster.stray_logs import Topics
from plog.cluster.znodes import BrokerNode, Endpoint
from plog.errors import ErrorCode, KafkaError
from plog.protocol.messages.replication import (
    LeaderAndIsrPartitionError,
    LeaderAndIsrPartitionState,
    LeaderAndIsrRequest,
    LeaderAndIsrResponse,
    LeaderAndIsrTopicError,
    StopReplicaPartitionError,
    StopReplicaRequest,
    StopReplicaResponse,
    UpdateMetadataRequest,
    UpdateMetadataResponse,
)
from plog.types import NO_EPOCH, TopicPartition
from tests.cluster.simulation.network import SimChannel
from tests.cluster.simulation.zookeeper import SESSION_MS, Crashed, SimStore

if TYPE_CHECKING:
    from tests.cluster.simulation.cluster import SimCluster

SETTINGS = SimpleNamespace(
    auto_leader_rebalance_enable=True,
    leader_imbalance_check_interval_seconds=30,
    leader_imbalance_per_broker_percentage=10,
    unclean_leader_election_enable=False,
    delete_topic_enable=True,
)
TICK_MS = 1_000
START_AGAIN_MS = 1000
PROPOSES = 0.2
"""How often a leader asks for larger in-sync sets, per tick."""


class Role(NamedTuple):
    """What a replica is in a leader epoch."""

    leader_epoch: int
    leads: bool


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


class Thread:
    """Tasks of a process, one at a time.

    Args:
        run: runs a task.
    """

    def __init__(
        self, process: Process, name: str, run: Callable[[Callable[[], None]], None]
    ) -> None:
        self._process = process
        self._owner = f"{name} of {process.owner}"
        self._run = run
        self._tasks: deque[tuple[str, Callable[[], None]]] = deque()
        self._keys: set[str] = set()
        self._is_scheduled = False

    def enqueue(self, key: str, task: Callable[[], None]) -> None:
        """Have a task run; one with the same key that still waits stands for this one, too."""
        if key and key in self._keys:
            return
        self._keys.add(key)
        self._tasks.append((key, task))
        self.go_on()

    def go_on(self) -> None:
        """Have the next task run, if there is one."""
        if self._tasks and not self._is_scheduled:
            self._is_scheduled = True
            self._process.scheduler.soon(self._owner, self._run_next)

    def _run_next(self) -> None:
        self._is_scheduled = False
        if not self._process.is_running():
            return
        key, task = self._tasks.popleft()
        self._keys.discard(key)
        try:
            self._run(lambda: self._process.guard(task))
        except Crashed:
            self._process.broker.kill()
        self.go_on()


class Process:
    """One life of a broker."""

    def __init__(self, broker: SimBroker, number: int) -> None:
        self.broker = broker
        self.cluster = broker.cluster
        self.scheduler = broker.cluster.scheduler
        self.owner = f"broker {broker.id}.{number}"
        self.is_alive = True
        self.is_stopped = False
        self.is_listening = False
        self._connections = 0
        self.store = SimStore(
            self.cluster.zookeeper, self.owner, self.is_running, lambda for_ms: self.suspend(for_ms)
        )
        self.controller = ControllerLoop(
            self.store,
            broker_id=broker.id,
            channels=self._channel,
            settings=lambda: SETTINGS,
            clock=self.scheduler.clock,
            inter_broker_listener="PLAINTEXT",
            enqueue=self.enqueue,
            stands=False,
        )
        self._main = Thread(self, "main", self._start_again)
        self._orders = Thread(self, "orders", lambda task: task())
        self._members = Thread(self, "member", lambda task: task())
        self._controller = Thread(self, "controller", self.controller.run)
        self.registration = BrokerRegistration(self.store, broker.id)
        self.fence = ControlFence()
        self.metadata = MetadataCache(self.fence)
        self.gate = OrderGate(self.fence, self.metadata, self.registration)
        self.replicas = ModelReplicas(self)

    def is_running(self) -> bool:
        """Return whether it lives and is not suspended."""
        return self.is_alive and not self.is_stopped

    def reaches(self, other: Process) -> bool:
        """Return whether the network carries what it sends to another process."""
        return frozenset((self.broker.id, other.broker.id)) not in self.cluster.cut

    def guard(self, task: Callable[[], None]) -> None:
        """Run a task. Exceptions that are no outcome of an operation are faults."""
        try:
            task()
        except (StoreError, ControllerMoved):
            raise
        except Exception as error:
            self.cluster.invariants.report(f"{self.owner}: {error!r}")
            raise

    # -- its life ----------------------------------------------------------------------------

    def begin(self) -> None:
        """Read the store, register, and stand for election; again, if the store does not answer."""
        self.scheduler.note(f"{self.owner} starts")
        self._main.enqueue("", self._start)

    def _start_again(self, task: Callable[[], None]) -> None:
        """Run the start. A broker that cannot start ends, and is started again."""
        try:
            task()
        except StoreError:
            self.scheduler.after(START_AGAIN_MS, self.owner, lambda: self._main.enqueue("", task))

    def _start(self) -> None:
        self.cluster.zookeeper.expire(self.broker.last_session)
        self.fence = ControlFence(read_controller_epoch(self.store))
        self.metadata = MetadataCache(self.fence)
        self.gate = OrderGate(self.fence, self.metadata, self.registration)
        self.cluster.mutate(self)
        topics = Topics(self.store)
        for at, topic_id in list(self.broker.logs.items()):
            if topics.why_stray(at, topic_id, self.broker.id) is not None:
                self.cluster.invariants.check_stray(self.broker, at, topic_id)
                del self.broker.logs[at]
        self.is_listening = True
        member = Member(
            self.store,
            registration=self.registration,
            node=self._node,
            fence=self.fence,
            controller=cast("Controller", self),
            read_again=lambda: None,
            remember=self._remember,
            clock=self.scheduler.clock,
            timeout_ms=lambda: SESSION_MS,
        )
        member.note_connected()
        self.enqueue("", self.controller.elect)
        self._tick(member)

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
        for thread in (self._main, self._orders, self._members, self._controller):
            thread.go_on()

    def heal(self) -> None:
        """Let it go on, without further faults."""
        self.store.faults = 0.0
        self.store.lag(0)
        self.store.crash_at = self.store.pause_at = self.store.lose_at = -1
        self.resume()

    def _tick(self, member: Member) -> None:
        """What happens by time: the member's, and the controller's timers."""
        if not self.is_alive:
            return
        if self.is_running():
            self._members.enqueue("due", member.run_due)
            due_s = self.controller.seconds_to_timer()
            if due_s is not None and due_s <= 0:
                self.enqueue("timer", self.controller.on_timer)
            if self.scheduler.random.random() < PROPOSES:
                self._propose_isrs()
        self.scheduler.after(TICK_MS, f"ticks of {self.owner}", lambda: self._tick(member))

    # -- the controller ----------------------------------------------------------------------

    def enqueue(self, key: str, task: Callable[[], None]) -> None:
        """Have the controller's thread run a task."""
        self._controller.enqueue(key, task)

    def _channel(self, to: LiveBroker) -> BrokerChannel:
        if to.id == self.broker.id:
            return InProcessChannel(cast("ReplicaManager", self.replicas), self.metadata)
        return SimChannel(self, to)

    def _propose_isrs(self) -> None:
        """As the leader: ask for the in-sync sets that there are once followers have caught up."""
        snapshot, isrs = self.metadata.snapshot, {}
        for at, role in self.replicas.roles.items():
            known = snapshot.partition(at)
            if role.leads and known is not None and known.leader_epoch == role.leader_epoch:
                isr = tuple(one for one in known.replicas if one in snapshot.brokers)
                unknown = (NO_EPOCH,) * len(isr)
                if isr != known.isr:
                    isrs[at] = ProposedIsr(isr, unknown, role.leader_epoch, known.partition_epoch)
        if not isrs or snapshot.live_controller_id < 0:
            return
        controller = self.cluster.brokers[snapshot.controller_id].process
        if controller is not None and self.reaches(controller):
            ask, broker_epoch = controller.controller.ask, self.fence.broker_epoch

            def event(token: int) -> IsrsProposed:
                return IsrsProposed(self.broker.id, broker_epoch, isrs, token)

            controller.enqueue("", lambda: ask(event, Future()))

    # -- orders ------------------------------------------------------------------------------

    def accept(self) -> int:
        """Accept a connection; return its number."""
        self._connections += 1
        return self._connections

    def arrive(
        self,
        order: ControlRequest,
        connection: int,
        respond: Callable[[ControlResponse | None], None],
    ) -> None:
        """Take an order from the network, as `handlers.replication` does; None: no response."""
        try:
            self.gate.admit(order)
        except KafkaError as refusal:
            respond(refused(order, refusal.code))
        else:
            self._orders.enqueue("", lambda: self._obey_in_turn(order, connection, respond))

    def _obey_in_turn(
        self,
        order: ControlRequest,
        connection: int,
        respond: Callable[[ControlResponse | None], None],
    ) -> None:
        is_known = self.cluster.invariants.is_known(order, self.broker.id)
        try:
            self.gate.check_in_turn(order, connection)
        except SentAgain:
            respond(None)
        except NoResponse as reason:
            if is_known:
                self.cluster.invariants.check_unknown(order, self.broker.id, reason)
            respond(None)
        except StoreError:
            respond(None)
        else:
            broker_epoch = self.fence.broker_epoch
            response = self._obey(order)
            if response.error_code == ErrorCode.NONE:
                self.cluster.invariants.check_obeyed(order, self.broker, broker_epoch)
            respond(response)

    def _obey(self, order: ControlRequest) -> ControlResponse:
        match order:
            case UpdateMetadataRequest():
                return self.metadata.apply(order)
            case LeaderAndIsrRequest():
                return self.replicas.apply_leader_and_isr(order)
            case StopReplicaRequest():
                return self.replicas.apply_stop_replica(order)


def refused(order: ControlRequest, code: ErrorCode) -> ControlResponse:
    """Return the response to an order that is refused as a whole."""
    match order:
        case UpdateMetadataRequest():
            return UpdateMetadataResponse(error_code=code)
        case LeaderAndIsrRequest():
            return LeaderAndIsrResponse(error_code=code, topics=[])
        case StopReplicaRequest():
            return StopReplicaResponse(error_code=code, partition_errors=[])


class ModelReplicas:
    """Obeys orders as `ReplicaManager` does, without logs."""

    def __init__(self, process: Process) -> None:
        self._process = process
        self._broker = process.broker
        self.roles: dict[TopicPartition, Role] = {}

    def apply_leader_and_isr(self, request: LeaderAndIsrRequest) -> LeaderAndIsrResponse:
        """See `ReplicaManager.apply_leader_and_isr`."""
        try:
            self._process.fence.admit(request.controller_epoch, request.broker_epoch)
        except KafkaError as refusal:
            return LeaderAndIsrResponse(error_code=refusal.code, topics=[])
        topics = []
        for topic in request.topic_states:
            errors = []
            for one in topic.partition_states:
                at = TopicPartition(topic.topic_name, one.partition_index)
                code = self._take_up(at, topic.topic_id, one, request)
                errors.append(
                    LeaderAndIsrPartitionError(partition_index=at.partition, error_code=code)
                )
            topics.append(LeaderAndIsrTopicError(topic_id=topic.topic_id, partition_errors=errors))
        return LeaderAndIsrResponse(error_code=ErrorCode.NONE, topics=topics)

    def _take_up(
        self,
        at: TopicPartition,
        topic_id: uuid.UUID,
        state: LeaderAndIsrPartitionState,
        request: LeaderAndIsrRequest,
    ) -> ErrorCode:
        if self._broker.id not in state.replicas:
            return ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        if self._broker.logs.get(at, topic_id) != topic_id:
            return ErrorCode.INCONSISTENT_TOPIC_ID
        known = self.roles.get(at)
        if known is not None and state.leader_epoch <= known.leader_epoch:
            return ErrorCode.STALE_CONTROLLER_EPOCH
        leads = state.leader == self._broker.id
        if leads:
            self._broker.cluster.invariants.check_leader(
                self._process, at, topic_id, state.leader_epoch, request
            )
        self._broker.logs[at] = topic_id
        self.roles[at] = Role(state.leader_epoch, leads)
        return ErrorCode.NONE

    def apply_stop_replica(self, request: StopReplicaRequest) -> StopReplicaResponse:
        """See `ReplicaManager.apply_stop_replica`."""
        try:
            self._process.fence.admit(request.controller_epoch, request.broker_epoch)
        except KafkaError as refusal:
            return StopReplicaResponse(error_code=refusal.code, partition_errors=[])
        errors = []
        for topic in request.topic_states:
            for one in topic.partition_states:
                at = TopicPartition(topic.topic_name, one.partition_index)
                code = self._stop(at, one.leader_epoch, deletes=one.delete_partition)
                errors.append(
                    StopReplicaPartitionError(
                        topic_name=at.topic, partition_index=at.partition, error_code=code
                    )
                )
        return StopReplicaResponse(error_code=ErrorCode.NONE, partition_errors=errors)

    def _stop(self, at: TopicPartition, leader_epoch: int, *, deletes: bool) -> ErrorCode:
        known = self.roles.get(at)
        if known is not None and 0 <= leader_epoch < known.leader_epoch:
            return ErrorCode.FENCED_LEADER_EPOCH
        if not deletes:
            if known is not None:
                self.roles[at] = known._replace(leads=False)
        else:
            self.roles.pop(at, None)
            if (topic_id := self._broker.logs.pop(at, None)) is not None:
                self._broker.cluster.invariants.check_deletion(self._broker, at, topic_id)
        return ErrorCode.NONE
