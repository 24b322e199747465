"""The room that clients have below one log directory."""

class DiskRoom:
    """How many bytes may still be appended there; without end until it is set."""

    left: int
