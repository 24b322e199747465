"""Small requests that ask for large answers: one thing again and again, or thousands of topics."""

from __future__ import annotations

import socket
import struct
from collections.abc import Callable

import pytest

from plog.protocol.messages import configs, groups, metadata, topics
from plog.protocol.messages.cluster import DescribableLogDirTopic, DescribeLogDirsRequest
from plog.protocol.schema import Struct
from tests.handlers.wire import fetch_request
from tests.hostile.conftest import Besiege
from tests.hostile.frames import framed
from tests.hostile.sockets import connect
from tests.hostile.watch import MIB
from tests.servers import BrokerProcess

COUNT = 60_000
GROWTH = 450 * MIB


def describe_broker() -> tuple[Struct, int]:
    one = configs.DescribeConfigsResource(
        resource_type=4, resource_name="0", configuration_keys=None
    )
    asked = configs.DescribeConfigsRequest(
        resources=[one] * COUNT, include_synonyms=True, include_documentation=True
    )
    return asked, 4


def describe_log_dirs() -> tuple[Struct, int]:
    one = DescribableLogDirTopic(topic="kept-0", partitions=[0])
    return DescribeLogDirsRequest(topics=[one] * COUNT), 4


def one_topic_again_and_again() -> tuple[Struct, int]:
    one = metadata.MetadataRequestTopic(name="kept-0")
    return metadata.MetadataRequest(topics=[one] * COUNT), 1


def topics_that_could_be_made() -> tuple[Struct, int]:
    asked = [
        topics.CreatableTopic(
            name=f"c{n}", num_partitions=1, replication_factor=1, assignments=[], configs=[]
        )
        for n in range(COUNT)
    ]
    return topics.CreateTopicsRequest(topics=asked, timeout_ms=1000, validate_only=True), 7


def coordinators() -> tuple[Struct, int]:
    return groups.FindCoordinatorRequest(coordinator_keys=["g"] * COUNT), 4


def one_partition_again_and_again() -> tuple[Struct, int]:
    return fetch_request(*(("nowhere", 0, 0) for _ in range(COUNT))), 12


@pytest.mark.parametrize(
    "ask",
    [
        describe_broker,
        describe_log_dirs,
        one_topic_again_and_again,
        topics_that_could_be_made,
        coordinators,
        one_partition_again_and_again,
    ],
)
def test_answer_takes_bounded_memory(
    own_broker: Callable[..., BrokerProcess],
    besiege: Besiege,
    ask: Callable[[], tuple[Struct, int]],
) -> None:
    broker = own_broker()
    request, version = ask()
    frame = framed(request, version)
    with besiege(broker, growth=GROWTH) as under:
        sock = connect(broker.port)
        sock.settimeout(60)
        sock.sendall(frame)
        assert answered(sock) < 40 * MIB
        sock.close()
    assert not under.lines.grave()


def answered(sock: socket.socket) -> int:
    """Read one answer; its size."""
    head = sock.recv(4, socket.MSG_WAITALL)
    (size,) = struct.unpack(">i", head)
    left = size
    while left:
        more = sock.recv(min(left, MIB))
        assert more, "the broker closed the connection"
        left -= len(more)
    return size
