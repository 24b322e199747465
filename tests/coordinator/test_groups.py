"""Groups of a broker that runs, request by request; killed and started in between."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path

import pytest

from plog.errors import ErrorCode
from plog.protocol.messages.group_admin import (
    DeleteGroupsRequest,
    DescribeGroupsRequest,
    ListGroupsRequest,
)
from plog.protocol.messages.groups import (
    FindCoordinatorRequest,
    JoinGroupRequest,
    JoinGroupRequestProtocol,
    LeaveGroupRequest,
    MemberIdentity,
    SyncGroupRequest,
)
from plog.protocol.messages.offsets import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
    OffsetDeleteRequest,
    OffsetDeleteRequestPartition,
    OffsetDeleteRequestTopic,
    OffsetDeleteResponse,
    OffsetFetchRequest,
    OffsetFetchRequestGroup,
    OffsetFetchRequestTopic,
    OffsetFetchRequestTopics,
)
from plog.protocol.messages.topics import DeleteTopicsRequest
from plog.types import ZERO_UUID
from tests.coordinator.conftest import GROUPS_AT_ONCE, await_coordinator, await_groups
from tests.coordinator.members import TOPIC_IDS_SINCE, ByHand, Later
from tests.handlers.wire import (
    UNKNOWN_TOPIC,
    WAIT_MS,
    Speaker,
    create_topic,
    fresh_name,
    id_of,
    speak,
)
from tests.servers import BrokerProcess
from tests.waiting import until

Enter = Callable[..., ByHand]


@pytest.fixture
def member(broker: BrokerProcess) -> Iterator[Enter]:
    made: list[ByHand] = []

    def make(group: str, **changes: object) -> ByHand:
        made.append(ByHand(broker.port, group, **changes))  # type: ignore[arg-type]
        return made[-1]

    yield make
    for one in made:
        one.close()


def state_of(wire: Speaker, group: str) -> str:
    (described,) = wire.ask(DescribeGroupsRequest(groups=[group]), 5).groups
    return str(described.group_state)


# -- members ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("version", range(10))
def test_one_member_forms_a_generation(member: Enter, version: int) -> None:
    alone = member(fresh_name())
    answer = alone.join(version)
    assert answer.error_code == ErrorCode.NONE
    assert (answer.generation_id, answer.protocol_name) == (1, "range")
    assert answer.leader == answer.member_id == alone.member_id
    assert [one.metadata for one in answer.members] == [b"m"]
    assert alone.member_id.startswith("test-")


@pytest.mark.parametrize("version", range(6))
def test_assignments_reach_their_members(member: Enter, version: int) -> None:
    group = fresh_name()
    leader, follower = member(group), member(group)
    leader.enter()
    second = follower.join_later()
    until(lambda: leader.beat() is ErrorCode.REBALANCE_IN_PROGRESS)
    members = {one.member_id for one in leader.join().members}
    assert second.get().members == []
    assert members == {leader.member_id, follower.member_id}
    shares = {one: one.encode() for one in members}
    assert leader.sync(shares, version).assignment == leader.member_id.encode()
    assert follower.sync(version=version).assignment == follower.member_id.encode()


def test_a_member_that_is_killed_is_missed_after_its_session(member: Enter) -> None:
    group = fresh_name()
    stays, dies = member(group), member(group, session_ms=300)
    stays.enter()
    second = dies.join_later()
    until(lambda: stays.beat() is ErrorCode.REBALANCE_IN_PROGRESS)
    stays.join()
    second.get()
    stays.sync({})
    dies.close()
    until(lambda: stays.beat() is ErrorCode.REBALANCE_IN_PROGRESS)
    assert len(stays.join().members) == 1


@pytest.mark.parametrize("version", range(6))
def test_a_member_leaves(member: Enter, wire: Speaker, version: int) -> None:
    alone = member(fresh_name())
    alone.enter()
    answer = alone.leave(version)
    assert answer.error_code == ErrorCode.NONE
    assert [one.error_code for one in answer.members] == ([0] if version >= 3 else [])
    assert state_of(wire, alone.group) == "Empty"
    assert alone.beat() is ErrorCode.UNKNOWN_MEMBER_ID


def test_a_client_that_goes_while_it_waits_keeps_nobody(member: Enter, wire: Speaker) -> None:
    group = fresh_name()
    stays, goes = member(group), member(group, session_ms=300)
    stays.enter()
    second = goes.join_later()
    until(lambda: stays.beat() is ErrorCode.REBALANCE_IN_PROGRESS)
    goes.wire.close()
    assert stays.join().error_code == ErrorCode.NONE
    assert stays.sync({}).error_code == ErrorCode.NONE
    until(lambda: stays.beat() is ErrorCode.REBALANCE_IN_PROGRESS)
    assert len(stays.join().members) == 1
    del second


@pytest.mark.parametrize("timeout_ms", [99, 1_800_001, 0, -1])
def test_session_timeouts_have_bounds(member: Enter, timeout_ms: int) -> None:
    assert member(fresh_name(), session_ms=timeout_ms).join().error_code == (
        ErrorCode.INVALID_SESSION_TIMEOUT
    )


@pytest.mark.parametrize("lacks", ["protocol_type", "protocol_name"])
def test_a_member_names_what_it_syncs_with(member: Enter, wire: Speaker, lacks: str) -> None:
    alone = member(fresh_name())
    alone.join()
    request = SyncGroupRequest(
        group_id=alone.group,
        generation_id=alone.generation,
        member_id=alone.member_id,
        protocol_type="consumer",
        protocol_name="range",
        assignments=[],
    )
    setattr(request, lacks, None)
    assert wire.ask(request, 5).error_code == ErrorCode.INCONSISTENT_GROUP_PROTOCOL
    assert wire.ask(request, 4).error_code == ErrorCode.NONE


def test_a_group_that_is_looked_for_twice_is_answered_twice(wire: Speaker) -> None:
    request = FindCoordinatorRequest(coordinator_keys=["g", "h", "g"])
    found = wire.ask(request, 4).coordinators
    assert [(one.key, one.error_code) for one in found] == [("g", 0), ("h", 0), ("g", 0)]


def test_an_assignor_that_is_named_twice_counts_once(wire: Speaker) -> None:
    # Kafka 3.9 leaves such a member without an answer.
    request = JoinGroupRequest(
        group_id=fresh_name(),
        session_timeout_ms=30_000,
        rebalance_timeout_ms=30_000,
        member_id="",
        protocol_type="consumer",
        protocols=[JoinGroupRequestProtocol(name="range", metadata=b"m")] * 2,
    )
    answer = wire.ask(request, 3)
    assert (answer.error_code, answer.protocol_name) == (ErrorCode.NONE, "range")


LONGEST_PREFIX = "i" * (32767 - 37)
"""What stands before the UUID in a member's id, where that is as long as an answer can hold."""


