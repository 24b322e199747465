"""A member of a consumer group, run as a script: tells what it is assigned, and what it has read.

`group_member.py <client> <settings>`: the client is confluent-kafka, kafka-python, aiokafka or
plog, the settings are a JSON object of `bootstrap`, `group`, `topic`, `assignor`, `session_ms`,
`beat_ms`, `protocol` and `instance` (or null). With the protocol `consumer`, which confluent-kafka
speaks, the assignor is the broker's, and so are the times. It reads from the group's offsets, or
the beginning, commits whatever it has read and then tells it, until its stdin ends; then it closes.
Each line that it prints is JSON:

    {"assigned": [0, 1]}                what it has now, after every change
    {"polled": [[0, 17], [1, 4]]}       partition and offset of records that it is given
    {"committed": [[0, 18], [1, 5]]}    partition and next offset of commits that were acknowledged
    {"read": [[0, 17], [1, 4]]}         records that these commits cover

`java/GroupMember.java` does the same. kafka-python and aiokafka do not say what they committed:
they commit what they have just polled, lest a later commit cover what an earlier one was refused.
"""

from __future__ import annotations

import asyncio
import json
import sys
import threading
from collections.abc import Callable, Iterable
from typing import Any

POLL_MS = 100
NO_EPOCH = -1
POLL_KAFKA_PYTHON_MS = 1000
"""Its release 3.0.12 may send no heartbeats any more if a poll's time is up while it joins."""
Place = tuple[int, int]
"""Partition and offset of a record."""


def tell(**said: object) -> None:
    print(json.dumps(said), flush=True)


class Assignment:
    """What the member has; a change of it is told."""

    def __init__(self) -> None:
        self._partitions: set[int] = set()

    def add(self, places: Iterable[Any]) -> None:
        self._partitions |= {place.partition for place in places}
        self._tell()

    def take(self, places: Iterable[Any]) -> None:
        self._partitions -= {place.partition for place in places}
        self._tell()

    def lose(self) -> None:
        self._partitions.clear()
        self._tell()

    def _tell(self) -> None:
        tell(assigned=sorted(self._partitions))


def places_of(messages: Iterable[Any]) -> list[Place]:
    return sorted((message.partition, message.offset) for message in messages)


def run_confluent(settings: dict[str, Any], is_over: Callable[[], bool]) -> None:
    from confluent_kafka import Consumer, KafkaError, KafkaException

    static = {"group.instance.id": settings["instance"]} if settings["instance"] else {}
    protocol = {
        "session.timeout.ms": settings["session_ms"],
        "heartbeat.interval.ms": settings["beat_ms"],
        "partition.assignment.strategy": settings["assignor"],
    }
    if settings["protocol"] == "consumer":
        protocol = {"group.protocol": "consumer", "group.remote.assignor": settings["assignor"]}
    has = Assignment()

    def joined() -> Consumer:
        consumer = Consumer(
            {
                "bootstrap.servers": settings["bootstrap"],
                "group.id": settings["group"],
                "auto.offset.reset": "earliest",
                "enable.auto.commit": False,
                **static,
                **protocol,
            }
        )
        consumer.subscribe(
            [settings["topic"]],
            on_assign=lambda _, places: has.add(places),
            on_revoke=lambda _, places: has.take(places),
        )
        return consumer

    consumer = joined()
    while not is_over():
        told = consumer.consume(100, POLL_MS / 1000)
        messages = [one for one in told if one.error() is None]
        errors = [one.error() for one in told if one.error() is not None]
        if any(map(is_of_no_group, errors)):
            # It was silent for too long, and those who stayed speak the classic protocol.
            has.lose()
            consumer.close()
            consumer = joined()
            continue
        # What those are told who join a classic group as it becomes a consumer group, and who ask
        # a broker that is away: it asks, or joins, again by itself.
        goes_on = (KafkaError.REBALANCE_IN_PROGRESS, KafkaError._TRANSPORT)
        assert all(one.code() in goes_on for one in errors), errors
        if messages:
            polled = sorted((one.partition(), one.offset()) for one in messages)
            tell(polled=polled)
            try:
                # What was read of partitions that were taken away meanwhile is not committed.
                answers = consumer.commit(asynchronous=False)
            except KafkaException as refused:
                print(f"not committed: {refused}", file=sys.stderr)
                continue
            done = {one.partition: one.offset for one in answers if one.offset >= 0}
            tell(committed=sorted(done.items()))
            tell(read=[(at, offset) for at, offset in polled if offset < done.get(at, 0)])
    consumer.close()


def is_of_no_group(error: Any) -> bool:
    """Tell whether a heartbeat of KIP-848 met a group of another kind, which librdkafka takes for
    its end. A fatal error does not say its code."""
    return bool(error.fatal()) and "The group id does not exist" in error.str()


