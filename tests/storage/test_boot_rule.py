"""What a restart of the machine excuses, and what it does not.

A process that died leaves its page cache; a machine that lost its power leaves pages that
reached the disk in any order, where nobody had synced them.
"""

from __future__ import annotations

import errno
import re
from collections.abc import Callable
from pathlib import Path

import pytest

from plog.errors import KafkaStorageError, LogDamaged
from plog.runtime.clock import ManualClock
from plog.settings.definitions import BrokerSettings, TopicSettings
from plog.storage import live_log_dir
from plog.storage.filesystem import Filesystem
from plog.storage.incomplete_mark import Lack
from plog.storage.log_dir import BOOT_ID_FILE, LogDir
from plog.storage.log_manager import LogManager
from plog.storage.segment_verdict import ANY_OFFSET, Known

from .storage_logs import (
    NOW_MS,
    TOPIC_ID,
    TP,
    Settings,
    batch,
    broker_settings,
    files_of,
    open_log,
    read_all,
    recovered,
)

RECORDS = 10
BATCHES = 20
SETTINGS = Settings(segment_bytes=3000, index_interval_bytes=500)
BOOT_A = "11111111-1111-4111-8111-111111111111"
BOOT_B = "22222222-2222-4222-8222-222222222222"

DIED = Known(clean_shutdown=False)
RESTARTED = Known(clean_shutdown=False, machine_restarted=True)


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    """Three segments of ten-record batches."""
    log = open_log(tmp_path / "flights-0", SETTINGS)
    for n in range(BATCHES):
        log.append_as_leader(batch(RECORDS, value=b"v" * 20, timestamp=NOW_MS + n), now_ms=NOW_MS)
    log.close()
    assert len(logs_of(log.directory)) == 3
    return log.directory


def logs_of(directory: Path) -> list[Path]:
    return sorted(directory.glob("*.log"))


def batches_of(path: Path) -> list[int]:
    """Return where the batches of a file begin."""
    data, at, found = path.read_bytes(), 0, []
    while at < len(data):
        found.append(at)
        at += 12 + int.from_bytes(data[at + 8 : at + 12], "big")
    return found


def zero(path: Path, start: int, size: int) -> None:
    with path.open("r+b") as file:
        file.seek(start)
        file.write(bytes(size))


def hole(directory: Path) -> int:
    """Zero the second batch of the middle segment; return the offset it had."""
    path = logs_of(directory)[1]
    _first, second, third, *_ = batches_of(path)
    zero(path, second, third - second)
    return int(path.stem) + RECORDS


def noise(directory: Path) -> int:
    path = logs_of(directory)[1]
    data = bytearray(path.read_bytes())
    at = batches_of(path)[1] + 70
    data[at] ^= 0xFF
    path.write_bytes(data)
    return int(path.stem) + RECORDS


def lost_tail(directory: Path) -> int:
    """Cut the middle segment between two batches; the last segment is whole."""
    path = logs_of(directory)[1]
    path.write_bytes(path.read_bytes()[: batches_of(path)[1]])
    return int(path.stem) + RECORDS


def missing_segment(directory: Path) -> int:
    path = logs_of(directory)[1]
    path.unlink()
    return int(path.stem)


def old_pages(directory: Path) -> int:
    """Valid batches of an earlier life of the file stand where others were due."""
    path = logs_of(directory)[1]
    data = path.read_bytes()
    at = batches_of(path)
    path.write_bytes(data[: at[1]] + data[: at[1]] + data[at[2] :])
    return int(path.stem) + RECORDS


def old_segment(directory: Path) -> int:
    """A segment that a truncation had removed is back, in the middle of what was written since."""
    _middle, last = logs_of(directory)[1:]
    old = last.with_name(f"{int(last.stem) - 5:020d}.log")
    old.write_bytes(last.read_bytes())
    return int(last.stem)


STRICT_TOO = {"lost tail", "missing segment"}
HARM: dict[str, Callable[[Path], int]] = {
    "hole": hole,
    "noise": noise,
    "lost tail": lost_tail,
    "missing segment": missing_segment,
    "old pages": old_pages,
    "old segment": old_segment,
}


@pytest.mark.parametrize("name", HARM)
def test_bad_bytes_with_batches_behind_end_the_log_after_a_restart_of_the_machine(
    directory: Path, name: str
) -> None:
    end = HARM[name](directory)
    before = files_of(directory)
    if name not in STRICT_TOO:
        with pytest.raises(LogDamaged):
            recovered(directory, DIED._replace(durable_end=end))
        after = files_of(directory)
        assert all(after[n] == data for n, data in before.items() if n.endswith(".log"))
    found = recovered(directory, RESTARTED._replace(durable_end=end))
    assert found.log_end_offset == end
    (report,) = [line for line in found.reports if "truncated" in line]
    assert f"truncated to offset {end}" in report
    assert re.search(r" including \d+ valid batch(es)?,", report)
    # The log is whole, also to a strict eye, and goes on.
    log = open_log(directory, SETTINGS, known=DIED._replace(durable_end=end))
    assert log.append_as_leader(batch(1), now_ms=NOW_MS).base_offset == end
    assert len(read_all(log)) == log.size_bytes


