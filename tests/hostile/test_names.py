"""Names that climb directories, or are none: refused by their codes, no file made outside."""

from __future__ import annotations

import contextlib
import itertools
import os
import struct
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from plog.errors import ErrorCode
from plog.protocol.api_keys import ApiKey
from plog.protocol.messages.cluster import (
    AlterReplicaLogDir,
    AlterReplicaLogDirsRequest,
    AlterReplicaLogDirTopic,
)
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
from plog.protocol.messages.metadata import MetadataRequest, MetadataRequestTopic
from plog.protocol.messages.offsets import (
    OffsetFetchRequest,
    OffsetFetchRequestGroup,
    OffsetFetchRequestTopics,
)
from plog.protocol.messages.producers import InitProducerIdRequest
from plog.protocol.messages.topics import (
    CreatableTopic,
    CreateTopicsRequest,
    DeleteTopicsRequest,
)
from plog.protocol.schema import Struct
from plog.types import ZERO_UUID
from tests.coordinator.conftest import GROUP, TRANSACTION, await_coordinator
from tests.handlers.test_every_version import NOBODY, REQUESTS, Target, codes
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
from tests.hostile.frames import HOSTILE_NAMES, bare
from tests.hostile.places import Place, every_place, put
from tests.hostile.sockets import send_streams
from tests.hostile.watch import MIB
from tests.servers import BrokerProcess

NONE = ErrorCode.NONE
INVALID, UNKNOWN = ErrorCode.INVALID_TOPIC_EXCEPTION, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
TOPICS: dict[str, ErrorCode | None] = {
    "PRODUCE topic_data.name": UNKNOWN,
    "FETCH topics.topic": UNKNOWN,
    "FETCH forgotten_topics_data.topic": None,
    "LIST_OFFSETS topics.name": UNKNOWN,
    "METADATA topics.name": INVALID,
    "OFFSET_COMMIT topics.name": UNKNOWN,
    "OFFSET_FETCH topics.name": None,
    "OFFSET_FETCH groups.topics.name": None,
    "CREATE_TOPICS topics.name": INVALID,
    "DELETE_TOPICS topics.name": UNKNOWN,
    "DELETE_TOPICS topic_names": UNKNOWN,
    "DELETE_RECORDS topics.name": UNKNOWN,
    "OFFSET_FOR_LEADER_EPOCH topics.topic": UNKNOWN,
    "ADD_PARTITIONS_TO_TXN transactions.topics.name": UNKNOWN,
    "ADD_PARTITIONS_TO_TXN v3_and_below_topics.name": UNKNOWN,
    "WRITE_TXN_MARKERS markers.topics.name": UNKNOWN,
    "TXN_OFFSET_COMMIT topics.name": UNKNOWN,
    "DESCRIBE_CONFIGS resources.resource_name": INVALID,
    "ALTER_CONFIGS resources.resource_name": UNKNOWN,
    "INCREMENTAL_ALTER_CONFIGS resources.resource_name": UNKNOWN,
    "ALTER_REPLICA_LOG_DIRS dirs.topics.name": UNKNOWN,
    "DESCRIBE_LOG_DIRS topics.topic": None,
    "CREATE_PARTITIONS topics.name": UNKNOWN,
    "ELECT_LEADERS topic_partitions.topic": UNKNOWN,
    "ALTER_PARTITION_REASSIGNMENTS topics.name": UNKNOWN,
    "LIST_PARTITION_REASSIGNMENTS topics.name": None,
    "OFFSET_DELETE topics.name": UNKNOWN,
    "DESCRIBE_PRODUCERS topics.name": INVALID,
    "CONSUMER_GROUP_HEARTBEAT subscribed_topic_names": None,
}
"""Where a topic is named, and the code for a name that can be no topic's; None: it has none."""

