"""Runs the machines of consumer groups (KIP-848): their records, timers and responses.

Owns the change of a group's protocol: the first ConsumerGroupHeartbeat makes a classic group a
consumer group, and its machine decides when it goes back. Part of `group_coordinator`, which finds
the groups and appends to their logs. Never decides about members.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Sequence
from contextlib import suppress
from typing import Any

from plog.cluster.metadata_cache import MetadataSnapshot
from plog.cluster.own_appends import Pair
from plog.coordinator import group_log
from plog.coordinator.classic_group import ClassicGroup
from plog.coordinator.consumer_events import (
    Beat,
    ConsumerEffect,
    ConsumerEvent,
    Downgrade,
    NewEpoch,
    Resolution,
    Resolve,
    Rules,
    StoreRecords,
)
from plog.coordinator.consumer_group import ConsumerGroup
from plog.coordinator.consumer_table import Record, Resolved, Table
from plog.coordinator.failures import bugs_are_errors, log_level, told
from plog.coordinator.group_events import Answer, Effect, Join, SetTimer, StopTimer, Timer
from plog.coordinator.group_shard import Group
from plog.coordinator.group_states import GroupState
from plog.coordinator.migration import downgraded, upgraded
from plog.coordinator.topic_regex import Pattern
from plog.errors import ErrorCode, GroupIdNotFound, InvalidRegularExpression, KafkaError, error_for
from plog.runtime.bounded_lines import BoundedLines
from plog.runtime.clock import Clock
from plog.runtime.timers import Timers
from plog.settings.definitions import BrokerSettings, GroupSettings
from plog.storage.log_faults import is_of_full_disk

log = logging.getLogger(__name__)

UPGRADE_POLICIES = ("upgrade", "bidirectional")
DOWNGRADE_POLICIES = ("downgrade", "bidirectional")


def rules_of(settings: BrokerSettings, own: GroupSettings) -> Rules:
    """Return the rules for a consumer group from its settings."""
    return Rules(
        session_timeout_ms=own.consumer_session_timeout_ms,
        heartbeat_interval_ms=own.consumer_heartbeat_interval_ms,
        max_size=settings.group_consumer_max_size,
        assignors=settings.consumer_assignors(),
        may_downgrade=settings.group_consumer_migration_policy in DOWNGRADE_POLICIES,
        classic_max_size=settings.group_max_size,
    )


class ConsumerRunner:
    """The machines of one coordinator. For the event loop's thread.

    Args:
        settings_of: returns a group's current settings.
        append: appends to the log of a group, and returns once the records are committed.
        cluster: returns the current metadata of topics.
        is_ours: returns whether this broker still coordinates a group.
        run_classic: executes the effects of a classic group.
    """

    def __init__(
        self,
        *,
        settings: BrokerSettings,
        settings_of: Callable[[str], GroupSettings],
        clock: Clock,
        timers: Timers[tuple[str, Timer]],
        lines: BoundedLines,
        unstored: BoundedLines,
        append: Callable[[str, Sequence[Pair]], Awaitable[int]],
        spawn: Callable[[Coroutine[None, None, None]], None],
        cluster: Callable[[], MetadataSnapshot],
        is_ours: Callable[[Group], bool],
        run_classic: Callable[[Group, Iterable[Effect]], None],
    ) -> None:
        self._settings = settings
        self._settings_of = settings_of
        self._ordinary = rules_of(settings, GroupSettings(settings))
        self._clock = clock
        self._timers = timers
        self._lines = lines
        self._unstored = unstored
        self.rebalances = 0
        """Number of rebalances started."""
        self._append = append
        self._spawn = spawn
        self._cluster = cluster
        self._is_ours = is_ours
        self._run_classic = run_classic

    # -- events ------------------------------------------------------------------------------

    def feed(self, group: Group, event: ConsumerEvent) -> None:
        """Feed an event to a consumer group. Raises GroupIdNotFound if it is not one."""
        machine = group.machine
        if isinstance(machine, ClassicGroup):
            if not isinstance(event, Beat):
                raise GroupIdNotFound(f"{group.group_id} is a classic group")
            self._upgrade(group, machine, event)
            return
        if isinstance(event, Join) and machine.state.value == GroupState.EMPTY.value:
            self._begin_classic(group, machine, event)
            return
        self.execute(group, self._on(machine, event))

    def _rules_of(self, group_id: str) -> Rules:
        own = self._settings_of(group_id)
        return rules_of(self._settings, own) if own.overrides else self._ordinary

    def _on(self, machine: ConsumerGroup, event: ConsumerEvent) -> list[ConsumerEffect]:
        machine.rules = self._rules_of(machine.group_id)
        machine.cluster = self._cluster()
        machine.now_ms = self._clock.now_ms()
        return machine.on(event)

    def resume(self, group: Group, machine: ConsumerGroup) -> None:
        """Start a group that was loaded from the log."""
        machine.rules = self._rules_of(group.group_id)
        self.execute(group, machine.resume())

    def retire(self, group: Group, machine: ConsumerGroup, error: ErrorCode) -> None:
        """End a group that was deleted or has moved; waiting requests get the error."""
        self.execute(group, machine.die())
        self._refuse(group.unsafe.failed(), error)

    # -- a group becomes another ---------------------------------------------------------------

    def _upgrade(self, group: Group, was: ClassicGroup, beat: Beat) -> None:
        """Make a classic group a consumer group, if it accepts the first new member."""
        table = self._upgraded(was)
        if table is None or beat.epoch != 0:
            raise GroupIdNotFound(f"{group.group_id} is not a consumer group")
        machine = ConsumerGroup(group.group_id, table=table.copy())
        effects = self._on(machine, beat)
        if not any(isinstance(effect, StoreRecords) for effect in effects):
            self.execute(group, effects)  # the member was refused, so the group stays classic
            return
        self._run_classic(group, was.die(ErrorCode.REBALANCE_IN_PROGRESS))
        batch = group.unsafe.gathering()
        batch.records.extend(table)
        if group.is_stored:
            batch.others.append(Pair(group_log.encode_group_key(group.group_id), None))
            group.is_stored = False
        if table.members:
            self._tell_of(group, "was converted to a consumer group")
        group.machine = machine
        self.execute(group, [*machine.resume(), *effects])

    def _upgraded(self, classic: ClassicGroup) -> Table | None:
        if classic.state is GroupState.EMPTY:
            return Table()
        policy = self._settings.group_consumer_migration_policy
        too_many = len(classic.roster) > self._settings.group_consumer_max_size
        if policy not in UPGRADE_POLICIES or too_many or classic.state is GroupState.DEAD:
            return None
        return upgraded(classic, self._cluster())

    def _downgrade(self, group: Group, reason: str) -> None:
        was = group.machine
        assert isinstance(was, ConsumerGroup)
        classic = downgraded(
            group.group_id,
            was.table,
            self._cluster(),
            initial_delay_ms=self._settings.group_initial_rebalance_delay_ms,
        )
        self._tell_of(group, "was converted to a classic group")
        self._become_classic(group, was, classic)
        assignments = {member.member_id: member.assignment for member in classic.roster}
        group.unsafe.gathering().others.append(
            Pair(
                group_log.encode_group_key(group.group_id),
                group_log.encode_group(classic, assignments, self._clock.now_ms()),
            )
        )
        group.is_stored = True
        self._write(group)
        self._run_classic(group, [*classic.resume(), *classic.disturb(reason)])

    def _begin_classic(self, group: Group, was: ConsumerGroup, join: Join) -> None:
        """Restart an empty group as a classic one, with its first member."""
        classic = ClassicGroup(group.group_id, self._settings.group_initial_rebalance_delay_ms)
        self._become_classic(group, was, classic)
        self._write(group)
        self._run_classic(group, classic.on(join))

    def _become_classic(self, group: Group, was: ConsumerGroup, classic: ClassicGroup) -> None:
        records = [Record(record.key, None) for record in was.table]
        self._do(group, was.die())
        group.unsafe.gathering().records.extend(records)
        group.machine = classic
        group.since_ms = self._clock.now_ms()

    def _tell_of(self, group: Group, what: str) -> None:
        self._lines.log(logging.INFO, "group %.100r %s", group.group_id, what)

    # -- effects -----------------------------------------------------------------------------

    def execute(self, group: Group, effects: Iterable[ConsumerEffect]) -> None:
        """Execute a group's effects in order; write its records together."""
        self._do(group, effects)
        self._write(group)

    def _do(self, group: Group, effects: Iterable[ConsumerEffect]) -> None:
        for effect in effects:
            match effect:
                case StoreRecords(records):
                    group.unsafe.gathering().records.extend(records)
                case Answer():
                    if not group.unsafe.answer_later(effect):
                        _tell(effect)
                case SetTimer(timer, after_ms):
                    self._timers.set((group.group_id, timer), after_ms)
                case StopTimer(timer):
                    self._timers.stop((group.group_id, timer))
                case NewEpoch(epoch, reason):
                    self.rebalances += 1
                    # All of this text comes from clients: keep it to one short line.
                    self._lines.log(
                        logging.INFO,
                        "group %.100r rebalances for epoch %d: %.300s",
                        group.group_id,
                        epoch,
                        reason.encode("unicode_escape").decode(),
                    )
                case Resolve(regexes):
                    self._spawn(self._resolve(group, regexes))
                case Downgrade(reason):
                    self._downgrade(group, reason)

    async def _resolve(self, group: Group, regexes: frozenset[str]) -> None:
        machine, cluster = group.machine, self._cluster()
        found, faults = await asyncio.to_thread(_resolved, regexes, cluster, self._clock.now_ms())
        for fault in faults:
            self._tell_of(group, f"has a topic expression that cannot be evaluated: {fault}")
        if group.machine is machine and isinstance(machine, ConsumerGroup):
            self.execute(group, self._on(machine, Resolution(found)))

    # -- committed records----------------------------------------------------------------------

    def _write(self, group: Group) -> None:
        batch = group.unsafe.begin(group.stored)
        if batch is not None:
            self._spawn(self._write_all(group, batch.pairs(group.group_id)))

    async def _write_all(self, group: Group, pairs: Sequence[Pair]) -> None:
        try:
            if pairs:
                with bugs_are_errors("storing a group"):
                    await self._append(group.group_id, pairs)
        except KafkaError as failure:
            if not is_of_full_disk(failure):
                self._unstored.log(
                    log_level(failure), "group %.100r cannot be stored: %s", group.group_id, failure
                )
            if self._is_ours(group):
                self._go_back(group, told(failure, too_large=ErrorCode.UNKNOWN_SERVER_ERROR))
            return
        if not self._is_ours(group):
            return  # the waiting requests already have a response
        for answer in group.unsafe.written(group.stored):
            _tell(answer)
        self._write(group)

    async def settled(self, group: Group) -> None:
        """Wait until a group's records are committed, or have failed."""
        while group.unsafe:
            token = asyncio.get_running_loop().create_future()
            group.unsafe.answer_later(Answer(token, ErrorCode.NONE))
            with suppress(KafkaError):
                await token

    def _go_back(self, group: Group, error: ErrorCode) -> None:
        """Rebuild the group from its committed records; no response has shown anything else."""
        machine = group.machine
        if group.unsafe.changes_classic:
            group.is_stored = True  # either protocol may have the latest record in the log
        waiting = group.unsafe.failed()
        if isinstance(machine, ClassicGroup):
            self._run_classic(group, machine.die(error))
        else:
            self.execute(group, machine.die())
        if group.stored.epoch:
            again = ConsumerGroup(group.group_id, table=group.stored.copy())
            group.machine = again
            self.resume(group, again)
        else:
            delay_ms = self._settings.group_initial_rebalance_delay_ms
            group.machine = ClassicGroup(group.group_id, delay_ms)
        self._refuse(waiting, error)

    def _refuse(self, answers: Iterable[Answer], error: ErrorCode) -> None:
        for answer in answers:
            assert isinstance(answer.token, asyncio.Future)
            if not answer.token.done():
                answer.token.set_exception(error_for(error))


def _tell(answer: Answer) -> None:
    token: Any = answer.token
    assert isinstance(token, asyncio.Future)
    if not token.done():  # otherwise its client has disconnected
        token.set_result(answer.answer)


def _resolved(
    regexes: Iterable[str], cluster: MetadataSnapshot, now_ms: int
) -> tuple[dict[str, Resolved], list[InvalidRegularExpression]]:
    """Return the topics that match, and the invalid expressions; runs in a thread."""
    found: dict[str, Resolved] = {}
    faults = []
    for regex in regexes:
        try:
            topics = Pattern(regex).matching(cluster.topics)
        except InvalidRegularExpression as fault:
            topics = frozenset()
            faults.append(fault)
        found[regex] = Resolved(topics, cluster.version, now_ms)
    return found, faults
