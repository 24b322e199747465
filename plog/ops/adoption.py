"""Takes over from a Kafka broker what its files do not hold, and gives it back.

A broker of ZooKeeper mode keeps in ZooKeeper which topics there are, their configs and
its cluster's id; its log directories hold the rest. `adopt` writes that into the embedded
store of the same directories, `give_back` writes the store's into ZooKeeper. The nodes are
the same in both, so that what is carried over is read and checked but not translated.
Neither touches a segment, and of neither may a broker be running, Kafka's or plog's.

What is not wholly this broker's is refused before anything is written: plog brokers run
alone, and a topic whose other half stays elsewhere could only lose it.
"""

from __future__ import annotations

import logging
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

from kazoo.client import KazooClient
from kazoo.exceptions import (
    ConnectionClosedError,
    ConnectionLoss,
    KazooException,
    NoNodeError,
    SessionExpiredError,
)
from kazoo.handlers.threading import KazooTimeoutError

from plog.cluster import znodes
from plog.cluster.adoption_state import (
    SHARED,
    AdoptionState,
    is_shared,
    read_state,
    share,
    unshare,
    write_state,
)
from plog.cluster.broker_registration import create_persistent_paths
from plog.cluster.known_log_dirs import LOG_DIRS, find_log_dirs
from plog.cluster.store import CreateOp, DeleteOp, Op, SetOp, Store, join
from plog.cluster.store_rebuild import KEEP_EVERYTHING
from plog.cluster.znodes import ConfigEntity, PartitionStateNode, ProducerIdBlock, TopicNode
from plog.errors import PlogError
from plog.ops.stopped_broker import held, opened_store
from plog.runtime.clock import SystemClock
from plog.settings.definitions import BrokerSettings
from plog.storage.filesystem import Filesystem
from plog.storage.inventory import take_inventory
from plog.types import TopicPartition

