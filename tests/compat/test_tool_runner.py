"""Programs in the shared JVM end as in processes of their own: `Ending.java`, and Kafka's tools."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from tests.compat.clients import Confluent, Sent
from tests.compat.kafka_tools import JVM_FLAGS, TOOLS, Tools
from tests.compat.live_kafka import archived
from tests.compat.programs import JAVA_TOOLS
from tests.compat.tool_runner import ToolRunner
from tests.servers import BrokerProcess
from tests.waiting import until

MAIN = "Ending"
TIMEOUT_S = 60
LIKE_A_PROCESS = (
    "returns",
    "exits",
    "halts",
    "throws",
    "goes on",
    "exits elsewhere",
    "leaves a thread",
    "not known",
)
OLD, NEW = TOOLS
Outcome = tuple[int, str, str]


@pytest.fixture(scope="module")
def built() -> Path:
    return JAVA_TOOLS.built()


@pytest.fixture(scope="module")
def runner(built: Path) -> Iterator[ToolRunner]:
    runner = ToolRunner(built / "classes", built / "dependency", JVM_FLAGS)
    yield runner
    runner.end()


def in_a_process(command: list[str], stdin: str = "") -> Outcome:
    done = subprocess.run(
        command, input=stdin, capture_output=True, text=True, timeout=TIMEOUT_S, check=False
    )
    return done.returncode, done.stdout, done.stderr


def in_runner(runner: ToolRunner, main: str, *arguments: str, stdin: str = "") -> Outcome:
    done = runner.run(main, arguments, stdin, TIMEOUT_S)
    return done.returncode, done.stdout, done.stderr


@pytest.mark.parametrize("how", LIKE_A_PROCESS)
def test_program_ends_as_in_a_process(how: str, built: Path, runner: ToolRunner) -> None:
    classes = f"{built / 'classes'}:{built / 'dependency'}/*"
    expected = in_a_process(["java", *JVM_FLAGS, "-cp", classes, MAIN, how], "some\nlines\n")
    for _ in range(2):
        found = in_runner(runner, MAIN, how, stdin="some\nlines\n")
        if how == "leaves a thread":  # the thread writes empty lines until the end
            assert found[0] == expected[0]
            assert [one.rstrip("\n") for one in found[1:]] == [
                one.rstrip("\n") for one in expected[1:]
            ]
        else:
            assert found == expected
        if runner.pid is None:
            break  # the next run starts a new JVM


def test_threads_that_are_left_end_with_their_jvm(runner: ToolRunner) -> None:
    in_runner(runner, MAIN, "returns")
    pid = runner.pid
    in_runner(runner, MAIN, "exits")
    assert runner.pid == pid
    in_runner(runner, MAIN, "leaves a thread")
    assert runner.pid is None
    assert pid
    await_end(pid)
    assert in_runner(runner, MAIN, "exits")[2] == "complains\n"


def test_tool_that_hangs_ends_with_its_jvm(runner: ToolRunner) -> None:
    in_runner(runner, MAIN, "exits")
    pid = runner.pid
    with pytest.raises(subprocess.TimeoutExpired, match="never ends"):
        runner.run(MAIN, ["never ends"], "", timeout_s=0.2)
    assert pid
    await_end(pid)
    assert in_runner(runner, MAIN, "exits")[0] == 3


def test_tool_that_ends_the_jvm_itself_is_named(runner: ToolRunner) -> None:
    with pytest.raises(AssertionError, match=f"{MAIN} ended its JVM"):
        in_runner(runner, MAIN, "ends the JVM")
    assert in_runner(runner, MAIN, "exits")[0] == 3


def test_jvm_ends_when_its_parent_is_killed(built: Path) -> None:
    """Even while a tool runs."""
    script = f"""
from pathlib import Path
import os, signal, threading, time
from tests.compat.tool_runner import ToolRunner
built = Path({str(built)!r})
runner = ToolRunner(built / "classes", built / "dependency", {JVM_FLAGS!r})
runner.run({MAIN!r}, ["returns"], "", {TIMEOUT_S})
print(runner.pid, flush=True)
threading.Thread(target=runner.run, args=({MAIN!r}, ["never ends"], "", {TIMEOUT_S})).start()
time.sleep(0.2)
os.kill(os.getpid(), signal.SIGKILL)
"""
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, timeout=TIMEOUT_S
    )
    await_end(int(done.stdout))


def await_end(pid: int) -> None:
    until(lambda: state(pid) in ("", "Z"), f"process {pid} has ended")


def state(pid: int) -> str:
    """Return a process's state as `ps` abbreviates it, or "" if it is gone."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except FileNotFoundError:
        return ""
    return stat.rpartition(") ")[2][0]


def same_in_each_run(outcome: Outcome) -> tuple[int, list[object], str]:
    """Return an outcome without times and offsets in its JSON lines."""
    status, out, err = outcome
    lines = [json.loads(line) if line.startswith("{") else line for line in out.splitlines()]
    for event in lines:
        if isinstance(event, dict):
            for key in ("timestamp", "offset", "avg_throughput"):
                event.pop(key, None)
    return status, lines, err


@pytest.mark.parametrize("tools", [pytest.param(OLD, marks=pytest.mark.long), NEW], ids=repr)
def test_kafkas_tools_do_as_in_processes(
    tools: Tools, broker: BrokerProcess, new_topic: Callable[..., str]
) -> None:
    name, written = new_topic(), new_topic()
    Confluent().produce(broker.bootstrap, name, [Sent(b"k", b"v%d" % n) for n in range(9)])
    to_broker = ("--bootstrap-server", broker.bootstrap)
    commands = [
        ["TopicCommand", *to_broker, "--describe", "--topic", name],
        # The broker refuses it: exit status 1, and a line on stderr.
        ["TopicCommand", *to_broker, "--create", "--topic", name],
        # The tool counts in a static field, and a hook prints the count.
        ["ConsoleConsumer", *to_broker, "--topic", name, "--from-beginning", "--max-messages", "9"],
        # The tool adds its hook by Runtime.addShutdownHook.
        ["VerifiableProducer", *to_broker, "--topic", written, "--max-messages", "1"],
        # The tool leaves a client open.
        ["TransactionsCommand", *to_broker, "list"],
    ]
    with ThreadPoolExecutor(2) as pool:
        expected = list(
            pool.map(lambda one: in_a_process(tools.command(*one, flags=archived(tools))), commands)
        )
    assert {status for status, _, _ in expected} == {0, 1}
    for _ in range(2):
        for (tool, *arguments), alone in zip(commands, expected, strict=True):
            found = in_runner(tools.runner, tools.main_class(tool), *arguments)
            assert same_in_each_run(found) == same_in_each_run(alone)
            assert tools.runner.pid, f"{tool} leaves threads"
