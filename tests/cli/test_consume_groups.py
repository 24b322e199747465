"""`plog consume --group`: it goes on where the group left off, and commits what it has printed."""

from __future__ import annotations

import os
import signal
import subprocess
import threading
import time

import pytest

from plog.client.group_admin import GroupAdmin
from plog.errors import ErrorCode
from plog.protocol.api_keys import ApiKey
from tests.client.fake_broker import GroupBroker

from .conftest import TIMEOUT_S, as_shells_tell, command_line, environment


@pytest.fixture
def filled(call, topic):
    for partition in range(2):
        lines = b"".join(b"%d\n" % (10 * partition + n) for n in range(10))
        call("produce", topic, "--partition", partition, stdin=lines)
    return topic


def printed(call, topic, *arguments):
    done = call("consume", topic, "--group", topic, *arguments)
    return sorted(map(int, done.stdout.split()))


def test_goes_on_where_the_group_left_off(call, filled):
    assert printed(call, filled, "--exit-at-end") == list(range(20))
    assert printed(call, filled, "--exit-at-end") == []
    call("produce", filled, "--partition", 0, stdin=b"100\n")
    assert printed(call, filled, "--exit-at-end") == [100]


def test_what_is_not_printed_is_the_next_ones(call, filled):
    first = printed(call, filled, "--max", 7)
    assert len(first) == 7
    assert sorted(first + printed(call, filled, "--exit-at-end")) == list(range(20))


def test_begins_at_the_end_if_told(call, filled):
    assert printed(call, filled, "--from", "latest", "--exit-at-end") == []


@pytest.mark.parametrize("extra", [["--partition", 0], ["--from", 5], ["--from", "@2013-07-04"]])
def test_what_a_group_decides_cannot_be_told(call, filled, extra):
    done = call("consume", filled, "--group", "g", *extra, status=2)
    assert b"--group conflicts with --partition" in done.stderr


def test_two_share_and_leave_when_interrupted(call, filled, broker):
    both = [
        subprocess.Popen(
            command_line("consume", filled, "--group", filled),
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env=environment(broker.bootstrap),
        )
        for _ in range(2)
    ]
    with GroupAdmin(broker.bootstrap) as admin:
        until = time.monotonic() + TIMEOUT_S
        while True:
            members = admin.describe(filled).members if admin.committed(filled) else []
            shares = sorted(len(one.assigned or ()) for one in members)
            if shares == [1, 1] and sum(admin.committed(filled).values()) == 20:
                break
            assert time.monotonic() < until
            time.sleep(0.1)
        found = []
        for one, number in zip(both, (signal.SIGINT, signal.SIGTERM), strict=True):
            one.send_signal(number)
            out, errors = one.communicate(timeout=TIMEOUT_S)
            assert (as_shells_tell(one.returncode), errors.strip()) == (128 + number, b"")
            found += map(int, out.split())
        assert sorted(found) == list(range(20))
        assert admin.describe(filled).state == "Empty"


NO_COORDINATOR = ErrorCode.COORDINATOR_NOT_AVAILABLE


@pytest.mark.parametrize("api", [ApiKey.FIND_COORDINATOR, ApiKey.OFFSET_FETCH])
def test_group_without_a_coordinator_is_not_awaited_for_ever(call, monkeypatch, api):
    """It may go away at once, or between the assignment and the committed offsets."""
    monkeypatch.setattr("plog.cli.read_bounds.ANSWER_S", 1.0)
    with GroupBroker() as fake:
        refuse = fake._find if api == ApiKey.FIND_COORDINATOR else fake._committed
        fake.answers[api] = lambda request, _: refuse(request, NO_COORDINATOR)
        hangs = threading.Timer(TIMEOUT_S, os.kill, (os.getpid(), signal.SIGTERM))
        hangs.start()
        try:
            where = ("-b", fake.bootstrap, "--group", "g", "--exit-at-end")
            done = call("consume", "t", *where, status=1)
        finally:
            hangs.cancel()
    assert done.stdout == b""
    last = done.stderr.decode().splitlines()[-1]
    assert last == "plog: topic t: not read, as group 'g' has no coordinator"
