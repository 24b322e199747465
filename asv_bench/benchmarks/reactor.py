"""Round trips through the reactor and an echoing control plane, over loopback.

There is no other engine: the Python handlers are what every faster path is compared with. Client
and server share the machine, so the figures move with whatever else it does; compare runs of one
machine, and CPU time (`track_cpu_us_per_request`) before wall time.
"""

import asyncio
import socket
import struct
import threading
import time

from plog._native.fetch_callout import Found
from plog._native.fetch_sessions import SessionCache
from plog._native.reactor import Reactor
from plog._native.served import ServedPartitions
from plog._native.work_queue import WorkThread
from plog.network.control_plane import ControlPlane, Decided
from plog.network.listeners import bind_listeners, listen_on
from plog.protocol import codec, framing
from plog.protocol.messages.fetch import FetchPartition, FetchRequest, FetchTopic
from plog.settings import BrokerSettings

from . import common
from .partition_log import OneLog

FETCH_VERSION = 4
LARGEST = (1 << 31) - 1


def frame(size):
    """A request of `size` bytes behind its length prefix."""
    return struct.pack(">i", size) + struct.pack(">hhi", 18, 0, 1) + bytes(size - 8)


class Serving:
    """A control plane in a thread of its own, and one connected client."""

    def start(self, dispatch, decide=None, **options):
        self.loop = asyncio.new_event_loop()
        self.thread = threading.Thread(target=self.loop.run_forever)
        self.thread.start()
        self.reactor = Reactor(**options)
        self.control_plane = ControlPlane(self.reactor, dispatch, self.loop, decide=decide)
        settings = BrokerSettings({"listeners": "PLAINTEXT://127.0.0.1:0"})
        (bound,) = bind_listeners(settings.parsed_listeners())
        listen_on(bound)
        self.control_plane.add_listener(bound)
        self.reactor.start()
        self.loop.call_soon_threadsafe(self.control_plane.start)
        self.client = socket.create_connection(bound.socket.getsockname())
        self.client.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.buffer = memoryview(bytearray(1 << 20))
        bound.socket.close()

    def teardown(self, *params):
        self.client.close()
        asyncio.run_coroutine_threadsafe(self.control_plane.stop(1000, 1000), self.loop).result()
        self.loop.call_soon_threadsafe(self.loop.stop)
        self.thread.join()
        self.loop.close()

    def exchange(self, sent, expected):
        self.client.sendall(sent)
        while expected > 0:
            expected -= self.client.recv_into(self.buffer, min(expected, len(self.buffer)))


class Echo(Serving):
    param_names = ("size", "handler")

    def setup(self, size, handler):
        async def at_once(connection, frame):
            return [frame]

        async def after_a_wait(connection, frame):
            await asyncio.sleep(0)
            return [frame]

        handlers = {"plain": lambda c, f: [f], "async": at_once, "waiting": after_a_wait}
        self.start(handlers[handler])
        self.request = frame(size)


class RoundTrip(Echo):
    params = ([100, 16_384, 1_000_000], ["plain", "async", "waiting"])

    def time_one(self, size, handler):
        self.exchange(self.request, len(self.request))

    def track_cpu_us_per_request(self, size, handler):
        """Of the whole process: client, reactor and control plane."""
        count = common.at_length(2000 if size < 100_000 else 100)
        began = time.process_time()
        for _ in range(count):
            self.exchange(self.request, len(self.request))
        return (time.process_time() - began) / count * 1e6

    track_cpu_us_per_request.unit = "us"


class Pipelined(Echo):
    params = ([100, 16_384], ["plain", "async", "waiting"])

    def setup(self, size, handler):
        super().setup(size, handler)
        self.requests = 16 * self.request

    def time_sixteen(self, size, handler):
        """Sixteen requests sent together; each is handed over when the one before is answered."""
        self.exchange(self.requests, len(self.requests))


class LatencyBesideBusyPython(Echo):
    """What a Python thread that never waits costs a handler: about a switch interval."""

    params = ([100], ["plain"])

    def setup(self, size, handler):
        super().setup(size, handler)
        self.busy = True

        def spin():
            while self.busy:
                pass

        self.spinner = threading.Thread(target=spin)
        self.spinner.start()

    def teardown(self, size, handler):
        self.busy = False
        self.spinner.join()
        super().teardown()

    def time_one(self, size, handler):
        self.exchange(self.request, len(self.request))


def fetch():
    """A Fetch of a partition that the reactor does not know, so that Python decides."""
    part = FetchPartition(partition=0, fetch_offset=0, partition_max_bytes=LARGEST)
    topics = [FetchTopic(topic="t", partitions=[part])]
    request = FetchRequest(max_wait_ms=0, min_bytes=0, max_bytes=LARGEST, topics=topics)
    header = framing.encode_request_header(FetchRequest.api.key, FETCH_VERSION, 1, "bench")
    body = header + codec.encode(request, FETCH_VERSION)
    return struct.pack(">i", len(body)) + body


class SendFile(Serving):
    """Responses of one range of a segment that is in the page cache."""

    params = ([65_536, 1_000_000], ["sendfile", "pread"])
    param_names = ("size", "engine")

    def setup(self, size, engine):
        self.kept = OneLog()
        log = self.kept.start()
        batch = bytearray(common.RECORD_BATCHES["150 x 100 B"])
        while log.state().size_bytes < size:
            log.append(batch, 0)
        end = log.log_end_offset

        async def decide(connection, callout):
            return Decided([Found(0, log.read(0, size, end, False), end, end, 0, None)], ())

        self.start(
            None,
            decide,
            served=ServedPartitions(WorkThread()),
            sessions=SessionCache(1),
            use_sendfile=engine == "sendfile",
        )
        self.request = fetch()
        self.client.sendall(self.request)
        (self.response_bytes,) = struct.unpack(">i", self.client.recv(4, socket.MSG_WAITALL))
        self.exchange(b"", self.response_bytes)

    def teardown(self, size, engine):
        super().teardown()
        self.kept.teardown()

    def time_fetch(self, size, engine):
        self.exchange(self.request, 4 + self.response_bytes)
