"""Groups of the consumer protocol (KIP-848), whose members are processes of real clients.

As in `test_consumer_groups`: whatever is written while a group stands still is to be read once, by
whoever has its partition, whether members came, left or were killed before - and whether they speak
this protocol or the classic one. franz-go opts in to it by its option ServerSideBalancer.

Members of each client come, read, commit, go and outlive a killed broker on both planes; what else
is asked here is answered by the coordinator.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from confluent_kafka import Consumer, Producer
from confluent_kafka import TopicPartition as Place

from plog.client.admin import GROUP, SET, Admin
from plog.client.group_admin import GroupAdmin
from tests.compat.clients import PATIENCE_S, Confluent, Sent
from tests.compat.groups import (
    LONG_SESSION_MS,
    Client,
    GroupSettings,
    Members,
    come_and_go,
    name_of,
)
from tests.compat.kafka_tools import Tools
from tests.compat.programs import FRANZ_GO, JAVA
from tests.planes import Plane
from tests.servers import BrokerProcess
from tests.several_brokers import until_topic_is_known
from tests.waiting import until

PARTITIONS = 6
NEWEST_JAVA = JAVA[-1]
CLIENTS: list[Client] = ["confluent-kafka", NEWEST_JAVA, FRANZ_GO]
ONE_IN_EVERY_RUN = [
    CLIENTS[0],
    *(pytest.param(client, marks=pytest.mark.long) for client in CLIENTS[1:]),
]
"""For tests of what the broker does alike for each of them: the others run with `--long`."""
LEAVE_AS_STATIC_MEMBERS: list[Client] = ["confluent-kafka", NEWEST_JAVA]
"""franz-go 1.22.2 does not tell its instance when it goes to come back, which Kafka refuses too."""
OVERRIDES: dict[str, object] = {
    "offsets.topic.num.partitions": 3,
    "group.initial.rebalance.delay.ms": 0,
    "group.min.session.timeout.ms": 100,
    "group.consumer.min.session.timeout.ms": 3_000,
    "group.consumer.session.timeout.ms": 3_000,
    "group.consumer.max.session.timeout.ms": LONG_SESSION_MS,
    "group.consumer.min.heartbeat.interval.ms": 300,
    "group.consumer.heartbeat.interval.ms": 300,
}
TOOLS = Tools("4.1.1")
_numbers = itertools.count()

Grouped = Callable[..., Members]


@pytest.fixture(scope="module")
def broker(plane: Plane, tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    with BrokerProcess(tmp_path_factory.mktemp("consumers"), overrides=OVERRIDES) as running:
        yield running
        assert "failed with an internal error" not in running.log, running.log


@pytest.fixture
def grouped(broker: BrokerProcess, tmp_path: Path) -> Iterator[Grouped]:
    """Make a group without members, of a topic of its own; who is left in it is killed."""
    made: list[Members] = []

    def make(**settings: str) -> Members:
        topic = f"t{next(_numbers)}"
        with Admin(broker.bootstrap) as admin:
            admin.create_topic(topic, partitions=PARTITIONS)
        # franz-go looks for topics that match its pattern when it starts, then minutes later.
        until_topic_is_known(broker.bootstrap, topic)
        changes = {"assignor": "uniform", "protocol": "consumer", **settings}
        given = GroupSettings(broker.bootstrap, f"group-of-{topic}", topic, **changes)  # type: ignore[arg-type]
        made.append(Members(given, PARTITIONS, tmp_path))
        return made[-1]

    yield make
    for group in made:
        group.end()


def lengthen_sessions(group: Members) -> None:
    """Have no session of the group's end within a test; before anybody has joined."""
    with Admin(group.settings.bootstrap) as admin:
        longer = ("consumer.session.timeout.ms", SET, str(LONG_SESSION_MS))
        admin.alter_configs(GROUP, group.settings.group, [longer])


@pytest.mark.parametrize("client", CLIENTS, ids=name_of)
def test_members_of_one_client_come_and_go(grouped: Grouped, client: Client) -> None:
    come_and_go(grouped(assignor="uniform"), client)


@pytest.mark.usefixtures("plane")
@pytest.mark.parametrize("client", ONE_IN_EVERY_RUN, ids=name_of)
def test_members_share_by_ranges(grouped: Grouped, client: Client) -> None:
    come_and_go(grouped(assignor="range"), client)


def test_members_keep_what_they_may(grouped: Grouped) -> None:
    group = grouped()
    lengthen_sessions(group)  # whose session ended would have lost what it is to keep
    first = group.start("confluent-kafka")
    group.await_share(first)
    group.write_and_await(first)
    second = group.start(NEWEST_JAVA)
    group.await_share(first, second)
    kept = set(first.has)
    told = [set(has) for has in first.assignments]
    assert all(kept <= has for has in told[told.index(set(range(PARTITIONS))) :]), first
    group.write_and_await(first, second)


