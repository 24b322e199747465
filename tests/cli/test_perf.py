"""`plog perf`: its counts are held against the topics that it leaves; no figure is judged."""

from __future__ import annotations

import contextlib
import json
import os
import pty
import signal
import subprocess
import sys
import sysconfig
import time
import weakref
from pathlib import Path

import pytest

from plog.cli.perf import Ending
from tests.cli.conftest import (
    ROOT,
    TIMEOUT_S,
    Run,
    as_shells_tell,
    command_line,
    environment,
)
from tests.handlers.wire import eventually, fetch_one, speak
from tests.servers import BrokerProcess

SHORT = ("--seconds", "1", "--json")


def measured(call: Run, *arguments: object) -> dict:
    return json.loads(call("perf", *arguments).stdout)


def end_of(call: Run, topic: str) -> int:
    told = json.loads(call("topics", "describe", topic, "--json").stdout)
    return sum(partition["end"] for partition in told["partitions"])


@pytest.mark.parametrize(
    "options",
    [
        (),
        ("--acks", "1", "--connections", "3", "--in-flight", "2"),
        ("--compression", "lz4", "--batch-size", "65536", "--no-idempotence"),
        ("--acks", "0", "--batch-size", "0", "--record-size", "10"),
    ],
    ids=" ".join,
)
def test_what_is_produced_is_there_and_can_be_consumed(
    run: Run, topic: str, options: tuple[str, ...]
) -> None:
    told = measured(run, "produce", topic, *options, *SHORT)
    end = end_of(run, topic)
    # What was written to warm up is not counted. Without acks a record counts when the socket takes
    # it, and a socket's buffers may hold more than handlers append in so short a time.
    least = 0 if options[:2] == ("--acks", "0") else 1
    assert end >= told["records"] >= least
    assert end > 0
    if least:
        assert told["latency_p50_us"] <= told["latency_p99_us"] <= told["latency_max_us"]
    else:
        assert not [key for key in told if key.startswith("latency")]
    assert measured(run, "consume", topic, "--once", "--json")["records"] == end


def test_records_before_the_log_start_are_not_consumed(run: Run, call: Run, topic: str) -> None:
    call("produce", topic, "--partition", 1, stdin=b"a\nb\nc\nd\ne\n")
    call("topics", "delete-records", topic, 1, 3, "--yes")
    assert measured(run, "consume", topic, "--once", "--json")["records"] == 2


def test_topic_of_its_own_is_gone_afterwards(run: Run) -> None:
    assert measured(run, "produce", "--partitions", "2", *SHORT)["records"] > 0
    assert measured(run, "latency", "--rate", "200", *SHORT)["records"] > 0
    names = {topic["topic"] for topic in json.loads(run("topics", "list", "--json").stdout)}
    assert not any(name.startswith("plog-perf") for name in names)


@pytest.mark.parametrize("acks", ["all", "1"])
def test_latency_is_told_from_end_to_end(run: Run, acks: str) -> None:
    told = measured(run, "latency", "--end-to-end", "--acks", acks, "--rate", "300", *SHORT)
    assert told["records"] > 0
    assert 0 < told["latency_p50_us"] <= told["latency_max_us"]


def test_pace_that_is_not_kept_is_told(run: Run) -> None:
    arguments = ("perf", "latency", "--rate", "10000000", "--seconds", "0.3")
    assert "did not keep up" in run(*arguments).stderr.decode()


def test_figures_are_a_table_for_people(run: Run, topic: str) -> None:
    text = run("perf", "produce", topic, "--seconds", "0.2").stdout.decode()
    assert "records/s" in text
    assert "latency p99.9" in text
    text = run("perf", "produce", topic, "--seconds", "0.2", "--acks", "0").stdout.decode()
    assert "records/s" in text
    assert "latency" not in text


def descendants(pid: int) -> set[int]:
    children = set(map(int, Path(f"/proc/{pid}/task/{pid}/children").read_text().split()))
    return children.union(*map(descendants, children))


