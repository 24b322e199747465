"""A log against a model of it: a list of records, over random operations and restarts."""

from __future__ import annotations

import random
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from plog._native.batch import scan
from plog._native.partition_log import APPENDED, DUPLICATE
from plog._native.records import walk
from plog.errors import OffsetOutOfRange, OutOfOrderSequenceNumber
from plog.storage.segment_verdict import Known
from tests.agreement.harness import run_seed

from .storage_logs import NEVER, NOW_MS, Settings, batch, open_log


@dataclass
class Model:
    """What the log must say."""

    records: list[tuple[int, int, int]] = field(default_factory=list)  # offset, timestamp, epoch
    batches: list[tuple[int, int]] = field(default_factory=list)  # base, next
    start: int = 0
    end: int = 0
    durable: int = 0
    epoch: int = 0
    # producer -> (base offset, first sequence, count), the last five first to last
    producers: dict[int, list[tuple[int, int, int]]] = field(default_factory=dict)

    def append(self, times: list[int], pid: int | None, sequence: int) -> None:
        base = self.end
        self.records += [(base + n, time, self.epoch) for n, time in enumerate(times)]
        self.end += len(times)
        self.batches.append((base, self.end))
        if pid is not None:
            window = self.producers.setdefault(pid, [])
            window.append((base, sequence, len(times)))
            del window[:-5]

    def truncate(self, offset: int) -> None:
        kept = [(base, end) for base, end in self.batches if end <= offset]
        self.batches = kept
        self.end = kept[-1][1] if kept else self.start
        self.records = [record for record in self.records if record[0] < self.end]

    def visible(self) -> list[tuple[int, int, int]]:
        return [record for record in self.records if record[0] >= self.start]


