"""The coordination store on a ZooKeeper that several brokers share.

Owns the session, and what the answers of the servers mean: an operation without one has an unknown
outcome (`Unreachable`); reads are tried again. A session that expired is followed by a new one.
Never decides what the nodes mean. `zookeeper_watches` keeps the watches armed.

Threads: kazoo's two; nothing waits for an answer there. Callbacks run on the watches' thread.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple, TypeVar

from kazoo import exceptions as zk
from kazoo.client import KazooClient, KazooState
from kazoo.handlers.threading import KazooTimeoutError
from kazoo.protocol.states import ZnodeStat
from kazoo.retry import KazooRetry

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
from plog.cluster.zookeeper_watches import ZooKeeperWatches

log = logging.getLogger(__name__)

T = TypeVar("T")

AT_ONCE = 500
"""Reads that are asked before the first answer."""
RECONNECT_S = 0.1
PAUSE_S = 0.05
MAX_PAUSE_S = 1.0

ERRORS: dict[type[Exception], type[StoreError]] = {
    zk.NoNodeError: NoNode,
    zk.NodeExistsError: NodeExists,
    zk.BadVersionError: BadVersion,
    zk.NotEmptyError: NotEmpty,
    zk.NoChildrenForEphemeralsError: NoChildrenForEphemerals,
    zk.SessionExpiredError: SessionLost,
    zk.ConnectionClosedError: SessionLost,
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


class Session(NamedTuple):
    """What another process needs to take a session over. The password is a secret."""

    id: int
    password: bytes


class ZooKeeperStore(Store):
    """A `Store` that other brokers share.

    Args:
        connect: `zookeeper.connect`: hosts with ports, and the path below which the nodes are.
        session_timeout_ms: how long the servers keep a session that is silent.
        connection_timeout_ms: how long the constructor waits for the first connection.
        digest: user and password, for digest authentication.

    Raises (on construction):
        Unreachable: no server answered in time.
    """

    def __init__(
        self,
        connect: str,
        *,
        session_timeout_ms: int = 18_000,
        connection_timeout_ms: int = 18_000,
        digest: tuple[str, str] | None = None,
    ) -> None:
        self._connect = connect
        self._timeout_s = session_timeout_ms / 1000
        auth = [] if digest is None else [("digest", ":".join(digest))]
        hosts, slash, root = connect.partition("/")
        self._client = _client(hosts, self._timeout_s, auth)
        self._closed = threading.Event()
        self._watches = ZooKeeperWatches(self._client, self._reading)
        self._client.add_listener(self._on_state)
        self._start(connection_timeout_ms / 1000)
        if slash and root:
            with self._errors():
                self._client.ensure_path(f"/{root}")
            self._client.chroot = f"/{root}"

    def _start(self, within_s: float) -> None:
        try:
            self._client.start(within_s)
        except KazooTimeoutError:
            self.close()
            raise Unreachable(f"no ZooKeeper answers at {self._connect}") from None

    @property
    def session_id(self) -> int:
        """The number that the servers gave the session."""
        return self.session.id

    @property
    def session(self) -> Session:
        """The session, for a process that is to take it over."""
        return Session(*(self._client.client_id or (0, b"")))

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
        with self._errors():
            results = asked.commit_async().get(timeout=self._timeout_s)
        _raise_first(ops, results)
        return [_result(op, result) for op, result in zip(ops, results, strict=True)]

    def get(self, path: str) -> tuple[bytes, Stat]:
        """See `Store.get`."""
        data, stat = self._reading(lambda: self._client.get_async(path), path)
        return data, _stat(stat)

    def get_many(self, paths: Sequence[str]) -> list[tuple[bytes, Stat] | None]:
        """See `Store.get_many`."""
        found: list[tuple[bytes, Stat] | None] = []
        for begin in range(0, len(paths), AT_ONCE):
            piece = paths[begin : begin + AT_ONCE]
            asked = [self._client.get_async(path) for path in piece]
            for path, answer in zip(piece, asked, strict=True):
                found.append(self._answer_or_none(path, answer))
        return found

    def _answer_or_none(self, path: str, answer: Any) -> tuple[bytes, Stat] | None:
        try:
            with self._errors(path):
                data, stat = answer.get(timeout=self._timeout_s)
        except NoNode:
            return None
        except Unreachable:
            return self._get_or_none(path)  # which tries again
        return data, _stat(stat)

    def exists(self, path: str) -> Stat | None:
        """See `Store.exists`."""
        found = self._reading(lambda: self._client.exists_async(path), path)
        return None if found is None else _stat(found)

    def children(self, path: str) -> list[str]:
        """See `Store.children`."""
        return sorted(self._reading(lambda: self._client.get_children_async(path), path))

    def _reading(self, ask: Callable[[], Any], path: str) -> Any:
        """Return the answer to a read. Without one it is asked again, for a session's time."""
        until = time.monotonic() + self._timeout_s
        pause_s = PAUSE_S
        while True:
            left_s = until - time.monotonic()
            try:
                with self._errors(path):
                    return ask().get(timeout=max(left_s, PAUSE_S))
            except Unreachable:
                if left_s <= pause_s or self._closed.wait(pause_s):
                    raise
                pause_s = min(2 * pause_s, MAX_PAUSE_S)

    @contextmanager
    def _errors(self, what: str = "") -> Iterator[None]:
        try:
            yield
        except tuple(ERRORS) as error:
            raise self._error(error, what) from error
        except zk.ZookeeperError as error:
            raise StoreError(f"ZooKeeper: {type(error).__name__} {what}") from error

    def _error(self, error: Exception, what: str) -> StoreError:
        for kind, meaning in ERRORS.items():
            if isinstance(error, kind):
                if meaning is Unreachable:
                    return Unreachable(f"no answer from ZooKeeper at {self._connect}")
                if meaning is SessionLost:
                    return SessionLost(f"the session with ZooKeeper at {self._connect} is over")
                return meaning(what)
        raise AssertionError(error)

    # -- watches -----------------------------------------------------------------------------

    def watch_data(self, path: str, callback: Callable[[WatchEvent], None]) -> Watch:
        """See `Store.watch_data`."""
        check_path(path)
        return self._watches.data(path, callback)

    def watch_children(self, path: str, callback: Callable[[WatchEvent], None]) -> Watch:
        """See `Store.watch_children`."""
        check_path(path)
        return self._watches.children(path, callback)

    def watch_session(self, callback: Callable[[SessionEvent], None]) -> Watch:
        """See `Store.watch_session`."""
        return self._watches.session(callback)

    def _on_state(self, state: KazooState) -> None:
        # On kazoo's thread: nothing may wait here.
        self._watches.note_session(SESSION_EVENTS[state])

    def close(self) -> None:
        """See `Store.close`."""
        if self._closed.is_set():
            return
        self._closed.set()
        self._watches.stop()
        self._client.stop()
        self._client.close()


