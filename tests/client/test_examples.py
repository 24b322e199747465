"""The programs of examples/ as processes: what each promises, and one that is killed at it."""

from __future__ import annotations

import os
import random
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, suppress
from pathlib import Path

import pytest

from plog.client.admin import Admin
from plog.client.consumer import Consumer
from plog.client.group_admin import GroupAdmin
from plog.client.producer import Producer
from plog.protocol.api_keys import ApiKey
from plog.protocol.messages.groups import LeaveGroupRequest, MemberIdentity
from tests.agreement.harness import run_seed
from tests.client.conftest import OVERRIDES
from tests.client.test_transactions import read_all
from tests.compat.recorder import Exchange, Recorder
from tests.handlers.wire import fresh_name, speak
from tests.planes import Plane
from tests.servers import BrokerProcess, free_port
from tests.waiting import until

ROOT = Path(__file__).resolve().parents[2]
EXAMPLES = ROOT / "examples"
ENVIRONMENT = {**os.environ, "PYTHONPATH": str(ROOT)}
"""So that they run with the plog beside them, whichever is installed."""
PROGRAMS = sorted(path.stem for path in EXAMPLES.glob("*.py"))
PARTITIONS = 3
RUN_S = 120

NewTopic = Callable[..., str]


def write(bootstrap: str, topic: str, numbers: range) -> None:
    with Producer(bootstrap) as producer:
        for n in numbers:
            producer.send(topic, b"v%d" % n, partition=n % PARTITIONS)


def start(program: str, source: str, target: str, *options: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, str(EXAMPLES / f"{program}.py"), source, target, *options],
        stdin=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
        env=ENVIRONMENT,
    )


def finish(process: subprocess.Popen[str]) -> None:
    try:
        _, said = process.communicate(timeout=RUN_S)
    finally:
        with suppress(ProcessLookupError):
            process.kill()
    assert process.returncode == 0, said


def values(bootstrap: str, topic: str) -> list[bytes]:
    return [one for some in read_all(bootstrap, topic).values() for one in some]


@pytest.mark.parametrize("program", PROGRAMS)
def test_example_says_what_it_does(program: str) -> None:
    said = subprocess.run(
        [sys.executable, str(EXAMPLES / f"{program}.py"), "--help"],
        capture_output=True,
        text=True,
        check=True,
        env=ENVIRONMENT,
        timeout=RUN_S,
    ).stdout
    assert "SOURCE TARGET" in said
    assert program.replace("_", " ").removesuffix(" once") in said


@pytest.mark.parametrize("program", PROGRAMS)
def test_example_reports_a_broker_that_is_not_there(program: str) -> None:
    address = f"127.0.0.1:{free_port()}"
    process = start(program, "from", "to", "--bootstrap-server", address, "--idle-s", "2")
    _, err = process.communicate(timeout=RUN_S)
    assert process.returncode == 1
    assert err == f"Error: cannot connect to {address}: Connection refused\n"


@pytest.mark.parametrize("program", PROGRAMS)
def test_example_reports_a_source_that_does_not_exist(bootstrap: str, program: str) -> None:
    process = start(program, "nosuch", "to", "--bootstrap-server", bootstrap, "--idle-s", "2")
    _, err = process.communicate(timeout=RUN_S)
    assert process.returncode == 1
    assert err == "Error: topic 'nosuch' does not exist\n"


def test_page_names_each_program_and_its_lines_run_as_they_stand(
    bootstrap: str, new_topic: NewTopic
) -> None:
    page = (EXAMPLES / "README.md").read_text("utf-8")
    assert all(f"`{program}.py`" in page for program in PROGRAMS)
    _, block, _ = page.split("```\n")
    source, target = new_topic(PARTITIONS), new_topic(PARTITIONS)
    write(bootstrap, source, range(9))
    said = ""
    for line in block.replace("greetings", source).replace("shouted", target).splitlines():
        program, *arguments = line.split()
        start = [sys.executable] if program == "python" else [sys.executable, "-m", program]
        said = subprocess.run(
            [*start, *arguments, "--bootstrap-server", bootstrap],
            capture_output=True,
            text=True,
            check=True,
            cwd=ROOT,
            env=ENVIRONMENT,
            timeout=RUN_S,
        ).stdout
    assert sorted(said.split()) == sorted(f"V{n}" for n in range(9))


@pytest.mark.parametrize("program", PROGRAMS)
def test_example_writes_each_record_once_if_nothing_goes_wrong(
    bootstrap: str, new_topic: NewTopic, program: str
) -> None:
    source, target = new_topic(PARTITIONS), new_topic(PARTITIONS)
    options = ["--bootstrap-server", bootstrap, "--group", fresh_name(), "--idle-s", "3"]
    write(bootstrap, source, range(300))
    finish(start(program, source, target, *options))
    assert sorted(values(bootstrap, target)) == sorted(b"V%d" % n for n in range(300))
    # What has been read stays read.
    write(bootstrap, source, range(300, 400))
    finish(start(program, source, target, *options))
    assert sorted(values(bootstrap, target)) == sorted(b"V%d" % n for n in range(400))


