"""Consumer groups (KIP-848) of a broker that runs, request by request, over restarts."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from plog.coordinator.subscriptions import read_assignment
from plog.errors import ErrorCode
from plog.protocol.messages.configs import (
    AlterableConfig,
    AlterConfigsRequest,
    AlterConfigsResource,
)
from plog.protocol.messages.consumer_groups import ConsumerGroupDescribeRequest
from plog.protocol.messages.group_admin import (
    DeleteGroupsRequest,
    DescribeGroupsRequest,
    ListGroupsRequest,
)
from plog.protocol.messages.offsets import (
    OffsetDeleteRequest,
    OffsetDeleteRequestPartition,
    OffsetDeleteRequestTopic,
    OffsetFetchRequest,
    OffsetFetchRequestGroup,
)
from plog.protocol.messages.topics import CreatePartitionsRequest, CreatePartitionsTopic
from tests.coordinator.conftest import GROUPS_AT_ONCE, await_coordinator, await_groups
from tests.coordinator.members import ByHand, Consumer, subscription
from tests.handlers.wire import WAIT_MS, Speaker, create_topic, fresh_name, speak
from tests.servers import BrokerProcess
from tests.waiting import until

Enter = Callable[..., Consumer]
PARTITIONS = 4
GROUP = 32
"""What has configs."""


@pytest.fixture
def topic(wire: Speaker) -> str:
    name = fresh_name()
    create_topic(wire, name, partitions=PARTITIONS)
    return name


@pytest.fixture
def member(broker: BrokerProcess) -> Iterator[Enter]:
    made: list[Consumer] = []

    def make(group: str, *topics: str, **changes: Any) -> Consumer:
        made.append(Consumer(broker.port, group, topics, **changes))
        return made[-1]

    yield make
    for one in made:
        one.close()


def described(wire: Speaker, group: str, version: int = 1) -> Any:
    (found,) = wire.ask(
        ConsumerGroupDescribeRequest(group_ids=[group], include_authorized_operations=False),
        version,
    ).groups
    return found


# -- members ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("version", [0, 1])
def test_one_member_gets_everything(member: Enter, topic: str, version: int) -> None:
    alone = member(fresh_name(), topic)
    answer = alone.join(version)
    assert answer.error_code == ErrorCode.NONE, answer
    assert (answer.member_epoch, answer.heartbeat_interval_ms) == (1, 100)
    assert alone.numbers() == list(range(PARTITIONS))
    assert alone.tell(version).assignment is None
    again = alone.beat(version)
    assert (again.member_epoch, again.assignment) == (1, None)


def test_coordinator_names_the_members_of_version_0(member: Enter, topic: str) -> None:
    alone = member(fresh_name(), topic, member_id="")
    assert alone.join(0).error_code == ErrorCode.NONE
    assert alone.member_id
    other = member(fresh_name(), topic, member_id="")
    assert other.join(1).error_code == ErrorCode.INVALID_REQUEST


def test_names_may_be_as_long_as_a_request_can_tell(
    member: Enter, wire: Speaker, topic: str
) -> None:
    """No other is made of them: members bring their ids."""
    longest = "x" * 32767
    alone = member(fresh_name(), topic, instance=longest, member_id=longest)
    assert alone.join().error_code == ErrorCode.NONE
    (only,) = described(wire, alone.group).members
    assert (only.member_id, only.instance_id) == (longest, longest)
    assert alone.beat().error_code == ErrorCode.NONE


def test_partitions_go_from_one_to_the_other(member: Enter, topic: str) -> None:
    group = fresh_name()
    first, second = member(group, topic), member(group, topic)
    first.join()
    assert second.join().member_epoch == 2
    assert second.numbers() == []
    assert first.beat().member_epoch == 1
    assert len(first.numbers()) == PARTITIONS // 2
    assert second.beat().assignment is None
    assert first.tell().member_epoch == 2
    second.beat()
    assert sorted(first.numbers() + second.numbers()) == list(range(PARTITIONS))
    assert second.leave().member_epoch == -1
    first.beat()
    assert first.numbers() == list(range(PARTITIONS))


@pytest.mark.parametrize(
    ("changes", "error"),
    [
        ({"group_id": ""}, ErrorCode.INVALID_REQUEST),
        ({"instance_id": ""}, ErrorCode.INVALID_REQUEST),
        ({"rack_id": ""}, ErrorCode.INVALID_REQUEST),
        ({"member_epoch": -3}, ErrorCode.INVALID_REQUEST),
        ({"member_epoch": -2}, ErrorCode.INVALID_REQUEST),
        ({"rebalance_timeout_ms": -1}, ErrorCode.INVALID_REQUEST),
        ({"topic_partitions": None}, ErrorCode.INVALID_REQUEST),
        ({"subscribed_topic_names": None}, ErrorCode.INVALID_REQUEST),
        ({"subscribed_topic_regex": "("}, ErrorCode.INVALID_REGULAR_EXPRESSION),
        ({"subscribed_topic_regex": "a{0,1000}" * 3_000}, ErrorCode.INVALID_REGULAR_EXPRESSION),
        ({"server_assignor": "best"}, ErrorCode.UNSUPPORTED_ASSIGNOR),
        ({"member_epoch": 5}, ErrorCode.GROUP_ID_NOT_FOUND),
    ],
)
def test_who_joins_wrongly_is_refused_and_makes_no_group(
    member: Enter, wire: Speaker, topic: str, changes: dict[str, Any], error: ErrorCode
) -> None:
    alone = member(fresh_name(), topic)
    answer = alone.join(**changes)
    assert answer.error_code == error
    assert answer.error_message
    assert described(wire, alone.group).error_code == ErrorCode.GROUP_ID_NOT_FOUND
    assert alone.group not in {one.group_id for one in wire.ask(ListGroupsRequest(), 5).groups}


def test_member_that_wants_nothing_yet_is_one(member: Enter, topic: str) -> None:
    alone = member(fresh_name())
    assert alone.join().error_code == ErrorCode.NONE
    assert alone.numbers() == []
    alone.beat(subscribed_topic_names=[topic])
    assert alone.numbers() == list(range(PARTITIONS))


def test_members_that_want_what_matches(member: Enter, wire: Speaker) -> None:
    prefix = fresh_name()
    create_topic(wire, f"{prefix}-a")
    alone = member(fresh_name(), regex=f"{prefix}-.*")
    alone.join()
    until(lambda: (alone.beat(), len(alone.has) == 1)[1])
    described_regex = described(wire, alone.group).members[0].subscribed_topic_regex
    assert described_regex == f"{prefix}-.*"


def test_topics_that_grow_are_noticed(member: Enter, wire: Speaker, topic: str) -> None:
    alone = member(fresh_name(), topic)
    alone.join()
    grown = CreatePartitionsTopic(name=topic, count=PARTITIONS + 1, assignments=None)
    request = CreatePartitionsRequest(topics=[grown], timeout_ms=WAIT_MS, validate_only=False)
    assert wire.ask(request, 3).results[0].error_code == ErrorCode.NONE
    until(lambda: (alone.beat(), len(alone.numbers()) == PARTITIONS + 1)[1])
    assert alone.epoch == 2


# -- settings of groups --------------------------------------------------------------------------


def set_for(wire: Speaker, group: str, configs: dict[str, str]) -> None:
    """Have these settings be a group's, and no others."""
    resource = AlterConfigsResource(
        resource_type=GROUP,
        resource_name=group,
        configs=[AlterableConfig(name=key, value=value) for key, value in configs.items()],
    )
    request = AlterConfigsRequest(resources=[resource], validate_only=False)
    assert wire.ask(request, 2).responses[0].error_code == ErrorCode.NONE


