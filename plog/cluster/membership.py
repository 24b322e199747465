"""A broker's membership of its cluster, as the session with ZooKeeper comes and goes: pure.

Owns when a broker registers, when it may be the controller, and when it must give that up. A
session that expired is followed by another, in which the broker registers again with a new broker
epoch, as it does when its registration is gone. Clients are served all the while, unless another
process has taken the broker's id: then this one ends. A member reports to the controller that
replicas are lost, again until it is written. Reads and writes nothing: events in, effects out.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum, auto
from typing import Final, NamedTuple

RETRY_MS: Final = 500
MAX_RETRY_MS: Final = 10_000


class State(Enum):
    """What the broker is to the cluster."""

    OUTSIDE = auto()
    """It is not registered, and has no connection to register by."""
    JOINING = auto()
    """It has a session, and registers in it."""
    MEMBER = auto()
    """It is registered."""
    SUSPENDED = auto()
    """It has no connection. Its session may go on, and with it its registration."""
    PRESUMED_LOST = auto()
    """It has had none for so long that others may have taken its place."""
    ENDED = auto()
    """It cannot be a member any more. The process has to end."""


class Cause(Enum):
    """What happens."""

    CONNECTED = auto()
    """There is a connection, in a session that is not that of the registration."""
    CONNECTED_AGAIN = auto()
    """There is a connection, in the session of the registration."""
    SUSPENDED = auto()
    LOST = auto()
    """The servers say that the session is over."""
    TIMED_OUT = auto()
    """No server has answered for a session's time."""
    REGISTERED = auto()
    FAILED = auto()
    """The store refused the registration, the look for it, or the report, or did not answer."""
    TAKEN = auto()
    """Registering failed: another live process has the broker's id."""
    NODE_CHANGED = auto()
    """Some process has written or deleted the node of the registration."""
    GONE = auto()
    """The node is gone, or it is that of another session, though the session goes on."""
    NO_CLIENT = auto()
    """The client of the store has failed: no connection will follow."""
    RETRY = auto()
    REPLICAS_LOST = auto()
    """The controller has to ask which replicas this broker can serve."""


class Effect(Enum):
    """What the broker does."""

    REGISTER = auto()
    """Write the registration. REGISTERED or FAILED follows."""
    LOOK = auto()
    """Look for the registration. GONE or FAILED may follow."""
    READ_AGAIN = auto()
    """Read settings and features: their changes may have been missed."""
    STAND = auto()
    """Take part in elections of the controller."""
    RESIGN = auto()
    """As the controller: it may be another now. Close the channels to brokers."""
    REPORT = auto()
    """Report to the controller that replicas are lost, if no report is written yet."""
    RETRY_LATER = auto()
    """Have RETRY happen after a pause, which doubles."""
    END = auto()
    """End the process."""


_Next = tuple[State, tuple[Effect, ...]]

TABLE: Final[Mapping[tuple[State, Cause], _Next]] = {
    (State.OUTSIDE, Cause.CONNECTED): (State.JOINING, (Effect.REGISTER,)),
    (State.JOINING, Cause.REGISTERED): (
        State.MEMBER,
        (Effect.READ_AGAIN, Effect.STAND, Effect.REPORT),
    ),
    (State.JOINING, Cause.FAILED): (State.JOINING, (Effect.RETRY_LATER,)),
    (State.JOINING, Cause.TAKEN): (State.ENDED, (Effect.END,)),
    (State.JOINING, Cause.RETRY): (State.JOINING, (Effect.REGISTER,)),
    (State.JOINING, Cause.CONNECTED): (State.JOINING, (Effect.REGISTER,)),
    (State.JOINING, Cause.SUSPENDED): (State.OUTSIDE, ()),
    (State.JOINING, Cause.LOST): (State.OUTSIDE, ()),
    (State.MEMBER, Cause.REPLICAS_LOST): (State.MEMBER, (Effect.REPORT,)),
    (State.MEMBER, Cause.FAILED): (State.MEMBER, (Effect.RETRY_LATER,)),
    (State.MEMBER, Cause.RETRY): (State.MEMBER, (Effect.REPORT, Effect.LOOK)),
    (State.MEMBER, Cause.NODE_CHANGED): (State.MEMBER, (Effect.LOOK,)),
    (State.MEMBER, Cause.GONE): (State.JOINING, (Effect.RESIGN, Effect.REGISTER)),
    (State.MEMBER, Cause.SUSPENDED): (State.SUSPENDED, ()),
    (State.MEMBER, Cause.LOST): (State.OUTSIDE, (Effect.RESIGN,)),
    (State.MEMBER, Cause.CONNECTED): (State.JOINING, (Effect.RESIGN, Effect.REGISTER)),
    (State.SUSPENDED, Cause.CONNECTED_AGAIN): (State.MEMBER, (Effect.REPORT, Effect.LOOK)),
    (State.SUSPENDED, Cause.CONNECTED): (State.JOINING, (Effect.RESIGN, Effect.REGISTER)),
    (State.SUSPENDED, Cause.LOST): (State.OUTSIDE, (Effect.RESIGN,)),
    (State.SUSPENDED, Cause.TIMED_OUT): (State.PRESUMED_LOST, (Effect.RESIGN,)),
    (State.PRESUMED_LOST, Cause.CONNECTED_AGAIN): (
        State.MEMBER,
        (Effect.READ_AGAIN, Effect.STAND, Effect.REPORT, Effect.LOOK),
    ),
    (State.PRESUMED_LOST, Cause.CONNECTED): (State.JOINING, (Effect.REGISTER,)),
    (State.PRESUMED_LOST, Cause.LOST): (State.OUTSIDE, ()),
    (State.OUTSIDE, Cause.NO_CLIENT): (State.ENDED, (Effect.END,)),
    (State.JOINING, Cause.NO_CLIENT): (State.ENDED, (Effect.END,)),
    (State.MEMBER, Cause.NO_CLIENT): (State.ENDED, (Effect.RESIGN, Effect.END)),
    (State.SUSPENDED, Cause.NO_CLIENT): (State.ENDED, (Effect.RESIGN, Effect.END)),
    (State.PRESUMED_LOST, Cause.NO_CLIENT): (State.ENDED, (Effect.END,)),
}
"""What follows a cause. Where there is nothing, nothing follows."""


