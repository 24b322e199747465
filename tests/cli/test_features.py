"""`plog features` against a broker."""

from __future__ import annotations

import json

import pytest

from tests.cli.test_groups import error_of

NAME = "transaction.version"


def listed(call) -> list[dict[str, object]]:
    return json.loads(call("features", "list", "--json").stdout)


def test_levels_are_listed_and_changed(call):
    groups, before = listed(call)
    assert groups == {"feature": "group.version", "lowest": 0, "highest": 1, "in_force": 1}
    assert before == {"feature": NAME, "lowest": 0, "highest": 2, "in_force": 2}
    refused = call("features", "set", NAME, 1, status=1)
    assert "lowering it to 1 needs a downgrade" in error_of(refused)
    try:
        call("features", "set", NAME, 1, "--lower", "--dry-run")
        assert listed(call) == [groups, before]
        call("features", "set", NAME, 1, "--lower", "--yes")
        assert listed(call) == [groups, {**before, "in_force": 1}]
        call("features", "set", NAME, 0, "--lower", "--yes")
        assert listed(call) == [groups, {**before, "in_force": 0}]
    finally:
        call("features", "set", NAME, 2)
    assert listed(call) == [groups, before]


@pytest.mark.parametrize(("name", "level"), [(NAME, 3), ("metadata.version", 1)])
def test_what_cannot_be_is_refused(call, name, level):
    assert name in error_of(call("features", "set", name, level, status=1))
    assert "transaction.version" in call("features", "list").stdout.decode()


def test_groups_are_turned_off_and_on(call):
    try:
        call("features", "set", "group.version", 0, "--lower", "--yes")
        assert [one["in_force"] for one in listed(call)] == [0, 2]
    finally:
        call("features", "set", "group.version", 1)
    assert [one["in_force"] for one in listed(call)] == [1, 2]
