"""What every part of a broker stands on: its directories, its store, what both say, its logs.

Owns the order in which a start takes and reads them. Never knows clients or other brokers.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass

from plog.cluster.broker_registration import (
    check_is_free,
    ensure_cluster_id,
    read_controller_epoch,
)
from plog.cluster.cluster_store import ClusterStore
from plog.cluster.config_changes import ConfigChanges
from plog.cluster.control_fence import ControlFence
from plog.cluster.known_log_dirs import (
    FoundLogDirs,
    add_new_log_dirs,
    has_forgotten,
    missing_log_dirs,
    register_log_dirs,
)
from plog.cluster.producer_ids import raise_producer_ids
from plog.cluster.shared_store_mark import mark_shared
from plog.cluster.store_choice import open_store
from plog.cluster.store_rebuild import known_partitions, rebuild_store
from plog.cluster.stray_logs import Topics, find_strays, set_aside
from plog.cluster.znodes import Endpoint
from plog.runtime.clock import Clock
from plog.runtime.daemon_thread import run_in_daemon
from plog.settings.definitions import BrokerSettings
from plog.settings.dynamic import DynamicSettings
from plog.storage.filesystem import Filesystem
from plog.storage.inventory import take_inventory
from plog.storage.log_manager import LogManager


@dataclass(frozen=True, slots=True)
class Base:
    """The broker's store, settings and logs, ready to be used."""

    static: BrokerSettings
    fs: Filesystem
    clock: Clock
    cluster: ClusterStore
    settings: DynamicSettings
    changes: ConfigChanges
    fence: ControlFence
    logs: LogManager


async def open_base(
    static: BrokerSettings,
    fs: Filesystem,
    found: FoundLogDirs,
    endpoints: Sequence[Endpoint],
    *,
    clock: Clock,
    loading: Callable[[LogManager], None],
    undo: AsyncExitStack,
) -> Base:
    """Open the store, read the settings, and load the logs.

    Args:
        found: the log directories, whose locks are held.
        endpoints: what the broker is to advertise.
        loading: called with the logs before they are loaded.
        undo: gets what closes everything again.

    Raises:
        ConfigError, InconsistentLogDirs, KafkaStorageError, StoreError: as `Broker.start`.
    """
    cluster = await asyncio.to_thread(open_store, static, found, clock, endpoints)
    undo.callback(cluster.close)
    if cluster.is_shared:
        found = add_new_log_dirs(fs, found, cluster.store, broker_id=cluster.broker_id)
        undo.callback(found.unlock)
        mark_shared(fs, [log_dir.path for log_dir in found.locked], cluster.connect)
    settings = DynamicSettings(static)
    changes = ConfigChanges(cluster.store, settings, broker_id=cluster.broker_id, clock=clock)
    changes.load()
    fence = ControlFence(read_controller_epoch(cluster.store))
    if cluster.is_shared:
        topics = Topics(cluster.store)
        paths = [log_dir.path for log_dir in found.locked]
        set_aside(fs, find_strays(fs, paths, topics=topics, broker_id=cluster.broker_id))
    logs = LogManager(
        static,
        settings.topic,
        cluster_id=cluster.cluster_id,
        broker_id=cluster.broker_id,
        clock=clock,
        fs=fs,
        broker_settings=settings.broker,
        locked=found.locked,
        unmounted=found.unmounted,
        missing=missing_log_dirs(cluster.store, cluster.broker_id, found),
        has_forgotten=has_forgotten(cluster.store, cluster.broker_id),
    )
    base = Base(static, fs, clock, cluster, settings, changes, fence, logs)
    loading(logs)
    await run_in_daemon(logs.start, name="load logs", abandon=logs.abandon_start)
    undo.callback(lambda: logs.shutdown(fence.broker_epoch))
    _agree_on_logs(base, endpoints)
    return base


def _agree_on_logs(base: Base, endpoints: Sequence[Endpoint]) -> None:
    """Tell the store of the log directories and producer ids that it may lack.

    An embedded store also hears of topics that it lost.
    """
    store, broker_id, logs = base.cluster.store, base.cluster.broker_id, base.logs
    if base.cluster.is_shared:
        # Again: another process may have loaded its logs sooner.
        check_is_free(store, broker_id, endpoints)
    register_log_dirs(store, broker_id, logs.log_dir_ids())
    largest = logs.largest_producer_id()
    if base.cluster.is_shared:
        if largest >= 0:
            raise_producer_ids(store, broker_id, largest)
        return
    unknown = take_inventory(base.fs, logs.live_log_dirs, but=known_partitions(store))
    rebuilt = rebuild_store(store, broker_id, unknown, largest)
    base.changes.topic_settings([*rebuilt])
    ensure_cluster_id(store, base.cluster.cluster_id)
