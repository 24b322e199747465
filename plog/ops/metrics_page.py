"""The broker's metrics as a page for Prometheus.

Owns the names and the format. Reads every value when the page is requested, in the page's thread,
so requests pay only for the counters that they keep anyway. Names follow Prometheus' rules: units
are seconds and bytes, and only counters end in _total.
"""

from __future__ import annotations

import logging
import os
import resource
import shutil
import socket
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from itertools import accumulate, chain, groupby
from operator import attrgetter
from pathlib import Path
from typing import NamedTuple

from plog import __version__
from plog._native.histogram import Histogram, upper_bounds
from plog._native.log_append import appended
from plog._native.log_flush import flush_times
from plog._native.reactor import Reactor
from plog.coordinator.group_coordinator import GroupCoordinator
from plog.coordinator.txn_coordinator import TxnCoordinator
from plog.ops.coordinator_metrics import groups_of, transactions_of
from plog.ops.page_server import PageServer
from plog.printable import printable
from plog.protocol.api_keys import ApiKey
from plog.runtime.clock import Clock
from plog.storage.log_manager import LogManager

log = logging.getLogger(__name__)

PATH = "/metrics"
BUILD = "plog_build_info"
FAST, PYTHON = "fast", "python"
"""The path that answered a request."""
BOUNDS = range(19, 103, 2)
"""Indexes of the histogram buckets that the page shows: two per octave, from 64 us to two minutes.
The other buckets count in the next shown one."""


@dataclass(frozen=True)
class Sources:
    """The parts of a broker that have counters."""

    reactor: Reactor
    handlers: Mapping[int, Histogram]
    """By API key."""
    logs: LogManager
    groups: GroupCoordinator
    transactions: TxnCoordinator
    clock: Clock
    counts_as_slow: Callable[[Path], bool]
    """Whether a log directory's disk counts as slow."""


class Family(NamedTuple):
    """One metric: name, Prometheus type, help text and sample lines."""

    name: str
    kind: str
    text: str
    lines: list[str]


def write(families: Iterable[Family], names: Collection[str] = ()) -> str:
    """Return the page; with `names`, only the samples with these names."""
    written = []
    for family in families:
        lines = family.lines
        if names:
            lines = [line for line in lines if line.partition(" ")[0].partition("{")[0] in names]
            if not lines:
                continue
        written.append(f"# HELP {family.name} {family.text}")
        written.append(f"# TYPE {family.name} {family.kind}")
        written.extend(lines)
    return "\n".join([*written, ""])


def collect(sources: Sources) -> Iterator[Family]:
    """Yield every family, the largest last. Callable from any thread."""
    yield Family(BUILD, "gauge", "Release.", [f"{BUILD}{{{_label('version', __version__)}}} 1"])
    yield from _process()
    yield from _network(sources)
    yield from _disks(sources.logs, sources.counts_as_slow)
    yield from _coordinators(sources)
    yield from topics_of(sources.logs)


def _process() -> Iterator[Family]:
    # The names are those of all Prometheus client libraries.
    pages = Path("/proc/self/statm").read_text().split()
    in_page = resource.getpagesize()
    most, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    for name, text, value in (
        ("cpu_seconds_total", "CPU time of all threads, in seconds.", time.process_time()),
        ("resident_memory_bytes", "Resident memory.", int(pages[1]) * in_page),
        ("virtual_memory_bytes", "Virtual memory.", int(pages[0]) * in_page),
        ("start_time_seconds", "Start time, in seconds since 1970.", _started_s()),
        ("open_fds", "Open file descriptors.", len(os.listdir("/proc/self/fd"))),
        ("max_fds", "Maximum number of open file descriptors.", most),
    ):
        yield _one(f"process_{name}", text, value)


@cache
def _started_s() -> float:
    # Computed once from ticks since boot, because the wall clock may be set meanwhile.
    ticks = int(Path("/proc/self/stat").read_text().rpartition(")")[2].split()[19])
    age_s = time.clock_gettime(time.CLOCK_BOOTTIME) - ticks / os.sysconf("SC_CLK_TCK")
    return round(time.time() - age_s, 2)


def _network(sources: Sources) -> Iterator[Family]:
    stats = sources.reactor.stats()
    for name, text, value in (
        ("connections", "Open client connections.", stats.connections),
        ("request_memory_bytes", "Memory of requests and receive buffers.", stats.queued_bytes),
        ("requests_waiting", "Requests waiting in the network threads.", stats.waiting),
        ("connections_accepted_total", "Connections, including refused ones.", stats.accepted),
        ("connections_refused_total", "Connections refused by a limit.", stats.refused),
        ("received_bytes_total", "Bytes read from clients.", stats.bytes_in),
        ("sent_bytes_total", "Bytes written to clients.", stats.bytes_out),
    ):
        yield _one(f"plog_{name}", text, value)
    yield Family(
        "plog_handed_over_total",
        "counter",
        "Requests handed over from the fast path to Python.",
        [
            f"plog_handed_over_total{{{_label('reason', reason)}}} {count}"
            for reason, count in stats.handed_over.items()
        ],
    )
    name = "plog_request_duration_seconds"
    lines = []
    for api, path, histogram in (
        (ApiKey.PRODUCE, FAST, stats.produce_times),
        (ApiKey.FETCH, FAST, stats.fetch_times),
        *((api, PYTHON, found) for api, found in sorted(sources.handlers.items())),
    ):
        lines += _buckets(
            name, f"{_label('api', _api_name(api))},{_label('path', path)}", histogram
        )
    yield Family(name, "histogram", "Time from reading a request to its response.", lines)


