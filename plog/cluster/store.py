"""The coordination store's interface: a tree of versioned nodes, as ZooKeeper has it.

Owns the words (stats, operations, watches, errors) that every implementation and
every user of the store share. Decides nothing and touches neither disk nor network:
`embedded_store` and `zookeeper_store` do that.

Threads: every method may be called from any thread and blocks until the answer is
known (a write: until it is durable), so the asyncio loop calls writes through an
executor. Watch and session callbacks run on one thread of the store, in the order of
the changes, and must only enqueue: a callback that calls back into the store may
deadlock against a ZooKeeper client, and one that raises ends that thread.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import NamedTuple, TypeAlias

from plog.errors import PlogError

ANY_VERSION = -1
"""Passed as a version: do not compare."""


class StoreError(PlogError):
    """Root of what the coordination store raises.

    `op_index` is the position of the failing operation when it was part of a `multi`.
    """

    op_index: int | None = None


class NoNode(StoreError):
    """The node, or the parent of a node to be created, does not exist."""


class NodeExists(StoreError):
    """The node to be created is there already."""


class BadVersion(StoreError):
    """The node's version is not the expected one: somebody else has written it."""


class NotEmpty(StoreError):
    """The node to be deleted has children."""


class NoChildrenForEphemerals(StoreError):
    """An ephemeral node cannot have children."""


class WriteRefused(StoreError):
    """Nothing was written and nothing is lost (a full disk); the same write may succeed later."""


class Unreachable(StoreError):
    """No server answered. A write may have been done or not: read before you write again."""


class SessionLost(StoreError):
    """The session is over: its ephemeral nodes are gone or will go.

    A store that others share goes on with a new session (`SessionEvent.CONNECTED`).
    """


class SessionExpired(SessionLost):
    """The servers have ended the session. A read may be asked again, in the new session.

    A write may have been done or not: read before you write again.
    """


class Stat(NamedTuple):
    """What the store knows of a node beside its data."""

    version: int  # number of writes since creation
    czxid: (
        int  # transaction that created the node: grows with every creation, hence the broker epoch
    )
    mzxid: int  # transaction that wrote it last
    ctime_ms: int
    mtime_ms: int
    ephemeral_owner: int  # session id, 0 for a persistent node
    num_children: int


@dataclass(frozen=True, slots=True)
class CreateOp:
    """Create a node; `sequential` appends the parent's ten-digit counter to the path."""

    path: str
    data: bytes = b""
    ephemeral: bool = False
    sequential: bool = False


@dataclass(frozen=True, slots=True)
class SetOp:
    """Replace a node's data."""

    path: str
    data: bytes
    version: int = ANY_VERSION


@dataclass(frozen=True, slots=True)
class DeleteOp:
    """Delete a node that has no children."""

    path: str
    version: int = ANY_VERSION


@dataclass(frozen=True, slots=True)
class CheckOp:
    """Refuse the whole `multi` unless the node exists at this version."""

    path: str
    version: int


Op: TypeAlias = CreateOp | SetOp | DeleteOp | CheckOp
OpResult: TypeAlias = str | Stat | None
"""Of a CreateOp its path, of a SetOp the new Stat, else None."""


class Change(Enum):
    """What a watch saw."""

    CREATED = "created"
    CHANGED = "changed"
    DELETED = "deleted"
    CHILDREN = "children"


@dataclass(frozen=True, slots=True)
class WatchEvent:
    """Something happened at `path`. Several changes may come as one event: read again."""

    change: Change
    path: str


class SessionEvent(Enum):
    """What became of the session."""

    CONNECTED = "connected"
    SUSPENDED = "suspended"  # the server does not answer; ephemeral nodes may still be ours
    LOST = "lost"


class Watch(ABC):
    """A subscription; it stays until cancelled."""

    @abstractmethod
    def cancel(self) -> None:
        """End the subscription. An event already on its way may still arrive."""


