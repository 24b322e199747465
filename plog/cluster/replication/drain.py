"""A leader gives its followers everything before another broker leads.

Otherwise the next leader would cut records with acks=1 that only this one has (KAFKA-20554).
Clients get a retriable error meanwhile, and find the next leader.
"""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from collections.abc import Callable, Iterable
from typing import Final

from plog.cluster.partition import Partition
from plog.types import counted

log = logging.getLogger(__name__)

WITHIN_S: Final = 1.0
LOOK_S: Final = 0.005
AGAIN_AFTER_S: Final = 3.0
"""A controller that has ordered a drain has another broker lead by then, or will not."""


def drain(led: Iterable[Partition]) -> int:
    """Refuse appends, and wait until all in sync have what there is; return how many lack records.

    A follower that is slow has a second. It loses the rest if it leads then.
    """
    behind = [one for one in led if one.refuse_appends()]
    ends_at = time.monotonic() + WITHIN_S
    while (behind := [one for one in behind if not one.is_drained]) and time.monotonic() < ends_at:
        time.sleep(LOOK_S)
    return len(behind)


async def drain_all(partitions: Callable[[], Iterable[Partition]]) -> None:
    """Drain all partitions that others may lead, because this broker stops."""
    led = [one for one in partitions() if one.is_leader and len(one.leadership.isr) > 1]
    if behind := await asyncio.to_thread(drain, led):
        log.warning("stopping while followers lack records of %s", counted(behind, "partition"))


def drain_for_order(led: list[Partition]) -> None:
    """Drain partitions that another broker is about to lead.

    They take records again after `AGAIN_AFTER_S`, if no other order has come by then.
    """
    roles = [(one, one.leadership) for one in led]
    if behind := drain(led):
        log.warning("followers lack records of %s that move", counted(behind, "partition"))

    def again() -> None:
        for partition, leadership in roles:
            partition.accept_appends(leadership)

    timer = threading.Timer(AGAIN_AFTER_S, again)
    timer.daemon = True
    timer.start()