@pytest.mark.parametrize("name", HARM)
@pytest.mark.parametrize("by", ["durable end", "recovery point"])
def test_bad_bytes_before_the_known_end_are_damage_whatever_the_machine_did(
    directory: Path, name: str, by: str
) -> None:
    end = HARM[name](directory)
    before = files_of(directory)
    known = RESTARTED._replace(durable_end=end + 1)
    if by == "recovery point":
        known = RESTARTED._replace(recovery_point=end + 1)
    with pytest.raises(LogDamaged):
        recovered(directory, known)
    after = files_of(directory)
    assert all(after[n] == data for n, data in before.items() if n.endswith(".log"))


def test_report_counts_what_goes(directory: Path) -> None:
    _, middle, last = logs_of(directory)
    end = hole(directory)
    later = len(batches_of(last))
    whole = middle.stat().st_size - batches_of(middle)[1] + last.stat().st_size
    # The hole's own batch is gone; the ones behind it in the middle segment are counted.
    behind = (int(last.stem) - end) // RECORDS - 1
    (report,) = [
        line
        for line in recovered(directory, RESTARTED._replace(durable_end=end)).reports
        if "truncated" in line
    ]
    assert f"dropped {whole} bytes in 2 files, including {behind + later} valid batches," in report
    assert "after a restart of the machine" in report


def test_clean_shutdown_is_held_to_its_word_after_a_restart_too(directory: Path) -> None:
    noise(directory)
    lost_tail(directory)
    with pytest.raises(LogDamaged):
        recovered(directory, Known(clean_shutdown=True, machine_restarted=True))


def test_gap_of_a_compacted_log_is_no_loss_after_a_restart(directory: Path) -> None:
    missing_segment(directory)
    found = recovered(directory, RESTARTED._replace(gaps_legal_below=ANY_OFFSET))
    assert found.log_end_offset == BATCHES * RECORDS


# -- whose start of the machine it is --------------------------------------------------------------


class Machine(Filesystem):
    """A filesystem of a machine that tests can start anew."""

    def __init__(self, boot: str | None = BOOT_A) -> None:
        self.boot = boot

    def boot_id(self) -> str | None:
        return self.boot


def test_kernel_tells_its_boot_id() -> None:
    first = Filesystem().boot_id()
    assert first is not None
    assert len(first) == 36
    assert Filesystem().boot_id() == first


@pytest.mark.parametrize(
    ("text", "boot", "restarted"),
    [
        (None, BOOT_A, False),
        (BOOT_A, BOOT_A, False),
        (BOOT_A + "\n", BOOT_A, False),
        (BOOT_B, BOOT_A, True),
        ("", BOOT_A, False),
        ("junk", BOOT_A, False),
        (BOOT_B[:-1] + "\0", BOOT_A, False),
        (BOOT_B, None, False),
    ],
)
def test_directory_tells_whether_the_machine_was_restarted(
    tmp_path: Path, text: str | None, boot: str | None, restarted: bool
) -> None:
    if text is not None:
        (tmp_path / BOOT_ID_FILE).write_text(text)
    log_dir = LogDir(Machine(boot), tmp_path)
    assert log_dir.machine_restarted() is restarted
    log_dir.remember_boot()
    assert log_dir.machine_restarted() is False
    assert (tmp_path / BOOT_ID_FILE).exists() is (boot is not None)


def manager(path: Path, machine: Machine, topic: TopicSettings = SETTINGS) -> LogManager:
    settings: BrokerSettings = broker_settings([path])
    made = LogManager(
        settings, lambda _: topic, cluster_id="c", clock=ManualClock(NOW_MS), fs=machine
    )
    made.start(background=False)
    return made


def killed(monkeypatch: pytest.MonkeyPatch, path: Path, machine: Machine, copy: Path) -> Path:
    """Write a log under a log manager; return a copy of its directory as a kill leaves it."""
    logs = manager(path, machine)
    # The kill comes before the commit thread had its turn: nothing is known to be durable.
    monkeypatch.setattr(logs, "commit", lambda log, done: None)
    log = logs.create(TP, TOPIC_ID, SETTINGS)
    log.become_leader(0, sole_replica=True)
    for n in range(BATCHES):
        log.append_as_leader(batch(RECORDS, value=b"v" * 20, timestamp=NOW_MS + n), now_ms=NOW_MS)
    for file in [p for p in path.rglob("*") if p.is_file()]:
        target = copy / file.relative_to(path)
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes(file.read_bytes())
    logs.shutdown()
    return copy


