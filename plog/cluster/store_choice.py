"""The coordination store that the settings name.

Owns the choice between the embedded store and ZooKeeper, and what would be wrong to start the
embedded one with: another cluster's data, or a store that was moved. Never reads topics.

A broker that runs alone never imports kazoo, which would cost it time at the start, and memory.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import ExitStack

from plog.cluster.adoption_state import check_may_start
from plog.cluster.broker_registration import (
    create_persistent_paths,
    new_cluster_id,
    read_cluster_id,
)
from plog.cluster.cluster_store import ClusterStore, choose_broker_id
from plog.cluster.embedded_store import EmbeddedStore
from plog.cluster.known_log_dirs import FoundLogDirs
from plog.cluster.shared_store_mark import check_not_shared
from plog.cluster.store import Store
from plog.cluster.store_move import check_not_moved
from plog.cluster.znodes import CLUSTER_ID, Endpoint
from plog.runtime.clock import Clock
from plog.settings.definitions import BrokerSettings
from plog.storage.filesystem import Filesystem


def open_store(
    settings: BrokerSettings, found: FoundLogDirs, clock: Clock, endpoints: Sequence[Endpoint] = ()
) -> ClusterStore:
    """Open the store and learn the broker's cluster and id.

    Args:
        endpoints: what the broker is to advertise.

    Raises:
        ConfigError: the log directories have a store of their own, and `zookeeper.connect` is set;
            or another broker lacks the listener between brokers.
        InconsistentLogDirs: they belong to another cluster, or to one on ZooKeeper without
            `zookeeper.connect`; or their topics belong to Kafka.
        DuplicateBrokerRegistration: another live process has the broker's id or an address.
        Unreachable: no ZooKeeper answers in time.
        StoreError: the store cannot be read or written.
    """
    if settings.zookeeper_connect is None:
        return _open_embedded(settings, found, clock)
    from plog.cluster.shared_cluster_store import open_shared

    return open_shared(settings, found, settings.zookeeper_connect, endpoints)


def _open_embedded(settings: BrokerSettings, found: FoundLogDirs, clock: Clock) -> ClusterStore:
    paths = [log_dir.path for log_dir in found.locked]
    check_not_shared(Filesystem(), paths)
    check_not_moved(paths)
    store = EmbeddedStore(paths, clock=clock, elsewhere=found.unusable())
    with ExitStack() as undo:
        undo.callback(store.close)
        check_may_start(store)
        create_persistent_paths(store)
        is_new = store.exists(CLUSTER_ID) is None
        cluster_id = found.identity.cluster_id if is_new else read_cluster_id(store)
        broker_id = choose_broker_id(store, settings, found)
        opened = ClusterStore(store, cluster_id or new_cluster_id(), broker_id)
        undo.pop_all()
    return opened


def shared_store(
    settings: BrokerSettings, *, wait_ms: int | None = None
) -> Callable[[], Store] | None:
    """Return a function that opens the store on ZooKeeper; None for a broker that runs alone.

    The function makes no path in ZooKeeper. It raises Unreachable.

    Args:
        wait_ms: how long it waits for a server, in place of the settings' time.
    """
    connect = settings.zookeeper_connect
    if connect is None:
        return None
    from plog.cluster.shared_cluster_store import connect_to

    return lambda: connect_to(connect, settings, wait_ms=wait_ms)
