class WorkThread:
    """Does for the reactors what would keep them from their other clients.

    One for each log directory, whose writes and cold reads it takes over while the disk is slow;
    and one for computing, which several threads may run.

    Args:
        steady_us: for a directory whose disk must not keep the clients of others waiting: it is
            called slow until it has shown to be fast, and for so long after each slow call.
    """

    def __init__(self, *, steady_us: int = 0) -> None: ...
    def run(self) -> None:
        """Do what is asked for, without the interpreter lock, until `stop`; then what is left."""

    def stop(self) -> None:
        """Take nothing more; the reactors hand it to Python from now on."""

    def note_time(self, took_us: int) -> None:
        """Say how long a call on the directory's disk took, whoever made it."""

    @property
    def is_slow(self) -> bool:
        """Whether the directory's disk has made somebody wait just now."""
