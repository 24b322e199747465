"""Transactions whose coordinator and partitions are on different brokers.

The brokers' own: which connections' markers are late, the handler of WriteTxnMarkers, the way to
the leaders (`TxnPartitions`), and the logs with their rules for producers. A model: the client,
and the coordinator, which writes each marker again until it is written, for as long as it leads.
What it has stored survives, as in the log of its partition.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field, replace
from enum import Enum
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, NamedTuple, cast

from plog._native.batch import read_header
from plog.cluster.led_transactions import LedTransactions
from plog.cluster.partition import Partition
from plog.cluster.peer_link import CLIENT_ID
from plog.cluster.peers import Peers
from plog.cluster.store import StoreError
from plog.cluster.topic_admin import NewTopic
from plog.coordinator.txn_events import Producer
from plog.coordinator.txn_partitions import DueMarker, TxnPartitions
from plog.errors import (
    ErrorCode,
    InvalidProducerEpoch,
    KafkaError,
    KafkaStorageError,
    NotLeaderOrFollower,
    UnknownTopicOrPartition,
)
from plog.handlers.context import Context
from plog.handlers.transaction_admin import write_txn_markers
from plog.network.control_plane import CloseConnection
from plog.network.latest_connections import LatestConnections
from plog.protocol.messages.transactions import WriteTxnMarkersRequest
from plog.storage.producer_state import Marker
from plog.types import TopicPartition
from tests.cluster.simulation.network import SimLink
from tests.cluster.simulation.real_replicas import RealReplicas
from tests.storage.storage_logs import batch

if TYPE_CHECKING:
    from tests.cluster.simulation.broker import Process
    from tests.cluster.simulation.cluster import SimCluster

STATES, DATA = TopicPartition("states", 0), "data"
PLACES = [TopicPartition(DATA, index) for index in range(2)]
STEP_MS, RETRY_MS = 700, 500
NOT_NOW = NotLeaderOrFollower, KafkaStorageError, UnknownTopicOrPartition
"""The errors of a partition whose leader is elsewhere, or not known yet."""


class Stage(Enum):
    """How far a transaction is."""

    ONGOING = 0
    ENDING = 1
    ENDED = 2


@dataclass(frozen=True)
class Stored:
    """A transaction as its coordinator has stored it."""

    number: int
    stage: Stage
    producer: Producer
    commits: bool = False
    places: frozenset[TopicPartition] = frozenset()


@dataclass
class Client:
    """A producer and its transactions, one after the other.

    `own_epochs`: each transaction has an epoch of its own (KIP-890).
    """

    own_epochs: bool
    stored: Stored
    sequences: dict[tuple[Producer, TopicPartition], int] = field(default_factory=dict)

    @property
    def marking(self) -> Producer:
        """The producer of the present transaction's markers."""
        producer_id, epoch = self.stored.producer
        return Producer(producer_id, epoch + self.own_epochs)


class NumberedMarker(Marker):
    """A marker that knows the number of its transaction, which brokers do not."""

    number = 0


class Key(NamedTuple):
    """Identifies a marker within a request."""

    producer: Producer
    coordinator_epoch: int


class SentMarkers(NamedTuple):
    """A request from a broker, with the numbers of its markers' transactions."""

    sender_id: int
    request: WriteTxnMarkersRequest
    numbers: dict[Key, int]


