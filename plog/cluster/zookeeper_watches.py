"""Keeps watches of ZooKeeper armed: its own report one change and are gone.

Owns one thread. It arms each watch again before it reports a change, and arms all of them when a
connection is back. It compares each node with what it knew, so that a reader that reads after each
report never misses the end state, and a change is reported once. Never decides what to do about it.
"""

from __future__ import annotations

import logging
import queue
import threading
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any, NamedTuple

from kazoo.client import KazooClient
from kazoo.protocol.states import EventType, WatchedEvent, ZnodeStat

from plog.cluster.store import (
    Change,
    NoNode,
    SessionEvent,
    SessionLost,
    StoreError,
    Unreachable,
    Watch,
    WatchEvent,
)

log = logging.getLogger(__name__)

DataCallback = Callable[[WatchEvent], None]
SessionCallback = Callable[[SessionEvent], None]
Reading = Callable[[Callable[[], Any], str], Any]
"""(asks, path): returns the answer of a read, and raises StoreError."""

CHANGES = {
    EventType.CREATED: Change.CREATED,
    EventType.CHANGED: Change.CHANGED,
    EventType.DELETED: Change.DELETED,
    EventType.CHILD: Change.CHILDREN,
}


class Key(NamedTuple):
    """The target of a watch: a node, or its children."""

    path: str
    of_children: bool


class Known(NamedTuple):
    """A node as it was last seen: by its creation and its last change, of data or of children."""

    czxid: int
    changed: int


class _Place:
    """The watches of one target, and its last known state."""

    def __init__(self) -> None:
        self.callbacks: dict[_Armed, DataCallback] = {}
        self.known: Known | None = None
        self.armed = 0
        """How often it was armed: of several watches at a server the last one counts."""


class _Armed(Watch):
    def __init__(self, forget: Callable[[_Armed], None]) -> None:
        self._forget = forget

    def cancel(self) -> None:
        """See `Watch.cancel`."""
        self._forget(self)


