"""A producer: records into batches, batches to leaders, responses to callbacks.

Owns the arguments and their defaults. Records wait in the accumulator, and the sender's thread
sends them to brokers. Transactions begin and end on the application's thread.
"""

from __future__ import annotations

import operator
import threading
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager

from plog._native.rows import RowColumns
from plog.client.accumulator import Accumulator, Bounds, ProducerClosed
from plog.client.arguments import at_least
from plog.client.group_membership import GroupMetadata
from plog.client.metadata import Cluster
from plog.client.offsets import Offsets
from plog.client.partitioner import Partitioner, StickyPartitioner
from plog.client.produce_requests import Rules
from plog.client.producer_batch import Delivery, DeliveryCallback, Header, RecordMetadata
from plog.client.rows_delivery import RowsDelivery
from plog.client.sender import Sender
from plog.client.transaction_states import (
    ASKED,
    Call,
    PreparedTransaction,
    TransactionAborted,
)
from plog.client.transactions import Transactions
from plog.errors import InvalidConfig, InvalidTxnState, PlogError
from plog.protocol.record_batch import CODECS

__all__ = [
    "Delivery",
    "DeliveryCallback",
    "Header",
    "PreparedTransaction",
    "Producer",
    "ProducerClosed",
    "RecordMetadata",
    "RowColumns",
    "RowsDelivery",
    "TransactionAborted",
]

ACKS = {"all": -1, "-1": -1, "0": 0, "1": 1}
STOP_TIMEOUT_S = 5.0
"""How long a close that does not wait for records waits for the producer's thread."""


