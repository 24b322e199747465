"""Copies partitions from one leader, on a thread of its own.

Owns the rounds: ask for all partitions that are due, bring on what comes, make it durable, and ask
again. By the next request the leader sees what this broker has (its position). What an answer means
is decided elsewhere; a partition that fails waits, and the others go on.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Collection, Iterable
from functools import partial
from typing import Final

from plog.cluster.peer_link import PeerLink
from plog.cluster.replication.fetch_decisions import Do, by_error
from plog.cluster.replication.fetch_session import Fetchable
from plog.cluster.replication.followed import NO_TROUBLE, Followed, Trouble
from plog.cluster.replication.leader_requests import Asking, LeaderRequests, Limits, answer_of
from plog.errors import CorruptRecord, ErrorCode, KafkaError, PlogError, code_name
from plog.protocol.messages.fetch import PartitionData, ReplicaState
from plog.runtime.bounded_lines import BoundedLines
from plog.runtime.clock import Clock
from plog.storage.leader_epochs import EpochEnd
from plog.types import TopicPartition

log = logging.getLogger(__name__)

FIRST_PAUSE_MS: Final = 20
"""After the first failure; it doubles. A leader may have its order a little later than a follower,
and producers wait for both."""
PATIENCE_MS: Final = 10_000
"""An error that passes is logged once it has lasted for so long."""


class FetchFailures:
    """Counts by leader the requests that failed, and the partitions that could not be copied."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._counts: dict[int, int] = {}

    def add(self, leader: int) -> None:
        """Count one. Any thread."""
        with self._lock:
            self._counts[leader] = self._counts.get(leader, 0) + 1

    def counts(self) -> dict[int, int]:
        """Return the counts. Any thread."""
        with self._lock:
            return dict(self._counts)


