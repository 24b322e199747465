"""The aborted transactions that a committed read is told of: by the fast path as by the handler.

The logs of both brokers are written to by hand, so that they hold the same transactions, of the
same producers; what is asked is compared as in `test_fast_path`.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

import pytest

from plog._native.batch import scan
from plog.cluster.partition import Partition
from plog.errors import ErrorCode
from plog.protocol.messages.fetch import FetchResponse, PartitionData
from plog.storage import transaction_index
from plog.storage.cleaner import Cleaner
from plog.storage.filesystem import Filesystem
from plog.storage.log import Log
from plog.storage.producer_state import Marker
from plog.storage.transaction_index import AbortedTransaction, AbortedTransactions
from plog.types import TopicPartition
from tests.handlers.running import Running, decoded
from tests.handlers.twins import FETCH_VERSIONS, IDS_SINCE, Twins, TwinSession
from tests.handlers.wire import (
    NOW_MS,
    WAIT_MS,
    fetch_request,
    fetched,
    make_batch,
)
from tests.planes import Plane
from tests.storage.storage_logs import approved

COMMITTED = 1
ONE, TWO, THREE = 901, 902, 903
"""Producer ids."""
MARKER_BYTES = 78
MOST_TOLD = 16_384


class Logs:
    """The log of one partition at each of the brokers, written to alike."""

    def __init__(self, running: Iterable[Running], topic: str, index: int = 0) -> None:
        at = TopicPartition(topic, index)
        self.topic = topic
        self.both = [one.broker._replicas.leader(at).log for one in running]
        self._sequences: dict[int, int] = {}

    def each(self, do: Callable[[Log], object]) -> None:
        for log in self.both:
            do(log)

    @property
    def end(self) -> int:
        (end,) = {log.log_end_offset for log in self.both}
        return end

    def write(self, producer_id: int = -1, *values: bytes, key: bytes | None = None) -> int:
        """Append a batch, of a transaction unless there is no producer; return its offset."""
        values = values or (b"v",)
        first = self._sequences.get(producer_id, 0)
        data = make_batch(
            values,
            key=key,
            producer=(-1, -1, -1) if producer_id < 0 else (producer_id, 0, first),
            transactional=producer_id >= 0,
        )
        self._sequences[producer_id] = first + len(values)
        offset = self.end
        for log in self.both:
            guard = approved(log, data)
            log.append_as_leader(bytearray(data), now_ms=NOW_MS, guard=guard)
        return offset

    def finish(self, producer_id: int, *, abort: bool) -> None:
        marker = Marker(abort=abort, coordinator_epoch=0)
        self.each(lambda log: log.transactions.append_marker(producer_id, 0, marker, now_ms=NOW_MS))

    def abort(self, producer_id: int = ONE, *values: bytes) -> int:
        """Write and abort a transaction; return where it begins."""
        offset = self.write(producer_id, *values)
        self.finish(producer_id, abort=True)
        return offset

    def commit(self, producer_id: int = ONE, *values: bytes) -> int:
        offset = self.write(producer_id, *values)
        self.finish(producer_id, abort=False)
        return offset


@pytest.fixture
def logs(twins: Twins) -> Logs:
    return Logs(twins.both, twins.create_topic())


def listed(part: PartitionData) -> list[tuple[int, int]] | None:
    if part.aborted_transactions is None:
        return None
    return [(one.producer_id, one.first_offset) for one in part.aborted_transactions]


def ask(
    twins: Twins,
    logs: Logs,
    offset: int,
    *,
    version: int = 12,
    fast: bool = True,
    isolation_level: int = COMMITTED,
    **options: int,
) -> list[tuple[int, int]] | None:
    """Read from an offset; return what both list."""
    request = fetch_request((logs.topic, 0, offset), isolation_level=isolation_level, **options)
    answer = twins.ask(request, version, fast=fast)
    (part,) = fetched(decoded(FetchResponse, version, answer)).values()
    assert part.error_code == ErrorCode.NONE
    return listed(part)


def read_everywhere(twins: Twins, logs: Logs, *, fast: bool = True) -> None:
    """From every offset, cut by its size in many ways; with markers, a batch is 69 bytes or so."""
    start = logs.both[0].log_start_offset
    for offset in range(start, logs.end + 1):
        for size in (1, 200, 1 << 20):
            ask(twins, logs, offset, fast=fast, partition_max_bytes=size)


# -- what is told ----------------------------------------------------------------------------------


@pytest.mark.parametrize("version", FETCH_VERSIONS)
def test_list_is_the_same_in_every_version(twins: Twins, logs: Logs, version: int) -> None:
    logs.write()
    for _ in range(3):
        logs.abort(ONE)
        logs.commit(TWO)
    for level in (0, COMMITTED):
        for offset in range(logs.end + 1):
            if version < IDS_SINCE:
                ask(twins, logs, offset, version=version, isolation_level=level)
            else:
                twins.ask_by_id(
                    lambda topic_id, at=offset, of=level: fetch_request(
                        (topic_id, 0, at), (topic_id, 1, 0), isolation_level=of
                    ),
                    version,
                )


def test_what_overlaps_is_listed_and_nothing_else(twins: Twins, logs: Logs) -> None:
    assert ask(twins, logs, 0) == []
    logs.write(-1, b"a", b"b")
    assert ask(twins, logs, 0) == []
    first = logs.abort(ONE)
    logs.write(-1, b"c")
    second = logs.abort(TWO)
    assert ask(twins, logs, 0, isolation_level=0) is None
    both = [(ONE, first), (TWO, second)]

    by_offset = [both, both, both, both, both[1:], both[1:], both[1:], []]
    assert [ask(twins, logs, offset) for offset in range(8)] == by_offset
    read_everywhere(twins, logs)


def test_interleaved_producers_are_listed_in_the_order_of_their_markers(
    twins: Twins, logs: Logs
) -> None:
    firsts = {}
    for producer in (ONE, TWO, THREE):
        firsts[producer] = logs.write(producer)
    logs.write(TWO)
    logs.finish(THREE, abort=True)
    logs.finish(ONE, abort=True)
    assert ask(twins, logs, 0) == [(ONE, firsts[ONE])]  # of the others nothing is stable yet
    read_everywhere(twins, logs)
    logs.finish(TWO, abort=True)
    assert ask(twins, logs, 0) == [(one, firsts[one]) for one in (THREE, ONE, TWO)]
    again = logs.write(THREE)
    logs.abort(ONE)
    logs.finish(THREE, abort=False)
    assert ask(twins, logs, again) == [(ONE, again + 1)]
    read_everywhere(twins, logs)


def test_reader_that_waits_at_the_end_is_told_of_what_is_aborted_then(
    twins: Twins, logs: Logs
) -> None:
    logs.abort(ONE)
    end, fast = logs.end, twins.fast
    waiting = fetch_request((logs.topic, 0, end), isolation_level=COMMITTED, max_wait_ms=WAIT_MS)
    fast.send(waiting, 12)
    fast.until_waiting()
    before = fast.callouts
    logs.abort(TWO)
    answer = fast.receive()
    (part,) = fetched(decoded(FetchResponse, 12, answer)).values()
    assert listed(part) == [(TWO, end)]
    assert fast.callouts == before
    assert answer[4:] == twins.plain.ask(waiting, 12)[4:]


def test_many_partitions_of_a_request_have_a_list_each(twins: Twins) -> None:
    topic = twins.create_topic()
    several = [Logs(twins.both, topic, index) for index in range(3)]
    several[0].abort(ONE)
    several[1].commit(TWO)
    for _ in range(200):
        several[2].abort(THREE)
    for version in (11, 12):
        for offsets in ((0, 0, 0), (2, 0, 100), (0, 2, 400)):
            request = fetch_request(
                *((topic, index, offset) for index, offset in enumerate(offsets)),
                isolation_level=COMMITTED,
            )
            parts = fetched(decoded(FetchResponse, version, twins.ask(request, version)))
            counts = [len(parts[topic, index].aborted_transactions) for index in range(3)]
            assert counts == [offsets[0] == 0, 0, 200 - offsets[2] // 2]


@pytest.mark.parametrize("version", range(7, 18))
def test_session_is_told_the_same(twins: Twins, version: int) -> None:
    topic = twins.create_topic()
    one, other = (Logs(twins.both, topic, index) for index in (0, 1))
    one.abort(ONE)
    asked = ((topic, 0, 0), (topic, 1, 0))
    session = TwinSession(twins, *asked, version=version, isolation_level=COMMITTED)
    assert session.next()  # it did not take what it was given
    assert session.next((topic, 0, 2)) == {}
    other.abort(TWO)
    assert session.next()
    assert session.next((topic, 1, 1))
    assert session.next((topic, 1, 2)) == {}


# -- what the kernel does not know -----------------------------------------------------------------


def test_reader_from_below_what_is_known_is_the_handlers(
    twins: Twins, logs: Logs, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(transaction_index, "MOST_PUBLISHED", 4)
    for _ in range(9):
        logs.abort(ONE)
    known_from = 2 * 5  # behind the marker of the last one that is left out
    for offset in range(logs.end + 1):
        fast = offset >= known_from
        expected = [(ONE, first) for first in range(offset // 2 * 2, logs.end, 2)]
        assert ask(twins, logs, offset, fast=fast) == expected
    logs.abort(TWO)
    ask(twins, logs, known_from, fast=False)
    assert ask(twins, logs, known_from + 2) is not None


def test_list_that_is_as_long_as_any_is_told(twins: Twins, logs: Logs) -> None:
    for _ in range(transaction_index.MOST_PUBLISHED):
        logs.abort(ONE)
    first = logs.abort(TWO)
    found = ask(twins, logs, 2)
    assert found is not None
    assert len(found) == transaction_index.MOST_PUBLISHED
    assert found[-1] == (TWO, first)
    ask(twins, logs, 2, version=11)
    ask(twins, logs, 1, fast=False)


def test_answer_that_lists_too_many_is_the_handlers(twins: Twins) -> None:
    most = transaction_index.MOST_PUBLISHED
    count = MOST_TOLD // most + 1
    topic = twins.create_topic(count)
    entries = [AbortedTransaction(n, 0, n, n) for n in range(most)]
    for index in range(count):
        logs = Logs(twins.both, topic, index)
        logs.write(-1, *[b"v"] * most)
        logs.each(lambda log: log._segments._set_aborted(AbortedTransactions(entries)))
    for parts in (count - 1, count):
        request = fetch_request(
            *((topic, index, 0) for index in range(parts)), isolation_level=COMMITTED
        )
        twins.ask(request, 12, fast=parts < count)


# -- while a marker is written ---------------------------------------------------------------------


@contextlib.contextmanager
def marker_held_back(logs: Logs, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Let both logs have appended a marker, and not said so yet."""
    may_go_on, are_there = threading.Event(), threading.Semaphore(0)
    add = transaction_index.AbortedTransactions.add

    def adding(self: AbortedTransactions, entry: AbortedTransaction) -> None:
        are_there.release()
        assert may_go_on.wait(60)
        add(self, entry)

    monkeypatch.setattr(transaction_index.AbortedTransactions, "add", adding)
    marker = Marker(abort=True, coordinator_epoch=0)
    threads = [
        threading.Thread(
            target=log.transactions.append_marker, args=(ONE, 0, marker), kwargs={"now_ms": NOW_MS}
        )
        for log in logs.both
    ]
    for one in threads:
        one.start()
    for _ in threads:
        assert are_there.acquire(timeout=60)
    try:
        yield
    finally:
        may_go_on.set()
        for one in threads:
            one.join()


