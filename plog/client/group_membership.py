"""One member of a consumer group: it joins, gets its partitions, says that it lives, and leaves.

Owns the classic protocol as a client speaks it, step by step: `advance` takes one as far as
answers are there, so that whoever polls is kept no longer than it wants to be. A thread beats
the heart meanwhile, on a connection of its own, through rebalances and losses of the coordinator,
and only raises flags. Never touches positions.

No heart beats while a Join waits: it has no session then. One begins with the answer, which the
thread sees, however long the application works. To ask further is for the next poll, and so is to
ask again when a Join or a Sync was lost with its connection; until then such a member is silent.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import NamedTuple, TypeVar

from plog.client.assignors import (
    Assignor,
    Subscription,
    decode_assignment,
    decode_subscription,
    encode_assignment,
    encode_subscription,
)
from plog.client.connection import Connection
from plog.client.coordinators import (
    MOVED,
    RETRY_BACKOFF_S,
    Coordinator,
    KeyType,
    open_coordinator,
)
from plog.client.metadata import Cluster
from plog.client.retry_log import RetryLog
from plog.errors import RETRIABLE, ErrorCode, KafkaError, PlogError, error_for
from plog.protocol.messages.groups import (
    HeartbeatRequest,
    HeartbeatResponse,
    JoinGroupRequest,
    JoinGroupRequestProtocol,
    JoinGroupResponse,
    LeaveGroupRequest,
    LeaveGroupResponse,
    MemberIdentity,
    SyncGroupRequest,
    SyncGroupRequestAssignment,
    SyncGroupResponse,
)
from plog.protocol.schema import Struct
from plog.types import TopicPartition

R = TypeVar("R", bound=Struct)

log = logging.getLogger(__name__)

CONSUMER = "consumer"
MOVE_PATIENCE_S = 2.0
"""How long a group may be without a coordinator before a warning is logged."""
"""The type of groups whose members share partitions."""
NOBODY, NO_GENERATION = "", -1
EXPELLED = frozenset({ErrorCode.UNKNOWN_MEMBER_ID, ErrorCode.ILLEGAL_GENERATION})
"""Errors that say that the group has gone on without this member."""
LOST = EXPELLED | {ErrorCode.FENCED_INSTANCE_ID}
"""Errors that say so, or that another has this member's name: what it had may be others' by now."""
STOP_PATIENCE_S = 1.0
"""How long a heart that stops is waited for: it may be looking for a broker that says nothing."""


@dataclass(frozen=True, slots=True)
class Identity:
    """Who the group takes this member for; nobody, before it has joined."""

    member_id: str = NOBODY
    generation: int = NO_GENERATION


class GroupMetadata(NamedTuple):
    """Who commits for a group (KIP-447): a member, or with the name alone nobody that is in it."""

    group_id: str
    generation: int = NO_GENERATION
    member_id: str = NOBODY
    instance_id: str | None = None


class CommitFailed(PlogError):
    """The group has gone on without this member: its partitions are others' by now."""


class Timeouts(NamedTuple):
    """In ms: how long a member may be silent, how often it speaks, how long it may work."""

    session_ms: int = 45_000
    heartbeat_ms: int = 3_000
    max_poll_ms: int = 300_000


class State(Enum):
    """What a member is at."""

    OUTSIDE = "outside"
    JOINING = "joining"
    SYNCING = "syncing"
    INSIDE = "inside"


