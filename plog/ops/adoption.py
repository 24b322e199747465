"""Imports a Kafka broker's metadata from ZooKeeper, and writes it back.

A Kafka broker in ZooKeeper mode keeps its topics, their configs and the cluster id in ZooKeeper;
its log directories hold the rest. `adopt` copies this metadata into the embedded store in the same
log directories. `give_back` copies it from the store to ZooKeeper. Both use the same nodes, so the
data is checked but not translated. Neither function touches a segment. No broker, Kafka's or
plog's, may run meanwhile.

A topic with replicas on other brokers is refused before anything is written: plog brokers run
alone, so the topic would lose its other partitions.
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
from plog.cluster.shared_store_mark import check_not_shared
from plog.cluster.store import CreateOp, DeleteOp, Op, SetOp, Store, join
from plog.cluster.store_move import check_not_moved
from plog.cluster.store_rebuild import KEEP_EVERYTHING
from plog.cluster.znodes import ConfigEntity, PartitionStateNode, ProducerIdBlock, TopicNode
from plog.errors import PlogError
from plog.ops.stopped_broker import held, opened_store
from plog.runtime.clock import SystemClock
from plog.settings.definitions import BrokerSettings
from plog.settings.zookeeper_connect import parse_connect
from plog.storage.filesystem import Filesystem
from plog.storage.inventory import take_inventory
from plog.types import TopicPartition

CONNECT_TIMEOUT_S = 15.0
CONFIG_KINDS = ("topics", "brokers", "clients", "users", "ips")
MOST_NAMED = 5
"""Maximum number of partitions to name in an error."""


class AdoptionError(PlogError):
    """The metadata is missing, or belongs to another cluster or broker."""


class Carried(NamedTuple):
    """The outcome for one topic.

    Attributes:
        partitions: number of partitions copied; 0 if the topic was skipped.
        configs: the topic's configs.
        remark: why the topic was skipped, or another remark; "" for none.
    """

    topic: str
    partitions: int
    configs: Mapping[str, str]
    remark: str = ""


def adopt(settings: BrokerSettings, zookeeper: str) -> list[Carried]:
    """Copy the metadata of this broker's topics from ZooKeeper to the store in its log directories.

    Can be repeated after an interruption, or after plog has run. Topics that plog knows keep their
    configs, except configs that a broker made up. After `give_back` the topics belong to Kafka, and
    all of them are copied again.

    Args:
        settings: the broker's settings; log.dirs and broker.id are used.
        zookeeper: what `plog.settings.zookeeper_connect.parse_connect` accepts.

    Raises:
        AdoptionError: zookeeper.connect is set. Or the given ZooKeeper does not respond, has no
            cluster or another one, or has running brokers; a log directory cannot be used, or none
            has a partition; partitions of this broker are missing, or have replicas on others.
        InconsistentLogDirs: a directory is in use, another broker's, a KRaft broker's, or of a
            plog cluster on ZooKeeper.
        KafkaStorageError: no log directory can be used.
        StoreError: the store cannot be written.
    """
    # The directories first: a KRaft broker has no ZooKeeper, and the error must name KRaft.
    with _locked(settings) as stopped, _zookeeper(zookeeper) as client:
        cluster_id = _required(client, znodes.CLUSTER_ID)
        theirs = znodes.decode_cluster_id(cluster_id)
        if stopped.cluster_id not in (None, theirs):
            raise AdoptionError(
                f"the log directories belong to cluster {stopped.cluster_id}, but ZooKeeper to"
                f" {theirs}"
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
            # Before the first adoption, a broker made up configs for the topics that it found.
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
        raise AdoptionError(f"no partitions in {places}: is this the broker's log.dirs?")
    return here


def _refuse_running(client: KazooClient) -> None:
    if running := _children(client, znodes.BROKER_IDS):
        raise AdoptionError(
            f"brokers are still registered in ZooKeeper ({', '.join(running)}): stop them first"
        )


def _refuse_parts(
    nodes: Mapping[str, TopicNode], here: Mapping[str, set[int]], broker_id: int
) -> None:
    """Refuse topics with replicas on other brokers, or with missing partitions."""
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
            f"partitions of this broker are in none of its log directories: {_some(missing)}. Mount"
            " the missing disk, or delete the topics in Kafka"
        )
    if elsewhere:
        raise AdoptionError(
            f"partitions have replicas on other brokers: {_some(elsewhere)}. Move each topic to"
            f" broker {broker_id} alone, or away from it (kafka-reassign-partitions)"
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
        return Carried(name, 0, {}, "not in ZooKeeper; retention will be off")
    entity = ConfigEntity.topic(name)
    written = _optional(client, entity.path)
    configs = znodes.decode_config(written) if written else {}
    if name not in here:
        return Carried(name, 0, configs, "belongs to another broker; skipped")
    if store.exists(znodes.topic_path(name)) is not None:
        share(store, name, node.topic_id)
        own = znodes.decode_config(store.get(entity.path)[0]) if store.exists(entity.path) else {}
        if may_be_made_up and own.items() >= KEEP_EVERYTHING.items():
            _put(store, entity.path, znodes.encode_config(configs))
            return Carried(name, len(here[name]), configs, "replaced made-up configs")
        return Carried(name, 0, own, "already known; skipped")
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
    """Delete topics and configs that were given back: Kafka may have changed any of them."""
    for above in (znodes.TOPICS, SHARED):
        for name in _children_in(store)(above):
            for path in store.descendants(join(above, name)):
                store.multi([DeleteOp(path)])
    for path in reversed(list(_config_paths(_children_in(store)))):
        if store.exists(path) is not None:
            store.multi([DeleteOp(path) for path in store.descendants(path)])


def _forget_log_dirs(store: Store) -> None:
    """Delete the list of known log directories.

    Kafka may have run without some of them, and every topic is in the present ones. The broker
    registers those at its next start.
    """
    for path in store.descendants(LOG_DIRS):
        store.multi([DeleteOp(path)])


def _raise_producer_ids(store: Store, theirs: bytes | None) -> None:
    """Copy Kafka's block of producer ids, unless plog has allocated higher ones since."""
    if not theirs:
        return
    ours = store.get(znodes.PRODUCER_ID_BLOCK)[0]
    if not ours or ProducerIdBlock.decode(ours).last < ProducerIdBlock.decode(theirs).last:
        _put(store, znodes.PRODUCER_ID_BLOCK, theirs)