@pytest.mark.parametrize("version", [5, 9])
def test_instance_that_leaves_no_room_in_its_members_id_is_refused(
    member: Enter, wire: Speaker, version: int
) -> None:
    group = fresh_name()
    longest = member(group, instance=LONGEST_PREFIX)
    longest.enter()
    too_long = member(group, instance=LONGEST_PREFIX + "i")
    assert too_long.join(version).error_code == ErrorCode.INVALID_REQUEST
    # Nobody but who was let in is in the group, and it goes on.
    (described,) = wire.ask(DescribeGroupsRequest(groups=[group]), 5).groups
    assert [one.group_instance_id for one in described.members] == [LONGEST_PREFIX]
    assert longest.beat() is ErrorCode.NONE
    assert longest.join(version).error_code == ErrorCode.NONE


@pytest.mark.parametrize("version", [0, 3, 4, 9])
@pytest.mark.parametrize("length", [len(LONGEST_PREFIX), len(LONGEST_PREFIX) + 1])
def test_client_that_leaves_no_room_in_its_members_id_is_refused(
    broker: BrokerProcess, version: int, length: int
) -> None:
    request = JoinGroupRequest(
        group_id=fresh_name(),
        session_timeout_ms=30_000,
        rebalance_timeout_ms=30_000,
        member_id="",
        protocol_type="consumer",
        protocols=[JoinGroupRequestProtocol(name="range", metadata=b"m")],
    )
    with closing(speak(broker.port, client_id="c" * length)) as wire:
        error = wire.ask(request, version).error_code
    if length > len(LONGEST_PREFIX):
        assert error == ErrorCode.INVALID_REQUEST
    else:
        assert error in (ErrorCode.NONE, ErrorCode.MEMBER_ID_REQUIRED)


