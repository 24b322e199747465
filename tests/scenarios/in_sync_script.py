"""Plays the leader of one partition for a scenario: broker 0, with what it commits and proposes."""

from __future__ import annotations

from plog.cluster.replication.isr import InSyncSet, Outcome, Proposal

TICK_MS = 1_000


class InSyncScript:
    def __init__(self) -> None:
        self._now_ms = 0
        self._set = InSyncSet(0, lag_time_ms=10_000)
        self._proposals: list[Proposal] = []

    def __call__(self, words: list[str]) -> list[str]:
        command, *rest = words
        before = self._set.high_watermark
        reply = getattr(self, f"_{command}")(*rest) or []
        after = self._set.high_watermark
        moved = [f"high watermark {before} -> {after}"] if after != before else []
        return [*reply, *moved]

    def _lead(self, *given: str) -> None:
        """Hear a leader epoch: `epoch=5 version=3 isr=0,1 replicas=0,1,2 end=10 hw=7`."""
        words = dict(one.split("=") for one in given)
        self._set.least_in_sync = int(words.get("least", self._set.least_in_sync))
        self._set.lead(
            leader_epoch=int(words["epoch"]),
            partition_epoch=int(words.get("version", "0")),
            isr=_ids(words["isr"]),
            replicas=_ids(words.get("replicas", "0,1,2")),
            log_end_offset=int(words.get("end", "0")),
            high_watermark=int(words.get("hw", "0")),
            now_ms=self._now_ms,
        )

    def _append(self, end: str) -> None:
        self._set.appended(int(end))

    def _fetch(self, follower: str, position: str) -> list[str]:
        """A follower, `broker@epoch`, fetches; it joins if it may."""
        broker_id, _, epoch = follower.partition("@")
        if not self._set.fetched(int(broker_id), int(epoch), int(position), self._now_ms):
            return [f"{broker_id} is no replica"]
        return self._asked(self._set.propose_joiner(int(broker_id), self._now_ms))

    def _pass(self, duration_ms: str) -> list[str]:
        """Let time pass, with a tick each second; `paused` has none until the end."""
        reply = []
        for _ in range(int(duration_ms) // TICK_MS):
            self._now_ms += TICK_MS
            reply += self._asked(self._set.tick(self._now_ms, TICK_MS))
        return reply

    def _pause(self, duration_ms: str) -> list[str]:
        """The process stands still, then ticks once."""
        self._now_ms += int(duration_ms)
        return self._asked(self._set.tick(self._now_ms, TICK_MS))

    def _answer(self, outcome: str, *given: str) -> None:
        """Answer the last proposal, or that before: `nth=1`."""
        words = dict(one.split("=") for one in given)
        proposal = self._proposals[-1 - int(words.get("before", "0"))]
        written = words.get("isr")
        self._set.answered(
            proposal,
            Outcome[outcome.upper()],
            _ids(written) if written else proposal.isr,
            int(words.get("version", proposal.partition_epoch + 1)),
        )

    def _show(self) -> list[str]:
        one = self._set
        lines = [
            f"epoch {one.leader_epoch} version {one.partition_epoch}"
            f" isr {_text(one.isr)} counts {_text(one.maximal)}"
            f" end {one.log_end_offset} high watermark {one.high_watermark}"
        ]
        for broker_id, follower in sorted(one.followers.items()):
            lines.append(f"  {broker_id}@{follower.broker_epoch} at {follower.position}")
        return lines

    def _asked(self, proposal: Proposal | None) -> list[str]:
        if proposal is None:
            return []
        self._proposals.append(proposal)
        members = ",".join(f"{broker_id}@{epoch}" for broker_id, epoch in proposal.members)
        return [f"propose {members} version {proposal.partition_epoch}"]


def _ids(text: str) -> tuple[int, ...]:
    return tuple(int(one) for one in text.split(","))


def _text(ids: frozenset[int]) -> str:
    return ",".join(str(one) for one in sorted(ids))