def _disks(logs: LogManager, counts_as_slow: Callable[[Path], bool]) -> Iterator[Family]:
    records, size = appended()
    yield _one("plog_appended_records_total", "Records appended to logs.", records)
    yield _one("plog_appended_bytes_total", "Bytes of batches appended to logs.", size)
    name = "plog_flush_duration_seconds"
    lines = _buckets(name, "", flush_times())
    yield Family(name, "histogram", "Duration of fdatasync calls for logs.", lines)
    online, free, refusing, refused, slow = [], [], [], [], []
    for path, live in list(logs.dirs.items()):
        labels = f"{{{_label('log_dir', str(path))}}}"
        online.append(f"plog_log_dir_online{labels} {int(live.failure is None)}")
        refused.append(f"plog_log_dir_refused_writes_total{labels} {live.refused_writes}")
        if live.failure is None:
            refusing.append(f"plog_log_dir_refusing{labels} {int(live.room.left <= 0)}")
            slow.append(f"plog_log_dir_slow{labels} {int(counts_as_slow(path))}")
            with suppress(OSError):  # it is lost; the next write reports that
                free.append(f"plog_log_dir_free_bytes{labels} {shutil.disk_usage(path).free}")
    yield Family("plog_log_dir_online", "gauge", "1 while the log directory works.", online)
    yield Family("plog_log_dir_free_bytes", "gauge", "Free space on its file system.", free)
    for name, kind, text, lines in (
        ("refusing", "gauge", "1 while writes are refused for lack of disk space.", refusing),
        ("refused_writes_total", "counter", "Writes refused for lack of disk space.", refused),
        ("slow", "gauge", "1 while the disk is treated as slow.", slow),
    ):
        yield Family(f"plog_log_dir_{name}", kind, text, lines)
    text = "Log directories of the broker that were missing at its start."
    yield _one("plog_missing_log_dirs", text, len(logs.missing_log_dirs))
    yield _one("plog_offline_partitions", "Partitions that are offline.", len(logs.offline))


def _coordinators(sources: Sources) -> Iterator[Family]:
    now_ms = sources.clock.now_ms()
    samples = chain(groups_of(sources.groups), transactions_of(sources.transactions, now_ms))
    for (name, text), some in groupby(samples, attrgetter("name", "text")):
        lines = [
            f"{name} {one.value}"
            if one.label is None
            else f"{name}{{{_label(*one.label)}}} {one.value}"
            for one in some
        ]
        yield Family(name, _kind(name), text, lines)


def topics_of(logs: LogManager) -> Iterator[Family]:
    """Yield the metrics of each topic in each log directory."""
    # Keyed by label text: the garbage collector does not track strings and numbers. Tuples of some
    # thousand topics would make it scan all objects of the broker.
    partitions: dict[str, int] = {}
    sizes: dict[str, int] = {}
    segments: dict[str, int] = {}
    ends: dict[str, int] = {}
    for held in logs.logs():
        state = held.native.state()
        topic = _label("topic", held.topic_partition.topic)
        labels = f"{topic},{_label('log_dir', str(held.log_dir))}"
        partitions[labels] = partitions.get(labels, 0) + 1
        sizes[labels] = sizes.get(labels, 0) + state.size_bytes
        segments[labels] = segments.get(labels, 0) + state.segment_count
        ends[labels] = ends.get(labels, 0) + state.log_end_offset
    places = sorted(partitions)
    for name, text, found in (
        ("plog_partitions", "Partitions.", partitions),
        ("plog_log_bytes", "Size of all segments.", sizes),
        ("plog_log_segments", "Number of segments.", segments),
        ("plog_log_end_offsets", "Sum of the partitions' log end offsets.", ends),
    ):
        lines = [f"{name}{{{labels}}} {found[labels]}" for labels in places]
        yield Family(name, "gauge", text, lines)


def _one(name: str, text: str, value: float) -> Family:
    return Family(name, _kind(name), text, [f"{name} {value}"])


def _kind(name: str) -> str:
    return "counter" if name.endswith("_total") else "gauge"


def _buckets(name: str, labels: str, histogram: Histogram) -> list[str]:
    uppers, below = upper_bounds(), list(accumulate(histogram.counts))
    before = f"{name}_bucket{{{labels}{labels and ','}le="
    whole = f"{{{labels}}}" if labels else ""
    return [
        *(f'{before}"{(uppers[at] + 1) / 1e6}"}} {below[at]}' for at in BOUNDS),
        f'{before}"+Inf"}} {below[-1]}',
        f"{name}_sum{whole} {histogram.total_us / 1e6}",
        f"{name}_count{whole} {below[-1]}",
    ]


def _api_name(api: int) -> str:
    """Return an API's name as Kafka writes it: ApiVersions."""
    return "".join(word.capitalize() for word in ApiKey(api).name.split("_"))


def _label(key: str, value: str) -> str:
    """Return a label as text; a value may come from a client, so it is escaped."""
    escaped = printable(value).replace("\\", r"\\").replace('"', r"\"")
    return f'{key}="{escaped}"'


class MetricsPage:
    """Serves the page at /metrics of a listening socket, from `start` to `stop`."""

    def __init__(self, listening: socket.socket, sources: Sources) -> None:
        self._host, self._port = listening.getsockname()[:2]

        def page(names: Collection[str]) -> str:
            return write(collect(sources), names)

        self._server = PageServer(listening, PATH, page)

    @property
    def port(self) -> int:
        """The port of the listening socket."""
        return int(self._port)

    def start(self) -> None:
        """Start serving the page."""
        self._server.start()
        host = f"[{self._host}]" if ":" in self._host else self._host
        log.info("metrics at http://%s:%d%s", host, self._port, PATH)

    def stop(self) -> None:
        """Stop serving the page; takes at most two seconds."""
        self._server.stop()
