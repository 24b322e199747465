"""`plog topics`: settings in `describe`, offsets by time, and several names."""

from __future__ import annotations

import json
from collections.abc import Mapping

import pytest

from plog.client.admin import Admin, FoundOffsets
from plog.client.metadata import TopicInfo
from plog.client.producer import Producer
from plog.errors import KafkaStorageError, NotLeaderOrFollower
from plog.types import TopicPartition
from tests.cli.test_groups import NOON_MS
from tests.client.test_group_survey import Coordinator

HOUR_MS = 3_600_000


@pytest.fixture
def written(broker, topic) -> str:
    """A topic whose partition 0 has records of 11:00, 13:00 and 12:00; partition 1 is empty."""
    with Producer(broker.bootstrap) as producer:
        for hours in (-1, 1, 0):
            at_ms = NOON_MS + hours * HOUR_MS
            producer.send(topic, b"v", partition=0, timestamp_ms=at_ms)
            producer.flush()
    return topic


def rows(done) -> list[dict[str, object]]:
    return json.loads(done.stdout)


@pytest.mark.parametrize(
    ("moment", "offset", "timestamp"),
    [
        ("2013-07-04T10:00", 0, NOON_MS - HOUR_MS),
        ("2013-07-04T12:00", 1, NOON_MS + HOUR_MS),
        ("2013-07-04T14:00+02:00", 1, NOON_MS + HOUR_MS),
        (str(NOON_MS + HOUR_MS + 1), None, None),
        ("max-timestamp", 1, NOON_MS + HOUR_MS),
        ("earliest", 0, None),
        ("latest", 3, None),
    ],
)
def test_offset_at_a_time(call, written, moment, offset, timestamp):
    (row,) = rows(call("topics", "offsets", f"{written}:0", "--at", moment, "--json"))
    assert row == {
        "topic": written,
        "partition": 0,
        "earliest": 0,
        "latest": 3,
        "offset": offset,
        "timestamp": timestamp,
    }


def test_offsets_of_several_topics(call, written, monkeypatch):
    monkeypatch.delenv("COLUMNS", raising=False)  # of a terminal, whose table folds
    other = f"{written}-other"
    call("topics", "create", other, "--partitions", 1)
    found = rows(call("topics", "offsets", written, other, f"{written}:0", "--json"))
    assert [(row["topic"], row["partition"], row["latest"]) for row in found] == [
        (written, 0, 3),
        (written, 1, 0),
        (other, 0, 0),
    ]
    done = call("topics", "offsets", written, "--at", "2013-07-04T12:00")
    assert "2013-07-04T13:00:00.000Z" in done.stdout.decode()
    done = call("topics", "offsets", f"{written}:0,7", "nosuch", other, "--json", status=1)
    assert [row["topic"] for row in rows(done)] == [other]
    message = json.loads(error_line(done))["message"].splitlines()
    assert f"partition {written}-7 does not exist" in message[0]
    assert "topic 'nosuch' does not exist" in message[1]


def error_line(done) -> str:
    (line,) = done.stderr.decode().splitlines()
    return line


@pytest.mark.parametrize("moment", ["yesterday", "2013-13-01", "-5", ""])
def test_time_of_another_form_is_wrong_use(call, moment):
    text = call("topics", "offsets", "t", "--at", moment, status=2).stderr.decode()
    assert f"{moment!r} is not a time: use ISO 8601" in text.splitlines()[-1]


def test_partition_without_a_leader_hides_no_other(call):
    with Coordinator(0) as fake:
        done = call("topics", "offsets", "t", "-b", fake.bootstrap, "--json", status=1)
        assert [(row["partition"], row["latest"]) for row in rows(done)] == [(0, 3), (1, None)]
        assert "partition t-1 has no leader" in json.loads(error_line(done))["message"]


