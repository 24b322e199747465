"""All groups of a cluster at once: what they cost, and faults that hide no other group."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from plog.client import fetcher
from plog.client.admin import Admin
from plog.client.connection import Connection
from plog.client.group_admin import GroupAdmin
from plog.client.group_lag import Budget, measure_groups
from plog.client.group_survey import OFFSETS_TOPIC
from plog.client.metadata import Cluster
from plog.client.producer import Producer
from plog.errors import ErrorCode, KafkaError
from plog.protocol.api_keys import ApiKey
from plog.protocol.messages.group_admin import (
    DescribedGroup,
    DescribeGroupsResponse,
    ListGroupsResponse,
)
from plog.protocol.messages.group_admin import ListedGroup as Listed
from plog.protocol.messages.groups import FindCoordinatorResponse
from plog.protocol.messages.list_offsets import (
    ListOffsetsPartitionResponse,
    ListOffsetsResponse,
    ListOffsetsTopicResponse,
)
from plog.protocol.messages.offsets import (
    OffsetFetchResponse,
    OffsetFetchResponseGroup,
    OffsetFetchResponsePartition,
    OffsetFetchResponsePartitions,
    OffsetFetchResponseTopic,
    OffsetFetchResponseTopics,
)
from plog.types import TopicPartition
from tests.client.fake_broker import FakeBroker
from tests.group_members import member

NOW_MS = 1_700_000_000_000


def test_survey_is_the_sum_of_the_groups(bootstrap: str, new_topic: Callable[..., str]) -> None:
    topic, other = new_topic(2), new_topic(1)
    with Producer(bootstrap) as producer:
        for age_ms in (5_000, 4_000, 3_000):
            producer.send(topic, b"v", partition=0, timestamp_ms=NOW_MS - age_ms)
            producer.send(other, b"v", partition=0, timestamp_ms=NOW_MS - 10 * age_ms)
    first, second = TopicPartition(topic, 0), TopicPartition(other, 0)
    with GroupAdmin(bootstrap) as admin:
        admin.commit("survey-one", {first: 1, second: 2})
        admin.commit("survey-two", {first: 0})
        admin.commit("survey-three", {first: 3})
        with member(bootstrap, "survey-four", topic, group_protocol="consumer"):
            survey = admin.survey(NOW_MS)
        assert survey.faults == []
        found = {one.listed.group_id: one for one in survey.groups}
        assert list(found) == sorted(found)
        assert found["survey-one"].total == (3, 30_000, 0, 0)
        assert found["survey-two"].total == (3, 5_000, 0, 0)
        assert found["survey-three"].total == (0, 0, 0, 0)
        four = found["survey-four"]
        assert four.total == (None, None, 2, 2)
        assert four.offsets == {first: None, TopicPartition(topic, 1): None}
        assert four.description is not None
        assert (four.listed.group_type, len(four.description.members)) == ("consumer", 1)
        for name in ("survey-one", "survey-two", "survey-three"):
            assert found[name].description == admin.describe(name)
            assert found[name].lags == admin.lags(admin.committed(name), NOW_MS)


def test_two_hundred_groups_take_few_requests(
    bootstrap: str, new_topic: Callable[..., str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each group has offsets of its own; the records are found in what other groups fetched."""
    topic = new_topic(2)
    count = 200
    with Producer(bootstrap, linger_ms=5) as producer:
        for number in range(2 * count):
            producer.send(topic, b"v", partition=number % 2, timestamp_ms=NOW_MS - number)
    sent: list[str] = []
    send = Connection.send

    def counted_send(self: Connection, request: object, *more: object, **options: object) -> None:
        sent.append(type(request).__name__)
        send(self, request, *more, **options)

    with GroupAdmin(bootstrap) as admin:
        for number in range(count):
            at = {TopicPartition(topic, index): number for index in range(2)}
            admin.commit(f"many{number:03}", at)
        monkeypatch.setattr(Connection, "send", counted_send)
        survey = admin.survey(NOW_MS)
    many = [one for one in survey.groups if one.listed.group_id.startswith("many")]
    assert [one.total.records for one in many] == [2 * (count - n) for n in range(count)]
    assert [one.total.age_ms for one in many] == [2 * number + 1 for number in range(count)]
    assert len(sent) < 20, sent


