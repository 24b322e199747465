"""A ZooKeeper: sessions that expire, connections that break, lost responses, servers that lag.

All servers apply the same commits in the same order. A session reads from one of them, which may be
some commits behind; it never goes back. Its server has caught up whenever it answers a write, or a
sync. A client gets the watch event of a change before it can read the change.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence

from plog.cluster.node_tree import NodeTree, Plan
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
    join,
)
from tests.cluster.simulation.scheduler import Scheduler

SESSION_MS = 6_000
FALLS_BEHIND, GOES_ON = 0.2, 0.05
"""How often a read finds that its server is behind, or that it has gone on by a commit."""


class Crashed(BaseException):
    """The process of this store is killed in the middle of what it does."""


class SimZooKeeper:
    """The servers; `tree` has all commits."""

    def __init__(self, scheduler: Scheduler) -> None:
        self.scheduler = scheduler
        self.tree = NodeTree()
        self.stores: list[SimStore] = []
        self.is_up = True
        self.plans: list[Plan] = []
        """Every commit, in order."""
        self.on_commit: list[Callable[[Plan, int], None]] = []
        """Called after each commit, with the session that asked for it; 0: none did."""
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
        self.plans.append(plan)
        for look in self.on_commit:
            look(plan, session)
        for store in self.stores:
            store.on_commit(plan)
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
        suspend: suspends the process for some milliseconds.
    """

    def __init__(
        self,
        servers: SimZooKeeper,
        owner: str,
        is_running: Callable[[], bool] = lambda: True,
        suspend: Callable[[int], None] = lambda for_ms: None,
    ) -> None:
        self._servers = servers
        self._scheduler = servers.scheduler
        self._owner = owner
        self._is_running = is_running
        self._suspend = suspend
        self._watches: dict[tuple[str, str], dict[_SimWatch, Callable[[WatchEvent], None]]] = {}
        self._session_watches: list[Callable[[SessionEvent], None]] = []
        self._session = servers.new_session()
        self.sessions = {self._session}
        """Every session that it has had."""
        self._lagging: NodeTree | None = None
        self._known: dict[tuple[str, str], object] = {}
        """What the watches had seen when the connection was lost."""
        """The tree of its server, if that is behind the others."""
        self._events: deque[SessionEvent] = deque()
        self._connection = 0
        self._is_connected = True
        self._is_closed = False
        self.faults = 0.0
        """The share of writes that fail."""
        self.lag_ms = 0
        """For how long a server is behind, whenever one is; 0: none ever is."""
        self.syncs = True
        """Whether `sync` does anything."""
        self.crash_at = -1
        """The operation in which the process is killed."""
        self.pause_at = -1
        """The operation in which the process is suspended for longer than its session."""
        self.lose_at = -1
        """The operation from which on the next write is done, but its response is lost."""
        self.operations = 0
        servers.stores.append(self)

    @property
    def session_id(self) -> int:
        return self._session

    def is_own(self, session_id: int) -> bool:
        return session_id in self.sessions

    # -- the connection ----------------------------------------------------------------------

    def disconnect(self, for_ms: int) -> None:
        """Lose the connection; the session ends if that lasts too long."""
        if not self._is_connected or self._is_closed:
            return
        self._fall_behind()  # the next server may lack what this one has not shown yet
        self._known = {key: self._seen(key) for key in self._watches}
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
            self.sessions.add(self._session)
            self._lagging = None  # to begin a session is a write
        self._report(SessionEvent.CONNECTED)
        for key in list(self._watches):
            if self._seen(key) != self._known.get(key):
                change = Change.CHILDREN if key[0] == "children" else Change.CHANGED
                self._deliver(key, WatchEvent(change, key[1]))

    def _seen(self, key: tuple[str, str]) -> object:
        """Return what differs between two states of a watch's target."""
        tree = self._servers.tree if self._lagging is None else self._lagging
        kind, path = key
        stat = tree.exists(path)
        if stat is None or kind != "children":
            return stat and (stat.czxid, stat.mzxid)
        return stat.czxid, [tree.nodes[join(path, name)].czxid for name in tree.children(path)]

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

    # -- its server --------------------------------------------------------------------------

    def on_commit(self, plan: Plan) -> None:
        """Report a commit at once, unless the server is behind."""
        if self._lagging is None:
            self._fire(plan)

    def lag(self, for_ms: int) -> None:
        """Have servers be behind from now on, each time for so long at most; 0: no more."""
        self.lag_ms = for_ms
        if for_ms:
            self._fall_behind()
        else:
            self._catch_up()

    def _fall_behind(self) -> None:
        if self.lag_ms and self._lagging is None:
            tree = self._servers.tree
            self._lagging = lagging = NodeTree(tree.nodes, tree.zxid)

            def catch_up() -> None:
                if self._lagging is lagging:
                    self._catch_up()

            self._scheduler.after(self.lag_ms, f"server of {self._owner}", catch_up)

    def _catch_up(self) -> None:
        while self._apply_next():
            pass
        self._lagging = None

    def _apply_next(self) -> bool:
        """Have the server apply a commit that it lacks; return whether there was one."""
        lagging = self._lagging
        if lagging is None or lagging.zxid == self._servers.tree.zxid:
            return False
        plan = self._servers.plans[lagging.zxid]
        lagging.commit(plan)
        self._fire(plan)
        return True

    @property
    def _tree(self) -> NodeTree:
        """What a read sees now."""
        if self.lag_ms:
            random = self._scheduler.random.random()
            if self._lagging is None and random < FALLS_BEHIND:
                self._fall_behind()
            elif random < GOES_ON:
                self._apply_next()
        return self._servers.tree if self._lagging is None else self._lagging

    # -- operations --------------------------------------------------------------------------

    def _begin(self) -> None:
        self.operations += 1
        if self.operations == self.crash_at:
            raise Crashed(self._owner)
        if self.operations == self.pause_at and not self._scheduler.is_undivided:
            self._suspend(3 * SESSION_MS)
            self._scheduler.run(3 * SESSION_MS)
        self._scheduler.interleave()
        if self._is_closed:
            raise SessionLost("closed")
        if not self._servers.is_up:
            self.disconnect(1000)
        if not self._is_connected:
            raise Unreachable("not connected")

    def _loses(self) -> tuple[bool, bool]:
        """Return whether a request is lost, and whether its response is."""
        if 0 <= self.lose_at <= self.operations:
            self.lose_at = -1
            return False, True
        if self._scheduler.random.random() >= self.faults:
            return False, False
        is_done = self._scheduler.random.random() < 0.5
        return not is_done, is_done

    def multi(self, ops: Sequence[Op]) -> list[OpResult]:
        self._begin()
        loses_request, loses_response = self._loses()
        if not loses_request and not loses_response:
            try:
                return self._servers.commit(ops, self._session)
            finally:
                self._catch_up()  # refused or not: its server has got that far
        self._catch_up()
        self._fall_behind()
        if loses_response:
            self._servers.commit(ops, self._session)
        what = "request" if loses_request else "response"
        self._scheduler.note(f"{self._owner}: {what} of {len(ops)} operations lost")
        self.disconnect(self._scheduler.random.choice([10, 500, 2 * SESSION_MS]))
        raise Unreachable("lost")

    def get(self, path: str) -> tuple[bytes, Stat]:
        self._begin()
        return self._tree.get(path)

    def exists(self, path: str) -> Stat | None:
        self._begin()
        return self._tree.exists(path)

    def sync(self) -> None:
        self._begin()
        if self.syncs:
            self._catch_up()

    def children(self, path: str) -> list[str]:
        self._begin()
        return self._tree.children(path)

    # -- watches -----------------------------------------------------------------------------

    def watch_data(self, path: str, callback: Callable[[WatchEvent], None]) -> Watch:
        self._begin()
        return self._watch(("data", path), callback)

    def watch_children(self, path: str, callback: Callable[[WatchEvent], None]) -> Watch:
        self._begin()
        if self._tree.exists(path) is None:
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

    def _fire(self, plan: Plan) -> None:
        """Report changes of the tree, if there is a connection to report them by."""
        if self._is_connected:
            for event in plan.events:
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
