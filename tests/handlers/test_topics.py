"""Topics: created, extended, deleted, cut off, led."""

from __future__ import annotations

import contextlib
import threading
import uuid
from collections.abc import Callable, Sequence

import pytest

from plog.errors import ErrorCode
from plog.handlers.topics import CREATED_AT_ONCE
from plog.protocol.messages.metadata import MetadataRequest, MetadataRequestTopic
from plog.protocol.messages.topics import (
    CreatableReplicaAssignment,
    CreatableTopic,
    CreatableTopicConfig,
    CreatableTopicResult,
    CreatePartitionsAssignment,
    CreatePartitionsRequest,
    CreatePartitionsTopic,
    CreatePartitionsTopicResult,
    CreateTopicsRequest,
    DeletableTopicResult,
    DeleteRecordsPartition,
    DeleteRecordsPartitionResult,
    DeleteRecordsRequest,
    DeleteRecordsTopic,
    DeleteTopicsRequest,
    DeleteTopicState,
    ElectLeadersRequest,
    ElectLeadersResponse,
    TopicPartitions,
)
from plog.types import ZERO_UUID
from tests.handlers.wire import (
    WAIT_MS,
    Speaker,
    create_topic,
    eventually,
    fetch_one,
    fresh_name,
    make_batch,
    produce,
    speak,
    walk_all,
)
from tests.servers import BrokerProcess

TOPIC, STATIC, DEFAULT = 1, 4, 5
"""Sources of configs."""


def new_topic(
    name: str | None = None,
    partitions: int = 1,
    factor: int = 1,
    assignments: dict[int, list[int]] | Sequence[tuple[int, list[int]]] = (),
    configs: dict[str, str | None] | None = None,
) -> CreatableTopic:
    pairs = assignments.items() if isinstance(assignments, dict) else assignments
    return CreatableTopic(
        name=fresh_name() if name is None else name,
        num_partitions=partitions,
        replication_factor=factor,
        assignments=[
            CreatableReplicaAssignment(partition_index=index, broker_ids=ids)
            for index, ids in pairs
        ],
        configs=[CreatableTopicConfig(name=k, value=v) for k, v in (configs or {}).items()],
    )


def create(
    connection: Speaker,
    *topics: CreatableTopic,
    version: int = 7,
    timeout_ms: int = WAIT_MS,
    validate_only: bool = False,
) -> list[CreatableTopicResult]:
    request = CreateTopicsRequest(
        topics=list(topics), timeout_ms=timeout_ms, validate_only=validate_only
    )
    return connection.ask(request, version).topics


def partitions_of(connection: Speaker, name: str) -> dict[int, list[int]] | None:
    """Return replicas by partition, None for a topic that is not there."""
    asked = MetadataRequest(
        topics=[MetadataRequestTopic(name=name)], allow_auto_topic_creation=False
    )
    (topic,) = connection.ask(asked, 12).topics
    if topic.error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION:
        return None
    assert topic.error_code == 0
    assert all(part.error_code == 0 and part.leader_id == 0 for part in topic.partitions)
    return {part.partition_index: part.replica_nodes for part in topic.partitions}


# -- CreateTopics


@pytest.mark.parametrize("version", range(8))
def test_topic_is_there_with_the_answer(wire: Speaker, version: int) -> None:
    topic = new_topic(partitions=3, configs={"retention.ms": "777000"})
    (result,) = create(wire, topic, version=version)
    assert (result.error_code, result.name) == (0, topic.name)
    assert partitions_of(wire, topic.name) == {0: [0], 1: [0], 2: [0]}
    assert produce(wire, topic.name, make_batch(), partition=2).error_code == 0
    assert (result.topic_id != ZERO_UUID) == (version >= 7)
    if version < 5:
        assert (result.num_partitions, result.replication_factor) == (-1, -1)
        return
    assert (result.num_partitions, result.replication_factor) == (3, 1)
    configs = {entry.name: entry for entry in result.configs or []}
    assert (configs["retention.ms"].value, configs["retention.ms"].config_source) == (
        "777000",
        TOPIC,
    )
    assert configs["cleanup.policy"].value == "delete"
    assert configs["cleanup.policy"].config_source == DEFAULT
    assert configs["flush.before.ack"].value == "true"


