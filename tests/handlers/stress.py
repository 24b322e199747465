"""What `test_stress` lets loose on a broker: producers and consumers that know what must hold.

A `World` is what they all know; each thread has its own connection and its own chance, drawn from
the seed and its name. What a client was told goes into the world's `Book`, which says afterwards
what the logs have to hold. Whatever goes wrong ends all of it and is named in `failures`.
"""

from __future__ import annotations

import random
import threading
import time
import uuid
from collections.abc import Callable, Collection
from dataclasses import dataclass, field
from pathlib import Path

from plog._native import batch, records
from plog._native.batch import BatchHeader
from plog.errors import CorruptRecord, ErrorCode, NetworkException
from plog.protocol.messages.fetch import FetchResponse
from plog.protocol.messages.produce import PartitionProduceResponse, ProduceResponse
from tests.handlers.wire import (
    WAIT_MS,
    Speaker,
    create_topic,
    eventually,
    fetch_request,
    fetched,
    flat,
    make_batch,
    produce_request,
    speak,
)

At = tuple[str, int]
"""Topic and partition."""

IDS_SINCE = 13
LZ4 = 3
MOST_IN_FLIGHT = 5
SIZES = ((20, 1), (100, 1), (100, 30), (1000, 3), (1000, 20), (5000, 1), (5000, 4))
"""Bytes of a record, and how many a batch has."""
SMALLEST_SEGMENT = 40_000
"""A little more than the largest of these batches."""
CUT = "cut"
"""The topic that is cut back; nobody else writes to it, for no client may append meanwhile."""
PASSING = (ErrorCode.NOT_LEADER_OR_FOLLOWER, ErrorCode.KAFKA_STORAGE_ERROR)
"""What a client hears while a replica moves, and from the log that it leaves; it asks again."""
GONE = (
    *PASSING,
    ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
    ErrorCode.UNKNOWN_TOPIC_ID,
    ErrorCode.OFFSET_OUT_OF_RANGE,
)
"""What may be heard of a topic that comes and goes."""
SESSION_OVER = (
    ErrorCode.FETCH_SESSION_ID_NOT_FOUND,
    ErrorCode.INVALID_FETCH_SESSION_EPOCH,
    ErrorCode.FETCH_SESSION_TOPIC_ID_ERROR,
)


@dataclass
class Book:
    """What was said of the records of topics that stay. A value is in one batch only."""

    lock: threading.Lock = field(default_factory=threading.Lock)
    sent: dict[At, set[bytes]] = field(default_factory=dict)
    # Without a number of its own such a batch may be there twice.
    sent_again: set[bytes] = field(default_factory=set)
    # The offset where the broker said one.
    acknowledged: dict[At, dict[bytes, int]] = field(default_factory=dict)
    # By base offset: the CRC of a batch that some consumer saw.
    seen: dict[At, dict[int, int]] = field(default_factory=dict)

    def note_sent(self, at: At, values: list[bytes]) -> None:
        with self.lock:
            self.sent.setdefault(at, set()).update(values)

    def note_sent_again(self, values: list[bytes]) -> None:
        with self.lock:
            self.sent_again.update(values)

    def note_acknowledged(self, at: At, values: list[bytes], base_offset: int) -> None:
        with self.lock:
            known = self.acknowledged.setdefault(at, {})
            for number, value in enumerate(values):
                known[value] = base_offset + number if base_offset >= 0 else -1

    def note_seen(self, at: At, base_offset: int, crc: int) -> None:
        with self.lock:
            before = self.seen.setdefault(at, {}).setdefault(base_offset, crc)
        assert before == crc, (at, base_offset)


