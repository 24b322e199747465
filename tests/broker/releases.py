"""What older releases of plog have written, and these themselves, built from their commits.

`tests/golden/releases/` holds data directories as each release left them, one after a clean stop
and one after SIGKILL. They are made by `python -m tests.broker.releases`, and not made again
when plog changes: hosts will have such files. A format that changes adds a release here. The source
of the last one is there, too (`-source`), so that every run can go back to it.
"""

from __future__ import annotations

import itertools
import os
import random
import shutil
import subprocess
import sys
import tarfile
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import pytest
from confluent_kafka import TopicPartition as Place

from plog.client.admin import BROKER, GROUP, SET, Admin
from plog.client.admin import TOPIC as TOPIC_KIND
from plog.types import TopicPartition
from tests.compat.clients import CODECS, PATIENCE_S, Confluent, Sent
from tests.compat.coordinated import begin as begin_transaction
from tests.compat.coordinated import (
    commit_offset,
    committed_offset,
    read_committed,
    read_to_end,
    transactional,
)
from tests.compat.made import made_once
from tests.conftest import ROOT
from tests.group_members import member
from tests.planes import Plane
from tests.servers import BrokerProcess
from tests.waiting import until


class Release(NamedTuple):
    """A commit that hosts may still have, or have files of."""

    commit: str
    coordinates: bool
    """Whether it has groups and transactions."""

    @property
    def settings(self) -> dict[str, object]:
        """Of brokers on its data: as few partitions of their own as there can be."""
        own = {"offsets.topic.num.partitions": 1, "transaction.state.log.num.partitions": 1}
        return dict(own) if self.coordinates else {}


FIRST = Release("4ec5ce4", coordinates=False)
"""The first commit of version 0.1.0 that was fit to be used."""
COORDINATING = Release("1f5d43a", coordinates=True)
RELEASES = [FIRST, COORDINATING]
HELD = ROOT / "tests" / "golden" / "releases"
BUILT = ROOT / ".venv" / "built-releases"
BUILD_TIMEOUT_S = 900
QUICK_COMPILER = """#!/bin/sh
exec {} "$@" -O0 -g0 -w
"""
"""Of the sources as they were; what is asked of them takes no speed. Clang needs less time."""
NOT_LOADED = (
    *("arrow_buffers", "column_rows", "columns", "faults", "load", "murmur2"),
    "request_forms",
)
"""Kernels that no broker of these releases loads: clients and tests do."""
TOPIC = "written"
MOVED = "moved"
SEGMENT_BYTES = "4000"
"""So that there are several segments."""
FIRST_KEPT = 3
"""The records below it are deleted."""
OF_CONSUMERS = "of consumers"
COMPACTED = "compacted"
COMPACTION = {
    "cleanup.policy": "compact",
    "segment.bytes": "200",
    "min.cleanable.dirty.ratio": "0",
    "max.compaction.lag.ms": "100",
}
KEYS, ROUNDS = 3, 12
SET_BY_THE_NEWER = [
    (TOPIC_KIND, COMPACTED, "retention.ms", "123456789"),
    (BROKER, "0", "message.max.bytes", "1234567"),
    (BROKER, "", "log.retention.ms", "987654321"),
    (GROUP, OF_CONSUMERS, "consumer.session.timeout.ms", "46000"),
]
"""Kind and name of what they are for, key and value."""
OLD_STAMP = 1_700_000_000_000


def records(first: int, count: int) -> list[Sent]:
    """Return records by their offsets; nothing compresses them."""
    return [
        Sent(b"k%d" % n, random.Random(n).randbytes(250), (("n", b"%d" % n),), OLD_STAMP + n)
        for n in range(first, first + count)
    ]


def write(bootstrap: str, first: int) -> int:
    """Write a batch of each codec, the first at this offset; return the end."""
    # All are made before the first writes, as each waits for its id.
    for producer in [Confluent().producer(bootstrap, codec=codec) for codec in CODECS]:
        offsets = Confluent().write(producer, TOPIC, records(first, 10), partition=1)
        assert offsets == list(range(first, first + 10))
        first += 10
    return first


def coordinate(bootstrap: str, end: int) -> None:
    """Commit a record and an offset, both of this end; begin what a later one of its id aborts."""
    commit_offset(bootstrap, TopicPartition(TOPIC, 1), end)
    producer = transactional(bootstrap, "its id")
    begin_transaction(producer, MOVED, [b"%d" % end])
    producer.commit_transaction(PATIENCE_S)
    begin_transaction(producer, MOVED, [b"never committed"])


def verify_coordinated(bootstrap: str, ends: Sequence[int]) -> None:
    """Find what was committed at these ends, and nothing else."""
    assert committed_offset(bootstrap, TopicPartition(TOPIC, 1)) == ends[-1]
    transactional(bootstrap, "its id")
    assert read_committed(bootstrap, MOVED, len(ends)) == [b"%d" % end for end in ends]


