"""The decisions topic: reads a query's last record, and writes the next one as its driver.

Owns finding a query's last record between those of other queries, and fencing earlier drivers.
The contents of the records belong to `decisions`.
"""

from __future__ import annotations

import time
from typing import Self

from plog._native.murmur2 import murmur2
from plog.client.admin import TOPIC
from plog.client.fetcher import READ_COMMITTED, READ_UNCOMMITTED
from plog.client.offsets import LATEST, list_offsets
from plog.client.producer import Producer
from plog.errors import (
    ConfigError,
    RequestTimedOut,
    TopicAlreadyExists,
    UnknownTopicOrPartition,
)
from plog.spark.decisions import Decision, driver_transactional_id
from plog.spark.links import Link
from plog.spark.sink_options import SinkOptions
from plog.types import TopicPartition

PARTITIONS = 16
"""The hash of the query's id selects one of these; later partitions are never used."""
CONFIGS = {
    "cleanup.policy": "compact",
    # Small segments, compacted soon: only each query's last record matters.
    "segment.bytes": str(1 << 20),
    "min.cleanable.dirty.ratio": "0.1",
}
TAIL_OFFSETS = 200
"""Offsets before the end to scan first; each decision takes two, with its marker."""
DRIVER_TIMEOUT_MS = 30_000
"""Maximum time a driver that dies while it writes a decision blocks readers of its partition."""
POLL_INTERVAL_S = 0.02


class DecisionLog:
    """The decisions of one query.

    Args:
        link: the connections to the brokers.
        options: name the topic.
        query: the query's id, which all its runs share.
    """

    def __init__(self, link: Link, options: SinkOptions, query: str) -> None:
        self._link, self.query = link, query
        self._key = query.encode()
        self.tp = TopicPartition(options.decisions_topic, murmur2(self._key) % PARTITIONS)

    def create_topic(self) -> None:
        """Create the topic if it does not exist.

        Raises:
            ConfigError: the existing topic has too few partitions, or is not compacted.
        """
        link, topic = self._link, self.tp.topic
        try:
            link.retry(
                lambda: link.topics.create_topic(topic, partitions=PARTITIONS, configs=CONFIGS)
            )
        except TopicAlreadyExists:
            self._check_topic()

    def _check_topic(self) -> None:
        link, topic = self._link, self.tp.topic
        # Another task may just have created it, so that not all brokers know it yet.
        found = len(link.retry(lambda: link.topics.topic(topic)).partitions)
        if found < PARTITIONS:
            raise ConfigError(
                f"plog sink: topic {topic} has {found} partitions, but a decisions topic needs "
                f"{PARTITIONS}; set decisionsTopic to another name, and the sink creates it"
            )
        (policy,) = link.retry(
            lambda: link.topics.describe_configs(TOPIC, topic, ["cleanup.policy"])
        )
        if policy.value != "compact":
            raise ConfigError(
                f"plog sink: decisions topic {topic} has cleanup.policy={policy.value}, which "
                "deletes decisions; set it to compact, or use another decisionsTopic"
            )

    def last(self) -> Decision | None:
        """Return the query's last record, or None if it has none. The topic must exist.

        Waits until open transactions in the partition have ended, so that no later record exists.

        Raises:
            UnknownTopicOrPartition: the brokers do not know the topic.
            RequestTimedOut: a transaction in the partition does not end in time.
            DamagedDecision: the record cannot be read.
        """
        # A former leader may not know yet that it was replaced, and would return an old end.
        self._link.cluster.forget(self.tp.topic)
        return self._last(self._link.retry(self._stable_end))

    def last_known(self) -> Decision | None:
        """Return the last record before any open transaction, without waiting.

        Later records may exist behind another query's open transaction, or behind one of a driver
        that died while it wrote. So None does not prove that the query has no record: callers
        that depend on it call `last` next.

        Raises:
            DamagedDecision: the record cannot be read.
        """
        try:
            end = self._end(READ_COMMITTED)
        except UnknownTopicOrPartition:
            return None  # no query has written one yet, most likely
        return self._last(end)

    def _last(self, end: int) -> Decision | None:
        span = TAIL_OFFSETS
        while True:
            first = max(0, end - span)
            found = self._scan(first, end)
            if found is not None or first == 0:
                return found
            span *= 16

    def _stable_end(self) -> int:
        """Return the partition's end, once no transaction is open before it."""
        end = self._end(READ_UNCOMMITTED)
        deadline = time.monotonic() + 2 * DRIVER_TIMEOUT_MS / 1000
        while self._end(READ_COMMITTED) < end:
            if time.monotonic() > deadline:
                raise RequestTimedOut(
                    f"a transaction is still open in {self.tp} after "
                    f"{2 * DRIVER_TIMEOUT_MS // 1000} s; `plog transactions list` shows it"
                )
            time.sleep(POLL_INTERVAL_S)
        return end

    def _end(self, isolation_level: int) -> int:
        link = self._link
        found = list_offsets(
            link.cluster, {self.tp: LATEST}, isolation_level, timeout_ms=link.timeout_ms
        )
        return found[self.tp].offset

    def _scan(self, first: int, end: int) -> Decision | None:
        """Return the last of the query's records within these offsets."""
        value: bytes | None = None
        reader = self._link.reader
        reader.assign([self.tp])
        reader.seek(self.tp, first)
        deadline = time.monotonic() + self._link.timeout_ms / 1000
        while reader.position(self.tp) < end:
            if time.monotonic() > deadline:
                raise RequestTimedOut(
                    f"timed out reading {self.tp} up to offset {end} (kafka.request.timeout.ms="
                    f"{self._link.timeout_ms})"
                )
            for record in reader.poll(int(POLL_INTERVAL_S * 1000)):
                if record.key == self._key and record.offset < end:
                    value = record.value
        return None if value is None else Decision.decode(value)


class DecisionWriter:
    """Writes a query's decisions. Entering the block fences every earlier writer of the query.

    Raises (on entering the block, and from `write`):
        ProducerFenced: a later writer exists.
        KafkaError: the coordinator refuses, or does not respond; `write` may have succeeded then.
    """

    def __init__(self, log: DecisionLog, options: SinkOptions) -> None:
        self._log = log
        self._producer = Producer(
            options.bootstrap_servers,
            client_id=options.client_id,
            transactional_id=driver_transactional_id(options.id_prefix, log.query),
            transaction_timeout_ms=DRIVER_TIMEOUT_MS,
            request_timeout_ms=options.request_timeout_ms,
            linger_ms=0,
        )

    def __enter__(self) -> Self:
        try:
            self._producer.init_transactions()
        except BaseException:
            self._producer.close(0)
            raise
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        self._producer.close(None if kind is None else 0)

    def write(self, decision: Decision) -> None:
        """Write a decision as the query's last record."""
        topic, partition = self._log.tp
        key = self._log.query.encode()
        with self._producer.transaction():
            self._producer.send(topic, decision.encode(), key=key, partition=partition)
