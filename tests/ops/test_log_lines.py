"""Log lines bear a time, but in the journal, which has its own."""

from __future__ import annotations

import io
import json
import logging
import os
import re
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from plog.client.admin import Admin
from plog.ops.log_lines import JsonFormatter, TimedFormatter
from plog.ops.stderr_log import is_journal
from tests.servers import BrokerProcess

TIMED = re.compile(
    r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z (INFO|WARNING|ERROR) plog\.[a-z_.]+: .+"
)
UNTIMED = re.compile(r"<[346]>(INFO|WARNING|ERROR) plog\.[a-z_.]+: .+")


def name_of(fd: int) -> str:
    status = os.fstat(fd)
    return f"{status.st_dev}:{status.st_ino}"


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0.0, "1970-01-01T00:00:00.000Z"),
        (1_357_016_400.5, "2013-01-01T05:00:00.500Z"),
        (1_357_016_400.25, "2013-01-01T05:00:00.250Z"),
    ],
)
def test_time_is_utc_with_milliseconds_in_any_time_zone(seconds, text, monkeypatch):
    monkeypatch.setenv("TZ", "Asia/Tokyo")
    record = logging.makeLogRecord(
        {"name": "plog.x", "levelname": "INFO", "msg": "said %s", "args": ("so",)}
    )
    record.created, record.msecs = seconds, seconds % 1 * 1000
    assert TimedFormatter().format(record) == f"{text} INFO plog.x: said so"


def test_stream_that_systemd_names_is_the_journal():
    ours, theirs = socket.socketpair()
    with ours, theirs, ours.makefile("w") as stream:
        assert is_journal(stream, {"JOURNAL_STREAM": name_of(ours.fileno())})


@pytest.mark.parametrize("named", [None, "", "0:0", ":", "journal", "other", "swapped"])
def test_stream_that_systemd_does_not_name_is_not_the_journal(named, tmp_path):
    with (tmp_path / "log").open("w") as stream, (tmp_path / "other").open("w") as other:
        device, _, inode = name_of(stream.fileno()).partition(":")
        texts = {"other": name_of(other.fileno()), "swapped": f"{inode}:{device}"}
        environment = {} if named is None else {"JOURNAL_STREAM": texts.get(named, named)}
        assert not is_journal(stream, environment)


def test_stream_that_is_no_file_is_not_the_journal():
    assert not is_journal(io.StringIO(), {"JOURNAL_STREAM": "1:2"})


@pytest.mark.parametrize("to_journal", [False, True])
def test_broker_writes_the_time_where_nobody_else_does(tmp_path: Path, to_journal: bool) -> None:
    log = tmp_path / "broker.log"
    log.touch()
    status = log.stat()
    inode = status.st_ino if to_journal else status.st_ino + 1
    broker = BrokerProcess(
        tmp_path,
        overrides={"num.io.threads": 8},
        environment={"JOURNAL_STREAM": f"{status.st_dev}:{inode}"},
    )
    assert broker.log_path == log
    with broker, Admin(broker.bootstrap) as admin:
        assert admin.topics() == {}  # answered: the start is complete
    lines = broker.log.splitlines()
    assert "num.io.threads" in lines[0]
    assert "listening on" in broker.log
    form = UNTIMED if to_journal else TIMED
    assert [line for line in lines if not form.fullmatch(line)] == []


def test_json_has_one_object_a_line_and_keeps_the_text() -> None:
    text = 'a "b"\n\x1b[31m\u2028\udcff 中'
    try:
        raise OSError("first\nsecond")
    except OSError as error:
        record = logging.makeLogRecord(
            {"name": "plog.x", "levelname": "ERROR", "msg": text, "created": 0.25, "msecs": 250}
            | {"exc_info": (type(error), error, error.__traceback__)}
        )
    line = JsonFormatter().format(record)
    assert line.isprintable()
    event = json.loads(line)
    exception = event.pop("exception").split("\n")
    assert (exception[0], exception[-1]) == (
        "Traceback (most recent call last):",
        r"OSError: first\nsecond",
    )
    assert event == {
        "time": "1970-01-01T00:00:00.250Z",
        "level": "ERROR",
        "logger": "plog.x",
        "message": text,
    }


def test_json_without_an_exception_has_no_such_key() -> None:
    record = logging.makeLogRecord({"msg": "%d logs", "args": (3,)})
    event = json.loads(JsonFormatter().format(record))
    assert (event["message"], "exception" in event) == ("3 logs", False)


@pytest.mark.parametrize(
    ("overrides", "status"),
    [
        (["log.format=json", "num.io.threads=3", "log.dirs=/proc/none"], 1),
        (["log.format=json", "log.level=LOUD", "log.levels=plog.nothing=INFO"], 1),
    ],
)
def test_every_line_is_json_from_the_first_on(overrides: list[str], status: int) -> None:
    command = [sys.executable, "-m", "plog", "server"]
    for override in overrides:
        command += ["--override", override]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == status
    events = [json.loads(line) for line in done.stderr.splitlines()]
    assert events[-1]["level"] == "CRITICAL"
    assert {"time", "level", "logger", "message"} == {*events[0]}
