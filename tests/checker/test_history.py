"""What is written is read again, also when its writer is killed."""

from __future__ import annotations

import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from plog.types import TopicPartition

from .history import (
    KINDS,
    AbortBegin,
    Aborted,
    Ack,
    Assign,
    Begin,
    CommitBegin,
    Committed,
    Crash,
    EndOfPartition,
    Event,
    Fail,
    History,
    HistoryError,
    HistoryWriter,
    Isolation,
    OutcomeUnknown,
    Poll,
    Send,
    Unknown,
    Why,
    from_line,
    read_history,
    to_line,
)

ROOT = Path(__file__).resolve().parents[2]
A, B = TopicPartition("a-topic.of_ours", 0), TopicPartition("t", 12)

ONE_OF_EACH: list[Event] = [
    Begin("p1", "x"),
    Send("p1", A, 1),
    Send("p1", A, 2, "x"),
    Ack("p1", 1, 7),
    Ack("p1", 1, None),
    Fail("p1", 1),
    Unknown("p1", 1),
    CommitBegin("p1", "x"),
    Committed("p1", "x"),
    AbortBegin("p1", "x"),
    Aborted("p1", "x"),
    OutcomeUnknown("p1", "x"),
    Assign("c", {A: 5, B: None}, Why.SEEK, Isolation.UNCOMMITTED),
    Assign("c", {}, Why.REBALANCE),
    Poll("c", {A: [(5, 1), (6, 2)], B: []}),
    EndOfPartition("c", A, 7),
    Crash("c"),
]

# Writes without pause what it is told by its arguments to.
WRITER = """
import sys
from pathlib import Path
from plog.types import TopicPartition
from tests.checker.history import HistoryWriter, Send

with HistoryWriter(Path(sys.argv[1])) as history:
    value = 0
    while True:
        value += 1
        history.write(Send("p" * int(sys.argv[2]), TopicPartition("t", 0), value))
"""


@pytest.mark.parametrize("event", ONE_OF_EACH, ids=lambda event: event.kind)
def test_event_is_what_was_written(event: Event) -> None:
    assert from_line(to_line(event)) == event
    assert "\n" not in to_line(event)


def test_every_kind_is_tried() -> None:
    assert {event.kind for event in ONE_OF_EACH} == set(KINDS)


def test_event_has_the_time_at_which_it_was_made() -> None:
    before = time.clock_gettime_ns(time.CLOCK_MONOTONIC)
    event = Crash("p")
    assert before <= event.at <= time.clock_gettime_ns(time.CLOCK_MONOTONIC)


def test_file_is_read_as_it_was_written(tmp_path: Path) -> None:
    with HistoryWriter(tmp_path / "one") as writer:
        for number, event in enumerate(ONE_OF_EACH, 1):
            writer.write(event)
            # It is there at once, for whoever looks.
            assert len(read_history([tmp_path / "one"]).events) == number
    assert read_history([tmp_path / "one"]) == History(ONE_OF_EACH, [])


def test_files_of_a_run_are_put_in_order_by_time(tmp_path: Path) -> None:
    with HistoryWriter(tmp_path / "one") as one, HistoryWriter(tmp_path / "two") as two:
        for at in (1, 4, 4, 9):
            one.write(Begin("p", f"one-{at}", at=at))
        for at in (2, 8):
            two.write(Begin("q", f"two-{at}", at=at))
    history = read_history([tmp_path / "two", tmp_path / "one"])
    assert [event.at for event in history.events] == [1, 2, 4, 4, 8, 9]


def test_writer_leaves_a_file_that_is_there_alone(tmp_path: Path) -> None:
    path = tmp_path / "one"
    path.write_text('{"at":1,"work')
    with pytest.raises(FileExistsError):
        HistoryWriter(path)
    assert path.read_text() == '{"at":1,"work'


