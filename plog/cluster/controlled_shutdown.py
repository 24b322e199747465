"""A broker that stops asks the controller to move its leaderships first (ControlledShutdown).

Owns how often it asks. What cannot be moved has no leader until the broker is back.
"""

from __future__ import annotations

import asyncio
import logging
from contextlib import suppress

from plog.cluster.control_fence import ControlFence
from plog.cluster.controller import Controller
from plog.cluster.member import Member
from plog.cluster.metadata_cache import MetadataCache
from plog.cluster.peers import Peers
from plog.errors import (
    BrokerNotAvailable,
    ErrorCode,
    NotController,
    PlogError,
    code_name,
    error_for,
)
from plog.protocol.messages.replication import (
    ControlledShutdownRequest,
    ControlledShutdownResponse,
)

log = logging.getLogger(__name__)

ATTEMPTS = 3
PAUSE_S = 0.5
ANSWERED_WITHIN_S = 1.0
LOOK_S = 0.01
WAIT_S = 10.0
"""A controller that hangs must not keep the broker from closing its logs."""


async def move_leaderships(
    *,
    broker_id: int,
    member: Member,
    fence: ControlFence,
    controller: Controller,
    metadata: MetadataCache,
    peers: Peers,
) -> None:
    """Ask until the broker leads nothing that another could lead, a few times in `WAIT_S`."""
    if member.has_ended:
        return  # its id is another process's, with the leaderships
    left: object = None
    with suppress(TimeoutError):
        async with asyncio.timeout(WAIT_S):
            left = await _asked(broker_id, fence, controller, metadata, peers)
            if left is None:
                return
    log.warning("stopping without a controlled shutdown: %s", left or "no response in time")


async def _asked(
    broker_id: int,
    fence: ControlFence,
    controller: Controller,
    metadata: MetadataCache,
    peers: Peers,
) -> object:
    """Return why leaderships stay here; None: they do not."""
    left: object = None
    for attempt in range(ATTEMPTS):
        if attempt:
            await asyncio.sleep(PAUSE_S)
        try:
            if controller.is_active:
                asked = controller.controlled_shutdown(broker_id, fence.broker_epoch)
                still_led = await asyncio.wrap_future(asked)
                count = len(still_led)
                await _until_answered(controller)
            else:
                count = await _ask(metadata.snapshot.live_controller_id, broker_id, fence, peers)
        except PlogError as error:
            left = error
            continue
        if count == 0:
            return None
        left = f"{count} partitions are still led here"
    return left


async def _until_answered(controller: Controller) -> None:
    """Wait until brokers have answered this controller's orders, for a second at most.

    Its end drops orders without an answer. Then brokers go on sending clients to this one.
    """
    with suppress(TimeoutError):
        async with asyncio.timeout(ANSWERED_WITHIN_S):
            while not controller.is_answered:
                await asyncio.sleep(LOOK_S)


async def _ask(controller_id: int, broker_id: int, fence: ControlFence, peers: Peers) -> int:
    if controller_id < 0:
        raise NotController("no controller is known")
    if controller_id == broker_id:
        raise NotController("this broker is no longer the controller, and knows no other")
    request = ControlledShutdownRequest(broker_id=broker_id, broker_epoch=fence.broker_epoch)
    try:
        response = await asyncio.wrap_future(
            peers.ask(controller_id, request, ControlledShutdownResponse)
        )
    except PlogError as error:
        raise BrokerNotAvailable(f"controller {controller_id}: {error}") from error
    code = response.error_code
    if code != ErrorCode.NONE:
        raise error_for(code, f"controller {controller_id} answered {code_name(code)}")
    return len(response.remaining_partitions)