class Membership:
    """A member of one group.

    Args:
        cluster: finds the coordinator; the caller's thread alone uses it.
        assignors: those that the member can use, the preferred first.
        partition_counts: tells how many partitions each topic has (0: there is none), for a leader.
    """

    def __init__(
        self,
        cluster: Cluster,
        group_id: str,
        *,
        instance_id: str | None,
        assignors: Sequence[Assignor],
        timeouts: Timeouts,
        partition_counts: Callable[[Iterable[str]], Mapping[str, int]],
    ) -> None:
        self._cluster = cluster
        self.group_id = group_id
        self.instance_id = instance_id
        self._assignors = {one.name: one for one in assignors}
        self._timeouts = timeouts
        self._partition_counts = partition_counts
        self.identity = Identity()
        self.committer = Identity()
        """Who it was when it was inside last: commits are its, until it is inside again."""
        self.state = State.OUTSIDE
        self.assigned: list[TopicPartition] = []
        """What the last generation gives this member."""
        self.led: Mapping[str, int] = {}
        """The topics of all members that it leads, and of how many partitions it has shared."""
        self._connection: Connection | None = None  # where a Join may wait for long
        # For all that must not wait behind it.
        self._aside = Coordinator(cluster, KeyType.GROUP, group_id)
        self._retry_at = 0.0
        self._failing_since = 0.0
        """When (time.monotonic()) the first of the failed attempts was; 0: the last one worked."""
        self._retries = RetryLog(log)
        self._heart: _Heart | None = None
        self._refused: ErrorCode | None = None  # one of LOST, on the way in

    @property
    def metadata(self) -> GroupMetadata:
        """Who this member is, for those who commit on its behalf.

        Whoever was taken out stays who it was, and is refused: nobody's offsets would be taken.
        """
        one = self.committer
        return GroupMetadata(self.group_id, one.generation, one.member_id, self.instance_id)

    @property
    def is_member(self) -> bool:
        """Whether it has been inside, and the group is not known to have gone on without it."""
        return self.committer.member_id == self.identity.member_id != NOBODY

    # -- towards the inside ------------------------------------------------------------------

    @property
    def must_rejoin(self) -> bool:
        """Whether the group rebalances, or has gone on without this member.

        On the way in the coordinator's answers tell of a rebalance.
        """
        rebalances = self._heart is not None and self._heart.is_rebalancing
        return self._error is not None or (rebalances and self.state is State.INSIDE)

    @property
    def is_lost(self) -> bool:
        """Whether the member was taken out: what it had may be others' by now."""
        return self._error in LOST

    @property
    def _error(self) -> ErrorCode | None:
        """What has ended the membership, whoever was told."""
        return self._refused or (None if self._heart is None else self._heart.error)

    def polled(self) -> None:
        """Take note that the application is alive."""
        if self._heart is not None:
            self._heart.polled_at = time.monotonic()

    def rejoin(self) -> None:
        """Have the member join again once it polls; until then its heart goes on."""
        if self._heart is not None:
            self._heart.is_rebalancing = True

    def refused(self, code: int) -> None:
        """Take note of why a request of this member, made by another, was refused."""
        if code in LOST and self.state is State.INSIDE:
            self._refused = ErrorCode(code)

    def rest(self) -> None:
        """End the heart: `is_lost` does not change any more until `begin`."""
        if self._heart is not None:
            self._heart.stop()

    def begin(self) -> None:
        """Leave the generation behind, to join the next one.

        Raises KafkaError with what no rejoining can mend. Whoever joins again nevertheless is still
        the same member, and is told so again.
        """
        self.rest()
        error, self._refused, self._heart = self._error, None, None
        if self.state is not State.INSIDE or self._is_asking:
            self._drop_connection()  # an answer may be on its way
        self.state = State.OUTSIDE
        if error in EXPELLED:
            self.identity = Identity()
        elif error is not None:
            raise error_for(error, f"group {self.group_id!r}: {error.name}")

    def advance(self, subscription: Subscription, timeout_s: float) -> bool:
        """Go on towards the inside; True once this member has its partitions.

        It goes no further once the member `is_lost`.

        Raises:
            KafkaError: what trying again cannot mend.
        """
        deadline = time.monotonic() + timeout_s
        while self.state is not State.INSIDE:
            left_s = deadline - time.monotonic()
            wait_s = min(left_s, self._retry_at - time.monotonic())
            if wait_s > 0:
                time.sleep(wait_s)
            if self._retry_at > time.monotonic():
                return False
            try:
                if not self._step(subscription, max(left_s, 0)):
                    return False
            except KafkaError as fault:
                self._fail(fault)
                if self.is_lost:
                    return False
        return True

    def _step(self, subscription: Subscription, timeout_s: float) -> bool:
        """Do what can be done now; False when the answer takes longer."""
        if self.state is State.OUTSIDE:
            self._send_join(subscription)
        if self.state is State.JOINING:
            assert self._heart is not None
            answer = self._heart.joined(timeout_s)
            if answer is None:
                return False
            self._take_join(answer)
            return True
        connection = self._coordinator()
        if not connection.ready(timeout_s * 1000):
            return False
        self._take_sync(connection.receive(SyncGroupResponse))
        return True

    def _fail(self, fault: KafkaError) -> None:
        """Begin again after a while, or say or raise what no other attempt can mend."""
        self.state = State.OUTSIDE
        if fault.code == ErrorCode.REBALANCE_IN_PROGRESS:
            # The member is one of the generation that it was let into, for which its heart beats.
            self._retry_at = time.monotonic() + RETRY_BACKOFF_S
            return
        self.rest()
        if fault.code in LOST:
            self._refused = fault.code
        elif not fault.retriable:
            raise fault
        self._report_retry(fault)
        self._drop_connection()
        if fault.code != ErrorCode.FENCED_INSTANCE_ID:
            self._retry_at = time.monotonic() + RETRY_BACKOFF_S

    def _report_retry(self, fault: KafkaError) -> None:
        """Log why the member cannot join yet. A coordinator that moves gets some time first."""
        now = time.monotonic()
        self._failing_since = self._failing_since or now
        if fault.code in LOST:
            return
        if fault.code not in MOVED or now - self._failing_since >= MOVE_PATIENCE_S:
            self._retries.warn(fault)

    # -- JoinGroup and SyncGroup -----------------------------------------------------------------

    def _send_join(self, subscription: Subscription) -> None:
        connection = self._coordinator()
        connection.send(
            JoinGroupRequest(
                group_id=self.group_id,
                session_timeout_ms=self._timeouts.session_ms,
                rebalance_timeout_ms=self._timeouts.max_poll_ms,
                member_id=self.identity.member_id,
                group_instance_id=self.instance_id,
                protocol_type=CONSUMER,
                protocols=[
                    JoinGroupRequestProtocol(
                        name=one.name, metadata=encode_subscription(subscription, one)
                    )
                    for one in self._assignors.values()
                ],
            ),
            JoinGroupResponse,
            wait_ms=self._timeouts.max_poll_ms,
        )
        self.rest()
        self._heart = _Heart(self, self._cluster.twin(), connection)
        self.state = State.JOINING

    def _take_join(self, answer: JoinGroupResponse) -> None:
        if answer.error_code == ErrorCode.MEMBER_ID_REQUIRED:
            self.identity = Identity(answer.member_id)
            self.state = State.OUTSIDE
            return
        self._check(answer.error_code)
        self.identity = Identity(answer.member_id, answer.generation_id)
        self._coordinator().send(
            SyncGroupRequest(
                group_id=self.group_id,
                generation_id=answer.generation_id,
                member_id=answer.member_id,
                group_instance_id=self.instance_id,
                protocol_type=CONSUMER,
                protocol_name=answer.protocol_name or "",
                assignments=self._share(answer),
            ),
            SyncGroupResponse,
            wait_ms=self._timeouts.max_poll_ms,
        )
        self.state = State.SYNCING

    def _share(self, answer: JoinGroupResponse) -> list[SyncGroupRequestAssignment]:
        """Give the partitions out, if this member leads, and note by what (`led`)."""
        self.led = {}
        if answer.leader != answer.member_id:
            return []
        assignor = self._assignors[answer.protocol_name or ""]
        members = {
            one.member_id: decode_subscription(one.metadata, assignor, one.group_instance_id)
            for one in answer.members
        }
        topics = {topic for one in members.values() for topic in one.topics}
        self.led = self._partition_counts(topics)
        if answer.skip_assignment:
            return []  # a static leader is back, and everybody keeps what it has (KIP-814)
        shares = assignor.assign(members, self.led)
        return [
            SyncGroupRequestAssignment(member_id=one, assignment=encode_assignment(share))
            for one, share in shares.items()
        ]

    def _take_sync(self, answer: SyncGroupResponse) -> None:
        self._check(answer.error_code)
        self.assigned = decode_assignment(answer.assignment)
        self.committer, self.state = self.identity, State.INSIDE
        self._failing_since = 0.0

    def _check(self, code: int) -> None:
        if code != ErrorCode.NONE:
            raise error_for(code, f"group {self.group_id!r}: {ErrorCode(code).name}")

    # -- the coordinator ---------------------------------------------------------------------

    def call(self, request: Struct, response: type[R]) -> R:
        """Ask the coordinator something else. Raises KafkaError."""
        return self._aside.call(request, response)

    def ask(self, request: Struct, response: type[R], timeout_s: float) -> R | None:
        """Ask from the inside what may be asked again; None while the answer takes longer.

        Until then the next call waits for the same answer. It goes with the generation (`begin`).

        Raises:
            KafkaError: there is no answer to wait for any more.
        """
        connection = self._coordinator()  # free, while no Join or Sync waits there
        if not connection.in_flight:
            connection.send(request, response)
        due_at = connection.deadline or 0.0
        if not connection.ready(timeout_s * 1000) and time.monotonic() < due_at:
            return None
        return connection.receive(response)

    @property
    def _is_asking(self) -> bool:
        return self._connection is not None and self._connection.in_flight > 0

    def forget_coordinator(self) -> None:
        """Look for the coordinator again before the next `call`, and from the inside `ask`."""
        self._aside.forget()
        if self.state is State.INSIDE:
            self._drop_connection()

    def _coordinator(self) -> Connection:
        if self._connection is None or not self._connection.is_usable:
            self._drop_connection()
            self._connection = open_coordinator(self._cluster, KeyType.GROUP, self.group_id)
        return self._connection

    def _drop_connection(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.close()

    # -- the way out -------------------------------------------------------------------------

    def close(self) -> None:
        """Leave, unless the member is static: it may be back before it is missed."""
        self.rest()
        if self.instance_id is None and self.identity.member_id != NOBODY:
            try:
                self.call(leave_request(self.group_id, self.identity), LeaveGroupResponse)
            except KafkaError as fault:
                log.warning("group %s is not told that a member leaves: %s", self.group_id, fault)
        self.identity, self.state, self.assigned, self.led = Identity(), State.OUTSIDE, [], {}
        self._refused, self._heart = None, None
        self._drop_connection()
        self.forget_coordinator()


def leave_request(group_id: str, identity: Identity, reason: str | None = None) -> Struct:
    """Return what takes one member out."""
    return LeaveGroupRequest(
        group_id=group_id,
        members=[MemberIdentity(member_id=identity.member_id, reason=reason)],
    )


class _Heart:
    """The thread that says that a member lives, from its Join on, until that is not so (`error`).

    Args:
        cluster: finds the coordinator; the thread's own from now on, closed at its end.
        connection: where the Join's answer is due.

    Attributes:
        is_rebalancing: the members are to join again.
        error: why there is nothing more to say.
        polled_at: when (time.monotonic()) the application polled last.
    """

    def __init__(self, membership: Membership, cluster: Cluster, connection: Connection) -> None:
        self._cluster = cluster
        self._coordinator = Coordinator(cluster, KeyType.GROUP, membership.group_id)
        self._timeouts = membership._timeouts
        self._group_id = membership.group_id
        self._instance_id = membership.instance_id
        self._connection = connection
        self._reading = threading.Lock()  # while somebody looks for the Join's answer
        self._answer: JoinGroupResponse | KafkaError | None = None
        self._stopping = threading.Event()
        self.is_rebalancing = False
        self.error: ErrorCode | None = None
        self.polled_at = time.monotonic()
        self._thread = threading.Thread(target=self._run, name="plog heartbeat", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """End the thread."""
        self._stopping.set()
        self._coordinator.interrupt()
        self._cluster.interrupt()
        self._thread.join(STOP_PATIENCE_S)

    def joined(self, timeout_s: float = 0) -> JoinGroupResponse | None:
        """Return what the Join was answered; None if that takes longer. Thread-safe.

        Whoever looks first reads it: a session begins with it, however long the application works.

        Raises:
            KafkaError: it will not be answered any more.
        """
        with self._reading:
            if self._answer is None and self._connection.ready(timeout_s * 1000):
                try:
                    self._answer = self._connection.receive(JoinGroupResponse)
                except KafkaError as fault:
                    self._answer = fault
            if isinstance(self._answer, KafkaError):
                raise self._answer
            return self._answer

    def _run(self) -> None:
        beat_s = wait_s = self._timeouts.heartbeat_ms / 1000
        try:
            while self.error is None and not self._stopping.wait(wait_s):
                wait_s = beat_s
                me = self._identity()
                if me is None:
                    continue
                if time.monotonic() - self.polled_at > self._timeouts.max_poll_ms / 1000:
                    self._leave(me)
                elif not self._beat(me):
                    wait_s = min(beat_s, RETRY_BACKOFF_S)
        finally:
            self._coordinator.forget()
            self._cluster.close()

    def _identity(self) -> Identity | None:
        """Return who the group takes this member for, once its Join is answered."""
        try:
            answer = self.joined()
        except KafkaError:
            return None
        if answer is None or answer.error_code != ErrorCode.NONE:
            return None
        return Identity(answer.member_id, answer.generation_id)

    def _beat(self, me: Identity) -> bool:
        """Say that the member lives; False if nobody has heard it."""
        try:
            code = self._coordinator.call(self._request(me), HeartbeatResponse).error_code
            self._cluster.close()  # the coordinator is found, and has a connection by itself
        except KafkaError as fault:
            code = fault.code
        if code in RETRIABLE:
            self._coordinator.forget()
            return False
        if code == ErrorCode.REBALANCE_IN_PROGRESS:
            self.is_rebalancing = True
        elif code != ErrorCode.NONE:
            self.error = error_for(code).code
        return True

    def _request(self, me: Identity) -> HeartbeatRequest:
        return HeartbeatRequest(
            group_id=self._group_id,
            generation_id=me.generation,
            member_id=me.member_id,
            group_instance_id=self._instance_id,
        )

    def _leave(self, me: Identity) -> None:
        log.warning(
            "group %s: poll was not called for max_poll_interval_ms=%d; the member leaves",
            self._group_id,
            self._timeouts.max_poll_ms,
        )
        self.error = ErrorCode.UNKNOWN_MEMBER_ID
        try:
            if self._instance_id is None:
                reason = "poll was not called for max_poll_interval_ms"
                self._coordinator.call(
                    leave_request(self._group_id, me, reason), LeaveGroupResponse
                )
        except KafkaError:
            return
