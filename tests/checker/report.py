"""A verdict in words: how much was looked at, a count of each kind, a line for each anomaly."""

from __future__ import annotations

from collections.abc import Iterator

from .checks import Kind, Verdict
from .history import Event, History, Poll, Send

NS_PER_S = 1e9


def report(history: History, verdict: Verdict, *, most: int = 20) -> Iterator[str]:
    """Yield the lines of a report, with at most so many anomalies of each kind, and unseen values.

    Times are in seconds from the history's first event; `at` of an event is that plus the first's.
    """
    start = history.events[0].at if history.events else 0

    def told(event: Event) -> str:
        return f"{event.worker} {event.kind} {(event.at - start) / NS_PER_S:.6f}"

    workers = {event.worker for event in history.events}
    sends = sum(isinstance(event, Send) for event in history.events)
    reads = sum(
        sum(map(len, event.records.values())) for event in history.events if isinstance(event, Poll)
    )
    yield (
        f"{len(history.events)} events of {len(workers)} workers:"
        f" {sends} values sent, {reads} records read"
    )
    yield from history.cut
    for kind in Kind:
        yield f"  {kind:<34} {len(verdict.of(kind)):>7}"
    yield f"  {'(unseen, which may be too early)':<34} {len(verdict.unseen):>7}"
    for kind in Kind:
        found = verdict.of(kind)
        for anomaly in found[:most]:
            yield f"{kind}: {anomaly.text} [{', '.join(map(told, anomaly.events))}]"
        if len(found) > most:
            yield f"{kind}: and {len(found) - most} more"
    for send in verdict.unseen[:most]:
        yield f"unseen: {send.value} in {send.partition} [{told(send)}]"
    if len(verdict.unseen) > most:
        yield f"unseen: and {len(verdict.unseen) - most} more"
