"""Brokers of a simulated cluster: real controllers, members, metadata, gates and replicas.

A broker's directory outlives its process: which logs it has, by topic id. Everything that a
process does happens in events of the scheduler. Each of its threads has one at a time.

In histories without logs the replicas are models.
"""

from __future__ import annotations

import shutil
import uuid
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, cast

from plog.cluster.broker_registration import BrokerRegistration, read_controller_epoch
from plog.cluster.channels import BrokerChannel, InProcessChannel
from plog.cluster.control_fence import ControlFence
from plog.cluster.control_requests import ControlRequest, ControlResponse
from plog.cluster.controller import Controller
from plog.cluster.controller_context import LiveBroker
from plog.cluster.controller_events import IsrsProposed, ProposedIsr, ShutdownAsked
from plog.cluster.controller_loop import ControllerLoop
from plog.cluster.controller_store import ControllerMoved
from plog.cluster.member import Member
from plog.cluster.metadata_cache import MetadataCache
from plog.cluster.order_gate import NoResponse, OrderGate, SentAgain
from plog.cluster.replica_manager import ReplicaManager
from plog.cluster.replication.isr import MOST_TICKS_LATE
from plog.cluster.store import StoreError
from plog.cluster.stray_logs import Topics
from plog.cluster.znodes import BrokerNode, Endpoint
from plog.errors import ErrorCode, KafkaError
from plog.protocol.messages.replication import (
    LeaderAndIsrRequest,
    LeaderAndIsrResponse,
    StopReplicaRequest,
    StopReplicaResponse,
    UpdateMetadataRequest,
    UpdateMetadataResponse,
)
from plog.types import NO_EPOCH, TopicPartition
from tests.cluster.simulation.model_replicas import ModelReplicas
from tests.cluster.simulation.network import MAX_SLOW_MS, Request, SimChannel
from tests.cluster.simulation.real_replicas import RealReplicas
from tests.cluster.simulation.sim_logs import Hosted, SimLog
from tests.cluster.simulation.sim_replicas import SimFetch, SimReplicas
from tests.cluster.simulation.transactions import ProcessTxns, SentMarkers
from tests.cluster.simulation.zookeeper import SESSION_MS, Crashed, SimStore

if TYPE_CHECKING:
    from tests.cluster.simulation.cluster import SimCluster

SETTINGS = SimpleNamespace(
    auto_leader_rebalance_enable=True,
    leader_imbalance_check_interval_seconds=30,
    leader_imbalance_per_broker_percentage=10,
    unclean_leader_election_enable=False,
    delete_topic_enable=True,
    offsets_topic_replication_factor=3,
    transaction_state_log_replication_factor=3,
)
TICK_MS = 1_000
MAX_SHUTDOWN_MS = 3_000
START_AGAIN_MS = 1000
RESTART_MS = 5_000
FLUSH_MS = 100
PROPOSES = 0.2
"""How often a leader asks for larger in-sync sets, per tick."""


