"""What Spark keeps of a query beside its source and its sink, as far as the sink looks at it."""

from __future__ import annotations

import hashlib
from pathlib import Path
from urllib.parse import urlsplit

LOCAL = ("", "file")


def plan_of(checkpoint: str | None, batch: int) -> str | None:
    """Return what tells this plan of a batch from any other of the same number.

    It is a digest of what Spark wrote when it planned the batch: offsets, and the moment. Spark
    plans a batch once; it does so again only if that file is gone.

    Args:
        checkpoint: the query's checkpointLocation, as the query has it.

    Returns:
        None where this process cannot read the file: it is on HDFS or in an object store, say.
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
