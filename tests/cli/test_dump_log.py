"""dump-log on the files of a real broker: whole, damaged, and none of ours."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from plog._native import cleaning, records
from plog.ops.dump_log import DAMAGE, UnknownFile, dump
from plog.storage.durable_ends import SLOT_BYTES
from plog.storage.transaction_index import AbortedTransaction, encode_aborted
from tests.client.fake_broker import batch_of
from tests.servers import BrokerProcess

LOG = "00000000000000000000.log"
INDEX = "00000000000000000000.index"
TIME_INDEX = "00000000000000000000.timeindex"
TRANSACTION_INDEX = "00000000000000000000.txnindex"
ROLLS = 40_000
FORGING = ["\t", "\r", "\n", "\x1b[31m", "\x85", "\x9b", "\u2028", "\u202e"]
"""Line breaks, escape sequences and direction marks."""


@pytest.fixture(scope="module")
def stopped(plane, tmp_path_factory) -> Path:
    """A log directory with one partition of several segments, of a broker that has stopped."""
    from plog.client.admin import Admin
    from plog.client.producer import Producer

    directory = tmp_path_factory.mktemp("dump")
    with BrokerProcess(directory) as broker:
        with Admin(broker.bootstrap) as admin:
            configs = {"segment.bytes": str(ROLLS), "index.interval.bytes": "2000"}
            admin.create_topic("dumped", partitions=1, configs=configs)
        with Producer(broker.bootstrap, batch_size=1000, linger_ms=0) as producer:
            for n in range(900):
                producer.send("dumped", b"v%d" % n * 20, key=b"k", headers=[("h", b"\xff")])
                producer.flush()
    return directory / "data0"


@pytest.fixture
def data(stopped, tmp_path) -> Path:
    """A copy of it, to damage."""
    return shutil.copytree(stopped, tmp_path / "data")


@pytest.fixture
def partition(data) -> Path:
    return data / "dumped-0"


def kinds(path: Path, **options) -> dict[str, list[dict]]:
    found: dict[str, list[dict]] = {}
    for one in dump(path, **options):
        found.setdefault(one.kind, []).append({**one.fields, "at": one.at, "name": one.path.name})
    return found


def flip(path: Path, position: int) -> None:
    content = bytearray(path.read_bytes())
    content[position] ^= 1
    path.write_bytes(content)


def test_partition_directory_is_dumped_whole(partition):
    found = kinds(partition, deep=True, compare=True)
    assert DAMAGE not in found
    names = [entry["name"] for entry in found["file"]]
    assert names == sorted(names)
    assert {Path(name).suffix for name in names} >= {".log", ".index", ".timeindex", ".snapshot"}
    assert "leader-epoch-checkpoint" in names
    assert sum(name.endswith(".log") for name in names) > 1
    offsets = [entry["offset"] for entry in found["record"]]
    assert offsets == list(range(900))
    assert found["record"][7]["value"] == b"v7" * 20
    assert found["record"][7]["headers"] == (("h", b"\xff"),)
    assert [b["base_offset"] for b in found["batch"]] == list(range(900))
    assert len(found["offset entry"]) > 10
    assert len(found["time entry"]) > 10
    assert found["producer"][-1]["last_sequence"] == 899
    assert found["leader epoch"] == [
        {"epoch": 0, "start_offset": 0, "at": None, "name": "leader-epoch-checkpoint"}
    ]
    assert len(found["topic id"][0]["topic_id"]) == 22


def test_log_directory_shows_its_checkpoints(data):
    found = kinds(data)
    (end,) = found["durable end"]
    assert end["durable_end"] == 900
    tops = {(e["name"], e["topic"], e["partition"], e["offset"]) for e in found["offset"]}
    assert ("replication-offset-checkpoint", "dumped", 0, 900) in tops
    assert DAMAGE not in found


def test_batches_are_not_expanded_unless_asked(partition):
    assert "record" not in kinds(partition / LOG)


@pytest.mark.parametrize(
    ("name", "position", "at", "why"),
    [
        (LOG, 70, 0, "CRC"),
        (LOG, 16, 0, "magic"),
        (INDEX, 0, 0, "past the end"),
        (INDEX, 4, 0, "past the end"),
        (INDEX, 7, 0, "no batch"),
        (TIME_INDEX, 0, 0, ""),
        ("leader-epoch-checkpoint", 0, None, "version"),
        ("partition.metadata", 9, None, "version"),
    ],
)
def test_damage_is_shown_with_its_position(partition, name, position, at, why):
    flip(partition / name, position)
    (damage,) = kinds(partition / name, compare=True)[DAMAGE][:1]
    assert damage["at"] == at
    assert why in damage["why"]


def test_snapshot_that_is_damaged_is_shown(partition):
    (snapshot, *_) = sorted(partition.glob("*.snapshot"))
    flip(snapshot, 20)
    assert kinds(snapshot)[DAMAGE][0]["why"]


def test_batches_after_the_damage_are_found_again(partition):
    sound = kinds(partition / LOG)["batch"]
    flip(partition / LOG, sound[3]["at"] + 70)
    found = kinds(partition / LOG)
    (damage,) = found[DAMAGE]
    assert damage["at"] == sound[3]["at"]
    assert f"the next valid batch is at {sound[4]['at']}" in damage["why"]
    assert [b["at"] for b in found["batch"]] == [b["at"] for b in sound if b != sound[3]]


@pytest.mark.parametrize(
    ("tail", "words"),
    [(bytes(500), "500 zero bytes:"), (b"\1" * 300, "300 bytes:"), (b"x", "1 byte:")],
)
def test_torn_tail_is_told_from_damage(partition, tail, words):
    log = partition / LOG
    size = log.stat().st_size
    log.write_bytes(log.read_bytes() + tail)
    (damage,) = kinds(log)[DAMAGE]
    assert damage["at"] == size
    assert words in damage["why"]
    assert "torn tail" in damage["why"]


def test_cut_batch_is_shown(partition):
    log = partition / LOG
    last = kinds(log)["batch"][-1]["at"]
    log.write_bytes(log.read_bytes()[:-1])
    (damage,) = kinds(log)[DAMAGE]
    assert damage["at"] == last


def test_offsets_that_go_back_are_shown(tmp_path):
    log = tmp_path / LOG
    log.write_bytes(batch_of([b"0"]) + batch_of([b"0"]))
    (damage,) = kinds(log)[DAMAGE]
    assert "base offset 0, expected 1" in damage["why"]


def test_index_that_does_not_fit_its_log_is_shown_when_compared(partition):
    log = partition / LOG
    log.write_bytes(log.read_bytes()[:5000])
    assert DAMAGE not in kinds(partition / INDEX)
    found = kinds(partition / INDEX, compare=True)
    assert "past the end" in found[DAMAGE][-1]["why"]
    found = kinds(partition / TIME_INDEX, compare=True)
    assert found[DAMAGE]
    log.unlink()
    assert "does not exist" in kinds(partition / INDEX, compare=True)[DAMAGE][0]["why"]
    assert "does not exist" in kinds(partition / TIME_INDEX, compare=True)[DAMAGE][0]["why"]


def test_time_index_with_another_time_is_shown_when_compared(partition):
    flip(partition / TIME_INDEX, 7)
    found = kinds(partition / TIME_INDEX, compare=True)
    assert "greatest timestamp" in found[DAMAGE][0]["why"]


def test_index_that_is_cut_is_shown_at_its_end(partition):
    index = partition / INDEX
    index.write_bytes(index.read_bytes()[:-3])
    (damage,) = kinds(index)[DAMAGE]
    assert damage["at"] == index.stat().st_size // 8 * 8


def test_transaction_index_and_markers_are_read(tmp_path):
    entries = [AbortedTransaction(7, 0, 4, 5), AbortedTransaction(8, 6, 9, 10)]
    index = tmp_path / TRANSACTION_INDEX
    index.write_bytes(encode_aborted(entries))
    found = kinds(index)["aborted transaction"]
    assert [entry["producer_id"] for entry in found] == [7, 8]
    index.write_bytes(encode_aborted(entries[::-1]))
    assert kinds(index)[DAMAGE][0]["at"] == 34
    log = tmp_path / LOG
    log.write_bytes(
        records.control_batch(
            abort=True,
            offset=0,
            timestamp=5,
            producer_id=7,
            producer_epoch=1,
            coordinator_epoch=3,
        )
    )
    (marker,) = kinds(log, deep=True)["record"]
    assert (marker["marker"], marker["coordinator_epoch"]) == ("abort", 3)
    # As a cleaner leaves it, for its producer's sake.
    log.write_bytes(cleaning.empty_batch(log.read_bytes()))
    found = kinds(log, deep=True)
    assert DAMAGE not in found
    assert "record" not in found
    assert [(one["records"], one["control"]) for one in found["batch"]] == [(0, True)]


def test_free_slots_are_no_damage_and_torn_ones_are(data):
    ends = data / "durable-ends"
    whole = ends.read_bytes()
    ends.write_bytes(whole + bytes(SLOT_BYTES))
    assert DAMAGE not in kinds(ends)
    ends.write_bytes(whole + bytes(SLOT_BYTES) + b"\1" * SLOT_BYTES + b"\1")
    damage = [d["at"] for d in kinds(ends)[DAMAGE]]
    assert damage == [len(whole) + SLOT_BYTES, len(whole) + 2 * SLOT_BYTES]


def test_file_of_nobody_is_refused(tmp_path):
    other = tmp_path / "notes.txt"
    other.write_text("x")
    with pytest.raises(UnknownFile, match="unknown file name"):
        list(dump(other))
    with pytest.raises(UnknownFile, match="no log files"):
        list(dump(tmp_path))


def test_junk_under_every_name_is_damage_and_never_a_crash(tmp_path):
    for name in (LOG, INDEX, TIME_INDEX, TRANSACTION_INDEX, "00000000000000000005.snapshot",
                 "leader-epoch-checkpoint", "durable-ends", "partition.metadata",
                 "recovery-point-offset-checkpoint"):  # fmt: skip
        for junk in (b"\xff" * 200, bytes(range(256)) * 2, b"\x00" * 61):
            path = tmp_path / name
            path.write_bytes(junk)
            free = name == "durable-ends" and not any(junk[:SLOT_BYTES])
            assert DAMAGE in kinds(path, deep=True, compare=True) or free, (name, junk[:4])


# -- the command -----------------------------------------------------------------------------------


def test_command_prints_for_people(run, partition):
    text = run("dump-log", partition, "--deep").stdout.decode()
    assert f"{partition / LOG} (" in text
    assert "offsets 0 to 0, 1 record, " in text
    assert 'key "k"' in text
    assert "producer 0 epoch 0" in text or "producer_id" in text
    assert run("dump-log", partition, "--verify").stdout == b""


@pytest.mark.parametrize("character", FORGING, ids=ascii)
def test_records_cannot_forge_a_line(run, tmp_path, character):
    forged = f"k{character}  at 999: offsets 7 to 9"
    record = (0, forged.encode(), forged.encode(), [(forged, forged.encode())])
    log = tmp_path / LOG
    log.write_bytes(records.build_batch([record]))
    text = run("dump-log", log, "--deep").stdout.decode()
    file, batch, found, end = text.split("\n")
    assert batch.startswith("  at 0: offsets 0 to 0")
    assert found.count("  at 999: offsets 7 to 9") == 4
    assert (file + batch + found).isprintable()
    assert end == ""


def test_command_prints_json_lines(run, partition):
    lines = run("dump-log", partition / LOG, "--deep", "--json").stdout.splitlines()
    found = [json.loads(line) for line in lines]
    assert found[0]["kind"] == "file"
    assert found[1]["kind"] == "batch"
    assert found[2]["kind"] == "record"
    assert found[2]["key"] == "k"
    assert found[2]["headers"] == [["h", {"base64": "/w=="}]]


def test_command_ends_with_status_1_when_something_is_damaged(run, partition):
    flip(partition / LOG, 70)
    done = run("dump-log", partition, "--verify", status=1)
    assert done.stdout.decode().startswith(f"DAMAGE in {partition / LOG} at 0: ")
    assert b"damage found in 1 place\n" in done.stderr
    damaged = [json.loads(line) for line in run(
        "dump-log", partition, "--verify", "--json", status=1).stdout.splitlines()]  # fmt: skip
    assert {entry["kind"] for entry in damaged} == {DAMAGE}


def test_command_refuses_what_it_does_not_know(run, tmp_path):
    assert b"no log files" in run("dump-log", tmp_path, status=1).stderr
    run("dump-log", tmp_path / "nowhere", status=2)
