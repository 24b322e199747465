"""Writes that begin a transaction: which the fast path takes, and that both planes answer alike.

A partition that was added to a transaction has leave to be written to without asking Python. Each
case takes that leave away in one of the ways there are, sends a write all the same, and compares
what a broker with the fast path answers, byte for byte, with what one without does.
"""

from __future__ import annotations

import errno
import itertools
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from plog._native.faults import Fault
from plog._native.partition_guards import approve, ask, guard_count, is_granted
from plog.coordinator.txn_events import Producer
from plog.errors import ErrorCode
from plog.protocol import framing
from plog.protocol.messages.cluster import (
    AlterReplicaLogDir,
    AlterReplicaLogDirsRequest,
    AlterReplicaLogDirTopic,
)
from plog.protocol.messages.produce import PartitionProduceResponse
from plog.protocol.messages.topics import DeleteTopicsRequest
from plog.protocol.messages.transactions import AddPartitionsToTxnRequest, AddPartitionsToTxnTopic
from plog.protocol.schema import Struct
from plog.types import TopicPartition
from tests.handlers.running import Running, decoded, faults, framed, receive
from tests.handlers.twins import PRODUCE_VERSIONS
from tests.handlers.wire import (
    create_topic,
    eventually,
    flat,
    fresh_name,
    make_batch,
    produce_request,
)
from tests.planes import Plane
from tests.transactions.test_administration import write_marker
from tests.transactions.transactor import Transactor, read

NONE = ErrorCode.NONE
PARTITIONS = 3
SETTINGS = {
    "transaction_state_log_num_partitions": 1,
    "offsets_topic_num_partitions": 1,
    "transaction_abort_timed_out_transaction_cleanup_interval_ms": 50,
}
LONG_MS = 60_000


class Line:
    """A connection of its own, which keeps the last answer as it came, but for its number."""

    def __init__(self, running: Running) -> None:
        self._socket = running.connect()
        self._numbers = itertools.count(1)
        self.answer = b""

    def send(self, request: Struct, version: int) -> None:
        self._socket.sendall(framed(request, version, next(self._numbers)))

    def ask(self, request: Struct, version: int) -> Any:
        self.send(request, version)
        return self.receive(request, version)

    def ask_in_one_go(self, *requests: tuple[Struct, int]) -> list[bytes]:
        """Send all at once; return the answers, behind their correlation ids."""
        frames = (framed(*one, next(self._numbers)) for one in requests)
        self._socket.sendall(b"".join(frames))
        return [receive(self._socket)[4:] for _ in requests]

    def receive(self, request: Struct, version: int) -> Any:
        frame = receive(self._socket)
        self.answer = frame[4:]
        response = framing.response_class(type(request).api.key)
        assert response is not None
        return decoded(response, version, frame)

    def close(self) -> None:
        self._socket.close()


class Pair:
    """One producer at each of two brokers, the first with the fast path, who do the same."""

    def __init__(
        self, fast: Running, plain: Running, timeout_ms: int = LONG_MS, name: str = ""
    ) -> None:
        self.fast, self.both = fast, (fast, plain)
        self.name = name or fresh_name()
        self.ones = [
            Transactor(Line(one), self.name, timeout_ms=timeout_ms).start()  # type: ignore[arg-type]
            for one in self.both
        ]

    def each(self, do: Callable[[Transactor], Any]) -> list[Any]:
        return [do(one) for one in self.ones]

    def join(self, *partitions: TopicPartition) -> None:
        self.each(lambda one: one.join(*partitions))

    def finish(self, *, commit: bool) -> None:
        self.each(lambda one: one.finish(commit=commit))

    def reconnect(self) -> None:
        """Go on by other connections; those before stay open."""
        for one, running in zip(self.ones, self.both, strict=True):
            one.wire = Line(running)  # type: ignore[assignment]

    @contextmanager
    def by(self, *, fast: bool, requests: int = 1) -> Iterator[None]:
        """Check that the fast path answers all of so many requests, or none."""
        before = self.fast.fast_requests
        yield
        answered = self.fast.fast_requests - before
        assert answered == (requests if fast else 0), self.fast.callouts

    def produce(
        self, at: TopicPartition, *values: bytes, fast: bool, **options: Any
    ) -> PartitionProduceResponse:
        """Write the same at both; return the answer."""
        with self.by(fast=fast):
            parts = self.each(lambda one: one.produce(at, *values, **options))
        answer, expected = (one.wire.answer for one in self.ones)  # type: ignore[attr-defined]
        assert answer == expected, parts
        assert isinstance(parts[0], PartitionProduceResponse)
        return parts[0]

    def known(self, *partitions: TopicPartition) -> None:
        """Have one transaction behind it, after which partitions know the producer."""
        self.join(*partitions)
        for at in partitions:
            assert self.produce(at, b"first", fast=False).error_code == NONE
        self.finish(commit=True)

    def read(self, at: TopicPartition) -> list[bytes | None]:
        found, expected = (read(one.wire, at) for one in self.both)
        assert found == expected
        return found


