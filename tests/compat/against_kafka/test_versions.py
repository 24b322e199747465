"""ApiVersions beside Kafka 3.9, and every version of each API that both serve, asked once."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

from plog.handlers.registry import load
from plog.protocol.api_keys import ApiKey
from plog.protocol.messages.api_versions import ApiVersionsRequest
from plog.protocol.messages.producers import InitProducerIdRequest
from tests.compat.against_kafka import ask
from tests.compat.against_kafka.ask import BROKER, SET, TOPIC
from tests.compat.against_kafka.pair import Case, Made, Pair, Side, Step, Topic
from tests.compat.against_kafka.test_cluster import (
    cluster,
    elect,
    find,
    log_dirs,
    move,
    reassign,
    reassignments,
)
from tests.handlers.wire import NOW_MS, make_batch
from tests.kafka_versions import KAFKA_3_9, highest_supported, skipped
from tests.served import SERVED

BATCH = make_batch([b"a", b"b"], timestamps=[NOW_MS] * 2)
WRITTEN = Topic(batches=[BATCH])


def software(name: str = "t", version: str = "1.0") -> Made:
    return lambda side: ApiVersionsRequest(
        client_software_name=name, client_software_version=version
    )


def new_producer(side: Side) -> InitProducerIdRequest:
    return InitProducerIdRequest(transactional_id=None, transaction_timeout_ms=60_000)


ORDINARY: dict[ApiKey, Made] = {
    ApiKey.PRODUCE: ask.produce(("t", 0, BATCH)),
    ApiKey.FETCH: ask.fetch(("t", 0, 0)),
    ApiKey.LIST_OFFSETS: ask.list_offsets(("t", 0, -1), ("t", 1, -2)),
    ApiKey.METADATA: ask.metadata("t", auto=True),
    ApiKey.FIND_COORDINATOR: find("g", kind=9),
    ApiKey.CREATE_TOPICS: ask.create(ask.new(partitions=2), ask.new("bad", partitions=0)),
    ApiKey.DELETE_TOPICS: ask.delete("t", "no"),
    ApiKey.DELETE_RECORDS: ask.delete_records(("t", 0, 1), ("no", 0, 0)),
    ApiKey.INIT_PRODUCER_ID: new_producer,
    ApiKey.OFFSET_FOR_LEADER_EPOCH: ask.end_of_epoch(("t", 0, -1, 0), ("no", 0, -1, 0)),
    ApiKey.DESCRIBE_CONFIGS: ask.describe(
        (TOPIC, "t"), keys=["segment.bytes", "cleanup.policy", "min.cleanable.dirty.ratio"]
    ),
    ApiKey.ALTER_CONFIGS: ask.replace((TOPIC, "t", {"flush.ms": "5"}), (TOPIC, "no", {})),
    ApiKey.ALTER_REPLICA_LOG_DIRS: move("0", ("t", [5]), ("no", [0])),
    ApiKey.DESCRIBE_LOG_DIRS: log_dirs(("no", [0])),
    ApiKey.CREATE_PARTITIONS: ask.grow(("t", 3), ("no", 1)),
    ApiKey.ELECT_LEADERS: elect(0, ("t", [0]), ("no", [0])),
    ApiKey.INCREMENTAL_ALTER_CONFIGS: ask.alter(
        (TOPIC, "t", [("flush.ms", SET, "5")]), (BROKER, "7", [])
    ),
    ApiKey.ALTER_PARTITION_REASSIGNMENTS: reassign(("t", 0, [0])),
    ApiKey.LIST_PARTITION_REASSIGNMENTS: reassignments(("t", [0])),
    ApiKey.DESCRIBE_CLUSTER: cluster(),
    ApiKey.API_VERSIONS: software("", ""),
}
"""What is asked at each version; of ApiVersions what is refused, as the list has its own test."""
NEWER_FORM: dict[ApiKey, tuple[int, Made]] = {
    ApiKey.FETCH: (13, ask.fetch(("t", 0, 0), by_id=True)),
    ApiKey.METADATA: (4, ask.metadata("t", "no")),
    ApiKey.FIND_COORDINATOR: (4, find(kind=9, keys=["g"])),
    ApiKey.DELETE_TOPICS: (6, ask.delete_states(("t", None), (None, "no"))),
}
FIRST_OF_REFUSAL = {ApiKey.API_VERSIONS: 3, ApiKey.FIND_COORDINATOR: 1}


OF_GROUPS = {
    ApiKey.JOIN_GROUP,
    ApiKey.SYNC_GROUP,
    ApiKey.HEARTBEAT,
    ApiKey.LEAVE_GROUP,
    ApiKey.OFFSET_COMMIT,
    ApiKey.OFFSET_FETCH,
    ApiKey.OFFSET_DELETE,
    ApiKey.LIST_GROUPS,
    ApiKey.DESCRIBE_GROUPS,
    ApiKey.DELETE_GROUPS,
}
"""What `test_groups` asks at every version, as one request says little there."""

OF_TRANSACTIONS = {
    ApiKey.ADD_PARTITIONS_TO_TXN,
    ApiKey.ADD_OFFSETS_TO_TXN,
    ApiKey.END_TXN,
    ApiKey.WRITE_TXN_MARKERS,
    ApiKey.TXN_OFFSET_COMMIT,
    ApiKey.DESCRIBE_PRODUCERS,
    ApiKey.DESCRIBE_TRANSACTIONS,
    ApiKey.LIST_TRANSACTIONS,
}
"""What `test_transactions` asks at every version, likewise."""


OF_FEATURES = {ApiKey.UPDATE_FEATURES}
"""Kafka 3.9 with ZooKeeper knows no feature that could be asked for: Kafka 4.1 is, beside plog."""


OF_CONSUMER_GROUPS = {
    ApiKey.CONSUMER_GROUP_HEARTBEAT,
    ApiKey.CONSUMER_GROUP_DESCRIBE,
    ApiKey.LIST_CONFIG_RESOURCES,
}
"""Kafka 3.9 with ZooKeeper refuses these, and advertises but the first two."""


def every_version() -> Iterator[tuple[str, Case]]:
    for key, handler in SERVED.items():
        if key in OF_GROUPS | OF_TRANSACTIONS | OF_FEATURES | OF_CONSUMER_GROUPS:
            continue
        since, newer = NEWER_FORM.get(ApiKey(key), (0, ORDINARY[ApiKey(key)]))
        low = FIRST_OF_REFUSAL.get(ApiKey(key), handler.min_version)
        for version in range(low, min(handler.max_version, KAFKA_3_9[key][1]) + 1):
            request = newer if version >= since else ORDINARY[ApiKey(key)]
            name = ApiKey(key).name.replace("_", " ").lower()
            topics = {"t": WRITTEN._replace(partitions=2)}
            yield f"every version/{name} {version}", Case([Step(request, version)], topics)


SOFTWARE = {
    "empty-name": software(name=""),
    "empty-version": software(version=""),
    "name-with-space": software(name="a b"),
    "name-that-begins-with-a-dash": software(name="-a"),
    "name-that-ends-with-a-dot": software(name="a."),
    "name-with-dots-and-dashes": software(name="a.b-c"),
    "name-of-a-letter": software(name="a"),
    "name-with-umlaut": software(name="ä"),
    "name-with-underscore": software(name="a_b"),
    "version-with-newline": software(version="1.0\n"),
    "version-that-ends-with-a-dash": software(version="1.0-"),
    "very-long-name": software(name="a" * 5000),
}


CASES = dict(every_version())


@pytest.mark.parametrize("name", CASES)
def test_answers_are_those_of_kafka(hold: Callable[[str, Case], None], name: str) -> None:
    hold(name, CASES[name])


@pytest.mark.parametrize("name", SOFTWARE)
def test_software_names_are_taken_as_kafka_takes_them(pair: Pair, name: str) -> None:
    kafka, plog = pair.ask(Step(SOFTWARE[name], 3))
    assert (plog.error_code, bool(plog.api_keys)) == (kafka.error_code, bool(kafka.api_keys))


@pytest.mark.parametrize("version", range(5))
def test_advertised_versions_are_those_of_kafka_less_what_is_skipped(
    pair: Pair, version: int
) -> None:
    kafka, plog = pair.ask(Step(software(), version))
    theirs, ours = (
        {entry.api_key: (entry.min_version, entry.max_version) for entry in answer.api_keys}
        for answer in (kafka, plog)
    )
    absent = {key for key, ranges in skipped().items() if None in ranges}
    # Kafka's brokers advertise them to clients, too, and when they run alone.
    absent |= load().keys() - SERVED.keys()
    expected = {key: versions for key, versions in theirs.items() if key not in absent}
    for key, ranges in skipped().items():
        for skipped_versions in filter(None, ranges):
            if key in expected and key != ApiKey.PRODUCE:  # advertised all the same
                expected[key] = (skipped_versions[1] + 1, expected[key][1])
    for key, high in highest_supported().items():
        low, _ = expected.get(key, (0, -1))
        expected[key] = (low, high)
    assert ours == expected
    assert (kafka.error_code, kafka.zk_migration_ready) == (
        plog.error_code, plog.zk_migration_ready,
    )  # fmt: skip
    assert not kafka.supported_features
    assert not kafka.finalized_features
    # Of features in force tells who knows them; Kafka 3.9 with ZooKeeper knows none.
    assert plog.finalized_features_epoch == kafka.finalized_features_epoch
