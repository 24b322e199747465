"""The nodes below /brokers/ids, which brokers write when they register."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from plog.cluster.store import Stat, Store, join
from plog.cluster.znodes import BROKER_IDS, BrokerNode, MalformedNode

OnFault = Callable[[str, Stat, Exception], None]


class RegisteredBroker(NamedTuple):
    """A broker's node, and when it was written."""

    node: BrokerNode
    stat: Stat


def read_registered_brokers(store: Store, on_fault: OnFault) -> dict[int, RegisteredBroker]:
    """Return the registered brokers by their ids.

    Args:
        on_fault: called with the path of each node that cannot be read, its stat and the fault.

    Raises:
        StoreError: the store cannot be read.
    """
    brokers = {}
    names = store.children(BROKER_IDS)
    found = store.get_many([join(BROKER_IDS, name) for name in names])
    for name, one in zip(names, found, strict=True):
        if one is None:
            continue  # gone since it was listed
        data, stat = one
        try:
            brokers[int(name)] = RegisteredBroker(BrokerNode.decode(data), stat)
        except (MalformedNode, ValueError) as fault:
            on_fault(join(BROKER_IDS, name), stat, fault)
    return brokers
