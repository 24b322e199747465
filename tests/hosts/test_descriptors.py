"""A broker that runs out of descriptors: who is served already stays so, and nothing is lost."""

from __future__ import annotations

import os
import resource
import socket
from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager
from pathlib import Path

import pytest

from plog.client.admin import Admin
from plog.errors import ErrorCode
from tests.broker.test_lost_replicas import partition_state
from tests.crash.test_kill import check
from tests.crash.writer import Writer
from tests.handlers.wire import create_topic, fetch_one, make_batch, produce, speak
from tests.hosts.host import MIB, MemoryBounded, read_all, wait_until
from tests.servers import BrokerProcess


@contextmanager
def no_descriptor_left(broker: BrokerProcess) -> Iterator[None]:
    """Have every further open of the broker's fail in the block."""
    before = resource.prlimit(broker.pid, resource.RLIMIT_NOFILE)
    numbers = map(int, os.listdir(f"/proc/{broker.pid}/fd"))
    resource.prlimit(broker.pid, resource.RLIMIT_NOFILE, (max(numbers) + 1, before[1]))
    with ExitStack() as stack:
        # Connections take the numbers below that are free.
        while not is_turned_away(stack.enter_context(socket.create_connection(address(broker)))):
            pass
        yield
        resource.prlimit(broker.pid, resource.RLIMIT_NOFILE, before)


def address(broker: BrokerProcess) -> tuple[str, int]:
    return "127.0.0.1", broker.port


def is_turned_away(connection: socket.socket) -> bool:
    connection.settimeout(1)
    try:
        return connection.recv(1) == b""
    except TimeoutError:
        return False


@pytest.mark.usefixtures("plane")
def test_want_of_descriptors_refuses_what_needs_one_and_ends_by_itself(
    tmp_path: Path, memory_bounded: MemoryBounded
) -> None:
    overrides: dict[str, object] = {"log.segment.delete.delay.ms": 100}
    broker = BrokerProcess(tmp_path, log_dirs=2, overrides=overrides)
    with (
        broker,
        closing(speak(broker.port)) as client,
        Admin(broker.bootstrap) as admin,
        ExitStack() as stack,
    ):
        admin.controller_id()  # is connected
        create_topic(client, "rolls", segment_bytes=500_000)
        create_topic(client, "stays")
        create_topic(client, "doomed")
        writers = {
            name: stack.enter_context(Writer(broker.bootstrap, name, 1, padding=5000, pause_s=0.01))
            for name in ("rolls", "stays")
        }
        for writer in writers.values():
            writer.wait_for_more(50)
        with memory_bounded(broker, "no descriptor left", 32 * MIB), no_descriptor_left(broker):
            batch = make_batch([b"v" * 10_000])

            def is_refused() -> bool:
                return produce(client, "rolls", batch).error_code == ErrorCode.KAFKA_STORAGE_ERROR

            wait_until(is_refused, "refused", broker)
            created, _ = create_topic(client)
            admin.delete_topic("doomed")
            wait_until(lambda: "deleted topic doomed" in broker.log, "deleted", broker)
            for topic in ("rolls", "stays"):
                assert partition_state(client, topic) == (ErrorCode.NONE, 0, [])
                assert fetch_one(client, topic, 0).records
            writers["stays"].wait_for_more(50)
        for writer in writers.values():
            writer.wait_for_more(50)
        wait_until(
            lambda: partition_state(client, created) == (ErrorCode.NONE, 0, []), "led", broker
        )
        assert produce(client, created, batch).error_code == ErrorCode.NONE
        for name, writer in writers.items():
            writer.stop()
            found = [one for one in read_all(broker, name) if one.startswith("0-")]
            check(writer, {0: found})
    assert broker.log.count("no file descriptor is left, what needs one is refused") == 1
    assert broker.log.count("the process has no file descriptor left") < 10
    assert "is offline" not in broker.log
    assert "Traceback" not in broker.log
