"""The way of a request through the kernels, from the socket to its response, as a broker takes it.

    python -m tests.module_trace              print the traces, their numbers, their drawings
    python -m tests.module_trace --rewrite    draw them in docs/ARCHITECTURE.md as well

A Produce with acks=all (one partition, uncompressed, idempotent) and a Fetch in a session, as
Java's clients send them. The broker knows the producer and the session from earlier requests.

How it counts:

- A module counts if it decides or does something about the request. `HELPERS` names the others.
- The way has stretches. A stretch begins when the reactor's loop calls a module that counts, and
  ends when that call returns. The thread that flushes has a stretch of its own.
- Within a stretch, a module that calls others has not left the request, and no module is left.
- The request comes back to a module in each later stretch that calls it.
"""

from __future__ import annotations

import re
import select
import socket
import subprocess
import sys
import tempfile
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from plog.protocol.messages.fetch import FetchResponse
from plog.protocol.messages.produce import ProduceResponse
from tests.handlers.running import decoded, framed, receive
from tests.handlers.wire import (
    create_topic,
    fetch_request,
    fetched,
    flat,
    make_batch,
    produce_request,
    speak,
)
from tests.servers import BrokerProcess
from tests.stepping import Call, Stepper, stepper_of, waits_for_events
from tests.waiting import until

ROOT = Path(__file__).resolve().parent.parent
ARCHITECTURE = ROOT / "docs" / "ARCHITECTURE.md"

LOOP = "reactor_loop"
FLUSHER = "log_flush"
"""The kernel that a thread runs which flushes for reactors."""

HELPERS = {
    "aborted_list": "counts the references to a list",
    "batch_fields": "bytes: the header of a batch",
    "connections": "lists: connections by id and by activity",
    "crc32c": "checksum",
    "fetch_parts": "memory of a request's partitions",
    "fetch_request": "bytes: the fields of a request",
    "files": "system calls and clocks",
    "histogram": "counts times",
    "index": "table: the entries of an index file",
    "links": "lists: connections that are ready, wait or answer",
    "letter_queue": "queue: knows nothing of its letters",
    "mailbox": "queue: knows nothing of its letters",
    "memory_waits": "limits a connection before it has read the request",
    "notes": "queue: events for Python",
    "partition_names": "compares names",
    "plain_transport": "system calls of a socket",
    "produce_answer": "bytes: the fields of a response",
    "produce_request": "bytes: the fields of a request",
    "produce_rules": "bytes: a verdict on a batch by itself",
    "producers": "table: a verdict on a sequence number",
    "record_view": "bytes: the records of a batch",
    "request_stages": "table: the stage after an event",
    "requests": "memory of requests",
    "segment_files": "counts the references to a file",
    "segment_walk": "table: the position of an offset",
    "served": "table: partitions by name",
    "session_parts": "table: the partitions of a session",
    "siphash": "hash",
    "work_queue": "notes how long a write took",
}
"""Modules that take values and return values, or keep memory, and the reason why each is one."""


@dataclass(frozen=True)
class Way:
    """A request's way."""

    calls: tuple[Call, ...]
    stretches: tuple[tuple[tuple[str, ...], ...], ...]
    """The stacks of modules that count, in the order of the calls."""

    @property
    def modules(self) -> list[str]:
        """Return those that count, in the order in which the request enters them."""
        return list(dict.fromkeys(stack[-1] for stretch in self.stretches for stack in stretch))

    def passes(self, module: str) -> list[bool]:
        """Return for each stretch whether the request passes the module in it."""
        return [any(module in stack for stack in stretch) for stretch in self.stretches]

    def comebacks(self) -> dict[str, int]:
        """Return how often the request comes back to each module. It never leaves the loop."""
        return {module: sum(self.passes(module)) - 1 for module in self.modules if module != LOOP}

    def drawing(self) -> list[str]:
        """Return the modules as a tree, each below its first caller, with marks by stretch."""
        called: dict[str, list[str]] = {}
        for module in self.modules:
            stacks = (stack for stretch in self.stretches for stack in stretch)
            first = next(stack for stack in stacks if stack[-1] == module)
            called.setdefault(first[-2] if len(first) > 1 else "", []).append(module)

        def rows(module: str, depth: int) -> Iterator[str]:
            marks = " ".join("x" if passes else "." for passes in self.passes(module))
            yield f"{'  ' * depth + module:24} {marks}"
            for below in called.get(module, ()):
                yield from rows(below, depth + 1)

        return [row for module in called[""] for row in rows(module, 0)]


def counted(stack: Sequence[str]) -> tuple[str, ...]:
    """Return the modules of a stack that count; a helper between a module and itself is none."""
    kept: list[str] = []
    for module in stack:
        if module not in HELPERS and kept[-1:] != [module]:
            kept.append(module)
    return tuple(kept)


def way_of(calls: Sequence[Call], reactor: int) -> Way:
    """Cut a trace into stretches: those of the reactor, and those of the thread that flushes."""
    flushers = {call.tid for call in calls if call.tid != reactor and FLUSHER in call.stack}
    calls = [call for call in calls if call.tid == reactor or call.tid in flushers]
    stretches: dict[tuple[int, int], list[tuple[str, ...]]] = {}
    dispatches = 0
    for call in calls:
        stack = counted(call.stack)
        if call.tid == reactor:
            assert call.stack[0] == LOOP, call
            dispatches += len(stack) == len(call.stack) == 2 and not call.is_jump
            if len(stack) < 2 or dispatches == 0:
                continue
        if stack and call.stack[-1] not in HELPERS:
            stretches.setdefault((call.tid, dispatches * (call.tid == reactor)), []).append(stack)
    for (tid, _), stacks in stretches.items():
        if tid == reactor:
            stacks.insert(0, (LOOP,))
    return Way(tuple(calls), tuple(map(tuple, stretches.values())))


