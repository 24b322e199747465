"""Requests that wait for the partitions of a topic which is deleted meanwhile: they never come."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

from plog.cluster.control_fence import ControlFence
from plog.cluster.metadata_cache import MetadataCache
from plog.errors import RequestTimedOut, UnknownTopicOrPartition
from plog.handlers.topics import Deadline, _until_led
from tests.cluster.test_metadata_cache import ID, OTHER, tell

HOUR_MS = 3_600_000


def wait(cache: MetadataCache, *news: Callable[[], object], timeout_ms: int = HOUR_MS) -> None:
    """Wait for two partitions of "a" while the news come."""
    context: Any = SimpleNamespace(
        services=SimpleNamespace(
            metadata=cache,
            clock=SimpleNamespace(monotonic_ms=lambda: 0),
            replicas=SimpleNamespace(check_taken_up=lambda topic: None),
        ),
        connection=SimpleNamespace(while_open=contextlib.nullcontext),
    )

    async def run() -> None:
        waiting = asyncio.ensure_future(_until_led(context, Deadline(context, timeout_ms), "a", 2))
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
