"""The controller's work, one task at a time: reads the coordination store, runs the machine, acts.

Owns the election, the watches, the timers and the execution of effects. Decides nothing: that is
`controller_machine`. Each write is fenced by the epoch this controller was elected with; a fenced
one ends its rule. Knows no thread: `controller` has one, and a simulation runs tasks as it likes.
"""

from __future__ import annotations

import logging
import threading
from collections import deque
from collections.abc import Callable, Mapping
from concurrent.futures import Future, InvalidStateError
from contextlib import suppress
from typing import Any, Protocol

from plog.cluster import control_requests, znodes
from plog.cluster.channels import BrokerChannel, ChannelFactory
from plog.cluster.control_requests import ControlRequest, ControlResponse, Sender
from plog.cluster.controller_context import (
    ClusterContext,
    LiveBroker,
    Topic,
    assignments_of,
)
from plog.cluster.controller_events import (
    AssignmentsWritten,
    BalanceTick,
    BrokersRead,
    CloseChannel,
    DeletionsRead,
    DrainAnswered,
    DropDeletions,
    Effect,
    ElectionsAsked,
    ElectionType,
    Event,
    Failover,
    Feed,
    InternalTopicsTick,
    IsrsProposed,
    LoadStates,
    LoadTopics,
    LoadUnclean,
    LogDirFailed,
    MovesAsked,
    OpenChannel,
    Outcome,
    ReadDeletions,
    ReassignmentsAsked,
    RemoveTopic,
    Reply,
    SendLeaderAndIsr,
    SendStopReplica,
    SendUpdateMetadata,
    ShutdownAsked,
    StatesRead,
    StatesWritten,
    TopicNamesRead,
    TopicRemoved,
    UncleanRead,
    WriteAssignments,
    WriteStates,
)
from plog.cluster.controller_machine import ControllerMachine
from plog.cluster.controller_store import ControllerMoved, ControllerStore
from plog.cluster.controller_topics import ControllerTopics, call_each
from plog.cluster.election_counts import ElectionCounts
from plog.cluster.internal_replicas import OFFSETS_TOPIC, TRANSACTIONS_TOPIC
from plog.cluster.registered_brokers import log_changes
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
    """What the controller reads of the broker's settings; read again each time."""

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
    def offsets_topic_replication_factor(self) -> int:
        """How many replicas `__consumer_offsets` should have."""

    @property
    def transaction_state_log_replication_factor(self) -> int:
        """How many replicas `__transaction_state` should have."""

    @property
    def unclean_leader_election_enable(self) -> bool:
        """Whether topics that do not say otherwise allow unclean elections."""

    @property
    def delete_topic_enable(self) -> bool:
        """Whether topics may be deleted."""


Task = Callable[[], None]
Outcomes = Mapping[TopicPartition, Outcome]
Question = ElectionsAsked | ShutdownAsked | IsrsProposed | ReassignmentsAsked | MovesAsked


