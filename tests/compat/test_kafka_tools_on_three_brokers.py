"""Kafka's own tools against three brokers on a real ZooKeeper.

The tools ask one broker, and find the others by it. Another broker shows what they have changed.
"""

from __future__ import annotations

import itertools
import json
import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from plog.client.admin import Admin
from plog.client.group_admin import GroupAdmin
from plog.protocol.api_keys import ApiKey
from plog.types import TopicPartition
from tests.cluster.processes import Brokers
from tests.cluster.spanning import NONE, at_last
from tests.compat.clients import Confluent, Sent, read_all
from tests.compat.kafka_tools import TOOLS, Tools
from tests.compat.live_kafka import KAFKA_3_9, ZooKeeper
from tests.coordinator.conftest import GROUP, TRANSACTION
from tests.group_members import member
from tests.handlers.wire import NOW_MS
from tests.routed import Routed
from tests.several_brokers import is_led
from tests.transactions.hanging import leave_hanging
from tests.transactions.transactor import Transactor, read
from tests.waiting import until

IDS = (0, 1, 2)
SETTINGS = {
    "offsets_topic_num_partitions": 3,
    "transaction_state_log_num_partitions": 3,
    "group_initial_rebalance_delay_ms": 0,
    # Only the tools elect.
    "auto_leader_rebalance_enable": False,
}
_numbers = itertools.count()

pytestmark = pytest.mark.parametrize(
    "tools",
    [pytest.param(one, marks=[] if one is KAFKA_3_9 else pytest.mark.long) for one in TOOLS],
    ids=repr,
)


@pytest.fixture(scope="module")
def zookeeper(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ZooKeeper]:
    running = ZooKeeper(tmp_path_factory.mktemp("zookeeper"), stops=False)
    yield running
    running.kill()


@pytest.fixture(scope="module")
def brokers(zookeeper: ZooKeeper, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Brokers]:
    running = Brokers(tmp_path_factory.mktemp("brokers"), zookeeper.bootstrap, **SETTINGS)
    with running:
        yield running
    for one in running.brokers:
        assert "failed with an internal error" not in one.log, one.log


@pytest.fixture
def routed(brokers: Brokers) -> Iterator[Routed]:
    with closing(Routed(brokers.ports)) as wire:
        yield wire


@pytest.fixture
def topic(brokers: Brokers) -> str:
    """A topic of six partitions, two on each broker."""
    name = fresh("t")
    with Admin(brokers.bootstrap) as admin:
        admin.create_topic(name, partitions=6)
    brokers.all_until(lambda admin: is_led(admin, name, 6))
    return name


def fresh(prefix: str) -> str:
    return f"{prefix}{next(_numbers)}"


def write(brokers: Brokers, topic: str, values: Mapping[int, Sequence[bytes]]) -> None:
    """Write values to the partitions of a topic with another client."""
    client = Confluent()
    producer = client.producer(brokers.bootstrap, idempotent=False)
    for partition, some in values.items():
        client.write(producer, topic, [Sent(None, value) for value in some], partition=partition)


class Tool:
    """A tool of a release, and the brokers by which it may find the cluster."""

    def __init__(self, tools: Tools, name: str, brokers: Brokers) -> None:
        self._tools = tools
        self._name = name
        self._brokers = brokers

    def __call__(self, *arguments: object, at: tuple[int, ...] = IDS, status: int = 0) -> str:
        """Run it to its end, with the addresses of some brokers; return its output."""
        bootstrap = ",".join(self._brokers[broker_id].bootstrap for broker_id in at)
        command = (self._name, "--bootstrap-server", bootstrap, *arguments)
        return self._tools.run(*command, status=status)


def partitions_of(described: str) -> list[tuple[int, str, str, str]]:
    """Return number, leader, replicas and in-sync replicas of each partition."""
    row = r"Partition: (\d+)\s+Leader: (\w+)\s+Replicas: (\S+)\s+Isr: (\S*)"
    return [(int(number), *rest) for number, *rest in re.findall(row, described)]