CONNECT_TIMEOUT_S = 15.0
CONFIG_KINDS = ("topics", "brokers", "clients", "users", "ips")
MOST_NAMED = 5
"""So many partitions are named where some stand in the way."""


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

    May be done again, when it was cut short or plog has run since: topics that are known keep
    their configs, but for those that a broker had to make up. Behind `give_back` the topics are
    Kafka's, and all are carried over anew.

    Args:
        settings: those that the broker will run with: log.dirs and broker.id.
        zookeeper: host:port, several with commas, and a chroot behind them: as zookeeper.connect.

    Raises:
        AdoptionError: ZooKeeper does not answer, knows no cluster, another one, or brokers that
            run; a log directory cannot be used, or there is none with a partition; partitions
            of this broker are missing, or have replicas on other brokers.
        InconsistentLogDirs: a directory is in use, or another broker's, or a KRaft broker's.
        KafkaStorageError: no log directory can be used.
        StoreError: the store cannot be written.
    """
    # The directories first: who comes from KRaft has no ZooKeeper that could answer.
    with _locked(settings) as stopped, _zookeeper(zookeeper) as client:
        cluster_id = _required(client, znodes.CLUSTER_ID, "it knows no cluster")
        theirs = znodes.decode_cluster_id(cluster_id)
        if stopped.cluster_id not in (None, theirs):
            raise AdoptionError(
                f"the log directories are of cluster {stopped.cluster_id}, ZooKeeper's is {theirs}"
            )
        _refuse_running(client)
        here = _partitions_here(stopped.paths)
        nodes = {
            name: TopicNode.decode(client.get(znodes.topic_path(name))[0])
            for name in _children(client, znodes.TOPICS)
        }
        _refuse_parts(nodes, here, stopped.broker_id)
        with opened_store(stopped.paths) as store:
            state = read_state(store)
            if state is AdoptionState.GIVEN_BACK:
                _forget_topics(store)
                _forget_log_dirs(store)
            # Where nothing was adopted yet, a broker has made configs up for what it found.
            may_be_made_up = state is not AdoptionState.ADOPTED
            write_state(store, AdoptionState.ADOPTING)
            create_persistent_paths(store)
            store.ensure("/cluster")
            _put(store, znodes.CLUSTER_ID, cluster_id)
            for path in _config_paths(lambda path: _children(client, path)):
                if not path.startswith("/config/topics/") and store.exists(path) is None:
                    _put(store, path, client.get(path)[0])
            _raise_producer_ids(store, _optional(client, znodes.PRODUCER_ID_BLOCK))
            carried = [
                _adopt_topic(
                    store, client, name, nodes.get(name), here, stopped.broker_id, may_be_made_up
                )
                for name in sorted({*nodes, *here})
            ]
            write_state(store, AdoptionState.ADOPTED)
            return carried


def _partitions_here(paths: Sequence[Path]) -> dict[str, set[int]]:
    here: dict[str, set[int]] = {}
    for one in take_inventory(Filesystem(), paths):
        here.setdefault(one.topic_partition.topic, set()).add(one.topic_partition.partition)
    if not here:
        places = ", ".join(map(str, paths))
        raise AdoptionError(f"there is no partition in {places}: is it the broker's log.dirs?")
    return here


def _refuse_running(client: KazooClient) -> None:
    if running := _children(client, znodes.BROKER_IDS):
        raise AdoptionError(
            f"brokers of this ZooKeeper are running ({', '.join(running)}): stop them first"
        )


def _refuse_parts(
    nodes: Mapping[str, TopicNode], here: Mapping[str, set[int]], broker_id: int
) -> None:
    """Refuse topics of which a part is elsewhere, or should be here and is not."""
    missing: list[str] = []
    elsewhere: list[str] = []
    for name, node in sorted(nodes.items()):
        for partition, replicas in sorted(node.partitions.items()):
            is_here = partition in here.get(name, ())
            if broker_id in replicas and not is_here:
                missing.append(f"{name}-{partition}")
            if set(replicas) - {broker_id} and (is_here or name in here):
                elsewhere.append(f"{name}-{partition}")
    if missing:
        raise AdoptionError(
            f"{_some(missing)} of this broker are in none of its log directories: is a disk not"
            " mounted? Topics that are not needed can be deleted in Kafka"
        )
    if elsewhere:
        raise AdoptionError(
            f"{_some(elsewhere)} have replicas on other brokers: have Kafka move them to broker"
            f" {broker_id} alone, or to the others (kafka-reassign-partitions)"
        )


def _some(names: Sequence[str]) -> str:
    more = f" and {len(names) - MOST_NAMED} more" if len(names) > MOST_NAMED else ""
    return ", ".join(names[:MOST_NAMED]) + more


def _adopt_topic(
    store: Store,
    client: KazooClient,
    name: str,
    node: TopicNode | None,
    here: Mapping[str, set[int]],
    broker_id: int,
    may_be_made_up: bool,
) -> Carried:
    if node is None:
        return Carried(name, 0, {}, "ZooKeeper does not know it; its retention will be off")
    entity = ConfigEntity.topic(name)
    written = _optional(client, entity.path)
    configs = znodes.decode_config(written) if written else {}
    if name not in here:
        return Carried(name, 0, configs, "it is another broker's, and left as it is")
    if store.exists(znodes.topic_path(name)) is not None:
        share(store, name, node.topic_id)
        own = znodes.decode_config(store.get(entity.path)[0]) if store.exists(entity.path) else {}
        if may_be_made_up and own.items() >= KEEP_EVERYTHING.items():
            _put(store, entity.path, znodes.encode_config(configs))
            return Carried(name, len(here[name]), configs, "it had made up configs")
        return Carried(name, 0, own, "it is known here already, and left as it is")
    ops: list[Op] = [
        CreateOp(znodes.topic_path(name), TopicNode(node.topic_id, node.partitions).encode()),
        CreateOp(entity.path, znodes.encode_config(configs)),
        CreateOp(znodes.partitions_path(name)),
    ]
    for partition in node.partitions:
        at = TopicPartition(name, partition)
        state = _optional(client, znodes.partition_state_path(at))
        epoch = PartitionStateNode.decode(state).leader_epoch if state else 0
        led = PartitionStateNode(
            controller_epoch=0, leader=broker_id, leader_epoch=epoch, isr=(broker_id,)
        )
        ops.append(CreateOp(znodes.partition_path(at)))
        ops.append(CreateOp(znodes.partition_state_path(at), led.encode()))
    store.multi(ops)
    share(store, name, node.topic_id)
    return Carried(name, len(node.partitions), configs)


def _forget_topics(store: Store) -> None:
    """Take the topics and configs out that were given back: Kafka may have changed any of them."""
    for above in (znodes.TOPICS, SHARED):
        for name in _children_in(store)(above):
            for path in store.descendants(join(above, name)):
                store.multi([DeleteOp(path)])
    for path in reversed(list(_config_paths(_children_in(store)))):
        if store.exists(path) is not None:
            store.multi([DeleteOp(path) for path in store.descendants(path)])


def _forget_log_dirs(store: Store) -> None:
    """Miss none of the directories of before: Kafka may have done without, and every topic is here.

    Those that are here are registered by the broker's next start.
    """
    for path in store.descendants(LOG_DIRS):
        store.multi([DeleteOp(path)])


def _raise_producer_ids(store: Store, theirs: bytes | None) -> None:
    """Take Kafka's block of producer ids, unless plog has given out higher ones since."""
    if not theirs:
        return
    ours = store.get(znodes.PRODUCER_ID_BLOCK)[0]
    if not ours or ProducerIdBlock.decode(ours).last < ProducerIdBlock.decode(theirs).last:
        _put(store, znodes.PRODUCER_ID_BLOCK, theirs)


