from plog._native.histogram import Histogram

def flush_times() -> Histogram:
    """How long each fdatasync of a log took, since the process began."""

class CommitThread:
    """Flushes the partitions of one log directory that the fast path asks for.

    A partition asked for several times during the flush of another is flushed once.
    """

    def run(self) -> tuple[int, int] | None:
        """Flush the asked partitions, without the interpreter lock, until a flush fails or `stop`.

        Returns (the failed partition's number, as it was published; errno), and wants to be called
        again; None after `stop`.
        """

    def stop(self) -> None:
        """Have `run` flush the partitions asked for so far and then return None."""