@pytest.fixture(scope="module")
def brokers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Running, Running]]:
    made = []
    for plane in Plane:
        directory = tmp_path_factory.mktemp("transactions")
        disks = ",".join(str(directory / f"disk{n}") for n in range(2))
        made.append(Running(directory, log_dirs=disks, plane=plane, **SETTINGS))
    yield made[0], made[1]
    for one in made:
        one.stop()


@pytest.fixture
def pair(brokers: tuple[Running, Running]) -> Pair:
    return Pair(*brokers)


@pytest.fixture
def at(brokers: tuple[Running, Running]) -> TopicPartition:
    name = fresh_name()
    for one in brokers:
        create_topic(one.wire, name, PARTITIONS)
    return TopicPartition(name, 0)


# -- what is fast ----------------------------------------------------------------------------------


@pytest.mark.parametrize("version", PRODUCE_VERSIONS)
def test_write_that_begins_a_transaction_is_fast_where_it_was_added(
    pair: Pair, at: TopicPartition, version: int
) -> None:
    pair.known(at)
    for number in range(6):
        pair.join(at)
        for value in (b"a", b"b"):
            part = pair.produce(at, value, b"more", fast=True, version=version)
            assert part.error_code == NONE
        pair.finish(commit=number % 2 == 0)
    assert pair.read(at) == [b"first"] + [b"a", b"more", b"b", b"more"] * 3


def test_partitions_of_one_request_begin_together(pair: Pair, at: TopicPartition) -> None:
    places = [TopicPartition(at.topic, index) for index in range(PARTITIONS)]
    pair.known(*places)
    for _ in range(3):
        pair.join(*places)
        with pair.by(fast=True):
            pair.each(lambda one: produce_to_all(one, places))
        answer, expected = (one.wire.answer for one in pair.ones)  # type: ignore[attr-defined]
        assert answer == expected
        pair.finish(commit=True)
    for one in places:
        assert pair.read(one) == [b"first"] + [b"v"] * 3


def produce_to_all(one: Transactor, places: list[TopicPartition]) -> list[int]:
    request = produce_request(
        (*at, make_batch(producer=(*one.producer, one.sequences[at]), transactional=True))
        for at in places
    )
    request.transactional_id = one.transactional_id
    errors = [part.error_code for part in flat(one.wire.ask(request, 11))]
    for at, error in zip(places, errors, strict=True):
        one.sequences[at] += error == NONE
    return errors


def test_partition_that_was_not_added_is_refused_and_its_neighbours_are_not(
    pair: Pair, at: TopicPartition
) -> None:
    places = [TopicPartition(at.topic, index) for index in range(PARTITIONS)]
    pair.known(*places)
    pair.join(places[0], places[2])
    with pair.by(fast=False):
        errors = pair.each(lambda one: produce_to_all(one, places))
    assert errors == [[NONE, ErrorCode.TRANSACTION_ABORTABLE, NONE]] * 2
    answer, expected = (one.wire.answer for one in pair.ones)  # type: ignore[attr-defined]
    assert answer == expected
    pair.finish(commit=True)


def test_first_write_that_is_sent_again_is_there_once(pair: Pair, at: TopicPartition) -> None:
    pair.known(at)
    pair.join(at)
    first = pair.produce(at, b"a", fast=True)
    again = pair.produce(at, b"a", fast=True, sequence=1)
    assert (again.error_code, again.base_offset) == (NONE, first.base_offset)
    pair.finish(commit=True)
    assert pair.read(at) == [b"first", b"a"]


