"""Groups of the classic protocol, whose members are processes of real clients.

Members tell what they were assigned, and which records they have read and committed. Whatever is
written while a group stands still is to be read once, by whoever has its partition, whether
members came, left or were killed before. That is so on both planes for members of each client, and
of all together; what else is asked here is answered by the coordinator, or by a client that leads.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing
from pathlib import Path

import pytest

from plog.client.assignors import ASSIGNORS, Subscription, decode_subscription
from plog.client.group_consumer import GroupConsumer, OffsetAndMetadata
from plog.protocol.messages.group_admin import DescribeGroupsRequest
from plog.types import NO_EPOCH, TopicPartition
from tests.compat.clients import PATIENCE_S, Confluent, Sent
from tests.compat.committed import TELLS_NO_EPOCH, as_committed, exchange
from tests.compat.groups import (
    CLIENTS,
    LONG_SESSION_MS,
    NEW_JAVA_IN_EVERY_RUN,
    Client,
    GroupSettings,
    Member,
    Members,
    come_and_go,
    name_of,
)
from tests.compat.programs import JAVA, RELEASES_OF_FRANZ_GO, FranzGo, Java
from tests.compat.test_kafka_tools import codecs_on_disk
from tests.compat.test_other_clients import KafkaJs, Sarama, run
from tests.handlers.wire import speak
from tests.servers import BrokerProcess
from tests.waiting import until

PARTITIONS = 6

_numbers = itertools.count()
FENCED = [client for client in CLIENTS if client != "aiokafka"]
"""Clients whose members end when another of their instance has come.