def test_nobodys_groups(member: Enter) -> None:
    stranger = member(fresh_name(), member_id="x")
    assert stranger.join().error_code == ErrorCode.UNKNOWN_MEMBER_ID
    assert stranger.sync().error_code == ErrorCode.UNKNOWN_MEMBER_ID
    assert stranger.beat() is ErrorCode.UNKNOWN_MEMBER_ID
    assert stranger.leave().members[0].error_code == ErrorCode.UNKNOWN_MEMBER_ID
    unnamed = member("")
    assert unnamed.join().error_code == ErrorCode.INVALID_GROUP_ID
    assert unnamed.sync().error_code == ErrorCode.INVALID_GROUP_ID
    assert unnamed.beat() is ErrorCode.INVALID_GROUP_ID
    assert unnamed.leave().error_code == ErrorCode.INVALID_GROUP_ID


# -- offsets ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("version", range(11))
def test_offsets_are_committed_without_a_group(member: Enter, topic: str, version: int) -> None:
    tool = member(fresh_name())
    assert tool.commit(topic, 17, version) is ErrorCode.NONE
    assert tool.committed(topic) == 17


def test_a_member_commits_and_others_do_not(member: Enter, topic: str) -> None:
    group = fresh_name()
    inside, outside = member(group), member(group)
    inside.enter()
    assert inside.commit(topic, 5) is ErrorCode.NONE
    assert outside.commit(topic, 6) is ErrorCode.UNKNOWN_MEMBER_ID
    inside.generation += 1
    assert inside.commit(topic, 7) is ErrorCode.ILLEGAL_GENERATION
    assert outside.committed(topic) == 5


def test_what_is_not_committed_is_no_error(member: Enter, topic: str) -> None:
    nobody = member(fresh_name())
    (group,) = nobody.fetch([(topic, [0, 7]), ("nowhere", [0])])
    assert group.error_code == ErrorCode.NONE
    assert [
        (part.error_code, part.committed_offset, part.committed_leader_epoch, part.metadata)
        for found in group.topics
        for part in found.partitions
    ] == [(0, -1, -1, "")] * 3
    assert nobody.fetch(None)[0].topics == []


@pytest.mark.parametrize("version", range(8))
def test_older_clients_ask_for_one_group(
    member: Enter, wire: Speaker, topic: str, version: int
) -> None:
    tool = member(fresh_name())
    tool.commit(topic, 17)
    request = OffsetFetchRequest(
        group_id=tool.group,
        topics=[OffsetFetchRequestTopic(name=topic, partition_indexes=[0])],
    )
    answer = wire.ask(request, version)
    (found,) = answer.topics
    assert (found.name, found.partitions[0].committed_offset) == (topic, 17)
    assert found.partitions[0].metadata == "m"
    assert found.partitions[0].committed_leader_epoch == (3 if version >= 5 else -1)
    if version >= 2:
        every = wire.ask(OffsetFetchRequest(group_id=tool.group, topics=None), version)
        assert every.topics == answer.topics


@pytest.mark.parametrize("version", [8, 9, 10])
def test_newer_clients_ask_for_many_groups(
    member: Enter, wire: Speaker, topic: str, version: int
) -> None:
    some, others = member(fresh_name()), member(fresh_name())
    some.commit(topic, 17)
    name = topic if version < TOPIC_IDS_SINCE else ""
    topic_id = id_of(wire, topic) if version >= TOPIC_IDS_SINCE else ZERO_UUID
    asked = OffsetFetchRequestTopics(name=name, topic_id=topic_id, partition_indexes=[0, 9])
    request = OffsetFetchRequest(
        groups=[
            OffsetFetchRequestGroup(group_id=one.group, topics=[asked]) for one in (some, others)
        ]
    )
    found, empty = wire.ask(request, version).groups
    for group, offset in ((found, 17), (empty, -1)):
        (answer,) = group.topics
        assert (group.error_code, answer.name, answer.topic_id) == (0, name, topic_id)
        assert [one.committed_offset for one in answer.partitions] == [offset, -1]
        assert {one.error_code for one in answer.partitions} == {ErrorCode.NONE}
    (every,) = some.fetch(None, version)
    (answer,) = every.topics
    assert (answer.name, answer.topic_id) == (name, topic_id)
    assert [one.committed_offset for one in answer.partitions] == [17]


