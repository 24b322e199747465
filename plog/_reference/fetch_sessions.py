"""Fetch sessions (KIP-227), to be read: the same rules as the kernel's, in dictionaries.

The shapes of names, wishes and facts are those of `_native/fetch_sessions.pyi`.
"""

from __future__ import annotations

import os
import random
from collections import OrderedDict
from dataclasses import dataclass
from itertools import takewhile

from plog._reference.siphash import KEY_BYTES, siphash

NONE, NEW, NEXT, ENDED, UNKNOWN, WRONG_EPOCH, MIXED_NAMES = range(7)
EVICT_AFTER_MS = 120_000
PART_BYTES = 256
MOST_BYTES = 1 << 28
LONGEST_TOPIC = 249
"""No topic has a longer name, so no session remembers one."""
MOST_PARTS = 250_000
"""A session that grows above it is over."""

NO_SESSION_ID = 0
INITIAL_EPOCH = 0
"""Epoch of a request that wants a new session (or none, with the session's id, to replace it)."""
FINAL_EPOCH = -1
"""Epoch of a request outside any session; with a session's id it closes that session."""
MAX_EPOCH = 2**31 - 1

Name = tuple[bytes, bytes, int]
Wanted = tuple[bytes, bytes, int, int, int, int, int, int]
Fact = tuple[bytes, bytes, int, bool, bool, bool, int, int]


@dataclass(slots=True)
class Remembered:
    """What a client asks of one partition, and what it was last told of it."""

    wanted: tuple[int, int, int, int, int]
    known_high_watermark: int = -1
    known_log_start_offset: int = -1


@dataclass(slots=True)
class Session:
    """One client's fetch, between two requests."""

    id: int
    by_id: bool
    partitions: OrderedDict[Name, Remembered]
    created_ms: int
    used_ms: int
    epoch: int = 1
    """What the next request must say."""


