"""The lag of groups on the metrics page: in records, in time, and how many are left out."""

from __future__ import annotations

import time
from collections.abc import Iterator
from errno import EAGAIN

import pytest

from plog._native.faults import Fault
from plog.client.admin import Admin
from plog.client.group_admin import GroupAdmin
from plog.ops import watch
from plog.ops.metrics import lag, record_times
from plog.ops.watch import Reading
from plog.storage.log import Log
from plog.types import TopicPartition
from tests.coordinator.conftest import await_coordinator
from tests.handlers.running import Running, faults
from tests.handlers.wire import create_topic, make_batch, produce
from tests.transactions.transactor import Transactor
from tests.waiting import until

RECORDS, SECONDS = "plog_group_lag_records", "plog_group_lag_seconds"
OMITTED = "plog_group_lag_omitted"
HOUR_MS = 3_600_000
TOLERANCE_S = 60
SETTINGS = {
    "metrics_listener": "127.0.0.1:0",
    "metrics_max_group_topics": 3,
    "offsets_topic_num_partitions": 1,
    "transaction_state_log_num_partitions": 1,
}


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    one = Running(tmp_path_factory.mktemp("lag"), **SETTINGS)
    await_coordinator(one.wire, "any")
    yield one
    one.stop()


@pytest.fixture
def topic(running: Running) -> Iterator[str]:
    name, _ = create_topic(running.wire, partitions=2)
    yield name
    with GroupAdmin(f"127.0.0.1:{running.port}") as groups:
        for group in groups.groups():
            groups.delete(group.group_id)
    with Admin(f"127.0.0.1:{running.port}") as admin:
        admin.delete_topic(name)


def write(running: Running, topic: str, partition: int, *ages_h: float) -> None:
    """Append a batch for each age, in hours."""
    now_ms = time.time_ns() // 1_000_000
    for age_h in ages_h:
        batch = make_batch([b"v"], timestamps=[now_ms - int(age_h * HOUR_MS)])
        produce(running.wire, topic, batch, partition=partition)


def commit(running: Running, group: str, offsets: dict[tuple[str, int], int]) -> None:
    with GroupAdmin(f"127.0.0.1:{running.port}") as groups:
        groups.commit(group, {TopicPartition(*at): offset for at, offset in offsets.items()})


def reading(running: Running) -> Reading:
    return watch.read(f"127.0.0.1:{running.broker.metrics_port}", 0)


def hours(page: Reading, **labels: str) -> float:
    return page.value(SECONDS, **labels) / 3600


def test_lag_is_summed_over_partitions_and_its_age_is_that_of_the_oldest_record(
    running: Running, topic: str
) -> None:
    write(running, topic, 0, 9, 8, 7)
    write(running, topic, 1, 6, 5, 4, 3)
    near = {"abs": TOLERANCE_S / 3600}
    for first, second, records, age_h in (
        (0, 0, 7, 9),
        (2, 0, 5, 7),
        (3, 1, 3, 5),
        (2, 3, 2, 7),
        (3, 4, 0, 0),
        (3, 9, 0, 0),  # of an earlier log with more records
    ):
        commit(running, "readers", {(topic, 0): first, (topic, 1): second})
        page = reading(running)
        assert page.value(RECORDS, group="readers", topic=topic) == records
        assert hours(page, group="readers", topic=topic) == pytest.approx(age_h, **near)
    write(running, topic, 0, 0.5)
    page = reading(running)
    assert page.value(RECORDS, group="readers") == 1
    assert hours(page, group="readers") == pytest.approx(0.5, **near)
    assert page.value(OMITTED) == 0


def test_records_that_are_deleted_have_no_age(running: Running, topic: str) -> None:
    write(running, topic, 0, 9, 2)
    commit(running, "readers", {(topic, 0): 0})
    with Admin(f"127.0.0.1:{running.port}") as admin:
        admin.delete_records({TopicPartition(topic, 0): 1})
    page = reading(running)
    assert page.value(RECORDS, group="readers") == 2  # as Kafka's tools count
    assert hours(page, group="readers") == pytest.approx(2, abs=TOLERANCE_S / 3600)


def test_marker_of_a_transaction_has_no_age(running: Running, topic: str) -> None:
    transaction = Transactor(running.wire, "tx").start()
    transaction.send(TopicPartition(topic, 0), b"v")
    transaction.finish(commit=True)
    commit(running, "readers", {(topic, 0): 1})
    page = reading(running)
    assert page.value(RECORDS, group="readers") == 1
    assert page.samples[SECONDS] == {(("group", "readers"), ("topic", topic)): 0}
    write(running, topic, 0, 3)
    page = reading(running)
    assert hours(page, group="readers") == pytest.approx(3, abs=TOLERANCE_S / 3600)