class Run:
    """One run of random operations."""

    def __init__(self, directory: Path, chance: random.Random) -> None:
        self.directory = directory
        self.chance = chance
        self.model = Model()
        self.settings = Settings(
            segment_bytes=chance.choice([800, 2000, 5000]),
            index_interval_bytes=chance.choice([0, 300, 4096]),
            retention_bytes=chance.choice([-1, 6000]),
        )
        self.log = open_log(directory, self.settings)
        self.trace: list[str] = []

    def step(self) -> None:
        name = self.chance.choices(
            ["append", "produce", "retry", "gap", "flush", "retain", "delete", "lead", "crash",
             "close", "tear"],
            [30, 30, 6, 3, 6, 3, 2, 2, 3, 3, 3],
        )[0]  # fmt: skip
        self.trace.append(name)
        getattr(self, name)()

    def times(self) -> list[int]:
        start = NOW_MS + self.chance.randrange(100_000)
        return [start + n for n in range(self.chance.randint(1, 8))]

    def send(self, times: list[int], pid: int | None = None, sequence: int = -1) -> tuple[int, int]:
        data = batch(
            len(times), timestamp=times[0], value=b"v" * self.chance.randrange(60),
            codec=self.chance.choice([0, 0, 4]), producer_id=-1 if pid is None else pid,
            epoch=-1 if pid is None else 0, sequence=sequence,
        )  # fmt: skip
        appended = self.log.append_as_leader(data, now_ms=NOW_MS)
        return appended.status, appended.base_offset

    def append(self) -> None:
        times = self.times()
        assert self.send(times) == (APPENDED, self.model.end)
        self.model.append(times, None, -1)

    def produce(self) -> None:
        pid = self.chance.randrange(3)
        window = self.model.producers.get(pid)
        sequence = window[-1][1] + window[-1][2] if window else self.chance.choice([0, 77])
        times = self.times()
        assert self.send(times, pid, sequence) == (APPENDED, self.model.end)
        self.model.append(times, pid, sequence)

    def retry(self) -> None:
        for pid, window in self.model.producers.items():
            for base, sequence, count in window:
                times = [NOW_MS + n for n in range(count)]
                try:
                    assert self.send(times, pid, sequence) == (DUPLICATE, base)
                except OutOfOrderSequenceNumber:
                    # After a restart only the newest is known without the batch itself.
                    assert base < self.log.native.segments[0].base_offset
                    assert base != window[-1][0]

    def gap(self) -> None:
        for pid, window in self.model.producers.items():
            with pytest.raises(OutOfOrderSequenceNumber):
                self.send(self.times(), pid, window[-1][1] + window[-1][2] + 1)

    def flush(self) -> None:
        assert self.log.flush() == self.model.end
        self.model.durable = self.model.end

    def retain(self) -> None:
        self.log.apply_retention(NOW_MS)
        if self.settings.retention_bytes >= 0 and self.log.log_start_offset > self.model.start:
            assert self.log.size_bytes >= self.settings.retention_bytes
        self.model.start = max(self.model.start, self.log.log_start_offset)

    def delete(self) -> None:
        offset = self.chance.randint(self.model.start, self.model.end)
        assert self.log.delete_records_before(offset) == offset
        self.model.start = offset

    def lead(self) -> None:
        self.model.epoch += self.chance.randint(1, 3)
        self.log.become_leader(self.model.epoch, sole_replica=True)

    def reopen(self, *, clean: bool) -> None:
        self.log = open_log(
            self.directory,
            self.settings,
            known=Known(
                clean_shutdown=clean,
                recovery_point=self.chance.randint(0, self.model.durable),
                durable_end=self.model.durable,
                log_start_offset=self.model.start,
            ),
            leader=False,
        )
        self.log.become_leader(self.model.epoch, sole_replica=True)

    def crash(self) -> None:
        self.log.drop()
        self.reopen(clean=False)

    def close(self) -> None:
        self.log.close()
        self.model.durable = self.model.end
        self.reopen(clean=True)

    def tear(self) -> None:
        """Cut or spoil the end of the active segment, past the durable end."""
        active = self.log.native.segments[-1].base_offset
        self.log.drop()
        path = self.directory / f"{active:020d}.log"
        data = path.read_bytes()
        floor = max(self.model.durable, active)
        safe = sum(header.size_bytes for header in scan(data) if header.next_offset <= floor)
        kept = self.chance.randint(safe, len(data))
        tail = self.chance.choice([b"", bytes(self.chance.randrange(200)), b"\x02\x07" * 40])
        left = data[:kept] + tail
        path.write_bytes(left)
        position = 0
        end = active
        for header in scan(data):
            position += header.size_bytes
            if left[:position] == data[:position]:  # the tail may be what was cut
                end = header.next_offset
        self.model.truncate(end)
        self.model.end = max(end, active)
        if self.model.start > self.model.end:
            # Deleted up to past what is left: the log begins anew there.
            self.model.end = self.model.start
        self.reopen(clean=False)
        self.model.producers = {
            entry.producer_id: [
                (b.last_offset - b.offset_delta, b.first_sequence, b.offset_delta + 1)
                for b in entry.batches
            ]
            for entry in self.log.native.producers()
        }
        known = {base for base, _ in self.model.batches}
        for window in self.model.producers.values():
            assert {base for base, _, _ in window if base >= self.model.start} <= known

    def check(self) -> None:
        model, log = self.model, self.log
        assert (log.log_start_offset, log.log_end_offset) == (model.start, model.end)
        assert log.high_watermark == model.end
        found = []
        offset = model.start
        while offset < model.end:
            piece = log.read(offset, self.chance.randint(1, 5000), NEVER, True)
            assert piece is not None
            data = piece.read()
            for epoch, at in scan_prefix(data):
                found += [
                    (record.offset, record.timestamp, epoch)
                    for record in walk(data, pos=at)
                    if record.offset >= offset
                ]
            offset = found[-1][0] + 1
        assert found == model.visible()
        for outside in (model.start - 1, model.end + 1):
            with pytest.raises(OffsetOutOfRange):
                log.read(outside, 1000, NEVER, True)
        asked = NOW_MS + self.chance.randrange(100_010)
        wanted = next((r for r in model.visible() if r[1] >= asked), None)
        assert log.offset_for_timestamp(asked) == wanted
        largest = max((r[1] for r in model.visible()), default=None)
        wanted = next((r for r in model.visible() if r[1] == largest), None)
        assert log.max_timestamp_offset() == wanted


def scan_prefix(data: bytes) -> list[tuple[int, int]]:
    """Return (leader epoch, position) of the whole batches at the start of `data`."""
    found = []
    at = 0
    while at + 61 <= len(data):
        size = 12 + int.from_bytes(data[at + 8 : at + 12], "big")
        if at + size > len(data):
            break
        found.append((int.from_bytes(data[at + 12 : at + 16], "big"), at))
        at += size
    return found


@pytest.mark.parametrize("number", range(12))
def test_random_operations_leave_what_the_model_says(tmp_path: Path, number: int) -> None:
    run_one(tmp_path / "flights-0", run_seed() + number)


def run_one(directory: Path, seed: int) -> None:
    run = Run(directory, random.Random(seed))
    for _ in range(120):
        run.step()
        try:
            run.check()
        except AssertionError:
            print(" ".join(run.trace))
            raise
