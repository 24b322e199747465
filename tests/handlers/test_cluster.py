"""Log directories: what they hold, replicas that move between them, and one that fails."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import Future
from pathlib import Path

import pytest

from plog.errors import ErrorCode, KafkaStorageError
from plog.handlers.replica_moves import ReplicaMoves
from plog.protocol.messages.cluster import (
    AlterReplicaLogDir,
    AlterReplicaLogDirsRequest,
    AlterReplicaLogDirTopic,
    DescribableLogDirTopic,
    DescribeLogDirsRequest,
    DescribeLogDirsResponse,
)
from plog.protocol.messages.fetch import FetchResponse
from plog.types import TopicPartition
from tests.handlers.conftest import ManyListeners
from tests.handlers.running import Running
from tests.handlers.wire import (
    WAIT_MS,
    Speaker,
    create_topic,
    eventually,
    fetch_one,
    fetch_request,
    fetched,
    make_batch,
    produce,
    speak,
    walk_all,
)
from tests.planes import Plane
from tests.servers import BrokerProcess

Asked = dict[str, list[int]] | None


def describe(connection: Speaker, asked: Asked = None, version: int = 4) -> DescribeLogDirsResponse:
    topics = (
        None
        if asked is None
        else [DescribableLogDirTopic(topic=name, partitions=ids) for name, ids in asked.items()]
    )
    return connection.ask(DescribeLogDirsRequest(topics=topics), version)


def places(connection: Speaker, asked: Asked = None) -> dict[tuple[str, int], list[str]]:
    """Return the log directories by partition; future ones are marked."""
    found: dict[tuple[str, int], list[str]] = {}
    for result in describe(connection, asked).results:
        for topic in result.topics:
            for part in topic.partitions:
                mark = " (future)" if part.is_future_key else ""
                found.setdefault((topic.name, part.partition_index), []).append(
                    result.log_dir + mark
                )
    return found


def move(
    connection: Speaker, target: Path | str, topic: str, *partitions: int, version: int = 2
) -> list[int]:
    asked = AlterReplicaLogDirTopic(name=topic, partitions=list(partitions))
    request = AlterReplicaLogDirsRequest(
        dirs=[AlterReplicaLogDir(path=str(target), topics=[asked])]
    )
    (result,) = connection.ask(request, version).results
    assert result.topic_name == topic
    assert [part.partition_index for part in result.partitions] == list(partitions)
    return [part.error_code for part in result.partitions]


def other_dir(broker: BrokerProcess, here: str) -> Path:
    (other,) = [path for path in broker.log_dirs if str(path) != here]
    return other


# -- DescribeLogDirs


@pytest.mark.parametrize("version", range(6))
def test_directories_and_their_partitions_are_described(
    broker: ManyListeners, wire: Speaker, version: int
) -> None:
    topic, _ = create_topic(wire, partitions=4)
    batch = make_batch([b"x" * 100])
    produce(wire, topic, batch, partition=2)
    answer = describe(wire, {topic: [0, 1, 2, 9], "nowhere": [0]}, version)
    assert answer.error_code == 0
    assert [result.log_dir for result in answer.results] == [str(p) for p in broker.log_dirs]
    sizes = {}
    for result in answer.results:
        assert (result.error_code, result.is_cordoned) == (0, False)
        if version >= 4:
            assert 0 < result.usable_bytes <= result.total_bytes
        else:
            assert (result.total_bytes, result.usable_bytes) == (-1, -1)
        for found in result.topics:
            assert found.name == topic
            for part in found.partitions:
                assert (part.offset_lag, part.is_future_key) == (0, False)
                sizes[part.partition_index] = part.partition_size
    assert sizes == {0: 0, 1: 0, 2: len(batch)}


def test_lag_of_a_follower_is_that_behind_its_leader(tmp_path: Path) -> None:
    one = Running(tmp_path, plane=Plane.FAST)
    topic, _ = create_topic(one.wire)
    produce(one.wire, topic, make_batch())
    partition = one.broker._replicas.leader(TopicPartition(topic, 0))
    known = partition.leadership
    partition.make_follower(known._replace(leader=1, leader_epoch=1), partition.log)
    for high_watermark, lag in ((7, 6), (1, 0), (0, 0)):
        partition.note_leader(high_watermark)
        (found,) = describe(one.wire, {topic: [0]}).results
        assert found.topics[0].partitions[0].offset_lag == lag
    one.stop()


def test_partitions_are_spread_over_the_directories(wire: Speaker) -> None:
    topic, _ = create_topic(wire, partitions=6)
    dirs = [where for (name, _), where in places(wire).items() if name == topic]
    assert len(dirs) == 6
    assert len({where for (where,) in dirs}) == 2


def test_no_topics_no_partitions(broker: ManyListeners, wire: Speaker, topic: str) -> None:
    answer = describe(wire, {})
    assert [result.topics for result in answer.results] == [[], []]


# -- AlterReplicaLogDirs


def test_replica_moves_while_it_is_written_and_nothing_is_lost(
    broker: ManyListeners, wire: Speaker
) -> None:
    topic, _ = create_topic(wire, segment_bytes=50_000)
    acknowledged: list[bytes] = []
    stop = threading.Event()
    failures: list[str] = []

    def write() -> None:
        connection = speak(broker.port)
        sequence = 0
        while not stop.is_set():
            value = b"%d" % sequence
            batch = make_batch([value + b" " + b"x" * 500], producer=(555_555, 0, sequence))
            part = produce(connection, topic, batch)
            if part.error_code == 0:
                acknowledged.append(value)
                sequence += 1
            elif part.error_code not in (
                ErrorCode.KAFKA_STORAGE_ERROR,
                ErrorCode.NOT_LEADER_OR_FOLLOWER,
            ):
                failures.append(ErrorCode(part.error_code).name)
                break
        connection.close()

    writer = threading.Thread(target=write)
    writer.start()
    try:
        for _ in range(6):
            count = len(acknowledged) + 50
            eventually(lambda count=count: bool(failures) or len(acknowledged) > count, "written")
            (here,) = places(wire)[topic, 0]
            target = other_dir(broker, here)
            assert move(wire, target, topic, 0) == [0]
            eventually(
                lambda target=target: places(wire)[topic, 0] == [str(target)], f"in {target}"
            )
    finally:
        stop.set()
        writer.join()
    assert failures == []
    found: list[bytes] = []
    while True:
        part = fetch_one(wire, topic, len(found))
        records = [r for r in walk_all(part.records) if r.offset >= len(found)]
        if not records:
            break
        found += [(record.value or b"").split()[0] for record in records]
    assert found == acknowledged


def test_fetch_that_waits_is_woken_after_a_move(
    broker: ManyListeners, wire: Speaker, other_wire: Speaker, topic: str
) -> None:
    (here,) = places(wire)[topic, 0]
    other_wire.send(fetch_request((topic, 0, 0), max_wait_ms=WAIT_MS), FetchResponse, version=12)
    target = other_dir(broker, here)
    assert move(wire, target, topic, 0) == [0]
    eventually(lambda: places(wire)[topic, 0] == [str(target)], "moved")
    assert produce(wire, topic, make_batch([b"a"])).error_code == 0
    (part,) = fetched(other_wire.receive(FetchResponse)).values()
    assert [record.value for record in walk_all(part.records)] == [b"a"]


def test_moves_that_can_not_be_begun_are_refused(
    broker: ManyListeners, wire: Speaker, topic: str
) -> None:
    for version in range(3):
        assert move(wire, "/elsewhere", topic, 0, version=version) == [ErrorCode.LOG_DIR_NOT_FOUND]
        assert move(wire, "", topic, 0, version=version) == [ErrorCode.LOG_DIR_NOT_FOUND]
        missing = move(wire, broker.log_dirs[0], topic, 7, version=version)
        assert missing == [ErrorCode.UNKNOWN_TOPIC_OR_PARTITION]
        nowhere = move(wire, broker.log_dirs[0], "nowhere", 0, version=version)
        assert nowhere == [ErrorCode.UNKNOWN_TOPIC_OR_PARTITION]


def test_move_to_where_a_replica_is_changes_nothing(
    broker: ManyListeners, wire: Speaker, topic: str
) -> None:
    produce(wire, topic, make_batch([b"a"]))
    (here,) = places(wire)[topic, 0]
    assert move(wire, here, topic, 0) == [0]
    assert places(wire)[topic, 0] == [here]
    assert produce(wire, topic, make_batch([b"b"])).base_offset == 1


def test_moved_replica_stays_over_a_restart(own_broker: Callable[..., BrokerProcess]) -> None:
    broker = own_broker(log_dirs=2)
    connection = speak(broker.port)
    topic, _ = create_topic(connection)
    produce(connection, topic, make_batch([b"a"]))
    (here,) = places(connection)[topic, 0]
    target = other_dir(broker, here)
    assert move(connection, target, topic, 0) == [0]
    eventually(lambda: places(connection)[topic, 0] == [str(target)], "moved")
    produce(connection, topic, make_batch([b"b"]))
    connection.close()
    broker.kill()
    broker.start()
    connection = speak(broker.port)
    eventually(lambda: fetch_one(connection, topic, 0).error_code == 0, "led again")
    values = [record.value for record in walk_all(fetch_one(connection, topic, 0).records)]
    assert values == [b"a", b"b"]
    assert places(connection)[topic, 0] == [str(target)]
    connection.close()


# -- a directory that cannot be used


def test_offline_directory_is_said_to_be(own_broker: Callable[..., BrokerProcess]) -> None:
    broker = own_broker(log_dirs=2)
    connection = speak(broker.port)
    topic, _ = create_topic(connection, partitions=2)
    for partition in (0, 1):
        produce(connection, topic, make_batch([b"v"]), partition=partition)
    where = {index: dirs[0] for (_, index), dirs in places(connection).items()}
    lost_dir, live_dir = where[0], where[1]
    assert lost_dir != live_dir
    connection.close()
    broker.stop()
    # A file where the directory was: not even root can use it.
    Path(lost_dir).rename(Path(lost_dir).with_name("away"))
    Path(lost_dir).write_text("")
    broker.start()
    connection = speak(broker.port)
    eventually(
        lambda: produce(connection, topic, make_batch([b"w"]), partition=1).error_code == 0,
        "led again",
    )
    codes = {result.log_dir: result.error_code for result in describe(connection).results}
    assert codes == {lost_dir: ErrorCode.KAFKA_STORAGE_ERROR, live_dir: 0}
    assert move(connection, lost_dir, topic, 1) == [ErrorCode.KAFKA_STORAGE_ERROR]
    refused = produce(connection, topic, make_batch([b"w"]), partition=0)
    assert refused.error_code in (
        ErrorCode.KAFKA_STORAGE_ERROR,
        ErrorCode.NOT_LEADER_OR_FOLLOWER,
    )
    assert fetch_one(connection, topic, 0).error_code in (
        ErrorCode.KAFKA_STORAGE_ERROR,
        ErrorCode.NOT_LEADER_OR_FOLLOWER,
    )
    connection.close()


# -- the queue of moves


def test_moves_to_one_directory_take_turns_and_to_others_do_not() -> None:
    moves, order = ReplicaMoves(), []
    gates = {index: threading.Event() for index in range(3)}
    begun = {index: threading.Event() for index in range(3)}

    def slow(at: TopicPartition, target: Path) -> None:
        begun[at.partition].set()
        assert gates[at.partition].wait(10)
        order.append(at.partition)

    one, two = Path("/one"), Path("/two")
    futures = [
        moves.start(slow, TopicPartition("t", index), target)
        for index, target in enumerate((one, one, two))
    ]
    assert begun[0].wait(10)
    assert begun[2].wait(10)
    assert not begun[1].is_set()
    gates[2].set()
    assert futures[2].result(10) == ErrorCode.NONE
    gates[0].set()
    gates[1].set()
    assert [future.result(10) for future in futures] == [ErrorCode.NONE] * 3
    assert order == [2, 0, 1]


def test_move_that_fails_says_why_and_the_next_has_its_turn() -> None:
    moves = ReplicaMoves()

    def fail(at: TopicPartition, target: Path) -> None:
        if at.partition == 0:
            raise KafkaStorageError("no space")

    futures: list[Future[ErrorCode]] = [
        moves.start(fail, TopicPartition("t", index), Path("/d")) for index in range(2)
    ]
    assert [future.result(10) for future in futures] == [
        ErrorCode.KAFKA_STORAGE_ERROR,
        ErrorCode.NONE,
    ]


def test_move_that_meets_a_bug_does_not_stop_the_next(monkeypatch: pytest.MonkeyPatch) -> None:
    moves, reported = ReplicaMoves(), []
    monkeypatch.setattr(threading, "excepthook", lambda hook: reported.append(hook.exc_type))

    def buggy(at: TopicPartition, target: Path) -> None:
        if at.partition == 0:
            raise LookupError("a bug")

    futures = [moves.start(buggy, TopicPartition("t", index), Path("/d")) for index in range(2)]
    assert [future.result(10) for future in futures] == [
        ErrorCode.UNKNOWN_SERVER_ERROR,
        ErrorCode.NONE,
    ]
    eventually(lambda: reported == [LookupError], "reported")
