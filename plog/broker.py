"""The wiring: makes a broker of its parts, starts them in order and stops them in reverse.

Knows every layer and decides nothing. `plog.server` runs one as a process; `Broker`
is the same for tests and embedders. The event loop's thread runs every handler;
beside it are the reactor, the controller, the commit threads and the storage
scheduler.
"""

from __future__ import annotations

import asyncio
import logging
import socket
from collections.abc import Mapping, Sequence
from contextlib import AsyncExitStack, suppress
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from plog._native.fetch_sessions import SessionCache
from plog._native.reactor import Reactor, ReactorStats
from plog._native.served import ServedPartitions
from plog.cluster.adoption_state import check_may_start
from plog.cluster.broker_registration import (
    BrokerRegistration,
    create_persistent_paths,
    ensure_cluster_id,
    generate_broker_id,
    new_cluster_id,
    read_cluster_id,
)
from plog.cluster.channels import BrokerChannel, InProcessChannel
from plog.cluster.config_admin import ConfigAdmin
from plog.cluster.config_changes import ConfigChanges
from plog.cluster.control_fence import ControlFence
from plog.cluster.controller import Controller
from plog.cluster.controller_context import LiveBroker
from plog.cluster.disks import Disks
from plog.cluster.embedded_store import EmbeddedStore
from plog.cluster.fast_path import FastPath
from plog.cluster.features import Features
from plog.cluster.known_log_dirs import (
    find_log_dirs,
    known_broker_id,
    missing_log_dirs,
    register_log_dirs,
)
from plog.cluster.led_transactions import LedTransactions
from plog.cluster.metadata_cache import MetadataCache
from plog.cluster.own_appends import OwnAppends
from plog.cluster.producer_ids import ProducerIds
from plog.cluster.replica_manager import ReplicaManager
from plog.cluster.store_rebuild import known_partitions, rebuild_store
from plog.cluster.topic_admin import INTERNAL_TOPICS, TopicAdmin
from plog.cluster.znodes import CLUSTER_ID, BrokerNode, Endpoint
from plog.coordinator.group_coordinator import OFFSETS_TOPIC, GroupCoordinator
from plog.coordinator.txn_coordinator import TRANSACTIONS_TOPIC, TxnCoordinator
from plog.handlers.context import Services
from plog.handlers.dispatch import Dispatcher
from plog.handlers.registry import Handler, load
from plog.handlers.response_errors import ResponseErrors
from plog.network.control_plane import ControlPlane
from plog.network.listeners import (
    BoundListener,
    bind,
    bind_listeners,
    cap_by_address,
    listen,
    listen_on,
)
from plog.runtime.clock import Clock, SystemClock
from plog.runtime.daemon_thread import run_in_daemon
from plog.runtime.purgatory import Purgatory
from plog.settings.definitions import BrokerSettings
from plog.settings.dynamic import DynamicSettings
from plog.storage.filesystem import Filesystem
from plog.storage.inventory import take_inventory
from plog.storage.log_dir import LogDirIdentity
from plog.storage.log_manager import LogManager
from plog.storage.log_moves import LogMoves
from plog.types import TopicPartition

if TYPE_CHECKING:
    from plog.ops.pages.broker_pages import BrokerPages

log = logging.getLogger(__name__)

READY_TIMEOUT_S = 30
ASK_AGAIN_MS = 2_000
"""How often it is seen whether replicas that a full disk refused can be taken up."""
STOP_HANDLERS_MS = 2_000
STOP_DRAIN_MS = 2_000
LOOK_S = 0.01
"""How often it is seen whether the network threads have turned."""
METRICS_LISTENER = "metrics.listener"
METRICS_BACKLOG = 8


