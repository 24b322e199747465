"""Places in partitions, as `plog consume` takes them: earliest, latest, an offset, or a time.

Owns how a place is read, and which offset it means in each partition. Never moves a position,
except to the start of a partition whose leader was not known before.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING

import click
from click.shell_completion import CompletionItem

from plog.cli.output import is_number, time_ms

if TYPE_CHECKING:
    from plog.client.consumer import Consumer
    from plog.client.metadata import Cluster
    from plog.client.offsets import OffsetAndTimestamp
    from plog.errors import KafkaError
    from plog.types import TopicPartition

    Found = Mapping[TopicPartition, OffsetAndTimestamp]
    LookUp = Callable[[Mapping[TopicPartition, int]], Found]
    """Returns the offsets at times; it may lack partitions."""

EARLIEST, LATEST, MAX_TIMESTAMP = "earliest", "latest", "max-timestamp"
STARTS = (EARLIEST, LATEST)
MEANINGS = {
    EARLIEST: "The first record of the log.",
    LATEST: "The end of the log.",
    MAX_TIMESTAMP: "The record with the highest timestamp.",
}
Complete = Callable[[click.Context, click.Parameter, str], list[CompletionItem[str]]]


def complete_names(*names: str) -> Complete:
    """Return the completion of an option that takes names of places beside offsets or times."""

    def complete(
        _context: click.Context, _option: click.Parameter, beginning: str
    ) -> list[CompletionItem[str]]:
        return [
            CompletionItem(name, help=MEANINGS[name])
            for name in names
            if name.startswith(beginning)
        ]

    return complete


def check_place(text: str, option: str, names: tuple[str, ...]) -> None:
    """Refuse an argument that is no name, offset or time.

    Raises:
        click.BadParameter: the message names `option`.
    """
    if text.startswith("@"):
        time_ms(text[1:], option)
    elif text not in names and not is_number(text.removeprefix("-")):
        wanted = ", ".join((*names, "an offset"))
        raise click.BadParameter(f"{text!r} is not {wanted} or @TIME", param_hint=option)


class LateStarts:
    """Starts each partition of a consumer at a place, once its leader answers.

    A partition without a leader is paused meanwhile, so that the others do not wait for it.

    Args:
        consumer: reads with `cluster`; its partitions are assigned.
        place: not a name, because the consumer itself waits to start at the ends.
    """

    look_s = 1.0
    """How often to ask again."""

    def __init__(self, cluster: Cluster, consumer: Consumer, place: str) -> None:
        self._cluster, self._consumer, self._place = cluster, consumer, place
        self._waiting = consumer.assignment()
        self._look_at = time.monotonic()
        consumer.pause(self._waiting)

    def look_now_and_then(self) -> None:
        """Start the partitions whose leaders answer now.

        Raises:
            KafkaError: an error that a retry cannot solve.
        """
        if not self._waiting or time.monotonic() < self._look_at:
            return
        consumer = self._consumer
        # Another part of the command drops partitions of deleted topics.
        assigned = set(consumer.assignment())
        waiting = [at for at in self._waiting if at in assigned]
        started = resolve(self._place, waiting, self._ask)
        for partition, offset in started.items():
            consumer.seek(partition, offset)
        consumer.resume(started)
        self._waiting = [at for at in waiting if at not in started]
        self._look_at = time.monotonic() + self.look_s

    def _ask(self, times: Mapping[TopicPartition, int]) -> Found:
        return ask_now(self._cluster, times, self._consumer.isolation_level)[0]


def ask_now(
    cluster: Cluster, times: Mapping[TopicPartition, int], isolation_level: int
) -> tuple[Found, dict[TopicPartition, KafkaError]]:
    """Ask each leader once; return the offsets found, and the errors of the other partitions.

    Raises:
        KafkaError: an error that a retry cannot solve.
    """
    from plog.client.offsets import ask_each
    from plog.errors import KafkaError

    found: Found
    try:
        found, faults = ask_each(cluster, times, isolation_level)
    except KafkaError as lost:  # no broker answers now
        found, faults = {}, dict.fromkeys(times, lost)
    for fault in faults.values():
        if not fault.retriable:
            raise fault
    return found, faults


def resolve(
    place: str, partitions: Sequence[TopicPartition], look_up: LookUp
) -> dict[TopicPartition, int]:
    """Return the offset of a place in each partition whose offsets are found."""
    from plog.client import offsets as times

    def bounds(end: int) -> dict[TopicPartition, int]:
        return {at: one.offset for at, one in look_up(dict.fromkeys(partitions, end)).items()}

    if place == EARLIEST:
        return bounds(times.EARLIEST)
    ends = bounds(times.LATEST)
    if place == LATEST:
        return ends
    if place.startswith("@"):
        found = look_up(dict.fromkeys(ends, time_ms(place[1:], "TIME")))
        return {at: one.offset if one.offset >= 0 else ends[at] for at, one in found.items()}
    starts, offset = bounds(times.EARLIEST), int(place)
    return {
        at: min(max(end + offset if place.startswith("-") else offset, starts[at]), end)
        for at, end in ends.items()
        if at in starts
    }
