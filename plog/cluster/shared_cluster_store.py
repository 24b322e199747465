"""The coordination store on ZooKeeper, and who this broker is in it.

Owns what would be wrong to start with: an embedded store's data, another cluster, a ZooKeeper that
has lost its cluster. `session_file` keeps the session for the process after this one.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

from plog.cluster import session_file
from plog.cluster.broker_registration import (
    check_is_free,
    check_reaches,
    create_persistent_paths,
    ensure_cluster_id,
    read_cluster_id,
)
from plog.cluster.cluster_store import ClusterStore, choose_broker_id
from plog.cluster.known_log_dirs import FoundLogDirs
from plog.cluster.shared_store_mark import CONNECT, check_no_embedded_store
from plog.cluster.store_move import check_not_moving
from plog.cluster.znodes import CLUSTER_ID, Endpoint
from plog.cluster.zookeeper_client import Access
from plog.cluster.zookeeper_store import ZooKeeperStore
from plog.errors import InconsistentLogDirs
from plog.settings.definitions import BrokerSettings

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class SharedClusterStore(ClusterStore):
    """A store on ZooKeeper, and this broker's cluster and id in it."""

    store: ZooKeeperStore
    session_dirs: Sequence[Path] = ()
    """The log directories that remember the session, for the process after this one."""

    @property
    def session_timeout_ms(self) -> int:
        """See `ClusterStore.session_timeout_ms`."""
        return self.store.session_timeout_ms

    def remember_session(self) -> None:
        """See `ClusterStore.remember_session`."""
        for log_dir in self.session_dirs:
            try:
                session_file.remember(log_dir, self.connect, self.store.session)
            except OSError as error:
                log.warning("cannot remember the ZooKeeper session in %s: %s", log_dir, error)

    def close(self) -> None:
        """See `ClusterStore.close`."""
        self.store.close()
        if self.store.has_ended_session:
            _forget_session(self.session_dirs)


def _forget_session(log_dirs: Iterable[Path]) -> None:
    for log_dir in log_dirs:
        try:
            session_file.forget(log_dir)
        except OSError as error:
            log.warning("cannot remove the ZooKeeper session's file: %s", error)


def open_shared(
    settings: BrokerSettings, found: FoundLogDirs, connect: str, endpoints: Sequence[Endpoint]
) -> SharedClusterStore:
    """Open the store on ZooKeeper, as `store_choice.open_store` describes."""
    paths = [log_dir.path for log_dir in found.locked]
    check_no_embedded_store(paths)
    timeout_ms = settings.zookeeper_session_timeout_ms
    for path in paths:
        session_file.end_last(path, connect, within_s=_wait_ms(settings) / 1000)
    store = connect_to(connect, settings)
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
        broker_id = choose_broker_id(store, settings, found)
        check_is_free(store, broker_id, endpoints)
        check_reaches(store, broker_id, settings.inter_broker_name())
        create_persistent_paths(store)
        opened = SharedClusterStore(store, cluster_id, broker_id, connect, paths[:1])
        opened.remember_session()
        _forget_session(paths[1:])
        undo.pop_all()
    return opened


def connect_to(
    connect: str, settings: BrokerSettings, *, wait_ms: int | None = None
) -> ZooKeeperStore:
    """Open the store. Raises Unreachable.

    Args:
        wait_ms: how long it waits for a server, in place of the settings' time.
    """
    return ZooKeeperStore(
        connect,
        session_timeout_ms=settings.zookeeper_session_timeout_ms,
        connection_timeout_ms=wait_ms or _wait_ms(settings),
        access=Access.of(settings),
        makes_root=False,  # a start that is refused leaves nothing there
    )


def _wait_ms(settings: BrokerSettings) -> int:
    return settings.zookeeper_connection_timeout_ms or settings.zookeeper_session_timeout_ms


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