def rows(printed: str, first: str) -> list[dict[str, str]]:
    """Return the rows of a table whose head begins with a word."""
    lines = [line.split() for line in printed.splitlines() if line.strip()]
    head = next(number for number, words in enumerate(lines) if words[0] == first)
    return [dict(zip(lines[head], words, strict=False)) for words in lines[head + 1 :]]


# -- kafka-topics ----------------------------------------------------------------------------------


def test_topics_are_spread_grown_and_deleted(tools: Tools, brokers: Brokers) -> None:
    topics = Tool(tools, "TopicCommand", brokers)
    name, placed = fresh("t"), fresh("t")
    topics("--create", "--topic", name, "--partitions", 6, at=(1,))
    topics("--create", "--topic", placed, "--replica-assignment", "2,0,1,2", at=(2,))
    brokers.all_until(lambda admin: is_led(admin, placed, 4))
    for broker_id in IDS:
        described = partitions_of(topics("--describe", "--topic", name, at=(broker_id,)))
        assert [number for number, *_ in described] == list(range(6))
        assert Counter(leader for _, leader, *_ in described) == {"0": 2, "1": 2, "2": 2}
        assert all(leader == replicas == isr for _, leader, replicas, isr in described)
        described = partitions_of(topics("--describe", "--topic", placed, at=(broker_id,)))
        assert [leader for _, leader, *_ in described] == ["2", "0", "1", "2"]
    topics("--alter", "--topic", name, "--partitions", 9)
    brokers.all_until(lambda admin: is_led(admin, name, 9))
    described = partitions_of(topics("--describe", "--topic", name))
    assert Counter(leader for _, leader, *_ in described) == {"0": 3, "1": 3, "2": 3}
    for question in ("--unavailable-partitions", "--under-replicated-partitions"):
        assert topics("--describe", question).strip() == ""
    topics("--delete", "--topic", name, at=(0,))
    brokers.all_until(lambda admin: name not in admin.topics())
    for broker_id in IDS:
        listed = topics("--list", at=(broker_id,)).split()
        assert name not in listed
        assert placed in listed
        (log_dir,) = brokers[broker_id].log_dirs
        until(lambda log_dir=log_dir: not list(log_dir.glob(f"{name}-[0-9]")), "off the disk")


def test_replicas_are_placed_and_come_in_sync(tools: Tools, brokers: Brokers) -> None:
    topics = Tool(tools, "TopicCommand", brokers)
    name, refused = fresh("t"), fresh("t")
    topics("--create", "--topic", name, "--partitions", 3, "--replication-factor", 2, at=(1,))
    brokers.all_until(lambda admin: is_led(admin, name, 3))
    described = partitions_of(topics("--describe", "--topic", name))
    assert Counter(leader for _, leader, *_ in described) == {"0": 1, "1": 1, "2": 1}
    for _, leader, replicas, isr in described:
        assert replicas.split(",")[0] == leader
        assert len(set(replicas.split(","))) == 2
        assert sorted(isr.split(",")) == sorted(replicas.split(","))
    factor = len(IDS) + 1
    said = topics("--create", "--topic", refused, "--replication-factor", factor, status=1)
    assert "eplication factor" in said
    with Admin(brokers.bootstrap) as admin:
        assert refused not in admin.topics()


# -- kafka-configs ---------------------------------------------------------------------------------


def test_settings_that_are_changed_by_one_broker_hold_on_all(
    tools: Tools, brokers: Brokers, topic: str
) -> None:
    configs = Tool(tools, "ConfigCommand", brokers)
    of_topic = ("--entity-type", "topics", "--entity-name", topic)
    configs(*of_topic, "--alter", "--add-config", "max.message.bytes=2000", at=(0,))
    for broker_id in IDS:
        until(
            lambda broker_id=broker_id: (
                "max.message.bytes=2000" in configs(*of_topic, "--describe", at=(broker_id,))
            ),
            f"described by broker {broker_id}",
        )
    for partition in range(3):  # one on each broker
        write(brokers, topic, {partition: [b"v" * 1000]})
        with pytest.raises(AssertionError, match="MSG_SIZE_TOO_LARGE"):
            write(brokers, topic, {partition: [b"v" * 3000]})
    configs(*of_topic, "--alter", "--delete-config", "max.message.bytes", at=(2,))
    for broker_id in IDS:
        until(
            lambda broker_id=broker_id: (
                "max.message.bytes" not in configs(*of_topic, "--describe", at=(broker_id,))
            ),
            f"described by broker {broker_id}",
        )