def test_topic_of_an_unknown_id_leaves_the_others_alone(
    member: Enter, wire: Speaker, topic: str
) -> None:
    tool = member(fresh_name())
    part = OffsetCommitRequestPartition(
        partition_index=0, committed_offset=3, committed_metadata=""
    )
    ids = [UNKNOWN_TOPIC, id_of(wire, topic), ZERO_UUID]
    commit = OffsetCommitRequest(
        group_id=tool.group,
        topics=[OffsetCommitRequestTopic(topic_id=one, partitions=[part]) for one in ids],
    )
    committed = wire.ask(commit, 10).topics
    errors = dict.fromkeys(ids, ErrorCode.UNKNOWN_TOPIC_ID) | {ids[1]: ErrorCode.NONE}
    assert {one.topic_id: one.partitions[0].error_code for one in committed} == errors
    fetch = OffsetFetchRequest(
        groups=[
            OffsetFetchRequestGroup(
                group_id=tool.group,
                topics=[
                    OffsetFetchRequestTopics(topic_id=one, partition_indexes=[0]) for one in ids
                ],
            )
        ]
    )
    (group,) = wire.ask(fetch, 10).groups
    assert group.error_code == ErrorCode.NONE
    fetched = {one.topic_id: one.partitions[0] for one in group.topics}
    assert {one: found.error_code for one, found in fetched.items()} == errors
    offsets = dict.fromkeys(ids, -1) | {ids[1]: 3}
    assert {one: found.committed_offset for one, found in fetched.items()} == offsets


@pytest.mark.parametrize("retention_ms", [2**63 - 1, 2**63 - 2**40])
def test_offset_that_is_kept_for_ever_is_committed(
    member: Enter, wire: Speaker, topic: str, retention_ms: int
) -> None:
    """The time of its expiry is none that 64 bits hold."""
    tool = member(fresh_name())
    part = OffsetCommitRequestPartition(
        partition_index=0, committed_offset=3, committed_metadata=""
    )
    commit = OffsetCommitRequest(
        group_id=tool.group,
        retention_time_ms=retention_ms,
        topics=[OffsetCommitRequestTopic(name=topic, partitions=[part])],
    )
    assert wire.ask(commit, 4).topics[0].partitions[0].error_code == ErrorCode.NONE
    assert tool.committed(topic) == 3


def test_one_partitions_error_leaves_the_others_alone(member: Enter, topic: str) -> None:
    tool = member(fresh_name())
    assert tool.commit("nowhere", 1) is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    request_error = tool.commit(topic, 3)
    assert request_error is ErrorCode.NONE
    assert tool.committed(topic) == 3


def test_nothing_to_commit_makes_no_group(member: Enter, wire: Speaker) -> None:
    tool = member(fresh_name())
    assert tool.commit("nowhere", 1) is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    assert tool.commit("nowhere", 1, generation_id_or_member_epoch=3) is (
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    )
    assert state_of(wire, tool.group) == "Dead"


@pytest.mark.parametrize(
    ("metadata", "error"),
    [
        ("ä" * 4096, ErrorCode.NONE),
        ("ä" * 4097, ErrorCode.OFFSET_METADATA_TOO_LARGE),
        ("\N{MUSICAL SYMBOL G CLEF}" * 2048, ErrorCode.NONE),
        ("\N{MUSICAL SYMBOL G CLEF}" * 2049, ErrorCode.OFFSET_METADATA_TOO_LARGE),
    ],
)
def test_metadata_is_as_long_as_java_says(
    member: Enter, topic: str, metadata: str, error: ErrorCode
) -> None:
    part = OffsetCommitRequestPartition(
        partition_index=0, committed_offset=1, committed_metadata=metadata
    )
    topics = [OffsetCommitRequestTopic(name=topic, partitions=[part])]
    assert member(fresh_name()).commit(topic, 1, topics=topics) is error


