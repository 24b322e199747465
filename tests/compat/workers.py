"""Workers that consume, transform and produce exactly once, each a process of a real client."""

from __future__ import annotations

import itertools
import json
import re
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from plog._native.records import Record
from plog.client.producer import Producer
from plog.protocol.messages.list_offsets import (
    ListOffsetsPartition,
    ListOffsetsRequest,
    ListOffsetsTopic,
)
from plog.types import TopicPartition
from tests.committed import kept_records
from tests.compat.clients import PATIENCE_S
from tests.compat.groups import CLASSES, name_of
from tests.compat.jvm import LOST, HostedProgram
from tests.compat.programs import WORKER, Java
from tests.handlers.wire import Speaker, fetch_request, fetched, speak
from tests.waiting import until

SCRIPT = Path(__file__).with_name("transactional_worker.py")
TRANSACTION_TIMEOUT_MS = 10_000
LATEST = -1
UNCOMMITTED, COMMITTED = 0, 1
LAST_WORDS = re.compile(r"Traceback \(most recent call last\):|Exception in thread |Timeout \(")
"""How the last thing begins that a worker says of its end."""
REASONS = {
    # Its transaction was open for longer than it may be, as the broker was away: the coordinator
    # has aborted it, with the next epoch. Either client's next call is refused for its old one.
    "fenced": (
        r"cimpl\.KafkaException: KafkaError\{FATAL,code=_FENCED,"
        r'|Exception in thread "main" org\.apache\.kafka\.common\.errors\.'
        r"(?:ProducerFenced|InvalidProducerEpoch)Exception: "
    ),
    # librdkafka's call was over before the broker was there again: errors that are its own. A poll
    # reports so, too, what the consumer asked for meanwhile, as the group's offsets.
    "unanswered": (
        r"(?:cimpl\.KafkaException|RuntimeError): KafkaError\{code=(?:_TIMED_OUT|_TRANSPORT),"
    ),
    # A call that waited for the broker did return, but too late for the next poll. The thread of
    # Java's consumer of KIP-848 has left the group by then, and its poll does not expect that.
    "polled late": (
        r"RuntimeError: KafkaError\{code=_MAX_POLL_EXCEEDED,"
        r'|Exception in thread "main" java\.lang\.IllegalStateException: Cannot set a new position'
        r" without a valid current position\n"
    ),
    # librdkafka does not come back from ending a transaction: `transactional_worker.STUCK_S`. The
    # frame says that it was in such a call; a poll, or asking for offsets, are in functions apart.
    "stuck": (
        r'Thread .* \(most recent call first\):\n  File ".*/transactional_worker\.py",'
        r" line \d+ in (?:commits|run_confluent)\n"
    ),
}
"""Why workers end by themselves once the broker has been away, by what their last words have."""


@dataclass(frozen=True)
class Job:
    """What the workers of a test have in common."""

    bootstrap: str
    group: str
    source: str
    target: str
    batch: int = 20
    """About so many records a transaction has at most."""
    abort_every: int = 3
    protocol: str = "classic"
    """`consumer`: that of KIP-848, by whoever speaks it; sessions and assignor are the broker's."""
    session_ms: int = 6_000
    max_poll_ms: int = 12_000
    """A worker whose client keeps it longer than this leaves the group, and the others go on."""
    settings: Mapping[str, object] = field(default_factory=dict)
    """More of Java's: of its producer where they begin with "producer."."""
    each_ms: int = 0
    """So long after its first record confluent-kafka and Java end a transaction, however few it has
    by then; if it is full before, they take no more meanwhile. 0: they end it after each poll."""

    def start(
        self, client: str | Java, transactional_id: str, log: Path, *, may_be_killed: bool
    ) -> subprocess.Popen[str] | HostedProgram:
        """Start a worker; one of Java's that is not to be killed, in the JVM of all such."""
        if isinstance(client, Java) and not may_be_killed:
            return client.start(WORKER, self._of_java(transactional_id), log)
        with log.open("ab") as stderr:
            return subprocess.Popen(
                self._command(client, transactional_id),
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=stderr,
                text=True,
            )

    def _command(self, client: str | Java, transactional_id: str) -> list[str]:
        if isinstance(client, Java):
            return [*client.worker_command(client.built()), *self._of_java(transactional_id)]
        given = {**vars(self), "transactional_id": transactional_id}
        return [sys.executable, str(SCRIPT), client, json.dumps(given)]

    def _of_java(self, transactional_id: str) -> list[str]:
        return [
            self.source,
            self.target,
            str(self.abort_every),
            str(self.each_ms),
            f"bootstrap.servers={self.bootstrap}",
            f"group.id={self.group}",
            f"max.poll.records={self.batch}",
            f"group.protocol={self.protocol}",
            *(self._classic_settings if self.protocol == "classic" else ()),
            f"max.poll.interval.ms={self.max_poll_ms}",
            "auto.offset.reset=earliest",
            "enable.auto.commit=false",
            "isolation.level=read_committed",
            f"producer.transactional.id={transactional_id}",
            f"producer.transaction.timeout.ms={TRANSACTION_TIMEOUT_MS}",
            *(f"{key}={value}" for key, value in self.settings.items()),
        ]

    @property
    def _classic_settings(self) -> tuple[str, ...]:
        return (
            f"session.timeout.ms={self.session_ms}",
            f"heartbeat.interval.ms={self.session_ms // 10}",
            f"partition.assignment.strategy={CLASSES['range']}",
        )


