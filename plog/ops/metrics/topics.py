"""Metrics of each topic: its logs in each log directory, and its traffic."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from operator import attrgetter

from prometheus_client.metrics_core import Metric

from plog._native.topic_traffic import TopicTraffic
from plog.ops.metrics.families import Collector, Family, Row, label
from plog.storage.log_manager import LogManager

LABELS = ("topic", "log_dir")
PARTITIONS = Family("plog_partitions", "Partitions.", LABELS)
SIZE = Family("plog_log_bytes", "Size of all segments.", LABELS)
SEGMENTS = Family("plog_log_segments", "Number of segments.", LABELS)
ENDS = Family("plog_log_end_offsets", "Sum of the partitions' log end offsets.", LABELS)
TOPIC = ("topic",)
RECEIVED_RECORDS = Family(
    "plog_topic_received_records_total", "Records of producers that were appended.", TOPIC
)
RECEIVED_BYTES = Family(
    "plog_topic_received_bytes_total",
    "Bytes of the batches of producers that were appended.",
    TOPIC,
)
SENT_RECORDS = Family(
    "plog_topic_sent_records_total",
    "Records in responses to consumers; gaps and markers among them count, too.",
    TOPIC,
)
SENT_BYTES = Family(
    "plog_topic_sent_bytes_total", "Bytes of batches in responses to consumers.", TOPIC
)

Sums = dict[str, dict[str, int]]
"""By log directory and topic. Dictionaries of texts and numbers are nothing to the garbage
collector; tuples as keys would make it look through all objects of the broker."""


class Topics(Collector):
    """The logs of this broker, summed by topic and log directory."""

    families = (PARTITIONS, SIZE, SEGMENTS, ENDS)

    def __init__(self, logs: LogManager) -> None:
        self._logs = logs

    def collect(self) -> Iterator[Metric]:
        """Yield the families that have samples."""
        sums: tuple[Sums, ...] = ({}, {}, {}, {})
        for log in self._logs.logs():
            state = log.native.state()
            topic, log_dir = log.topic_partition.topic, str(log.log_dir)
            values = (1, state.size_bytes, state.segment_count, state.log_end_offset)
            for found, value in zip(sums, values, strict=True):
                of_dir = found.setdefault(log_dir, {})
                of_dir[topic] = of_dir.get(topic, 0) + value
        if sums[0]:
            for family, found in zip(self.families, sums, strict=True):
                yield family.of(_rows(found))


def _rows(sums: Sums) -> Iterator[Row]:
    for log_dir, of_dir in sums.items():
        shown = label(log_dir)
        for topic in sorted(of_dir):
            yield (label(topic), shown), of_dir[topic]


class Traffic(Collector):
    """The traffic of topics with producers or consumers; a topic goes with its last partition.

    Args:
        traffic: returns the counters of each topic of this broker.
    """

    families = (RECEIVED_RECORDS, RECEIVED_BYTES, SENT_RECORDS, SENT_BYTES)

    def __init__(self, traffic: Callable[[], Mapping[str, TopicTraffic]]) -> None:
        self._traffic = traffic

    def collect(self) -> Iterator[Metric]:
        """Yield the families that have samples."""
        found = self._traffic()
        topics = sorted(found)
        for family, count in (
            (RECEIVED_RECORDS, attrgetter("received_records")),
            (RECEIVED_BYTES, attrgetter("received_bytes")),
            (SENT_RECORDS, attrgetter("sent_records")),
            (SENT_BYTES, attrgetter("sent_bytes")),
        ):
            if any(map(count, found.values())):
                yield family.of(_seen(topics, found, count))


def _seen(
    topics: Iterable[str], found: Mapping[str, TopicTraffic], count: Callable[[TopicTraffic], int]
) -> Iterator[Row]:
    for topic in topics:
        if value := count(found[topic]):
            yield (label(topic),), value
