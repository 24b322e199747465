"""Notices that unclean elections become allowed: the controller looks at its partitions again.

Owns which topics allow them as far as this broker has heard. It elects no leader: each
broker reports to its own controller, and only the active one acts.
"""

from __future__ import annotations

from collections.abc import Callable

from plog.settings.definitions import BrokerSettings, TopicSettings
from plog.settings.dynamic import DynamicSettings


class UncleanElections:
    """Reports each change of `unclean.leader.election.enable` to true.

    Args:
        enabled: called with a topic, or with None for the default of all topics.
    """

    def __init__(self, settings: DynamicSettings, enabled: Callable[[str | None], None]) -> None:
        self._enabled = enabled
        self._by_default = settings.broker().unclean_leader_election_enable
        self._topics: set[str] = set()
        settings.on_broker_change(self._on_broker_change)
        settings.on_topic_change(self._on_topic_change)

    def _on_broker_change(self, settings: BrokerSettings) -> None:
        before, self._by_default = self._by_default, settings.unclean_leader_election_enable
        if self._by_default and not before:
            self._enabled(None)

    def _on_topic_change(self, topic: str, settings: TopicSettings) -> None:
        if not settings.unclean_leader_election_enable:
            self._topics.discard(topic)
        elif topic not in self._topics:
            self._topics.add(topic)
            self._enabled(topic)
