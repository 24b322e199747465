"""Kafka 4.1 and plog, with the same settings, and the fixture that holds a case to both."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial

import pytest

from plog.errors import ErrorCode
from plog.protocol.messages.consumer_groups import ConsumerGroupHeartbeatRequest
from plog.protocol.messages.producers import InitProducerIdRequest
from tests.compat.against_kafka.differences import FROM_4_1
from tests.compat.against_kafka.held import Excuses, held
from tests.compat.against_kafka.pair import Case, Pair, Side
from tests.compat.kafka_tools import Tools
from tests.compat.live_kafka import KAFKA_4_1, KraftKafka
from tests.coordinator.conftest import GROUP, TRANSACTION, await_coordinator
from tests.servers import BrokerProcess
from tests.waiting import until

SETTINGS: dict[str, object] = {
    "offsets.topic.replication.factor": 1,
    "offsets.topic.num.partitions": 1,
    "transaction.state.log.replication.factor": 1,
    "transaction.state.log.min.isr": 1,
    "transaction.state.log.num.partitions": 1,
    "transaction.abort.timed.out.transaction.cleanup.interval.ms": 100,
    "group.initial.rebalance.delay.ms": 0,
    "group.consumer.max.size": 3,
}
WATCHER = "c0-watcher"
"""A group of no case."""


@pytest.fixture(scope="package")
def pair(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Pair]:
    with pair_with(KAFKA_4_1, FROM_4_1, tmp_path_factory) as pair:
        yield pair


@contextmanager
def pair_with(
    tools: Tools, heading: str, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Pair]:
    """Run a release of Kafka 4 and plog; the page lists their differences below the heading."""
    where = tmp_path_factory.mktemp("kafka")
    log_dirs = [where / "data"]
    settings = {**SETTINGS, "log.dirs": log_dirs[0]}
    extra = "".join(f"{key}={value}\n" for key, value in settings.items())
    kafka = KraftKafka(where / "kafka", extra, tools, stops=False)
    try:
        plog_dir = tmp_path_factory.mktemp("plog")
        with BrokerProcess(plog_dir, overrides=SETTINGS) as broker:
            pair = Pair(Side(kafka.port, log_dirs), Side(broker.port, broker.log_dirs), heading)
            for side in pair.sides:
                for kind in (GROUP, TRANSACTION):
                    await_coordinator(side.wire, "any", kind)
                until(lambda side=side: _hands_out_ids(side))
            yield pair
        assert "failed with an internal error" not in broker.log, broker.log
    finally:
        kafka.kill()  # nothing of it is looked at any more


def _hands_out_ids(side: Side) -> bool:
    """Tell whether it does: it has been found before it has read its log, once."""
    request = InitProducerIdRequest(transactional_id="any", transaction_timeout_ms=60_000)
    return bool(side.wire.ask(request, 5).error_code == ErrorCode.NONE)


@pytest.fixture
def hold(pair: Pair, excuses: Excuses) -> Callable[[str, Case], None]:
    """Return what asks both, and fails where their answers are not as docs/SKIPPED.md says."""
    return partial(held, pair, excuses, ready=see_topics)


def see_topics(pair: Pair, case: Case) -> None:
    """Wait until the coordinators know of a case's topics: Kafka's hears of them by and by."""
    for side in pair.sides if case.topics else ():
        until(lambda side=side: _sees(side, case))


def _sees(side: Side, case: Case) -> bool:
    request = ConsumerGroupHeartbeatRequest(
        group_id=WATCHER,
        member_id=str(uuid.uuid4()),
        member_epoch=0,
        rebalance_timeout_ms=60_000,
        subscribed_topic_names=[side.name(topic) for topic in case.topics],
        topic_partitions=[],
    )
    answer = side.wire.ask(request, 1)
    if answer.error_code in (ErrorCode.NOT_COORDINATOR, ErrorCode.COORDINATOR_LOAD_IN_PROGRESS):
        return False  # it has been found before it is ready, once
    assert answer.error_code == ErrorCode.NONE, answer
    leaving = ConsumerGroupHeartbeatRequest(
        group_id=WATCHER, member_id=request.member_id, member_epoch=-1
    )
    assert side.wire.ask(leaving, 1).error_code == ErrorCode.NONE
    return len(answer.assignment.topic_partitions) == len(case.topics)
