"""A Kafka without ZooKeeper is copied into plog by Kafka's MirrorMaker: docs/MIGRATION.md.

It runs by config/mirror-maker.properties, with addresses and shorter intervals put in, from a Kafka
4.1 that has a bit of everything; the commands are those of the page.
"""

from __future__ import annotations

import os
import re
import shlex
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import pytest
from confluent_kafka import Consumer, KafkaError
from confluent_kafka import TopicPartition as Place

from plog.client.admin import SET, TOPIC, Admin
from plog.client.consumer import Consumer as PlogConsumer
from plog.types import TopicPartition
from tests.compat.clients import PATIENCE_S, Confluent, Sent, read_all
from tests.compat.live_kafka import KAFKA_4_1, KraftKafka, archived
from tests.compat.test_kafka_files import write_transactions
from tests.conftest import ROOT
from tests.servers import BrokerProcess
from tests.waiting import until

PROPERTIES = ROOT / "config" / "mirror-maker.properties"
PAGE = ROOT / "docs" / "MIGRATION.md"
OWN_TOPICS = {
    "heartbeats",
    "kafka.checkpoints.internal",
    "mm2-configs.kafka.internal",
    "mm2-offset-syncs.kafka.internal",
    "mm2-offsets.kafka.internal",
    "mm2-status.kafka.internal",
}
KAFKA_EXTRA = """log.dirs={directory}
offsets.topic.replication.factor=1
offsets.topic.num.partitions=1
transaction.state.log.replication.factor=1
transaction.state.log.min.isr=1
transaction.state.log.num.partitions=1
group.initial.rebalance.delay.ms=0
log.initial.task.delay.ms=100
log.cleaner.backoff.ms=100
log.retention.hours=1000000
"""
PLOG_SETTINGS: dict[str, object] = {"group.initial.rebalance.delay.ms": 0}
STAMP = 1_700_000_000_000
CODECS = ("lz4", "zstd", "gzip")
OFFSETS = "offsets"
"""A file with what Kafka's tool said last."""
GIVEN_UP = "Task threw an uncaught and unrecoverable exception"
EACH = 400
"""Records of each partition of `orders`."""
ORDERS = {"retention.ms": "-1", "segment.ms": "7200000", "compression.type": "zstd"}
STATE = {"cleanup.policy": "compact", "segment.ms": "100", "min.cleanable.dirty.ratio": "0.01"}
LARGE = {"max.message.bytes": "4000000", "retention.bytes": "1000000000", "retention.ms": "-1"}
LARGE_DELETED = 3
LARGE_RECORD = 1_500_000
KEYS = 50
ROUNDS = 4
TX_END = 24
"""Six transactions of three records, with their markers: the last is of one that was aborted."""
LAG = 101
"""How many records a group that has read a partition to its end may read again."""
GROUPS = [("done", "classic"), ("half", "classic"), ("new", "consumer")]
"""Which there are, and what they speak, on either side."""


def orders_of(partition: int, start: int = 0, count: int = EACH) -> list[Sent]:
    """Return records of all kinds: nulls, empty, headers twice, times that go back."""
    return [
        Sent(
            None if n % 7 == 0 else b"" if n % 7 == 1 else b"key %d" % (n % 10),
            b"%d/%d " % (partition, n) + b"x" * (n % 300),
            (("h", b"%d" % n), ("h", None), ("empty", b"")) if n % 3 else (),
            STAMP + 1000 * (n ^ 5),
        )
        for n in range(start, start + count)
    ]


def records(bootstrap: str, topic: str, partition: int = 0) -> list[Sent]:
    return [record for _, record in read_all(bootstrap, topic, partition, "read_committed")]


def consumer_of(bootstrap: str, group: str, **more: str) -> Consumer:
    settings = {key.replace("_", "."): value for key, value in more.items()}
    return Consumer(
        {
            "bootstrap.servers": bootstrap,
            "group.id": group,
            "auto.offset.reset": "earliest",
            "enable.auto.commit": False,
            "topic.metadata.refresh.interval.ms": 500,
            **settings,
        }
    )


