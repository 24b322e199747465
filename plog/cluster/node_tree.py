"""The tree of versioned nodes as a pure machine: operations in, a plan out.

Owns the rules of the coordination store (versions, sequence numbers, who may have
children, what a multi does, which watches a change wakes). Never does I/O and never
changes by itself: `plan` says what a list of operations would do, and `commit` makes
a plan true once its owner has made it durable.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from plog.cluster.store import (
    ANY_VERSION,
    BadVersion,
    Change,
    CheckOp,
    CreateOp,
    DeleteOp,
    NoChildrenForEphemerals,
    NodeExists,
    NoNode,
    NotEmpty,
    Op,
    OpResult,
    SetOp,
    Stat,
    StoreError,
    WatchEvent,
    check_path,
    parent_of,
)


class Node(NamedTuple):
    """One node as it is kept; `created_children` numbers sequential children and only grows."""

    data: bytes
    version: int
    created_children: int
    czxid: int
    mzxid: int
    ctime_ms: int
    mtime_ms: int
    ephemeral_owner: int


ROOT = Node(b"", 0, 0, 0, 0, 0, 0, 0)


@dataclass(slots=True)
class Plan:
    """What a list of operations does: node rows to put (None: to remove), answers, events."""

    zxid: int
    rows: dict[str, Node | None] = field(default_factory=dict)
    results: list[OpResult] = field(default_factory=list)
    events: list[WatchEvent] = field(default_factory=list)
    births: dict[str, dict[str, bool]] = field(default_factory=dict)  # parent -> name -> is there


class NodeTree:
    """The nodes by path, and the number of the last transaction.

    Invariant: every node but "/" has its parent in the tree, and `_children[p]` holds
    exactly the names of the nodes whose parent is p.
    """

    def __init__(self, nodes: Mapping[str, Node] | None = None, zxid: int = 0) -> None:
        self.zxid = zxid
        self._nodes: dict[str, Node] = {"/": ROOT}
        self._children: dict[str, set[str]] = {"/": set()}
        for path in sorted(nodes or {}):
            if path != "/" and parent_of(path) not in self._nodes:
                raise NoNode(f"{path} has no parent")
            self._put(path, (nodes or {})[path])

    @property
    def nodes(self) -> Mapping[str, Node]:
        """Every node by path."""
        return self._nodes

    def get(self, path: str) -> tuple[bytes, Stat]:
        """Return data and stat, or raise NoNode."""
        node = self._nodes.get(path)
        if node is None:
            raise NoNode(path)
        return node.data, self._stat(node, len(self._children[path]))

    def exists(self, path: str) -> Stat | None:
        """Return the stat, or None."""
        node = self._nodes.get(path)
        return None if node is None else self._stat(node, len(self._children[path]))

    def children(self, path: str) -> list[str]:
        """Return the children's names, sorted, or raise NoNode."""
        if path not in self._nodes:
            raise NoNode(path)
        return sorted(self._children[path])

    def ephemerals(self, owner: int | None = None) -> list[str]:
        """Return the paths of ephemeral nodes: all of them, or those of one session."""
        return [
            path
            for path, node in self._nodes.items()
            if node.ephemeral_owner and owner in (None, node.ephemeral_owner)
        ]

    def plan(self, ops: Iterable[Op], *, session_id: int, now_ms: int) -> Plan:
        """Say what `ops` would do as one transaction, without doing it.

        Raises:
            StoreError: the first operation that cannot be done, with its `op_index`.
        """
        plan = Plan(self.zxid + 1)
        for index, op in enumerate(ops):
            try:
                plan.results.append(self._plan_one(plan, op, session_id, now_ms))
            except StoreError as error:
                error.op_index = index
                raise
        return plan

    def commit(self, plan: Plan) -> None:
        """Make a plan true. It must be of this tree as it is now."""
        if plan.zxid != self.zxid + 1:
            raise ValueError(f"plan of transaction {plan.zxid} after {self.zxid}")
        self.zxid = plan.zxid
        for path, node in plan.rows.items():
            if node is None:
                self._nodes.pop(path, None)
                self._children.pop(path, None)
            else:
                self._put(path, node)
        for parent, names in plan.births.items():
            if parent in self._children:
                self._children[parent].update(name for name, there in names.items() if there)
                self._children[parent].difference_update(
                    name for name, there in names.items() if not there
                )

    def _put(self, path: str, node: Node) -> None:
        self._nodes[path] = node
        self._children.setdefault(path, set())
        if path != "/":
            self._children[parent_of(path)].add(path.rpartition("/")[2])

    @staticmethod
    def _stat(node: Node, num_children: int) -> Stat:
        return Stat(
            node.version,
            node.czxid,
            node.mzxid,
            node.ctime_ms,
            node.mtime_ms,
            node.ephemeral_owner,
            num_children,
        )

    def _planned(self, plan: Plan, path: str) -> Node:
        node = plan.rows[path] if path in plan.rows else self._nodes.get(path)
        if node is None:
            raise NoNode(path)
        return node

    def _planned_children(self, plan: Plan, path: str) -> int:
        names = set(self._children.get(path, ()))
        for name, there in plan.births.get(path, {}).items():
            (names.add if there else names.discard)(name)
        return len(names)

    def _plan_one(self, plan: Plan, op: Op, session_id: int, now_ms: int) -> OpResult:
        match op:
            case CreateOp():
                return self._plan_create(plan, op, session_id, now_ms)
            case SetOp(path, data, version):
                node = _at_version(path, self._planned(plan, path), version)
                node = node._replace(
                    data=data, version=node.version + 1, mzxid=plan.zxid, mtime_ms=now_ms
                )
                plan.rows[path] = node
                plan.events.append(WatchEvent(Change.CHANGED, path))
                return self._stat(node, self._planned_children(plan, path))
            case DeleteOp(path, version):
                _at_version(path, self._planned(plan, path), version)
                if path == "/" or self._planned_children(plan, path):
                    raise NotEmpty(path)
                parent, _, name = path.rpartition("/")
                plan.rows[path] = None
                plan.births.setdefault(parent or "/", {})[name] = False
                plan.events.append(WatchEvent(Change.DELETED, path))
                plan.events.append(WatchEvent(Change.CHILDREN, parent or "/"))
                return None
            case CheckOp(path, version):
                _at_version(path, self._planned(plan, path), version)
                return None

    def _plan_create(self, plan: Plan, op: CreateOp, session_id: int, now_ms: int) -> str:
        parent_path = parent_of(op.path)
        parent = self._planned(plan, parent_path)
        if parent.ephemeral_owner:
            raise NoChildrenForEphemerals(parent_path)
        path = f"{op.path}{parent.created_children:010d}" if op.sequential else op.path
        check_path(path)
        there = plan.rows[path] if path in plan.rows else self._nodes.get(path)
        if there is not None:
            raise NodeExists(path)
        owner = session_id if op.ephemeral else 0
        plan.rows[path] = Node(op.data, 0, 0, plan.zxid, plan.zxid, now_ms, now_ms, owner)
        plan.rows[parent_path] = parent._replace(created_children=parent.created_children + 1)
        plan.births.setdefault(parent_path, {})[path.rpartition("/")[2]] = True
        plan.events.append(WatchEvent(Change.CREATED, path))
        plan.events.append(WatchEvent(Change.CHILDREN, parent_path))
        return path


def _at_version(path: str, node: Node, version: int) -> Node:
    if version not in (ANY_VERSION, node.version):
        raise BadVersion(f"{path} is at version {node.version}, expected {version}")
    return node
