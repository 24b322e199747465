"""Published bugs that only live brokers show. Each test has the number of its bug."""

from __future__ import annotations

import shutil
import threading
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path

import pytest

from plog.client.admin import SET, TOPIC, Admin
from plog.client.offsets import LATEST
from plog.client.producer import Producer
from plog.client.transaction_admin import TransactionAdmin
from plog.protocol.messages.cluster import (
    AlterReplicaLogDir,
    AlterReplicaLogDirsRequest,
    AlterReplicaLogDirTopic,
)
from plog.runtime.clock import SystemClock
from plog.types import TopicPartition
from tests.cluster.processes import Brokers
from tests.compat.live_kafka import ZooKeeper
from tests.handlers.wire import Speaker
from tests.waiting import until

from .live import (
    EVERY,
    create,
    directory_of,
    leader_of,
    produce,
    read,
    running,
    until_equal,
    until_in_sync,
    until_led_by,
)


def move(brokers: Brokers, broker_id: int, topic: str) -> None:
    """Move a replica to the broker's other log directory, and wait until it is there."""
    now = directory_of(brokers, broker_id, topic).parent
    (other,) = [one for one in brokers[broker_id].log_dirs if one != now]
    asked = AlterReplicaLogDirTopic(name=topic, partitions=[0])
    request = AlterReplicaLogDirsRequest(dirs=[AlterReplicaLogDir(path=str(other), topics=[asked])])
    with closing(Speaker("127.0.0.1", brokers[broker_id].port)) as wire:
        (part,) = wire.ask(request, 2).results[0].partitions
    assert part.error_code == 0
    until(lambda: (other / f"{topic}-0").exists() and not (now / f"{topic}-0").exists(), "moved")


def epochs_of(brokers: Brokers, broker_id: int, topic: str) -> str:
    """Return the leader epochs of a replica, as they are in its file."""
    return (directory_of(brokers, broker_id, topic) / "leader-epoch-checkpoint").read_text()


@pytest.fixture
def brokers(tmp_path: Path, zookeeper: ZooKeeper) -> Iterator[Brokers]:
    started = Brokers(
        tmp_path,
        zookeeper.bootstrap,
        replica_lag_time_max_ms=4_000,
        offsets_topic_replication_factor=3,
        transaction_state_log_replication_factor=3,
        transaction_state_log_num_partitions=3,
        auto_leader_rebalance_enable=False,
    )
    with started:
        yield started


def test_kip_279_three_unclean_elections_leave_equal_logs(brokers: Brokers) -> None:
    """Each has led in turn without the other: one round of epochs does not find where they part."""
    one, other = 0, 1
    create(brokers, "t", replicas=(one, other), unclean_leader_election_enable="true")
    produce(brokers, "t", range(10))
    brokers.lose(other)
    until_in_sync(brokers, "t", [one])
    first = 100
    for broker_id, away in ((one, other), (other, one), (one, other), (other, one)):
        if not brokers[broker_id].is_running:
            brokers.lose(away)
            brokers[broker_id].start()
            until_led_by(brokers, "t", broker_id)
        produce(brokers, "t", range(first, first + 10), acks="1")
        first += 100
    brokers[one].start()
    until_in_sync(brokers, "t", [one, other])
    until_equal(brokers, "t", (one, other))
    assert read(brokers, "t", 30) == [*range(10), *range(200, 210), *range(400, 410)]


# -- a broker that has lost its records, or has damaged ones ---------------------------------------


def empty_disk(directory: Path) -> None:
    """Remove a replica's files."""
    shutil.rmtree(directory)


