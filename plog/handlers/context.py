"""What a handler is given: the broker's services, the connection and the request's header.

Owns the few steps that families share (topics by id, brokers as this client
reaches them, calls that block); decides nothing of its own.
"""

from __future__ import annotations

import asyncio
import logging
import os
import time
import uuid
from collections.abc import Awaitable, Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import NamedTuple, ParamSpec, TypeVar

from plog.cluster.change_bells import ChangeBells
from plog.cluster.config_admin import ConfigAdmin
from plog.cluster.controller import Controller
from plog.cluster.features import Features
from plog.cluster.metadata_cache import MetadataCache
from plog.cluster.order_gate import OrderGate
from plog.cluster.producer_ids import ProducerIds
from plog.cluster.replica_manager import ReplicaManager
from plog.cluster.store import SessionExpired, SessionLost, Unreachable, WriteRefused
from plog.cluster.store_calls import Begin, StoreCalls
from plog.cluster.topic_admin import TopicAdmin
from plog.coordinator.group_coordinator import GroupCoordinator
from plog.coordinator.txn_connections import ClientConnection
from plog.coordinator.txn_coordinator import TxnCoordinator
from plog.coordinator.txn_verifier import TxnVerifier
from plog.errors import KafkaError, KafkaStorageError, RequestTimedOut, UnknownTopicId
from plog.handlers.replica_moves import ReplicaMoves
from plog.network.connections import Connection
from plog.network.latest_connections import LatestConnections
from plog.protocol.framing import RequestHeader
from plog.runtime.clock import Clock
from plog.runtime.give_way import AT_ONCE_S
from plog.runtime.purgatory import Purgatory
from plog.settings.dynamic import DynamicSettings
from plog.storage.log import Log
from plog.storage.log_manager import LogManager
from plog.storage.log_moves import LogMoves
from plog.types import TopicPartition

P = ParamSpec("P")
T = TypeVar("T")
R = TypeVar("R")

log = logging.getLogger("plog.handlers")

MOST_EXPANDERS = 8
"""As many threads expand batches for the handlers, or as many as there are processors."""
MAX_TOGETHER = 1000
"""Parts of a request that wait at the same time."""
MAX_ROLE_WAIT_MS = 5_000
"""For so long a broker that has started expects the controller's first word on a partition."""
MIN_STORE_MS = 1_000
"""The coordination store may take so long to answer whatever the timeout of a request."""


class Node(NamedTuple):
    """A live broker, as the clients of one listener reach it."""

    id: int
    host: str
    port: int
    rack: str | None


def _expanders() -> ThreadPoolExecutor:
    return ThreadPoolExecutor(min(MOST_EXPANDERS, os.cpu_count() or 1), "expand")


def _order_thread() -> ThreadPoolExecutor:
    return ThreadPoolExecutor(1, "orders")


@dataclass(frozen=True, slots=True)
class Services:
    """The parts of a running broker that handlers use."""

    node_id: int
    cluster_id: str
    clock: Clock
    settings: DynamicSettings
    logs: LogManager
    log_moves: LogMoves
    replicas: ReplicaManager
    metadata: MetadataCache
    topics: TopicAdmin
    configs: ConfigAdmin
    producer_ids: ProducerIds
    features: Features
    controller: Controller
    gate: OrderGate
    purgatory: Purgatory[TopicPartition]
    bells: ChangeBells
    groups: GroupCoordinator
    transactions: TxnCoordinator
    verifier: TxnVerifier
    store_calls: StoreCalls
    replica_moves: ReplicaMoves = field(default_factory=ReplicaMoves)
    marker_connections: LatestConnections = field(default_factory=LatestConnections)
    expanders: ThreadPoolExecutor = field(default_factory=_expanders)
    """For what takes the processor for long: expanding, validating and compressing batches."""
    orders: ThreadPoolExecutor = field(default_factory=_order_thread)
    """Obeys the controller's orders, one after the other."""
    large_answers: asyncio.Lock = field(default_factory=asyncio.Lock)
    """Held by the one whose answer is made in between others' requests."""


@contextmanager
def store_refusals() -> Iterator[None]:
    """Turn the errors of a coordination store that is away into Kafka's, which are retriable.

    Raises:
        KafkaStorageError: the store's disk has failed or is full, or the store is closed.
        RequestTimedOut: no server answers, or the session has expired. A write may have been done,
            or may be done yet.
    """
    try:
        yield
    except (Unreachable, WriteRefused, SessionLost) as fault:
        raise store_refusal(fault) from fault


def store_refusal(fault: Unreachable | WriteRefused | SessionLost) -> KafkaError:
    """Return Kafka's error for one of a coordination store that is away."""
    is_away = isinstance(fault, Unreachable | SessionExpired)
    kind = RequestTimedOut if is_away else KafkaStorageError
    return kind(f"the coordination store: {fault}")


@dataclass(slots=True)
class StoreWait:
    """How long one request waits for the coordination store, and whether it did so in vain."""

    ends_ms: int | None = None
    """By the monotonic clock; None: each call may take a session's time."""
    silence: str | None = None
    """Why a call has failed that got no answer."""

    def left_s(self, clock: Clock) -> float | None:
        """Return how long the next call may take."""
        if self.ends_ms is None:
            return None
        return max(self.ends_ms - clock.monotonic_ms(), MIN_STORE_MS) / 1000


