"""Exactly once under fire: broker and workers are killed by SIGKILL again and again meanwhile.

When all is copied nobody is killed any more, and the workers go on with what is written then: what
one that was killed has left behind would come late, or twice, among that. A worker that ends by
itself is started anew, too, but only an outage of the broker may be its reason.
"""

from __future__ import annotations

import random
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest

from plog.client.admin import Admin
from plog.client.transaction_admin import TransactionAdmin
from plog.coordinator.txn_states import ONGOING, PREPARED
from tests.agreement.harness import run_seed
from tests.compat.groups import name_of
from tests.compat.programs import JAVA, Java
from tests.compat.workers import (
    TRANSACTION_TIMEOUT_MS,
    Job,
    Output,
    Worker,
    numbered,
    reason_to_end,
    write_numbers,
)
from tests.planes import Plane
from tests.servers import BrokerProcess
from tests.waiting import until

PARTITIONS = 4
WORKERS = 4
RECORDS_OF_A_KILL = 5_000
"""So many are written for each, so that something is left to copy until the last."""
LATER = 2_000
"""So many more are written when nobody is killed any more."""
EACH_MS = 100
"""So long after its first record a transaction ends."""
BATCH = {"classic": 400, "consumer": 100}
"""About so many records it takes in this time at most: there have to be some for all the kills.

With KIP-848 nobody stands still while the group rebalances.
"""
WRITTEN = 2_000
"""So many are written in a transaction."""
QUIET_S = (0.3, 2.0)
"""Between two kills."""
AWAY_S = 1.2 * TRANSACTION_TIMEOUT_MS / 1000
"""So long the broker is away at most, one time in three; else it is there again at once."""
KILLS, LONG_KILLS = 4, 8
"""Of a round, in every run and with `--long`."""
ROUND_S = 180
PEACE_S = 60
IN_DOUBT = [ONGOING, *PREPARED]
"""States of transactions that may still write something."""
SETTINGS: dict[str, object] = {
    "group.initial.rebalance.delay.ms": 0,
    # As classic members have them (`Job`): else 45 s pass until others have a killed one's share.
    "group.consumer.session.timeout.ms": 6_000,
    "group.consumer.min.session.timeout.ms": 6_000,
    "group.consumer.heartbeat.interval.ms": 600,
    "group.consumer.min.heartbeat.interval.ms": 600,
    "offsets.topic.num.partitions": 5,
    "transaction.state.log.num.partitions": 5,
    "transaction.abort.timed.out.transaction.cleanup.interval.ms": 1000,
}


