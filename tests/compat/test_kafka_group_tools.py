"""Apache Kafka's own tools for consumer groups against a broker: consumers, and the operator's.

What they change is looked at with another client.
"""

from __future__ import annotations

import itertools
import json
import re
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path

import pytest
from confluent_kafka import Consumer
from confluent_kafka import TopicPartition as Place

from plog.client.group_admin import GroupAdmin
from tests.compat.clients import PATIENCE_S, Confluent, Sent, read_all
from tests.compat.kafka_tools import TOOLS, Tools
from tests.planes import Plane
from tests.servers import BrokerProcess

pytestmark = pytest.mark.parametrize("tools", TOOLS, ids=repr)

NewTopic = Callable[..., str]
STAMP = 1_700_000_000_000
SECOND_MS = 1000
"""Between the timestamps of two records."""
_numbers = itertools.count()


@pytest.fixture
def group() -> str:
    return f"tools-group-{next(_numbers)}"


def send(broker: BrokerProcess, topic: str, count: int, partition: int = 0) -> None:
    records = [Sent(b"k%d" % n, b"v%d" % n, timestamp=STAMP + n * SECOND_MS) for n in range(count)]
    Confluent().produce(broker.bootstrap, topic, records, partition=partition)


def member(broker: BrokerProcess, group: str) -> Consumer:
    return Consumer(
        {
            "bootstrap.servers": broker.bootstrap,
            "group.id": group,
            "client.id": "somebody",
            "enable.auto.commit": False,
        }
    )


def commit(broker: BrokerProcess, group: str, topic: str, offsets: dict[int, int]) -> None:
    consumer = member(broker, group)
    places = [Place(topic, partition, offset) for partition, offset in offsets.items()]
    consumer.commit(offsets=places, asynchronous=False)
    consumer.close()


def committed(broker: BrokerProcess, group: str, topic: str, partitions: int) -> list[int | None]:
    """Return what a group has committed of each partition."""
    consumer = member(broker, group)
    places = consumer.committed([Place(topic, n) for n in range(partitions)], PATIENCE_S)
    consumer.close()
    return [place.offset if place.offset >= 0 else None for place in places]


@contextmanager
def consuming(broker: BrokerProcess, group: str, topic: str) -> Iterator[None]:
    """Have one member in the group, which has got all partitions."""
    consumer = member(broker, group)
    consumer.subscribe([topic])
    until = time.monotonic() + PATIENCE_S
    while not consumer.assignment():
        assert time.monotonic() < until, "nothing was assigned"
        consumer.poll(0.1)
    yield
    consumer.close()


def told_rows(told: str) -> list[dict[str, str]]:
    """Return the rows of a table whose head begins with GROUP."""
    lines = [line.split() for line in told.splitlines() if line.strip()]
    first = next(n for n, words in enumerate(lines) if words[0] == "GROUP")
    return [dict(zip(lines[first], words, strict=False)) for words in lines[first + 1 :]]


class Groups:
    """`kafka-consumer-groups` of a release, for a broker."""

    def __init__(self, tools: Tools, broker: BrokerProcess) -> None:
        self._tools = tools
        self._first = ("ConsumerGroupCommand", "--bootstrap-server", broker.bootstrap)

    def __call__(self, *arguments: object) -> str:
        return self._tools.run(*self._first, "--timeout", 60_000, *arguments)

    def places(self, group: str) -> list[tuple[str, str, str, str]]:
        """Return partition, committed offset, end and lag of a group's partitions."""
        rows = told_rows(self("--describe", "--group", group))
        columns = ("PARTITION", "CURRENT-OFFSET", "LOG-END-OFFSET", "LAG")
        return sorted(tuple(row[one] for one in columns) for row in rows)

    def reset(self, group: str, topic: str, *how: object, execute: bool = True) -> list[int]:
        """Reset offsets, or only ask what would come of it; return what the tool tells."""
        does = "--execute" if execute else "--dry-run"
        told = self("--reset-offsets", "--group", group, "--topic", topic, *how, does)
        # 3.9 has no line break between the head and the first row.
        rows = re.findall(rf"{group} +{topic} +(\d+) +(\d+)", told)
        return [int(offset) for _, offset in sorted(rows)]


