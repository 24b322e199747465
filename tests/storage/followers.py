"""A leader's log with batches of every kind, and a follower's log that gets them."""

from __future__ import annotations

import random
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import NamedTuple

from plog._native.batch import scan
from plog._native.partition_log import ProducerEntry
from plog.settings.definitions import TopicSettings
from plog.storage.log import Log
from plog.storage.producer_load import replay_control
from plog.storage.producer_snapshot import decode_snapshot, encode_snapshot
from plog.storage.producer_state import Marker, ProducerReplay

from .histories import PRODUCERS, History
from .storage_logs import NOW_MS, Settings, batch, files_of, open_log, read_all

SETTINGS = Settings(segment_bytes=1500, index_interval_bytes=300)
IDEMPOTENT = range(10, 13)
WITHOUT_NUMBERS = 90


def write_everything(log: Log, chance: random.Random, batches: int) -> None:
    """Write batches of every kind under several leader epochs; new segments come by themselves."""
    history = History(chance)
    next_sequences = dict.fromkeys(IDEMPOTENT, 0)
    epochs = dict.fromkeys(IDEMPOTENT, 0)
    for number in range(batches):
        match chance.randrange(8):
            case 0:
                log.become_leader(log.native.leader_epoch + chance.randint(1, 2), sole_replica=True)
            case 1 | 2:
                late = chance.randrange(100_000)
                codec = chance.choice([0, 1, 2, 3, 4])
                put(log, batch(chance.randint(1, 5), timestamp=NOW_MS + late, codec=codec))
            case 3 | 4:
                pid = chance.choice(IDEMPOTENT)
                if chance.random() < 0.1:
                    epochs[pid], next_sequences[pid] = epochs[pid] + 1, 0
                count = chance.randint(1, 5)
                sequence = next_sequences[pid]
                put(log, batch(count, producer_id=pid, epoch=epochs[pid], sequence=sequence))
                next_sequences[pid] += count
            case 5 | 6:
                producer_id = chance.choice(PRODUCERS)
                history.put(log, producer_id)
                if chance.random() < 0.6:
                    history.end(log, producer_id)
            case _:
                write_without_numbers(log, number)
    put(log, batch())


def put(log: Log, data: bytearray) -> None:
    log.append_as_leader(data, now_ms=NOW_MS)


def write_without_numbers(log: Log, number: int) -> None:
    """Write one transaction as a group coordinator does; every other one is aborted."""
    data = batch(2, producer_id=WITHOUT_NUMBERS, epoch=0, transactional=True)
    guard = log.transactions.guard_for_producer(WITHOUT_NUMBERS, 0)
    if guard is not None:
        log.transactions.approve(guard)
    log.transactions.append_for_coordinator(data, now_ms=NOW_MS, guard=guard)
    marker = Marker(abort=number % 2 == 0, coordinator_epoch=1)
    log.transactions.append_marker(WITHOUT_NUMBERS, 0, marker, now_ms=NOW_MS)


def leader_of_everything(
    directory: Path, seed: int, batches: int = 60, settings: TopicSettings = SETTINGS
) -> Log:
    log = open_log(directory, settings)
    write_everything(log, random.Random(seed), batches)
    return log


def follower_of(leader: Log, directory: Path, **options: object) -> Log:
    """Open an empty log that follows in the leader's epoch."""
    log = open_log(directory, leader.settings, leader=False, **options)  # type: ignore[arg-type]
    log.become_follower(leader.native.leader_epoch)
    return log


def fetch(leader: Log, follower: Log) -> bytes:
    """Return the leader's batches that the follower has not."""
    end = follower.log_end_offset
    if end == leader.log_end_offset:
        return b""
    return read_all(leader, max(end, leader.log_start_offset))


def feed(follower: Log, batches: bytes) -> int:
    epoch = follower.native.leader_epoch
    return follower.append_as_follower(batches, leader_epoch=epoch, now_ms=NOW_MS)


def cut_in_pieces(data: bytes, sizes: Sequence[int]) -> list[bytes]:
    """Cut at batch borders, into pieces of so many batches; the last one is the rest."""
    ends = [header.position + header.size_bytes for header in scan(data)]
    pieces, start, number = [], 0, 0
    for size in sizes:
        number += size
        if number >= len(ends):
            break
        pieces.append(data[start : ends[number - 1]])
        start = ends[number - 1]
    return [*pieces, data[start:]]


class Knowledge(NamedTuple):
    """What a log knows beside its records."""

    producers: list[ProducerEntry]
    epochs: object
    aborted: object
    state: object


def knowledge(log: Log) -> Knowledge:
    """Return it, with everything committed."""
    log.native.advance_high_watermark(log.log_end_offset)
    producers = sorted(entry._replace(version=0) for entry in log.native.producers())
    aborted = log.transactions.aborted_between(0, log.log_end_offset)
    state = log.native.state()._replace(durable_end=0, leader_epoch=0)
    return Knowledge(producers, log.leader_epochs, aborted, state)


def restored(known: Knowledge) -> Knowledge:
    """Return what a restart keeps of it: of producers what a snapshot holds."""
    producers = decode_snapshot(encode_snapshot(known.producers))
    return known._replace(producers=producers)


def assert_same_files(leader: Log, follower: Log, except_suffixes: tuple[str, ...] = ()) -> None:
    """Close both logs, and compare every file."""
    leader.close()
    follower.close()
    mine, theirs = (
        {
            name: data
            for name, data in files_of(log.directory).items()
            if not name.endswith(except_suffixes)
        }
        for log in (follower, leader)
    )
    assert sorted(mine) == sorted(theirs)
    for name, data in theirs.items():
        assert mine[name] == data, name


def first_unstable(batches: bytes, replay: ProducerReplay) -> int | None:
    """Replay batches as recovery does; return the first offset of an open transaction."""
    for header in scan(batches):
        if header.is_control:
            data = batches[header.position : header.position + header.size_bytes]
            replay_control(replay, header, partial(bytes, data))
        else:
            replay.on_batch(header)
    return replay.first_unstable_offset()
