"""Warnings about requests that a client repeats.

Owns how often the same warning is logged. Never decides whether a request is repeated.
"""

from __future__ import annotations

import logging

from plog.runtime.repeats import Repeats

WARN_INTERVAL_S = 10.0
"""How long the same warning stays silent after it was logged."""


class RetryLog:
    """Logs why a request is repeated, once per cause and interval."""

    def __init__(self, log: logging.Logger) -> None:
        self._log = log
        self._repeats = Repeats(WARN_INTERVAL_S)

    def warn(self, cause: object, then: str = "trying again") -> None:
        """Log `cause` and what the client does then, unless WARN_INTERVAL_S suppresses it."""
        text = str(cause)
        if self._repeats.is_due(text):
            self._log.warning("%s; %s", text, then)
