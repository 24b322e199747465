"""Writes the metrics page in the format that its reader accepts.

Owns the registry of collectors. Every value is read while the page is written, so requests pay only
for the counters that they keep anyway.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from prometheus_client import CollectorRegistry, ProcessCollector
from prometheus_client.exposition import choose_encoder
from prometheus_client.metrics_core import InfoMetricFamily

from plog import __version__
from plog._native.histogram import Histogram
from plog._native.reactor import Reactor
from plog._native.topic_traffic import TopicTraffic
from plog.coordinator.group_coordinator import GroupCoordinator
from plog.coordinator.txn_coordinator import TxnCoordinator
from plog.handlers.response_errors import ResponseErrors
from plog.ops.log_counts import LogCounts, LogLines
from plog.ops.metrics.cluster import Cluster
from plog.ops.metrics.coordinators import Groups, Transactions
from plog.ops.metrics.disks import Disks
from plog.ops.metrics.families import BUILD
from plog.ops.metrics.lag import Lag
from plog.ops.metrics.network import Network
from plog.ops.metrics.replication import Replication
from plog.ops.metrics.topics import Topics, Traffic
from plog.runtime.clock import Clock
from plog.storage.log_manager import LogManager


@dataclass(frozen=True)
class Sources:
    """The parts of a broker that have counters."""

    reactor: Reactor
    handlers: Mapping[int, Histogram]
    """Times of requests by API key."""
    errors: ResponseErrors
    listeners: Sequence[str]
    """Names in the order of their ids."""
    traffic: Callable[[], Mapping[str, TopicTraffic]]
    """The traffic of each topic."""
    logs: LogManager
    groups: GroupCoordinator
    transactions: TxnCoordinator
    clock: Clock
    counts_as_slow: Callable[[Path], bool]
    """Whether a log directory's disk is treated as slow."""
    max_group_topics: int
    """How many pairs of a group and a topic have their lag shown."""
    cluster: Cluster | None = None
    """The cluster; None for a broker that runs alone."""
    replication: Replication | None = None
    """The replicas; None for a broker that runs alone."""


class _Build:
    """Release and build."""

    def collect(self) -> Iterator[InfoMetricFamily]:
        name = BUILD.removesuffix("_info")
        yield InfoMetricFamily(name, "Release.", value={"version": __version__})


class MetricsPage:
    """The page of one broker."""

    def __init__(self, sources: Sources, log_counts: LogCounts) -> None:
        # The collectors of the library have no `describe`.
        self._registry = CollectorRegistry(auto_describe=True)
        ProcessCollector(registry=self._registry)
        for collector in (
            _Build(),
            Network(sources.reactor, sources.handlers, sources.errors, sources.listeners),
            Disks(sources.logs, sources.counts_as_slow),
            Groups(sources.groups),
            Transactions(sources.transactions, sources.clock),
            Lag(sources.groups, sources.logs, sources.clock, sources.max_group_topics),
            Topics(sources.logs),
            Traffic(sources.traffic),
            LogLines(log_counts),
            sources.cluster,
            sources.replication,
        ):
            if collector is not None:
                self._registry.register(collector)

    def write(self, names: Collection[str] = (), accept: str = "") -> tuple[bytes, str]:
        """Return the page and its content type.

        Args:
            names: the samples to write; all if empty.
            accept: the reader's Accept header. OpenMetrics if it asks for that, text otherwise.
        """
        # The content type repeats the version, so it must be a plain one.
        versions = re.findall(r"version=([^;,]*)", accept)
        is_plain = all(re.fullmatch(r"[0-9]+(\.[0-9]+)*", one.strip(" ")) for one in versions)
        encode, content_type = choose_encoder(accept if is_plain else "")
        registry = self._registry
        return encode(registry.restricted_registry(names) if names else registry), content_type
