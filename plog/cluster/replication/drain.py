"""A broker that stops gives its followers everything first, before others lead.

Else records with acks=1 that only it has would be cut by the next leader (KAFKA-20554). Clients get
a retriable error meanwhile, and find the next leader.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable
from typing import Final

from plog.cluster.partition import Partition
from plog.types import counted

log = logging.getLogger(__name__)

WITHIN_S: Final = 1.0
LOOK_S: Final = 0.01


async def drain(partitions: Callable[[], Iterable[Partition]]) -> None:
    """Refuse appends to the partitions that others may lead next, until those have all there is.

    A follower that is slow has a second. What it lacks then is lost if it leads and no producer
    asked for acks=all.
    """
    led = [one for one in partitions() if one.is_leader and len(one.leadership.isr) > 1]
    for one in led:
        await asyncio.to_thread(one.refuse_appends)
    ends_at = asyncio.get_running_loop().time() + WITHIN_S
    while (behind := [one for one in led if not one.is_drained]) and (
        asyncio.get_running_loop().time() < ends_at
    ):
        await asyncio.sleep(LOOK_S)
    if behind:
        log.warning(
            "stopping while followers lack records of %s", counted(len(behind), "partition")
        )