def test_pairs_with_the_least_lag_are_left_out(running: Running, topic: str) -> None:
    write(running, topic, 0, 1, 1, 1, 1)
    for offset in range(5):
        commit(running, f"at {offset}", {(topic, 0): offset})
    page = reading(running)
    assert page.labels(RECORDS, "group") == ["at 0", "at 1", "at 2"]
    assert page.labels(SECONDS, "group") == ["at 0", "at 1", "at 2"]
    assert page.value(OMITTED) == 2


def test_largest_of_many_pairs_are_found_in_turn_and_stay(
    running: Running, topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lag, "MAX_OFFSETS", 2)
    write(running, topic, 0, 1, 1, 1, 1)
    for offset in reversed(range(6)):
        commit(running, f"at {offset}", {(topic, 0): min(offset, 4)})

    def shown() -> dict[str, float]:
        page = reading(running)
        groups = page.labels(RECORDS, "group")
        assert page.value(OMITTED) == 6 - len(groups)
        assert page.labels(SECONDS, "group") == groups
        return {group: page.value(RECORDS, group=group) for group in groups}

    largest = {"at 0": 4, "at 1": 3, "at 2": 2}
    pages = [shown() for _ in range(3)]  # each looks at two of the six groups
    assert pages[-1] == largest
    assert [len(page) for page in pages] == [2, 3, 3]
    assert shown() == shown() == shown() == largest
    # Lags of pairs that are shown are of the same reading.
    write(running, topic, 0, 1)
    assert shown() == {group: records + 1 for group, records in largest.items()}
    commit(running, "at 0", {(topic, 0): 5})
    for _ in range(3):
        last = shown()
    assert last == {"at 1": 4, "at 2": 3, "at 3": 2}
    # Of equal lags those stay that are shown.
    commit(running, "at 0", {(topic, 0): 3})
    assert [shown() for _ in range(6)] == [last] * 6


def test_pairs_that_all_have_room_are_shown_at_once(
    running: Running, topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lag, "MAX_OFFSETS", 1)
    write(running, topic, 1, 1, 1)
    for group in "a", "b", "c":
        commit(running, group, {(topic, 0): 0, (topic, 1): 1})
    page = reading(running)
    assert page.labels(RECORDS, "group") == ["a", "b", "c"]
    assert {page.value(RECORDS, group=group) for group in "abc"} == {1}
    assert page.value(OMITTED) == 0


def test_lag_of_a_deleted_topic_is_gone(running: Running, topic: str) -> None:
    other, _ = create_topic(running.wire)
    write(running, other, 0, 1)
    commit(running, "readers", {(topic, 0): 0, (other, 0): 0})
    assert reading(running).labels(RECORDS, "topic") == sorted([topic, other])
    with Admin(f"127.0.0.1:{running.port}") as admin:
        admin.delete_topic(other)
    assert reading(running).labels(RECORDS, "topic") == [topic]


def test_group_that_stands_still_costs_one_look_up(
    running: Running, topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(running, topic, 0, 2, 1)
    commit(running, "readers", {(topic, 0): 0})
    looked_up: list[int] = []
    look_up = record_times.look_up

    def counted(log: Log, offset: int, *, may_wait: bool) -> int | None:
        looked_up.append(offset)
        return look_up(log, offset, may_wait=may_wait)

    monkeypatch.setattr(record_times, "look_up", counted)
    for _ in range(3):
        assert hours(reading(running)) == pytest.approx(2, abs=TOLERANCE_S / 3600)
    assert looked_up == [0]
    commit(running, "readers", {(topic, 0): 1})
    for _ in range(3):
        assert hours(reading(running)) == pytest.approx(1, abs=TOLERANCE_S / 3600)
    assert looked_up == [0, 1]


def test_page_does_not_wait_for_a_disk(running: Running, topic: str) -> None:
    write(running, topic, 0, 2)
    commit(running, "readers", {(topic, 0): 0})
    directory = f"{running.directory}/{topic}-0"
    cold = Fault("pread_now", errno=EAGAIN, path_prefix=directory)
    slow = Fault("pread", delay_us=300_000, path_prefix=directory)
    with faults(cold, slow):
        page = reading(running)
        assert page.value(RECORDS, group="readers") == 1
        assert page.labels(SECONDS, "group") == []  # not known yet
    until(lambda: reading(running).labels(SECONDS, "group") == ["readers"], "it has been read")
    assert hours(reading(running)) == pytest.approx(2, abs=TOLERANCE_S / 3600)