def test_brokers_have_settings_of_their_own_and_common_ones(tools: Tools, brokers: Brokers) -> None:
    configs = Tool(tools, "ConfigCommand", brokers)

    def described(broker_id: int | None, *options: str, at: int) -> str:
        entity = ("--entity-default",) if broker_id is None else ("--entity-name", broker_id)
        return configs("--entity-type", "brokers", *entity, "--describe", *options, at=(at,))

    one = ("--entity-type", "brokers", "--entity-name", 1)
    every = ("--entity-type", "brokers", "--entity-default")
    configs(*one, "--alter", "--add-config", "log.retention.ms=7000000", at=(2,))
    configs(*every, "--alter", "--add-config", "log.cleaner.threads=2", at=(0,))
    own, common = "DYNAMIC_BROKER_CONFIG:log.retention.ms=7000000", "log.cleaner.threads=2"
    # Its own broker answers, whichever the tool begins with.
    until(lambda: own in described(1, at=0), "in force on broker 1")
    assert own not in described(0, at=1)
    assert own not in described(2, at=1)
    for broker_id in IDS:
        until(lambda at=broker_id: common in described(None, at=at), "known")
        until(
            lambda at=broker_id: (
                f"DYNAMIC_DEFAULT_BROKER_CONFIG:{common}" in described(at, "--all", at=(at + 1) % 3)
            ),
            f"in force on broker {broker_id}",
        )
    configs(*one, "--alter", "--delete-config", "log.retention.ms", at=(0,))
    configs(*every, "--alter", "--delete-config", "log.cleaner.threads", at=(1,))
    for broker_id in IDS:
        until(lambda at=broker_id: not {own, common} & set(described(at, at=at).split()), "default")


def test_log_levels_are_each_broker_s_own(tools: Tools, brokers: Brokers) -> None:
    configs = Tool(tools, "ConfigCommand", brokers)

    def level(broker_id: int) -> str:
        named = ("--entity-type", "broker-loggers", "--entity-name", broker_id, "--describe")
        (found,) = re.findall(r"^ +plog\.storage\.log=(\w+) ", configs(*named), re.M)
        return str(found)

    loggers = ("--entity-type", "broker-loggers", "--entity-name", 2)
    configs(*loggers, "--alter", "--add-config", "plog.storage.log=DEBUG", at=(0,))
    assert [level(broker_id) for broker_id in IDS] == ["INFO", "INFO", "DEBUG"]
    configs(*loggers, "--alter", "--delete-config", "plog.storage.log", at=(1,))
    assert [level(broker_id) for broker_id in IDS] == ["INFO"] * 3


# -- kafka-consumer-groups -------------------------------------------------------------------------


