from plog._native.histogram import Histogram

def flush_times() -> Histogram:
    """How long each fdatasync of a log took, since the process began."""