class ZooKeeperWatches:
    """The watches of one client.

    Args:
        reading: waits for the answer of a read.
    """

    def __init__(self, client: KazooClient, reading: Reading) -> None:
        self._client = client
        self._reading = reading
        self._lock = threading.Lock()
        self._is_stopped = False
        self._places: dict[Key, _Place] = {}
        self._sessions: dict[_Armed, SessionCallback] = {}
        self._todo: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._run, name="zookeeper watches", daemon=True)
        self._thread.start()

    # -- for any thread ----------------------------------------------------------------------

    def data(self, path: str, callback: DataCallback) -> Watch:
        """Watch a node, which need not exist. Raises Unreachable, SessionLost."""
        return self._add(Key(path, of_children=False), callback)

    def children(self, path: str, callback: DataCallback) -> Watch:
        """Watch the children of a node. Raises NoNode, Unreachable, SessionLost."""
        return self._add(Key(path, of_children=True), callback)

    def _add(self, key: Key, callback: DataCallback) -> Watch:
        done: Future[None] = Future()
        watch = _Armed(lambda one: self._drop(key, one))
        with self._lock:
            if self._is_stopped:
                raise SessionLost("the store is closed")
            self._todo.put(lambda: self._begin(key, watch, callback, done))
        done.result()
        return watch

    def _drop(self, key: Key, watch: _Armed) -> None:
        with self._lock:
            place = self._places.get(key)
            if place is None:
                return
            place.callbacks.pop(watch, None)
            if not place.callbacks:
                del self._places[key]  # ZooKeeper's own reports once more, in vain

    def session(self, callback: SessionCallback) -> Watch:
        """Report what becomes of the session."""
        watch = _Armed(self._drop_session)
        self._sessions[watch] = callback
        return watch

    def _drop_session(self, watch: _Armed) -> None:
        self._sessions.pop(watch, None)

    def note_session(self, event: SessionEvent) -> None:
        """Take note of a change of the session, and report it."""
        self._todo.put(lambda: self._on_session(event))

    def stop(self) -> None:
        """End the thread. Callers that wait for a watch get it, or an error."""
        with self._lock:
            self._is_stopped = True
            self._todo.put(None)
        if threading.current_thread() is not self._thread:
            self._thread.join()

    # -- in the thread -----------------------------------------------------------------------

    def _run(self) -> None:
        while (call := self._todo.get()) is not None:
            try:
                call()
            except Exception:
                log.exception("a watch failed")

    def _begin(self, key: Key, watch: _Armed, callback: DataCallback, done: Future[None]) -> None:
        with self._lock:
            place = self._places.get(key) or _Place()
        try:
            if not place.callbacks:
                place.known = self._arm(key, place)
            if key.of_children and place.known is None:
                raise NoNode(key.path)
        except Exception as error:  # noqa: BLE001 - the caller waits for it, of any kind
            done.set_exception(error)
            return
        with self._lock:
            self._places[key] = place
            place.callbacks[watch] = callback
        done.set_result(None)

    def _arm(self, key: Key, place: _Place) -> Known | None:
        """Have the next change reported, and return the node as it is; None: it is not there."""
        place.armed += 1
        armed = place.armed

        def fired(event: WatchedEvent) -> None:  # on kazoo's thread
            if event.type in CHANGES:
                self._todo.put(lambda: self._on_change(key, place, armed, CHANGES[event.type]))

        client, path = self._client, key.path
        if key.of_children:
            try:
                _, stat = self._reading(
                    lambda: client.get_children_async(path, watch=fired, include_data=True), path
                )
                return Known(stat.czxid, stat.cversion)
            except NoNode:
                pass  # then its creation is the next change
        found: ZnodeStat | None = self._reading(
            lambda: client.exists_async(path, watch=fired), path
        )
        if found is None:
            return None
        return self._arm(key, place) if key.of_children else Known(found.czxid, found.mzxid)

    def _on_change(self, key: Key, place: _Place, armed: int, seen: Change) -> None:
        if not place.callbacks or place.armed != armed:
            return
        before = place.known
        try:
            place.known = self._arm(key, place)
        except StoreError as error:
            log.debug("cannot watch %s: %s", key.path, error)
            return  # all are armed when a connection is back
        if key.of_children:
            self._tell(place, [WatchEvent(Change.CHILDREN, key.path)])
            return
        events = [seen]
        if seen is Change.DELETED and place.known is not None:
            events.append(Change.CREATED)
        elif seen is not Change.DELETED and place.known is None:
            events.append(Change.DELETED)
        if before is not None and seen is Change.CREATED:
            events.insert(0, Change.DELETED)
        self._tell(place, [WatchEvent(one, key.path) for one in events])

    def _on_session(self, event: SessionEvent) -> None:
        for callback in list(self._sessions.values()):
            callback(event)
        if event is SessionEvent.CONNECTED:
            self._arm_all()

    def _arm_all(self) -> None:
        """Arm all watches on a new connection, and report what changed meanwhile."""
        with self._lock:
            places = list(self._places.items())
        for key, place in places:
            before = place.known
            try:
                place.known = self._arm(key, place)
            except (Unreachable, SessionLost):
                return  # the connection is gone again
            except StoreError as error:
                log.error("cannot watch %s: %s", key.path, error)
                continue
            changes = _between(before, place.known)
            if key.of_children and changes:
                changes = [Change.CHILDREN]
            self._tell(place, [WatchEvent(one, key.path) for one in changes])

    def _tell(self, place: _Place, events: list[WatchEvent]) -> None:
        with self._lock:
            callbacks = list(place.callbacks.values())
        for event in events:
            for callback in callbacks:
                callback(event)


def _between(before: Known | None, after: Known | None) -> list[Change]:
    """Return the changes that make one state of a node of another."""
    if before == after:
        return []
    if before is None:
        return [Change.CREATED]
    if after is None:
        return [Change.DELETED]
    if before.czxid != after.czxid:
        return [Change.DELETED, Change.CREATED]
    return [Change.CHANGED]