def test_gap_is_told_and_takes_no_leave_away(pair: Pair, at: TopicPartition) -> None:
    pair.known(at)
    pair.join(at)
    gap = pair.produce(at, b"a", fast=False, sequence=7)
    assert gap.error_code == ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
    assert pair.produce(at, b"a", fast=True, sequence=1).error_code == NONE
    pair.finish(commit=True)


def write_of(one: Transactor, at: TopicPartition, value: bytes, sequence: int) -> Struct:
    batch = make_batch([value], producer=(*one.producer, sequence), transactional=True)
    request = produce_request([(*at, batch)])
    request.transactional_id = one.transactional_id
    return request


def test_requests_that_are_sent_in_one_go_are_taken_in_their_order(
    pair: Pair, at: TopicPartition
) -> None:
    pair.known(at)
    topics = [AddPartitionsToTxnTopic(name=at.topic, partitions=[at.partition])]
    answers = []
    with pair.by(fast=True, requests=2):
        for one in pair.ones:
            joining = AddPartitionsToTxnRequest(
                v3_and_below_transactional_id=one.transactional_id,
                v3_and_below_producer_id=one.producer.id,
                v3_and_below_producer_epoch=one.producer.epoch,
                v3_and_below_topics=topics,
            )
            writes = [(write_of(one, at, b"%d" % n, n), 11) for n in (1, 2)]
            line = one.wire
            answers.append(line.ask_in_one_go((joining, 3), *writes))  # type: ignore[attr-defined]
    assert answers[0] == answers[1]
    pair.finish(commit=True)
    assert pair.read(at) == [b"first", b"1", b"2"]


# -- by which the leave is gone --------------------------------------------------------------------


@pytest.mark.parametrize("commit", [True, False])
@pytest.mark.parametrize("used", [True, False])
def test_leave_ends_with_its_transaction(
    pair: Pair, at: TopicPartition, used: bool, commit: bool
) -> None:
    pair.known(at)
    pair.join(at)
    if used:
        assert pair.produce(at, b"in time", fast=True).error_code == NONE
    pair.finish(commit=commit)
    late = pair.produce(at, b"late", fast=False)
    assert late.error_code == ErrorCode.TRANSACTION_ABORTABLE
    pair.join(TopicPartition(at.topic, 1))  # the next transaction is elsewhere
    late = pair.produce(at, b"late", fast=False)
    assert late.error_code == ErrorCode.TRANSACTION_ABORTABLE
    pair.finish(commit=True)
    assert pair.read(at) == [b"first"] + ([b"in time"] if used and commit else [])


@pytest.mark.parametrize("how", ["end", "fence"])
def test_leave_ends_before_the_marker_is_written(pair: Pair, at: TopicPartition, how: str) -> None:
    """Who holds the log keeps the marker back; the fast path needs no leave of who holds it."""
    pair.known(at)
    pair.join(at)
    one, fast = pair.ones[0], pair.fast
    log = fast.broker._replicas.leader(at).log
    assert log.try_hold()
    try:
        if how == "end":
            assert one.end(commit=True) is NONE
        else:
            following = Transactor(Line(fast), pair.name)  # type: ignore[arg-type]
            assert following.init() is ErrorCode.CONCURRENT_TRANSACTIONS
        end, before = log.log_end_offset, (fast.fast_requests, fast.callouts)
        late = write_of(one, at, b"late", 1)
        one.wire.send(late, 11)  # type: ignore[arg-type]
        eventually(lambda: fast.callouts != before[1], "it is looked at")
        # A request counts when it has come, and a moment later as one that Python was asked about.
        eventually(lambda: fast.fast_requests == before[0], "the fast path left it to Python")
        assert log.log_end_offset == end
    finally:
        log.let_go()
    (part,) = flat(one.wire.receive(late, 11))  # type: ignore[call-arg,arg-type]
    assert part.error_code != NONE
    pair.ones[1].finish(commit=True)
    assert pair.read(at) == [b"first"]


