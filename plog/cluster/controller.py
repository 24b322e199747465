"""The controller's shell: a thread that reads the coordination store, runs the machine, acts.

Owns the election, the watches and the execution of effects. Decides nothing: that is
`controller_machine`. Every broker runs one; all but one wait for /controller to go.

Threads: everything happens on the controller's own thread, fed through a queue. Watch
callbacks, brokers' answers and the public methods only enqueue. Each write is fenced
by the epoch this controller was elected with; a fenced one ends its rule.
"""

from __future__ import annotations

import logging
import queue
import threading
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import Future
from typing import Protocol

from plog.cluster import control_requests, znodes
from plog.cluster.channels import BrokerChannel, ChannelFactory
from plog.cluster.control_requests import ControlResponse, Sender
from plog.cluster.controller_context import (
    ClusterContext,
    LiveBroker,
    Topic,
)
from plog.cluster.controller_events import (
    BalanceTick,
    BrokersRead,
    CloseChannel,
    DeletionsRead,
    DropDeletions,
    Effect,
    ElectionsAsked,
    ElectionType,
    Event,
    Failover,
    Feed,
    LoadTopics,
    LoadUnclean,
    LogDirFailed,
    OpenChannel,
    ReadDeletions,
    RemoveTopic,
    Reply,
    SendLeaderAndIsr,
    SendStopReplica,
    SendUpdateMetadata,
    ShutdownAsked,
    StatesWritten,
    TopicNamesRead,
    TopicRemoved,
    TopicsRead,
    UncleanEnabled,
    UncleanRead,
    WriteStates,
)
from plog.cluster.controller_machine import ControllerMachine
from plog.cluster.controller_store import ControllerMoved, ControllerStore
from plog.cluster.state_changes import assignments_of
from plog.cluster.store import NoNode, SessionLost, Store, StoreError, Watch
from plog.cluster.znodes import MalformedNode
from plog.errors import ErrorCode, NotController, error_for
from plog.protocol.messages.replication import LeaderAndIsrResponse, StopReplicaResponse
from plog.runtime.bounded_lines import BoundedLines
from plog.runtime.clock import Clock
from plog.runtime.partition_lines import log_partitions
from plog.types import TopicPartition

log = logging.getLogger(__name__)

RETRY_MS = 1_000
"""How long a controller whose write was refused (a full disk) waits before it begins again."""

FIRST_BALANCE_MS = 5_000
"""How long after its election a controller first looks at preferred leaders."""


class ControllerSettings(Protocol):
    """What the controller reads of the broker's settings; read anew each time."""

    @property
    def auto_leader_rebalance_enable(self) -> bool:
        """Whether preferred leaders get their lead back by themselves."""

    @property
    def leader_imbalance_check_interval_seconds(self) -> int:
        """How often that is looked at."""

    @property
    def leader_imbalance_per_broker_percentage(self) -> int:
        """How much of a broker's preferred partitions others may lead."""

    @property
    def unclean_leader_election_enable(self) -> bool:
        """Whether topics that do not say otherwise allow unclean elections."""

    @property
    def delete_topic_enable(self) -> bool:
        """Whether topics may be deleted."""


Results = Mapping[TopicPartition, ErrorCode]


