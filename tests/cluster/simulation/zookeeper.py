"""A ZooKeeper of one tree: sessions that expire, connections that break, answers that are lost."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence

from plog.cluster.node_tree import NodeTree
from plog.cluster.store import (
    Change,
    DeleteOp,
    NoNode,
    Op,
    OpResult,
    SessionEvent,
    SessionLost,
    Stat,
    Store,
    Unreachable,
    Watch,
    WatchEvent,
)
from tests.cluster.simulation.scheduler import Scheduler

SESSION_MS = 6_000


class Crashed(BaseException):
    """The process of this store is killed in the middle of what it does."""


class SimZooKeeper:
    """The servers."""

    def __init__(self, scheduler: Scheduler) -> None:
        self.scheduler = scheduler
        self.tree = NodeTree()
        self.stores: list[SimStore] = []
        self.is_up = True
        self.on_commit: list[Callable[[Sequence[Op]], None]] = []
        self._sessions = 0
        self._live: set[int] = set()

    def new_session(self) -> int:
        """Begin a session."""
        self._sessions += 1
        session = (1 << 40) + self._sessions
        self._live.add(session)
        return session

    def is_live(self, session: int) -> bool:
        """Return whether a session goes on."""
        return session in self._live

    def expire(self, session: int) -> None:
        """End a session; its ephemeral nodes go."""
        if session in self._live:
            self._live.discard(session)
            self.scheduler.note(f"session {session & 0xFFFF} is over")
            gone = self.tree.ephemerals(session)
            if gone:
                self.commit([DeleteOp(path) for path in gone], 0)

    def commit(self, ops: Sequence[Op], session: int) -> list[OpResult]:
        """Do operations, and have watches fire."""
        plan = self.tree.plan(ops, session_id=session, now_ms=self.scheduler.clock.now_ms())
        if not plan.rows:
            return plan.results
        self.tree.commit(plan)
        for look in self.on_commit:
            look(ops)
        for store in self.stores:
            store.fire(plan.events)
        return plan.results


class _SimWatch(Watch):
    def __init__(self, store: SimStore, key: tuple[str, str]) -> None:
        self._store, self._key = store, key

    def cancel(self) -> None:
        self._store.drop(self._key, self)


class SimStore(Store):
    """One process's client.

    Args:
        owner: the process; events are delivered to it only while it runs.
        is_running: returns whether it does.
    """

    def __init__(self, servers: SimZooKeeper, owner: str, is_running: Callable[[], bool]) -> None:
        self._servers = servers
        self._scheduler = servers.scheduler
        self._owner = owner
        self._is_running = is_running
        self._watches: dict[tuple[str, str], dict[_SimWatch, Callable[[WatchEvent], None]]] = {}
        self._session_watches: list[Callable[[SessionEvent], None]] = []
        self._session = servers.new_session()
        self._events: deque[SessionEvent] = deque()
        self._connection = 0
        self._is_connected = True
        self._is_closed = False
        self.faults = 0.0
        """The share of operations that fail."""
        self.crash_at = -1
        """The operation in which the process is killed."""
        self.pause_at = -1
        """The operation in which the process is suspended for longer than its session."""
        self.operations = 0
        servers.stores.append(self)

    @property
    def session_id(self) -> int:
        return self._session

    # -- the connection ----------------------------------------------------------------------

    def disconnect(self, for_ms: int) -> None:
        """Lose the connection; the session ends if that lasts too long."""
        if not self._is_connected or self._is_closed:
            return
        self._is_connected = False
        self._connection += 1
        connection, session = self._connection, self._session
        servers = self._servers

        def expire() -> None:
            if self._connection == connection and not self._is_connected:
                servers.expire(session)

        self._scheduler.after(SESSION_MS, "zookeeper", expire)
        self._report(SessionEvent.SUSPENDED)
        self._scheduler.after(for_ms, f"link of {self._owner}", lambda: self._connect(connection))

    def _connect(self, connection: int) -> None:
        if self._is_closed or self._is_connected or self._connection != connection:
            return
        if not self._servers.is_up or not self._is_running():
            self._scheduler.after(500, f"link of {self._owner}", lambda: self._connect(connection))
            return
        self._is_connected = True
        if not self._servers.is_live(self._session):
            self._report(SessionEvent.LOST)
            self._session = self._servers.new_session()
        self._report(SessionEvent.CONNECTED)
        for kind, path in list(self._watches):
            change = Change.CHILDREN if kind == "children" else Change.CHANGED
            self._deliver((kind, path), WatchEvent(change, path))

    def die(self) -> None:
        """The process is gone. Its session goes on until it expires."""
        self._is_closed = True
        session = self._session
        self._scheduler.after(SESSION_MS, "zookeeper", lambda: self._servers.expire(session))
        if self in self._servers.stores:
            self._servers.stores.remove(self)

    def close(self) -> None:
        self._is_closed = True
        self._servers.expire(self._session)
        if self in self._servers.stores:
            self._servers.stores.remove(self)

    # -- operations --------------------------------------------------------------------------

    def _begin(self) -> None:
        self.operations += 1
        if self.operations == self.crash_at:
            raise Crashed(self._owner)
        if self.operations == self.pause_at:
            self._scheduler.note(f"{self._owner} is suspended in an operation")
            self.disconnect(3 * SESSION_MS)
            self._scheduler.run(3 * SESSION_MS)
        self._scheduler.interleave()
        if self._is_closed:
            raise SessionLost("closed")
        if not self._servers.is_up:
            self.disconnect(1000)
        if not self._is_connected:
            raise Unreachable("not connected")

    def _is_faulty(self) -> bool:
        return self._scheduler.random.random() < self.faults

    def multi(self, ops: Sequence[Op]) -> list[OpResult]:
        self._begin()
        if not self._is_faulty():
            return self._servers.commit(ops, self._session)
        if self._scheduler.random.random() < 0.5:
            self._servers.commit(ops, self._session)
            self._scheduler.note(f"{self._owner}: answer lost, {len(ops)} operations done")
        else:
            self._scheduler.note(f"{self._owner}: request lost")
        self.disconnect(self._scheduler.random.choice([10, 500, 2 * SESSION_MS]))
        raise Unreachable("lost")

    def get(self, path: str) -> tuple[bytes, Stat]:
        self._begin()
        return self._servers.tree.get(path)

    def exists(self, path: str) -> Stat | None:
        self._begin()
        return self._servers.tree.exists(path)

    def sync(self) -> None:
        """See `Store.sync`: a read sees every write."""

    def children(self, path: str) -> list[str]:
        self._begin()
        return self._servers.tree.children(path)

    # -- watches -----------------------------------------------------------------------------

    def watch_data(self, path: str, callback: Callable[[WatchEvent], None]) -> Watch:
        self._begin()
        return self._watch(("data", path), callback)

    def watch_children(self, path: str, callback: Callable[[WatchEvent], None]) -> Watch:
        self._begin()
        if self._servers.tree.exists(path) is None:
            raise NoNode(path)
        return self._watch(("children", path), callback)

    def _watch(self, key: tuple[str, str], callback: Callable[[WatchEvent], None]) -> Watch:
        watch = _SimWatch(self, key)
        self._watches.setdefault(key, {})[watch] = callback
        return watch

    def drop(self, key: tuple[str, str], watch: _SimWatch) -> None:
        self._watches.get(key, {}).pop(watch, None)

    def watch_session(self, callback: Callable[[SessionEvent], None]) -> Watch:
        self._session_watches.append(callback)
        return _SimWatch(self, ("session", ""))

    def fire(self, events: Sequence[WatchEvent]) -> None:
        """Report changes of the tree, if there is a connection to report them by."""
        if self._is_connected:
            for event in events:
                kind = "children" if event.change is Change.CHILDREN else "data"
                self._deliver((kind, event.path), event)

    def _deliver(self, key: tuple[str, str], event: WatchEvent) -> None:
        for watch, callback in list(self._watches.get(key, {}).items()):

            def call(
                watch: _SimWatch = watch, callback: Callable[[WatchEvent], None] = callback
            ) -> None:
                if self._is_closed or watch not in self._watches.get(key, {}):
                    return
                if self._is_running():
                    callback(event)
                else:
                    self._scheduler.after(500, f"watches of {self._owner}", call)

            self._scheduler.soon(f"watches of {self._owner}", call)

    def _report(self, event: SessionEvent) -> None:
        self._events.append(event)
        self._scheduler.soon(f"session of {self._owner}", self._report_next)

    def _report_next(self) -> None:
        if self._is_closed:
            return
        if not self._is_running():
            self._scheduler.after(500, f"session of {self._owner}", self._report_next)
            return
        event = self._events.popleft()
        for callback in self._session_watches:
            callback(event)
