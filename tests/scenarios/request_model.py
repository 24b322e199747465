"""The requests of a scenario, their batches, and the logs that these are appended to."""

from __future__ import annotations

from dataclasses import dataclass, field

PRODUCE, FETCH, OTHER = 0, 1, 2
ACKS_ALL = -1


@dataclass
class FakePartition:
    """A log; `state` is ready, busy, slow, empty, cold, evicted, special or unusual.

    Python reads a special one, and refuses an unusual one.
    """

    state: str = "ready"
    room: int | None = None
    """Batches that its disk has space for; None: enough."""
    log: list[int] = field(default_factory=list)
    """The requests that its batches came with."""
    safe: int = 0
    """Batches that every replica has."""
    is_lost: bool = False
    changes: int = 0


@dataclass
class Batch:
    """A batch of a Produce: `form` is plain, compressed, special or unusual.

    Python appends a special one, and refuses an unusual one.
    """

    partition: str
    form: str = "plain"
    place: int = 0
    """In the log, once it is appended."""
    is_appended: bool = False
    is_grouped: bool = False
    """The write of the round has it."""
    is_asked: bool = False
    """Python decides about it."""


@dataclass
class Sent:
    """A request, as its client sent it, and what the reactor notes of it."""

    kind: int
    batches: list[Batch] = field(default_factory=list)
    """For a Fetch, the partitions that it reads."""
    acks: int = 1
    wait_ms: int = 0
    has_stale_session: bool = False
    is_malformed: bool = False
    deadline_ms: int = 0
    seen: dict[str, int] = field(default_factory=dict)
    """The changes of its partitions that it knows of."""
    waits: bool = False
    """It is in the lists of its partitions."""
    refused: dict[str, str] = field(default_factory=dict)