@pytest.mark.parametrize("version", [0, 4, 7])
def test_minus_one_means_the_brokers_defaults(wire: Speaker, version: int) -> None:
    topic = new_topic(partitions=-1, factor=-1)
    (result,) = create(wire, topic, version=version)
    assert result.error_code == 0
    assert partitions_of(wire, topic.name) == {0: [0], 1: [0]}
    if version >= 5:
        assert (result.num_partitions, result.replication_factor) == (2, 1)


def test_replicas_may_be_assigned(wire: Speaker) -> None:
    topic = new_topic(partitions=-1, factor=-1, assignments={0: [0], 1: [0], 2: [0]})
    (result,) = create(wire, topic)
    assert (result.error_code, result.num_partitions, result.replication_factor) == (0, 3, 1)
    assert partitions_of(wire, topic.name) == {0: [0], 1: [0], 2: [0]}


REFUSED_TOPICS: dict[str, tuple[CreatableTopic, ErrorCode]] = {
    "empty name": (new_topic(""), ErrorCode.INVALID_TOPIC_EXCEPTION),
    "name of a directory": (new_topic(".."), ErrorCode.INVALID_TOPIC_EXCEPTION),
    "slash": (new_topic("a/b"), ErrorCode.INVALID_TOPIC_EXCEPTION),
    "long name": (new_topic("x" * 250), ErrorCode.INVALID_TOPIC_EXCEPTION),
    "no partitions": (new_topic(partitions=0), ErrorCode.INVALID_PARTITIONS),
    "fewer partitions": (new_topic(partitions=-2), ErrorCode.INVALID_PARTITIONS),
    "very many partitions": (new_topic(partitions=2**31 - 1), ErrorCode.POLICY_VIOLATION),
    "no replicas": (new_topic(factor=0), ErrorCode.INVALID_REPLICATION_FACTOR),
    "fewer replicas": (new_topic(factor=-2), ErrorCode.INVALID_REPLICATION_FACTOR),
    "too many replicas": (new_topic(factor=2), ErrorCode.INVALID_REPLICATION_FACTOR),
    "counts and assignments": (
        new_topic(partitions=1, factor=-1, assignments={0: [0]}),
        ErrorCode.INVALID_REQUEST,
    ),
    "assignment with a gap": (
        new_topic(partitions=-1, factor=-1, assignments={0: [0], 2: [0]}),
        ErrorCode.INVALID_REPLICA_ASSIGNMENT,
    ),
    "assignment to nobody": (
        new_topic(partitions=-1, factor=-1, assignments={0: []}),
        ErrorCode.INVALID_REPLICA_ASSIGNMENT,
    ),
    "assignment to strangers": (
        new_topic(partitions=-1, factor=-1, assignments={0: [7]}),
        ErrorCode.INVALID_REPLICA_ASSIGNMENT,
    ),
    "assignment to one twice": (
        new_topic(partitions=-1, factor=-1, assignments={0: [0, 0]}),
        ErrorCode.INVALID_REPLICA_ASSIGNMENT,
    ),
    "partition assigned twice": (
        new_topic(partitions=-1, factor=-1, assignments=[(0, [0]), (0, [0])]),
        ErrorCode.INVALID_REPLICA_ASSIGNMENT,
    ),
    "unknown config": (new_topic(configs={"retention": "1"}), ErrorCode.INVALID_CONFIG),
    "wrong config": (new_topic(configs={"retention.ms": "long"}), ErrorCode.INVALID_CONFIG),
    "config out of range": (
        new_topic(configs={"min.insync.replicas": "0"}),
        ErrorCode.INVALID_CONFIG,
    ),
    "config without a value": (
        new_topic(configs={"retention.ms": None}),
        ErrorCode.INVALID_CONFIG,
    ),
}


@pytest.mark.parametrize("validate_only", [True, False])
@pytest.mark.parametrize("case", REFUSED_TOPICS)
def test_topic_is_refused_and_not_created(wire: Speaker, case: str, validate_only: bool) -> None:
    topic, expected = REFUSED_TOPICS[case]
    good = new_topic()
    refused, granted = create(wire, topic, good, validate_only=validate_only)
    assert ErrorCode(refused.error_code) is expected
    assert refused.error_message
    assert refused.topic_id == ZERO_UUID
    assert granted.error_code == 0
    assert (partitions_of(wire, good.name) is None) == validate_only
    if expected is not ErrorCode.INVALID_TOPIC_EXCEPTION:
        assert partitions_of(wire, topic.name) is None


