"""`plog features` against a broker."""

from __future__ import annotations

import json

import pytest

from tests.cli.test_groups import error_of

NAME = "transaction.version"


def listed(call) -> list[dict[str, object]]:
    return json.loads(call("features", "list", "--json").stdout)


def test_levels_are_listed_and_changed(call):
    (before,) = listed(call)
    assert before == {"feature": NAME, "lowest": 0, "highest": 2, "in_force": 2}
    refused = call("features", "set", NAME, 1, status=1)
    assert "to lower it to 1, say so" in error_of(refused)
    try:
        call("features", "set", NAME, 1, "--lower", "--dry-run")
        assert listed(call) == [before]
        call("features", "set", NAME, 1, "--lower")
        assert listed(call) == [{**before, "in_force": 1}]
        call("features", "set", NAME, 0, "--lower")
        assert listed(call) == [{**before, "in_force": 0}]
    finally:
        call("features", "set", NAME, 2)
    assert listed(call) == [before]


@pytest.mark.parametrize(("name", "level"), [(NAME, 3), ("metadata.version", 1)])
def test_what_cannot_be_is_refused(call, name, level):
    assert name in error_of(call("features", "set", name, level, status=1))
    assert "transaction.version" in call("features", "list").stdout.decode()
