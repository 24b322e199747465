"""The handlers on disks that are slow, with the fast path beside them and without.

What is asked here is never the fast path's: its own slow disks are `test_fast_disks`'.
"""

from __future__ import annotations

import itertools
import socket
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from plog._native.faults import Fault
from plog.protocol.messages.produce import ProduceResponse
from tests.handlers.running import Running, decoded, faults, framed
from tests.handlers.wire import (
    WAIT_MS,
    create_topic,
    flat,
    make_batch,
    produce_request,
)
from tests.planes import Plane

PRODUCE, FETCH = 9, 12
LARGE = make_batch([b"v" * 100_000])
producer_ids = itertools.count(1000)


@pytest.fixture
def two_disks(plane: Plane, tmp_path: Path) -> Iterator[Running]:
    """A broker with two log directories, of which topic "t" has a partition each."""
    one = Running(tmp_path, log_dirs=f"{tmp_path / 'disk0'},{tmp_path / 'disk1'}")
    create_topic(one.wire, "t", 2)
    yield one
    one.stop()


def disk_of(running: Running, index: int) -> str:
    (path,) = running.directory.glob(f"disk*/t-{index}")
    return str(path.parent)


def unusual(index: int, values: list[bytes] | None = None):
    """Return a Produce of a producer that is new: the handler's business."""
    data = make_batch(values or [b"v"], producer=(next(producer_ids), 0, 0))
    return produce_request([("t", index, data)], acks=1)


def make_slow(running: Running, index: int) -> None:
    """Have the broker find out that a disk is slow: a write that takes 30 ms."""
    with faults(Fault("pwritev", delay_us=30_000, path_prefix=disk_of(running, index))):
        running.ask(unusual(index), PRODUCE)


def require_unanswered(client: socket.socket) -> None:
    client.setblocking(False)
    with pytest.raises(BlockingIOError):
        client.recv(1)
    client.settimeout(WAIT_MS / 1000)


def is_slow(running: Running, index: int) -> bool:
    replicas = running.broker._replicas
    return replicas is not None and replicas.disks.is_slow(Path(disk_of(running, index)))


def count_threads(running: Running, monkeypatch: pytest.MonkeyPatch) -> list[Path]:
    """Return a list of the directories whose threads have been asked for something, which grows."""
    asked: list[Path] = []
    disks = running.broker._replicas.disks
    in_thread = disks.in_thread

    async def counted(log_dir: Path, *call: object) -> object:
        asked.append(log_dir)
        return await in_thread(log_dir, *call)

    monkeypatch.setattr(disks, "in_thread", counted)
    return asked


# -- writes


def test_slow_write_keeps_nobody_from_another_disk(two_disks: Running) -> None:
    make_slow(two_disks, 0)
    slow = disk_of(two_disks, 0)
    with faults(Fault("pwritev", delay_us=1_500_000, path_prefix=slow, times=1)):
        two_disks.send(unusual(0), PRODUCE)
        for _ in range(20):
            two_disks.wire.ask(unusual(1), PRODUCE)
        require_unanswered(two_disks.socket)
        (part,) = flat(decoded(ProduceResponse, PRODUCE, two_disks.receive()))
    assert (part.error_code, part.base_offset) == (0, 1)
    assert is_slow(two_disks, 0)
    assert not is_slow(two_disks, 1)


def test_many_slow_writes_keep_nobody_from_another_disk(two_disks: Running) -> None:
    make_slow(two_disks, 0)
    slow = disk_of(two_disks, 0)
    with ExitStack() as clients, faults(Fault("pwritev", delay_us=200_000, path_prefix=slow)):
        sockets = [
            clients.enter_context(socket.create_connection(("127.0.0.1", two_disks.port)))
            for _ in range(40)  # more than there are threads for all that blocks
        ]
        for client in sockets:
            client.sendall(framed(unusual(0), PRODUCE, 1))
        begun = time.monotonic()
        for _ in range(5):
            # So large that it is validated beside the event loop.
            two_disks.wire.ask(unusual(1, [b"v" * 300_000]), PRODUCE)
        assert time.monotonic() - begun < 2
        require_unanswered(sockets[-1])


def test_disk_that_is_fast_again_is_written_in_place(
    two_disks: Running, monkeypatch: pytest.MonkeyPatch
) -> None:
    make_slow(two_disks, 0)
    asked = count_threads(two_disks, monkeypatch)
    for offset in range(1, 101):
        (part,) = flat(decoded(ProduceResponse, PRODUCE, two_disks.ask(unusual(0), PRODUCE)))
        assert (part.error_code, part.base_offset) == (0, offset)
    assert not is_slow(two_disks, 0)
    assert len(asked) == 64


def test_duplicates_say_nothing_of_a_disk(two_disks: Running) -> None:
    request = produce_request([("t", 0, make_batch(producer=(71, 0, 0)))], acks=1)
    two_disks.ask(request, PRODUCE)
    make_slow(two_disks, 0)
    for _ in range(100):
        two_disks.ask(request, PRODUCE)
    assert is_slow(two_disks, 0)
