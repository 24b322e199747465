"""Kafka Streams with exactly_once_v2: copies and counts, whatever is killed meanwhile.

The application is killed amid a transaction, then its broker amid another: there is something left
to be copied either time.
"""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest

from plog._native.batch import scan
from plog.client.admin import Admin
from plog.client.producer import Producer
from plog.types import TopicPartition
from tests.committed import kept_records
from tests.compat.clients import PATIENCE_S
from tests.compat.programs import STREAMS, Streams
from tests.compat.streams_application import (
    COPY,
    COUNTS,
    SOURCE,
    TOPICS,
    Application,
    Pair,
    by_key,
)
from tests.compat.test_under_fire import SETTINGS
from tests.compat.workers import Output
from tests.handlers.wire import fetch_request, fetched, speak
from tests.planes import Plane
from tests.servers import BrokerProcess
from tests.waiting import until

PARTITIONS = 2
COUNT = 1000
KEYS = 7
COMMITTED = 1
TRIES = 5


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


def is_transaction_open(broker: BrokerProcess, topic: str) -> bool:
    """Tell whether the topic's files end amid a transaction. Nobody may be writing to them."""
    is_open: dict[tuple[int, int], bool] = {}
    for index in range(PARTITIONS):
        for path in sorted(broker.partition_dir(f"{topic}-{index}").glob("*.log")):
            for header in scan(path.read_bytes()):
                is_open[index, header.producer_id] = not header.is_control
    return any(is_open.values())


@pytest.mark.parametrize(
    "streams",
    [pytest.param(STREAMS[0], marks=pytest.mark.long), *STREAMS[1:]],
    ids=lambda one: one.name,
)
def test_application_copies_and_counts_once(plane: Plane, tmp_path: Path, streams: Streams) -> None:
    broker = BrokerProcess(tmp_path / "data", overrides=SETTINGS)
    application = Application(streams, broker.bootstrap, tmp_path)
    copy = Output(broker.port, COPY, PARTITIONS)
    written: list[list[Pair]] = [[] for _ in range(PARTITIONS)]

    def write() -> None:
        begin = sum(map(len, written))
        with Producer(broker.bootstrap) as producer:
            for n in range(begin, begin + COUNT):
                key, at = f"k{n % KEYS}", n % KEYS % PARTITIONS
                producer.send(SOURCE, b"%d" % n, key=key.encode(), partition=at)
                written[at].append((key, str(n)))
            producer.flush(PATIENCE_S)

    def await_all() -> None:
        def is_all_copied() -> bool:
            assert application.is_alive, application.said
            return copy.count() >= sum(map(len, written))

        until(is_all_copied, "all copied", PATIENCE_S)

    def begin_more() -> None:
        """Write more just behind a commit, and see some of it in the next transaction."""
        await_all()
        write()
        until(lambda: not copy.is_at_rest(), "amid a transaction", PATIENCE_S)

    def kill_amid_a_transaction(one: Application | BrokerProcess) -> None:
        for _ in range(TRIES):
            begin_more()
            one.kill()
            if is_transaction_open(broker, COPY):
                return
            one.start()  # on a slow machine it was over by then
        raise AssertionError(f"nothing is left behind in {TRIES} tries")

    (tmp_path / "data").mkdir()
    try:
        broker.start()
        with Admin(broker.bootstrap) as admin:
            for topic in TOPICS:
                admin.create_topic(topic, partitions=PARTITIONS)
        write()
        application.start()
        kill_amid_a_transaction(application)
        assert copy.count() < sum(map(len, written))
        application.start()
        kill_amid_a_transaction(broker)
        broker.start()
        write()
        await_all()
        application.leave()
        assert by_key(read(broker, COPY)) == by_key(written)
        expected = Counter(key for some in written for key, _ in some)
        last = {key: int(count) for some in read(broker, COUNTS) for key, count in some}
        assert last == expected
        told = Counter(key for some in read(broker, COUNTS) for key, _ in some)
        assert told == expected  # each count once, as nothing is cached
        broker.stop()
    finally:
        application.kill()
        broker.kill()
    assert "failed with an internal error" not in broker.log, broker.log