def test_generator_is_the_same_plog_whatever_else_python_would_find(
    broker: BrokerProcess, tmp_path: Path
) -> None:
    """As in the Debian package: its launcher knows where plog is, and its Python does not."""
    other = tmp_path / "plog" / "__init__.py"
    other.parent.mkdir()
    other.write_text("raise SystemExit('another plog')")
    places = [str(ROOT), sysconfig.get_path("purelib"), sysconfig.get_path("platlib")]
    launcher = f"import sys; sys.path[:0] = {places}; from plog.cli import main; main()"
    arguments = "perf", "latency", "--seconds", "0.3", "--json"
    done = subprocess.run(
        [sys._base_executable, "-I", "-c", launcher, *arguments],
        capture_output=True,
        text=True,
        timeout=TIMEOUT_S,
        check=False,
        cwd=tmp_path,
        env={**environment(broker.bootstrap), "PYTHONPATH": str(tmp_path)},
    )
    assert done.returncode == 0, done.stderr
    assert "records" in json.loads(done.stdout)  # the count depends on the machine


@pytest.mark.parametrize("terminal", [False, True], ids=["file", "terminal"])
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_ends_a_run_and_removes_its_topic(
    call: Run, broker: BrokerProcess, number: signal.Signals, terminal: bool
) -> None:
    def topics() -> set[str]:
        told = json.loads(call("topics", "list", "--json").stdout)
        return {one["topic"] for one in told if one["topic"].startswith("plog-perf")}

    mine, theirs = pty.openpty() if terminal else os.pipe()
    running = subprocess.Popen(
        command_line("perf", "produce", "--seconds", TIMEOUT_S),
        stdout=subprocess.DEVNULL,
        stderr=theirs,
        env=environment(broker.bootstrap),
    )
    try:
        deadline = time.monotonic() + TIMEOUT_S
        while not (generators := descendants(running.pid)) and time.monotonic() < deadline:
            time.sleep(0.02)
        assert len(generators) == 1
        (topic,) = topics()
        # By then the command has gone on from starting the generator to waiting for its end.
        with contextlib.closing(speak(broker.port)) as wire:
            eventually(lambda: fetch_one(wire, topic, 0).high_watermark > 0, "records are written")
        running.send_signal(number)
        assert as_shells_tell(running.wait(TIMEOUT_S)) == 128 + number
    finally:
        running.kill()
        running.wait()
        os.close(theirs)
        written = os.read(mine, 1 << 16) if not terminal else b""
        os.close(mine)
    assert written.strip() == b""  # but for the line break behind ^C
    assert not topics()
    assert not [pid for pid in generators if Path(f"/proc/{pid}").exists()]


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_an_end_that_python_loses_is_seen_by_the_next_look() -> None:
    """What a handler raises within the callback of a weak reference goes nowhere."""

    class Module:
        pass

    ending, module = Ending(), Module()
    kept = weakref.ref(module, lambda _: ending.ask(signal.SIGTERM, None))
    del module
    assert kept() is None
    ending.ask(signal.SIGTERM, None)  # a second one interrupts nothing
    with pytest.raises(SystemExit) as ended:
        ending.check()
    assert ended.value.code == 128 + signal.SIGTERM


def test_what_a_run_means_is_in_its_help(call: Run) -> None:
    def help_of(*command: str) -> str:
        return " ".join(call("perf", *command, "--help").stdout.decode().split())

    assert "count by their compressed size" in help_of()
    assert "at the leader (1), or never (0)." in help_of("produce")
    assert "disk (all), or at the leader (1)." in help_of("latency")
    assert "never" not in help_of("latency")


@pytest.mark.parametrize(
    ("arguments", "status", "text"),
    [
        (("produce", "nowhere"), 1, "plog topics list"),
        (("consume", "nowhere"), 1, "plog topics list"),
        (("latency", "--acks", "0"), 2, "'0' is not one of"),
        (("consume", "{topic}", "--seconds", "0.1"), 1, "topic {topic} has no records to read"),
        (("consume", "{topic}", "--once"), 1, "topic {topic} has no records to read"),
        (("produce", "{topic}", "--partitions", "9"), 2, "omit it for '{topic}'"),
        (("produce", "--batch-size", "2000000"), 1, "answered with MESSAGE_TOO_LARGE"),
    ],
)
def test_wrong_calls_are_refused(
    call: Run, topic: str, arguments: tuple[str, ...], status: int, text: str
) -> None:
    refused = call("perf", *(one.format(topic=topic) for one in arguments), status=status)
    assert text.format(topic=topic) in refused.stderr.decode()
    assert refused.stdout == b""
