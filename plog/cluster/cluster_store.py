"""The coordination store that the settings name, and who this broker is in it.

Owns the choice between the embedded store and ZooKeeper, and what would be wrong to start with: the
other store's data, another cluster, a store that has lost its cluster. Never reads topics.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

from plog.cluster import session_file
from plog.cluster.adoption_state import check_may_start
from plog.cluster.broker_registration import (
    check_is_free,
    create_persistent_paths,
    ensure_cluster_id,
    generate_broker_id,
    new_cluster_id,
    read_cluster_id,
)
from plog.cluster.embedded_store import EmbeddedStore
from plog.cluster.known_log_dirs import FoundLogDirs, known_broker_id
from plog.cluster.shared_store_mark import CONNECT, check_not_shared
from plog.cluster.store import Store
from plog.cluster.store_copy import FILE_NAME
from plog.cluster.store_move import check_not_moved, check_not_moving
from plog.cluster.znodes import CLUSTER_ID, Endpoint
from plog.cluster.zookeeper_client import Access
from plog.cluster.zookeeper_store import ZooKeeperStore
from plog.errors import ConfigError, InconsistentLogDirs
from plog.runtime.clock import Clock
from plog.settings.definitions import BrokerSettings
from plog.storage.filesystem import Filesystem

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class ClusterStore:
    """A store, and this broker's cluster and id in it."""

    store: Store
    cluster_id: str
    broker_id: int
    is_shared: bool
    """Whether other brokers may use it, too."""
    session_dirs: Sequence[Path] = ()
    """The log directories that remember the session, for the process after this one."""
    connect: str = ""

    @property
    def session_timeout_ms(self) -> int:
        """After which the servers may end a silent session; 0: the session cannot end."""
        return self.store.session_timeout_ms if isinstance(self.store, ZooKeeperStore) else 0

    def remember_session(self) -> None:
        """Write the session down, so that the process after this one can end it."""
        if not isinstance(self.store, ZooKeeperStore):
            return
        for log_dir in self.session_dirs:
            try:
                session_file.remember(log_dir, self.connect, self.store.session)
            except OSError as error:
                log.warning("cannot remember the ZooKeeper session in %s: %s", log_dir, error)

    def close(self) -> None:
        """End the session, and with it the registration."""
        self.store.close()
        if isinstance(self.store, ZooKeeperStore) and self.store.has_ended_session:
            _forget_session(self.session_dirs)


def _forget_session(log_dirs: Iterable[Path]) -> None:
    for log_dir in log_dirs:
        try:
            session_file.forget(log_dir)
        except OSError as error:
            log.warning("cannot remove the ZooKeeper session's file: %s", error)


def open_store(
    settings: BrokerSettings, found: FoundLogDirs, clock: Clock, endpoints: Sequence[Endpoint] = ()
) -> ClusterStore:
    """Open the store and learn the broker's cluster and id.

    Args:
        endpoints: what the broker is to advertise.

    Raises:
        ConfigError: the log directories have a store of their own, and `zookeeper.connect` is set.
        InconsistentLogDirs: they belong to another cluster, or to one on ZooKeeper without
            `zookeeper.connect`; or their topics belong to Kafka.
        DuplicateBrokerRegistration: another live process has the broker's id or an address.
        Unreachable: no ZooKeeper answers in time.
        StoreError: the store cannot be read or written.
    """
    if settings.zookeeper_connect is None:
        return _open_embedded(settings, found, clock)
    return _open_zookeeper(settings, found, settings.zookeeper_connect, endpoints)


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
        opened = ClusterStore(
            store, cluster_id or new_cluster_id(), _broker_id(store, settings, found), False
        )
        undo.pop_all()
    return opened


def _open_zookeeper(
    settings: BrokerSettings, found: FoundLogDirs, connect: str, endpoints: Sequence[Endpoint]
) -> ClusterStore:
    check_no_embedded_store(found)
    timeout_ms, wait_ms = settings.zookeeper_session_timeout_ms, _wait_ms(settings)
    session_dirs = [log_dir.path for log_dir in found.locked[:1]]
    for log_dir in found.locked:
        session_file.end_last(log_dir.path, connect, within_s=wait_ms / 1000)
    store = ZooKeeperStore(
        connect,
        session_timeout_ms=timeout_ms,
        connection_timeout_ms=wait_ms,
        access=Access.of(settings),
        makes_root=False,  # a start that is refused leaves nothing there
    )
    with ExitStack() as undo:
        undo.callback(store.close)
        if store.session_timeout_ms != timeout_ms:
            log.warning(
                "ZooKeeper keeps a silent session for %d ms, not for the %d ms of"
                " zookeeper.session.timeout.ms: see minSessionTimeout and maxSessionTimeout of its"
                " servers",
                store.session_timeout_ms,
                timeout_ms,
            )
        check_not_moving(store)
        cluster_id = _cluster_id(store, found, connect)
        broker_id = _broker_id(store, settings, found)
        check_is_free(store, broker_id, endpoints)
        create_persistent_paths(store)
        opened = ClusterStore(store, cluster_id, broker_id, True, session_dirs, connect)
        opened.remember_session()
        _forget_session(log_dir.path for log_dir in found.locked[1:])
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
    return lambda: ZooKeeperStore(
        connect,
        session_timeout_ms=settings.zookeeper_session_timeout_ms,
        connection_timeout_ms=wait_ms or _wait_ms(settings),
        access=Access.of(settings),
        makes_root=False,
    )


def _wait_ms(settings: BrokerSettings) -> int:
    return settings.zookeeper_connection_timeout_ms or settings.zookeeper_session_timeout_ms


def check_no_embedded_store(found: FoundLogDirs) -> None:
    """Check that the log directories have no store of this broker's own. Raises ConfigError."""
    for log_dir in found.locked:
        if (log_dir.path / FILE_NAME).exists():
            raise ConfigError(
                f"{CONNECT} is set, but {log_dir.path} has this broker's own coordination store"
                f" ({FILE_NAME}): its topics and settings would be lost. Run plog move-store first,"
                f" or remove {CONNECT} if the broker is to run alone"
            )


def _cluster_id(store: ZooKeeperStore, found: FoundLogDirs, connect: str) -> str:
    """Return the cluster's id; a cluster without one gets it from its first, empty broker."""
    known = found.identity.cluster_id
    if known is None:
        store.make_root()
        return ensure_cluster_id(store)
    if store.exists(CLUSTER_ID) is None:
        raise InconsistentLogDirs(
            f"ZooKeeper at {connect} has no cluster, but the log directories belong to cluster"
            f" {known}: check {CONNECT}. The broker would set all its logs aside"
        )
    cluster_id = read_cluster_id(store)
    if cluster_id != known:
        raise InconsistentLogDirs(
            f"ZooKeeper at {connect} has cluster {cluster_id}, but the log directories belong to"
            f" cluster {known}: check {CONNECT} and log.dirs"
        )
    return cluster_id


def _broker_id(store: Store, settings: BrokerSettings, found: FoundLogDirs) -> int:
    """Return the broker's number: the file's, its old one, its topics', or a new one."""
    known = found.identity
    if settings.zookeeper_connect is not None:
        # Other brokers' topics say nothing of this one's id.
        broker_id = settings.broker_id if settings.broker_id >= 0 else known.broker_id
    else:
        broker_id = known_broker_id(store, settings.broker_id, known)
    if broker_id is None or broker_id < 0:
        return generate_broker_id(store, settings.reserved_broker_max_id)
    return broker_id