def test_offsets_of_a_deleted_topic_are_forgotten(member: Enter, wire: Speaker, topic: str) -> None:
    tool = member(fresh_name())
    tool.commit(topic, 17)
    wire.ask(DeleteTopicsRequest(topic_names=[topic], timeout_ms=WAIT_MS), 5)
    # Kafka, too, leaves out a topic that no longer has an id.
    until(lambda: id_of(wire, topic) == UNKNOWN_TOPIC)
    assert tool.fetch(None, 10)[0].topics == []
    until(lambda: tool.committed(topic) == -1)
    create_topic(wire, topic)
    assert tool.committed(topic) == -1


def test_offsets_are_deleted(member: Enter, wire: Speaker, topic: str) -> None:
    tool = member(fresh_name())
    tool.commit(topic, 17)
    answer = deletion(wire, tool.group, topic)
    assert (answer.error_code, answer.topics[0].partitions[0].error_code) == (0, 0)
    assert tool.committed(topic) == -1
    assert deletion(wire, fresh_name(), topic).error_code == ErrorCode.GROUP_ID_NOT_FOUND


def deletion(wire: Speaker, group: str, *topics: str) -> OffsetDeleteResponse:
    """Delete the offsets of topics' first partitions."""
    request = OffsetDeleteRequest(
        group_id=group,
        topics=[
            OffsetDeleteRequestTopic(
                name=name, partitions=[OffsetDeleteRequestPartition(partition_index=0)]
            )
            for name in topics
        ],
    )
    answer = wire.ask(request, 0)
    assert isinstance(answer, OffsetDeleteResponse)
    return answer


def test_a_group_without_members_goes_with_its_last_offset(
    member: Enter, wire: Speaker, topic: str
) -> None:
    tool = member(fresh_name())
    tool.commit(topic, 17)
    deletion(wire, tool.group, topic)
    assert state_of(wire, tool.group) == "Dead"


def test_no_offset_goes_of_members_that_cannot_be_understood(
    member: Enter, wire: Speaker, topic: str
) -> None:
    alone = member(fresh_name())
    alone.enter()
    alone.commit(topic, 17)
    answer = deletion(wire, alone.group, topic, "nowhere")
    assert answer.error_code == ErrorCode.NONE
    assert [one.partitions[0].error_code for one in answer.topics] == [
        ErrorCode.GROUP_SUBSCRIBED_TO_TOPIC,
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
    ]
    assert alone.committed(topic) == 17


def test_offsets_of_nobodys_group_are_not_deleted(wire: Speaker, topic: str) -> None:
    assert deletion(wire, "", topic).error_code == ErrorCode.INVALID_GROUP_ID


def test_offsets_of_no_groups(wire: Speaker) -> None:
    # Kafka 3.9 leaves this without an answer.
    assert wire.ask(OffsetFetchRequest(groups=[]), 8).groups == []


# -- administrators --------------------------------------------------------------------------------


@pytest.mark.parametrize("version", range(6))
def test_groups_are_listed(member: Enter, wire: Speaker, version: int) -> None:
    alone = member(fresh_name())
    alone.enter()
    listed = {one.group_id: one for one in wire.ask(ListGroupsRequest(), version).groups}
    found = listed[alone.group]
    assert found.protocol_type == "consumer"
    assert found.group_state == ("Stable" if version >= 4 else "")
    assert found.group_type == ("classic" if version >= 5 else "")


def test_groups_are_listed_by_state_and_type(member: Enter, wire: Speaker) -> None:
    alone = member(fresh_name())
    alone.enter()

    def listed(**filters: list[str]) -> bool:
        groups = wire.ask(ListGroupsRequest(**filters), 5).groups
        return alone.group in {one.group_id for one in groups}

    assert listed(states_filter=["stable"])
    assert not listed(states_filter=["Empty"])
    assert listed(types_filter=["Classic"])
    assert not listed(types_filter=["consumer"])


