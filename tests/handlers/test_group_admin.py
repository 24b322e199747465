"""ListGroups over many groups: others have their requests handled in between."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace

import pytest

from plog.coordinator.classic_group import ClassicGroup
from plog.coordinator.group_shard import Group
from plog.handlers.context import Context
from plog.handlers.group_admin import list_groups
from plog.protocol.messages.group_admin import ListGroupsRequest

GROUPS = 1000


def test_others_have_their_turn_while_groups_are_listed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("plog.handlers.context.AT_ONCE_S", -1)
    groups = [Group(ClassicGroup(f"g{number}")) for number in range(GROUPS)]

    async def run() -> None:
        services = SimpleNamespace(
            groups=SimpleNamespace(is_loading=False, groups=lambda: groups),
            large_answers=asyncio.Lock(),
        )
        ctx = Context(services, None, None)  # type: ignore[arg-type]
        listed = asyncio.ensure_future(list_groups(ctx, ListGroupsRequest()))
        for _ in range(GROUPS // 2):
            await asyncio.sleep(0)
        assert not listed.done()
        answer = await listed
        assert [one.group_id for one in answer.groups] == [one.group_id for one in groups]

    asyncio.run(run())