class Broker:
    """One broker, in the running event loop.

    Raises (`start`):
        ConfigError: a listener's address is in use, not this host's, or not resolvable.
        InconsistentLogDirs: a log directory belongs to another broker, or is in use.
        KafkaStorageError: no log directory can be used.
        StoreError: the coordination store cannot be written.
    """

    def __init__(self, settings: BrokerSettings, clock: Clock | None = None) -> None:
        self._clock = clock or SystemClock()
        self._static = settings
        self._listeners = settings.parsed_listeners()
        self._bound: list[BoundListener] = []
        self._broker_epoch = -1
        self._loading: LogManager | None = None
        self._pages: BrokerPages | None = None
        self._reactor: Reactor | None = None
        self._disks_lost = asyncio.Event()
        # Undoes what has been started, the last thing first.
        self._running = AsyncExitStack()

    @property
    def bound(self) -> Sequence[BoundListener]:
        """The listeners with their ports, once started."""
        return self._bound

    @property
    def loading_progress(self) -> tuple[int, int]:
        """How many logs are loaded, while the broker starts, and of how many."""
        return (0, 0) if self._loading is None else self._loading.loading_progress

    @property
    def metrics_port(self) -> int:
        """Where the metrics page is, once started with one."""
        assert self._pages is not None
        return self._pages.port

    @property
    def reactor_stats(self) -> ReactorStats:
        """What the network threads have counted, once started."""
        assert self._reactor is not None
        return self._reactor.stats()

    async def start(self) -> None:
        """Take the addresses, load the logs, join the cluster (of one), and listen.

        What was started is stopped again when this fails or is cancelled.
        """
        try:
            await self._start()
        except BaseException:
            await self._running.aclose()
            raise

    async def is_alive(self, within_s: float) -> bool:
        """Tell whether every network thread, knocked at, turns within a time."""
        reactor = self._reactor
        assert reactor is not None
        before = reactor.turns()
        reactor.knock()
        with suppress(TimeoutError):
            async with asyncio.timeout(within_s):
                while any(now == then for now, then in zip(reactor.turns(), before, strict=True)):
                    await asyncio.sleep(LOOK_S)
                return True
        return False

    async def disks_lost(self) -> None:
        """Return when no log directory is left: all that the broker still can do is to stop."""
        await self._disks_lost.wait()

    async def stop(self) -> None:
        """Answer what is under way, then flush and close everything; the shutdown is clean."""
        await self._running.aclose()

    async def _start(self) -> None:
        loop = asyncio.get_running_loop()
        undo = self._running
        # The locks come before anything is read or written: another broker may be running here.
        fs = Filesystem()
        found = find_log_dirs(
            fs,
            [Path(text).absolute() for text in self._static.log_dirs],
            broker_id=self._static.broker_id,
            clock=self._clock,
        )
        undo.callback(found.unlock)
        self._claim_addresses()
        known = found.identity
        store = EmbeddedStore(
            [log_dir.path for log_dir in found.locked],
            clock=self._clock,
            elsewhere=found.unusable(),
        )
        undo.callback(store.close)
        check_may_start(store)
        create_persistent_paths(store)
        is_new = store.exists(CLUSTER_ID) is None
        broker_id = self._broker_id(known, store)
        cluster_id = known.cluster_id if is_new else None
        cluster_id = cluster_id or (new_cluster_id() if is_new else read_cluster_id(store))
        settings = self._settings = DynamicSettings(self._static)
        changes = ConfigChanges(store, settings, broker_id=broker_id, clock=self._clock)
        changes.load()
        logs = LogManager(
            self._static,
            settings.topic,
            cluster_id=cluster_id,
            broker_id=broker_id,
            clock=self._clock,
            fs=fs,
            broker_settings=settings.broker,
            locked=found.locked,
            unmounted=found.unmounted,
            missing=missing_log_dirs(store, broker_id, found),
        )
        self._loading = logs
        await run_in_daemon(logs.start, name="load logs", abandon=logs.abandon_start)
        undo.callback(lambda: logs.shutdown(self._broker_epoch))
        register_log_dirs(store, broker_id, logs.log_dir_ids())
        unknown = take_inventory(fs, logs.live_log_dirs, but=known_partitions(store))
        for topic in rebuild_store(store, broker_id, unknown, logs.largest_producer_id()):
            changes.topic_settings(topic)
        ensure_cluster_id(store, cluster_id)
        purgatory: Purgatory[TopicPartition] = Purgatory(loop)
        disks = Disks(several=len(self._static.log_dirs) > 1)
        undo.callback(disks.stop)
        fast_path = FastPath(disks, INTERNAL_TOPICS)
        undo.callback(fast_path.stop)
        fence = ControlFence()
        metadata = MetadataCache(fence)
        registration = BrokerRegistration(store, broker_id)
        replicas = self._replicas = ReplicaManager(
            broker_id=broker_id,
            logs=logs,
            metadata=metadata,
            fence=fence,
            settings_of=changes.topic_settings,
            on_change=purgatory.touch_threadsafe,
            log_dir_failed=registration.report_lost_replicas,
            publisher=fast_path,
            disks=disks,
        )
        appends = OwnAppends(
            replicas=replicas,
            logs=logs,
            purgatory=purgatory,
            clock=self._clock,
            timeout_ms=self._static.offsets_commit_timeout_ms,
        )
        groups = GroupCoordinator(
            loop,
            appends=appends,
            settings=self._static,
            settings_of=settings.group,
            clock=self._clock,
            trusted_time=logs.trusted_time,
            partitions=partial(
                _partitions_of, metadata, OFFSETS_TOPIC, self._static.offsets_topic_num_partitions
            ),
        )
        undo.callback(groups.close)
        replicas.on_leadership(groups.shards.on_leadership)
        features = Features(store)
        undo.callback(features.stop)
        producer_ids = ProducerIds(store, broker_id)
        transactions = TxnCoordinator(
            loop,
            appends=appends,
            led=LedTransactions(replicas),
            metadata=metadata,
            settings=self._static,
            clock=self._clock,
            trusted_time=logs.trusted_time,
            partitions=partial(
                _partitions_of,
                metadata,
                TRANSACTIONS_TOPIC,
                self._static.transaction_state_log_num_partitions,
            ),
            new_producer_id=producer_ids.next,
            marker_written=groups.on_marker,
        )
        undo.callback(transactions.close)
        replicas.on_leadership(transactions.shards.on_leadership)
        served = fast_path.served
        settings.on_broker_change(lambda now: served.set_fetch_max_bytes(now.fetch_max_bytes))
        served.set_fetch_max_bytes(settings.broker().fetch_max_bytes)
        settings.on_topic_change(replicas.update_topic_settings)
        settings.on_broker_change(lambda _: replicas.renew_settings(settings.topic))
        settings.on_broker_change(lambda _: logs.cleaner.start())
        logs.on_log_dir_failure(replicas.on_log_dir_failure)

        def look_for_disks(*_: object) -> None:
            if not logs.live_log_dirs:
                loop.call_soon_threadsafe(self._disks_lost.set)

        logs.on_log_dir_failure(look_for_disks)
        look_for_disks()  # one may have failed since the logs were loaded
        logs.on_partition_damage(replicas.on_damage)
        logs.on_late_recovery(replicas.on_late_recovery)
        moves = LogMoves(logs, fs)
        moves.on_log_moved(replicas.on_log_moved)
        logs.scheduler.every(ASK_AGAIN_MS, replicas.ask_again_for_refused)

        def channel(_broker: LiveBroker) -> BrokerChannel:
            return InProcessChannel(replicas, metadata)

        controller = Controller(
            store,
            broker_id=broker_id,
            channels=channel,
            settings=settings.broker,
            clock=self._clock,
            inter_broker_listener=next(e.name for e in self._listeners if e.is_inter_broker),
        )
        self._broker_epoch = registration.register(self._broker_node())
        fence.broker_epoch = self._broker_epoch
        undo.callback(changes.stop)
        changes.start()
        undo.callback(controller.stop)
        joined = controller.start()
        services = Services(
            node_id=broker_id,
            cluster_id=cluster_id,
            clock=self._clock,
            settings=settings,
            logs=logs,
            log_moves=moves,
            replicas=replicas,
            metadata=metadata,
            topics=TopicAdmin(store, settings),
            configs=ConfigAdmin(store, settings, broker_id, written=changes.refresh),
            producer_ids=producer_ids,
            features=features,
            controller=controller,
            purgatory=purgatory,
            groups=groups,
            transactions=transactions,
        )
        undo.callback(services.expanders.shutdown)
        # A client that comes in must find the brokers and topics that there are, and their leaders.
        with suppress(TimeoutError):
            async with asyncio.timeout(READY_TIMEOUT_S):
                await asyncio.wrap_future(joined)
                await metadata.until(
                    lambda snapshot: broker_id in snapshot.brokers, READY_TIMEOUT_S
                )
        groups.start(metadata)
        transactions.start()
        reactor = self._reactor = self._make_reactor(
            served, SessionCache(self._static.max_incremental_fetch_session_cache_slots)
        )

        errors = None if self._pages is None else ResponseErrors()
        dispatcher = Dispatcher(services, self._handlers(), errors)
        control_plane = ControlPlane(
            reactor,
            dispatcher,
            loop,
            decide=dispatcher.decide,
            most_at_work=self._static.queued_max_requests,
        )
        undo.push_async_callback(control_plane.stop, STOP_HANDLERS_MS, STOP_DRAIN_MS)
        undo.callback(purgatory.close)
        undo.callback(groups.stop_serving)
        # Whoever finds that clients are let in may look at the page.
        if self._pages is not None and errors is not None:
            self._open_metrics(self._pages, reactor, dispatcher, errors, services)
        for bound in self._bound:
            listen_on(bound, self._static.socket_listen_backlog_size)
            control_plane.add_listener(bound)
            bound.socket.close()
        reactor.start()
        control_plane.start()
        logs.broker_started()
        if self._pages is not None:
            self._pages.set_ready()

    def _claim_addresses(self) -> None:
        """Bind every address, or say at once that one cannot be had; serve the metrics' address.

        Hosts that settings cap are resolved for the same reason. Nobody is let in: until the broker
        is ready, clients are to be refused and try again, not to wait in a backlog for as long as a
        recovery takes.
        """
        undo = self._running
        address = self._static.metrics_listener
        if address is not None:
            metrics = bind(METRICS_LISTENER, address.host, address.port)
            undo.callback(metrics.close)
            self._serve_pages(metrics)
        self._bound = bind_listeners(self._listeners)
        undo.callback(_close_sockets, self._bound)
        self._caps = cap_by_address(self._static.max_connections_per_ip_overrides)

    def _serve_pages(self, bound: socket.socket) -> None:
        # Imported only by brokers that serve the pages.
        from plog.ops.pages.broker_pages import BrokerPages
        from plog.ops.pages.probes import Probes

        probes = Probes(
            asyncio.get_running_loop(),
            network_answers=self.is_alive,
            progress=lambda: self.loading_progress,
            log_dirs_left=lambda: 0 if self._loading is None else len(self._loading.live_log_dirs),
        )
        listen(METRICS_LISTENER, bound, METRICS_BACKLOG)
        pages = self._pages = BrokerPages(bound, probes)
        pages.start()
        self._running.push_async_callback(asyncio.to_thread, pages.stop)

    def _open_metrics(
        self,
        pages: BrokerPages,
        reactor: Reactor,
        dispatcher: Dispatcher,
        errors: ResponseErrors,
        services: Services,
    ) -> None:
        from plog.ops.metrics.page import Sources

        sources = Sources(
            reactor,
            dispatcher.times,
            errors,
            [bound.listener.name for bound in self._bound],
            services.replicas.traffic,
            services.logs,
            services.groups,
            services.transactions,
            services.clock,
            services.replicas.disks.counts_as_slow,
            self._static.metrics_max_group_topics,
        )
        pages.open_metrics(sources)
        self._running.push_async_callback(asyncio.to_thread, pages.close_metrics)

    def _broker_node(self) -> BrokerNode:
        """Return what the registration says of this broker."""
        listeners = [bound.listener for bound in self._bound]
        return BrokerNode(
            endpoints=tuple(
                Endpoint(
                    one.name,
                    one.advertised_host,
                    one.advertised_port,
                    one.security_protocol.value,
                )
                for one in listeners
                if one.is_advertised
            ),
            timestamp_ms=self._clock.now_ms(),
            rack=self._static.broker_rack,
        )

    def _handlers(self) -> Mapping[int, Handler]:
        return load()

    def _make_reactor(
        self, served: ServedPartitions | None, sessions: SessionCache | None
    ) -> Reactor:
        settings = self._static
        return Reactor(
            threads=settings.num_network_threads,
            max_request_bytes=settings.socket_request_max_bytes,
            queued_max_bytes=settings.queued_max_request_bytes,
            answers_max_bytes=settings.queued_max_request_bytes,
            max_connections=settings.max_connections,
            max_connections_per_ip=settings.max_connections_per_ip,
            max_connections_per_ip_overrides=self._caps,
            idle_timeout_ms=settings.connections_max_idle_ms,
            send_buffer_bytes=settings.socket_send_buffer_bytes,
            receive_buffer_bytes=settings.socket_receive_buffer_bytes,
            use_sendfile=settings.socket_sendfile_enable,
            served=served,
            sessions=sessions,
        )

    def _broker_id(self, known: LogDirIdentity, store: EmbeddedStore) -> int:
        """Return the broker's number: the file's, its old one, its topics', or a new one."""
        broker_id = known_broker_id(store, self._static.broker_id, known)
        if broker_id is None:
            return generate_broker_id(store, self._static.reserved_broker_max_id)
        return broker_id


def _partitions_of(metadata: MetadataCache, topic: str, planned: int) -> int:
    """Return how many partitions a topic has, or will have once it is made."""
    found = metadata.topic(topic)
    return planned if found is None else len(found.partitions)


def _close_sockets(bound: Sequence[BoundListener]) -> None:
    for listener in bound:
        listener.socket.close()