def test_settings_are_described_with_their_source(call, broker, topic):
    described = json.loads(call("topics", "describe", topic, "--json").stdout)
    assert described["settings"] == []
    text = call("topics", "describe", topic).stdout.decode()
    assert text.endswith("All settings are at their defaults.\n")
    call("configs", "set", "topic", topic, "retention.ms=5000", "cleanup.policy=compact")
    described = json.loads(call("topics", "describe", topic, "--json").stdout)
    assert described["settings"] == [
        {"key": "cleanup.policy", "value": "compact", "source": "topic"},
        {"key": "retention.ms", "value": "5000", "source": "topic"},
    ]
    assert len(described["partitions"]) == 2
    text = call("topics", "describe", topic).stdout.decode()
    assert "retention.ms" in text
    assert "defaults" not in text


def test_several_topics_are_created_described_and_deleted(call, monkeypatch):
    names = ["many1", "many2", "many3"]
    created = call("topics", "create", *names, "--partitions", 2, "--config", "retention.ms=-1")
    assert created.stdout.decode() == "".join(f"Created topic {name}.\n" for name in names)
    done = call("topics", "create", "many0", "many1", "many/4", "many5", status=1)
    assert done.stdout.decode() == "Created topic many0.\nCreated topic many5.\n"
    exists, invalid = done.stderr.decode().splitlines()
    assert "topic 'many1'" in exists
    assert "'many/4'" in invalid
    done = call("topics", "create", "many1", "many6", "--if-not-exists", "--json")
    assert rows(done) == [
        {"topic": "many1", "created": False},
        {"topic": "many6", "created": True},
    ]
    described = call("topics", "describe", *names, "nosuch", names[0], "--json", status=1)
    assert [one["topic"] for one in rows(described)] == names
    assert all(len(one["partitions"]) == 2 for one in rows(described))
    assert "'nosuch' does not exist" in json.loads(error_line(described))["message"]
    text = call("topics", "describe", *names).stdout.decode()
    assert all(f"{name}, topic id " in text for name in names)
    everything = [*names, "many0", "many5", "many6"]
    done = call("topics", "delete", "nosuch", *everything, "--yes", "--json", status=1)
    assert rows(done) == [{"topic": name, "deleted": True} for name in everything]
    assert "nosuch" in json.loads(error_line(done))["message"]
    listed = {row["topic"] for row in rows(call("topics", "list", "--json"))}
    assert not listed & set(everything)


def test_partition_without_an_end_is_described(call, broker, written, monkeypatch):
    """A partition that has lost its leader keeps its row."""
    topic = Admin.topic

    def without_leader(self: Admin, name: str) -> TopicInfo:
        info = topic(self, name)
        info.partitions[0].leader_id = -1
        return info

    monkeypatch.setattr(Admin, "topic", without_leader)
    described = json.loads(call("topics", "describe", written, "--json").stdout)
    first, second = described["partitions"]
    assert (first["leader"], first["end"], first["bytes"]) == (None, None, None)
    assert (second["leader"], second["end"]) == (0, 0)


def test_fault_of_a_broker_is_reported_beside_the_table(call, topic, monkeypatch):
    def refuse(*_: object) -> None:
        raise KafkaStorageError("log directories of broker 0: not allowed")

    def lose(_: Admin, times: Mapping[TopicPartition, int]) -> FoundOffsets:
        return FoundOffsets({}, {at: NotLeaderOrFollower(f"{at} moves") for at in times})

    monkeypatch.setattr(Admin, "log_dirs", refuse)
    monkeypatch.setattr(Admin, "offsets", lose)
    done = call("topics", "describe", topic, "--json", status=1)
    described = json.loads(done.stdout)
    assert [(row["leader"], row["end"], row["bytes"]) for row in described["partitions"]] == [
        (0, None, None),
        (0, None, None),
    ]
    message = json.loads(error_line(done))["message"]
    assert message.splitlines() == [
        "log directories of broker 0: not allowed",
        f"{topic}-0 moves",
        f"{topic}-1 moves",
    ]
