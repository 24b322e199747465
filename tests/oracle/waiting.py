"""How the oracle's requests wait for their partitions."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from plog.handlers.context import Context
from plog.types import TopicPartition


async def until(
    ctx: Context,
    ready: Callable[[], bool],
    partitions: Iterable[TopicPartition],
    timeout_ms: int,
) -> None:
    """Wait until `ready()`, asked again at every change of a partition, while the client does."""
    with ctx.connection.while_open():
        await ctx.services.purgatory.wait(partitions, timeout_ms, ready)