def test_topics_beyond_the_most_partitions_of_a_request_are_refused(wire: Speaker) -> None:
    counts = (6000, 5000, 3999, 1, 1)
    asked = [new_topic(partitions=count) for count in counts]
    found = [ErrorCode(one.error_code) for one in create(wire, *asked, validate_only=True)]
    none, beyond = ErrorCode.NONE, ErrorCode.POLICY_VIOLATION
    assert found == [none, beyond, none, none, beyond]


def test_topic_that_is_there_is_not_created_again(wire: Speaker, topic: str) -> None:
    for validate_only in (True, False):
        (refused,) = create(wire, new_topic(topic), validate_only=validate_only)
        assert refused.error_code == ErrorCode.TOPIC_ALREADY_EXISTS


def test_names_that_differ_by_dots_only_collide(wire: Speaker) -> None:
    name = f"{fresh_name()}_a"
    create_topic(wire, name)
    (refused,) = create(wire, new_topic(name.replace("_", ".")))
    assert refused.error_code == ErrorCode.INVALID_TOPIC_EXCEPTION


def test_name_twice_in_a_request_is_refused_both_times(wire: Speaker) -> None:
    once, twice = new_topic(), new_topic()
    results = create(wire, twice, once, new_topic(twice.name))
    assert [result.error_code for result in results] == [
        ErrorCode.INVALID_REQUEST,
        0,
        ErrorCode.INVALID_REQUEST,
    ]
    assert partitions_of(wire, twice.name) is None


def test_validation_tells_what_would_be_and_creates_nothing(wire: Speaker) -> None:
    topic = new_topic(partitions=5, configs={"segment.bytes": "9999"})
    (result,) = create(wire, topic, validate_only=True)
    assert (result.error_code, result.num_partitions, result.topic_id) == (0, 5, ZERO_UUID)
    configs = {entry.name: (entry.value, entry.config_source) for entry in result.configs or []}
    assert configs["segment.bytes"] == ("9999", TOPIC)
    assert partitions_of(wire, topic.name) is None


@pytest.mark.parametrize("validate_only", [True, False])
def test_each_of_many_topics_is_described_by_its_own_settings(
    wire: Speaker, validate_only: bool
) -> None:
    bytes_of = {n: None if n % 3 == 0 else str(9000 + n % 3) for n in range(3 * CREATED_AT_ONCE)}
    if not validate_only:
        bytes_of = {n: bytes_of[n] for n in range(6)}
    topics = [
        new_topic(configs=None if value is None else {"segment.bytes": value})
        for value in bytes_of.values()
    ]
    results = create(wire, *topics, validate_only=validate_only)
    assert [result.name for result in results] == [topic.name for topic in topics]
    for result, value in zip(results, bytes_of.values(), strict=True):
        (found,) = [each for each in result.configs or [] if each.name == "segment.bytes"]
        assert (found.config_source == TOPIC) == (value is not None)
        assert value is None or found.value == value


@pytest.mark.parametrize("timeout_ms", [0, -1])
def test_without_time_creation_is_begun_and_said_to_time_out(
    wire: Speaker, timeout_ms: int
) -> None:
    topic = new_topic()
    (result,) = create(wire, topic, timeout_ms=timeout_ms)
    assert result.error_code == ErrorCode.REQUEST_TIMED_OUT
    assert result.configs == []
    assert result.topic_id != ZERO_UUID  # it is there all the same
    eventually(lambda: partitions_of(wire, topic.name) == {0: [0]}, "created")


def test_many_topics_are_created_by_one_request(wire: Speaker) -> None:
    topics = [new_topic(partitions=2) for _ in range(40)]
    assert {result.error_code for result in create(wire, *topics)} == {0}
    assert all(partitions_of(wire, topic.name) == {0: [0], 1: [0]} for topic in topics)


# -- DeleteTopics


def delete(
    connection: Speaker, *topics: str | uuid.UUID, version: int = 6, timeout_ms: int = WAIT_MS
) -> list[DeletableTopicResult]:
    if version < 6:
        request = DeleteTopicsRequest(topic_names=list(topics), timeout_ms=timeout_ms)
    else:
        states = [
            DeleteTopicState(name=t) if isinstance(t, str) else DeleteTopicState(topic_id=t)
            for t in topics
        ]
        request = DeleteTopicsRequest(topics=states, timeout_ms=timeout_ms)
    return connection.ask(request, version).responses