def consume(consumer: Consumer, topics: Sequence[str], count: int) -> list[bytes]:
    """Read as a member of the group, commit, and leave; return the values."""
    consumer.subscribe(list(topics))
    found: list[bytes] = []
    while len(found) < count:
        messages = consumer.consume(count - len(found), PATIENCE_S)
        assert messages, f"{len(found)} of {count} records came"
        for message in messages:
            assert message.error() is None, message.error()
            found.append(message.value())
    if found:
        consumer.commit(asynchronous=False)
    consumer.close()
    return found


def consume_to_ends(consumer: Consumer, topics: Mapping[str, int]) -> list[bytes]:
    """Read as a member of the group up to all ends, commit, and leave; return the values.

    Args:
        topics: how many partitions each has.
    """
    consumer.subscribe(list(topics))
    found: list[bytes] = []
    ends: set[tuple[str, int]] = set()
    while len(ends) < sum(topics.values()):
        messages = consumer.consume(100, PATIENCE_S)
        assert messages, f"only {ends} were reached in time"
        for message in messages:
            if message.error() is None:
                found.append(message.value())
            else:
                assert message.error().code() == KafkaError._PARTITION_EOF, message.error()
                ends.add((message.topic(), message.partition()))
    if found:
        consumer.commit(asynchronous=False)
    consumer.close()
    return found


def committed(
    bootstrap: str, group: str, places: Sequence[TopicPartition]
) -> dict[TopicPartition, int]:
    """Return what a group has committed; what it has not is left out."""
    consumer = consumer_of(bootstrap, group)
    found = consumer.committed([Place(*place) for place in places], PATIENCE_S)
    consumer.close()
    return {
        TopicPartition(one.topic, one.partition): one.offset for one in found if one.offset >= 0
    }


def topic_settings(bootstrap: str, topic: str) -> dict[str, str | None]:
    """Return what is set for a topic itself."""
    with Admin(bootstrap) as admin:
        return {
            entry.name: entry.value
            for entry in admin.describe_configs(TOPIC, topic)
            if entry.source == "topic"
        }


def fill(kafka: KraftKafka) -> dict[str, dict[TopicPartition, int]]:
    """Write everything into Kafka; return what its groups have committed."""
    bootstrap = kafka.bootstrap
    with Admin(bootstrap) as admin:
        admin.create_topic("orders", partitions=3, configs=ORDERS)
        admin.create_topic("state", partitions=1, configs=STATE)
        admin.create_topic("large", partitions=1, configs=LARGE)
        admin.create_topic("tx", partitions=1)
        admin.create_topic("empty", partitions=2, configs={"min.insync.replicas": "1"})
    for partition, codec in enumerate(CODECS):
        Confluent().produce(
            bootstrap, "orders", orders_of(partition), codec=codec, partition=partition
        )
    large = [Sent(b"k", os.urandom(LARGE_RECORD), (), STAMP + n) for n in range(LARGE_DELETED + 2)]
    Confluent().produce(bootstrap, "large", large)
    with Admin(bootstrap) as admin:
        admin.delete_records({TopicPartition("large", 0): LARGE_DELETED})
    write_transactions(bootstrap, "tx")
    for turn in range(ROUNDS):
        states = [
            Sent(
                b"%d" % key,
                None if (key + turn) % 5 == 0 else b"%d of %d" % (turn, key),
                (),
                STAMP + 1000 * turn,  # each in a segment of its own
            )
            for key in range(KEYS)
        ]
        Confluent().produce(bootstrap, "state", states)
    until(lambda: len(read_all(bootstrap, "state", 0)) <= (ROUNDS - 1) * KEYS, "compacted by Kafka")
    every = 3 * EACH + len(read_all(bootstrap, "tx", 0, "read_committed"))
    consume(consumer_of(bootstrap, "done"), ["orders", "tx"], every)
    consume(consumer_of(bootstrap, "new", group_protocol="consumer"), ["orders"], 2 * EACH)
    half = consumer_of(bootstrap, "half")
    half.commit(offsets=[Place("orders", n, 150 * n) for n in range(3)], asynchronous=False)
    half.close()
    places = [*(TopicPartition("orders", n) for n in range(3)), TopicPartition("tx", 0)]
    return {group: committed(bootstrap, group, places) for group in ("done", "new", "half")}


