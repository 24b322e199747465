"""A consumer of assigned partitions: positions, polling, seeking, offsets by time.

Owns positions, their resets, and the records fetched ahead of the application.
`group_consumer` owns groups. Not thread-safe.
"""

from __future__ import annotations

import logging
import select
import time
from collections import deque
from collections.abc import Iterable, Mapping
from typing import NamedTuple

from plog.client import fetcher
from plog.client.arguments import at_least
from plog.client.attempts import RETRY_BACKOFF_S
from plog.client.connection import Connection
from plog.client.fetcher import Ask, Fetched, Limits
from plog.client.metadata import Cluster, cluster_of, no_leader
from plog.client.offsets import (
    EARLIEST,
    LATEST,
    OffsetAndMetadata,
    OffsetAndTimestamp,
    ask_leaders,
    list_offsets,
    with_metadata,
)
from plog.client.record_stream import RecordStream
from plog.client.retry_log import RetryLog
from plog.errors import (
    ErrorCode,
    InvalidConfig,
    KafkaError,
    NetworkException,
    OffsetOutOfRange,
    PlogError,
)
from plog.types import NO_EPOCH, TopicPartition

__all__ = [
    "Consumer",
    "ConsumerRecord",
    "NotAssigned",
    "OffsetAndMetadata",
    "OffsetAndTimestamp",
    "list_offsets",
]

log = logging.getLogger(__name__)

LARGEST_OFFSET = 2**63 - 1
RESETS = {"earliest": EARLIEST, "latest": LATEST}
ISOLATION_LEVELS = {
    "read_uncommitted": fetcher.READ_UNCOMMITTED,
    "read_committed": fetcher.READ_COMMITTED,
}
BUFFERED_FETCHES = 1
"""A broker gets no fetch while one of its partitions has more undelivered fetches than this."""


class ConsumerClosed(PlogError):
    """`poll` or `assign` after `close`."""


class NotAssigned(PlogError):
    """The partition is not assigned to the consumer."""


class ConsumerRecord(NamedTuple):
    """A record and its position.

    `timestamp` is ms since 1970; `timestamp_type` 0 CreateTime, 1 LogAppendTime. `leader_epoch` is
    the epoch of the leader that wrote it, -1 if it is not known.
    """

    topic: str
    partition: int
    offset: int
    timestamp: int
    timestamp_type: int
    key: bytes | None
    value: bytes | None
    headers: tuple[tuple[str, bytes | None], ...]
    leader_epoch: int = NO_EPOCH


class _Position:
    """The position in one partition. A seek creates a new one, so that older fetches miss it.

    Invariant: the buffered records go from `offset` to `fetch_offset` without a gap. A fault was
    met at `fetch_offset`, and no records after it are used.
    """

    __slots__ = (
        "buffered",
        "fault",
        "fetch_offset",
        "high_watermark",
        "leader_epoch",
        "offset",
        "paused",
        "served",
    )

    def __init__(
        self, offset: int | None, leader_epoch: int = NO_EPOCH, *, paused: bool = False
    ) -> None:
        self.offset = offset  # of the next record to return; None until reset
        self.leader_epoch = leader_epoch  # of the last record read, if known
        self.fetch_offset = offset or 0
        self.paused = paused
        self.high_watermark = -1
        self.served = 0  # the last poll that returned records of it
        self.buffered: deque[RecordStream] = deque()
        self.fault: KafkaError | None = None  # for the next poll to raise


class _NodeFetch(NamedTuple):
    """A Fetch in flight: its partitions and their offsets."""

    positions: dict[TopicPartition, _Position]
    offsets: dict[TopicPartition, int]

    def goes_on(self, partition: TopicPartition, position: _Position | None) -> bool:
        """Return whether its records are the next ones of the position.

        False if the partition was unassigned or a seek has moved it, if an earlier batch could not
        be read, or if another leader has answered meanwhile.
        """
        return (
            position is self.positions[partition]
            and position.fault is None
            and position.fetch_offset == self.offsets[partition]
        )