def test_log_manager_cuts_a_hole_only_under_another_boot_id(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for boot in (BOOT_A, BOOT_B):
        machine = Machine(BOOT_A)
        path = killed(monkeypatch, tmp_path / f"logs{boot}", machine, tmp_path / f"copy{boot}")
        end = hole(path / str(TP))
        machine.boot = boot
        logs = manager(path, machine)
        if boot == BOOT_A:
            assert "a valid batch follows" in logs.offline[TP]
        else:
            assert not logs.offline
            log = logs.get(TP)
            assert log is not None
            assert log.log_end_offset == end
        assert (path / BOOT_ID_FILE).read_text() == f"{boot}\n"
        logs.shutdown()


@pytest.mark.parametrize("is_killed", [True, False])
@pytest.mark.parametrize("flushes", [True, False])
@pytest.mark.parametrize("boot", [BOOT_A, BOOT_B, None])
def test_log_may_lack_what_was_in_the_page_cache_of_a_machine_that_stopped(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    boot: str | None,
    flushes: bool,
    is_killed: bool,
) -> None:
    machine = Machine(BOOT_A)
    path = tmp_path / "logs"
    copy = killed(monkeypatch, path, machine, tmp_path / "copy")
    path = copy if is_killed else path
    settings = Settings(segment_bytes=3000, index_interval_bytes=500, flush_before_ack=flushes)
    machine.boot = boot
    for _ in range(2):  # it stays so until all has been copied
        logs = manager(path, machine, settings)
        log = logs.get(TP)
        assert log is not None
        is_lost = is_killed and not flushes and boot == BOOT_B
        assert log.lack is (Lack.UNCLEAN_STOP if is_lost else None)
        assert (log.directory / Lack.UNCLEAN_STOP.value).exists() is is_lost
        if is_lost:
            with pytest.raises(KafkaStorageError, match="may lack records"):
                log.become_leader(1, sole_replica=False)
        else:
            log.become_leader(1, sole_replica=False)
        logs.shutdown()
    if is_lost:
        logs = manager(path, machine, settings)
        log = logs.get(TP)
        assert log is not None
        log.complete()
        log.become_leader(2, sole_replica=False)
        assert not (log.directory / Lack.UNCLEAN_STOP.value).exists()
        logs.shutdown()


def test_mark_that_a_full_disk_refuses_holds_as_long_as_the_process(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    machine = Machine(BOOT_A)
    path = killed(monkeypatch, tmp_path / "logs", machine, tmp_path / "copy")
    machine.boot = BOOT_B

    def refuse(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(live_log_dir, "mark_incomplete", refuse)
    logs = manager(path, machine, Settings(segment_bytes=3000, flush_before_ack=False))
    log = logs.get(TP)
    assert log is not None
    assert log.lack is Lack.UNCLEAN_STOP
    logs.shutdown()


def test_partition_that_was_damaged_before_a_restart_stays_offline(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Rebooting must be no way to have a damaged partition cut in silence."""
    machine = Machine(BOOT_A)
    path = killed(monkeypatch, tmp_path / "logs", machine, tmp_path / "copy")
    hole(path / str(TP))
    for boot in (BOOT_A, BOOT_B, BOOT_A, BOOT_B):
        machine.boot = boot
        logs = manager(path, machine)
        assert TP in logs.offline
        for live in logs._dirs.values():  # as a kill leaves it: no clean shutdown
            live.close()


def test_broker_killed_in_its_recovery_leaves_the_next_as_lenient(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    machine = Machine(BOOT_A)
    path = killed(monkeypatch, tmp_path / "logs", machine, tmp_path / "copy")
    end = hole(path / str(TP))
    machine.boot = BOOT_B

    class Killed(BaseException):
        pass

    def dies(*_: object, **__: object) -> None:
        raise Killed

    with monkeypatch.context() as patch:
        patch.setattr("plog.storage.live_log_dir.recover", dies)
        first = LogManager(
            broker_settings([path]),
            lambda _: SETTINGS,
            cluster_id="c",
            clock=ManualClock(NOW_MS),
            fs=machine,
        )
        with pytest.raises(Killed):
            first.start(background=False)
        for live in first._dirs.values():
            live.close()
    logs = manager(path, machine)
    log = logs.get(TP)
    assert log is not None
    assert log.log_end_offset == end
    logs.shutdown()
