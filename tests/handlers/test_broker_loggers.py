"""Log levels as configs of a broker's loggers (KIP-412), and the lines that DEBUG adds."""

from __future__ import annotations

import logging
import re
from collections.abc import Iterator

import pytest

from plog.errors import ErrorCode
from plog.handlers.request_log import log_request
from plog.network.connections import Connection
from plog.protocol.framing import RequestHeader
from plog.protocol.messages.configs import (
    AlterableConfig,
    AlterConfigsRequest,
    AlterConfigsResource,
    DescribeConfigsRequest,
    DescribeConfigsResource,
    IncrementalAlterableConfig,
    IncrementalAlterConfigsRequest,
    IncrementalAlterConfigsResource,
    ListConfigResourcesRequest,
)
from plog.settings import BrokerSettings
from tests.coordinator.conftest import await_coordinator
from tests.coordinator.members import ByHand
from tests.handlers.running import Running
from tests.handlers.wire import Speaker, create_topic, fetch_request, make_batch, produce

LOGGER, OF_LOGGER = 8, 6
SET, DELETE, APPEND, SUBTRACT = range(4)
PACKAGE, MODULE = "plog.storage", "plog.storage.log_manager"
NOT_IMPORTED = "plog.ops.dump_log"
REQUESTS = "plog.handlers.request_log"
(LISTENER,) = BrokerSettings().parsed_listeners()

Change = tuple[str, int, str | None]


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    running = Running(
        tmp_path_factory.mktemp("loggers"),
        offsets_topic_num_partitions=1,
        group_initial_rebalance_delay_ms=0,
    )
    yield running
    running.stop()


@pytest.fixture
def wire(running: Running) -> Speaker:
    return running.wire


@pytest.fixture(autouse=True)
def _levels() -> Iterator[None]:
    """Put the levels of this process back: the broker runs in it."""
    names = ("root", "plog", PACKAGE, MODULE, REQUESTS)
    before = {name: logging.getLogger(name).level for name in names}
    yield
    for name, level in before.items():
        logging.getLogger(None if name == "root" else name).setLevel(level)


def levels(wire: Speaker, *names: str) -> dict[str, str | None]:
    resource = DescribeConfigsResource(
        resource_type=LOGGER, resource_name="0", configuration_keys=list(names) or None
    )
    (found,) = wire.ask(DescribeConfigsRequest(resources=[resource]), 4).results
    assert found.error_code == ErrorCode.NONE
    assert all(one.config_source == OF_LOGGER for one in found.configs)
    assert not any(one.read_only or one.is_sensitive for one in found.configs)
    return {one.name: one.value for one in found.configs}


def alter(wire: Speaker, *changes: Change, broker: str = "0", dry: bool = False) -> ErrorCode:
    configs = [
        IncrementalAlterableConfig(name=name, config_operation=operation, value=level)
        for name, operation, level in changes
    ]
    resource = IncrementalAlterConfigsResource(
        resource_type=LOGGER, resource_name=broker, configs=configs
    )
    request = IncrementalAlterConfigsRequest(resources=[resource], validate_only=dry)
    (answer,) = wire.ask(request, 1).responses
    assert bool(answer.error_message) == bool(answer.error_code)
    return ErrorCode(answer.error_code)


def test_every_logger_is_listed_with_the_level_in_force(wire: Speaker) -> None:
    assert alter(wire, ("root", SET, "ERROR")) is ErrorCode.NONE
    found = levels(wire)
    assert next(iter(found)) == "root"
    assert {PACKAGE, MODULE, "plog.handlers.request_log", "asyncio"} <= found.keys()
    assert found["root"] == found[PACKAGE] == found[MODULE] == "ERROR"


@pytest.mark.parametrize(
    ("level", "number"),
    [("FATAL", 50), ("ERROR", 40), ("WARN", 30), ("INFO", 20), ("DEBUG", 10), ("TRACE", 5)],
)
def test_level_holds_for_the_loggers_below(wire: Speaker, level: str, number: int) -> None:
    assert alter(wire, (PACKAGE, SET, level)) is ErrorCode.NONE
    assert logging.getLogger(MODULE).getEffectiveLevel() == number
    assert levels(wire, PACKAGE, MODULE) == {PACKAGE: level, MODULE: level}