def reason_to_end(status: int, said: str, *, was_broker_away: bool) -> str:
    """Return by which of `REASONS` a worker ended. Raises AssertionError if by none."""
    begins = [found.start() for found in re.finditer(LAST_WORDS, said)]
    if status == 1 and was_broker_away and begins:
        for reason, words in REASONS.items():
            if re.search(f"^(?:{words})", said[begins[-1] :], re.MULTILINE):
                return reason
    away = "was away" if was_broker_away else "was never away"
    raise AssertionError(f"a worker ended by itself, with {status}, the broker {away}:\n{said}")


class Worker:
    """A program; what it tells is counted by a thread."""

    def __init__(
        self,
        job: Job,
        client: str | Java,
        transactional_id: str,
        log: Path,
        *,
        may_be_killed: bool = True,
    ) -> None:
        self.name = name_of(client)
        self.committed = self.aborted = 0
        self.transactions = 0
        """So many have ended, of either kind."""
        self.begun_s = time.monotonic()
        self._log = log
        log.touch()
        self._log_start = log.stat().st_size
        self._program = job.start(client, transactional_id, log, may_be_killed=may_be_killed)
        assert self._program.stdout is not None
        self._reader = threading.Thread(target=self._count, args=[self._program.stdout])
        self._reader.start()

    def __repr__(self) -> str:
        return f"{self.name}: {self.committed} committed; {self._log.read_text()[-2000:]}"

    @property
    def pid(self) -> int:
        assert isinstance(self._program, subprocess.Popen)
        return self._program.pid

    @property
    def is_alive(self) -> bool:
        return self._program.poll() is None

    @property
    def said(self) -> str:
        """What it has put into its log, which it may share with those before it."""
        return self._log.read_bytes()[self._log_start :].decode()

    def _count(self, said: Iterable[str]) -> None:
        for line in said:
            event = json.loads(line)
            self.committed += event.get("committed", 0)
            self.aborted += event.get("aborted", 0)
            self.transactions += 1

    def leave(self) -> None:
        """Have it close, which it does with status 0."""
        assert self._program.stdin is not None
        self._program.stdin.close()
        status = self._program.wait(PATIENCE_S)
        self._reader.join()
        assert status == 0, self

    def kill(self) -> int | None:
        """End it by SIGKILL. Returns its status if it has ended by itself before."""
        assert isinstance(self._program, subprocess.Popen), "start it with `may_be_killed`"
        return self.end()

    def end(self) -> int | None:
        """End it anyhow; in a JVM that others share it leaves some time later."""
        self._program.kill()
        status = self._program.wait()
        self._reader.join()
        if self._program.stdin is not None:
            self._program.stdin.close()
        return None if status in (-signal.SIGKILL, LOST) else status


