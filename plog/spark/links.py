"""Connections to the brokers that a process keeps from one batch to the next.

Owns them: a task or a driver that comes again a second later has not to introduce itself anew, and
knows where everything is. A broker that was away meanwhile is connected to again.
"""

from __future__ import annotations

import functools
import os
import threading
from functools import cached_property

from plog.client.admin import Admin
from plog.client.consumer import Consumer
from plog.client.metadata import Cluster
from plog.client.transaction_admin import TransactionAdmin
from plog.spark.sink_options import SinkOptions


class Link:
    """One connection to each broker, and one more for what is read. Not thread-safe."""

    def __init__(self, bootstrap_servers: str, client_id: str, request_timeout_ms: int) -> None:
        self.timeout_ms = request_timeout_ms
        self.cluster = Cluster(
            bootstrap_servers, client_id=client_id, request_timeout_ms=request_timeout_ms
        )

    @cached_property
    def topics(self) -> Admin:
        """Who asks about topics."""
        return Admin(self.cluster, request_timeout_ms=self.timeout_ms)

    @cached_property
    def transactions(self) -> TransactionAdmin:
        """Who asks about transactions."""
        return TransactionAdmin(self.cluster, request_timeout_ms=self.timeout_ms)

    @cached_property
    def reader(self) -> Consumer:
        """A reader of what is committed.

        It never waits at a partition's end: what it reads is known to be there, and a Fetch that
        waited would keep the next batch's waiting.
        """
        return Consumer(
            self.cluster,
            auto_offset_reset="earliest",
            isolation_level="read_committed",
            fetch_max_wait_ms=0,
        )

    def close(self) -> None:
        """Close every connection; what is asked next opens them again, but for the reader."""
        if "reader" in vars(self):
            self.reader.close()
            del self.reader
        self.cluster.close()


def link_to(options: SinkOptions) -> Link:
    """Return this thread's link to the brokers of a sink; not that of a process it came from."""
    return _link(
        os.getpid(),
        threading.get_ident(),
        options.bootstrap_servers,
        options.client_id,
        options.request_timeout_ms,
    )


@functools.lru_cache(maxsize=8)
def _link(pid: int, thread: int, servers: str, client_id: str, timeout_ms: int) -> Link:
    del pid, thread
    return Link(servers, client_id, timeout_ms)