def flip_bit(directory: Path) -> None:
    """Damage one bit of a replica's oldest records."""
    oldest = min(directory.glob("*.log"))
    data = bytearray(oldest.read_bytes())
    data[len(data) // 2] ^= 1
    oldest.write_bytes(data)


HARMS = pytest.mark.parametrize(
    "harm", [pytest.param(empty_disk, id="KIP-903"), pytest.param(flip_bit, id="NATS")]
)


@HARMS
def test_leader_comes_back_with_harmed_records(
    brokers: Brokers, harm: Callable[[Path], None]
) -> None:
    """It is away for less than its session, and in the written set."""
    create(brokers, "t", min_insync_replicas="2")
    produce(brokers, "t", range(500))
    until_equal(brokers, "t")
    leader = leader_of(brokers, "t")
    others = sorted({*EVERY} - {leader})
    brokers[leader].kill()
    harm(directory_of(brokers, leader, "t"))
    brokers[leader].start()
    brokers.all_until(lambda admin: admin.topic("t").partitions[0].leader_id in others)
    produce(brokers, "t", range(500, 600))
    assert read(brokers, "t", 600) == list(range(600))
    if harm is empty_disk:
        until_in_sync(brokers, "t", EVERY)
        until_equal(brokers, "t")
    else:
        until_in_sync(brokers, "t", others)


@HARMS
def test_member_with_harmed_records_does_not_lead_alone(
    brokers: Brokers, harm: Callable[[Path], None]
) -> None:
    """All brokers die, and it is back before the others: an administrator lets those lead."""
    create(brokers, "t", min_insync_replicas="2")
    produce(brokers, "t", range(500))
    until_equal(brokers, "t")
    harmed = 1
    for one in brokers.brokers:
        one.kill()
    harm(directory_of(brokers, harmed, "t"))
    brokers.lose(*EVERY)
    brokers[harmed].start()
    said = "t-0: no leader, because no in-sync replica is online"
    until(lambda: said in brokers[harmed].log, "the controller knows of the harm")
    until_led_by(brokers, "t", -1)
    brokers.start()
    # The controller found it alone, so it is the only member of the written set now.
    with Admin(brokers.bootstrap) as admin:
        admin.alter_configs(TOPIC, "t", [("unclean.leader.election.enable", SET, "true")])
    brokers.all_until(lambda admin: admin.topic("t").partitions[0].leader_id in (0, 2))
    produce(brokers, "t", range(500, 600))
    assert read(brokers, "t", 600) == list(range(600))


# -- sessions and failures -------------------------------------------------------------------------


def test_kafka_1407_leader_recovers_its_in_sync_set_after_each_session(brokers: Brokers) -> None:
    """KAFKA-2729 also: its proposals were refused for ever, with a version from before."""
    create(brokers, "t", min_insync_replicas="2")
    for number in range(4):
        produce(brokers, "t", range(50 * number, 50 * number + 50))
        brokers.expire(leader_of(brokers, "t"))
    until_in_sync(brokers, "t", EVERY)
    produce(brokers, "t", range(200, 250))
    until_equal(brokers, "t")
    assert read(brokers, "t", 250) == list(range(250))


def test_kafka_3143_controller_and_follower_die_together(brokers: Brokers) -> None:
    controller = brokers.controller
    leader, follower = sorted({*EVERY} - {controller})
    create(brokers, "t", replicas=(leader, controller, follower))
    produce(brokers, "t", range(100))
    brokers.lose(controller, follower)
    until_in_sync(brokers, "t", [leader])
    produce(brokers, "t", range(100, 200))
    brokers.start()
    until_in_sync(brokers, "t", EVERY)
    until_equal(brokers, "t")
    assert read(brokers, "t", 200) == list(range(200))


def test_kafka_20554_rolling_restart_loses_no_record_of_acks_1(brokers: Brokers) -> None:
    """Only the leader had them when it stopped: it gives its followers everything first."""
    create(brokers, "t")
    acked: list[int] = []
    ends = threading.Event()

    def write() -> None:
        number = 0
        options = {"acks": "1", "enable_idempotence": False, "linger_ms": 0}
        with Producer(brokers.bootstrap, retry_backoff_ms=10, **options) as producer:
            while not ends.is_set():
                sent = [
                    (value, producer.send("t", str(value).encode(), partition=0))
                    for value in range(number, number + 20)
                ]
                number += len(sent)
                acked.extend(value for value, one in sent if one.result(60).offset >= 0)

    writer = threading.Thread(target=write)
    writer.start()
    try:
        for _ in range(3):
            before, stopping = len(acked), leader_of(brokers, "t")
            until(lambda before=before: len(acked) > before, "records are acknowledged")
            brokers[stopping].stop()
            brokers[stopping].start()
            until_in_sync(brokers, "t", EVERY)
            assert leader_of(brokers, "t") != stopping
    finally:
        ends.set()
        writer.join()
    produce(brokers, "t", range(-1, 0))  # and so all before it are committed
    with Admin(brokers.bootstrap) as admin:
        at = TopicPartition("t", 0)
        end = admin.offsets({at: LATEST}).offsets[at].offset
    lost = {*acked} - {*read(brokers, "t", end)}
    assert not lost, f"{len(lost)} of {len(acked)}"


def test_kafka_20716_marker_that_an_unclean_election_lost_is_found(brokers: Brokers) -> None:
    """Readers of committed records wait there. `find-hanging` names it, and it can be aborted."""
    one, other = 0, 1
    at = TopicPartition("t", 0)
    create(brokers, "t", replicas=(one, other), unclean_leader_election_enable="true")
    with Producer(brokers.bootstrap, transactional_id="x") as producer:
        producer.init_transactions()
        producer.begin_transaction()
        producer.send("t", b"1", partition=0)
        producer.flush()
        until_equal(brokers, "t", (one, other))
        brokers.lose(other)
        producer.commit_transaction()
    with TransactionAdmin(running(brokers)) as admin:
        until(lambda: admin.describe("x").state == "CompleteCommit", "the marker is written")
    brokers.lose(one)
    brokers[other].start()
    until_led_by(brokers, "t", other)
    with TransactionAdmin(running(brokers)) as admin:
        (found,), faults = admin.hanging([at], longer_than_ms=0, now_ms=SystemClock().now_ms())
        assert (found.transaction.partition, found.transactional_id, faults) == (at, "x", {})
        left = found.transaction.producer
        admin.abort(
            at,
            producer_id=left.producer_id,
            producer_epoch=left.producer_epoch,
            coordinator_epoch=left.coordinator_epoch,
        )
        assert admin.hanging([at], longer_than_ms=0, now_ms=SystemClock().now_ms()) == ([], {})
    brokers[one].start()
    until_in_sync(brokers, "t", [one, other])
    until_equal(brokers, "t", (one, other))


def test_kafka_15608_idle_partition_keeps_its_epochs_on_another_disk(
    tmp_path: Path, zookeeper: ZooKeeper
) -> None:
    """Its leader of now has written nothing. Followers ask for the end of an epoch all the same."""
    settings = {"replica_lag_time_max_ms": 4_000}
    with Brokers(tmp_path, zookeeper.bootstrap, log_dirs=2, **settings) as brokers:
        create(brokers, "t")
        produce(brokers, "t", range(100))
        first = leader_of(brokers, "t")
        brokers.lose(first)
        until_in_sync(brokers, "t", sorted({*EVERY} - {first}))
        for broker_id in sorted({*EVERY} - {first}):
            move(brokers, broker_id, "t")
        brokers.start()
        until_in_sync(brokers, "t", EVERY)
        move(brokers, first, "t")
        brokers.lose(leader_of(brokers, "t"))
        brokers.start()
        until_in_sync(brokers, "t", EVERY)
        assert len({epochs_of(brokers, one, "t") for one in EVERY}) == 1
        produce(brokers, "t", range(100, 200))
        until_equal(brokers, "t")
        assert read(brokers, "t", 200) == list(range(200))