def give_back(settings: BrokerSettings, zookeeper: str) -> list[Carried]:
    """Copy the store's cluster id, topics and configs to ZooKeeper, for a Kafka broker.

    Overwrites existing nodes of the same cluster, so ZooKeeper gets all topics created or changed
    since `adopt`. Adopted topics that plog has deleted since are deleted in ZooKeeper; its other
    topics stay. No plog broker starts on these directories until the next `adopt`.

    Raises:
        AdoptionError: ZooKeeper does not respond, belongs to another cluster or has running
            brokers; the store has no cluster, or `adopt` was interrupted.
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
            raise AdoptionError("plog adopt was interrupted: run it again, without --give-back")
        own = store.get(znodes.CLUSTER_ID)[0]
        theirs = _optional(client, znodes.CLUSTER_ID)
        if theirs is not None and znodes.decode_cluster_id(theirs) != znodes.decode_cluster_id(own):
            raise AdoptionError(
                f"the log directories belong to cluster {znodes.decode_cluster_id(own)}, but"
                f" ZooKeeper to {znodes.decode_cluster_id(theirs)}"
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
                carried.append(Carried(gone, 0, {}, "not adopted from here; skipped"))
                continue
            client.delete(znodes.topic_path(gone), recursive=True)
            if client.exists(ConfigEntity.topic(gone).path):
                client.delete(ConfigEntity.topic(gone).path)
            unshare(store, gone)
            carried.append(Carried(gone, 0, {}, "deleted in plog, so deleted in ZooKeeper"))
        write_state(store, AdoptionState.GIVEN_BACK)
        return carried


def _refuse_namesakes(client: KazooClient, store: Store) -> None:
    """Refuse to overwrite a topic that was created in ZooKeeper meanwhile."""
    for name in store.children(znodes.TOPICS):
        data = _optional(client, znodes.topic_path(name))
        if data is None:
            continue
        theirs = TopicNode.decode(data).topic_id
        ours = TopicNode.decode(store.get(znodes.topic_path(name))[0]).topic_id
        if theirs != ours and not is_shared(store, name, theirs):
            raise AdoptionError(f"ZooKeeper has another topic named {name}: delete one of the two")


# -- both sides --------------------------------------------------------------------------------


class _Stopped(NamedTuple):
    """The log directories of a stopped broker, and its identity."""

    broker_id: int
    cluster_id: str | None
    paths: list[Path]


@contextmanager
def _locked(settings: BrokerSettings) -> Iterator[_Stopped]:
    """Lock all log directories."""
    if settings.zookeeper_connect is not None:
        raise AdoptionError(
            "zookeeper.connect is set, but only a broker that runs alone can adopt or give back:"
            " remove the key, and move the adopted store with plog move-store afterwards"
        )
    paths = [Path(text).absolute() for text in settings.log_dirs]
    clock = SystemClock()
    with held(
        find_log_dirs(
            Filesystem(), paths, broker_id=settings.broker_id, clock=clock, is_shared=False
        )
    ) as found:
        check_not_shared(Filesystem(), paths)
        check_not_moved(paths)
        if found.unmounted:
            raise AdoptionError(
                f"log directory {min(found.unmounted)} is empty, but was not before: mount its disk"
            )
        if unusable := set(paths) - {log_dir.path for log_dir in found.locked}:
            raise AdoptionError(f"log directory {min(unusable)} cannot be used")
        broker_id = settings.broker_id
        if found.identity.broker_id is not None:
            broker_id = found.identity.broker_id
        if broker_id < 0:
            raise AdoptionError("set broker.id: meta.properties does not have it")
        yield _Stopped(broker_id, found.identity.cluster_id, paths)


# The ZooKeeper client logs each connection failure; the user gets one error instead.
_zookeeper_log = logging.getLogger("plog.ops.adoption.zookeeper")
_zookeeper_log.addHandler(logging.NullHandler())
_zookeeper_log.propagate = False


@contextmanager
def _zookeeper(connect: str) -> Iterator[KazooClient]:
    client = KazooClient(
        hosts=str(parse_connect(connect)),
        timeout=CONNECT_TIMEOUT_S,
        # Without a deadline the client waits for a lost server forever.
        connection_retry={"max_tries": -1, "max_delay": 1.0, "deadline": CONNECT_TIMEOUT_S},
        logger=_zookeeper_log,
    )
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # it warns of a missing chroot; our error names it
            client.start(CONNECT_TIMEOUT_S)
        yield client
    except KazooTimeoutError as error:
        raise AdoptionError(f"no response from ZooKeeper at {connect}") from error
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


def _required(client: KazooClient, path: str) -> bytes:
    data = _optional(client, path)
    if data is None:
        raise AdoptionError(f"ZooKeeper has no {path}: check the address and the chroot")
    return data


def _children(client: KazooClient, path: str) -> list[str]:
    try:
        names: list[str] = client.get_children(path)
    except NoNodeError:
        return []
    return names


def _children_in(store: Store) -> Callable[[str], list[str]]:
    """Return a function that lists a node's children; none for a missing node."""
    return lambda path: [] if store.exists(path) is None else store.children(path)


def _config_paths(children: Callable[[str], list[str]]) -> Iterator[str]:
    """Yield the path of each config node, including those of a user's clients."""
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