class Transactions:
    """All transactions of a cluster, and in which partitions they are open."""

    def __init__(self, cluster: SimCluster) -> None:
        self._cluster = cluster
        self._random = cluster.random
        self._own_loop: asyncio.AbstractEventLoop | None = None
        self.is_stopping = False
        """Whether clients begin no more transactions."""
        self.clients = [
            Client(own_epochs, Stored(0, Stage.ENDED, Producer(producer_id, 0)))
            for producer_id, own_epochs in enumerate([False, True])
        ]
        self._open: dict[tuple[TopicPartition, int], int] = {}
        """The transaction that is open in a partition, of a producer."""

    def start(self) -> None:
        """Have the topics made, and the clients begin."""
        self._own_loop = asyncio.new_event_loop()
        self._cluster.scheduler.after(STEP_MS, "clients", self._step)

    def close(self) -> None:
        """End all calls."""
        if self._own_loop is not None:
            for task in asyncio.all_tasks(self._own_loop):
                task.cancel()
            self.run()
            self._own_loop.close()

    @property
    def _loop(self) -> asyncio.AbstractEventLoop:
        assert self._own_loop is not None
        return self._own_loop

    def spawn(self, call: Awaitable[None]) -> None:
        """Run a coroutine as far as it goes now."""
        self._loop.create_task(cast("Any", call))
        self.run()

    def run(self) -> None:
        """Run everything that is ready in the event loop."""
        is_ready = True
        while is_ready:
            self._loop.call_soon(self._loop.stop)
            self._loop.run_forever()
            is_ready = bool(self._loop._ready)  # type: ignore[attr-defined]

    def _report(self, violation: str) -> None:
        self._cluster.invariants.report(violation)

    # -- clients -----------------------------------------------------------------------------

    def _step(self) -> None:
        if self.is_stopping and all(one.stored.stage is Stage.ENDED for one in self.clients):
            return
        self._cluster.scheduler.after(STEP_MS, "clients", self._step)
        if self._cluster.zookeeper.is_up and self._makes_topics():
            return
        for client in self.clients:
            coordinator = self._leader(STATES)
            if coordinator is not None:
                try:
                    self._go_on(client, coordinator)
                except NOT_NOW:
                    continue
                except KafkaError as refusal:
                    self._report(f"{client} is refused: {refusal!r}")

    def _makes_topics(self) -> bool:
        """Make a topic that is missing, and return whether one was."""
        for name, count, factor in [(STATES.topic, 1, 2), (DATA, len(PLACES), 1)]:
            if self._cluster.zookeeper.tree.exists(f"/brokers/topics/{name}") is None:
                try:
                    self._cluster.topics.create(NewTopic(name, count, factor))
                except (KafkaError, StoreError):
                    return True
        return False

    def _leader(self, at: TopicPartition) -> Process | None:
        """Return a process that believes to lead a partition."""
        found = [
            broker.process
            for broker in self._cluster.brokers
            if broker.process is not None and broker.process.is_running()
            if (role := broker.process.replicas.roles.get(at)) is not None and role.leads
        ]
        return self._random.choice(found) if found else None

    def _go_on(self, client: Client, coordinator: Process) -> None:
        stored = client.stored
        if stored.stage is Stage.ENDING:
            coordinator.txns.write_markers(client)
        elif stored.stage is Stage.ENDED:
            if not self.is_stopping:
                client.stored = Stored(stored.number + 1, Stage.ONGOING, client.stored.producer)
        elif not stored.places or (not self.is_stopping and self._random.random() < 0.5):
            self._write(client, coordinator, self._random.choice(PLACES))
        else:
            commits = self._random.random() < 0.5
            coordinator.txns.store(client, replace(stored, stage=Stage.ENDING, commits=commits))
            coordinator.txns.write_markers(client)

    def _write(self, client: Client, coordinator: Process, at: TopicPartition) -> None:
        leader = self._leader(at)
        if leader is None:
            return
        if at not in client.stored.places:
            places = client.stored.places | {at}
            coordinator.txns.store(client, replace(client.stored, places=places))
        producer = client.stored.producer
        sequence = client.sequences.get((producer, at), 0)
        leader.txns.append(client, at, batch_of(producer, sequence))
        client.sequences[producer, at] = sequence + 1
        self._open[at, producer.id] = client.stored.number

    # -- markers -----------------------------------------------------------------------------

    def on_marker(self, at: TopicPartition, producer_id: int, number: int, *, abort: bool) -> None:
        """A marker ends the transaction that it is of, in the way that was decided."""
        client = self.clients[producer_id]
        ended = self._open.pop((at, producer_id), None)
        if ended is None:
            return  # it was written before
        if ended != number:
            self._report(f"a marker of transaction {number} ends {ended} of {client} in {at}")
        elif abort == client.stored.commits:
            self._report(f"{at}: {client} gets a marker with abort={abort}")

    @property
    def has_ended(self) -> bool:
        """Whether every transaction has ended everywhere."""
        return not self._open and all(client.stored.stage is Stage.ENDED for client in self.clients)

    def check_ended(self) -> None:
        """After peace, every transaction has ended everywhere."""
        for client in self.clients:
            if client.stored.stage is not Stage.ENDED:
                self._report(f"{client} does not end")
        if self._open:
            self._report(f"transactions are open: {self._open}")


def batch_of(producer: Producer, sequence: int) -> bytearray:
    """Return a record of a transaction."""
    return batch(
        producer_id=producer.id, epoch=producer.epoch, sequence=sequence, transactional=True
    )


