"""The paths of a broker's pages, for the broker and for the commands that ask it."""

from __future__ import annotations

from typing import Final

METRICS: Final = "/metrics"
HEALTH: Final = "/healthz"
READY: Final = "/ready"
