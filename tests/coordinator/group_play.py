"""Runs a classic group's machine by hand: a clock that is set, a log that is safe when asked."""

from __future__ import annotations

import itertools
from dataclasses import replace

from plog.coordinator.classic_group import ClassicGroup
from plog.coordinator.group_events import (
    Answer,
    Effect,
    Event,
    Heartbeat,
    Join,
    JoinAnswer,
    Leave,
    Leaving,
    Left,
    Protocol,
    Rebalancing,
    SetTimer,
    StopTimer,
    Stored,
    StoreGroup,
    Sync,
    SyncAnswer,
    Timer,
    TimerFired,
)
from plog.coordinator.group_states import GroupState
from plog.errors import ErrorCode

RANGE = Protocol("range", b"r")
ROBIN = Protocol("roundrobin", b"rr")
JOIN = Join(
    token=0,
    member_id="",
    new_member_id="",
    instance_id=None,
    client_id="client",
    client_host="/127.0.0.1",
    rebalance_timeout_ms=60_000,
    session_timeout_ms=10_000,
    protocol_type="consumer",
    protocols=(RANGE,),
)


class Play:
    """A group, its timers and its answers; tokens are numbers, new members are a, b, c..."""

    def __init__(self, group: ClassicGroup | None = None, *, stores_at_once: bool = True) -> None:
        self.group = group or ClassicGroup("g")
        self.stores_at_once = stores_at_once
        self.now_ms = 0
        self.timers: dict[Timer, int] = {}
        self.answers: dict[int, JoinAnswer | SyncAnswer | Left | ErrorCode] = {}
        self.asked: list[int] = []
        self.reasons: list[str] = []
        self.unstored: list[StoreGroup] = []
        self._tokens = itertools.count(1)
        self._names = (chr(ord("a") + i % 26) + str(i // 26 or "") for i in itertools.count())

    # -- requests ----------------------------------------------------------------------------

    def join(self, member_id: str = "", **changes: object) -> int:
        """Send a Join; returns its token."""
        token = self._token()
        name = next(self._names) if member_id == "" else ""
        self.feed(
            replace(JOIN, token=token, member_id=member_id, new_member_id=name, **changes)  # type: ignore[arg-type]
        )
        return token

    def enter(self, **changes: object) -> int:
        """Send the two Joins of a client that has no id yet; returns the second one's token."""
        required = self.answers[self.join(**changes)]
        assert isinstance(required, JoinAnswer)
        assert required.error is ErrorCode.MEMBER_ID_REQUIRED
        return self.join(required.member_id, **changes)

    def sync(
        self, member_id: str, assignments: dict[str, bytes] | None = None, **changes: object
    ) -> int:
        """Send a Sync of the group's generation; returns its token."""
        token = self._token()
        event = Sync(token, member_id, None, self.group.generation, None, None, assignments or {})
        self.feed(replace(event, **changes))  # type: ignore[arg-type]
        return token

    def beat(self, member_id: str, generation: int | None = None) -> ErrorCode:
        """Send a Heartbeat; returns its answer."""
        known = self.group.generation if generation is None else generation
        answer = self.answers[self.send_beat(member_id, known)]
        assert isinstance(answer, ErrorCode)
        return answer

    def send_beat(self, member_id: str, generation: int, instance_id: str | None = None) -> int:
        """Send a Heartbeat; returns its token."""
        token = self._token()
        self.feed(Heartbeat(token, member_id, instance_id, generation))
        return token

    def leave(self, *members: Leaving) -> tuple[ErrorCode, ...]:
        """Send a Leave; returns its answer."""
        answer = self.answers[self.send_leave(*members)]
        assert isinstance(answer, Left)
        return answer.errors

    def send_leave(self, *members: Leaving) -> int:
        """Send a Leave; returns its token."""
        token = self._token()
        self.feed(Leave(token, members))
        return token

    def _token(self) -> int:
        token = next(self._tokens)
        self.asked.append(token)
        return token

    # -- what else happens -------------------------------------------------------------------

    def pass_ms(self, duration_ms: int) -> None:
        """Let time pass, and timers fire on their way."""
        end_ms = self.now_ms + duration_ms
        while self.timers:
            timer = min(self.timers, key=self.timers.__getitem__)
            if self.timers[timer] > end_ms:
                break
            self.now_ms = self.timers.pop(timer)
            self.feed(TimerFired(timer))
        self.now_ms = end_ms

    def store(self, error: ErrorCode = ErrorCode.NONE) -> None:
        """Let what was asked for first be safe, or refused."""
        self.feed(Stored(self.unstored.pop(0).ticket, error))

    def feed(self, event: Event) -> None:
        """Have the machine take in an event, and execute what it wants."""
        self.execute(self.group.on(event))

    def execute(self, effects: list[Effect]) -> None:
        """Do what the machine wants, in its order."""
        for effect in effects:
            match effect:
                case Answer(token, answer):
                    assert isinstance(token, int)
                    assert token not in self.answers, "answered twice"
                    self.answers[token] = answer
                case SetTimer(timer, after_ms):
                    self.timers[timer] = self.now_ms + after_ms
                case StopTimer(timer):
                    self.timers.pop(timer, None)
                case StoreGroup():
                    self.unstored.append(effect)
                case Rebalancing(_, reason):
                    self.reasons.append(reason)
        while self.stores_at_once and self.unstored:
            self.store()

    # -- whole scenes ------------------------------------------------------------------------

    @property
    def waiting(self) -> list[int]:
        """Tokens of requests that are not answered."""
        return [token for token in self.asked if token not in self.answers]

    def stable(self, size: int, **changes: object) -> list[str]:
        """Make the group stable with so many members, and return their ids."""
        for _ in range(size):
            self.join(must_know_id=False, **changes)
            for member in self.group.roster:  # those who are there come again, so that all are
                if member.joining is None:
                    self.join(
                        member.member_id, protocols=member.protocols, instance_id=member.instance_id
                    )
        self.pass_ms(0)
        self.all_sync()
        assert self.group.state is GroupState.STABLE
        return [member.member_id for member in self.group.roster]

    def all_sync(self) -> None:
        """Have every member ask for its assignment, which is `for ` and its id."""
        ids = [member.member_id for member in self.group.roster]
        for member_id in ids:
            self.sync(member_id, {one: f"for {one}".encode() for one in ids})
