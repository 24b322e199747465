"""`plog groups` against a broker, with a group of confluent-kafka's and groups without members."""

from __future__ import annotations

import itertools
import json
import time
from contextlib import closing

import pytest

from plog.cli.output import duration_text
from plog.client.group_admin import GroupAdmin
from plog.client.producer import Producer
from plog.errors import ErrorCode
from plog.types import TopicPartition
from tests.coordinator.members import ByHand, Consumer, subscription
from tests.group_members import member

SUBCOMMANDS = ["list", "describe", "reset", "delete", "delete-offsets"]
_numbers = itertools.count()


def error_of(done) -> str:
    """The one line that an error is told in."""
    (line,) = done.stderr.decode().splitlines()
    assert line.startswith("plog: ")
    return line


@pytest.fixture
def written(call, topic) -> str:
    """A topic with offsets 0 to 5 in partition 0, and 0 to 3 in partition 1."""
    call("produce", topic, "--partition", 0, stdin=b"a\nb\nc\nd\ne\n")
    call("produce", topic, "--partition", 1, stdin=b"a\nb\nc\n")
    return topic


@pytest.fixture
def group(broker, written) -> str:
    """A group without members that has committed offset 2 of partition 0."""
    name = f"readers{next(_numbers)}"
    commit(broker, name, {TopicPartition(written, 0): 2})
    return name


def commit(broker, group: str, offsets: dict[TopicPartition, int]) -> None:
    with GroupAdmin(broker.bootstrap) as admin:
        admin.commit(group, offsets)


def committed(broker, group: str, topic: str) -> dict[int, int]:
    with GroupAdmin(broker.bootstrap) as admin:
        return {at.partition: to for at, to in admin.committed(group).items() if at.topic == topic}


def changes(done) -> dict[int, tuple[int | None, int]]:
    told = json.loads(done.stdout)
    return {one["partition"]: (one["from"], one["to"]) for one in told["changes"]}


@pytest.mark.parametrize("name", [[], *([name] for name in SUBCOMMANDS)], ids=str)
def test_help_says_what_a_command_does(call, name):
    text = call("groups", *name, "--help").stdout.decode()
    assert "Usage: plog groups" in text
    assert len(text.splitlines()) > 8


def test_groups_are_listed(call, group):
    listed = json.loads(call("groups", "list", "--json").stdout)
    (row,) = [row for row in listed if row["group"] == group]
    assert row.pop("behind_ms") >= 0
    assert row == {
        "group": group,
        "state": "Empty",
        "type": "classic",
        "protocol": "",
        "members": 0,
        "lag": 3,
        "unknown": 0,
    }
    assert group in call("groups", "list", "--state", "empty", "--state", "dead").stdout.decode()
    assert group not in call("groups", "list", "--state", "stable").stdout.decode()
    text = call("groups", "list", "--state", "asleep", status=2).stderr.decode()
    assert "completingrebalance" in text.lower()


def test_group_without_members_is_described(call, group, written):
    told = json.loads(call("groups", "describe", group, "--json").stdout)
    (row,) = told.pop("partitions")
    assert told == {
        "group": group,
        "state": "Empty",
        "assignor": "",
        "members": 0,
        "coordinator": 0,
        "type": "classic",
        "epoch": None,
        "assignment_epoch": None,
    }
    assert row.pop("behind_ms") >= 0
    assert row == {
        "topic": written,
        "partition": 0,
        "committed": 2,
        "end": 5,
        "lag": 3,
        "member": None,
        "client": None,
        "host": None,
    }
    table = call("groups", "describe", group).stdout.decode()
    assert f"Group {group}: Empty, assignor none, 0 members, coordinator broker 0 (" in table
    assert "BEHIND" in table
    assert (
        "The group has no members."
        in call("groups", "describe", group, "--members").stdout.decode()
    )


