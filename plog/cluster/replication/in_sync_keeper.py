"""Keeps the in-sync sets of the partitions that this broker leads with others.

Owns the thread on which followers join and late ones leave, and the request to the controller that
is away. `LedReplicas` decides both, and `Proposals` what the next request has.

Threads: leads come and go on the thread of the controller's orders, hints of followers from any.
"""

from __future__ import annotations

import logging
import queue
import threading
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import Future
from contextlib import suppress
from functools import partial

from plog._native.partition_log import PartitionLog
from plog.cluster.leadership import Leadership
from plog.cluster.replication.alter_partition import Batch, Found, Proposals, Settled
from plog.cluster.replication.isr import Proposal
from plog.cluster.replication.led_replicas import LedReplicas
from plog.errors import PlogError
from plog.runtime.clock import Clock
from plog.types import TopicPartition

log = logging.getLogger(__name__)

TICKS_IN_LAG_TIME = 2
"""A follower leaves at most this part of replica.lag.time.max.ms late, as in Kafka."""

AskController = Callable[[Batch], Future[Mapping[TopicPartition, Found]]]
"""Asks the controller to write the sets. The future gets a PlogError if it does not answer."""
Changed = Callable[[TopicPartition, LedReplicas], None]
"""Hears, on the keeper's thread, that another set of a partition is written now."""


