"""One partition's log under threads that append, read, flush, roll, delete and replace at once.

What must hold, whatever the threads do:

1. every acknowledged batch is in the log once, at the offset that was answered, its CRC intact;
2. a read gives rising, adjoining batches from the one that holds the asked offset, none of them at
   or past the upper offset;
3. last_stable_offset <= high_watermark <= log_end_offset and durable_end <= log_end_offset, and
   none of them goes back.
"""

from __future__ import annotations

import itertools
import os
import random
import shutil
import struct
import threading
from pathlib import Path

import pytest

from plog._native.partition_log import (
    APPENDED,
    DUPLICATE,
    ROLL_NEEDED,
    Appended,
    FileRange,
    PartitionLog,
    ProducerEntry,
    Segment,
)
from tests.agreement.harness import run_seed

from .partition_logs import Directory, crc32c, make_batch, walk

PRODUCERS = 3
SEGMENT_BYTES = 60_000
KEPT_SEGMENTS = 6


class Stress:
    """The threads and what they know; `stop` ends them, `failures` says what went wrong."""

    def __init__(self, directory: Directory, seed: int) -> None:
        self.directory = directory
        self.seed = seed
        self.log: PartitionLog = directory.log(index_interval_bytes=500)
        self.log.set_limits(
            segment_bytes=SEGMENT_BYTES,
            segment_ms=1 << 40,
            segment_jitter_ms=0,
            index_interval_bytes=500,
        )
        self.stop = threading.Event()
        self.segments_lock = threading.Lock()  # storage's own lock around segment changes
        self.failures: list[str] = []
        self.acknowledged: list[dict[int, int]] = [{} for _ in range(PRODUCERS)]
        self.counts = dict.fromkeys(("rolls", "deleted", "replaced", "reads"), 0)

    def run(self, seconds: float) -> None:
        workers = [
            *(lambda n=n: self.produce(n) for n in range(PRODUCERS)),
            self.read,
            self.read,
            self.flush,
            self.tend,
            self.watch,
        ]
        threads = [
            threading.Thread(target=self.guarded, args=(worker, number))
            for number, worker in enumerate(workers)
        ]
        for thread in threads:
            thread.start()
        self.stop.wait(seconds)
        self.stop.set()
        for thread in threads:
            thread.join()

    def guarded(self, worker, number: int) -> None:
        threading.current_thread().name = f"stress-{number}"
        try:
            worker()
        except BaseException as failure:
            self.failures.append(f"thread {number}: {failure!r}")
            self.stop.set()
            raise

    def rng(self) -> random.Random:
        return random.Random(f"{self.seed} {threading.current_thread().name}")

    # -- the threads

    def produce(self, producer_id: int) -> None:
        rng = self.rng()
        sequence = 0
        assert self.log.put_producer(ProducerEntry(producer_id, 0, (), -1, -1, -1), 0)
        while not self.stop.is_set():
            records = rng.randint(1, 3)
            size = rng.choice([61, 100, 300, 3000])
            copy = {"producer_id": producer_id, "epoch": 0, "sequence": sequence}
            batch = make_batch(records, size, **copy)
            appended = self.log.append(batch, 0)
            while appended.status == ROLL_NEEDED:
                appended = self.append_after_roll(batch)
            assert appended.status == APPENDED, appended
            assert appended.last_offset - appended.base_offset == records - 1
            self.acknowledged[producer_id][sequence] = appended.base_offset
            if rng.random() < 0.1:
                again = self.log.append(make_batch(records, size, **copy), 0)
                assert again.status == DUPLICATE, again
                assert again.base_offset == appended.base_offset
            sequence += records

    def append_after_roll(self, batch: bytearray) -> Appended:
        with self.segments_lock:
            # Asked again: another thread may have rolled meanwhile.
            appended = self.log.append(batch, 0)
            if appended.status != ROLL_NEEDED:
                return appended
            old = self.log.segments
            # Nothing may be let in here, or the new segment would be refused.
            self.log.replace_segments([*old, self.directory.segment(self.log.log_end_offset)])
            old[-1].seal()
            self.counts["rolls"] += 1
            return self.log.append(batch, 0)

    def tend(self) -> None:
        """Delete old segments, and replace others by copies, as retention and compaction do."""
        rng = self.rng()
        while not self.stop.wait(0.002):
            with self.segments_lock:
                segments = self.log.segments
                if len(segments) > KEPT_SEGMENTS:
                    self.log.set_log_start_offset(segments[1].base_offset)
                    self.log.replace_segments(segments[1:])
                    for suffix in ("log", "index", "timeindex"):
                        self.directory.file(segments[0].base_offset, suffix).unlink()
                    self.counts["deleted"] += 1
                elif len(segments) > 1:
                    number = rng.randrange(len(segments) - 1)
                    segments[number] = self.copied(segments[number])
                    self.log.replace_segments(segments)
                    self.counts["replaced"] += 1

    def copied(self, segment: Segment) -> Segment:
        for suffix in ("log", "index", "timeindex"):
            path = self.directory.file(segment.base_offset, suffix)
            shutil.copyfile(path, path.with_suffix(".swap"))
            os.replace(path.with_suffix(".swap"), path)
        return self.directory.segment(
            segment.base_offset,
            size_bytes=segment.size_bytes,
            next_offset=segment.next_offset,
            offset_entries=segment.offset_entries,
            time_entries=segment.time_entries,
            max_timestamp=segment.max_timestamp,
            max_timestamp_offset=segment.max_timestamp_offset,
            first_append_ms=segment.first_append_ms,
        )

    def flush(self) -> None:
        while not self.stop.is_set():
            before = self.log.log_end_offset
            assert self.log.flush() >= before

    def watch(self) -> None:
        last = self.log.state()
        while not self.stop.is_set():
            state = self.log.state()
            assert state.last_stable_offset <= state.high_watermark <= state.log_end_offset
            assert state.log_start_offset <= state.high_watermark
            assert state.durable_end <= state.log_end_offset
            assert all(now >= then for now, then in zip(state[:5], last[:5], strict=True)), state
            last = state

    def read(self) -> None:
        rng = self.rng()
        held: list[tuple[FileRange, bytes]] = []
        while not self.stop.is_set():
            state = self.log.state()
            if state.log_start_offset == state.log_end_offset:
                continue
            fetch_offset = rng.randrange(state.log_start_offset, state.log_end_offset)
            if rng.random() < 0.5:  # most consumers are near the end
                fetch_offset = max(state.log_start_offset, state.log_end_offset - rng.randint(1, 9))
            upper = rng.choice([state.log_end_offset, state.durable_end])
            found = self.log.read(fetch_offset, rng.choice([1, 4000, 1 << 20]), upper, True)
            if found is None:
                assert fetch_offset >= upper or fetch_offset < self.log.log_start_offset
                continue
            data = found.read()
            self.check(data, fetch_offset, upper)
            self.counts["reads"] += 1
            held.append((found, data))
            if len(held) > 20:  # pins outlive deletion and replacement
                old, then = held.pop(0)
                assert old.read() == then

    @staticmethod
    def check(data: bytes, fetch_offset: int, upper: int) -> None:
        batches = walk(data)
        assert batches[0].base_offset <= fetch_offset <= batches[0].last_offset
        for before, after in itertools.pairwise(batches):
            assert after.base_offset == before.last_offset + 1
        assert batches[-1].base_offset < upper
        for batch in batches[:3] + batches[-1:]:
            body = data[batch.position + 21 : batch.position + batch.size]
            assert struct.unpack_from(">I", data, batch.position + 17)[0] == crc32c(body)

    # -- afterwards

    def check_whole_log(self) -> None:
        seen: list[dict[int, int]] = [{} for _ in range(PRODUCERS)]
        end = self.log.log_start_offset
        for segment in self.log.segments:
            data = self.directory.data(segment.base_offset)
            assert len(data) == segment.size_bytes
            assert self.directory.offset_index(segment.base_offset) == sorted(
                set(self.directory.offset_index(segment.base_offset))
            )
            for batch in walk(data):
                assert batch.base_offset == end
                end = batch.last_offset + 1
                (producer_id,) = struct.unpack_from(">q", data, batch.position + 43)
                (sequence,) = struct.unpack_from(">i", data, batch.position + 53)
                assert sequence not in seen[producer_id]
                seen[producer_id][sequence] = batch.base_offset
        assert end == self.log.log_end_offset
        for producer_id in range(PRODUCERS):
            kept = {
                sequence: offset
                for sequence, offset in self.acknowledged[producer_id].items()
                if offset >= self.log.log_start_offset
            }
            assert seen[producer_id] == kept


@pytest.mark.parametrize(
    "seconds", [2.0, pytest.param(30.0, marks=pytest.mark.long)], ids=["short", "long"]
)
def test_threads_at_once_keep_the_log_whole(tmp_path: Path, seconds: float) -> None:
    seed = run_seed()  # of what the threads do, not of when
    directory = Directory(tmp_path / "t-0")
    stress = Stress(directory, seed)
    stress.run(seconds)
    print(stress.counts, stress.log.state())
    assert stress.failures == []
    stress.check_whole_log()
    assert stress.counts["rolls"] > 0
    assert stress.counts["reads"] > 0
    assert stress.counts["deleted"] + stress.counts["replaced"] > 0
