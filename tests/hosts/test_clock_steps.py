"""A wall clock that is set while the broker runs: ten years ahead, an hour back, to 1970."""

from __future__ import annotations

import struct
import threading
import time
from contextlib import ExitStack, closing
from pathlib import Path

import confluent_kafka
import pytest

from plog.client.consumer import Consumer
from plog.client.producer import Producer
from plog.errors import ErrorCode
from plog.protocol.messages.api_versions import ApiVersionsRequest
from plog.protocol.messages.fetch import FetchRequest
from plog.protocol.messages.group_admin import DescribeGroupsRequest
from plog.types import TopicPartition
from tests.coordinator.conftest import await_coordinator
from tests.coordinator.members import ByHand
from tests.crash.writer import Writer
from tests.handlers.wire import (
    Speaker,
    create_topic,
    fetch_one,
    fetch_request,
    make_batch,
    produce,
    speak,
    walk_all,
)
from tests.hosts.host import MIB, Host, MemoryBounded, read_all, wait_until
from tests.servers import BrokerProcess
from tests.transactions.transactor import Transactor, committed_offset

HOUR_MS = 3_600_000
TEN_YEARS_MS = 10 * 365 * 24 * HOUR_MS
MOST_SKEW_MS = 600_000
"""Between the broker's clock and the test's; more than a slow machine makes."""
MOST_WAIT_MS = 30_000
CHECK_MS = 100
SHORT_MS = 1_000
"""Of who says nothing more: a session, and a transaction."""
GONE_BACK = ("an hour back", "1970")
AHEAD = "the clock was set ahead by"


def now_ms() -> int:
    return time.time_ns() // 1_000_000


@pytest.fixture
def steps() -> dict[str, int]:
    """How far from the machine's clock, one after the other."""
    return {
        "ten years ahead": TEN_YEARS_MS,
        "right again": 0,
        "an hour back": -HOUR_MS,
        "1970": -now_ms(),
        "right at last": 0,
    }


def time_indexes(directory: Path) -> list[list[tuple[int, ...]]]:
    """Return a partition's time indexes: timestamps, and offsets within the segment."""
    return [
        list(struct.iter_unpack(">qi", path.read_bytes()))
        for path in sorted(directory.glob("*.timeindex"))
    ]


def waited_ms(client: Speaker, request: FetchRequest) -> float:
    begun = time.monotonic()
    client.ask(request, 12, wait_ms=request.max_wait_ms)
    return (time.monotonic() - begun) * 1000


class Member:
    """Somebody in a group, who beats and polls, and counts what becomes of its partitions."""

    def __init__(self, bootstrap: str, topic: str, protocol: str) -> None:
        self.assigned = self.taken = 0
        consumer = confluent_kafka.Consumer(
            {
                "bootstrap.servers": bootstrap,
                "group.id": f"members, {protocol}",
                "group.protocol": protocol,
            }
        )
        consumer.subscribe(
            [topic], on_assign=self._assigned, on_revoke=self._taken, on_lost=self._taken
        )
        self._consumer = consumer
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._poll)
        self._thread.start()

    def _assigned(self, *_: object) -> None:
        self.assigned += 1

    def _taken(self, *_: object) -> None:
        self.taken += 1

    def _poll(self) -> None:
        while not self._over.is_set():
            self._consumer.poll(0.1)

    def stop(self) -> None:
        self._over.set()
        self._thread.join()
        self._consumer.close()


def end_when_their_time_is_over(broker: BrokerProcess, client: Speaker, what: str) -> None:
    """Have a member and a transaction that say nothing more; both must be given up."""
    lapsed = TopicPartition("lapsed", 0)
    transactor = Transactor(client, f"silent, {what}", timeout_ms=SHORT_MS).start()
    transactor.send(lapsed, what.encode())
    with closing(ByHand(broker.port, f"silent, {what}", session_ms=SHORT_MS)) as member:
        member.enter()
        assert member.beat() is ErrorCode.NONE
        wait_until(
            lambda: transactor.described().transaction_state == "CompleteAbort", "aborted", broker
        )
        asked = DescribeGroupsRequest(groups=[member.group])
        wait_until(lambda: not client.ask(asked, 5).groups[0].members, "given up", broker)
        # While the empty group is being deleted, the response is COORDINATOR_NOT_AVAILABLE.
        wait_until(lambda: member.beat() is ErrorCode.UNKNOWN_MEMBER_ID, "unknown", broker)


