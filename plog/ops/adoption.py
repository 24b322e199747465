"""Takes over from a Kafka broker what its files do not hold, and gives it back.

A broker of ZooKeeper mode keeps in ZooKeeper which topics there are, their configs and
its cluster's id; its log directories hold the rest. `adopt` writes that into the embedded
store of the same directories, `give_back` writes the store's into ZooKeeper. The nodes are
the same in both, so that what is carried over is read and checked but not translated.
Neither touches a segment, and of neither may a broker be running.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

from kazoo.client import KazooClient
from kazoo.exceptions import KazooException, NoNodeError
from kazoo.handlers.threading import KazooTimeoutError

from plog.cluster import znodes
from plog.cluster.broker_registration import create_persistent_paths
from plog.cluster.embedded_store import EmbeddedStore
from plog.cluster.store import CreateOp, Op, SetOp, Store
from plog.cluster.znodes import ConfigEntity, PartitionStateNode, TopicNode
from plog.errors import PlogError
from plog.runtime.clock import SystemClock
from plog.settings.definitions import BrokerSettings
from plog.storage.filesystem import Filesystem
from plog.storage.inventory import take_inventory
from plog.storage.log_dir import common_identity, lock_log_dirs
from plog.types import TopicPartition

CONNECT_TIMEOUT_S = 15.0
CONFIG_KINDS = ("topics", "brokers", "clients", "users", "ips")
SHARED = "/plog/shared_topics"
"""Has a child for each topic that was carried over: of those, one that is gone was deleted here."""


class AdoptionError(PlogError):
    """What is to be carried over is not there, or belongs to somebody else."""


class Carried(NamedTuple):
    """What became of one topic.

    Attributes:
        partitions: how many are carried over; 0 if it was left alone.
        configs: its own.
        remark: why it was left alone, or what else there is to say; "" for nothing.
    """

    topic: str
    partitions: int
    configs: Mapping[str, str]
    remark: str = ""


def adopt(settings: BrokerSettings, zookeeper: str) -> list[Carried]:
    """Write what ZooKeeper knows of this broker's topics into the store of its log directories.

    Topics that the store has already are left alone, so that this can be done again. Partitions
    that have no directory here stay behind: a broker that is alone leads what it has.

    Args:
        settings: those that the broker will run with: log.dirs and broker.id.
        zookeeper: host:port, several with commas, and a chroot behind them: as zookeeper.connect.

    Raises:
        AdoptionError: ZooKeeper does not answer, knows no cluster, or another one.
        InconsistentLogDirs: a directory is in use, or another broker's.
        KafkaStorageError: no log directory can be used.
        StoreError: the store cannot be written.
    """
    with (
        _stopped(settings) as (store, broker_id, paths, cluster_id),
        _zookeeper(zookeeper) as client,
    ):
        found = _required(client, znodes.CLUSTER_ID, "it knows no cluster")
        theirs = znodes.decode_cluster_id(found)
        if cluster_id not in (None, theirs):
            raise AdoptionError(
                f"the log directories are of cluster {cluster_id}, ZooKeeper's is {theirs}"
            )
        create_persistent_paths(store)
        store.ensure("/cluster")
        _put(store, znodes.CLUSTER_ID, found)
        for path in _config_paths(lambda path: _children(client, path)):
            if not path.startswith("/config/topics/"):
                _put(store, path, client.get(path)[0])
        if block := _optional(client, znodes.PRODUCER_ID_BLOCK):
            _put(store, znodes.PRODUCER_ID_BLOCK, block)
        here: dict[str, list[int]] = {}
        for one in take_inventory(Filesystem(), paths):
            here.setdefault(one.topic_partition.topic, []).append(one.topic_partition.partition)
        topics = sorted({*_children(client, znodes.TOPICS), *here})
        return [_adopt_topic(store, client, name, here.get(name, []), broker_id) for name in topics]


def _adopt_topic(
    store: Store, client: KazooClient, name: str, here: Sequence[int], broker_id: int
) -> Carried:
    data = _optional(client, znodes.topic_path(name))
    if data is None:
        return Carried(name, 0, {}, "ZooKeeper does not know it; its retention will be off")
    entity = ConfigEntity.topic(name)
    written = _optional(client, entity.path)
    configs = znodes.decode_config(written) if written else {}
    if not here:
        return Carried(name, 0, configs, "none of its partitions is in these log directories")
    if store.exists(znodes.topic_path(name)) is not None:
        store.ensure(f"{SHARED}/{name}")
        return Carried(name, 0, configs, "it is known here already, and left as it is")
    node = TopicNode.decode(data)
    missing = sorted(set(node.partitions) - set(here))
    ours = replace(
        node,
        partitions=dict.fromkeys(sorted({*node.partitions, *here}), (broker_id,)),
        adding_replicas={},
        removing_replicas={},
    )
    elsewhere = sorted({one for all_ in node.partitions.values() for one in all_} - {broker_id})
    ops: list[Op] = [
        CreateOp(znodes.topic_path(name), ours.encode()),
        CreateOp(entity.path, znodes.encode_config(configs)),
        CreateOp(znodes.partitions_path(name)),
    ]
    for partition in ours.partitions:
        at = TopicPartition(name, partition)
        state = _optional(client, znodes.partition_state_path(at))
        epoch = PartitionStateNode.decode(state).leader_epoch if state else 0
        led = PartitionStateNode(
            controller_epoch=0, leader=broker_id, leader_epoch=epoch, isr=(broker_id,)
        )
        ops.append(CreateOp(znodes.partition_path(at)))
        ops.append(CreateOp(znodes.partition_state_path(at), led.encode()))
    store.multi(ops)
    store.ensure(f"{SHARED}/{name}")
    remarks = [
        f"not here, and made empty: partitions {missing}" if missing else "",
        f"replicas stay behind on brokers {elsewhere}" if elsewhere else "",
    ]
    return Carried(name, len(ours.partitions), configs, "; ".join(filter(None, remarks)))


def give_back(settings: BrokerSettings, zookeeper: str) -> list[Carried]:
    """Write the store's cluster id, topics and configs into a ZooKeeper, for a Kafka broker.

    What is there already is overwritten if it is of the same cluster: so the topics that were made
    or changed since `adopt` come back to where they were taken from. Topics that were carried over
    and are here no more are deleted there; others of that ZooKeeper are left alone.

    Raises:
        AdoptionError: ZooKeeper does not answer or is another cluster's, or the store knows none.
        InconsistentLogDirs, KafkaStorageError, StoreError: as `adopt`.
    """
    with _stopped(settings) as (store, _, _, _), _zookeeper(zookeeper) as client:
        if store.exists(znodes.CLUSTER_ID) is None:
            raise AdoptionError("no broker has run on these log directories")
        own = store.get(znodes.CLUSTER_ID)[0]
        theirs = _optional(client, znodes.CLUSTER_ID)
        if theirs is not None and znodes.decode_cluster_id(theirs) != znodes.decode_cluster_id(own):
            raise AdoptionError(
                f"ZooKeeper's cluster is {znodes.decode_cluster_id(theirs)}, these log directories'"
                f" {znodes.decode_cluster_id(own)}"
            )
        if _children(client, znodes.BROKER_IDS):
            raise AdoptionError("brokers of this ZooKeeper are running: stop them first")
        paths = [znodes.CLUSTER_ID, znodes.CONTROLLER_EPOCH, znodes.PRODUCER_ID_BLOCK]
        for path in [*paths, *_config_paths(store_children(store))]:
            if store.exists(path) is not None:
                _write(client, path, store.get(path)[0])
        carried = []
        for name in sorted(store.children(znodes.TOPICS)):
            _write_tree(client, store, znodes.topic_path(name))
            node = TopicNode.decode(store.get(znodes.topic_path(name))[0])
            entity = ConfigEntity.topic(name).path
            configs = znodes.decode_config(store.get(entity)[0]) if store.exists(entity) else {}
            store.ensure(f"{SHARED}/{name}")
            carried.append(Carried(name, len(node.partitions), configs))
        for gone in sorted(set(_children(client, znodes.TOPICS)) - {one.topic for one in carried}):
            if store.exists(f"{SHARED}/{gone}") is None:
                carried.append(Carried(gone, 0, {}, "it is not from here, and left as it is"))
                continue
            client.delete(znodes.topic_path(gone), recursive=True)
            if client.exists(ConfigEntity.topic(gone).path):
                client.delete(ConfigEntity.topic(gone).path)
            store.delete(f"{SHARED}/{gone}")
            carried.append(Carried(gone, 0, {}, "deleted since, and taken out of ZooKeeper"))
        return carried


# -- both sides --------------------------------------------------------------------------------


@contextmanager
def _stopped(
    settings: BrokerSettings,
) -> Iterator[tuple[Store, int, list[Path], str | None]]:
    """Give the store of directories that no broker uses, whose they are, and the directories."""
    with ExitStack() as undo:
        fs = Filesystem()
        locked = lock_log_dirs(fs, [Path(text).absolute() for text in settings.log_dirs])
        for log_dir in locked:
            undo.callback(log_dir.unlock)
        known = common_identity(locked, settings.broker_id)
        broker_id = settings.broker_id if known.broker_id is None else known.broker_id
        if broker_id < 0:
            raise AdoptionError("neither broker.id nor meta.properties says which broker this is")
        paths = [log_dir.path for log_dir in locked]
        store = EmbeddedStore(paths, clock=SystemClock())
        undo.callback(store.close)
        yield store, broker_id, paths, known.cluster_id


@contextmanager
def _zookeeper(connect: str) -> Iterator[KazooClient]:
    client = KazooClient(hosts=connect, timeout=CONNECT_TIMEOUT_S)
    try:
        client.start(CONNECT_TIMEOUT_S)
        yield client
    except KazooTimeoutError as error:
        raise AdoptionError(f"no ZooKeeper answers at {connect}") from error
    except KazooException as error:
        raise AdoptionError(f"ZooKeeper at {connect}: {error!r}") from error
    finally:
        client.stop()
        client.close()


def _optional(client: KazooClient, path: str) -> bytes | None:
    try:
        data: bytes = client.get(path)[0]
    except NoNodeError:
        return None
    return data


def _required(client: KazooClient, path: str, otherwise: str) -> bytes:
    data = _optional(client, path)
    if data is None:
        raise AdoptionError(f"{path} is not in ZooKeeper: {otherwise}")
    return data


def _children(client: KazooClient, path: str) -> list[str]:
    try:
        names: list[str] = client.get_children(path)
    except NoNodeError:
        return []
    return names


def store_children(store: Store) -> Callable[[str], list[str]]:
    """Return a function that lists a node's children, none where there is no node."""
    return lambda path: [] if store.exists(path) is None else store.children(path)


def _config_paths(children: Callable[[str], list[str]]) -> Iterator[str]:
    """Yield every node of configs, those of a user's clients too."""
    for kind in CONFIG_KINDS:
        above = f"{znodes.CONFIG}/{kind}"
        for name in sorted(children(above)):
            yield f"{above}/{name}"
            for client in sorted(children(f"{above}/{name}/clients")):
                yield f"{above}/{name}/clients/{client}"


def _put(store: Store, path: str, data: bytes) -> None:
    stat = store.exists(path)
    if stat is None:
        store.ensure(path.rpartition("/")[0])
        store.create(path, data)
    else:
        store.multi([SetOp(path, data, stat.version)])


def _write(client: KazooClient, path: str, data: bytes) -> None:
    client.ensure_path(path)
    client.set(path, data)


def _write_tree(client: KazooClient, store: Store, path: str) -> None:
    _write(client, path, store.get(path)[0])
    for name in store.children(path):
        _write_tree(client, store, f"{path}/{name}")