@pytest.mark.parametrize("version", range(7))
def test_deleted_topic_is_gone_with_the_answer_and_its_name_is_free(
    wire: Speaker, version: int
) -> None:
    name, topic_id = create_topic(wire)
    produce(wire, name, make_batch())
    for _ in range(3):
        other, missing = delete(wire, name, fresh_name(), version=version)
        assert (other.error_code, other.name) == (0, name)
        assert missing.error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        assert partitions_of(wire, name) is None
        (result,) = create(wire, new_topic(name))
        assert result.error_code == 0
        assert result.topic_id != topic_id
        assert fetch_one(wire, name, 0).high_watermark == 0


def test_topics_are_deleted_by_id(wire: Speaker) -> None:
    name, topic_id = create_topic(wire)
    unknown = uuid.uuid4()
    good, bad = delete(wire, topic_id, unknown)
    assert (good.error_code, good.name, good.topic_id) == (0, name, topic_id)
    assert (bad.error_code, bad.name, bad.topic_id) == (ErrorCode.UNKNOWN_TOPIC_ID, None, unknown)
    assert partitions_of(wire, name) is None


def test_id_that_is_given_twice_is_known_both_times(wire: Speaker) -> None:
    name, topic_id = create_topic(wire)
    found = [(one.error_code, one.name) for one in delete(wire, topic_id, topic_id)]
    assert found == [(0, name)] * 2


def test_topic_is_given_by_name_or_by_id(wire: Speaker) -> None:
    name, topic_id = create_topic(wire)
    both = DeleteTopicState(name=name, topic_id=topic_id)
    request = DeleteTopicsRequest(topics=[both, DeleteTopicState()], timeout_ms=WAIT_MS)
    codes = [result.error_code for result in wire.ask(request, 6).responses]
    assert codes == [ErrorCode.INVALID_REQUEST] * 2
    assert partitions_of(wire, name) is not None


def test_deletion_ends_though_its_name_is_taken_at_once(
    wire: Speaker, broker: BrokerProcess
) -> None:
    """By a client that asks for metadata, say, where asking makes topics."""
    names = [create_topic(wire)[0] for _ in range(20)]
    is_over = threading.Event()

    def take() -> None:
        with contextlib.closing(speak(broker.port)) as other:
            while not is_over.is_set():
                create(other, *(new_topic(name) for name in names), timeout_ms=0)

    taker = threading.Thread(target=take)
    taker.start()
    try:
        for _ in range(10):
            assert {result.error_code for result in delete(wire, *names)} == {0}
            eventually(lambda: all(partitions_of(wire, name) for name in names), "there again")
    finally:
        is_over.set()
        taker.join()


def test_without_time_deletion_is_begun_and_said_to_time_out(wire: Speaker, topic: str) -> None:
    (result,) = delete(wire, topic, timeout_ms=0)
    assert result.error_code == ErrorCode.REQUEST_TIMED_OUT
    eventually(lambda: partitions_of(wire, topic) is None, "gone")


def test_brokers_own_topics_are_not_deleted(wire: Speaker) -> None:
    (refused,) = delete(wire, "__consumer_offsets")
    assert refused.error_code == ErrorCode.INVALID_TOPIC_EXCEPTION


def test_deletion_can_be_switched_off(own_broker: Callable[..., BrokerProcess]) -> None:
    connection = speak(own_broker(delete_topic_enable="false").port)
    name, _ = create_topic(connection)
    for version in range(7):
        (refused,) = delete(connection, name, version=version)
        assert refused.error_code == (
            ErrorCode.INVALID_REQUEST if version < 3 else ErrorCode.TOPIC_DELETION_DISABLED
        )
    assert partitions_of(connection, name) == {0: [0]}
    connection.close()


def test_many_topics_are_deleted_by_one_request(wire: Speaker) -> None:
    names = [create_topic(wire)[0] for _ in range(15)]
    assert {result.error_code for result in delete(wire, *names)} == {0}
    assert all(partitions_of(wire, name) is None for name in names)


# -- CreatePartitions


def grow(
    connection: Speaker,
    *asked: tuple[str, int, list[list[int]] | None],
    version: int = 3,
    timeout_ms: int = WAIT_MS,
    validate_only: bool = False,
) -> list[CreatePartitionsTopicResult]:
    request = CreatePartitionsRequest(
        topics=[
            CreatePartitionsTopic(
                name=name,
                count=count,
                assignments=None
                if assignments is None
                else [CreatePartitionsAssignment(broker_ids=ids) for ids in assignments],
            )
            for name, count, assignments in asked
        ],
        timeout_ms=timeout_ms,
        validate_only=validate_only,
    )
    return connection.ask(request, version).results


