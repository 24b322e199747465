"""Checks the ZooKeeper of a broker's cluster: its servers, its cluster, the brokers in it.

No check changes a node, and none uses the broker's own session.
"""

from __future__ import annotations

import socket
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path

from plog.cluster import znodes
from plog.cluster.broker_registration import read_cluster_id
from plog.cluster.shared_store_mark import marked_fault
from plog.cluster.store import BadVersion, NoNode, SessionLost, Store, StoreError, Unreachable
from plog.cluster.store_copy import FILE_NAME
from plog.cluster.store_move import MARK, moved_fault
from plog.cluster.zookeeper_client import Access
from plog.cluster.zookeeper_store import ZooKeeperStore
from plog.ops.doctor.findings import Finding, Findings, Verdict
from plog.ops.doctor.running_broker import RunningBroker
from plog.printable import printable
from plog.settings.definitions import BrokerSettings
from plog.settings.listeners import Address, format_address
from plog.settings.zookeeper_connect import parse_connect
from plog.storage.filesystem import Filesystem
from plog.storage.log_dir import META_PROPERTIES, decode_properties

WHAT = "zookeeper"
WAIT_MS = 3_000
MAX_ANSWER = 4096
NO_VERSION = (1 << 31) - 1
"""The version of no node: a write that expects it shows whether writes are allowed, and fails."""
WRITTEN = (znodes.BROKER_IDS, znodes.TOPICS, znodes.CONFIG_CHANGES, znodes.CONTROLLER_EPOCH)
"""Nodes that every broker may have to write, or makes nodes below."""
NOT_SERVING = "not currently serving requests"


def examine_zookeeper(
    settings: BrokerSettings, log_dirs: Sequence[Path], running: RunningBroker | None
) -> Findings:
    """Check the coordination of a broker; of one that runs alone, only that it may."""
    connect = settings.zookeeper_connect
    if connect is None:
        # A start refuses for the first one, in this order.
        fault = marked_fault(Filesystem(), log_dirs) or moved_fault(log_dirs)
        if fault is not None:
            yield Finding(WHAT, Verdict.FAILURE, *fault)
        return
    own = [path / FILE_NAME for path in log_dirs if (path / FILE_NAME).exists()]
    if own:
        text = f"{own[0]} is this broker's own store, but zookeeper.connect is set"
        advice = "move the store with plog move-store, or remove zookeeper.connect to run alone"
        yield Finding(WHAT, Verdict.FAILURE, text, advice)
    for address in parse_connect(connect).servers:
        yield _server(address)
    try:
        store = ZooKeeperStore(
            connect,
            connection_timeout_ms=WAIT_MS,
            access=Access.of(settings),
            makes_root=False,
        )
        with closing(store):
            yield from _cluster(store, connect, log_dirs, running, is_to_move=bool(own))
            _check_access(store)
    except (SessionLost, Unreachable) as error:
        advice = "a broker that starts waits for it, then gives up; one that runs serves clients on"
        yield Finding(WHAT, Verdict.FAILURE, str(error), advice)
    except StoreError as refused:
        advice = "set the zookeeper.digest of the brokers that made the nodes"
        yield Finding(WHAT, Verdict.FAILURE, str(refused), advice)


def _server(address: Address) -> Finding:
    """Ask a server what it is, by the one command that is allowed by default."""
    server = format_address(address)
    try:
        with socket.create_connection(address, WAIT_MS / 1000) as asked:
            asked.settimeout(WAIT_MS / 1000)
            asked.sendall(b"srvr")
            answer = asked.recv(MAX_ANSWER).decode(errors="replace")
    except OSError as error:
        text = f"server {server} does not answer: {error}"
        advice = "start it, or remove it from zookeeper.connect; the others go on if they are most"
        return Finding(WHAT, Verdict.WARNING, text, advice)
    if NOT_SERVING in answer:
        text = f"server {server} runs, but does not serve: it has no majority of the servers"
        advice = "start the others, or check that the servers reach each other"
        return Finding(WHAT, Verdict.WARNING, text, advice)
    mode = printable(answer.partition("Mode: ")[2].partition("\n")[0])
    return Finding(WHAT, Verdict.OK, f"server {server} answers{f' ({mode})' if mode else ''}")


def _cluster(
    store: Store,
    connect: str,
    log_dirs: Sequence[Path],
    running: RunningBroker | None,
    *,
    is_to_move: bool,
) -> Findings:
    if store.exists(MARK) is not None:
        text = f"a move of a store to {connect} was interrupted"
        yield Finding(WHAT, Verdict.FAILURE, text, "run plog move-store --execute again")
    known = _known_cluster(log_dirs)
    if store.exists(znodes.CLUSTER_ID) is None:
        if known is None or is_to_move:
            creator = "plog move-store" if is_to_move else "the first broker"
            text = f"no cluster is at {connect} yet: {creator} creates it"
            yield Finding(WHAT, Verdict.OK, text)
        else:
            text = f"no cluster is at {connect}, but the log directories belong to {known}"
            yield Finding(WHAT, Verdict.FAILURE, text, "check zookeeper.connect")
        return
    found = read_cluster_id(store)
    if known not in (None, found):
        text = f"{connect} has cluster {found}, but the log directories belong to {known}"
        yield Finding(WHAT, Verdict.FAILURE, text, "check zookeeper.connect and log.dirs")
        return
    brokers = store.children(znodes.BROKER_IDS)
    ids = ", ".join(sorted(brokers, key=int))
    text = f"cluster {found} has {f'brokers {ids}' if brokers else 'no broker at present'}"
    yield Finding(WHAT, Verdict.OK, text)
    if running is None or running.phase or running.own is None:
        return
    own = running.own.broker_id
    if own is not None and str(own) not in brokers:
        text = f"broker {own} is running, but not registered: its partitions have no leader"
        advice = "its log has the reason: it may use another ZooKeeper, or not reach this one"
        yield Finding(WHAT, Verdict.FAILURE, text, advice)


def _check_access(store: Store) -> None:
    """Check that ZooKeeper lets this broker write. Raises StoreError."""
    for path in WRITTEN:
        try:
            store.set(path, b"", NO_VERSION)
        except (BadVersion, NoNode):
            continue


def _known_cluster(log_dirs: Sequence[Path]) -> str | None:
    fs = Filesystem()
    for path in log_dirs:
        try:
            known = decode_properties(fs.read_text(path / META_PROPERTIES)).get("cluster.id")
        except (OSError, UnicodeDecodeError):
            continue  # the checks of the directories report it
        if known is not None:
            return known
    return None
