"""Keeps watches of ZooKeeper armed: its own report one change and are gone.

Owns one thread. It arms each watch again before it reports a change, and arms all of them when a
connection is back. It compares each node with what it knew, so that a reader that reads after each
report never misses the end state, and a change is reported once. Never decides what to do about it,
and never waits for a connection: it reports at once that one is lost.
"""

from __future__ import annotations

import logging
import queue
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future
from typing import Any, NamedTuple

from kazoo.client import KazooClient
from kazoo.protocol.states import EventType, WatchedEvent

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


class Read(NamedTuple):
    """A request that changes nothing: a node is read, or watched."""

    ask: Callable[[], Any]
    path: str


Reading = Callable[[Sequence[Read]], Iterator[Any]]
"""Yields the answer of each read, or a StoreError. Raises Unreachable, SessionLost.

It does not wait for a connection.
"""

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
        reading: asks many reads at a time, and waits for their answers.
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

    def data(self, paths: Iterable[str], callback: DataCallback) -> list[Watch]:
        """Watch nodes, which need not exist. Raises Unreachable, SessionLost."""
        return self._add([Key(path, of_children=False) for path in paths], callback)

    def children(self, path: str, callback: DataCallback) -> Watch:
        """Watch the children of a node. Raises NoNode, Unreachable, SessionLost."""
        return self._add([Key(path, of_children=True)], callback)[0]

    def _add(self, keys: Sequence[Key], callback: DataCallback) -> list[Watch]:
        done: Future[list[Watch]] = Future()
        with self._lock:
            if self._is_stopped:
                raise SessionLost("the store is closed")
            self._todo.put(lambda: self._begin(keys, callback, done))
        return done.result()

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

    def _begin(
        self, keys: Sequence[Key], callback: DataCallback, done: Future[list[Watch]]
    ) -> None:
        with self._lock:
            places = {key: self._places.get(key) or _Place() for key in keys}
        try:
            new = [(key, place) for key, place in places.items() if not place.callbacks]
            for (_, place), known in zip(new, self._arm(new), strict=True):
                place.known = _checked(known)
            for key, place in places.items():
                if key.of_children and place.known is None:
                    raise NoNode(key.path)
        except Exception as error:  # noqa: BLE001 - the caller waits for it, of any kind
            done.set_exception(error)
            return
        watches: list[Watch] = []
        with self._lock:
            self._places.update(places)
            for key in keys:
                watch = _Armed(lambda one, key=key: self._drop(key, one))  # type: ignore[misc]
                places[key].callbacks[watch] = callback
                watches.append(watch)
        done.set_result(watches)

    def _arm(self, places: Sequence[tuple[Key, _Place]]) -> Iterator[Known | StoreError | None]:
        """Have the next changes reported, and yield each node as it is; None: it is not there.

        Yields a StoreError for a node that cannot be watched. Raises Unreachable, SessionLost.
        """
        answers = self._reading([self._arming(key, place) for key, place in places])
        for (key, place), answer in zip(places, answers, strict=True):
            if isinstance(answer, NoNode):
                # Its creation is the next change.
                yield self._arm_missing(key, place)
            elif answer is None or isinstance(answer, StoreError):
                yield answer
            elif key.of_children:
                yield Known(answer[1].czxid, answer[1].cversion)
            else:
                yield Known(answer.czxid, answer.mzxid)

    def _arming(self, key: Key, place: _Place) -> Read:
        fired, client, path = self._on_fired(key, place), self._client, key.path
        if key.of_children:
            return Read(
                lambda: client.get_children_async(path, watch=fired, include_data=True), path
            )
        return Read(lambda: client.exists_async(path, watch=fired), path)

    def _arm_missing(self, key: Key, place: _Place) -> Known | StoreError | None:
        fired, client, path = self._on_fired(key, place), self._client, key.path
        (found,) = self._reading([Read(lambda: client.exists_async(path, watch=fired), path)])
        if found is None or isinstance(found, StoreError):
            return found
        (known,) = self._arm([(key, place)])  # created meanwhile
        return known

    def _on_fired(self, key: Key, place: _Place) -> Callable[[WatchedEvent], None]:
        """Return what kazoo calls on a change, for a watch that is about to be armed."""
        place.armed += 1
        armed = place.armed

        def fired(event: WatchedEvent) -> None:  # on kazoo's thread
            if event.type in CHANGES:
                self._todo.put(lambda: self._on_change(key, place, armed, CHANGES[event.type]))

        return fired

    def _on_change(self, key: Key, place: _Place, armed: int, seen: Change) -> None:
        if not place.callbacks or place.armed != armed:
            return
        before = place.known
        try:
            (known,) = self._arm([(key, place)])
            place.known = _checked(known)
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
        try:
            for (key, place), known in zip(places, self._arm(places), strict=True):
                if isinstance(known, StoreError):
                    log.error("cannot watch %s: %s", key.path, known)
                    continue
                changes = _between(place.known, known)
                place.known = known
                if key.of_children and changes:
                    changes = [Change.CHILDREN]
                self._tell(place, [WatchEvent(one, key.path) for one in changes])
        except (Unreachable, SessionLost):
            return  # the connection is gone again

    def _tell(self, place: _Place, events: list[WatchEvent]) -> None:
        with self._lock:
            callbacks = list(place.callbacks.values())
        for event in events:
            for callback in callbacks:
                callback(event)


def _checked(known: Known | StoreError | None) -> Known | None:
    """Return a node as it is. Raises the StoreError of one that cannot be watched."""
    if isinstance(known, StoreError):
        raise known
    return known


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
