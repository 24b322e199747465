"""What the broker counts, as a page that Prometheus reads.

Owns the names and the HTTP server. Everything is asked for when the page is read, in the thread
that serves it, so that counting costs requests nothing beyond the counters they keep anyhow. Names
follow Prometheus' rules: seconds and bytes, counters end in _total.
"""

from __future__ import annotations

import logging
import shutil
import socket
import threading
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from socketserver import ThreadingMixIn
from typing import Any
from wsgiref.simple_server import WSGIRequestHandler, WSGIServer

from prometheus_client import CollectorRegistry, ProcessCollector, make_wsgi_app
from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    InfoMetricFamily,
    Metric,
)
from prometheus_client.registry import Collector

from plog import __version__
from plog._native.histogram import Histogram, upper_bounds
from plog._native.log_flush import flush_times
from plog._native.reactor import Reactor
from plog.protocol.api_keys import ApiKey
from plog.storage.log_manager import LogManager

log = logging.getLogger(__name__)

FAST, PYTHON = "fast", "python"
"""Which plane answered."""
BOUNDS = range(19, 103, 2)
"""Of the histograms' buckets, those whose upper bounds the page names: two in each octave, from
64 us to two minutes. What is below the first and between them counts in the next."""
READERS = 8
"""Who may read the page at once; a further one waits."""
READER_TIMEOUT_S = 10.0


@dataclass(frozen=True)
class Sources:
    """The parts of a broker that count."""

    reactor: Reactor
    handlers: Mapping[int, Histogram]
    """By API key."""
    logs: LogManager


class BrokerCollector(Collector):
    """Asks a broker's parts for what they have counted. From any thread."""

    def __init__(self, sources: Sources) -> None:
        self._sources = sources

    def collect(self) -> Iterator[Metric]:
        """Yield every family, the fullest last."""
        yield InfoMetricFamily("plog_build", "The release.", {"version": __version__})
        yield from self._network()
        yield from self._disks()
        yield from self._topics()

    def _network(self) -> Iterator[Metric]:
        stats = self._sources.reactor.stats()
        for name, text, value in (
            ("connections", "Client connections open now.", stats.connections),
            ("request_memory_bytes", "Memory of requests and receive buffers.", stats.queued_bytes),
            ("requests_waiting", "Requests that wait in the network threads.", stats.waiting),
        ):
            yield GaugeMetricFamily(f"plog_{name}", text, value)
        for name, text, value in (
            ("connections_accepted", "Connections that came, those refused too.", stats.accepted),
            ("connections_refused", "Connections closed at the door.", stats.refused),
            ("received_bytes", "Bytes read from clients.", stats.bytes_in),
            ("sent_bytes", "Bytes written to clients.", stats.bytes_out),
        ):
            yield CounterMetricFamily(f"plog_{name}", text, value)
        handed_over = CounterMetricFamily(
            "plog_handed_over", "Requests that the fast path left to Python.", labels=["reason"]
        )
        for reason, count in stats.handed_over.items():
            handed_over.add_metric([reason], count)
        yield handed_over
        times = HistogramMetricFamily(
            "plog_request_duration_seconds",
            "From a request's coming to its answer.",
            labels=["api", "path"],
        )
        for api, path, histogram in (
            (ApiKey.PRODUCE, FAST, stats.produce_times),
            (ApiKey.FETCH, FAST, stats.fetch_times),
            *((api, PYTHON, found) for api, found in sorted(self._sources.handlers.items())),
        ):
            _add(times, [_name(api), path], histogram)
        yield times

    def _disks(self) -> Iterator[Metric]:
        times = HistogramMetricFamily(
            "plog_flush_duration_seconds", "How long each fdatasync of a log took."
        )
        _add(times, [], flush_times())
        yield times
        online = GaugeMetricFamily(
            "plog_log_dir_online", "Whether a log directory works.", labels=["log_dir"]
        )
        free = GaugeMetricFamily(
            "plog_log_dir_free_bytes", "Space left on its file system.", labels=["log_dir"]
        )
        for path, live in list(self._sources.logs.dirs.items()):
            online.add_metric([str(path)], live.failure is None)
            if live.failure is None:
                free.add_metric([str(path)], shutil.disk_usage(path).free)
        yield online
        yield free
        yield GaugeMetricFamily(
            "plog_offline_partitions",
            "Partitions that cannot be served.",
            len(self._sources.logs.offline),
        )

    def _topics(self) -> Iterator[Metric]:
        labels = ["topic", "log_dir"]
        partitions = GaugeMetricFamily("plog_partitions", "Partitions held.", labels=labels)
        sizes = GaugeMetricFamily("plog_log_bytes", "Bytes of their segments.", labels=labels)
        segments = GaugeMetricFamily("plog_log_segments", "Their segments.", labels=labels)
        ends = CounterMetricFamily(
            "plog_log_end_offsets", "The sum of their log end offsets.", labels=labels
        )
        totals: dict[tuple[str, str], list[int]] = {}
        for held in self._sources.logs.logs():
            state = held.native.state()
            total = totals.setdefault((held.topic_partition.topic, str(held.log_dir)), [0, 0, 0, 0])
            counted = (1, state.size_bytes, state.segment_count, state.log_end_offset)
            for at, number in enumerate(counted):
                total[at] += number
        for place, total in sorted(totals.items()):
            partitions.add_metric(place, total[0])
            sizes.add_metric(place, total[1])
            segments.add_metric(place, total[2])
            ends.add_metric(place, total[3])
        yield from (partitions, sizes, segments, ends)


