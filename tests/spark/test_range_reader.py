"""What the range reader makes of faults: every offset handed out once, or a clear end."""

from __future__ import annotations

import contextlib
import itertools
import random
import time
import uuid
from collections.abc import Iterator
from dataclasses import replace

import pyarrow as pa
import pytest

from plog._native.records import build_batch, control_batch
from plog.errors import (
    CorruptRecord,
    KafkaError,
    KafkaStorageError,
    LeaderNotAvailable,
    NetworkException,
    NotLeaderOrFollower,
    OffsetOutOfRange,
    RequestTimedOut,
    TopicAuthorizationFailed,
    UnknownTopicOrPartition,
)
from plog.spark import offsets, range_reader
from plog.spark.arrow import FULL_SCHEMA
from plog.spark.offsets import OffsetRange
from plog.spark.options import SourceOptions
from plog.spark.range_reader import MAX_PARTITIONS_PER_FETCH, RangeReader
from plog.spark.source import PlogReader
from plog.spark.task_reader import BATCH_BYTES, BATCH_ROWS, TaskRanges
from plog.types import TopicPartition
from tests.agreement.harness import run_seed
from tests.spark.fake_cluster import TOPIC_ID, FakeCluster, FakeLog, whole_range

OPTIONS = SourceOptions(
    bootstrap_servers="nowhere:1",
    topics=("t",),
    poll_timeout_ms=10_000,
    retry_backoff_ms=0,
    partition_max_bytes=300,
)
LOSSY = replace(OPTIONS, fail_on_data_loss=False)


def tp(index: int) -> TopicPartition:
    return TopicPartition("t", index)


def a_log(sizes, *, base: int = 0, gap: int = 0, leader: int = 0, value: bytes = b"v") -> FakeLog:
    """Batches of so many records each, `gap` offsets missing between them."""
    batches = []
    for size in sizes:
        records = [(1000 + base + i, b"k", value, ()) for i in range(size)]
        batches.append((base, base + size, build_batch(records, base_offset=base)))
        base += size + gap
    return FakeLog(batches, base, batches[0][0] if batches else 0, leader)


def read(monkeypatch, cluster: FakeCluster, ranges, options=OPTIONS) -> dict[int, list[int]]:
    """Read by the source itself; return the offsets of each partition in the order they came."""
    cluster.patch(monkeypatch)
    monkeypatch.setattr(FakeCluster, "__enter__", lambda self: self, raising=False)
    monkeypatch.setattr(FakeCluster, "__exit__", lambda self, *_: self.close(), raising=False)
    monkeypatch.setattr(offsets, "open_cluster", lambda _options: cluster)
    found: dict[int, list[int]] = {}
    for batch in PlogReader(options, FULL_SCHEMA).read(TaskRanges(list(ranges))):
        assert batch.num_rows > 0
        batch.validate(full=True)
        for row in batch.select(["partition", "offset"]).to_pylist():
            found.setdefault(row["partition"], []).append(row["offset"])
    return found


def ranges_of(logs) -> list[OffsetRange]:
    return [whole_range(partition, log) for partition, log in logs.items()]


