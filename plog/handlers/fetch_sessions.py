"""Fetch sessions (KIP-227): what a client is fetching, kept so that it need not say it again.

Owns the table of sessions and the rules of epochs, eviction and "has anything
changed"; reads no log. One table for the broker, used from the control plane
only.
"""

from __future__ import annotations

import random
import uuid
from collections import OrderedDict
from collections.abc import Iterable
from dataclasses import dataclass
from typing import NamedTuple

from plog.errors import (
    FetchSessionIdNotFound,
    FetchSessionTopicIdError,
    InvalidFetchSessionEpoch,
)

NO_SESSION_ID = 0
INITIAL_EPOCH = 0
"""Epoch of a request that wants a new session (or none, with the session's id, to replace it)."""
FINAL_EPOCH = -1
"""Epoch of a request outside any session; with a session's id it closes that session."""
MAX_EPOCH = 2**31 - 1
EVICT_AFTER_MS = 120_000
"""A full table gives up a session unused for longer; else one that is older than this and smaller
than the session that wants its place, so that large fetches gain the most by the table."""


class PartitionKey(NamedTuple):
    """A partition as the request names it: by name (up to v12) or by id (from v13)."""

    topic: str
    topic_id: uuid.UUID
    partition: int


@dataclass(slots=True)
class FetchedPartition:
    """What a client asks of one partition, and what it was last told of it."""

    fetch_offset: int
    max_bytes: int
    current_leader_epoch: int = -1
    last_fetched_epoch: int = -1
    told_high_watermark: int = -1
    told_log_start_offset: int = -1

    def ask_again(self, newer: FetchedPartition) -> None:
        """Take over what a later request says, and keep what the client was told."""
        self.fetch_offset = newer.fetch_offset
        self.max_bytes = newer.max_bytes
        self.current_leader_epoch = newer.current_leader_epoch
        self.last_fetched_epoch = newer.last_fetched_epoch


Partitions = OrderedDict[PartitionKey, FetchedPartition]


@dataclass(slots=True)
class FetchSession:
    """One client's fetch, between two requests."""

    session_id: int
    uses_topic_ids: bool
    partitions: Partitions
    created_ms: int
    last_used_ms: int
    epoch: int = 1
    """What the next request must say."""

    def rotate(self, answered: Iterable[PartitionKey]) -> None:
        """Put the partitions that gave bytes to the end of the line."""
        for key in answered:
            if key in self.partitions:
                self.partitions.move_to_end(key)


class Fetch(NamedTuple):
    """What one request comes to: the session it belongs to (or None) and all partitions to read."""

    session: FetchSession | None
    is_full: bool
    partitions: Partitions


class FetchSessions:
    """The broker's table of fetch sessions."""

    def __init__(self, slots: int, seed: int | None = None) -> None:
        self._slots = slots
        self._sessions: OrderedDict[int, FetchSession] = OrderedDict()  # least recently used first
        self._random = random.Random(seed)

    def __len__(self) -> int:
        return len(self._sessions)

    def begin(
        self,
        session_id: int,
        session_epoch: int,
        asked: Partitions,
        forgotten: Iterable[PartitionKey],
        *,
        uses_topic_ids: bool,
        now_ms: int,
    ) -> Fetch:
        """Turn a request into the partitions to read.

        Raises:
            FetchSessionIdNotFound: no such session (perhaps pushed out by others).
            InvalidFetchSessionEpoch: not the session's next request.
            FetchSessionTopicIdError: the session names topics by name and the request by id, or
                the other way round.
        """
        if session_epoch in (INITIAL_EPOCH, FINAL_EPOCH):
            self._sessions.pop(session_id, None)
            session = None
            if session_epoch == INITIAL_EPOCH and asked:
                session = self._create(asked, uses_topic_ids, now_ms)
            return Fetch(session, True, asked)
        known = self._sessions.get(session_id)
        if known is None:
            raise FetchSessionIdNotFound(f"no fetch session {session_id}")
        if known.epoch != session_epoch:
            raise InvalidFetchSessionEpoch(
                f"fetch session {session_id} is at epoch {known.epoch}, not {session_epoch}"
            )
        if known.uses_topic_ids != uses_topic_ids:
            raise FetchSessionTopicIdError(f"fetch session {session_id} mixes names and topic ids")
        for key, partition in asked.items():
            cached = known.partitions.get(key)
            if cached is None:
                known.partitions[key] = partition
            else:
                cached.ask_again(partition)
        for key in forgotten:
            known.partitions.pop(key, None)
        if not known.partitions:
            # Nothing is left to fetch: the answer tells the client that the session is over.
            del self._sessions[session_id]
            return Fetch(None, True, Partitions())
        known.epoch = 1 if known.epoch == MAX_EPOCH else known.epoch + 1
        known.last_used_ms = now_ms
        self._sessions.move_to_end(session_id)
        return Fetch(known, False, known.partitions)

    def _create(
        self, partitions: Partitions, uses_topic_ids: bool, now_ms: int
    ) -> FetchSession | None:
        if len(self._sessions) >= self._slots and not self._evict_for(len(partitions), now_ms):
            return None
        session_id = NO_SESSION_ID
        while session_id == NO_SESSION_ID or session_id in self._sessions:
            session_id = self._random.randint(1, 2**31 - 1)
        session = FetchSession(session_id, uses_topic_ids, partitions, now_ms, now_ms)
        self._sessions[session_id] = session
        return session

    def _evict_for(self, size: int, now_ms: int) -> bool:
        """Make room for a session of `size` partitions, if it is worth more than another."""
        sessions = self._sessions.values()
        stale = next(iter(sessions), None)
        if stale is None or now_ms - stale.last_used_ms <= EVICT_AFTER_MS:
            smaller = [
                session
                for session in sessions
                if len(session.partitions) < size and now_ms - session.created_ms > EVICT_AFTER_MS
            ]
            stale = min(smaller, key=lambda session: len(session.partitions), default=None)
        if stale is None:
            return False
        del self._sessions[stale.session_id]
        return True


def must_tell(
    partition: FetchedPartition,
    *,
    has_error: bool,
    has_records: bool,
    diverging: bool,
    high_watermark: int,
    log_start_offset: int,
) -> bool:
    """Tell whether an incremental answer must name the partition, and note what it then says.

    After an error the remembered high watermark is forgotten, so that recovery is told too.
    """
    changed = (
        has_error
        or has_records
        or diverging
        or partition.told_high_watermark != high_watermark
        or partition.told_log_start_offset != log_start_offset
    )
    partition.told_high_watermark = -1 if has_error else high_watermark
    partition.told_log_start_offset = log_start_offset
    return changed
