from plog._native.partition_log import PartitionLog

class ChangeBell:
    """Rings at every change of a partition, until it is closed.

    A ring adds one to an eventfd, which must stay open as long. It is not repeated until `take`.
    """

    def __init__(self, log: PartitionLog, eventfd: int) -> None: ...
    def take(self) -> bool:
        """Return whether the bell has rung since this was asked."""

    def close(self) -> None:
        """Ring no more."""
