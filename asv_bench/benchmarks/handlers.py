"""Requests that every client sends now and then, and Python answers: what each costs a broker.

The broker is a process of its own, as hosts run it. CPU time is that of the whole process, for
requests one after the other on one connection; the fast path's own requests are bin/bench's.
"""

import socket
import struct
import subprocess
import sys
import tempfile
import time

import psutil

from plog.client.admin import Admin
from plog.protocol import codec, framing
from plog.protocol.messages.api_versions import ApiVersionsRequest
from plog.protocol.messages.list_offsets import (
    ListOffsetsPartition,
    ListOffsetsRequest,
    ListOffsetsTopic,
)
from plog.protocol.messages.metadata import MetadataRequest, MetadataRequestTopic

from . import common

START_TIMEOUT_S = 60.0
PARTITIONS = {"small": 6, "large": 200}


def framed(request, version):
    key = type(request).api.key
    data = framing.encode_request_header(key, version, 1, "bench") + codec.encode(request, version)
    return struct.pack(">i", len(data)) + data


def list_offsets(topic):
    parts = [
        ListOffsetsPartition(partition_index=index, current_leader_epoch=-1, timestamp=-1)
        for index in range(PARTITIONS[topic])
    ]
    return ListOffsetsRequest(
        replica_id=-1,
        isolation_level=0,
        topics=[ListOffsetsTopic(name=topic, partitions=parts)],
    )


def metadata(topic):
    return MetadataRequest(
        topics=[MetadataRequestTopic(name=topic)], allow_auto_topic_creation=False
    )


REQUESTS = {
    "ApiVersions": (
        framed(ApiVersionsRequest(client_software_name="bench", client_software_version="1"), 3),
        None,
    ),
    "Metadata, 6 partitions": (framed(metadata("small"), 12), "small"),
    "Metadata, 200 partitions": (framed(metadata("large"), 12), "large"),
    "ListOffsets, 6 partitions": (framed(list_offsets("small"), 7), "small"),
    "ListOffsets, 200 partitions": (framed(list_offsets("large"), 7), "large"),
}
"""Each with the topic that it asks about: a broker has no other."""


def connect(port):
    until = time.monotonic() + START_TIMEOUT_S
    while True:
        try:
            return socket.create_connection(("127.0.0.1", port))
        except ConnectionRefusedError:
            if time.monotonic() > until:
                raise
            time.sleep(0.01)


class RoundTrip:
    params = (list(REQUESTS),)
    param_names = ("request",)

    def setup(self, request):
        self.directory = tempfile.TemporaryDirectory(prefix="plog-bench-")
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            port = probe.getsockname()[1]
        settings = {
            "listeners": f"PLAINTEXT://127.0.0.1:{port}",
            "log.dirs": self.directory.name,
        }
        overrides = [f"--override={key}={value}" for key, value in settings.items()]
        self.broker = subprocess.Popen(
            [sys.executable, "-m", "plog", "server", *overrides], stderr=subprocess.DEVNULL
        )
        self.client = connect(port)
        self.request, topic = REQUESTS[request]
        if topic:
            with Admin(f"127.0.0.1:{port}") as admin:
                admin.create_topic(topic, partitions=PARTITIONS[topic])
        self.client.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        for _ in range(50):
            self.exchange()

    def teardown(self, request):
        self.client.close()
        self.broker.terminate()
        self.broker.wait()
        self.directory.cleanup()

    def exchange(self):
        self.client.sendall(self.request)
        (size,) = struct.unpack(">i", self.client.recv(4, socket.MSG_WAITALL))
        self.client.recv(size, socket.MSG_WAITALL)

    def time_one(self, request):
        self.exchange()

    def track_cpu_us_per_request(self, request):
        broker = psutil.Process(self.broker.pid)
        count = common.at_length(1000)
        before = sum(broker.cpu_times()[:2])
        for _ in range(count):
            self.exchange()
        return (sum(broker.cpu_times()[:2]) - before) / count * 1e6

    track_cpu_us_per_request.unit = "us"