def test_exactly_once_is_so_when_the_worker_is_killed(bootstrap: str, new_topic: NewTopic) -> None:
    source, target = new_topic(PARTITIONS), new_topic(PARTITIONS)
    count = 1500
    options = ["--bootstrap-server", bootstrap, "--group", fresh_name(), "--records", "5"]
    write(bootstrap, source, range(count))

    def written() -> int:
        """Count what is there, committed or not, and the markers."""
        with Consumer(bootstrap) as consumer:
            return sum(consumer.end_offsets(consumer.partitions_for(target)).values())

    def kill_after(more: int) -> int:
        enough = written() + more
        worker = start("exactly_once", source, target, *options)
        try:
            until(lambda: worker.poll() is not None or written() > enough)
            assert worker.poll() is None
        finally:
            worker.kill()
            worker.communicate()
        return written()

    killed_at = [kill_after(60) for _ in range(4)]
    finish(start("exactly_once", source, target, *options, "--idle-s", "2"))
    found = values(bootstrap, target)
    assert killed_at[-1] < written(), "all was done before the last kill"
    assert len(found) == len(set(found))
    assert set(found) == {b"V%d" % n for n in range(count)}


FEEDER = "feeder"
STEPS = (ApiKey.PRODUCE, ApiKey.OFFSET_COMMIT)
FIRST_STEP = {"at_most_once": ApiKey.OFFSET_COMMIT, "at_least_once": ApiKey.PRODUCE}
"""What has to have succeeded before the other step begins."""
GRACE_S = 0.5
"""For the other step of a program that would not wait for the first."""


class Gate(Recorder):
    """Stands between workers and a broker, and swallows their requests of one API."""

    def __init__(self, target_port: int) -> None:
        self._closed_to: ApiKey | None = None
        self._reached = threading.Event()
        super().__init__(target_port)

    def close_to(self, api: ApiKey) -> None:
        self._reached.clear()
        self._closed_to = api

    def open(self) -> None:
        self._closed_to = None

    @property
    def is_reached(self) -> bool:
        """Whether a request was swallowed since it was closed."""
        return self._reached.is_set()

    @property
    def steps(self) -> int:
        """How many requests of their two steps the workers have sent."""
        return sum(map(self._is_step, list(self.exchanges)))

    def _is_step(self, exchange: Exchange) -> bool:
        return exchange.header.api_key in STEPS and exchange.header.client_id != FEEDER

    def _pass(self, client: socket.socket, broker: socket.socket, exchange: Exchange) -> bool:
        if self._is_step(exchange) and exchange.header.api_key == self._closed_to:
            self._reached.set()
            return True
        return super()._pass(client, broker, exchange)


@pytest.fixture
def gate(plane: Plane, tmp_path: Path) -> Iterator[Gate]:
    broker = BrokerProcess(tmp_path, overrides=OVERRIDES)
    gate = Gate(broker.port)
    broker.overrides["advertised.listeners"] = f"PLAINTEXT://127.0.0.1:{gate.port}"
    with broker:
        yield gate
        gate.close()
    assert not gate.failures, gate.failures


def feed(bootstrap: str, topic: str, enough: threading.Event) -> int:
    """Write the next numbers, a few at a time, until it is enough; return how many that were."""
    count = 0
    with Producer(bootstrap, client_id=FEEDER) as producer:
        while not enough.wait(0.002):
            for n in range(count, count + PARTITIONS):
                producer.send(topic, b"v%d" % n, partition=n % PARTITIONS)
            producer.flush()
            count += PARTITIONS
    return count


def end_session(port: int, group: str) -> None:
    """Have a group's members leave, as those do in the end of whom nothing is heard."""
    with GroupAdmin(f"127.0.0.1:{port}") as admin:
        members = [MemberIdentity(member_id=one.member_id) for one in admin.describe(group).members]
    assert members
    with closing(speak(port)) as wire:
        left = wire.ask(LeaveGroupRequest(group_id=group, members=members))
    assert [left.error_code, *(one.error_code for one in left.members)] == [0] * (1 + len(members))


@pytest.mark.parametrize("program", FIRST_STEP)
def test_promise_is_kept_when_the_worker_is_killed(gate: Gate, program: str) -> None:
    """At any point, and between the two steps, which makes their order show."""
    chance = random.Random(run_seed())
    bootstrap = f"127.0.0.1:{gate.port}"
    source, target, group = "source", "target", fresh_name()
    options = ["--bootstrap-server", bootstrap, "--group", group]
    with Admin(bootstrap) as admin:
        for topic in (source, target):
            admin.create_topic(topic, partitions=PARTITIONS)

    def kill_one(*, between: bool) -> None:
        enough = gate.steps + chance.randint(1, 12)
        worker = start(program, source, target, *options)
        try:
            until(lambda: worker.poll() is not None or gate.steps >= enough)
            if between:
                gate.close_to(FIRST_STEP[program])
                until(lambda: worker.poll() is not None or gate.is_reached)
                time.sleep(GRACE_S)
            assert worker.poll() is None
        finally:
            worker.kill()
            worker.communicate()
            gate.open()
        end_session(gate.port, group)

    enough = threading.Event()
    with ThreadPoolExecutor(1) as threads:
        feeding = threads.submit(feed, bootstrap, source, enough)
        try:
            for between in (False, True, False, True, False):
                kill_one(between=between)
        finally:
            enough.set()
        count = feeding.result()
    finish(start(program, source, target, *options, "--idle-s", "2"))
    found, all_of_it = values(bootstrap, target), {b"V%d" % n for n in range(count)}
    assert found
    if program == "at_most_once":
        assert len(found) == len(set(found))
        assert set(found) <= all_of_it
    else:
        assert set(found) == all_of_it