def test_reset_gives_the_level_of_the_logger_above(wire: Speaker) -> None:
    assert alter(wire, ("root", SET, "WARN"), (PACKAGE, SET, "INFO"), (MODULE, SET, "DEBUG")) == 0
    assert alter(wire, (MODULE, DELETE, None)) is ErrorCode.NONE
    assert levels(wire, PACKAGE, MODULE) == {PACKAGE: "INFO", MODULE: "INFO"}
    assert alter(wire, (PACKAGE, DELETE, None)) is ErrorCode.NONE
    assert levels(wire, PACKAGE, MODULE) == {PACKAGE: "WARN", MODULE: "WARN"}


def test_module_that_is_not_imported_yet_can_have_a_level(wire: Speaker) -> None:
    assert alter(wire, (NOT_IMPORTED, SET, "DEBUG")) is ErrorCode.NONE
    assert levels(wire, NOT_IMPORTED) == {NOT_IMPORTED: "DEBUG"}
    assert alter(wire, (NOT_IMPORTED, DELETE, None)) is ErrorCode.NONE


REFUSED: dict[str, tuple[list[Change], ErrorCode]] = {
    "unknown logger": ([("no.such", SET, "INFO")], ErrorCode.INVALID_CONFIG),
    "unknown logger reset": ([("plog.nothing", DELETE, None)], ErrorCode.INVALID_CONFIG),
    "no name": ([("", SET, "INFO")], ErrorCode.INVALID_CONFIG),
    "long name": ([("plog." + "x" * 9000, SET, "INFO")], ErrorCode.INVALID_CONFIG),
    "path": ([("plog.../x", SET, "INFO")], ErrorCode.INVALID_CONFIG),
    "unknown level": ([(MODULE, SET, "LOUD")], ErrorCode.INVALID_CONFIG),
    "lower case": ([(MODULE, SET, "debug")], ErrorCode.INVALID_CONFIG),
    "no level": ([(MODULE, SET, None)], ErrorCode.INVALID_REQUEST),
    "append": ([(MODULE, APPEND, "INFO")], ErrorCode.INVALID_REQUEST),
    "subtract": ([(MODULE, SUBTRACT, "INFO")], ErrorCode.INVALID_REQUEST),
    "unknown operation": ([(MODULE, 9, "INFO")], ErrorCode.INVALID_REQUEST),
    "root reset": ([("root", DELETE, None)], ErrorCode.INVALID_REQUEST),
    "twice": ([(MODULE, SET, "INFO"), (MODULE, DELETE, None)], ErrorCode.INVALID_REQUEST),
}


@pytest.mark.parametrize("case", REFUSED)
def test_change_is_refused_whole(wire: Speaker, case: str) -> None:
    changes, expected = REFUSED[case]
    before = levels(wire)
    assert alter(wire, (PACKAGE, SET, "TRACE"), *changes) is expected
    assert levels(wire) == before


@pytest.mark.parametrize("broker", ["", "1", "x", "default"])
def test_loggers_are_those_of_one_broker(wire: Speaker, broker: str) -> None:
    assert alter(wire, (MODULE, SET, "INFO"), broker=broker) is ErrorCode.INVALID_REQUEST
    resource = DescribeConfigsResource(
        resource_type=LOGGER, resource_name=broker, configuration_keys=None
    )
    (found,) = wire.ask(DescribeConfigsRequest(resources=[resource]), 4).results
    assert (ErrorCode(found.error_code), found.configs) == (ErrorCode.INVALID_REQUEST, [])


def test_validation_changes_no_level(wire: Speaker) -> None:
    before = levels(wire)
    assert alter(wire, (MODULE, SET, "TRACE"), dry=True) is ErrorCode.NONE
    assert levels(wire) == before


def test_replacement_of_all_levels_is_refused(wire: Speaker) -> None:
    before = levels(wire)
    resource = AlterConfigsResource(
        resource_type=LOGGER,
        resource_name="0",
        configs=[AlterableConfig(name=MODULE, value="TRACE")],
    )
    (answer,) = wire.ask(
        AlterConfigsRequest(resources=[resource], validate_only=False), 2
    ).responses
    assert ErrorCode(answer.error_code) is ErrorCode.INVALID_REQUEST
    assert "IncrementalAlterConfigs" in (answer.error_message or "")
    assert levels(wire) == before


