"""Real clients write down what they see while broker and workers are killed; it is checked."""

from __future__ import annotations

import itertools
import json
import random
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path

import pytest

from plog.client.admin import Admin
from tests.agreement.harness import run_seed
from tests.compat.programs import JAVA
from tests.planes import Plane
from tests.servers import BrokerProcess
from tests.waiting import until

from . import workload
from .checks import check
from .history import Crash, HistoryWriter, read_history
from .report import report

TOPIC, PARTITIONS = "values", 4
JAVA_PRODUCER = "java-producer"
"""Java's own client, by the second version of transactions; the others are librdkafka's."""
MUST_TELL = {
    "producer": "committed",
    JAVA_PRODUCER: "committed",
    "plain": "ack",
    **dict.fromkeys(["reader", "plog-reader", "kafka-python-reader", "member"], "poll"),
}
"""Of each role what a run goes on for until somebody has told of it."""
ROLES = ("producer", "member", *MUST_TELL)
VALUES_OF_WORKER = 1_000_000
QUIET_S = (0.5, 2.5)
"""Between two kills."""
BROKER_DIES = 0.4
PATIENCE_S = 60
SETTINGS = {
    "group.initial.rebalance.delay.ms": 0,
    "offsets.topic.num.partitions": 3,
    "transaction.state.log.num.partitions": 3,
    "transaction.abort.timed.out.transaction.cleanup.interval.ms": 200,
}


def _python_command(
    role: str, name: str, bootstrap: str, history: Path, slot: int, number: int
) -> list[str]:
    settings: dict[str, object] = {
        "bootstrap": bootstrap,
        "topic": TOPIC,
        "partitions": PARTITIONS,
        "name": name,
        "history": str(history),
        "seed": number,
    }
    if role in ("producer", "plain"):
        settings["first_value"] = number * VALUES_OF_WORKER
    if role == "producer":
        settings["transactional_id"] = f"producer-{slot}"
    if role == "member":
        settings["group"] = "members"
    return [sys.executable, "-m", "tests.checker.workload", role, json.dumps(settings)]


def _java_command(
    role: str, name: str, bootstrap: str, history: Path, slot: int, number: int
) -> list[str]:
    assert role == JAVA_PRODUCER
    client = JAVA[-1]
    return [
        *client.history_command(client.built()),
        *(name, TOPIC, str(PARTITIONS), str(number), str(number * VALUES_OF_WORKER), str(history)),
        f"bootstrap.servers={bootstrap}",
        f"transactional.id=producer-{slot}",
        f"transaction.timeout.ms={workload.TRANSACTION_TIMEOUT_MS}",
        f"max.block.ms={1000 * workload.PATIENCE_S}",
    ]


class Worker:
    """A process of a role; `name` is its own in the history."""

    def __init__(self, bootstrap: str, directory: Path, role: str, slot: int, number: int) -> None:
        self.role, self.slot, self.name = role, slot, f"{role}-{slot}-{number}"
        command = _java_command if role == JAVA_PRODUCER else _python_command
        with (directory / f"{self.name}.log").open("ab") as stderr:
            self._process = subprocess.Popen(
                command(role, self.name, bootstrap, directory / f"{self.name}.jsonl", slot, number),
                stdin=subprocess.PIPE,
                stderr=stderr,
            )

    @property
    def is_alive(self) -> bool:
        return self._process.poll() is None

    def kill(self) -> None:
        self._process.kill()
        self._process.wait()
        assert self._process.stdin is not None
        self._process.stdin.close()

    def leave(self) -> None:
        """Have it end by itself, or, if its client keeps it, by SIGKILL."""
        assert self._process.stdin is not None
        self._process.stdin.close()
        try:
            self._process.wait(PATIENCE_S)
        except subprocess.TimeoutExpired:
            self.kill()