@pytest.mark.parametrize("coordinator", IDS)
def test_groups_are_described_reset_and_deleted_by_any_broker(
    tools: Tools, brokers: Brokers, routed: Routed, topic: str, coordinator: int
) -> None:
    groups = Tool(tools, "ConsumerGroupCommand", brokers)
    write(brokers, topic, dict.fromkeys(range(6), [b"v"] * 10))
    group = routed.name_on(GROUP, coordinator, fresh("group"))
    others = [broker_id for broker_id in IDS if broker_id != coordinator]
    committed = {partition: partition for partition in range(6)}

    def offsets(at: int) -> dict[int, tuple[str, str, str]]:
        printed = groups("--describe", "--group", group, at=(at,))
        columns = ("CURRENT-OFFSET", "LOG-END-OFFSET", "LAG")
        return {
            int(row["PARTITION"]): tuple(row[column] for column in columns)
            for row in rows(printed, "GROUP")
        }

    with member(brokers[others[0]].bootstrap, group, topic, committed):
        for broker_id in IDS:
            assert group in groups("--list", at=(broker_id,)).split()
            state = groups("--describe", "--group", group, "--state", at=(broker_id,))
            assert re.search(rf"{brokers[coordinator].bootstrap} +\({coordinator}\) ", state), state
            assert re.search(r"\bStable +1\b", state), state
            assert offsets(broker_id) == {n: (str(n), "10", str(10 - n)) for n in range(6)}
    reset = ("--reset-offsets", "--group", group, "--topic", f"{topic}:0,1,2", "--to-latest")
    groups(*reset, "--execute", at=(others[0],))
    for broker_id in IDS:
        found = [offset for _, (offset, *_) in sorted(offsets(broker_id).items())]
        assert found == ["10", "10", "10", "3", "4", "5"]
    forgotten = groups(
        "--delete-offsets", "--group", group, "--topic", f"{topic}:3", at=(others[1],)
    )
    assert "Successful" in forgotten
    assert sorted(offsets(others[0])) == [0, 1, 2, 4, 5]
    assert "successful" in groups("--delete", "--group", group, at=(others[1],))
    for broker_id in IDS:
        assert group not in groups("--list", at=(broker_id,)).split()
    with GroupAdmin(brokers.bootstrap) as admin:
        assert group not in {one.group_id for one in admin.groups()}


# -- kafka-transactions ----------------------------------------------------------------------------


def test_transactions_of_all_coordinators_are_listed_and_described(
    tools: Tools, brokers: Brokers, routed: Routed, topic: str
) -> None:
    transactions = Tool(tools, "TransactionsCommand", brokers)
    places = [TopicPartition(topic, partition) for partition in range(3)]
    open_ones: dict[int, Transactor] = {}
    for broker_id in IDS:
        name = routed.name_on(TRANSACTION, broker_id, fresh("tx"))
        open_ones[broker_id] = one = Transactor(routed, name).start()
        for at in places:
            one.join(at)
            # A leader that has just started may not know the coordinator yet: clients ask again.
            assert at_last(lambda at=at, one=one: one.produce(at, b"v").error_code) is NONE
    for asked in IDS:
        listed = rows(transactions("list", at=(asked,)), "TransactionalId")
        found = {row["TransactionalId"]: row for row in listed}
        for broker_id, one in open_ones.items():
            row = found[one.transactional_id]
            assert row["Coordinator"] == str(broker_id)
            assert row["ProducerId"] == str(one.producer.id)
            assert row["TransactionState"] == "Ongoing"
            name = ("--transactional-id", one.transactional_id)
            said = transactions("describe", *name, at=(asked,))
            (row,) = rows(said, "CoordinatorId")
            assert (row["CoordinatorId"], row["ProducerId"], row["TransactionState"]) == (
                *(str(broker_id), str(one.producer.id), "Ongoing"),
            )
            assert all(str(at) in said for at in places)
    for at in places:
        partition = ("--topic", at.topic, "--partition", at.partition)
        said = rows(transactions("describe-producers", *partition), "ProducerId")
        assert {(row["ProducerId"], row["CurrentTransactionStartOffset"]) for row in said} == {
            (str(one.producer.id), str(offset)) for offset, one in enumerate(open_ones.values())
        }
    for one in open_ones.values():
        one.finish(commit=True)
    assert [len(read(routed, at)) for at in places] == [3, 3, 3]


