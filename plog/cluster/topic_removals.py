"""Whether a topic was removed between a read and a write: its name may be another's by then.

The version of a topic's node cannot show it: a topic that is created again starts at
version 0, as the one before did. So the controller counts removals in the data version
of /admin/delete_topics. A write that depends on a topic's nodes as they were read checks
that count in its transaction.
"""

from __future__ import annotations

from plog.cluster import znodes
from plog.cluster.store import CheckOp, SetOp, Store


def count_removal() -> SetOp:
    """Return the operation that counts one removal, for the removal's transaction."""
    return SetOp(znodes.DELETE_TOPICS, b"")


def check_none_removed(store: Store) -> CheckOp:
    """Return a check that fails with BadVersion once a topic is removed after this call."""
    _, stat = store.get(znodes.DELETE_TOPICS)
    return CheckOp(znodes.DELETE_TOPICS, stat.version)