class Controller:
    """A candidate for the controller's role, and the controller once it is elected.

    Args:
        store: the coordination store; this broker is registered in it.
        broker_id: this broker.
        channels: opens the way to a broker.
        settings: returns the present settings.
        clock: for the timestamp of /controller and the balance timer.
        inter_broker_listener: the listener by which brokers reach leaders.
    """

    def __init__(
        self,
        store: Store,
        *,
        broker_id: int,
        channels: ChannelFactory,
        settings: Callable[[], ControllerSettings],
        clock: Clock,
        inter_broker_listener: str,
    ) -> None:
        self._nodes = ControllerStore(store, broker_id, clock)
        self._store = store
        self._broker_id = broker_id
        self._open_channel = channels
        self._settings = settings
        self._clock = clock
        self._listener = inter_broker_listener
        self._tasks: queue.SimpleQueue[tuple[str, Callable[[], None]] | None] = queue.SimpleQueue()
        self._queued: set[str] = set()
        self._queued_lock = threading.Lock()
        self._thread = threading.Thread(target=self._run, name="controller", daemon=True)
        self._elected = threading.Event()
        self._joined: Future[None] = Future()
        self._joined.set_running_or_notify_cancel()  # whoever waits for it cannot cancel it
        self._machine: ControllerMachine | None = None
        self._channels: dict[int, tuple[LiveBroker, BrokerChannel]] = {}
        self._candidate_watches: list[Watch] = []
        self._watches: list[Watch] = []
        self._topic_watches: dict[str, Watch] = {}
        self._futures: dict[int, Future[Results]] = {}
        self._next_token = 0
        self._stands = True
        self._next_balance_ms = 0
        self._retry_ms: int | None = None
        self._lines = BoundedLines(log, "%d further deletions of topics", least_level=logging.INFO)

    # -- for everybody -----------------------------------------------------------------------

    @property
    def is_active(self) -> bool:
        """Whether this broker is the controller, as far as it knows."""
        return self._elected.is_set()

    @property
    def epoch(self) -> int:
        """The controller epoch of this broker's last election; 0 before the first."""
        return self._nodes.epoch

    def start(self) -> Future[None]:
        """Take part in elections from now on.

        The future is done once there is a controller and, if it is this one, once brokers in this
        process lead and follow as it told them.
        """
        self._thread.start()
        self._enqueue("start", self._on_start)
        return self._joined

    def stand(self) -> None:
        """Take part in elections again, after `resign`."""
        self._stands = True
        self._enqueue("elect", self._elect)

    def resign(self) -> None:
        """Give up the role, if it is ours, and take part in no election."""
        self._stands = False
        self._enqueue("resign", self._resign)

    def wait_active(self, timeout_s: float) -> bool:
        """Block until this broker is the controller; False after the timeout."""
        return self._elected.wait(timeout_s)

    def stop(self) -> None:
        """Give up the role, if it is ours, and end the thread."""
        if self._thread.is_alive():
            self._enqueue("stop", self._on_stop)
            self._tasks.put(None)
            self._thread.join()

    def elect_leaders(
        self, election_type: ElectionType, partitions: Sequence[TopicPartition] | None
    ) -> Future[Results]:
        """Elect leaders of partitions, or of all; the future gets a code for each.

        It gets NotController if this broker is not (or no longer) the controller.
        """
        asked = None if partitions is None else tuple(partitions)
        return self._ask(lambda token: ElectionsAsked(election_type, asked, token))

    def controlled_shutdown(self, broker_id: int, broker_epoch: int) -> Future[Results]:
        """Move leaderships off a broker that stops; the future gets what it still leads.

        It gets NotController, BrokerNotAvailable or StaleBrokerEpoch instead.
        """
        return self._ask(lambda token: ShutdownAsked(broker_id, broker_epoch, token))

    def on_unclean_enabled(self, topic: str | None) -> None:
        """Look again at partitions without a leader: unclean elections were switched on."""
        self._enqueue("", lambda: self._feed(UncleanEnabled(topic)))

    def _ask(self, event: Callable[[int], ElectionsAsked | ShutdownAsked]) -> Future[Results]:
        future: Future[Results] = Future()

        def ask() -> None:
            if self._machine is None:
                future.set_exception(
                    NotController(f"broker {self._broker_id} is not the controller")
                )
                return
            self._next_token += 1
            self._futures[self._next_token] = future
            self._feed(event(self._next_token))

        self._enqueue("", ask)
        return future

    # -- the thread --------------------------------------------------------------------------

    def _enqueue(self, key: str, task: Callable[[], None]) -> None:
        """Have a task run; one with the same key that still waits stands for this one too."""
        if key:
            with self._queued_lock:
                if key in self._queued:
                    return
                self._queued.add(key)
        self._tasks.put((key, task))

    def _run(self) -> None:
        while True:
            try:
                item = self._tasks.get(timeout=self._seconds_to_timer())
            except queue.Empty:
                item = ("", self._elect if self._machine is None else self._balance)
            if item is None:
                return
            key, task = item
            if key:
                # Before the task reads anything: what changes from here on queues it again.
                with self._queued_lock:
                    self._queued.discard(key)
            try:
                task()
            except ControllerMoved as moved:
                log.warning("controller %d is fenced: %s", self._broker_id, moved)
                self._resign()
                self._enqueue("elect", self._elect)
            except SessionLost as lost:
                log.error("the controller's session is lost: %s", lost)
                self._resign()
            except StoreError as refused:
                # What the machine believes is now more than what is written: begin again.
                log.error("controller %d cannot write: %s", self._broker_id, refused)
                self._resign()
                self._retry_ms = self._clock.monotonic_ms() + RETRY_MS

    def _seconds_to_timer(self) -> float | None:
        due = self._retry_ms if self._machine is None else self._next_balance_ms
        return None if due is None else max(0, due - self._clock.monotonic_ms()) / 1000

    def _balance(self) -> None:
        settings = self._settings()
        self._next_balance_ms = (
            self._clock.monotonic_ms() + settings.leader_imbalance_check_interval_seconds * 1000
        )
        if settings.auto_leader_rebalance_enable:
            self._feed(BalanceTick(settings.leader_imbalance_per_broker_percentage))

    # -- election ----------------------------------------------------------------------------

    def _on_start(self) -> None:
        self._candidate_watches = [
            self._store.watch_data(
                znodes.CONTROLLER, lambda event: self._enqueue("elect", self._elect)
            ),
        ]
        self._elect()

    def _elect(self) -> None:
        """Become the controller if there is none; stop being it if another is."""
        self._retry_ms = None
        if not self._stands:
            return
        active = self._nodes.read_controller()
        while active is None:
            active = self._nodes.try_elect()
        if active != self._broker_id:
            if self._machine is not None:
                log.warning("broker %s is the controller now", active)
                self._resign()
        elif self._machine is None:
            self._failover()
        if not self._joined.done():
            self._joined.set_result(None)

    def _failover(self) -> None:
        log.info("broker %d is the controller, epoch %d", self._broker_id, self._nodes.epoch)
        children = {
            znodes.BROKER_IDS: self._read_brokers,
            znodes.TOPICS: self._read_topic_names,
            znodes.DELETE_TOPICS: self._read_deletions,
            znodes.LOG_DIR_EVENTS: self._read_log_dir_events,
        }
        for path, read in children.items():
            self._watches.append(self._store.watch_children(path, self._enqueuer(path, read)))
        self._watches.append(
            self._store.watch_data(
                znodes.PREFERRED_ELECTION,
                self._enqueuer(znodes.PREFERRED_ELECTION, self._read_preferred_election),
            )
        )
        self._nodes.drop_notifications()
        deletions = self._deletions()  # before the topics, so that none is of one not yet read
        context = ClusterContext(self._broker_id, self._nodes.epoch, self._nodes.read_brokers())
        for name, node in self._load_topics(self._nodes.topic_names()).items():
            if node is not None and node.topic_id is not None:
                context.topics[name] = Topic(node.topic_id, assignments_of(node))
        for partition in context.partitions():
            state = self._nodes.read_state(partition)
            if state is not None:
                context.states[partition] = state
        self._machine = ControllerMachine(context)
        self._next_balance_ms = self._clock.monotonic_ms() + FIRST_BALANCE_MS
        self._feed(Failover(deletions))
        if self._machine is not None:
            # Brokers in this process lead what they led before: it can serve.
            self._elected.set()
        self._read_preferred_election()

    def _enqueuer(self, key: str, task: Callable[[], None]) -> Callable[[object], None]:
        return lambda event: self._enqueue(key, task)

    def _resign(self) -> None:
        self._machine = None
        self._elected.clear()
        for watch in [*self._watches, *self._topic_watches.values()]:
            watch.cancel()
        self._watches.clear()
        self._topic_watches.clear()
        for _, channel in self._channels.values():
            channel.close()
        self._channels.clear()
        futures, self._futures = self._futures, {}
        for future in futures.values():
            future.set_exception(NotController(f"broker {self._broker_id} is not the controller"))

    def _on_stop(self) -> None:
        was_active = self._machine is not None
        for watch in self._candidate_watches:
            watch.cancel()
        self._resign()
        if was_active:
            self._nodes.abdicate()

    # -- reading -----------------------------------------------------------------------------

    def _read_brokers(self) -> None:
        self._feed(BrokersRead(self._nodes.read_brokers()))

    def _read_topic_names(self) -> None:
        self._feed(TopicNamesRead(frozenset(self._nodes.topic_names())))

    def _read_topic(self, name: str) -> None:
        self._feed(TopicsRead(self._load_topics([name])))

    def _read_deletions(self) -> None:
        if self._machine is None:
            return
        names = self._deletions()
        if not names <= self._machine.context.topics.keys():
            # Younger than what was last read of the topics: they are there, or have gone by now.
            self._read_topic_names()
        self._feed(DeletionsRead(names))

    def _deletions(self) -> frozenset[str]:
        names = frozenset(self._store.children(znodes.DELETE_TOPICS))
        if names and not self._settings().delete_topic_enable:
            listed = ", ".join(sorted(names))
            self._lines.warning("delete.topic.enable is false: not deleting %.1000s", listed)
            self._nodes.drop_deletions(names)
            return frozenset()
        return names

    def _read_log_dir_events(self) -> None:
        if self._machine is not None:
            brokers, paths = self._nodes.read_log_dir_events()
            if paths:
                self._feed(LogDirFailed(tuple(sorted(brokers))))
                self._nodes.delete_nodes(paths)

    def _read_preferred_election(self) -> None:
        if self._machine is None:
            return
        try:
            data, _ = self._store.get(znodes.PREFERRED_ELECTION)
        except NoNode:
            return
        try:
            asked = tuple(znodes.decode_partitions(data))
        except MalformedNode as fault:
            log.error("%s: %s", znodes.PREFERRED_ELECTION, fault)
        else:
            self._feed(ElectionsAsked(ElectionType.PREFERRED, asked))
        self._nodes.delete_nodes([znodes.PREFERRED_ELECTION])

    def _load_topics(self, names: Iterable[str]) -> dict[str, znodes.TopicNode | None]:
        """Read topics, watching each before it is read."""
        nodes = {}
        for name in names:
            if name not in self._topic_watches:
                path = znodes.topic_path(name)
                self._topic_watches[name] = self._store.watch_data(
                    path,
                    self._enqueuer(path, lambda name=name: self._read_topic(name)),  # type: ignore[misc]
                )
            nodes[name] = self._nodes.read_topic(name)
            if nodes[name] is None:
                self._topic_watches.pop(name).cancel()
        return nodes

    # -- acting ------------------------------------------------------------------------------

    def _feed(self, event: Event) -> None:
        """Give the machine an event, and what its effects bring back, before anything else."""
        if self._machine is None:
            return
        events = deque([event])
        while events:
            for effect in self._machine.on(events.popleft()):
                answer = self._execute(effect)
                if answer is not None:
                    events.append(answer)

    def _execute(self, effect: Effect) -> Event | None:
        match effect:
            case WriteStates():
                return self._write_states(effect)
            case LoadTopics(names):
                return TopicsRead(self._load_topics(names))
            case LoadUnclean(topics):
                default = self._settings().unclean_leader_election_enable
                return UncleanRead(self._nodes.read_unclean(topics, default=default))
            case RemoveTopic(name):
                self._forget_topic(name)
                return TopicRemoved(name)
            case Feed(event):
                return event
            case DropDeletions(names):
                self._nodes.drop_deletions(names)
            case ReadDeletions():
                self._enqueue(znodes.DELETE_TOPICS, self._read_deletions)
            case OpenChannel(broker):
                self._channels[broker.id] = (broker, self._open_channel(broker))
            case CloseChannel(broker_id):
                self._channels.pop(broker_id)[1].close()
            case Reply(token, results, error):
                self._reply(token, results, error)
            case SendLeaderAndIsr() | SendStopReplica() | SendUpdateMetadata():
                self._send(effect)
        return None

    def _write_states(self, effect: WriteStates) -> StatesWritten:
        written, conflicts = self._nodes.write_states(effect.writes)
        for write in written:
            log.debug("state of %s: %s", write.partition, write.state)
        leaderless = [one.partition for one in written if one.state.leader == znodes.NO_LEADER]
        text = "%s: no leader, because no in-sync replica is online"
        log_partitions(log, logging.ERROR, text, leaderless)
        return StatesWritten(tuple(written), conflicts, effect.token)

    def _forget_topic(self, name: str) -> None:
        if (watch := self._topic_watches.pop(name, None)) is not None:
            watch.cancel()
        self._nodes.remove_topic(name)
        self._lines.info("deleted topic %s", name)

    def _reply(self, token: int, results: Results, error: ErrorCode) -> None:
        future = self._futures.pop(token)
        if error != ErrorCode.NONE:
            future.set_exception(error_for(error))
        else:
            future.set_result(results)

    def _send(self, effect: SendLeaderAndIsr | SendStopReplica | SendUpdateMetadata) -> None:
        sender = Sender(self._broker_id, self._nodes.epoch, self._listener)
        to = effect.broker_ids if isinstance(effect, SendUpdateMetadata) else (effect.broker_id,)
        for broker_id in to:
            if broker_id not in self._channels:
                continue  # lost meanwhile; it is told everything when it comes back
            broker, channel = self._channels[broker_id]
            match effect:
                case SendLeaderAndIsr():
                    channel.send(
                        control_requests.leader_and_isr(sender, broker.epoch, effect),
                        self._on_response(broker, effect),
                    )
                case SendStopReplica():
                    channel.send(
                        control_requests.stop_replica(sender, broker.epoch, effect),
                        self._on_response(broker, effect),
                    )
                case SendUpdateMetadata():
                    channel.send(
                        control_requests.update_metadata(sender, broker.epoch, effect),
                        self._on_response(broker, effect),
                    )

    def _on_response(
        self, broker: LiveBroker, sent: SendLeaderAndIsr | SendStopReplica | SendUpdateMetadata
    ) -> Callable[[ControlResponse], None]:
        return lambda response: self._enqueue("", lambda: self._answered(broker, sent, response))

    def _answered(
        self,
        broker: LiveBroker,
        sent: SendLeaderAndIsr | SendStopReplica | SendUpdateMetadata,
        response: ControlResponse,
    ) -> None:
        if response.error_code != ErrorCode.NONE:
            # It knows a newer controller, or has registered anew: word of either is on its way.
            code = ErrorCode(response.error_code).name
            log.warning("broker %d refuses %s: %s", broker.id, type(sent).__name__, code)
        elif isinstance(sent, SendLeaderAndIsr) and isinstance(response, LeaderAndIsrResponse):
            self._feed(control_requests.leader_and_isr_answered(broker, sent, response))
        elif (
            isinstance(sent, SendStopReplica)
            and sent.delete
            and isinstance(response, StopReplicaResponse)
        ):
            self._feed(control_requests.stop_replica_answered(broker, response))
