"""The topics and states that a controller reads, each watched before it is read.

Owns those watches: one for each topic, and one for each partition state that cannot be read, so
that the controller hears when the node is repaired. Decides nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import ExitStack, suppress

from plog.cluster import znodes
from plog.cluster.controller_context import PartitionState
from plog.cluster.controller_events import StatesRead, TopicsRead
from plog.cluster.controller_store import ControllerStore
from plog.cluster.store import Store, Watch, WatchEvent
from plog.types import TopicPartition

States = Mapping[TopicPartition, PartitionState | None]


class ControllerTopics:
    """The topics of one controller. All but the callbacks of watches is its loop's to call.

    Args:
        enqueue: has a task run later, once for all that wait with the same key.
        feed: takes the topics and states that are read after a change.
    """

    def __init__(
        self,
        store: Store,
        nodes: ControllerStore,
        *,
        enqueue: Callable[[str, Callable[[], None]], None],
        feed: Callable[[TopicsRead | StatesRead], None],
    ) -> None:
        self._store = store
        self._nodes = nodes
        self._enqueue = enqueue
        self._feed = feed
        self._watches: dict[str, Watch] = {}
        self._state_watches: dict[TopicPartition, Watch] = {}

    def read(self, names: Iterable[str]) -> TopicsRead:
        """Read topics."""
        wanted = list(names)
        unwatched = {znodes.topic_path(name): name for name in wanted if name not in self._watches}

        def changed(event: WatchEvent) -> None:
            name = unwatched[event.path]
            self._enqueue(event.path, lambda: self._read_topic_again(name))

        watches = self._store.watch_data_many(list(unwatched), changed)
        self._watches.update(zip(unwatched.values(), watches, strict=True))
        found = self._nodes.read_topics(wanted)
        for name, node in found.topics.items():
            if node is None:
                self.forget(name)
        return found

    def read_states(
        self, partitions: Sequence[TopicPartition]
    ) -> dict[TopicPartition, PartitionState]:
        """Return the states of the partitions that have one."""
        read = self.watch_unreadable(self._nodes.read_states(partitions))
        return {partition: state for partition, state in read.items() if state is not None}

    def watch_unreadable(self, states: States) -> States:
        """Return states as they are once those that cannot be read are watched."""
        unwatched = {
            znodes.partition_state_path(partition): partition
            for partition, state in states.items()
            if state is not None and not state.is_readable and partition not in self._state_watches
        }
        if not unwatched:
            return states

        def changed(event: WatchEvent) -> None:
            partition = unwatched[event.path]
            self._enqueue(event.path, lambda: self._read_again(partition))

        watches = self._store.watch_data_many(list(unwatched), changed)
        self._state_watches.update(zip(unwatched.values(), watches, strict=True))
        again = self._nodes.read_states([*unwatched.values()])
        return {**states, **{partition: again.get(partition) for partition in unwatched.values()}}

    def _read_topic_again(self, name: str) -> None:
        if name in self._watches:  # else this is no controller any more
            self._feed(self.read([name]))

    def _read_again(self, partition: TopicPartition) -> None:
        if partition not in self._state_watches:
            return
        state = self._nodes.read_states([partition]).get(partition)
        if state is None or state.is_readable:
            self._forget_state(partition)
        self._feed(StatesRead({partition: state}))

    def forget(self, name: str) -> None:
        """Watch a topic no more."""
        if (watch := self._watches.pop(name, None)) is not None:
            watch.cancel()
        for partition in [one for one in self._state_watches if one.topic == name]:
            self._forget_state(partition)

    def _forget_state(self, partition: TopicPartition) -> None:
        with suppress(KeyError):
            self._state_watches.pop(partition).cancel()

    def cancel(self) -> None:
        """Watch nothing any more."""
        watches = [*self._watches.values(), *self._state_watches.values()]
        self._watches.clear()
        self._state_watches.clear()
        call_each(watch.cancel for watch in watches)


def call_each(calls: Iterable[Callable[[], None]]) -> None:
    """Make all calls, though some fail. Raises the exception of one that failed."""
    with ExitStack() as made:
        for call in calls:
            made.callback(call)
