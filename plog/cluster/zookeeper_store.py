"""The coordination store on a ZooKeeper that several brokers share.

Owns the session, and what the answers of the servers mean: an operation without one has an unknown
outcome (`Unreachable`); reads are tried again. A session that expired is followed by a new one,
in which they are tried too.
Never decides what the nodes mean. `zookeeper_watches` keeps the watches armed.

Threads: kazoo's three; nothing waits for an answer there. Callbacks run on the watches' thread.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, TypeVar

from kazoo import exceptions as zk
from kazoo.client import KazooClient, KazooState
from kazoo.handlers.threading import KazooTimeoutError
from kazoo.protocol.states import KeeperState, ZnodeStat

from plog.cluster.store import (
    BadVersion,
    CheckOp,
    CreateOp,
    DeleteOp,
    NoChildrenForEphemerals,
    NodeExists,
    NoNode,
    NotEmpty,
    Op,
    OpResult,
    SessionEvent,
    SessionExpired,
    SessionLost,
    SetOp,
    Stat,
    Store,
    StoreError,
    Unreachable,
    Watch,
    WatchEvent,
    check_path,
)
from plog.cluster.zookeeper_client import OPEN, Access, Client, Session
from plog.cluster.zookeeper_watches import Read, ZooKeeperWatches
from plog.settings.zookeeper_connect import parse_connect

log = logging.getLogger(__name__)

T = TypeVar("T")

AT_ONCE = 200
"""Reads that are asked before the first answer."""
PAUSE_S = 0.05
MAX_PAUSE_S = 1.0

ERRORS: dict[type[Exception], type[StoreError]] = {
    zk.NoNodeError: NoNode,
    zk.NodeExistsError: NodeExists,
    zk.BadVersionError: BadVersion,
    zk.NotEmptyError: NotEmpty,
    zk.NoChildrenForEphemeralsError: NoChildrenForEphemerals,
    zk.ConnectionClosedError: SessionLost,  # before the error of which it is a kind
    zk.SessionExpiredError: SessionExpired,
    zk.AuthFailedError: SessionLost,
    zk.ConnectionLoss: Unreachable,
    zk.OperationTimeoutError: Unreachable,
    zk.SessionMovedError: Unreachable,
    KazooTimeoutError: Unreachable,
}
ROLLED_BACK = (zk.RolledBackError, zk.RuntimeInconsistency)
SESSION_EVENTS = {
    KazooState.CONNECTED: SessionEvent.CONNECTED,
    KazooState.SUSPENDED: SessionEvent.SUSPENDED,
    KazooState.LOST: SessionEvent.LOST,
}
NO_CLIENT = (KeeperState.CLOSED, KeeperState.AUTH_FAILED)
"""kazoo's thread ends in these: by `stop`, or after an error that it does not know."""