def test_transaction_whose_marker_is_being_written_is_listed(
    twins: Twins, logs: Logs, monkeypatch: pytest.MonkeyPatch
) -> None:
    logs.abort(TWO)
    first = logs.write(ONE)
    assert ask(twins, logs, first) == []
    with marker_held_back(logs, monkeypatch):
        assert ask(twins, logs, 0) == [(ONE, first), (TWO, 0)]
        read_everywhere(twins, logs)
    assert ask(twins, logs, 0) == [(TWO, 0), (ONE, first)]
    read_everywhere(twins, logs)


def test_marker_that_cannot_be_written_aborts_nothing(twins: Twins, logs: Logs) -> None:
    first = logs.write(ONE)

    def fail(log: Log) -> None:
        with pytest.raises(OSError, match="no"), log._segments.aborting(ONE, first):
            raise OSError("no")

    logs.each(fail)
    logs.finish(ONE, abort=False)
    assert ask(twins, logs, 0) == []


# -- when the log becomes another ------------------------------------------------------------------


def test_list_begins_where_the_log_does(twins: Twins) -> None:
    logs = Logs(twins.both, twins.create_topic(segment_bytes=4096, retention_bytes=1))
    for _ in range(3):
        logs.abort(ONE)
        logs.each(Log.roll)
    logs.write(TWO)
    logs.each(lambda log: log.delete_records_before(3))  # within a transaction
    read_everywhere(twins, logs)
    assert ask(twins, logs, 3) == [(ONE, 2)]  # of one segment
    logs.each(lambda log: log.apply_retention(NOW_MS))
    assert [len(log._segments.aborted) for log in logs.both] == [0, 0]
    assert logs.both[0].log_start_offset == 6
    logs.finish(TWO, abort=True)
    assert ask(twins, logs, 6) == [(TWO, 6)]
    read_everywhere(twins, logs)