class ProcessTxns:
    """What a process has to do with transactions: it coordinates them, and leads partitions."""

    def __init__(self, process: Process) -> None:
        self._process = process
        self._scheduler = process.scheduler
        self._all = process.cluster.transactions
        self._links: dict[int, SimLink] = {}
        self._marking: set[tuple[int, int, int]] = set()
        """Producer, transaction and leader epoch of the markers that are being written."""
        self.connections = LatestConnections()
        self._partitions = _NumberedPartitions(
            process.broker.id,
            led=LedTransactions(self._replicas.manager),  # type: ignore[arg-type]
            metadata=process.metadata,
            peers=cast("Peers", self),
        )

    @property
    def _replicas(self) -> RealReplicas:
        assert isinstance(self._process.replicas, RealReplicas)
        return self._process.replicas

    def _led(self, at: TopicPartition) -> Partition:
        if self._replicas.manager is None:
            raise NotLeaderOrFollower("the process is gone")
        return self._replicas.manager.leader(at)

    # -- as the coordinator ------------------------------------------------------------------

    def store(self, client: Client, stored: Stored) -> None:
        """Store a transaction's state. Raises KafkaError: it is as before.

        An earlier leader that goes on cannot, because the other replica does not confirm it.
        """
        newest = self._process.cluster.invariants.is_newest_leader
        if not newest(self._process.broker, self._led(STATES)):
            raise NotLeaderOrFollower("another broker leads the states")
        self._replicas.append(STATES)
        client.stored = stored

    def write_markers(self, client: Client) -> None:
        """Begin to write the markers of a transaction that ends, once per leader epoch."""
        epoch = self._led(STATES).leadership.leader_epoch
        stored = client.stored
        key = stored.producer.id, stored.number, epoch
        if key in self._marking:
            return
        self._marking.add(key)
        left = set(stored.places)

        def marked(at: TopicPartition) -> None:
            left.discard(at)
            if not left:
                self._complete(client, stored, epoch)

        for at in sorted(stored.places):
            self._all.spawn(self._mark(client, stored, at, epoch, marked))

    def _is_served(self, epoch: int) -> bool:
        try:
            return self._process.is_alive and self._led(STATES).leadership.leader_epoch == epoch
        except KafkaError:
            return False

    async def _mark(
        self,
        client: Client,
        stored: Stored,
        at: TopicPartition,
        epoch: int,
        marked: Callable[[TopicPartition], None],
    ) -> None:
        """As `TxnCoordinator`: write a marker again until it is written, while this one leads."""
        producer_id, number = stored.producer.id, stored.number
        marker = NumberedMarker(not stored.commits, epoch, client.own_epochs)
        marker.number = number

        async def here(at: TopicPartition, producer: Producer, one: Marker) -> None:
            self._replicas.append_marker(self._led(at), producer, one)
            self._all.on_marker(at, producer_id, number, abort=one.abort)

        def again() -> None:
            if self._process.is_alive and self._process.is_stopped:
                self._scheduler.after(STEP_MS, self._process.owner, again)
            elif self._is_served(epoch):
                self._all.spawn(self._mark(client, stored, at, epoch, marked))

        marking = Producer(producer_id, stored.producer.epoch + client.own_epochs)
        try:
            await self._partitions.write_marker(at, marking, marker, here)
        except InvalidProducerEpoch:
            marked(at)
        except KafkaError:
            self._scheduler.after(RETRY_MS, self._process.owner, again)
        else:
            marked(at)

    def _complete(self, client: Client, stored: Stored, epoch: int) -> None:
        if not self._is_served(epoch) or client.stored != stored:
            return
        ended = replace(stored, stage=Stage.ENDED, producer=client.marking, places=frozenset())
        try:
            self.store(client, ended)
        except KafkaError:
            self._marking.clear()  # the next step begins again

    def ask(self, broker_id: int, request: WriteTxnMarkersRequest, response: object) -> Any:
        """See `Peers.ask`."""
        link = self._links.setdefault(broker_id, SimLink(self._process, broker_id))
        sent = SentMarkers(self._process.broker.id, request, self._partitions.numbers)
        return link.ask(sent)

    # -- as a leader -------------------------------------------------------------------------

    def append(self, client: Client, at: TopicPartition, records: bytearray) -> None:
        """Append a record of a transaction, which its coordinator has confirmed. Raises KafkaError.

        Args:
            at: the partition, which is in the transaction.
        """
        partition = self._led(at)
        transactions = partition.log.transactions
        guard = transactions.guard_for(read_header(records), from_zero=client.own_epochs)
        if guard is not None:
            transactions.approve(guard)
        self._replicas.append_batch(partition, records, guard=guard)

    def arrive(self, sent: SentMarkers, connection: int, respond: Callable[[object], None]) -> None:
        """Have the handler of WriteTxnMarkers take a request."""
        self._all.spawn(self._handled(sent, connection, respond))

    async def _handled(
        self, sent: SentMarkers, connection: int, respond: Callable[[object], None]
    ) -> None:
        async def write(at: TopicPartition, producer: Producer, marker: Marker) -> None:
            self._replicas.append_marker(self._led(at), producer, marker)
            number = sent.numbers[Key(producer, marker.coordinator_epoch)]
            self._all.on_marker(at, producer.id, number, abort=marker.abort)

        context = SimpleNamespace(
            connection=SimpleNamespace(
                listener=SimpleNamespace(is_inter_broker=True), id=connection, aside=nullcontext
            ),
            header=SimpleNamespace(client_id=CLIENT_ID.format(sent.sender_id)),
            services=SimpleNamespace(
                marker_connections=self.connections,
                transactions=SimpleNamespace(write_marker=write),
            ),
        )
        try:
            response = await write_txn_markers(cast("Context", context), sent.request)
        except CloseConnection:
            respond(None)
        else:
            respond(response)


class _NumberedPartitions(TxnPartitions):
    """Knows the numbers of the transactions whose markers are sent next."""

    numbers: dict[Key, int]

    async def _send_markers(
        self, broker_id: int, due: Sequence[DueMarker]
    ) -> list[ErrorCode | KafkaError]:
        self.numbers = {
            Key(one.producer, one.marker.coordinator_epoch): cast(
                "NumberedMarker", one.marker
            ).number
            for one in due
        }
        return await super()._send_markers(broker_id, due)