def test_loggers_are_listed_by_broker(wire: Speaker) -> None:
    listed = wire.ask(ListConfigResourcesRequest(resource_types=[LOGGER]), 1).config_resources
    assert [(one.resource_name, one.resource_type) for one in listed] == [("0", LOGGER)]


# -- the lines that DEBUG adds


def test_debug_shows_connections_rolls_leaders_and_groups(
    running: Running, wire: Speaker, caplog: pytest.LogCaptureFixture
) -> None:
    assert alter(wire, ("plog", SET, "DEBUG")) is ErrorCode.NONE
    topic, _ = create_topic(wire, partitions=1, segment_bytes=300)
    for _ in range(3):
        assert produce(wire, topic, make_batch([b"v" * 150])).error_code == ErrorCode.NONE
    await_coordinator(wire, "readers")
    member = ByHand(running.port, "readers")
    member.join()
    assert member.sync({member.member_id: b"all"}).error_code == ErrorCode.NONE
    assert alter(wire, ("plog", DELETE, None)) is ErrorCode.NONE
    lines = [f"{one.name}: {one.getMessage()}" for one in caplog.records if one.levelno == 10]
    for expected in (
        r"plog\.network\.control_plane: opened connection from 127\.0\.0\.1:\d+ on PLAINTEXT",
        rf"plog\.storage\.log: {topic}-0: rolled at offset 1",
        rf"plog\.cluster\.controller_loop: state of {topic}-0: .*leader=0.*",
        r"plog\.coordinator\.group_coordinator: loaded 0 groups from __consumer_offsets-0",
        r"plog\.coordinator\.group_coordinator: "
        r"group 'readers' stores generation 1 with 1 member: NONE",
    ):
        assert any(re.fullmatch(expected, line) for line in lines), (expected, lines)


def test_request_log_has_a_line_for_each_request_that_python_sees(
    wire: Speaker, caplog: pytest.LogCaptureFixture
) -> None:
    assert alter(wire, (REQUESTS, SET, "DEBUG")) is ErrorCode.NONE
    topic, _ = create_topic(wire, partitions=1)
    produce(wire, topic, make_batch([b"secret"]))
    damaged = bytearray(make_batch([b"secret"]))
    damaged[-1] ^= 1
    assert produce(wire, topic, bytes(damaged)).error_code == ErrorCode.CORRUPT_MESSAGE
    wire.ask(fetch_request(("nowhere", 0, 0), ("nowhere", 1, 0)), 11)
    assert alter(wire, (REQUESTS, DELETE, None)) is ErrorCode.NONE
    create_topic(wire, partitions=1)
    lines = [one.getMessage() for one in caplog.records if one.name == REQUESTS]
    form = re.compile(r"(\w+) v\d+, id \d+, from 127\.0\.0\.1:\d+, client .+: \d+\.\d\d ms, (.+)")
    found = [form.fullmatch(line) for line in lines]
    assert all(found), lines
    parts = [one.groups() for one in found if one is not None]
    assert ("CreateTopics", "no error") in parts
    assert ("Fetch", "UNKNOWN_TOPIC_OR_PARTITION (2 times)") in parts
    assert [api for api, _ in parts].count("CreateTopics") == 1
    assert "secret" not in "".join(lines)
    assert ("Produce", "CORRUPT_MESSAGE") in parts
    assert [api for api, _ in parts].count("Produce") == 1, "no Python has seen the ordinary one"


def test_request_without_a_response_has_a_line_too(caplog: pytest.LogCaptureFixture) -> None:
    header = RequestHeader(api_key=0, api_version=9, correlation_id=7, client_id="a\nb")
    connection = Connection(1, LISTENER, "127.0.0.1:5")
    with caplog.at_level(logging.DEBUG, REQUESTS):
        log_request("Produce", connection, header, 1234, None)
    (line,) = caplog.messages
    assert line == (r"Produce v9, id 7, from 127.0.0.1:5, client 'a\nb': 1.23 ms, no response")
