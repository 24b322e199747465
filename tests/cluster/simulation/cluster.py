"""A simulated cluster: ZooKeeper, brokers, the network between them, and an administrator."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

from plog.cluster import znodes
from plog.cluster.broker_registration import create_persistent_paths, ensure_cluster_id
from plog.cluster.controller_events import ProposedIsr
from plog.cluster.store import NoNode
from plog.cluster.topic_admin import TopicAdmin
from plog.cluster.znodes import PartitionStateNode, TopicNode
from plog.errors import KafkaError
from plog.settings.definitions import BrokerSettings
from plog.settings.dynamic import DynamicSettings
from plog.types import TopicPartition
from tests.cluster.simulation.acknowledged import Acknowledged
from tests.cluster.simulation.broker import Process, SimBroker
from tests.cluster.simulation.contents import Contents
from tests.cluster.simulation.invariants import Invariants, decoded_state, decoded_topic
from tests.cluster.simulation.model_replicas import Role
from tests.cluster.simulation.real_replicas import RealReplicas
from tests.cluster.simulation.scheduler import Scheduler
from tests.cluster.simulation.sim_logs import Hosted
from tests.cluster.simulation.transactions import Transactions
from tests.cluster.simulation.zookeeper import SESSION_MS, SimStore, SimZooKeeper

PEACE_MS = 15 * SESSION_MS
"""After all faults, until everything must agree."""
MIN_PEACE_MS = 3 * SESSION_MS
"""Sessions may end until then that were silent before."""


class Violation(AssertionError):
    """Something happened that must not."""


class Written(NamedTuple):
    """A partition as ZooKeeper has it."""

    topic_id: uuid.UUID
    state: PartitionStateNode
    replicas: tuple[int, ...]


class SimCluster:
    """ZooKeeper, brokers, and what must hold of them.

    Args:
        mutate: changes a broker's objects, to see that a fault is found.
        directory: where brokers have logs; None: they have models of replicas, without logs.
        is_replicated: whether those models have modelled logs, and followers fetch.
    """

    def __init__(
        self,
        seed: int,
        count: int = 3,
        mutate: Callable[[Process], None] | None = None,
        directory: Path | None = None,
        is_replicated: bool = False,
    ) -> None:
        self.scheduler = Scheduler(seed)
        self.random = self.scheduler.random
        self.zookeeper = SimZooKeeper(self.scheduler)
        self.invariants = Invariants(self)
        self._proposed: dict[tuple[Hosted, int], list[set[int]]] = {}
        self.contents = Contents()
        self.is_replicated = is_replicated
        self.acknowledged = Acknowledged(self)
        self.least_in_sync = 1
        self.slow_fetches = 0.05
        self.slow_questions = 0.3 if is_replicated else 0.0
        """The share of questions to the controller that come late."""
        self.slow_brokers: set[int] = set()
        """Those that get all orders late."""
        self.directory = directory
        self.mutate = mutate or (lambda process: None)
        self.cut: set[frozenset[int]] = set()
        self.slow_orders = 0.05
        """The share of orders that wait in a socket of the broker for long."""
        self.admin = SimStore(self.zookeeper, "admin")
        create_persistent_paths(self.admin)
        ensure_cluster_id(self.admin)
        self.topics = TopicAdmin(self.admin, DynamicSettings(BrokerSettings({})), self.random)
        self.transactions = Transactions(self)
        self.brokers = [SimBroker(self, broker_id) for broker_id in range(count)]
        for broker in self.brokers:
            broker.start()

    def close(self) -> None:
        """Close the files of the processes."""
        for broker in self.brokers:
            broker.kill()
        self.transactions.close()

    def check_steps(self) -> None:
        """Raises Violation: some step broke an invariant."""
        if self.invariants.violations:
            raise Violation(self.invariants.violations[0])

    # -- at the end --------------------------------------------------------------------------

    def heal(self, *, ends_early: bool = False) -> None:
        """Let everything run, and give it time.

        Args:
            ends_early: end a session's time after all agree, in place of after `PEACE_MS`.
        """
        self.scheduler.note("healed")
        self.cut.clear()
        self.zookeeper.is_up = True
        self.admin.lag(0)
        for broker in self.brokers:
            broker.heal()
        self.transactions.is_stopping = self.acknowledged.is_stopping = True
        self.slow_fetches = self.slow_questions = 0.0
        self.slow_brokers.clear()
        until_ms = self.scheduler.now_ms + PEACE_MS
        self.scheduler.run(MIN_PEACE_MS)
        agreed = False
        while self.scheduler.now_ms < until_ms and not agreed:
            agreed = ends_early and self._all_agree()
            self.scheduler.run(SESSION_MS)

    def check_converged(self) -> None:
        """Check that every broker knows the written state, and obeys it. Raises Violation."""
        self.check_steps()
        self._check_agreement()
        for broker in self.brokers:
            _check_logs(broker)
        self.transactions.check_ended()
        self.check_steps()

    def _all_agree(self) -> bool:
        if any(broker.process is None for broker in self.brokers):
            return False
        with suppress(Violation):
            self._check_agreement()
            return self.transactions.has_ended
        return False

    def _check_agreement(self) -> None:
        tree = self.zookeeper.tree
        live = {int(name) for name in tree.children(znodes.BROKER_IDS)}
        if live != {broker.id for broker in self.brokers}:
            raise Violation(f"registered are {sorted(live)}")
        active = [broker.id for broker in self.brokers if broker.is_controller]
        if len(active) != 1:
            raise Violation(f"controllers are {active}")
        if tree.children(znodes.DELETE_TOPICS):
            raise Violation(f"not deleted: {tree.children(znodes.DELETE_TOPICS)}")
        written = self.written()
        if without := {at for at, _, _ in self._assigned()} - written.keys():
            raise Violation(f"{sorted(without)} have no state")
        if lost := {at for at, one in written.items() if self._is_lost(at, one)}:
            raise Violation(f"{sorted(lost)}: no replica in sync has all records")
        for broker in self.brokers:
            _check_metadata(broker, written, live, active[0])
            _check_replicas(broker, written)
        if self.is_replicated and (fault := self.acknowledged.check_logs()) is not None:
            raise Violation(fault)

    def _is_lost(self, at: TopicPartition, written: Written) -> bool:
        """Whether no replica in sync has all records: only an unclean election helps."""
        one = Hosted(written.topic_id, at)
        return all(self.brokers[member].has_lost(one) for member in written.state.isr)

    def note_proposed(self, one: Hosted, proposed: ProposedIsr) -> None:
        """A leader asks for an in-sync set, which may be written late."""
        self._proposed.setdefault((one, proposed.leader_epoch), []).append({*proposed.isr})

    def can_spare(self, broker_id: int) -> bool:
        """Return whether every partition that has a broker in sync has another with all records.

        That one has to be in all sets that its leader has asked for.
        """
        return all(
            any(
                not self.brokers[member].has_lost(Hosted(written.topic_id, at))
                for member in self._surely_in_sync(at, written) - {broker_id}
            )
            for at, written in self.written().items()
            if broker_id in written.state.isr
        )

    def _surely_in_sync(self, at: TopicPartition, written: Written) -> set[int]:
        epoch = Hosted(written.topic_id, at), written.state.leader_epoch
        return {*written.state.isr}.intersection(*self._proposed.get(epoch, ()))

    def is_being_deleted(self, topic: str) -> bool:
        """Return whether an administrator has asked for it."""
        return self.zookeeper.tree.exists(znodes.delete_topic_path(topic)) is not None

    def written(self) -> dict[TopicPartition, Written]:
        """Return every partition that has a state."""
        found = {}
        for at, topic_id, replicas in self._assigned():
            if (state := self._state(at)) is not None:
                found[at] = Written(topic_id, state, replicas)
        return found

    def written_of(self, at: TopicPartition) -> Written | None:
        """Return a partition as `written` does; None: it has no topic or no state."""
        if self.zookeeper.tree.exists(znodes.topic_path(at.topic)) is None:
            return None
        topic, state = self._topic(at.topic), self._state(at)
        if topic.topic_id is None or state is None or at.partition not in topic.partitions:
            return None
        return Written(topic.topic_id, state, topic.partitions[at.partition])

    def _assigned(self) -> Iterator[tuple[TopicPartition, uuid.UUID, tuple[int, ...]]]:
        for name in self.zookeeper.tree.children(znodes.TOPICS):
            node = self._topic(name)
            assert node.topic_id is not None
            for index, replicas in node.partitions.items():
                yield TopicPartition(name, index), node.topic_id, replicas

    def _topic(self, name: str) -> TopicNode:
        return decoded_topic(self.zookeeper.tree.get(znodes.topic_path(name))[0])

    def _state(self, at: TopicPartition) -> PartitionStateNode | None:
        with suppress(NoNode):
            return decoded_state(self.zookeeper.tree.get(znodes.partition_state_path(at))[0])
        return None


def _check_metadata(
    broker: SimBroker, written: dict[TopicPartition, Written], live: set[int], controller: int
) -> None:
    assert broker.process is not None
    snapshot = broker.process.metadata.snapshot
    if set(snapshot.brokers) != live:
        raise Violation(f"broker {broker.id} knows {sorted(snapshot.brokers)}, not {sorted(live)}")
    if snapshot.controller_id != controller:
        raise Violation(f"broker {broker.id} knows controller {snapshot.controller_id}")
    known = {
        TopicPartition(topic.name, at): (topic.topic_id, one.leader_id, one.leader_epoch, one.isr)
        for topic in snapshot.topics.values()
        for at, one in topic.partitions.items()
    }
    wanted = {
        at: (one.topic_id, one.state.leader, one.state.leader_epoch, tuple(one.state.isr))
        for at, one in written.items()
    }
    if known != wanted:
        raise Violation(f"broker {broker.id} knows {known}, written is {wanted}")


def _check_replicas(broker: SimBroker, written: dict[TopicPartition, Written]) -> None:
    assert broker.process is not None
    mine = {at: one for at, one in written.items() if broker.id in one.replicas}
    if broker.logs != {at: one.topic_id for at, one in mine.items()}:
        raise Violation(f"broker {broker.id} has logs of {broker.logs}, should have {mine}")
    for at, (_, state, replicas) in mine.items():
        if state.leader != replicas[0] or set(state.isr) != set(replicas):
            raise Violation(f"{at} of {replicas} is not led as preferred, or not in sync: {state}")
        role = broker.process.replicas.roles.get(at)
        if role != Role(state.leader_epoch, state.leader == broker.id):
            raise Violation(f"broker {broker.id} is at {role} of {at}, written is {state}")


def _check_logs(broker: SimBroker) -> None:
    """Every leader accepts records, and every log has the records that were appended."""
    assert broker.process is not None
    replicas = broker.process.replicas
    if isinstance(replicas, RealReplicas):
        for at, role in replicas.roles.items():
            if role.leads:
                try:
                    replicas.append(at)
                except KafkaError as refusal:
                    raise Violation(f"broker {broker.id} leads {at}, but: {refusal}") from refusal
        replicas.check()
