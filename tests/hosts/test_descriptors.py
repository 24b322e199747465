"""A broker that runs out of descriptors: who is served already stays so, and nothing is lost."""

from __future__ import annotations

import os
import random
import resource
import socket
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, contextmanager
from pathlib import Path

import pytest

from plog.client.admin import Admin
from plog.errors import ErrorCode, KafkaStorageError, NetworkException
from plog.protocol.messages.configs import (
    IncrementalAlterableConfig,
    IncrementalAlterConfigsRequest,
    IncrementalAlterConfigsResource,
)
from plog.protocol.messages.topics import (
    CreatableTopic,
    CreateTopicsRequest,
    CreateTopicsResponse,
)
from tests.agreement.harness import run_seed
from tests.broker.test_lost_replicas import partition_state
from tests.crash.test_kill import check
from tests.crash.writer import Writer
from tests.handlers.wire import Speaker, create_topic, fetch_one, make_batch, produce, speak
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
                # What waits for a flush that needs a descriptor is answered at its timeout.
                answer = produce(client, "rolls", batch, timeout_ms=1000)
                return answer.error_code == ErrorCode.KAFKA_STORAGE_ERROR

            wait_until(is_refused, "refused", broker)
            with pytest.raises(AssertionError, match="file descriptors"):
                create_topic(client, "later")
            with pytest.raises(KafkaStorageError, match="file descriptors"):
                admin.create_partitions("doomed", 2)
            admin.delete_topic("doomed")
            wait_until(lambda: "deleted topic doomed" in broker.log, "deleted", broker)
            for topic in ("rolls", "stays"):
                assert partition_state(client, topic) == (ErrorCode.NONE, 0, [])
                assert fetch_one(client, topic, 0).records
            writers["stays"].wait_for_more(50)
        for writer in writers.values():
            writer.wait_for_more(50)
        wait_until(
            lambda: partition_state(client, "later") == (ErrorCode.NONE, 0, []), "led", broker
        )
        assert produce(client, "later", batch).error_code == ErrorCode.NONE
        for name, writer in writers.items():
            writer.stop()
            found = [one for one in read_all(broker, name) if one.startswith("0-")]
            check(writer, {0: found})
    assert broker.log.count("no file descriptor is left; operations") == 1
    assert broker.log.count("the process has no file descriptor left") < 10
    assert "is offline" not in broker.log
    assert "Traceback" not in broker.log


# -- a broker with so many descriptors and no more -------------------------------------------------


def limited(directory: Path, descriptors: int, **overrides: object) -> BrokerProcess:
    """Return a broker that may open so many files; `unlimited` gives it more at its next start."""
    launcher = ["prlimit", f"--nofile={descriptors}", sys.executable, "-m", "plog", "server"]
    given = {key.replace("_", "."): value for key, value in overrides.items()}
    return BrokerProcess(directory, overrides=given, launcher=launcher)


def unlimited(broker: BrokerProcess) -> BrokerProcess:
    broker._launcher = [sys.executable, "-m", "plog", "server"]
    return broker


def idle_descriptors(directory: Path) -> int:
    """Return how many files a broker has open that serves nothing."""
    directory.mkdir()
    with BrokerProcess(directory) as broker:
        return len(os.listdir(f"/proc/{broker.pid}/fd"))


def comes_up(broker: BrokerProcess) -> bool:
    """Start a broker; False: it says that it has too few descriptors, and ends."""
    try:
        broker.start()
    except AssertionError:
        assert "Too many open files" in broker.log
        return False
    return True


def asked_to_create(client: Speaker, name: str, partitions: int) -> int:
    request = CreateTopicsRequest(
        topics=[
            CreatableTopic(
                name=name, num_partitions=partitions, replication_factor=1, assignments=[],
                configs=[],
            )
        ],
        timeout_ms=20_000,
    )  # fmt: skip
    answer: CreateTopicsResponse = client.ask(request, 7)
    return answer.topics[0].error_code


def alter_topic(client: Speaker, topic: str, key: str, value: str) -> None:
    config = IncrementalAlterableConfig(name=key, config_operation=0, value=value)
    asked = IncrementalAlterConfigsResource(resource_type=2, resource_name=topic, configs=[config])
    client.ask(IncrementalAlterConfigsRequest(resources=[asked], validate_only=False), 1)


