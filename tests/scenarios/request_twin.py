"""The rules of docs/REQUESTS.md by which a connection chooses its next step, in plain Python.

They are written from the page and not from the kernel, and look at every request each time.
"""

from __future__ import annotations

from typing import NamedTuple

from plog._native.request_line import Step
from plog._native.request_stages import TRANSITIONS, Event, Stage
from tests.scenarios.request_model import PRODUCE

MAX_REQUESTS = 64
MAX_ASIDE = 4
MAX_UNSENT_BYTES = 256 * 1024

ANSWERABLE = {Stage.REFUSED, Stage.SAFE, Stage.READ}
DROPPABLE = {stage for stage, event, _, _ in TRANSITIONS if event == Event.CLIENT_LEFT}
OWED = {Stage.CHECKING, Stage.GATHERED, Stage.ON_DISK, Stage.CHECKED, Stage.UNUSUAL}
"""A batch in one of these is still to be appended, and will be."""
HOLDS_UP_READING = {Stage.CAME, Stage.MALFORMED, Stage.ASKED, Stage.ON_DISK, Stage.SHORT}
IN_ORDER = {Stage.GATHERED, Stage.APPENDED, Stage.REFUSED, Stage.SAFE, Stage.READ, Stage.SHORT}
"""Behind these, the next batch of the connection may be appended."""
ELSEWHERE = {Stage.UNUSUAL, Stage.ASKED, Stage.ON_DISK}
"""Python or a disk thread appends it, so nothing behind it may be looked at."""
WITH_COMPUTE = {Stage.CHECKING, Stage.CHECKED}


class Client(NamedTuple):
    """The client, and how the broker treats it."""

    has_left: bool = False
    sends_no_more: bool = False
    unsent_bytes: int = 0
    is_muted: bool = False
    is_closing: bool = False
    is_draining: bool = False


class Place(NamedTuple):
    """A request in the queue of its connection."""

    number: int
    kind: int
    acks: int
    stage: Stage
    waits: bool
    is_gathered: bool
    """The write of the round has one of its batches."""


def may_read_on(queue: list[Place]) -> bool:
    """Return whether the connection may have another request."""
    if any(place.stage in HOLDS_UP_READING for place in queue):
        return False
    aside = [place for place in queue if place.stage in WITH_COMPUTE]
    return len(queue) < MAX_REQUESTS and len(aside) < MAX_ASIDE


def owes_appends(queue: list[Place]) -> bool:
    """Return whether a request of the connection is still to be appended."""
    return any(place.stage in OWED for place in queue)


def next_step(queue: list[Place], client: Client) -> tuple[Step, int | None]:
    """Return the step and the number of its request; None where it has none."""
    if not queue:
        return _read_on(queue, client), None
    first, last = queue[0], queue[-1]
    if client.has_left and first.stage in DROPPABLE:
        return Step.DROP, first.number
    if first.stage in ANSWERABLE:
        return Step.ANSWER, first.number
    for place in queue:
        if place.kind == PRODUCE and place.acks == 0 and place.stage in ANSWERABLE:
            return Step.ANSWER, place.number
    if first.stage == Stage.MALFORMED:
        return Step.CLOSE, first.number
    if first.stage == Stage.UNUSUAL and first.is_gathered:
        return Step.WRITE, None
    if first.stage == Stage.UNUSUAL:
        return Step.ASK, first.number
    if first.stage in (Stage.APPENDED, Stage.SHORT) and not first.waits:
        return Step.WAIT, first.number
    not_in_order = [place for place in queue if place.stage not in IN_ORDER]
    if not_in_order and not_in_order[0].stage == Stage.CHECKED:
        return Step.APPEND, not_in_order[0].number
    if last.stage == Stage.CAME:
        return _look_at_last(queue)
    return _read_on(queue, client), None


def _read_on(queue: list[Place], client: Client) -> Step:
    if not may_read_on(queue) or client.is_closing or client.is_draining:
        return Step.REST
    if client.unsent_bytes > MAX_UNSENT_BYTES or (client.sends_no_more and queue):
        return Step.REST
    return Step.READ_LATER if client.is_muted else Step.READ_ON


def _look_at_last(queue: list[Place]) -> tuple[Step, int | None]:
    *before, last = queue
    if last.kind != PRODUCE:
        if not before:
            return Step.CHECK, last.number
        is_round = all(place.stage == Stage.GATHERED for place in before)
        return (Step.WRITE if is_round else Step.REST), None
    aside = [place for place in before if place.stage in WITH_COMPUTE]
    if len(aside) >= MAX_ASIDE or any(place.stage in ELSEWHERE for place in before):
        return Step.REST, None
    return (Step.CHECK_ASIDE if aside else Step.CHECK), last.number