@pytest.mark.parametrize("version", range(7))
def test_groups_are_described(member: Enter, wire: Speaker, version: int) -> None:
    alone = member(fresh_name(), instance="one")
    alone.enter()
    request = DescribeGroupsRequest(groups=[alone.group, "nobody's"])
    found, unknown = wire.ask(request, version).groups
    assert (found.group_state, found.protocol_type, found.protocol_data) == (
        "Stable",
        "consumer",
        "range",
    )
    (described,) = found.members
    assert (described.member_id, described.client_id) == (alone.member_id, "test")
    assert described.client_host == "/127.0.0.1"
    assert (described.member_metadata, described.member_assignment) == (b"m", b"all")
    assert described.group_instance_id == ("one" if version >= 4 else None)
    assert unknown.group_state == "Dead"
    assert (found.error_code, found.error_message) == (ErrorCode.NONE, None)
    assert (unknown.error_code, unknown.error_message) == (
        (ErrorCode.GROUP_ID_NOT_FOUND, f"group {unknown.group_id!r} does not exist")
        if version >= 6
        else (ErrorCode.NONE, None)
    )


@pytest.mark.parametrize("version", range(4))
def test_groups_are_deleted_once_nobody_is_in_them(
    member: Enter, wire: Speaker, topic: str, version: int
) -> None:
    alone = member(fresh_name())
    alone.enter()
    alone.commit(topic, 5)
    request = DeleteGroupsRequest(groups_names=[alone.group, "nobody's"])
    results = wire.ask(request, version).results
    codes = [one.error_code for one in results]
    assert codes == [ErrorCode.NON_EMPTY_GROUP, ErrorCode.GROUP_ID_NOT_FOUND]
    reasons = [
        f"group {alone.group!r} has members",
        f"group {request.groups_names[1]!r} does not exist",
    ]
    assert [one.error_message for one in results] == (reasons if version >= 3 else [None, None])
    alone.leave()
    results = wire.ask(request, version).results
    codes = [one.error_code for one in results]
    assert codes == [ErrorCode.NONE, ErrorCode.GROUP_ID_NOT_FOUND]
    assert results[0].error_message is None
    assert alone.committed(topic) == -1
    assert state_of(wire, alone.group) == "Dead"


# -- the log ---------------------------------------------------------------------------------------


def rebalances(broker: BrokerProcess, group: str) -> list[str]:
    """Return what the log tells of a group's rebalances: of each from where, and why."""
    told = f"group {group!r} rebalances "
    return [line.partition(told)[2] for line in broker.log.splitlines() if told in line]


def test_each_rebalance_is_told_in_one_line_with_its_reason(tmp_path: Path) -> None:
    with (
        BrokerProcess(tmp_path, overrides=GROUPS_AT_ONCE) as broker,
        closing(ByHand(broker.port, "g")) as stays,
        closing(ByHand(broker.port, "g")) as leaves,
        closing(ByHand(broker.port, "g", session_ms=300)) as dies,
        closing(ByHand(broker.port, "g", "one", {"range": b"m", "other": b"m"})) as static,
        closing(ByHand(broker.port, "g", "one", {"range": b"m", "other": b"m"})) as returned,
        closing(ByHand(broker.port, "g", "one", {"other": b"m", "range": b"m"})) as changed,
    ):
        await_groups(broker, "g")
        lines: list[str] = []

        def told(line: str) -> None:
            lines.append(line)
            assert rebalances(broker, "g") == lines

        def join_again(*newcomers: ByHand) -> None:
            # Without an id of their own first, for which a session would be the time they have.
            waiting = [Later(lambda one=one: one.join(3)) for one in newcomers]
            until(lambda: stays.beat() is ErrorCode.REBALANCE_IN_PROGRESS)
            assert stays.join().error_code == ErrorCode.NONE
            assert all(one.get().error_code == ErrorCode.NONE for one in waiting)
            stays.sync({})  # which fails if one of them is silent by now

        stays.enter()
        told(f"at generation 0: member {stays.member_id} joined")
        join_again(leaves)  # of the two that join, one is why
        told(f"at generation 1: member {leaves.member_id} joined")
        leaves.leave()
        join_again()
        told(f"at generation 2: member {leaves.member_id} left")
        join_again(dies)
        lines.append(f"at generation 3: member {dies.member_id} joined")
        join_again()
        told(f"at generation 4: member {dies.member_id} timed out after 300 ms")
        waiting = static.join_later()
        join_again()
        assert waiting.get().error_code == ErrorCode.NONE
        told(f"at generation 5: member {static.member_id} joined")
        # A static member that comes back as it was disturbs nobody.
        assert returned.join().error_code == ErrorCode.NONE
        assert returned.member_id != static.member_id
        assert stays.beat() is ErrorCode.NONE
        assert rebalances(broker, "g") == lines
        stays.leave()
        assert returned.join().error_code == ErrorCode.NONE
        told(f"at generation 6: member {stays.member_id} left")
        assert returned.sync({}).error_code == ErrorCode.NONE
        # One that comes back and prefers another assignor does.
        assert changed.join().error_code == ErrorCode.NONE
        told(f"at generation 7: static member one rejoined as {changed.member_id}")