@pytest.mark.usefixtures("plane")
@pytest.mark.parametrize("client", LEAVE_AS_STATIC_MEMBERS, ids=name_of)
def test_static_members_come_back_without_a_rebalance(
    broker: BrokerProcess, grouped: Grouped, client: Client
) -> None:
    group = grouped()
    lengthen_sessions(group)  # the other is away for as long as a process takes to start
    one, other = (group.start(client, instance) for instance in ("one", "other"))
    group.await_share(one, other)
    group.write_and_await(one, other)
    before = group.rebalances(broker.log)
    assert before >= 1
    had = other.has
    other.leave()
    back = group.start(client, "other")
    group.await_share(one, back)
    assert back.has == had
    group.write_and_await(one, back)
    assert group.rebalances(broker.log) == before


@pytest.mark.parametrize("client", CLIENTS, ids=name_of)
def test_members_go_on_when_their_broker_was_killed(
    broker: BrokerProcess, grouped: Grouped, client: Client
) -> None:
    group = grouped()
    first, second = group.start(client), group.start(client)
    group.await_share(first, second)
    group.write_and_await(first, second)
    broker.kill()
    broker.start()
    group.write_and_await(first, second)


@pytest.mark.usefixtures("plane")
@pytest.mark.parametrize(
    ("old", "new"),
    [
        pytest.param("confluent-kafka", "confluent-kafka", marks=pytest.mark.long),
        (NEWEST_JAVA, NEWEST_JAVA),
        (JAVA[0], "confluent-kafka"),
        ("kafka-python", NEWEST_JAVA),
        ("aiokafka", NEWEST_JAVA),
        ("confluent-kafka", FRANZ_GO),
    ],
    ids=name_of,
)
def test_group_is_upgraded_and_downgraded_one_by_one(
    broker: BrokerProcess, grouped: Grouped, old: Client, new: Client
) -> None:
    group = grouped(protocol="classic", assignor="range")
    first, second = group.start(old), group.start(old, may_be_killed=True)
    group.await_share(first, second)
    group.write_and_await(first, second)
    third = group.start(new, protocol="consumer", assignor="uniform")
    group.await_share(first, second, third)
    with GroupAdmin(broker.bootstrap) as admin:
        assert admin.describe(group.settings.group).group_type == "consumer"
    group.write_and_await(first, second, third)
    first.leave()
    fourth = group.start(new, protocol="consumer", assignor="uniform")
    group.await_share(second, third, fourth)
    group.write_and_await(second, third, fourth)
    second.kill()
    group.await_share(third, fourth)
    group.write_and_await(third, fourth)
    # And back.
    fifth = group.start(old)
    group.await_share(third, fourth, fifth)
    group.write_and_await(third, fourth, fifth)
    third.leave()
    fourth.leave()
    group.await_share(fifth)
    with GroupAdmin(broker.bootstrap) as admin:
        assert admin.describe(group.settings.group).group_type == "classic"
    group.write_and_await(fifth)
    fifth.leave()


@pytest.mark.usefixtures("plane")
def test_kafkas_tool_describes_a_group(broker: BrokerProcess, grouped: Grouped) -> None:
    group = grouped()
    first = group.start("confluent-kafka")
    group.await_share(first)
    group.write_and_await(first)
    name, topic = group.settings.group, group.settings.topic

    def tool(*arguments: object) -> str:
        command = ("ConsumerGroupCommand", "--bootstrap-server", broker.bootstrap)
        return TOOLS.run(*command, "--timeout", 60_000, *arguments)

    assert re.search(rf"^{name} +Consumer", tool("--list", "--type"), re.MULTILINE)
    assert name in tool("--list", "--type", "consumer")
    assert name not in tool("--list", "--type", "classic")
    state = tool("--describe", "--group", name, "--state", "--verbose")
    assert re.search(rf"{name} .* uniform +Stable", state), state
    members = tool("--describe", "--group", name, "--members", "--verbose")
    assert re.search(rf"{topic}:0,1,2,3,4,5", members), members
    offsets = tool("--describe", "--group", name)
    assert len(re.findall(rf"{name} +{topic} +\d +10 +10 +0 ", offsets)) == PARTITIONS, offsets
    assert "not empty" in tool("--delete", "--group", name)
    first.leave()
    assert "successful" in tool("--delete", "--group", name)