class SimBroker:
    """A broker: its directory, and the process that runs, if one does."""

    def __init__(self, cluster: SimCluster, broker_id: int) -> None:
        self.cluster = cluster
        self.id = broker_id
        self.logs: dict[TopicPartition, uuid.UUID] = {}
        self.sim_logs: dict[Hosted, SimLog] = {}
        self.lost: set[Hosted] = set()
        """Logs that were on a disk that was replaced."""
        self.process: Process | None = None
        self.last_session = 0
        """Remembered in the directory, as `session_file` does."""
        self.flush_ms = FLUSH_MS
        """At most so long its disk takes to make a record durable."""
        self._starts = 0
        self.directory = cluster.directory and cluster.directory / str(broker_id)
        self._restore: Callable[[], None] | None = None

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

    def lose_power(self) -> None:
        """Kill the process. Records that were not durable are lost."""
        self.kill()
        for log in self.sim_logs.values():
            log.lose_power()

    def lose_disk(self) -> None:
        """Kill the process, and replace the disk by an empty one."""
        self.kill()
        self.lost |= self.sim_logs.keys()
        self.logs.clear()
        self.sim_logs.clear()

    def has_lost(self, one: Hosted) -> bool:
        """Whether records of a replica went with a disk, and have not come back from a leader."""
        log = self.sim_logs.get(one)
        return one in self.lost or (log is not None and log.is_incomplete)

    def stop(self) -> None:
        """Stop the process as an operator does."""
        if self.process is not None and self.process.is_running():
            self.cluster.scheduler.note(f"broker {self.id} is stopped")
            self.process.stop()

    def back_up(self) -> None:
        """Copy the directory, if no process runs."""
        if self.process is not None:
            return
        logs, restore_contents = dict(self.logs), self.cluster.contents.back_up(self.id)
        directory = self.directory
        backup = directory and directory.with_suffix(".backup")
        if directory is not None and backup is not None:
            shutil.rmtree(backup, ignore_errors=True)
            shutil.copytree(directory, backup)

        def restore() -> None:
            self.logs = dict(logs)
            restore_contents()
            if directory is not None and backup is not None:
                shutil.rmtree(directory)
                shutil.copytree(backup, directory)

        self._restore = restore

    def restore(self) -> None:
        """Put the copy in the place of the directory: topics that were deleted since are back."""
        if self.process is None and self._restore is not None:
            self.cluster.scheduler.note(f"broker {self.id} is restored")
            self._restore()

    def heal(self) -> None:
        """Have a process run that goes on."""
        self.flush_ms = FLUSH_MS
        if self.process is not None and self.process.is_stopping:
            self.kill()
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
        self.is_stopping = False
        self.is_listening = False
        self.resumed_ms = -1_000_000
        """When it went on after a pause that its ticks notice."""
        self._stopped_ms = 0
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
        self.replicas: ModelReplicas | RealReplicas
        if self.cluster.is_replicated:
            self.replicas = SimReplicas(self)
        elif broker.directory is None:
            self.replicas = ModelReplicas(self)
        else:
            self.replicas = RealReplicas(self, broker.directory)

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
        self.replicas.prepare()
        if self.broker.directory is not None:
            self.txns = ProcessTxns(self)
        self.cluster.mutate(self)
        self.replicas.load(Topics(self.store))
        self.is_listening = True
        member = Member(
            self.store,
            registration=self.registration,
            node=self._node,
            fence=self.fence,
            controller=cast("Controller", self),
            read_again=lambda: None,
            remember=self._remember,
            on_end=self._end_for_now,
            clock=self.scheduler.clock,
            timeout_ms=lambda: SESSION_MS,
        )
        member.note_connected()
        self.enqueue("", self.controller.elect)
        self._tick(member)

    def _remember(self) -> None:
        self.broker.last_session = self.store.session_id

    def _end_for_now(self, reason: str) -> None:
        """End, and be started again, as by systemd: the last process may still be registered."""
        self.scheduler.note(f"{self.owner} ends: {reason}")
        self.broker.kill()
        self.scheduler.after(RESTART_MS, f"systemd {self.broker.id}", self.broker.start)

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
        self.replicas.close()

    def stop(self) -> None:
        """SIGTERM: ask the controller to move the leads, and stop later, whatever it did."""
        self.is_stopping = True
        broker_id, broker_epoch = self.broker.id, self.fence.broker_epoch
        self.ask_controller(lambda token: ShutdownAsked(broker_id, broker_epoch, token), Future())
        wait_ms = self.scheduler.random.randint(0, MAX_SHUTDOWN_MS)
        self.scheduler.after(wait_ms, f"signals of {self.owner}", self._end)

    def _end(self) -> None:
        if self.is_running():
            self.scheduler.note(f"{self.owner} ends")
            self.is_alive = False
            self.controller.resign()
            self.replicas.shut_down()
            self.store.close()
            self.broker.process = None

    def suspend(self, for_ms: int) -> None:
        """SIGSTOP, and later SIGCONT."""
        self.scheduler.note(f"{self.owner} is suspended for {for_ms} ms")
        if not self.is_stopped:
            self._stopped_ms = self.scheduler.now_ms
        self.is_stopped = True
        self.store.disconnect(for_ms)
        self.scheduler.after(for_ms, f"signals of {self.owner}", self.resume)

    def resume(self) -> None:
        """SIGCONT."""
        now_ms = self.scheduler.now_ms
        if self.is_stopped and now_ms - self._stopped_ms > MOST_TICKS_LATE * TICK_MS:
            self.resumed_ms = now_ms
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
            self.replicas.on_tick()
            due_s = self.controller.seconds_to_timer()
            if due_s is not None and due_s <= 0:
                self.enqueue("timer", self.controller.on_timer)
            is_modelled = not self.cluster.is_replicated
            if is_modelled and self.scheduler.random.random() < PROPOSES:
                self._propose_isrs()
        self.scheduler.after(TICK_MS, f"ticks of {self.owner}", lambda: self._tick(member))

    def joining(self) -> set[int]:
        """Return the brokers that are to join in-sync sets by its proposals."""
        if not isinstance(self.replicas, SimReplicas):
            return set()
        sets = [lead.isr for lead in self.replicas.leads.values()]
        return {
            broker_id
            for one in sets
            if one.proposal is not None
            for broker_id in one.proposal.isr - one.isr
        }

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
        if isrs:
            broker_id, broker_epoch = self.broker.id, self.fence.broker_epoch
            self.ask_controller(
                lambda token: IsrsProposed(broker_id, broker_epoch, isrs, token), Future()
            )

    def ask_controller(
        self, event: Callable[[int], IsrsProposed | ShutdownAsked], future: Future[Any]
    ) -> None:
        """Ask the controller, if one is known and can be reached."""
        snapshot = self.metadata.snapshot
        if snapshot.live_controller_id < 0:
            return
        controller = self.cluster.brokers[snapshot.controller_id].process
        if controller is not None and self.reaches(controller):
            ask = controller.controller.ask
            is_slow = self.scheduler.random.random() < self.cluster.slow_questions
            delay_ms = self.scheduler.random.randint(0, MAX_SLOW_MS) if is_slow else 0
            owner = f"questions of {self.owner}"
            self.scheduler.after(
                delay_ms, owner, lambda: controller.enqueue("", lambda: ask(event, future))
            )

    # -- orders ------------------------------------------------------------------------------

    def accept(self) -> int:
        """Accept a connection; return its number."""
        self._connections += 1
        return self._connections

    def arrive(self, request: Request, connection: int, respond: Callable[[object], None]) -> None:
        """Take a request from the network, as handlers do; None: no response."""
        if isinstance(request, SentMarkers):
            self.txns.arrive(request, connection, respond)
        elif isinstance(request, SimFetch):
            assert isinstance(self.replicas, SimReplicas)
            respond(self.replicas.answer(request))
        else:
            self._take(request, connection, respond)

    def _take(
        self, order: ControlRequest, connection: int, respond: Callable[[object], None]
    ) -> None:
        try:
            self.gate.admit(order)
        except KafkaError as refusal:
            respond(refused(order, refusal.code))
        else:
            self._orders.enqueue("", lambda: self._obey_in_turn(order, connection, respond))

    def _obey_in_turn(
        self, order: ControlRequest, connection: int, respond: Callable[[object], None]
    ) -> None:
        is_known = self.cluster.invariants.is_known(order, self)
        try:
            self.gate.check_in_turn(order, connection)
        except SentAgain:
            respond(None)
        except NoResponse as reason:
            if is_known:
                self.cluster.invariants.check_unknown(order, self, reason)
            respond(None)
        except StoreError:
            respond(None)
        else:
            broker_epoch = self.fence.broker_epoch
            try:
                response = self._obey(order)
            except StoreError:
                respond(None)
                return
            if response.error_code == ErrorCode.NONE:
                self.cluster.invariants.check_obeyed(order, self, broker_epoch)
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