def test_deleted_records_are_not_asked_for(twins: Twins, logs: Logs) -> None:
    logs.abort(ONE)
    logs.abort(TWO)
    logs.each(lambda log: log.delete_records_before(-1))
    assert ask(twins, logs, logs.end) == []
    twins.ask(fetch_request((logs.topic, 0, 0), isolation_level=COMMITTED), 12, fast=False)


def test_truncated_log_lists_what_is_left(twins: Twins, logs: Logs) -> None:
    logs.abort(ONE)
    first = logs.abort(TWO)
    read_everywhere(twins, logs)
    logs.each(lambda log: log.truncate_to(first + 1))  # its marker goes: it is open again
    assert ask(twins, logs, 0) == [(ONE, 0)]
    read_everywhere(twins, logs)
    logs.finish(TWO, abort=False)
    assert ask(twins, logs, 0) == [(ONE, 0)]
    logs.each(lambda log: log.restart_at(10))
    logs.each(lambda log: log.native.advance_high_watermark(10))
    assert ask(twins, logs, 10) == []
    logs.abort(ONE)
    read_everywhere(twins, logs)


@pytest.mark.parametrize("isolation_level", [0, COMMITTED])
def test_read_never_goes_by_a_limit_from_before_a_truncation(
    twins: Twins, logs: Logs, monkeypatch: pytest.MonkeyPatch, isolation_level: int
) -> None:
    for _ in range(3):
        logs.write()
    log = logs.both[0]
    epoch = log.native.leader_epoch
    log.become_leader(epoch + 1, sole_replica=True)
    readable_end = Partition.readable_end
    limits: list[int] = []

    def changed_at_once(partition: Partition, *, read_committed: bool) -> int:
        limit = readable_end(partition, read_committed=read_committed)
        if partition.log is not log:
            return limit
        limits.append(limit)
        if len(limits) == 1:
            log.become_follower(epoch + 2)
            assert log.truncate_to(1)
            log.become_leader(epoch + 3, sole_replica=False)
            for _ in range(2):
                data = bytearray(make_batch([b"not committed"]))
                log.append_as_leader(data, now_ms=NOW_MS)
        return limit

    monkeypatch.setattr(Partition, "readable_end", changed_at_once)
    # Its last epoch is not the leader's, so Python reads.
    request = fetch_request(
        (logs.topic, 0, 0), isolation_level=isolation_level, last_fetched_epoch=epoch
    )
    answer, _ = (one.ask(request, 12) for one in twins.both)
    (part,) = fetched(decoded(FetchResponse, 12, answer)).values()
    assert [header.base_offset for header in scan(part.records)] == [0]
    assert limits == [3, 1]
    assert (part.high_watermark, part.last_stable_offset) == (1, 1)