def use_what_is_newer(broker: BrokerProcess, end: int) -> None:
    """Do what the first release could not: a consumer group (KIP-848), its settings, compaction.

    What is written and committed is of this end.
    """
    bootstrap = broker.bootstrap
    with Admin(bootstrap) as admin:
        if COMPACTED not in admin.topics():
            admin.create_topic(COMPACTED, configs=COMPACTION)
        for kind, name, key, value in SET_BY_THE_NEWER:
            admin.alter_configs(kind, name, [(key, SET, value)])
    with member(bootstrap, OF_CONSUMERS, TOPIC, {1: end}, group_protocol="consumer"):
        pass
    # Idempotent producers' last batches would stay, empty, of which librdkafka complains.
    for n in range(ROUNDS):
        values = [Sent(b"k%d" % (n % KEYS), b"%d of %d" % (n, end))]
        Confluent().produce(bootstrap, COMPACTED, values, idempotent=False)
    until(lambda: len(read_to_end(bootstrap, COMPACTED)) < ROUNDS, "compacted")


def verify_what_is_newer(bootstrap: str, end: int, *, coordinates: bool) -> None:
    """Find what `use_what_is_newer` left, as far as a release knows of it."""
    found = read_to_end(bootstrap, COMPACTED)
    newest = {b"k%d" % (n % KEYS): b"%d of %d" % (n, end) for n in range(ROUNDS)}
    assert {one.key(): one.value() for one in found} == newest, [
        (one.offset(), one.key(), one.value()) for one in found
    ]
    with Admin(bootstrap) as admin:
        for kind, name, key, value in SET_BY_THE_NEWER:
            if coordinates or kind != GROUP:
                (entry,) = admin.describe_configs(kind, name, [key])
                assert entry.value == value
    if coordinates:
        with member(bootstrap, OF_CONSUMERS, TOPIC, group_protocol="consumer") as again:
            (kept,) = again.committed([Place(TOPIC, 1)], PATIENCE_S)
            assert kept.offset == end


def begin(bootstrap: str) -> int:
    """Make the topic, several segments of it, and delete its first records; return the end."""
    with Admin(bootstrap) as admin:
        configs = {
            "segment.bytes": SEGMENT_BYTES,
            "index.interval.bytes": "100",
            "retention.ms": "-1",
        }
        admin.create_topic(TOPIC, partitions=2, configs=configs)
        end = write(bootstrap, 0)
        admin.delete_records({TopicPartition(TOPIC, 1): FIRST_KEPT})
    return end


def verify(bootstrap: str, end: int) -> None:
    """Read the topic from its first kept record to this end."""
    with Admin(bootstrap) as admin:
        (entry,) = admin.describe_configs(2, TOPIC, ["segment.bytes"])
        assert entry.value == SEGMENT_BYTES
    count = end - FIRST_KEPT
    found = Confluent().consume(bootstrap, TOPIC, count, offset=FIRST_KEPT, partition=1)
    assert found == records(FIRST_KEPT, count)


def older_broker(directory: Path, release: Release) -> BrokerProcess:
    """Return a broker of a release, which is built if need be."""
    return BrokerProcess(
        directory,
        overrides=release.settings,
        plane=Plane.FAST,
        launcher=[sys.executable, "-P", "-m", "plog", "server"],
        environment={"PYTHONPATH": str(built(release.commit))},
    )


def built(commit: str) -> Path:
    """Return a directory with that commit and its kernels; make it the first time.

    Skips where the checkout has no such commit.
    """

    def build(made: Path) -> None:
        with tarfile.open(_source(commit, made)) as tar:
            tar.extractall(made, filter="data")
        for kernel in NOT_LOADED:
            (made / "plog" / "_native" / f"{kernel}.pyx").unlink(missing_ok=True)
        compiler = made / "quick-compiler"
        compiler.write_text(QUICK_COMPILER.format(shutil.which("clang") or "gcc"))
        compiler.chmod(0o755)
        built = subprocess.run(
            [sys.executable, "setup.py", "build_ext", "--inplace"],
            cwd=made,
            env={**os.environ, "CC": str(compiler)},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=BUILD_TIMEOUT_S,
            check=False,
        )
        assert built.returncode == 0, built.stderr[-2000:]

    return made_once(BUILT / commit, build)


def _source(commit: str, directory: Path) -> Path:
    """Return an archive of a commit's source, written to this directory if none is held."""
    held = HELD / f"{commit}-source.tar.xz"
    if held.exists():
        return held
    archive = directory / "release.tar"
    told = _archive(commit, archive)
    if told.returncode:
        pytest.skip(f"this checkout does not hold {commit}: {told.stderr.strip()}")
    return archive


def _archive(commit: str, archive: Path, *paths: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        ["git", "archive", "--format=tar", "--output", archive, commit, *paths],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )


def without_reserve(member: tarfile.TarInfo) -> tarfile.TarInfo | None:
    """Leave out the room that the store keeps for a full disk: a megabyte of noise, made anew."""
    return None if member.name.endswith(".reserve") else member


def main() -> None:
    """Write the data directories of releases that have none, by these themselves."""
    HELD.mkdir(exist_ok=True)
    for release, ended in itertools.product(RELEASES, ("stopped", "killed")):
        held = HELD / f"{release.commit}-{ended}.tar.xz"
        if held.exists():
            continue
        where = Path(tempfile.mkdtemp())
        try:
            broker = older_broker(where, release).start()
            end = begin(broker.bootstrap)
            if release.coordinates:
                coordinate(broker.bootstrap, end)
            broker.stop() if ended == "stopped" else broker.kill()
            with tarfile.open(held, "w:xz") as tar:
                tar.add(where / "data0", "data0", filter=without_reserve)
        finally:
            broker.kill()
            shutil.rmtree(where)


if __name__ == "__main__":
    main()
