"""Work on many things in the event loop, in which others have their turn.

Owns for how long it goes on without a break. What is worked on may have changed by its turn, or be
gone: whoever does the work looks.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Iterable
from typing import TypeVar

T = TypeVar("T")

AT_ONCE_S = 0.005
"""For so long others wait."""


async def giving_way(items: Iterable[T]) -> AsyncIterator[T]:
    """Iterate, and let others have their turn in between."""
    until = time.monotonic() + AT_ONCE_S
    for item in items:
        if time.monotonic() >= until:
            await asyncio.sleep(0)
            until = time.monotonic() + AT_ONCE_S
        yield item
