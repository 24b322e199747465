"""Lines that say the same again and again: one of them in an interval.

Owns how often the same text is let through. Its user logs it. For one thread.
"""

from __future__ import annotations

import time
from typing import Final

SAY_AGAIN_S: Final = 60.0
"""How long a broker does not repeat itself about what goes on without a change."""


class Repeats:
    """Remembers the texts of the last interval.

    Args:
        interval_s: how long the same text stays silent after it was let through.
    """

    def __init__(self, interval_s: float = SAY_AGAIN_S) -> None:
        self._interval_s = interval_s
        self._silent_until: dict[str, float] = {}

    def is_due(self, text: str) -> bool:
        """Return whether to log a text now."""
        now = time.monotonic()
        self._silent_until = {one: at for one, at in self._silent_until.items() if at > now}
        if text in self._silent_until:
            return False
        self._silent_until[text] = now + self._interval_s
        return True