class ZooKeeperStore(Store):
    """A `Store` that other brokers share.

    Args:
        connect: `zookeeper.connect`: hosts with ports, and the path below which the nodes are.
        session_timeout_ms: how long the servers are asked to keep a session that is silent.
        connection_timeout_ms: how long the constructor waits for the first connection.
        access: the user that the broker is to the servers.
        makes_root: create the path of `connect`; otherwise it may be missing, until `make_root`.

    Raises (on construction):
        Unreachable: no server answered in time.
    """

    def __init__(
        self,
        connect: str,
        *,
        session_timeout_ms: int = 18_000,
        connection_timeout_ms: int = 18_000,
        access: Access = OPEN,
        makes_root: bool = True,
    ) -> None:
        self._connect = connect
        servers, path = parse_connect(connect)
        self._client = Client(servers, session_timeout_ms / 1000, access)
        self._closed = threading.Event()
        self._session = Session(0, b"")
        """The last one: kazoo has none while it has no connection."""
        self._session_ids: set[int] = set()
        self._may_ask = threading.Event()
        """Set while there is a connection, and once there is none any more.

        kazoo would take requests without one, and send them when there is one again.
        """
        self._lost_connections = 0
        self._watches = ZooKeeperWatches(self._client, self._reading_now)
        self._client.add_listener(self._on_state)
        self._start(connection_timeout_ms / 1000)
        self._client.chroot = path
        if makes_root:
            try:
                self.make_root()
            except StoreError:
                self.close()
                raise

    def make_root(self) -> None:
        """Create the path of `connect` where it is missing, before other threads use the store.

        Raises StoreError.
        """
        # Below a chroot kazoo creates nothing above it.
        root, self._client.chroot = self._client.chroot, ""
        try:
            if root:  # made twice it is made once: as a read, it is asked again
                self._reading(lambda: self._client.ensure_path_async(root), root)
        finally:
            self._client.chroot = root

    def _start(self, within_s: float) -> None:
        # kazoo's `start` gives up at once where the first connection is lost at once.
        self._client.start_async()
        if not self._may_ask.wait(within_s):
            self.close()
            raise Unreachable(f"no ZooKeeper answers at {self._connect}")

    @property
    def session_timeout_ms(self) -> int:
        """How long the servers keep a session that is silent."""
        timeout_ms: int = self._client.session_timeout_ms
        return timeout_ms

    @property
    def _timeout_s(self) -> float:
        return self.session_timeout_ms / 1000

    @property
    def session_id(self) -> int:
        """The number that the servers gave the session."""
        return self.session.id

    def is_own(self, session_id: int) -> bool:
        """See `Store.is_own`."""
        return session_id in self._session_ids

    @property
    def has_failed(self) -> bool:
        """See `Store.has_failed`."""
        return self._client.client_state in NO_CLIENT and not self._closed.is_set()

    @property
    def session(self) -> Session:
        """The session, or the last one: what a process needs that is to take it over."""
        return self._session

    @property
    def has_ended_session(self) -> bool:
        """Whether a server has answered `close`. Otherwise the session ends in its time."""
        return self._client.has_ended_session

    # -- operations ------------------------------------------------------------------------

    def multi(self, ops: Sequence[Op]) -> list[OpResult]:
        """See `Store.multi`. Raises Unreachable: it may have been done."""
        asked = self._client.transaction()
        for op in ops:
            check_path(op.path)
            match op:
                case CreateOp(path, data, ephemeral, sequential):
                    asked.create(path, data, ephemeral=ephemeral, sequence=sequential)
                case SetOp(path, data, version):
                    asked.set_data(path, data, version)
                case DeleteOp(path, version):
                    asked.delete(path, version)
                case CheckOp(path, version):
                    asked.check(path, version)
        until = time.monotonic() + self._timeout_s
        self._await_connection(until)
        with self._errors():
            results = asked.commit_async().get(timeout=max(until - time.monotonic(), PAUSE_S))
        _raise_first(ops, results)
        return [_result(op, result) for op, result in zip(ops, results, strict=True)]

    def get(self, path: str) -> tuple[bytes, Stat]:
        """See `Store.get`."""
        data, stat = self._reading(lambda: self._client.get_async(path), path)
        return data, _stat(stat)

    def get_many(self, paths: Sequence[str]) -> list[tuple[bytes, Stat] | None]:
        """See `Store.get_many`."""
        found: list[tuple[bytes, Stat] | None] = []
        for answer in self._reading_many([_get(self._client, path) for path in paths]):
            if isinstance(answer, NoNode):
                found.append(None)
            elif isinstance(answer, StoreError):
                raise answer
            else:
                data, stat = answer
                found.append((data, _stat(stat)))
        return found

    def sync(self) -> None:
        """See `Store.sync`: a server may be behind the others."""
        self._reading(lambda: self._client.sync_async("/"), "/")

    def exists(self, path: str) -> Stat | None:
        """See `Store.exists`."""
        found = self._reading(lambda: self._client.exists_async(path), path)
        return None if found is None else _stat(found)

    def children(self, path: str) -> list[str]:
        """See `Store.children`."""
        return sorted(self._reading(lambda: self._client.get_children_async(path), path))

    def _reading_many(self, reads: Sequence[Read]) -> Iterator[Any]:
        """Yield the answer of each read, or the StoreError that it is. Many are asked at a time.

        Those that are asked together have a session's time for their answers.

        Raises:
            Unreachable, SessionLost: one has no answer, although it was asked again.
        """
        for begin in range(0, len(reads), AT_ONCE):
            piece = reads[begin : begin + AT_ONCE]
            until = time.monotonic() + self._timeout_s
            self._await_connection(until)
            asked = [read.ask() for read in piece]
            for read, answer in zip(piece, asked, strict=True):
                yield self._answer(read, answer, until)

    def _answer(self, read: Read, answer: Any, until: float) -> Any:
        try:
            try:
                with self._errors(read.path):
                    return answer.get(timeout=max(until - time.monotonic(), PAUSE_S))
            except (Unreachable, SessionExpired):
                return self._reading(read.ask, read.path, until)
        except (Unreachable, SessionLost):
            raise
        except StoreError as error:
            return error

    def _reading(self, ask: Callable[[], Any], path: str, until: float | None = None) -> Any:
        """Return the answer to a read. Without one it is asked again, for a session's time."""

        def read(within_s: float) -> Any:
            with self._errors(path):
                return ask().get(timeout=within_s)

        return self._retrying(read, until)

    def _retrying(self, call: Callable[[float], T], until: float | None = None) -> T:
        """Return the result of a call that changes nothing. Without an answer it is made again.

        Args:
            call: gets how long it may take.
            until: when it is given up; None: after a session's time.
        """
        until = time.monotonic() + self._timeout_s if until is None else until
        pause_s = PAUSE_S
        while True:
            self._await_connection(until)
            left_s = until - time.monotonic()
            try:
                return call(max(left_s, PAUSE_S))
            except (Unreachable, SessionExpired):
                if left_s <= pause_s or self._closed.wait(pause_s):
                    raise
                pause_s = min(2 * pause_s, MAX_PAUSE_S)

    def _reading_now(self, reads: Sequence[Read]) -> Iterator[Any]:
        """Yield the answers as `_reading_many` does, but ask once, and wait for no connection.

        For the watches' thread, which has to tell at once that the connection is lost. kazoo loses
        one that is silent for two thirds of the session's time, and fails the requests before.
        """
        for begin in range(0, len(reads), AT_ONCE):
            piece = reads[begin : begin + AT_ONCE]
            lost_before = self._lost_connections
            asked = [read.ask() for read in piece]
            if not self._client.connected or self._lost_connections > lost_before:
                # Asked after kazoo had failed all others, these wait for the next connection.
                raise self._no_connection()
            for read, answer in zip(piece, asked, strict=True):
                yield self._answer_now(read, answer)

    def _answer_now(self, read: Read, answer: Any) -> Any:
        try:
            with self._errors(read.path):
                return answer.get(timeout=self._timeout_s)
        except (Unreachable, SessionLost):
            raise
        except StoreError as error:
            return error

    def _await_connection(self, until: float) -> None:
        """Wait for a connection, or for the end of the store. Raises Unreachable."""
        if not self._may_ask.wait(max(until - time.monotonic(), 0)):
            raise self._no_connection()

    def _no_connection(self) -> Unreachable:
        return Unreachable(f"no connection to ZooKeeper at {self._connect}")

    @contextmanager
    def _errors(self, what: str = "") -> Iterator[None]:
        try:
            yield
        except tuple(ERRORS) as error:
            raise self._error(error, what) from error
        except zk.ZookeeperError as error:
            raise _unforeseen(error, what) from error

    def _error(self, error: Exception, what: str) -> StoreError:
        for kind, meaning in ERRORS.items():
            if isinstance(error, kind):
                if meaning is Unreachable:
                    return Unreachable(f"no answer from ZooKeeper at {self._connect}")
                if issubclass(meaning, SessionLost):
                    return meaning(f"the session with ZooKeeper at {self._connect} is over")
                return meaning(what)
        raise AssertionError(error)

    # -- watches -----------------------------------------------------------------------------

    def watch_data(self, path: str, callback: Callable[[WatchEvent], None]) -> Watch:
        """See `Store.watch_data`."""
        return self.watch_data_many([path], callback)[0]

    def watch_data_many(
        self, paths: Sequence[str], callback: Callable[[WatchEvent], None]
    ) -> list[Watch]:
        """See `Store.watch_data_many`."""
        for path in paths:
            check_path(path)
        return self._retrying(lambda _: self._watches.data(paths, callback))

    def watch_children(self, path: str, callback: Callable[[WatchEvent], None]) -> Watch:
        """See `Store.watch_children`."""
        check_path(path)
        return self._retrying(lambda _: self._watches.children(path, callback))

    def watch_session(self, callback: Callable[[SessionEvent], None]) -> Watch:
        """See `Store.watch_session`."""
        return self._watches.session(callback)

    def _on_state(self, state: KazooState) -> None:
        # On kazoo's thread: nothing may wait here.
        if state == KazooState.CONNECTED:
            self._session = Session(*(self._client.client_id or self._session))
            self._session_ids.add(self._session.id)
            self._may_ask.set()
        else:
            self._lost_connections += 1
            if not self._closed.is_set():
                self._may_ask.clear()
        if not self._closed.is_set():
            self._log_state(state)
        self._watches.note_session(SESSION_EVENTS[state])

    def _log_state(self, state: KazooState) -> None:
        match state:
            case KazooState.SUSPENDED:
                log.warning("no connection to ZooKeeper at %s", self._connect)
            case KazooState.LOST:
                log.warning("the session with ZooKeeper at %s is over", self._connect)
            case KazooState.CONNECTED:
                log.info(
                    "connected to ZooKeeper at %s, session %#x", self._connect, self.session_id
                )

    def close(self) -> None:
        """See `Store.close`."""
        if self._closed.is_set():
            return
        self._closed.set()
        self._may_ask.set()  # callers that wait hear that the session is over
        self._watches.stop()
        self._client.stop()
        self._client.close()


