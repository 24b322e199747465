"""What the tests of storage share: settings, an owner, batches, and logs made of them."""

from __future__ import annotations

import errno
import os
import threading
import uuid
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from plog._native.batch import read_header
from plog._native.partition_guards import TxnGuard
from plog._native.records import build_batch, control_batch
from plog.settings.definitions import BrokerSettings, TopicSettings
from plog.storage import log_opening
from plog.storage.filesystem import Filesystem
from plog.storage.log import Log
from plog.storage.recovery import RecoveredLog, recover
from plog.storage.segment_verdict import Known
from plog.types import TopicPartition

TP = TopicPartition("flights", 0)
TOPIC_ID = uuid.UUID("12345678-1234-4678-9234-567812345678")
NEVER = (1 << 63) - 1
NOW_MS = 1_700_000_000_000


def Settings(**values: object) -> TopicSettings:  # noqa: N802 - reads like what it makes
    """Return a topic's settings: Kafka's defaults but for `values`."""
    return TopicSettings(None, {_key(name): _text(value) for name, value in values.items()})


def broker_settings(log_dirs: Sequence[Path], **values: object) -> BrokerSettings:
    """Return a broker's settings, with no scrub unless `values` say so."""
    given: dict[str, object] = {
        "broker_id": 0,
        "log_dirs": ",".join(map(str, log_dirs)),
        "log_scrub_bytes_per_second": 0,
        **values,
    }
    return BrokerSettings({_key(name): _text(value) for name, value in given.items()})


def _key(attribute: str) -> str:
    return attribute.replace("_", ".")


def _text(value: object) -> str:
    return ",".join(value) if isinstance(value, tuple) else str(value)


@dataclass
class Owner:
    """A log owner that does everything at once, and remembers what it was told."""

    errors: list[OSError] = field(default_factory=list)
    damage: list[str] = field(default_factory=list)
    renamed: list[Path] = field(default_factory=list)
    lowered: list[int] = field(default_factory=list)
    gaps_below: int = 0
    commits: int = 0
    full: int = 0
    without_descriptor: int = 0

    def commit(self, log: Log, done: Callable[[OSError | None], None]) -> None:
        self.commits += 1

    def soon(self, log: Log, task: Callable[[], None]) -> None:
        task()

    def remove_later(self, log: Log, paths: Sequence[Path], delay_ms: int) -> None:
        self.renamed += paths

    def lower_recovery_point(self, log: Log, offset: int) -> None:
        self.lowered.append(offset)

    def allow_gaps(self, log: Log, end: int) -> None:
        self.gaps_below = end

    def on_io_error(self, log: Log, error: OSError) -> None:
        self.errors.append(error)

    def on_disk_full(self, log: Log, error: OSError) -> None:
        self.full += 1

    def on_no_descriptor(self, log: Log) -> None:
        self.without_descriptor += 1

    def on_damage(self, log: Log, reason: str) -> None:
        self.damage.append(reason)


def batch(
    count: int = 1,
    *,
    timestamp: int = NOW_MS,
    step: int = 1,
    value: bytes = b"value",
    codec: int = 0,
    producer_id: int = -1,
    epoch: int = -1,
    sequence: int = -1,
    transactional: bool = False,
) -> bytearray:
    """Build a batch of `count` records, a millisecond (`step`) apart."""
    return bytearray(
        build_batch(
            [(timestamp + n * step, None, value, ()) for n in range(count)],
            codec=codec,
            producer_id=producer_id,
            producer_epoch=epoch,
            base_sequence=sequence,
            transactional=transactional,
        )
    )


def append_verified(log: Log, data: bytearray) -> int:
    """Append a batch, which may begin a transaction; return its offset."""
    guard = approved(log, data)
    return log.append_as_leader(data, now_ms=NOW_MS, guard=guard).base_offset


def approved(log: Log, data: bytes | bytearray, *, from_zero: bool = False) -> TxnGuard | None:
    """Return the guard of a batch, approved, if it needs one."""
    guard = log.transactions.guard_for(read_header(data), from_zero=from_zero)
    if guard is not None:
        log.transactions.approve(guard)
    return guard


def open_log(
    directory: Path,
    settings: TopicSettings | None = None,
    *,
    known: Known | None = None,
    owner: Owner | None = None,
    fs: Filesystem | None = None,
    leader: bool = True,
    high_watermark: int = 0,
) -> Log:
    """Recover and open the partition in `directory`, made if need be; a sole leader."""
    settings, owner, fs = settings or Settings(), owner or Owner(), fs or Filesystem()
    directory.mkdir(exist_ok=True)
    recovered = recover(
        fs,
        directory,
        known or Known(clean_shutdown=False),
        index_interval_bytes=settings.index_interval_bytes,
    )
    log = log_opening.open_log(
        recovered,
        topic_partition=TP,
        topic_id=TOPIC_ID,
        directory=directory,
        settings=settings,
        high_watermark=high_watermark,
        owner=owner,
        fs=fs,
        monotonic_ms=0,
    )
    if leader:
        log.become_leader(max(log.leader_epochs.latest, 0), sole_replica=True)
    return log


def recovered(directory: Path, known: Known, fs: Filesystem | None = None) -> RecoveredLog:
    return recover(fs or Filesystem(), directory, known, index_interval_bytes=4096)


def read_all(log: Log, start: int | None = None) -> bytes:
    """Return every byte from `start` (the log start) to the log end."""
    offset = log.log_start_offset if start is None else start
    pieces = []
    while offset < log.log_end_offset:
        found = log.read(offset, 1 << 30, NEVER, True)
        assert found is not None, f"nothing at {offset} of {log.log_end_offset}"
        pieces.append(found.read())
        offset = found.next_offset_hint
    return b"".join(pieces)


def files_of(directory: Path) -> dict[str, bytes]:
    """Return every file of a directory."""
    return {path.name: path.read_bytes() for path in sorted(directory.iterdir())}


class Crash(BaseException):
    """The process is gone: nothing after it runs, no handler sees it."""


class FaultyFilesystem(Filesystem):
    """Fails at the Nth operation that changes something: with an error, or as if the power went.

    Counts open descriptors, too: `close` gives them back, and `Segment` takes some over.
    """

    CHANGING = frozenset(
        [
            "pwrite",
            "fdatasync",
            "fsync",
            "ftruncate",
            "open_file",
            "make_directory",
            "remove_directory",
            "rename",
            "unlink",
        ]
    )

    def __init__(self, fail_at: int = -1, *, error: int = errno.EIO, crash: bool = False) -> None:
        self.operations = 0
        self.fail_at = fail_at
        self._error = error
        self._crash = crash
        self._mutex = threading.Lock()

        for name in self.CHANGING:
            setattr(self, name, self._watched(name, getattr(self, name)))

    def _watched(self, name: str, change: Callable[..., Any]) -> Callable[..., Any]:
        def watched(*args: object, **options: object) -> Any:
            self.before(name)
            with self._mutex:
                number = self.operations
                self.operations += 1
            if number >= self.fail_at >= 0 and self._crash:
                raise Crash
            if number == self.fail_at:
                raise OSError(self._error, os.strerror(self._error), name)
            return change(*args, **options)

        return watched

    def before(self, name: str) -> None:
        """Look at what there is before an operation; does nothing here."""


__all__ = [
    "NEVER",
    "NOW_MS",
    "TOPIC_ID",
    "TP",
    "Crash",
    "FaultyFilesystem",
    "Owner",
    "Settings",
    "batch",
    "broker_settings",
    "control_batch",
    "files_of",
    "open_log",
    "read_all",
    "recovered",
]