def test_what_clients_say_of_a_rebalance_stays_in_one_line(tmp_path: Path) -> None:
    with BrokerProcess(tmp_path, overrides=GROUPS_AT_ONCE) as broker:
        group, reason = "g\nforged", "tired\r\nforged\x1b[2J\u2028forged"
        await_groups(broker, group)
        with closing(speak(broker.port, client_id="c\nforged")) as wire:
            joining = JoinGroupRequest(
                group_id=group,
                session_timeout_ms=30_000,
                rebalance_timeout_ms=30_000,
                member_id="",
                protocol_type="consumer",
                protocols=[JoinGroupRequestProtocol(name="range", metadata=b"m")],
                reason=reason,
            )
            joining.member_id = member_id = wire.ask(joining, 9).member_id
            assert wire.ask(joining, 9).error_code == ErrorCode.NONE
            leaving = MemberIdentity(member_id=member_id, reason=reason)
            answer = wire.ask(LeaveGroupRequest(group_id=group, members=[leaving]), 5)
            assert answer.members[0].error_code == ErrorCode.NONE
        assert member_id.startswith("c\nforged-")
        name = member_id.replace("\n", r"\n")
        why = r"(tired\r\nforged\x1b[2J\u2028forged)"
        assert rebalances(broker, group) == [
            f"at generation 0: member {name} joined {why}",
            f"at generation 1: member {name} left {why}",
        ]
        assert not [line for line in broker.log.splitlines() if line.startswith("forged")]


# -- settings --------------------------------------------------------------------------------------


def test_first_members_of_a_group_are_waited_for_as_the_broker_says(tmp_path: Path) -> None:
    """For three seconds by default, as in Kafka: who joins meanwhile is in the first generation."""
    overrides = dict(GROUPS_AT_ONCE)
    del overrides["group.initial.rebalance.delay.ms"]
    with BrokerProcess(tmp_path, overrides=overrides) as broker:
        with closing(speak(broker.port)) as wire:
            await_coordinator(wire, "g")
        with closing(ByHand(broker.port, "g")) as one, closing(ByHand(broker.port, "g")) as other:
            joins = [one.join_later(), other.join_later()]
            answers = [join.get() for join in joins]
    assert [answer.generation_id for answer in answers] == [1, 1]
    assert sorted(len(answer.members) for answer in answers) == [0, 2]


# -- what survives ---------------------------------------------------------------------------------


@pytest.mark.parametrize("end", [BrokerProcess.kill, BrokerProcess.stop])
def test_a_group_goes_on_after_its_broker_ended(
    tmp_path: Path, end: Callable[[BrokerProcess], None]
) -> None:
    with BrokerProcess(tmp_path, overrides=GROUPS_AT_ONCE) as broker:
        with closing(speak(broker.port)) as wire:
            await_coordinator(wire, "g")
            create_topic(wire, "t")
        alone = ByHand(broker.port, "g")
        alone.enter()
        for offset in range(20):
            assert alone.commit("t", offset) is ErrorCode.NONE
        alone.close()
        end(broker)
        broker.start()
        with closing(speak(broker.port)) as wire:
            await_coordinator(wire, "g")
        back = ByHand(broker.port, "g", member_id=alone.member_id, generation=alone.generation)
        until(lambda: back.beat() is ErrorCode.NONE)
        assert back.sync().assignment == b"all"
        assert back.committed("t") == 19
        assert back.commit("t", 20) is ErrorCode.NONE
        back.close()