def test_group_is_behind_for_as_long_as_its_next_record_waits(call, broker, topic):
    hour_ms = 3_600_000
    begun_ms = time.time_ns() // 1_000_000
    write_at(broker, topic, begun_ms - 3 * hour_ms, begun_ms - hour_ms, begun_ms)
    name = f"readers{next(_numbers)}"
    commit(broker, name, {TopicPartition(topic, 0): 1, TopicPartition(topic, 1): 0})
    asked_ms = time.time_ns() // 1_000_000
    first, second = json.loads(call("groups", "describe", name, "--json").stdout)["partitions"]
    told_ms = time.time_ns() // 1_000_000
    assert asked_ms - begun_ms <= first["behind_ms"] - hour_ms <= told_ms - begun_ms
    assert (first["lag"], second["lag"], second["behind_ms"]) == (2, 0, 0)
    assert "behind 1h.\n" in call("groups", "describe", name).stdout.decode()


def test_group_of_the_consumer_protocol_is_listed_and_described(call, broker, written):
    with member(broker.bootstrap, "new", written, {0: 5}, group_protocol="consumer") as consumer:
        listed = json.loads(call("groups", "list", "--state", "stable", "--json").stdout)
        (row,) = [row for row in listed if row["group"] == "new"]
        assert (row["state"], row["type"], row["protocol"]) == ("Stable", "consumer", "consumer")
        assert (row["members"], row["lag"], row["behind_ms"], row["unknown"]) == (1, 0, 0, 1)
        told = json.loads(call("groups", "describe", "new", "--json").stdout)
        assert (told["state"], told["assignor"], told["members"]) == ("Stable", "uniform", 1)
        assert (told["type"], told["epoch"], told["assignment_epoch"]) == ("consumer", 1, 1)
        assert [row["member"] for row in told["partitions"]] == [consumer.memberid()] * 2
        members = call("groups", "describe", "new", "--members", "--json").stdout
        (one,) = json.loads(members)["assignments"]
        assert (one["type"], one["epoch"]) == ("consumer", 1)
        assert one["partitions"] == one["target"] == [f"{written}-0", f"{written}-1"]
        table = call("groups", "describe", "new").stdout.decode()
        assert "type consumer, epoch 1, assignment epoch 1, assignor uniform" in table
        line = error_of(call("groups", "delete", "new", "--yes", status=1))
        assert "stop its consumers first" in line
    call("groups", "delete", "new", "--yes")


def test_members_of_both_protocols_are_described_with_what_they_are_to_have(call, broker, written):
    protocols = {"range": subscription(written)}
    with (
        closing(Consumer(broker.port, "both", (written,))) as first,
        closing(ByHand(broker.port, "both", protocols=protocols)) as second,
    ):
        assert first.join().error_code == ErrorCode.NONE
        assert second.join().error_code == ErrorCode.NONE
        told = json.loads(call("groups", "describe", "both", "--members", "--json").stdout)
        assert (told["epoch"], told["assignment_epoch"]) == (2, 2)
        rows = {row["member"]: row for row in told["assignments"]}
        one, other = rows[first.member_id], rows[second.member_id]
        assert (one["type"], one["epoch"], one["count"]) == ("consumer", 1, 2)
        assert (other["type"], other["epoch"], other["count"]) == ("classic", 2, 0)
        assert sorted(one["target"] + other["target"]) == one["partitions"]
        first.leave()
        second.leave()


def test_group_with_a_member_is_described(call, broker, written):
    with member(broker.bootstrap, "live", written, {0: 5}) as consumer:
        told = json.loads(call("groups", "describe", "live", "--json").stdout)
        assert (told["state"], told["assignor"], told["members"]) == ("Stable", "range", 1)
        first, second = told["partitions"]
        owner = consumer.memberid()
        for row in (first, second):
            assert (row["member"], row["client"], row["host"]) == (owner, "reader", "127.0.0.1")
        assert (first["committed"], first["lag"], first["behind_ms"]) == (5, 0, 0)
        assert (second["committed"], second["end"], second["lag"]) == (None, 3, None)
        total = call("groups", "describe", "live").stdout.decode().splitlines()[-1]
        assert total == "Total: lag 0 records in 2 partitions; 1 partition without a commit."
        (one,) = json.loads(call("groups", "describe", "live", "--members", "--json").stdout)[
            "assignments"
        ]
        assert one == {
            "member": owner,
            "client": "reader",
            "host": "127.0.0.1",
            "instance": None,
            "type": "classic",
            "epoch": None,
            "count": 2,
            "partitions": [f"{written}-0", f"{written}-1"],
            "target": None,
        }
        table = call("groups", "describe", "live", "--members").stdout.decode()
        assert f"{written}-0,{written}-1" in table
        for refused in (
            ["reset", "live", "--all-topics", "--to-earliest"],
            ["delete", "live", "--yes"],
        ):
            line = error_of(call("groups", *refused, status=1))
            assert "group 'live'" in line
            assert "stop its consumers first" in line
        line = error_of(
            call("groups", "delete-offsets", "live", "--topic", written, "--yes", status=1)
        )
        assert "its members consume the topic" in line
        assert committed(broker, "live", written) == {0: 5}
    assert call("groups", "delete", "live", "--yes").stdout == b"Deleted group live.\n"


