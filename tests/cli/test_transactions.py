"""`plog transactions` against a broker, with producers that leave their transactions open."""

from __future__ import annotations

import itertools
import json
import time
from contextlib import ExitStack, closing

import click
import pytest

from plog.cli.open_transactions import ABORT_COLUMNS, HANGING_COLUMNS
from plog.cli.output import duration_ms, raise_all, time_text
from plog.cli.transactions import OPEN_STATES
from plog.errors import UnknownTopicOrPartition
from plog.types import TopicPartition
from tests.cli.test_groups import error_of
from tests.handlers.wire import NOW_MS, speak
from tests.transactions.hanging import COORDINATOR_EPOCH, leave_hanging
from tests.transactions.transactor import Transactor, read

SUBCOMMANDS = ["list", "describe", "producers", "find-hanging", "abort"]
_numbers = itertools.count()


@pytest.fixture
def enter(broker):
    """Make producers of a new transactional id each."""
    with ExitStack() as open_ones:

        def make() -> Transactor:
            wire = open_ones.enter_context(closing(speak(broker.port)))
            return Transactor(wire, f"writer{next(_numbers)}").start()

        yield make


@pytest.fixture
def at(topic) -> TopicPartition:
    return TopicPartition(topic, 0)


def hanging(call, at: TopicPartition) -> list[dict[str, object]]:
    done = call("transactions", "find-hanging", "--topic", at.topic, "--longer-than", 0, "--json")
    return json.loads(done.stdout)


@pytest.mark.parametrize("name", [[], *([name] for name in SUBCOMMANDS)], ids=str)
def test_help_says_what_a_command_does(call, name):
    text = call("transactions", *name, "--help").stdout.decode()
    assert "Usage: plog transactions" in text
    assert len(text.splitlines()) > 8


def test_transactions_are_listed(call, enter, at):
    idle, busy = enter(), enter()
    busy.send(at)

    def listed(*arguments) -> dict[str, dict[str, object]]:
        rows = json.loads(call("transactions", "list", *arguments, "--json").stdout)
        return {row["transactional_id"]: row for row in rows}

    mine = {idle.transactional_id, busy.transactional_id}
    assert listed("--all").keys() >= mine
    assert listed().keys() & mine == {busy.transactional_id}
    assert listed()[busy.transactional_id] == {
        "transactional_id": busy.transactional_id,
        "coordinator": 0,
        "producer_id": busy.producer.id,
        "state": "Ongoing",
    }
    assert listed("--state", "ongoing").keys() & mine == {busy.transactional_id}
    assert listed("--state", "empty", "--state", "Ongoing").keys() >= mine
    assert listed("--producer-id", idle.producer.id).keys() == {idle.transactional_id}
    # One that has had no transaction has had none open for long.
    assert listed("--longer-than", "0s").keys() & mine == {busy.transactional_id}
    assert listed("--longer-than", "1h").keys() & mine == set()
    done = call("transactions", "list")
    table = done.stdout.decode()
    assert busy.transactional_id in table
    assert idle.transactional_id not in table
    assert "TRANSACTIONAL ID" in table
    hidden = len(listed("--all")) - len(listed())
    count = "1 transactional id" if hidden == 1 else f"{hidden} transactional ids"
    assert done.stderr.decode() == (
        f"Not shown: {count} without an open transaction; --all lists every id.\n"
    )
    assert call("transactions", "list", "--all").stderr == b""
    busy.finish(commit=True)
    done = call("transactions", "list")
    assert f": {hidden + 1} transactional ids without" in done.stderr.decode()


def test_open_states_are_those_of_open_transactions():
    assert OPEN_STATES == ("Ongoing", "PrepareCommit", "PrepareAbort", "PrepareEpochFence")