@pytest.fixture
def groups(tools: Tools, broker: BrokerProcess) -> Groups:
    return Groups(tools, broker)


def test_performance_tool_of_consumers_reads_everything(
    tools: Tools, broker: BrokerProcess, new_topic: NewTopic, group: str
) -> None:
    name = new_topic(2)
    for partition in range(2):
        send(broker, name, 1_000, partition)
    told = tools.run(
        "ConsumerPerformance", "--bootstrap-server", broker.bootstrap, "--topic", name,
        "--messages", 2_000, "--group", group, "--timeout", 60_000,
    )  # fmt: skip
    head, figures = (
        [word.strip() for word in line.split(",")] for line in told.splitlines() if "," in line
    )
    told_of = dict(zip(head, figures, strict=True))
    assert told_of["data.consumed.in.nMsg"] == "2000"
    size = sum(
        len(record.key or b"") + len(record.value or b"")
        for partition in range(2)
        for _, record in read_all(broker.bootstrap, name, partition)
    )
    assert float(told_of["data.consumed.in.MB"]) == pytest.approx(size / 2**20, abs=0.0001)
    assert committed(broker, group, name, 2) == [1_000, 1_000]


def test_console_consumer_goes_on_where_its_group_left_off(
    tools: Tools, broker: BrokerProcess, new_topic: NewTopic, group: str
) -> None:
    name = new_topic()
    send(broker, name, 100)

    def read(count: int) -> list[str]:
        return tools.run(
            "ConsoleConsumer", "--bootstrap-server", broker.bootstrap, "--topic", name,
            "--group", group, "--from-beginning", "--max-messages", count, "--timeout-ms", 60_000,
        ).split()  # fmt: skip

    assert read(60) == [f"v{n}" for n in range(60)]
    assert committed(broker, group, name, 1) == [60]
    assert read(40) == [f"v{n}" for n in range(60, 100)]


@pytest.mark.parametrize("protocol", ["classic", "consumer"])
def test_consumer_of_the_system_tests_commits_what_it_reads(
    tools: Tools, broker: BrokerProcess, new_topic: NewTopic, group: str, protocol: str
) -> None:
    name = new_topic(3)
    for partition in range(3):
        send(broker, name, 100, partition)
    told = tools.run(
        "VerifiableConsumer", "--bootstrap-server", broker.bootstrap, "--topic", name,
        "--group-id", group, "--max-messages", 300, "--reset-policy", "earliest",
        "--group-protocol", protocol,
    )  # fmt: skip
    with GroupAdmin(broker.bootstrap) as admin:
        (found,) = [one for one in admin.groups() if one.group_id == group]
    assert found.group_type == protocol
    events = [json.loads(line) for line in told.splitlines() if line.startswith("{")]
    assigned = [event["partitions"] for event in events if event["name"] == "partitions_assigned"]
    assert [len(partitions) for partitions in assigned] == [3]
    consumed = [event["count"] for event in events if event["name"] == "records_consumed"]
    assert sum(consumed) == 300
    commits = [event for event in events if event["name"] == "offsets_committed"]
    assert all(event["success"] for event in commits)
    assert committed(broker, group, name, 3) == [100] * 3


def test_groups_are_listed_and_described(
    groups: Groups, broker: BrokerProcess, new_topic: NewTopic, group: str
) -> None:
    name = new_topic(2)
    send(broker, name, 10)
    commit(broker, group, name, {0: 4, 1: 0})
    assert group in groups("--list").split()
    assert groups.places(group) == [("0", "4", "10", "6"), ("1", "0", "0", "0")]
    assert re.search(rf"{group} .* Empty +0\b", groups("--describe", "--group", group, "--state"))
    with consuming(broker, group, name):
        listed = groups("--list", "--state", "stable")
        assert re.search(rf"^{group} +.*Stable", listed, re.MULTILINE), listed
        rows = told_rows(groups("--describe", "--group", group))
        assert {row["CLIENT-ID"] for row in rows} == {"somebody"}
        assert {row["HOST"] for row in rows} == {"/127.0.0.1"}
        members = groups("--describe", "--group", group, "--members", "--verbose")
        (row,) = told_rows(members)
        assert row["CONSUMER-ID"].startswith("somebody-")
        assert (row["CLIENT-ID"], row["#PARTITIONS"]) == ("somebody", "2")
        # 3.9 leaves the topic's name out.
        assert re.search(rf"\(0,1\)|{name}:0,1", members), members
        state = groups("--describe", "--group", group, "--state")
        assert re.search(rf"{group} .* range +Stable +1\b", state), state
        assert any(f"127.0.0.1:{one.port}" in state for one in broker.all)