def documented(word: str) -> str:
    """Return the block of the page's section that a word is in."""
    section = PAGE.read_text().partition("## Copy a running cluster with MirrorMaker")[2]
    (found,) = [block for block in re.findall(r"```\n(.*?)```", section, re.S) if word in block]
    return str(found)


class Mirror:
    """Kafka, plog, and a MirrorMaker between them."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        data = directory / "kafka-data"
        self.kafka = KraftKafka(
            directory / "kafka", KAFKA_EXTRA.format(directory=data), stops=False
        )
        self._process: subprocess.Popen[bytes] | None = None
        self.broker = BrokerProcess(directory, overrides=PLOG_SETTINGS)
        try:
            self.groups = fill(self.kafka)
            self.broker.start()
            self.start()
        except BaseException:
            self.end()
            raise

    def start(self) -> None:
        """Start MirrorMaker, as the page says."""
        assert documented("mirror-maker.sh") == "connect-mirror-maker.sh mirror-maker.properties\n"
        properties = self._directory / "mirror-maker.properties"
        properties.write_text(self._properties())
        with self.log_path.open("ab") as log:
            self._process = subprocess.Popen(
                KAFKA_4_1.command("MirrorMaker", properties, flags=archived(KAFKA_4_1)),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                cwd=self._directory,
            )

    def _properties(self) -> str:
        """Return the file with what is another's here, and less waiting."""
        text = PROPERTIES.read_text()
        for name, bootstrap in (("kafka", self.kafka.bootstrap), ("plog", self.broker.bootstrap)):
            assert f"\n{name}.bootstrap.servers={name}.example:9092\n" in text
            text = text.replace(f"{name}.example:9092", bootstrap)
        text, changed = re.subn(r"(?<=interval\.seconds=)\d+$", "1", text, flags=re.M)
        text, more = re.subn(r"(?<=interval\.ms=)\d+$", "1000", text, flags=re.M)
        assert (changed, more) == (5, 1)
        return text

    def stop(self) -> None:
        """End MirrorMaker, cleanly."""
        process, self._process = self._process, None
        if process is None:
            return
        process.send_signal(signal.SIGTERM)
        try:
            process.wait(PATIENCE_S)
        finally:
            process.kill()
            process.wait()

    def end(self) -> None:
        """End all of them."""
        self.stop()
        self.kafka.kill()  # nothing of it is looked at any more
        self.broker.kill()

    @property
    def log_path(self) -> Path:
        return self._directory / "mirror-maker.log"

    @property
    def given_up(self) -> list[str]:
        """What MirrorMaker has logged of tasks that ended by themselves, as the page says it."""
        assert f"`{GIVEN_UP}`" in " ".join(PAGE.read_text().split())
        return re.findall(rf"^.*{GIVEN_UP}.*", self.log_path.read_text(), re.M)

    def run(self, script: str) -> str:
        """Run what the page has, in which Kafka's and plog's commands are known by their names."""
        commands = (
            f'plog() {{ {sys.executable} -m plog "$@"; }}',
            f"kafka-get-offsets.sh() {{ cat {OFFSETS}; }}",
            "set -o pipefail",
        )
        done = subprocess.run(
            ["bash", "-c", "\n".join([*commands, script])],
            cwd=self._directory,
            env={
                **os.environ,
                "PLOG_BOOTSTRAP_SERVER": self.broker.bootstrap,
                "PYTHONPATH": str(ROOT),
            },
            capture_output=True,
            text=True,
            timeout=PATIENCE_S,
        )
        assert not done.stderr, done.stderr
        return done.stdout

    def behind(self, *, asks_kafka: bool = True) -> list[str]:
        """Return the partitions that the page's commands tell of, as Kafka has them.

        Args:
            asks_kafka: whether to ask how far they are there, or go by what it said last.
        """
        script = documented("diff copied written")
        script = script.replace("kafka.example:9092", self.kafka.bootstrap)
        if asks_kafka:
            # In the JVM of all such tools: one of its own costs far more than the answer.
            (asked,) = re.findall(r"^kafka-get-offsets\.sh (.*?) \|", script, re.M)
            offsets = KAFKA_4_1.run("GetOffsetShell", *shlex.split(asked))
            (self._directory / OFFSETS).write_text(offsets)
        told = self.run(script).splitlines()
        return [line.removeprefix("> ") for line in told if line.startswith("> ")]

    def await_copied(self) -> None:
        """Wait until plog has what is committed in Kafka; the page's commands tell so."""
        with Admin(self.broker.bootstrap) as admin:
            until(lambda: admin.topics().keys() >= OWN_TOPICS, "there", PATIENCE_S)
        self.behind()
        with PlogConsumer(self.broker.bootstrap) as consumer:
            places = consumer.partitions_for("mm2-offsets.kafka.internal")
            looked_at: dict[TopicPartition, int] = {}

            def is_copied() -> bool:
                nonlocal looked_at
                assert self._process is not None
                assert self._process.poll() is None, self.log_path.read_text()
                # The commands take a process each, and tell of nothing else.
                ends = consumer.end_offsets(places)
                if ends == looked_at:
                    return False
                looked_at = ends
                return self.behind(asks_kafka=False) == [f"tx:0:{TX_END}"]

            until(is_copied, "copied", PATIENCE_S)