def large_batches(bootstrap: str, topic: str, partitions: int, count: int) -> None:
    """Write batches that come only as the first of a fetch, one second apart."""
    with Producer(bootstrap, batch_size=1) as producer:
        for number in range(partitions * count):
            producer.send(
                topic,
                b"v" * 36_000,
                partition=number % partitions,
                timestamp_ms=NOW_MS - (count - number // partitions) * 1_000,
            )


def test_fetches_for_ages_are_bounded_and_the_largest_lag_comes_first(
    bootstrap: str, new_topic: Callable[..., str], monkeypatch: pytest.MonkeyPatch
) -> None:
    partitions, count = 20, 12
    topic = new_topic(partitions)
    large_batches(bootstrap, topic, partitions, count)
    every = [TopicPartition(topic, index) for index in range(partitions)]
    offsets = {f"g{number}": dict.fromkeys(every, number) for number in range(count)}
    # The same positions as another group's cost nothing.
    offsets["twin"] = offsets["g0"]
    fetches: list[int] = []
    receive = fetcher.receive_fetch

    def counted_receive(*args: object) -> list[fetcher.Fetched]:
        answers = receive(*args)
        fetches.append(sum(len(answer.records) for answer in answers))
        return answers

    monkeypatch.setattr(fetcher, "receive_fetch", counted_receive)
    with Cluster(bootstrap) as cluster:
        measured = measure_groups(cluster, offsets, NOW_MS)
        assert len(fetches) == Budget().fetches == 200
        by_bytes = measure_groups(cluster, offsets, NOW_MS, Budget(size_bytes=21 * 36_000))
        assert len(fetches) == 200 + 21
        everything = measure_groups(cluster, offsets, NOW_MS, Budget(1_000, 10**9))
    assert measured.without_ages == {"g10", "g11"}
    assert by_bytes.without_ages == offsets.keys() - {"g0", "twin"}
    assert everything.without_ages == set()
    for group, its in offsets.items():
        for at, offset in its.items():
            age_ms = (count - offset) * 1_000
            assert everything.lags[group][at] == (count, count - offset, age_ms)
            known = None if group in measured.without_ages else age_ms
            assert measured.lags[group][at] == (count, count - offset, known)


def test_leaders_share_the_budget() -> None:
    budget = Budget(10, 100)
    first = budget.take_share(3)
    assert (first, budget) == (Budget(4, 34), Budget(6, 66))
    budget.spend(-3, -30)  # which the first leader did not need
    assert budget.take_share(2) == Budget(5, 48)
    assert budget.take_share(1) == Budget(4, 48)
    assert budget.is_spent


def test_deleted_record_of_one_group_does_not_hide_the_age_of_others(
    bootstrap: str, admin: Admin, new_topic: Callable[..., str]
) -> None:
    at = TopicPartition(new_topic(1), 0)
    with Producer(bootstrap) as producer:
        for age_ms in (3_000, 2_000, 1_000):
            producer.send(at.topic, b"v", partition=0, timestamp_ms=NOW_MS - age_ms)
            producer.flush()
    admin.delete_records({at: 1})
    offsets = {f"group{offset}": {at: offset} for offset in range(4)}
    with Cluster(bootstrap) as cluster:
        measured = measure_groups(cluster, offsets, NOW_MS)
    ages = [measured.lags[group][at].age_ms for group in offsets]
    assert ages == [None, 2_000, 1_000, 0]


class Coordinator(FakeBroker):
    """A broker with the groups g0, g1, ..., which have committed offset 3 of partitions 0 and 1."""

    def __init__(self, count: int) -> None:
        super().__init__(partitions=2)
        self.names = [f"g{number}" for number in range(count)]
        self.faults: dict[str, int] = {}
        self.topic_error = 0
        self.lost = 0
        self.answers |= {
            ApiKey.LIST_GROUPS: self._list,
            ApiKey.DESCRIBE_GROUPS: self._describe,
            ApiKey.OFFSET_FETCH: self._committed,
            ApiKey.LIST_OFFSETS: self._ends,
            ApiKey.FIND_COORDINATOR: lambda request, _: FindCoordinatorResponse(
                error_code=0, node_id=1, host="127.0.0.1", port=self.port
            ),
        }

    def metadata(self, request, header):
        answer = super().metadata(request, header)
        for topic in answer.topics:
            if topic.name == OFFSETS_TOPIC:
                for index in range(self.lost):
                    topic.partitions[index].leader_id = -1
                continue
            topic.partitions[1].leader_id = -1
            topic.error_code = self.topic_error
        return answer

    def _list(self, request, header):
        groups = [
            Listed(group_id=name, protocol_type="", group_state="Empty", group_type="classic")
            for name in self.names
        ]
        return ListGroupsResponse(error_code=0, groups=groups)

    def _describe(self, request, header):
        groups = [
            DescribedGroup(
                error_code=self.faults.get(name, 0),
                group_id=name,
                group_state="Empty",
                protocol_type="",
                protocol_data="",
                members=[],
            )
            for name in request.groups
        ]
        return DescribeGroupsResponse(groups=groups)

    def _committed(self, request, header):
        parts = [{"partition_index": index, "committed_offset": 3} for index in range(2)]
        if header.api_version < 8:
            old = [OffsetFetchResponsePartition(**part) for part in parts]
            return OffsetFetchResponse(topics=[OffsetFetchResponseTopic(name="t", partitions=old)])
        new = [OffsetFetchResponsePartitions(**part) for part in parts]
        return OffsetFetchResponse(
            groups=[
                OffsetFetchResponseGroup(
                    group_id=group.group_id,
                    topics=[OffsetFetchResponseTopics(name="t", partitions=new)],
                )
                for group in request.groups
            ]
        )

    def _ends(self, request, header):
        return ListOffsetsResponse(
            topics=[
                ListOffsetsTopicResponse(
                    name=topic.name,
                    partitions=[
                        ListOffsetsPartitionResponse(
                            partition_index=part.partition_index,
                            error_code=0,
                            timestamp=-1,
                            offset=3,
                            leader_epoch=0,
                        )
                        for part in topic.partitions
                    ],
                )
                for topic in request.topics
            ]
        )


def test_fault_of_a_group_and_a_lost_partition_hide_no_other_group() -> None:
    with Coordinator(3) as fake, GroupAdmin(fake.bootstrap, request_timeout_ms=500) as admin:
        fake.faults["g1"] = ErrorCode.GROUP_AUTHORIZATION_FAILED
        survey = admin.survey(NOW_MS)
    first, second, third = survey.groups
    assert first.total == third.total == (0, 0, 1, 0)
    assert (second.total, second.description) == ((None, None, 0, 0), None)
    assert "group 'g1'" in str(second.fault)
    (lost,) = survey.faults
    assert "partition t-1 has no leader" in str(lost)


def test_partitions_of_groups_without_a_leader_are_a_fault() -> None:
    with Coordinator(0) as fake, GroupAdmin(fake.bootstrap) as admin:
        assert admin.survey(NOW_MS).faults == []
        fake.lost = 1
        survey = admin.survey(NOW_MS)
    assert survey.groups == []
    (fault,) = survey.faults
    assert "1 of 2 partitions of __consumer_offsets: their groups are missing" in str(fault)


def test_offsets_of_a_deleted_topic_are_no_fault() -> None:
    with Coordinator(1) as fake, GroupAdmin(fake.bootstrap) as admin:
        fake.topic_error = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        survey = admin.survey(NOW_MS)
    assert survey.faults == []
    assert [one.total for one in survey.groups] == [(None, None, 2, 0)]


def test_group_that_is_deleted_meanwhile_is_left_out() -> None:
    with Coordinator(2) as fake, GroupAdmin(fake.bootstrap) as admin:
        fake.faults["g0"] = ErrorCode.GROUP_ID_NOT_FOUND
        assert [one.listed.group_id for one in admin.survey(NOW_MS).groups] == ["g1"]


def test_old_broker_is_asked_about_one_group_at_a_time() -> None:
    with Coordinator(2) as fake, GroupAdmin(fake.bootstrap) as admin:
        versions = fake.api_versions

        def old(request, header):
            answer = versions(request, header)
            for one in answer.api_keys:
                if one.api_key == ApiKey.OFFSET_FETCH:
                    one.max_version = 7
            return answer

        fake.answers[ApiKey.API_VERSIONS] = old
        assert [one.total for one in admin.survey(NOW_MS).groups] == [(0, 0, 1, 0)] * 2


def test_broker_without_an_answer_is_a_fault() -> None:
    with Coordinator(1) as fake, GroupAdmin(fake.bootstrap, request_timeout_ms=300) as admin:
        fake.answers[ApiKey.LIST_GROUPS] = lambda *_: ListGroupsResponse(
            error_code=ErrorCode.CLUSTER_AUTHORIZATION_FAILED, groups=[]
        )
        survey = admin.survey(NOW_MS)
    assert survey.groups == []
    (fault,) = survey.faults
    assert isinstance(fault, KafkaError)
    assert "groups of broker 1" in str(fault)
