"""What a broker learns from its coordination store at the start: its cluster, and its id there."""

from __future__ import annotations

from dataclasses import dataclass

from plog.cluster.broker_registration import generate_broker_id
from plog.cluster.known_log_dirs import FoundLogDirs, known_broker_id
from plog.cluster.store import Store
from plog.settings.definitions import BrokerSettings


@dataclass(frozen=True, slots=True)
class ClusterStore:
    """A store, and this broker's cluster and id in it."""

    store: Store
    cluster_id: str
    broker_id: int
    connect: str = ""
    """Where ZooKeeper is; empty: the store is this broker's own."""

    @property
    def is_shared(self) -> bool:
        """Whether other brokers may use it, too."""
        return bool(self.connect)

    @property
    def session_timeout_ms(self) -> int:
        """After which the servers may end a silent session; 0: the session cannot end."""
        return 0

    def remember_session(self) -> None:
        """Write the session down, so that the process after this one can end it."""

    def close(self) -> None:
        """End the session, and with it the registration."""
        self.store.close()


def choose_broker_id(store: Store, settings: BrokerSettings, found: FoundLogDirs) -> int:
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
