from collections.abc import Sequence
from typing import Generic, NamedTuple, TypeVar

Asked = TypeVar("Asked")
Outcome = TypeVar("Outcome")

class LeaderEndpoint(NamedTuple):
    """Where a leader that an outcome names is to be reached."""

    node_id: int
    host: str
    port: int
    rack: str | None

class Callout(Generic[Asked, Outcome]):
    """Asks Python about the unusual partitions of a request.

    One that goes without an answer is answered with UNKNOWN_SERVER_ERROR. `size` is what the
    request takes, in bytes.
    """

    size: int
    version: int
    correlation_id: int
    client_id: str | None
    @property
    def asked(self) -> list[Asked]:
        """The partitions in the order of the request; to be looked at before the answer."""

    def answer(
        self,
        outcomes: Sequence[Outcome],
        endpoints: Sequence[LeaderEndpoint | tuple[int, str, int, str | None]] = (),
    ) -> None:
        """Give the outcome of each partition in `asked`, in that order.

        Raises RuntimeError when it has been answered.
        """
    def give_up(self) -> None:
        """Answer with UNKNOWN_SERVER_ERROR, unless it has been answered."""