kafka-python 3.0.12 logs what its heartbeat is told, and goes on until it commits. aiokafka 0.14
tells no instance in its heartbeats (it speaks Heartbeat v1), hears that nobody knows its member,
and joins again: two of an instance take it from each other for ever. It does not know the error
either (its issue 1186, pull request 1188)."""

NewTopic = Callable[..., str]
Grouped = Callable[..., Members]


@pytest.fixture
def grouped(broker: BrokerProcess, new_topic: NewTopic, tmp_path: Path) -> Iterator[Grouped]:
    """Make a group without members, of a topic of its own; who is left in it is killed."""
    made: list[Members] = []

    def make(**settings: object) -> Members:
        topic = new_topic(PARTITIONS)
        given = GroupSettings(broker.bootstrap, f"group-of-{topic}", topic, **settings)
        made.append(Members(given, PARTITIONS, tmp_path))
        return made[-1]

    yield make
    for group in made:
        group.end()


@pytest.mark.parametrize("client", NEW_JAVA_IN_EVERY_RUN, ids=name_of)
def test_members_of_one_client_come_and_go(grouped: Grouped, client: str | Java) -> None:
    come_and_go(grouped(), client)


def test_members_of_all_clients_share_a_group(grouped: Grouped) -> None:
    group = grouped()
    confluent, kafka_python, aiokafka, old_java, new_java = (
        group.start(client, may_be_killed=client is JAVA[-1]) for client in CLIENTS
    )
    own = group.start("plog")
    group.await_share(confluent, kafka_python, aiokafka, old_java, new_java, own)
    group.write_and_await(confluent, kafka_python, aiokafka, old_java, new_java, own)
    old_java.leave()
    group.await_share(confluent, kafka_python, aiokafka, new_java, own)
    group.write_and_await(confluent, kafka_python, aiokafka, new_java, own)
    confluent.kill()
    new_java.kill()
    group.await_share(kafka_python, aiokafka, own)
    group.write_and_await(kafka_python, aiokafka, own)
    kafka_python.leave()
    own.leave()
    group.await_share(aiokafka)
    group.write_and_await(aiokafka)
    aiokafka.leave()


@pytest.mark.usefixtures("plane")
@pytest.mark.parametrize("client", NEW_JAVA_IN_EVERY_RUN, ids=name_of)
def test_static_members_come_back_without_a_rebalance(
    broker: BrokerProcess, grouped: Grouped, client: str | Java
) -> None:
    group = grouped(session_ms=LONG_SESSION_MS)
    one, other = group.start(client, "one"), group.start(client, "other", may_be_killed=True)
    group.await_share(one, other)
    group.write_and_await(one, other)
    before = group.rebalances(broker.log)
    assert before >= 1
    had = other.has
    other.kill()
    killed = group.start(client, "other")
    group.await_share(one, killed)
    assert killed.has == had
    group.write_and_await(one, killed)
    killed.leave()  # which is for as long as its session lasts
    back = group.start(client, "other")
    group.await_share(one, back)
    assert back.has == had
    group.write_and_await(one, back)
    # The one who leads comes back too.
    led = one.has
    one.leave()
    again = group.start(client, "one")
    group.await_share(again, back)
    assert again.has == led
    group.write_and_await(again, back)
    assert group.rebalances(broker.log) == before


@pytest.mark.usefixtures("plane")
@pytest.mark.parametrize("client", FENCED, ids=name_of)
def test_second_of_an_instance_fences_the_first(
    broker: BrokerProcess, grouped: Grouped, client: str | Java
) -> None:
    group = grouped(session_ms=LONG_SESSION_MS)
    first, other = (group.start(client, instance) for instance in ("one", "other"))
    group.await_share(first, other)
    group.write_and_await(first, other)
    before = group.rebalances(broker.log)
    had = first.has
    second = group.start(client, "one")
    group.await_share(second, other)
    assert second.has == had
    group.write_and_await(second, other)
    until(lambda: not first.is_alive, "ended", PATIENCE_S)
    assert "fenced" in repr(first).lower()
    assert group.rebalances(broker.log) == before


@pytest.mark.usefixtures("plane")
@pytest.mark.parametrize("client", CLIENTS, ids=name_of)
def test_text_and_epoch_of_commits_are_read_by_plogs_client_and_from_it(
    broker: BrokerProcess, new_topic: NewTopic, client: str | Java
) -> None:
    at, group = TopicPartition(new_topic(2), 1), f"commits-{next(_numbers)}"
    given, back = OffsetAndMetadata(7, "given by Zoë", 3), OffsetAndMetadata(11, "given back", 4)
    if client in TELLS_NO_EPOCH:
        given, back = (one._replace(leader_epoch=NO_EPOCH) for one in (given, back))
    with GroupConsumer(broker.bootstrap, group, enable_auto_commit=False) as consumer:
        # confluent-kafka reads the text as a C string, and past its end where that has no zero.
        consumer.commit({at: as_committed(client, given)})
        assert exchange(client, broker.bootstrap, group, at, back) == given
        assert consumer.committed([at]) == {at: as_committed(client, back)}


@pytest.mark.usefixtures("plane")
@pytest.mark.parametrize("client", ["confluent-kafka", *NEW_JAVA_IN_EVERY_RUN[-2:]], ids=name_of)
def test_cooperative_members_keep_what_they_may(grouped: Grouped, client: str | Java) -> None:
    # A member whose session ended would have lost what it is to keep.
    group = grouped(assignor="cooperative-sticky", session_ms=LONG_SESSION_MS)
    first = group.start(client)
    group.await_share(first)
    group.write_and_await(first)
    second = group.start(client)
    group.await_share(first, second)
    group.write_and_await(first, second)
    kept = set(first.has)
    assert len(kept) == PARTITIONS // 2
    told = [set(has) for has in first.assignments]
    assert all(kept <= has for has in told[told.index(set(range(PARTITIONS))) :]), first
    second.leave()
    group.await_share(first)
    group.write_and_await(first)
    told = [set(has) for has in first.assignments]
    assert all(kept <= has for has in told[told.index(set(range(PARTITIONS))) :]), first
    first.leave()


def await_equal_shares(group: Members, *members: Member) -> None:
    """Wait until every partition is somebody's, and each of the members has as many.

    When somebody gives up late, a cooperative group rebalances once more than it otherwise would.
    """
    group.await_share(*members)
    share = PARTITIONS // len(members)
    until(lambda: all(len(one.has) == share for one in members), f"{share} each", PATIENCE_S)
    group.write_and_await(*members)


def have_kept(group: Members, had: Mapping[Member, set[int]]) -> bool:
    """Tell whether members still have what they had; cooperative ones were never without it."""
    if group.settings.assignor == "sticky":
        return all(some <= set(member.has) for member, some in had.items())
    told = {one: [some <= set(has) for has in one.assignments] for one, some in had.items()}
    return all(all(ever[ever.index(True) :]) for ever in told.values())


def told_of(broker: BrokerProcess, group: Members) -> list[Subscription]:
    """Return what the members told when they joined last, as plog's client reads it."""
    request = DescribeGroupsRequest(groups=[group.settings.group])
    with closing(speak(broker.port)) as wire:
        (found,) = wire.ask(request).groups
    assignor = ASSIGNORS[group.settings.assignor]
    return [decode_subscription(one.member_metadata, assignor) for one in found.members]


