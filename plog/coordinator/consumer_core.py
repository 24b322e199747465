"""The state of a consumer group (KIP-848), common to members of both protocols.

Owns the changes of the group's records: new epochs, their assignments, and the steps, returns and
removals of members. Sends no response: `consumer_group` and `classic_members` do that.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field, replace

from plog.cluster.metadata_cache import MetadataSnapshot
from plog.coordinator.assignors import ASSIGNORS, IdPartition, Wish
from plog.coordinator.consumer_events import (
    ConsumerEffect,
    Downgrade,
    GroupState,
    NewEpoch,
    Resolution,
    Resolve,
    Rules,
    StoreRecords,
)
from plog.coordinator.consumer_table import (
    EPOCH,
    TARGET_EPOCH,
    TOPICS,
    Key,
    Kind,
    Record,
    Subscriber,
    Table,
    Topic,
    Value,
)
from plog.coordinator.group_events import (
    SetTimer,
    StopTimer,
    Timer,
    TimerKind,
)
from plog.coordinator.reconciliation import (
    Current,
    MemberState,
    reconcile,
)
from plog.errors import ErrorCode, error_for

REGEX_REFRESH_MS = 10_000
"""Minimum interval between resolutions of the members' regular expressions."""


@dataclass(slots=True)
class GroupCore:
    """One group, as its records."""

    group_id: str
    rules: Rules = field(default_factory=Rules)
    """The caller sets them before each event, because settings change, and before `resume`."""
    table: Table = field(default_factory=Table)
    cluster: MetadataSnapshot = field(default_factory=MetadataSnapshot)
    """Metadata of topics; the caller sets it before each event."""
    now_ms: int = 0
    is_dead: bool = False
    rejoining: set[str] = field(default_factory=set)
    """Classic members that must join again before their rebalance timeout."""
    unheard: set[str] = field(default_factory=set)
    """Members that got an assignment and have not confirmed it yet."""
    _seen: int | None = None  # version of the metadata used last
    _resolving: bool = False
    _resolved_version: int | None = None
    _resolved_ms: int = 0
    _changes: dict[Key, Value | None] = field(default_factory=dict)
    _out: list[ConsumerEffect] = field(default_factory=list)

    # -- properties --------------------------------------------------------------------------

    @property
    def state(self) -> GroupState:
        """Kafka's state of the group."""
        if self.is_dead:
            return GroupState.DEAD
        if not self.table.members:
            return GroupState.EMPTY
        if self.table.epoch > self.table.target_epoch:
            return GroupState.ASSIGNING
        are_there = (
            current.state is MemberState.STABLE and current.epoch == self.table.target_epoch
            for current in map(self.table.current, self.table.members)
        )
        return GroupState.STABLE if all(are_there) else GroupState.RECONCILING

    @property
    def assignor(self) -> str:
        """The assignor that most members prefer; the first one named in a tie."""
        votes = Counter(member.assignor for member in self.table.members.values())
        return max(self.rules.assignors, key=votes.__getitem__)

    @property
    def unresolved(self) -> set[str]:
        """The members' expressions of which it is not known yet which topics match them."""
        return self.table.wanted_regexes.keys() - self.table.regexes.keys()

    def subscribed_topics(self) -> set[str]:
        """Return the topics to which members are subscribed, without those of `unresolved`."""
        return {
            topic for member in self.table.members.values() for topic in self._topics_of(member)
        }

    def _topics_of(self, member: Subscriber) -> frozenset[str]:
        resolved = self.table.regexes.get(member.regex) if member.regex else None
        return member.topics | resolved.topics if resolved else member.topics

    def resume(self) -> list[ConsumerEffect]:
        """Return the effects after loading from the log: the members' timers."""
        for member_id in self.table.members:
            self.start_session(member_id)
            if self.table.current(member_id).state is MemberState.UNREVOKED_PARTITIONS:
                self._give_time_to_revoke(member_id)
        return self.effects()

    def die(self) -> list[ConsumerEffect]:
        """End the group, which was deleted, has moved, or has changed its protocol."""
        for member_id in self.table.members:
            self._stop_timers(member_id)
        self.is_dead = True
        return self.effects()

    # -- epochs and assignments ----------------------------------------------------------------

    def follow(self, member_id: str, told: Subscriber) -> None:
        """Update a member; reassign if its subscription or its topics have changed."""
        before = self.table.members.get(member_id)
        self.write(Key(Kind.MEMBER, member_id), told)
        reason = None
        if before is None:
            reason = f"member {member_id} joined" + (
                " with the classic protocol" * bool(told.classic)
            )
        elif (before.topics, before.regex) != (told.topics, told.regex):
            reason = f"member {member_id} changed its subscription"
        self._forget_regexes()
        self.look(reason)
        self._maybe_resolve()

    def look(self, reason: str | None = None) -> None:
        """Start and assign a new epoch if there is a reason or the topics have changed."""
        if reason is not None or self._seen != self.cluster.version:
            self._seen = self.cluster.version
            topics = self._topics_now()
            if topics != self.table.topics:
                self.write(TOPICS, topics)
                reason = reason or "topics have changed"
            if reason is not None:
                self.new_epoch(reason)
        if self.table.epoch > self.table.target_epoch:
            self._assign()

    def _topics_now(self) -> dict[str, Topic]:
        known = self.cluster.topics
        return {
            name: Topic(known[name].topic_id, len(known[name].partitions))
            for name in sorted(self.subscribed_topics())
            if name in known
        }

    def new_epoch(self, reason: str) -> None:
        """Start a rebalance."""
        self.write(EPOCH, self.table.epoch + 1)
        self.do(NewEpoch(self.table.epoch, reason))

    def _assign(self) -> None:
        topics = self.table.topics
        wishes = {
            member_id: Wish(
                frozenset(
                    topics[name].topic_id for name in self._topics_of(member) & topics.keys()
                ),
                self.table.target(member_id),
            )
            for member_id, member in self.table.members.items()
        }
        sizes = {topic.topic_id: topic.size for topic in topics.values()}
        for member_id, target in ASSIGNORS[self.assignor](wishes, sizes).items():
            self.write(Key(Kind.TARGET, member_id), target)
        self.write(TARGET_EPOCH, self.table.epoch)

    def reconcile(self, member_id: str, owned: frozenset[IdPartition] | None) -> Current:
        """Let a member take its next step; return its current assignment."""
        before = self.table.current(member_id)
        current = reconcile(
            before,
            target=self.table.target(member_id),
            target_epoch=self.table.target_epoch,
            owned=owned,
            is_free=lambda at: self.table.holder(at) in (None, member_id),
        )
        self.write(Key(Kind.CURRENT, member_id), current)
        if current.state is not MemberState.UNREVOKED_PARTITIONS:
            self.do(StopTimer(Timer(TimerKind.REVOKE, member_id)))
        elif current != before:
            self._give_time_to_revoke(member_id)
        return current

    # -- regular expressions -------------------------------------------------------------------

    def _forget_regexes(self) -> None:
        for regex in self.table.regexes.keys() - self.table.wanted_regexes.keys():
            self.write(Key(Kind.REGEX, regex), None)

    def _maybe_resolve(self) -> None:
        """Request a resolution: of new expressions, or of all after REGEX_REFRESH_MS."""
        wanted = self.table.wanted_regexes.keys()
        if self._resolving or not wanted:
            return
        is_stale = self._resolved_version != self.cluster.version and (
            self._resolved_version is None or self.now_ms >= self._resolved_ms + REGEX_REFRESH_MS
        )
        if self.unresolved or is_stale:
            self._resolving = True
            self._resolved_version, self._resolved_ms = self.cluster.version, self.now_ms
            self.do(Resolve(frozenset(wanted)))

    def take_resolution(self, found: Resolution) -> None:
        """Apply the topics that match the members' regular expressions."""
        self._resolving = False
        changed = False
        for regex in self.table.wanted_regexes.keys() & found.regexes.keys():
            known, now = self.table.regexes.get(regex), found.regexes[regex]
            if known is None or known.topics != now.topics:
                self.write(Key(Kind.REGEX, regex), now)
                changed |= now.topics != (frozenset() if known is None else known.topics)
        if changed:
            self.look("other topics match the members' regular expressions")
        self._maybe_resolve()

    # -- members go ----------------------------------------------------------------------------

    def member_of_instance(self, instance_id: str | None) -> str | None:
        """Return the member id of a group instance id."""
        return None if instance_id is None else self.table.instances.get(instance_id)

    def replace(self, old_id: str, new_id: str) -> None:
        """Give a static member a new id; it keeps its assignment."""
        table = self.table
        member, current, target = (
            table.members[old_id],
            table.current(old_id),
            table.target(old_id),
        )
        self._erase(old_id)
        self.write(Key(Kind.MEMBER, new_id), replace(member, classic=None))
        self.write(Key(Kind.TARGET, new_id), target)
        # The old client has gone, so it no longer uses the partitions to give up.
        self.write(Key(Kind.CURRENT, new_id), Current(assigned=current.assigned))

    def remove(self, member_ids: list[str], reason: str) -> None:
        """Remove members; the others get their partitions."""
        for member_id in member_ids:
            self._erase(member_id)
        self._forget_regexes()
        self.write(TOPICS, self._topics_now())
        self.new_epoch(reason)
        self.maybe_downgrade(reason)

    def _erase(self, member_id: str) -> None:
        self._stop_timers(member_id)
        self.unheard.discard(member_id)
        for kind in (Kind.CURRENT, Kind.TARGET, Kind.MEMBER):
            self.write(Key(kind, member_id), None)

    def maybe_downgrade(self, reason: str) -> None:
        """Become a classic group if only classic members are left and the rules allow it."""
        members = self.table.members.values()
        if (
            members
            and self.rules.may_downgrade
            and len(members) <= self.rules.classic_max_size
            and all(member.classic is not None for member in members)
        ):
            self.do(Downgrade(reason))

    def check_room(self) -> None:
        """Check that the group may have another member. Raises KafkaError."""
        if len(self.table.members) >= self.rules.max_size:
            most = self.rules.max_size
            raise error_for(
                ErrorCode.GROUP_MAX_SIZE_REACHED, f"the group has {most} members, its maximum"
            )

    def effects(self) -> list[ConsumerEffect]:
        """Return the pending effects; storing the changed records comes first."""
        out, self._out = self._out, []
        changes, self._changes = self._changes, {}
        if changes:
            out.insert(0, StoreRecords(tuple(Record(*change) for change in changes.items())))
        return out

    # -- helpers ---------------------------------------------------------------------------

    def write(self, key: Key, value: Value | None) -> None:
        """Change the value of a key, unless it is the same."""
        if self.table.get(key) != value:
            self.table.apply(Record(key, value))
            # A later change of a key in one step replaces the earlier one, at the later position.
            self._changes.pop(key, None)
            self._changes[key] = value

    def do(self, *effects: ConsumerEffect) -> None:
        """Add effects to execute after the event."""
        self._out.extend(effects)

    def start_session(self, member_id: str) -> None:
        """Restart a member's session timer."""
        timeout_ms = self.session_ms(self.table.members[member_id])
        self.do(SetTimer(Timer(TimerKind.SESSION, member_id), timeout_ms))

    def session_ms(self, member: Subscriber) -> int:
        """Return a member's session timeout."""
        classic = member.classic
        return self.rules.session_timeout_ms if classic is None else classic.session_timeout_ms

    def _give_time_to_revoke(self, member_id: str) -> None:
        timeout_ms = self.table.members[member_id].rebalance_timeout_ms
        self.do(SetTimer(Timer(TimerKind.REVOKE, member_id), timeout_ms))

    def _stop_timers(self, member_id: str) -> None:
        self.rejoining.discard(member_id)
        self.do(
            *(
                StopTimer(Timer(kind, member_id))
                for kind in (TimerKind.SESSION, TimerKind.REVOKE, TimerKind.JOIN, TimerKind.SYNC)
            )
        )
