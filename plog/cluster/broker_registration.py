"""A broker's place in the cluster: its nodes at start-up, its id, its registration.

Owns what a broker writes about itself into the coordination store. Reads what other brokers wrote
only to see whether its id or an address is taken.
"""

from __future__ import annotations

import logging
import uuid
from collections.abc import Callable, Sequence

from plog.cluster.registered_brokers import RegisteredBroker, read_registered_brokers
from plog.cluster.store import CreateOp, NodeExists, NoNode, SetOp, Stat, Store, Watch
from plog.cluster.znodes import (
    BROKER_SEQUENCE,
    CLUSTER_ID,
    CONTROLLER_EPOCH,
    LOG_DIR_EVENT_PREFIX,
    PERSISTENT_PATHS,
    BrokerNode,
    Endpoint,
    broker_path,
    decode_cluster_id,
    decode_controller_epoch,
    encode_cluster_id,
    encode_log_dir_event,
)
from plog.errors import ConfigError, DuplicateBrokerRegistration
from plog.types import uuid_to_text

log = logging.getLogger(__name__)


def create_persistent_paths(store: Store) -> None:
    """Create the empty nodes that Kafka's brokers and tools expect."""
    missing: list[str] = []
    for path in PERSISTENT_PATHS:
        names = path.split("/")[1:]
        for depth in range(len(names)):
            above = "/" + "/".join(names[: depth + 1])
            if above not in missing and store.exists(above) is None:
                missing.append(above)
    try:
        # One write where there is nothing yet, which is where a start has the most to do.
        store.multi([CreateOp(path) for path in missing])
    except NodeExists:
        for path in PERSISTENT_PATHS:
            store.ensure(path)


def ensure_cluster_id(store: Store, wanted: str | None = None) -> str:
    """Return the cluster's id; the first broker to ask draws it (or takes `wanted`).

    `wanted` is what meta.properties says, for a store that was lost or left behind.
    """
    drawn = wanted or new_cluster_id()
    store.ensure("/cluster")
    try:
        store.create(CLUSTER_ID, encode_cluster_id(drawn))
    except NodeExists:
        return read_cluster_id(store)
    return drawn


def new_cluster_id() -> str:
    """Draw a cluster id."""
    return uuid_to_text(uuid.uuid4())


def read_cluster_id(store: Store) -> str:
    """Return the cluster's id, which must be there. Raises NoNode, MalformedNode."""
    return decode_cluster_id(store.get(CLUSTER_ID)[0])


def read_controller_epoch(store: Store) -> int:
    """Return the epoch of the newest controller, 0 before the first."""
    try:
        return decode_controller_epoch(store.get(CONTROLLER_EPOCH)[0])
    except NoNode:
        return 0


def generate_broker_id(store: Store, reserved_max: int) -> int:
    """Return a broker id above `reserved.broker.max.id` that was never given before."""
    store.ensure(BROKER_SEQUENCE)
    return reserved_max + store.set(BROKER_SEQUENCE, b"").version


def check_is_free(store: Store, broker_id: int, endpoints: Sequence[Endpoint]) -> None:
    """Check that no other process is registered by this id, or at one of these addresses.

    Raises:
        DuplicateBrokerRegistration: one is.
        StoreError: the registrations cannot be read.
    """
    store.sync()  # a server that is behind the others may still have a registration that is gone
    found = store.exists(broker_path(broker_id))
    if found is not None and not store.is_own(found.ephemeral_owner):
        raise _duplicate(store, broker_id, found)
    _check_addresses(store, broker_id, endpoints)


def _check_addresses(
    store: Store, broker_id: int, endpoints: Sequence[Endpoint], before: int | None = None
) -> None:
    """Check that no other broker advertises one of these addresses.

    Args:
        before: a broker epoch; brokers that registered after it do not count.
    """
    own = {endpoint.address.lower() for endpoint in endpoints}
    for other_id, (node, stat) in _registered(store).items():
        if other_id == broker_id or (before is not None and stat.czxid > before):
            continue
        for endpoint in node.endpoints:
            if endpoint.address.lower() in own:
                raise DuplicateBrokerRegistration(
                    f"broker {other_id} is registered at {endpoint.address}, which broker"
                    f" {broker_id} advertises, too: check listeners and advertised.listeners"
                )