@pytest.fixture(scope="module")
def mirror(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Mirror]:
    running = Mirror(tmp_path_factory.mktemp("mirror"))
    try:
        running.await_copied()
        yield running
    finally:
        running.end()


def topics(bootstrap: str) -> dict[str, int]:
    """Return the number of partitions of topics that are not a cluster's or MirrorMaker's own."""
    with Admin(bootstrap) as admin:
        return {
            name: len(info.partitions)
            for name, info in admin.topics().items()
            if not name.startswith("__") and name not in OWN_TOPICS
        }


def test_topics_come_with_their_settings(mirror: Mirror) -> None:
    kafka, plog = mirror.kafka.bootstrap, mirror.broker.bootstrap
    assert topics(plog) == topics(kafka)
    assert topic_settings(plog, "orders") == ORDERS
    assert topic_settings(plog, "state") == STATE
    assert topic_settings(plog, "large") == LARGE
    assert topic_settings(plog, "tx") == {}
    assert topic_settings(kafka, "empty") == {"min.insync.replicas": "1"}
    assert topic_settings(plog, "empty") == {}


def test_records_are_the_same(mirror: Mirror) -> None:
    kafka, plog = mirror.kafka.bootstrap, mirror.broker.bootstrap
    for partition in range(len(CODECS)):
        assert records(kafka, "orders", partition) == orders_of(partition)
        assert records(plog, "orders", partition) == orders_of(partition)
    large = records(kafka, "large")
    assert [len(one.value or b"") for one in large] == [LARGE_RECORD] * 2
    assert records(plog, "large") == large
    # The last value of each key: both may have compacted more of it since.
    states = [{one.key: one for one in records(where, "state")} for where in (kafka, plog)]
    assert len([one for one in states[0].values() if one.value is not None]) == KEYS * 4 // 5
    assert [
        {key: one for key, one in state.items() if one.value is not None} for state in states
    ] == [{key: one for key, one in states[0].items() if one.value is not None}] * 2
    assert [records(plog, "empty", partition) for partition in range(2)] == [[], []]


def test_only_what_transactions_committed_comes(mirror: Mirror) -> None:
    committed = records(mirror.kafka.bootstrap, "tx")
    assert len(committed) == 9 < len(read_all(mirror.kafka.bootstrap, "tx", 0))
    copies = read_all(mirror.broker.bootstrap, "tx", 0)  # uncommitted ones too, if there were any
    assert copies == list(enumerate(committed))


