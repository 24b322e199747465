"""A broker that compacts while it is written to, read and killed: readers end with one table."""

from __future__ import annotations

import random
import time
from contextlib import closing
from pathlib import Path

import pytest

from plog._native.records import Record
from plog.client.admin import BROKER, SET, Admin
from tests.agreement.harness import run_seed
from tests.handlers.changers import Changer
from tests.handlers.wire import (
    Speaker,
    create_topic,
    fetch_request,
    make_batch,
    produce,
    speak,
    walk_all,
)
from tests.servers import BrokerProcess
from tests.waiting import until

COMPACT_AT_ONCE = {"log.cleaner.backoff.ms": 20, "log.cleaner.threads": 2}
CONFIGS = {
    "cleanup_policy": "compact",
    "segment_bytes": "4000",
    "min_cleanable_dirty_ratio": "0.01",
    "file_delete_delay_ms": "100",
}
PATIENCE_S = 90


def read_from_start(wire: Speaker, topic: str, end: int) -> list[Record]:
    found: list[Record] = []
    offset = 0
    while offset < end:
        answer = wire.ask(fetch_request((topic, 0, offset)), 11)
        (part,) = answer.responses[0].partitions
        assert part.error_code == 0
        records = [one for one in walk_all(part.records) if one.offset >= offset]
        assert records, f"nothing at {offset} of {end}"
        found += records
        offset = records[-1].offset + 1
    return found


def table_of(records: list[Record]) -> dict[bytes, bytes]:
    table: dict[bytes, bytes] = {}
    for record in records:
        assert record.key is not None
        if record.value is None:
            table.pop(record.key, None)
        else:
            table[record.key] = record.value
    return table


@pytest.mark.usefixtures("plane")
def test_readers_end_with_the_same_table_whatever_is_compacted_meanwhile(tmp_path: Path) -> None:
    chance = random.Random(run_seed())
    table: dict[bytes, bytes] = {}
    end = 0
    with BrokerProcess(tmp_path, overrides=COMPACT_AT_ONCE) as broker:
        with closing(speak(broker.port)) as wire:
            create_topic(wire, "t", **CONFIGS)
        for _ in range(4):
            with closing(speak(broker.port)) as wire:
                for _ in range(150):
                    key = b"%d" % chance.randrange(20)
                    value = None if chance.random() < 0.2 else chance.randbytes(200)
                    answer = produce(wire, "t", make_batch([value], key=key))
                    assert answer.error_code == 0
                    end = answer.base_offset + 1
                    if value is None:
                        table.pop(key, None)
                    else:
                        table[key] = value
                    if chance.random() < 0.05:
                        assert table_of(read_from_start(wire, "t", end)) == table
            broker.kill()
            broker.start()
            with closing(speak(broker.port)) as wire:
                assert table_of(read_from_start(wire, "t", end)) == table
        deadline = time.monotonic() + PATIENCE_S
        with closing(speak(broker.port)) as wire:
            while len(read_from_start(wire, "t", end)) > 100:
                assert time.monotonic() < deadline, broker.log
                time.sleep(0.05)
            assert table_of(read_from_start(wire, "t", end)) == table
        assert "is compacted up to offset" in broker.log


@pytest.mark.usefixtures("plane")
@pytest.mark.parametrize("killed", [True, False])
def test_a_pass_that_is_stopped_is_no_damage_once_the_policy_is_delete(
    tmp_path: Path, killed: bool
) -> None:
    overrides = {
        "log.cleaner.backoff.ms": 20,
        "log.cleaner.io.max.bytes.per.second": 12_000,
        "log.cleaner.threads": 1,
    }
    with BrokerProcess(tmp_path, overrides=overrides) as broker:
        with closing(speak(broker.port)) as wire:
            create_topic(wire, "t", **CONFIGS | {"cleanup_policy": "delete"})
            end = 0
            for n in range(100):
                answer = produce(wire, "t", make_batch([b"%d" % n * 200], key=b"%d" % (n % 3)))
                end = answer.base_offset + 1
            Changer.alter(wire, "t", "cleanup.policy", "compact")
            (directory,) = tmp_path.glob("**/t-0")
            until(lambda: _has_shrunk(directory))
            Changer.alter(wire, "t", "cleanup.policy", "delete")
        if killed:
            broker.kill()
        else:
            broker.stop()
        assert "is compacted up to offset" not in broker.log
        broker.start()
        with closing(speak(broker.port)) as wire:
            records = read_from_start(wire, "t", end)
        assert table_of(records) == {b"%d" % (n % 3): b"%d" % n * 200 for n in range(100)}
        assert len(records) < 100


@pytest.mark.usefixtures("plane")
def test_a_pace_that_was_set_too_low_holds_nothing_up_once_it_is_raised(tmp_path: Path) -> None:
    """At a byte a second each batch takes minutes."""
    pace = "log.cleaner.io.max.bytes.per.second"
    with (
        BrokerProcess(tmp_path, overrides=COMPACT_AT_ONCE | {pace: 1}) as broker,
        Admin(broker.bootstrap) as admin,
    ):
        with closing(speak(broker.port)) as wire:
            for topic in ("t", "gone"):
                create_topic(wire, topic, **CONFIGS)
                for n in range(30):
                    produce(wire, topic, make_batch([b"%d" % n * 200], key=b"k"))
        admin.delete_topic("gone")
        until(lambda: not list(tmp_path.glob("**/gone-0")))
        assert "is compacted up to offset" not in broker.log
        admin.alter_configs(BROKER, "", [(pace, SET, "1e9")])
        until(lambda: "t-0 is compacted up to offset" in broker.log)


def _has_shrunk(directory: Path) -> bool:
    """Tell whether a segment has taken the place of others while the next ones are as they were."""
    try:
        sizes = [path.stat().st_size for path in sorted(directory.glob("*.log"))]
    except FileNotFoundError:
        return False  # replaced at this moment
    return len(sizes) > 2 and sizes[0] < 1500
