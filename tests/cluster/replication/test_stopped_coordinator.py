"""A coordinator that was stopped past its session does not answer from its memory."""

from __future__ import annotations

import socket
from collections.abc import Iterator, Mapping
from contextlib import suppress
from functools import partial
from pathlib import Path

import pytest

from plog.client.admin import Admin
from plog.client.group_admin import GroupAdmin
from plog.errors import ErrorCode, KafkaError
from plog.protocol.messages.offsets import (
    OffsetFetchRequest,
    OffsetFetchRequestGroup,
    OffsetFetchRequestTopics,
    OffsetFetchResponse,
)
from plog.types import TopicPartition
from tests.cluster.processes import Brokers, ids_of
from tests.compat.live_kafka import ZooKeeper
from tests.handlers.running import decoded, framed, receive
from tests.waiting import until

GROUP = "g"
AT = TopicPartition("t", 0)
VERSION = 9
WAIT_S = 60
COMMIT_MS = 3_000


@pytest.fixture
def brokers(tmp_path: Path, zookeeper: ZooKeeper) -> Iterator[Brokers]:
    running = Brokers(
        tmp_path,
        zookeeper.bootstrap,
        offsets_topic_num_partitions=1,
        offsets_topic_replication_factor=3,
    )
    with running:
        yield running


def test_offset_fetch_on_waking_is_not_answered_from_memory(brokers: Brokers) -> None:
    request = OffsetFetchRequest(
        groups=[
            OffsetFetchRequestGroup(
                group_id=GROUP,
                topics=[OffsetFetchRequestTopics(name=AT.topic, partition_indexes=[AT.partition])],
            )
        ]
    )
    with Admin(brokers.bootstrap) as topics:
        topics.create_topic(AT.topic, partitions=1, replication_factor=3)
    with GroupAdmin(brokers.bootstrap) as admin:
        admin.commit(GROUP, {AT: 1})
        old = admin.describe(GROUP).coordinator.node_id
        brokers.all_until(lambda one: in_sync(one) == {0, 1, 2})
        others = ",".join(one.bootstrap for one in brokers.brokers if one is not brokers[old])
        with socket.create_connection(("127.0.0.1", brokers[old].port), WAIT_S) as client:
            with brokers[old].suspended():
                with Admin(others) as other:
                    until(lambda: old not in ids_of(other), "it is away")
                until(partial(commits, others, {AT: 2}), "another one coordinates")
                client.sendall(framed(request, VERSION, 1))
            (found,) = decoded(OffsetFetchResponse, VERSION, receive(client)).groups
    assert (found.error_code, found.topics) == (ErrorCode.NOT_COORDINATOR, [])
    with GroupAdmin(brokers.bootstrap) as admin:
        assert admin.committed(GROUP) == {AT: 2}


def commits(bootstrap: str, offsets: Mapping[TopicPartition, int]) -> bool:
    """Return whether a commit succeeds. A broker may still name the coordinator that is away."""
    with suppress(KafkaError), GroupAdmin(bootstrap, request_timeout_ms=COMMIT_MS) as admin:
        admin.commit(GROUP, offsets)
        return True
    return False


def in_sync(admin: Admin) -> set[int]:
    return set(admin.topic("__consumer_offsets").partitions[0].isr)
