"""The cluster beside Kafka 3.9: Metadata, log directories, elections, reassignments and others."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import pytest

from plog.protocol.messages.cluster import (
    AlterReplicaLogDir,
    AlterReplicaLogDirsRequest,
    AlterReplicaLogDirTopic,
    DescribableLogDirTopic,
    DescribeClusterRequest,
    DescribeLogDirsRequest,
)
from plog.protocol.messages.groups import FindCoordinatorRequest
from plog.protocol.messages.reassignments import (
    AlterPartitionReassignmentsRequest,
    ListPartitionReassignmentsRequest,
    ListPartitionReassignmentsTopics,
    ReassignablePartition,
    ReassignableTopic,
)
from plog.protocol.messages.topics import ElectLeadersRequest, TopicPartitions
from tests.compat.against_kafka.ask import metadata, metadata_of_id, topics_of
from tests.compat.against_kafka.pair import Case, Made, Side, Step, Topic, one
from tests.handlers.wire import NOW_MS, WAIT_MS, make_batch

TWO = Topic(partitions=2)
WRITTEN = Topic(batches=[make_batch([b"a"] * 3, timestamps=[NOW_MS] * 3)])

METADATA = {
    "one": one(metadata("t"), 12, t=TWO),
    "two": one(metadata("t", "u"), 12, t=TWO, u=Topic()),
    "none": one(metadata(), 12),
    "none-0-is-all": one(metadata(auto=True), 0),
    "all": one(metadata(None), 12),
    "unknown": one(metadata("no"), 12),
    "unknown-0-without-creation": one(metadata("no", auto=False), 4),
    "illegal": one(metadata("a b"), 12),
    "illegal-with-creation": one(metadata("a b", auto=True), 12),
    "empty-name": one(metadata(""), 12),
    "twice": one(metadata("t", "t"), 12),
    "good-and-unknown": one(metadata("t", "no"), 12),
    "created": Case(
        [
            Step(metadata("fresh", auto=True), 12),
            Step(metadata("fresh", auto=True), 12, settles=True),
        ],
        {},
    ),
    "created-version-0": Case(
        [
            Step(metadata("fresh", auto=True), 0),
            Step(metadata("fresh", auto=True), 0, settles=True),
        ],
        {},
    ),
    "created-colliding": Case([Step(metadata("a_b", auto=True), 12)], {"a.b": Topic()}),
    "operations-of-topic": one(metadata("t", include_topic_authorized_operations=True), 10),
    "operations-of-cluster": one(metadata(include_cluster_authorized_operations=True), 10),
    "operations-of-topic-12": one(metadata("t", include_topic_authorized_operations=True), 12),
    "by-id": one(metadata_of_id((None, "t")), 12),
    "by-id-10": one(metadata_of_id((None, "t")), 10),
    "by-unknown-id": one(metadata_of_id((None, "no")), 12),
    "by-id-and-name": one(metadata_of_id(("t", "t")), 12),
    "by-id-and-other-name": one(metadata_of_id(("u", "t")), 12),
    "by-nothing": one(metadata_of_id((None, None)), 12),
    "by-null-name-10": one(metadata_of_id((None, None)), 10),
    "by-name-and-by-id": one(metadata_of_id(("t", None), (None, "t")), 12),
}


def log_dirs(*topics: tuple[str, Sequence[int]], every: bool = False) -> Made:
    def make(side: Side) -> DescribeLogDirsRequest:
        return DescribeLogDirsRequest(
            topics=None if every else topics_of(DescribableLogDirTopic, side, topics)
        )

    return make


def move(path: str, *topics: tuple[str, Sequence[int]]) -> Made:
    """To a log directory by its number, or by a path."""

    def make(side: Side) -> AlterReplicaLogDirsRequest:
        where = str(side.log_dirs[int(path)]) if path.isdecimal() else path
        return AlterReplicaLogDirsRequest(
            dirs=[
                AlterReplicaLogDir(
                    path=where, topics=topics_of(AlterReplicaLogDirTopic, side, topics)
                )
            ]
        )

    return make


BOTH = {"t": WRITTEN}
LOG_DIRS = {
    "one": Case(
        [
            Step(move("1", ("t", [0])), 2),
            Step(log_dirs(("t", [0])), 4, settles=True),
            Step(move("0", ("t", [0])), 2),
            Step(log_dirs(("t", [0])), 4, settles=True),
        ],
        BOTH,
    ),
    "of-nothing": one(log_dirs(), 4),
    "of-unknown-topic": one(log_dirs(("no", [0])), 4),
    "of-unknown-partition": one(log_dirs(("t", [7])), 4),
    "moved-to-unknown-directory": one(move("/no/such", ("t", [0])), 2),
    "moved-to-relative-path": one(move("data", ("t", [0])), 2),
    "moved-unknown-topic": one(move("0", ("no", [0])), 2),
    "moved-unknown-partition": one(move("0", ("t", [7])), 2),
    "moved-unknown-topic-to-unknown-directory": one(move("/no/such", ("no", [0])), 2),
    "moved-nothing": one(move("0"), 2),
}  # fmt: skip


def elect(kind: int, *topics: tuple[str, Sequence[int]], every: bool = False) -> Made:
    def make(side: Side) -> ElectLeadersRequest:
        return ElectLeadersRequest(
            election_type=kind,
            topic_partitions=None if every else topics_of(TopicPartitions, side, topics),
            timeout_ms=WAIT_MS,
        )

    return make


ELECTIONS = {
    "preferred": one(elect(0, ("t", [0])), 2),
    "unclean": one(elect(1, ("t", [0])), 2),
    "all": one(elect(0, every=True), 2),
    "all-unclean": one(elect(1, every=True), 2),
    "unknown-topic": one(elect(0, ("no", [0])), 2),
    "unknown-topic-unclean": one(elect(1, ("no", [0])), 2),
    "unknown-partition": one(elect(0, ("t", [0, 7])), 2),
    "unknown-type": one(elect(2, ("t", [0])), 2),
    "nothing": one(elect(0), 2),
}


def reassign(*parts: tuple[str, int, Sequence[int] | None], **options: bool) -> Made:
    def partition(index: int, replicas: Sequence[int] | None) -> ReassignablePartition:
        return ReassignablePartition(
            partition_index=index, replicas=None if replicas is None else list(replicas)
        )

    def make(side: Side) -> AlterPartitionReassignmentsRequest:
        return AlterPartitionReassignmentsRequest(
            timeout_ms=WAIT_MS,
            topics=topics_of(
                ReassignableTopic, side, ((name, [partition(*rest)]) for name, *rest in parts)
            ),
            **options,
        )

    return make


def reassignments(*topics: tuple[str, Sequence[int]], every: bool = False) -> Made:
    def make(side: Side) -> ListPartitionReassignmentsRequest:
        return ListPartitionReassignmentsRequest(
            timeout_ms=WAIT_MS,
            topics=None if every else topics_of(ListPartitionReassignmentsTopics, side, topics),
        )

    return make


REASSIGNMENTS = {
    "to-the-same": one(reassign(("t", 0, [0])), 0),
    "cancelled-that-is-none": one(reassign(("t", 0, None)), 0),
    "to-unknown-broker": one(reassign(("t", 0, [7])), 0),
    "to-nobody": one(reassign(("t", 0, [])), 0),
    "to-broker-twice": one(reassign(("t", 0, [0, 0])), 0),
    "to-negative-broker": one(reassign(("t", 0, [-1])), 0),
    "unknown-topic": one(reassign(("no", 0, [0])), 0),
    "unknown-topic-cancelled": one(reassign(("no", 0, None)), 0),
    "unknown-partition": one(reassign(("t", 7, [0])), 0),
    "good-and-bad": one(reassign(("t", 0, [0]), ("u", 0, [7])), 0, t=Topic(), u=Topic()),
    "nothing": one(reassign(), 0),
    "listed": one(reassignments(("t", [0])), 0),
    "listed-all": one(reassignments(every=True), 0),
    "listed-unknown": one(reassignments(("no", [0])), 0),
    "listed-none": one(reassignments(), 0),
}


def find(key: str = "", kind: int = 0, keys: Sequence[str] = ()) -> Made:
    return lambda side: FindCoordinatorRequest(key=key, key_type=kind, coordinator_keys=list(keys))


COORDINATORS = {
    "unknown-type": one(find(keys=["g"], kind=3), 4),
    "unknown-type-3": one(find(kind=3), 3),
    "negative-type": one(find(kind=-1), 3),
    "share-group": one(find(keys=["g"], kind=2), 5),
    "share-group-6": one(find(keys=["g"], kind=2), 6),
    "nothing": one(find(), 4),
}


def cluster(**options: object) -> Made:
    given = {"include_cluster_authorized_operations": False, **options}
    return lambda side: DescribeClusterRequest(**given)


CLUSTER = {
    "ordinary": one(cluster(), 1),
    "operations": one(cluster(include_cluster_authorized_operations=True), 1),
    "controllers": one(cluster(endpoint_type=2), 1),
    "endpoints-of-type-0": one(cluster(endpoint_type=0), 1),
    "endpoints-of-type-3": one(cluster(endpoint_type=3), 1),
}

CASES = {
    f"{api}/{name}": case
    for api, cases in {
        "Metadata": METADATA,
        "LogDirs": LOG_DIRS,
        "ElectLeaders": ELECTIONS,
        "PartitionReassignments": REASSIGNMENTS,
        "FindCoordinator": COORDINATORS,
        "DescribeCluster": CLUSTER,
    }.items()
    for name, case in cases.items()
}


@pytest.mark.parametrize("name", CASES)
def test_answers_are_those_of_kafka(hold: Callable[[str, Case], None], name: str) -> None:
    hold(name, CASES[name])