def end_session(connect: str, session: Session, *, within_s: float) -> bool:
    """End a session that a process before this one left; return whether it was still there.

    Its ephemeral nodes go at once, instead of after the session's time.

    Raises:
        Unreachable: no server answered in time.
    """
    until = time.monotonic() + within_s
    was_there = False
    # A server that is busy may lose the connection by which it was to end the session.
    while _takes_over(connect, session, within_s=until - time.monotonic()):
        was_there = True
    return was_there


def _takes_over(connect: str, session: Session, *, within_s: float) -> bool:
    """Take a session over and close it; return whether it was there. Raises Unreachable."""
    if within_s <= 0:
        raise Unreachable(f"no ZooKeeper answers at {connect}")
    client = Client(parse_connect(connect).servers, within_s, session=session)
    try:
        client.start(within_s)
        return client.client_id is not None and client.client_id[0] == session.id
    except KazooTimeoutError:
        # Either in time, or at once: connected, and disconnected again.
        return True
    finally:
        client.stop()
        client.close()


def _unforeseen(error: Exception, path: str) -> StoreError:
    if isinstance(error, zk.NoAuthError):
        return StoreError(f"ZooKeeper refuses this broker access to {path}: check zookeeper.digest")
    return StoreError(f"ZooKeeper: {type(error).__name__} {path}")


def _get(client: KazooClient, path: str) -> Read:
    return Read(lambda: client.get_async(path), path)


def _raise_first(ops: Sequence[Op], results: Sequence[Any]) -> None:
    """Raise the error of the operation that failed, if one did."""
    for index, result in enumerate(results):
        if isinstance(result, Exception) and not isinstance(result, ROLLED_BACK):
            meaning = ERRORS.get(type(result))
            path = ops[index].path
            error = _unforeseen(result, path) if meaning is None else meaning(path)
            error.op_index = index
            raise error


def _result(op: Op, result: Any) -> OpResult:
    if isinstance(op, CreateOp):
        return str(result)
    return _stat(result) if isinstance(op, SetOp) else None


def _stat(found: ZnodeStat) -> Stat:
    return Stat(
        version=found.version,
        czxid=found.czxid,
        mzxid=found.mzxid,
        ctime_ms=found.ctime,
        mtime_ms=found.mtime,
        ephemeral_owner=found.ephemeralOwner or 0,
        num_children=found.numChildren,
    )