def test_many_partitions_are_asked_for_together(monkeypatch):
    logs = {tp(index): a_log([3]) for index in range(1000)}
    cluster = FakeCluster(logs)
    assert read(monkeypatch, cluster, ranges_of(logs)) == {i: [0, 1, 2] for i in range(1000)}
    assert max(cluster.asks) == MAX_PARTITIONS_PER_FETCH
    assert len(cluster.asks) == -(-1000 // MAX_PARTITIONS_PER_FETCH)


def test_ranges_end_where_they_say(monkeypatch):
    logs = {tp(0): a_log([5] * 8), tp(1): a_log([5] * 8)}
    wanted = [OffsetRange(tp(0), 7, 8, TOPIC_ID), OffsetRange(tp(1), 3, 29, TOPIC_ID)]
    assert read(monkeypatch, FakeCluster(logs), wanted) == {0: [7], 1: list(range(3, 29))}


def test_several_leaders_are_read_one_after_the_other(monkeypatch):
    logs = {tp(index): a_log([4] * 4, leader=index % 3) for index in range(7)}
    found = read(monkeypatch, FakeCluster(logs), ranges_of(logs))
    assert found == {index: list(range(16)) for index in range(7)}


def test_gaps_of_compaction_are_passed_over(monkeypatch):
    # Between batches, at the end of a range, as a whole range, and at the end of the log.
    logs = {tp(0): a_log([2] * 5, gap=10), tp(1): a_log([1], base=100)}
    logs[tp(1)].start = 0
    wanted = [OffsetRange(tp(0), 0, 45, TOPIC_ID), OffsetRange(tp(1), 5, 60, TOPIC_ID)]
    logs[tp(2)] = a_log([2], gap=10)
    wanted.append(OffsetRange(tp(2), 1, 12, TOPIC_ID))
    found = read(monkeypatch, FakeCluster(logs), wanted)
    assert found == {0: [0, 1, 12, 13, 24, 25, 36, 37], 2: [1]}


def test_batches_end_at_rows_or_bytes(monkeypatch):
    logs = {tp(0): a_log([12_345]), tp(1): a_log([9], value=b"x" * (BATCH_BYTES // 3))}
    cluster = FakeCluster(logs).patch(monkeypatch)
    reader = PlogReader(OPTIONS, FULL_SCHEMA)
    batches = list(reader.decode(RangeReader(cluster, ranges_of(logs), OPTIONS)))
    assert [b.num_rows for b in batches] == [BATCH_ROWS, BATCH_ROWS, 2345, 3, 3, 3]
    assert max(b.nbytes for b in batches[3:]) < BATCH_BYTES + BATCH_BYTES // 3 + 1024


def test_aborted_transactions_are_left_out_of_read_committed(monkeypatch):
    def data(base: int, producer_id: int) -> tuple[int, int, bytes]:
        records = [(base, b"k", b"v", ())] * 2
        batch = build_batch(
            records, base_offset=base, producer_id=producer_id, producer_epoch=0,
            base_sequence=0, transactional=True,
        )  # fmt: skip
        return base, base + 2, batch

    def marker(offset: int, producer_id: int, *, abort: bool) -> tuple[int, int, bytes]:
        batch = control_batch(
            abort=abort, offset=offset, timestamp=offset, producer_id=producer_id,
            producer_epoch=0, coordinator_epoch=0,
        )  # fmt: skip
        return offset, offset + 1, batch

    batches = [
        data(0, 7), data(2, 8), marker(4, 7, abort=True), marker(5, 8, abort=False),
        data(6, 7), marker(8, 7, abort=False),
    ]  # fmt: skip
    logs = {tp(0): FakeLog(batches, 9, aborted=[(7, 0)])}
    options = replace(OPTIONS, partition_max_bytes=1 << 20)
    committed = replace(options, read_committed=True)
    assert read(monkeypatch, FakeCluster(logs), ranges_of(logs), committed) == {0: [2, 3, 6, 7]}
    # Without it there are no markers either, but everything else.
    everything = {0: [0, 1, 2, 3, 6, 7]}
    assert read(monkeypatch, FakeCluster(logs), ranges_of(logs), options) == everything


PASSING = [
    LeaderNotAvailable,
    NotLeaderOrFollower,
    NetworkException,
    RequestTimedOut,
    KafkaStorageError,
]


@pytest.mark.parametrize("what", ["refresh", "leader", "connect", "send", "receive", "partition 1"])
@pytest.mark.parametrize("error", PASSING)
def test_passing_fault_anywhere_costs_no_record_and_doubles_none(monkeypatch, what, error):
    logs = {tp(index): a_log([3] * 6) for index in range(3)}
    calls = 0

    def fault(step: str) -> None:
        nonlocal calls
        calls += step == what
        if step == what and calls in (1, 3, 4):
            raise error("for a moment")

    found = read(monkeypatch, FakeCluster(logs, fault), ranges_of(logs))
    assert calls > 1
    assert found == {index: list(range(18)) for index in range(3)}


def test_faults_at_random_cost_no_record_and_double_none(monkeypatch):
    chance = random.Random(run_seed())
    for _ in range(60):
        logs = {
            tp(index): a_log(
                [chance.randint(1, 6) for _ in range(chance.randint(1, 9))],
                gap=chance.choice([0, 0, 3]),
                leader=chance.randrange(3),
            )
            for index in range(chance.randint(1, 90))
        }

        def fault(step: str, logs=logs) -> None:
            # Steps of each of 90 partitions, and those of a whole fetch.
            if chance.random() < (0.001 if step.startswith(("leader", "partition")) else 0.05):
                for log in logs.values():
                    if chance.random() < 0.2:
                        log.leader = chance.randrange(3)
                raise chance.choice(PASSING)("for a moment")

        cluster = FakeCluster(logs, fault)
        found = read(monkeypatch, cluster, ranges_of(logs))
        assert found == {
            partition.partition: [o for base, after, _ in log.batches for o in range(base, after)]
            for partition, log in logs.items()
        }


def test_fault_that_does_not_pass_ends_the_task(monkeypatch):
    logs = {tp(0): a_log([3])}

    def fault(step: str) -> None:
        if step == "partition 0":
            raise TopicAuthorizationFailed("no")

    with pytest.raises(TopicAuthorizationFailed):
        read(monkeypatch, FakeCluster(logs, fault), ranges_of(logs))


def test_passing_fault_that_stays_ends_the_task_in_time(monkeypatch):
    logs = {tp(0): a_log([3])}

    def fault(step: str) -> None:
        if step == "leader":
            raise LeaderNotAvailable("still")

    with pytest.raises(LeaderNotAvailable):
        read(
            monkeypatch,
            FakeCluster(logs, fault),
            ranges_of(logs),
            replace(OPTIONS, poll_timeout_ms=50),
        )


def test_records_that_do_not_come_end_the_task_in_time(monkeypatch):
    logs = {tp(0): a_log([3])}
    beyond = OffsetRange(tp(0), 0, 5, TOPIC_ID)  # the high watermark stays at 3
    options = replace(OPTIONS, poll_timeout_ms=50)
    with pytest.raises(RequestTimedOut, match=r"offset 3 within kafkaConsumer\.pollTimeoutMs=50"):
        read(monkeypatch, FakeCluster(logs), [beyond], options)


def test_damaged_records_end_the_task_at_once(monkeypatch):
    log = a_log([3, 3, 3])
    base, after, records = log.batches[1]
    log.batches[1] = (base, after, records[:-1] + bytes([records[-1] ^ 1]))
    with pytest.raises(CorruptRecord, match="t-0, after offset 0: batch at "):
        read(monkeypatch, FakeCluster({tp(0): log}), [OffsetRange(tp(0), 0, 9, TOPIC_ID)])


# -- records that go while the query runs


def deletion(logs, *, before: int):
    """After the second fetch, records of partition 0 below an offset are gone."""
    calls = 0

    def fault(step: str) -> None:
        nonlocal calls
        calls += step == "receive"
        if calls == 2 and step == "receive":
            logs[tp(0)].start = before

    return fault


def test_records_deleted_meanwhile_are_an_error(monkeypatch):
    logs = {tp(0): a_log([3] * 20)}
    with pytest.raises(OffsetOutOfRange, match="records below 40 were deleted while the query ran"):
        read(monkeypatch, FakeCluster(logs, deletion(logs, before=40)), ranges_of(logs))


@pytest.mark.parametrize("before", [40, 60])
def test_records_deleted_meanwhile_are_skipped_where_loss_is_none(monkeypatch, caplog, before):
    logs = {tp(0): a_log([3] * 20), tp(1): a_log([3] * 20)}
    wanted = ranges_of(logs)
    found = read(monkeypatch, FakeCluster(logs, deletion(logs, before=before)), wanted, LOSSY)
    assert found[1] == list(range(60))
    had = [offset for offset in found[0] if offset < before]
    assert had == list(range(len(had)))
    assert 0 < len(had) < 40
    assert found[0][len(had) :] == list(range(before, 60))
    assert f" to {before} of t-0 cannot be read: records below {before} were deleted" in caplog.text


@pytest.mark.parametrize("options", [OPTIONS, LOSSY])
def test_log_that_became_shorter_is_a_loss(monkeypatch, options):
    logs = {tp(0): a_log([3] * 20)}
    cluster = FakeCluster(logs)
    wanted = [OffsetRange(tp(0), 70, 80, TOPIC_ID)]
    if options.fail_on_data_loss:
        with pytest.raises(OffsetOutOfRange, match="the log now ends at 60"):
            read(monkeypatch, cluster, wanted, options)
    else:
        assert read(monkeypatch, cluster, wanted, options) == {}


@pytest.mark.parametrize("options", [OPTIONS, LOSSY])
def test_topic_created_anew_is_not_read_for_the_old_one(monkeypatch, options):
    logs = {tp(0): a_log([3])}
    cluster = FakeCluster(logs)
    wanted = [OffsetRange(tp(0), 0, 3, topic_id=TOPIC_ID.__class__(int=1))]
    if options.fail_on_data_loss:
        with pytest.raises(OffsetOutOfRange, match="its topic was deleted and recreated"):
            read(monkeypatch, cluster, wanted, options)
    else:
        assert read(monkeypatch, cluster, wanted, options) == {}


@pytest.mark.parametrize("options", [OPTIONS, LOSSY])
@pytest.mark.parametrize("records", [3, 200])
def test_topic_created_anew_between_two_fetches_is_not_read_for_the_old_one(
    monkeypatch, options, records
):
    logs = {tp(0): a_log([3] * 20, value=b"old")}
    wanted = ranges_of(logs)
    answers = 0

    def fault(step: str) -> None:
        nonlocal answers
        answers += step == "receive"
        if answers == 3:
            cluster.topic_id = uuid.UUID(int=78)
            logs[tp(0)] = a_log([records], value=b"new")

    cluster = FakeCluster(logs, fault).patch(monkeypatch)
    reader = PlogReader(options, FULL_SCHEMA)
    found: list[bytes] = []
    with (
        pytest.raises(OffsetOutOfRange, match="its topic was deleted and recreated")
        if options.fail_on_data_loss
        else contextlib.nullcontext()
    ):
        for batch in reader.decode(RangeReader(cluster, wanted, options)):
            found += batch.column("value").to_pylist()
    assert answers >= 3
    # A task that fails has told nobody of its last rows.
    assert set(found) == (set() if options.fail_on_data_loss else {b"old"})


@pytest.mark.parametrize("options", [OPTIONS, LOSSY])
def test_broker_that_does_not_know_its_topics_yet_costs_no_record(monkeypatch, options):
    """It has been away for longer than a topic may be missing for."""
    monkeypatch.setattr(range_reader, "UNKNOWN_TOPIC_GRACE_S", 0.05)
    logs = {tp(0): a_log([3] * 20)}
    faults: Iterator[KafkaError] = itertools.chain(
        [NetworkException("away")] * 3, [UnknownTopicOrPartition("not yet")] * 2
    )
    answers = 0

    def fault(step: str) -> None:
        nonlocal answers
        answers += step == "receive"
        if answers > 2 and step == "receive" and (met := next(faults, None)) is not None:
            time.sleep(0.06 if isinstance(met, NetworkException) else 0)
            raise met

    assert read(monkeypatch, FakeCluster(logs, fault), ranges_of(logs), options) == {
        0: list(range(60))
    }
    assert next(faults, None) is None


@pytest.mark.parametrize("options", [OPTIONS, LOSSY])
def test_topic_that_stays_away_is_a_loss(monkeypatch, caplog, options):
    monkeypatch.setattr(range_reader, "UNKNOWN_TOPIC_GRACE_S", 0.05)
    logs = {tp(0): a_log([3])}
    wanted = [*ranges_of(logs), OffsetRange(TopicPartition("gone", 0), 0, 3, TOPIC_ID)]
    if options.fail_on_data_loss:
        with pytest.raises(UnknownTopicOrPartition):
            read(monkeypatch, FakeCluster(logs), wanted, options)
    else:
        assert read(monkeypatch, FakeCluster(logs), wanted, options) == {0: [0, 1, 2]}
        assert "offsets 0 to 3 of gone-0 cannot be read: its topic was deleted" in caplog.text


def test_no_range_asks_nobody(monkeypatch):
    def fault(step: str) -> None:
        raise AssertionError(step)

    assert read(monkeypatch, FakeCluster({}, fault), []) == {}


def test_memory_of_columns_is_arrows_to_keep(monkeypatch):
    # Batches outlive the fetch they were decoded from and the builder that made them.
    logs = {tp(0): a_log([3] * 50)}
    cluster = FakeCluster(logs).patch(monkeypatch)
    reader = PlogReader(OPTIONS, FULL_SCHEMA)
    batches = list(reader.decode(RangeReader(cluster, ranges_of(logs), OPTIONS)))
    assert pa.Table.from_batches(batches).column("offset").to_pylist() == list(range(150))
