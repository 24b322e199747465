"""The judge of the runs finds each fault, and none where all is well."""

from __future__ import annotations

import itertools
from pathlib import Path

import pytest

from plog.types import TopicPartition
from tests.checker.history import Ack, Assign, Event, History, Poll, Send, Why

from . import judging
from .calls import NS_PER_S, CallWriter, read_calls
from .load import INPUT, OUTPUT, SOURCES

SOURCE, COPY = TopicPartition(INPUT, 0), TopicPartition(OUTPUT, 0)


def history(copies: list[int], read: int) -> History:
    """Return that of values 1, 2, 3 and their copies, of which a member read the first few."""
    finals = {SOURCE: list(enumerate((1, 2, 3))), COPY: list(enumerate(copies))}
    events: list[Event] = [
        Assign("member-rd-1", {COPY: 0}, Why.REBALANCE),
        Poll("member-rd-1", {COPY: finals[COPY][:read]}),
    ]
    for at, records in finals.items():
        name = f"final-{at.topic}"
        events += [Assign(name, {at: 0}, Why.FINAL), Poll(name, {at: records})]
    return History(events)


COPIES = [1 + SOURCES, 2 + SOURCES, 3 + 2 * SOURCES]


@pytest.mark.parametrize(
    ("copies", "copied", "found"),
    [
        (COPIES, 3, []),
        (COPIES[:2], 2, []),
        (COPIES[:2], 3, ["3 was copied 0 times, not 1"]),
        (COPIES, 2, ["3 was copied 1 times, not 0"]),
        ([*COPIES, 2 + 5 * SOURCES], 3, ["2 was copied 2 times, not 1"]),
    ],
)
def test_wrong_copies_are_named(copies: list[int], copied: int, found: list[str]) -> None:
    assert list(judging.wrong_copies(history(copies, 0), {SOURCE: copied})) == found


@pytest.mark.parametrize(("read", "committed", "count"), [(3, 3, 0), (2, 2, 0), (1, 3, 2)])
def test_record_that_no_member_was_given_is_named(read: int, committed: int, count: int) -> None:
    found = list(judging.unread(history(COPIES, read), {COPY: committed}))
    assert len(found) == count


def test_commit_that_went_back_is_named(tmp_path: Path) -> None:
    CallWriter(tmp_path / "member-rd-1.calls").committed({COPY: 7})
    assert list(judging.lost_commits(tmp_path, {COPY: 7})) == []
    assert list(judging.lost_commits(tmp_path, {COPY: 6})) == [
        "member-rd-1 committed 7 of out-0, which is 6 now"
    ]


def test_call_that_hangs_or_is_late_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seconds = itertools.count()
    monkeypatch.setattr("time.monotonic_ns", lambda: int(NS_PER_S * next(seconds)))
    monkeypatch.setattr(judging, "MARGIN_S", 0)
    writer = CallWriter(tmp_path / "copier-rd-1.calls")
    with writer.call("in time", 1.0):
        pass
    with writer.call("late", 0.5):
        pass
    hanging = writer.call("hanging", 100.0)
    hanging.__enter__()
    names = [call.name for call in read_calls(tmp_path / "copier-rd-1.calls").calls]
    assert names == ["in time", "late", "hanging"]
    late = list(judging.late_calls(tmp_path))
    assert [line.split()[1] for line in late] == ["late", "hanging"]


def test_record_without_an_outcome_in_time_is_named() -> None:
    sends: list[Event] = [Send("feeder-rd-1", SOURCE, value, at=0) for value in (1, 2, 3)]
    answers: list[Event] = [
        Ack("feeder-rd-1", 1, 0, at=1),
        Ack("feeder-rd-1", 2, 1, at=int(60 * NS_PER_S)),
    ]
    history = History(sends + answers)
    assert list(judging.late_records(history, {"copier-rd-2"})) == [
        "feeder-rd-1 heard of 2 after 60.0 s",
        "feeder-rd-1 never heard of 3",
    ]
    assert list(judging.late_records(history, {"feeder-rd-1"})) == []


def test_worker_whose_client_hangs_is_known(tmp_path: Path) -> None:
    for name in ("copier-rd-1", "copier-rd-2"):
        writer = CallWriter(tmp_path / f"{name}.calls")
        writer.call("send offsets", 10.0).__enter__()
    writer.give_up()
    assert judging.given_up(tmp_path) == {"copier-rd-2"}


def test_replicas_that_differ_are_named(tmp_path: Path) -> None:
    held = {"a": (b"one", b"two"), "b": (b"onetwo",), "c": (b"onE", b"two")}
    for name, segments in held.items():
        for at, data in enumerate(segments):
            place = tmp_path / name / "out-0" / f"{at}.log"
            place.parent.mkdir(parents=True, exist_ok=True)
            place.write_bytes(data)
    a, b, c = (tmp_path / name for name in held)
    assert list(judging.unlike_replicas([a, b])) == []
    (found,) = judging.unlike_replicas([a, c])
    assert found.startswith(
        f"out-0: {a / 'out-0'} has 6 bytes, {c / 'out-0'} has 6, of which the first 2 are the same:"
    )