def test_transaction_is_described(call, enter, at):
    one = enter()
    one.send(at)
    told = json.loads(call("transactions", "describe", one.transactional_id, "--json").stdout)
    assert told.pop("started_ms") >= NOW_MS
    assert told.pop("open_ms") >= 0
    assert told == {
        "transactional_id": one.transactional_id,
        "state": "Ongoing",
        "producer_id": one.producer.id,
        "producer_epoch": one.producer.epoch,
        "timeout_ms": 60_000,
        "coordinator": 0,
        "partitions": [{"topic": at.topic, "partition": 0}],
    }
    text = call("transactions", "describe", one.transactional_id).stdout.decode()
    assert f"Transactional id {one.transactional_id}: Ongoing, open for " in text
    assert f"producer {one.producer.id} epoch 0, timeout 1m, coordinator broker 0 (" in text
    assert at.topic in text
    one.finish(commit=True)
    text = call("transactions", "describe", one.transactional_id).stdout.decode()
    assert f"Transactional id {one.transactional_id}: CompleteCommit, producer" in text
    assert text.endswith("It has no open transaction.\n")


def test_producers_of_a_topic_are_told(call, enter, at):
    one = enter()
    one.send(at, b"a", b"b")
    one.finish(commit=True)
    start = one.send(TopicPartition(at.topic, 1), b"c")
    told = json.loads(call("transactions", "producers", at.topic, "--json").stdout)
    ended = {
        "topic": at.topic,
        "partition": 0,
        "producer_id": one.producer.id,
        "producer_epoch": 0,
        "coordinator_epoch": 0,
        "last_sequence": 1,
        "txn_start_offset": None,
    }
    assert told[0].pop("last_timestamp") >= NOW_MS  # its marker's
    assert told == [
        ended,
        {
            **ended,
            "partition": 1,
            "coordinator_epoch": None,
            "last_sequence": 0,
            "last_timestamp": NOW_MS,
            "txn_start_offset": start,
        },
    ]
    told = json.loads(call("transactions", "producers", f"{at.topic}:1", "--json").stdout)
    assert [row["partition"] for row in told] == [1]
    table = call("transactions", "producers", at.topic).stdout.decode()
    assert "OPEN SINCE OFFSET" in table
    (written,) = [line for line in table.splitlines() if line.split()[1] == "1"]
    assert time_text(NOW_MS) in written


def test_hanging_transaction_is_found_and_aborted_once_that_is_asked_for(call, enter, at):
    one, other = enter(), enter()
    start = leave_hanging(one, at, b"hangs")
    other.send(TopicPartition(at.topic, 1), b"goes on")
    (row,) = hanging(call, at)
    assert row.pop("idle_ms") >= 0
    marker = {
        "topic": at.topic,
        "partition": 0,
        "producer_id": one.producer.id,
        "producer_epoch": one.producer.epoch,
        "coordinator_epoch": COORDINATOR_EPOCH,
        "start_offset": start,
    }
    assert row == {
        **marker,
        "last_timestamp": NOW_MS,
        "transactional_id": one.transactional_id,
    }
    abort = ["transactions", "abort", at.topic, 0, "--start-offset", start]
    whose = f"the transaction of producer {one.producer.id} in {at}.\n"
    text = call(*abort, "--dry-run").stdout.decode()
    assert all(column.upper() in text for column in ABORT_COLUMNS)
    assert text.endswith(f"Nothing is changed: without --dry-run the command aborts {whose}")
    shown = json.loads(call(*abort, "--dry-run", "--json").stdout)
    assert shown == {**marker, "executed": False}
    assert "Not aborted." in call(*abort, status=1).stderr.decode()
    assert len(hanging(call, at)) == 1
    text = call("transactions", "describe", one.transactional_id).stdout.decode()
    assert f"Transactional id {one.transactional_id}: PrepareCommit, producer" in text
    assert "find-hanging" in text.splitlines()[-1]
    assert call(*abort, "--execute").stdout.decode().endswith(f"Aborted {whose}")
    assert hanging(call, at) == []
    assert read(one.wire, at) == []
    line = error_of(call(*abort, status=1))
    assert f"no transaction is open in {at} since offset {start}" in line
    other.finish(commit=True)


def test_hanging_transactions_are_told_in_a_table(call, enter, at):
    one = enter()
    # Written now: NOW_MS is when the tests began, which may be longer ago than the default.
    leave_hanging(one, at, b"hangs", timestamp=int(time.time() * 1000))
    text = call("transactions", "find-hanging", "--longer-than", "0s").stdout.decode()
    assert all(column.upper() in text for column in HANGING_COLUMNS)
    assert one.transactional_id in text
    assert text.endswith("--start-offset START`.\n")
    # By default only what no coordinator can be about to end.
    text = call("transactions", "find-hanging", "--topic", at.topic).stdout.decode()
    assert text == "No hanging transactions.\n"


