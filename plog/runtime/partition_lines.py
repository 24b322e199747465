"""Log lines about many partitions: one line per topic and event, single partitions at DEBUG."""

from __future__ import annotations

import logging
from collections.abc import Iterable
from typing import Protocol

from plog.types import TopicPartition, counted


class Lines(Protocol):
    """A logger, or rate-limited lines of one."""

    def log(self, level: int, text: str, /, *arguments: object) -> None:
        """Log a line."""
        ...


def log_partitions(
    lines: Lines,
    level: int,
    text: str,
    partitions: Iterable[TopicPartition],
    *arguments: object,
    plural: str | None = None,
) -> None:
    """Log an event of partitions: a line per topic at a level, a line per partition at DEBUG.

    Args:
        text: takes the partitions first: `flights-0`, or `50 partitions of flights`.
        arguments: what the text takes after them.
        plural: the text for several partitions, where it differs.
    """
    by_topic: dict[str, list[TopicPartition]] = {}
    for tp in partitions:
        by_topic.setdefault(tp.topic, []).append(tp)
    for topic, several in by_topic.items():
        if len(several) == 1:
            lines.log(level, text, several[0], *arguments)
            continue
        named = f"{counted(len(several), 'partition')} of {topic}"
        lines.log(level, plural or text, named, *arguments)
        for tp in several:
            lines.log(logging.DEBUG, text, tp, *arguments)
