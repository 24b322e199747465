"""Runs the transactional ids whose partitions of `__transaction_state` this broker leads.

Owns the shards in memory and the waiting requests. Executes the effects of the transactional ids'
machines (records, markers) and reports the results to them, all in the event loop. Never decides
the response to a request (`txn`) or the format of a record (`txn_log`).
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterable, Sequence

from plog.cluster.led_transactions import LedTransactions
from plog.cluster.metadata_cache import MetadataCache
from plog.cluster.own_appends import OwnAppends, Pair
from plog.cluster.store import SessionLost, Unreachable, WriteRefused
from plog.coordinator import txn_log
from plog.coordinator.failures import bugs_are_errors, log_level, told
from plog.coordinator.load_queue import LoadQueue
from plog.coordinator.shards import Shards
from plog.coordinator.txn import EPOCH_PER_TRANSACTION, Txn
from plog.coordinator.txn_connections import ClientConnection, Sender, Way
from plog.coordinator.txn_events import (
    AddPartitions,
    Answer,
    CompleteLater,
    Effect,
    EndTxn,
    Event,
    Forgotten,
    GiveUp,
    InitProducer,
    LookAtAge,
    LookAtTimeout,
    MarkerRefused,
    MarkersWritten,
    PartitionMarked,
    Producer,
    Store,
    Stored,
    TxnAnswer,
    WriteMarkers,
)
from plog.coordinator.txn_partitions import TxnPartitions
from plog.coordinator.txn_shard import TxnShard
from plog.coordinator.txn_states import ONGOING
from plog.errors import (
    CoordinatorNotAvailable,
    ErrorCode,
    InvalidProducerEpoch,
    KafkaError,
    PlogError,
    TransactionCoordinatorFenced,
)
from plog.runtime.bounded_lines import BoundedLines
from plog.runtime.clock import Clock
from plog.runtime.give_way import giving_way
from plog.runtime.repeats import Repeats
from plog.runtime.trusted_time import TrustedTime
from plog.settings.definitions import BrokerSettings
from plog.storage.log_faults import is_of_full_disk
from plog.storage.producer_state import Marker
from plog.types import NO_PRODUCER_ID, TopicPartition, counted

log = logging.getLogger(__name__)

TRANSACTIONS_TOPIC = "__transaction_state"
RETRY_S = 0.1
MOST_RETRY_S = 5.0
"""Maximum wait between attempts to write a marker to a partition that fails."""

LOOK_S = 1.0
"""Interval of checks whether a transaction that refused our marker has been ended otherwise."""

LONGEST_WAIT_S = 1.0
"""Maximum wait of a new transaction for the markers of the one before."""

MarkerWritten = Callable[[TopicPartition, int, bool], None]
"""Called with a partition, a producer id and whether its transaction was committed."""


class TxnCoordinator:
    """The transactional ids of this broker. For the event loop's thread.

    Args:
        led: the transactions in the partitions that this broker leads.
        txn_partitions: reaches all partitions, wherever their leaders are.
        trusted_time: the time by which transactional ids and loaded transactions expire.
        partitions: returns the number of partitions that `__transaction_state` has or will have.
        new_producer_id: returns an unused producer id. Raises KafkaError, StoreError.
        marker_written: called for each marker once it is durable.
        loads: as for `Shards`.
    """

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        *,
        appends: OwnAppends,
        led: LedTransactions,
        txn_partitions: TxnPartitions,
        metadata: MetadataCache,
        settings: BrokerSettings,
        clock: Clock,
        trusted_time: TrustedTime,
        partitions: Callable[[], int],
        new_producer_id: Callable[[], Awaitable[int]],
        marker_written: MarkerWritten,
        loads: LoadQueue | None = None,
    ) -> None:
        self._loop = loop
        self._appends = appends
        self._led = led
        self._txn_partitions = txn_partitions
        self._metadata = metadata
        self._settings = settings
        self._clock = clock
        self._trusted_time = trusted_time
        self._new_producer_id = new_producer_id
        self._marker_written = marker_written
        self._knows_partitions = asyncio.Event()
        self.ended = {True: 0, False: 0}
        """Numbers of committed (True) and aborted (False) transactions."""
        self.markers_due = 0
        """Number of partitions that wait for a marker."""
        # Rate-limited: while a partition cannot be written, each new transaction causes a line.
        self._waits = BoundedLines(
            log, "%d further waits for markers", least_level=logging.INFO, timing=loop
        )
        self._unstored = BoundedLines(
            log,
            "%d further transactional ids could not be stored",
            least_level=logging.INFO,
            timing=loop,
        )
        self._fenced = BoundedLines(log, "%d further markers were refused", timing=loop)
        self.shards = Shards(
            loop,
            TRANSACTIONS_TOPIC,
            partitions=partitions,
            load_bytes=settings.transaction_state_log_load_buffer_size,
            loads=loads,
            make=TxnShard,
            taken=self._resume,
            given_up=self._retire,
            loaded=_log_loaded,
        )

    def start(self) -> None:
        """Start the periodic tasks and the markers; the partitions of the cluster are known now."""
        self._knows_partitions.set()
        settings, every = self._settings, self.shards.spawn_every
        every(settings.transaction_abort_timed_out_transaction_cleanup_interval_ms, self.abort_late)
        every(settings.transaction_remove_expired_transaction_cleanup_interval_ms, self.forget_old)

    def close(self) -> None:
        """Stop: pending requests get no response, and markers wait for the next start."""
        for lines in (self._waits, self._unstored, self._fenced):
            lines.tell_rest()
        self.shards.close()

    def _resume(self, shard: TxnShard) -> None:
        for txn in shard:
            self._execute(shard, txn, txn.resume())

    def _retire(self, shard: TxnShard) -> None:
        """Withdraw permissions; running tasks notice that the shard is no longer led here."""
        for txn in shard:
            self._revoke(txn)

    # -- requests ----------------------------------------------------------------------------

    async def init(self, transactional_id: str, timeout_ms: int, was: Producer | None) -> TxnAnswer:
        """Start a producer of a transactional id. Raises as `Shards.of_fresh`, KafkaError."""
        shard = self.shards.of_fresh(transactional_id)
        spare = await self._spare_id(shard.txns.get(transactional_id))
        # Only after the await: a concurrent request may have created it.
        txn = shard.txn(transactional_id)
        event = InitProducer(self._token(), timeout_ms, self._clock.now_ms(), was, spare)
        try:
            return await self._ask(shard, txn, event)
        finally:
            shard.drop_idle(txn)

    async def add(
        self,
        transactional_id: str,
        producer: Producer,
        partitions: Iterable[TopicPartition],
        *,
        client_version: int = 0,
        connection: ClientConnection | None = None,
        grants: bool = False,
        awaits_markers: bool = True,
    ) -> ErrorCode:
        """Add partitions to a producer's transaction. Raises as `Shards.of_fresh`.

        Args:
            connection: the request's connection, if the producer itself sent it.
            grants: the producer's first writes there need no verification, if they come by
                `connection`.
            awaits_markers: wait a moment for the markers of the transaction before; otherwise
                return CONCURRENT_TRANSACTIONS at once.
        """
        shard = self.shards.of_fresh(transactional_id)
        txn = shard.txns.get(transactional_id)
        if txn is None:
            return ErrorCode.INVALID_PRODUCER_ID_MAPPING
        token = self._token()
        event = AddPartitions(
            token,
            producer,
            frozenset(partitions),
            self._clock.now_ms(),
            self._clock.monotonic_ms(),
            client_version,
            connection,
            awaits_markers,
        )
        waits = self._loop.call_later(LONGEST_WAIT_S, self._feed, shard, txn, GiveUp(token))
        try:
            error = (await self._ask(shard, txn, event)).error
        finally:
            waits.cancel()
        if error is ErrorCode.NONE and grants and connection is not None:
            self._grant(shard, txn, event, connection)
        return error

    def _grant(
        self, shard: TxnShard, txn: Txn, add: AddPartitions, connection: ClientConnection
    ) -> None:
        """Let the producer's writes skip verification, if verification would succeed now.

        Then the transaction's end has not begun. The end withdraws the permission before it writes
        a marker. All of this happens in the event loop without an await.
        """
        if (
            self.shards.is_served(shard)
            and txn.missing(add.producer, add.partitions) == frozenset()
        ):
            number = connection.number
            self._led.grant_ahead(add.partitions, *add.producer, txn.transactional_id, number)
            txn.connections.grant(add.partitions, connection)

    def _note_writes(self, txn: Txn, producer: Producer) -> None:
        """Record the connections of writes that skipped verification."""
        for at, connection in txn.connections.unasked.items():
            if self._led.has_begun(at, *producer):
                txn.takes(producer, Sender(Way.PRODUCE, connection))

    def _revoke(self, txn: Txn) -> None:
        """Require verification of a transaction's writes again: it ends, or moves elsewhere."""
        if txn.value is not None and txn.value.state is ONGOING:
            self._led.revoke(txn.value.partitions, txn.value.producer_id)

    async def end(
        self,
        transactional_id: str,
        producer: Producer,
        *,
        commit: bool,
        connection: ClientConnection,
        client_version: int = 0,
    ) -> TxnAnswer:
        """Commit or abort a producer's transaction. Raises as `Shards.of_fresh`, KafkaError."""
        shard = self.shards.of_fresh(transactional_id)
        txn = shard.txns.get(transactional_id)
        if txn is None:
            return TxnAnswer(ErrorCode.INVALID_PRODUCER_ID_MAPPING)
        spare = await self._spare_id(txn)
        self._note_writes(txn, producer)
        event = EndTxn(
            self._token(),
            producer,
            commit,
            self._clock.now_ms(),
            client_version,
            spare,
            connection,
        )
        return await self._ask(shard, txn, event)

    def verify(
        self, transactional_id: str, producer: Producer, partitions: Iterable[TopicPartition]
    ) -> ErrorCode | frozenset[TopicPartition]:
        """Return the partitions that are not in a producer's open transaction, or an error.

        Raises as `Shards.of_fresh`.
        """
        txn = self.shards.of_fresh(transactional_id).txns.get(transactional_id)
        if txn is None:
            return ErrorCode.INVALID_PRODUCER_ID_MAPPING
        return txn.missing(producer, partitions)

    def takes(
        self,
        transactional_id: str,
        producer: Producer,
        sender: Sender,
        asked: Iterable[TopicPartition] = (),
    ) -> bool:
        """Record a request's connection; return False if it belongs to an earlier transaction.

        Raises as `Shards.of_fresh`.
        """
        txn = self.shards.of_fresh(transactional_id).txns.get(transactional_id)
        return txn is None or txn.takes(producer, sender, asked)

    def find(self, transactional_id: str) -> Txn | None:
        """Return a transactional id with a value in the log. Raises as `Shards.of_fresh`."""
        txn = self.shards.of_fresh(transactional_id).txns.get(transactional_id)
        return None if txn is None or txn.value is None else txn

    def txns(self) -> list[Txn]:
        """Return all transactional ids of this coordinator."""
        return [txn for shard in self.shards for txn in shard if txn.value is not None]

    async def _spare_id(self, txn: Txn | None) -> int:
        if txn is not None and not txn.needs_producer_id:
            return NO_PRODUCER_ID
        try:
            return await self._new_producer_id()
        except (WriteRefused, SessionLost, Unreachable) as refused:
            raise CoordinatorNotAvailable(f"the coordination store: {refused}") from refused

    def _token(self) -> asyncio.Future[TxnAnswer]:
        return self._loop.create_future()

    async def _ask(
        self, shard: TxnShard, txn: Txn, event: InitProducer | AddPartitions | EndTxn
    ) -> TxnAnswer:
        token = event.token
        assert isinstance(token, asyncio.Future)
        self._feed(shard, txn, event)
        answer = token.result() if token.done() else await token
        assert isinstance(answer, TxnAnswer)
        return answer

    # -- machines ----------------------------------------------------------------------------

    def _feed(self, shard: TxnShard, txn: Txn, event: Event) -> None:
        self._execute(shard, txn, txn.on(event))

    def _execute(self, shard: TxnShard, txn: Txn, effects: Iterable[Effect]) -> None:
        for effect in effects:
            match effect:
                case Answer(token, answer):
                    assert isinstance(token, asyncio.Future)
                    if not token.done():  # otherwise its client has disconnected
                        token.set_result(answer)
                case Store():
                    if effect.value is None or effect.value.state is not ONGOING:
                        self._revoke(txn)
                    self.shards.spawn(self._store(shard, txn, effect))
                case WriteMarkers():
                    self.shards.spawn(self._write_markers(shard, txn, effect))
                case CompleteLater():
                    self.shards.spawn(self._complete_later(shard, txn))
                case Forgotten():
                    shard.drop_idle(txn)

    async def _store(self, shard: TxnShard, txn: Txn, effect: Store) -> None:
        error = ErrorCode.NONE
        try:
            if not self.shards.is_served(shard):
                error = ErrorCode.NOT_COORDINATOR
            else:
                with bugs_are_errors("storing a transactional id"):
                    await self._append(shard, txn, effect)
        except KafkaError as failure:
            error = told(failure, too_large=ErrorCode.UNKNOWN_SERVER_ERROR)
            if not is_of_full_disk(failure):
                self._unstored.log(
                    log_level(failure),
                    "transactional id %.100r: %s",
                    txn.transactional_id,
                    failure,
                )
        state = "forgotten" if effect.value is None else effect.value.state.name
        text = "transactional id %.100r stores its state %s: %s"
        log.debug(text, txn.transactional_id, state, error.name)
        self._feed(shard, txn, Stored(effect.ticket, error))

    async def _append(self, shard: TxnShard, txn: Txn, effect: Store) -> None:
        value = None if effect.value is None else txn_log.encode_value(effect.value)
        pair = Pair(txn_log.encode_key(txn.transactional_id), value)
        await self._appends.append(TopicPartition(TRANSACTIONS_TOPIC, shard.partition), [pair])

    async def _complete_later(self, shard: TxnShard, txn: Txn) -> None:
        await asyncio.sleep(RETRY_S)
        if self.shards.is_served(shard):
            self._feed(shard, txn, MarkersWritten(self._clock.now_ms()))

    # -- markers -----------------------------------------------------------------------------

    async def _write_markers(self, shard: TxnShard, txn: Txn, effect: WriteMarkers) -> None:
        self.ended[effect.commit] += 1
        await asyncio.gather(*(self._mark(shard, txn, at, effect) for at in effect.partitions))
        if self.shards.is_served(shard):
            self._feed(shard, txn, MarkersWritten(self._clock.now_ms()))

    async def _mark(
        self, shard: TxnShard, txn: Txn, at: TopicPartition, effect: WriteMarkers
    ) -> None:
        self.markers_due += 1
        try:
            marker = _marker(shard, effect)
            while not await self._mark_at_last(shard, at, effect.producer, marker):
                self._feed(shard, txn, MarkerRefused(at))
                await self._while_refused(shard, at, effect.producer, marker)
                marker = _marker(shard, effect)
            self._feed(shard, txn, PartitionMarked(at))
        finally:
            self.markers_due -= 1

    async def _mark_at_last(
        self, shard: TxnShard, at: TopicPartition, producer: Producer, marker: Marker
    ) -> bool:
        """Write a marker; retry while this broker leads the shard.

        Returns:
            False if the partition refuses the marker and the transaction is open there.
        """
        wait_s, repeats = RETRY_S, Repeats()
        await self._knows_partitions.wait()
        while self.shards.is_served(shard):
            try:
                with bugs_are_errors("writing a marker"):
                    await self._txn_partitions.write_marker(at, producer, marker, self.write_marker)
            except InvalidProducerEpoch as later:
                # No producer gets a later epoch or starts another transaction before this one has
                # ended everywhere. So the coordinator's log has lost a record of that end.
                self._fenced.warning("%s: no marker for producer %d: %s", at, producer.id, later)
                return True
            except TransactionCoordinatorFenced as fenced:
                # A later coordinator wrote here, or an operator with a made-up epoch. While the
                # transaction is open there, readers wait: it must not be completed (KIP-98).
                is_open = await self._is_open(at, producer)
                stays = " (its transaction stays open there)" if is_open else ""
                self._fenced.warning(
                    "%s: no marker for producer %d%s: %s", at, producer.id, stays, fenced
                )
                return not is_open
            except KafkaError as failure:
                if self._metadata.is_deleted(at):
                    return True  # the partition does not need its marker
                if repeats.is_due(str(failure)):
                    text = "%s: waiting to write the marker for producer %d: %s"
                    self._waits.info(text, at, producer.id, failure)
                await asyncio.sleep(wait_s)
                wait_s = min(2 * wait_s, MOST_RETRY_S)
            else:
                break
        return True

    async def _while_refused(
        self, shard: TxnShard, at: TopicPartition, producer: Producer, marker: Marker
    ) -> None:
        """Wait while the partition would refuse the marker again.

        The wait ends when the transaction has been ended otherwise (KIP-664), or when the
        coordinator has a later epoch.
        """
        while (
            self.shards.is_served(shard)
            and shard.leader_epoch == marker.coordinator_epoch
            and await self._is_open(at, producer)
        ):
            await asyncio.sleep(LOOK_S)

    async def _is_open(self, at: TopicPartition, producer: Producer) -> bool:
        """Return whether a producer has or may have an open transaction in a partition."""
        try:
            with bugs_are_errors("looking for an open transaction"):
                return await self._txn_partitions.has_open(at, producer.id)
        except PlogError:
            return not self._metadata.is_deleted(at)

    async def write_marker(self, at: TopicPartition, producer: Producer, marker: Marker) -> None:
        """End a producer's transaction in a partition that this broker leads, for any coordinator.

        Raises as `OwnAppends.append_marker`.
        """
        await self._appends.append_marker(at, *producer, marker)
        self._marker_written(at, producer.id, not marker.abort)

    # -- time --------------------------------------------------------------------------------

    async def abort_late(self) -> None:
        """Abort transactions whose timeout has expired."""
        now_ms = self._trusted_time.now_ms()
        await self._feed_all(LookAtTimeout(now_ms, self._clock.monotonic_ms()))

    async def forget_old(self) -> None:
        """Remove expired transactional ids."""
        expiration_ms = self._settings.transactional_id_expiration_ms
        await self._feed_all(LookAtAge(self._trusted_time.now_ms(), expiration_ms))

    async def _feed_all(self, look: LookAtTimeout | LookAtAge) -> None:
        every = [(shard, txn) for shard in self.shards for txn in shard]
        async for shard, txn in giving_way(every):
            if self.shards.is_served(shard) and shard.txns.get(txn.transactional_id) is txn:
                self._feed(shard, txn, look)


def _log_loaded(shards: Sequence[TxnShard]) -> None:
    for shard in shards:
        found = counted(len(shard.txns), "transactional id")
        log.debug("loaded %s from %s-%d", found, TRANSACTIONS_TOPIC, shard.partition)
    count = sum(len(shard.txns) for shard in shards)
    if count:
        found, of = counted(count, "transactional id"), counted(len(shards), "partition")
        log.info("loaded %s from %s of %s", found, of, TRANSACTIONS_TOPIC)


def _marker(shard: TxnShard, effect: WriteMarkers) -> Marker:
    return Marker(
        abort=not effect.commit,
        coordinator_epoch=shard.leader_epoch,
        has_own_epoch=effect.client_version >= EPOCH_PER_TRANSACTION,
    )
