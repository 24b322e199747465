"""Plays a classic group for a scenario: who is told what is printed, as soon as it is.

A request that has to wait is answered below the command that brought it its answer.
"""

from __future__ import annotations

from plog.coordinator.classic_group import ClassicGroup
from plog.coordinator.group_events import JoinAnswer, Leaving, Left, Protocol, SyncAnswer
from plog.errors import ErrorCode
from tests.coordinator.group_play import Play


class ClassicScript:
    def __init__(self) -> None:
        self.play = Play()
        self._labels: dict[int, str] = {}
        self._told = 0

    def __call__(self, words: list[str]) -> list[str]:
        command, *rest = words
        done = len(self.play.reasons)
        reply = getattr(self, f"_{command}")(*rest)
        answers = list(self.play.answers.items())[self._told :]
        self._told += len(answers)
        rebalances = [f"rebalance: {why}" for why in self.play.reasons[done:]]
        told = [
            f"{self._labels[token]}: {line}" for token, one in answers for line in _lines_of(one)
        ]
        return rebalances + told + list(reply or ())

    def _group(self, *given: str) -> None:
        """Begin anew: `delay=3000`, and `store=later` to have the log be asked for."""
        words = dict(one.split("=") for one in given)
        group = ClassicGroup("g", initial_delay_ms=int(words.get("delay", "0")))
        self.play = Play(group, stores_at_once=words.get("store") != "later")
        self._labels, self._told = {}, 0

    def _join(self, member: str, *given: str) -> None:
        """Send a JoinGroup; `-` has no id yet. `protocols=range,roundrobin` with metadata."""
        words = dict(one.split("=") for one in given)
        changes: dict[str, object] = {}
        if "instance" in words:
            changes["instance_id"] = words["instance"]
        if "protocols" in words:
            names = words["protocols"].split(",")
            changes["protocols"] = tuple(Protocol(one, f"of {member}".encode()) for one in names)
        for key, name in (
            ("session", "session_timeout_ms"),
            ("rebalance", "rebalance_timeout_ms"),
            ("capacity", "capacity"),
        ):
            if key in words:
                changes[name] = int(words[key])
        if words.get("version") == "3":
            changes["must_know_id"] = False
        token = self.play.join("" if member == "-" else member, **changes)
        self._labels[token] = f"join {member}"

    def _sync(self, member: str, generation: str, *given: str) -> None:
        """Send a SyncGroup; the leader's has assignments: `a=all b=nothing`, or by `instance=`."""
        words = dict(one.split("=") for one in given)
        instance = words.pop("instance", None)
        token = self.play.sync(
            member,
            {name: text.encode() for name, text in words.items()},
            generation=int(generation),
            instance_id=instance,
        )
        self._labels[token] = f"sync {member}"

    def _beat(self, member: str, generation: str, *given: str) -> None:
        """Send a Heartbeat."""
        words = dict(one.split("=") for one in given)
        token = self.play.send_beat(member, int(generation), words.get("instance"))
        self._labels[token] = f"beat {member}"

    def _leave(self, *members: str) -> None:
        """Send a LeaveGroup; `/name` names a static member by its instance."""
        leaving = [
            Leaving("", one.removeprefix("/")) if one.startswith("/") else Leaving(one)
            for one in members
        ]
        self._labels[self.play.send_leave(*leaving)] = f"leave {' '.join(members)}"

    def _commit(self, member: str, generation: str, *given: str) -> list[str]:
        """Ask whether offsets may be committed; `-` is nobody."""
        words = dict(one.split("=") for one in given)
        error = self.play.group.refuse_commit(
            "" if member == "-" else member, words.get("instance"), int(generation)
        )
        return [f"commit {member}: {error.name}"]

    def _pass(self, duration_ms: str) -> None:
        self.play.pass_ms(int(duration_ms))

    def _store(self, *error: str) -> None:
        """Have the log take what was asked for first, or refuse it."""
        self.play.store(ErrorCode[error[0]] if error else ErrorCode.NONE)

    def _show(self) -> list[str]:
        """Print the group, and who waits for an answer."""
        group = self.play.group
        leads = f" leader={group.roster.leader}" if len(group.roster) else ""
        protocol = f" {group.protocol_name}" if group.protocol_name else ""
        lines = [f"{group.state.value} generation={group.generation}{protocol}{leads}"]
        for member in group.roster:
            static = f" instance={member.instance_id}" if member.instance_id else ""
            has = f" has={member.assignment.decode()}" if member.assignment else ""
            lines.append(f"  {member.member_id}{static}{has}")
        lines += [f"  {member_id} has not joined yet" for member_id in sorted(group.pending)]
        return lines + [f"  {self._labels[token]} waits" for token in self.play.waiting]


def _lines_of(answer: JoinAnswer | SyncAnswer | Left | ErrorCode) -> list[str]:
    match answer:
        case JoinAnswer(ErrorCode.NONE):
            line = f"{answer.member_id} generation={answer.generation} {answer.protocol_name}"
            line += f" leader={answer.leader}"
            if answer.skip_assignment:
                line += " which assigns nothing"
            return [line, *(f"  with {_member(*one)}" for one in answer.members)]
        case JoinAnswer():
            return [" ".join(filter(None, [answer.error.name, answer.member_id]))]
        case SyncAnswer(ErrorCode.NONE):
            return [f"{answer.protocol_name} has={answer.assignment.decode() or 'nothing'}"]
        case SyncAnswer():
            return [answer.error.name]
        case Left():
            return [" ".join(error.name for error in answer.errors)]
    return [answer.name]


def _member(member_id: str, instance_id: str | None, metadata: bytes) -> str:
    static = f" instance={instance_id}" if instance_id else ""
    return f"{member_id}{static} {metadata.decode()!r}"
