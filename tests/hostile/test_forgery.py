"""Text of a client that would forge lines or drive a terminal, wherever a broker shows it.

It is put into every string of every API, and of the header; then the log, the metrics page, the
error messages and what the commands print are read.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import re
import socket
import subprocess
import sys
import urllib.request
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path

from prometheus_client.parser import text_string_to_metric_families

from plog.protocol import codec, framing
from plog.protocol.api_keys import ApiKey
from plog.protocol.messages.api_versions import ApiVersionsRequest
from plog.protocol.messages.produce import ProduceRequest
from plog.protocol.schema import Struct
from plog.types import ZERO_UUID
from tests.handlers.test_every_version import REQUESTS, Target
from tests.handlers.wire import WAIT_MS, create_topic, eventually, speak
from tests.hostile.frames import framed
from tests.hostile.places import every_place, put
from tests.hostile.test_names import await_both
from tests.served import SERVED
from tests.servers import BrokerProcess, free_port

TIMED = re.compile(
    r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z (INFO|WARNING|ERROR) plog\.[a-z_.]+: .+"
)
FORGED = "2026-01-01T00:00:00.000Z CRITICAL plog.server: forged"
MARK = "hostile"
CONTROLS = "\r\t\x1b[31m\x7f\x85\x9b\u2028\u2029\u202e\u2066\u200b\ufeff"
HOSTILE = f'\n{FORGED}{CONTROLS}{FORGED}"{{}}[red]'
NO_TEXT = b"\xed\xa0\x80"
"""A lone surrogate, as UTF-8 would have it."""


LAST = framed(ApiVersionsRequest(), 0, correlation_id=2)
"""A request behind the hostile one, whose answer tells that there is no other to come."""


def answers(client: socket.socket) -> Iterator[bytes]:
    """Yield the answers before that to LAST, or before the connection is closed."""
    stream = client.makefile("rb")
    while len(size := stream.read(4)) == 4:
        answer = stream.read(int.from_bytes(size, "big"))
        if answer[:4] == b"\0\0\0\2":
            return
        yield answer


class Sweep:
    """Sends requests on connections of their own, and keeps the error messages of the answers."""

    def __init__(self, port: int, topic: str) -> None:
        self._port = port
        self._target = Target(topic, ZERO_UUID, exists=True)
        self._names = (f"{MARK}{number}{HOSTILE}" for number in itertools.count())
        self.sent: Counter[str] = Counter()
        self.places: set[str] = set()
        self.apis: set[ApiKey] = set()
        self.versions: set[tuple[ApiKey, int]] = set()
        self.messages: list[str] = []

    def request(self, key: ApiKey, version: int) -> Struct:
        request = REQUESTS[key](self._target, version)
        if "group_id" in {f.name for f in request.fields} and not (
            key == ApiKey.OFFSET_FETCH and version >= 8
        ):
            put(request, "group_id", f"plain{sum(self.sent.values())}")
        return request

    def text(self, form: str) -> str:
        return next(self._names) if form == "text" else "@@@" + MARK

    def send(
        self,
        key: ApiKey,
        version: int,
        request: Struct,
        form: str,
        place: str,
        client_id: str = "forgery",
    ) -> None:
        self.sent[form] += 1
        self.apis.add(key)
        self.versions.add((key, version))
        self.places.add(place)
        frame = framed(request, version, client_id=client_id)
        if form != "text":
            assert b"@@@" in frame, (place, version)
            frame = frame.replace(b"@@@", NO_TEXT)
        with socket.create_connection(("127.0.0.1", self._port), WAIT_MS / 1000) as client:
            client.sendall(frame + LAST)
            for answer in answers(client):
                self._note(key, version, answer)

    def _note(self, key: ApiKey, version: int, answer: bytes) -> None:
        response = framing.response_class(key)
        assert response is not None
        view = memoryview(answer)
        _, pos = framing.decode_response_header(key, version, view)
        self.messages += messages(codec.decode(response, version, view, pos)[0])


def messages(value: object) -> Iterator[str]:
    """Yield every error message in an answer."""
    if isinstance(value, list):
        for one in value:
            yield from messages(one)
    elif isinstance(value, Struct):
        for f in value.fields:
            inner = getattr(value, f.name)
            if isinstance(inner, str) and "message" in f.name:
                yield inner
            else:
                yield from messages(inner)


def test_no_text_of_a_client_forges_a_line(
    tmp_path: Path, record_property: Callable[[str, object], None]
) -> None:
    """On one plane: all such text passes through Python."""
    metrics = f"127.0.0.1:{free_port()}"
    settings = {
        "group.initial.rebalance.delay.ms": 0,
        "offsets.topic.num.partitions": 1,
        "transaction.state.log.num.partitions": 1,
        "metrics.listener": metrics,
    }
    with BrokerProcess(tmp_path, overrides=settings) as broker:
        record_property("figures", sweep_and_look(broker, metrics))


def sweep_and_look(broker: BrokerProcess, metrics: str) -> str:
    """Send hostile text everywhere, look at what is shown of it, and return the counts."""
    with contextlib.closing(speak(broker.port)) as wire:
        await_both(wire)
        topic, _ = create_topic(wire)
    sweep = Sweep(broker.port, topic)
    for place in every_place():
        for version in sorted({place.versions.low, place.versions.high}):
            for form in ("text", "no text"):
                request = sweep.request(place.key, version)
                put(request, place.path, sweep.text(form))
                sweep.send(place.key, version, request, form, str(place))
                if isinstance(request, ProduceRequest):
                    request.acks = 0
                    sweep.send(place.key, version, request, form, str(place))
    for key, handler in sorted(SERVED.items()):
        send_client_id(broker.port, sweep, ApiKey(key), handler.max_version)

    shown = {
        "log": log_lines(broker),
        "metrics": metrics_lines(metrics),
        "messages": sweep.messages,
        "commands": list(command_lines(broker, metrics)),
    }
    for where, lines in shown.items():
        assert lines, where
        assert [line for line in lines if not line.isprintable()] == [], where
    assert [line for line in shown["log"] if not TIMED.fullmatch(line)] == []
    for where in ("log", "messages", "commands"):
        assert [line for line in shown[where] if MARK in line], where
    return (
        f"forgery: {len(sweep.apis)} APIs, {len(sweep.versions)} versions of them,"
        f" {len(sweep.places)} strings, {sum(sweep.sent.values())} requests"
        f" ({sweep.sent['no text']} with a lone surrogate); printable are "
        + ", ".join(f"{len(lines)} lines of {where}" for where, lines in shown.items())
    )


def send_client_id(port: int, sweep: Sweep, key: ApiKey, version: int) -> None:
    """Let the header's one string be hostile."""
    sweep.send(key, version, sweep.request(key, version), "text", "header", sweep.text("text"))


