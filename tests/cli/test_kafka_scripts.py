"""plog kafka-scripts: where it writes, and which files it leaves alone."""

from __future__ import annotations

import io
import json
import os
import subprocess
import sys

import pytest

from plog.cli.kafka.__main__ import run_to_end
from plog.cli.kafka.names import SCRIPTS
from tests.cli.conftest import TIMEOUT_S, environment

NAMES = sorted(f"{name}{ending}" for name in SCRIPTS for ending in ("", ".sh"))


def test_scripts_are_installed_and_run(call, broker, topic, tmp_path):
    there = tmp_path / "new" / "bin"
    done = call("kafka-scripts", there)
    assert done.stdout.decode() == f"Installed {len(SCRIPTS)} scripts in {there}.\n"
    assert sorted(os.listdir(there)) == NAMES
    # The working directory must not shadow modules.
    (tmp_path / "plog.py").write_text("raise SystemExit('the wrong plog')")
    for name in ("kafka-topics.sh", "kafka-topics"):
        listed = subprocess.run(
            [there / name, "--bootstrap-server", broker.bootstrap, "--list", "--topic", topic],
            capture_output=True,
            text=True,
            cwd=tmp_path,
            env=environment(broker.bootstrap),
            check=False,
        )
        assert (listed.returncode, listed.stdout, listed.stderr) == (0, f"{topic}\n", "")


def start(broker, script: str, *arguments: object) -> subprocess.Popen[str]:
    """Start a script in a process of its own, as its wrapper does."""
    words = [script, "--bootstrap-server", broker.bootstrap, *map(str, arguments)]
    return subprocess.Popen(
        [sys.executable, "-P", "-m", "plog.cli.kafka", *words],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=environment(broker.bootstrap),
    )


def test_console_consumer_prints_its_total_after_a_signal(call, broker, topic):
    call("produce", topic, stdin=b"a\n")
    consumer = start(broker, "kafka-console-consumer", "--topic", topic, "--from-beginning")
    assert consumer.stdout is not None
    assert consumer.stdout.readline() == "a\n"
    consumer.terminate()
    _, errors = consumer.communicate(timeout=TIMEOUT_S)
    assert (consumer.returncode, errors) == (143, "Processed a total of 1 messages\n")


def test_script_ends_quietly_when_its_reader_has_gone(broker):
    lister = start(broker, "kafka-topics", "--list")
    assert lister.stdout is not None
    lister.stdout.close()
    assert lister.stderr is not None
    assert lister.stderr.read() == ""
    assert lister.wait(TIMEOUT_S) == 0


@pytest.mark.parametrize("buffered", [True, False])
@pytest.mark.parametrize(
    "line",
    [
        "kafka-topics --describe",
        "kafka-configs --describe --all --broker 0",
        "kafka-consumer-groups --list",
        "kafka-consumer-groups --describe --all-groups",
        "kafka-get-offsets",
        "kafka-console-consumer --from-beginning --max-messages 1 --topic {topic}",
        "kafka-delete-records --offset-json-file {file}",
        "kafka-log-dirs --describe",
        "kafka-transactions --bootstrap-server {server} list",
        "kafka-features --bootstrap-server {server} describe",
        "kafka-cluster cluster-id",
        "kafka-producer-perf-test --topic {topic} --num-records 1 --record-size 1 --throughput -1"
        " --producer-props bootstrap.servers={server}",
        "kafka-consumer-perf-test --topic {topic} --messages 1",
        "kafka-topics --version",
    ],
)
def test_no_script_reports_a_reader_that_has_gone(
    call, broker, topic, tmp_path, monkeypatch, capfdbinary, line, buffered
):
    call("produce", topic, stdin=b"a\n")
    call("consume", topic, "--group", "readers", "--exit-at-end")
    deletion = {"version": 1, "partitions": [{"topic": topic, "partition": 0, "offset": 0}]}
    file = tmp_path / "deletion.json"
    file.write_text(json.dumps(deletion))
    name, *words = line.format(topic=topic, file=file, server=broker.bootstrap).split()
    if "{server}" not in line:
        words += ["--bootstrap-server", broker.bootstrap]
    reader, writer = os.pipe()
    os.close(reader)
    # An unbuffered script meets the closed pipe amid its work, a buffered one at its end.
    with open(writer, "wb", buffering=8192 if buffered else 0) as raw:
        out = io.TextIOWrapper(raw, write_through=not buffered)
        monkeypatch.setattr("sys.stdout", out)
        capfdbinary.readouterr()
        assert run_to_end(name, words) == 0
        out.flush()
    errors = capfdbinary.readouterr().err.decode()
    assert "pipe" not in errors.lower()
    assert "Error" not in errors


def test_files_of_others_are_not_replaced(call, tmp_path):
    kafkas, link = tmp_path / "kafka-topics.sh", tmp_path / "kafka-topics"
    kafkas.write_text("#!/bin/bash\nexec kafka-run-class.sh\n")
    link.symlink_to(kafkas)
    done = call("kafka-scripts", tmp_path, status=1)
    assert done.stderr.decode().splitlines() == [
        f"Replace files kafka-topics.sh, kafka-topics in {tmp_path}, not written by plog? [y/N]: ",
        "Nothing installed. Pass --yes to skip this question.",
    ]
    assert sorted(os.listdir(tmp_path)) == ["kafka-topics", "kafka-topics.sh"]
    call("kafka-scripts", tmp_path, "--yes")
    assert not link.is_symlink()
    assert ' kafka-topics "$@"' in kafkas.read_text()
    # Its own it replaces without a question.
    outcome = json.loads(call("kafka-scripts", tmp_path, "--json").stdout)
    assert outcome == {"directory": str(tmp_path), "scripts": list(SCRIPTS)}


def test_directory_that_cannot_be_made_is_an_error(call, tmp_path):
    (tmp_path / "file").write_text("")
    done = call("kafka-scripts", tmp_path / "file" / "bin", status=1)
    (line,) = done.stderr.decode().splitlines()
    assert line.startswith("plog: Could not open file")
    assert "Not a directory" in line