def try_limit(directory: Path, descriptors: int, least: int) -> str:
    """Have a broker create, roll, delete, clean, stop and start; return what came of it."""
    directory.mkdir()
    broker = limited(directory, descriptors, log_segment_bytes=20_000, log_cleaner_backoff_ms=50)
    if not comes_up(broker):
        broker.kill()
        return "does not start"
    acknowledged = refused = 0
    created: list[int] = []
    try:
        with closing(speak(broker.port)) as client:
            created += [asked_to_create(client, name, n) for name, n in (("t", 1), ("many", 30))]
            for size in [2000] * 14 + [5] * 2:
                code = produce(client, "t", make_batch([bytes(size)])).error_code
                acknowledged, refused = acknowledged + (code == 0), refused + (code != 0)
                if size == 2000 and acknowledged + refused == 14:
                    # A roll that was refused is not wanted any more, and small records fit.
                    alter_topic(client, "t", "retention.ms", "777777777")
            if created[0] == ErrorCode.NONE:
                alter_topic(client, "t", "cleanup.policy", "delete,compact")
    except (ConnectionError, NetworkException):
        created.append(-1)  # no descriptor is left for a client
    assert broker.is_running, broker.log[-2000:]
    broker.kill() if descriptors % 2 else broker.stop()
    if comes_up(broker):
        assert broker.is_running
        broker.stop()
    else:  # Python's own imports take one now and then
        broker.kill()
        assert descriptors < least, f"{descriptors}: {broker.log[-2000:]}"
    with unlimited(broker), closing(speak(broker.port)) as client:
        if acknowledged:
            wait_until(
                lambda: partition_state(client, "t")[0] == ErrorCode.NONE, "led again", broker
            )
            found = fetch_one(client, "t", 0)
            assert (found.error_code, found.high_watermark) == (ErrorCode.NONE, acknowledged)
    for word in ("is offline with", "Traceback", "begins at offset"):
        assert word not in broker.log, f"{descriptors}: {broker.log}"
    return f"created {created}, {acknowledged} acknowledged, {refused} refused"


LIMITS = range(18, 301)
CI_LIMITS = 3


def test_broker_with_any_number_of_descriptors_serves_what_it_can(tmp_path: Path) -> None:
    least = idle_descriptors(tmp_path / "idle") + 8
    chance = random.Random(run_seed())
    for limit in (chance.choice(LIMITS), *chance.sample(range(least, least + 60), CI_LIMITS - 1)):
        print(f"limit {limit}: {try_limit(tmp_path / str(limit), limit, least)}")


def test_creation_without_descriptors_is_refused_and_the_broker_starts_again(
    tmp_path: Path,
) -> None:
    limit = idle_descriptors(tmp_path / "idle") + 12
    broker = limited(tmp_path, limit)
    with broker, closing(speak(broker.port)) as client:
        assert asked_to_create(client, "t", 30) == ErrorCode.KAFKA_STORAGE_ERROR
        assert broker.is_running
        broker.kill()
        broker.start()
        wait_until(lambda: "recovered and online" in broker.log, "opened later", broker)


def test_roll_that_is_refused_leaves_nothing_that_is_taken_for_damage(tmp_path: Path) -> None:
    idle = idle_descriptors(tmp_path / "idle")
    found = try_limit(tmp_path / "roll", idle + 41, idle + 8)
    assert " 0 refused" not in found, found


@pytest.mark.long
@pytest.mark.timeout(3000)
def test_broker_with_every_number_of_descriptors_serves_what_it_can(
    tmp_path: Path, record_property: Callable[[str, object], None]
) -> None:
    least = idle_descriptors(tmp_path / "idle") + 8
    found = {limit: try_limit(tmp_path / str(limit), limit, least) for limit in LIMITS}
    for limit, what in found.items():
        print(f"limit {limit}: {what}")
    up = sum(what != "does not start" for what in found.values())
    record_property("figures", f"{up} of {len(found)} limits of descriptors let a broker start")