def log_lines(broker: BrokerProcess) -> list[str]:
    def is_quiet() -> bool:
        return broker.log_path.read_bytes().endswith(b"\n")

    eventually(is_quiet, "a whole line")
    return broker.log_path.read_bytes().decode().removesuffix("\n").split("\n")


def metrics_lines(address: str) -> list[str]:
    with urllib.request.urlopen(f"http://{address}/metrics", timeout=10) as answer:
        page = answer.read().decode()
    assert sum(len(family.samples) for family in text_string_to_metric_families(page)) > 100
    return page.removesuffix("\n").split("\n")


def command_lines(broker: BrokerProcess, metrics: str) -> Iterator[str]:
    """Yield what commands print of what the sweep has left behind."""
    for argument, *options in (("transactions", "--all"), ("groups",)):
        listed = json.loads(run(broker, argument, "list", *options, "--json"))
        names = [next(iter(one.values())) for one in listed]
        hostile = [name for name in names if name.startswith(MARK)]
        assert hostile, argument
        assert all(name.endswith(HOSTILE) for name in hostile), argument
        yield from run(broker, argument, "list", *options).splitlines_()
        yield from run(broker, argument, "list", *options, "--json").splitlines_()
        yield from run(broker, argument, "describe", hostile[0]).splitlines_()
    for words in (
        ("transactions", "describe", f"no {MARK}{HOSTILE}"),
        ("groups", "describe", f"no {MARK}{HOSTILE}"),
        ("topics", "describe", f"no {MARK}{HOSTILE}"),
        ("topics", "create", f"no {MARK}{HOSTILE}"),
    ):
        yield from run(broker, *words, status=1).splitlines_()
    for words in (("--json",), ()):
        yield from run(
            broker, "top", "--metrics", metrics, "--every", "0.1", "--count", "1", *words
        ).splitlines_()


class Printed(str):
    """What a command printed."""

    def splitlines_(self) -> list[str]:
        """Split at line feeds alone."""
        return self.removesuffix("\n").split("\n")


def run(broker: BrokerProcess, *arguments: str, status: int = 0) -> Printed:
    done = subprocess.run(
        [sys.executable, "-m", "plog", *arguments],
        capture_output=True,
        timeout=WAIT_MS / 1000,
        env={**os.environ, "PLOG_BOOTSTRAP_SERVER": broker.bootstrap},
        check=False,
    )
    assert done.returncode == status, (arguments, done)
    return Printed((done.stdout + done.stderr).decode())
