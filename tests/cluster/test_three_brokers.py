"""Three brokers as processes on a real ZooKeeper: what clients see of them."""

from __future__ import annotations

import subprocess
from collections import Counter
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from plog.client.admin import SET, TOPIC, Admin
from plog.client.consumer import Consumer
from plog.client.group_consumer import GroupConsumer
from plog.client.producer import Producer
from plog.errors import InvalidReplicationFactor, RequestTimedOut
from tests.cli.conftest import command_line
from tests.cluster.processes import Brokers, ids_of
from tests.compat.live_kafka import ZooKeeper
from tests.waiting import until

PARTITIONS = 6
COUNT = 600


@pytest.fixture
def brokers(tmp_path: Path, zookeeper: ZooKeeper) -> Iterator[Brokers]:
    running = Brokers(tmp_path, zookeeper.bootstrap)
    with running:
        yield running


def create(brokers: Brokers, topic: str, partitions: int = PARTITIONS) -> dict[int, int]:
    """Create a topic; return the leader of each partition."""
    with Admin(brokers.bootstrap) as admin:
        admin.create_topic(topic, partitions=partitions)
        until(lambda: min(leaders_of(admin, topic).values()) >= 0, "led")
        return leaders_of(admin, topic)


def leaders_of(admin: Admin, topic: str) -> dict[int, int]:
    """Return the leader of each partition; -1 for one that the broker does not know yet."""
    if topic not in admin.topics():
        return {0: -1}
    return {index: one.leader_id for index, one in admin.topic(topic).partitions.items()}


def produce(brokers: Brokers, topic: str, values: range, **options: object) -> None:
    with Producer(brokers.bootstrap, **options) as producer:
        for number in values:
            producer.send(topic, str(number).encode(), partition=number % PARTITIONS)


def read(brokers: Brokers, topic: str, count: int, **options: object) -> list[int]:
    found: list[int] = []
    with Consumer(brokers.bootstrap, auto_offset_reset="earliest", **options) as consumer:
        consumer.assign(consumer.partitions_for(topic))
        while len(found) < count:
            found += [int(record.value or b"") for record in consumer.poll(10_000)]
    return found


def test_topics_are_spread_and_served_by_whichever_broker_a_client_asks(brokers: Brokers) -> None:
    leaders = create(brokers, "t")
    assert Counter(leaders.values()) == {0: 2, 1: 2, 2: 2}
    produce(brokers, "t", range(COUNT))
    for broker in brokers.brokers:
        with Admin(broker.bootstrap) as admin:
            assert ids_of(admin) == {0, 1, 2}
            assert leaders_of(admin, "t") == leaders
            assert admin.controller_id() == brokers.controller
    assert sorted(read(brokers, "t", COUNT)) == list(range(COUNT))


def test_group_is_coordinated_wherever_its_coordinator_is(brokers: Brokers) -> None:
    create(brokers, "t")
    produce(brokers, "t", range(COUNT))
    for group in ("a", "b", "c", "d"):
        found: list[int] = []
        with GroupConsumer(brokers.bootstrap, group, auto_offset_reset="earliest") as consumer:
            consumer.subscribe(["t"])
            while len(found) < COUNT:
                found += [int(record.value or b"") for record in consumer.poll(10_000)]
            consumer.commit()
        assert sorted(found) == list(range(COUNT))


def test_transactions_over_partitions_of_all_brokers(brokers: Brokers) -> None:
    create(brokers, "t")
    for name in ("x", "y", "z"):
        with Producer(brokers.bootstrap, transactional_id=name) as producer:
            producer.init_transactions()
            for commits in (True, False, True):
                producer.begin_transaction()
                for number in range(PARTITIONS):
                    value = str(number if commits else -1).encode()
                    producer.send("t", value, partition=number)
                if commits:
                    producer.commit_transaction()
                else:
                    producer.abort_transaction()
    found = read(brokers, "t", 6 * PARTITIONS, isolation_level="read_committed")
    assert Counter(found) == dict.fromkeys(range(PARTITIONS), 6)


def test_every_broker_describes_the_settings_of_a_topic(brokers: Brokers) -> None:
    def described() -> list[str | None]:
        found = []
        for broker in brokers.brokers:
            with Admin(broker.bootstrap) as admin:
                until(lambda admin=admin: "t" in admin.topics(), "known")
                (entry,) = admin.describe_configs(TOPIC, "t", ["retention.ms"])
                found.append(entry.value)
        return found

    with Admin(brokers.bootstrap) as admin:
        admin.create_topic("t", configs={"retention.ms": "7200000"})
        assert described() == ["7200000"] * 3
        admin.alter_configs(TOPIC, "t", [("retention.ms", SET, "3600000")])
        assert described() == ["3600000"] * 3
        admin.delete_topic("t")
        brokers.all_until(lambda admin: "t" not in admin.topics())
        admin.create_topic("t")
    assert described() == [str(7 * 24 * 3600 * 1000)] * 3


