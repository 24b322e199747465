"""The controller's shell: a thread for its work, and the questions of all other threads.

Every broker has one; all but one wait for /controller to go. Owns the queue: watch callbacks,
brokers' answers and the public methods only enqueue. `controller_loop` does the work.
"""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from typing import Any

from plog.cluster.channels import ChannelFactory
from plog.cluster.controller_context import Assignment
from plog.cluster.controller_events import (
    ElectionsAsked,
    ElectionType,
    IsrsProposed,
    MovesAsked,
    ProposedIsr,
    ReassignmentsAsked,
    ShutdownAsked,
    UncleanEnabled,
)
from plog.cluster.controller_loop import (
    ControllerLoop,
    ControllerSettings,
    Outcomes,
    Question,
    Task,
)
from plog.cluster.election_counts import ElectionCounts
from plog.cluster.reassignment import count_moving
from plog.cluster.store import Store
from plog.errors import ErrorCode
from plog.runtime.clock import Clock
from plog.types import TopicPartition

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
        stands: whether it takes part in elections before `stand` is called.
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
        stands: bool = True,
    ) -> None:
        self._tasks: queue.SimpleQueue[tuple[str, Task] | None] = queue.SimpleQueue()
        self._queued: set[str] = set()
        self._queued_lock = threading.Lock()
        self._thread = threading.Thread(target=self._run, name="controller", daemon=True)
        self.loop = ControllerLoop(
            store,
            broker_id=broker_id,
            channels=channels,
            settings=settings,
            clock=clock,
            inter_broker_listener=inter_broker_listener,
            enqueue=self._enqueue,
            stands=stands,
        )

    # -- for everybody -----------------------------------------------------------------------

    @property
    def is_active(self) -> bool:
        """Whether this broker is the controller, as far as it knows."""
        return self.loop.is_active.is_set()

    @property
    def is_answered(self) -> bool:
        """Whether brokers have answered all orders of this controller."""
        return self.loop.is_answered

    @property
    def epoch(self) -> int:
        """The controller epoch of this broker's last election; 0 before the first."""
        return self.loop.epoch

    @property
    def election_counts(self) -> ElectionCounts:
        """The elections that this broker's controller has written down."""
        return self.loop.election_counts

    @property
    def moving_partitions(self) -> int:
        """How many partitions it moves; 0 if this broker is not the controller."""
        machine = self.loop.machine
        return 0 if machine is None else count_moving(machine.context.topics)

    def start(self) -> Future[None]:
        """Take part in elections from now on.

        The future is done once there is a controller and, if it is this one, once brokers in this
        process lead and follow as it ordered.
        """
        self._thread.start()
        self._enqueue("elect", self.loop.elect)
        return self.loop.joined

    def stand(self) -> None:
        """Take part in elections again, after `resign`."""
        self.loop.stand()

    def resign(self) -> None:
        """Give up the role, if it is ours, and take part in no election."""
        self.loop.withdraw()

    def wait_active(self, timeout_s: float) -> bool:
        """Block until this broker is the controller; False after the timeout."""
        return self.loop.is_active.wait(timeout_s)

    def stop(self) -> None:
        """Give up the role, if it is ours, and end the thread."""
        if self._thread.is_alive():
            self._enqueue("stop", self.loop.on_stop)
            self._tasks.put(None)
            self._thread.join()

    def elect_leaders(
        self,
        election_type: ElectionType,
        partitions: Sequence[TopicPartition] | None,
        is_given_up: Callable[[], bool] = lambda: False,
    ) -> Future[Results]:
        """Elect leaders of partitions, or of all; the future gets a code for each.

        It gets NotController if this broker is not (or no longer) the controller. If the caller has
        given up when its turn comes, it is cancelled.
        """
        asked = None if partitions is None else tuple(partitions)
        return self._ask(lambda token: ElectionsAsked(election_type, asked, token), is_given_up)

    def controlled_shutdown(self, broker_id: int, broker_epoch: int) -> Future[Results]:
        """Move leaderships off a broker that stops; the future gets what it still leads.

        It gets NotController, BrokerNotAvailable or StaleBrokerEpoch instead.
        """
        return self._ask(lambda token: ShutdownAsked(broker_id, broker_epoch, token))

    def propose_isrs(
        self, broker_id: int, broker_epoch: int, isrs: Mapping[TopicPartition, ProposedIsr]
    ) -> Future[Outcomes]:
        """Take the in-sync sets that a leader proposes; the future gets a code or the new state.

        It gets NotController, BrokerNotAvailable or StaleBrokerEpoch instead.
        """
        return self._ask(lambda token: IsrsProposed(broker_id, broker_epoch, isrs, token))

    def reassign(
        self,
        targets: Mapping[TopicPartition, tuple[int, ...] | None],
        is_given_up: Callable[[], bool] = lambda: False,
        *,
        may_change_factor: bool = True,
    ) -> Future[Results]:
        """Move partitions to these replicas (None: give that up); the future gets a code for each.

        Fails as `elect_leaders`.
        """
        return self._ask(
            lambda token: ReassignmentsAsked(targets, token, may_change_factor), is_given_up
        )

    def moves(
        self,
        partitions: Sequence[TopicPartition] | None,
        is_given_up: Callable[[], bool] = lambda: False,
    ) -> Future[Mapping[TopicPartition, Assignment]]:
        """Return which partitions move, of these or of all. Fails as `elect_leaders`."""
        asked = None if partitions is None else tuple(partitions)
        return self._ask(lambda token: MovesAsked(asked, token), is_given_up)

    def on_unclean_enabled(self, topic: str | None) -> None:
        """Look again at partitions without a leader: unclean elections were switched on."""
        self._enqueue("", lambda: self.loop.feed(UncleanEnabled(topic)))

    def _ask(
        self,
        event: Callable[[int], Question],
        is_given_up: Callable[[], bool] = lambda: False,
    ) -> Future[Any]:
        future: Future[Any] = Future()

        def ask() -> None:
            if is_given_up():
                future.cancel()
            else:
                self.loop.ask(event, future)

        self._enqueue("", ask)
        return future

    # -- the thread --------------------------------------------------------------------------

    def _enqueue(self, key: str, task: Task) -> None:
        if key:
            with self._queued_lock:
                if key in self._queued:
                    return
                self._queued.add(key)
        self._tasks.put((key, task))

    def _run(self) -> None:
        while True:
            try:
                item = self._tasks.get(timeout=self.loop.seconds_to_timer())
            except queue.Empty:
                item = ("", self.loop.on_timer)
            if item is None:
                return
            key, task = item
            if key:
                # Before the task reads anything: a later change queues it again.
                with self._queued_lock:
                    self._queued.discard(key)
            self.loop.run(task)
