"""One member of a consumer group: it joins, gets its partitions, sends heartbeats, and leaves.

Owns the client's side of the classic protocol, in steps: `advance` goes as far as responses have
arrived, so that `poll` keeps its timeout. A thread sends heartbeats on its own connection, through
rebalances and failures of the coordinator, and only sets flags. Never touches positions.

The thread sends no heartbeats while a Join waits, because the member has no session then. The
session begins with the response, which the thread reads even while the application works. The next
poll sends the Sync, and repeats a Join or a Sync whose connection was lost. Until then such a
member is silent.
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
from plog.client.attempts import RETRY_BACKOFF_S
from plog.client.connection import Connection
from plog.client.coordinators import (
    MOVED,
    Coordinator,
    KeyType,
    open_coordinator,
)
from plog.client.metadata import Cluster
from plog.client.retry_log import RetryLog
from plog.errors import (
    RETRIABLE,
    ErrorCode,
    KafkaError,
    NetworkException,
    PlogError,
    RequestTimedOut,
    error_for,
)
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
"""The protocol type of groups whose members share partitions."""
MEMBER_ID_VERSION = 4
"""From this version of JoinGroup on the coordinator answers a first Join at once (KIP-394)."""
MOVE_PATIENCE_S = 2.0
"""How long a group may be without a coordinator before a warning is logged."""
NO_MEMBER_ID, NO_GENERATION = "", -1
EXPELLED = frozenset({ErrorCode.UNKNOWN_MEMBER_ID, ErrorCode.ILLEGAL_GENERATION})
"""Errors after which the group continues without this member."""
LOST = EXPELLED | {ErrorCode.FENCED_INSTANCE_ID}
"""Errors after which other members may have this member's partitions."""
STOP_PATIENCE_S = 1.0
"""How long `stop` waits for the heartbeat thread, which may wait for a broker."""


@dataclass(frozen=True, slots=True)
class Identity:
    """The member's id and generation; empty before it has joined."""

    member_id: str = NO_MEMBER_ID
    generation: int = NO_GENERATION


class GroupMetadata(NamedTuple):
    """The identity of a commit for a group (KIP-447): a member, or only the group's name."""

    group_id: str
    generation: int = NO_GENERATION
    member_id: str = NO_MEMBER_ID
    instance_id: str | None = None


class CommitFailed(PlogError):
    """The group has expelled this member: other members have its partitions."""


class Timeouts(NamedTuple):
    """Timeouts in ms: of the session, between heartbeats, and between polls."""

    session_ms: int = 45_000
    heartbeat_ms: int = 3_000
    max_poll_ms: int = 300_000


class State(Enum):
    """The state of a member."""

    OUTSIDE = "outside"
    JOINING = "joining"
    SYNCING = "syncing"
    INSIDE = "inside"


