"""Checks this host: addresses of listeners, memory, limits, kernel settings, clock, processor.

Owns these checks and their advice. Changes nothing.
"""

from __future__ import annotations

import errno
import resource
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import NamedTuple

import psutil

from plog._native import crc32c
from plog.errors import ConfigError
from plog.network.listeners import bind
from plog.ops.doctor.clocks import kernel_clock
from plog.ops.doctor.findings import Finding, Findings, Verdict, graded
from plog.settings.definitions import BrokerSettings

MB = 1 << 20
DESCRIPTORS = 100_000
"""Three per segment and one per client; the unit's LimitNOFILE is ten times as high."""
MAPPINGS = 262_144
"""Two mapped indexes per segment in use; the kernel's default is 65,530."""
SWAPPINESS = 10
KERNEL = Path("/proc/sys")
"""Root of the kernel's settings."""
KAFKAS_BUFFER = 102_400
"""Socket buffer size in the server.properties that Kafka ships."""
LOOPBACK = ("127.", "localhost", "::1")
KRAFT_LISTENER = "CONTROLLER"
"""Name of the controller's listener in the server.properties that Kafka ships."""


# -- listeners ---------------------------------------------------------------------------------


def examine_listeners(settings: BrokerSettings, *, is_running: bool) -> Findings:
    """Check the addresses of the listeners; a running broker uses them."""
    # Keep all sockets until the last one is bound: two listeners may have the same address.
    with ExitStack() as held:
        if (address := settings.metrics_listener) is not None:
            place = f"metrics.listener {address.host}:{address.port}"
            yield _address("metrics", place, address.host, address.port, is_running, held)
        for one in settings.parsed_listeners():
            place = f"{one.name}://{one.host}:{one.port}"
            yield _address("listeners", place, one.host, one.port, is_running, held)
            if one.name.upper() == KRAFT_LISTENER:
                text = f"{place} looks like a KRaft controller's, but would accept clients"
                advice = "remove it from listeners, advertised.listeners and"
                advice += " listener.security.protocol.map"
                yield Finding("listeners", Verdict.WARNING, text, advice)
            everywhere = one.host in ("", "0.0.0.0", "::")
            if everywhere and one.advertised_host.startswith(LOOPBACK):
                advice = "set advertised.listeners: clients on other hosts cannot use this address"
                text = f"{place} is advertised to clients as {one.advertised_host}"
                yield Finding("listeners", Verdict.WARNING, text, advice)
    most = _kernel("net.core.somaxconn")
    wanted = settings.socket_listen_backlog_size
    if most is not None:
        yield graded(
            "listeners",
            wanted <= most,
            f"socket.listen.backlog.size={wanted}, the kernel's somaxconn is {most}",
            f"sysctl net.core.somaxconn={wanted}",
        )


def _address(
    what: str, place: str, host: str, port: int, is_running: bool, held: ExitStack
) -> Finding:
    try:
        held.enter_context(bind(place, host, port))
    except ConfigError as error:
        number = (error.__cause__.errno or 0) if isinstance(error.__cause__, OSError) else 0
        if is_running and number == errno.EADDRINUSE:
            return Finding(what, Verdict.OK, f"{place} is in use by the running broker")
        return Finding(what, Verdict.FAILURE, str(error), _BINDING.get(number, ""))
    return Finding(what, Verdict.OK, f"{place} is free")


_BINDING = {
    errno.EADDRINUSE: "another process or another listener of these settings uses this address",
    errno.EADDRNOTAVAIL: "use an address of this host (`ip address`), or 0.0.0.0 for all",
    errno.EACCES: "use a port above 1023: only root may bind lower ones",
}


# -- the host ----------------------------------------------------------------------------------


class _Buffer(NamedTuple):
    """A socket buffer of client connections, in one direction."""

    key: str
    wanted: int
    limit: str
    """The kernel setting that limits it."""
    costs: str
    """The measured loss of throughput with the size in Kafka's properties."""


def examine_buffers(settings: BrokerSettings) -> Findings:
    """Check the socket buffers against the kernel's limits."""
    sent, received = settings.socket_send_buffer_bytes, settings.socket_receive_buffer_bytes
    for key, wanted, limit, costs in (
        _Buffer("socket.send.buffer.bytes", sent, "net.core.wmem_max", "large fetches by a fifth"),
        _Buffer(
            "socket.receive.buffer.bytes", received, "net.core.rmem_max",
            "batches of 64 KB by a quarter",
        ),
    ):  # fmt: skip
        if wanted < 0:
            continue
        most = _kernel(limit)
        if wanted <= KAFKAS_BUFFER:
            text = f"{key}={wanted} slows down {costs} or more"
            advice = f"remove {key}, although Kafka's file has it: the kernel sizes buffers itself"
            yield Finding("socket buffers", Verdict.WARNING, text, advice)
        elif most is not None:
            yield graded(
                "socket buffers",
                wanted <= most,
                f"{key}={wanted} is limited by the kernel's {limit}={most}",
                f"sysctl {limit}={wanted}, or remove {key}: the kernel sizes buffers itself",
            )


def examine_memory(settings: BrokerSettings) -> Findings:
    """Check the memory of requests against the host's."""
    total = psutil.virtual_memory().total
    queued = settings.queued_max_request_bytes
    if queued < 0:  # as the broker reads it
        queued = BrokerSettings({}).queued_max_request_bytes
    yield graded(
        "memory",
        queued <= total // 4,
        f"requests may use {queued // MB:,} MB (queued.max.request.bytes) of {total // MB:,} MB",
        "lower queued.max.request.bytes: the page cache needs the rest for fast reads",
    )


def examine_host() -> Findings:
    """Check what does not depend on settings."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    yield graded(
        "limits",
        hard == resource.RLIM_INFINITY or hard >= DESCRIPTORS,
        f"at most {hard:,} open file descriptors",
        f"set LimitNOFILE= of the unit, or ulimit -Hn, to at least {DESCRIPTORS:,}",
    )
    for name, is_ok, wanted in _KERNEL:
        value = _kernel(name)
        if value is not None:
            yield graded("kernel", is_ok(value), f"{name} is {value:,}", f"sysctl {name}={wanted}")
    yield from examine_clock()
    by = crc32c.implementation()
    yield graded(
        "processor",
        by != "table",
        f"CRC-32C uses {by}",
        "without SSE4.2 or ARMv8 CRC instructions, checking records takes about ten times as long",
    )


def examine_clock() -> Findings:
    """Check whether the kernel's clock is synchronised."""
    clock = kernel_clock()
    if clock is None:
        return
    yield graded(
        "clock",
        clock.is_synchronised,
        f"the kernel's clock is synchronised, within {clock.max_error_s:.3f} s"
        if clock.is_synchronised
        else "the kernel's clock is not synchronised",
        "run an NTP client (chrony, systemd-timesyncd): retention and timestamps depend on it",
    )


_KERNEL: tuple[tuple[str, Callable[[int], bool], int], ...] = (
    ("vm.max_map_count", lambda value: value >= MAPPINGS, MAPPINGS),
    ("vm.swappiness", lambda value: value <= SWAPPINESS, 1),
    ("vm.overcommit_memory", lambda value: value != 2, 0),
)


def _kernel(name: str) -> int | None:
    """Return a kernel setting; None if the kernel does not have it."""
    try:
        return int((KERNEL / name.replace(".", "/")).read_text())
    except (OSError, ValueError):
        return None
