"""Whether a topic was removed between a read and a write: its name may be another's by then.

Versions of nodes do not say so. A topic that is created again starts at version 0, as
the one before did. So every removal counts, as the version of the node above the
requests for deletions. A write that depends on a topic's nodes as they were read checks the
count in its transaction.
"""

from __future__ import annotations

from plog.cluster import znodes
from plog.cluster.store import CheckOp, SetOp, Store


def counted() -> SetOp:
    """Return the operation that counts one removal, for the removal's transaction."""
    return SetOp(znodes.DELETE_TOPICS, b"")


def none_since(store: Store) -> CheckOp:
    """Return a check that fails with BadVersion once a topic is removed after this call."""
    _, stat = store.get(znodes.DELETE_TOPICS)
    return CheckOp(znodes.DELETE_TOPICS, stat.version)
