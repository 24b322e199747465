"""What the controller reads from and writes to the coordination store.

Owns the election's nodes and the fence: every write of a controller is one transaction
with a check that /controller_epoch is still at the version it was elected with. Runs on
the controller's thread; decides nothing.
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Iterable, Mapping, Sequence

from plog.cluster import topic_removals, znodes
from plog.cluster.controller_context import (
    Assignment,
    LiveBroker,
    PartitionState,
    assignments_of,
    node_with,
)
from plog.cluster.controller_events import AssignmentWrite, StateWrite, TopicsRead
from plog.cluster.registered_brokers import read_registered_brokers
from plog.cluster.store import (
    BadVersion,
    CheckOp,
    CreateOp,
    DeleteOp,
    NodeExists,
    NoNode,
    NotEmpty,
    Op,
    OpResult,
    SetOp,
    Stat,
    Store,
    StoreError,
    join,
)
from plog.cluster.znodes import (
    ConfigEntity,
    ControllerNode,
    MalformedNode,
    PartitionStateNode,
    TopicNode,
)
from plog.errors import PlogError
from plog.runtime.clock import Clock
from plog.types import TopicPartition, new_topic_id

log = logging.getLogger(__name__)

WRITES_AT_ONCE = 200
"""Partition states in one transaction: ZooKeeper takes at most a megabyte."""


class ControllerMoved(PlogError):
    """Another broker was elected; nothing this one writes counts any more."""


class ControllerStore:
    """The store as one controller sees it, between its election and its end."""

    def __init__(self, store: Store, broker_id: int, clock: Clock) -> None:
        self._store = store
        self._broker_id = broker_id
        self._clock = clock
        self.epoch = 0
        self._epoch_version = -1
        self._brokers: dict[int, LiveBroker] = {}
        self._reported: dict[str, int] = {}

    # -- election ----------------------------------------------------------------------------

    def read_controller(self) -> int | None:
        """Return the id of the controller, if there is one.

        Raises:
            MalformedNode: the node of another session is unreadable.
        """
        try:
            data, stat = self._store.get(znodes.CONTROLLER)
        except NoNode:
            return None
        try:
            return ControllerNode.decode(data).broker_id
        except MalformedNode as fault:
            if stat.ephemeral_owner == self._store.session_id:
                self._report(znodes.CONTROLLER, stat, f"{fault}; it is the node of this broker")
                return self._broker_id
            raise MalformedNode(f"{znodes.CONTROLLER}: {fault}; delete the node") from fault

    def resume(self) -> bool:
        """Take the role up again, if this session has it; return whether it has.

        The answer to the election may have been lost, or the controller began again after a write
        that failed. A node of an earlier session goes by itself.

        Raises:
            MalformedNode: the epoch cannot be read.
        """
        self._store.sync()  # what this session wrote last, if its response was lost
        # Before the node: another broker may be elected between the two reads.
        epoch, version = self._read_epoch()
        try:
            _, stat = self._store.get(znodes.CONTROLLER)
        except NoNode:
            return False
        if stat.ephemeral_owner != self._store.session_id:
            return False
        self.epoch, self._epoch_version = epoch, version
        return True

    def try_elect(self) -> int | None:
        """Try to become the controller; return who is. `resume` then takes the role up.

        Raises:
            MalformedNode: the present controller or the epoch cannot be read.
        """
        epoch, version = self._read_epoch()
        node = ControllerNode(self._broker_id, self._clock.now_ms())
        try:
            _, stat = self._store.multi(
                [
                    CreateOp(znodes.CONTROLLER, node.encode(), ephemeral=True),
                    SetOp(
                        znodes.CONTROLLER_EPOCH, znodes.encode_controller_epoch(epoch + 1), version
                    ),
                ]
            )
        except (NodeExists, BadVersion):
            return self.read_controller()
        assert isinstance(stat, Stat)
        self.epoch, self._epoch_version = epoch + 1, stat.version
        return self._broker_id

    def _read_epoch(self) -> tuple[int, int]:
        while True:
            try:
                data, stat = self._store.get(znodes.CONTROLLER_EPOCH)
            except NoNode:
                try:
                    self._store.create(znodes.CONTROLLER_EPOCH, znodes.encode_controller_epoch(0))
                except NodeExists:
                    log.debug("another broker was first to create %s", znodes.CONTROLLER_EPOCH)
                continue
            try:
                return znodes.decode_controller_epoch(data), stat.version
            except MalformedNode as fault:
                raise MalformedNode(
                    f"{znodes.CONTROLLER_EPOCH}: {fault}; write the epoch of the last controller"
                    " there, or a higher one"
                ) from fault

    def abdicate(self) -> None:
        """Remove /controller, so that another broker is elected at once."""
        try:
            self._fenced([DeleteOp(znodes.CONTROLLER)])
        except (ControllerMoved, StoreError) as gone:
            log.info("cannot remove %s: %s", znodes.CONTROLLER, gone)

    def _fenced(self, ops: Sequence[Op]) -> list[OpResult]:
        """Do all of `ops`, if this broker is still the controller; op_index counts in `ops`."""
        try:
            return self._store.multi([CheckOp(znodes.CONTROLLER_EPOCH, self._epoch_version), *ops])[
                1:
            ]
        except StoreError as error:
            if error.op_index == 0:
                raise ControllerMoved(f"controller epoch {self.epoch} has ended") from error
            if error.op_index is not None:
                error.op_index -= 1
            raise

    # -- reading -----------------------------------------------------------------------------

    def read_brokers(self) -> dict[int, LiveBroker]:
        """Return the registered brokers; one whose node is overwritten is as it was before."""
        unreadable: list[Stat] = []

        def report(path: str, stat: Stat, fault: Exception) -> None:
            self._report(path, stat, fault)
            unreadable.append(stat)

        found = read_registered_brokers(self._store, report)
        brokers = {
            broker_id: LiveBroker(broker_id, stat.czxid, node.endpoints, node.rack)
            for broker_id, (node, stat) in found.items()
        }
        for stat in unreadable:
            known = next((b for b in self._brokers.values() if b.epoch == stat.czxid), None)
            if known is not None:
                brokers[known.id] = known
        self._brokers = brokers
        return brokers

    def topic_names(self) -> list[str]:
        """Return the names of all topics."""
        return self._store.children(znodes.TOPICS)

    def read_topics(self, names: Sequence[str]) -> TopicsRead:
        """Return the nodes of topics. Many are asked for at a time."""
        found = self._store.get_many([znodes.topic_path(name) for name in names])
        topics: dict[str, TopicNode | None] = {}
        unreadable: dict[str, tuple[int, ...]] = {}
        for name, one in zip(names, found, strict=True):
            try:
                topics[name] = self._topic(znodes.topic_path(name), one)
            except MalformedNode:
                unreadable[name] = self._partitions_with_a_node(name)
        return TopicsRead(topics, unreadable)

    def _partitions_with_a_node(self, name: str) -> tuple[int, ...]:
        try:
            names = self._store.children(znodes.partitions_path(name))
        except NoNode:
            return ()
        return tuple(sorted(int(one) for one in names if one.isdecimal() and len(one) < 10))

    def _topic(self, path: str, found: tuple[bytes, Stat] | None) -> TopicNode | None:
        """Return a topic's node, None if it is gone; one that never had an id is given one."""
        while found is not None:
            data, stat = found
            try:
                node = TopicNode.decode(data)
            except MalformedNode as fault:
                self._report(path, stat, fault)
                raise
            if node.topic_id is not None:
                return node
            named = TopicNode(
                new_topic_id(), node.partitions, node.adding_replicas, node.removing_replicas
            )
            try:
                self._fenced([SetOp(path, named.encode(), stat.version)])
            except (BadVersion, NoNode):
                (found,) = self._store.get_many([path])
                continue
            return named
        return None

    def read_states(
        self, partitions: Sequence[TopicPartition]
    ) -> dict[TopicPartition, PartitionState]:
        """Return the states of the partitions that have one. Many are asked for at a time."""
        paths = [znodes.partition_state_path(one) for one in partitions]
        found = self._store.get_many(paths)
        return {
            partition: self._state(path, *one)
            for partition, path, one in zip(partitions, paths, found, strict=True)
            if one is not None
        }

    def _state(self, path: str, data: bytes, stat: Stat) -> PartitionState:
        try:
            return PartitionState.of_node(PartitionStateNode.decode(data), stat.version)
        except MalformedNode as fault:
            self._report(path, stat, f"{fault}; the partition has no leader until this is repaired")
            return PartitionState.unreadable(stat.version)

    def _report(self, path: str, stat: Stat, fault: object) -> None:
        """Log that a node cannot be read: once, however often it is."""
        if self._reported.get(path) != stat.mzxid:
            self._reported[path] = stat.mzxid
            log.error("%s: %s", path, fault)

    def read_unclean(self, topics: Iterable[str], *, default: bool) -> dict[str, bool]:
        """Return which topics allow unclean elections."""
        allowed = {}
        for name in topics:
            try:
                data, stat = self._store.get(path := ConfigEntity.topic(name).path)
            except NoNode:
                allowed[name] = default
                continue
            try:
                text = znodes.decode_config(data).get("unclean.leader.election.enable")
            except MalformedNode as fault:
                self._report(path, stat, f"configs of topic {name} are ignored: {fault}")
                text = None
            allowed[name] = default if text is None else text.lower() == "true"
        return allowed

    def read_log_dir_events(self) -> tuple[set[int], list[str]]:
        """Return the brokers that report a failed log directory, and the reports' paths."""
        brokers, paths = set(), []
        for name in self._store.children(znodes.LOG_DIR_EVENTS):
            path = join(znodes.LOG_DIR_EVENTS, name)
            try:
                brokers.add(znodes.decode_log_dir_event(self._store.get(path)[0]))
            except NoNode:
                continue
            except MalformedNode as fault:
                log.error("%s: %s", path, fault)
            paths.append(path)
        return brokers, paths

    # -- writing -----------------------------------------------------------------------------

    def write_states(
        self, writes: Sequence[StateWrite]
    ) -> tuple[list[StateWrite], Mapping[TopicPartition, PartitionState | None]]:
        """Write states; return those that are written, and what is there instead of the others.

        Raises:
            ControllerMoved: none or only some are written, and it does not matter which.
        """
        written: list[StateWrite] = []
        conflicts: dict[TopicPartition, PartitionState | None] = {}
        for at in range(0, len(writes), WRITES_AT_ONCE):
            some = writes[at : at + WRITES_AT_ONCE]
            if self._is_written_together(some):
                written += some
                continue
            for write in some:
                try:
                    self._write_together([write], self._parents([write]))
                    written.append(write)
                except (NodeExists, BadVersion, NoNode) as reason:
                    log.warning("state of %s not written: %s", write.partition, reason)
                    conflicts |= {write.partition: None, **self.read_states([write.partition])}
        return written, conflicts

    def _is_written_together(self, writes: Sequence[StateWrite]) -> bool:
        """Write states in one transaction; return whether that was possible."""
        try:
            try:
                # A new topic has none of the nodes above its states, so none are looked for.
                self._write_together(writes, frozenset())
            except NodeExists:
                self._write_together(writes, self._parents(writes))
        except (NodeExists, BadVersion, NoNode) as reason:
            log.info("writing partition states one by one: %s", reason)
            return False
        return True

    def _parents(self, writes: Sequence[StateWrite]) -> frozenset[str]:
        """Return the nodes above states that exist."""
        paths = [path for write in writes for path in _above(write.partition)]
        found = self._store.get_many(list(dict.fromkeys(paths)))
        return frozenset(
            path for path, one in zip(dict.fromkeys(paths), found, strict=True) if one is not None
        )

    def _write_together(self, writes: Sequence[StateWrite], parents: Collection[str]) -> None:
        ops: dict[str, Op] = {}
        for partition, state, expected in writes:
            path, data = znodes.partition_state_path(partition), state.to_node().encode()
            if expected is not None:
                ops[path] = SetOp(path, data, expected)
                continue
            for above in _above(partition):
                if above not in parents:
                    ops.setdefault(above, CreateOp(above))
            ops[path] = CreateOp(path, data)
        self._fenced(list(ops.values()))

    def write_assignments(
        self, writes: Sequence[AssignmentWrite]
    ) -> tuple[list[AssignmentWrite], dict[TopicPartition, Assignment]]:
        """Write assignments into topics' nodes, each topic's in one step.

        Returns those that are written, and what nodes say of the others; nothing of those whose
        topic or partition is gone.
        """
        by_topic: dict[str, list[AssignmentWrite]] = {}
        for write in writes:
            by_topic.setdefault(write.partition.topic, []).append(write)
        written: list[AssignmentWrite] = []
        found: dict[TopicPartition, Assignment] = {}
        for name, mine in by_topic.items():
            done, others = self._write_assignments_of(name, mine)
            written += done
            found |= others
        return written, found

    def _write_assignments_of(
        self, name: str, writes: Sequence[AssignmentWrite]
    ) -> tuple[list[AssignmentWrite], dict[TopicPartition, Assignment]]:
        path = znodes.topic_path(name)
        while True:
            (one,) = self._store.get_many([path])
            try:
                node = self._topic(path, one)
            except MalformedNode:
                return [], {}
            if one is None or node is None:
                return [], {}
            now = assignments_of(node)
            possible = [
                write for write in writes if now.get(write.partition.partition) == write.expected
            ]
            after = now | {one.partition.partition: one.assignment for one in possible}
            try:
                if possible:
                    data = node_with(node, after).encode()
                    self._fenced([SetOp(path, data, one[1].version)])
            except (BadVersion, NoNode):
                continue  # it has grown, or is gone
            others = {
                write.partition: now[write.partition.partition]
                for write in writes
                if write not in possible and write.partition.partition in now
            }
            return possible, others

    def remove_topic(self, name: str) -> None:
        """Remove a topic's nodes, its configs and the request to delete it.

        The request goes last, in one transaction with the topic's own node: a controller
        that takes over in between finds the deletion still asked for.
        """
        last = [ConfigEntity.topic(name).path, znodes.delete_topic_path(name)]
        while True:
            nodes = self._store.descendants(znodes.topic_path(name))
            paths = nodes + [path for path in last if self._store.exists(path) is not None]
            head, tail = paths[: -len(last) - 1], paths[-len(last) - 1 :]
            try:
                for at in range(0, len(head), WRITES_AT_ONCE):
                    self._fenced([DeleteOp(path) for path in head[at : at + WRITES_AT_ONCE]])
                self._fenced([*(DeleteOp(path) for path in tail), topic_removals.count_removal()])
            except (NoNode, NotEmpty) as meanwhile:
                log.info("retrying the removal of topic %s: %s", name, meanwhile)
                # Without this node the removal cannot be counted, so every retry would fail.
                self._store.ensure(znodes.DELETE_TOPICS)
                continue
            return

    def drop_deletions(self, names: Iterable[str]) -> None:
        """Remove requests to delete topics."""
        self.delete_nodes([znodes.delete_topic_path(name) for name in sorted(names)])

    def drop_notifications(self) -> None:
        """Remove notifications from before this controller: it reads everything anyway."""
        self.delete_nodes(
            [
                join(parent, name)
                for parent in (znodes.LOG_DIR_EVENTS, znodes.ISR_CHANGES)
                for name in self._store.children(parent)
            ]
        )

    def delete_nodes(self, paths: Iterable[str]) -> None:
        """Delete nodes; that one is gone already is fine."""
        for path in paths:
            try:
                self._fenced([DeleteOp(path)])
            except NoNode:
                continue


def _above(partition: TopicPartition) -> tuple[str, str]:
    """Return the nodes between a topic and the state of a partition."""
    return znodes.partitions_path(partition.topic), znodes.partition_path(partition)
