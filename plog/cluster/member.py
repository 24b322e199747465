"""Does what `membership` says, as the session of this broker's store comes and goes.

Owns the thread that registers the broker and reports lost replicas, and the times of the machine.
Never decides when.
"""

from __future__ import annotations

import logging
import queue
import threading
from collections.abc import Callable
from concurrent.futures import Future
from contextlib import suppress

from plog.cluster.broker_registration import BrokerRegistration
from plog.cluster.control_fence import ControlFence
from plog.cluster.controller import Controller
from plog.cluster.membership import Effect, Membership, Orders, State
from plog.cluster.store import SessionEvent, Store, StoreError
from plog.cluster.znodes import BrokerNode
from plog.errors import DuplicateBrokerRegistration
from plog.runtime.clock import Clock

log = logging.getLogger(__name__)

TICK_S = 0.5
"""Between two looks at the time, where something is due at a time."""
CALM_TICK_S = 5.0
"""Where nothing is: the store's client may have failed, which it does not say."""


class Member:
    """This broker as a member of its cluster.

    Args:
        node: returns what the registration says of this broker.
        read_again: has settings and features read, whose changes may have been missed.
        remember: writes a new session down, for the process after this one.
        on_end: hears why this process has to end. Called on the member's thread, once.
        timeout_ms: returns for how long the servers keep a silent session.
    """

    def __init__(
        self,
        store: Store,
        *,
        registration: BrokerRegistration,
        node: Callable[[], BrokerNode],
        fence: ControlFence,
        controller: Controller,
        read_again: Callable[[], None],
        remember: Callable[[], None] = lambda: None,
        on_end: Callable[[str], None] = lambda reason: None,
        clock: Clock,
        timeout_ms: Callable[[], int],
    ) -> None:
        self._store = store
        self._registration = registration
        self._node = node
        self._fence = fence
        self._controller = controller
        self._read_again = read_again
        self._remember = remember
        self._on_end = on_end
        self._clock = clock
        self._timeout_ms = timeout_ms
        self._machine = Membership(timeout_ms())
        self.sessions = 0
        """Sessions in which this broker has registered, or tried to."""
        self._remembered = -1
        self._end_reason = "the client of the coordination store has failed"
        self._joined: Future[int] = Future()
        self._retry_ms: int | None = None
        self._is_report_queued = False
        self._todo: queue.SimpleQueue[Callable[[], Orders] | None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._run, name="membership", daemon=True)
        self._watches = [store.watch_session(self._on_session)]
        self._is_watched = False
        """Whether changes of the registration are reported."""

    def start(self) -> int:
        """Register, and take part in elections from now on; return the broker epoch.

        Raises:
            DuplicateBrokerRegistration: another live process has the broker's id or an address.
            StoreError: the registration cannot be written.
        """
        self.note_connected()
        self._thread.start()
        return self._joined.result()

    @property
    def is_connected(self) -> bool:
        """Whether there is a connection to the coordination store."""
        return self._machine.is_connected

    @property
    def has_ended(self) -> bool:
        """Whether this broker cannot be a member any more."""
        return self._machine.state is State.ENDED

    def report_lost_replicas(self) -> None:
        """Have the controller ask which replicas this broker can serve. Safe from any thread.

        Waits for nothing: the report is written once there is a connection to the store.
        """
        if not self._is_report_queued:  # one report stands for all losses before it
            self._is_report_queued = True
            self._todo.put(self._replicas_lost)

    def _replicas_lost(self) -> Orders:
        self._is_report_queued = False
        return self._machine.replicas_lost()

    def stop(self) -> None:
        """End the thread. The registration goes with the session."""
        self._todo.put(None)
        if self._thread.is_alive():
            self._thread.join()  # first: it may still watch the registration
        for watch in self._watches:
            watch.cancel()

    def _on_session(self, event: SessionEvent) -> None:
        match event:
            case SessionEvent.CONNECTED:
                self._todo.put(self._connected)
            case SessionEvent.SUSPENDED:
                # kazoo asks each third of the time whether a server is there, and waits as long.
                at_ms = self._clock.since_boot_ms() - self._timeout_ms() * 2 // 3
                self._todo.put(lambda: self._machine.suspended(at_ms))
            case SessionEvent.LOST:
                self._todo.put(self._machine.lost)

    def _connected(self) -> Orders:
        self._machine.timeout_ms = self._timeout_ms()
        return self._machine.connected(self._store.session_id)

    def run_due(self) -> None:
        """Do the steps that are due. A simulation calls this time and again, instead of `start`."""
        while not self._todo.empty():
            call = self._todo.get_nowait()
            if call is not None:
                self._do(call())
        self._do(self._on_time())

    def note_connected(self) -> None:
        """Have the broker registered, in the session that there is."""
        self._on_session(SessionEvent.CONNECTED)

    def _run(self) -> None:
        try:
            self._serve()
        except Exception as bug:
            # Deliberately broad: without this thread the broker would serve on, and never register
            # again. Another process may do better.
            log.exception("the membership of this broker has failed")
            if self._joined.done():
                self._on_end("its membership of the cluster has failed: the lines above say where")
            else:
                self._joined.set_exception(bug)

    def _serve(self) -> None:
        while True:
            with suppress(queue.Empty):
                call = self._todo.get(timeout=self._tick_s)
                if call is None:
                    return
                self._do(call())
            self._do(self._on_time())

    @property
    def _tick_s(self) -> float:
        is_due = self._retry_ms is not None or self._machine.state is State.SUSPENDED
        return TICK_S if is_due else CALM_TICK_S

    def _on_time(self) -> Orders:
        if self._store.has_failed:
            return self._machine.no_client()
        now_ms = self._clock.since_boot_ms()
        if self._retry_ms is not None and now_ms >= self._retry_ms:
            self._retry_ms = None
            return self._machine.retry()
        return self._machine.tick(now_ms)

    def _do(self, orders: Orders) -> None:
        for effect in orders.effects:
            match effect:
                case Effect.REGISTER:
                    self._do(self._register(self._store.session_id))
                case Effect.LOOK:
                    self._do(self._look(self._store.session_id))
                case Effect.READ_AGAIN:
                    self._read_again()
                case Effect.STAND:
                    self._controller.stand()
                case Effect.RESIGN:
                    self._controller.resign()
                case Effect.REPORT:
                    self._do(self._report())
                case Effect.RETRY_LATER:
                    self._retry_ms = self._clock.since_boot_ms() + orders.retry_ms
                case Effect.END:
                    self._on_end(self._end_reason)

    def _register(self, session_id: int) -> Orders:
        if session_id != self._remembered:
            self._remembered = session_id
            self.sessions += 1
            self._remember()
        try:
            if not self._is_watched:
                self._watches.append(self._registration.watch(self._on_node))
                self._is_watched = True
            node = self._node()
            epoch = self._registration.register(node)
            self._check_addresses(node, epoch)
        except (DuplicateBrokerRegistration, StoreError) as refused:
            if not self._joined.done():
                self._joined.set_exception(refused)
            elif isinstance(refused, DuplicateBrokerRegistration):
                # It leads what this broker led: what clients write here would be lost.
                self._end_reason = f"while this broker was not registered: {refused}"
                return self._machine.taken(session_id)
            else:
                log.error("cannot register this broker, trying again: %s", refused)
            return self._machine.failed(session_id)
        if self._store.session_id != session_id:
            self._remember()  # it is registered in another session, which has begun meanwhile
        self._fence.broker_epoch = epoch
        if not self._joined.done():
            self._joined.set_result(epoch)
        return self._machine.registered(session_id, epoch)

    def _check_addresses(self, node: BrokerNode, epoch: int) -> None:
        try:
            self._registration.check_addresses(node, epoch)
        except DuplicateBrokerRegistration as taken:
            if not self._joined.done():
                raise
            # Clients of the other broker fail as long as both run. Those of this one need not.
            log.error("another broker has an address of this one: %s", taken)

    def _on_node(self) -> None:
        self._todo.put(self._machine.node_changed)

    def _look(self, session_id: int) -> Orders:
        try:
            if self._registration.is_of(session_id):
                return Orders(())
        except StoreError as error:
            log.info("cannot look for this broker's registration, trying again: %s", error)
            return self._machine.failed(session_id)
        orders = self._machine.gone(session_id)
        if orders.effects:
            log.warning("this broker's registration is gone: another program has deleted it")
        return orders

    def _report(self) -> Orders:
        session_id = self._store.session_id
        try:
            self._registration.report_lost_replicas()
        except StoreError as error:
            log.error("cannot report lost replicas to the controller, trying again: %s", error)
            return self._machine.failed(session_id)
        self._machine.reported()
        return Orders(())
