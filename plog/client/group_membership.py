"""One member of a consumer group: it joins, gets its partitions, says that it lives, and leaves.

Owns the classic protocol as a client speaks it, step by step: `advance` takes one as far as
answers are there, so that whoever polls is kept no longer than it wants to be. A thread beats
the heart meanwhile, on a connection of its own, and only raises flags. Never touches positions.
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
from plog.errors import ErrorCode, KafkaError, PlogError, error_for
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
"""The type of groups whose members share partitions."""
NOBODY, NO_GENERATION = "", -1
EXPELLED = frozenset({ErrorCode.UNKNOWN_MEMBER_ID, ErrorCode.ILLEGAL_GENERATION})
"""Errors that say that the group has gone on without this member."""


JOIN_AGAIN = MOVED | EXPELLED | {ErrorCode.REBALANCE_IN_PROGRESS}
"""Errors on the way in after which a member joins once more."""


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
        partition_counts: tells how many partitions topics have, for a leader.
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
        self.state = State.OUTSIDE
        self.assigned: list[TopicPartition] = []
        """What the last generation gives this member."""
        self._connection: Connection | None = None  # where a Join may wait for long
        # For all that must not wait behind it.
        self._aside = Coordinator(cluster, KeyType.GROUP, group_id)
        self._retry_at = 0.0
        self._heart: _Heart | None = None

    @property
    def metadata(self) -> GroupMetadata:
        """Who this member is now, for those who commit on its behalf."""
        one = self.identity
        return GroupMetadata(self.group_id, one.generation, one.member_id, self.instance_id)

    # -- towards the inside ------------------------------------------------------------------

    @property
    def must_rejoin(self) -> bool:
        """Whether the group rebalances, or has gone on without this member."""
        return self._heart is not None and self._heart.error is not None

    @property
    def is_lost(self) -> bool:
        """Whether the member was taken out: what it had may be others' by now."""
        heart = self._heart
        return heart is not None and heart.error in (
            *EXPELLED,
            ErrorCode.FENCED_INSTANCE_ID,
            ErrorCode.REQUEST_TIMED_OUT,
        )

    def polled(self) -> None:
        """Take note that the application is alive."""
        if self._heart is not None:
            self._heart.polled_at = time.monotonic()

    def begin(self) -> None:
        """Leave the generation behind, to join the next one.

        Raises KafkaError with what no rejoining can mend. Whoever joins again nevertheless is still
        the same member, and is told so again.
        """
        heart, self._heart = self._heart, None
        self.state = State.OUTSIDE
        if heart is not None:
            heart.stop()
            if heart.error in EXPELLED:
                self.identity = Identity()
            elif heart.error is not None and heart.error not in (
                ErrorCode.REBALANCE_IN_PROGRESS,
                ErrorCode.REQUEST_TIMED_OUT,
                *MOVED,
            ):
                raise error_for(heart.error, f"group {self.group_id!r}: {heart.error.name}")

    def advance(self, subscription: Subscription, timeout_s: float) -> bool:
        """Go on towards the inside; True once this member has its partitions.

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
        return True

    def _step(self, subscription: Subscription, timeout_s: float) -> bool:
        """Do what can be done now; False when the answer takes longer."""
        if self.state is State.OUTSIDE:
            self._send_join(subscription)
        connection = self._coordinator()
        if not connection.ready(timeout_s * 1000):
            return False
        if self.state is State.JOINING:
            self._take_join(connection.receive(JoinGroupResponse))
        else:
            self._take_sync(connection.receive(SyncGroupResponse))
        return True

    def _fail(self, fault: KafkaError) -> None:
        """Begin again after a while, or raise what no other attempt can mend."""
        self.state = State.OUTSIDE
        if not fault.retriable and fault.code not in JOIN_AGAIN:
            raise fault
        if fault.code in EXPELLED:
            self.identity = Identity()
        if fault.code != ErrorCode.REBALANCE_IN_PROGRESS:
            self._drop_connection()
        self._retry_at = time.monotonic() + RETRY_BACKOFF_S

    # -- JoinGroup and SyncGroup -----------------------------------------------------------------

    def _send_join(self, subscription: Subscription) -> None:
        self._coordinator().send(
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
        self.state = State.JOINING

    def _take_join(self, answer: JoinGroupResponse) -> None:
        if answer.error_code == ErrorCode.MEMBER_ID_REQUIRED:
            self.identity = Identity(answer.member_id)
            self.state = State.OUTSIDE
            return
        self._check(answer.error_code)
        self.identity = Identity(answer.member_id, answer.generation_id)
        leads = answer.leader == answer.member_id and not answer.skip_assignment
        name = answer.protocol_name or ""
        self._coordinator().send(
            SyncGroupRequest(
                group_id=self.group_id,
                generation_id=answer.generation_id,
                member_id=answer.member_id,
                group_instance_id=self.instance_id,
                protocol_type=CONSUMER,
                protocol_name=name,
                assignments=self._share(answer, self._assignors[name]) if leads else [],
            ),
            SyncGroupResponse,
            wait_ms=self._timeouts.max_poll_ms,
        )
        self.state = State.SYNCING

    def _share(
        self, answer: JoinGroupResponse, assignor: Assignor
    ) -> list[SyncGroupRequestAssignment]:
        members = {
            one.member_id: decode_subscription(one.metadata, assignor, one.group_instance_id)
            for one in answer.members
        }
        topics = {topic for one in members.values() for topic in one.topics}
        shares = assignor.assign(members, self._partition_counts(topics))
        return [
            SyncGroupRequestAssignment(member_id=one, assignment=encode_assignment(share))
            for one, share in shares.items()
        ]

    def _take_sync(self, answer: SyncGroupResponse) -> None:
        self._check(answer.error_code)
        self.assigned = decode_assignment(answer.assignment)
        self.state = State.INSIDE
        self._heart = _Heart(self._open_coordinator(), self)

    def _check(self, code: int) -> None:
        if code != ErrorCode.NONE:
            raise error_for(code, f"group {self.group_id!r}: {ErrorCode(code).name}")

    # -- the coordinator ---------------------------------------------------------------------

    def call(self, request: Struct, response: type[R]) -> R:
        """Ask the coordinator something else. Raises KafkaError."""
        return self._aside.call(request, response)

    def forget_coordinator(self) -> None:
        """Look for the coordinator again before the next `call`."""
        self._aside.forget()

    def _coordinator(self) -> Connection:
        if self._connection is None or not self._connection.is_usable:
            self._drop_connection()
            self._connection = self._open_coordinator()
        return self._connection

    def _open_coordinator(self) -> Connection:
        return open_coordinator(self._cluster, KeyType.GROUP, self.group_id)

    def _drop_connection(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.close()

    # -- the way out -------------------------------------------------------------------------

    def close(self) -> None:
        """Leave, unless the member is static: it may be back before it is missed."""
        heart, self._heart = self._heart, None
        if heart is not None:
            heart.stop()
        if self.instance_id is None and self.identity.member_id != NOBODY:
            try:
                self.call(leave_request(self.group_id, self.identity), LeaveGroupResponse)
            except KafkaError as fault:
                log.warning("group %s is not told that a member leaves: %s", self.group_id, fault)
        self.identity, self.state, self.assigned = Identity(), State.OUTSIDE, []
        self._drop_connection()
        self.forget_coordinator()


def leave_request(group_id: str, identity: Identity, reason: str | None = None) -> Struct:
    """Return what takes one member out."""
    return LeaveGroupRequest(
        group_id=group_id,
        members=[MemberIdentity(member_id=identity.member_id, reason=reason)],
    )


class _Heart:
    """The thread that says that a member lives, until something is the matter (`error`)."""

    def __init__(self, connection: Connection, membership: Membership) -> None:
        self._connection = connection
        self._timeouts = membership._timeouts
        self._group_id = membership.group_id
        self._instance_id = membership.instance_id
        self._identity = membership.identity
        self._stopping = threading.Event()
        self.error: ErrorCode | None = None
        self.polled_at = time.monotonic()
        self._thread = threading.Thread(target=self._run, name="plog heartbeat", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """End the thread."""
        self._stopping.set()
        self._connection.interrupt()
        self._thread.join()
        self._connection.close()

    def _run(self) -> None:
        heard_at = time.monotonic()
        while not self._stopping.wait(self._timeouts.heartbeat_ms / 1000):
            now = time.monotonic()
            if now - self.polled_at > self._timeouts.max_poll_ms / 1000:
                self._leave()
                return
            try:
                answer = self._connection.call(self._request(), HeartbeatResponse)
            except KafkaError:
                # A broker that is away for a moment; past the session it has given us up.
                self.error = ErrorCode.NOT_COORDINATOR
                if now - heard_at > self._timeouts.session_ms / 1000:
                    self.error = ErrorCode.REQUEST_TIMED_OUT
                return
            heard_at = now
            if answer.error_code != ErrorCode.NONE:
                self.error = ErrorCode(answer.error_code)
                return

    def _request(self) -> HeartbeatRequest:
        return HeartbeatRequest(
            group_id=self._group_id,
            generation_id=self._identity.generation,
            member_id=self._identity.member_id,
            group_instance_id=self._instance_id,
        )

    def _leave(self) -> None:
        log.warning(
            "group %s: poll was not called for max_poll_interval_ms=%d; the member leaves",
            self._group_id,
            self._timeouts.max_poll_ms,
        )
        self.error = ErrorCode.UNKNOWN_MEMBER_ID
        try:
            if self._instance_id is None:
                reason = "poll was not called for max_poll_interval_ms"
                self._connection.call(
                    leave_request(self._group_id, self._identity, reason), LeaveGroupResponse
                )
        except KafkaError:
            return