class Round:
    """A broker, its workers, and who is killed next."""

    def __init__(
        self, directory: Path, client: str | Java, protocol: str, seed: int, kills: int
    ) -> None:
        self.most_kills = kills
        self._count = RECORDS_OF_A_KILL * kills
        self._chance = random.Random(seed)
        self._client = client
        self._directory = directory
        self.broker = BrokerProcess(directory / "data", overrides=SETTINGS).start()
        self.job = Job(
            self.broker.bootstrap,
            "workers",
            "source",
            "target",
            batch=BATCH[protocol],
            abort_every=7,
            each_ms=EACH_MS,
            protocol=protocol,
        )
        self.output = Output(self.broker.port, "target", PARTITIONS)
        self.workers: list[Worker | None] = [None] * WORKERS
        self.kills: list[str] = []
        self.ends: Counter[str] = Counter()
        """Why workers ended by themselves."""
        self._last_outage_s = 0.0

    def write(self) -> None:
        with Admin(self.broker.bootstrap) as admin:
            for topic in (self.job.source, self.job.target):
                admin.create_topic(topic, partitions=PARTITIONS)
        self._write(range(self._count))

    def _write(self, some: range) -> None:
        write_numbers(self.job.bootstrap, self.job.source, PARTITIONS, some, WRITTEN)

    def tend(self) -> None:
        """Start whoever is not there (any more)."""
        for number, worker in enumerate(self.workers):
            if worker is None or not worker.is_alive:
                self._kill(number)
                log = self._directory / f"worker-{number}.log"
                self.workers[number] = Worker(self.job, self._client, f"worker-{number}", log)

    def _kill(self, number: int) -> None:
        """Kill a worker, if it is there. If it has ended by itself, it has to have had a reason."""
        worker, self.workers[number] = self.workers[number], None
        if worker is None or (status := worker.kill()) is None:
            return
        was_broker_away = worker.begun_s < self._last_outage_s
        reason = reason_to_end(status, worker.said, was_broker_away=was_broker_away)
        self.ends[reason] += 1

    def kill_somebody(self) -> None:
        if self.output.stable_end() >= self._count:  # a kill while nothing is copied shows nothing
            more = range(self._count, self._count + RECORDS_OF_A_KILL)
            self._write(more)
            self._count = more.stop
        is_last_chance = len(self.kills) == self.most_kills // 2 and not self.brokers_kills
        if self._chance.random() < 0.4 or is_last_chance:
            self.broker.kill()
            self._last_outage_s = time.monotonic()
            away_s = self._chance.choice([0.0, 0.0, self._chance.uniform(0, AWAY_S)])
            self.kills.append(f"broker, away for {away_s:.0f} s" if away_s else "broker")
            time.sleep(away_s)
            self.broker.start()
            return
        number = self._chance.randrange(WORKERS)
        self.kills.append(f"worker {number}")
        self._kill(number)

    @property
    def brokers_kills(self) -> int:
        return sum(kill.startswith("broker") for kill in self.kills)

    def run(self) -> None:
        until = time.monotonic() + ROUND_S
        while time.monotonic() < until:
            self.tend()
            if len(self.kills) < self.most_kills:
                time.sleep(self._chance.uniform(*QUIET_S))
                self.kill_somebody()
                continue
            time.sleep(0.5)
            if self.output.count() >= self._count:
                return
        pytest.fail(f"not all copied in {ROUND_S} s: {self}")

    def find_peace(self) -> None:
        """Have what was left behind end, more be copied, and the workers go."""
        self._await(self._is_at_rest, "at rest")
        everything = self._count + LATER
        self._write(range(self._count, everything))
        self._await(lambda: self.output.count() >= everything, "all copied that was written later")
        for number in range(WORKERS):
            self._kill(number)
        until(self._is_at_rest, "at rest", PEACE_S)

    def _await(self, holds: Callable[[], bool], what: str) -> None:
        def is_so() -> bool:
            self.tend()
            time.sleep(0.2)
            return holds()

        try:
            until(is_so, what, PEACE_S)
        except AssertionError as late:
            pytest.fail(f"{late}: {self}")

    def _is_at_rest(self) -> bool:
        with TransactionAdmin(self.broker.bootstrap) as admin:
            in_doubt = admin.transactions([state.label for state in IN_DOUBT])
        return not in_doubt and self.output.is_at_rest()

    def check(self) -> None:
        found = self.output.read()
        expected = numbered(PARTITIONS, self._count + LATER)
        for partition, (read, wanted) in enumerate(zip(found, expected, strict=True)):
            if read != wanted:
                twice = len(read) - len(set(read))
                lost = len(set(wanted) - set(read))
                at = next(
                    (n for n, (a, b) in enumerate(zip(read, wanted, strict=False)) if a != b),
                    min(len(read), len(wanted)),
                )
                pytest.fail(
                    f"partition {partition}: {lost} lost, {twice} twice, other from {at} on: {self}"
                )

    def end(self) -> None:
        for worker in self.workers:
            if worker is not None:
                worker.kill()
        self.broker.kill()

    def look(self, *words: str) -> str:
        """Return what an administrator sees."""
        command = [sys.executable, "-m", "plog", *words, "-b", self.job.bootstrap]
        done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
        return done.stdout + done.stderr

    def __repr__(self) -> str:
        seen = self.look("groups", "describe", "workers") + self.look("transactions", "list")
        return (
            f"kills {self.kills}, ends {dict(self.ends)}, {self.workers};"
            f" seen:\n{seen}\nthe broker says:\n{self.broker.log[-3000:]}"
        )


def one_round(tmp_path: Path, client: str | Java, protocol: str, seed: int, kills: int) -> None:
    print(f"{name_of(client)}, {protocol} protocol, seed {seed}")
    (tmp_path / "data").mkdir(parents=True)
    fire = Round(tmp_path, client, protocol, seed, kills)
    try:
        fire.write()
        fire.run()
        fire.find_peace()
        fire.check()
    finally:
        fire.end()
    assert fire.brokers_kills, fire
    assert "failed with an internal error" not in fire.broker.log, fire.broker.log
    print(f"{fire.kills}; by themselves ended {dict(fire.ends)}")


ROUNDS = {Plane.FAST: range(2), Plane.PLAIN: range(1, 2)}
JAVA_ROUNDS = {Plane.FAST: range(1), Plane.PLAIN: range(1, 2)}
"""With 4.4, whose transactions are of version 2. Those of librdkafka are of version 1, as are those
of 3.9, which has its rounds with `--long`."""
LONG_ROUNDS = range(20)


def rounds(tmp_path: Path, client: str | Java, numbers: range, kills: int = KILLS) -> None:
    """Go through rounds: of even numbers with the classic protocol, else with that of KIP-848."""
    chance = random.Random(run_seed())
    for number in numbers:
        # 3.9 has it as a preview.
        protocol = "consumer" if number % 2 and client != JAVA[0] else "classic"
        one_round(tmp_path / f"{number}", client, protocol, chance.randrange(1 << 32), kills)


