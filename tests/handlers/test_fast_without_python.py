"""The fast path answers while Python does nothing at all: a thread holds the interpreter lock."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from plog.protocol.messages.fetch import FetchResponse
from plog.protocol.messages.metadata import MetadataRequest
from tests.handlers.wire import (
    Speaker,
    create_topic,
    eventually,
    fetch_request,
    make_batch,
    produce,
    speak,
    walk_all,
)
from tests.servers import BrokerProcess

HELD_S = 4
HOLDING = f"""
import ctypes, os, pathlib, signal, sys
held = pathlib.Path(sys.argv.pop(1))
def hold(*_):
    held.touch()
    ctypes.PyDLL(None).sleep({HELD_S})  # unlike CDLL it keeps the interpreter lock
    held.unlink()
signal.signal(signal.SIGUSR1, hold)
from plog.cli import main
main(["server", *sys.argv[1:]])
"""


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[BrokerProcess]:
    """A broker that holds its interpreter lock for a while when it is sent SIGUSR1."""
    launcher = [sys.executable, "-c", HOLDING, str(tmp_path / "held")]
    with BrokerProcess(tmp_path, launcher=launcher) as running:
        yield running


def fetched(wire: Speaker, offset: int) -> list[bytes | None]:
    answer: FetchResponse = wire.ask(fetch_request(("t", 0, offset)), 12)
    (part,) = answer.responses[0].partitions
    return [record.value for record in walk_all(part.records)]


def test_fast_path_answers_while_the_interpreter_lock_is_held(broker: BrokerProcess) -> None:
    held = broker.directory / "held"
    wire, other = speak(broker.port), speak(broker.port)
    create_topic(wire, "t")
    for client in (wire, other):
        produce(client, "t", make_batch([b"before"]))
    os.kill(broker.pid, signal.SIGUSR1)
    eventually(held.exists, "the lock is held")
    for acks in (1, -1):
        assert produce(wire, "t", make_batch([b"acks %d" % acks]), acks=acks).error_code == 0
    assert fetched(other, 2) == [b"acks 1", b"acks -1"]
    assert held.exists(), "all of that without Python"
    wire.ask(MetadataRequest(topics=[]), 9)
    assert not held.exists(), "and this waits for it"
    for client in (wire, other):
        client.close()