@pytest.mark.parametrize(("coordinator", "leader"), [(0, 1), (1, 2), (2, 0)])
def test_transaction_that_hangs_on_another_broker_is_found_and_aborted(
    tools: Tools, brokers: Brokers, routed: Routed, topic: str, coordinator: int, leader: int
) -> None:
    transactions = Tool(tools, "TransactionsCommand", brokers)
    at = next(
        place
        for place in (TopicPartition(topic, partition) for partition in range(6))
        if routed.leader(place) == leader
    )
    name = routed.name_on(TRANSACTION, coordinator, fresh("tx"))
    one = Transactor(routed, name).start()
    start = leave_hanging(one, at, b"hangs", timestamp=NOW_MS - 600_000)

    def hanging(broker_id: int) -> set[tuple[str, ...]]:
        limits = ("--broker-id", broker_id, "--max-transaction-timeout", 1)
        found = rows(transactions("find-hanging", *limits, at=(coordinator,)), "Topic")
        columns = ("Topic", "Partition", "ProducerId", "StartOffset")
        return {tuple(row[column] for column in columns) for row in found}

    found = (topic, str(at.partition), str(one.producer.id), str(start))
    assert [hanging(broker_id) for broker_id in IDS] == [
        {found} if broker_id == leader else set() for broker_id in IDS
    ]
    partition = ("--topic", at.topic, "--partition", at.partition)
    transactions("abort", *partition, "--start-offset", start, at=(coordinator,))
    (producer,) = rows(transactions("describe-producers", *partition), "ProducerId")
    assert producer["CurrentTransactionStartOffset"] == "None"
    assert hanging(leader) == set()
    until(lambda: one.described().transaction_state == "CompleteCommit", "ended by the coordinator")
    assert read(routed, at) == []


# -- kafka-log-dirs, kafka-broker-api-versions -----------------------------------------------------


def test_log_directories_of_all_brokers_are_described(
    tools: Tools, brokers: Brokers, topic: str
) -> None:
    log_dirs = Tool(tools, "LogDirsCommand", brokers)
    write(brokers, topic, {partition: [b"v" * 10 * (partition + 1)] for partition in range(6)})

    def described(*arguments: object) -> dict[int, Any]:
        said = log_dirs("--describe", "--topic-list", topic, *arguments, at=(1,))
        (text,) = [line for line in said.splitlines() if line.startswith("{")]
        return {one["broker"]: one["logDirs"] for one in json.loads(text)["brokers"]}

    found = described()
    assert sorted(found) == list(IDS)
    for broker_id, described_dirs in found.items():
        (one,) = described_dirs
        (log_dir,) = brokers[broker_id].log_dirs
        assert (one["logDir"], one["error"]) == (str(log_dir), None)
        on_disk = {
            log.name: sum(file.stat().st_size for file in log.glob("*.log"))
            for log in log_dir.glob(f"{topic}-[0-9]")
        }
        assert {part["partition"]: part["size"] for part in one["partitions"]} == on_disk
        assert len(on_disk) == 2
        assert min(on_disk.values()) > 0
    assert described("--broker-list", "2") == {2: found[2]}


def test_versions_of_each_broker_are_listed(tools: Tools, brokers: Brokers, routed: Routed) -> None:
    said = Tool(tools, "BrokerApiVersionsCommand", brokers)(at=(0,))
    parts = re.split(r"^(\S+) \(id: (\d+) rack: \S+.*\) -> \($", said, flags=re.M)[1:]
    found = {int(parts[n + 1]): (parts[n], parts[n + 2]) for n in range(0, len(parts), 3)}
    assert sorted(found) == list(IDS)
    for broker_id, (address, table) in found.items():
        assert address == brokers[broker_id].bootstrap
        printed = {
            int(key): (int(first), int(last or first))
            for key, first, last in re.findall(r"\((\d+)\): (\d+)(?: to (\d+))? \[usable", table)
        }
        served = routed.to(broker_id).versions
        assert printed.keys() <= served.keys()
        assert printed == {key: served[key] for key in printed}
        clients = {ApiKey.PRODUCE, ApiKey.FETCH, ApiKey.FIND_COORDINATOR, ApiKey.END_TXN}
        assert printed.keys() > clients


# -- kafka-reassign-partitions ---------------------------------------------------------------------


