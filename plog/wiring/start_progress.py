"""How far the start of a broker is, for the log, the service manager and the health checks."""

from __future__ import annotations

from enum import Enum
from typing import NamedTuple


class Stage(Enum):
    """The stages of a start, in order. Each value is the text for people."""

    LOG_DIRS = "checking log directories"
    STORE = "waiting for the coordination store"
    LOGS = "loading logs"
    REGISTRATION = "registering"
    FIRST_ORDERS = "waiting for the controller's first orders"


class StartProgress(NamedTuple):
    """The stage of a start, and how many logs are loaded, of how many."""

    stage: Stage
    loaded: int = 0
    found: int = 0

    def __str__(self) -> str:
        if self.stage is Stage.LOGS and self.found:
            return f"{self.stage.value}: {self.loaded} of {self.found}"
        return self.stage.value
