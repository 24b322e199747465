"""The controller as a pure machine: events in, effects out.

Owns every decision of the controller: who leads, who is in sync after a broker is
lost, the announcements to each broker and their order, when a topic's nodes may go. Does no
I/O and knows no clock; `controller.Controller` runs it on its thread, executes the
effects in order and feeds back what became of them.

The idea: events change the context, and `_reconcile` compares what the context says a
partition's state should be with the state it has. A write that loses against another
writer brings the winner's state back and is reconciled again, so no event needs a
retry of its own.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping

from plog.cluster.announcements import (
    complete_updates,
    full_update,
    leader_and_isr,
    update_metadata,
    updates_as_deleted,
    updates_of,
)
from plog.cluster.controller_context import (
    ClusterContext,
    LiveBroker,
    PartitionState,
    Topic,
    assignments_of,
)
from plog.cluster.controller_events import (
    AssignmentsWritten,
    BalanceTick,
    BrokersRead,
    CloseChannel,
    DeletionsRead,
    DrainAnswered,
    DrainsEnded,
    DropDeletions,
    Effect,
    ElectionsAsked,
    ElectionType,
    Event,
    Failover,
    Feed,
    InternalTopicsTick,
    IsrsProposed,
    LeaderAndIsrAnswered,
    LoadStates,
    LoadTopics,
    LoadUnclean,
    LogDirFailed,
    MovesAsked,
    OpenChannel,
    PartitionUpdate,
    ReadDeletions,
    ReassignmentsAsked,
    Reply,
    ShutdownAsked,
    StatesRead,
    StatesWritten,
    StateWrite,
    StopReplicaAnswered,
    TopicNamesRead,
    TopicRemoved,
    TopicsRead,
    UncleanEnabled,
    UncleanRead,
    WriteAssignments,
    WriteStates,
)
from plog.cluster.controller_questions import Questions
from plog.cluster.drains import Drains
from plog.cluster.internal_replicas import missing_replicas
from plog.cluster.reassignments import Reassignments
from plog.cluster.state_changes import needed_write
from plog.cluster.topic_deletions import TopicDeletions
from plog.errors import ErrorCode
from plog.types import TopicPartition


class ControllerMachine:
    """The active controller's decisions. Only its owner's thread may call it."""

    def __init__(self, context: ClusterContext) -> None:
        self.context = context
        self.deletions = TopicDeletions(context)
        self._drains = Drains(context)
        self.moves = Reassignments(context, self._drains)
        self._questions = Questions(context, self._drains, self._is_kept)

    def on(self, event: Event) -> list[Effect]:
        """Take in what happened and return what is to be done, in this order."""
        return _HANDLERS[type(event)](self, event)

    # -- becoming the controller -------------------------------------------------------------

    def on_failover(self, event: Failover) -> list[Effect]:
        """Announce everything, brokers and partitions first, then mend broken states."""
        context = self.context
        effects: list[Effect] = [
            OpenChannel(context.brokers[one]) for one in sorted(context.brokers)
        ]
        unknown = event.deletions - context.topic_names()
        self.deletions.begin(event.deletions)
        # Before any LeaderAndIsr: a broker that becomes a follower must know its leader's address.
        effects += self._tell_everything(context.brokers)
        for broker_id in context.brokers_in_turn():
            effects += self._everything_on(broker_id)
        effects += self._reconcile(context.partitions())
        # Where the controller before this one has stopped is not known.
        self.moves.on_failover()
        effects += self._move_on(context.partitions())
        if unknown:
            effects.append(DropDeletions(tuple(sorted(unknown))))
        effects += self.deletions.delete_unreadable(event.deletions)
        return effects + self.deletions.resume()

    # -- brokers -----------------------------------------------------------------------------

    def on_brokers_read(self, event: BrokersRead) -> list[Effect]:
        """Some brokers came, went, or came back before they were missed (a new epoch)."""
        before = self.context.brokers
        bounced = {
            one
            for one in before.keys() & event.brokers.keys()
            if before[one].epoch != event.brokers[one].epoch
        }
        lost = (before.keys() - event.brokers.keys()) | bounced
        changed = [
            broker
            for one, broker in sorted(event.brokers.items())
            if one in before and broker != before[one]
        ]
        effects: list[Effect] = []
        if lost:
            effects += self._brokers_lost(lost)
            # What else there is comes once everybody knows, with the states written meanwhile;
            # a broker that re-registered is a new one by then.
            return effects if self.context.brokers == event.brokers else [*effects, Feed(event)]
        came = event.brokers.keys() - before.keys()
        for broker in changed:
            self.context.brokers[broker.id] = broker
        if came:
            effects += self._brokers_came({one: event.brokers[one] for one in came})
        elif changed:
            effects += self._update_all(())
        return effects

    def _brokers_lost(self, lost: Iterable[int]) -> list[Effect]:
        context, gone = self.context, set(lost)
        touched = self._replicated_on(gone)
        for broker_id in gone:
            del context.brokers[broker_id]
            context.shutting_down.discard(broker_id)
            self.deletions.on_broker_lost(broker_id)
        for replicas in (context.offline_replicas, context.eligible_replicas):
            replicas.difference_update([one for one in replicas if one[0] in gone])
        effects: list[Effect] = [CloseChannel(broker_id) for broker_id in sorted(gone)]
        effects += self._reconcile_and_announce(touched, always=True)
        ended = self._drains.on_brokers_lost(gone)
        return [*effects, Feed(DrainsEnded(tuple(ended)))] if ended else effects

    def _brokers_came(self, came: Mapping[int, LiveBroker]) -> list[Effect]:
        context = self.context
        known = sorted(context.brokers)
        context.brokers.update(came)
        effects: list[Effect] = [OpenChannel(came[broker_id]) for broker_id in sorted(came)]
        effects += update_metadata(self.context, known, ())
        effects += self._tell_everything(came)
        for broker_id in sorted(came):
            effects += self._everything_on(broker_id)
        # Their replicas are online again, as everybody should know.
        touched = self._replicated_on(came)
        if known:
            effects += self._reconcile_and_announce(touched, always=False)
        else:
            effects += self._reconcile(touched)
        return effects + self.deletions.resume()

    def on_log_dir_failed(self, event: LogDirFailed) -> list[Effect]:
        """Ask the brokers which replicas they lost: the answers to LeaderAndIsr say so."""
        effects: list[Effect] = []
        eligible = self.context.eligible_replicas
        for broker_id in event.broker_ids:
            eligible.difference_update([one for one in eligible if one[0] == broker_id])
            if broker_id in self.context.brokers:
                effects += self._everything_on(broker_id)
        return effects

    def on_leader_and_isr_answered(self, event: LeaderAndIsrAnswered) -> list[Effect]:
        """Note which replicas are usable, and elect where a leader is not."""
        if not self._is_current(event.broker_id, event.broker_epoch):
            return []
        offline, eligible = self.context.offline_replicas, self.context.eligible_replicas
        incomplete = {*event.incomplete}
        changed: list[TopicPartition] = []
        leads: list[TopicPartition] = []
        for partition in event.offline:
            replica = (event.broker_id, partition)
            eligible.discard(replica)
            if self.context.knows(partition) and replica not in offline:
                offline.add(replica)
                changed.append(partition)
        for partition in event.online:
            replica = (event.broker_id, partition)
            if replica in offline:
                offline.remove(replica)
                changed.append(partition)
            if partition in incomplete:
                eligible.discard(replica)
            elif self.context.knows(partition) and self.context.is_replicated(partition):
                eligible.add(replica)
                if self.context.is_led_by(event.broker_id, partition):
                    leads.append(partition)
            self.deletions.on_usable(event.broker_id, partition)
        effects = self._reconcile_and_announce(changed, always=False) if changed else []
        # Lost members leave, now that their leader has said that it can lead.
        reconciled = {*changed}
        effects += self._reconcile(one for one in leads if one not in reconciled)
        # The others' moves go on once their states are written.
        rewritten = _rewritten(effects)
        online = (one for one in event.online if one not in rewritten)
        effects += self.moves.on_taken_up(event.broker_id, online)
        return effects + self.deletions.resume() if changed else effects

    def on_drain_answered(self, event: DrainAnswered) -> list[Effect]:
        """Have another broker lead what its leader has drained."""
        if not self._is_current(event.broker_id, event.broker_epoch):
            return []
        self._drains.on_answered(event.broker_id, event.partitions)
        return self.on_drains_ended(DrainsEnded(event.partitions))

    def on_drains_ended(self, event: DrainsEnded) -> list[Effect]:
        """Go on with the elections and moves that wait for a drain."""
        return self._questions.on_drained(event) or self._move_on(event.partitions)

    # -- topics ------------------------------------------------------------------------------

    def on_topic_names_read(self, event: TopicNamesRead) -> list[Effect]:
        """Load topics that are new; forget those that somebody has removed."""
        effects: list[Effect] = []
        known = self.context.topic_names()
        for name in sorted(known - event.names):
            effects += self._forget(name)
        new = event.names - known
        return [*effects, LoadTopics(tuple(sorted(new)))] if new else effects

    def on_topics_read(self, event: TopicsRead) -> list[Effect]:
        """Take up new topics and new partitions of known ones.

        A topic whose node cannot be read any more goes on as it was.
        """
        effects: list[Effect] = []
        new: list[TopicPartition] = []
        mended: list[TopicPartition] = []
        for name, node in sorted(event.topics.items()):
            was_unreadable = self.context.unreadable.pop(name, None) is not None
            known = self.context.topics.get(name)
            if (node is None and was_unreadable) or (
                known is not None and (node is None or node.topic_id != known.topic_id)
            ):
                effects += self._forget(name)
                known = None
            if node is None or node.topic_id is None:
                continue
            if known is None:
                known = self.context.topics[name] = Topic(node.topic_id, {})
            for index, assignment in assignments_of(node).items():
                if index not in known.partitions:
                    known.partitions[index] = assignment
                    (mended if was_unreadable else new).append(TopicPartition(name, index))
        self.context.unreadable.update(event.unreadable)
        if mended:
            effects.append(LoadStates(tuple(mended)))
        return effects + self._reconcile(new)

    def _forget(self, name: str) -> list[Effect]:
        """Drop a topic whose nodes are gone without a deletion having run its course."""
        effects: list[Effect] = []
        if name in self.context.topics:
            effects += self._update_all(updates_as_deleted(self.context, name))
        if self.deletions.give_up(name):
            # The request still exists: for no topic, or for the next one with this name.
            effects.append(ReadDeletions())
        return effects + self._drop(name)

    def _drop(self, name: str) -> list[Effect]:
        """Drop a topic; brokers may know more of an unreadable one than could be taken back."""
        was_known = name in self.context.topics
        self.context.drop_topic(name)
        self.moves.forget(name)
        self._drains.forget(name)
        return [] if was_known else self._tell_everything(self.context.brokers)

    def on_deletions_read(self, event: DeletionsRead) -> list[Effect]:
        """Start the deletions that are new."""
        unknown = event.names - self.context.topic_names()
        self.deletions.begin(event.names)
        effects = self.deletions.delete_unreadable(event.names) + self.deletions.resume()
        return [*effects, DropDeletions(tuple(sorted(unknown)))] if unknown else effects

    def on_stop_replica_answered(self, event: StopReplicaAnswered) -> list[Effect]:
        """Count the replicas that are gone; with the last one the topic's nodes go."""
        if not self._is_current(event.broker_id, event.broker_epoch):
            return []
        return self.deletions.on_stop_replica_answered(event)

    def on_topic_removed(self, event: TopicRemoved) -> list[Effect]:
        """Forget a topic whose deletion is complete."""
        self.deletions.end(event.name)
        return self._drop(event.name)

    # -- states ------------------------------------------------------------------------------

    def _reconcile(
        self, partitions: Iterable[TopicPartition], unclean: Mapping[str, bool] | None = None
    ) -> list[Effect]:
        """Write the states that partitions should have and do not.

        `unclean` says which topics allow unclean elections; where it matters and is not
        known, it is asked for first and nothing is written.
        """
        writes: list[StateWrite] = []
        ask: set[str] = set()
        for partition in self._kept(partitions):
            write = needed_write(self.context, partition, unclean, ask)
            if write is not None:
                writes.append(write)
        effects: list[Effect] = [WriteStates(tuple(writes))] if writes else []
        return [*effects, LoadUnclean(tuple(sorted(ask)))] if ask else effects

    def on_states_written(self, event: StatesWritten) -> list[Effect]:
        """Announce what was written, and what was found instead; think again about the latter."""
        written: list[TopicPartition] = []
        again: list[TopicPartition] = []
        has_new_epoch: set[TopicPartition] = set()
        new: set[TopicPartition] = set()
        for partition, state, _ in event.written:
            if self.context.knows(partition):  # else the topic went while its state was written
                written.append(partition)
                self._take_in(partition, state, has_new_epoch, new)
        for partition, found in event.conflicts.items():
            # What we knew already cannot be why the write was refused: do not try for ever.
            if self.context.knows(partition) and self.context.states.get(partition) != found:
                again.append(partition)
                self._take_in(partition, found, has_new_epoch, new)
        ended = self.moves.on_states_written(written, event.conflicts, has_new_epoch)
        # What was found may be our own write, whose answer was lost: brokers do not know it yet.
        effects = self._announce([*written, *again], has_new_epoch, new)
        effects += self.moves.stops(written) + ended
        answered = None
        if event.token is not None:
            answered = self._questions.on_written(event.token, written, again)
        effects += self._reconcile(again) if answered is None else answered
        return effects + self._move_on([*written, *again])

    def _move_on(self, partitions: Iterable[TopicPartition]) -> list[Effect]:
        """Go on with the moves of partitions to other brokers."""
        return self.moves.go_on(one for one in self._kept(partitions) if self.context.knows(one))

    def on_assignments_written(self, event: AssignmentsWritten) -> list[Effect]:
        """Take over what topics' nodes say now, and have brokers hear of it."""
        effects = self.moves.on_assignments_written(event)
        partitions = [*(one.partition for one in event.written), *event.found]
        return self._move_on(partitions) + effects

    def on_states_read(self, event: StatesRead) -> list[Effect]:
        """Announce states that can be read again; a partition without one gets its first."""
        found = [one for one in event.states if self.context.knows(one)]
        has_new_epoch: set[TopicPartition] = set()
        for partition in found:
            self._take_in(partition, event.states[partition], has_new_epoch, set())
        return self._announce(found, has_new_epoch, ()) + self._reconcile(found)

    def _announce(
        self,
        partitions: Iterable[TopicPartition],
        has_new_epoch: Collection[TopicPartition],
        new: Collection[TopicPartition],
    ) -> list[Effect]:
        """Tell replicas of new leader epochs, and everybody of the states.

        The first update about a topic has all its partitions, also those without a live replica:
        clients and coordinators choose a key's partition by their number.
        """
        announced = [one for one in partitions if one in self.context.states]
        led = [one for one in announced if one in has_new_epoch]
        effects: list[Effect] = []
        for broker_id in self.context.brokers_in_turn():
            mine = [one for one in led if broker_id in self.context.assignment(one).replicas]
            effects += leader_and_isr(self.context, broker_id, mine, new)
        if announced:
            stateless = [
                one
                for name in sorted({one.topic for one in led})
                for one in self._kept(self.context.partitions_of(name))
                if one not in self.context.states
            ]
            updates = complete_updates(self.context, [*announced, *stateless])
            effects += self._update_all(updates)
        return effects

    def _take_in(
        self,
        partition: TopicPartition,
        state: PartitionState | None,
        has_new_epoch: set[TopicPartition],
        new: set[TopicPartition],
    ) -> None:
        known = self.context.states.pop(partition, None)
        if state is None:
            return
        self.context.states[partition] = state
        if known is None and state.controller_epoch == self.context.epoch:
            new.add(partition)
        if known is None or known.leader_epoch != state.leader_epoch:
            has_new_epoch.add(partition)

    def on_unclean_read(self, event: UncleanRead) -> list[Effect]:
        """Elect out of sync where that is allowed; elsewhere write down that nobody leads."""
        partitions = [
            tp for name in sorted(event.allowed) for tp in self.context.partitions_of(name)
        ]
        return self._reconcile(partitions, event.allowed)

    def on_unclean_enabled(self, event: UncleanEnabled) -> list[Effect]:
        """Look again at partitions without a leader."""
        topics = [event.topic] if event.topic is not None else sorted(self.context.topics)
        return self._reconcile(
            tp
            for name in topics
            for tp in self.context.partitions_of(name)
            if not self.context.has_leader(tp)
        )

    # -- questions -----------------------------------------------------------------------------

    def on_elections_asked(self, event: ElectionsAsked) -> list[Effect]:
        """Elect as an administrator asks; each partition gets a code."""
        asked = event.partitions
        if asked is None:
            asked = tuple(self._kept(self.context.partitions()))
        return self._questions.ask(event, asked)

    def on_reassignments_asked(self, event: ReassignmentsAsked) -> list[Effect]:
        """Move partitions to other brokers, or give that up; each gets a code."""
        return self.moves.ask(event, {one for one in event.targets if self._is_kept(one)})

    def on_moves_asked(self, event: MovesAsked) -> list[Effect]:
        """Say which partitions move."""
        asked = self.context.partitions() if event.partitions is None else event.partitions
        moving = self.moves.moving(one for one in asked if self._is_kept(one))
        return [Reply(event.token, {one: self.context.assignment(one) for one in moving})]

    def on_shutdown_asked(self, event: ShutdownAsked) -> list[Effect]:
        """Move leaderships off a broker that is about to stop."""
        refused = self._refused(event)
        if refused:
            return refused
        self.context.shutting_down.add(event.broker_id)
        return self._questions.ask(event, tuple(self.context.partitions_on(event.broker_id)))

    def on_isrs_proposed(self, event: IsrsProposed) -> list[Effect]:
        """Take the in-sync sets that a leader proposes, or say why not."""
        return self._refused(event) or self._questions.ask(event, tuple(event.isrs))

    def _refused(self, event: ShutdownAsked | IsrsProposed) -> list[Effect]:
        """Refuse a question of a broker that is not registered, or was registered again since."""
        if event.broker_id not in self.context.brokers:
            return [Reply(event.token, {}, ErrorCode.BROKER_NOT_AVAILABLE)]
        if not self._is_current(event.broker_id, event.broker_epoch):
            return [Reply(event.token, {}, ErrorCode.STALE_BROKER_EPOCH)]
        return []

    def on_balance_tick(self, event: BalanceTick) -> list[Effect]:
        """Give leads back where a broker leads too few of the partitions that prefer it."""
        context = self.context
        preferred: dict[int, list[TopicPartition]] = {}
        for partition in self._kept(context.states):
            preferred.setdefault(context.assignment(partition).replicas[0], []).append(partition)
        asked: list[TopicPartition] = []
        for broker_id, partitions in sorted(preferred.items()):
            away = [tp for tp in partitions if context.states[tp].leader != broker_id]
            if len(away) * 100 > event.imbalance_percentage * len(partitions):
                asked += sorted(away)
        return self._questions.ask(ElectionsAsked(ElectionType.PREFERRED, tuple(asked)), asked)

    def on_internal_topics_tick(self, event: InternalTopicsTick) -> list[Effect]:
        """Begin to add the replicas that the brokers' own topics lack."""
        kept = (tp for name in event.factors for tp in self.context.partitions_of(name))
        writes = missing_replicas(self.context, event.factors, self._kept(kept))
        why = "adding the replicas that the settings ask for"
        return [WriteAssignments(tuple(writes), why=why)] if writes else []

    # -- announcements ------------------------------------------------------------------------

    def _is_current(self, broker_id: int, broker_epoch: int) -> bool:
        broker = self.context.brokers.get(broker_id)
        return broker is not None and broker.epoch == broker_epoch

    def _update_all(self, updates: tuple[PartitionUpdate, ...]) -> list[Effect]:
        return update_metadata(self.context, self.context.brokers, updates)

    def _tell_everything(self, broker_ids: Iterable[int]) -> list[Effect]:
        kept = self._kept(self.context.partitions())
        return full_update(self.context, broker_ids, kept, self.deletions.announced())

    def _replicated_on(self, broker_ids: Iterable[int]) -> list[TopicPartition]:
        wanted, context = set(broker_ids), self.context
        return [tp for tp in context.partitions() if wanted & {*context.assignment(tp).replicas}]

    def _everything_on(self, broker_id: int) -> list[Effect]:
        partitions = self._kept(self.context.partitions_on(broker_id))
        return leader_and_isr(self.context, broker_id, partitions)

    def _is_kept(self, partition: TopicPartition) -> bool:
        return self.context.knows(partition) and partition.topic not in self.deletions

    def _kept(self, partitions: Iterable[TopicPartition]) -> list[TopicPartition]:
        """Leave out partitions of topics that are being deleted."""
        return [partition for partition in partitions if partition.topic not in self.deletions]

    def _reconcile_and_announce(
        self, partitions: Iterable[TopicPartition], *, always: bool
    ) -> list[Effect]:
        """Reconcile; announce the partitions whose state stays but whose replicas changed.

        `always`: tell even if there is no such partition, because the live brokers changed.
        """
        changed = list(partitions)
        effects = self._reconcile(changed)
        rewritten = _rewritten(effects)
        same = [
            tp for tp in self._kept(changed) if tp not in rewritten and tp in self.context.states
        ]
        if same or always:
            effects = self._update_all(updates_of(self.context, same)) + effects
        return effects