@dataclass(frozen=True, slots=True)
class Context:
    """One request in the hands of its handler."""

    services: Services
    connection: Connection
    header: RequestHeader
    _store_wait: StoreWait = field(default_factory=StoreWait)

    @property
    def version(self) -> int:
        """The request's API version."""
        return self.header.api_version

    def ends_in(self, timeout_ms: int) -> int:
        """Return when the request's own timeout ends. Its later `in_thread` calls end by then."""
        clock = self.services.clock
        self._store_wait.ends_ms = ends_ms = clock.monotonic_ms() + timeout_ms
        return ends_ms

    async def in_thread(self, call: Callable[P, T], *arguments: P.args, **options: P.kwargs) -> T:
        """Make a call that waits for the coordination store, beside the event loop.

        It is not counted as work: a store that is away must not keep other requests from being
        taken. If it does not answer one call, the request's later ones are refused at once.

        Raises:
            KafkaStorageError, RequestTimedOut: as `store_refusals`; retriable.
        """
        made = partial(self.services.store_calls.make, partial(call, *arguments, **options))
        return await self._from_store(made, self.connection.aside)

    async def from_controller(self, begin: Begin[T]) -> T:
        """Have the controller do something: it may wait for the coordination store.

        What it has not begun when this client goes is dropped.

        Raises:
            KafkaError: the controller's refusal.
            KafkaStorageError, RequestTimedOut: as `in_thread`.
        """
        made = partial(self.services.store_calls.wait_for, begin)
        return await self._from_store(made, self.connection.while_open)

    async def _from_store(
        self,
        made: Callable[..., Awaitable[T]],
        waiting: Callable[[], AbstractContextManager[None]],
    ) -> T:
        wait = self._store_wait
        with store_refusals():
            if wait.silence is not None:
                raise Unreachable(wait.silence)
            try:
                return await made(
                    size=self.connection.size,
                    within_s=wait.left_s(self.services.clock),
                    waiting=waiting,
                )
            except Unreachable as silent:
                wait.silence = str(silent)
                raise

    async def until_roles_are_known(
        self, places: Iterable[TopicPartition], timeout_ms: int
    ) -> None:
        """Wait until the controller has said who leads the partitions whose logs are here.

        A broker that starts listens before it hears that. Of requests that were sent together it
        would refuse the first and take the next, and a producer would miss numbers in its sequence.
        """
        replicas = self.services.replicas
        without_role = [at for at in places if replicas.lacks_role(at)]
        if not without_role:
            return
        with self.connection.aside():
            is_known = await self.services.purgatory.wait(
                without_role,
                min(timeout_ms, MAX_ROLE_WAIT_MS),
                lambda: not any(map(replicas.lacks_role, without_role)),
            )
        if not is_known:
            replicas.await_no_more(without_role)

    async def each(self, make: Callable[[T], R], items: Iterable[T]) -> list[R]:
        """Make the parts of an answer, and let others have their requests handled in between.

        One large answer is made at a time, for as objects it takes many times its bytes.
        """
        made: list[R] = []
        rest = iter(items)
        until = time.monotonic() + AT_ONCE_S
        for item in rest:
            made.append(make(item))
            if time.monotonic() >= until:
                break
        else:
            return made
        async with self.services.large_answers:
            for item in rest:
                if time.monotonic() >= until:
                    await asyncio.sleep(0)
                    until = time.monotonic() + AT_ONCE_S
                made.append(make(item))
        return made

    async def together(self, work: Callable[[T], Awaitable[R]], items: Sequence[T]) -> list[R]:
        """Do the same for many items, `MAX_TOGETHER` at a time, for each may have to wait.

        It is not counted as work, nor may `work` be set aside by itself.
        """
        done: list[R] = []
        with self.connection.aside():
            for start in range(0, len(items), MAX_TOGETHER):
                done += await asyncio.gather(*map(work, items[start : start + MAX_TOGETHER]))
        return done

    async def in_expander(self, call: Callable[P, T], *arguments: P.args, **options: P.kwargs) -> T:
        """Make a call that expands batches, when there is a thread for it."""
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(
            self.services.expanders, partial(call, *arguments, **options)
        )

    async def at_disk(
        self, log_dir: Path, call: Callable[P, T], *arguments: P.args, **options: P.kwargs
    ) -> T:
        """Make a call that waits for a log directory's disk in the thread of that disk.

        It is not counted as work: a disk that hangs must not keep other requests from being taken.
        """
        with self.connection.aside():
            return await self.services.replicas.disks.in_thread(
                log_dir, call, *arguments, **options
            )

    async def at_log(
        self, log: Log, call: Callable[P, T], *arguments: P.args, **options: P.kwargs
    ) -> T:
        """Make a short call that writes a log, or takes its lock, without blocking the event loop.

        As for `at_disk`, waiting for it is not counted as work.
        """
        return await self.services.replicas.disks.at_log(
            log, partial(call, *arguments, **options), waiting=self.connection.aside
        )

    @property
    def sent_by(self) -> ClientConnection:
        """The connection of the request, as coordinators know it."""
        return ClientConnection(self.services.node_id, self.connection.id)

    def topic_of_id(self, topic_id: uuid.UUID) -> str:
        """Return the name of a topic that a request gives by id.

        Raises:
            UnknownTopicId: no topic has the id.
        """
        found = self.services.metadata.topic_name(topic_id)
        if found is None:
            raise UnknownTopicId(f"no topic has the id {topic_id}")
        return found

    def nodes(self) -> list[Node]:
        """Return the live brokers that this client can reach: those with its listener."""
        found = []
        for broker in self.services.metadata.snapshot.brokers.values():
            endpoint = broker.endpoint(self.connection.listener_name)
            if endpoint is not None:
                found.append(Node(broker.id, endpoint.host, endpoint.port, broker.rack))
        return found