def test_kafkas_dump_tool_reads_the_records(plane: Plane, tmp_path: Path) -> None:
    overrides = {**OVERRIDES, "offsets.topic.num.partitions": 1}
    with BrokerProcess(tmp_path, overrides=overrides) as broker:
        with Admin(broker.bootstrap) as admin:
            admin.create_topic("t", partitions=2)
        settings = GroupSettings(
            broker.bootstrap, "g", "t", assignor="uniform", protocol="consumer"
        )
        group = Members(settings, 2, tmp_path)
        first = group.start("confluent-kafka")
        group.await_share(first)
        first.leave()
    (log,) = broker.partition_dir("__consumer_offsets-0").glob("*.log")
    told = TOOLS.run("DumpLogSegments", "--offsets-decoder", "--files", log)
    for number in (3, 4, 5, 6, 7, 8):
        assert re.search(rf'key: {{"type":"?{number}"?,', told), (number, told)
    assert '"subscribedTopicNames":["t"]' in told
    assert '"serverAssignor":"uniform"' in told


def test_topics_that_match_an_expression_are_read(broker: BrokerProcess) -> None:
    prefix = f"m{next(_numbers)}"
    with Admin(broker.bootstrap) as admin:
        for name in (f"{prefix}-a", f"{prefix}-b", f"other-{prefix}"):
            admin.create_topic(name, partitions=1)
        with consuming(broker, f"group-of-{prefix}", f"^{prefix}-[ab]$") as consumer:
            await_assigned(consumer, {f"{prefix}-a", f"{prefix}-b"})
        with consuming(broker, f"group-of-{prefix}", f"^{prefix}-.*") as consumer:
            await_assigned(consumer, {f"{prefix}-a", f"{prefix}-b"})


@pytest.mark.usefixtures("plane")
@pytest.mark.parametrize("client", CLIENTS, ids=name_of)
def test_members_share_what_an_expression_matches(
    broker: BrokerProcess, grouped: Grouped, client: Client
) -> None:
    """It is the broker that matches: Java's own expressions have no [[:alpha:]]."""
    group = grouped()
    topic = group.settings.topic
    with Admin(broker.bootstrap) as admin:
        admin.create_topic(f"not-{topic}", partitions=2 * PARTITIONS)
        pattern = f"^{topic}(-[[:alpha:]]+)?$"
        first, second = (group.start(client, pattern=pattern) for _ in range(2))
        group.await_share(first, second)
        group.write_and_await(first, second)


@pytest.mark.usefixtures("plane")
@pytest.mark.parametrize("client", ONE_IN_EVERY_RUN, ids=name_of)
def test_members_share_a_topic_that_matches_later(
    broker: BrokerProcess, grouped: Grouped, client: Client
) -> None:
    group = grouped()
    topic = group.settings.topic
    first, second = (group.start(client, pattern=f"^{topic}(-later)?$") for _ in range(2))
    group.await_share(first, second)
    with Admin(broker.bootstrap) as admin:
        admin.create_topic(f"{topic}-later", partitions=2 * PARTITIONS)
        have = set(range(2 * PARTITIONS))
        until(lambda: {*first.has, *second.has} == have, timeout_s=PATIENCE_S)


def test_expression_that_is_none_is_refused(grouped: Grouped) -> None:
    member = grouped().start(NEWEST_JAVA, pattern="^(?=t)")
    until(lambda: not member.is_alive, timeout_s=PATIENCE_S)
    assert "InvalidRegularExpression: " in repr(member)
    assert "invalid perl operator: (?=" in repr(member)


def test_offsets_are_committed_with_a_transaction(broker: BrokerProcess) -> None:
    topic = f"t{next(_numbers)}"
    group = f"group-of-{topic}"
    with Admin(broker.bootstrap) as admin:
        admin.create_topic(topic, partitions=1)
    records = [Sent(b"k", b"%d" % n) for n in range(5)]
    Confluent().produce(broker.bootstrap, topic, records)
    with consuming(broker, group, topic) as consumer:
        await_assigned(consumer, {topic})
        producer = Producer({"bootstrap.servers": broker.bootstrap, "transactional.id": topic})
        producer.init_transactions(PATIENCE_S)
        for offset, ends in ((3, producer.abort_transaction), (4, producer.commit_transaction)):
            producer.begin_transaction()
            producer.send_offsets_to_transaction(
                [Place(topic, 0, offset)], consumer.consumer_group_metadata(), PATIENCE_S
            )
            ends(PATIENCE_S)
        (place,) = consumer.committed([Place(topic, 0)], PATIENCE_S)
        assert place.offset == 4


@contextmanager
def consuming(broker: BrokerProcess, group: str, topic: str) -> Iterator[Consumer]:
    consumer = Consumer(
        {
            "bootstrap.servers": broker.bootstrap,
            "group.id": group,
            "group.protocol": "consumer",
            "auto.offset.reset": "earliest",
            "enable.auto.commit": False,
        }
    )
    try:
        consumer.subscribe([topic])
        yield consumer
    finally:
        consumer.close()


def await_assigned(consumer: Consumer, topics: set[str]) -> None:
    """Wait until a consumer has just these topics."""

    def is_assigned() -> bool:
        consumer.poll(0.1)
        return {place.topic for place in consumer.assignment()} == topics

    until(is_assigned, timeout_s=PATIENCE_S)