class World:
    """The topics, the broker's port and directories, and whether it is over."""

    def __init__(self, port: int, log_dirs: list[Path], seed: int) -> None:
        self.port, self.log_dirs, self.seed = port, log_dirs, seed
        self.book = Book()
        self.stop = threading.Event()
        self.failures: list[str] = []
        self.partitions: dict[str, int] = {}  # of the topics that stay
        self.ids: dict[str, uuid.UUID] = {}  # of those, and of the ones that come and go
        self.passing: list[str] = []  # names of these
        self.counts: dict[str, int] = {}
        self._counts_lock = threading.Lock()

    def rng(self) -> random.Random:
        return random.Random(f"{self.seed} {threading.current_thread().name}")

    def count(self, what: str, number: int = 1) -> None:
        with self._counts_lock:
            self.counts[what] = self.counts.get(what, 0) + number

    def anywhere(self, rng: random.Random) -> At:
        topic = rng.choice(list(self.partitions))
        return topic, rng.randrange(self.partitions[topic])

    def create(self, wire: Speaker, topic: str, partitions: int, **configs: object) -> None:
        """Create a topic, and return once all of it is led."""
        _, self.ids[topic] = create_topic(wire, topic, partitions, **configs)
        self.until_led(wire, topic, range(partitions))

    @staticmethod
    def until_led(wire: Speaker, topic: str, indexes: range) -> None:
        def led() -> bool:
            asked = fetch_request(*[(topic, index, 0) for index in indexes])
            return all(
                part.error_code in (ErrorCode.NONE, ErrorCode.OFFSET_OUT_OF_RANGE)
                for part in fetched(wire.ask(asked, 12)).values()
            )

        eventually(led, f"led: {topic}")

    def run(
        self, seconds: float, workers: dict[str, Callable[[], None]], needed: Collection[str] = ()
    ) -> None:
        """Have workers at it for so long; up to a minute longer where needed things lack."""
        threads = [
            threading.Thread(target=self._guarded, args=(worker,), name=name)
            for name, worker in workers.items()
        ]
        for thread in threads:
            thread.start()
        self.stop.wait(seconds)
        patience = time.monotonic() + 60
        while not all(self.counts.get(what) for what in needed) and time.monotonic() < patience:
            if self.stop.wait(0.1):
                break
        self.stop.set()
        until = time.monotonic() + 2 * WAIT_MS / 1000
        for thread in threads:
            thread.join(max(0.0, until - time.monotonic()))
            if thread.is_alive():
                self.failures.append(f"{thread.name}: does not end")

    def _guarded(self, worker: Callable[[], None]) -> None:
        try:
            worker()
        except BaseException as failure:
            self.failures.append(f"{threading.current_thread().name}: {failure!r}")
            self.stop.set()
            raise


# -- producers


@dataclass
class Sending:
    """One batch on its way."""

    at: At
    values: list[bytes]
    data: bytes