def check_reaches(store: Store, broker_id: int, listener: str) -> None:
    """Check that every registered broker has the listener at which this one would reach it.

    Raises:
        ConfigError: one has not.
        StoreError: the registrations cannot be read.
    """
    for other_id, (node, _) in _registered(store).items():
        names = [endpoint.listener for endpoint in node.endpoints]
        if other_id != broker_id and listener not in names:
            raise ConfigError(
                f"broker {broker_id} would reach the others at their listener {listener}, but"
                f" broker {other_id} has only {', '.join(names)}: set inter.broker.listener.name"
                " to the name of a listener that all brokers have"
            )


def _registered(store: Store) -> dict[int, RegisteredBroker]:
    """Return the registered brokers whose nodes can be read: the controller logs the others."""
    try:
        return read_registered_brokers(store, lambda path, stat, fault: None)
    except NoNode:
        return {}  # this is the first broker of its cluster


def _duplicate(store: Store, broker_id: int, found: Stat) -> DuplicateBrokerRegistration:
    holder = _registered(store).get(broker_id)
    at = holder.node.endpoints[:1] if holder is not None else ()
    return DuplicateBrokerRegistration(
        f"broker id {broker_id} is registered by another process"
        f"{''.join(f' at {endpoint.address}' for endpoint in at)}"
        f" (session {found.ephemeral_owner:#x}): give one of them another broker.id"
    )


class BrokerRegistration:
    """The ephemeral node that says this broker lives."""

    def __init__(self, store: Store, broker_id: int) -> None:
        self._store = store
        self._broker_id = broker_id

    def register(self, node: BrokerNode) -> int:
        """Write the node and return the broker epoch: the transaction that created it.

        Raises:
            DuplicateBrokerRegistration: another live process has this broker id.
        """
        path = broker_path(self._broker_id)
        while True:
            try:
                # Two operations, because only the answer to a set holds the creating transaction.
                _, stat = self._store.multi(
                    [CreateOp(path, ephemeral=True), SetOp(path, node.encode(), 0)]
                )
            except NodeExists:
                found = self._of_another_session(path)
                if found is None:
                    continue
                return found.czxid
            assert isinstance(stat, Stat)
            log.info("registered broker %d, epoch %d", self._broker_id, stat.czxid)
            return stat.czxid

    def check_addresses(self, node: BrokerNode, epoch: int) -> None:
        """Check that no broker that registered sooner advertises an address of a node.

        Of two that register at the same time, neither is seen by the other before that.

        Args:
            epoch: the broker epoch of the node, which is registered.

        Raises:
            DuplicateBrokerRegistration, StoreError: as `check_is_free`.
        """
        _check_addresses(self._store, self._broker_id, node.endpoints, before=epoch)

    def watch(self, on_change: Callable[[], None]) -> Watch:
        """Report each change of the node, by whichever program. Raises StoreError."""
        return self._store.watch_data(broker_path(self._broker_id), lambda _: on_change())

    def is_of(self, session_id: int) -> bool:
        """Return whether the node is there, and is that of a session. Raises StoreError."""
        found = self._store.exists(broker_path(self._broker_id))
        return found is not None and found.ephemeral_owner == session_id

    def has_epochs(self, controller_epoch: int, broker_epoch: int) -> bool:
        """Return whether the store has the epochs of an order, and this broker its registration.

        An order for the process before this one is refused, also while its registration lasts:
        that process may have led with records that are lost. Raises StoreError.
        """
        self._store.sync()  # a server that is behind the others may not have them yet
        if controller_epoch > read_controller_epoch(self._store):
            return False
        found = self._store.exists(broker_path(self._broker_id))
        if found is None or not self._store.is_own(found.ephemeral_owner):
            return False
        return broker_epoch == found.czxid

    def report_lost_replicas(self) -> None:
        """Have the controller ask which replicas this broker can serve. Raises StoreError.

        A second report does no harm.
        """
        self._store.create(
            LOG_DIR_EVENT_PREFIX, encode_log_dir_event(self._broker_id), sequential=True
        )

    def _of_another_session(self, path: str) -> Stat | None:
        """Judge the node in the way: ours (its stat), ours of an expired session (None: gone)."""
        try:
            _, stat = self._store.get(path)
        except NoNode:
            return None
        if stat.ephemeral_owner == self._store.session_id:
            return stat
        if not self._store.is_own(stat.ephemeral_owner):
            raise _duplicate(self._store, self._broker_id, stat)
        # Of a session of ours that expired; the server has not removed it (ZOOKEEPER-2985).
        try:
            self._store.delete(path, stat.version)
        except NoNode:
            return None
        return None

    def update(self, node: BrokerNode) -> None:
        """Rewrite the node (other endpoints); the broker epoch stays."""
        self._store.set(broker_path(self._broker_id), node.encode())
