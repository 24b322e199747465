"""The outcome of the rows of `send_rows` calls, and which failures were reported.

Owns the rule that no failure stays unreported: `RowsDelivery.result` raises the failure
of its call, and otherwise every later flush does.
"""

from __future__ import annotations

import threading

from plog.errors import PlogError


class RowsFailures:
    """The failed `send_rows` calls of a producer whose failure is not reported. Thread-safe.

    Attributes:
        unreported: the first failure that no call has raised yet.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._open = 0  # failed calls that `RowsDelivery.result` has not reported
        self._first: PlogError | None = None
        self.unreported: PlogError | None = None
        self._era = 0

    def failed(self, error: PlogError) -> int:
        """Note a call's first failure; return the argument for `reported`."""
        with self._lock:
            self._open += 1
            self._first = self._first or error
            self.unreported = self.unreported or error
            return self._era

    def reported(self, era: int) -> None:
        """Note that `RowsDelivery.result` has raised a call's failure."""
        with self._lock:
            if era == self._era:
                self._open -= 1
                if not self._open:
                    self._first = self.unreported = None

    def report(self) -> PlogError | None:
        """Return the first failure, which every flush raises, whichever call added the rows."""
        with self._lock:
            self.unreported = None
            return self._first

    def forget(self) -> None:
        """Drop the failures: the application has aborted their transaction."""
        with self._lock:
            self._open, self._first, self.unreported = 0, None, None
            self._era += 1


class RowsDelivery:
    """The result of `send_rows`: the outcome of its rows, once that of all is known.

    The rows' batches report to it on the producer's own thread.
    """

    def __init__(self, failures: RowsFailures) -> None:
        self._failures = failures
        self._lock = threading.Lock()
        self._left = 1  # batches without an outcome, and the call itself
        self._settled = threading.Event()
        self._error: PlogError | None = None
        self._era = -1
        self._is_reported = False
        self.is_begun = False
        """Whether any row is in a batch."""

    def done(self) -> bool:
        """Return whether every row was acknowledged or given up."""
        return self._settled.is_set()

    def result(self, timeout_s: float | None = None) -> None:
        """Wait until every row is acknowledged.

        Raises:
            KafkaError: the first failure; other rows may have been written. After RequestTimedOut
                the rows of the batch may have been written, too.
            ProducerClosed: the producer was closed before.
            TimeoutError: some rows have no outcome after `timeout_s`.
        """
        if not self._settled.wait(timeout_s):
            raise TimeoutError(f"some rows are not acknowledged after {timeout_s:g} s")
        if self._error is not None:
            with self._lock:
                is_first, self._is_reported = not self._is_reported, True
            if is_first:
                self._failures.reported(self._era)
            raise self._error

    # -- for the producer

    def batch_added(self) -> None:
        """Note a batch that has rows of the call; called before the batch has an outcome."""
        with self._lock:
            self._left += 1
            self.is_begun = True

    def batch_failed(self, error: PlogError) -> None:
        """Note that a batch, or a part of it, failed; called before `batch_done`."""
        with self._lock:
            is_first = self._error is None
            if is_first:
                self._error = error
        if is_first:
            self._era = self._failures.failed(error)

    def batch_done(self) -> None:
        """Note that a batch has its outcome, or that the call adds no more."""
        with self._lock:
            self._left -= 1
            if self._left == 0:
                self._settled.set()
