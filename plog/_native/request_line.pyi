from enum import IntEnum

class Step(IntEnum):
    """The next thing to do for a connection."""

    REST = ...
    READ_ON = ...
    CHECK = ...
    CHECK_ASIDE = ...
    WRITE = ...
    APPEND = ...
    ASK = ...
    WAIT = ...
    ANSWER = ...
    DROP = ...
    READ_LATER = ...
    CLOSE = ...

class RequestLine:
    """The requests of a connection without a socket: each thing that happens is a call."""

    def come(self, kind: int, acks: int = 1) -> int:
        """Put a request last, whose partitions are not known; return its number, from 1.

        Args:
            kind: 0 for a Produce, 1 for a Fetch, 2 for another.
            acks: of a Produce.
        """

    def know(self, number: int, partitions: int) -> None:
        """Say how many partitions it has; they are in the stage of the whole."""

    def happen(self, number: int, event: int, partition: int | None = None) -> bool:
        """Let something happen to each partition, or to one; return whether the table has it."""

    def wait(self, number: int) -> None:
        """Note that it waits for its partitions."""

    def leave(self, number: int) -> None:
        """Take it out of the line."""

    def step(
        self,
        *,
        client_left: bool = False,
        client_sends_no_more: bool = False,
        unsent_bytes: int = 0,
        muted: bool = False,
        closing: bool = False,
        draining: bool = False,
    ) -> tuple[int, int | None]:
        """Return the next step, and the number of the request that it is about."""

    def stage(self, number: int) -> int: ...
    def parts(self, number: int) -> list[int]:
        """Return the stage of each partition."""

    @property
    def numbers(self) -> list[int]:
        """The requests in the line."""

    @property
    def may_read_on(self) -> bool:
        """Whether another request may be read."""

    @property
    def owes_appends(self) -> bool:
        """Whether a request is still to be appended."""