OTHERS = {
    "PRODUCE transactional_id",
    "FETCH cluster_id",
    "FETCH rack_id",
    "OFFSET_COMMIT group_id",
    "OFFSET_COMMIT member_id",
    "OFFSET_COMMIT group_instance_id",
    "OFFSET_FETCH group_id",
    "OFFSET_FETCH groups.group_id",
    "OFFSET_FETCH groups.member_id",
    "FIND_COORDINATOR key",
    "FIND_COORDINATOR coordinator_keys",
    "JOIN_GROUP group_id",
    "JOIN_GROUP member_id",
    "JOIN_GROUP group_instance_id",
    "JOIN_GROUP protocol_type",
    "JOIN_GROUP protocols.name",
    "JOIN_GROUP reason",
    "HEARTBEAT group_id",
    "HEARTBEAT member_id",
    "HEARTBEAT group_instance_id",
    "LEAVE_GROUP group_id",
    "LEAVE_GROUP member_id",
    "LEAVE_GROUP members.member_id",
    "LEAVE_GROUP members.group_instance_id",
    "LEAVE_GROUP members.reason",
    "SYNC_GROUP group_id",
    "SYNC_GROUP member_id",
    "SYNC_GROUP group_instance_id",
    "SYNC_GROUP protocol_type",
    "SYNC_GROUP protocol_name",
    "SYNC_GROUP assignments.member_id",
    "DESCRIBE_GROUPS groups",
    "LIST_GROUPS states_filter",
    "LIST_GROUPS types_filter",
    "CREATE_TOPICS topics.configs.name",
    "INIT_PRODUCER_ID transactional_id",
    "ADD_PARTITIONS_TO_TXN transactions.transactional_id",
    "ADD_PARTITIONS_TO_TXN v3_and_below_transactional_id",
    "ADD_OFFSETS_TO_TXN transactional_id",
    "ADD_OFFSETS_TO_TXN group_id",
    "END_TXN transactional_id",
    "TXN_OFFSET_COMMIT transactional_id",
    "TXN_OFFSET_COMMIT group_id",
    "TXN_OFFSET_COMMIT member_id",
    "TXN_OFFSET_COMMIT group_instance_id",
    "DESCRIBE_CONFIGS resources.configuration_keys",
    "ALTER_CONFIGS resources.configs.name",
    "INCREMENTAL_ALTER_CONFIGS resources.configs.name",
    "ALTER_REPLICA_LOG_DIRS dirs.path",
    "DELETE_GROUPS groups_names",
    "OFFSET_DELETE group_id",
    "UPDATE_FEATURES feature_updates.feature",
    "DESCRIBE_TRANSACTIONS transactional_ids",
    "LIST_TRANSACTIONS state_filters",
    "CONSUMER_GROUP_HEARTBEAT group_id",
    "CONSUMER_GROUP_HEARTBEAT member_id",
    "CONSUMER_GROUP_HEARTBEAT instance_id",
    "CONSUMER_GROUP_HEARTBEAT rack_id",
    "CONSUMER_GROUP_HEARTBEAT server_assignor",
    "CONSUMER_GROUP_DESCRIBE group_ids",
}
"""Where something else is named, which may be called anything: what an ordinary name is told."""

NO_NAMES = {
    "API_VERSIONS client_software_name": "has a form of its own (handlers/test_api_versions.py)",
    "API_VERSIONS client_software_version": "as the name",
    "API_VERSIONS cluster_id": "is compared with the own one (handlers/test_api_versions.py)",
    "LIST_TRANSACTIONS transactional_id_pattern": (
        "a pattern (transactions/test_administration.py)"
    ),
    "OFFSET_COMMIT topics.partitions.committed_metadata": (
        "kept as it is, to a length (coordinator/test_groups.py)"
    ),
    "TXN_OFFSET_COMMIT topics.partitions.committed_metadata": "the same",
    "CREATE_TOPICS topics.configs.value": "read as its key says (handlers/test_topics.py)",
    "ALTER_CONFIGS resources.configs.value": "the same (handlers/test_configs.py)",
    "INCREMENTAL_ALTER_CONFIGS resources.configs.value": "the same",
    "CONSUMER_GROUP_HEARTBEAT subscribed_topic_regex": (
        "a pattern (coordinator/test_topic_regex.py)"
    ),
}
"""Text that is neither, with what it is."""