class Run:
    """A broker, its workers, and who is killed when, by a seed."""

    def __init__(self, directory: Path, seed: int) -> None:
        self._chance = random.Random(seed)
        self._directory = directory
        (directory / "data").mkdir()
        (directory / "histories").mkdir()
        self.broker = BrokerProcess(directory / "data", overrides=SETTINGS).start()
        self._numbers = itertools.count(1)
        self._open = ExitStack()
        deaths = HistoryWriter(directory / "histories" / "deaths.jsonl")
        self._deaths = self._open.enter_context(deaths)
        self.kills: list[str] = []
        with Admin(self.broker.bootstrap) as admin:
            admin.create_topic(TOPIC, partitions=PARTITIONS)
        self.workers = [self._worker(role, slot) for slot, role in enumerate(ROLES)]

    def _worker(self, role: str, slot: int) -> Worker:
        place = self._directory / "histories"
        return Worker(self.broker.bootstrap, place, role, slot, next(self._numbers))

    def go_on(self, seconds: float) -> None:
        """Kill somebody now and then, the broker once at least, and replace whoever is gone."""
        until_s = time.monotonic() + seconds
        while time.monotonic() < until_s or "broker" not in self.kills:
            time.sleep(self._chance.uniform(*QUIET_S))
            is_last_chance = len(self.kills) == 3 and "broker" not in self.kills
            if self._chance.random() < BROKER_DIES or is_last_chance:
                self.kills.append("broker")
                self.broker.kill()
                self.broker.start()
            else:
                worker = self._chance.choice(self.workers)
                self.kills.append(worker.name)
                worker.kill()
            self._replace_dead()

    def _replace_dead(self) -> None:
        for at, worker in enumerate(self.workers):
            if not worker.is_alive:
                worker.kill()
                self._deaths.write(Crash(worker.name))
                self.workers[at] = self._worker(worker.role, worker.slot)

    def end(self) -> None:
        """Have everybody stop, and one read all there is when no transaction is open any more."""
        until(self._has_everybody_told, "by every role", PATIENCE_S)
        for worker in self.workers:
            worker.leave()
        until(lambda: "Ongoing" not in self._transactions(), "no transaction is open", PATIENCE_S)
        until(lambda: "Prepare" not in self._transactions(), "every marker is there", PATIENCE_S)
        final = self._worker("final", len(ROLES))
        until(lambda: not final.is_alive, "the final read", PATIENCE_S)

    def _has_everybody_told(self) -> bool:
        self._replace_dead()
        place = self._directory / "histories"
        return all(
            any(f'"kind":"{kind}"' in path.read_text() for path in place.glob(f"{role}-*.jsonl"))
            for role, kind in MUST_TELL.items()
        )

    def _transactions(self) -> str:
        command = [sys.executable, "-m", "plog", "transactions", "list"]
        command += ["-b", self.broker.bootstrap]
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout

    def stop(self) -> None:
        for worker in self.workers:
            if worker.is_alive:
                worker.kill()
        self._open.close()
        self.broker.kill()

    def judge(self, say: Callable[[str], None]) -> None:
        """Let the checker read what everybody has written."""
        history = read_history(sorted((self._directory / "histories").glob("*.jsonl")))
        verdict = check(history)
        kinds = Counter(event.kind for event in history.events)
        say(f"{len(history.events)} events, {dict(kinds)}; kills: {self.kills}")
        assert not verdict.anomalies, "\n".join(report(history, verdict))
        assert not verdict.unseen, "\n".join(report(history, verdict))
        assert kinds["aborted"] > 0, kinds
        told = {(event.worker.rsplit("-", 2)[0], event.kind) for event in history.events}
        assert told >= MUST_TELL.items(), told


def one_run(directory: Path, seconds: float) -> None:
    run = Run(directory, run_seed())
    try:
        run.go_on(seconds)
        run.end()
    finally:
        run.stop()
    run.judge(print)
    assert "failed with an internal error" not in run.broker.log, run.broker.log
    assert "broker" in run.kills


@pytest.mark.timeout(300)
def test_nothing_is_wrong_with_what_real_clients_saw(plane: Plane, tmp_path: Path) -> None:
    one_run(tmp_path, 10)


@pytest.mark.long
@pytest.mark.timeout(1800)
def test_nothing_is_wrong_with_what_real_clients_saw_for_long(plane: Plane, tmp_path: Path) -> None:
    one_run(tmp_path, 600)
