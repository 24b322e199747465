"""The controller's election and its fence, against a store where others write too."""

from __future__ import annotations

import uuid

import pytest

from plog.cluster import znodes
from plog.cluster.broker_registration import create_persistent_paths
from plog.cluster.controller_context import PartitionState
from plog.cluster.controller_events import StateWrite, TopicsRead
from plog.cluster.controller_store import WRITES_AT_ONCE, ControllerMoved, ControllerStore
from plog.cluster.embedded_store import EmbeddedStore
from plog.cluster.store import NodeExists, Unreachable
from plog.cluster.znodes import ControllerNode, TopicNode
from plog.types import TopicPartition
from tests.cluster.asked import calls_of

A0, A1 = TopicPartition("a", 0), TopicPartition("a", 1)


@pytest.fixture
def nodes(embedded: EmbeddedStore, clock) -> ControllerStore:
    create_persistent_paths(embedded)
    return ControllerStore(embedded, 0, clock)


def test_first_election_creates_the_epoch(nodes, embedded, clock) -> None:
    assert nodes.read_controller() is None
    assert nodes.try_elect() == 0
    assert nodes.epoch == 1
    assert embedded.get("/controller_epoch")[0] == b"1"
    assert embedded.get("/controller")[0] == ControllerNode(0, clock.now_ms()).encode()
    assert embedded.get("/controller")[1].ephemeral_owner == embedded.session_id


def test_whoever_is_later_loses_and_learns_who_won(nodes, embedded, clock) -> None:
    other = ControllerStore(embedded, 1, clock)
    assert other.try_elect() == 1
    assert nodes.try_elect() == 1
    assert nodes.epoch == 0


def test_epoch_written_meanwhile_loses_the_election(nodes, embedded, monkeypatch) -> None:
    multi = embedded.multi
    embedded.create("/controller_epoch", b"0")

    def race(ops):
        monkeypatch.undo()
        ControllerStore(embedded, 1, nodes._clock).try_elect()
        embedded.delete("/controller")
        return multi(ops)

    monkeypatch.setattr(embedded, "multi", race)
    # Broker 1 was elected and is gone: nobody is the controller, and we have lost this round.
    assert nodes.try_elect() is None
    assert nodes.try_elect() == 0
    assert nodes.epoch == 2


def test_election_won_without_hearing_of_it_is_won(nodes, embedded, monkeypatch) -> None:
    multi = embedded.multi

    def answer_is_lost(ops):
        multi(ops)
        raise NodeExists("/controller")

    embedded.create("/controller_epoch", b"6")
    monkeypatch.setattr(embedded, "multi", answer_is_lost)
    assert nodes.try_elect() == 0
    monkeypatch.undo()
    assert nodes.resume()
    assert nodes.epoch == 7
    nodes.delete_nodes(["/nothing"])  # the fence holds


@pytest.mark.parametrize("is_done", [True, False])
def test_election_without_an_answer_is_found_out_by_reading(
    nodes, embedded, monkeypatch, is_done
) -> None:
    multi = embedded.multi

    def no_answer(ops):
        if is_done:
            multi(ops)
        raise Unreachable("no answer")

    embedded.create("/controller_epoch", b"6")
    monkeypatch.setattr(embedded, "multi", no_answer)
    with pytest.raises(Unreachable):
        nodes.try_elect()
    monkeypatch.undo()
    assert nodes.read_controller() == (0 if is_done else None)
    assert nodes.resume() is is_done
    if is_done:
        assert nodes.epoch == 7
        nodes.delete_nodes(["/nothing"])  # the fence holds


def test_role_of_an_earlier_session_is_not_taken_up(nodes, embedded, monkeypatch) -> None:
    nodes.try_elect()
    monkeypatch.setattr(type(embedded), "session_id", embedded.session_id + 1)
    assert not nodes.resume()


def test_role_that_another_takes_while_it_is_read_is_fenced(nodes, embedded, monkeypatch) -> None:
    nodes.try_elect()
    get = embedded.get

    def race(path):
        found = get(path)
        monkeypatch.undo()
        embedded.delete("/controller")
        ControllerStore(embedded, 1, nodes._clock).try_elect()
        return found

    monkeypatch.setattr(embedded, "get", race)
    nodes.resume()
    with pytest.raises(ControllerMoved):
        nodes.delete_nodes(["/nothing"])


def write(partition: TopicPartition, leader: int, expected: int | None) -> StateWrite:
    return StateWrite(partition, PartitionState(leader, 0, (leader,), 1, 0), expected)


def topic(embedded, name: str = "a", count: int = 2) -> None:
    node = TopicNode(uuid.UUID(int=9), dict.fromkeys(range(count), (0,)))
    embedded.create(znodes.topic_path(name), node.encode())


def test_states_are_created_and_changed_at_their_version(nodes, embedded) -> None:
    nodes.try_elect()
    topic(embedded)
    writes = [write(A0, 0, None), write(A1, 0, None)]
    assert nodes.write_states(writes) == (writes, {})
    assert nodes.read_states([A0])[A0].partition_epoch == 0
    changed = [write(A0, 5, 0)]
    assert nodes.write_states(changed) == (changed, {})
    found = nodes.read_states([A0])[A0]
    assert (found.leader, found.partition_epoch) == (5, 1)


def test_more_states_than_fit_one_transaction_are_written(nodes, embedded) -> None:
    nodes.try_elect()
    count = WRITES_AT_ONCE * 2 + 1
    topic(embedded, count=count)
    writes = [write(TopicPartition("a", index), 0, None) for index in range(count)]
    assert nodes.write_states(writes) == (writes, {})
    assert len(embedded.children("/brokers/topics/a/partitions")) == count