def compact(log: Log, pass_number: int) -> None:
    """At a time that is the same for both: some markers get a horizon by it, and go after that."""
    cleaner = Cleaner(Filesystem(), key_memory_bytes=1 << 20, load_factor=0.9)
    now_ms = NOW_MS + pass_number * 1000
    log.flush()
    dirty = log.dirty_range(None, now_ms)
    assert dirty is not None
    cleaner.clean(log, dirty, now_ms=now_ms, throttle=lambda size: None)


def test_compacted_log_lists_what_has_a_marker_left(twins: Twins) -> None:
    topic = twins.create_topic(
        cleanup_policy="compact", min_cleanable_dirty_ratio=1, delete_retention_ms=500
    )
    logs = Logs(twins.both, topic)
    for number in range(6):
        logs.write(ONE, b"1", b"2", key=b"k%d" % (number % 3))
        logs.write(TWO, b"3", key=b"k")
        logs.finish(ONE, abort=number % 2 == 0)
        logs.finish(TWO, abort=True)
        logs.each(Log.roll)
    known = [9]
    for number in range(4):
        read_everywhere(twins, logs)
        logs.write(-1, b"more", key=b"k")
        logs.each(Log.roll)
        logs.each(lambda log, turn=number: compact(log, turn))
        left, also_left = (len(log._segments.aborted) for log in logs.both)
        assert left == also_left
        known.append(left)
    # At first it is the records that go. What both producers wrote last is kept, to be known by.
    assert known[1] == 9
    assert known[2] < 9
    read_everywhere(twins, logs)


def test_broker_that_starts_again_knows_them(tmp_path: Path) -> None:
    twins = Twins(tmp_path)
    topic = twins.create_topic()
    logs = Logs(twins.both, topic)
    for _ in range(3):
        logs.abort(ONE)
        logs.commit(TWO)
    logs.write(TWO)
    for one in twins.both:
        one.stop()
    twins.fast = Running(tmp_path / "fast")
    twins.plain = Running(tmp_path / "plain", plane=Plane.PLAIN)
    twins.both = (twins.fast, twins.plain)
    logs = Logs(twins.both, topic)
    read_everywhere(twins, logs)
    assert ask(twins, logs, 0) == [(ONE, 0), (ONE, 4), (ONE, 8)]
    for one in twins.both:
        one.stop()
