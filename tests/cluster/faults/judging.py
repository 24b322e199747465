"""What must be so after a run: the checker's verdict, the copies, the groups, and every call."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from pathlib import Path

from plog._native.batch import BatchHeader, scan
from plog.client.admin import Admin
from plog.client.group_admin import GroupAdmin
from plog.client.metadata import TopicInfo
from plog.errors import CorruptRecord
from plog.types import TopicPartition
from tests.checker.checks import check
from tests.checker.history import Ack, Event, Fail, History, Poll, Send, Unknown, read_history
from tests.checker.report import report

from .calls import DONE, GIVEN_UP, NS_PER_S, read_calls
from .clients import CALL_S, DELIVERY_S
from .load import CREATED, INPUT, OUTPUT, SOURCES
from .scene import Scene

MARGIN_S = 5.0
"""What a busy machine may add to a call."""


def judge(scene: Scene) -> str:
    """Check everything, and return a line of figures."""
    place = scene.workers.directory
    history = read_history(sorted(place.glob("*.jsonl")))
    with GroupAdmin(scene.brokers.bootstrap) as groups:
        copied = groups.committed(scene.copiers)
        read = groups.committed(scene.members)
    with Admin(scene.brokers.bootstrap) as admin:
        topics = admin.topics()
    verdict = check(history)
    faults = [
        *(report(history, verdict) if verdict.anomalies or verdict.unseen else ()),
        *wrong_copies(history, copied),
        *unread(history, read),
        *lost_commits(place, read),
        *lost_topics(place, topics),
        *late_calls(place),
        *late_records(history, given_up(place)),
        *internal_errors(scene),
    ]
    assert not faults, "\n".join(faults)
    kinds = Counter(event.kind for event in history.events)
    assert min(kinds["committed"], kinds["poll"]) > 0, kinds
    return (
        f"{kinds['ack']} acknowledged, {kinds['committed']} committed, {kinds['aborted']} aborted"
    )


def _finally(history: History, topic: str) -> dict[TopicPartition, dict[int, int]]:
    """Return what the final read of a topic saw: in each partition the value of each offset."""
    found: dict[TopicPartition, dict[int, int]] = {}
    for event in history.events:
        if isinstance(event, Poll) and event.worker == f"final-{topic}":
            for at, records in event.records.items():
                found.setdefault(at, {}).update(records)
    return found


def wrong_copies(history: History, copied: dict[TopicPartition, int]) -> Iterator[str]:
    """Records before the group's offsets that are not copied just once, and others that are."""
    due = Counter(
        value
        for at, records in _finally(history, INPUT).items()
        for offset, value in records.items()
        if offset < copied.get(at, 0)
    )
    copies = Counter(
        value % SOURCES
        for records in _finally(history, OUTPUT).values()
        for value in records.values()
    )
    for value in sorted((due - copies) | (copies - due)):
        yield f"{value} was copied {copies[value]} times, not {due[value]}"


def unread(history: History, read: dict[TopicPartition, int]) -> Iterator[str]:
    """Records before the members' offsets that none of them was given."""
    given = {
        (at, offset)
        for event in history.events
        if isinstance(event, Poll) and event.worker.startswith("member")
        for at, records in event.records.items()
        for offset, _ in records
    }
    for at, records in _finally(history, OUTPUT).items():
        for offset in records:
            if offset < read.get(at, 0) and (at, offset) not in given:
                yield f"no member was given offset {offset} of {at}, though {read[at]} is committed"


def lost_commits(place: Path, read: dict[TopicPartition, int]) -> Iterator[str]:
    """Offsets that went back after the coordinator confirmed others."""
    now = {str(at): offset for at, offset in read.items()}
    for path in sorted(place.glob("member-*.calls")):
        for at, offset in read_calls(path).committed.items():
            if now.get(at, -1) < offset:
                yield f"{path.stem} committed {offset} of {at}, which is {now.get(at)} now"


def lost_topics(place: Path, topics: dict[str, TopicInfo]) -> Iterator[str]:
    """Topics that are not there, or have no leader, though their creation was confirmed."""
    for path in sorted(place.glob("asker-*.calls")):
        for call in read_calls(path).calls:
            if call.name.startswith(CREATED) and call.outcome == DONE:
                found = topics.get(call.name)
                if found is None or found.partitions[0].leader_id < 0:
                    yield f"{call.name} was created, and is {found} now"


def late_calls(place: Path) -> Iterator[str]:
    """Calls that did not end within their own timeout."""
    for path in sorted(place.glob("*.calls")):
        for call in read_calls(path).calls:
            if call.ended_at is None or call.took_s > call.allowed_s + MARGIN_S:
                yield str(call)


def given_up(place: Path) -> set[str]:
    """Return the workers that ended in a call that their client's fault made hang."""
    return {
        path.stem
        for path in place.glob("copier-rd-*.calls")
        if any(call.outcome == GIVEN_UP for call in read_calls(path).calls)
    }


def late_records(history: History, without: set[str]) -> Iterator[str]:
    """Records whose producer did not learn their outcome in time; leave out some producers."""
    answers: dict[int, Event] = {
        event.value: event for event in history.events if isinstance(event, Ack | Fail | Unknown)
    }
    for event in history.events:
        if not isinstance(event, Send) or event.worker in without:
            continue
        answer = answers.get(event.value)
        if answer is None:
            yield f"{event.worker} never heard of {event.value}"
        elif (took_s := (answer.at - event.at) / NS_PER_S) > DELIVERY_S + CALL_S + MARGIN_S:
            yield f"{event.worker} heard of {event.value} after {took_s:.1f} s"


def check_replicas(scene: Scene) -> None:
    """Check that the replicas of each partition are alike, when all brokers have stopped."""
    faults = [*unlike_replicas([one.log_dirs[0] for one in scene.brokers.brokers])]
    assert not faults, "\n".join(faults)


def unlike_replicas(log_dirs: Iterable[Path]) -> Iterator[str]:
    """Partitions of which brokers that have stopped do not hold the same bytes."""
    replicas: dict[str, list[Path]] = {}
    for log_dir in log_dirs:
        for place in sorted(log_dir.iterdir()):
            if any(place.glob("*.log")):
                replicas.setdefault(place.name, []).append(place)
    for name, places in replicas.items():
        first, *others = [_log_of(one) for one in places]
        for place, other in zip(places[1:], others, strict=True):
            if other != first:
                pairs = enumerate(zip(first, other, strict=False))
                same = next((at for at, (x, y) in pairs if x != y), min(len(first), len(other)))
                ours, theirs = _batch_at(first, same), _batch_at(other, same)
                yield (
                    f"{name}: {places[0]} has {len(first)} bytes, {place} has {len(other)},"
                    f" of which the first {same} are the same: {ours} is not {theirs}"
                )


def _batch_at(log: bytes, position: int) -> BatchHeader | str:
    """Return the batch at a position, or why there is none."""
    try:
        batches = scan(log)
    except CorruptRecord as fault:
        return str(fault)
    within = (one for one in batches if one.position <= position < one.position + one.size_bytes)
    return next(within, "its end")


def _log_of(place: Path) -> bytes:
    return b"".join(one.read_bytes() for one in sorted(place.glob("*.log")))


def internal_errors(scene: Scene) -> Iterator[str]:
    """Lines that tell of a fault of a broker itself."""
    for number, broker in enumerate(scene.brokers.brokers):
        for line in broker.log.splitlines():
            if "internal error" in line or "Traceback" in line:
                yield f"broker {number}: {line}"