class ControllerLoop:
    """The tasks of one broker's controller. All are called by one thread, one after the other.

    Args:
        enqueue: has a task run later; one with the same key that still waits stands for this one,
            too. Called from any thread.

    The others are those of `Controller`.
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
        enqueue: Callable[[str, Task], None],
        stands: bool,
    ) -> None:
        self._nodes = ControllerStore(store, broker_id, clock)
        self._store = store
        self._broker_id = broker_id
        self._open_channel = channels
        self._settings = settings
        self._clock = clock
        self._listener = inter_broker_listener
        self._enqueue = enqueue
        self._stands = stands
        self.is_active = threading.Event()
        """Whether this broker is the controller, as far as it knows."""
        self.joined: Future[None] = Future()
        """Done once there is a controller."""
        self.joined.set_running_or_notify_cancel()  # its waiters cannot cancel it
        self.machine: ControllerMachine | None = None
        self.election_counts = ElectionCounts()
        self._channels: dict[int, tuple[LiveBroker, BrokerChannel]] = {}
        self._election_watches: dict[str, Watch] = {}
        self._watches: list[Watch] = []
        self._topics = ControllerTopics(store, self._nodes, enqueue=enqueue, feed=self.feed)
        self._futures: dict[int, Future[Any]] = {}
        self._next_token = 0
        self._next_balance_ms = 0
        self._retry_ms: int | None = None
        self._lines = BoundedLines(log, "%d further deletions of topics", least_level=logging.INFO)

    @property
    def epoch(self) -> int:
        """The controller epoch of this broker's last election; 0 before the first."""
        return self._nodes.epoch

    # -- for any thread ----------------------------------------------------------------------

    @property
    def is_answered(self) -> bool:
        """Whether brokers have answered all orders that were sent."""
        return all(channel.is_answered for _, channel in list(self._channels.values()))

    def stand(self) -> None:
        """Take part in elections."""
        self._stands = True
        # Not by a key: an election that waits already comes before what `withdraw` has queued.
        self._enqueue("", self.elect)

    def withdraw(self) -> None:
        """Give up the role, if it is ours, and take part in no election."""
        self._stands = False
        self._enqueue("", self.resign)

    # -- tasks -------------------------------------------------------------------------------

    def run(self, task: Task) -> None:
        """Run a task; what the store refuses ends the rule, for now or until the next election."""
        try:
            task()
        except ControllerMoved as moved:
            log.warning("controller %d is fenced: %s", self._broker_id, moved)
            self.resign()
            self._enqueue("elect", self.elect)
        except SessionLost as lost:
            log.error("the controller's session is lost: %s", lost)
            self.resign()
        except StoreError as refused:
            # The machine believes more than the store has: begin again.
            log.error("controller %d cannot write: %s", self._broker_id, refused)
            self._begin_later()
        except Exception:
            log.exception("controller %d cannot go on", self._broker_id)
            self._begin_later()

    def _begin_later(self) -> None:
        self.resign()
        self._retry_ms = self._clock.monotonic_ms() + RETRY_MS

    def seconds_to_timer(self) -> float | None:
        """Return after which time `on_timer` is due; None: never, as it is now."""
        due = self._retry_ms if self.machine is None else self._next_balance_ms
        return None if due is None else max(0, due - self._clock.monotonic_ms()) / 1000

    def on_timer(self) -> None:
        """Elect again after a failure, or give leads back to preferred leaders."""
        if self.machine is None:
            self.elect()
        else:
            self._balance()

    def ask(
        self,
        event: Callable[[int], Question],
        future: Future[Any],
    ) -> None:
        """Ask the machine; the future gets its reply, or NotController."""
        if self.machine is None:
            self._refuse(future)
            return
        self._next_token += 1
        self._futures[self._next_token] = future
        self.feed(event(self._next_token))

    def _refuse(self, future: Future[Any]) -> None:
        with suppress(InvalidStateError):  # the caller has gone
            future.set_exception(NotController(f"broker {self._broker_id} is not the controller"))

    def _balance(self) -> None:
        settings = self._settings()
        self._next_balance_ms = (
            self._clock.monotonic_ms() + settings.leader_imbalance_check_interval_seconds * 1000
        )
        if settings.auto_leader_rebalance_enable:
            self.feed(BalanceTick(settings.leader_imbalance_per_broker_percentage))
        self.feed(
            InternalTopicsTick(
                {
                    OFFSETS_TOPIC: settings.offsets_topic_replication_factor,
                    TRANSACTIONS_TOPIC: settings.transaction_state_log_replication_factor,
                }
            )
        )

    # -- election ----------------------------------------------------------------------------

    def elect(self) -> None:
        """Become the controller if there is none; stop being it if another is.

        If a node of the election is unreadable, it waits until the node changes.
        """
        self._retry_ms = None
        self._watch_election(znodes.CONTROLLER)
        if not self._stands:
            return
        try:
            is_new = self._elect()
        except MalformedNode as fault:
            if self._watch_election(znodes.CONTROLLER_EPOCH):
                self.elect()  # it may have been mended before the watch was armed
                return
            log.error("no controller can be elected: %s", fault)
            self.resign()
            return
        if is_new:
            self._failover()
        if not self.joined.done():
            self.joined.set_result(None)

    def _watch_election(self, path: str) -> bool:
        """Have a change of a node begin an election; return whether it did not before."""
        if path in self._election_watches:
            return False
        self._election_watches[path] = self._store.watch_data(
            path, self._enqueuer("elect", self.elect)
        )
        return True

    def _elect(self) -> bool:
        """Return whether this broker is the controller from now on. Raises MalformedNode."""
        active = self._nodes.read_controller()
        if active is None and self.machine is not None:
            # Our node is gone, and others may have ruled since: what the machine knows is old.
            log.warning("broker %d has lost the controller's role", self._broker_id)
            self.resign()
        while active is None:
            active = self._nodes.try_elect()
        if active == self._broker_id:
            return self.machine is None and self._nodes.resume()
        if self.machine is not None:
            log.warning("broker %s is the controller now", active)
            self.resign()
        return False

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
        topics = self._topics.read(self._nodes.topic_names())
        for name, node in topics.topics.items():
            if node is not None and node.topic_id is not None:
                context.topics[name] = Topic(node.topic_id, assignments_of(node))
        context.unreadable.update(topics.unreadable)
        context.states = self._topics.read_states([*context.partitions()])
        self.machine = ControllerMachine(context)
        self._next_balance_ms = self._clock.monotonic_ms() + FIRST_BALANCE_MS
        self.feed(Failover(deletions))
        if self.machine is not None:
            # Brokers in this process lead what they led before: it can serve.
            self.is_active.set()
        self._read_preferred_election()

    def _enqueuer(self, key: str, task: Callable[[], None]) -> Callable[[object], None]:
        return lambda event: self._enqueue(key, task)

    def resign(self) -> None:
        """Be no controller any more: close the channels, and refuse open questions."""
        self.machine = None
        self.is_active.clear()
        ends = [channel.close for _, channel in self._channels.values()]
        ends += [self._topics.cancel, *(watch.cancel for watch in self._watches)]
        self._watches.clear()
        self._channels.clear()
        try:
            call_each(ends)
        except Exception:  # it must not end the thread: the next election begins with nothing
            log.exception("controller %d cannot close a channel or a watch", self._broker_id)
        while self._futures:
            self._refuse(self._futures.popitem()[1])

    def on_stop(self) -> None:
        """Give the role back, so that another broker is elected at once."""
        was_active = self.machine is not None
        self._watches += self._election_watches.values()
        self.resign()
        if was_active:
            self._nodes.abdicate()

    # -- reading -----------------------------------------------------------------------------

    def _read_brokers(self) -> None:
        if self.machine is not None:
            brokers = self._nodes.read_brokers()
            log_changes(self.machine.context.brokers, brokers)
            self.feed(BrokersRead(brokers))

    def _read_topic_names(self) -> None:
        self.feed(TopicNamesRead(frozenset(self._nodes.topic_names())))

    def _read_deletions(self) -> None:
        if self.machine is None:
            return
        names = self._deletions()
        if not names <= self.machine.context.topic_names():
            # Younger than the last reading of the topics: they exist, or have gone by now.
            self._read_topic_names()
        self.feed(DeletionsRead(names))

    def _deletions(self) -> frozenset[str]:
        names = frozenset(self._store.children(znodes.DELETE_TOPICS))
        if names and not self._settings().delete_topic_enable:
            listed = ", ".join(sorted(names))
            self._lines.warning("delete.topic.enable is false: not deleting %.1000s", listed)
            self._nodes.drop_deletions(names)
            return frozenset()
        return names

    def _read_log_dir_events(self) -> None:
        if self.machine is not None:
            brokers, paths = self._nodes.read_log_dir_events()
            if paths:
                self.feed(LogDirFailed(tuple(sorted(brokers))))
                self._nodes.delete_nodes(paths)

    def _read_preferred_election(self) -> None:
        if self.machine is None:
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
            self.feed(ElectionsAsked(ElectionType.PREFERRED, asked))
        self._nodes.delete_nodes([znodes.PREFERRED_ELECTION])

    # -- acting ------------------------------------------------------------------------------

    def feed(self, event: Event) -> None:
        """Give the machine an event, and what its effects bring back, before anything else."""
        if self.machine is None:
            return
        events, later = deque([event]), deque[Event]()
        while events or later:
            for effect in self.machine.on((events or later).popleft()):
                if isinstance(effect, Feed):
                    later.append(effect.event)
                elif (answer := self._execute(effect)) is not None:
                    events.append(answer)

    def _execute(self, effect: Effect) -> Event | None:
        match effect:
            case WriteStates():
                return self._write_states(effect)
            case WriteAssignments():
                return self._write_assignments(effect)
            case LoadTopics(names):
                return self._topics.read(names)
            case LoadStates(partitions):
                states = self._topics.read_states(partitions)
                return StatesRead({one: states.get(one) for one in partitions})
            case LoadUnclean(topics):
                default = self._settings().unclean_leader_election_enable
                return UncleanRead(self._nodes.read_unclean(topics, default=default))
            case RemoveTopic(name):
                self._forget_topic(name)
                return TopicRemoved(name)
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
        conflicts = self._topics.watch_unreadable(conflicts)
        if self.machine is not None:
            self.election_counts.add(written, self.machine.context.states)
        for write in written:
            log.debug("state of %s: %s", write.partition, write.state)
        leaderless = [one.partition for one in written if one.state.leader == znodes.NO_LEADER]
        text = "%s: no leader, because no in-sync replica is online"
        log_partitions(log, logging.ERROR, text, leaderless)
        return StatesWritten(tuple(written), conflicts, effect.token)

    def _write_assignments(self, effect: WriteAssignments) -> AssignmentsWritten:
        done, found = self._nodes.write_assignments(effect.writes)
        if effect.why is not None and done:
            log_partitions(log, logging.INFO, "%s: " + effect.why, [one.partition for one in done])
        else:
            for write in done:
                log.info("replicas of %s: %s", write.partition, write.assignment)
        return AssignmentsWritten(tuple(done), found, effect.token)

    def _forget_topic(self, name: str) -> None:
        self._topics.forget(name)
        self._nodes.remove_topic(name)
        self._lines.info("deleted topic %s", name)

    def _reply(
        self, token: int, results: Mapping[TopicPartition, object], error: ErrorCode
    ) -> None:
        future = self._futures.pop(token)
        with suppress(InvalidStateError):  # the caller has gone
            if error != ErrorCode.NONE:
                future.set_exception(error_for(error))
            else:
                future.set_result(results)

    def _send(self, effect: SendLeaderAndIsr | SendStopReplica | SendUpdateMetadata) -> None:
        sender = Sender(self._broker_id, self._nodes.epoch, self._listener)
        to = effect.broker_ids if isinstance(effect, SendUpdateMetadata) else (effect.broker_id,)
        for broker_id in to:
            if broker_id not in self._channels:
                continue  # lost meanwhile; it gets everything when it comes back
            broker, channel = self._channels[broker_id]
            request: ControlRequest
            match effect:
                case SendLeaderAndIsr():
                    request = control_requests.leader_and_isr(sender, broker.epoch, effect)
                case SendStopReplica():
                    request = control_requests.stop_replica(sender, broker.epoch, effect)
                case SendUpdateMetadata():
                    request = control_requests.update_metadata(sender, broker.epoch, effect)
            channel.send(request, self._on_response(broker, effect))

    def _on_response(
        self, broker: LiveBroker, sent: SendLeaderAndIsr | SendStopReplica | SendUpdateMetadata
    ) -> Callable[[ControlResponse], None]:
        machine = self.machine
        return lambda response: self._enqueue(
            "", lambda: self._answered(machine, broker, sent, response)
        )

    def _answered(
        self,
        machine: ControllerMachine | None,
        broker: LiveBroker,
        sent: SendLeaderAndIsr | SendStopReplica | SendUpdateMetadata,
        response: ControlResponse,
    ) -> None:
        if machine is None or self.machine is not machine:
            return  # the order was of an earlier election
        match sent, response:
            case _ if response.error_code != ErrorCode.NONE:
                # It knows a newer controller, or has registered again: either will be heard of.
                refusal = error_for(response.error_code, type(sent).__name__)
                log.warning("broker %d refuses an order: %s", broker.id, refusal)
            case SendLeaderAndIsr(drains=True), LeaderAndIsrResponse():
                drained = tuple(one.partition for one in sent.partitions)
                self.feed(DrainAnswered(broker.id, broker.epoch, drained))
            case SendLeaderAndIsr(), LeaderAndIsrResponse():
                names = machine.context.names_by_id()  # a merged order has more than `sent`
                self.feed(control_requests.leader_and_isr_answered(broker, names, response))
            case SendStopReplica(delete=True), StopReplicaResponse():
                self.feed(control_requests.stop_replica_answered(broker, response))