def test_threads_share_a_writer(tmp_path: Path) -> None:
    with HistoryWriter(tmp_path / "one") as writer:

        def work(name: str) -> None:
            for value in range(2_000):
                writer.write(Ack(name, value, value))

        threads = [threading.Thread(target=work, args=(f"p{number}",)) for number in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    events = read_history([tmp_path / "one"]).events
    assert len(events) == 8_000
    assert {(event.worker, event.value) for event in events if isinstance(event, Ack)} == {
        (f"p{number}", value) for number in range(4) for value in range(2_000)
    }


def test_last_line_that_is_cut_anywhere_is_said(tmp_path: Path) -> None:
    path = tmp_path / "one"
    whole = to_line(ONE_OF_EACH[0]) + "\n"
    last = to_line(ONE_OF_EACH[1])
    for length in range(1, len(last) + 1):
        path.write_text(whole + last[:length])
        history = read_history([path])
        assert history.events == [ONE_OF_EACH[0]]
        assert history.cut == [f"{path}: line 2, the last, is cut after {length} bytes"]


@pytest.mark.parametrize(
    "line",
    [
        b'{"at":1,"work\n',
        b"\n",
        b"[]\n",
        b"7\n",
        b"\xff\xfe\n",
        b'{"at":1,"worker":"p"}\n',
        b'{"at":1,"worker":"p","kind":"guess"}\n',
        b'{"at":1,"worker":"p","kind":"send","partition":"t-0"}\n',
        b'{"at":1,"worker":"p","kind":"send","partition":"t","value":1}\n',
        b'{"at":1,"worker":"p","kind":"crash","more":1}\n',
        b'{"at":1,"worker":"c","kind":"assign","partitions":{},"why":"whim"}\n',
        b'{"at":1,"worker":"c","kind":"poll","records":{"t-0":[1]}}\n',
    ],
)
def test_line_that_is_no_event_is_refused_with_its_place(tmp_path: Path, line: bytes) -> None:
    path = tmp_path / "one"
    path.write_bytes(to_line(ONE_OF_EACH[0]).encode() + b"\n" + line)
    with pytest.raises(HistoryError, match=r"one:2: no event"):
        read_history([path])


@pytest.mark.parametrize("width", [2, 5_000], ids=["short", "long"])
def test_killed_writer_leaves_a_prefix(tmp_path: Path, width: int) -> None:
    """kill -9 in the midst of writing: whatever was written before is there, in order."""
    for number in range(3):
        path = tmp_path / f"killed-{number}"
        writer = subprocess.Popen([sys.executable, "-c", WRITER, str(path), str(width)], cwd=ROOT)
        try:
            deadline = time.monotonic() + 60
            while not path.exists() or path.stat().st_size < 200_000:
                assert writer.poll() is None
                assert time.monotonic() < deadline
                time.sleep(0.001)
        finally:
            writer.kill()
            assert writer.wait() == -signal.SIGKILL
        history = read_history([path])
        values = [event.value for event in history.events if isinstance(event, Send)]
        assert values == list(range(1, len(values) + 1))
        assert len(values) > 20
        assert len(history.cut) <= 1


def run(*arguments: Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "tests.checker", *map(str, arguments)]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)


def test_command_tells_what_it_found(tmp_path: Path) -> None:
    good, bad, cut = tmp_path / "good", tmp_path / "bad", tmp_path / "cut"
    with HistoryWriter(good) as writer:
        writer.write(Send("p", A, 1))
        writer.write(Ack("p", 1, 0))
    with HistoryWriter(bad) as writer:
        writer.write(Assign("c", {A: 0}, Why.REBALANCE))
        writer.write(Poll("c", {A: [(0, 1), (1, 1)]}))
    cut.write_bytes(b'{"at"')
    done = run(good, cut)
    assert (done.returncode, done.stderr) == (0, "")
    assert "2 events of 1 workers: 1 values sent, 0 records read" in done.stdout
    assert f"{cut}: line 1, the last, is cut" in done.stdout
    done = run(good, bad)
    assert done.returncode == 1
    assert "duplicate: 1 is in a-topic.of_ours-0 at offsets 0, 1 [" in done.stdout
    cut.write_bytes(b'{"at"\n')
    done = run(cut)
    assert done.returncode == 2
    assert "no event" in done.stderr
    assert run(tmp_path / "none").returncode == 2
