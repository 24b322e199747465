"""Reads the plan of a batch from Spark's checkpoint, for the sink."""

from __future__ import annotations

import hashlib
from pathlib import Path
from urllib.parse import urlsplit

LOCAL = ("", "file")


def plan_of(checkpoint: str | None, batch: int) -> str | None:
    """Return an identifier of this plan of a batch.

    It is a digest of the file that Spark writes when it plans the batch, with the offsets and the
    time. Spark plans a batch once, and again only if that file is lost.

    Args:
        checkpoint: the query's checkpointLocation.

    Returns:
        None if this process cannot read the file, for example on HDFS or in an object store.
    """
    if checkpoint is None:
        return None
    where = urlsplit(checkpoint)
    if where.scheme not in LOCAL:
        return None
    try:
        planned = Path(where.path, "offsets", str(batch)).read_bytes()
    except OSError:
        return None
    return hashlib.sha256(planned).hexdigest()
