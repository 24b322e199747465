def appended() -> tuple[int, int]:
    """Return how many records, and bytes of batches, this process has appended to logs.

    Control batches are among the bytes only. What has been truncated since counts.
    """