NO_GROUP = {("", ErrorCode.INVALID_GROUP_ID)}
EMPTY = {("", ErrorCode.INVALID_REQUEST)}
BLANK = {(name, ErrorCode.INVALID_REQUEST) for name in ("", "\n")}
OTHERWISE: dict[str, set[tuple[str, ErrorCode | None]]] = {
    "JOIN_GROUP group_id": NO_GROUP,
    "JOIN_GROUP member_id": {("", None)},  # who has none yet is given one
    "JOIN_GROUP protocol_type": {("", ErrorCode.INCONSISTENT_GROUP_PROTOCOL)},
    "HEARTBEAT group_id": NO_GROUP,
    "LEAVE_GROUP group_id": NO_GROUP,
    "SYNC_GROUP group_id": NO_GROUP,
    "INIT_PRODUCER_ID transactional_id": EMPTY,
    "ADD_PARTITIONS_TO_TXN transactions.transactional_id": EMPTY,
    "ADD_PARTITIONS_TO_TXN v3_and_below_transactional_id": EMPTY,
    "ADD_OFFSETS_TO_TXN transactional_id": EMPTY,
    "ADD_OFFSETS_TO_TXN group_id": NO_GROUP,
    "END_TXN transactional_id": EMPTY,
    "TXN_OFFSET_COMMIT transactional_id": EMPTY,
    "TXN_OFFSET_COMMIT group_id": NO_GROUP,
    # What was committed for it is all that there is: nobody could join it. Then it is gone.
    "DELETE_GROUPS groups_names": {("", None), ("", ErrorCode.GROUP_ID_NOT_FOUND)},
    "OFFSET_DELETE group_id": NO_GROUP,
    "UPDATE_FEATURES feature_updates.feature": EMPTY,
    "DESCRIBE_TRANSACTIONS transactional_ids": EMPTY,
    "CONSUMER_GROUP_HEARTBEAT group_id": BLANK,
    "CONSUMER_GROUP_HEARTBEAT member_id": BLANK,
    "CONSUMER_GROUP_HEARTBEAT instance_id": BLANK,
    "CONSUMER_GROUP_HEARTBEAT rack_id": BLANK,
    "CONSUMER_GROUP_DESCRIBE group_ids": NO_GROUP,
}
"""What of these is told something else, and what: names that are none."""

ORDINARY = "ordinary"
AS_OTHERS = ("<default>", "*", "%2E%2E", ORDINARY)
"""What the store's nodes are called, or how a name is written there."""


def outside(broker: BrokerProcess) -> set[str]:
    """List what is around the log directories, and where the names would lead."""
    own = {str(path) for path in broker.directory.iterdir()}
    climbed = {entry for path in ("/", "/etc") for entry in os.listdir(path)}
    return own | climbed


def inside(broker: BrokerProcess) -> set[str]:
    """List what is in the log directories, but checkpoints: those come when it is time."""
    found = {path.name for directory in broker.log_dirs for path in directory.iterdir()}
    return {name for name in found if "-checkpoint" not in name}


@pytest.fixture
def climbing(broker: BrokerProcess, besiege: Besiege):
    """Have a connection while names climb, and compare what there is of files before and after."""
    with besiege(broker) as under, contextlib.closing(speak(broker.port)) as wire:
        around, within = outside(broker), inside(broker)
        yield wire
        assert outside(broker) == around
        assert {name for name in inside(broker) - within if "kept-" not in name} == set()
    assert not under.lines.grave()


groups = (f"names-{number}" for number in itertools.count())


@pytest.fixture
def coordinated(own_broker: Callable[..., BrokerProcess]) -> BrokerProcess:
    """A broker that makes no file more for a group or a transaction."""
    broker = own_broker(
        group_initial_rebalance_delay_ms=0,
        offsets_topic_num_partitions=1,
        transaction_state_log_num_partitions=1,
    )
    with contextlib.closing(speak(broker.port)) as wire:
        await_both(wire)
    return broker