@pytest.mark.parametrize(
    ("to", "expected"),
    [
        (["--to-earliest"], {0: (2, 0), 1: (None, 0)}),
        (["--to-latest"], {0: (2, 5), 1: (None, 3)}),
        (["--to-offset", 1], {0: (2, 1), 1: (None, 1)}),
        (["--to-offset", 4], {0: (2, 4), 1: (None, 3)}),
        (["--to-offset", 10**30], {0: (2, 5), 1: (None, 3)}),
        (["--to-datetime", "2001-01-01"], {0: (2, 0), 1: (None, 0)}),
        (["--to-datetime", "2101-01-01T00:00:00+02:00"], {0: (2, 5), 1: (None, 3)}),
    ],
)
def test_topic_is_reset_once_that_is_asked_for(call, broker, group, written, to, expected):
    shown = call("groups", "reset", group, "--topic", written, *to, "--dry-run", "--json")
    assert changes(shown) == expected
    assert json.loads(shown.stdout)["executed"] is False
    assert committed(broker, group, written) == {0: 2}
    done = call("groups", "reset", group, "--topic", written, *to, "--execute", "--json")
    assert changes(done) == expected
    assert json.loads(done.stdout)["executed"] is True
    assert committed(broker, group, written) == {at: to for at, (_, to) in expected.items()}


@pytest.fixture
def elsewhere(monkeypatch):
    """The terminal is not in UTC."""
    monkeypatch.setenv("TZ", "XXX-05:45")
    time.tzset()
    yield
    monkeypatch.undo()
    time.tzset()


NOON_MS = 1_372_939_200_000
"""2013-07-04T12:00:00Z."""


def write_at(broker, topic: str, *times_ms: int) -> None:
    """Write a record of each time into partition 0."""
    with Producer(broker.bootstrap) as producer:
        sent = [
            producer.send(topic, b"v", partition=0, timestamp_ms=time_ms) for time_ms in times_ms
        ]
        producer.flush()
        assert [one.result().offset for one in sent] == list(range(len(times_ms)))


@pytest.mark.usefixtures("elsewhere")
def test_topic_is_reset_to_a_moment_in_its_log(call, broker, topic):
    call("configs", "set", "topic", topic, "retention.ms=-1")
    write_at(broker, topic, NOON_MS - 3_600_000, NOON_MS, NOON_MS + 3_600_000)
    for moment, to in (
        ("2013-07-04T12:00:00", 1),
        ("2013-07-04T12:00", 1),
        ("2013-07-04 12:00:00Z", 1),
        ("2013-07-04T14:00:00+02:00", 1),
        ("2013-07-04T07:00:00-05:00", 1),
        (NOON_MS, 1),
        ("2013-07-04T11:00:00.001", 1),
        (NOON_MS - 1, 1),
        ("2013-07-04T12:00:00.001", 2),
        ("2013-07-04T14:00:00.001+02:00", 2),
        (NOON_MS + 1, 2),
        ("2013-07-04", 0),
        ("2013-07-04T12:00:00+02:00", 0),
        ("2013-07-05", 3),
    ):
        name = f"readers{next(_numbers)}"
        call("groups", "reset", name, "--topic", topic, "--to-datetime", moment, "--execute")
        # Nothing is in the other partition: its end is its start.
        assert committed(broker, name, topic) == {0: to, 1: 0}, moment


