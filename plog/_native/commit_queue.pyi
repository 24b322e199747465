class CommitThread:
    """Flushes the partitions of one log directory that the fast path asks for.

    A partition asked for while another is being flushed is flushed once for all who asked.
    """

    def run(self) -> tuple[int, int] | None:
        """Flush what is asked for, without the interpreter lock, until a flush fails or `stop`.

        Returns (the failed partition's number, as it was published; errno), and wants to be called
        again; None after `stop`.
        """

    def stop(self) -> None:
        """Have `run` flush what was asked for so far and then return None."""
