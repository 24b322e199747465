"""The programs of examples/ as processes: what each promises, and one that is killed at it."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import pytest

from plog.client.consumer import Consumer
from plog.client.producer import Producer
from tests.client.test_transactions import read_all
from tests.handlers.wire import fresh_name
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


def test_page_names_each_program_and_its_lines_run_as_they_stand(
    bootstrap: str, new_topic: NewTopic
) -> None:
    page = (EXAMPLES / "README.md").read_text("utf-8")
    assert all(f"`{program}.py`" in page for program in PROGRAMS)
    _, block, _ = page.split("```\n")
    source, target = new_topic(PARTITIONS), new_topic(PARTITIONS)
    write(bootstrap, source, range(9))
    said = ""
    for line in block.replace("greetings", source).replace("capitals", target).splitlines():
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
