"""Kafka Streams with exactly_once_v2 copies and counts while leads and coordinators move."""

from __future__ import annotations

import random
import time
from collections import Counter
from pathlib import Path

import pytest

from plog.client.admin import Admin
from plog.client.producer import Producer
from plog.cluster.internal_replicas import OFFSETS_TOPIC, TRANSACTIONS_TOPIC
from tests.agreement.harness import run_seed
from tests.cluster.processes import Brokers
from tests.cluster.replication.mover import COORDINATORS_TOO, REPLICAS, SETTINGS, moving
from tests.compat.live_kafka import ZooKeeper
from tests.compat.programs import STREAMS, Streams
from tests.compat.streams_application import (
    APPLICATION,
    COPY,
    COUNTS,
    SOURCE,
    TOPICS,
    Application,
    Pair,
    by_key,
)
from tests.waiting import until
from tests.whole_topic import read_topic

PARTITIONS = 2
KEYS = 7
PER_ROUND, ROUND_S = 20, 0.05
COPIED_WITHIN_S = 120.0
CHANGELOG = f"{APPLICATION}-counts-changelog"


@pytest.mark.timeout(600)
@pytest.mark.parametrize(
    "streams",
    [pytest.param(STREAMS[0], marks=pytest.mark.long), *STREAMS[1:]],
    ids=lambda one: one.name,
)
def test_application_copies_and_counts_once_while_leads_move(
    tmp_path: Path, zookeeper: ZooKeeper, streams: Streams
) -> None:
    chance = random.Random(run_seed())
    written: list[Pair] = []
    settings = {**SETTINGS, **COORDINATORS_TOO}
    with Brokers(tmp_path, zookeeper.bootstrap, **settings) as brokers:
        application = Application(streams, brokers.bootstrap, tmp_path, replicas=REPLICAS)

        def is_all_copied() -> bool:
            assert application.is_alive, application.said
            return len(read_topic(brokers.bootstrap, COPY)) >= len(written)

        with Admin(brokers.bootstrap) as admin:
            for topic in TOPICS:
                admin.create_topic(topic, partitions=PARTITIONS)
            application.start()
            until(lambda: {CHANGELOG, TRANSACTIONS_TOPIC} <= set(admin.topics()), "it has begun")
        moved = [*TOPICS, CHANGELOG, OFFSETS_TOPIC, TRANSACTIONS_TOPIC]
        try:
            with (
                moving(brokers, moved, chance) as mover,
                Producer(brokers.bootstrap) as producer,
            ):
                while not mover.is_enough:
                    assert application.is_alive, application.said
                    for _ in range(PER_ROUND):
                        number = len(written)
                        key, at = f"k{number % KEYS}", number % KEYS % PARTITIONS
                        sent = producer.send(SOURCE, b"%d" % number, key=key.encode(), partition=at)
                        written.append((key, str(number)))
                    sent.result(COPIED_WITHIN_S)
                    time.sleep(ROUND_S)
            until(is_all_copied, "all copied", COPIED_WITHIN_S)
            application.leave()
        finally:
            application.kill()
        assert by_key([pairs(brokers, COPY)]) == by_key([written])
        counts = Counter(key for key, _ in pairs(brokers, COUNTS))
        assert counts == Counter(key for key, _ in written)  # each count once, without a cache
        for key, seen in by_key([pairs(brokers, COUNTS)]).items():
            assert seen == [str(count) for count in range(1, counts[key] + 1)]


def pairs(brokers: Brokers, topic: str) -> list[Pair]:
    """Return the committed records of a topic; those of one partition are in their order."""
    found = read_topic(brokers.bootstrap, topic)
    return [((one.key or b"").decode(), (one.value or b"").decode()) for one in found]