def test_producer_that_is_fenced_has_no_leave(pair: Pair, at: TopicPartition) -> None:
    pair.known(at)
    pair.join(at)
    following = Pair(*pair.both, name=pair.name)
    late = pair.produce(at, b"late", fast=False)
    assert late.error_code == ErrorCode.INVALID_PRODUCER_EPOCH
    following.join(at)
    late = pair.produce(at, b"late", fast=False)
    assert late.error_code == ErrorCode.INVALID_PRODUCER_EPOCH
    assert following.produce(at, b"yes", fast=False).error_code == NONE  # of an epoch not seen yet
    following.finish(commit=True)
    assert pair.read(at) == [b"first", b"yes"]


def test_transaction_that_took_too_long_has_no_leave(
    brokers: tuple[Running, Running], at: TopicPartition
) -> None:
    pair = Pair(*brokers, timeout_ms=300)
    pair.known(at)
    pair.join(at)
    for one in pair.ones:
        eventually(
            lambda one=one: one.described().transaction_state == "CompleteAbort", "it is aborted"
        )
    late = pair.produce(at, b"late", fast=False)
    assert late.error_code == ErrorCode.INVALID_PRODUCER_EPOCH
    assert pair.read(at) == [b"first"]


def test_marker_of_an_administrator_ends_it(pair: Pair, at: TopicPartition) -> None:
    pair.known(at)
    pair.join(at)
    for one in pair.ones:
        assert write_marker(one.wire, at, one.producer, commit=False, epoch=0) is NONE
    # The coordinator, which is asked then, has not ended it.
    assert pair.produce(at, b"a", fast=False).error_code == NONE
    pair.finish(commit=True)


def test_marker_that_is_refused_ends_it(pair: Pair, at: TopicPartition) -> None:
    pair.known(at)
    for one in pair.ones:
        assert write_marker(one.wire, at, one.producer, commit=False, epoch=50) is NONE
    pair.join(at)
    for one in pair.ones:
        refused = write_marker(one.wire, at, one.producer, commit=False, epoch=49)
        assert refused is ErrorCode.TRANSACTION_COORDINATOR_FENCED
    assert pair.produce(at, b"a", fast=False).error_code == NONE


def test_leave_is_of_the_connection_by_which_it_was_asked_for(
    pair: Pair, at: TopicPartition
) -> None:
    pair.known(at)
    older = [one.wire for one in pair.ones]
    pair.reconnect()
    pair.join(at)
    for one, line in zip(pair.ones, older, strict=True):
        one.wire = line
    # It may be of an earlier transaction. What is said of it is the coordinator's affair.
    with pair.by(fast=False):
        pair.each(lambda one: one.produce(at, b"by the older", sequence=1))
    answer, expected = (one.wire.answer for one in pair.ones)  # type: ignore[attr-defined]
    assert answer == expected
    pair.reconnect()
    pair.finish(commit=True)


def guards_in(running: Running, at: TopicPartition) -> int:
    """Return how many producers have a guard in a partition."""
    return guard_count(running.broker._replicas.leader(at).log.native)


def test_leave_is_used_up_by_a_write_of_either_plane(pair: Pair, at: TopicPartition) -> None:
    pair.known(at)
    for fast in (True, False):
        pair.join(at)
        assert guards_in(pair.fast, at) == 1
        if not fast:
            pair.reconnect()
        assert pair.produce(at, b"a", fast=fast).error_code == NONE
        assert guards_in(pair.fast, at) == 0
        pair.finish(commit=True)


def test_guard_that_others_asked_for_outlives_the_write_that_uses_it(
    pair: Pair, at: TopicPartition
) -> None:
    pair.known(at)
    pair.join(at)
    native = pair.fast.broker._replicas.leader(at).log.native
    producer = pair.ones[0].producer
    asked = ask(native, *producer)  # a copy of the write, by another connection
    approve(native, asked)
    assert pair.produce(at, b"a", fast=True, sequence=1).error_code == NONE
    assert is_granted(native, asked, *producer), "that write might have failed"
    pair.finish(commit=True)
    assert not is_granted(native, asked, *producer)


def test_gap_by_another_connection_takes_no_leave_away(pair: Pair, at: TopicPartition) -> None:
    pair.known(at)
    pair.join(at)
    joined = [one.wire for one in pair.ones]
    pair.reconnect()
    assert pair.produce(at, b"a", fast=False, sequence=9).error_code != NONE
    for one, line in zip(pair.ones, joined, strict=True):
        one.wire = line
    assert pair.produce(at, b"a", fast=True, sequence=1).error_code == NONE
    pair.finish(commit=True)
    assert pair.read(at) == [b"first", b"a"]


