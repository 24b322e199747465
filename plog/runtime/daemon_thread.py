"""A long call in a thread of its own, while the event loop goes on."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from concurrent.futures import Future


async def run_in_daemon(
    call: Callable[[], None], *, name: str, abandon: Callable[[], None]
) -> None:
    """Make a call in a daemon thread, and wait for it; raise what it raises.

    Args:
        abandon: called if this is cancelled, which does not wait for the thread.
    """
    done: Future[None] = Future()
    done.set_running_or_notify_cancel()

    def run() -> None:
        try:
            call()
        except BaseException as error:  # noqa: BLE001 - it is raised where the result is awaited
            done.set_exception(error)
        else:
            done.set_result(None)

    threading.Thread(target=run, name=name, daemon=True).start()
    try:
        await asyncio.wrap_future(done)
    except asyncio.CancelledError:
        abandon()
        raise