class Store(ABC):
    """A tree of versioned nodes.

    Paths are absolute, without a slash at the end; "/" always exists. Data are bytes,
    empty where there is nothing to say. Watches are persistent: implementations re-arm
    ZooKeeper's one-shot watches, so after the last change of a burst there is always
    at least one call, and a reader that reads after each call never misses the end state.
    """

    @property
    @abstractmethod
    def session_id(self) -> int:
        """Owner of the ephemeral nodes made through this object; never 0."""

    def is_own(self, session_id: int) -> bool:
        """Return whether a session is this object's, or was before that expired."""
        return session_id == self.session_id

    @property
    def has_failed(self) -> bool:
        """Whether the client itself has failed, so that no connection will follow."""
        return False

    @abstractmethod
    def multi(self, ops: Sequence[Op]) -> list[OpResult]:
        """Do all of `ops`, each seeing the effect of those before it, or none.

        Raises:
            StoreError: of the first operation that fails, with `op_index` set.
        """

    @abstractmethod
    def get(self, path: str) -> tuple[bytes, Stat]:
        """Return a node's data and stat, or raise NoNode."""

    @abstractmethod
    def exists(self, path: str) -> Stat | None:
        """Return a node's stat, or None."""

    @abstractmethod
    def children(self, path: str) -> list[str]:
        """Return the names (not paths) of a node's children, sorted, or raise NoNode."""

    @abstractmethod
    def sync(self) -> None:
        """Have reads from now on see all that was written before, by whichever broker."""

    def get_many(self, paths: Sequence[str]) -> list[tuple[bytes, Stat] | None]:
        """Return data and stat of each node, None where there is none."""
        return [self._get_or_none(path) for path in paths]

    def _get_or_none(self, path: str) -> tuple[bytes, Stat] | None:
        try:
            return self.get(path)
        except NoNode:
            return None

    @abstractmethod
    def watch_data(self, path: str, callback: Callable[[WatchEvent], None]) -> Watch:
        """Report creation, change and deletion of `path`, which need not exist yet."""

    def watch_data_many(
        self, paths: Sequence[str], callback: Callable[[WatchEvent], None]
    ) -> list[Watch]:
        """Watch each node as `watch_data` does; a node that is read after that is not missed."""
        return [self.watch_data(path, callback) for path in paths]

    @abstractmethod
    def watch_children(self, path: str, callback: Callable[[WatchEvent], None]) -> Watch:
        """Report children coming and going under `path`, which must exist (else NoNode)."""

    @abstractmethod
    def watch_session(self, callback: Callable[[SessionEvent], None]) -> Watch:
        """Report what becomes of the session."""

    @abstractmethod
    def close(self) -> None:
        """End the session: its ephemeral nodes go, watches fall silent. Twice is once."""

    def create(
        self,
        path: str,
        data: bytes = b"",
        *,
        ephemeral: bool = False,
        sequential: bool = False,
        make_parents: bool = False,
    ) -> str:
        """Create a node and return its path (with the number, if sequential).

        Raises:
            NodeExists: it is there already.
            NoNode: its parent is not, and `make_parents` is not set.
            NoChildrenForEphemerals: the parent is ephemeral.
        """
        if make_parents:
            self.ensure(parent_of(path))
        (created,) = self.multi([CreateOp(path, data, ephemeral, sequential)])
        assert isinstance(created, str)
        return created

    def set(self, path: str, data: bytes, version: int = ANY_VERSION) -> Stat:
        """Replace a node's data. Raises NoNode, BadVersion."""
        (stat,) = self.multi([SetOp(path, data, version)])
        assert isinstance(stat, Stat)
        return stat

    def delete(self, path: str, version: int = ANY_VERSION) -> None:
        """Delete a node without children. Raises NoNode, BadVersion, NotEmpty."""
        self.multi([DeleteOp(path, version)])

    def ensure(self, path: str) -> None:
        """Create a persistent node and its parents where they are missing."""
        missing: list[str] = []
        while path != "/" and self.exists(path) is None:
            missing.append(path)
            path = parent_of(path)
        for absent in reversed(missing):
            try:
                self.multi([CreateOp(absent)])
            except NodeExists:
                continue  # somebody else was quicker

    def descendants(self, path: str) -> list[str]:
        """Return `path` and everything below it, children before their parents.

        The order in which they can be deleted. A node that goes meanwhile is left out.
        """
        try:
            names = self.children(path)
        except NoNode:
            return []
        below = [node for name in names for node in self.descendants(join(path, name))]
        return [*below, path]


def parent_of(path: str) -> str:
    """Return the path of the parent; that of "/" is "/"."""
    return path.rpartition("/")[0] or "/"


def join(path: str, name: str) -> str:
    """Return the path of the child `name` of `path`."""
    return f"/{name}" if path == "/" else f"{path}/{name}"


def check_path(path: str) -> None:
    """Refuse what ZooKeeper refuses, so that a tree can move there. Raises ValueError."""
    names = path.split("/")
    if names[0] or any(name in ("", ".", "..") or "\0" in name for name in names[1:]):
        raise ValueError(f"not a path of the store: {path!r}")
