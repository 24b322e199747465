"""What bin/bench-coordinators measures: rows, how large they are, and what is hoped for."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from bench_clients import Clients
    from bench_costs import SharedKafka

COSTS, FAST, GROUPS, REBALANCE, START = "costs", "fast", "groups", "rebalance", "start"
COPYING, LOAD = "copying", "load"
LOAD_REPLACED, LOAD_KEPT = f"{LOAD}/replaced", f"{LOAD}/kept"
PAGE_CACHE, DISK = "page-cache", "disk"

ACKS_1, IN_ORDER, ACKS_ALL = "acks=1", "acks=all, in order", "acks=all"
IDEMPOTENT, TRANSACTIONS = "idempotent", "transactions"
"""Ways to produce. In order without idempotence means one request in flight."""

PLOG, KAFKA = "plog", "kafka"
"""Whose broker is loaded."""

HEARTBEAT_S = 3.0
"""Java's heartbeat.interval.ms."""
CLASSIC, CONSUMER = "classic", "consumer"
"""Protocols of groups: the clients assign, or the coordinator does (KIP-848)."""
CONSUMER_HEARTBEAT_S = 5.0
"""group.consumer.heartbeat.interval.ms: by the consumer protocol it is the broker who tells."""


class Comparison(NamedTuple):
    """One way to produce beside another.

    Attributes:
        published: the change of rate to be beaten. None: a loss should not be measurable.
        differs: what else is not the same, so that the rate says nothing of the goal.
    """

    ours: str
    theirs: str
    published: float | None
    differs: str = ""


COMPARISONS = (
    Comparison(TRANSACTIONS, IN_ORDER, -0.03),
    Comparison(TRANSACTIONS, ACKS_1, -0.20),
    Comparison(IDEMPOTENT, ACKS_ALL, None),
    # A client that keeps the order anyhow has no other without idempotence.
    Comparison(IDEMPOTENT, IN_ORDER, None, "one request in flight"),
)
LARGEST_UNSEEN_LOSS = 0.03
"""What should not be measurable is smaller than the smallest loss that was published."""
FAST_GOAL = 0.99


class CopyingLoad(NamedTuple):
    """What an application that copies exactly once does in one transaction.

    Attributes:
        records: at most, as many as a poll gives.
        abort_every: every so-manieth transaction is aborted, 0 for none.
        batch_bytes: of the producer, where it is to send several requests; else its default.
    """

    about: str
    records: int
    abort_every: int = 0
    batch_bytes: int = 0


COPYING_LOADS = {
    f"{COPYING}/small": CopyingLoad("20 records", 20),
    f"{COPYING}/many-writes": CopyingLoad("500 records in batches of some 10", 500, 0, 200),
    f"{COPYING}/aborts": CopyingLoad("20 records, every tenth aborted", 20, 10),
}
JAVA_CLIENTS = ("kafka-clients-3.9.1", "kafka-clients-4.4.0")
"""Of version 1 of transactions, and of version 2: as in tests/compat/programs.py."""
REBALANCE_GOAL_S = 2.0


class Row(NamedTuple):
    """One measurement, made for each of its contestants in every round.

    Attributes:
        kind: which program measures it.
        client: who loads the broker, where that differs.
        durable: whether acks=all waits for the disk, or for the page cache as Kafka's does.
        protocol: of groups.
        interval_s: of heartbeats.
        server: whose broker it is that is loaded.
    """

    name: str
    kind: str
    contestants: tuple[str, ...]
    about: str
    client: str = "java"
    durable: bool = True
    protocol: str = CLASSIC
    interval_s: float = HEARTBEAT_S
    server: str = PLOG


class Extent(NamedTuple):
    """How large everything is.

    Attributes:
        warm_up_rounds: of producers, whose figures nobody sees.
        beating_s: how long heartbeats are counted.
        faster: heartbeats come so many times as often as a row says.
        rebalances: of each kind in a round.
        copied: records, of which the first quarter is not counted.
        commits: in the partition that a broker loads.
        delay_ms: group.initial.rebalance.delay.ms, within which a group's first members come.
    """

    seconds: float
    warmup_s: float
    warm_up_rounds: int
    groups: int
    connections: int
    beating_s: float
    faster: float
    members: int
    rebalances: int
    delay_ms: int
    offsets_bytes: int
    segment_bytes: int
    copied: int
    commits: int