class Producer:
    """Writes up to five requests in one go, each to several partitions, and then reads the answers.

    What a topic that stays refuses for a moment is sent again, in order. Now and then the
    connection is given up with all on it, and an idempotent producer sends that again. As real
    ones do, it has its first batch of a partition alone in flight: where that is refused, the next
    one would be taken for the first.
    """

    def __init__(self, world: World, number: int, *, is_idempotent: bool) -> None:
        self.world, self.number, self.is_idempotent = world, number, is_idempotent
        self._sequences: dict[At, int] = {}
        self._first_in_flight: set[At] = set()
        self._made = 0

    def run(self) -> None:
        self._rng = self.world.rng()
        self._wire = speak(self.world.port)
        while not self.world.stop.is_set():
            window = [self._make() for _ in range(self._rng.randint(1, MOST_IN_FLIGHT))]
            self._send([(acks, sendings) for acks, sendings in window if sendings])
            self._first_in_flight.clear()
            self.world.stop.wait(self._rng.choice((0, 0, 0.002, 0.02)))
        self._wire.close()

    def _make(self) -> tuple[int, list[Sending]]:
        """Return acks and what one request holds."""
        rng, world = self._rng, self.world
        places = {world.anywhere(rng) for _ in range(rng.randint(1, 4))}
        if rng.random() < 0.1 and set(world.passing) > {CUT}:
            places.add((rng.choice([topic for topic in world.passing if topic != CUT]), 0))
        places -= self._first_in_flight
        acks = rng.choice((-1, -1, 1) if self.is_idempotent else (-1, 1, 0))
        return acks, [self._batch(at) for at in sorted(places)]

    def _batch(self, at: At) -> Sending:
        rng = self._rng
        is_large = rng.random() < 0.05  # expands to more than the reactor does itself
        size, count = (300_000, 4) if is_large else rng.choice(SIZES)
        values = []
        for _ in range(count):
            self._made += 1
            values.append(b"%d %d " % (self.number, self._made) + rng.randbytes(8) * (size // 8))
        producer = (-1, -1, -1)
        if self.is_idempotent and at[0] in self.world.partitions:
            sequence = self._sequences.get(at, 0)
            if sequence == 0:
                self._first_in_flight.add(at)
            self._sequences[at] = sequence + len(values)
            producer = (5000 + self.number, 0, sequence)
        elif self.is_idempotent:  # a topic that may be another by now: a producer that is new
            producer = (10_000 + self.number * 100_000 + self._made, 0, 0)
        codec = LZ4 if is_large else rng.choice((0, LZ4))
        if at[0] in self.world.partitions:
            self.world.book.note_sent(at, values)
        return Sending(at, values, make_batch(values, codec=codec, producer=producer))

    def _send(self, window: list[tuple[int, list[Sending]]]) -> None:
        answers: list[tuple[list[Sending], list[PartitionProduceResponse]]] = []
        version = self._rng.choice((3, 7, 8, 9, 11))
        try:
            for acks, sendings in window:
                request = produce_request([(*s.at, s.data) for s in sendings], acks=acks)
                self._wire.send(request, ProduceResponse if acks else None, version=version)
            if self._rng.random() < 0.01:
                self._go_away([sending for _, sendings in window for sending in sendings])
                return
            for acks, sendings in window:
                if acks:
                    answers.append((sendings, flat(self._wire.receive(ProduceResponse))))
        except NetworkException:
            # With acks=0 there is no other way to say that it has failed.
            assert not self.is_idempotent
            self._go_away([])
        failed: list[Sending] = []
        for sendings, parts in answers:
            assert [(s.at[1]) for s in sendings] == [part.index for part in parts]
            for sending, part in zip(sendings, parts, strict=True):
                if not self._note(sending, part, {other.at for other in failed}):
                    failed.append(sending)
        self._send_again(failed)

    def _go_away(self, unanswered: list[Sending]) -> None:
        self.world.count("producers gone")
        self._wire.close()
        self._wire = speak(self.world.port)
        if self.is_idempotent:
            self._send_again([s for s in unanswered if s.at[0] in self.world.partitions])

    def _send_again(self, failed: list[Sending]) -> None:
        for sending in failed:
            self.world.book.note_sent_again(sending.values)
            until = time.monotonic() + WAIT_MS / 1000
            while True:
                assert time.monotonic() < until, f"{sending.at} is refused for ever"
                try:
                    answer = self._wire.ask(produce_request([(*sending.at, sending.data)]), 9)
                except NetworkException:  # an earlier one with acks=0, again
                    assert not self.is_idempotent
                    self._go_away([])
                    continue
                if self._note(sending, flat(answer)[0], set()):
                    break
                time.sleep(0.002)

    def _note(self, sending: Sending, part: PartitionProduceResponse, failed: set[At]) -> bool:
        """Write down what was answered; False if the batch has to be sent again."""
        stays = sending.at[0] in self.world.partitions
        if part.error_code == ErrorCode.NONE:
            if stays:
                self.world.book.note_acknowledged(sending.at, sending.values, part.base_offset)
            return True
        self.world.count(f"produce: {ErrorCode(part.error_code).name}")
        if not stays:
            assert part.error_code in GONE, (sending.at, part)
            return True
        # What follows a refused batch has a gap before it.
        gap = part.error_code == ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER and sending.at in failed
        assert part.error_code in PASSING or gap, (sending.at, part)
        return False


# -- consumers


class Consumer:
    """Reads partitions from random places on, in sessions or without, waiting or not."""

    def __init__(self, world: World, *, in_sessions: bool) -> None:
        self.world, self.in_sessions = world, in_sessions

    def run(self) -> None:
        self._rng = self.world.rng()
        while not self.world.stop.is_set():
            wire = speak(self.world.port)
            self._version = self._rng.choice((7, 11, 12, 13, 17) if self.in_sessions else
                                             (4, 7, 11, 12, 13, 17))  # fmt: skip
            self._options = {
                "max_wait_ms": self._rng.choice((0, 5, 50)),
                "min_bytes": self._rng.choice((0, 1, 5000, 1 << 20)),
                "max_bytes": self._rng.choice((1000, 1 << 20, 50 << 20)),
                "partition_max_bytes": self._rng.choice((1, 10_000, 1 << 20)),
                "isolation_level": self._rng.randint(0, 1),
            }
            self._places = dict.fromkeys(
                (self.world.anywhere(self._rng) for _ in range(self._rng.randint(1, 6))), 0
            )
            if self._rng.random() < 0.3 and self.world.passing:
                self._places[self._rng.choice(self.world.passing), 0] = 0
            # A topic that comes and goes may have another id before long.
            self._names = {at: self._named(at) for at in self._places}
            try:
                self._read_for_a_while(wire)
            except NetworkException:
                # What was promised may be cut off before it is sent; then the connection ends.
                assert (CUT, 0) in self._places
                self.world.count("answers cut back")
            wire.close()

    def _named(self, at: At) -> tuple[str | uuid.UUID, int]:
        topic, index = at
        return (topic if self._version < IDS_SINCE else self.world.ids[topic]), index

    def _read_for_a_while(self, wire: Speaker) -> None:
        session = (0, 0) if self.in_sessions else (0, -1)
        changed = set(self._places)
        places = {named: at for at, named in self._names.items()}
        for _ in range(self._rng.randint(1, 200)):
            if self.world.stop.is_set():
                return
            asked = fetch_request(
                *[(*self._names[at], self._places[at]) for at in sorted(changed)],
                session=session,
                **self._options,
            )
            wire.send(asked, FetchResponse, version=self._version, wait_ms=WAIT_MS)
            if self._rng.random() < 0.005:
                self.world.count("consumers gone")
                return
            answer = wire.receive(FetchResponse)
            if answer.error_code in SESSION_OVER:
                self.world.count(f"fetch: {ErrorCode(answer.error_code).name}")
                return
            assert answer.error_code == ErrorCode.NONE, answer
            moved = set()
            for named, part in fetched(answer).items():
                if self._take(places[named], part):
                    moved.add(places[named])
            if not self.in_sessions:
                changed = set(self._places)
                continue
            changed = moved
            if session[1] == 0:
                session = (answer.session_id, 0)
            session = (session[0], session[1] + 1)
            self.world.count("session fetches")

    def _take(self, at: At, part) -> bool:
        """Check a partition's answer and move on; whether the place to read from is another."""
        stays = at[0] in self.world.partitions
        if part.error_code == ErrorCode.OFFSET_OUT_OF_RANGE:
            self.world.count("fetch: OFFSET_OUT_OF_RANGE")
            self._places[at] = max(part.log_start_offset, 0)
            return True
        if part.error_code:
            self.world.count(f"fetch: {ErrorCode(part.error_code).name}")
            assert part.error_code in (PASSING if stays else GONE), (at, part.error_code)
            return False
        data = bytes(part.records or b"")
        if not data:
            return False
        self.world.count("fetches with records")
        try:
            end = self._end_of(at, part, data)
        except (CorruptRecord, AssertionError) as damage:
            # Pages are on their way, not bytes: what is cut off their file is zero when they come,
            # or the next batch, which is written there.
            if at != (CUT, 0):
                raise AssertionError(f"{at}: {damage}") from damage
            self.world.count("answers cut back")
            return False
        self._places[at] = end
        if self._rng.random() < 0.1:
            self._places[at] = self._rng.randint(part.log_start_offset, part.high_watermark)
        return True

    def _end_of(self, at: At, part, data: bytes) -> int:
        """Return the offset behind these records, once they are right."""
        found = whole_batches(data)
        assert found[0].base_offset <= self._places[at] <= found[0].last_offset, found[0]
        end = found[0].base_offset
        for header in found:
            assert header.base_offset == end, (header, end)
            end = header.next_offset
            if at[0] in self.world.partitions:
                self.world.book.note_seen(at, header.base_offset, header.crc)
        assert end <= part.high_watermark, (end, part.high_watermark)
        return end


def whole_batches(data: bytes) -> list[BatchHeader]:
    """Return what was fetched, each CRC checked; at least one. The end may cut through the last."""
    end, _ = batch.whole(data, 0)
    assert end > 0, len(data)
    return batch.scan(data[:end])


def fetch_one_of(wire: Speaker, at: At, offset: int, **options: int):
    (part,) = fetched(wire.ask(fetch_request((*at, offset), **options), 12)).values()
    return part


# -- afterwards


def read_log(wire: Speaker, at: At) -> tuple[int, dict[int, bytes], dict[int, int]]:
    """Return where a log starts, its values by offset, and its batches' CRCs by base offset."""
    values: dict[int, bytes] = {}
    crcs: dict[int, int] = {}
    start = offset = fetch_one_of(wire, at, 0).log_start_offset
    while True:
        part = fetch_one_of(wire, at, offset, partition_max_bytes=4 << 20)
        assert part.error_code == ErrorCode.NONE, (at, offset, part.error_code)
        data = bytes(part.records or b"")
        if not data:
            assert offset == part.high_watermark
            return start, values, crcs
        pos = 0
        for header in whole_batches(data):
            assert header.base_offset == offset or offset == start >= header.base_offset
            crcs[header.base_offset] = header.crc
            for record in records.walk(data, pos=pos):
                values[record.offset] = record.value or b""
            pos += header.size_bytes
            offset = header.next_offset


def check_log(book: Book, at: At, wire: Speaker, idempotent: range) -> None:
    """Hold one log against what the clients were told."""
    start, values, crcs = read_log(wire, at)
    assert sorted(values) == list(range(min(values, default=0), max(values, default=-1) + 1))
    kept = {offset: value for offset, value in values.items() if offset >= start}
    sent = book.sent.get(at, set())
    found: set[bytes] = set()
    order: dict[int, int] = {}
    for offset, value in sorted(values.items()):
        assert value in sent, (at, offset, value[:30])
        assert value not in found or value in book.sent_again, (at, offset, value[:30])
        found.add(value)
        number, sequence = map(int, value.split(b" ", 2)[:2])
        if number in idempotent:
            assert order.get(number, -1) < sequence, (at, offset, value[:30])
            order[number] = sequence
    end = max(values, default=start - 1) + 1
    for value, offset in book.acknowledged.get(at, {}).items():
        assert offset < end, (at, offset, end)
        if offset >= start:
            assert kept[offset] == value, (at, offset, value[:30], kept[offset][:30])
    for base_offset, crc in book.seen.get(at, {}).items():
        if base_offset >= start:
            assert crcs[base_offset] == crc, (at, base_offset)