@pytest.mark.parametrize("version", range(4))
def test_partitions_are_there_with_the_answer(wire: Speaker, topic: str, version: int) -> None:
    produce(wire, topic, make_batch([b"kept"]))
    (result,) = grow(wire, (topic, 3, None), version=version)
    assert (result.error_code, result.error_message) == (0, None)
    assert partitions_of(wire, topic) == {0: [0], 1: [0], 2: [0]}
    assert produce(wire, topic, make_batch(), partition=2).error_code == 0
    assert [r.value for r in walk_all(fetch_one(wire, topic, 0).records)] == [b"kept"]


@pytest.mark.parametrize(
    ("count", "assignments", "expected"),
    [
        (2, None, ErrorCode.INVALID_PARTITIONS),
        (1, None, ErrorCode.INVALID_PARTITIONS),
        (0, None, ErrorCode.INVALID_PARTITIONS),
        (-1, None, ErrorCode.INVALID_PARTITIONS),
        (2**31 - 1, None, ErrorCode.INVALID_PARTITIONS),
        (4, [[0]], ErrorCode.INVALID_REPLICA_ASSIGNMENT),
        (3, [[0], [0]], ErrorCode.INVALID_REPLICA_ASSIGNMENT),
        (3, [[9]], ErrorCode.INVALID_REPLICA_ASSIGNMENT),
        (3, [[]], ErrorCode.INVALID_REPLICA_ASSIGNMENT),
        (4, [[0], [0]], ErrorCode.NONE),
    ],
)
@pytest.mark.parametrize("validate_only", [True, False])
def test_growth_is_checked(
    wire: Speaker,
    count: int,
    assignments: list[list[int]] | None,
    expected: ErrorCode,
    validate_only: bool,
) -> None:
    topic, _ = create_topic(wire, partitions=2)
    (result,) = grow(wire, (topic, count, assignments), validate_only=validate_only)
    assert ErrorCode(result.error_code) is expected
    grown = expected is ErrorCode.NONE and not validate_only
    assert len(partitions_of(wire, topic) or ()) == (count if grown else 2)


def test_growth_of_some_and_not_of_others(wire: Speaker) -> None:
    one, two = create_topic(wire)[0], create_topic(wire)[0]
    results = grow(wire, (one, 2, None), (fresh_name(), 2, None), (two, 2, None), (two, 3, None))
    assert [result.error_code for result in results] == [
        0,
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        ErrorCode.INVALID_REQUEST,
    ]


def test_without_time_growth_is_begun_and_said_to_time_out(wire: Speaker, topic: str) -> None:
    (result,) = grow(wire, (topic, 2, None), timeout_ms=0)
    assert result.error_code == ErrorCode.REQUEST_TIMED_OUT
    eventually(lambda: len(partitions_of(wire, topic) or ()) == 2, "grown")


# -- DeleteRecords


def cut(
    connection: Speaker, topic: str, *offsets: int, version: int = 2, partition: int = 0
) -> list[DeleteRecordsPartitionResult]:
    parts = [
        DeleteRecordsPartition(partition_index=partition + n, offset=offset)
        for n, offset in enumerate(offsets)
    ]
    request = DeleteRecordsRequest(
        topics=[DeleteRecordsTopic(name=topic, partitions=parts)], timeout_ms=WAIT_MS
    )
    return connection.ask(request, version).topics[0].partitions


@pytest.mark.parametrize("version", range(3))
def test_records_below_an_offset_go(wire: Speaker, topic: str, version: int) -> None:
    produce(wire, topic, make_batch([b"v"] * 10))
    for offset, low in [(4, 4), (4, 4), (2, 4), (0, 4), (9, 9), (-1, 10), (10, 10), (-1, 10)]:
        (result,) = cut(wire, topic, offset, version=version)
        assert (result.error_code, result.low_watermark) == (0, low)
        assert fetch_one(wire, topic, 10).log_start_offset == low
    assert produce(wire, topic, make_batch()).base_offset == 10


@pytest.mark.parametrize("offset", [11, 2**62, -2, -(2**62)])
def test_offset_beyond_the_high_watermark_is_refused(
    wire: Speaker, topic: str, offset: int
) -> None:
    produce(wire, topic, make_batch([b"v"] * 10))
    (refused,) = cut(wire, topic, offset)
    assert (refused.error_code, refused.low_watermark) == (ErrorCode.OFFSET_OUT_OF_RANGE, -1)
    assert fetch_one(wire, topic, 0).error_code == 0