def test_members_hear_of_their_group_s_interval_by_the_next_heartbeat(
    member: Enter, wire: Speaker, topic: str
) -> None:
    alone, other = member(fresh_name(), topic), member(fresh_name(), topic)
    for one in (alone, other):
        one.join()
    set_for(wire, alone.group, {"consumer.heartbeat.interval.ms": "200"})
    assert alone.beat().heartbeat_interval_ms == 200
    assert other.beat().heartbeat_interval_ms == 100
    set_for(wire, alone.group, {})
    assert alone.beat().heartbeat_interval_ms == 100


# -- offsets ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("version", [9, 10])
def test_only_the_members_epoch_commits_and_fetches(
    broker: BrokerProcess, member: Enter, topic: str, version: int
) -> None:
    alone = member(fresh_name(), topic)
    alone.join()
    with closing(ByHand(broker.port, alone.group, member_id=alone.member_id)) as hand:
        hand.generation = alone.epoch
        assert hand.commit(topic, 5, version) is ErrorCode.NONE
        assert hand.commit(topic, 6, 8) is ErrorCode.UNSUPPORTED_VERSION
        hand.generation += 1
        assert hand.commit(topic, 7, version) is ErrorCode.STALE_MEMBER_EPOCH
        hand.generation, hand.member_id = -1, ""
        assert hand.commit(topic, 8, version) is ErrorCode.UNKNOWN_MEMBER_ID
        assert hand.committed(topic) == 5

    def fetched(member_id: str | None, epoch: int) -> int:
        asked = OffsetFetchRequestGroup(
            group_id=alone.group, member_id=member_id, member_epoch=epoch, topics=None
        )
        (found,) = alone.wire.ask(OffsetFetchRequest(groups=[asked]), version).groups
        return int(found.error_code)

    assert fetched(alone.member_id, alone.epoch) == ErrorCode.NONE
    assert fetched(None, -1) == ErrorCode.NONE
    assert fetched(alone.member_id, alone.epoch + 1) == ErrorCode.STALE_MEMBER_EPOCH
    assert fetched("somebody", 1) == ErrorCode.UNKNOWN_MEMBER_ID