def test_partitions_move_with_their_records(
    tools: Tools, brokers: Brokers, topic: str, tmp_path: Path
) -> None:
    tool = Tool(tools, "ReassignPartitionsCommand", brokers)
    described = partitions_of(Tool(tools, "TopicCommand", brokers)("--describe", "--topic", topic))
    before = {number: [int(leader)] for number, leader, *_ in described}
    write(brokers, topic, {number: [b"v%d" % number] for number in before})
    plan = tmp_path / "plan.json"

    def reassign(replicas: Mapping[int, Sequence[int]], *step: str) -> str:
        moves = [
            {"topic": topic, "partition": number, "replicas": list(ids)}
            for number, ids in replicas.items()
        ]
        plan.write_text(json.dumps({"version": 1, "partitions": moves}))
        return tool("--reassignment-json-file", plan, *step)

    def is_over(replicas: Mapping[int, Sequence[int]]) -> bool:
        return reassign(replicas, "--verify").count("is completed") == len(replicas)

    def found() -> dict[int, list[int]]:
        with Admin(brokers.bootstrap) as admin:
            parts = admin.topic(topic).partitions
        return {number: list(part.replicas) for number, part in parts.items()}

    both = {number: [(one + 1) % len(IDS), one] for number, (one,) in before.items()}
    after = {number: ids[:1] for number, ids in both.items()}
    for replicas in (both, after):
        assert "Successfully started" in reassign(replicas, "--execute")
        until(lambda replicas=replicas: is_over(replicas), "the moves are over", timeout_s=60)
        assert found() == replicas
    assert "No partition reassignments found." in tool("--list")
    for number in before:
        found_there = read_all(brokers.bootstrap, topic, number)
        assert [sent.value for _, sent in found_there] == [b"v%d" % number]


def test_move_to_a_broker_that_hangs_is_listed_and_cancelled(
    tools: Tools, brokers: Brokers, topic: str, tmp_path: Path
) -> None:
    tool = Tool(tools, "ReassignPartitionsCommand", brokers)
    hangs = next(broker_id for broker_id in IDS if broker_id != brokers.controller)
    rest = tuple(broker_id for broker_id in IDS if broker_id != hangs)
    with Admin(brokers.bootstrap) as admin:
        parts = admin.topic(topic).partitions
    number = next(number for number, part in parts.items() if part.leader_id != hangs)
    leader = parts[number].leader_id
    move = {"topic": topic, "partition": number, "replicas": [hangs]}  # 3.9's tool cancels no other
    plan = tmp_path / "plan.json"
    plan.write_text(json.dumps({"version": 1, "partitions": [move]}))
    with brokers[hangs].suspended():
        tool("--reassignment-json-file", plan, "--execute", at=rest)
        assert f"{topic}-{number}: replicas:" in tool("--list", at=rest)
        said = tool("--reassignment-json-file", plan, "--cancel", "--preserve-throttles", at=rest)
        assert "Successfully cancelled" in said
        assert "No partition reassignments found." in tool("--list", at=rest)
    brokers.until_known()
    with Admin(brokers.bootstrap) as admin:
        assert list(admin.topic(topic).partitions[number].replicas) == [leader]


# -- kafka-leader-election -------------------------------------------------------------------------


def leaderless(admin: Admin, topic: str) -> set[int]:
    parts = admin.topic(topic).partitions
    return {number for number, part in parts.items() if part.leader_id < 0}


