"""Orders to a broker whose memory for requests is taken by clients: they pass all the same."""

from __future__ import annotations

import contextlib
import struct
from collections.abc import Callable
from pathlib import Path

import pytest

from plog.client.admin import Admin
from plog.protocol.messages.metadata import MetadataRequest, MetadataRequestTopic
from tests.cluster.processes import Brokers, split_listeners
from tests.compat.live_kafka import ZooKeeper
from tests.hostile.frames import framed
from tests.hostile.sockets import connect, crowd
from tests.servers import free_port
from tests.waiting import until

LARGEST = 2 << 20
ROOM = {"queued.max.request.bytes": 2 * LARGEST, "socket.request.max.bytes": LARGEST}
HALF = struct.pack(">i", LARGEST - 4) + bytes(LARGEST // 2)
"""It has its memory for 10 s, which is for how long a broker waits for the rest."""
HALVES = 8
LARGE = framed(
    MetadataRequest(topics=[MetadataRequestTopic(name=f"{n:0100}") for n in range(1000)]),
    version=12,
)
"""What a broker does not read beyond its memory, as it does with small requests."""
TOPIC = "t"


def one_listener(_: Brokers) -> int:
    """Orders come where clients are, too, and are small."""
    return 6


def two_listeners(brokers: Brokers) -> int:
    """Orders may have any size."""
    for one in brokers.brokers:
        split_listeners(one, free_port())
    return 1800


@pytest.mark.parametrize("listeners", [one_listener, two_listeners], ids=lambda one: one.__name__)
def test_orders_pass_while_clients_fill_the_memory_of_requests(
    tmp_path: Path, zookeeper: ZooKeeper, listeners: Callable[[Brokers], int]
) -> None:
    brokers = Brokers(tmp_path, zookeeper.bootstrap, **ROOM)
    partitions = listeners(brokers)
    with brokers:
        full = brokers[(brokers.controller + 1) % 3]
        (data,) = full.log_dirs
        with (
            Admin(brokers[brokers.controller].bootstrap) as admin,
            Admin(str(full.overrides["listeners"]).rsplit("//", maxsplit=1)[-1]) as inside,
            crowd(full.port, HALVES, HALF),
            contextlib.closing(connect(full.port)) as client,
        ):
            client.settimeout(0.5)
            client.sendall(LARGE)
            with pytest.raises(TimeoutError):
                client.recv(1)
            admin.create_topic(TOPIC, partitions=partitions)
            until(lambda: len(list(data.glob(f"{TOPIC}-*"))) == partitions / 3, "its logs")
            until(lambda: TOPIC in inside.topics(), "it is known there")
            with pytest.raises(TimeoutError):  # it waits as before
                client.recv(1)
