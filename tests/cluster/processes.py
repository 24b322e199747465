"""Several brokers as processes, with one ZooKeeper."""

from __future__ import annotations

import json
import uuid
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

from plog.client.admin import Admin
from plog.cluster import znodes
from plog.cluster.session_file import SESSION_FILE
from plog.cluster.store import Store
from plog.cluster.zookeeper_client import Session
from plog.cluster.zookeeper_store import ZooKeeperStore, end_session
from tests.servers import BrokerProcess
from tests.waiting import until

SESSION_MS = 6_000
END_WITHIN_S = 30.0
ONE_REPLICA = {
    "offsets.topic.replication.factor": 1,
    "transaction.state.log.replication.factor": 1,
}
"""Where nothing else is asked for: a test may know who coordinates, and have too few brokers."""


class Brokers:
    """Brokers 0, 1, ... of one cluster.

    Args:
        servers: what `zookeeper.connect` says, without a path: each cluster has one of its own.
        log_dirs: how many each broker has.
        settings: beside these, and `ONE_REPLICA`.
    """

    def __init__(
        self,
        directory: Path,
        servers: str,
        count: int = 3,
        *,
        log_dirs: int = 1,
        **settings: object,
    ) -> None:
        self._log_dirs = log_dirs
        self.connect = f"{servers}/{uuid.uuid4()}"
        self.brokers: list[BrokerProcess] = []
        given = {key.replace("_", "."): value for key, value in settings.items()}
        for broker_id in range(count):
            place = directory / f"broker{broker_id}"
            place.mkdir()
            overrides = {
                "broker.id": broker_id,
                "zookeeper.connect": self.connect,
                "zookeeper.session.timeout.ms": SESSION_MS,
                **ONE_REPLICA,
                **given,
            }
            self.brokers.append(self._process(place, overrides))

    def _process(self, place: Path, overrides: dict[str, object]) -> BrokerProcess:
        return BrokerProcess(place, overrides=overrides, log_dirs=self._log_dirs)

    def __getitem__(self, broker_id: int) -> BrokerProcess:
        return self.brokers[broker_id]

    @property
    def bootstrap(self) -> str:
        """The addresses of all brokers."""
        return ",".join(one.bootstrap for one in self.brokers)

    def start(self) -> Brokers:
        """Start those that do not run, and wait until each knows all."""
        for one in self.brokers:
            if not one.is_running:
                one.start()
        self.until_known()
        return self

    def until_known(self) -> None:
        """Wait until every running broker knows all running ones."""
        running = {number for number, one in enumerate(self.brokers) if one.is_running}
        self.all_until(lambda admin: {node.node_id for node in admin.nodes()} == running)

    def all_until(self, is_so: Callable[[Admin], bool]) -> None:
        """Wait until something is so as every running broker says.

        A client may ask any broker that it has heard of, whichever one it was given.
        """
        for number, one in enumerate(self.brokers):
            if one.is_running:
                self.admin_until(number, is_so)

    def admin_until(self, broker_id: int, is_so: Callable[[Admin], bool]) -> None:
        """Wait until something is so as one broker says."""
        with Admin(self[broker_id].bootstrap) as admin:
            until(lambda: is_so(admin), f"broker {broker_id} says so")

    @property
    def ports(self) -> list[int]:
        """The ports of all brokers, in the order of their ids."""
        return [one.port for one in self.brokers]

    @property
    def controller(self) -> int:
        """The controller, as the brokers say."""
        with Admin(self.bootstrap) as admin:
            return admin.controller_id()

    def store(self) -> ZooKeeperStore:
        """Return the cluster's nodes."""
        return ZooKeeperStore(self.connect)

    def expire(self, broker_id: int) -> None:
        """End a live broker's session, and wait until it has registered again."""
        with closing(self.store()) as store:
            before = _epoch(store, broker_id)
            self._end_session(broker_id)
            until(lambda: _epoch(store, broker_id) > before, "registered again")

    def _end_session(self, broker_id: int) -> None:
        kept = json.loads((self[broker_id].log_dirs[0] / SESSION_FILE).read_text())
        session = Session(int(kept["session"], 16), bytes.fromhex(kept["password"]))
        assert end_session(kept["connect"], session, within_s=END_WITHIN_S)

    def lose(self, *broker_ids: int) -> None:
        """Kill brokers at once. The controller hears of it without waiting for their sessions."""
        for broker_id in broker_ids:
            self[broker_id].kill()
        for broker_id in broker_ids:
            self._end_session(broker_id)

    def stop(self) -> None:
        """Stop all in order."""
        for one in reversed(self.brokers):
            one.stop()

    def kill(self) -> None:
        """Kill all."""
        for one in self.brokers:
            one.kill()

    def __enter__(self) -> Brokers:
        try:
            return self.start()
        except BaseException:
            self.kill()
            raise

    def __exit__(self, error: object, *_: object) -> None:
        if error is None:
            self.stop()
        else:
            self.kill()


def split_listeners(broker: BrokerProcess, port: int, *, advertised: int | None = None) -> None:
    """Give a broker a listener of its own for brokers.

    Args:
        advertised: the port that the others are to use, if it is another one.
    """
    clients = f"CLIENTS://127.0.0.1:{broker.port}"
    broker.overrides |= {
        "listeners": f"{clients},BROKERS://127.0.0.1:{port}",
        "advertised.listeners": f"{clients},BROKERS://127.0.0.1:{advertised or port}",
        "listener.security.protocol.map": "CLIENTS:PLAINTEXT,BROKERS:PLAINTEXT",
        "inter.broker.listener.name": "BROKERS",
    }


def ids_of(admin: Admin) -> set[int]:
    """Return the ids of the live brokers."""
    return {node.node_id for node in admin.nodes()}


def _epoch(store: Store, broker_id: int) -> int:
    """Return the epoch of a broker's registration; -1 for a broker without one."""
    stat = store.exists(znodes.broker_path(broker_id))
    return stat.czxid if stat else -1