def test_leaders_are_elected_once_their_broker_is_back(
    tools: Tools, brokers: Brokers, topic: str, tmp_path: Path
) -> None:
    elect = Tool(tools, "LeaderElectionCommand", brokers)
    topics = Tool(tools, "TopicCommand", brokers)
    leaders = {
        number: int(leader)
        for number, leader, *_ in partitions_of(topics("--describe", "--topic", topic))
    }
    away = next(broker_id for broker_id in IDS if broker_id != brokers.controller)
    rest = tuple(broker_id for broker_id in IDS if broker_id != away)
    lost = [number for number, leader in leaders.items() if leader == away]
    kept = [number for number, leader in leaders.items() if leader != away]
    chosen = tmp_path / "partitions.json"
    of_topic = [{"topic": topic, "partition": number} for number in leaders]
    chosen.write_text(json.dumps({"partitions": of_topic}))
    from_file = ("--path-to-json-file", chosen)
    preferred = ("--election-type", "preferred")

    def already_elected(said: str) -> set[str]:
        (line,) = re.findall(r"Valid replica already elected for partitions (.*)", said)
        return set(line.split(", "))

    assert already_elected(elect(*preferred, *from_file)) == {f"{topic}-{n}" for n in leaders}
    brokers[away].stop()
    brokers.until_known()
    brokers.all_until(lambda admin: leaderless(admin, topic) == set(lost))
    described = topics("--describe", "--topic", topic, "--unavailable-partitions", at=rest)
    assert [(number, leader) for number, leader, *_ in partitions_of(described)] == [
        (number, "none") for number in lost
    ]
    for election, error in (
        ("preferred", "PREFERRED_LEADER_NOT_AVAILABLE"),
        ("unclean", "ELIGIBLE_LEADERS_NOT_AVAILABLE"),
    ):
        said = elect("--election-type", election, *from_file, at=rest, status=1)
        refused = re.findall(rf"for partition: (\S+): .*{error}", said)
        assert sorted(refused) == [f"{topic}-{number}" for number in lost]
        if election == "preferred":
            assert already_elected(said) == {f"{topic}-{number}" for number in kept}
    brokers[away].start()
    brokers.until_known()
    one = ("--topic", topic, "--partition", lost[0])
    said = elect(*preferred, *one, at=rest)
    assert already_elected(said) == {f"{topic}-{lost[0]}"}
    until(lambda: not topics("--describe", "--under-replicated-partitions").strip(), "in sync")
    elect(*preferred, "--all-topic-partitions", at=(away,))
    brokers.all_until(lambda admin: is_led(admin, topic, 6))
    for broker_id in IDS:
        described = partitions_of(topics("--describe", "--topic", topic, at=(broker_id,)))
        assert {number: int(leader) for number, leader, *_ in described} == leaders
    write(brokers, topic, {number: [b"v"] for number in leaders})
    assert [len(read_all(brokers.bootstrap, topic, number)) for number in leaders] == [1] * 6


def test_preferred_leader_is_elected_among_replicas(tools: Tools, brokers: Brokers) -> None:
    elect = Tool(tools, "LeaderElectionCommand", brokers)
    topics = Tool(tools, "TopicCommand", brokers)
    name = fresh("t")
    away = next(broker_id for broker_id in IDS if broker_id != brokers.controller)
    other = next(broker_id for broker_id in IDS if broker_id != away)
    topics("--create", "--topic", name, "--replica-assignment", f"{away}:{other}")
    brokers.all_until(lambda admin: is_led(admin, name, 1))
    write(brokers, name, {0: [b"before"]})

    def state() -> tuple[str, set[str]]:
        ((_, leader, _, isr),) = partitions_of(topics("--describe", "--topic", name, at=(other,)))
        return leader, set(isr.split(","))

    brokers[away].stop()
    until(lambda: state() == (str(other), {str(other)}), "the other replica leads")
    write(brokers, name, {0: [b"meanwhile"]})
    brokers[away].start()
    brokers.until_known()
    until(lambda: state() == (str(other), {str(away), str(other)}), "in sync again")
    one = ("--election-type", "preferred", "--topic", name, "--partition", 0)
    assert f"Successfully completed leader election (PREFERRED) for partitions {name}-0" in elect(
        *one
    )
    until(lambda: state()[0] == str(away), "the preferred replica leads")
    found = [sent.value for _, sent in read_all(brokers.bootstrap, name, 0)]
    assert found == [b"before", b"meanwhile"]


# -- kafka-replica-verification --------------------------------------------------------------------


def test_replicas_are_found_equal(tools: Tools, brokers: Brokers) -> None:
    name = fresh("t")
    with Admin(brokers.bootstrap) as admin:
        admin.create_topic(name, partitions=3, replication_factor=3)
    brokers.all_until(lambda admin: is_led(admin, name, 3))
    write(brokers, name, {number: [b"v%d" % n for n in range(100)] for number in range(3)})
    command = ("ReplicaVerificationTool", "--broker-list", brokers.bootstrap)
    lines = tools.first_lines(
        *command, "--topics-include", name, "--report-interval-ms", 300, count=5
    )
    assert "verification process is started" in lines[0]
    for line in lines[1:]:
        assert "max lag is 0 for partition" in line, line
        assert "among 3 partitions" in line, line
