"""Log lines bear a time, but in the journal, which has its own."""

from __future__ import annotations

import io
import logging
import os
import re
import socket
from pathlib import Path

import pytest

from plog.client.admin import Admin
from plog.ops.log_lines import TimedFormatter, is_journal
from tests.servers import BrokerProcess

TIMED = re.compile(
    r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z (INFO|WARNING|ERROR) plog\.[a-z_.]+: .+"
)
UNTIMED = re.compile(r"(INFO|WARNING|ERROR) plog\.[a-z_.]+: .+")


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