class Orders(NamedTuple):
    """The next steps of the broker; `retry_ms`: how long it waits before RETRY."""

    effects: tuple[Effect, ...]
    retry_ms: int = 0


@dataclass(slots=True)
class Membership:
    """One broker's membership. Times are of a clock that goes on while the host is suspended.

    Args:
        timeout_ms: after which the servers may end a silent session.
    """

    timeout_ms: int
    state: State = State.OUTSIDE
    session_id: int = 0
    """That of the registration, or of the attempt."""
    broker_epoch: int = -1
    _silent_since_ms: int = 0
    _pause_ms: int = RETRY_MS
    _must_report: bool = False

    @property
    def is_connected(self) -> bool:
        """Whether there is a connection."""
        return self.state in (State.JOINING, State.MEMBER)

    def connected(self, session_id: int) -> Orders:
        """There is a connection."""
        is_same = session_id == self.session_id
        self._pause_ms = RETRY_MS
        if self.state in (State.OUTSIDE, State.JOINING) or not is_same:
            self.session_id = session_id
            return self._step(Cause.CONNECTED)
        return self._step(Cause.CONNECTED_AGAIN)

    def suspended(self, now_ms: int) -> Orders:
        """There is no connection any more."""
        if self.state is State.MEMBER:
            self._silent_since_ms = now_ms
        return self._step(Cause.SUSPENDED)

    def lost(self) -> Orders:
        """The session is over."""
        return self._step(Cause.LOST)

    def registered(self, session_id: int, broker_epoch: int) -> Orders:
        """The registration is written. One that was asked for in an earlier session is not."""
        if session_id != self.session_id:
            return Orders(())
        if self.state is State.JOINING:
            self.broker_epoch = broker_epoch
            self._pause_ms = RETRY_MS
        return self._step(Cause.REGISTERED)

    def failed(self, session_id: int) -> Orders:
        """The store refused an operation, or did not answer."""
        if session_id != self.session_id:
            return Orders(())
        return self._step(Cause.FAILED)

    def taken(self, session_id: int) -> Orders:
        """Another live process has the broker's id."""
        if session_id != self.session_id:
            return Orders(())
        return self._step(Cause.TAKEN)

    def replicas_lost(self) -> Orders:
        """The controller has to ask which replicas this broker can serve."""
        self._must_report = True
        return self._step(Cause.REPLICAS_LOST)

    def reported(self) -> None:
        """The report is written."""
        self._must_report = False
        self._pause_ms = RETRY_MS

    def node_changed(self) -> Orders:
        """The node of the registration may have changed."""
        return self._step(Cause.NODE_CHANGED)

    def gone(self, session_id: int) -> Orders:
        """The session goes on, and its registration is gone."""
        if session_id != self.session_id:
            return Orders(())
        return self._step(Cause.GONE)

    def no_client(self) -> Orders:
        """The client of the store has failed."""
        return self._step(Cause.NO_CLIENT)

    def retry(self) -> Orders:
        """The pause is over."""
        return self._step(Cause.RETRY)

    def tick(self, now_ms: int) -> Orders:
        """Look at the time."""
        if now_ms - self._silent_since_ms < self.timeout_ms:
            return Orders(())
        return self._step(Cause.TIMED_OUT)

    def _step(self, cause: Cause) -> Orders:
        self.state, effects = TABLE.get((self.state, cause), (self.state, ()))
        if not self._must_report:
            effects = tuple(one for one in effects if one is not Effect.REPORT)
        if Effect.RETRY_LATER not in effects:
            return Orders(effects)
        pause_ms, self._pause_ms = self._pause_ms, min(2 * self._pause_ms, MAX_RETRY_MS)
        return Orders(effects, pause_ms)