def test_more_replicas_than_brokers_are_refused(brokers: Brokers) -> None:
    with Admin(brokers.bootstrap) as admin, pytest.raises(InvalidReplicationFactor):
        admin.create_topic("t", replication_factor=4)


def test_killed_controller_is_followed_and_comes_back(brokers: Brokers) -> None:
    leaders = create(brokers, "t")
    produce(brokers, "t", range(COUNT))
    first = brokers.controller
    brokers[first].kill()
    with Admin(brokers.bootstrap) as admin:
        admin.create_topic("made-meanwhile", partitions=3)
        assert admin.controller_id() not in (first, -1)
        dead = [index for index, leader in leaders.items() if leader == first]
        until(lambda: [i for i, one in leaders_of(admin, "t").items() if one < 0] == dead, "dead")
    brokers[first].start()
    brokers.until_known()
    with Admin(brokers.bootstrap) as admin:
        until(lambda: min(leaders_of(admin, "t").values()) >= 0, "led again")
    assert sorted(read(brokers, "t", COUNT)) == list(range(COUNT))


def test_broker_that_is_killed_comes_back_within_its_session(brokers: Brokers) -> None:
    create(brokers, "t")
    produce(brokers, "t", range(COUNT))
    brokers[1].kill()
    brokers[1].start()
    assert "ended session" in brokers[1].log
    brokers.until_known()
    assert sorted(read(brokers, "t", COUNT)) == list(range(COUNT))


def test_broker_that_joins_gets_new_partitions(brokers: Brokers) -> None:
    brokers[2].stop()
    brokers.until_known()
    assert set(create(brokers, "before").values()) == {0, 1}
    brokers[2].start()
    brokers.until_known()
    shown = subprocess.run(
        command_line("cluster", "-b", brokers.bootstrap), capture_output=True, text=True, check=True
    )
    assert "Broker 2 has no partitions: `plog reassign plan --balance`" in shown.stdout
    with Admin(brokers.bootstrap) as admin:
        admin.create_partitions("before", 2 * PARTITIONS)
        until(lambda: len(leaders_of(admin, "before")) == 2 * PARTITIONS, "grown")
        until(lambda: min(leaders_of(admin, "before").values()) >= 0, "led")
        assert Counter(leaders_of(admin, "before").values())[2] == PARTITIONS // 3
    assert Counter(create(brokers, "after").values()) == {0: 2, 1: 2, 2: 2}


def test_topic_that_is_deleted_while_a_broker_is_away_goes_when_it_is_back(
    brokers: Brokers,
) -> None:
    leaders = create(brokers, "t")
    away = leaders[0]
    brokers[away].kill()
    rest = ",".join(one.bootstrap for one in brokers.brokers if one.is_running)
    with Admin(rest, request_timeout_ms=2_000) as admin:
        until(lambda: admin.controller_id() not in (away, -1), "another controller")
        until(lambda: leaders_of(admin, "t")[0] == -1, "away")
        with pytest.raises(RequestTimedOut, match="topic 't' is being deleted"):
            admin.delete_topic("t")
    brokers[away].start()
    brokers.until_known()
    places = [log_dir for one in brokers.brokers for log_dir in one.log_dirs]
    until(lambda: not any(list(place.glob("t-?")) for place in places), "renamed on every disk")
    with closing(brokers.store()) as store:
        until(lambda: store.exists("/brokers/topics/t") is None, "deleted")
    assert Counter(create(brokers, "t").values()) == {0: 2, 1: 2, 2: 2}


def test_topic_that_is_deleted_while_a_broker_is_away_stays_deleted(brokers: Brokers) -> None:
    leaders = create(brokers, "t")
    away = leaders[0]
    brokers[away].stop()
    with closing(brokers.store()) as store:  # the controller would wait for the broker
        for path in store.descendants("/brokers/topics/t"):
            store.delete(path)
    brokers[away].start()
    brokers.until_known()
    assert "set aside the log of t-0" in brokers[away].log
    with Admin(brokers.bootstrap) as admin:
        assert "t" not in admin.topics()
    names = [one.name for one in brokers[away].log_dirs[0].iterdir() if one.name.startswith("t-")]
    assert names
    assert all(name.endswith("-stray") for name in names)
