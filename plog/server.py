"""One broker as a process: its signals, its limits, its service manager, its exit status.

`run` is what `plog server` calls. What a broker is made of is `plog.broker`'s.
"""

from __future__ import annotations

import asyncio
import faulthandler
import gc
import itertools
import logging
import os
import resource
import signal
import sys
import threading
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from types import FrameType

from plog import __version__
from plog._native import crc32c
from plog._native.reactor import ReactorStats
from plog.broker import Broker
from plog.errors import KafkaStorageError
from plog.ops.service_manager import PINGS_PER_INTERVAL, ServiceManager
from plog.ops.stderr_log import log_to_stderr
from plog.settings.definitions import BrokerSettings
from plog.wiring.start_progress import Stage, StartProgress

log = logging.getLogger(__name__)

SWITCH_INTERVAL_S = 0.0005
"""How long a busy Python thread may keep the lock from a waiting one: latency of the handlers."""
TELL_START_S = 10
"""How often the log says how far a start is."""
START_TIMEOUT_S = 600
"""A start that has come no further for so long hangs; the units' TimeoutStartSec."""
PROGRESS_BYTES = 64 << 20
"""A large log that is read again is one log for long; so much of it is progress."""
HALT_S = 15.0
"""So long may a stop take once no disk is left; one that hangs would keep it for ever."""


def run(settings: BrokerSettings) -> None:
    """Run a broker until SIGTERM or SIGINT, or until no log directory is left: exit status 1."""
    begun = time.monotonic()
    log_to_stderr(settings)
    # The watchdog ends a broker that hangs by SIGABRT; where its threads stood is all that is left.
    faulthandler.enable()
    sys.setswitchinterval(SWITCH_INTERVAL_S)
    _raise_file_limit()
    if status := asyncio.run(serve(Broker(settings), ServiceManager(), begun)):
        sys.exit(status)


async def serve(broker: Broker, manager: ServiceManager, begun: float) -> int:
    """Start a broker and stop it when that is asked for; return the exit status.

    Args:
        begun: when the process began, on the monotonic clock, in seconds.
    """
    loop = asyncio.get_running_loop()
    stopped = asyncio.Event()
    _call_on_signals(loop, (signal.SIGTERM, signal.SIGINT), stopped.set)
    start = loop.create_task(broker.start())
    progress = loop.create_task(_tell_progress(broker, manager))
    asked = loop.create_task(stopped.wait())
    await asyncio.wait((start, asked), return_when=asyncio.FIRST_COMPLETED)
    progress.cancel()
    if not start.done():
        log.info("stopping before the start is complete")
        manager.tell(STOPPING=1, STATUS="stopping before the start is complete")
        start.cancel()
    try:
        await start
    except asyncio.CancelledError:
        log.info("stopped")
        return 0
    except OSError as error:
        # For want of descriptors or memory, say: nothing that a traceback would explain better.
        raise KafkaStorageError(f"the broker cannot start: {error}") from error
    places = ", ".join(
        f"{b.listener.name}://{b.listener.host}:{b.listener.port}" for b in broker.bound
    )
    log.info(
        "plog %s listening on %s after %.2f s; CRC-32C by %s",
        __version__,
        places,
        time.monotonic() - begun,
        crc32c.implementation(),
    )
    manager.tell(READY=1, STATUS=f"listening on {places}")
    # What there is now stays: the collector need not look through it, for a tenth of a second with
    # thousands of partitions, whenever something has been made since. Here and not in `Broker`, as
    # it concerns all that the process holds.
    gc.collect()
    gc.freeze()
    alive = partial(broker.is_alive, manager.watchdog_s / PINGS_PER_INTERVAL)
    pings = loop.create_task(manager.ping(alive))
    failed = loop.create_task(broker.until_failed())
    await asyncio.wait((asked, failed), return_when=asyncio.FIRST_COMPLETED)
    status = 0 if asked.done() else 1
    if status:
        log.critical("stopping with status %d: %s", status, failed.result())
        _exit_after(HALT_S, status)
    else:
        failed.cancel()
        log.info("stopping")
    # A disk that is slow may take longer for the last flush than the watchdog waits.
    pings.cancel()
    manager.tell(STOPPING=1, STATUS="stopping: flushing what is not on disk yet")
    await broker.stop()
    _log_requests(broker.reactor_stats)
    log.info("stopped")
    return status


async def _tell_progress(broker: Broker, manager: ServiceManager) -> None:
    """Say how far a start is: to the service manager each second, in the log now and then.

    Progress gives the start its whole time again, so that only one that hangs is ended.
    """
    before = None
    for second in itertools.count():
        progress = broker.start_progress
        reached = progress, _bytes_read() // PROGRESS_BYTES
        told: dict[str, str | int] = {"STATUS": str(progress)}
        if reached != before:
            before = reached
            told["EXTEND_TIMEOUT_USEC"] = START_TIMEOUT_S * 1_000_000
        manager.tell(**told)
        if second and second % TELL_START_S == 0:
            _log_progress(progress)
        await asyncio.sleep(1)


def _log_progress(progress: StartProgress) -> None:
    if progress.stage is Stage.LOGS:
        log.info("%s, %.1f GB read", progress, _bytes_read() / 1e9)
    else:
        log.info("%s", progress)


def _bytes_read() -> int:
    """Return how much the process has read of files, from the page cache or not; 0 if unknown."""
    try:
        counted = Path("/proc/self/io").read_text()
    except OSError:
        return 0
    return int(counted.partition("rchar: ")[2].partition("\n")[0] or 0)


def _call_on_signals(
    loop: asyncio.AbstractEventLoop,
    numbers: Sequence[signal.Signals],
    callback: Callable[[], object],
) -> None:
    """Call back in the loop, once or twice, for every signal that comes until the loop is closed.

    asyncio hears of a signal by a byte in the pipe that also wakes it up, and when some 280 calls
    of other threads have filled that, the byte is lost. Python's handler runs whatever is in the
    pipe, and what it appends to the loop's queue stays there.
    """

    def on_signal(_number: int, _frame: FrameType | None) -> None:
        if not loop.is_closed():
            loop.call_soon_threadsafe(callback)

    for number in numbers:
        # The pipe still has its part: its byte wakes a loop that the signal finds on its way to
        # sleep. When the loop is closed it puts the default handlers back.
        loop.add_signal_handler(number, callback)
        signal.signal(number, on_signal)
        signal.siginterrupt(number, False)
    # A full pipe wakes the loop as well, so that is nothing to complain of on stderr.
    signal.set_wakeup_fd(signal.set_wakeup_fd(-1), warn_on_full_buffer=False)


def _exit_after(seconds: float, status: int) -> None:
    """End the process after a time, whatever it does by then."""
    timer = threading.Timer(seconds, os._exit, [status])
    timer.daemon = True
    timer.start()


def _log_requests(stats: ReactorStats) -> None:
    reasons = ", ".join(f"{reason} {n}" for reason, n in stats.callouts.items() if n)
    log.info(
        "%d requests, %d of them on the fast path; passed to Python: %s",
        stats.requests,
        stats.fast_requests,
        reasons or "none",
    )


def _raise_file_limit() -> None:
    """Take as many descriptors as the system allows: three for each segment, one per client."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