FULL = Extent(
    seconds=3.0,
    warmup_s=1.0,
    warm_up_rounds=1,
    groups=10_000,
    connections=100,
    beating_s=30.0,
    faster=1.0,
    members=200,
    rebalances=5,
    delay_ms=3_000,
    offsets_bytes=10**9,
    segment_bytes=100 << 20,
    copied=40_000,
    commits=1_000_000,
)
SHORT = Extent(
    seconds=0.3,
    warmup_s=0.1,
    warm_up_rounds=0,
    groups=50,
    connections=5,
    beating_s=1.0,
    faster=5.0,
    members=8,
    rebalances=1,
    delay_ms=200,
    offsets_bytes=3_000_000,
    segment_bytes=1 << 20,
    copied=2_000,
    commits=3_000,
)
"""Does everything work?"""


class Turn(NamedTuple):
    """Where and how large a measurement is, and what the measurements of a run share."""

    where: Path
    extent: Extent
    clients: Clients
    kafka: SharedKafka


ROWS = (
    *(
        Row(
            f"{COSTS}/{client}/{safety}",
            COSTS,
            contestants,
            f"{name}, 1 KB records, transactions of 100 ms; acks=all is safe {where}.",
            client=client,
            durable=safety == DISK,
        )
        for client, name, contestants in (
            ("java", "Java's producer", (ACKS_1, IN_ORDER, ACKS_ALL, IDEMPOTENT, TRANSACTIONS)),
            ("plog", "plog's producer", (ACKS_1, IN_ORDER, IDEMPOTENT, TRANSACTIONS)),
        )
        for safety, where in (
            (PAGE_CACHE, "in the page cache (flush.before.ack=false)"),
            (DISK, "on the disk"),
        )
    ),
    Row(
        f"{COSTS}/java/kafka",
        COSTS,
        (ACKS_1, IN_ORDER, ACKS_ALL, IDEMPOTENT, TRANSACTIONS),
        "The same of Java's producer beside Apache Kafka 4.1: what of it is the client's.",
        durable=False,
        server=KAFKA,
    ),
    Row(
        f"{FAST}/java",
        FAST,
        ("plog",),
        "Java's transactional producer and a group of two that reads what is committed: which share"
        " of Produce and Fetch Python never sees.",
        durable=False,
    ),
    *(
        Row(
            name,
            COPYING,
            JAVA_CLIENTS,
            "A Java application that consumes, produces and commits both in one transaction of"
            f" {load.about}, and a group that reads what it commits: which share of Produce and"
            " Fetch Python never sees.",
            durable=False,
        )
        for name, load in COPYING_LOADS.items()
    ),
    Row(
        GROUPS,
        GROUPS,
        ("plog",),
        "10,000 groups of one member each: memory, and the cost of a heartbeat every 3 s.",
    ),
    Row(
        f"{GROUPS}/{CONSUMER}",
        GROUPS,
        ("plog",),
        "The same by the consumer protocol (KIP-848), with a heartbeat every 5 s.",
        protocol=CONSUMER,
        interval_s=CONSUMER_HEARTBEAT_S,
    ),
    *(
        Row(
            f"{REBALANCE}/{interval_s:g}s",
            REBALANCE,
            ("plog",),
            "A member joins a group of 200 and leaves it again: until all have their assignment,"
            f" with heartbeats every {interval_s:g} s.",
            interval_s=interval_s,
        )
        for interval_s in (HEARTBEAT_S, 0.5)
    ),
    *(
        Row(
            f"{REBALANCE}/{CONSUMER}/{interval_s:g}s",
            REBALANCE,
            ("plog",),
            "The same by the consumer protocol (KIP-848): until all own what they are to have, with"
            f" heartbeats every {interval_s:g} s.",
            protocol=CONSUMER,
            interval_s=interval_s,
        )
        for interval_s in (CONSUMER_HEARTBEAT_S, 0.5)
    ),
    Row(
        START,
        START,
        ("plog",),
        "A start on a partition of 1 GB of __consumer_offsets, until the groups' coordinator"
        " answers: before compaction and after.",
    ),
    *(
        Row(
            name,
            LOAD,
            ("plog",),
            f"A start on a partition of __consumer_offsets with a million commits {which}, until"
            " the groups' coordinator answers.",
        )
        for name, which in (
            (LOAD_REPLACED, "of 1,000 partitions, again and again"),
            (LOAD_KEPT, "of a million partitions"),
        )
    ),
)
