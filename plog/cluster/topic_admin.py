"""Topics come, grow and go: checks what administrators ask for, and writes it down.

Owns the rules for names, counts, assignments and their errors, and the topic nodes it
writes; the controller's watches make the rest happen. Knows nothing of requests and
never waits for the effect: who asked waits on the metadata cache.

Blocks on the coordination store; not for the asyncio loop. Any thread.
"""

from __future__ import annotations

import logging
import random
import threading
import uuid
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from plog.cluster import topic_removals, znodes
from plog.cluster.internal_replicas import OFFSETS_TOPIC, TRANSACTIONS_TOPIC
from plog.cluster.registered_brokers import read_registered_brokers
from plog.cluster.replica_placement import Candidate, place_replicas
from plog.cluster.store import (
    ANY_VERSION,
    BadVersion,
    Change,
    CheckOp,
    CreateOp,
    NodeExists,
    NoNode,
    Op,
    SetOp,
    Store,
    Watch,
    WatchEvent,
)
from plog.cluster.znodes import ConfigEntity, MalformedNode, TopicNode
from plog.errors import (
    InvalidConfig,
    InvalidPartitions,
    InvalidReplicaAssignment,
    InvalidReplicationFactor,
    InvalidRequest,
    InvalidTopic,
    ReassignmentInProgress,
    TopicAlreadyExists,
    TopicDeletionDisabled,
    UnknownTopicId,
    UnknownTopicOrPartition,
)
from plog.runtime.bounded_lines import BoundedLines
from plog.settings.definitions import TopicSettings
from plog.settings.dynamic import DynamicSettings
from plog.types import CLUSTER_METADATA, counted, is_legal_topic_name, new_topic_id

log = logging.getLogger(__name__)

BROKER_DEFAULT: Final = -1
"""As a partition count or replication factor: what the broker's settings say (KIP-464)."""

INTERNAL_TOPICS: Final = frozenset({OFFSETS_TOPIC, TRANSACTIONS_TOPIC})
"""Topics the brokers keep for themselves; administrators cannot delete them."""


@dataclass(frozen=True, slots=True)
class NewTopic:
    """A topic as asked for: counts, or the replicas of every partition."""

    name: str
    num_partitions: int = BROKER_DEFAULT
    replication_factor: int = BROKER_DEFAULT
    assignments: Mapping[int, Sequence[int]] = field(default_factory=dict)
    configs: Mapping[str, str | None] = field(default_factory=dict)


class CreatedTopic(NamedTuple):
    """A topic as it is (or, validated only, would be): its id is the zero of no topic then."""

    name: str
    topic_id: uuid.UUID
    num_partitions: int
    replication_factor: int
    settings: TopicSettings


