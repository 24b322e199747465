"""Plays a controller and its store for a scenario: what the machine wants is printed.

Writes go to a pretended store, where a script can get in first; answers of brokers come
from the script. The order of events is the controller thread's: what an effect brings
back is taken in before anything else happens.
"""

from __future__ import annotations

import uuid
from collections import deque

from plog.cluster import controller_events as events
from plog.cluster.controller_context import (
    Assignment,
    ClusterContext,
    LiveBroker,
    PartitionState,
    Topic,
    assignments_of,
    node_with,
)
from plog.cluster.controller_machine import ControllerMachine
from plog.cluster.znodes import TopicNode
from plog.types import TopicPartition


class ControllerScript:
    def __init__(self) -> None:
        self.brokers: dict[int, LiveBroker] = {}
        self.topics: dict[str, TopicNode] = {}
        self.states: dict[TopicPartition, PartitionState] = {}
        self.deletions: set[str] = set()
        self.unclean: set[str] = set()
        self.must_read_deletions = False
        self.machine: ControllerMachine | None = None
        self.token = 0
        self.answer_is_lost = False
        self.brokers_answer = False
        self.unanswered: deque[events.SendLeaderAndIsr] = deque()
        self.drains_wait = False

    def __call__(self, words: list[str]) -> list[str]:
        return getattr(self, "do_" + words[0].replace("-", "_"))(*words[1:])

    # -- commands: the world -----------------------------------------------------------------

    def do_brokers(self, *ids: str) -> list[str]:
        """`brokers 0@10 1@11/east`: these are live, with these epochs, and racks."""
        found = [_live(one) for one in ids]
        self.brokers = {one.id: one for one in found}
        return self._feed(events.BrokersRead(self.brokers)) if self.machine else []

    def do_topic(self, name: str, *partitions: str) -> list[str]:
        """`topic a 0=0,1 1=1,0`: the topic's node is this; `id=N` gives it another id.

        `adding=0:2` and `removing=0:0,1` belong to a move of partition 0.
        """
        fields = dict(one.split("=") for one in partitions)
        number = int(fields.pop("id", len(name) + ord(name[0])))
        adding, removing = (_move(fields.pop(one, "")) for one in ("adding", "removing"))
        fresh = name not in self.topics
        self.topics[name] = TopicNode(
            uuid.UUID(int=number),
            {int(k): _numbers(v) for k, v in fields.items()},
            adding,
            removing,
        )
        if self.machine is None:
            return []
        if fresh:
            return self._feed(events.TopicNamesRead(frozenset(self.topics)))
        return self._feed(events.TopicsRead({name: self.topics[name]}))

    def do_vanish(self, name: str) -> list[str]:
        """`vanish a`: somebody removes the topic's nodes."""
        self._remove(name)
        return self._feed(events.TopicNamesRead(frozenset(self.topics)))

    def do_state(self, partition: str, *fields: str) -> list[str]:
        """`state a-0 leader=1 epoch=4 isr=1,0 version=7`: the store says so from now on.

        The leader was chosen as `of=11` says, which is broker 1 at its first start.
        """
        values = dict(one.split("=") for one in fields)
        leader = int(values["leader"])
        self.states[_partition(partition)] = PartitionState(
            leader,
            int(values["epoch"]),
            _numbers(values["isr"]),
            int(values.get("controller", 1)),
            int(values["version"]),
            leader_broker_epoch=int(values.get("of", 10 + leader)),
        )
        return []

    def do_allow_unclean(self, *topics: str) -> list[str]:
        self.unclean |= set(topics)
        return []

    # -- commands: events --------------------------------------------------------------------

    def do_failover(self, epoch: str) -> list[str]:
        """`failover 3`: broker 0 becomes the controller and reads the store."""
        context = ClusterContext(0, int(epoch), dict(self.brokers))
        for name, node in self.topics.items():
            assert node.topic_id is not None
            context.topics[name] = Topic(node.topic_id, assignments_of(node))
        context.states = {tp: s for tp, s in self.states.items() if tp.topic in self.topics}
        self.machine = ControllerMachine(context)
        return self._feed(events.Failover(frozenset(self.deletions)))

    def do_delete(self, *names: str) -> list[str]:
        self.deletions |= set(names)
        return self._feed(events.DeletionsRead(frozenset(self.deletions)))

    def do_brokers_answer(self) -> list[str]:
        """From now on brokers answer each LeaderAndIsr at once, and can take up what it says."""
        self.brokers_answer = True
        return []

    def do_drains_wait(self) -> list[str]:
        """From now on leaders that are to drain do so by `drained`, and not at once."""
        self.drains_wait = True
        return []

    def do_drained(self, broker: str, partitions: str, epoch: str = "") -> list[str]:
        """`drained 1 a-0,a-1 epoch=11`: the answer of a leader that was to drain."""
        found = int(epoch.removeprefix("epoch=") or self._epoch(broker))
        return self._feed(events.DrainAnswered(int(broker), found, _partitions(partitions)))

    def do_took_up(self, broker: str, *fields: str) -> list[str]:
        """`took-up 1 online=a-0 offline=a-1`: the answer to LeaderAndIsr.

        `incomplete=a-2`: taken up, but it may lack records.
        """
        values = dict(one.split("=") for one in fields)
        incomplete = _partitions(values.get("incomplete", ""))
        answer = events.LeaderAndIsrAnswered(
            int(broker),
            int(values.get("epoch", self._epoch(broker))),
            (*_partitions(values.get("online", "")), *incomplete),
            _partitions(values.get("offline", "")),
            incomplete,
        )
        return self._feed(answer)

    def do_deleted(self, broker: str, *fields: str) -> list[str]:
        """`deleted 1 a-0,a-1 failed=a-2`: the answer to StopReplica."""
        done = ",".join(one for one in fields if "=" not in one)
        values = dict(one.split("=") for one in fields if "=" in one)
        answer = events.StopReplicaAnswered(
            int(broker),
            int(values.get("epoch", self._epoch(broker))),
            _partitions(done),
            _partitions(values.get("failed", "")),
        )
        return self._feed(answer)

    def do_log_dir_failed(self, *brokers: str) -> list[str]:
        return self._feed(events.LogDirFailed(tuple(map(int, brokers))))

    def do_elect(self, kind: str, *partitions: str) -> list[str]:
        """`elect preferred a-0,a-1` or `elect unclean` (all partitions)."""
        self.token += 1
        asked = _partitions(partitions[0]) if partitions else None
        return self._feed(
            events.ElectionsAsked(events.ElectionType[kind.upper()], asked, self.token)
        )

    def do_shutdown(self, broker: str, *epoch: str) -> list[str]:
        self.token += 1
        number = int(epoch[0]) if epoch else self._epoch(broker)
        return self._feed(events.ShutdownAsked(int(broker), number, self.token))

    def do_propose(self, broker: str, partition: str, *fields: str) -> list[str]:
        """`propose 1 a-0 isr=1@11,0 epoch=0 version=0`: AlterPartition of the leader."""
        self.token += 1
        values = dict(one.split("=") for one in fields)
        members = [one.partition("@") for one in values["isr"].split(",")]
        proposed = events.ProposedIsr(
            tuple(int(one) for one, _, _ in members),
            tuple(int(epoch or -1) for _, _, epoch in members),
            int(values["epoch"]),
            int(values["version"]),
            int(values.get("recovery", 0)),
        )
        number = int(values.get("broker-epoch", self._epoch(broker)))
        isrs = {_partition(partition): proposed}
        return self._feed(events.IsrsProposed(int(broker), number, isrs, self.token))

    def do_reassign(self, *targets: str) -> list[str]:
        """`reassign a-0=2,3 a-1=`: an administrator moves a-0, and gives a move of a-1 up."""
        self.token += 1
        pairs = [one.split("=") for one in targets]
        wanted = {_partition(one): _numbers(to) if to else None for one, to in pairs}
        return self._feed(events.ReassignmentsAsked(wanted, self.token))

    def do_moving(self, *partitions: str) -> list[str]:
        """`moving` or `moving a-0`: an administrator asks what moves."""
        self.token += 1
        asked = tuple(map(_partition, partitions)) or None
        return self._feed(events.MovesAsked(asked, self.token))

    def do_lose_answer(self) -> list[str]:
        """The answer to the next write is lost: it is done, and the controller finds a conflict."""
        self.answer_is_lost = True
        return []

    def do_tick(self, percentage: str) -> list[str]:
        return self._feed(events.BalanceTick(int(percentage)))

    def do_internal_tick(self, *factors: str) -> list[str]:
        """`internal-tick a=3`: the settings ask for three replicas of a."""
        pairs = [one.split("=") for one in factors]
        return self._feed(events.InternalTopicsTick({name: int(one) for name, one in pairs}))

    def do_unclean_enabled(self, *topic: str) -> list[str]:
        return self._feed(events.UncleanEnabled(topic[0] if topic else None))

    def do_show(self) -> list[str]:
        """What the controller believes."""
        assert self.machine is not None
        lines = [f"{tp} {_state(s)}" for tp, s in sorted(self.machine.context.states.items())]
        lines += [
            f"deleting {one.name}: {one.phase.value}"
            + "".join(f" {tp}@{broker}" for broker, tp in sorted(one.left))
            for _, one in sorted(self.machine.deletions.by_name.items())
        ]
        offline = self.machine.context.offline_replicas
        return lines + [f"offline {tp}@{broker}" for broker, tp in sorted(offline)]

    # -- the controller's thread -------------------------------------------------------------

    def _epoch(self, broker: str) -> int:
        known = self.brokers.get(int(broker))
        return known.epoch if known else -1

    def _feed(self, event: events.Event) -> list[str]:
        assert self.machine is not None
        lines: list[str] = []
        first, later = deque([event]), deque[events.Event]()
        while first or later:
            for effect in self.machine.on((first or later).popleft()):
                if isinstance(effect, events.Feed):
                    later.append(effect.event)
                    continue
                line, answer = self._execute(effect)
                lines += line
                if answer is not None:
                    first.append(answer)
        if self.must_read_deletions:
            self.must_read_deletions = False
            lines += self._feed(events.DeletionsRead(frozenset(self.deletions)))
        while self.unanswered:
            sent = self.unanswered.popleft()
            broker, epoch = sent.broker_id, self._epoch(str(sent.broker_id))
            named = tuple(one.partition for one in sent.partitions)
            if sent.drains:
                lines += self._feed(events.DrainAnswered(broker, epoch, named))
            else:
                lines += self._feed(events.LeaderAndIsrAnswered(broker, epoch, named, ()))
        return lines

    def _execute(self, effect: events.Effect) -> tuple[list[str], events.Event | None]:
        match effect:
            case events.WriteStates():
                return self._write(effect)
            case events.WriteAssignments():
                return self._write_assignments(effect)
            case events.SendLeaderAndIsr(broker, updates, drains=True):
                if not self.drains_wait:
                    self.unanswered.append(effect)
                return [f"drain -> {broker} {_list(one.partition for one in updates)}"], None
            case events.SendLeaderAndIsr(broker, updates):
                if self.brokers_answer:
                    self.unanswered.append(effect)
                return [f"leader-and-isr -> {broker}", *map(_update_line, updates)], None
            case events.SendUpdateMetadata(brokers, updates, live, is_full, untold):
                alive = _list(one.id for one in live)
                return [
                    f"update-metadata -> {_list(brokers)} live={alive}" + " full" * is_full,
                    *map(_update_line, updates),
                    *(f"  {name} exists" for name in untold),
                ], None
            case events.SendStopReplica(broker, partitions, epochs, delete):
                which = " ".join(
                    f"{tp}@{epoch}" for tp, epoch in zip(partitions, epochs, strict=True)
                )
                return [f"stop-replica -> {broker} delete={delete} {which}"], None
            case events.LoadTopics(names):
                nodes = {name: self.topics.get(name) for name in names}
                return [f"load-topics {' '.join(names)}"], events.TopicsRead(nodes)
            case events.LoadUnclean(names):
                allowed = {name: name in self.unclean for name in names}
                return [f"load-unclean {' '.join(names)}"], events.UncleanRead(allowed)
            case events.RemoveTopic(name):
                self._remove(name)
                self.deletions.discard(name)
                return [f"remove-topic {name}"], events.TopicRemoved(name)
            case events.DropDeletions(names):
                self.deletions -= set(names)
                return [f"drop-deletions {' '.join(names)}"], None
            case events.ReadDeletions():
                self.must_read_deletions = True
                return ["read-deletions"], None
            case events.OpenChannel(broker):
                return [f"open-channel {broker.id}@{broker.epoch}"], None
            case events.CloseChannel(broker_id):
                return [f"close-channel {broker_id}"], None
            case events.Reply(token, results, error):
                codes = " ".join(f"{tp}={_outcome(one)}" for tp, one in sorted(results.items()))
                return [f"reply {token} {error.name} {codes}".rstrip()], None

    def _write(self, effect: events.WriteStates) -> tuple[list[str], events.Event]:
        lines, written, conflicts = [], [], {}
        for write in effect.writes:
            found = self.states.get(write.partition)
            gone = write.partition.topic not in self.topics
            if gone or (found.partition_epoch if found else None) != write.expected_epoch:
                lines.append(f"conflict {write.partition}")
                conflicts[write.partition] = found
                continue
            self.states[write.partition] = write.state
            lines.append(f"write {write.partition} {_state(write.state)}")
            if self.answer_is_lost:
                lines.append(f"conflict {write.partition}")
                conflicts[write.partition] = write.state
            else:
                written.append(write)
        self.answer_is_lost = False
        return lines, events.StatesWritten(tuple(written), conflicts, effect.token)

    def _write_assignments(self, effect: events.WriteAssignments) -> tuple[list[str], events.Event]:
        lines, written, found = [], [], {}
        for write in effect.writes:
            at = write.partition
            node = self.topics.get(at.topic)
            now = {} if node is None else assignments_of(node)
            if now.get(at.partition) == write.expected:
                assert node is not None
                now[at.partition] = write.assignment
                self.topics[at.topic] = node_with(node, now)
                written.append(write)
                lines.append(f"assign {at} {_assignment(write.assignment)}")
                if effect.why is not None:
                    lines[-1] += f" ({effect.why})"
            else:
                lines.append(f"conflict {at}")
                found |= {at: now[at.partition]} if at.partition in now else {}
        return lines, events.AssignmentsWritten(tuple(written), found, effect.token)

    def _remove(self, name: str) -> None:
        self.topics.pop(name, None)
        self.states = {tp: state for tp, state in self.states.items() if tp.topic != name}