def test_transaction_that_its_coordinator_will_end_is_left_to_it(call, enter, at):
    one = enter()
    start = one.send(at, b"v")
    assert hanging(call, at) == []
    abort = ["transactions", "abort", at.topic, 0]
    line = error_of(call(*abort, "--start-offset", start, "--execute", status=1))
    assert f"{one.transactional_id!r} is Ongoing, and its coordinator will end it" in line
    by_epochs = ["--producer-id", one.producer.id, "--producer-epoch", one.producer.epoch]
    done = call(*abort, *by_epochs, "--coordinator-epoch", 0, "--execute", "--json")
    assert json.loads(done.stdout)["executed"] is True
    one.finish(commit=True)
    assert read(one.wire, at) == []


@pytest.mark.parametrize(
    "arguments",
    [
        ["describe"],
        ["list", "--state", "asleep"],
        ["list", "--longer-than", "soon"],
        ["list", "--longer-than", "-5"],
        ["list", "--producer-id", 2**63],
        ["producers"],
        ["producers", "t:"],
        ["producers", ":0"],
        ["find-hanging", "--topic", "t:x"],
        ["find-hanging", "--longer-than", "20 years"],
        ["abort", "t"],
        ["abort", "t", "-1", "--start-offset", 0],
        ["abort", "t", "0"],
        ["abort", "t", "0", "--start-offset", "0", "--producer-id", "1"],
        ["abort", "t", "0", "--producer-id", "1", "--producer-epoch", "0"],
        ["abort", "t", "0", "--start-offset", 0, "--producer-id", 1, "--producer-epoch", 0,
         "--coordinator-epoch", 0],
        ["abort", "t", "0", "--producer-id", 1, "--producer-epoch", 2**15,
         "--coordinator-epoch", 0],
    ],
)  # fmt: skip
def test_wrong_use_is_status_2_with_the_usage(call, arguments):
    text = call("transactions", *arguments, status=2).stderr.decode()
    assert text.startswith("Usage: plog transactions")
    assert text.splitlines()[-1].startswith("plog: ")


def test_what_nobody_has_heard_of_is_one_line(call, topic):
    def refused(*arguments) -> str:
        return error_of(call("transactions", *arguments, status=1))

    line = refused("describe", "nobody")
    assert "transactional id 'nobody': it does not exist" in line
    assert "plog transactions list" in line
    told = json.loads(call("transactions", "describe", "nobody", "--json", status=1).stderr)
    assert told["error"] == "TransactionalIdNotFound"
    for command in (
        ["producers", "nowhere"],
        ["find-hanging", "--topic", "nowhere"],
        ["abort", "nowhere", 0, "--start-offset", 0],
    ):
        assert "'nowhere' does not exist" in refused(*command)
    for command in (
        ["producers", f"{topic}:77"],
        ["find-hanging", "--topic", f"{topic}:0,77"],
        ["abort", topic, 77, "--start-offset", 0],
    ):
        assert f"{topic}-77 does not exist" in refused(*command)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("0", 0),
        ("850", 850),
        ("850ms", 850),
        ("90s", 90_000),
        ("20m", 1_200_000),
        ("2h", 7_200_000),
        ("1d", 86_400_000),
        (f"{2**62}d", 2**63 - 1),
    ],
)
def test_durations_are_read_in_one_unit(text, expected):
    assert duration_ms(text) == expected


@pytest.mark.parametrize("text", ["", "m", "-1", "1.5h", "1 h", "5w", "٣", "9" * 5000, "1s\n"])
def test_durations_of_another_form_are_refused(text):
    with pytest.raises(click.BadParameter):
        duration_ms(text)


def test_many_faults_are_told_by_the_first_ones():
    faults = [UnknownTopicOrPartition(f"t-{n}") for n in range(5)]
    with pytest.raises(click.ClickException) as told:
        raise_all(faults, most=3)
    lines = told.value.message.splitlines()
    assert [line.split()[0] for line in lines] == ["t-0", "t-1", "t-2", "and"]
    assert lines[-1] == "and 2 more"
    with pytest.raises(UnknownTopicOrPartition):
        raise_all(faults[:1], most=3)
    raise_all([], most=3)