def give_back(settings: BrokerSettings, zookeeper: str) -> list[Carried]:
    """Write the store's cluster id, topics and configs into a ZooKeeper, for a Kafka broker.

    What is there already is overwritten if it is of the same cluster: so the topics that were made
    or changed since `adopt` come back to where they were taken from. Topics that were carried over
    and are here no more are deleted there; others of that ZooKeeper are left alone. Behind it no
    plog broker starts on these directories before another `adopt`.

    Raises:
        AdoptionError: ZooKeeper does not answer, is another cluster's or its brokers run; the store
            knows no cluster, or `adopt` was cut short.
        InconsistentLogDirs, KafkaStorageError, StoreError: as `adopt`.
    """
    with (
        _locked(settings) as stopped,
        _zookeeper(zookeeper) as client,
        opened_store(stopped.paths) as store,
    ):
        if store.exists(znodes.CLUSTER_ID) is None:
            raise AdoptionError("no broker has run on these log directories")
        if read_state(store) is AdoptionState.ADOPTING:
            raise AdoptionError("plog adopt was cut short: run it again, without --give-back")
        own = store.get(znodes.CLUSTER_ID)[0]
        theirs = _optional(client, znodes.CLUSTER_ID)
        if theirs is not None and znodes.decode_cluster_id(theirs) != znodes.decode_cluster_id(own):
            raise AdoptionError(
                f"ZooKeeper's cluster is {znodes.decode_cluster_id(theirs)}, these log directories'"
                f" {znodes.decode_cluster_id(own)}"
            )
        _refuse_running(client)
        paths = [znodes.CLUSTER_ID, znodes.CONTROLLER_EPOCH, znodes.PRODUCER_ID_BLOCK]
        for path in [*paths, *_config_paths(_children_in(store))]:
            if store.exists(path) is not None:
                _write(client, path, store.get(path)[0])
        _refuse_namesakes(client, store)
        carried = []
        for name in sorted(store.children(znodes.TOPICS)):
            _write_tree(client, store, znodes.topic_path(name))
            node = TopicNode.decode(store.get(znodes.topic_path(name))[0])
            entity = ConfigEntity.topic(name).path
            configs = znodes.decode_config(store.get(entity)[0]) if store.exists(entity) else {}
            share(store, name, node.topic_id)
            carried.append(Carried(name, len(node.partitions), configs))
        for gone in sorted(set(_children(client, znodes.TOPICS)) - {one.topic for one in carried}):
            theirs_now = TopicNode.decode(client.get(znodes.topic_path(gone))[0])
            if not is_shared(store, gone, theirs_now.topic_id):
                carried.append(Carried(gone, 0, {}, "it is not from here, and left as it is"))
                continue
            client.delete(znodes.topic_path(gone), recursive=True)
            if client.exists(ConfigEntity.topic(gone).path):
                client.delete(ConfigEntity.topic(gone).path)
            unshare(store, gone)
            carried.append(Carried(gone, 0, {}, "deleted since, and taken out of ZooKeeper"))
        write_state(store, AdoptionState.GIVEN_BACK)
        return carried


