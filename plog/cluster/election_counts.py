"""Counts the elections that a controller has written down, from its own election on.

Decides nothing: it compares the states before and after.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from plog.cluster.controller_context import PartitionState
from plog.cluster.controller_events import StateWrite
from plog.cluster.znodes import NO_LEADER
from plog.types import TopicPartition


class ElectionCounts:
    """The elections of one broker's controller.

    Attributes:
        elections: how often a partition got another leader. Its first leader does not count.
        unclean: how many of these leaders were not in sync: what they lacked is lost.
    """

    def __init__(self) -> None:
        self.elections = self.unclean = 0

    def add(
        self, written: Iterable[StateWrite], before: Mapping[TopicPartition, PartitionState]
    ) -> None:
        """Count those of some written states.

        Args:
            before: the states that they replace.
        """
        for partition, state, _ in written:
            known = before.get(partition)
            if known is not None and state.leader not in (NO_LEADER, known.leader):
                self.elections += 1
                self.unclean += state.leader not in known.isr