def test_leave_is_of_a_transactional_id(pair: Pair, at: TopicPartition) -> None:
    pair.known(at)
    pair.join(at)
    for name in (pair.name[:-1], pair.name + "0", fresh_name(), None):
        part = pair.produce(at, b"a", fast=False, sequence=1, transactional_id=name)
        assert part.error_code != NONE
    assert pair.produce(at, b"a", fast=True).error_code == NONE
    pair.finish(commit=True)


def test_leave_is_of_an_epoch(pair: Pair, at: TopicPartition) -> None:
    pair.known(at)
    pair.join(at)
    real = [one.producer for one in pair.ones]
    for one in pair.ones:
        one.producer = Producer(one.producer.id, one.producer.epoch + 1)
    assert pair.produce(at, b"a", fast=False, sequence=0).error_code != NONE
    for one, producer in zip(pair.ones, real, strict=True):
        one.producer = producer
    assert pair.produce(at, b"a", fast=True, sequence=1).error_code == NONE
    pair.finish(commit=True)


def test_leave_is_not_in_a_log_that_has_taken_anothers_place(
    pair: Pair, at: TopicPartition
) -> None:
    pair.known(at)
    pair.join(at)
    for running in pair.both:
        here, there = sorted(
            running.directory.glob("disk?"), key=lambda disk: not (disk / f"{at.topic}-0").exists()
        )
        asked = AlterReplicaLogDirTopic(name=at.topic, partitions=[0])
        request = AlterReplicaLogDirsRequest(
            dirs=[AlterReplicaLogDir(path=str(there), topics=[asked])]
        )
        assert running.wire.ask(request, 2).results[0].partitions[0].error_code == NONE
        eventually(lambda gone=here / f"{at.topic}-0": not gone.exists(), "it has moved")
    assert pair.produce(at, b"a", fast=False).error_code == NONE
    pair.finish(commit=True)
    assert pair.read(at) == [b"first", b"a"]


def test_leave_is_not_in_a_topic_that_was_made_anew(pair: Pair, at: TopicPartition) -> None:
    pair.known(at)
    pair.join(at)
    for running in pair.both:
        running.wire.ask(DeleteTopicsRequest(topic_names=[at.topic], timeout_ms=LONG_MS), 5)
        create_topic(running.wire, at.topic, PARTITIONS)
    assert pair.produce(at, b"a", fast=False).error_code == NONE
    pair.finish(commit=True)
    assert pair.read(at) == [b"a"]


def test_other_leader_epoch_has_no_leave(pair: Pair, at: TopicPartition) -> None:
    pair.known(at)
    pair.join(at)
    for running in pair.both:
        partition = running.broker._replicas.leader(at)
        later = partition.leadership._replace(leader_epoch=partition.leadership.leader_epoch + 1)
        partition.make_leader(later, partition.log)
    assert pair.produce(at, b"a", fast=False).error_code == NONE
    pair.finish(commit=True)


def test_write_that_fails_uses_it_up(pair: Pair, at: TopicPartition) -> None:
    pair.known(at)
    pair.join(at)
    prefixes = [str(one.directory) for one in pair.both]
    with faults(
        *(
            Fault("pwritev", errno=errno.EIO, times=1, path_prefix=f"{at_}/disk{n}/{at.topic}-0")
            for at_ in prefixes[:1]
            for n in range(2)
        )
    ):
        # The fast path's write fails, and the handler's does not: as without the fast path.
        assert pair.produce(at, b"a", fast=False).error_code == NONE
    assert pair.produce(at, b"b", fast=True).error_code == NONE
    pair.finish(commit=True)
    assert pair.read(at) == [b"first", b"a", b"b"]


def test_transactions_that_are_begun_by_their_writes_ask_for_each(
    brokers: tuple[Running, Running], at: TopicPartition
) -> None:
    """Version 2: the partition is not in the transaction before, so that nothing can be given."""
    pair = Pair(*brokers)
    for one in pair.ones:
        one.own_epochs = True
    for _ in range(3):
        assert pair.produce(at, b"a", fast=False).error_code == NONE
        assert pair.produce(at, b"b", fast=True).error_code == NONE
        pair.finish(commit=True)
    assert pair.read(at) == [b"a", b"b"] * 3
