"""What the commands say of a partition that nobody leads, while they wait for it."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from plog.cli.kafka.__main__ import run as kafka_script
from plog.cli.offset_places import LateStarts
from plog.client.admin import Admin
from plog.client.consumer import Consumer
from plog.client.group_admin import GroupAdmin
from plog.client.metadata import Cluster, no_leader
from plog.client.offsets import ask_each
from plog.types import TopicPartition
from tests.cli.conftest import command_line, environment
from tests.handlers.wire import NOW_MS, speak
from tests.planes import Plane
from tests.servers import BrokerProcess
from tests.transactions.hanging import leave_hanging
from tests.transactions.transactor import Transactor

SAYS = (
    "plog: partition t-1 has no leader: its broker is down, or its log directory is offline"
    " (see that broker's log); waiting for it"
)


@pytest.fixture(scope="module")
def damaged(plane: Plane, tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    """A broker with the topic t, whose second partition is offline."""
    directory = tmp_path_factory.mktemp("offline")
    with BrokerProcess(directory, overrides={"num.partitions": 3}) as broker:
        for partition in range(3):
            end(start(broker, "produce", "t", "--partition", partition))
        broker.stop()
        segment: Path = broker.log_dirs[0] / "t-1" / f"{0:020}.log"
        segment.write_bytes(segment.read_bytes()[:50])
        yield broker.start()


def start(broker: BrokerProcess, *arguments: object) -> subprocess.Popen[bytes]:
    running = subprocess.Popen(
        command_line(*arguments),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env=environment(broker.bootstrap),
    )
    assert running.stdin is not None
    running.stdin.write(b"line\n")
    running.stdin.flush()
    return running


def end(running: subprocess.Popen[bytes]) -> tuple[bytes, str]:
    """Wait for a command that ends; return what it printed."""
    out, errors = running.communicate(timeout=120)
    assert running.returncode == 0, errors
    return out, errors.decode()


@pytest.mark.parametrize(
    "arguments",
    [
        ["consume", "t"],
        ["consume", "t", "--partition", 1],
        ["produce", "t", "--partition", 1],
    ],
)
def test_command_says_at_once_what_it_waits_for(damaged, arguments):
    running = start(damaged, *arguments)
    try:
        assert running.stderr is not None
        assert running.stderr.readline().decode().rstrip() == SAYS
        assert running.poll() is None  # it may come back
    finally:
        running.kill()
        running.communicate()


@pytest.mark.parametrize("group", [[], ["--group", "enders"]])
def test_consume_to_the_end_reads_the_other_partitions(damaged, call, group):
    where = ["-b", damaged.bootstrap, "--exit-at-end", *group]
    done = call("consume", "t", *where, "--format", "{partition} {value}", status=1)
    lines = sorted(set(done.stdout.decode().splitlines()))
    assert lines == ["0 line", "2 line"]
    assert done.stderr.decode().splitlines() == [
        SAYS.replace("waiting for it", "not read"),
        "plog: 1 partition without a leader was not read: t-1",
    ]


@pytest.mark.parametrize("start", ["-5", "@2001-01-01", "latest"])
def test_consume_between_two_places_reads_the_other_partitions(damaged, call, start):
    where = ["-b", damaged.bootstrap, "--from", start, "--until", "latest"]
    done = call("consume", "t", *where, "--json", status=1)
    found = {json.loads(line)["partition"] for line in done.stdout.splitlines()}
    assert found == (set() if start == "latest" else {0, 2})
    error = json.loads(done.stderr.splitlines()[-1])
    assert error["message"] == "1 partition without a leader was not read: t-1"


@pytest.mark.parametrize("place", ["-5", "0", "@2001-01-01"])
def test_consume_from_a_place_reads_the_other_partitions(damaged, call, place):
    where = ["-b", damaged.bootstrap, "--from", place, "--max", 2]
    done = call("consume", "t", *where, "--format", "{partition} {value}")
    assert sorted(set(done.stdout.decode().splitlines())) == ["0 line", "2 line"]
    assert done.stderr.decode().splitlines() == [SAYS]


@pytest.mark.parametrize(("place", "first"), [("-1", 2), ("1", 1), ("@2101-01-01", 3)])
def test_partition_starts_at_the_place_once_it_has_a_leader(
    damaged, monkeypatch, call, place, first
):
    call("topics", "create", "late", "--partitions", 1, "-b", damaged.bootstrap)
    call("topics", "create", "prompt", "--partitions", 1, "-b", damaged.bootstrap)
    late, prompt = TopicPartition("late", 0), TopicPartition("prompt", 0)
    for topic in (late.topic, prompt.topic):
        call("produce", topic, "-b", damaged.bootstrap, stdin=b"0\n1\n2\n")
    try:
        with Cluster(damaged.bootstrap) as cluster, Consumer(cluster) as consumer:
            consumer.assign([late, prompt])
            with monkeypatch.context() as patch:
                patch.setattr("plog.client.offsets.ask_each", without_leader(late))
                starts = LateStarts(cluster, consumer, place)
                starts.look_s = 0
                starts.look_now_and_then()
                assert consumer.paused() == [late]
                assert consumer.position(prompt) == first
            starts.look_now_and_then()
            assert consumer.paused() == []
            assert consumer.position(late) == first
    finally:
        call("topics", "delete", "late", "prompt", "--yes", "-b", damaged.bootstrap)


def without_leader(lost: TopicPartition):
    """Return `ask_each`, to which one partition has no leader."""

    def ask(cluster, times, *arguments):
        others = {at: when for at, when in times.items() if at != lost}
        found, faults = ask_each(cluster, others, *arguments)
        return found, faults | ({lost: no_leader(lost)} if lost in times else {})

    return ask


def test_consume_to_the_end_of_an_offline_partition_prints_nothing(damaged, call):
    where = ["-b", damaged.bootstrap, "--partition", 1, "--exit-at-end"]
    done = call("consume", "t", *where, status=1)
    assert done.stdout == b""
    assert done.stderr.endswith(b"was not read: t-1\n")


def test_enough_records_need_no_other_partition(damaged, call):
    where = ["-b", damaged.bootstrap, "--exit-at-end", "--max", 1]
    assert call("consume", "t", *where).stdout == b"line\n"


def test_what_the_client_warns_of_has_the_form_of_everything_else(damaged):
    running = start(damaged, "consume", "t")
    try:
        assert running.stderr is not None
        lines = [running.stderr.readline().decode().rstrip() for _ in range(2)]
    finally:
        running.kill()
        running.communicate()
    assert lines[0] == SAYS
    assert lines[1] == SAYS.replace("waiting for it", "trying again")


@pytest.mark.parametrize("arguments", [["consume", "t", "--exit-at-end"], ["produce", "t"]])
def test_nothing_is_said_of_other_partitions(damaged, arguments):
    _, errors = end(start(damaged, *arguments, "--partition", 2))
    assert "leader" not in errors


def test_commands_that_look_show_the_other_partitions(damaged, call):
    """They do not wait, and name the partition that gives no answer."""
    where = ["-b", damaged.bootstrap, "--json"]
    reset = ["groups", "reset", "readers", "--from-file", "-", "--yes"]
    call(*reset, *where, stdin=b"t,0,0\nt,2,0\n")
    with GroupAdmin(damaged.bootstrap) as admin:
        admin.commit("lost", {TopicPartition("t", 1): 0, TopicPartition("t", 2): 0})

    done = call("groups", "list", *where, status=1)
    rows = {
        row["group"]: (row["lag"], row["unknown"])
        for row in json.loads(done.stdout)
        if row["group"] in ("readers", "lost")
    }
    assert rows == {"readers": (rows["readers"][0], 0), "lost": (rows["lost"][0], 1)}
    assert rows["readers"][0] > rows["lost"][0] > 0
    assert "partition t-1 has no leader" in done.stderr.decode()

    done = call("groups", "describe", "readers", "lost", *where, status=1)
    assert [row["lag"] is None for row in json.loads(done.stdout)[1]["partitions"]] == [True, False]
    assert json.loads(done.stderr)["message"].startswith("partition t-1 has no leader")
    assert call("groups", "describe", "readers", *where).stderr == b""

    done = call("topics", "offsets", "t", "--at", "earliest", *where, status=1)
    found = {row["partition"]: row["latest"] for row in json.loads(done.stdout)}
    assert found[1] is None
    assert found[0] > 0
    assert "partition t-1 has no leader" in done.stderr.decode()

    topic = json.loads(call("topics", "describe", "t", *where).stdout)
    assert [row["leader"] for row in topic["partitions"]] == [0, None, 0]
    cluster = json.loads(call("cluster", *where).stdout)
    assert cluster["offline"] == ["t-1"]


def test_perf_names_the_partition_without_a_leader(damaged, call, monkeypatch):
    monkeypatch.setattr("plog.cli.perf.LEADERS_S", 0.1)
    done = call("perf", "consume", "t", "-b", damaged.bootstrap, status=1)
    assert done.stderr.startswith(b"plog: 1 partition has no leader: t-1 (measure a topic whose")


def test_kafka_get_offsets_skips_the_partition_without_a_leader(damaged, capsys):
    assert kafka_script("kafka-get-offsets", ["--bootstrap-server", damaged.bootstrap]) == 0
    written = capsys.readouterr()
    found = [line.split(":")[:2] for line in written.out.splitlines()]
    assert [entry for entry in found if entry[0] == "t"] == [["t", "0"], ["t", "2"]]
    (line,) = written.err.splitlines()
    skipped = (
        "Skip getting offsets for topic-partition t-1 due to error: partition t-1 has no leader"
    )
    assert line.startswith(skipped)


def test_kafka_find_hanging_checks_the_partitions_that_a_broker_leads(damaged, capsys):
    hung = TopicPartition("hung", 0)
    with Admin(damaged.bootstrap) as admin:
        admin.create_topic(hung.topic, partitions=1)
    with closing(speak(damaged.port)) as wire:
        hour_ago = NOW_MS - 3_600_000
        leave_hanging(Transactor(wire, "hangs").start(), hung, b"hangs", timestamp=hour_ago)
    capsys.readouterr()
    arguments = ["--bootstrap-server", damaged.bootstrap, "find-hanging", "--broker-id", "0"]
    assert kafka_script("kafka-transactions", arguments) == 0
    printed = capsys.readouterr()
    assert printed.err == ""
    assert [line.split()[:2] for line in printed.out.splitlines()[1:]] == [[hung.topic, "0"]]


def test_reset_of_a_partition_without_a_leader_is_refused(damaged, call):
    where = ["-b", damaged.bootstrap, "--yes"]
    done = call("groups", "reset", "resetters", "--topic", "t", "--to-latest", *where, status=1)
    (line,) = done.stderr.decode().splitlines()
    assert line.startswith("plog: partition t-1 has no leader")
    call("groups", "reset", "resetters", "--topic", "t:0,2", "--to-latest", *where)