# -- the requests


class TracedClient:
    """A client of a broker with one reactor."""

    def __init__(self, broker: BrokerProcess) -> None:
        self._broker = broker
        self._socket = socket.create_connection(("127.0.0.1", broker.port), 60)
        wire = speak(broker.port)
        self._topic, self._topic_id = create_topic(wire)
        # Python admits the producer. The disk is slow until it has written fast some times.
        for sequence in range(FIRST_WRITES):
            wire.ask(self._produce_request(sequence), PRODUCE_VERSION)
        wire.close()

    def close(self) -> None:
        self._socket.close()

    def produce(self) -> Way:
        self._ask(framed(self._produce_request(FIRST_WRITES), PRODUCE_VERSION, 1))
        frame, way = self._traced(
            framed(self._produce_request(FIRST_WRITES + 1), PRODUCE_VERSION, 2)
        )
        (part,) = flat(decoded(ProduceResponse, PRODUCE_VERSION, frame))
        assert (part.error_code, part.base_offset) == (0, FIRST_WRITES + 1)
        return way

    def fetch(self) -> Way:
        opened = decoded(FetchResponse, FETCH_VERSION, self._ask(self._fetch(0, 0, 0)))
        self._ask(self._fetch(0, opened.session_id, 1))
        frame, way = self._traced(self._fetch(1, opened.session_id, 2))
        (part,) = fetched(decoded(FetchResponse, FETCH_VERSION, frame)).values()
        assert part.error_code == 0
        assert part.records
        return way

    def _produce_request(self, sequence: int):
        batch = make_batch([b"v" * 100], producer=(77, 0, sequence))
        return produce_request([(self._topic, 0, batch)])

    def _fetch(self, offset: int, session_id: int, epoch: int) -> bytes:
        request = fetch_request(
            (self._topic_id, 0, offset), session=(session_id, epoch), max_wait_ms=500
        )
        return framed(request, FETCH_VERSION, epoch)

    def _ask(self, frame: bytes) -> bytes:
        self._socket.sendall(frame)
        return receive(self._socket)

    def _traced(self, frame: bytes) -> tuple[bytes, Way]:
        until(lambda: waits_for_events(self._broker.pid), "the reactor waits")
        stepper: Stepper = stepper_of(self._broker.pid)
        stepper.trace(
            lambda: self._socket.sendall(frame),
            lambda: bool(select.select([self._socket], [], [], 0)[0]),
        )
        return receive(self._socket), way_of(stepper.calls, stepper.reactor)


PRODUCE_VERSION, FETCH_VERSION = 12, 17
FIRST_WRITES = 70


@contextmanager
def traced_client(directory: Path) -> Iterator[TracedClient]:
    with BrokerProcess(directory, overrides={"num.network.threads": 1}) as broker:
        client = TracedClient(broker)
        yield client
        client.close()


# -- for people


def _symbols(module: str) -> tuple[list[int], list[str]]:
    (path,) = (ROOT / "plog" / "_native").glob(f"{module}.*.so")
    listed = subprocess.run(["nm", path], capture_output=True, text=True, check=True).stdout
    found = sorted(
        (int(words[0], 16), words[2].rpartition("_native_")[2])
        for words in map(str.split, listed.splitlines())
        if len(words) == 3 and words[1] in "tT"
    )
    return [place for place, _ in found], [name for _, name in found]


def _print(title: str, way: Way) -> None:
    symbols = {module: _symbols(module) for module in {call.stack[-1] for call in way.calls}}
    print(f"{title}: the calls")
    for call in way.calls:
        places, names = symbols[call.stack[-1]]
        name = names[bisect_right(places, call.at) - 1]
        mark = " " if call.stack[-1] in HELPERS else "*"
        print(f"{mark} {'  ' * len(call.stack)}{call.stack[-1]}: {name}")
    print("\n".join(way.drawing()))
    comebacks = way.comebacks().values()
    every = {call.stack[-1] for call in way.calls}
    print(
        f"{title}: {len(way.modules)} modules ({len(every)} with their helpers), "
        f"{len(way.stretches)} stretches, at most {max(comebacks)} comebacks to a module "
        f"({sum(comebacks)} to all)\n"
    )


# -- the page


def drawn(page: str, name: str) -> dict[str, str]:
    """Return the comments of a drawing in the page by its rows."""
    block = re.search(rf"^```{name}\n(.*?)^```", page, re.DOTALL | re.MULTILINE)
    assert block is not None, f"the page has no drawing named {name}"
    rows = (line.partition("#") for line in block[1].splitlines())
    return {row.rstrip(): comment.strip() for row, _, comment in rows if row.strip()}


def redraw(page: str, name: str, way: Way) -> str:
    """Return the page with the drawing of this way; each module keeps its comment."""
    comments = {row.split()[0]: comment for row, comment in drawn(page, name).items()}
    lines = [f"{row} # {comments.get(row.split()[0], '')}".rstrip() for row in way.drawing()]
    rows = "\n".join(lines) + "\n"
    block = re.compile(rf"^(```{name}\n(?:#[^\n]*\n)*).*?^```", re.DOTALL | re.MULTILINE)
    return block.sub(lambda found: f"{found[1]}{rows}```", page)


def main() -> None:
    with tempfile.TemporaryDirectory() as directory, traced_client(Path(directory)) as client:
        ways = {"produce": client.produce(), "fetch": client.fetch()}
    for name, way in ways.items():
        _print(name, way)
        if sys.argv[1:] == ["--rewrite"]:
            page = ARCHITECTURE.read_text(encoding="utf-8")
            ARCHITECTURE.write_text(redraw(page, name, way), encoding="utf-8")


if __name__ == "__main__":
    main()