def run_kafka_python(settings: dict[str, Any], is_over: Callable[[], bool]) -> None:
    from kafka import ConsumerRebalanceListener, KafkaConsumer
    from kafka.coordinator.assignors.range import RangePartitionAssignor
    from kafka.coordinator.assignors.roundrobin import RoundRobinPartitionAssignor
    from kafka.errors import CommitFailedError
    from kafka.structs import OffsetAndMetadata

    assignors = {one.name: one for one in (RangePartitionAssignor, RoundRobinPartitionAssignor)}
    consumer = KafkaConsumer(
        bootstrap_servers=settings["bootstrap"],
        group_id=settings["group"],
        group_instance_id=settings["instance"],
        session_timeout_ms=settings["session_ms"],
        heartbeat_interval_ms=settings["beat_ms"],
        partition_assignment_strategy=[assignors[settings["assignor"]]],
        auto_offset_reset="earliest",
        enable_auto_commit=False,
    )
    has = Assignment()

    class Listener(ConsumerRebalanceListener):
        def on_partitions_assigned(self, assigned: Iterable[Any]) -> None:
            has.add(assigned)

        def on_partitions_revoked(self, revoked: Iterable[Any]) -> None:
            has.take(revoked)

    consumer.subscribe([settings["topic"]], listener=Listener())
    while not is_over():
        found = consumer.poll(POLL_KAFKA_PYTHON_MS)
        messages = [one for some in found.values() for one in some]
        if messages:
            tell(polled=places_of(messages))
            try:
                ends = ((place, some[-1]) for place, some in found.items() if some)
                consumer.commit(
                    {at: OffsetAndMetadata(one.offset + 1, "", NO_EPOCH) for at, one in ends}
                )
            except CommitFailedError as refused:
                print(f"not committed: {refused}", file=sys.stderr)
                continue
            tell(read=places_of(messages))
    consumer.close()


async def run_aiokafka(settings: dict[str, Any], is_over: Callable[[], bool]) -> None:
    from aiokafka import AIOKafkaConsumer, ConsumerRebalanceListener
    from aiokafka.coordinator.assignors.range import RangePartitionAssignor
    from aiokafka.errors import CommitFailedError

    assert settings["assignor"] == RangePartitionAssignor.name
    consumer = AIOKafkaConsumer(
        bootstrap_servers=settings["bootstrap"],
        group_id=settings["group"],
        group_instance_id=settings["instance"],
        session_timeout_ms=settings["session_ms"],
        heartbeat_interval_ms=settings["beat_ms"],
        partition_assignment_strategy=[RangePartitionAssignor],
        auto_offset_reset="earliest",
        enable_auto_commit=False,
    )
    has = Assignment()

    class Listener(ConsumerRebalanceListener):
        def on_partitions_assigned(self, assigned: Iterable[Any]) -> None:
            has.add(assigned)

        def on_partitions_revoked(self, revoked: Iterable[Any]) -> None:
            has.take(revoked)

    consumer.subscribe([settings["topic"]], listener=Listener())
    await consumer.start()
    while not is_over():
        found = await consumer.getmany(timeout_ms=POLL_MS)
        messages = [one for some in found.values() for one in some]
        if messages:
            tell(polled=places_of(messages))
            try:
                ends = ((place, some[-1]) for place, some in found.items() if some)
                await consumer.commit({at: one.offset + 1 for at, one in ends})
            except CommitFailedError as refused:
                print(f"not committed: {refused}", file=sys.stderr)
                continue
            tell(read=places_of(messages))
    await consumer.stop()


def run_plog(settings: dict[str, Any], is_over: Callable[[], bool]) -> None:
    from plog.client.group_consumer import (
        CommitFailed,
        GroupConsumer,
        Listener,
        RebalanceInProgress,
    )

    consumer = GroupConsumer(
        settings["bootstrap"],
        settings["group"],
        group_instance_id=settings["instance"],
        assignors=[settings["assignor"]],
        session_timeout_ms=settings["session_ms"],
        heartbeat_interval_ms=settings["beat_ms"],
        auto_offset_reset="earliest",
        enable_auto_commit=False,
    )
    has = Assignment()
    consumer.subscribe([settings["topic"]], Listener(has.add, has.take))
    polled: list[Place] = []  # and not committed yet
    while not is_over():
        records = consumer.poll(POLL_MS)
        if records:
            tell(polled=places_of(records))
            polled += places_of(records)
        if not polled:
            continue
        try:
            ends = consumer.positions()
            consumer.commit(ends)
        except RebalanceInProgress as refused:
            print(f"not committed yet: {refused}", file=sys.stderr)
            continue
        except CommitFailed as refused:
            print(f"not committed: {refused}", file=sys.stderr)
            polled.clear()
            continue
        done = {at.partition: end.offset for at, end in ends.items()}
        tell(committed=sorted(done.items()))
        # What was read of partitions that were taken away meanwhile is not committed.
        tell(read=[(at, offset) for at, offset in polled if offset < done.get(at, 0)])
        polled.clear()
    consumer.close()


def main(client: str, settings: dict[str, Any]) -> None:
    over = threading.Event()

    def await_end() -> None:
        sys.stdin.read()
        over.set()

    threading.Thread(target=await_end, daemon=True).start()
    if client == "confluent-kafka":
        run_confluent(settings, over.is_set)
    elif client == "kafka-python":
        run_kafka_python(settings, over.is_set)
    elif client == "plog":
        run_plog(settings, over.is_set)
    else:
        asyncio.run(run_aiokafka(settings, over.is_set))


if __name__ == "__main__":
    main(sys.argv[1], json.loads(sys.argv[2]))