class TopicAdmin:
    """Creates, extends and deletes topics in the coordination store.

    What another broker confirmed counts here: each change begins with a `sync`.

    Args:
        store: where topics are written.
        settings: defaults, and the check of configs.
        rng: draws where the first leader goes.
    """

    def __init__(
        self,
        store: Store,
        settings: DynamicSettings,
        rng: random.Random | None = None,
    ) -> None:
        self._store = store
        self._settings = settings
        self._rng = rng or random.Random()
        self._lines = BoundedLines(log, "%d further topic changes", least_level=logging.INFO)

    # -- creation ----------------------------------------------------------------------------

    def create(self, topic: NewTopic, *, validate_only: bool = False) -> CreatedTopic:
        """Create a topic; the controller hears of it by itself.

        Raises:
            InvalidTopic: no legal name, or it differs from another's only by `.` and `_`.
            TopicAlreadyExists: it is there, or still being deleted.
            InvalidPartitions, InvalidReplicationFactor, InvalidReplicaAssignment: the
                counts or the assignments cannot be had.
            InvalidRequest: both counts and assignments are given.
            InvalidConfig: configs that are unknown or wrong; all are named.
            Unreachable, SessionLost: it may have been created.
            StoreError: nothing was created.
        """
        self._store.sync()
        self._check_name(topic.name)
        replicas = self._checked_assignments(topic) if topic.assignments else self._placed(topic)
        overrides = _texts(topic.configs)
        settings = self._settings.check_topic(overrides)
        created = CreatedTopic(
            topic.name, new_topic_id(), len(replicas), len(replicas[0]), settings
        )
        if validate_only:
            return created._replace(topic_id=uuid.UUID(int=0))
        node = TopicNode(created.topic_id, replicas)
        config = ConfigEntity.topic(topic.name).path
        data = znodes.encode_config(overrides)
        create = CreateOp(znodes.topic_path(topic.name), node.encode())
        configure: Op = CreateOp(config, data)
        while True:
            try:
                # Both at once: a topic is never seen without its configs.
                self._store.multi([configure, create])
            except NodeExists as error:
                if error.op_index != 0:
                    raise self._exists(topic.name) from error
                configure = SetOp(config, data)  # left over, or of a topic that is being deleted
            except NoNode:
                configure = CreateOp(config, data)  # that deletion has just ended
            else:
                break
        self._lines.info(
            "created topic %s with %s, replication factor %d",
            topic.name,
            counted(created.num_partitions, "partition"),
            created.replication_factor,
        )
        return created

    def _check_name(self, name: str) -> None:
        if not is_legal_topic_name(name):
            raise InvalidTopic(
                f"invalid topic name {name[:300]!r}: use 1-249 characters from"
                " a-z A-Z 0-9 . _ - (not '.' or '..')"
            )
        if name == CLUSTER_METADATA:
            raise InvalidRequest(f"{name} is reserved for KRaft's metadata log")
        if self._store.exists(znodes.topic_path(name)) is not None:
            raise self._exists(name)
        if "." in name or "_" in name:
            # Metric names turn dots into underscores; two topics must not share theirs.
            shape = name.replace(".", "_")
            for other in self._store.children(znodes.TOPICS):
                if other.replace(".", "_") == shape:
                    raise InvalidTopic(f"topic {name!r} collides with {other!r} in . and _")

    def _exists(self, name: str) -> TopicAlreadyExists:
        is_going = self._store.exists(znodes.delete_topic_path(name)) is not None
        state = "is marked for deletion" if is_going else "already exists"
        return TopicAlreadyExists(f"topic {name!r} {state}")

    def _placed(self, topic: NewTopic) -> dict[int, tuple[int, ...]]:
        broker = self._settings.broker()
        count, factor = topic.num_partitions, topic.replication_factor
        if count == BROKER_DEFAULT:
            count = broker.num_partitions
        if factor == BROKER_DEFAULT:
            factor = broker.default_replication_factor
        if count < 1:
            raise InvalidPartitions(f"{count} partitions: at least one is required")
        return place_replicas(self._candidates(), count, factor, self._rng)

    def _checked_assignments(self, topic: NewTopic) -> dict[int, tuple[int, ...]]:
        if (topic.num_partitions, topic.replication_factor) != (BROKER_DEFAULT, BROKER_DEFAULT):
            raise InvalidRequest(
                "specify either assignments, or a partition count and a replication factor"
            )
        if set(topic.assignments) != set(range(len(topic.assignments))):
            raise InvalidReplicaAssignment("partitions must be numbered from 0 without a gap")
        return self._checked(topic.assignments, factor=len(topic.assignments[0]))

    def _checked(
        self, assignments: Mapping[int, Sequence[int]], *, factor: int
    ) -> dict[int, tuple[int, ...]]:
        live = {candidate.broker_id for candidate in self._candidates()}
        for index, replicas in sorted(assignments.items()):
            if not replicas or len(set(replicas)) != len(replicas):
                raise InvalidReplicaAssignment(
                    f"partition {index} has no replicas, or one broker twice: {list(replicas)}"
                )
            if len(replicas) != factor:
                raise InvalidReplicaAssignment(
                    f"partition {index} has {counted(len(replicas), 'replica')}, "
                    f"others have {factor}"
                )
            if not live.issuperset(replicas):
                unknown = sorted(set(replicas) - live)
                raise InvalidReplicaAssignment(f"partition {index}: no such broker: {unknown}")
        return {index: tuple(replicas) for index, replicas in sorted(assignments.items())}

    def _candidates(self) -> list[Candidate]:
        """Return the live brokers."""
        # The controller reports a node that cannot be read.
        found = read_registered_brokers(self._store, lambda path, stat, fault: None)
        return [Candidate(broker_id, one.node.rack) for broker_id, one in found.items()]

    # -- growth ------------------------------------------------------------------------------

    def create_partitions(
        self,
        name: str,
        count: int,
        assignments: Sequence[Sequence[int]] | None = None,
        *,
        limit: int | None = None,
        validate_only: bool = False,
    ) -> uuid.UUID | None:
        """Add partitions until there are `count`; `assignments` are the new ones' replicas.

        Returns the id of the topic that they are added to.

        Raises:
            UnknownTopicOrPartition: no such topic, or it is being deleted.
            InvalidTopic: the topic's node cannot be read, or it is one of the brokers' own.
            InvalidPartitions: `count` is not above the present one, or above `limit`.
            InvalidReplicaAssignment, InvalidReplicationFactor: the replicas cannot be had.
            ReassignmentInProgress: the topic's replicas are being moved.
        """
        self._store.sync()
        while True:
            same_topic = topic_removals.check_none_removed(self._store)
            node, version = self._existing(name)
            if name in INTERNAL_TOPICS:
                raise InvalidTopic(
                    f"{name} is an internal topic: with more partitions, groups and transactions"
                    " would lose their state"
                )
            if node.adding_replicas or node.removing_replicas:
                raise ReassignmentInProgress(f"replicas of topic {name!r} are being moved")
            present = len(node.partitions)
            if count <= present:
                raise InvalidPartitions(
                    f"topic {name!r} has {counted(present, 'partition')} already;"
                    f" the request asks for {count}"
                )
            if limit is not None and count > limit:
                raise InvalidPartitions(f"{count} partitions exceed the limit of {limit}")
            added = self._added(node, count - present, assignments)
            if validate_only:
                return node.topic_id
            grown = TopicNode(node.topic_id, {**node.partitions, **added})
            try:
                write = SetOp(znodes.topic_path(name), grown.encode(), version)
                self._store.multi([same_topic, write])
            except BadVersion:
                continue  # written meanwhile: judge what is there now
            except NoNode as gone:
                raise UnknownTopicOrPartition(f"topic {name!r} does not exist") from gone
            self._lines.info("topic %s now has %s", name, counted(count, "partition"))
            return node.topic_id

    def _added(
        self, node: TopicNode, more: int, assignments: Sequence[Sequence[int]] | None
    ) -> dict[int, tuple[int, ...]]:
        present = len(node.partitions)
        factor = len(node.partitions[0])
        if assignments is not None:
            if len(assignments) != more:
                raise InvalidReplicaAssignment(
                    f"{counted(len(assignments), 'assignment')} for "
                    f"{counted(more, 'new partition')}"
                )
            return self._checked(dict(enumerate(assignments, present)), factor=factor)
        candidates = self._candidates()
        ids = sorted(candidate.broker_id for candidate in candidates)
        first = node.partitions[0][0]
        start = ids.index(first) if first in ids else None
        try:
            return place_replicas(
                candidates, more, factor, self._rng, first_partition=present, start=start
            )
        except InvalidReplicationFactor as error:
            raise InvalidReplicationFactor(f"the new partitions' {error}") from error

    def _existing(self, name: str) -> tuple[TopicNode, int]:
        try:
            data, stat = self._store.get(znodes.topic_path(name))
        except NoNode as error:
            raise UnknownTopicOrPartition(f"topic {name!r} does not exist") from error
        if self._store.exists(znodes.delete_topic_path(name)) is not None:
            raise UnknownTopicOrPartition(f"topic {name!r} is being deleted")
        try:
            return TopicNode.decode(data), stat.version
        except MalformedNode as fault:
            raise InvalidTopic(f"{znodes.topic_path(name)}: {fault}") from fault

    # -- deletion ----------------------------------------------------------------------------

    def delete(self, name: str, topic_id: uuid.UUID | None = None) -> uuid.UUID | None:
        """Ask the controller to delete a topic. Asked twice is asked once.

        Returns the id of the topic that goes; another may have its name a moment later. None: its
        node cannot be read.

        Args:
            topic_id: leave it alone unless it has this id.

        Raises:
            UnknownTopicOrPartition: no such topic.
            UnknownTopicId: the name is another topic's.
            InvalidTopic: one of the brokers' own.
            TopicDeletionDisabled: delete.topic.enable is false.
        """
        if not self._settings.broker().delete_topic_enable:
            raise TopicDeletionDisabled("delete.topic.enable is false")
        if name in INTERNAL_TOPICS:
            raise InvalidTopic(f"{name} is an internal topic")
        path = znodes.topic_path(name)
        request = CreateOp(znodes.delete_topic_path(name))
        self._store.sync()
        while True:
            same_topic = topic_removals.check_none_removed(self._store)
            try:
                found = self._id_at(path)
                if topic_id not in (None, found):
                    raise UnknownTopicId(f"no topic has the id {topic_id}")
                # At once: a request that outlived its topic would be the next one's of its name.
                self._store.multi([same_topic, CheckOp(path, ANY_VERSION), request])
            except NoNode as error:
                if topic_id is not None:
                    raise UnknownTopicId(f"no topic has the id {topic_id}") from error
                raise UnknownTopicOrPartition(f"topic {name!r} does not exist") from error
            except BadVersion:
                continue  # a topic was removed meanwhile, perhaps this one
            except NodeExists:
                self._lines.info("topic %s is being deleted already", name)
            return found

    def _id_at(self, path: str) -> uuid.UUID | None:
        data, _ = self._store.get(path)
        try:
            return TopicNode.decode(data).topic_id
        except MalformedNode:
            return None

    def is_there(self, name: str, topic_id: uuid.UUID | None) -> bool:
        """Return whether the topic of this id has its name; it may be one that is being deleted.

        `topic_id` None: whether any topic has the name.
        """
        try:
            found = self._id_at(znodes.topic_path(name))
        except NoNode:
            return False
        return topic_id in (None, found)

    def watch_removal(
        self, name: str, topic_id: uuid.UUID | None, removed: Callable[[], None]
    ) -> RemovalWatch:
        """Return a watch of a topic's removal, to be begun.

        Args:
            removed: called once the topic of this id has left its name free; or has left it
                already. It may be called more than once, on any thread.
        """
        path = znodes.topic_path(name)
        return RemovalWatch(self._store, path, lambda: self.is_there(name, topic_id), removed)