class Output:
    """What a reader of committed records finds in a topic, and how much there is in all."""

    def __init__(self, port: int, topic: str, partitions: int) -> None:
        self._port = port
        self._places = [TopicPartition(topic, index) for index in range(partitions)]
        self._counts = dict.fromkeys(self._places, 0)
        self._counted_to = dict.fromkeys(self._places, 0)

    def count(self) -> int:
        """Return how many records a reader finds; only the new ones are read for it."""
        wire = speak(self._port)
        try:
            for at, end in _ends(wire, self._places, COMMITTED).items():
                records, self._counted_to[at] = _fetch(wire, at, self._counted_to[at], end)
                self._counts[at] += len(records)
        finally:
            wire.close()
        return sum(self._counts.values())

    def read(self) -> list[list[int]]:
        """Return the numbers in each partition, in their order."""
        wire = speak(self._port)
        try:
            ends = _ends(wire, self._places, COMMITTED)
            found = [_fetch(wire, at, 0, end)[0] for at, end in ends.items()]
        finally:
            wire.close()
        return [[int(record.value or b"") for record in records] for records in found]

    def stable_end(self) -> int:
        """Return how far all partitions are, together; markers count."""
        wire = speak(self._port)
        try:
            return sum(_ends(wire, self._places, COMMITTED).values())
        finally:
            wire.close()

    def is_at_rest(self) -> bool:
        """Tell whether no transaction is open: all that was written, committed readers get to."""
        wire = speak(self._port)
        try:
            stable, ends = (_ends(wire, self._places, one) for one in (COMMITTED, UNCOMMITTED))
        finally:
            wire.close()
        return stable == ends

    def await_numbers(self, expected: list[list[int]], *workers: Worker) -> None:
        """Wait until as much is there, and check that it is just that."""

        def is_there() -> bool:
            assert all(worker.is_alive for worker in workers), workers
            return self.count() >= sum(map(len, expected))

        until(is_there, "all copied", PATIENCE_S)
        for index, (found, due) in enumerate(zip(self.read(), expected, strict=True)):
            counts = Counter(found)
            told = (
                f"partition {index} misses {sorted(set(due) - set(found))}, has twice"
                f" {sorted(number for number in counts if counts[number] > 1)}, beside"
                f" {sorted(set(found) - set(due))}: {workers}"
            )
            assert found == due, told


def _fetch(wire: Speaker, at: TopicPartition, begin: int, end: int) -> tuple[list[Record], int]:
    """Return the committed records from an offset to another, and the offset behind them."""
    found: list[Record] = []
    offset = begin
    while offset < end:
        request = fetch_request((*at, offset), isolation_level=COMMITTED)
        (part,) = fetched(wire.ask(request, 12)).values()
        assert part.error_code == 0, part
        records, offset = kept_records(part)
        found += records
    return found, offset


def _ends(
    wire: Speaker, places: list[TopicPartition], isolation_level: int
) -> dict[TopicPartition, int]:
    """Return how far readers of partitions of one topic get."""
    request = ListOffsetsRequest(
        replica_id=-1,
        isolation_level=isolation_level,
        topics=[
            ListOffsetsTopic(
                name=places[0].topic,
                partitions=[
                    ListOffsetsPartition(partition_index=at.partition, timestamp=LATEST)
                    for at in places
                ],
            )
        ],
    )
    (topic,) = wire.ask(request, 7).topics
    assert not any(part.error_code for part in topic.partitions), topic
    found = {part.partition_index: int(part.offset) for part in topic.partitions}
    return {at: found[at.partition] for at in places}


def write_numbers(bootstrap: str, topic: str, partitions: int, some: range, each: int) -> None:
    """Write these numbers to their partitions (`numbered`), so many in a transaction.

    Behind each committed one is an aborted one, which nobody may copy.
    """
    with Producer(bootstrap, transactional_id=f"writer of {topic}") as producer:
        producer.init_transactions()
        for begin in range(some.start, some.stop, each):
            producer.begin_transaction()
            for number in some[begin - some.start : begin - some.start + each]:
                partition = number % partitions
                producer.send(topic, b"%d" % number, partition=partition)
            producer.commit_transaction()
            producer.begin_transaction()
            for partition in range(partitions):
                producer.send(topic, b"-1", partition=partition)
            producer.flush()
            producer.abort_transaction()


def numbered(partitions: int, count: int) -> list[list[int]]:
    """Return the numbers of `count` records, dealt out to partitions in turn."""
    found: list[list[int]] = [[] for _ in range(partitions)]
    for number, partition in zip(range(count), itertools.cycle(range(partitions)), strict=False):
        found[partition].append(number)
    return found