def test_offsets_are_reset(
    groups: Groups, broker: BrokerProcess, new_topic: NewTopic, group: str
) -> None:
    name = new_topic(2)
    for partition in range(2):
        send(broker, name, 10, partition)
    commit(broker, group, name, {0: 5, 1: 7})
    assert groups.reset(group, name, "--to-latest", execute=False) == [10, 10]
    assert committed(broker, group, name, 2) == [5, 7]
    fourth = datetime.fromtimestamp((STAMP + 4 * SECOND_MS) / 1000, UTC)
    for how, expected in [
        (("--shift-by", -2), [3, 5]),
        (("--to-latest",), [10, 10]),
        (("--to-datetime", fourth.strftime("%Y-%m-%dT%H:%M:%S.000+00:00")), [4, 4]),
        (("--to-earliest",), [0, 0]),
    ]:
        assert groups.reset(group, name, *how) == expected
        assert committed(broker, group, name, 2) == expected
    # One that does not exist comes to be, as by `plog groups reset`.
    assert groups.reset(f"new-{group}", name, "--to-latest") == [10, 10]
    assert committed(broker, f"new-{group}", name, 2) == [10, 10]


def test_offsets_and_groups_are_deleted(
    groups: Groups, broker: BrokerProcess, new_topic: NewTopic, group: str
) -> None:
    name, other = new_topic(2), new_topic()
    commit(broker, group, name, {0: 0, 1: 0})
    commit(broker, group, other, {0: 0})
    with consuming(broker, group, other):
        # Those of topics that nobody reads may go while the group lives.
        groups("--delete-offsets", "--group", group, "--topic", name)
        assert committed(broker, group, name, 2) == [None, None]
        told = groups("--delete-offsets", "--group", group, "--topic", other)
        assert "subscribed" in told, told
        assert "not empty" in groups("--delete", "--group", group)
    assert committed(broker, group, other, 1) == [0]
    assert "successful" in groups("--delete", "--group", group)
    assert group not in groups("--list").split()


def test_dump_tool_reads_the_offsets_topic(tools: Tools, plane: Plane, tmp_path: Path) -> None:
    settings: dict[str, object] = {
        "offsets.topic.num.partitions": 1,
        "group.initial.rebalance.delay.ms": 0,
    }
    with BrokerProcess(tmp_path, overrides=settings) as broker:
        send(broker, "read", 10)
        commit(broker, "finished", "read", {0: 4})
        with consuming(broker, "g", "read"):
            pass
    (log,) = broker.partition_dir("__consumer_offsets-0").glob("*.log")
    told = tools.run("DumpLogSegments", "--offsets-decoder", "--files", log)
    records = [
        (json.loads(key), json.loads(payload))
        for key, payload in re.findall(r"key: (\{.*\}) payload: (\{.*\})$", told, re.MULTILINE)
    ]
    (key, payload), *generations = records
    assert key["data"] == {"group": "finished", "topic": "read", "partition": 0}
    assert payload["data"]["offset"] == 4
    assert [key["data"] for key, _ in generations] == [{"group": "g"}] * 2
    (_, stable), (_, empty) = generations
    (only,) = stable["data"]["members"]
    assert (stable["data"]["protocol"], only["clientId"]) == ("range", "somebody")
    assert only["memberId"] == stable["data"]["leader"]
    assert only["subscription"]["topics"] == ["read"]
    assert only["assignment"]["assignedPartitions"] == [{"topic": "read", "partitions": [0]}]
    assert empty["data"]["members"] == []