def test_states_of_new_topics_are_written_in_one_round_trip(nodes, embedded, monkeypatch) -> None:
    nodes.try_elect()
    for name in ("a", "b", "c"):
        topic(embedded, name)
    writes = [write(TopicPartition(name, one), 0, None) for name in "abc" for one in range(2)]
    calls = calls_of(monkeypatch, embedded)
    assert nodes.write_states(writes) == (writes, {})
    assert calls == ["multi"]
    grown = [write(TopicPartition("a", 2), 0, None), write(TopicPartition("b", 2), 0, None)]
    assert nodes.write_states(grown) == (grown, {})
    assert calls[1:] == ["multi", "get_many", "multi"]


def test_write_that_lost_brings_back_what_is_there_and_harms_no_other(nodes, embedded) -> None:
    nodes.try_elect()
    topic(embedded)
    nodes.write_states([write(A0, 0, None)])
    nodes.write_states([write(A0, 3, 0)])
    late, first = write(A0, 4, 0), write(A1, 0, None)
    written, conflicts = nodes.write_states([late, first])
    assert written == [first]
    assert conflicts[A0].leader == 3
    assert conflicts[A0].partition_epoch == 1
    # Half a creation, from a controller that died: the parents are there, the state is not.
    embedded.create("/brokers/topics/a/partitions/7")
    half = write(TopicPartition("a", 7), 0, None)
    assert nodes.write_states([half]) == ([half], {})
    gone = write(TopicPartition("nope", 0), 0, None)
    assert nodes.write_states([gone]) == ([], {gone.partition: None})


def test_deposed_controller_writes_nothing_at_all(nodes, embedded) -> None:
    nodes.try_elect()
    topic(embedded)
    nodes.write_states([write(A0, 0, None)])
    embedded.set("/controller_epoch", b"2")
    zxid = embedded._tree.zxid
    for act in (
        lambda: nodes.write_states([write(A0, 1, 0)]),
        lambda: nodes.write_states([write(A1, 1, None)]),
        lambda: nodes.remove_topic("a"),
        lambda: nodes.drop_deletions(["a"]),
        lambda: nodes.delete_nodes(["/consumers"]),
    ):
        with pytest.raises(ControllerMoved):
            act()
    nodes.abdicate()
    assert embedded._tree.zxid == zxid


def test_removed_topic_leaves_nothing_behind(nodes, embedded) -> None:
    nodes.try_elect()
    count = WRITES_AT_ONCE + 3
    topic(embedded, count=count)
    nodes.write_states([write(TopicPartition("a", one), 0, None) for one in range(count)])
    embedded.create("/config/topics/a")
    embedded.create("/admin/delete_topics/a")
    nodes.remove_topic("a")
    assert embedded.descendants("/brokers/topics") == ["/brokers/topics"]
    assert embedded.children("/config/topics") == []
    assert embedded.children("/admin/delete_topics") == []


def test_removal_makes_the_node_that_counts_it_where_that_is_missing(
    nodes, embedded, monkeypatch
) -> None:
    nodes.try_elect()
    topic(embedded)
    embedded.delete(znodes.DELETE_TOPICS)
    real, reads = embedded.descendants, []

    def descendants(path: str) -> list[str]:
        reads.append(path)
        assert reads.count("/brokers/topics/a") < 4, "the removal never ends"
        return real(path)

    monkeypatch.setattr(embedded, "descendants", descendants)
    nodes.remove_topic("a")
    assert embedded.children("/brokers/topics") == []
    assert embedded.get(znodes.DELETE_TOPICS)[1].version == 1


def test_topic_of_an_old_version_is_given_an_id(nodes, embedded) -> None:
    nodes.try_elect()
    embedded.create("/brokers/topics/old", b'{"version":1,"partitions":{"0":[1]}}')
    first = nodes.read_topics(["old"])
    assert first.topics["old"].topic_id is not None
    assert nodes.read_topics(["old"]) == first
    assert nodes.read_topics(["none"]).topics == {"none": None}


def test_what_nobody_can_read_is_left_alone(nodes, embedded, caplog) -> None:
    nodes.try_elect()
    embedded.create("/brokers/topics/bad", b"junk")
    embedded.create("/brokers/ids/7", b"junk")
    for data in (b"junk", znodes.encode_log_dir_event(4)):
        embedded.create(znodes.LOG_DIR_EVENT_PREFIX, data, sequential=True)
    assert nodes.read_topics(["bad"]) == TopicsRead({}, {"bad": ()})
    assert nodes.read_brokers() == {}
    brokers, paths = nodes.read_log_dir_events()
    assert brokers == {4}
    assert len(paths) == 2
    assert caplog.text.count("not what Kafka writes") == 3
    nodes.drop_notifications()
    assert embedded.children("/log_dir_event_notification") == []


def test_malformed_configs_leave_unclean_elections_at_the_default(nodes, embedded, caplog) -> None:
    embedded.create("/config/topics/a", b"junk", make_parents=True)
    assert nodes.read_unclean(["a"], default=False) == {"a": False}
    assert nodes.read_unclean(["a"], default=True) == {"a": True}
    assert "configs of topic a are ignored" in caplog.text


def test_unclean_elections_are_allowed_by_topic_or_by_default(nodes, embedded) -> None:
    embedded.create(
        "/config/topics/yes",
        znodes.encode_config({"unclean.leader.election.enable": "TRUE"}),
    )
    embedded.create("/config/topics/unsaid", znodes.encode_config({}))
    names = ["yes", "unsaid", "none"]
    assert nodes.read_unclean(names, default=False) == {"yes": True, "unsaid": False, "none": False}
    assert nodes.read_unclean(names, default=True) == {"yes": True, "unsaid": True, "none": True}
