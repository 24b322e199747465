"""kcat, sarama and kafkajs: the clients that people have beside those of `test_clients`."""

from __future__ import annotations

import json
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from plog.client.admin import TOPIC, Admin
from plog.types import TopicPartition
from tests.compat.clients import CODECS, Confluent, Sent
from tests.compat.programs import GO_BUILD, HERE, RUN_TIMEOUT_S, Program
from tests.compat.test_kafka_tools import codecs_on_disk
from tests.servers import BrokerProcess

COUNT = 20
RECORDS = [(b"k%d" % n, b"value %d" % n) for n in range(COUNT)]


class Sarama(Program):
    """sarama."""

    name = "sarama"
    sources = tuple(
        HERE / "sarama" / name for name in ("main.go", "group.go", "moves.go", "go.mod", "go.sum")
    )
    needs = ("go",)

    def build_command(self, made: Path) -> list[str]:
        return [*GO_BUILD, "-o", str(made / "sarama"), "."]

    def run_command(self, directory: Path) -> list[str]:
        return [str(directory / "sarama")]

    def group_command(self, directory: Path) -> list[str]:
        return [*self.run_command(directory), "group"]

    def moves_command(self, directory: Path) -> list[str]:
        """Return the command that writes and reads while leaders move, without its arguments."""
        return [*self.run_command(directory), "moves"]


class KafkaJs(Program):
    """kafkajs."""

    name = "kafkajs"
    sources = tuple(
        HERE / "kafkajs" / name
        for name in ("main.js", "group.js", "package.json", "package-lock.json")
    )
    needs = ("npm", "node")

    def build_command(self, made: Path) -> list[str]:
        for source in self.sources:
            shutil.copy(source, made)
        # npm takes a path with a link in it for another project.
        return ["npm", "ci", "--prefix", str(made.resolve()), "--no-audit", "--no-fund"]

    def run_command(self, directory: Path) -> list[str]:
        return ["node", str(directory / "main.js")]

    def group_command(self, directory: Path) -> list[str]:
        return ["node", str(directory / "group.js")]


def run(command: list[str], stdin: str = "") -> str:
    done = subprocess.run(
        command, input=stdin, capture_output=True, text=True, timeout=RUN_TIMEOUT_S, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def read(broker: BrokerProcess, topic: str) -> list[tuple[bytes | None, bytes | None]]:
    return [(one.key, one.value) for one in Confluent().consume(broker.bootstrap, topic, COUNT)]


@pytest.mark.parametrize("codec", ["none", "gzip", "snappy", "lz4", "zstd"])
def test_sarama_makes_a_topic_writes_and_reads(broker: BrokerProcess, codec: str) -> None:
    client = Sarama()
    topic = f"sarama-{codec}"
    command = client.run_command(client.built())
    said = run([*command, broker.bootstrap, topic, str(COUNT), codec]).splitlines()
    assert said == [*(f"{n}\tk{n}\tvalue {n}" for n in range(COUNT)), "0", str(COUNT)]
    assert read(broker, topic) == RECORDS
    with Admin(broker.bootstrap) as admin:
        (entry,) = admin.describe_configs(TOPIC, topic, ["retention.ms"])
        assert entry.value == "7200000"


@pytest.mark.parametrize("codec", ["none", "gzip"])
def test_kafkajs_makes_a_topic_and_writes(broker: BrokerProcess, codec: str) -> None:
    client = KafkaJs()
    topic = f"kafkajs-{codec}"
    command = client.run_command(client.built())
    said = run([*command, broker.bootstrap, topic, str(COUNT), codec]).split()
    assert said == [*map(str, range(COUNT)), "0", str(COUNT), "2"]
    found = Confluent().consume(broker.bootstrap, topic, COUNT - 2, offset=2)
    assert [one[:3] for one in found] == [
        (key, value, (("n", b"%d" % n), ("twice", b"a"), ("twice", b"b"), ("bytes", b"\0\xff")))
        for n, (key, value) in enumerate(RECORDS)
    ][2:]
    assert codecs_on_disk(broker, topic) == {CODECS.index(codec)}
    with Admin(broker.bootstrap) as admin:
        assert admin.delete_records({TopicPartition(topic, 0): 2}) == {TopicPartition(topic, 0): 2}


def kcat(broker: BrokerProcess, *arguments: object, stdin: str = "") -> str:
    if shutil.which("kcat") is None:
        pytest.skip("there is no kcat")
    return run(["kcat", "-b", broker.bootstrap, *map(str, arguments)], stdin)


@pytest.mark.parametrize("codec", ["none", "gzip", "snappy", "lz4", "zstd"])
def test_kcat_writes_and_reads(
    broker: BrokerProcess, new_topic: Callable[..., str], codec: str
) -> None:
    topic = new_topic(2)
    lines = "".join(f"k{n}:value {n}\n" for n in range(COUNT))
    kcat(broker, "-P", "-t", topic, "-p", 0, "-K", ":", "-z", codec, stdin=lines)
    kept = ("-C", "-t", topic, "-p", 0, "-e", "-q")
    assert kcat(broker, *kept, "-o", "beginning", "-K", ":") == lines
    assert kcat(broker, *kept, "-o", 17, "-f", "%o %s\n") == "".join(
        f"{n} value {n}\n" for n in range(17, COUNT)
    )
    assert kcat(broker, *kept, "-o", -2, "-f", "%o\n").split() == ["18", "19"]
    assert read(broker, topic) == RECORDS


def test_kcat_writes_nulls_and_headers_and_joins_a_group(
    broker: BrokerProcess, new_topic: Callable[..., str]
) -> None:
    topic = new_topic()
    lines = "".join(f"k{n}:{f'value {n}' if n % 3 else ''}\n" for n in range(COUNT))
    headers = ("-H", "one=1", "-H", "two=zwei")
    kcat(broker, "-P", "-t", topic, "-p", 0, "-K", ":", "-Z", *headers, stdin=lines)
    found = Confluent().consume(broker.bootstrap, topic, COUNT)
    assert [one[:3] for one in found] == [
        (key, value if n % 3 else None, (("one", b"1"), ("two", b"zwei")))
        for n, (key, value) in enumerate(RECORDS)
    ]
    expected = [
        f"{n} k{n} {f'value {n}' if n % 3 else 'NULL'} one=1,two=zwei" for n in range(COUNT)
    ]

    def read(count: int) -> list[str]:
        shown = ("-q", "-Z", "-c", count, "-f", "%o %k %s %h\n")
        begin = ("-X", "auto.offset.reset=earliest")
        return kcat(broker, *shown, *begin, "-G", f"group-of-{topic}", topic).splitlines()

    assert read(12) == expected[:12]
    assert read(COUNT - 12) == expected[12:]


def test_kcat_lists_and_queries(broker: BrokerProcess, new_topic: Callable[..., str]) -> None:
    topic = new_topic(3)
    records = [Sent(b"k", b"v", (), 1_700_000_000_000 + n) for n in range(5)]
    Confluent().produce(broker.bootstrap, topic, records)
    listed = json.loads(kcat(broker, "-L", "-J", "-t", topic))
    assert [one["topic"] for one in listed["topics"]] == [topic]
    assert len(listed["topics"][0]["partitions"]) == 3
    assert sorted(one["id"] for one in listed["brokers"]) == broker.ids
    assert f"{topic} [0] offset 3" in kcat(broker, "-Q", "-t", f"{topic}:0:1700000000003")
