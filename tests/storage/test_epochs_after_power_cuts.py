"""Leader epochs that are not synced at a change of leadership, and power cuts at every operation.

After each cut and start, the leader epochs cover every record that the start keeps.
"""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from plog._native.batch import scan
from plog._native.faults import Fault, inject
from plog.storage.log import Log
from plog.storage.segment_verdict import Known
from tests.agreement.harness import run_seed

from .disks import LosingFilesystem
from .storage_logs import NOW_MS, Crash, Owner, batch, open_log, read_all

WAYS = 3
"""How many different states of the disk are tried for each cut."""
KERNEL_FILES = (".log", ".index", ".timeindex")
"""Of the segments: synced by the kernels, so that the file system of the test does not see it."""


class Life:
    """A log whose leader changes; knows which of its bytes are on disk for certain."""

    def __init__(self, fs: LosingFilesystem) -> None:
        # One epoch is on disk for certain: a file that is intact and too old is the worst one.
        log = open_log(fs.directory)
        log.append_as_leader(batch(1), now_ms=NOW_MS)
        log.close()
        fs.settle()
        self.fs = fs
        self.recovery_point = self.durable_end = 1
        self.is_closed = False
        self.sizes = self._sizes_now()  # by the name of a segment's log
        self.log: Log | None = None

    def run(self, chance: random.Random) -> None:
        known = Known(clean_shutdown=True, recovery_point=1, durable_end=1)
        log = self.log = open_log(
            self.fs.directory, known=known, fs=self.fs, owner=Owner(), leader=False
        )
        epoch = 0
        for _ in range(6):
            epoch += chance.randint(1, 2)
            if chance.random() < 0.3:
                log.become_follower(epoch)
                if chance.random() < 0.5 and log.log_end_offset > self.recovery_point:
                    offset = chance.randrange(self.recovery_point, log.log_end_offset)
                    log.truncate_to(offset)
                    self.durable_end = min(self.durable_end, log.durable_end)
                    self.sizes = self._sizes_now(self.sizes)
                epoch += 1
            log.become_leader(epoch, sole_replica=True)
            for _ in range(chance.randrange(3)):
                log.append_as_leader(batch(2), now_ms=NOW_MS)
            if chance.random() < 0.6:
                log.roll()
            if chance.random() < 0.6:
                log.append_as_leader(batch(1), now_ms=NOW_MS)
            if chance.random() < 0.8:
                self.flush()
                self.recovery_point = log.recovery_point()
        log.become_leader(epoch + 1, sole_replica=True)
        log.append_as_leader(batch(1), now_ms=NOW_MS)
        self.flush()
        log.close()
        self.is_closed = True

    def flush(self) -> None:
        assert self.log is not None
        self.durable_end = self.log.flush()
        self.sizes = self._sizes_now()

    def _sizes_now(self, at_most: dict[str, int] | None = None) -> dict[str, int]:
        now = {path.name: path.stat().st_size for path in self.fs.directory.glob("*.log")}
        if at_most is None:
            return now
        return {name: min(size, at_most.get(name, 0)) for name, size in now.items()}

    def left(self, target: Path, chance: random.Random) -> Path:
        """Make the directory that a power cut may leave."""
        target.mkdir()
        found = self.fs.left(chance)
        for path in self.fs.directory.iterdir():
            if path.suffix not in KERNEL_FILES:
                continue
            data = path.read_bytes()
            if path.suffix == ".log":
                size = chance.choice([self.sizes.get(path.name, 0), len(data)])
                data = data[: max(size, 0)]
            found[path.name] = data
        for name, data in found.items():
            (target / name).write_bytes(data)
        return target


def check(directory: Path, life: Life, where: str) -> int:
    """Start after the cut; return how many batches are left."""
    known = Known(
        clean_shutdown=life.is_closed,
        machine_restarted=True,
        recovery_point=life.recovery_point,
        durable_end=life.durable_end,
    )
    log = open_log(directory, known=known, leader=False)
    headers = scan(read_all(log)) if log.log_end_offset > log.log_start_offset else []
    for header in headers:
        listed = log.epoch_at(header.base_offset)
        assert listed == header.partition_leader_epoch, (where, log.leader_epochs, header)
    assert log.log_end_offset >= life.durable_end, where
    log.close()
    return len(headers)


def cut_everywhere(tmp_path: Path, seed: int) -> int:
    """Live the same life again and again, cut at one operation later each time."""
    step, cut, kept = 0, True, 0
    while cut:
        directory = tmp_path / f"{seed}-{step}"
        directory.mkdir()
        life = Life(LosingFilesystem(directory, fail_at=step))
        cut = False
        try:
            life.run(random.Random(seed))
        except Crash:
            cut = True
        finally:
            if life.log is not None:
                life.log.native.close()
        for way in range(WAYS):
            chance = random.Random(f"{seed} {step} {way}")
            left = life.left(tmp_path / f"{seed}-{step}-{way}", chance)
            kept += check(left, life, f"seed {seed}, cut at operation {step}, way {way}")
        step += 1
    assert step > 10
    assert kept > 0
    return step


def test_epochs_cover_what_a_power_cut_leaves(tmp_path: Path) -> None:
    seed = run_seed()
    cut_everywhere(tmp_path, seed)


@pytest.mark.long
def test_epochs_cover_what_power_cuts_leave_in_many_lives(tmp_path: Path) -> None:
    seed = run_seed()
    for number in range(40):
        cut_everywhere(tmp_path, seed + number)


def test_change_of_leadership_syncs_nothing(tmp_path: Path) -> None:
    log = open_log(tmp_path / "t-0")
    log.append_as_leader(batch(1), now_ms=NOW_MS)
    inject([Fault("fsync", errno=5), Fault("fdatasync", errno=5)])
    try:
        for epoch in range(1, 10):
            log.become_leader(epoch, sole_replica=True)
            log.append_as_leader(batch(1), now_ms=NOW_MS)
        log.become_follower(10)
        log.become_leader(11, sole_replica=True)
    finally:
        inject([])
    assert log.epoch_end_offset(9) == (9, 10)
    log.close()