def test_a_group_larger_than_it_may_be_by_now_rebalances_and_becomes_smaller(
    tmp_path: Path,
) -> None:
    with BrokerProcess(tmp_path, overrides=GROUPS_AT_ONCE) as broker:
        with closing(speak(broker.port)) as wire:
            await_coordinator(wire, "g")
        some = [ByHand(broker.port, "g")]
        some[0].enter()
        for _ in range(2):
            newcomer = ByHand(broker.port, "g")
            waiting = [newcomer.join_later()]
            until(lambda: some[0].beat() is ErrorCode.REBALANCE_IN_PROGRESS)
            waiting += [one.join_later() for one in some]
            assert all(one.get().error_code == ErrorCode.NONE for one in waiting)
            some.append(newcomer)
            synced = [
                Later(lambda one=one: one.sync({each.member_id: b"x" for each in some}))
                for one in some
            ]
            assert all(one.get().error_code == ErrorCode.NONE for one in synced)
        for one in some:
            one.close()
        broker.stop()
        broker.overrides["group.max.size"] = 2
        broker.start()
        with closing(speak(broker.port)) as wire:
            await_coordinator(wire, "g")
        back = [
            ByHand(broker.port, "g", member_id=one.member_id, generation=one.generation)
            for one in some
        ]
        assert [one.beat() for one in back] == [ErrorCode.REBALANCE_IN_PROGRESS] * 3
        # They may commit before they join again.
        assert back[2].commit("t", 5) in (ErrorCode.NONE, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
        answers = [one.join_later() for one in back]
        errors = sorted(one.get().error_code for one in answers)
        assert errors == [ErrorCode.NONE, ErrorCode.NONE, ErrorCode.GROUP_MAX_SIZE_REACHED]
        assert "rebalances at generation 3: it has 3 members, group.max.size is 2" in broker.log
        for one in back:
            one.close()


def test_what_was_deleted_stays_deleted(tmp_path: Path) -> None:
    with BrokerProcess(tmp_path, overrides=GROUPS_AT_ONCE) as broker:
        with closing(speak(broker.port)) as wire:
            await_coordinator(wire, "g")
            create_topic(wire, "t")
            tool = ByHand(broker.port, "g")
            tool.commit("t", 5)
            wire.ask(DeleteGroupsRequest(groups_names=["g"]), 2)
            tool.close()
        broker.kill()
        broker.start()
        with closing(speak(broker.port)) as wire:
            await_coordinator(wire, "g")
            until(lambda: wire.ask(ListGroupsRequest(), 5).error_code == ErrorCode.NONE)
            assert wire.ask(ListGroupsRequest(), 5).groups == []


def test_offsets_expire_while_the_broker_runs_and_their_group_with_the_last(tmp_path: Path) -> None:
    overrides = {**GROUPS_AT_ONCE, "offsets.retention.check.interval.ms": 100}
    with BrokerProcess(tmp_path, overrides=overrides) as broker:
        with closing(speak(broker.port)) as wire:
            await_coordinator(wire, "g")
            create_topic(wire, "soon")
            create_topic(wire, "later")
            some, all_of_it = ByHand(broker.port, "some"), ByHand(broker.port, "all")
            assert some.commit("later", 7) is ErrorCode.NONE
            for group in (some, all_of_it):  # up to version 4 a client says for how long
                kept = group.commit("soon", 5, version=4, retention_time_ms=2_000)
                assert kept is ErrorCode.NONE
            assert (some.committed("soon"), all_of_it.committed("soon")) == (5, 5)
            until(lambda: some.committed("soon") == all_of_it.committed("soon") == -1, "expired")
            assert some.committed("later") == 7
            until(lambda: state_of(wire, "all") == "Dead", "gone with its last offset")
            assert [one.group_id for one in wire.ask(ListGroupsRequest(), 4).groups] == ["some"]
            some.close()
            all_of_it.close()
        broker.kill()
        broker.start()
        with closing(speak(broker.port)) as wire:
            await_coordinator(wire, "some")
            again = ByHand(broker.port, "some")
            assert (again.committed("soon"), again.committed("later")) == (-1, 7)
            assert [one.group_id for one in wire.ask(ListGroupsRequest(), 4).groups] == ["some"]
            again.close()