def _name(api: int) -> str:
    """Return a key as Kafka writes it: ApiVersions."""
    return "".join(word.capitalize() for word in ApiKey(api).name.split("_"))


def _add(family: HistogramMetricFamily, labels: list[str], histogram: Histogram) -> None:
    counts, uppers = histogram.counts, upper_bounds()
    named = [(str((uppers[at] + 1) / 1e6), sum(counts[: at + 1])) for at in BOUNDS]
    family.add_metric(labels, [*named, ("+Inf", sum(counts))], histogram.total_us / 1e6)


class _Handler(WSGIRequestHandler):
    timeout = READER_TIMEOUT_S

    def log_message(self, format: str, *arguments: Any) -> None:
        """Say nothing of each reader."""


class _Server(ThreadingMixIn, WSGIServer):
    daemon_threads = True

    def __init__(self, listening: socket.socket) -> None:
        self._room = threading.BoundedSemaphore(READERS)
        address = listening.getsockname()
        super().__init__(address, _Handler, bind_and_activate=False)
        self.socket.close()
        self.socket = listening
        self.server_address = address
        self.server_name, self.server_port = address[:2]
        self.setup_environ()

    def process_request(self, request: Any, client_address: Any) -> None:
        """Serve in a thread, once there is room: `serve_forever` waits, and so do who come."""
        self._room.acquire()
        super().process_request(request, client_address)

    def process_request_thread(self, request: Any, client_address: Any) -> None:
        """Serve one reader; whatever becomes of it is no matter of the broker's."""
        try:
            super().process_request_thread(request, client_address)
        finally:
            self._room.release()

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Say in a line that a reader went away or asked nonsense."""
        log.debug("a reader of the metrics page, %s, was not served", client_address, exc_info=True)


class MetricsPage:
    """The page, at /metrics of a listening socket, from `start` to `stop`."""

    def __init__(self, listening: socket.socket, collectors: Iterable[Collector]) -> None:
        registry = CollectorRegistry()
        ProcessCollector(registry=registry)
        for collector in collectors:
            registry.register(collector)
        self._server = _Server(listening)
        self._server.set_app(make_wsgi_app(registry))
        self._thread = threading.Thread(
            target=self._server.serve_forever, name="metrics page", daemon=True
        )

    @property
    def port(self) -> int:
        """Where it listens."""
        return int(self._server.server_port)

    def start(self) -> None:
        """Serve from now on, in a thread of its own."""
        self._thread.start()

    def stop(self) -> None:
        """Stop listening; who is being served may go on."""
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()