def await_both(wire: Speaker) -> None:
    await_coordinator(wire, ORDINARY, GROUP)
    await_coordinator(wire, ORDINARY, TRANSACTION)


class Asker:
    """Asks for what can be granted, but for the name at one place."""

    def __init__(self, broker: BrokerProcess) -> None:
        self.wire = speak(broker.port)
        name, _ = create_topic(self.wire, "kept-names")
        self._target = Target(name, ZERO_UUID, True)
        self._data = str(broker.log_dirs[0])
        for _ in range(NOBODY["producer_id"] + 1):  # from 0 on: no transaction has that one
            self.wire.ask(REQUESTS[ApiKey.INIT_PRODUCER_ID](self._target, 4), 4)
        self._group = next(groups)
        assert codes(self.wire.ask(self._request(ApiKey.OFFSET_COMMIT, 8, self._group), 8)) == set()

    def _request(self, key: ApiKey, version: int, group: str) -> Struct:
        request = REQUESTS[key](self._target, version)
        names = {f.name for f in request.fields}
        if "group_id" in names and not (key == ApiKey.OFFSET_FETCH and version >= 8):
            put(request, "group_id", group)
        if key == ApiKey.JOIN_GROUP:  # no member comes back or syncs
            put(request, "session_timeout_ms", 30 * 60_000)
            if version >= 1:
                put(request, "rebalance_timeout_ms", 30 * 60_000)
        return request

    def ask(self, place: Place, name: str, version: int) -> set[int]:
        # Topics of a group's are looked at only where there is such a group.
        is_known = str(place) == "OFFSET_DELETE topics.name"
        request = self._request(place.key, version, self._group if is_known else next(groups))
        if str(place) == "ALTER_REPLICA_LOG_DIRS dirs.topics.name":
            put(request, "dirs.path", self._data)
        put(request, place.path, name)
        return codes(self.wire.ask(request, version))


@pytest.fixture
def asker(coordinated: BrokerProcess, besiege: Besiege) -> Iterator[Asker]:
    """Have names put into requests, and compare what there is of files before and after."""
    asker = Asker(coordinated)
    with besiege(coordinated, growth=64 * MIB) as under, contextlib.closing(asker.wire):
        around, within = outside(coordinated), inside(coordinated)
        yield asker
        assert outside(coordinated) == around
        assert inside(coordinated) == within
    assert not under.lines.grave()


def test_every_text_of_a_request_is_a_name_that_is_tried_or_said_to_be_none() -> None:
    held = [*TOPICS, *OTHERS, *NO_NAMES]
    assert sorted(held) == sorted(map(str, every_place()))
    assert all(NO_NAMES.values())


def test_topics_of_such_names_are_refused_wherever_they_are_named(asker: Asker) -> None:
    for place in every_place():
        if str(place) not in TOPICS:
            continue
        wanted = TOPICS[str(place)]
        for name, version in itertools.product(HOSTILE_NAMES, {*place.versions}):
            found = asker.ask(place, name, version)
            assert found == (set() if wanted is None else {wanted}), (str(place), name, version)


def test_whatever_else_is_named_so_is_told_what_others_are(asker: Asker) -> None:
    otherwise: dict[str, set[tuple[str, ErrorCode | None]]] = {}
    for place in every_place():
        if str(place) not in OTHERS:
            continue
        # Who joins a second time waits for who has joined the first.
        joins = str(place) == "JOIN_GROUP group_id"
        for version in {place.versions.high} if joins else {*place.versions}:
            wanted = asker.ask(place, ORDINARY, version)
            for name in HOSTILE_NAMES:
                found = asker.ask(place, name, version)
                if found != wanted:
                    (code,) = found or {None}
                    told = otherwise.setdefault(str(place), set())
                    told.add((name, None if code is None else ErrorCode(code)))
    assert otherwise == OTHERWISE