def test_offsets_of_topics_that_nobody_wants_may_be_deleted(
    broker: BrokerProcess, member: Enter, wire: Speaker, topic: str
) -> None:
    other = fresh_name()
    create_topic(wire, other)
    alone = member(fresh_name(), topic)
    alone.join()
    with closing(ByHand(broker.port, alone.group, member_id=alone.member_id)) as hand:
        hand.generation = alone.epoch
        for name in (topic, other):
            assert hand.commit(name, 5, 9) is ErrorCode.NONE
        answer = wire.ask(
            OffsetDeleteRequest(
                group_id=alone.group,
                topics=[
                    OffsetDeleteRequestTopic(
                        name=name, partitions=[OffsetDeleteRequestPartition(partition_index=0)]
                    )
                    for name in (topic, other)
                ],
            ),
            0,
        )
        codes = [one.partitions[0].error_code for one in answer.topics]
        assert codes == [ErrorCode.GROUP_SUBSCRIBED_TO_TOPIC, ErrorCode.NONE]
        assert (hand.committed(topic), hand.committed(other)) == (5, -1)


# -- administrators --------------------------------------------------------------------------------


def test_groups_are_listed_by_their_type(member: Enter, wire: Speaker, topic: str) -> None:
    alone = member(fresh_name(), topic)
    alone.join()

    def listed(**filters: list[str]) -> Any:
        groups = wire.ask(ListGroupsRequest(**filters), 5).groups
        return next((one for one in groups if one.group_id == alone.group), None)

    found = listed()
    assert (found.group_type, found.group_state, found.protocol_type) == (
        "consumer",
        "Stable",
        "consumer",
    )
    assert listed(types_filter=["Consumer"], states_filter=["stable"])
    assert not listed(types_filter=["classic"])
    assert not listed(states_filter=["Empty"])


@pytest.mark.parametrize("version", [0, 1])
def test_groups_are_described(member: Enter, wire: Speaker, topic: str, version: int) -> None:
    alone = member(fresh_name(), topic, instance="one")
    alone.join()
    found = described(wire, alone.group, version)
    assert (found.group_state, found.group_epoch, found.assignment_epoch) == ("Stable", 1, 1)
    assert found.assignor_name == "uniform"
    (only,) = found.members
    assert (only.member_id, only.instance_id, only.member_epoch) == (alone.member_id, "one", 1)
    assert (only.client_id, only.client_host) == ("test", "/127.0.0.1")
    assert only.subscribed_topic_names == [topic]
    assert only.subscribed_topic_regex == ""
    assert only.member_type == (1 if version >= 1 else -1)
    for assignment in (only.assignment, only.target_assignment):
        (has,) = assignment.topic_partitions
        assert (has.topic_name, has.partitions) == (topic, list(range(PARTITIONS)))
    # DescribeGroups knows classic groups alone.
    (other,) = wire.ask(DescribeGroupsRequest(groups=[alone.group]), 5).groups
    assert (other.error_code, other.group_state) == (ErrorCode.NONE, "Dead")
    (other,) = wire.ask(DescribeGroupsRequest(groups=[alone.group]), 6).groups
    assert (other.error_code, other.group_state) == (ErrorCode.GROUP_ID_NOT_FOUND, "Dead")
    assert other.error_message == f"group {alone.group!r} is not a classic group"


