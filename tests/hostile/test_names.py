"""Names that climb directories, or are none: refused by their codes, no file made outside."""

from __future__ import annotations

import contextlib
import os
import struct
from pathlib import Path

import pytest

from plog.errors import ErrorCode
from plog.handlers.registry import load
from plog.protocol.api_keys import ApiKey
from plog.protocol.messages.cluster import (
    AlterReplicaLogDir,
    AlterReplicaLogDirsRequest,
    AlterReplicaLogDirTopic,
)
from plog.protocol.messages.metadata import MetadataRequest, MetadataRequestTopic
from plog.protocol.messages.topics import (
    CreatableTopic,
    CreateTopicsRequest,
    DeleteTopicsRequest,
)
from tests.handlers.test_every_version import REQUESTS, Target, codes
from tests.handlers.wire import (
    WAIT_MS,
    Speaker,
    create_topic,
    eventually,
    make_batch,
    produce,
    speak,
)
from tests.hostile.conftest import Besiege
from tests.hostile.frames import HOSTILE_NAMES, UNKNOWN_ID, bare
from tests.hostile.sockets import send_streams
from tests.servers import BrokerProcess

INVALID, UNKNOWN = ErrorCode.INVALID_TOPIC_EXCEPTION, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
# The code that each API has for a name that can be no topic's; None: it leaves the name out.
CODES: dict[ApiKey, ErrorCode | None] = {
    ApiKey.PRODUCE: UNKNOWN,
    ApiKey.FETCH: UNKNOWN,
    ApiKey.LIST_OFFSETS: UNKNOWN,
    ApiKey.METADATA: INVALID,
    ApiKey.DELETE_TOPICS: UNKNOWN,
    ApiKey.DELETE_RECORDS: UNKNOWN,
    ApiKey.OFFSET_FOR_LEADER_EPOCH: UNKNOWN,
    ApiKey.DESCRIBE_CONFIGS: INVALID,
    ApiKey.ALTER_CONFIGS: UNKNOWN,
    ApiKey.INCREMENTAL_ALTER_CONFIGS: UNKNOWN,
    ApiKey.DESCRIBE_LOG_DIRS: None,
    ApiKey.CREATE_PARTITIONS: UNKNOWN,
    ApiKey.ELECT_LEADERS: UNKNOWN,
    ApiKey.ALTER_PARTITION_REASSIGNMENTS: UNKNOWN,
}
BY_ID_SINCE = {ApiKey.FETCH: 13, ApiKey.DELETE_TOPICS: 6}


def outside(broker: BrokerProcess) -> set[str]:
    """List what is around the log directories, and where the names would lead."""
    own = {str(path) for path in broker.directory.iterdir()}
    climbed = {entry for path in ("/", "/etc") for entry in os.listdir(path)}
    return own | climbed


def inside(broker: BrokerProcess) -> set[str]:
    return {path.name for directory in broker.log_dirs for path in directory.iterdir()}


@pytest.fixture
def climbing(broker: BrokerProcess, besiege: Besiege):
    """Have a connection while names climb, and compare what there is of files before and after."""
    with besiege(broker) as under, contextlib.closing(speak(broker.port)) as wire:
        around, within = outside(broker), inside(broker)
        yield wire
        assert outside(broker) == around
        assert {name for name in inside(broker) - within if "kept-" not in name} == set()
    assert not under.lines.grave()


def test_names_are_refused_wherever_they_are_used(climbing: Speaker) -> None:
    for key, wanted in CODES.items():
        handler = load()[key]
        newest = min(handler.max_version, BY_ID_SINCE.get(key, 1000) - 1)
        for name in HOSTILE_NAMES:
            for version in {handler.min_version, newest}:
                asked = REQUESTS[key](Target(name, UNKNOWN_ID, False), version)
                found = codes(climbing.ask(asked, version))
                assert found == (set() if wanted is None else {wanted}), (key, name, version)


def create(wire: Speaker, name: str, **config: str) -> ErrorCode:
    topic = CreatableTopic(
        name=name, num_partitions=1, replication_factor=1, assignments=[], configs=[]
    )
    (result,) = wire.ask(CreateTopicsRequest(topics=[topic], timeout_ms=WAIT_MS), 5).topics
    return ErrorCode(result.error_code)


def test_topics_of_such_names_are_not_created(climbing: Speaker) -> None:
    for name in HOSTILE_NAMES:
        assert create(climbing, name) is INVALID, name
        asked = [MetadataRequestTopic(name=name)]
        answer = climbing.ask(MetadataRequest(topics=asked, allow_auto_topic_creation=True), 4)
        assert codes(answer) == {INVALID}, name


def test_longest_name_is_created_written_to_and_deleted(broker: BrokerProcess) -> None:
    name = "n" * 249
    with contextlib.closing(speak(broker.port)) as wire:
        assert create(wire, name + "n") is INVALID
        assert create(wire, name) is ErrorCode.NONE
        assert produce(wire, name, make_batch()).error_code == ErrorCode.NONE
        answer = wire.ask(DeleteTopicsRequest(topic_names=[name], timeout_ms=WAIT_MS), 5)
        assert not codes(answer)
        eventually(lambda: f"{name}-0" not in inside(broker), "deleted")


@pytest.mark.parametrize("key", [3, 19, 20], ids=["Metadata", "CreateTopics", "DeleteTopics"])
def test_name_that_is_no_utf_8_closes_its_connection(
    broker: BrokerProcess, besiege: Besiege, key: int
) -> None:
    body = struct.pack(">ih", 1, 4) + b"a\xff\xfe/" + b"\0" * 24
    with besiege(broker) as under:
        (outcome,) = send_streams(broker.port, [bare(key, 0, body)])
        assert outcome.ended
        under.lines.expect_closings(1, "Request v0: ")


def test_replicas_move_to_no_directory_but_the_log_directories(
    climbing: Speaker, broker: BrokerProcess
) -> None:
    topic, _ = create_topic(climbing, "kept-moving")
    data = broker.log_dirs[0]
    paths = ["/etc", "/", "", ".", "..", "/no/such", str(data.parent), f"{data}/..", f"{data}/a",
             f"{data}\0", f"{data}/{topic}-0", "x" * 30_000]  # fmt: skip
    for path in paths:
        asked = AlterReplicaLogDirTopic(name=topic, partitions=[0])
        moved = AlterReplicaLogDir(path=path, topics=[asked])
        answer = climbing.ask(AlterReplicaLogDirsRequest(dirs=[moved]), 2)
        assert codes(answer) == {ErrorCode.LOG_DIR_NOT_FOUND}, path
    assert Path(data, f"{topic}-0").is_dir()
    assert produce(climbing, topic, make_batch()).error_code == ErrorCode.NONE