@pytest.mark.parametrize(
    ("policy", "expected"),
    [
        ("compact", ErrorCode.POLICY_VIOLATION),
        ("compact,delete", ErrorCode.NONE),
        ("delete", ErrorCode.NONE),
    ],
)
def test_records_of_compacted_topics_stay(wire: Speaker, policy: str, expected: ErrorCode) -> None:
    topic, _ = create_topic(wire, cleanup_policy=policy)
    produce(wire, topic, make_batch(key=b"k"))
    (result,) = cut(wire, topic, 1)
    assert ErrorCode(result.error_code) is expected


def test_one_partition_s_refusal_leaves_the_others_alone(wire: Speaker) -> None:
    topic, _ = create_topic(wire, partitions=2)
    results = cut(wire, topic, 0, 5, 0)
    assert [result.error_code for result in results] == [
        0,
        ErrorCode.OFFSET_OUT_OF_RANGE,
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
    ]
    (own,) = cut(wire, "__consumer_offsets", 0)
    assert own.error_code == ErrorCode.INVALID_TOPIC_EXCEPTION


@pytest.mark.parametrize("how", ["stop", "kill"])
def test_records_that_are_gone_stay_gone(
    own_broker: Callable[..., BrokerProcess], how: str
) -> None:
    broker = own_broker()
    connection = speak(broker.port)
    topic, _ = create_topic(connection)
    produce(connection, topic, make_batch([b"v"] * 10))
    assert cut(connection, topic, 7)[0].low_watermark == 7
    connection.close()
    getattr(broker, how)()
    broker.start()
    connection = speak(broker.port)
    eventually(lambda: fetch_one(connection, topic, 10).error_code == 0, "led again")
    assert fetch_one(connection, topic, 10).log_start_offset == 7
    connection.close()


# -- ElectLeaders


def elect(
    connection: Speaker,
    asked: list[TopicPartitions] | None,
    *,
    version: int = 2,
    election_type: int = 0,
    timeout_ms: int = WAIT_MS,
) -> ElectLeadersResponse:
    request = ElectLeadersRequest(
        election_type=election_type, topic_partitions=asked, timeout_ms=timeout_ms
    )
    return connection.ask(request, version)


@pytest.mark.parametrize("version", range(3))
def test_election_that_is_not_needed_says_so(wire: Speaker, version: int) -> None:
    topic, _ = create_topic(wire, partitions=2)
    asked = [
        TopicPartitions(topic=topic, partitions=[0, 1, 9]),
        TopicPartitions(topic="nowhere", partitions=[0]),
    ]
    for election_type in (0, 1) if version >= 1 else (0,):
        answer = elect(wire, asked, version=version, election_type=election_type)
        assert answer.error_code == 0
        found = {
            (result.topic, part.partition_id): ErrorCode(part.error_code)
            for result in answer.replica_election_results
            for part in result.partition_result
        }
        assert found == {
            (topic, 0): ErrorCode.ELECTION_NOT_NEEDED,
            (topic, 1): ErrorCode.ELECTION_NOT_NEEDED,
            (topic, 9): ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
            ("nowhere", 0): ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        }


def test_election_of_all_names_what_was_done_only(wire: Speaker, topic: str) -> None:
    answer = elect(wire, None)
    assert (answer.error_code, answer.replica_election_results) == (0, [])


@pytest.mark.parametrize("version", [1, 2])
def test_unknown_kind_of_election_is_refused(wire: Speaker, topic: str, version: int) -> None:
    asked = [TopicPartitions(topic=topic, partitions=[0])]
    answer = elect(wire, asked, version=version, election_type=7)
    assert answer.error_code == ErrorCode.INVALID_REQUEST


@pytest.mark.parametrize("version", range(3))
def test_election_without_time_times_out_and_harms_nothing(
    wire: Speaker, topic: str, version: int
) -> None:
    asked = [TopicPartitions(topic=topic, partitions=[0])]
    seen = set()
    for _ in range(20):
        answer = elect(wire, asked, version=version, timeout_ms=0)
        seen |= {part.error_code for part in answer.replica_election_results[0].partition_result}
    assert seen <= {ErrorCode.REQUEST_TIMED_OUT, ErrorCode.ELECTION_NOT_NEEDED}
    assert elect(wire, asked).error_code == 0
    (created,) = create(wire, new_topic())
    assert created.error_code == 0
