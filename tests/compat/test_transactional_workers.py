"""Exactly once with real clients: what was written to one topic stands in the other, once."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from plog.client.group_admin import GroupAdmin
from tests.compat.clients import PATIENCE_S
from tests.compat.groups import name_of
from tests.compat.programs import JAVA, Java
from tests.compat.workers import Job, Output, Worker, numbered, write_numbers
from tests.servers import BrokerProcess
from tests.waiting import until

PARTITIONS = 5
"""As many as workers share: each has one."""
COUNT = 200
MOST_ROUNDS = 20
CLIENTS: list[str | Java] = ["confluent-kafka", "kafka-python", "aiokafka", "plog", *JAVA]
ASK_FOR_ANY_OFFSETS = ["aiokafka"]
"""Who does not wait for the offsets of open transactions (its OffsetFetch ends at v3, KIP-447 has
v7): what takes over a partition amid the transaction of who had it begins where that one began."""

NewTopic = Callable[..., str]


class Copying:
    """Two topics, what is to be copied from one to the other, and who does it."""

    def __init__(self, broker: BrokerProcess, new_topic: NewTopic, logs: Path) -> None:
        source, target = new_topic(PARTITIONS), new_topic(PARTITIONS)
        self.job = Job(broker.bootstrap, f"group-of-{source}", source, target)
        self.output = Output(broker.port, target, PARTITIONS)
        self.expected = numbered(PARTITIONS, 0)
        self._logs = logs
        self.workers: list[Worker] = []

    def write(self, count: int = COUNT) -> None:
        """Write the next numbers to the source."""
        begun = sum(map(len, self.expected))
        self.expected = numbered(PARTITIONS, begun + count)
        write_numbers(
            self.job.bootstrap, self.job.source, PARTITIONS, range(begun, begun + count), 50
        )

    def start(
        self, client: str | Java, transactional_id: str = "", *, may_be_killed: bool = False
    ) -> Worker:
        number = len(self.workers)
        named = transactional_id or f"{self.job.source}-{number}"
        log = self._logs / f"{number}.log"
        worker = Worker(self.job, client, named, log, may_be_killed=may_be_killed)
        self.workers.append(worker)
        return worker

    def await_all(self, *workers: Worker) -> None:
        self.output.await_numbers(self.expected, *workers)


@pytest.fixture
def copying(broker: BrokerProcess, new_topic: NewTopic, tmp_path: Path) -> Iterator[Copying]:
    made = Copying(broker, new_topic, tmp_path)
    yield made
    for worker in made.workers:
        worker.end()


@pytest.mark.parametrize("client", CLIENTS, ids=name_of)
def test_worker_copies_once_whatever_it_aborts(copying: Copying, client: str | Java) -> None:
    copying.write()
    worker = copying.start(client)
    copying.await_all(worker)
    assert worker.aborted > 0
    copying.write()
    copying.await_all(worker)
    worker.leave()


@pytest.mark.usefixtures("plane")
@pytest.mark.parametrize("client", ["confluent-kafka", JAVA[-1]], ids=name_of)
def test_worker_ends_a_transaction_so_long_after_its_first_record(
    copying: Copying, client: str | Java
) -> None:
    each_s, pause_s = 0.5, 0.1
    copying.job = replace(copying.job, batch=100_000, abort_every=0, each_ms=int(each_s * 1000))
    copying.write()
    worker = copying.start(client)
    copying.await_all(worker)
    begun, before = time.monotonic(), worker.transactions
    for _ in range(20):
        copying.write(4)
        time.sleep(pause_s)
    # Many more records have come, one by one, than transactions may end in this time.
    during = worker.transactions - before
    assert 1 < during <= (time.monotonic() - begun) / each_s + 1
    copying.await_all(worker)
    worker.leave()


@pytest.mark.parametrize("client", ["confluent-kafka", JAVA[-1]], ids=name_of)
def test_workers_in_a_group_of_the_consumer_protocol_copy_once(
    copying: Copying, client: str | Java
) -> None:
    copying.job = replace(copying.job, protocol="consumer")
    workers = [copying.start(client) for _ in range(2)]
    for _ in range(2):
        copying.write()
        copying.await_all(*workers)
    assert sum(worker.aborted for worker in workers) > 0
    with GroupAdmin(copying.job.bootstrap) as admin:
        (group,) = [one for one in admin.groups() if one.group_id == copying.job.group]
    assert group.group_type == "consumer"
    for worker in workers:
        worker.leave()


@pytest.mark.parametrize("client", CLIENTS, ids=name_of)
def test_worker_that_was_killed_is_followed_by_one_of_its_name(
    copying: Copying, client: str | Java
) -> None:
    # The group goes on when the killed one's session has ended.
    copying.job = replace(copying.job, session_ms=3_000)
    copying.write()
    killed = copying.start(client, "its-name-" + copying.job.source, may_be_killed=True)
    until(lambda: killed.committed >= COUNT // 4 or not killed.is_alive, "begun", PATIENCE_S)
    killed.kill()
    copying.write()
    following = copying.start(client, "its-name-" + copying.job.source)
    copying.await_all(following)
    following.leave()


def test_workers_of_all_clients_share_the_work(copying: Copying) -> None:
    workers = [copying.start(client) for client in CLIENTS if client not in ASK_FOR_ANY_OFFSETS]
    assert len(workers) == PARTITIONS
    for _ in range(MOST_ROUNDS):
        copying.write(2 * COUNT)
        copying.await_all(*workers)
        if all(worker.committed and worker.aborted for worker in workers):
            break
    assert all(worker.committed and worker.aborted for worker in workers), workers
    for worker in workers:
        worker.leave()
