"""Fetch sessions (KIP-227) as the Fetch handler sees them.

Owns the form of a fetch and the errors of sessions; the rules are those of the readable twin
(`plog/_reference/fetch_sessions`).
"""

from __future__ import annotations

import uuid
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

from plog._reference.fetch_sessions import (
    ENDED,
    MIXED_NAMES,
    NEW,
    NEXT,
    UNKNOWN,
    WRONG_EPOCH,
    SessionCache,
)
from plog.errors import (
    FetchSessionIdNotFound,
    FetchSessionTopicIdError,
    InvalidFetchSessionEpoch,
)

if TYPE_CHECKING:
    from plog._reference.fetch_sessions import Name


class PartitionKey(NamedTuple):
    """A partition as the request names it: by name (up to v12) or by id (from v13)."""

    topic: str
    topic_id: uuid.UUID
    partition: int


@dataclass(frozen=True, slots=True)
class FetchedPartition:
    """What a client asks of one partition."""

    fetch_offset: int
    max_bytes: int
    current_leader_epoch: int = -1
    last_fetched_epoch: int = -1
    log_start_offset: int = -1


Partitions = dict[PartitionKey, FetchedPartition]


class FetchSession(NamedTuple):
    """A session, at one of its requests."""

    session_id: int
    epoch: int
    """What it says until its next request comes."""


class Fetch(NamedTuple):
    """What one request comes to: the session it belongs to (or None) and all partitions to read."""

    session: FetchSession | None
    is_full: bool
    partitions: Partitions


class Told(NamedTuple):
    """What the read of one partition came to, as far as "has anything changed" looks at it."""

    has_error: bool
    has_records: bool
    diverges: bool
    high_watermark: int
    log_start_offset: int


class FetchSessions:
    """The broker's fetch sessions."""

    def __init__(self, slots: int, *, seed: int | None = None) -> None:
        self.cache = SessionCache(slots, seed=seed)

    def __len__(self) -> int:
        return len(self.cache)

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
        outcome, found_id, epoch = self.cache.begin(
            session_id,
            session_epoch,
            [
                (*_name(key), part.fetch_offset, part.max_bytes,
                 part.current_leader_epoch, part.last_fetched_epoch, part.log_start_offset)
                for key, part in asked.items()
            ],
            [_name(key) for key in forgotten],
            by_id=uses_topic_ids,
            now_ms=now_ms,
        )  # fmt: skip
        if outcome == UNKNOWN:
            raise FetchSessionIdNotFound(f"no fetch session {session_id}")
        if outcome == WRONG_EPOCH:
            raise InvalidFetchSessionEpoch(
                f"{session_epoch} is not the epoch of fetch session {session_id}"
            )
        if outcome == MIXED_NAMES:
            raise FetchSessionTopicIdError(f"fetch session {session_id} mixes names and topic ids")
        if outcome == ENDED:
            # Nothing is left to fetch: the answer tells the client that the session is over.
            return Fetch(None, True, {})
        session = FetchSession(found_id, epoch)
        if outcome == NEXT:
            return Fetch(session, False, self._partitions(session))
        return Fetch(session if outcome == NEW else None, True, asked)

    def must_tell(self, fetch: Fetch, read: Mapping[PartitionKey, Told]) -> list[PartitionKey]:
        """Return which partitions the answer names; its client then knows of them.

        Raises:
            InvalidFetchSessionEpoch: its next request has come meanwhile, or it is over.
        """
        if fetch.session is None:
            return list(read)
        told = self.cache.tell(
            *fetch.session, [(*_name(key), *facts) for key, facts in read.items()]
        )
        if told is None:
            raise _moved_on(fetch.session)
        return [key for key, changed in zip(read, told, strict=True) if changed or fetch.is_full]

    def known_high_watermarks(self, fetch: Fetch) -> dict[PartitionKey, int]:
        """Return what the client knows of the partitions by its session."""
        if fetch.session is None:
            return {}
        known = self.cache.known_high_watermarks(*fetch.session)
        return {
            PartitionKey(topic.decode(), uuid.UUID(bytes=topic_id), index): high_watermark
            for (topic, topic_id, index), high_watermark in known.items()
        }

    def _partitions(self, session: FetchSession) -> Partitions:
        found = self.cache.partitions(*session)
        if found is None:
            raise _moved_on(session)
        return {
            PartitionKey(topic.decode(), uuid.UUID(bytes=topic_id), index): FetchedPartition(
                *wanted
            )
            for topic, topic_id, index, *wanted in found
        }


def _name(key: PartitionKey) -> Name:
    return key.topic.encode(), key.topic_id.bytes, key.partition


def _moved_on(session: FetchSession) -> InvalidFetchSessionEpoch:
    return InvalidFetchSessionEpoch(
        f"fetch session {session.session_id} advanced or ended while this request waited"
    )
