"""The outcomes of the lines that `plog produce` sends: how many are written, and which are refused.

Owns the text that names refused lines. Never decides whether the command goes on.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from plog.types import counted

if TYPE_CHECKING:
    from collections.abc import Sequence

    from plog.client.producer import DeliveryCallback, RecordMetadata
    from plog.errors import PlogError

    Refusals = Sequence[tuple[int, PlogError]]
    """Line numbers with errors."""

MAX_REASONS = 3


class LineOutcomes:
    """Collects the outcomes of lines; the producer's thread reports them.

    Attributes:
        written: how many lines the broker has acknowledged.
    """

    def __init__(self) -> None:
        self.written = 0
        self._failed: list[tuple[int, PlogError]] = []

    @property
    def has_failed(self) -> bool:
        """Whether a line was refused or given up."""
        return bool(self._failed)

    def of(self, number: int) -> DeliveryCallback:
        """Return the delivery callback of a line."""

        def delivered(_metadata: RecordMetadata | None, error: PlogError | None) -> None:
            if error is None:
                self.written += 1
            else:
                self._failed.append((number, error))

        return delivered

    def wrote(self) -> str:
        """Return how many lines are written, for a message."""
        return f"wrote {counted(self.written, 'record')}" if self.written else "wrote nothing"

    def fault(self, place: str) -> PlogError:
        """Return the error of the first batch that failed, with the numbers of its lines.

        Call it after the producer is closed, when every line has its outcome.

        Args:
            place: where the lines are, such as " of FILE".
        """
        from plog.errors import OtherRecordRefused

        batch = self._first_batch()
        refused = [entry for entry in batch if not isinstance(entry[1], OtherRecordRefused)]
        error = refused[0][1]
        notes = [self.wrote()]
        if error.__cause__ is None:
            text = f"{_lines(batch)}{place}: {error}"
        else:  # the broker named single records
            by_reason: dict[str, list[tuple[int, PlogError]]] = {}
            for entry in refused:
                by_reason.setdefault(str(entry[1]), []).append(entry)
            named = list(by_reason.items())[:MAX_REASONS]
            reasons = [f"{_lines(lines)}{place}: {reason}" for reason, lines in named]
            if more := len(refused) - sum(len(lines) for _, lines in named):
                reasons.append(f"and {counted(more, 'more line')}")
            text = "; ".join(reasons)
            if len(batch) > 1:
                notes.insert(0, f"its batch, {_lines(batch)}, was not written")
        return type(error)(f"{text} ({'; '.join(notes)})")

    def _first_batch(self) -> Refusals:
        """Return the failed lines of one batch, in order; not those that the producer dropped."""
        from plog.client.producer import ProducerClosed

        batches: dict[int, list[tuple[int, PlogError]]] = {}
        for number, error in self._failed:
            batches.setdefault(id(error.__cause__ or error), []).append((number, error))
        sent = [one for one in batches.values() if not isinstance(one[0][1], ProducerClosed)]
        return min(map(_in_order, sent or batches.values()), key=lambda one: one[0][0])


def _in_order(batch: Refusals) -> Refusals:
    """Return failed lines in the order of their numbers."""
    return sorted(batch, key=lambda entry: entry[0])


def _lines(batch: Refusals) -> str:
    """Return the lines of a batch; other partitions may have lines between them."""
    first, last, count = batch[0][0], batch[-1][0], len(batch)
    if count == 1:
        return f"line {first}"
    if count == last - first + 1:
        return f"lines {first}-{last}"
    return f"{count} of lines {first}-{last}"