def _rewritten(effects: Iterable[Effect]) -> set[TopicPartition]:
    """Return the partitions whose states are to be written."""
    return {
        write.partition
        for effect in effects
        if isinstance(effect, WriteStates)
        for write in effect.writes
    }


_HANDLERS: dict[type, Callable[..., list[Effect]]] = {
    Failover: ControllerMachine.on_failover,
    BrokersRead: ControllerMachine.on_brokers_read,
    TopicNamesRead: ControllerMachine.on_topic_names_read,
    TopicsRead: ControllerMachine.on_topics_read,
    DeletionsRead: ControllerMachine.on_deletions_read,
    StatesWritten: ControllerMachine.on_states_written,
    StatesRead: ControllerMachine.on_states_read,
    UncleanRead: ControllerMachine.on_unclean_read,
    UncleanEnabled: ControllerMachine.on_unclean_enabled,
    LeaderAndIsrAnswered: ControllerMachine.on_leader_and_isr_answered,
    DrainAnswered: ControllerMachine.on_drain_answered,
    DrainsEnded: ControllerMachine.on_drains_ended,
    StopReplicaAnswered: ControllerMachine.on_stop_replica_answered,
    TopicRemoved: ControllerMachine.on_topic_removed,
    LogDirFailed: ControllerMachine.on_log_dir_failed,
    ElectionsAsked: ControllerMachine.on_elections_asked,
    ShutdownAsked: ControllerMachine.on_shutdown_asked,
    IsrsProposed: ControllerMachine.on_isrs_proposed,
    ReassignmentsAsked: ControllerMachine.on_reassignments_asked,
    MovesAsked: ControllerMachine.on_moves_asked,
    AssignmentsWritten: ControllerMachine.on_assignments_written,
    BalanceTick: ControllerMachine.on_balance_tick,
    InternalTopicsTick: ControllerMachine.on_internal_topics_tick,
}
