"""`plog consume` of several topics, of a pattern, and of a part of a topic."""

from __future__ import annotations

import subprocess
import sys
from contextlib import contextmanager

import pytest

from plog.cli.followed_topics import FollowedTopics, NewPartitions
from plog.client.admin import Admin
from plog.client.consumer import Consumer
from plog.client.metadata import Cluster
from plog.types import TopicPartition

from .conftest import TIMEOUT_S, environment

QUICK = """
from plog.cli import main
from plog.cli.followed_topics import FollowedTopics
FollowedTopics.look_s = 0.1
main()
"""


@pytest.fixture
def topics(call, topic):
    """Two topics whose names begin as `topic`, with records that name them."""
    names = [f"{topic}-a", f"{topic}-b"]
    for name in names:
        call("topics", "create", name)
        call("produce", name, stdin=f"first of {name}\nsecond of {name}\n".encode())
    return names


def printed(call, *arguments):
    return call("consume", *arguments).stdout.decode().splitlines()


@pytest.mark.parametrize("group", [False, True])
@pytest.mark.parametrize("by_pattern", [False, True])
def test_several_topics_are_read_and_named(call, topic, topics, group, by_pattern):
    chosen = ["--pattern", f"{topic}-."] if by_pattern else [*topics, topics[0]]
    extra = ["--group", topic] if group else []
    found = printed(call, *chosen, *extra, "--topics", "--exit-at-end")
    expected = [f"{name}\t{which} of {name}" for name in topics for which in ("first", "second")]
    assert sorted(found) == expected
    if group:
        assert printed(call, *chosen, *extra, "--exit-at-end") == []


def test_pattern_matches_whole_names(call, topic, topics):
    assert len(printed(call, "--pattern", topics[0], "--exit-at-end")) == 2
    for part in (f"{topic}-", "-a"):
        done = call("consume", "--pattern", part, "--exit-at-end", status=1)
        assert done.stderr.decode().startswith(f"plog: no topic matches '{part}'")


@pytest.mark.parametrize("group", [[], ["--group", "g"]])
def test_missing_topic_among_several_is_an_error(call, topics, group):
    done = call("consume", *topics, "nowhere", *group, "--exit-at-end", status=1)
    assert done.stdout == b""
    assert b"plog: topic 'nowhere' does not exist" in done.stderr


@pytest.mark.parametrize(
    ("arguments", "fault"),
    [
        ([], "missing topic: name one or more, or use --pattern"),
        (["t", "--pattern", "t"], "--pattern conflicts with names of topics"),
        (["--pattern", "t("], "'t(' is not a regular expression: missing )"),
        (["t", "u", "--partition", 0], "--partition requires exactly one topic"),
        (["--pattern", "t", "--partition", 0], "--partition requires exactly one topic"),
        (["t", "--until", 5, "--exit-at-end"], "--until conflicts with --exit-at-end"),
        (["t", "--until", "earliest"], "'earliest' is not latest, an offset or @TIME"),
        (["t", "--from", "--5"], "'--5' is not earliest, latest, an offset or @TIME"),
        (["t", "--from", "x"], "'x' is not earliest, latest, an offset or @TIME"),
        (["t", "--format", "{k}"], "unknown field {k}: use topic, "),
        (["t", "--format", "%o %s"], "no field in '%o %s': use {topic}, {partition}, "),
        (["t", "--format", "{key}", "--json"], "--format conflicts with --json"),
        (["t", "--format", "{key}", "--keys"], "--format conflicts with --json"),
    ],
)
def test_wrong_use_is_found_before_a_broker_is_asked(call, arguments, fault):
    done = call("consume", "-b", "127.0.0.1:1", *arguments, status=2)
    assert done.stdout == b""
    assert fault in done.stderr.decode()


def test_until_ends_before_an_offset_or_a_time(call, topic):
    for partition in range(2):
        lines = b"".join(b"%d\n" % (10 * partition + n) for n in range(10))
        call("produce", topic, "--partition", partition, stdin=lines)

    def consume(*arguments):
        return sorted(map(int, printed(call, topic, *arguments)))

    assert consume("--until", 3) == [0, 1, 2, 10, 11, 12]
    assert consume("--from", 2, "--until", 4) == [2, 3, 12, 13]
    assert consume("--from", 4, "--until", 2) == []
    assert consume("--until", 10**6) == consume("--until", "latest") == list(range(20))
    assert consume("--until", "@2001-01-01") == []
    assert consume("--until", "@2101-01-01") == list(range(20))
    assert consume("--from", "latest", "--until", "latest") == []
    assert consume("--from", -2, "--until", -1) == [8, 18]
    assert consume("--from", -100, "--until", "-0") == list(range(20))
    assert len(consume("--until", "latest", "--max", 7)) == 7


def test_partition_that_begins_behind_its_end_is_not_read(call, topic):
    """Partition 0 takes several polls; partition 1 has records, all after its end."""
    lines = [b'{"value": "", "partition": 0, "timestamp": 5}'] * 2000
    lines += [b'{"value": "", "partition": 1, "timestamp": 0}'] * 1505
    lines += [b'{"value": "", "partition": 1, "timestamp": 5}'] * 5
    call("produce", topic, "--input", "json", stdin=b"\n".join(lines))
    read = printed(call, topic, "--from", "@5", "--until", 1500, "--format", "{partition}@{offset}")
    assert read == [f"0@{n}" for n in range(1500)]


@contextmanager
def quick_consume(broker, *arguments):
    """Run `plog consume`, which looks for new topics ten times a second."""
    running = subprocess.Popen(
        [sys.executable, "-c", QUICK, "consume", *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env=environment(broker.bootstrap),
    )
    assert running.stdout is not None
    assert running.stderr is not None
    try:
        yield running
        assert running.wait(TIMEOUT_S) == 0
    finally:
        running.kill()
        running.wait()
        running.stdout.close()
        running.stderr.close()


@pytest.mark.parametrize("group", [False, True])
def test_topics_that_match_later_are_read(call, topic, broker, group):
    extra = ["--group", topic] if group else ["--from", "latest"]
    pattern = f"{topic}-.*"
    with quick_consume(broker, "--pattern", pattern, "--topics", "--max", "2", *extra) as running:
        waits = f"plog: no topic matches '{pattern}'; waiting for one\n"
        assert running.stderr.readline().decode() == waits
        for name in (f"{topic}-a", f"{topic}-b"):
            call("topics", "create", name)
            call("produce", name, stdin=b"new\n")
            assert running.stdout.readline().decode() == f"{name}\tnew\n"


def test_new_partitions_are_read_and_deleted_topics_are_not(call, topic, topics, broker):
    a, b = (TopicPartition(name, 0) for name in topics)
    chosen = FollowedTopics((), f"{topic}-.")
    chosen.look_s = 0
    with Cluster(broker.bootstrap) as cluster, Consumer(cluster) as consumer:
        consumer.assign([a])
        consumer.seek(a, 1)
        new = NewPartitions(chosen, cluster, consumer)
        new.look_now_and_then()
        assert consumer.assignment() == [a, b]
        assert (consumer.position(a), consumer.position(b)) == (1, 0)
        with Admin(broker.bootstrap) as admin:
            admin.create_partitions(a.topic, 2)
            admin.delete_topic(b.topic)
        new.look_now_and_then()  # once: another broker may not know the topic yet
        assert consumer.assignment() == [a, TopicPartition(a.topic, 1), b]
        new.look_now_and_then()
        assert consumer.assignment() == [a, TopicPartition(a.topic, 1)]
        assert consumer.position(a) == 1