def test_groups_are_deleted_once_nobody_is_in_them(
    member: Enter, wire: Speaker, topic: str
) -> None:
    alone = member(fresh_name(), topic)
    alone.join()
    request = DeleteGroupsRequest(groups_names=[alone.group])
    assert wire.ask(request, 2).results[0].error_code == ErrorCode.NON_EMPTY_GROUP
    alone.leave()
    assert described(wire, alone.group).group_state == "Empty"
    assert wire.ask(request, 2).results[0].error_code == ErrorCode.NONE
    assert described(wire, alone.group).error_code == ErrorCode.GROUP_ID_NOT_FOUND


# -- classic groups --------------------------------------------------------------------------------


def test_a_group_changes_its_protocol_with_its_members(
    broker: BrokerProcess, member: Enter, wire: Speaker, topic: str
) -> None:
    group = fresh_name()
    classic = ByHand(broker.port, group, protocols={"range": subscription(topic)})
    assert classic.join().error_code == ErrorCode.NONE
    assert classic.sync({classic.member_id: b"\0\0\0\0\0\0\0\0\0\0"}).error_code == ErrorCode.NONE
    assert classic.beat() is ErrorCode.NONE
    # The first of the new protocol makes it a consumer group.
    new = member(group, topic)
    assert new.join().error_code == ErrorCode.NONE
    assert described(wire, group).error_code == ErrorCode.NONE
    assert {one.member_type for one in described(wire, group).members} == {0, 1}
    assert classic.beat() is ErrorCode.REBALANCE_IN_PROGRESS
    assert classic.join().error_code == ErrorCode.NONE
    assert classic.generation == 2
    assert classic.sync().assignment
    until(lambda: (new.beat(), len(new.numbers()) == PARTITIONS // 2)[1])
    assert classic.beat() is ErrorCode.NONE
    # The last one goes, and it is a classic group again.
    new.leave()
    (found,) = wire.ask(DescribeGroupsRequest(groups=[group]), 5).groups
    assert found.group_state == "PreparingRebalance"
    assert described(wire, group).error_code == ErrorCode.GROUP_ID_NOT_FOUND
    assert classic.beat() is ErrorCode.REBALANCE_IN_PROGRESS
    joined = classic.join()
    assert joined.leader == classic.member_id
    assert classic.sync({classic.member_id: b"all"}).assignment == b"all"
    classic.leave()
    classic.close()


NOTHING = b"\0\0" + bytes(4) + b"\xff" * 4
"""An assignment of no partitions."""


def classic_member(broker: BrokerProcess, group: str, topic: str) -> ByHand:
    return ByHand(broker.port, group, protocols={"range": subscription(topic)})


def classic_group(broker: BrokerProcess, group: str, topic: str, size: int) -> list[ByHand]:
    """Return the members of a stable group, the leader first."""
    members: list[ByHand] = []
    for _ in range(size):
        newcomer = classic_member(broker, group, topic)
        waiting = [newcomer.join_later()]
        if members:
            leader = members[0]
            until(lambda leader=leader: leader.beat() is ErrorCode.REBALANCE_IN_PROGRESS)
            waiting += [one.join_later() for one in members]
        assert all(one.get().error_code == ErrorCode.NONE for one in waiting)
        members.append(newcomer)
        shares = {one.member_id: NOTHING for one in members}
        assert all(one.sync(shares).error_code == ErrorCode.NONE for one in members)
    return members


def classic_state(wire: Speaker, group: str) -> str:
    """Return a classic group's state; Dead is one that is none."""
    (found,) = wire.ask(DescribeGroupsRequest(groups=[group]), 5).groups
    return str(found.group_state)


@pytest.mark.parametrize(
    ("policy", "may_upgrade", "may_downgrade"),
    [
        ("disabled", False, False),
        ("upgrade", True, False),
        ("downgrade", False, True),
        ("bidirectional", True, True),
    ],
)
def test_a_group_changes_its_protocol_if_the_policy_lets_it(
    tmp_path: Path, policy: str, may_upgrade: bool, may_downgrade: bool
) -> None:
    overrides = {**GROUPS_AT_ONCE, "group.consumer.migration.policy": policy}
    with (
        BrokerProcess(tmp_path, overrides=overrides) as broker,
        closing(speak(broker.port)) as wire,
    ):
        await_groups(broker, "up", "down")
        create_topic(wire, "t", partitions=PARTITIONS)
        # A classic group, and somebody of the consumer protocol.
        (old,) = classic_group(broker, "up", "t", 1)
        new = Consumer(broker.port, "up", ("t",))
        if may_upgrade:
            assert new.join().error_code == ErrorCode.NONE
            assert classic_state(wire, "up") == "Dead"
            assert {one.member_type for one in described(wire, "up").members} == {0, 1}
            assert old.beat() is ErrorCode.REBALANCE_IN_PROGRESS
            new.leave()
        else:
            assert new.join().error_code == ErrorCode.GROUP_ID_NOT_FOUND
            assert described(wire, "up").error_code == ErrorCode.GROUP_ID_NOT_FOUND
            assert classic_state(wire, "up") == "Stable"
            assert old.beat() is ErrorCode.NONE
            assert old.commit("t", 5) is ErrorCode.NONE
        # A consumer group takes in whom it understands; its last consumer goes.
        first, second = Consumer(broker.port, "down", ("t",)), classic_member(broker, "down", "t")
        assert first.join().error_code == ErrorCode.NONE
        assert second.join().error_code == ErrorCode.NONE
        assert first.leave().error_code == ErrorCode.NONE
        if may_downgrade:
            assert classic_state(wire, "down") == "PreparingRebalance"
            assert described(wire, "down").error_code == ErrorCode.GROUP_ID_NOT_FOUND
        else:
            assert classic_state(wire, "down") == "Dead"
            (only,) = described(wire, "down").members
            assert (only.member_id, only.member_type) == (second.member_id, 0)
        assert second.beat() is ErrorCode.REBALANCE_IN_PROGRESS
        assert second.join().leader == (second.member_id if may_downgrade else "")
        assert second.generation == 3
        # Nobody leads a consumer group: the coordinator assigns all of it.
        assigned = read_assignment(second.sync({second.member_id: NOTHING}).assignment)
        assert assigned is not None
        numbers = [number for one in assigned.assigned_partitions for number in one.partitions]
        assert numbers == ([] if may_downgrade else list(range(PARTITIONS)))
        assert second.beat() is ErrorCode.NONE
        # A group that nobody is in may be of either kind all the same.
        for last in (old, second):
            last.leave()
            with closing(Consumer(broker.port, last.group, ("t",))) as one:
                assert one.join().error_code == ErrorCode.NONE
                assert described(wire, last.group).error_code == ErrorCode.NONE
                one.leave()
            assert last.join().error_code == ErrorCode.UNKNOWN_MEMBER_ID
            last.member_id = ""
            assert last.join().error_code == ErrorCode.NONE
            assert classic_state(wire, last.group) == "CompletingRebalance"
        for each in (old, new, first, second):
            each.close()


def test_a_group_that_is_too_large_for_a_consumer_group_becomes_none(tmp_path: Path) -> None:
    overrides = {**GROUPS_AT_ONCE, "group.consumer.max.size": 2}
    with (
        BrokerProcess(tmp_path, overrides=overrides) as broker,
        closing(speak(broker.port)) as wire,
    ):
        await_groups(broker, "of1", "of2", "of3")
        create_topic(wire, "t", partitions=PARTITIONS)
        for size, error in (
            (1, ErrorCode.NONE),
            (2, ErrorCode.GROUP_MAX_SIZE_REACHED),  # it could be one, but for who asks
            (3, ErrorCode.GROUP_ID_NOT_FOUND),
        ):
            group = f"of{size}"
            members = classic_group(broker, group, "t", size)
            with closing(Consumer(broker.port, group, ("t",))) as new:
                assert new.join().error_code == error
            assert classic_state(wire, group) == ("Stable" if error else "Dead")
            found = described(wire, group)
            assert len(found.members) == (0 if error else 2)
            expected = ErrorCode.NONE if error else ErrorCode.REBALANCE_IN_PROGRESS
            assert [one.beat() for one in members] == [expected] * size
            for one in members:
                one.close()


def test_a_group_that_is_too_large_for_a_classic_one_stays_what_it_is(tmp_path: Path) -> None:
    overrides = {**GROUPS_AT_ONCE, "group.max.size": 1}
    with (
        BrokerProcess(tmp_path, overrides=overrides) as broker,
        closing(speak(broker.port)) as wire,
    ):
        await_groups(broker, "g")
        create_topic(wire, "t", partitions=PARTITIONS)
        with (
            closing(Consumer(broker.port, "g", ("t",))) as new,
            closing(classic_member(broker, "g", "t")) as first,
            closing(classic_member(broker, "g", "t")) as second,
        ):
            assert new.join().error_code == ErrorCode.NONE
            for one in (first, second):
                assert one.join().error_code == ErrorCode.NONE
            new.leave()
            assert [one.member_type for one in described(wire, "g").members] == [0, 0]
            assert classic_state(wire, "g") == "Dead"
            first.leave()  # and now it fits
            assert classic_state(wire, "g") == "PreparingRebalance"
            assert described(wire, "g").error_code == ErrorCode.GROUP_ID_NOT_FOUND


def test_a_group_whose_assignment_cannot_be_read_is_no_consumer_group(
    broker: BrokerProcess, member: Enter, topic: str
) -> None:
    """Its members may use any partition."""
    group = fresh_name()
    protocols = {"range": subscription(topic)}
    with closing(ByHand(broker.port, group, protocols=protocols)) as classic:
        assert classic.join().error_code == ErrorCode.NONE
        assert classic.sync({classic.member_id: b"all"}).error_code == ErrorCode.NONE
        assert member(group, topic).join().error_code == ErrorCode.GROUP_ID_NOT_FOUND
        assert classic.beat() is ErrorCode.NONE
        classic.leave()


def test_a_member_may_join_before_it_wants_any_topic(member: Enter, topic: str) -> None:
    alone = member(fresh_name())
    assert alone.join(subscribed_topic_regex=None).error_code == ErrorCode.NONE
    assert alone.numbers() == []
    alone.beat(subscribed_topic_names=[topic])
    assert alone.numbers() == list(range(PARTITIONS))


def test_a_group_that_does_not_tell_its_topics_is_no_consumer_group(
    broker: BrokerProcess, member: Enter, topic: str
) -> None:
    group = fresh_name()
    with closing(ByHand(broker.port, group)) as classic:
        classic.enter()
        assert member(group, topic).join().error_code == ErrorCode.GROUP_ID_NOT_FOUND
        assert classic.beat() is ErrorCode.NONE
        classic.leave()
    # Once nobody is in it, it may be of either kind.
    new = member(group, topic)
    assert new.join().error_code == ErrorCode.NONE
    new.leave()
    with closing(ByHand(broker.port, group)) as classic:
        classic.enter()
        assert classic.beat() is ErrorCode.NONE


# -- the log ---------------------------------------------------------------------------------------


def rebalances(broker: BrokerProcess, group: str) -> list[str]:
    """Return what the log tells of a group's rebalances: of each for which epoch, and why."""
    told = f"group {group!r} rebalances for "
    return [line.partition(told)[2] for line in broker.log.splitlines() if told in line]


def test_each_rebalance_is_told_in_one_line_with_its_reason(tmp_path: Path) -> None:
    overrides = {
        **GROUPS_AT_ONCE,
        "group.consumer.min.session.timeout.ms": 200,
        "group.consumer.max.session.timeout.ms": 600_000,
        "group.consumer.session.timeout.ms": 600_000,
    }
    with (
        BrokerProcess(tmp_path, overrides=overrides) as broker,
        closing(speak(broker.port)) as wire,
        closing(Consumer(broker.port, "g", ("t",))) as dies,
        closing(Consumer(broker.port, "g", ("t",))) as leaves,
        closing(classic_member(broker, "g", "t")) as older,
        closing(Consumer(broker.port, "g", ("t",), instance="one")) as static,
        closing(Consumer(broker.port, "g", ("t",), instance="one")) as returned,
    ):
        await_groups(broker, "g")
        create_topic(wire, "t", partitions=PARTITIONS)
        lines: list[str] = []

        def told(line: str) -> None:
            lines.append(line)
            assert rebalances(broker, "g") == lines

        dies.join()
        told(f"epoch 1: member {dies.member_id} joined")
        leaves.join()
        told(f"epoch 2: member {leaves.member_id} joined")
        for _ in range(2):  # partitions go from one to the other, for one reason
            dies.tell()
            leaves.tell()
        assert sorted(dies.numbers() + leaves.numbers()) == list(range(PARTITIONS))
        assert rebalances(broker, "g") == lines
        assert older.join().error_code == ErrorCode.NONE
        told(f"epoch 3: member {older.member_id} joined with the classic protocol")
        older.leave()
        told(f"epoch 4: members left: {older.member_id}")
        leaves.leave()
        told(f"epoch 5: member {leaves.member_id} left")
        set_for(wire, "g", {"consumer.session.timeout.ms": "200"})
        dies.beat()
        until(lambda: described(wire, "g").group_state == "Empty")
        told(f"epoch 6: member {dies.member_id} timed out after 200 ms")
        set_for(wire, "g", {})
        static.join()
        told(f"epoch 7: member {static.member_id} joined")
        # A static member that comes back as it was disturbs nobody.
        assert static.leave(-2).error_code == ErrorCode.NONE
        assert returned.join().error_code == ErrorCode.NONE
        assert returned.epoch == 7
        assert rebalances(broker, "g") == lines
        returned.beat(subscribed_topic_names=["t", "u"])
        told(f"epoch 8: member {returned.member_id} changed its subscription")
        create_topic(wire, "u")
        until(lambda: returned.beat().member_epoch == 9)
        told("epoch 9: topics have changed")


def test_what_clients_say_of_a_rebalance_stays_in_one_line(tmp_path: Path) -> None:
    with BrokerProcess(tmp_path, overrides=GROUPS_AT_ONCE) as broker:
        group, member_id = "g\nforged", "m\r\nforged\x1b[2J\u2028forged"
        await_groups(broker, group)
        with closing(Consumer(broker.port, group, member_id=member_id)) as alone:
            assert alone.join().error_code == ErrorCode.NONE
            assert alone.leave().error_code == ErrorCode.NONE
        name = r"m\r\nforged\x1b[2J\u2028forged"
        assert rebalances(broker, group) == [
            f"epoch 1: member {name} joined",
            f"epoch 2: member {name} left",
        ]
        assert not [line for line in broker.log.splitlines() if line.startswith("forged")]


# -- what survives ---------------------------------------------------------------------------------


def await_group(wire: Speaker) -> None:
    await_coordinator(wire, "g")
    until(lambda: wire.ask(ListGroupsRequest(), 5).error_code == ErrorCode.NONE)


@pytest.mark.parametrize("end", [BrokerProcess.kill, BrokerProcess.stop])
def test_a_group_goes_on_after_its_broker_ended(
    tmp_path: Path, end: Callable[[BrokerProcess], None]
) -> None:
    with BrokerProcess(tmp_path, overrides=GROUPS_AT_ONCE) as broker:
        with closing(speak(broker.port)) as wire:
            await_coordinator(wire, "g")
            create_topic(wire, "t", partitions=PARTITIONS)
        first, second = (Consumer(broker.port, "g", ("t",)) for _ in range(2))
        first.join()
        second.join()
        first.beat()
        with closing(speak(broker.port)) as wire:
            before = described(wire, "g")
        for one in (first, second):
            one.close()
        end(broker)
        broker.start()
        with closing(speak(broker.port)) as wire:
            await_group(wire)
            assert described(wire, "g") == before
        for one in (first, second):
            one.wire = speak(broker.port)
        assert first.tell().member_epoch == 2
        second.beat()
        assert sorted(first.numbers() + second.numbers()) == list(range(PARTITIONS))
        for one in (first, second):
            one.leave()
            one.close()


def test_a_group_is_what_it_has_become_after_its_broker_was_killed(tmp_path: Path) -> None:
    with BrokerProcess(tmp_path, overrides=GROUPS_AT_ONCE) as broker:
        with closing(speak(broker.port)) as wire:
            await_coordinator(wire, "g")
            create_topic(wire, "t", partitions=PARTITIONS)
        classic = ByHand(broker.port, "g", protocols={"range": subscription("t")})
        classic.join()
        classic.sync({classic.member_id: b"\0\0\0\0\0\0\0\0\0\0"})
        new = Consumer(broker.port, "g", ("t",))
        assert new.join().error_code == ErrorCode.NONE
        for one in (classic, new):
            one.close()
        broker.kill()
        broker.start()
        with closing(speak(broker.port)) as wire:
            await_group(wire)
            assert len(described(wire, "g").members) == 2
        new.wire = speak(broker.port)
        assert new.leave().error_code == ErrorCode.NONE
        new.close()
        broker.kill()
        broker.start()
        with closing(speak(broker.port)) as wire:
            await_group(wire)
            assert described(wire, "g").error_code == ErrorCode.GROUP_ID_NOT_FOUND
            (found,) = wire.ask(DescribeGroupsRequest(groups=["g"]), 5).groups
            assert found.group_state == "Stable"
            assert [one.member_id for one in found.members] == [classic.member_id]
        classic.wire = speak(broker.port)
        assert classic.join().error_code == ErrorCode.NONE
        classic.close()


def test_a_member_may_be_silent_for_as_long_as_its_group_says(tmp_path: Path) -> None:
    bounds = {"min.session.timeout.ms": 200, "session.timeout.ms": 600_000}
    settings = {f"group.consumer.{key}": value for key, value in bounds.items()}
    settings["group.consumer.max.session.timeout.ms"] = 600_000
    soon = {"consumer.session.timeout.ms": "200"}
    with BrokerProcess(tmp_path, overrides={**GROUPS_AT_ONCE, **settings}) as broker:
        with closing(speak(broker.port)) as wire:
            await_coordinator(wire, "g")
            create_topic(wire, "t", partitions=PARTITIONS)
            with closing(Consumer(broker.port, "g", ("t",))) as alone:
                alone.join()
                set_for(wire, "g", soon)
                assert described(wire, "g").group_state == "Stable"
        # A broker that reads the group anew counts by what is set, though nobody has come yet.
        broker.kill()
        broker.start()
        with (
            closing(speak(broker.port)) as wire,
            closing(Consumer(broker.port, "g", ("t",))) as one,
        ):
            await_group(wire)
            until(lambda: described(wire, "g").group_state == "Empty")
            set_for(wire, "g", {})
            one.join()
            set_for(wire, "g", soon)
            one.beat()
            until(lambda: described(wire, "g").group_state == "Empty")


def test_what_was_deleted_stays_deleted(tmp_path: Path) -> None:
    with BrokerProcess(tmp_path, overrides=GROUPS_AT_ONCE) as broker:
        with closing(speak(broker.port)) as wire:
            await_coordinator(wire, "g")
            create_topic(wire, "t")
            alone = Consumer(broker.port, "g", ("t",))
            alone.join()
            alone.leave()
            alone.close()
            wire.ask(DeleteGroupsRequest(groups_names=["g"]), 2)
        broker.kill()
        broker.start()
        with closing(speak(broker.port)) as wire:
            await_group(wire)
            assert wire.ask(ListGroupsRequest(), 5).groups == []


def test_without_the_consumer_protocol_nothing_of_it_is_served(tmp_path: Path) -> None:
    overrides = {**GROUPS_AT_ONCE, "group.coordinator.rebalance.protocols": "classic"}
    with (
        BrokerProcess(tmp_path, overrides=overrides) as broker,
        closing(speak(broker.port)) as wire,
    ):
        await_coordinator(wire, "g")
        with closing(Consumer(broker.port, "g", ("t",))) as alone:
            assert alone.join().error_code == ErrorCode.UNSUPPORTED_VERSION
        assert described(wire, "g").error_code == ErrorCode.UNSUPPORTED_VERSION