def _live(text: str) -> LiveBroker:
    numbers, _, rack = text.partition("/")
    broker_id, epoch = map(int, numbers.split("@"))
    return LiveBroker(broker_id, epoch, (), rack or None)


def _outcome(outcome: events.Outcome | Assignment) -> str:
    if isinstance(outcome, PartitionState):
        return f"[{_state(outcome)}]"
    if isinstance(outcome, Assignment):
        return f"[{_assignment(outcome)}]"
    return outcome.name


def _assignment(assignment: Assignment) -> str:
    return (
        f"replicas={_list(assignment.replicas)} adding={_list(assignment.adding)}"
        f" removing={_list(assignment.removing)}"
    )


def _state(state: PartitionState) -> str:
    return (
        f"leader={state.leader} epoch={state.leader_epoch} isr={_list(state.isr)}"
        f" version={state.partition_epoch}"
    )


def _update_line(update: events.PartitionUpdate) -> str:
    line = (
        f"  {update.partition} {_state(update.state)} replicas={_list(update.assignment.replicas)}"
    )
    if update.offline:
        line += f" offline={_list(update.offline)}"
    return line + (" new" if update.is_new else "")


def _list(numbers) -> str:
    return ",".join(map(str, numbers))


def _move(text: str) -> dict[int, tuple[int, ...]]:
    index, _, replicas = text.partition(":")
    return {int(index): _numbers(replicas)} if text else {}


def _numbers(text: str) -> tuple[int, ...]:
    return tuple(map(int, text.split(",")))


def _partition(text: str) -> TopicPartition:
    topic, _, index = text.rpartition("-")
    return TopicPartition(topic, int(index))


def _partitions(text: str) -> tuple[TopicPartition, ...]:
    return tuple(_partition(one) for one in text.split(",") if one)
