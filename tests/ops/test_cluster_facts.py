"""The facts of a cluster that changes while they are collected."""

from __future__ import annotations

from pathlib import Path

import pytest

from plog.client.admin import Admin
from plog.client.connection import Connection
from plog.client.group_admin import GroupAdmin
from plog.client.group_descriptions import ListedGroup
from plog.ops import cluster_facts
from plog.types import TopicPartition
from tests.servers import BrokerProcess

KEPT = [f"readers{number}" for number in range(5)]


def test_group_that_is_deleted_meanwhile_does_not_hide_the_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    list_groups = GroupAdmin._list

    def list_one_more(admin: GroupAdmin, *arguments: object, **names: object) -> list[ListedGroup]:
        found = list_groups(admin, *arguments, **names)  # type: ignore[arg-type]
        return [*found, found[0]._replace(group_id="deleted")]

    requests: list[str] = []
    call = Connection.call

    def count(connection: Connection, request: object, *arguments: object, **names: object):
        requests.append(type(request).__name__)
        return call(connection, request, *arguments, **names)  # type: ignore[arg-type]

    with BrokerProcess(tmp_path) as broker:
        with Admin(broker.bootstrap) as admin, GroupAdmin(broker.bootstrap) as groups:
            admin.create_topic("t", partitions=1)
            for name in KEPT:
                groups.commit(name, {TopicPartition("t", 0): 0})
        monkeypatch.setattr(GroupAdmin, "_list", list_one_more)
        monkeypatch.setattr(Connection, "call", count)
        with cluster_facts.reach(broker.bootstrap) as reached:
            found = cluster_facts.groups(reached)
    assert [one["group_id"] for one in found["groups"]] == KEPT
    assert [one["state"] for one in found["groups"]] == ["Empty"] * len(KEPT)
    assert {one["lag"]["records"] for one in found["groups"]} == {0}
    assert (found["count"], found["errors"]) == (len(KEPT), [])
    # One request describes all groups, and another the one that was not in its response.
    assert requests.count("DescribeGroupsRequest") == 2