@pytest.mark.parametrize(
    ("shift", "to"), [(1, 3), (-1, 1), (-100, 0), (100, 5), (-(10**30), 0)], ids=str
)
def test_offsets_are_shifted_within_the_log(call, broker, group, written, shift, to):
    done = call("groups", "reset", group, "--all-topics", "--shift-by", shift, "--execute")
    assert f"Reset 1 offset of group {group}." in done.stdout.decode()
    assert committed(broker, group, written) == {0: to}
    if abs(shift) > 1:
        text = f"{written}-0 has the offsets 0 to 5: using {to} instead of {2 + shift}"
        assert error_of(done).endswith(text)
    else:
        assert done.stderr == b""


def test_reset_says_what_it_would_do(call, group, written):
    reset = ["groups", "reset", group, "--topic", f"{written}:0", "--to-earliest"]
    text = call(*reset, "--dry-run").stdout.decode()
    assert "FROM" in text
    last = f"Nothing is changed: without --dry-run the command resets 1 offset of group {group}.\n"
    assert text.endswith(last)
    asked = call(*reset, status=1)
    assert "FROM" in asked.stdout.decode()
    assert asked.stderr.decode().splitlines() == [
        f"Reset 1 offset of group {group}? [y/N]: ",
        "Not reset. Pass --yes to skip this question.",
    ]
    assert "Reset 1 offset" in call(*reset, stdin=b"y\n").stdout.decode()


def test_group_that_does_not_exist_is_made(call, broker, written):
    name = f"new-of-{written}"
    arguments = "groups", "reset", name, "--topic", written, "--to-latest"
    shown = call(*arguments, "--dry-run", "--json")
    assert changes(shown) == {0: (None, 5), 1: (None, 3)}
    assert error_of(shown) == f"plog: group '{name}' does not exist yet"
    assert name not in call("groups", "list").stdout.decode()
    done = call(*arguments, "--execute")
    assert f"Reset 2 offsets of group {name}." in done.stdout.decode()
    assert committed(broker, name, written) == {0: 5, 1: 3}
    assert call(*arguments, "--dry-run").stderr == b""  # now it is there
    nothing = call("groups", "reset", "nobody", "--all-topics", "--to-latest", "--execute")
    assert nothing.stdout.decode().endswith("Group nobody has no committed offsets.\n")
    shifted = call("groups", "reset", "nobody", "--topic", written, "--shift-by", 1, status=1)
    assert f"cannot shift {written}-0, {written}-1: no committed offset" in shifted.stderr.decode()


def test_start_of_a_log_bounds_a_reset(call, broker, group, written):
    call("topics", "delete-records", written, 0, 4, "--yes")
    call("groups", "reset", group, "--topic", f"{written}:0", "--to-offset", 1, "--execute")
    assert committed(broker, group, written) == {0: 4}


def test_group_is_reset_from_a_file(call, broker, group, written, tmp_path):
    source = tmp_path / "offsets.csv"
    text = f'topic,partition,offset\n"{written}",1,2\n\n{written}, 0, 9\n'
    source.write_text(text, encoding="utf-8-sig")  # as spreadsheets write it
    done = call("groups", "reset", group, "--from-file", source, "--execute", "--json")
    assert changes(done) == {0: (2, 5), 1: (None, 2)}
    assert committed(broker, group, written) == {0: 5, 1: 2}


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("t,0\n", "line 1: 't,0' is not topic,partition,offset"),
        ("t,0,1\nt,0,x\n", "line 2"),
        ("t,0,-1\n", "line 1"),
        (",0,1\n", "line 1"),
        ("t,0,1\nt,0,2\n", "line 2: t-0 appears twice"),
        (f"t,0,{'9' * 5000}\n", "line 1"),
        ("\n", "has no offsets"),
        ("\xff", "codec"),
    ],
)
def test_file_that_makes_no_sense_is_wrong_use(call, tmp_path, text, told):
    source = tmp_path / "offsets.csv"
    source.write_bytes(text.encode("latin-1"))
    text = call("groups", "reset", "g", "--from-file", source, status=2).stderr.decode()
    assert told in text.splitlines()[-1]