def _refuse_namesakes(client: KazooClient, store: Store) -> None:
    """Refuse to write over a topic that has come to be in ZooKeeper meanwhile."""
    for name in store.children(znodes.TOPICS):
        data = _optional(client, znodes.topic_path(name))
        if data is None:
            continue
        theirs = TopicNode.decode(data).topic_id
        ours = TopicNode.decode(store.get(znodes.topic_path(name))[0]).topic_id
        if theirs != ours and not is_shared(store, name, theirs):
            raise AdoptionError(f"ZooKeeper has another topic {name}: delete it, or rename it here")


# -- both sides --------------------------------------------------------------------------------


class _Stopped(NamedTuple):
    """Log directories that no broker uses, and whose they are."""

    broker_id: int
    cluster_id: str | None
    paths: list[Path]


@contextmanager
def _locked(settings: BrokerSettings) -> Iterator[_Stopped]:
    """Lock the log directories, every one of them."""
    paths = [Path(text).absolute() for text in settings.log_dirs]
    clock = SystemClock()
    with held(
        find_log_dirs(Filesystem(), paths, broker_id=settings.broker_id, clock=clock)
    ) as found:
        if found.unmounted:
            raise AdoptionError(
                f"log directory {min(found.unmounted)} is empty, and was not: is its disk mounted?"
            )
        if unusable := set(paths) - {log_dir.path for log_dir in found.locked}:
            raise AdoptionError(f"log directory {min(unusable)} cannot be used")
        broker_id = settings.broker_id
        if found.identity.broker_id is not None:
            broker_id = found.identity.broker_id
        if broker_id < 0:
            raise AdoptionError("neither broker.id nor meta.properties says which broker this is")
        yield _Stopped(broker_id, found.identity.cluster_id, paths)


# What the client says of its connection is for whoever debugs it. Ours is one line, in the end.
_unheard = logging.getLogger("plog.ops.adoption.zookeeper")
_unheard.addHandler(logging.NullHandler())
_unheard.propagate = False


@contextmanager
def _zookeeper(connect: str) -> Iterator[KazooClient]:
    try:
        client = KazooClient(
            hosts=connect,
            timeout=CONNECT_TIMEOUT_S,
            # Without a deadline a server that goes is waited for without end.
            connection_retry={"max_tries": -1, "max_delay": 1.0, "deadline": CONNECT_TIMEOUT_S},
            logger=_unheard,
        )
    except ValueError as error:
        raise AdoptionError(f"{connect!r} is no address of a ZooKeeper: {error}") from error
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of a chroot that is not there: we tell what lacks
            client.start(CONNECT_TIMEOUT_S)
        yield client
    except KazooTimeoutError as error:
        raise AdoptionError(f"no ZooKeeper answers at {connect}") from error
    except (ConnectionLoss, ConnectionClosedError, SessionExpiredError) as error:
        raise AdoptionError(
            f"the connection to ZooKeeper at {connect} was lost: run this again"
        ) from error
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


def _children_in(store: Store) -> Callable[[str], list[str]]:
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
