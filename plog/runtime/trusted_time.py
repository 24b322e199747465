"""Wall time for what cannot be taken back: what goes for its age.

Records and deletions, producers, transactional ids, committed offsets.

Owns the doubt in a clock that is suddenly ahead. Set wrongly for a moment, it would take
every record with it; a clock that is right is still so an hour later, in which the host did
not sleep. Time that was set back only keeps things longer, and is believed at once, as is
that of the start, and the time that the host has slept.
"""

from __future__ import annotations

import logging
import threading

from plog.runtime.clock import Clock

_log = logging.getLogger(__name__)

STEP_MS = 60_000
"""A clock that is corrected bit by bit gains less between two looks."""
DOUBT_MS = 3_600_000


class TrustedTime:
    """Wall time, but for a while not what it has been set ahead. Any thread.

    One for a broker: each would tell of its doubts.
    """

    def __init__(self, clock: Clock) -> None:
        self._lock = threading.Lock()
        self._clock = clock
        self._believed_ms = clock.now_ms()
        self._at_ms = clock.since_boot_ms()
        self._doubted_since_ms: int | None = None

    def now_ms(self) -> int:
        """Return milliseconds since 1970 UTC, as far as they are believed."""
        with self._lock:
            return self._look()

    def _look(self) -> int:
        now_ms, since_boot_ms = self._clock.now_ms(), self._clock.since_boot_ms()
        expected_ms = self._believed_ms + since_boot_ms - self._at_ms
        ahead_ms = now_ms - expected_ms
        if ahead_ms > STEP_MS:
            monotonic_ms = self._clock.monotonic_ms()
            if self._doubted_since_ms is None:
                self._doubted_since_ms = monotonic_ms
                _log.warning(
                    "the clock was set ahead by %d s: the expiry of records, producers,"
                    " transactional ids and offsets ignores the jump unless it lasts %d s",
                    ahead_ms // 1000,
                    DOUBT_MS // 1000,
                )
            if monotonic_ms - self._doubted_since_ms < DOUBT_MS:
                return expected_ms
        if self._doubted_since_ms is not None:
            self._doubted_since_ms = None
            _log.info("the clock is trusted again")
        self._believed_ms, self._at_ms = now_ms, since_boot_ms
        return now_ms
