"""What becomes of rows: of those of one call, and whether all that went wrong has been told.

Owns the rule that no row passes for written that was not acknowledged: a call whose
rows failed is told by `RowsDelivery.result`, or else by every flush from then on.
"""

from __future__ import annotations

import threading

from plog.errors import PlogError


class RowsFailures:
    """The calls of a producer whose rows failed, and whether that was told. Thread-safe.

    Attributes:
        unheard: the first failure that nobody was told, in whichever way.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._untold = 0
        self._first: PlogError | None = None
        self.unheard: PlogError | None = None
        self._era = 0

    def failed(self, error: PlogError) -> int:
        """Take note of a call's first failure; return what `told` is to be given."""
        with self._lock:
            self._untold += 1
            self._first = self._first or error
            self.unheard = self.unheard or error
            return self._era

    def told(self, era: int) -> None:
        """Take note that a call's failure was told to who asked for it."""
        with self._lock:
            if era == self._era:
                self._untold -= 1
                if not self._untold:
                    self._first = self.unheard = None

    def hear(self) -> PlogError | None:
        """Return the first failure for who flushes: all are told, as rows may be anybody's."""
        with self._lock:
            self.unheard = None
            return self._first

    def forget(self) -> None:
        """Drop what has failed: its transaction is aborted, and that was asked for."""
        with self._lock:
            self._untold, self._first, self.unheard = 0, None, None
            self._era += 1


class RowsDelivery:
    """What `send_rows` returns: the fate of its rows, once that of all is known.

    Their batches tell it, on the producer's own thread.
    """

    def __init__(self, failures: RowsFailures) -> None:
        self._failures = failures
        self._lock = threading.Lock()
        self._left = 1  # batches without an outcome, and the call itself
        self._settled = threading.Event()
        self._error: PlogError | None = None
        self._era = -1
        self._is_told = False
        self.is_begun = False
        """Whether any row is in a batch."""

    def done(self) -> bool:
        """Tell whether every row was acknowledged or given up."""
        return self._settled.is_set()

    def result(self, timeout_s: float | None = None) -> None:
        """Wait until every row is acknowledged.

        Raises:
            KafkaError: the first failure; other rows may have been written. RequestTimedOut leaves
                open whether those of the batch were.
            ProducerClosed: the producer was closed before.
            TimeoutError: not known yet after `timeout_s`.
        """
        if not self._settled.wait(timeout_s):
            raise TimeoutError("some rows are not acknowledged yet")
        if self._error is not None:
            with self._lock:
                is_news, self._is_told = not self._is_told, True
            if is_news:
                self._failures.told(self._era)
            raise self._error

    # -- for the producer

    def batch_added(self) -> None:
        """Take note of a batch that has rows of the call; before it can have an outcome."""
        with self._lock:
            self._left += 1
            self.is_begun = True

    def batch_failed(self, error: PlogError) -> None:
        """Take note that a batch, or a part of one, will not be acknowledged; before it is done."""
        with self._lock:
            is_first = self._error is None
            if is_first:
                self._error = error
        if is_first:
            self._era = self._failures.failed(error)

    def batch_done(self) -> None:
        """Take note that a batch has its outcome, or that the call adds no more."""
        with self._lock:
            self._left -= 1
            if self._left == 0:
                self._settled.set()
