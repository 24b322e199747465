"""Plays a consumer group (KIP-848) for a scenario: what its members are told is printed."""

from __future__ import annotations

from plog.coordinator.consumer_events import Rules
from plog.coordinator.group_events import BeatAnswer, Leaving
from plog.errors import ErrorCode
from tests.coordinator.consumer_play import ConsumerPlay, parts


def _split(text: str) -> list[str]:
    return [one for one in text.split(",") if one]


class ConsumerScript:
    def __init__(self) -> None:
        self.play = ConsumerPlay({})

    def __call__(self, words: list[str]) -> list[str]:
        command, *rest = words
        done = len(self.play.reasons)
        reply = getattr(self, f"_{command}")(*rest)
        epochs = [f"epoch {epoch}: {why}" for epoch, why in self.play.reasons[done:]]
        downgrades = ["the group is classic from now on" for _ in self.play.downgrades]
        self.play.downgrades.clear()
        return epochs + downgrades + list(reply or ())

    def _topics(self, *sizes: str) -> None:
        """Say which topics there are: name=partitions."""
        self.play.set_topics({name: int(size) for name, size in (one.split("=") for one in sizes)})

    def _rules(self, *given: str) -> None:
        """Say what the settings are, before anything else."""
        values = dict(one.split("=") for one in given)
        numbers = {key: int(value) for key, value in values.items()}
        self.play = ConsumerPlay({}, Rules(**numbers))  # type: ignore[arg-type]

    def _enter(self, member: str, *given: str) -> list[str]:
        """Have somebody join; as `beat`, with what every first heartbeat tells."""
        return self._beat(member, "0", "owned=", "timeout=30000", *given)

    def _beat(self, member: str, epoch: str, *given: str) -> list[str]:
        """Send a heartbeat."""
        words = dict(one.split("=", 1) for one in given)
        told: dict[str, object] = {
            key: words[name]
            for name, key in (
                ("instance", "instance_id"),
                ("rack", "rack_id"),
                ("regex", "regex"),
                ("assignor", "assignor"),
            )
            if name in words
        }
        if "topics" in words:
            told["topics"] = frozenset(_split(words["topics"]))
        if "owned" in words:
            told["owned"] = parts(*_split(words["owned"]))
        if "timeout" in words:
            told["rebalance_timeout_ms"] = int(words["timeout"])
        return [self._told(member, self.play.beat(member, int(epoch), **told))]

    def _told(self, member: str, answer: BeatAnswer) -> str:
        if answer.error is not ErrorCode.NONE:
            return f"{member} {answer.error.name}"
        if answer.assigned is None:
            return f"{member} epoch={answer.epoch}"
        return f"{member} epoch={answer.epoch} has=({' '.join(self.play.names(answer.assigned))})"

    def _join(self, member: str, *given: str) -> list[str]:
        """Have a member of the classic protocol join; `-` has no id yet."""
        words = dict(one.split("=", 1) for one in given)
        answer = self.play.join(
            "" if member == "-" else member,
            *_split(words.get("topics", "")),
            owned=tuple(_split(words.get("owned", ""))),
            instance_id=words.get("instance"),
        )
        if answer.error is not ErrorCode.NONE:
            return [f"{answer.member_id or member} {answer.error.name}"]
        leads = " leads" if answer.leader == answer.member_id else ""
        return [f"{answer.member_id} generation={answer.generation}{leads}"]

    def _sync(self, member: str, generation: str) -> list[str]:
        answer = self.play.sync(member, int(generation))
        if answer.error is not ErrorCode.NONE:
            return [f"{member} {answer.error.name}"]
        return [f"{member} has=({' '.join(self.play.assigned(answer))})"]

    def _heartbeat(self, member: str, generation: str) -> list[str]:
        return [f"{member} {self.play.heartbeat(member, int(generation)).name}"]

    def _leave(self, *members: str) -> list[str]:
        """Send a LeaveGroup; `/name` names a static member by its instance."""
        leaving = [
            Leaving("", one.removeprefix("/")) if one.startswith("/") else Leaving(one)
            for one in members
        ]
        errors = self.play.leave(*leaving)
        return [f"{one} {error.name}" for one, error in zip(members, errors, strict=True)]

    def _commit(self, member: str, epoch: str, *version: str) -> list[str]:
        """Ask whether offsets may be committed, by OffsetCommit v9 or the version that is given."""
        asked = int(version[0]) if version and version[0] != "txn" else None if version else 9
        error = self.play.group.refuse_commit("" if member == "-" else member, int(epoch), asked)
        return [f"{member} {error.name}"]

    def _pass(self, duration_ms: str) -> None:
        self.play.pass_ms(int(duration_ms))

    def _restart(self) -> None:
        before = self.play.group.table
        self.play.restart()
        after = self.play.group.table
        assert dict(after) == dict(before)  # type: ignore[call-overload]

    def _resolve(self) -> None:
        self.play.resolve()

    def _show(self) -> list[str]:
        """Print the group."""
        group = self.play.group
        table, names = group.table, self.play.names
        lines = [f"{group.state.value} epoch={table.epoch} assigned-for={table.target_epoch}"]
        for member_id in table.members:
            current, target = table.current(member_id), table.target(member_id)
            line = f"  {member_id} epoch={current.epoch} {current.state.name}"
            line += f" has=({' '.join(names(current.assigned))})"
            if current.revoking:
                line += f" revokes=({' '.join(names(current.revoking))})"
            if target != current.assigned:
                line += f" target=({' '.join(names(target))})"
            lines.append(line)
        return lines