@pytest.mark.parametrize(
    "arguments",
    [
        ["reset", "g"],
        ["reset", "g", "--topic", "t"],
        ["reset", "g", "--to-earliest"],
        ["reset", "g", "--topic", "t", "--all-topics", "--to-earliest"],
        ["reset", "g", "--topic", "t", "--to-earliest", "--to-latest"],
        ["reset", "g", "--topic", "t", "--to-offset", "-1"],
        ["reset", "g", "--topic", "t", "--to-datetime", "yesterday"],
        ["reset", "g", "--topic", "t:", "--to-earliest"],
        ["reset", "g", "--topic", "t:0,x", "--to-earliest"],
        ["reset", "g", "--topic", ":0", "--to-earliest"],
        ["reset", "g", "--topic", f"t:{'9' * 5000}", "--to-earliest"],
        ["reset", "g", "--topic", "t", "--to-datetime", "9" * 5000],
        ["delete"],
        ["delete-offsets", "g"],
    ],
)
def test_wrong_use_is_status_2_with_the_usage(call, arguments):
    text = call("groups", *arguments, status=2).stderr.decode()
    assert text.startswith("Usage: plog groups")
    assert text.splitlines()[-1].startswith("plog: ")


@pytest.mark.parametrize(
    "arguments",
    [
        ["describe", "nobody"],
        ["delete", "nobody", "--yes"],
        ["delete-offsets", "nobody", "--topic", "t", "--yes"],
    ],
)
def test_group_nobody_has_heard_of_is_one_line(call, arguments):
    line = error_of(call("groups", *arguments, status=1))
    assert "group 'nobody': it does not exist" in line
    assert "plog groups list" in line
    told = json.loads(call("groups", *arguments, "--json", status=1).stderr)
    assert told["error"] == "GroupIdNotFound"


def test_reset_of_what_is_not_there_is_one_line(call, group, written):
    def refused(*arguments) -> str:
        return error_of(call("groups", "reset", group, *arguments, status=1))

    assert "'nowhere' does not exist" in refused("--topic", "nowhere", "--to-earliest")
    assert f"{written}-77" in refused("--topic", f"{written}:77", "--to-earliest")
    assert f"{written}-{10**12}" in refused("--topic", f"{written}:{10**12}", "--to-earliest")
    assert f"cannot shift {written}-1: no committed offset" in refused(
        "--topic", written, "--shift-by", 1
    )


def test_groups_are_deleted_except_those_that_cannot_be(call, group, written):
    other = f"{group}-other"
    call("groups", "reset", other, "--topic", written, "--to-latest", "--yes")
    done = call("groups", "delete", "nobody", group, "noone", other, "--yes", status=1)
    assert done.stdout.decode() == f"Deleted group {group}.\nDeleted group {other}.\n"
    first, second = done.stderr.decode().splitlines()
    assert "'nobody'" in first
    assert "'noone'" in second
    assert group not in call("groups", "list").stdout.decode()


def test_offsets_are_deleted(call, broker, group, written):
    commit(broker, group, {TopicPartition(written, 1): 3})
    done = call("groups", "delete-offsets", group, "--topic", f"{written}:1", "--yes")
    assert done.stdout.decode() == f"Deleted 1 offset of group {group}: {written}-1.\n"
    assert committed(broker, group, written) == {0: 2}
    done = call("groups", "delete-offsets", group, "--topic", written, "--yes", "--json")
    assert json.loads(done.stdout)["deleted"] == [{"topic": written, "partition": 0}]
    assert committed(broker, group, written) == {}


def test_deletion_of_offsets_that_are_not_there_is_one_line(call, broker, group, written):
    line = error_of(call("groups", "delete-offsets", group, "--topic", f"{written}:1", status=1))
    assert f"has no committed offsets for '{written}:1'" in line
    assert committed(broker, group, written) == {0: 2}


@pytest.mark.parametrize(
    ("duration_ms", "text"),
    [
        (0, "0"),
        (850, "850ms"),
        (1_000, "1s"),
        (59_999, "59s"),
        (192_000, "3m 12s"),
        (3_600_000, "1h"),
        (3_605_000, "1h"),
        (190_800_000, "2d 5h"),
    ],
)
def test_durations_are_told_in_their_two_largest_units(duration_ms, text):
    assert duration_text(duration_ms) == text