class InSyncKeeper:
    """The in-sync sets of a broker.

    Args:
        broker_id: this broker.
        lag_time_ms: replica.lag.time.max.ms.
        fresh_within_ms: how old a follower's fetch may be, for its leader to count as one.
        clock: its `since_boot_ms` goes on in a suspended host.

    Attributes:
        shrinks, expands: how often a set that is kept here lost and gained members, whether this
            leader or the controller has changed it.
    """

    def __init__(
        self,
        broker_id: int,
        *,
        lag_time_ms: int,
        fresh_within_ms: int,
        clock: Clock,
        ask: AskController,
        changed: Changed,
    ) -> None:
        self._broker_id = broker_id
        self._lag_time_ms = lag_time_ms
        self._fresh_within_ms = fresh_within_ms
        self._tick_ms = max(1, lag_time_ms // TICKS_IN_LAG_TIME)
        self._clock = clock
        self._ask = ask
        self._changed = changed
        self.shrinks = self.expands = 0
        self._led: dict[TopicPartition, LedReplicas] = {}
        self._proposals = Proposals()
        self._todo: queue.SimpleQueue[Callable[[], object] | None] = queue.SimpleQueue()
        self._tick_due_ms = 0
        self._hinted: set[tuple[TopicPartition, int]] = set()
        self._thread = threading.Thread(target=self._run, name="in-sync sets", daemon=True)

    def start(self) -> None:
        """Begin."""
        self._thread.start()

    def stop(self) -> None:
        """End the thread. Proposals without an answer are forgotten."""
        self._todo.put(None)
        if self._thread.is_alive():
            self._thread.join()

    # -- what happens ------------------------------------------------------------------------

    def lead(
        self,
        partition: TopicPartition,
        native: PartitionLog,
        leadership: Leadership,
        *,
        least_in_sync: int,
    ) -> LedReplicas:
        """Keep the set of a partition in a new leader epoch, in which `native` leads already."""
        replicas = LedReplicas(
            native,
            leadership,
            broker_id=self._broker_id,
            lag_time_ms=self._lag_time_ms,
            fresh_within_ms=self._fresh_within_ms,
            least_in_sync=least_in_sync,
            clock=self._clock,
        )
        self._todo.put(partial(self._lead, partition, replicas))
        return replicas

    def cease(self, partition: TopicPartition) -> None:
        """Keep it no more: another broker leads, or there is no replica here."""
        self._todo.put(partial(self._cease, partition))

    def hint(self, partition: TopicPartition, broker_id: int) -> None:
        """A follower that does not count may have caught up. At once; many hints are one."""
        one = (partition, broker_id)
        if one not in self._hinted:
            self._hinted.add(one)
            self._todo.put(partial(self._join, *one))

    def run_due(self) -> None:
        """Do the work that is due now. For tests, instead of `start`."""
        with suppress(queue.Empty):
            while (call := self._todo.get_nowait()) is not None:
                call()
                self._on_time()
        self._on_time()

    # -- on the thread -----------------------------------------------------------------------

    def _run(self) -> None:
        while True:
            call: Callable[[], object] | None = self._on_time
            with suppress(queue.Empty):
                call = self._todo.get(timeout=self._wait_s())
            if call is None:
                return
            try:
                call()
                self._on_time()
            except Exception:
                # Deliberately broad: no other thread would go on with it.
                log.exception("keeping in-sync sets failed with an internal error")

    def _wait_s(self) -> float | None:
        """Return until when nothing is due; None: for ever."""
        due = [self._proposals.due_ms(), self._tick_due_ms if self._led else None]
        known = [one for one in due if one is not None]
        if not known:
            return None
        return max(0, min(known) - self._clock.since_boot_ms()) / 1000

    def _on_time(self) -> None:
        now_ms = self._clock.since_boot_ms()
        if self._led and now_ms >= self._tick_due_ms:
            self._tick_due_ms = now_ms + self._tick_ms
            for partition, replicas in self._led.items():
                self._propose(partition, replicas.tick(self._tick_ms))
        if (batch := self._proposals.take(now_ms)) is not None:
            self._ask(batch).add_done_callback(
                lambda future: self._todo.put(partial(self._answered, batch, future))
            )

    def _lead(self, partition: TopicPartition, replicas: LedReplicas) -> None:
        if not self._led:
            # The first look comes an interval later: no pause lies before it.
            self._tick_due_ms = self._clock.since_boot_ms() + self._tick_ms
        elif (known := self._led.get(partition)) is not None:
            self._count_change(known.isr, replicas)
        self._led[partition] = replicas
        self._proposals.drop(partition)  # of an earlier epoch

    def _cease(self, partition: TopicPartition) -> None:
        self._led.pop(partition, None)
        self._proposals.drop(partition)

    def _join(self, partition: TopicPartition, broker_id: int) -> None:
        self._hinted.discard((partition, broker_id))
        if (replicas := self._led.get(partition)) is not None:
            self._propose(partition, replicas.join(broker_id))

    def _propose(self, partition: TopicPartition, proposal: Proposal | None) -> None:
        if proposal is not None:
            log.info("%s: proposing the in-sync set %s", partition, sorted(proposal.isr))
            self._proposals.put(partition, proposal)

    def _answered(self, batch: Batch, future: Future[Mapping[TopicPartition, Found]]) -> None:
        now_ms = self._clock.since_boot_ms()
        try:
            found = future.result()
        except Exception as error:  # noqa: BLE001 - of any kind: the batch has to go again
            level = logging.DEBUG if isinstance(error, PlogError) else logging.ERROR
            log.log(level, "the controller has not answered for in-sync sets: %r", error)
            self._proposals.failed(batch, now_ms)
            return
        for settled in self._proposals.answered(batch, found, now_ms):
            self._settle(settled)

    def _settle(self, settled: Settled) -> None:
        replicas = self._led.get(settled.partition)
        if replicas is None:
            return
        before = replicas.isr
        if replicas.settle(settled):
            self._count_change(before, replicas)
            log.info("%s: the in-sync set is %s", settled.partition, list(replicas.isr))
            self._changed(settled.partition, replicas)

    def _count_change(self, before: Iterable[int], replicas: LedReplicas) -> None:
        """Count a change of a set. A member that is no replica any more has been moved away."""
        now = {*replicas.isr}
        self.shrinks += bool(({*before} - now) & replicas.replicas)
        self.expands += bool(now - {*before})