class Membership:
    """A member of one group.

    Args:
        cluster: finds the coordinator; only the caller's thread uses it.
        assignors: the member's assignors, the preferred first.
        partition_counts: returns the number of partitions of topics (0: no such topic), for a
            leader.
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
        """The identity for commits: that of the last generation, until the next one is joined."""
        self.state = State.OUTSIDE
        self.assigned: list[TopicPartition] = []
        """The partitions of this member in the last generation."""
        self.led: Mapping[str, int] = {}
        """As the leader: the topics of all members, with the partition counts it has used."""
        self._connection: Connection | None = None  # a Join may wait on it for long
        # For requests that must not wait behind a Join.
        self._aside = Coordinator(cluster, KeyType.GROUP, group_id)
        self._retry_at = 0.0
        self._failing_since = 0.0
        """Time (time.monotonic()) of the first failed attempt; 0 after a success."""
        self._retries = RetryLog(log)
        self._waits = RetryLog(log)
        self._heartbeats: _Heartbeats | None = None
        self._refused: ErrorCode | None = None  # one of LOST, while joining

    @property
    def metadata(self) -> GroupMetadata:
        """The member's identity, for commits on its behalf.

        An expelled member keeps its identity, so that the coordinator refuses its commits. It would
        accept a commit without a member id.
        """
        one = self.committer
        return GroupMetadata(self.group_id, one.generation, one.member_id, self.instance_id)

    @property
    def is_member(self) -> bool:
        """Whether it has been in a generation, and is not known to be expelled."""
        return self.committer.member_id == self.identity.member_id != NO_MEMBER_ID

    # -- joining -----------------------------------------------------------------------------

    @property
    def must_rejoin(self) -> bool:
        """Whether the group rebalances, or has expelled this member.

        While the member joins, the coordinator's responses report a rebalance.
        """
        rebalances = self._heartbeats is not None and self._heartbeats.is_rebalancing
        return self._error is not None or (rebalances and self.state is State.INSIDE)

    @property
    def is_lost(self) -> bool:
        """Whether the member was expelled or fenced: other members may have its partitions."""
        return self._error in LOST

    @property
    def _error(self) -> ErrorCode | None:
        """The error that has ended the membership, from any request."""
        return self._refused or (None if self._heartbeats is None else self._heartbeats.error)

    def polled(self) -> None:
        """Note that the application polls."""
        if self._heartbeats is not None:
            self._heartbeats.polled_at = time.monotonic()

    def rejoin(self) -> None:
        """Make the member join again with its next poll; heartbeats continue until then."""
        if self._heartbeats is not None:
            self._heartbeats.is_rebalancing = True

    def refused(self, code: int) -> None:
        """Note the error of another request of this member."""
        if code in LOST and self.state is State.INSIDE:
            self._refused = ErrorCode(code)

    def rest(self) -> None:
        """End the heartbeats: `is_lost` does not change until `begin`."""
        if self._heartbeats is not None:
            self._heartbeats.stop()

    def begin(self) -> None:
        """Leave the generation, to join the next one.

        Raises:
            KafkaError: joining again cannot solve it. If the member joins again nevertheless, it
                keeps its identity and gets the same error.
        """
        self.rest()
        error, self._refused, self._heartbeats = self._error, None, None
        if self.state is not State.INSIDE or self._is_asking:
            self._drop_connection()  # a response may still arrive
        self.state = State.OUTSIDE
        if error in EXPELLED:
            self.identity = Identity()
        elif error is not None:
            raise error_for(error, f"group {self.group_id!r}: {error.name}")

    def advance(self, subscription: Subscription, timeout_s: float) -> bool:
        """Continue joining; return True once this member has its partitions.

        It stops once the member `is_lost`.

        Raises:
            KafkaError: an error that a retry cannot solve.
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
                    self._report_wait()
                    return False
            except KafkaError as fault:
                self._fail(fault)
                if self.is_lost:
                    return False
        return True

    def _step(self, subscription: Subscription, timeout_s: float) -> bool:
        """Do the next step; return False if the response takes longer."""
        if self.state is State.OUTSIDE:
            self._send_join(subscription)
        if self.state is State.JOINING:
            assert self._heartbeats is not None
            answer = self._heartbeats.joined(timeout_s)
            if answer is None:
                return False
            self._take_join(answer)
            return True
        connection = self._coordinator()
        if not connection.ready(timeout_s * 1000) and not connection.is_overdue:
            return False
        self._take_sync(connection.receive(SyncGroupResponse))
        return True

    def _fail(self, fault: KafkaError) -> None:
        """Schedule another attempt, or raise an error that a retry cannot solve."""
        self.state = State.OUTSIDE
        if fault.code == ErrorCode.REBALANCE_IN_PROGRESS:
            # The member belongs to the generation that it has joined, and sends heartbeats for it.
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

    def _report_wait(self) -> None:
        """Log that the coordinator has not answered for longer than a request usually takes."""
        connection = self._connection
        if connection is None or connection.waited_s < self._cluster.request_timeout_s:
            return
        request = "JoinGroup" if self.state is State.JOINING else "SyncGroup"
        self._waits.warn(
            f"group {self.group_id!r}: {connection.peer} has not answered {request} yet",
            f"waiting for other members, max_poll_interval_ms={self._timeouts.max_poll_ms} at most",
        )

    # -- JoinGroup and SyncGroup -----------------------------------------------------------------

    def _send_join(self, subscription: Subscription) -> None:
        connection = self._coordinator()
        # Without a member id the coordinator answers at once (KIP-394). Later it may wait for the
        # other members, who join with their next poll.
        is_first = self.identity.member_id == NO_MEMBER_ID and self.instance_id is None
        answers_at_once = is_first and connection.version_for(JoinGroupRequest) >= MEMBER_ID_VERSION
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
            wait_ms=0 if answers_at_once else self._timeouts.max_poll_ms,
        )
        self.rest()
        self._heartbeats = _Heartbeats(self, self._cluster.twin(), connection)
        self.state = State.JOINING

    def _take_join(self, answer: JoinGroupResponse) -> None:
        if answer.error_code == ErrorCode.MEMBER_ID_REQUIRED:
            self.identity = Identity(answer.member_id)
            self.state = State.OUTSIDE
            return
        self._check(answer.error_code)
        self.identity = Identity(answer.member_id, answer.generation_id)
        # The leader's Sync is answered at once; those of the others wait for it.
        is_leader = answer.leader == answer.member_id
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
            wait_ms=0 if is_leader else self._timeouts.max_poll_ms,
        )
        self.state = State.SYNCING

    def _share(self, answer: JoinGroupResponse) -> list[SyncGroupRequestAssignment]:
        """As the leader, assign the partitions and note the partition counts (`led`)."""
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
            return []  # a static leader is back, and all members keep their partitions (KIP-814)
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
        """Send another request to the coordinator. Raises KafkaError."""
        return self._aside.call(request, response)

    def ask(self, request: Struct, response: type[R], timeout_s: float) -> R | None:
        """Send a request that may be repeated, as a member; None while the response takes longer.

        The next call waits for the same response. `begin` drops it.

        Raises:
            KafkaError: no response will come.
        """
        connection = self._coordinator()  # free, while no Join or Sync waits on it
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
        """Look the coordinator up again before the next `call`, and as a member before `ask`."""
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

    # -- leaving -----------------------------------------------------------------------------

    def close(self) -> None:
        """Leave the group, unless the member is static: it may return within its session."""
        self.rest()
        if self.instance_id is None and self.identity.member_id != NO_MEMBER_ID:
            try:
                self.call(leave_request(self.group_id, self.identity), LeaveGroupResponse)
            except KafkaError as fault:
                log.warning("group %r: LeaveGroup failed: %s", self.group_id, fault)
        self.identity, self.state, self.assigned, self.led = Identity(), State.OUTSIDE, [], {}
        self._refused, self._heartbeats = None, None
        self._drop_connection()
        self.forget_coordinator()


