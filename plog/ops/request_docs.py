"""Generates ``docs/REQUESTS.md`` from the transition table of requests.

Run ``python -m plog.ops.request_docs docs/REQUESTS.md``. A test fails while the file does not match
the table.
"""

from __future__ import annotations

from plog._native.request_line import Step
from plog._native.request_stages import TRANSITIONS, Event, Stage
from plog.ops import generated_page

HEAD = """\
# The stages of a request

A broker answers Produce and Fetch requests in its I/O threads, the reactors. Python decides
about their unusual partitions, such as one whose batch is refused. It gets every other request
whole. This page says how a request gets to its response.

This page is generated from `plog/_native/request_stages.pyx`. <!-- checkout -->
Do not edit it; run `python -m plog.ops.request_docs docs/REQUESTS.md`. <!-- checkout -->

## How to read it

Each partition of a Produce or Fetch has a stage. An event moves it to the next one.
The request's stage is the first in the list below that one of its partitions is in.
A request whose partitions are not known has one stage for the whole.
That is so for every request at first, and for other requests than Produce and Fetch to the end.

A transition that is not on this page is a fault of plog. A debug build aborts.
A release build closes the connection with one log line, and counts it.

For example, a Produce with acks=all usually goes through these stages:
CAME, CHECKED, GATHERED, APPENDED, SAFE, OVER.
"""

STAGES = {
    Stage.CAME: "its last byte is here, and no thread has looked at it",
    Stage.MALFORMED: "its bytes are no request, and the connection closes when its turn comes",
    Stage.CHECKING: "a compute thread expands and checks it",
    Stage.ON_DISK: "a disk thread has it, because a reactor must not wait for a disk",
    Stage.CHECKED: "valid, and waits until the earlier batches of its connection are appended",
    Stage.UNUSUAL: "waits for Python until it is the first request of its connection",
    Stage.GATHERED: "in the write of this round, with the batches of other requests",
    Stage.ASKED: "Python decides about it",
    Stage.APPENDED: "in the log, and not yet on every replica that the request asks for",
    Stage.SHORT: "read, and waits for more bytes; a follower's also for a higher high watermark",
    Stage.REFUSED: "the response has an error",
    Stage.SAFE: "appended, and the response has its offset",
    Stage.READ: "the response has its records",
    Stage.OVER: "answered or dropped",
}

STEPS_HEAD = """\
## What a connection does next

A connection is a queue of requests. Their stages decide its next step, and for reading on
also the client: whether it has gone, takes its responses, or is muted.
`plog/_native/request_line.pyx` has the code. <!-- checkout -->
Three rules follow from the order of the queue:

- Responses have the order of the requests. A Produce with acks=0 has no response, and
  leaves the queue when it is done.
- Batches are appended in the order of the requests.
- Python has to do with one request of a connection at a time, the first. No later one is appended
  meanwhile.
"""

STEPS = {
    Step.REST: "do nothing until an event comes",
    Step.READ_ON: "read the next request",
    Step.CHECK: "look at the last request",
    Step.CHECK_ASIDE: "give the last request to a compute thread, as earlier ones",
    Step.WRITE: "write the batches of this round first",
    Step.APPEND: "put a request's batches into the write of this round",
    Step.ASK: "ask Python about partitions of the first request, or give it the whole",
    Step.WAIT: "let the first request wait for its partitions or its deadline",
    Step.ANSWER: "queue a response",
    Step.DROP: "forget the first request, whose client has left",
    Step.READ_LATER: "read the next request when the connection is no longer muted",
    Step.CLOSE: "close the connection, because its first request is malformed",
}

TABLE_HEAD = """\
## Transitions

Two events are in no table below:

- CLIENT_LEFT: the client has gone. A request in one of these stages is dropped then:
  {dropped}. Any other goes on until its batches are appended.
- CLOSED: the connection closes, and each of its requests is over. A thread that still has one
  frees it later.
"""
IN_NO_TABLE = (Event.CLIENT_LEFT, Event.CLOSED)


def page() -> str:
    """Return the whole page."""
    lines = [HEAD, "| stage | |", "|---|---|"]
    lines += [f"| {stage.name} | {meaning} |" for stage, meaning in STAGES.items()]
    lines += ["", STEPS_HEAD, "| step | |", "|---|---|"]
    lines += [f"| {step.name} | {meaning} |" for step, meaning in STEPS.items()]
    left = {stage for stage, event, _, _ in TRANSITIONS if event == Event.CLIENT_LEFT}
    dropped = ", ".join(stage.name for stage in STAGES if stage in left)
    lines += ["", TABLE_HEAD.format(dropped=dropped)]
    for stage in STAGES:
        lines += _transitions(stage)
    return "\n".join(lines).rstrip("\n") + "\n"


def _transitions(stage: Stage) -> list[str]:
    rows = [row for row in TRANSITIONS if row[0] == stage and row[1] not in IN_NO_TABLE]
    if not rows:
        return []
    lines = [f"### {stage.name}", "", "| event | stage after it | |", "|---|---|---|"]
    lines += [f"| {event.name} | {after.name} | {meaning} |" for _, event, after, meaning in rows]
    return [*lines, ""]


if __name__ == "__main__":
    generated_page.write(page())