class Producer:
    """Writes records. Thread-safe; records of one thread keep their order within a partition.

    With idempotence (the default) an acknowledged record is written once, in order, whatever
    happens to connections, brokers and leaders in between. A record that is given up after
    delivery_timeout_ms may have been written without an acknowledgement.

    Leaving the `with` block flushes; an exception in it gives up all unacknowledged records.

    With a transactional_id every record belongs to a transaction: readers of committed records see
    all of a transaction or nothing, in all partitions, also if another producer takes over the id
    (KIP-98). After one `init_transactions`, each transaction is a block:

        with producer.transaction():
            producer.send("payments", b"...")
            producer.send_offsets_to_transaction(consumer.positions(), consumer.group_metadata)

    Args:
        bootstrap_servers: "host:port,...".
        acks: "all" (every in-sync replica, durably), "1" (the leader) or "0" (no response).
        enable_idempotence: number batches, so that a retry never writes twice; requires acks="all".
            Without it retries may write twice, but keep the order.
        linger_ms: how long a batch waits for more records before it is sent.
        batch_size: bytes (uncompressed) at which a batch is sent without waiting.
        compression_type: "none", "gzip", "snappy", "lz4" or "zstd".
        max_request_size: maximum bytes of a request, and so of a record. The producer splits
            batches that the broker refuses as too large.
        buffer_memory: maximum bytes of waiting records; beyond it `send` blocks up to max_block_ms.
        max_block_ms: how long `send` may wait for memory or for the metadata of a topic.
        request_timeout_ms: how long a broker may take to answer.
        delivery_timeout_ms: how long a record may take, with retries, before it is given up.
        retry_backoff_ms: wait before a retry; it doubles each time, up to a second.
        metadata_max_age_ms: how old the known number of partitions may get.
        partitioner: (topic, key, number of partitions) -> partition, called under the producer's
            lock. If it has a method `batch_closed(topic, partition)`, the producer calls that when
            a batch is full or sent.
        transactional_id: a name that this producer keeps over restarts. The last producer to call
            `init_transactions` fences the others with this id. Requires idempotence.
        transaction_timeout_ms: after this time the coordinator aborts a transaction and fences its
            producer; at most the brokers' transaction.max.timeout.ms.

    Raises:
        InvalidConfig: an argument is invalid, or arguments contradict each other.
    """

    def __init__(
        self,
        bootstrap_servers: str | Iterable[str],
        *,
        client_id: str = "plog-producer",
        acks: str = "all",
        enable_idempotence: bool = True,
        linger_ms: int = 5,
        batch_size: int = 16384,
        compression_type: str = "none",
        max_request_size: int = 1 << 20,
        buffer_memory: int = 32 << 20,
        max_block_ms: int = 60_000,
        request_timeout_ms: int = 30_000,
        delivery_timeout_ms: int = 120_000,
        retry_backoff_ms: int = 100,
        metadata_max_age_ms: int = 300_000,
        partitioner: Partitioner | None = None,
        transactional_id: str | None = None,
        transaction_timeout_ms: int = 60_000,
    ) -> None:
        if acks not in ACKS:
            raise InvalidConfig(f"invalid acks={acks!r}: use {', '.join(ACKS)}")
        if compression_type not in CODECS:
            raise InvalidConfig(
                f"invalid compression_type={compression_type!r}: use {', '.join(CODECS)}"
            )
        if enable_idempotence and ACKS[acks] != -1:
            raise InvalidConfig(f"enable_idempotence requires acks='all', not {acks!r}")
        at_least(
            0,
            linger_ms=linger_ms,
            batch_size=batch_size,
            max_block_ms=max_block_ms,
            retry_backoff_ms=retry_backoff_ms,
            metadata_max_age_ms=metadata_max_age_ms,
        )
        at_least(
            1,
            max_request_size=max_request_size,
            buffer_memory=buffer_memory,
            delivery_timeout_ms=delivery_timeout_ms,
            transaction_timeout_ms=transaction_timeout_ms,
        )
        if transactional_id == "":
            raise InvalidConfig("transactional_id is empty")
        if transactional_id is not None and not enable_idempotence:
            raise InvalidConfig("transactional_id requires enable_idempotence")
        if delivery_timeout_ms < linger_ms:
            raise InvalidConfig(
                f"delivery_timeout_ms={delivery_timeout_ms} is below linger_ms={linger_ms}"
            )
        bounds = Bounds(
            batch_size=batch_size,
            linger_s=linger_ms / 1000,
            codec=CODECS[compression_type],
            max_request_size=max_request_size,
            buffer_memory=buffer_memory,
            max_block_s=max_block_ms / 1000,
            delivery_timeout_s=delivery_timeout_ms / 1000,
        )
        rules = Rules(
            acks=ACKS[acks],
            idempotent=enable_idempotence,
            max_request_size=max_request_size,
            request_timeout_s=request_timeout_ms / 1000,
            delivery_timeout_s=delivery_timeout_ms / 1000,
            backoff_s=retry_backoff_ms / 1000,
            metadata_max_age_s=metadata_max_age_ms / 1000,
        )

        def cluster() -> Cluster:
            return Cluster(
                bootstrap_servers, client_id=client_id, request_timeout_ms=request_timeout_ms
            )

        chosen = partitioner or StickyPartitioner()
        own = cluster()
        self._transactions: Transactions | None = None
        if transactional_id is None:
            self._accumulator = Accumulator(bounds, chosen, servers=own.bootstrap)
        else:
            self._transactions = Transactions(
                cluster(), transactional_id, transaction_timeout_ms, block_s=max_block_ms / 1000
            )
            self._accumulator = Accumulator(
                bounds,
                chosen,
                servers=own.bootstrap,
                transactional=True,
                gate=self._check_transaction,
            )
        self._sender = Sender(self._accumulator, own, rules, self._transactions)
        self._closing = threading.Lock()
        self._released = False
        self._sender.start()

    def __enter__(self) -> Producer:
        return self

    def __exit__(self, error: type[BaseException] | None, *_: object) -> None:
        if error is None:
            self.close()
        else:
            self._close(0)

    def send(
        self,
        topic: str,
        value: bytes | None,
        *,
        key: bytes | None = None,
        headers: Sequence[Header] = (),
        partition: int | None = None,
        timestamp_ms: int | None = None,
        on_delivery: DeliveryCallback | None = None,
    ) -> Delivery:
        """Add a record to its partition's batch and return at once.

        Waits only for the metadata of a new topic (which the broker may create), and for memory.

        Raises:
            UnknownTopicOrPartition: no such topic, and the broker does not create it.
            InvalidTopic: the name is not valid for a topic.
            MessageTooLarge: the record alone exceeds max_request_size or buffer_memory.
            RequestTimedOut: buffer_memory stayed full for max_block_ms.
            NetworkException: no broker answered about the topic within max_block_ms.
            ProducerClosed: after close().
            InvalidTxnState: with a transactional_id, outside a transaction or in one that can only
                be aborted.
            ValueError: a timestamp before 1970.
        """
        if self._transactions is not None:
            self._check_transaction()
        return self._accumulator.append(
            topic,
            value,
            key,
            headers,
            partition,
            time.time_ns() // 1_000_000 if timestamp_ms is None else _checked(timestamp_ms),
            on_delivery,
        )

    def send_rows(
        self, topic: str, rows: RowColumns, *, timestamp_ms: int | None = None
    ) -> RowsDelivery:
        """Add rows of Arrow columns to their partitions' batches, without an object for each.

        Rows without a partition go where `send` puts records: by the hash of their key, as in the
        Java client, or without a key to the batch that is being filled. Within a partition, rows
        with a key or a partition keep their order, and so do rows without.

        Waits as `send` does, up to max_block_ms for each batch without room. Invalid rows are
        refused before any row is added. If the call raises later, some rows are added, and a
        transaction can only be aborted.

        `result` of the returned object raises the first failure; otherwise every later `flush`
        raises it, or `close`. A commit raises it as for any record.

        Args:
            rows: they keep their buffers, which must not change before the call returns.
            timestamp_ms: the timestamp of rows that have none; None: now.

        Raises:
            MessageTooLarge: the largest row alone exceeds max_request_size or buffer_memory.
            InvalidConfig: a row has no partition, and the application has set a partitioner.
            UnknownTopicOrPartition: no such topic, or it lacks the partition of a row.
            InvalidTopic, RequestTimedOut, NetworkException, ProducerClosed, InvalidTxnState,
            ValueError: as `send`.
        """
        if self._transactions is not None:
            self._check_transaction()
        now_ms = time.time_ns() // 1_000_000
        timestamp_ms = now_ms if timestamp_ms is None else _checked(timestamp_ms)
        delivery = RowsDelivery(self._accumulator.rows_failures)
        try:
            self._accumulator.append_rows(topic, rows, timestamp_ms, delivery)
        except BaseException as stop:
            if self._transactions is not None and delivery.is_begun:
                self._transactions.cut(stop)
            raise
        finally:
            delivery.batch_done()
        return delivery

    def flush(self, timeout_s: float | None = None) -> None:
        """Wait until all records are acknowledged or given up, and their callbacks called.

        Raises:
            TimeoutError: records are still waiting after `timeout_s`.
            PlogError: the first failure of rows that `RowsDelivery.result` has not raised. A
                transactional producer continues after an abort.
        """
        self._settle(timeout_s)
        failure = self._accumulator.rows_failures.report()
        if failure is not None:
            if self._transactions is not None:
                failure = self._transactions.progress.error or failure
            raise failure

    def _settle(self, timeout_s: float | None = None) -> None:
        if not self._accumulator.flush(timeout_s):
            raise TimeoutError(
                f"flush did not end within {timeout_s:g} s: {self._accumulator.unacknowledged()}"
            )

    # -- transactions ------------------------------------------------------------------------

    def init_transactions(self) -> None:
        """Become the producer of the transactional id; call it once, before the first transaction.

        The coordinator fences the previous producer and aborts its open transaction. Like all calls
        of transactions it waits up to max_block_ms; after a timeout it may be called again.

        Raises:
            RequestTimedOut: the coordinator did not confirm in time.
            InvalidTransactionTimeout: transaction_timeout_ms is above the brokers' maximum.
            InvalidTxnState: the producer is already initialized, or has no transactional_id.
            KafkaError: another refusal.
        """
        self._transactional(Call.INIT).init()

    def begin_transaction(self) -> None:
        """Begin a transaction, which all records from now on belong to.

        Raises:
            InvalidTxnState: not initialized, or the last transaction has not ended.
            ProducerFenced: another producer has the transactional id now; close this one.
        """
        self._transactional(Call.BEGIN).begin()

    def send_offsets_to_transaction(self, offsets: Offsets, group: GroupMetadata) -> None:
        """Commit a group's offsets together with the transaction.

        Args:
            offsets: the next offset to read of each partition, as `GroupConsumer.positions` returns
                them; `OffsetAndMetadata` adds a text.
            group: the current `GroupConsumer.group_metadata` (KIP-447).

        Raises:
            CommitFailed: the group no longer has this member; the transaction can only be aborted,
                as after every other failure.
            ProducerFenced: another producer has the transactional id now; close this one.
            RequestTimedOut: the coordinators did not answer in time.
        """
        self._transactional(Call.SEND_OFFSETS).send_offsets(offsets, group)

    def commit_transaction(self) -> None:
        """Wait for every record of the transaction to be acknowledged, then commit it.

        Raises:
            RequestTimedOut: it is not known whether the transaction is committed; call again.
            ProducerFenced: another producer has the transactional id now; close this one.
            KafkaError: the first failure of the transaction, which can only be aborted.
        """
        self._transactional(Call.COMMIT).commit(self._settle)

    def prepare_transaction(self) -> PreparedTransaction | None:
        """Wait for every record of the transaction to be acknowledged; another client ends it.

        The first half of a two-phase commit (KIP-939): any client ends the transaction by
        `TransactionAdmin.end` with the returned numbers, and `close` leaves it open. Until then the
        coordinator aborts it after transaction_timeout_ms, and the next producer of the
        transactional id does at once. None: the transaction is empty and has no end.

        Raises:
            KafkaError: the first failure of the transaction, which can only be aborted.
            ProducerFenced: another producer has the transactional id now; close this one.
        """
        return self._transactional(Call.PREPARE).prepare(self._settle)

    def abort_transaction(self) -> None:
        """Drop the records that wait, wait for those in flight, and abort the transaction.

        Dropped records fail with TransactionAborted.

        Raises:
            RequestTimedOut: it is not known whether the transaction is aborted; call again.
            ProducerFenced: another producer has the transactional id now; close this one.
        """
        self._transactional(Call.ABORT).abort(self._sender.drain)
        self._accumulator.rows_failures.forget()

    @contextmanager
    def transaction(self) -> Iterator[None]:
        """Begin a transaction, and commit it at the end of the block, or abort it on an exception.

        Raises the exception of the block, or as `begin_transaction` and `commit_transaction`. If
        the commit raises RequestTimedOut, the transaction is not aborted.
        """
        transactions = self._transactional(Call.BEGIN)
        self.begin_transaction()
        try:
            yield
            self.commit_transaction()
        except BaseException as failure:
            if (transactions.progress.state, Call.ABORT) in ASKED:
                try:
                    self.abort_transaction()
                except PlogError as fault:
                    failure.add_note(f"aborting the transaction failed: {fault}")
            raise

    def _transactional(self, call: Call) -> Transactions:
        if self._transactions is None:
            raise InvalidTxnState(f"{call.value}: the producer has no transactional_id")
        if threading.current_thread() is self._sender:
            raise RuntimeError("a delivery callback must not wait for the producer")
        return self._transactions

    def _check_transaction(self) -> None:
        assert self._transactions is not None
        progress = self._transactions.progress
        if not progress.takes_records:
            progress.check(Call.SEND)

    # -- the end -----------------------------------------------------------------------------

    def close(self, timeout_s: float | None = None) -> None:
        """Accept no more records, wait for their outcomes, and close the connections.

        Records without an outcome after `timeout_s` (None: delivery_timeout_ms bounds the wait)
        fail with ProducerClosed. In a delivery callback it only refuses further records. May be
        called again.

        Aborts an open transaction, unless it is prepared. With `timeout_s` 0, or in a delivery
        callback, the transaction stays open until its timeout, or until the next producer of the
        transactional id.

        Raises:
            PlogError: the first failure of rows, if no call has raised it yet; everything is
                closed. Not in a delivery callback, and not with a transactional_id: those rows
                belong to a transaction that was not committed.
        """
        self._close(timeout_s)
        if self._transactions is None and threading.current_thread() is not self._sender:
            failure = self._accumulator.rows_failures.unreported
            if failure is not None:
                self._accumulator.rows_failures.report()
                raise failure

    def _close(self, timeout_s: float | None) -> None:
        if (
            self._transactions is not None
            and timeout_s != 0
            and threading.current_thread() is not self._sender
        ):
            self._transactions.abort_at_close(self._sender.drain, timeout_s)
        # Without abort, closing would send the batches that linger.
        self._accumulator.close(abort=timeout_s == 0)
        if threading.current_thread() is self._sender:
            return
        self._sender.join(timeout_s)
        if self._sender.is_alive():
            self._accumulator.close(abort=True)
            self._sender.interrupt()
            self._sender.join(STOP_TIMEOUT_S)
        with self._closing:
            if not self._released and not self._sender.is_alive():
                self._released = True
                self._accumulator.release()
                if self._transactions is not None:
                    self._transactions.close(STOP_TIMEOUT_S)


def _checked(timestamp_ms: int) -> int:
    if timestamp_ms < 0:
        raise ValueError(f"invalid timestamp_ms={timestamp_ms}: at least 0")
    return operator.index(timestamp_ms)