class SessionCache:
    """The broker's table of fetch sessions."""

    def __init__(
        self, slots: int, *, most_bytes: int = MOST_BYTES, seed: int | None = None
    ) -> None:
        self._slots = slots
        self._most_bytes = most_bytes
        self._sessions: OrderedDict[int, Session] = OrderedDict()  # least recently used first
        self._id_key = (
            os.urandom(KEY_BYTES) if seed is None else random.Random(seed).randbytes(KEY_BYTES)
        )
        self._ids_drawn = 0

    def __len__(self) -> int:
        return len(self._sessions)

    def begin(
        self,
        session_id: int,
        session_epoch: int,
        asked: list[Wanted],
        forgotten: list[Name],
        *,
        by_id: bool,
        now_ms: int,
    ) -> tuple[int, int, int]:
        """Turn a request into (what it came to, its session's id, its epoch until the next)."""
        if session_epoch in (INITIAL_EPOCH, FINAL_EPOCH):
            self._sessions.pop(session_id, None)
            listed = sum(PART_BYTES + len(part[0]) for part in asked)
            if session_epoch == FINAL_EPOCH or not asked or listed > self._most_bytes:
                return NONE, NO_SESSION_ID, 0
            if _has_long_names(asked):
                return NONE, NO_SESSION_ID, 0
            partitions = OrderedDict((part[:3], Remembered(part[3:])) for part in asked)
            for part in asked:  # of one that is named twice the last counts
                partitions[part[:3]].wanted = part[3:]
            return self._open(partitions, by_id, now_ms)
        session = self._sessions.get(session_id)
        if session is None:
            return UNKNOWN, NO_SESSION_ID, 0
        if session.epoch != session_epoch:
            return WRONG_EPOCH, NO_SESSION_ID, 0
        if session.by_id != by_id:
            return MIXED_NAMES, NO_SESSION_ID, 0
        for name in forgotten:
            session.partitions.pop(name, None)
        grown = sum(PART_BYTES + len(p[0]) for p in asked if p[:3] not in session.partitions)
        if _has_long_names(asked) or (grown and self._bytes() + grown > self._most_bytes):
            del self._sessions[session_id]
            return UNKNOWN, NO_SESSION_ID, 0
        for part in asked:
            known = session.partitions.setdefault(part[:3], Remembered(part[3:]))
            known.wanted = part[3:]
        for name in forgotten:  # those that are asked for as well
            session.partitions.pop(name, None)
        if not session.partitions:
            del self._sessions[session_id]
            return ENDED, NO_SESSION_ID, 0
        if len(session.partitions) > MOST_PARTS:
            del self._sessions[session_id]
            return UNKNOWN, NO_SESSION_ID, 0
        session.epoch = 1 if session.epoch == MAX_EPOCH else session.epoch + 1
        session.used_ms = now_ms
        self._sessions.move_to_end(session_id)
        return NEXT, session_id, session.epoch

    def _open(
        self, partitions: OrderedDict[Name, Remembered], by_id: bool, now_ms: int
    ) -> tuple[int, int, int]:
        count, size = len(self._sessions), self._bytes() + _bytes_of(partitions)
        victims = []
        for session in self._giving_way(len(partitions), now_ms):
            if count < self._slots and size <= self._most_bytes:
                break
            victims.append(session.id)
            count, size = count - 1, size - _bytes_of(session.partitions)
        if count >= self._slots or size > self._most_bytes:
            return NONE, NO_SESSION_ID, 0
        for session_id in victims:
            del self._sessions[session_id]
        session_id = self._draw_id()
        self._sessions[session_id] = Session(session_id, by_id, partitions, now_ms, now_ms)
        return NEW, session_id, 1

    def _bytes(self) -> int:
        return sum(_bytes_of(session.partitions) for session in self._sessions.values())

    def _giving_way(self, size: int, now_ms: int) -> list[Session]:
        """Return those that a session of `size` partitions is worth more than, the least first."""
        sessions = list(self._sessions.values())
        unused = list(
            takewhile(lambda session: now_ms - session.used_ms > EVICT_AFTER_MS, sessions)
        )
        smaller = [
            session
            for session in sessions[len(unused) :]
            if len(session.partitions) < size and now_ms - session.created_ms > EVICT_AFTER_MS
        ]
        return unused + sorted(smaller, key=lambda session: len(session.partitions))

    def _draw_id(self) -> int:
        """Return one that is free: a client that knew it could end another's session."""
        drawn = NO_SESSION_ID
        while drawn == NO_SESSION_ID or drawn in self._sessions:
            self._ids_drawn += 1
            drawn = siphash(self._id_key, self._ids_drawn.to_bytes(8, "little")) & 0x7FFFFFFF
        return drawn

    def partitions(self, session_id: int, epoch: int) -> list[Wanted] | None:
        """Return what a session reads, in order."""
        session = self._at(session_id, epoch)
        if session is None:
            return None
        return [(*name, *known.wanted) for name, known in session.partitions.items()]

    def known_high_watermarks(self, session_id: int, epoch: int) -> dict[Name, int]:
        """Return what the last responses of a session said; nothing if it is over."""
        session = self._at(session_id, epoch)
        if session is None:
            return {}
        return {name: known.known_high_watermark for name, known in session.partitions.items()}

    def tell(self, session_id: int, epoch: int, facts: list[Fact]) -> list[bool] | None:
        """Note what an answer says, and return which partitions it must name.

        After an error the remembered high watermark is forgotten, so that recovery is told too.
        """
        session = self._at(session_id, epoch)
        if session is None:
            return None
        return [_tell_one(session, fact) for fact in facts]

    def _at(self, session_id: int, epoch: int) -> Session | None:
        session = self._sessions.get(session_id)
        return session if session is not None and session.epoch == epoch else None


def _has_long_names(asked: list[Wanted]) -> bool:
    return any(len(part[0]) > LONGEST_TOPIC for part in asked)


def _bytes_of(partitions: OrderedDict[Name, Remembered]) -> int:
    return sum(PART_BYTES + len(topic) for topic, _, _ in partitions)


def _tell_one(session: Session, fact: Fact) -> bool:
    topic, topic_id, index, has_error, has_records, diverges, high_watermark, log_start_offset = (
        fact
    )
    name = (topic, topic_id, index)
    known = session.partitions.get(name)
    if known is None:
        return False
    changed = (
        has_error
        or has_records
        or diverges
        or known.known_high_watermark != high_watermark
        or known.known_log_start_offset != log_start_offset
    )
    known.known_high_watermark = -1 if has_error else high_watermark
    known.known_log_start_offset = log_start_offset
    if has_records:
        session.partitions.move_to_end(name)
    return changed
