"""Kafka Streams with exactly_once_v2: copies and counts, whatever is killed meanwhile."""

from __future__ import annotations

import subprocess
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest

from plog.client.producer import Producer
from plog.types import TopicPartition
from tests.committed import kept_records
from tests.compat.clients import PATIENCE_S
from tests.compat.programs import STREAMS, Streams
from tests.handlers.wire import fetch_request, fetched, speak
from tests.servers import BrokerProcess
from tests.waiting import until

PARTITIONS = 2
COUNT = 1000
KEYS = 7
COMMITTED = 1

NewTopic = Callable[..., str]
Pair = tuple[str, str]


class Application:
    """A process; it is started anew after each kill."""

    def __init__(self, streams: Streams, broker: BrokerProcess, topics: list[str], where: Path):
        self._command = [
            *streams.command(),
            *topics,
            f"bootstrap.servers={broker.bootstrap}",
            f"application.id=of-{topics[0]}",
            f"state.dir={where / 'state'}",
            "processing.guarantee=exactly_once_v2",
            "replication.factor=1",
            "commit.interval.ms=100",
            "statestore.cache.max.bytes=0",
            "auto.offset.reset=earliest",
            "session.timeout.ms=6000",
            "heartbeat.interval.ms=600",
            "producer.transaction.timeout.ms=10000",
        ]
        self._log = where / "streams.log"
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        with self._log.open("ab") as log:
            self._process = subprocess.Popen(
                self._command, stdin=subprocess.PIPE, stdout=log, stderr=log
            )

    @property
    def is_alive(self) -> bool:
        return self._process is not None and self._process.poll() is None

    @property
    def said(self) -> str:
        return self._log.read_text()[-4000:]

    def kill(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            assert self._process.stdin is not None
            self._process.stdin.close()

    def leave(self) -> None:
        assert self._process is not None
        assert self._process.stdin is not None
        self._process.stdin.close()
        assert self._process.wait(PATIENCE_S) == 0, self.said


def read(broker: BrokerProcess, topic: str) -> list[list[Pair]]:
    """Return the committed records of each partition."""
    wire = speak(broker.port)
    found: list[list[Pair]] = []
    for index in range(PARTITIONS):
        at, offset = TopicPartition(topic, index), 0
        found.append([])
        while True:
            request = fetch_request((*at, offset), isolation_level=COMMITTED)
            (part,) = fetched(wire.ask(request, 12)).values()
            records, offset = kept_records(part)
            found[-1] += [
                ((one.key or b"").decode(), (one.value or b"").decode()) for one in records
            ]
            if offset < 0:
                break
    wire.close()
    return found


def by_key(partitions: list[list[Pair]]) -> dict[str, list[str]]:
    """Return each key's values in their order: an application places keys by itself."""
    found: dict[str, list[str]] = {}
    for pairs in partitions:
        for key, value in pairs:
            found.setdefault(key, []).append(value)
    return found


@pytest.mark.parametrize("streams", STREAMS, ids=lambda one: one.name)
def test_application_copies_and_counts_once(
    broker: BrokerProcess, new_topic: NewTopic, tmp_path: Path, streams: Streams
) -> None:
    source, copy, counts = (new_topic(PARTITIONS) for _ in range(3))
    application = Application(streams, broker, [source, copy, counts], tmp_path)
    written: list[list[Pair]] = [[] for _ in range(PARTITIONS)]

    def write(begin: int) -> None:
        with Producer(broker.bootstrap) as producer:
            for n in range(begin, begin + COUNT):
                key, at = f"k{n % KEYS}", n % KEYS % PARTITIONS
                producer.send(source, b"%d" % n, key=key.encode(), partition=at)
                written[at].append((key, str(n)))
            producer.flush(PATIENCE_S)

    def has_copied(count: int) -> bool:
        assert application.is_alive, application.said
        return sum(map(len, read(broker, copy))) >= count

    try:
        write(0)
        application.start()
        until(lambda: has_copied(COUNT // 4), "begun", PATIENCE_S)
        application.kill()
        write(COUNT)
        application.start()
        until(lambda: has_copied(2 * COUNT), "all copied", PATIENCE_S)
        application.leave()
    finally:
        application.kill()
    assert by_key(read(broker, copy)) == by_key(written)
    expected = Counter(key for some in written for key, _ in some)
    last = {key: int(count) for some in read(broker, counts) for key, count in some}
    assert last == expected
    told = Counter(key for some in read(broker, counts) for key, _ in some)
    assert told == expected  # each count once, as nothing is cached
