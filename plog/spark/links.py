"""Connections to the brokers that a process keeps from one batch to the next.

Owns them: a task or a driver that comes again a second later has not to introduce itself anew, and
knows where everything is. A broker that was away meanwhile is connected to again.
"""

from __future__ import annotations

import logging
import os
import threading
import time
from collections.abc import Callable
from functools import cached_property
from typing import TypeVar

from plog.client.admin import Admin
from plog.client.consumer import Consumer
from plog.client.metadata import Cluster
from plog.client.transaction_admin import TransactionAdmin
from plog.errors import KafkaError
from plog.spark.sink_options import SinkOptions

T = TypeVar("T")

log = logging.getLogger(__name__)

RETRY_BACKOFF_S = 0.1
WARN_AFTER_S = 1.0
"""What lasts longer than that is told of; leaders move in less."""
IDLE_S = 30.0


class Link:
    """One connection to each broker, and one more for what is read. Not thread-safe."""

    def __init__(self, bootstrap_servers: str, client_id: str, request_timeout_ms: int) -> None:
        self.timeout_ms = request_timeout_ms
        self.asked_for_at = 0.0
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

    def patiently(self, ask: Callable[[], T]) -> T:
        """Ask again while brokers are away or leaders move, for as long as a request may take.

        Raises:
            KafkaError: what another attempt cannot mend, or the last one's.
        """
        began_s, is_told = time.monotonic(), False
        while True:
            try:
                return ask()
            except KafkaError as fault:
                waited_s = time.monotonic() - began_s
                if not fault.retriable or waited_s >= self.timeout_ms / 1000:
                    raise
                if waited_s >= WARN_AFTER_S and not is_told:
                    log.warning("plog sink: waiting for brokers: %s", fault)
                    is_told = True
            time.sleep(RETRY_BACKOFF_S)

    def close(self) -> None:
        """Close every connection."""
        if "reader" in vars(self):
            self.reader.close()
        self.cluster.close()


_links: dict[tuple[object, ...], Link] = {}


def link_to(options: SinkOptions) -> Link:
    """Return this thread's link to the brokers of a sink; not that of a process it came from.

    One that nobody has asked for of late is closed: its peers may have gone without a word, which
    would show a request's whole timeout later.
    """
    at = options.bootstrap_servers, options.client_id, options.request_timeout_ms
    key = os.getpid(), threading.get_ident(), *at
    found, now = _links.get(key), time.monotonic()
    if found is not None and now - found.asked_for_at > IDLE_S:
        found.close()
        found = None
    if found is None:
        found = _links[key] = Link(*at)
    found.asked_for_at = now
    return found
