"""Metrics of the cluster as this broker knows it, and of its session with ZooKeeper."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path

from prometheus_client.metrics_core import Metric

from plog.cluster.controller import Controller
from plog.cluster.member import Member
from plog.cluster.metadata_cache import MetadataCache
from plog.cluster.stray_logs import StrayDirectories
from plog.cluster.znodes import NO_LEADER
from plog.ops.metrics.families import Collector, Family

BROKERS = Family("plog_brokers", "Brokers that are registered.")
CONTROLLER = Family("plog_controller", "1 on the broker that is the controller.")
LEADERLESS = Family("plog_leaderless_partitions", "Partitions of the cluster without a leader.")
MOVING = Family(
    "plog_reassigning_partitions", "Partitions whose replicas the controller moves; 0 elsewhere."
)
ELECTIONS = Family(
    "plog_leader_elections_total", "Leaders that this broker elected as the controller."
)
UNCLEAN = Family(
    "plog_unclean_leader_elections_total",
    "Leaders that it elected out of sync: acknowledged records may be lost.",
)
CONNECTED = Family("plog_zookeeper_connected", "1 while the broker is connected to ZooKeeper.")
SESSIONS = Family("plog_zookeeper_sessions_total", "Sessions with ZooKeeper since the start.")
STRAYS = Family("plog_stray_logs", "Logs of deleted topics that were set aside, and still exist.")


class Cluster(Collector):
    """The cluster of a broker that does not run alone.

    Args:
        log_dirs: the broker's own.
    """

    families = (
        BROKERS,
        CONTROLLER,
        LEADERLESS,
        MOVING,
        ELECTIONS,
        UNCLEAN,
        CONNECTED,
        SESSIONS,
        STRAYS,
    )

    def __init__(
        self,
        metadata: MetadataCache,
        controller: Controller,
        member: Member,
        log_dirs: Iterable[Path],
    ) -> None:
        self._metadata = metadata
        self._controller = controller
        self._member = member
        self._strays = StrayDirectories(log_dirs)

    def collect(self) -> Iterator[Metric]:
        """Yield every family."""
        snapshot = self._metadata.snapshot
        yield BROKERS.one(len(snapshot.brokers))
        yield CONTROLLER.one(self._controller.is_active)
        yield LEADERLESS.one(
            sum(
                one.leader_id == NO_LEADER
                for topic in snapshot.topics.values()
                for one in topic.partitions.values()
            )
        )
        yield MOVING.one(self._controller.moving_partitions)
        yield ELECTIONS.one(self._controller.election_counts.elections)
        yield UNCLEAN.one(self._controller.election_counts.unclean)
        yield CONNECTED.one(self._member.is_connected)
        yield SESSIONS.one(self._member.sessions)
        yield STRAYS.one(self._strays.count())