def keep_what_they_may(
    broker: BrokerProcess, group: Members, leader: Client, other: Client, last: Client
) -> None:
    """Have three members join, the first of which leads, and the second leave.

    Whoever stays keeps what it has but for the others' shares, which takes a leader that reads what
    they tell it; and what they told, plog's client reads.
    """
    first = group.start(leader)
    group.await_share(first)
    second = group.start(other)
    await_equal_shares(group, first, second)
    halves = {one: set(one.has) for one in (first, second)}
    third = group.start(last)
    await_equal_shares(group, first, second, third)
    had = {one: set(one.has) for one in (first, second, third)}
    assert all(had[one] < half for one, half in halves.items()), (halves, group)
    assert have_kept(group, had), (had, group)
    second.leave()
    del had[second]
    await_equal_shares(group, first, third)
    assert have_kept(group, had), (had, group)
    told = told_of(broker, group)
    owned = [{at.partition for at in one.owned} for one in told]
    assert all(any(some <= one for one in owned) for some in had.values()), (had, told)
    # As they have come from one generation; the newer claim counts where two say they had it.
    assert len({one.generation for one in told}) == 1, told
    assert told[0].generation > 0, told


@pytest.mark.usefixtures("plane")
@pytest.mark.parametrize(
    ("leader", "other"),
    [("plog", JAVA[-1]), (JAVA[-1], "plog"), ("confluent-kafka", "plog")],
    ids=name_of,
)
def test_cooperative_members_of_three_clients_keep_what_they_may(
    broker: BrokerProcess, grouped: Grouped, leader: Client, other: Client
) -> None:
    # A member whose session ended would have lost what it is to keep.
    group = grouped(assignor="cooperative-sticky", session_ms=LONG_SESSION_MS)
    all_three: list[Client] = ["plog", JAVA[-1], "confluent-kafka"]
    (last,) = (one for one in all_three if one not in (leader, other))
    keep_what_they_may(broker, group, leader, other, last)


@pytest.mark.usefixtures("plane")
@pytest.mark.parametrize(("leader", "other"), [("plog", JAVA[-1]), (JAVA[0], "plog")], ids=name_of)
def test_sticky_members_of_two_clients_get_back_what_they_had(
    broker: BrokerProcess, grouped: Grouped, leader: Client, other: Client
) -> None:
    group = grouped(assignor="sticky", session_ms=LONG_SESSION_MS)
    keep_what_they_may(broker, group, leader, other, other)


@pytest.mark.usefixtures("plane")
@pytest.mark.parametrize(
    ("leader", "other"), [("plog", "kafka-python"), ("kafka-python", "plog")], ids=name_of
)
def test_partitions_are_dealt_out_to_members_of_two_clients(
    grouped: Grouped, leader: Client, other: Client
) -> None:
    group = grouped(assignor="roundrobin", session_ms=LONG_SESSION_MS)
    first = group.start(leader)
    group.await_share(first)
    second = group.start(other)
    await_equal_shares(group, first, second)
    assert sorted([first.has, second.has]) == [[0, 2, 4], [1, 3, 5]]
    first.leave()
    group.await_share(second)  # which leads now
    group.write_and_await(second)


@pytest.mark.parametrize(
    "client", [*RELEASES_OF_FRANZ_GO, Sarama(), KafkaJs()], ids=lambda one: one.name
)
def test_program_goes_on_where_its_group_left_off(
    broker: BrokerProcess, new_topic: NewTopic, client: FranzGo | Sarama | KafkaJs
) -> None:
    topic, each = new_topic(2), 10
    command = [*client.group_command(client.built()), broker.bootstrap, topic, f"go-on-{topic}"]
    for round_, codec in enumerate(("none", "gzip")):
        records = [
            # Of a size that is worth compressing: else librdkafka does not.
            Sent(
                b"k%d" % n if n % 2 else None,
                b"%d" % n * 100 if n % 3 else None,
                (("n", b"%d" % n), ("n", b"again"), ("codec", codec.encode())),
            )
            for n in range(each)
        ]
        for partition in range(2):
            Confluent().produce(broker.bootstrap, topic, records, codec=codec, partition=partition)
        assert codecs_on_disk(broker, topic) == set(range(round_ + 1))
        assert sorted(run([*command, str(2 * each)]).splitlines()) == sorted(
            "\t".join(
                [
                    f"{partition}\t{round_ * each + n}",
                    f"k{n}" if n % 2 else "NULL",
                    str(n) * 100 if n % 3 else "NULL",
                    f"n={n},n=again,codec={codec}",
                ]
            )
            for partition in range(2)
            for n in range(each)
        )
