"""Connections to the brokers that a process keeps from one batch to the next.

Owns the cache: the next batch's task or driver finds open connections and fresh metadata.
Connections to a broker that was away are opened again.
"""

from __future__ import annotations

import logging
import math
import os
import threading
import time
from collections.abc import Callable
from functools import cached_property
from typing import TypeVar

from plog.client.admin import Admin
from plog.client.attempts import retry
from plog.client.consumer import Consumer
from plog.client.metadata import Cluster
from plog.client.transaction_admin import TransactionAdmin
from plog.errors import KafkaError
from plog.spark.sink_options import SinkOptions

T = TypeVar("T")

log = logging.getLogger(__name__)

WARN_AFTER_S = 1.0
"""Retries that last longer than this are logged; leaders move in less."""
IDLE_S = 30.0


class Link:
    """One connection to each broker, and one more for the reader. Not thread-safe."""

    def __init__(self, bootstrap_servers: str, client_id: str, request_timeout_ms: int) -> None:
        self.timeout_ms = request_timeout_ms
        self.used_at = 0.0
        self.cluster = Cluster(
            bootstrap_servers, client_id=client_id, request_timeout_ms=request_timeout_ms
        )

    @cached_property
    def topics(self) -> Admin:
        """The admin client for topics."""
        return Admin(self.cluster, request_timeout_ms=self.timeout_ms)

    @cached_property
    def transactions(self) -> TransactionAdmin:
        """The admin client for transactions."""
        return TransactionAdmin(self.cluster, request_timeout_ms=self.timeout_ms)

    @cached_property
    def reader(self) -> Consumer:
        """A reader of committed records.

        It never waits at a partition's end: its records are known to exist, and a Fetch that waits
        would delay the next batch's.
        """
        return Consumer(
            self.cluster,
            auto_offset_reset="earliest",
            isolation_level="read_committed",
            fetch_max_wait_ms=0,
        )

    def retry(self, ask: Callable[[], T]) -> T:
        """Retry while brokers are away or leaders move, up to the request timeout.

        Raises:
            KafkaError: the fault is not retriable, or the last attempt failed.
        """
        warn_at = time.monotonic() + WARN_AFTER_S

        def warn_once(fault: KafkaError) -> None:
            nonlocal warn_at
            if time.monotonic() >= warn_at:
                warn_at = math.inf
                log.warning("plog sink: waiting for brokers: %s", fault)

        return retry(
            ask,
            timeout_s=self.timeout_ms / 1000,
            may_pass=lambda fault: fault.retriable,
            before_next=warn_once,
        )

    def close(self) -> None:
        """Close every connection."""
        if "reader" in vars(self):
            self.reader.close()
        self.cluster.close()


_links: dict[tuple[object, ...], Link] = {}


def link_to(options: SinkOptions) -> Link:
    """Return this thread's link to the brokers of a sink; a forked process gets its own.

    A link that was idle for IDLE_S is closed: its brokers may have disappeared silently, and the
    next request would wait for its whole timeout.
    """
    at = options.bootstrap_servers, options.client_id, options.request_timeout_ms
    key = os.getpid(), threading.get_ident(), *at
    found, now = _links.get(key), time.monotonic()
    if found is not None and now - found.used_at > IDLE_S:
        found.close()
        found = None
    if found is None:
        found = _links[key] = Link(*at)
    found.used_at = now
    return found