class Consumer:
    """Reads assigned partitions.

    While the application processes the records of `poll`, the next fetch is in flight. A partition
    has at most two fetches buffered, so max_partition_fetch_bytes and fetch_max_bytes bound the
    memory.

    Args:
        bootstrap_servers: "host:port,...", or a cluster, which stays open when this client closes.
        auto_offset_reset: "earliest", "latest" or "none": the position if it is unset or out of
            range ("none": raise OffsetOutOfRange).
        isolation_level: "read_uncommitted" or "read_committed".
        fetch_max_wait_ms, fetch_min_bytes, fetch_max_bytes, max_partition_fetch_bytes: as Kafka's.
            A batch that is larger than these is still fetched.
        max_poll_records: maximum records of one poll, shared among the partitions.

    Raises:
        InvalidConfig: an argument is invalid.
    """

    def __init__(
        self,
        bootstrap_servers: str | Iterable[str] | Cluster,
        *,
        client_id: str = "plog-consumer",
        auto_offset_reset: str = "latest",
        isolation_level: str = "read_uncommitted",
        fetch_max_wait_ms: int = 500,
        fetch_min_bytes: int = 1,
        fetch_max_bytes: int = 50 * 1024 * 1024,
        max_partition_fetch_bytes: int = 1024 * 1024,
        max_poll_records: int = 500,
        request_timeout_ms: int = 30_000,
    ) -> None:
        if auto_offset_reset not in (*RESETS, "none"):
            raise InvalidConfig(
                f"invalid auto_offset_reset={auto_offset_reset!r}: use earliest, latest, none"
            )
        if isolation_level not in ISOLATION_LEVELS:
            raise InvalidConfig(
                f"invalid isolation_level={isolation_level!r}: use {', '.join(ISOLATION_LEVELS)}"
            )
        at_least(1, max_poll_records=max_poll_records)
        at_least(
            0,
            fetch_max_wait_ms=fetch_max_wait_ms,
            fetch_min_bytes=fetch_min_bytes,
            fetch_max_bytes=fetch_max_bytes,
            max_partition_fetch_bytes=max_partition_fetch_bytes,
        )
        self._cluster, self._is_own = cluster_of(bootstrap_servers, client_id, request_timeout_ms)
        self._request_timeout_ms = request_timeout_ms
        self._reset = auto_offset_reset
        self._limits = Limits(
            max_wait_ms=fetch_max_wait_ms,
            min_bytes=fetch_min_bytes,
            max_bytes=fetch_max_bytes,
            partition_max_bytes=max_partition_fetch_bytes,
            isolation_level=ISOLATION_LEVELS[isolation_level],
        )
        self._max_poll_records = max_poll_records
        self._is_closed = False
        self._polls = 0
        # In the order of their requests: a partition that has returned data goes to the end.
        self._positions: dict[TopicPartition, _Position] = {}
        # Connections of our own, so that other requests do not wait behind a Fetch.
        self._connections: dict[int, Connection] = {}
        self._in_flight: dict[int, _NodeFetch] = {}
        # After a failure: the time of the next attempt, and its log.
        self._is_retrying, self._retry_at = False, 0.0
        self._retries = RetryLog(log)

    def __enter__(self) -> Consumer:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close every connection and drop the buffered records."""
        for node_id in list(self._connections):
            self._drop_connection(node_id)
        if self._is_own:
            self._cluster.close()
        self._positions.clear()
        self._is_closed = True

    def _check_open(self) -> None:
        if self._is_closed:
            raise ConsumerClosed("the consumer is closed")

    @property
    def isolation_level(self) -> int:
        """The isolation level, as requests have it."""
        return self._limits.isolation_level

    def partitions_for(self, topic: str) -> list[TopicPartition]:
        """Return the partitions of a topic.

        Raises:
            UnknownTopicOrPartition: it does not exist.
        """
        return [TopicPartition(topic, p) for p in sorted(self._cluster.topic(topic).partitions)]

    def assign(self, partitions: Iterable[TopicPartition]) -> None:
        """Read only these partitions; those that were assigned before keep their positions.

        Raises:
            ConsumerClosed: after close().
        """
        self._check_open()
        self._positions = {
            partition: self._positions.get(partition) or _Position(None) for partition in partitions
        }

    def assignment(self) -> list[TopicPartition]:
        """Return the assigned partitions."""
        return sorted(self._positions)

    def seek(self, partition: TopicPartition, offset: int | OffsetAndMetadata) -> None:
        """Set the position: an offset, or a group's committed offset.

        Raises:
            NotAssigned: the partition is not assigned.
            ValueError: the offset is negative or above the largest offset.
        """
        to = with_metadata(offset)
        if not 0 <= to.offset <= LARGEST_OFFSET:
            raise ValueError(
                f"invalid offset {to.offset} for {partition}: use 0 to {LARGEST_OFFSET},"
                " seek_to_beginning or seek_to_end"
            )
        self._move(partition, to.offset, to.leader_epoch)

    def seek_to_beginning(self, partitions: Iterable[TopicPartition] | None = None) -> None:
        """Go to the log start offset of each partition (all assigned ones by default)."""
        self._seek_to(partitions, EARLIEST)

    def seek_to_end(self, partitions: Iterable[TopicPartition] | None = None) -> None:
        """Go to the end of each partition (all assigned ones by default)."""
        self._seek_to(partitions, LATEST)

    def pause(self, partitions: Iterable[TopicPartition]) -> None:
        """Do not return records of these partitions until `resume`; keep the buffered ones."""
        for partition in partitions:
            self._position(partition).paused = True

    def resume(self, partitions: Iterable[TopicPartition]) -> None:
        """Undo `pause`."""
        for partition in partitions:
            self._position(partition).paused = False

    def paused(self) -> list[TopicPartition]:
        """Return the paused partitions."""
        return sorted(p for p, position in self._positions.items() if position.paused)

    def position(self, partition: TopicPartition) -> int:
        """Return the offset of the next record that poll returns.

        Raises:
            NotAssigned: the partition is not assigned.
            OffsetOutOfRange: it has no position, and auto_offset_reset is "none".
        """
        position = self._position(partition)
        if position.offset is None:
            self._seek_to([partition], self._reset_time([partition]))
            position = self._position(partition)
        assert position.offset is not None
        return position.offset

    def known_positions(self) -> dict[TopicPartition, OffsetAndMetadata]:
        """Return the positions that are known, as offsets to commit."""
        return {
            at: OffsetAndMetadata(one.offset, leader_epoch=one.leader_epoch)
            for at, one in self._positions.items()
            if one.offset is not None
        }

    def high_watermark(self, partition: TopicPartition) -> int:
        """Return the high watermark of the last fetch, -1 before the first."""
        return self._position(partition).high_watermark

    def beginning_offsets(self, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, int]:
        """Return the log start offset of each partition."""
        found = self.offsets_for_times(dict.fromkeys(partitions, EARLIEST))
        return {partition: at.offset for partition, at in found.items()}

    def end_offsets(self, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, int]:
        """Return the offset after the last readable record of each partition."""
        found = self.offsets_for_times(dict.fromkeys(partitions, LATEST))
        return {partition: at.offset for partition, at in found.items()}

    def offsets_for_times(
        self, times: Mapping[TopicPartition, int]
    ) -> dict[TopicPartition, OffsetAndTimestamp]:
        """Return the first offset of each partition at or after a time.

        Args:
            times: ms since 1970, or -1 for the end, -2 for the start, -3 for the latest record.

        Raises:
            UnknownTopicOrPartition: no such partition.
            KafkaError: no leader answers within request_timeout_ms.
        """
        return list_offsets(
            self._cluster,
            times,
            self._limits.isolation_level,
            timeout_ms=self._request_timeout_ms,
        )

    def poll(self, timeout_ms: int = 1000) -> list[ConsumerRecord]:
        """Return records as soon as there are any, or [] after `timeout_ms`.

        Waits for brokers that are down and leaders that move. Records then continue where they
        ended, none lost, none twice. Each look-up of leaders or offsets that a broker does not
        answer may hold the call for request_timeout_ms.

        Raises:
            OffsetOutOfRange: with auto_offset_reset="none".
            CorruptRecord: a batch cannot be read; `seek` past it to continue.
            KafkaError: another error that a retry cannot solve.
            ConsumerClosed: after close().
        """
        self._check_open()
        deadline = time.monotonic() + timeout_ms / 1000
        while True:
            found = self._take()
            if found:
                self._look_ahead()
                return found
            self._send_fetches()
            # Until a response, or the time of the next attempt after a failure. A look-up that no
            # broker answered may have taken all the time.
            wait_s = left_s = deadline - time.monotonic()
            if self._is_retrying:
                wait_s = min(left_s, self._retry_at - time.monotonic())
            if self._in_flight:
                self._receive_fetches(max(wait_s, 0))
            elif wait_s > 0:
                time.sleep(wait_s)
            if left_s <= 0:
                return self._take()

    def _take(self) -> list[ConsumerRecord]:
        """Return buffered records: an equal share of every partition, then more."""
        self._polls += 1
        ready = [
            (partition, position)
            for partition, position in self._positions.items()
            if position.buffered and not position.paused
        ]
        # The partition that has waited longest comes first.
        ready.sort(key=lambda entry: entry[1].served)
        found: list[ConsumerRecord] = []
        most = self._max_poll_records
        for quota in (max(most // len(ready), 1), most) if ready else ():
            for partition, position in ready:
                taken = _deliver(partition, position, min(quota, most - len(found)))
                if taken:
                    found += taken
                    position.served = self._polls
        if not found:
            for position in self._positions.values():
                if position.fault is not None and not position.buffered and not position.paused:
                    fault, position.fault = position.fault, None
                    raise fault
        return found

    def _look_ahead(self) -> None:
        """Read responses that have arrived and send the next fetches, before `poll` returns."""
        if self._in_flight:
            self._receive_fetches(0)
        self._send_fetches()

    def _send_fetches(self) -> None:
        """Send a Fetch to every broker that may get one.

        Looks up the leaders and positions that are not known from time to time; the other
        partitions do not wait for them.
        """
        self._drop_useless_fetches()
        if not self._is_retrying or time.monotonic() >= self._retry_at:
            self._is_retrying = False
            try:
                if self._find_positions():
                    self._find_leaders()
            except KafkaError as fault:
                if self._reset == "none" and isinstance(fault, OffsetOutOfRange):
                    raise
                self._back_off(fault)
        for node_id, asks in self._due().items():
            self._send_fetch(node_id, asks)

    def _drop_useless_fetches(self) -> None:
        """Give up a Fetch whose records are not used: it might wait at the broker for long."""
        for node_id, asked in list(self._in_flight.items()):
            if not any(asked.goes_on(p, self._positions.get(p)) for p in asked.offsets):
                self._drop_connection(node_id)

    def _find_positions(self) -> bool:
        """Ask the leaders where partitions without a position begin; False if no broker answers."""
        unset = [p for p, at in self._positions.items() if at.offset is None and not at.paused]
        if not unset:
            return True
        times = dict.fromkeys(unset, self._reset_time(unset))
        found, fault = ask_leaders(self._cluster, times, self._limits.isolation_level)
        for partition, at in found.items():
            self._move(partition, at.offset)
        if fault is None:
            return True
        lost = isinstance(fault, NetworkException)
        has_answered = any(self._cluster.known_leader(partition) is not None for partition in unset)
        for partition in times.keys() - found.keys():
            self._cluster.forget(partition.topic)
        self._back_off(fault)
        return has_answered or not lost

    def _find_leaders(self) -> None:
        """Ask about partitions whose leader is not known, and again later if it stays unknown."""
        wanted = [p for p, at in self._positions.items() if not at.paused and at.fault is None]
        unknown = {p.topic for p in wanted if self._cluster.known_leader(p) is None}
        if not unknown:
            return
        self._cluster.refresh(sorted(unknown))
        for partition in wanted:
            refused = self._cluster.errors.get(partition.topic)
            if refused is not None and not refused.retriable:
                self._positions[partition].fault = refused
            elif self._cluster.known_leader(partition) is None:
                self._back_off(no_leader(partition))

    def _due(self) -> dict[int, list[Ask]]:
        """Return the partitions to fetch from each broker now."""
        asks: dict[int, list[Ask]] = {}
        full: set[int] = set(self._in_flight)
        for partition, position in self._positions.items():
            leader = self._cluster.known_leader(partition)
            if leader is None or position.paused:
                continue
            if position.offset is None or position.fault is not None:
                continue
            if len(position.buffered) > BUFFERED_FETCHES:
                # A fetch without this partition might wait at the broker for max_wait_ms, and this
                # partition, the busiest, behind it.
                full.add(leader.leader_id)
            ask = Ask(partition, position.fetch_offset, leader.leader_epoch)
            asks.setdefault(leader.leader_id, []).append(ask)
        return {node_id: wanted for node_id, wanted in asks.items() if node_id not in full}

    def _send_fetch(self, node_id: int, asks: list[Ask]) -> None:
        try:
            connection = self._connections.get(node_id)
            if connection is None or not connection.is_usable:
                self._drop_connection(node_id)
                connection = self._connections[node_id] = self._cluster.open(node_id)
            fetcher.send_fetch(connection, asks, self._limits)
        except KafkaError as fault:
            self._drop_connection(node_id)
            for ask in asks:
                self._cluster.forget(ask.partition.topic)
            self._back_off(fault)
            return
        self._in_flight[node_id] = _NodeFetch(
            {ask.partition: self._positions[ask.partition] for ask in asks},
            {ask.partition: ask.offset for ask in asks},
        )

    def _receive_fetches(self, timeout_s: float) -> None:
        """Wait for a response until the timeout or a fetch's deadline; handle the responses."""
        now = time.monotonic()
        deadlines = {n: self._connections[n].deadline or now for n in self._in_flight}
        waited = select.poll()
        nodes = {self._connections[node_id].fileno(): node_id for node_id in self._in_flight}
        for descriptor in nodes:
            waited.register(descriptor, select.POLLIN)
        wait_s = min(timeout_s, max(min(deadlines.values()) - now, 0))
        ready = {nodes[descriptor] for descriptor, _ in waited.poll(wait_s * 1000)}
        now = time.monotonic()
        for node_id, deadline in deadlines.items():
            if node_id in ready:
                self._receive_fetch(node_id)
            elif now >= deadline:
                self._lose(node_id, self._connections[node_id].timed_out())

    def _receive_fetch(self, node_id: int) -> None:
        asked = self._in_flight[node_id]
        try:
            fetched = fetcher.receive_fetch(self._connections[node_id], asked.offsets)
        except KafkaError as fault:
            self._lose(node_id, fault)
            return
        del self._in_flight[node_id]
        for answer in fetched:
            # Otherwise the next Fetch asks from the present position.
            if asked.goes_on(answer.partition, self._positions.get(answer.partition)):
                self._accept(answer, asked.positions[answer.partition])

    def _accept(self, fetched: Fetched, position: _Position) -> None:
        fault = fetched.error
        if fault is None:
            position.high_watermark = fetched.high_watermark
            if len(fetched.records):
                position.buffered.append(RecordStream(fetched, position.fetch_offset))
                position.fetch_offset = fetched.next_offset
                # Last in the order: the next response has room for the others first.
                self._positions[fetched.partition] = self._positions.pop(fetched.partition)
        elif isinstance(fault, OffsetOutOfRange):
            if position.buffered:
                return  # deliver the buffered records first; then it is fetched again
            if self._reset == "none":
                position.fault = fault
            else:
                log.warning("%s; going to the %s offset", fault, self._reset)
                self._positions[fetched.partition] = _Position(None, paused=position.paused)
        elif fault.retriable and fault.code != ErrorCode.CORRUPT_MESSAGE:
            self._cluster.forget(fetched.partition.topic)
            self._back_off(fault)
        else:
            position.fault = fault

    def _lose(self, node_id: int, fault: KafkaError) -> None:
        """Give a fetch up; the next one asks again from the end of the buffers."""
        asked = self._in_flight[node_id]
        self._drop_connection(node_id)
        for partition in asked.offsets:
            self._cluster.forget(partition.topic)
        self._back_off(fault)

    def _drop_connection(self, node_id: int) -> None:
        self._in_flight.pop(node_id, None)
        connection = self._connections.pop(node_id, None)
        if connection is not None:
            connection.close()

    def _back_off(self, fault: KafkaError) -> None:
        """Schedule another attempt, or raise an error that a retry cannot solve."""
        if not fault.retriable:
            raise fault
        self._is_retrying, self._retry_at = True, time.monotonic() + RETRY_BACKOFF_S
        self._retries.warn(fault)

    def _reset_time(self, partitions: Iterable[TopicPartition]) -> int:
        if self._reset == "none":
            raise OffsetOutOfRange(
                f"no position for {', '.join(map(str, partitions))} and auto_offset_reset=none:"
                " use seek"
            )
        return RESETS[self._reset]

    def _seek_to(self, partitions: Iterable[TopicPartition] | None, timestamp: int) -> None:
        wanted = list(self._positions) if partitions is None else list(partitions)
        for partition in wanted:
            self._position(partition)
        times = dict.fromkeys(wanted, timestamp)
        isolation_level = self._limits.isolation_level
        found = list_offsets(
            self._cluster, times, isolation_level, timeout_ms=self._request_timeout_ms
        )
        for partition, at in found.items():
            self._move(partition, at.offset)

    def _move(self, partition: TopicPartition, offset: int, leader_epoch: int = NO_EPOCH) -> None:
        before = self._position(partition)
        moved = self._positions[partition] = _Position(offset, leader_epoch, paused=before.paused)
        moved.high_watermark = before.high_watermark

    def _position(self, partition: TopicPartition) -> _Position:
        position = self._positions.get(partition)
        if position is None:
            raise NotAssigned(f"{partition} is not assigned to this consumer")
        return position


def _deliver(partition: TopicPartition, position: _Position, most: int) -> list[ConsumerRecord]:
    """Return records of one partition, and move its position past them."""
    found: list[ConsumerRecord] = []
    while position.buffered and len(found) < most:
        stream = position.buffered[0]
        try:
            taken, leader_epoch = stream.take_of_epoch(most - len(found))
            exhausted = stream.is_exhausted
        except KafkaError as fault:
            # The next poll raises it, and each later one, until the application seeks past it. A
            # fetch from after it may be in flight: see `_NodeFetch.goes_on`.
            position.buffered.clear()
            position.fetch_offset = position.offset or 0
            position.fault = fault
            break
        found += [ConsumerRecord._make((*partition, *record, leader_epoch)) for record in taken]
        if taken:
            position.offset = taken[-1].offset + 1
            position.leader_epoch = leader_epoch
        if exhausted:
            # Past control records, aborted transactions and compacted offsets.
            position.offset = max(position.offset or 0, stream.next_offset)
            position.leader_epoch = stream.leader_epoch
            position.buffered.popleft()
    return found
