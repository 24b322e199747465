"""`plog groups list` and `describe`: the lag of all groups, several groups, and those that fail."""

from __future__ import annotations

import json
import re

import pytest

from plog.client import group_lag
from plog.client.group_lag import Budget
from plog.errors import ErrorCode
from plog.types import TopicPartition
from tests.cli.test_groups import commit
from tests.client.test_group_survey import Coordinator

NAMES = ["big", "small", "none"]


@pytest.fixture
def groups(call, broker, topic, monkeypatch) -> list[str]:
    """Three groups with lags of 6, 1 and 0 records, named after a topic of their own."""
    monkeypatch.delenv("COLUMNS", raising=False)  # of a terminal, whose table folds
    call("produce", topic, "--partition", 0, stdin=b"a\nb\nc\nd\n")
    call("produce", topic, "--partition", 1, stdin=b"a\nb\n")
    names = [f"{topic}-{name}" for name in NAMES]
    for name, offsets in zip(names, [(0, 0), (3, 2), (4, 2)], strict=True):
        commit(broker, name, {TopicPartition(topic, n): to for n, to in enumerate(offsets)})
    return names


def test_largest_lag_is_listed_first(call, groups):
    def listed(*options: str) -> list[str]:
        rows = json.loads(call("groups", "list", "--json", *options).stdout)
        return [row["group"] for row in rows if row["group"] in groups]

    assert listed() == listed("--sort", "lag") == groups
    assert listed("--sort", "name") == sorted(groups)
    assert listed("--sort", "behind")[-1] == groups[-1]
    rows = {row["group"]: row for row in json.loads(call("groups", "list", "--json").stdout)}
    assert [rows[name]["lag"] for name in groups] == [6, 1, 0]
    assert rows[groups[0]]["behind_ms"] >= rows[groups[1]]["behind_ms"] > 0
    table = call("groups", "list").stdout.decode()
    assert "BEHIND" in table


def test_several_groups_are_described(call, groups):
    described = json.loads(call("groups", "describe", *groups, groups[0], "--json").stdout)
    assert [one["group"] for one in described] == groups
    for one in described:
        assert one == {
            **json.loads(call("groups", "describe", one["group"], "--json").stdout),
            "partitions": one["partitions"],
        }
    text = call("groups", "describe", *groups).stdout.decode()
    assert "Total: lag 6 records in 2 partitions, behind " in text
    assert "Total: lag 1 record in 2 partitions, behind " in text
    assert "Total: lag 0 records in 2 partitions.\n" in text
    everything = json.loads(call("groups", "describe", "--all", "--json").stdout)
    found = {one["group"]: one for one in everything}
    assert [one["group"] for one in everything] == sorted(found)
    for one in described:
        lags = [[row["lag"] for row in group["partitions"]] for group in (one, found[one["group"]])]
        assert lags[0] == lags[1]
    text = call("groups", "describe", "--all").stdout.decode()
    assert all(f"Group {name}: Empty" in text for name in groups)
    assert call("groups", "describe", "--all", "--members").stdout.count(b"no members") >= 3


def test_group_that_does_not_exist_hides_no_other(call, groups):
    done = call("groups", "describe", groups[0], "nosuch", groups[1], "--json", status=1)
    assert [one["group"] for one in json.loads(done.stdout)] == groups[:2]
    assert "'nosuch'" in json.loads(error_of_json(done))["message"]
    done = call("groups", "describe", "nosuch", groups[0], "nowhere", status=1)
    assert groups[0] in done.stdout.decode()
    first, second = done.stderr.decode().splitlines()
    assert "group 'nosuch': it does not exist" in first
    assert "group 'nowhere': it does not exist" in second


def error_of_json(done) -> str:
    (line,) = done.stderr.decode().splitlines()
    return line


@pytest.mark.parametrize(("arguments", "more"), [([], ""), (["g", "--all"], ", not both")])
def test_describe_needs_names_or_all(call, arguments, more):
    text = call("groups", "describe", *arguments, status=2).stderr.decode()
    assert text.endswith(f"plog: specify GROUP... or --all{more}\n")


def test_line_counts_the_groups_whose_age_takes_too_many_fetches(call, groups, monkeypatch):
    monkeypatch.delenv("COLUMNS", raising=False)
    monkeypatch.setattr(group_lag, "Budget", lambda *limits: Budget(*(limits or (0, 0))))
    done = call("groups", "list", "--json")
    rows = {row["group"]: row for row in json.loads(done.stdout)}
    assert [rows[name]["lag"] for name in groups] == [6, 1, 0]
    assert [rows[name]["behind_ms"] for name in groups] == [None, None, 0]
    (line,) = done.stderr.decode().splitlines()
    assert re.fullmatch(
        r"plog: Behind is empty for \d+ groups with a smaller lag: looking it up takes many"
        r" fetches; use `plog groups describe NAME`",
        line,
    )
    assert call("groups", "list").stderr == done.stderr
    done = call("groups", "describe", "--all")
    assert done.stderr.decode().splitlines() == [line]
    assert "Total: lag 6 records in 2 partitions.\n" in done.stdout.decode()
    assert call("groups", "describe", "--all", "--members").stderr == b""
    done = call("groups", "describe", groups[0])
    assert (done.stderr, b"behind" in done.stdout) == (b"", True)


def test_faults_hide_no_other_group(call, monkeypatch):
    monkeypatch.delenv("COLUMNS", raising=False)
    with Coordinator(3) as fake:
        fake.faults["g1"] = ErrorCode.GROUP_AUTHORIZATION_FAILED
        done = call("groups", "list", "-b", fake.bootstrap, "--json", status=1)
        rows = {row["group"]: row for row in json.loads(done.stdout)}
        assert [rows[name]["lag"] for name in fake.names] == [0, None, 0]
        assert [rows[name]["unknown"] for name in fake.names] == [1, 0, 1]
        done = call("groups", "list", "-b", fake.bootstrap, status=1)
        assert "UNKNOWN" in done.stdout.decode()
        denied, lost = done.stderr.decode().splitlines()
        assert denied.startswith("plog: group 'g1'")
        assert lost.startswith("plog: partition t-1 has no leader")
        done = call("groups", "describe", "g0", "-b", fake.bootstrap, status=1)
        text = done.stdout.decode()
        assert "lag 0 records in 2 partitions; the lag of 1 partition is not known." in text
        assert done.stderr.startswith(b"plog: partition t-1 has no leader")
        fake.names.clear()
        done = call("groups", "describe", "--all", "-b", fake.bootstrap)
        assert done.stdout == b"No groups.\n"
        fake.lost = 2
        done = call("groups", "list", "-b", fake.bootstrap, status=1)
        assert done.stderr.startswith(b"plog: no leader for 2 of 2 partitions of __consumer_off")