@pytest.mark.usefixtures("plane")
def test_clock_steps_change_timestamps_and_nothing_else(
    tmp_path: Path, host: Host, steps: dict[str, int], memory_bounded: MemoryBounded
) -> None:
    broker = BrokerProcess(
        tmp_path,
        environment=host.environment,
        overrides={
            "log.initial.task.delay.ms": 0,
            "log.retention.check.interval.ms": CHECK_MS,
            "producer.id.expiration.check.interval.ms": CHECK_MS,
            "log.segment.delete.delay.ms": CHECK_MS,
            "log.index.interval.bytes": 1,
            "offsets.topic.num.partitions": 1,
            "offsets.retention.check.interval.ms": CHECK_MS,
            "group.initial.rebalance.delay.ms": 0,
            "group.min.session.timeout.ms": SHORT_MS,
            "transaction.state.log.num.partitions": 1,
            "transaction.abort.timed.out.transaction.cleanup.interval.ms": CHECK_MS,
            "transaction.remove.expired.transaction.cleanup.interval.ms": CHECK_MS,
        },
    )
    with (
        broker,
        closing(speak(broker.port)) as client,
        Producer(broker.bootstrap, linger_ms=0) as producer,
        memory_bounded(broker, "clock steps", 32 * MIB),
        ExitStack() as stack,
    ):
        create_topic(client, "created", segment_bytes=100_000)
        create_topic(client, "not-after", message_timestamp_after_max_ms=2 * HOUR_MS)
        create_topic(client, "not-before", message_timestamp_before_max_ms=2 * HOUR_MS)
        create_topic(client, "stamped", message_timestamp_type="LogAppendTime")
        create_topic(client, "idle")
        create_topic(client, "lapsed")
        writer = stack.enter_context(Writer(broker.bootstrap, "created", 1, pause_s=0.01))
        # A producer that says nothing meanwhile must be known afterwards.
        idle = make_batch([b"i"], producer=(4242, 0, 0))
        assert produce(client, "idle", idle).base_offset == 0
        # So must what is committed, and an open transaction and a producer at rest go on.
        await_coordinator(client, "g")
        idle_at = TopicPartition("idle", 0)
        nobody = stack.enter_context(closing(ByHand(broker.port, "g")))
        assert nobody.commit("idle", 3) is ErrorCode.NONE
        open_one = Transactor(client, "open", timeout_ms=900_000).start()
        at_rest = Transactor(client, "at rest").start()
        open_one.send(idle_at, b"of a transaction")
        members = [Member(broker.bootstrap, "idle", one) for one in ("classic", "consumer")]
        for member in members:
            stack.callback(member.stop)
        wait_until(lambda: all(one.assigned for one in members), "assigned", broker)
        silent = stack.enter_context(closing(speak(broker.port)))
        silent.ask(ApiVersionsRequest(), 0)
        stamps: list[int] = []
        for what, shift_ms in steps.items():
            host.set_clock_ahead(shift_ms)
            answer = produce(client, "stamped", make_batch([what.encode()]))
            assert answer.error_code == ErrorCode.NONE
            stamps.append(answer.log_append_time_ms)
            assert abs(stamps[-1] - now_ms() - shift_ms) < MOST_SKEW_MS, what
            for topic, is_refused in (
                ("not-after", what == "1970"),
                ("not-before", what == "ten years ahead"),
            ):
                batch = make_batch([b"v"], timestamps=[now_ms()])
                code = produce(client, topic, batch).error_code
                expected = ErrorCode.INVALID_TIMESTAMP if is_refused else ErrorCode.NONE
                assert code == expected, (what, topic)
            producer.send("idle", what.encode()).result(30)
            writer.wait_for_more(20)
            # Who waits does so for as long as was asked.
            end = fetch_one(client, "idle", 0).high_watermark
            waited = waited_ms(client, fetch_request(("idle", 0, end), max_wait_ms=300))
            assert 290 <= waited < MOST_WAIT_MS, what
            # Retention and the expiry of producers come by several times.
            time.sleep(5 * CHECK_MS / 1000)
            if what in GONE_BACK:
                end_when_their_time_is_over(broker, client, what)
        wait_until(lambda: "the clock is trusted again" in broker.log, "believed", broker)
        silent.ask(ApiVersionsRequest(), 0)  # nobody has taken it for idle
        assert [(one.assigned, one.taken) for one in members] == [(1, 0)] * 2
        open_one.finish(commit=True)
        assert at_rest.described().transaction_state == "Empty"
        assert committed_offset(client, "g", idle_at) == (ErrorCode.NONE, 3)
        # Its retry is the first copy's.
        assert produce(client, "idle", idle).base_offset == 0
        writer.stop()
        assert broker.log.count(AHEAD) == 2  # ten years, and from 1970 back to now
        data = walk_all(fetch_one(client, "stamped", 0).records)
        assert [record.value for record in data] == [what.encode() for what in steps]
        with Consumer(broker.bootstrap) as consumer:
            at = TopicPartition("stamped", 0)
            for asked in (0, *stamps):
                found = consumer.offsets_for_times({at: asked})[at]
                first = next(n for n, stamp in enumerate(stamps) if stamp >= asked)
                assert (found.offset, found.timestamp) == (first, stamps[first])
            later = consumer.offsets_for_times({at: max(stamps) + 1})[at]
            assert (later.offset, later.timestamp) == (-1, -1)
        assert read_all(broker, "created") == writer.acknowledged[0]
    assert "deleted" not in broker.log
    assert "Traceback" not in broker.log
    for topic in ("created", "stamped"):
        indexes = time_indexes(broker.log_dirs[0] / f"{topic}-0")
        assert any(indexes)
        for entries in indexes:
            assert entries == sorted(set(entries))
            assert [offset for _, offset in entries] == sorted(offset for _, offset in entries)
    assert not writer.failures
    host.set_clock_ahead(-now_ms())
    with broker:
        assert read_all(broker, "created") == writer.acknowledged[0]
        assert len(read_all(broker, "stamped")) == len(steps)
