"""Requests that wait for the partitions of a topic which is deleted meanwhile: they never come."""

from __future__ import annotations

import asyncio
import contextlib
import uuid
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

from plog.cluster.control_fence import ControlFence
from plog.cluster.metadata_cache import MetadataCache, MetadataSnapshot
from plog.errors import RequestTimedOut, UnknownTopicOrPartition
from plog.handlers import topics
from plog.handlers.deadline import Deadline
from plog.handlers.topics import _until_led
from tests.cluster.test_metadata_cache import ID, OTHER, tell

HOUR_MS = 3_600_000


def wait(
    cache: MetadataCache,
    *news: Callable[[], object],
    timeout_ms: int = HOUR_MS,
    is_there: Callable[[str, uuid.UUID], bool] = lambda name, topic_id: True,
    topic_id: uuid.UUID | None = ID,
) -> None:
    """Wait for two partitions of "a" while the news come."""

    async def in_thread(call: Callable[..., Any], *arguments: object) -> object:
        return call(*arguments)

    context: Any = SimpleNamespace(
        services=SimpleNamespace(
            metadata=cache,
            clock=SimpleNamespace(monotonic_ms=lambda: 0),
            replicas=SimpleNamespace(check_taken_up=lambda topic: None),
            topics=SimpleNamespace(is_there=is_there),
        ),
        in_thread=in_thread,
        ends_in=lambda timeout_ms: timeout_ms,
        connection=SimpleNamespace(while_open=contextlib.nullcontext),
    )

    async def run() -> None:
        deadline = Deadline(context, timeout_ms)
        waiting = asyncio.ensure_future(_until_led(context, deadline, "a", topic_id, 2))
        for come in news:
            await asyncio.sleep(0)
            come()
        await asyncio.wait_for(waiting, 60)

    asyncio.run(run())


@pytest.fixture
def cache() -> MetadataCache:
    return MetadataCache(ControlFence())


def test_wait_ends_with_the_leaders(cache: MetadataCache) -> None:
    tell(cache, ("a", ID, {0: 1}))
    wait(cache, lambda: tell(cache, ("a", ID, {1: 1})))


def test_wait_ends_with_the_time(cache: MetadataCache) -> None:
    tell(cache, ("a", ID, {0: 1}))
    with pytest.raises(RequestTimedOut):
        wait(cache, timeout_ms=10)


@pytest.mark.parametrize("is_there", [True, False])
def test_wait_ends_when_the_topic_is_deleted(cache: MetadataCache, is_there: bool) -> None:
    """Also if it was not known yet when the wait began."""
    created = lambda: tell(cache, ("a", ID, {0: 1}))  # noqa: E731
    deleted = lambda: tell(cache, ("a", ID, {0: -2}))  # noqa: E731
    if is_there:
        created()
    with pytest.raises(UnknownTopicOrPartition, match="topic 'a' was deleted during the request"):
        wait(cache, *(() if is_there else (created,)), deleted)


def test_wait_ends_when_the_topic_is_made_anew(cache: MetadataCache) -> None:
    tell(cache, ("a", ID, {0: 1}))
    with pytest.raises(UnknownTopicOrPartition):
        wait(cache, lambda: tell(cache, ("a", OTHER, {0: 1})))


@pytest.mark.parametrize("shown", [None, OTHER], ids=["nothing", "another"])
def test_wait_ends_when_the_topic_is_deleted_before_it_is_shown(
    cache: MetadataCache, monkeypatch: pytest.MonkeyPatch, shown: uuid.UUID | None
) -> None:
    """The store no longer has it. Under its name there may be another topic, with leaders."""
    monkeypatch.setattr(topics, "LOOK_S", 0.01)
    if shown is not None:
        tell(cache, ("a", shown, {0: 1, 1: 1}))
    asked = []

    def is_there(name: str, topic_id: uuid.UUID) -> bool:
        asked.append((name, topic_id))
        return len(asked) < 3

    with pytest.raises(UnknownTopicOrPartition):
        wait(cache, is_there=is_there)
    assert asked == [("a", ID)] * 3


def test_leaders_of_another_topic_of_the_name_do_not_end_the_wait(cache: MetadataCache) -> None:
    """It was deleted before, and is shown for a little longer."""
    tell(cache, ("a", OTHER, {0: 1, 1: 1}))
    with pytest.raises(RequestTimedOut):
        wait(cache, timeout_ms=10)
    wait(cache, lambda: tell(cache, ("a", ID, {0: 1, 1: 1})))


def test_topic_that_is_shown_while_the_wait_looks_is_not_taken_for_deleted(
    cache: MetadataCache, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The thread that updates the snapshot looks at the new one, then the wait at the old one."""
    tell(cache, ("a", OTHER, {0: 1, 1: 1}))
    old = cache.snapshot

    async def late(shown: Callable[[MetadataSnapshot], bool], timeout_s: float) -> bool:
        monkeypatch.undo()
        tell(cache, ("a", ID, {0: 1}))
        assert not shown(cache.snapshot)
        return shown(old)

    monkeypatch.setattr(cache, "until", late)
    wait(cache, lambda: None, lambda: None, lambda: tell(cache, ("a", ID, {1: 1})))


def test_topic_without_an_id_is_known_by_its_name(cache: MetadataCache) -> None:
    wait(cache, lambda: tell(cache, ("a", OTHER, {0: 1, 1: 1})), topic_id=None)
