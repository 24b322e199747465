"""The wiring: makes a broker of its parts, starts them in order and stops them in reverse.

Knows every layer and decides nothing. `plog.server` runs one as a process; `Broker`
is the same for tests and embedders. The event loop's thread runs every handler;
beside it are the reactor, the controller, the commit threads and the storage
scheduler.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AsyncExitStack, suppress
from pathlib import Path
from typing import TYPE_CHECKING

from plog._native.fetch_sessions import SessionCache
from plog._native.reactor import Reactor, ReactorStats
from plog._native.served import ServedPartitions
from plog.cluster.controlled_shutdown import move_leaderships
from plog.cluster.known_log_dirs import find_log_dirs
from plog.cluster.member import Member
from plog.cluster.replication.drain import drain_all
from plog.handlers.context import Services
from plog.handlers.dispatch import Dispatcher
from plog.handlers.registry import Handler, load
from plog.handlers.response_errors import ResponseErrors
from plog.network.control_plane import ControlPlane
from plog.network.listeners import BoundListener, listen_on
from plog.runtime.clock import Clock, SystemClock
from plog.settings.definitions import BrokerSettings
from plog.storage.filesystem import Filesystem
from plog.storage.log_manager import LogManager
from plog.wiring.addresses import Addresses
from plog.wiring.base import Base, open_base
from plog.wiring.parts import Parts, make_parts
from plog.wiring.start_progress import Stage, StartProgress

if TYPE_CHECKING:
    from plog.ops.pages.broker_pages import BrokerPages

log = logging.getLogger(__name__)

READY_TIMEOUT_S = 30
STOP_HANDLERS_MS = 2_000
STOP_DRAIN_MS = 2_000
OPEN_TO_ALL = (
    "the listener between brokers, %s at %s:%d, has no authentication yet: every program that"
    " reaches it can delete all data"
)
LOOK_S = 0.01
"""How often it is seen whether the network threads have turned."""


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
        self._loading: LogManager | None = None
        self._stage = Stage.LOG_DIRS
        self._reactor: Reactor | None = None
        self._end_reasons: asyncio.Queue[str] = asyncio.Queue()
        # Undoes what has been started, the last thing first.
        self._running = AsyncExitStack()
        self._addresses = Addresses(settings, self._running)

    @property
    def bound(self) -> Sequence[BoundListener]:
        """The listeners with their ports, once started."""
        return self._addresses.bound

    @property
    def start_progress(self) -> StartProgress:
        """How far the start is, while the broker starts."""
        loaded, found = (0, 0) if self._loading is None else self._loading.loading_progress
        return StartProgress(self._stage, loaded, found)

    @property
    def metrics_port(self) -> int:
        """Where the metrics page is, once started with one."""
        assert self._addresses.pages is not None
        return self._addresses.pages.port

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

    async def until_failed(self) -> str:
        """Return why the broker can only stop, once that is so."""
        return await self._end_reasons.get()

    async def stop(self) -> None:
        """Answer what is under way, then flush and close everything; the shutdown is clean."""
        await self._running.aclose()

    async def _start(self) -> None:
        # The locks come before anything is read or written: another broker may be running here.
        fs = Filesystem()
        found = find_log_dirs(
            fs,
            [Path(text).absolute() for text in self._static.log_dirs],
            broker_id=self._static.broker_id,
            clock=self._clock,
            is_shared=self._static.zookeeper_connect is not None,
        )
        self._running.callback(found.unlock)
        self._addresses.claim(
            network_answers=self.is_alive,
            progress=lambda: self.start_progress,
            log_dirs_left=lambda: 0 if self._loading is None else len(self._loading.live_log_dirs),
        )
        self._stage = Stage.STORE
        base = await open_base(
            self._static,
            fs,
            found,
            self._addresses.broker_node(self._clock.now_ms()).endpoints,
            clock=self._clock,
            loading=self._note_loading,
            undo=self._running,
        )
        self._stage = Stage.REGISTRATION
        parts = make_parts(base, self._addresses, self._running, on_end=self._ender())
        self._replicas = parts.services.replicas
        self._watch_disks(base.logs)
        self._running.callback(base.changes.stop)
        base.changes.start()
        await self._serve(base, parts)

    def _note_loading(self, logs: LogManager) -> None:
        self._loading, self._stage = logs, Stage.LOGS

    def _ender(self) -> Callable[[str], None]:
        """Return a function for any thread that has `until_failed` return."""
        loop = asyncio.get_running_loop()

        def end(reason: str) -> None:
            loop.call_soon_threadsafe(self._end_reasons.put_nowait, reason)

        return end

    def _watch_disks(self, logs: LogManager) -> None:
        """Notice when no log directory is left."""
        end = self._ender()

        def look_for_disks(*_: object) -> None:
            if not logs.live_log_dirs:
                end("no log directory is left")

        logs.on_log_dir_failure(look_for_disks)
        look_for_disks()  # one may have failed since the logs were loaded

    async def _serve(self, base: Base, parts: Parts) -> None:
        """Open the network, join the cluster, and let clients in."""
        undo, addresses, services = self._running, self._addresses, parts.services
        reactor = self._reactor = self._make_reactor(
            parts.fast_path.served,
            SessionCache(self._static.max_incremental_fetch_session_cache_slots),
        )
        errors = None if addresses.pages is None else ResponseErrors()
        is_ready = asyncio.Event()
        dispatcher = Dispatcher(services, self._handlers(), errors, is_ready)
        control_plane = ControlPlane(
            reactor,
            dispatcher,
            asyncio.get_running_loop(),
            decide=dispatcher.decide,
            is_urgent=dispatcher.is_urgent,
            most_at_work=self._static.queued_max_requests,
            on_may_join=parts.fast_path.may_join_by_number,
        )
        undo.push_async_callback(asyncio.to_thread, services.controller.stop)
        undo.push_async_callback(asyncio.to_thread, parts.member.stop)
        undo.push_async_callback(control_plane.stop, STOP_HANDLERS_MS, STOP_DRAIN_MS)
        undo.callback(services.purgatory.close)
        undo.callback(services.groups.stop_serving)
        reactor.start()
        control_plane.start()
        # The controller of several brokers reaches this one as soon as it is registered.
        is_shared = base.cluster.is_shared
        early = [one for one in addresses.bound if is_shared and one.listener.is_inter_broker]
        for listener, _ in early:
            host, port = listener.advertised_host, listener.advertised_port
            log.warning(OPEN_TO_ALL, listener.name, host, port)
        # A listener that clients use, too, has their limits.
        self._let_in(control_plane, early, is_exempt=len(addresses.bound) > 1)
        await self._join(services, parts.member)
        services.groups.start(services.metadata)
        services.transactions.start()
        # Whoever finds that clients are let in may look at the page.
        if addresses.pages is not None and errors is not None:
            self._open_metrics(
                addresses.pages, reactor, dispatcher, errors, parts, is_shared=is_shared
            )
        if is_shared and self._static.controlled_shutdown_enable:
            undo.push_async_callback(
                move_leaderships,
                broker_id=base.cluster.broker_id,
                member=parts.member,
                fence=base.fence,
                controller=services.controller,
                metadata=services.metadata,
                peers=parts.peers,
            )
            # These two run before the controlled shutdown, the last one first. A follower that goes
            # on fetching would be proposed for the in-sync sets that it has just left, and leaders
            # would wait for it.
            undo.push_async_callback(asyncio.to_thread, parts.fetchers.stop)
            undo.push_async_callback(drain_all, lambda: services.replicas.partitions)
        is_ready.set()
        self._let_in(control_plane, [one for one in addresses.bound if one not in early])
        base.logs.broker_started()
        if addresses.pages is not None:
            addresses.pages.set_ready()

    def _let_in(
        self,
        control_plane: ControlPlane,
        listeners: Iterable[BoundListener],
        *,
        is_exempt: bool = False,
    ) -> None:
        for bound in listeners:
            listen_on(bound, self._static.socket_listen_backlog_size)
            control_plane.add_listener(bound, is_exempt=is_exempt)
            bound.socket.close()

    async def _join(self, services: Services, member: Member) -> None:
        """Register, and wait until the controller has described the cluster."""
        joined = services.controller.start()
        await asyncio.to_thread(member.start)
        self._stage = Stage.FIRST_ORDERS
        # A client that comes in must find the brokers and topics that there are, and their leaders.
        with suppress(TimeoutError):
            async with asyncio.timeout(READY_TIMEOUT_S):
                await asyncio.wrap_future(joined)
                await services.metadata.until(
                    lambda snapshot: services.node_id in snapshot.brokers, READY_TIMEOUT_S
                )

    def _open_metrics(
        self,
        pages: BrokerPages,
        reactor: Reactor,
        dispatcher: Dispatcher,
        errors: ResponseErrors,
        parts: Parts,
        *,
        is_shared: bool,
    ) -> None:
        from plog.ops.metrics.cluster import Cluster
        from plog.ops.metrics.page import Sources
        from plog.ops.metrics.replication import Replication

        services, replicas = parts.services, parts.services.replicas
        cluster = replication = None
        if is_shared:
            dirs = services.logs.dirs
            cluster = Cluster(services.metadata, services.controller, parts.member, dirs)
            replication = Replication(replicas, parts.keeper, parts.fetchers, services.clock)
        sources = Sources(
            reactor,
            dispatcher.times,
            errors,
            [bound.listener.name for bound in self.bound],
            replicas.traffic,
            services.logs,
            services.groups,
            services.transactions,
            services.clock,
            replicas.disks.counts_as_slow,
            self._static.metrics_max_group_topics,
            cluster,
            replication,
        )
        pages.open_metrics(sources)
        self._running.push_async_callback(asyncio.to_thread, pages.close_metrics)

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
            max_connections_per_ip_overrides=self._addresses.caps,
            idle_timeout_ms=settings.connections_max_idle_ms,
            send_buffer_bytes=settings.socket_send_buffer_bytes,
            receive_buffer_bytes=settings.socket_receive_buffer_bytes,
            use_sendfile=settings.socket_sendfile_enable,
            served=served,
            sessions=sessions,
        )
