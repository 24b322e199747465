"""The coordination store inside the process: SQLite, a copy in every log directory.

Owns the node tree in memory, its copies on disk and the thread that calls watches.
A write is done when every live copy has it durably; on opening, the newest copy that
holds together wins and the others are made equal to it. Damaged copies are set aside.
If no copy is whole and none can be elsewhere, the tree is empty, for `store_rebuild` to
fill; if one may be elsewhere, the store does not open. A copy that fails
is dropped and its directory reported; the store is lost with its last copy. Never
decides what the nodes mean.

Ephemeral nodes belong to one opening of the store: they go at `close`, or at the next
opening if the process died.
"""

from __future__ import annotations

import logging
import queue
import sqlite3
import threading
import uuid
from collections.abc import Callable, Sequence
from pathlib import Path

from plog._native.files import NO_RESOURCES
from plog.cluster.node_tree import NodeTree
from plog.cluster.store import (
    DeleteOp,
    NoNode,
    Op,
    OpResult,
    SessionEvent,
    SessionLost,
    Stat,
    Store,
    StoreError,
    Watch,
    WatchEvent,
    WriteRefused,
)
from plog.cluster.store_copy import CopyDamaged, CopyInUse, StoreCopy, is_refusal, set_aside
from plog.errors import InconsistentLogDirs
from plog.runtime.clock import Clock

log = logging.getLogger(__name__)

LATEST_OPENING = (1 << 31) - (1 << 20)
"""Transaction numbers have 64 bits and a sign, and a clock may say anything: what it says beyond
2038 must leave numbers to count further."""

CopyFailed = Callable[[Path, Exception], None]
DataCallback = Callable[[WatchEvent], None]