def leave_request(group_id: str, identity: Identity, reason: str | None = None) -> Struct:
    """Return the request by which one member leaves."""
    return LeaveGroupRequest(
        group_id=group_id,
        members=[MemberIdentity(member_id=identity.member_id, reason=reason)],
    )


class _Heartbeats:
    """The thread that sends a member's heartbeats, from its Join on until an `error`.

    Args:
        cluster: finds the coordinator; the thread owns it from now on, and closes it at its end.
        connection: receives the Join's response.

    Attributes:
        is_rebalancing: the members have to join again.
        error: the error that ended the heartbeats.
        polled_at: when (time.monotonic()) the application polled last.
    """

    def __init__(self, membership: Membership, cluster: Cluster, connection: Connection) -> None:
        self._cluster = cluster
        self._coordinator = Coordinator(cluster, KeyType.GROUP, membership.group_id)
        self._timeouts = membership._timeouts
        self._group_id = membership.group_id
        self._instance_id = membership.instance_id
        self._connection = connection
        self._reading = threading.Lock()  # held to read the Join's response
        self._answer: JoinGroupResponse | KafkaError | None = None
        self._stopping = threading.Event()
        self._retries = RetryLog(log)
        self.is_rebalancing = False
        self.error: ErrorCode | None = None
        self.polled_at = time.monotonic()
        self._thread = threading.Thread(target=self._run, name="plog heartbeat", daemon=True)
        self._thread.start()

    @property
    def _is_stopping(self) -> bool:
        return self._stopping.is_set()

    def stop(self) -> None:
        """End the thread."""
        self._stopping.set()
        self._coordinator.interrupt()
        self._cluster.interrupt()
        self._thread.join(STOP_PATIENCE_S)

    def joined(self, timeout_s: float = 0) -> JoinGroupResponse | None:
        """Return the Join's response; None if it takes longer. Thread-safe.

        The first thread that looks reads it: the session begins with it, even while the application
        works.

        Raises:
            KafkaError: no response will come.
        """
        with self._reading:
            connection = self._connection
            if self._answer is None and (
                connection.ready(timeout_s * 1000) or connection.is_overdue
            ):
                try:
                    self._answer = connection.receive(JoinGroupResponse)
                except KafkaError as fault:
                    self._answer = fault
            if isinstance(self._answer, KafkaError):
                raise self._answer
            return self._answer

    def _run(self) -> None:
        interval_s = wait_s = self._timeouts.heartbeat_ms / 1000
        try:
            while self.error is None and not self._stopping.wait(wait_s):
                wait_s = interval_s
                me = self._identity()
                if me is None:
                    continue
                if time.monotonic() - self.polled_at > self._timeouts.max_poll_ms / 1000:
                    self._leave(me)
                elif not self._send_heartbeat(me):
                    wait_s = min(interval_s, RETRY_BACKOFF_S)
        finally:
            self._coordinator.forget()
            self._cluster.close()

    def _identity(self) -> Identity | None:
        """Return the member's identity, once its Join is answered."""
        try:
            answer = self.joined()
        except KafkaError:
            return None
        if answer is None or answer.error_code != ErrorCode.NONE:
            return None
        return Identity(answer.member_id, answer.generation_id)

    def _send_heartbeat(self, me: Identity) -> bool:
        """Send a heartbeat; return False if no coordinator has received it."""
        try:
            code = self._coordinator.call(self._request(me), HeartbeatResponse).error_code
            self._cluster.close()  # the coordinator has a connection of its own
        except KafkaError as fault:
            code = fault.code
            if isinstance(fault, NetworkException | RequestTimedOut) and not self._is_stopping:
                self._retries.warn(f"group {self._group_id!r}: heartbeat failed: {fault}")
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
        except KafkaError as fault:
            if not self._is_stopping:
                log.warning("group %r: LeaveGroup failed: %s", self._group_id, fault)
