"""The nodes below /brokers/ids, which brokers write when they register."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from typing import NamedTuple

from plog.cluster.controller_context import LiveBroker
from plog.cluster.store import Stat, Store, join
from plog.cluster.znodes import BROKER_IDS, BrokerNode, MalformedNode

log = logging.getLogger(__name__)

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


def log_changes(before: Mapping[int, LiveBroker], now: Mapping[int, LiveBroker]) -> None:
    """Log which brokers have left and joined, for the controller."""
    for broker_id in sorted(before.keys() | now.keys()):
        known, found = before.get(broker_id), now.get(broker_id)
        if found is None:
            log.warning("broker %d has left the cluster", broker_id)
        elif known is None or known.epoch != found.epoch:
            again = "" if known is None else " again"
            log.info("broker %d has joined the cluster%s", broker_id, again)