class ReplicaFetcher:
    """Fetches from one leader.

    Args:
        leader: its broker id.
        link: the way to it.
        limits: see `Limits`.
        who: this broker, with the epoch of its registration of now.
        failures: gets those of this fetcher.
    """

    def __init__(
        self,
        leader: int,
        number: int,
        link: PeerLink,
        *,
        limits: Limits,
        who: Callable[[], ReplicaState],
        clock: Clock,
        failures: FetchFailures,
    ) -> None:
        self.leader = leader
        self._failures = failures
        self._link = link
        self._limits = limits
        self._clock = clock
        self._requests = LeaderRequests(leader, link, limits=limits, who=who)
        # Held while a partition's log is brought on: `remove` waits for that.
        self._lock = threading.Condition()
        self._followed: dict[Fetchable, Followed] = {}
        self._is_stopped = False
        self._is_away = False
        self._lines = BoundedLines(log, "%d further lines of replicas that cannot be copied")
        self._thread = threading.Thread(
            target=self._run, name=f"fetcher {number} from {leader}", daemon=True
        )

    def start(self) -> None:
        """Begin. Raises RuntimeError: the system allows no more threads."""
        self._thread.start()

    def stop(self) -> None:
        """End: nothing is brought on after this returns."""
        with self._lock:
            self._is_stopped = True
            self._followed.clear()
            self._lock.notify()
        self._link.interrupt()
        self._thread.join()

    # -- what it copies ----------------------------------------------------------------------

    def add(self, followed: Iterable[Followed]) -> None:
        """Copy these, each in place of an earlier one of its partition."""
        with self._lock:
            for one in followed:
                self._followed[_name(one)] = one
            self._lock.notify()

    def remove(self, topic_partitions: Collection[TopicPartition]) -> None:
        """Copy these no more. Nothing is brought on to their logs after this returns."""
        with self._lock:
            for name, one in list(self._followed.items()):
                if one.at in topic_partitions:
                    del self._followed[name]

    def release(self) -> list[Followed]:
        """Copy nothing more; return its partitions, for others to copy."""
        with self._lock:
            released = [*self._followed.values()]
            self._followed.clear()
        return released

    @property
    def is_idle(self) -> bool:
        """Whether it has nothing to copy."""
        return not self._followed

    # -- rounds ------------------------------------------------------------------------------

    def _run(self) -> None:
        while not self._is_stopped:
            pause_ms: float | None
            try:
                pause_ms = self.run_round()
            except Exception:
                # Deliberately broad: no other thread would go on with it.
                log.exception("copying from broker %d failed with an internal error", self.leader)
                self._failures.add(self.leader)
                self._requests.end_session()
                pause_ms = self._limits.backoff_ms
            with self._lock:
                if pause_ms != 0 and not self._is_stopped:
                    self._lock.wait(None if pause_ms is None else pause_ms / 1000)
        self._link.close()

    def run_round(self) -> float | None:
        """Fetch once; return how long to pause in ms, None: until there is more to copy.

        Public for tests, which need no thread.
        """
        asked, pause_ms = self._ask_logs()
        if not asked:
            return pause_ms
        most_ms = self._limits.max_wait_ms
        try:
            # The leader may wait for records of these for as long as no other one is due.
            if not (asked := self._in_agreement(asked)):
                return 0
            answers = self._requests.fetch(
                asked, most_ms if pause_ms is None else min(pause_ms, most_ms)
            )
        except PlogError as fault:
            self._requests.end_session()
            return self._away(fault)
        self._is_there()
        self._bring_on(answers)
        return 0

    def _ask_logs(self) -> tuple[dict[Fetchable, Asking], int | None]:
        """Return the partitions that are due, and when more are: in ms, or None."""
        asked: dict[Fetchable, Asking] = {}
        now_ms = self._clock.monotonic_ms()
        due_ms: list[int] = []
        with self._lock:
            for name, one in self._followed.items():
                if one.awaits_order:
                    continue
                if one.not_before_ms <= now_ms:
                    try:
                        asked[name] = Asking(one, one.ask(), one.partition.log.log_start_offset)
                        continue
                    except KafkaError as fault:
                        self._failed(one, fault)
                due_ms.append(one.not_before_ms)
        return asked, max(0, min(due_ms) - now_ms) if due_ms else None

    def _in_agreement(self, asked: dict[Fetchable, Asking]) -> dict[Fetchable, Asking]:
        """Return what may be fetched: the logs agree so far, or the answers will say if not.

        Raises PlogError: the leader has not answered.
        """
        if self._requests.says_divergence():
            return asked
        unsure = [one for one in asked.values() if one.followed.may_diverge(one.asked)]
        if unsure:
            for one, found in self._requests.epoch_ends(unsure):
                self._take_epoch_end(one, found)
        return {name: one for name, one in asked.items() if not one.followed.may_diverge(one.asked)}

    def _take_epoch_end(self, one: Asking, found: EpochEnd | ErrorCode) -> None:
        if isinstance(found, ErrorCode):
            self._note(one, by_error(found).do, f"the leader answers {code_name(found)}")
            return
        do = self._guarded(one.followed, lambda: one.followed.take_epoch_end(one.asked, found))
        if do is Do.ASK_RANGE:
            self._take_range(one)
        else:
            self._note(one, do, "the end of its last epoch contradicts the leader's log")

    def _bring_on(self, answers: Iterable[tuple[Asking, PartitionData]]) -> None:
        """Take the answers of all partitions, then make durable what they have brought."""
        brought, without_range = [], []
        for one, answer in answers:
            do = self._take(one, answer)
            if do is Do.APPEND:
                brought.append(one.followed)
            elif do is Do.ASK_RANGE:
                without_range.append(one)
        for followed in brought:
            self._guarded(followed, partial(self._settle, followed))
        for one in without_range:
            self._take_range(one)

    def _take(self, one: Asking, answer: PartitionData) -> Do | None:
        records = memoryview(answer.records or b"")
        now_ms = self._clock.now_ms()

        def take() -> Do:
            return one.followed.take(one.asked, answer_of(answer), records, now_ms)

        do = self._guarded(one.followed, take)
        self._note(one, do, f"the leader answers {code_name(answer.error_code)}")
        return do

    def _take_range(self, one: Asking) -> None:
        """Ask where the leader's log begins and ends, and do what that means."""
        try:
            found = self._requests.range_of(one)
        except PlogError as fault:
            self._failed(one.followed, fault)
            return
        do = self._guarded(one.followed, lambda: one.followed.take_range(one.asked, found))
        self._note(one, do, "the position is within the leader's log, and is refused")

    # -- what happens to one partition -------------------------------------------------------

    def _guarded(self, followed: Followed, action: Callable[[], Do | None]) -> Do | None:
        """Bring a log on, if it is still to be copied; None after a failure, too."""
        with self._lock:
            if self._followed.get(_name(followed)) is not followed:
                return None
            try:
                return action()
            except KafkaError as fault:
                self._failed(followed, fault)
        return None

    def _note(self, one: Asking, do: Do | None, why: str) -> None:
        """Log a cut, and let the partition wait where it has to."""
        followed = one.followed
        match do:
            case Do.CUT | Do.RESTART:
                self._lines.log(
                    logging.INFO,
                    "%s: %s at offset %d, by the log of leader %d",
                    followed.at,
                    "cut" if do is Do.CUT else "begun again",
                    followed.partition.log.log_end_offset,
                    self.leader,
                )
            case Do.FETCH_LATER:
                self._wait(followed, why)
            case Do.AWAIT_ORDER:
                followed.awaits_order = True

    def _settle(self, followed: Followed) -> None:
        followed.settle()
        if followed.trouble.is_logged:
            log.info("%s: copied from broker %d again", followed.at, self.leader)
        followed.trouble = NO_TROUBLE
        followed.pause_ms = 0

    def _failed(self, followed: Followed, fault: PlogError) -> None:
        self._wait(followed, str(fault), at_once=isinstance(fault, CorruptRecord))

    def _wait(self, followed: Followed, why: str, *, at_once: bool = False) -> None:
        """Fetch a partition later; say so once, if that lasts."""
        self._failures.add(self.leader)
        now_ms = self._clock.monotonic_ms()
        followed.pause_ms = min(max(2 * followed.pause_ms, FIRST_PAUSE_MS), self._limits.backoff_ms)
        followed.not_before_ms = now_ms + followed.pause_ms
        trouble = followed.trouble
        if trouble.why != why:
            trouble = Trouble(why, now_ms, is_logged=False)
        if not trouble.is_logged and (at_once or now_ms - trouble.since_ms >= PATIENCE_MS):
            self._lines.warning("%s: not copied from broker %d: %s", followed.at, self.leader, why)
            trouble = trouble._replace(is_logged=True)
        followed.trouble = trouble

    # -- the leader --------------------------------------------------------------------------

    def _away(self, fault: PlogError) -> float:
        """Say once that the leader does not answer; return how long to pause, in ms."""
        self._failures.add(self.leader)
        if not self._is_away and not self._is_stopped:
            self._is_away = True
            log.warning("no replicas are copied from broker %d: %s", self.leader, fault)
        return self._limits.backoff_ms

    def _is_there(self) -> None:
        if self._is_away:
            self._is_away = False
            log.info("replicas are copied from broker %d again", self.leader)


def _name(followed: Followed) -> Fetchable:
    return Fetchable(followed.partition.topic_id, followed.at.partition)