@pytest.mark.timeout(900)
def test_output_is_the_input(plane: Plane, tmp_path: Path) -> None:
    rounds(tmp_path, "confluent-kafka", ROUNDS[plane])


@pytest.mark.timeout(900)
def test_output_of_javas_workers_is_the_input(plane: Plane, tmp_path: Path) -> None:
    rounds(tmp_path, JAVA[-1], JAVA_ROUNDS[plane])


@pytest.mark.long
@pytest.mark.timeout(7200)
@pytest.mark.parametrize("client", ["confluent-kafka", *JAVA], ids=name_of)
def test_output_is_the_input_many_times(plane: Plane, tmp_path: Path, client: str | Java) -> None:
    rounds(tmp_path, client, LONG_ROUNDS, LONG_KILLS)


STUCK = """\
Timeout (0:00:25)!
Thread 0x00007f5d1b7fe6c0 (most recent call first):
  File "/w/tests/compat/transactional_worker.py", line 294 in wait_for_the_end
  File "/usr/lib/python3.11/threading.py", line 982 in run

Thread 0x00007f5d2f3ff740 (most recent call first):
  File "/w/tests/compat/transactional_worker.py", line 116 in {}
  File "/w/tests/compat/transactional_worker.py", line 312 in <module>
"""
RAISED = """\
%1|1795663693.101|TXNERR|rdkafka#producer-2| [thrd:main]: Fatal transaction error (_FENCED)
Traceback (most recent call last):
  File "/w/tests/compat/transactional_worker.py", line 116, in commits
{}
%4|1795663693.111|TERMINATE|rdkafka#producer-2| [thrd:app]: Producer terminating
"""
JAVA_RAISED = """\
[main] WARN org.apache.kafka.clients.NetworkClient - Node may not be available.
Exception in thread "main" org.apache.kafka.common.{}
"""
FENCED = RAISED.format(
    'cimpl.KafkaException: KafkaError{FATAL,code=_FENCED,val=-144,str="Failed to end transaction: '
    'Local: This instance has been fenced by a newer instance"}'
)
UNKNOWN = RAISED.format(
    'cimpl.KafkaException: KafkaError{code=UNKNOWN,val=-1,str="Broker: Unknown broker error"}'
)
JAVA_FENCED = JAVA_RAISED.format("errors.ProducerFencedException: There is a newer producer")


@pytest.mark.parametrize(
    ("said", "reason"),
    [
        (FENCED, "fenced"),
        (JAVA_FENCED, "fenced"),
        (JAVA_RAISED.format("errors.InvalidProducerEpochException: producer 2 epoch 0"), "fenced"),
        *(
            (
                RAISED.format(f'{error}: KafkaError{{code={code},str="..."}}'),
                "unanswered",
            )
            for error in ("cimpl.KafkaException", "RuntimeError")
            for code in ("_TIMED_OUT,val=-185", "_TRANSPORT,val=-195")
        ),
        (RAISED.format("RuntimeError: KafkaError{code=_MAX_POLL_EXCEEDED,val=-1}"), "polled late"),
        (STUCK.format("commits"), "stuck"),
        (STUCK.format("run_confluent"), "stuck"),
    ],
)
def test_worker_may_end_by_itself_for_these_reasons_after_an_outage(said: str, reason: str) -> None:
    assert reason_to_end(1, said, was_broker_away=True) == reason
    with pytest.raises(AssertionError, match="never away"):
        reason_to_end(1, said, was_broker_away=False)
    with pytest.raises(AssertionError, match="with -11"):
        reason_to_end(-11, said, was_broker_away=True)


@pytest.mark.parametrize(
    "said",
    [
        "",
        UNKNOWN,
        FENCED + UNKNOWN,  # the last is what ended it
        RAISED.format(
            'cimpl.KafkaException: KafkaError{FATAL,code=INVALID_TXN_STATE,val=48,str="Failed to'
            ' end transaction: Broker: Producer attempted a transactional operation"}'
        ),
        RAISED.format("RuntimeError: KafkaError{code=UNKNOWN_MEMBER_ID,val=25}"),
        RAISED.format("ValueError: invalid literal for int()"),
        JAVA_RAISED.format("errors.UnknownServerException: The server met an error"),
        JAVA_RAISED.format("errors.InvalidTxnStateException: Caused by ProducerFencedException: "),
        JAVA_FENCED.replace('"main"', '"of another"'),
        STUCK.format("take"),
        STUCK.format("rewind"),
    ],
)
def test_worker_may_not_end_by_itself_for_others(said: str) -> None:
    with pytest.raises(AssertionError, match="ended by itself") as refused:
        reason_to_end(1, said, was_broker_away=True)
    assert said in str(refused.value)