def group_values(wire: Speaker, group: str) -> list[str | None]:
    asked = DescribeConfigsResource(
        resource_type=GROUP_CONFIGS, resource_name=group, configuration_keys=[GROUP_KEY]
    )
    (result,) = wire.ask(DescribeConfigsRequest(resources=[asked]), 4).results
    assert result.error_code == NONE, group
    return [entry.value for entry in result.configs]


GROUP_CONFIGS = 32
GROUP_KEY = "consumer.session.timeout.ms"


def set_for_group(wire: Speaker, group: str, value: int, *, at_once: bool) -> ErrorCode:
    """Set one key, by either API."""
    if at_once:
        config = AlterableConfig(name=GROUP_KEY, value=str(value))
        resource = AlterConfigsResource(
            resource_type=GROUP_CONFIGS, resource_name=group, configs=[config]
        )
        answer = wire.ask(AlterConfigsRequest(resources=[resource], validate_only=False), 2)
    else:
        change = IncrementalAlterableConfig(name=GROUP_KEY, config_operation=0, value=str(value))
        changed = IncrementalAlterConfigsResource(
            resource_type=GROUP_CONFIGS, resource_name=group, configs=[change]
        )
        request = IncrementalAlterConfigsRequest(resources=[changed], validate_only=False)
        answer = wire.ask(request, 1)
    return ErrorCode(answer.responses[0].error_code)


def producer_of(wire: Speaker, transactional_id: str) -> tuple[int, int]:
    request = InitProducerIdRequest(
        transactional_id=transactional_id, transaction_timeout_ms=60_000
    )
    answer = wire.ask(request, 4)
    assert answer.error_code == NONE, transactional_id
    return answer.producer_id, answer.producer_epoch


def committed(wire: Speaker, group: str, topic: str) -> int:
    asked = OffsetFetchRequestTopics(name=topic, partition_indexes=[0])
    wanted = OffsetFetchRequestGroup(group_id=group, topics=[asked])
    (answer,) = wire.ask(OffsetFetchRequest(groups=[wanted]), 8).groups
    assert answer.error_code == NONE, group
    return answer.topics[0].partitions[0].committed_offset


def test_groups_and_producers_of_such_names_are_kept_as_others_are(
    coordinated: BrokerProcess,
) -> None:
    names = [*filter(None, HOSTILE_NAMES), *AS_OTHERS]
    with contextlib.closing(speak(coordinated.port)) as wire:
        topic, topic_id = create_topic(wire)
        around, within = outside(coordinated), inside(coordinated)
        producers = {}
        for number, name in enumerate(names):
            request = REQUESTS[ApiKey.OFFSET_COMMIT](Target(topic, topic_id, True), 8)
            put(request, "group_id", name)
            put(request, "topics.partitions.committed_offset", number)
            assert codes(wire.ask(request, 8)) == set(), name
            for at_once in (True, False):
                value = 45_000 + 2 * number + at_once
                assert set_for_group(wire, name, value, at_once=at_once) is NONE, name
                assert group_values(wire, name) == [str(value)], name
            producers[name] = producer_of(wire, name)
        assert set_for_group(wire, "", 45_000, at_once=True) is ErrorCode.INVALID_REQUEST
        assert len(set(producers.values())) == len(names)
        assert outside(coordinated) == around
        assert inside(coordinated) == within
    coordinated.stop()
    coordinated.start()
    with contextlib.closing(speak(coordinated.port)) as wire:
        await_both(wire)
        (group_ids,) = [
            {one.resource_name for one in wire.ask(request, 1).config_resources}
            for request in [ListConfigResourcesRequest(resource_types=[GROUP_CONFIGS])]
        ]
        assert group_ids == set(names)
        for number, name in enumerate(names):
            assert committed(wire, name, topic) == number, name
            assert group_values(wire, name) == [str(45_000 + 2 * number)], name
            producer_id, epoch = producers[name]
            assert producer_of(wire, name) == (producer_id, epoch + 1), name
        assert outside(coordinated) == around
    assert "Traceback" not in coordinated.log


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