class EmbeddedStore(Store):
    """A `Store` for a broker that is alone.

    Args:
        directories: the log directories, in the order of `log.dirs`.
        clock: source of ctime and mtime.
        on_copy_failed: told of a directory whose copy could not be opened or written,
            on the store's thread.
        elsewhere: log directories that cannot be used now, and may hold another copy.
        refill: whether the caller fills an empty store again, if no copy is whole.

    Raises (on construction):
        CopyDamaged: no copy is whole, and an empty store must not replace them.
        InconsistentLogDirs: the copies are of different stores, or of another process.
        StoreError: no copy could be opened, or one is of a later format.
        OSError: no descriptor is left to open a copy. It may be the newest, so that the others do
            not count without it.
    """

    def __init__(
        self,
        directories: Sequence[Path],
        *,
        clock: Clock,
        on_copy_failed: CopyFailed | None = None,
        elsewhere: Sequence[Path] = (),
        refill: bool = True,
    ) -> None:
        self._clock = clock
        self._on_copy_failed = on_copy_failed
        self._lock = threading.Lock()
        self._watches: dict[tuple[str, str], list[_EmbeddedWatch]] = {}
        self._session_watches: list[_SessionWatch] = []
        self._deliveries: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        self._thread: threading.Thread | None = None
        self._lost: str | None = None
        self._copies: list[StoreCopy] = []
        self.created = False
        """Whether no copy existed, or none that holds together: an empty store was made."""
        self._tree = self._open(directories, list(elsewhere), refill=refill)
        # As in ZooKeeper, the high half of a transaction number says under whose rule it was
        # made: here, which opening. It follows the clock, so that a copy that was away and
        # holds one more unacknowledged transaction never ties with what was written since.
        opening = max((self._tree.zxid >> 32) + 1, min(clock.now_ms() // 1000, LATEST_OPENING))
        self._tree.zxid = self._session_id = opening << 32
        stale = self._tree.ephemerals()
        if stale:
            self.multi([DeleteOp(path) for path in stale])

    # -- opening ---------------------------------------------------------------------------

    def _open(
        self, directories: Sequence[Path], elsewhere: list[Path], *, refill: bool
    ) -> NodeTree:
        damaged: list[tuple[Path, CopyDamaged]] = []
        try:
            for directory in directories:
                try:
                    self._copies.append(StoreCopy(directory))
                except CopyDamaged as error:
                    damaged.append((directory, error))
                except CopyInUse as error:
                    raise InconsistentLogDirs(str(error)) from error
                except OSError as error:
                    if error.errno in NO_RESOURCES:
                        raise
                    log.error("coordination store in %s cannot be opened: %s", directory, error)
                    elsewhere.append(directory)
                    self._report(directory, error)
            written = [copy for copy in self._copies if copy.store_id]
            if not self._copies and not damaged:
                raise StoreError("no log directory can hold the coordination store")
            if len({copy.store_id for copy in written}) > 1:
                where = ", ".join(f"{copy.directory} ({copy.store_id})" for copy in written)
                raise InconsistentLogDirs(f"log directories of different stores: {where}")
            if damaged and not written:
                _check_replaceable(damaged, elsewhere, refill=refill)
            return self._agree(written, damaged)
        except BaseException:
            for copy in self._copies:
                copy.close()
            raise

    def _agree(self, written: list[StoreCopy], damaged: list[tuple[Path, CopyDamaged]]) -> NodeTree:
        """Make every copy equal to the newest one and return its tree."""
        for directory, error in damaged:
            try:
                aside = set_aside(directory, self._clock.now_ms())
                self._copies.append(StoreCopy(directory))
            except OSError as failure:
                if failure.errno in NO_RESOURCES:
                    raise
                log.error("cannot replace the damaged coordination store: %s", failure)
                self._report(directory, failure)
                continue
            log.error("coordination store damaged, kept as %s and replaced: %s", aside, error)
        self.created = not written
        if damaged and not written:
            log.error(
                "no copy of the coordination store is whole, plog starts with an empty one: topics"
                " return from the log directories, the settings of topics and of the broker are"
                " lost; set them again, or stop plog and restore all log directories from a backup"
            )
        newest = max(written, key=lambda copy: copy.zxid, default=None)
        if newest is None:
            store_id, tree = str(uuid.uuid4()), NodeTree()
        else:
            store_id, tree = newest.store_id, NodeTree(newest.nodes, newest.zxid)
        for copy in list(self._copies):
            if copy.store_id != store_id or copy.zxid != tree.zxid:
                if copy.store_id and copy is not newest:
                    log.warning(
                        "coordination store in %s is at transaction %d, the newest at %d: replaced",
                        copy.directory,
                        copy.zxid,
                        tree.zxid,
                    )
                try:
                    copy.rewrite(store_id, tree.zxid, tree.nodes)
                except sqlite3.Error as error:
                    self._drop(copy, error)
            copy.forget_nodes()
        if not self._copies:
            raise StoreError("no log directory can hold the coordination store")
        return tree

    # -- reading ---------------------------------------------------------------------------

    @property
    def session_id(self) -> int:
        """The transaction number from which this opening counts."""
        return self._session_id

    @property
    def directories(self) -> list[Path]:
        """Where the live copies are."""
        with self._lock:
            return [copy.directory for copy in self._copies]

    def get(self, path: str) -> tuple[bytes, Stat]:
        """See `Store.get`."""
        with self._lock:
            self._check_open()
            return self._tree.get(path)

    def exists(self, path: str) -> Stat | None:
        """See `Store.exists`."""
        with self._lock:
            self._check_open()
            return self._tree.exists(path)

    def sync(self) -> None:
        """See `Store.sync`: a read sees every write."""

    def children(self, path: str) -> list[str]:
        """See `Store.children`."""
        with self._lock:
            self._check_open()
            return self._tree.children(path)

    # -- writing ---------------------------------------------------------------------------

    def multi(self, ops: Sequence[Op]) -> list[OpResult]:
        """See `Store.multi`. Blocks for one fdatasync per copy.

        Raises:
            WriteRefused: every copy's disk is full, or it lacks descriptors; nothing has changed.
            SessionLost: the last copy failed; whether the write is on disk is unknown.
        """
        with self._lock:
            self._check_open()
            plan = self._tree.plan(ops, session_id=self._session_id, now_ms=self._clock.now_ms())
            if not plan.rows:
                return plan.results  # only checks: nothing to count as a transaction
            count = len(self._tree.nodes) + sum(
                (node is not None) - (path in self._tree.nodes) for path, node in plan.rows.items()
            )
            failed: list[tuple[StoreCopy, sqlite3.Error]] = []
            for copy in self._copies:
                try:
                    copy.apply(plan.zxid, plan.rows, count)
                except sqlite3.Error as error:
                    failed.append((copy, error))
            if len(failed) == len(self._copies) and all(
                is_refusal(error, copy.directory) for copy, error in failed
            ):
                raise WriteRefused(f"the coordination store cannot be written: {failed[0][1]}")
            for copy, reason in failed:
                self._drop(copy, reason)
            if not self._copies:
                self._lose(f"its last copy failed: {failed[-1][1]}")
                self._check_open()
            self._tree.commit(plan)
            for event in plan.events:
                self._announce(event)
            return plan.results

    def _drop(self, copy: StoreCopy, error: sqlite3.Error) -> None:
        self._copies.remove(copy)
        log.error("coordination store in %s failed and is dropped: %s", copy.directory, error)
        try:
            copy.close()
        except sqlite3.Error as also:
            log.error("closing the dropped copy in %s failed too: %s", copy.directory, also)
        self._report(copy.directory, error)

    def _report(self, directory: Path, error: Exception) -> None:
        if self._on_copy_failed is not None:
            report = self._on_copy_failed
            self._deliver(lambda: report(directory, error))

    def _check_open(self) -> None:
        if self._lost is not None:
            raise SessionLost(f"the coordination store is closed: {self._lost}")

    def _lose(self, why: str) -> None:
        self._lost = why
        for watch in list(self._session_watches):
            self._deliver(watch.bound(SessionEvent.LOST))

    # -- watches ---------------------------------------------------------------------------

    def watch_data(self, path: str, callback: DataCallback) -> Watch:
        """See `Store.watch_data`."""
        with self._lock:
            self._check_open()
            return self._subscribe("data", path, callback)

    def watch_children(self, path: str, callback: DataCallback) -> Watch:
        """See `Store.watch_children`."""
        with self._lock:
            self._check_open()
            if self._tree.exists(path) is None:
                raise NoNode(path)
            return self._subscribe("children", path, callback)

    def watch_session(self, callback: Callable[[SessionEvent], None]) -> Watch:
        """See `Store.watch_session`. The session of this store is only ever lost."""
        with self._lock:
            watch = _SessionWatch(self, callback)
            self._session_watches.append(watch)
            return watch

    def _subscribe(self, kind: str, path: str, callback: DataCallback) -> Watch:
        watch = _EmbeddedWatch(self, (kind, path), callback)
        self._watches.setdefault((kind, path), []).append(watch)
        return watch

    def _announce(self, event: WatchEvent) -> None:
        kind = "children" if event.change.value == "children" else "data"
        for watch in self._watches.get((kind, event.path), ()):
            self._deliver(watch.bound(event))

    def _unsubscribe(self, watch: _EmbeddedWatch | _SessionWatch) -> None:
        with self._lock:
            if isinstance(watch, _SessionWatch):
                if watch in self._session_watches:
                    self._session_watches.remove(watch)
                return
            kept = [one for one in self._watches.get(watch.key, ()) if one is not watch]
            if kept:
                self._watches[watch.key] = kept
            else:
                self._watches.pop(watch.key, None)

    def _deliver(self, call: Callable[[], None]) -> None:
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name="store-watches", daemon=True)
            self._thread.start()
        self._deliveries.put(call)

    def _run(self) -> None:
        while (call := self._deliveries.get()) is not None:
            call()

    # -- end -------------------------------------------------------------------------------

    def close(self) -> None:
        """See `Store.close`. Events already under way are delivered before it returns."""
        with self._lock:
            open_still = self._lost is None
        if open_still:
            own = self._tree.ephemerals(self._session_id)
            try:
                if own:
                    self.multi([DeleteOp(path) for path in own])
            except StoreError as error:
                # They go at the next opening; closing must end all the same.
                log.warning("ephemeral nodes stay until the next start: %s", error)
        with self._lock:
            if self._lost is None:
                self._lost = "closed"
            copies, self._copies = self._copies, []
            self._watches.clear()
        for copy in copies:
            try:
                copy.close()
            except sqlite3.Error as error:
                log.error("closing the coordination store in %s: %s", copy.directory, error)
        self._deliveries.put(None)
        if self._thread is not None and self._thread is not threading.current_thread():
            self._thread.join()


def _check_replaceable(
    damaged: Sequence[tuple[Path, CopyDamaged]], elsewhere: Sequence[Path], *, refill: bool
) -> None:
    """Check that an empty store may replace copies of which none is whole. Raises CopyDamaged."""
    _, first = damaged[0]
    if elsewhere:
        paths = ", ".join(map(str, elsewhere))
        raise CopyDamaged(
            f"no copy of the coordination store is whole ({first}), and {paths} may hold one:"
            " mount it and start again; if it is new or lost for good, remove it from log.dirs"
        )
    if not refill:
        raise CopyDamaged(
            f"no copy of the coordination store is whole ({first}): restore all log directories"
            " from a backup, or start the broker, which takes topics from the log directories"
        )


class _EmbeddedWatch(Watch):
    def __init__(self, store: EmbeddedStore, key: tuple[str, str], callback: DataCallback) -> None:
        self._store, self.key, self._callback = store, key, callback
        self._cancelled = False

    def bound(self, event: WatchEvent) -> Callable[[], None]:
        return lambda: None if self._cancelled else self._callback(event)

    def cancel(self) -> None:
        self._cancelled = True
        self._store._unsubscribe(self)


class _SessionWatch(Watch):
    def __init__(self, store: EmbeddedStore, callback: Callable[[SessionEvent], None]) -> None:
        self._store, self._callback = store, callback

    def bound(self, event: SessionEvent) -> Callable[[], None]:
        return lambda: self._callback(event)

    def cancel(self) -> None:
        self._store._unsubscribe(self)