class RemovalWatch:
    """Waits for the removal of a topic. Both methods wait for the store; from any thread."""

    def __init__(
        self, store: Store, path: str, is_there: Callable[[], bool], removed: Callable[[], None]
    ) -> None:
        self._store = store
        self._path = path
        self._is_there = is_there
        self._removed = removed
        self._lock = threading.Lock()
        self._watch: Watch | None = None
        self._is_over = False

    def begin(self) -> None:
        """Watch, and look. Raises StoreError."""
        watch = self._store.watch_data(self._path, self._look)
        with self._lock:
            self._watch, is_over = watch, self._is_over
        if is_over:
            watch.cancel()  # the caller has given up meanwhile
        elif not self._is_there():
            self._removed()

    def cancel(self) -> None:
        """End the watch, also one that `begin` has yet to arm."""
        with self._lock:
            watch, self._is_over = self._watch, True
        if watch is not None:
            watch.cancel()

    def _look(self, event: WatchEvent) -> None:
        if event.change is Change.DELETED:
            self._removed()


def _texts(configs: Mapping[str, str | None]) -> dict[str, str]:
    null = sorted(key for key, value in configs.items() if value is None)
    if null:
        raise InvalidConfig("; ".join(f"{key}: no value" for key in null))
    return {key: value for key, value in configs.items() if value is not None}
