"""The base of the administrative clients: their arguments, and their connections."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Self

from plog.client.metadata import Cluster, cluster_of
from plog.errors import UnknownTopicOrPartition
from plog.types import TopicPartition


class Administration:
    """Connections to a cluster, opened when they are needed and closed at the end.

    Args:
        bootstrap_servers: "host:port,...", or a cluster, which stays open when this client closes.
        request_timeout_ms: how long each response may take, and how long a call waits for a
            coordinator or leader that moves. A request that itself makes the broker wait, such as
            CreateTopics, may take twice as long.
    """

    def __init__(
        self,
        bootstrap_servers: str | Iterable[str] | Cluster,
        *,
        client_id: str = "plog-admin",
        request_timeout_ms: int = 30_000,
    ) -> None:
        self._timeout_ms = request_timeout_ms
        self._cluster, self._is_own = cluster_of(bootstrap_servers, client_id, request_timeout_ms)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def partitions_of(self, topic: str, numbers: Iterable[int] = ()) -> list[TopicPartition]:
        """Return these partitions of a topic; without numbers all of them.

        Raises:
            UnknownTopicOrPartition: no such topic or partition.
        """
        known = self._cluster.topic(topic).partitions
        wanted = [TopicPartition(topic, number) for number in sorted(set(numbers) or known)]
        for at in wanted:
            if at.partition not in known:
                raise UnknownTopicOrPartition(f"partition {at} does not exist")
        return wanted

    def close(self) -> None:
        """Close every connection."""
        if self._is_own:
            self._cluster.close()