def end_session(connect: str, session: Session, *, within_s: float) -> bool:
    """End a session that a process before this one left; return whether it was still there.

    Its ephemeral nodes go at once, instead of after the session's time.

    Raises:
        Unreachable: no server answered in time.
    """
    hosts = connect.partition("/")[0]
    client = _client(hosts, within_s, [], (session.id, session.password))
    lost = threading.Event()
    client.add_listener(lambda state: lost.set() if state == KazooState.LOST else None)
    try:
        client.start(within_s)
        return client.client_id is not None and client.client_id[0] == session.id
    except KazooTimeoutError:
        raise Unreachable(f"no ZooKeeper answers at {connect}") from None
    finally:
        client.stop()
        client.close()


def _client(
    hosts: str,
    timeout_s: float,
    auth: list[tuple[str, str]],
    session: tuple[int, bytes] | None = None,
) -> KazooClient:
    forever = KazooRetry(max_tries=-1, delay=RECONNECT_S, max_delay=1.0)
    return KazooClient(
        hosts=hosts,
        timeout=timeout_s,
        client_id=session,
        auth_data=auth,
        connection_retry=forever,
        logger=logging.getLogger("kazoo"),
    )


def _raise_first(ops: Sequence[Op], results: Sequence[Any]) -> None:
    """Raise the error of the operation that failed, if one did."""
    for index, result in enumerate(results):
        if isinstance(result, Exception) and not isinstance(result, ROLLED_BACK):
            meaning = ERRORS.get(type(result), StoreError)
            error = meaning(ops[index].path if meaning is not StoreError else str(result))
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
