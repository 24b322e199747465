"""A producer: records into batches, batches to leaders, answers to callbacks.

Owns the arguments and their defaults. Records wait in the accumulator, and the
sender's thread does everything that brings them to brokers; transactions are begun and ended on the
application's.
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
from plog.client.producer_batch import Delivery, DeliveryCallback, Header, RecordMetadata
from plog.client.rows_delivery import RowsDelivery
from plog.client.sender import Rules, Sender
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
    delivery_timeout_ms may have been written; only its acknowledgement is missing.

    Leaving the `with` block flushes; leaving it by an exception gives up what is unacknowledged.

    With a transactional_id every record is of a transaction: readers of committed records see all
    of a transaction or nothing, in all partitions, also across producers of the same id that follow
    each other (KIP-98). After `init_transactions`, once, each transaction is a block:

        with producer.transaction():
            producer.send("payments", b"...")
            producer.send_offsets_to_transaction(consumer.positions(), consumer.group_metadata)

    Args:
        bootstrap_servers: "host:port,...".
        acks: "all" (every in-sync replica, durably), "1" (the leader) or "0" (no answer).
        enable_idempotence: number batches, so that a retry never writes twice; needs acks="all".
            Without it retries may write twice, but keep the order.
        linger_ms: how long a batch waits for more records before it is sent.
        batch_size: bytes (uncompressed) at which a batch is sent without waiting.
        compression_type: "none", "gzip", "snappy", "lz4" or "zstd".
        max_request_size: most bytes of a request, and so of a record. Batches that the broker finds
            too large are split.
        buffer_memory: most bytes waiting; `send` blocks beyond it, at most max_block_ms.
        max_block_ms: how long `send` may wait, for memory or to learn about a topic.
        request_timeout_ms: how long a broker may take to answer.
        delivery_timeout_ms: how long a record may take, retries and all, before it is given up.
        retry_backoff_ms: wait before a retry; it doubles each time, up to a second.
        metadata_max_age_ms: how old the known number of partitions may get.
        partitioner: (topic, key, number of partitions) -> partition; one that has a method
            `batch_closed(topic, partition)` is told when a batch is full or sent. It is called
            under the producer's lock.
        transactional_id: a name that this producer keeps over restarts; of those who have it the
            last to call `init_transactions` goes on, and the others are fenced. Needs idempotence.
        transaction_timeout_ms: after which the coordinator aborts a transaction and fences its
            producer; at most the brokers' transaction.max.timeout.ms.

    Raises:
        InvalidConfig: an argument is not one of its values, or they contradict each other.
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
            raise InvalidConfig(f"acks={acks!r}: one of {', '.join(ACKS)}")
        if compression_type not in CODECS:
            raise InvalidConfig(f"compression_type={compression_type!r}: {', '.join(CODECS)}")
        if enable_idempotence and ACKS[acks] != -1:
            raise InvalidConfig(f"enable_idempotence needs acks='all', not {acks!r}")
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
            raise InvalidConfig("transactional_id needs enable_idempotence")
        if delivery_timeout_ms < linger_ms:
            raise InvalidConfig(
                f"delivery_timeout_ms={delivery_timeout_ms} is less than linger_ms={linger_ms}"
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
        self._transactions: Transactions | None = None
        if transactional_id is None:
            self._accumulator = Accumulator(bounds, chosen)
        else:
            self._transactions = Transactions(
                cluster(), transactional_id, transaction_timeout_ms, block_s=max_block_ms / 1000
            )
            self._accumulator = Accumulator(
                bounds, chosen, transactional=True, gate=self._check_transaction
            )
        self._sender = Sender(self._accumulator, cluster(), rules, self._transactions)
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

        It waits only to learn about a topic (which the broker may create then), and for memory.

        Raises:
            UnknownTopicOrPartition: no such topic, and the broker does not create it.
            InvalidTopic: no topic can have this name.
            MessageTooLarge: the record alone exceeds max_request_size or buffer_memory.
            RequestTimedOut: buffer_memory stayed full for max_block_ms.
            NetworkException: no broker could be asked about the topic for max_block_ms.
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

        Rows that name no partition go where `send` puts records: by their key, as every client
        that follows Java's has it, or without one wherever a batch is being filled. In a partition
        rows keep the order they have, those with a key or a partition, and those without.

        It waits as `send` does, max_block_ms at most for each batch that there is no room for. All
        that can be refused by looking at the rows is refused before any is taken. What is raised
        later has some of them on their way; a transaction can only be aborted then.

        What fails is raised by `result` of what this returns, or else by every `flush` from then
        on, or else by `close`; and by a commit, as for any record.

        Args:
            rows: which keep the buffers that they are in; nobody may write to these before this
                returns.
            timestamp_ms: of the rows that have none; None: now.

        Raises:
            MessageTooLarge: the largest row alone exceeds max_request_size or buffer_memory.
            InvalidConfig: a row names no partition, and the producer has a partitioner of the
                application's.
            UnknownTopicOrPartition: no such topic, or it lacks a partition that a row names.
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
        """Wait until everything sent so far is acknowledged or given up, and its callbacks called.

        Raises:
            TimeoutError: some of it is neither after `timeout_s`.
            PlogError: the first failure of rows that `RowsDelivery.result` has not told; the
                producer of a transactional id goes on after an abort.
        """
        self._settle(timeout_s)
        failure = self._accumulator.rows_failures.hear()
        if failure is not None:
            if self._transactions is not None:
                failure = self._transactions.progress.error or failure
            raise failure

    def _settle(self, timeout_s: float | None = None) -> None:
        if not self._accumulator.flush(timeout_s):
            raise TimeoutError(
                f"{self._accumulator.buffered_bytes} bytes are still unacknowledged"
                f" after {timeout_s:g} s"
            )

    # -- transactions ------------------------------------------------------------------------

    def init_transactions(self) -> None:
        """Become the producer of the transactional id. Once, before the first transaction.

        Whoever was it before is fenced, and what it left open is aborted. Waits max_block_ms at
        most, as all calls of transactions do; may be called again when that was not enough.

        Raises:
            RequestTimedOut: no coordinator has taken this producer in in time.
            InvalidTransactionTimeout: transaction_timeout_ms is more than the brokers allow.
            InvalidTxnState: it is initialized already, or has no transactional_id.
            KafkaError: another refusal.
        """
        self._transactional(Call.INIT).init()

    def begin_transaction(self) -> None:
        """Begin a transaction: what is sent from now on belongs to it.

        Raises:
            InvalidTxnState: not initialized, or the last one has not ended.
            ProducerFenced: another producer has the transactional id now; close this one.
        """
        self._transactional(Call.BEGIN).begin()

    def send_offsets_to_transaction(self, offsets: Offsets, group: GroupMetadata) -> None:
        """Commit a group's offsets with the transaction: they stand if, and once, it is committed.

        Args:
            offsets: of each partition the next record to read, as `GroupConsumer.positions` gives;
                as `OffsetAndMetadata` with a text to be kept beside it.
            group: who commits, as `GroupConsumer.group_metadata` says right now (KIP-447).

        Raises:
            CommitFailed: the group has gone on without this member; the transaction can only be
                aborted, as after every other failure.
            ProducerFenced: another producer has the transactional id now; close this one.
            RequestTimedOut: the coordinators gave no answer in time.
        """
        self._transactional(Call.SEND_OFFSETS).send_offsets(offsets, group)

    def commit_transaction(self) -> None:
        """Wait for every record of the transaction to be acknowledged, then commit it.

        Raises:
            RequestTimedOut: in time no answer came that says whether it is committed; call again.
            ProducerFenced: another producer has the transactional id now; close this one.
            KafkaError: the first failure of the transaction, which can only be aborted.
        """
        self._transactional(Call.COMMIT).commit(self._settle)

    def prepare_transaction(self) -> PreparedTransaction | None:
        """Wait for every record of the transaction to be acknowledged, and leave its end to others.

        The first half of a commit in two phases (KIP-939): with what it returns anybody ends the
        transaction by `TransactionAdmin.end`, once it is decided, and `close` leaves it open. Until
        then its coordinator would abort it after transaction_timeout_ms, and the next producer of
        the transactional id at once. None: it has no records, and nothing is to be ended.

        Raises:
            KafkaError: the first failure of the transaction, which can only be aborted.
            ProducerFenced: another producer has the transactional id now; close this one.
        """
        return self._transactional(Call.PREPARE).prepare(self._settle)

    def abort_transaction(self) -> None:
        """Drop what has not been sent, wait for what has, and abort the transaction.

        What is dropped fails with TransactionAborted.

        Raises:
            RequestTimedOut: it is not known to be aborted yet; call again.
            ProducerFenced: another producer has the transactional id now; close this one.
        """
        self._transactional(Call.ABORT).abort(self._sender.drain)
        self._accumulator.rows_failures.forget()

    @contextmanager
    def transaction(self) -> Iterator[None]:
        """Begin a transaction, and commit it at the end of the block, or abort it on an exception.

        What commit or the block raised comes out in any case. Raises as `begin_transaction` and
        `commit_transaction`; only after RequestTimedOut of the commit is it neither.
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
                    failure.add_note(f"the transaction is not aborted: {fault}")
            raise

    def _transactional(self, call: Call) -> Transactions:
        if self._transactions is None:
            raise InvalidTxnState(f"{call.value}: the producer has no transactional_id")
        if threading.current_thread() is self._sender:
            raise RuntimeError("a delivery callback may not wait for the producer")
        return self._transactions

    def _check_transaction(self) -> None:
        assert self._transactions is not None
        progress = self._transactions.progress
        if not progress.takes_records:
            progress.check(Call.SEND)

    # -- the end -----------------------------------------------------------------------------

    def close(self, timeout_s: float | None = None) -> None:
        """Take no more records, wait for those there are, and close the connections.

        Records that have no outcome after `timeout_s` (None: however long it takes, which
        delivery_timeout_ms bounds) fail with ProducerClosed. From a delivery callback it only
        says that no more records come. May be called again.

        A transaction that is open is aborted, unless it is prepared; with `timeout_s` 0, or from a
        delivery callback, it is left to the coordinator's clock, or to the next producer of the
        transactional id.

        Raises:
            PlogError: with everything closed, the first failure of rows, if none was raised yet;
                not from a delivery callback, and not with a transactional_id, by which they are of
                a transaction that nobody has committed.
        """
        self._close(timeout_s)
        if self._transactions is None and threading.current_thread() is not self._sender:
            failure = self._accumulator.rows_failures.unheard
            if failure is not None:
                self._accumulator.rows_failures.hear()
                raise failure

    def _close(self, timeout_s: float | None) -> None:
        if (
            self._transactions is not None
            and timeout_s != 0
            and threading.current_thread() is not self._sender
        ):
            self._transactions.abort_at_close(self._sender.drain, timeout_s)
        # With no time at all, nothing more may be sent: closing alone would end the lingering.
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
        raise ValueError(f"timestamp_ms={timestamp_ms}: at least 0")
    return operator.index(timestamp_ms)
