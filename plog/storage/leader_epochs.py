"""Which leader epoch wrote which offsets of a log (KIP-101, KIP-320).

Owns the list of (epoch, start offset) and its file format, leader-epoch-checkpoint.
`LeaderEpochs` is a value: every change gives a new one, for the log to store.
Never reads or writes a file itself.

Invariant: epochs and start offsets both rise strictly.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable
from typing import NamedTuple

from plog.storage.checkpoints import CheckpointDamaged, decode_lines, encode_lines, integer
from plog.types import NO_EPOCH, NO_OFFSET

LEADER_EPOCH_FILE = "leader-epoch-checkpoint"


class EpochStart(NamedTuple):
    """The first offset that a leader epoch wrote, or would write."""

    epoch: int
    start_offset: int


class EpochEnd(NamedTuple):
    """Where a leader epoch, or the next older one that a log knows, ends in that log."""

    epoch: int
    end_offset: int


class UnknownEpoch(Exception):
    """A log cannot say where a leader epoch ends."""


class LeaderEpochs:
    """The leader epochs of one log, oldest first."""

    __slots__ = ("entries",)

    def __init__(self, entries: Iterable[EpochStart] = ()) -> None:
        self.entries = tuple(entries)
        for before, after in zip(self.entries, self.entries[1:], strict=False):
            if after.epoch <= before.epoch or after.start_offset <= before.start_offset:
                raise ValueError(f"leader epochs out of order: {before}, then {after}")

    def __eq__(self, other: object) -> bool:
        return isinstance(other, LeaderEpochs) and self.entries == other.entries

    def __hash__(self) -> int:
        return hash(self.entries)

    def __repr__(self) -> str:
        pairs = ", ".join(f"{epoch} from {start}" for epoch, start in self.entries)
        return f"LeaderEpochs({pairs})"

    @property
    def latest(self) -> int:
        """The newest epoch; -1 when none is known."""
        return self.entries[-1].epoch if self.entries else NO_EPOCH

    def assign(self, epoch: int, start_offset: int) -> LeaderEpochs:
        """Note that `epoch` writes from `start_offset` on.

        An epoch that is known already keeps its start. Otherwise entries it contradicts (an
        epoch as new or newer, or one that starts as late or later) give way: they belong to
        a history that this log no longer has.
        """
        if epoch < 0 or (self.entries and epoch == self.latest):
            return self
        kept = [e for e in self.entries if e.epoch < epoch and e.start_offset < start_offset]
        return LeaderEpochs([*kept, EpochStart(epoch, start_offset)])

    def end_offset(self, epoch: int, log_end_offset: int) -> tuple[int, int]:
        """Return the largest known epoch at or below `epoch` and where it ends.

        That is the start of the next epoch, or the log end for the newest. An epoch older
        than all known ones ends where the first known one starts (its records are gone). An
        epoch newer than all, or -1, is unknown here: (-1, -1). Other negative ones are old.
        """
        if epoch == NO_EPOCH or epoch > self.latest or not self.entries:
            return NO_EPOCH, NO_OFFSET
        if epoch == self.latest:
            return epoch, log_end_offset
        following = bisect_right(self.entries, epoch, key=lambda entry: entry.epoch)
        end = self.entries[following].start_offset
        if following == 0:
            return epoch, end
        return self.entries[following - 1].epoch, end

    def divergence(self, last_epoch: int, position: int, log_end_offset: int) -> EpochEnd | None:
        """Return where a reader's log parts from this one; None: it does not (KIP-595).

        Args:
            last_epoch: of the last batch that the reader has, -1 if it has or knows none.
            position: where it would read on.

        Raises:
            UnknownEpoch: this log knows nothing of `last_epoch`, nor of what came before.
        """
        if last_epoch == NO_EPOCH:
            return None
        epoch, end_offset = self.end_offset(last_epoch, log_end_offset)
        if epoch == NO_EPOCH:
            raise UnknownEpoch(last_epoch)
        if epoch < last_epoch or end_offset < position:
            return EpochEnd(epoch, end_offset)
        return None

    def end_in_common(self, diverging: EpochEnd, log_end_offset: int) -> int:
        """Return where a follower cuts its log by what the leader's `divergence` says.

        Epochs may differ below that, too: the next fetch shows it (KIP-279).
        """
        _, end_offset = self.end_offset(diverging.epoch, log_end_offset)
        mine = log_end_offset if end_offset == NO_OFFSET else end_offset
        return min(mine, diverging.end_offset)

    def epoch_at(self, offset: int) -> int:
        """Return the epoch that wrote `offset`; -1 when that is not known."""
        following = bisect_right(self.entries, offset, key=lambda entry: entry.start_offset)
        return self.entries[following - 1].epoch if following else NO_EPOCH

    def truncate_from_end(self, end_offset: int) -> LeaderEpochs:
        """Forget the epochs that start at or past `end_offset`."""
        return LeaderEpochs(e for e in self.entries if e.start_offset < end_offset)

    def truncate_from_start(self, start_offset: int) -> LeaderEpochs:
        """Forget what lies before `start_offset`; the epoch that spans it starts there now."""
        before = [e for e in self.entries if e.start_offset <= start_offset]
        after = [e for e in self.entries if e.start_offset > start_offset]
        spanning = [EpochStart(before[-1].epoch, start_offset)] if before else []
        return LeaderEpochs([*spanning, *after])


def encode_leader_epochs(epochs: LeaderEpochs) -> str:
    """Encode leader-epoch-checkpoint."""
    return encode_lines(f"{entry.epoch} {entry.start_offset}" for entry in epochs.entries)


def decode_leader_epochs(text: str, name: str) -> LeaderEpochs:
    """Decode leader-epoch-checkpoint.

    Raises:
        CheckpointDamaged: malformed, or not rising.
    """
    entries = [
        EpochStart(integer(epoch, name), integer(start, name))
        for epoch, start in decode_lines(text, name, 2)
    ]
    try:
        return LeaderEpochs(entries)
    except ValueError as error:
        raise CheckpointDamaged(f"{name}: {error}") from error
