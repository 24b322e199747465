"""Why a replica that should be here and has no log is not made anew: its records may be elsewhere.

Owns what a start has found missing: log directories that are registered and not here, and
partitions of which a directory remembers records that it does not hold. An empty log in
their place would lead with nothing. Never looks at a disk.
"""

from __future__ import annotations

import uuid
from collections.abc import Mapping
from pathlib import Path

from plog.storage.durable_ends import SlotKey
from plog.storage.live_log_dir import slot_key
from plog.storage.log_dir import DIRECTORY_ID
from plog.types import TopicPartition, uuid_to_text


class AbsentReplicas:
    """What one start has missed.

    Args:
        missing: log directories that are in none of `log.dirs`, and where they were.
        has_forgotten: whether an operator has given up a directory. What it held is not known.
    """

    def __init__(self, missing: Mapping[uuid.UUID, Path], *, has_forgotten: bool = False) -> None:
        self.missing = missing
        """Log directories by their ids."""
        self.has_forgotten = has_forgotten
        self._lost: dict[SlotKey, tuple[Path, int]] = {}

    @property
    def misses_a_log_dir(self) -> bool:
        """Whether any partition could be in a directory that is not here."""
        return bool(self.missing)

    def remember(self, log_dir: Path, durable_ends: Mapping[SlotKey, int]) -> None:
        """Take note of partitions that were in a directory, on disk up to these offsets."""
        self._lost |= {key: (log_dir, end) for key, end in durable_ends.items()}

    def reason(self, tp: TopicPartition, topic_id: uuid.UUID, *, is_only: bool) -> str | None:
        """Return why a replica must not be made anew; None when nothing is known of it.

        Args:
            is_only: whether it has no other replicas, from which it could be filled again once it
                is gone for certain.
        """
        if is_only and (lost := self._lost.get(slot_key(tp, topic_id))) is not None:
            log_dir, end = lost
            return (
                f"{log_dir / str(tp)} is missing; it held records up to offset {end}. Restore it"
                " and restart, or delete the topic"
            )
        if self.missing:
            places = ", ".join(
                f"{path} ({DIRECTORY_ID} {uuid_to_text(one)})" for one, path in self.missing.items()
            )
            return (
                f"records may be in a missing log directory: {places}. Mount its disk, check that"
                " it is in log.dirs and restart, or delete the topic"
            )
        return None
