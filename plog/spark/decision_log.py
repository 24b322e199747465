"""The topic of decisions: a query's last record, and who may write the next one.

Owns reading a query's last record, whatever others write beside it, and writing as its driver. What
records say is `decisions`'.
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
"""A query's records are in the one that its hash says; the number of partitions never counts."""
CONFIGS = {
    "cleanup.policy": "compact",
    # Small segments, cleaned soon: of a query its last record counts.
    "segment.bytes": str(1 << 20),
    "min.cleanable.dirty.ratio": "0.1",
}
TAIL_OFFSETS = 200
"""Offsets from the end where a query's last record mostly is; each takes two, with its marker."""
DRIVER_TIMEOUT_MS = 30_000
"""A driver that dies while it decides keeps who reads its partition waiting for so long at most."""
POLL_INTERVAL_S = 0.02


class DecisionLog:
    """The decisions of one query.

    Args:
        link: to the brokers.
        options: how the topic is called.
        query: the query's id, which it keeps over runs.
    """

    def __init__(self, link: Link, options: SinkOptions, query: str) -> None:
        self._link, self.query = link, query
        self._key = query.encode()
        self.tp = TopicPartition(options.decisions_topic, murmur2(self._key) % PARTITIONS)

    def create_topic(self) -> None:
        """Make the topic, unless it is there.

        Raises:
            ConfigError: it is there, and has fewer partitions than it must have, or forgets.
        """
        link, topic = self._link, self.tp.topic
        try:
            link.patiently(
                lambda: link.topics.create_topic(topic, partitions=PARTITIONS, configs=CONFIGS)
            )
        except TopicAlreadyExists:
            self._check_topic()

    def _check_topic(self) -> None:
        link, topic = self._link, self.tp.topic
        # Somebody may just have made it, so that not all brokers know it yet.
        found = len(link.patiently(lambda: link.topics.topic(topic)).partitions)
        if found < PARTITIONS:
            raise ConfigError(
                f"plog sink: {self.tp.topic} has {found} partitions, and is no topic of decisions: "
                f"those have {PARTITIONS}; name another one by decisionsTopic"
            )
        (policy,) = link.patiently(
            lambda: link.topics.describe_configs(TOPIC, topic, ["cleanup.policy"])
        )
        if policy.value != "compact":
            raise ConfigError(
                f"plog sink: {topic} has cleanup.policy={policy.value}, and would forget which "
                "batches stand; a topic of decisions has compact"
            )

    def last(self) -> Decision | None:
        """Return the query's last record; None before it has any. The topic has to be there.

        Waits for whoever is writing into the partition, so that nothing is behind what was read.

        Raises:
            UnknownTopicOrPartition: brokers do not know the topic: nothing can be said.
            RequestTimedOut: somebody's transaction there does not end in time.
            DamagedDecision: the record is none.
        """
        # Whoever led it once may not know that it does no more, nor how far it goes by now.
        self._link.cluster.forget(self.tp.topic)
        return self._last(self._link.patiently(self._stable_end))

    def last_known(self) -> Decision | None:
        """Return the last record behind which nobody was writing, at once.

        Later ones may be there already, behind another query's open transaction, or of a driver
        that died while it wrote. None is what a task of a run that has not entered may be told of
        one that has, too: whoever goes by it asks `last` then.

        Raises:
            DamagedDecision: the record is none.
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
                raise RequestTimedOut(f"a transaction in {self.tp} does not end")
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
                raise RequestTimedOut(f"{self.tp} is not read to offset {end} in time")
            for record in reader.poll(int(POLL_INTERVAL_S * 1000)):
                if record.key == self._key and record.offset < end:
                    value = record.value
        return None if value is None else Decision.decode(value)


class DecisionWriter:
    """Who decides for a query from now on: all before it are fenced, and have decided or have not.

    Raises (on entering the block, and from `write`):
        ProducerFenced: there is another one by now.
        KafkaError: the coordinator refuses, or does not answer; `write` may have written then.
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
        """Make a decision the query's last."""
        topic, partition = self._log.tp
        key = self._log.query.encode()
        with self._producer.transaction():
            self._producer.send(topic, decision.encode(), key=key, partition=partition)
