"""The room that clients have on one file system."""

class DiskRoom:
    """How many bytes may still be written there; without end until it is set. Thread-safe."""

    left: int

    def take(self, size: int) -> bool:
        """Take `size` bytes for what will be written; False, and none, if there are fewer."""