def exact(mirror: Mirror, place: TopicPartition, offset: int) -> int:
    """Return the offset in plog that is the same place as one in Kafka."""
    return sum(at < offset for at, _ in read_all(mirror.kafka.bootstrap, *place, "read_committed"))


@pytest.mark.parametrize(("group", "protocol"), GROUPS)
def test_group_goes_on(mirror: Mirror, group: str, protocol: str) -> None:
    kafka, plog = mirror.kafka.bootstrap, mirror.broker.bootstrap
    in_kafka = mirror.groups[group]
    assert in_kafka
    right = {place: exact(mirror, place, offset) for place, offset in in_kafka.items()}
    ends = {place: len(records(kafka, *place)) for place in in_kafka}

    def is_translated() -> bool:
        """Tell whether all is, and as well as it can be where the group had read everything."""
        found = committed(plog, group, list(in_kafka))
        return found.keys() == in_kafka.keys() and all(
            found[place] > right[place] - LAG for place in right if right[place] == ends[place]
        )

    until(is_translated, "translated", PATIENCE_S)
    translated = committed(plog, group, list(in_kafka))
    assert all(translated[place] <= right[place] for place in right), (translated, right)
    assert any(translated.values())  # or it would be as if nothing had come
    unread = {
        record.value
        for topic in {place.topic for place in in_kafka}
        for partition in range(topics(kafka)[topic])
        for offset, record in read_all(kafka, topic, partition, "read_committed")
        if offset >= in_kafka.get(TopicPartition(topic, partition), 0)
    }
    # Until the member has joined, the group may still be brought further.
    member = consumer_of(plog, group, group_protocol=protocol, enable_partition_eof="true")
    sizes = topics(plog)
    found = consume_to_ends(member, {place.topic: sizes[place.topic] for place in in_kafka})
    assert unread <= set(found)
    assert committed(plog, group, list(in_kafka)) == ends


def test_what_is_written_meanwhile_comes_too_over_a_killed_broker(mirror: Mirror) -> None:
    kafka, plog = mirror.kafka.bootstrap, mirror.broker.bootstrap
    with Admin(kafka) as admin:
        admin.create_topic("later", partitions=1)
    written: list[Sent] = []

    def write() -> None:
        more = orders_of(0, len(written), 100)
        Confluent().produce(kafka, "later", more, codec="snappy")
        written.extend(more)

    write()
    until(lambda: "later" in topics(plog) and records(plog, "later"), "there", PATIENCE_S)
    for turn in range(10):
        write()
        if turn == 4:
            mirror.broker.kill()
        if turn == 6:
            mirror.broker.start()
    with Admin(kafka) as admin:
        admin.create_partitions("later", 2)
        admin.alter_configs(TOPIC, "later", [("retention.ms", SET, "-1")])
    more = orders_of(1, count=10)
    Confluent().produce(kafka, "later", more, partition=1)
    until(lambda: topics(plog)["later"] == 2, "with two partitions", PATIENCE_S)
    until(lambda: topic_settings(plog, "later") == {"retention.ms": "-1"}, "altered", PATIENCE_S)
    mirror.await_copied()
    assert records(plog, "later") == written
    assert records(plog, "later", 1) == more


def test_mirror_maker_goes_on_where_it_stopped_and_goes_without_a_trace(mirror: Mirror) -> None:
    kafka, plog = mirror.kafka.bootstrap, mirror.broker.bootstrap
    mirror.await_copied()
    mirror.stop()
    more = orders_of(0, EACH, 50)
    Confluent().produce(kafka, "orders", more)
    assert mirror.behind() == [f"orders:0:{EACH + 50}", f"tx:0:{TX_END}"]
    mirror.start()
    mirror.await_copied()
    assert records(plog, "orders") == [*orders_of(0), *more]
    mirror.stop()
    with Admin(plog) as admin:
        assert admin.topics().keys() >= OWN_TOPICS
        mirror.run(documented("plog topics delete"))
        assert not OWN_TOPICS & admin.topics().keys()
    assert mirror.given_up == []
