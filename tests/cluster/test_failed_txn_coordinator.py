"""A transaction over three brokers whose coordinator fails: before it decides, after, at the end.

The transaction writes to a partition of each broker and commits the offsets of a group. What it
decided holds, and a broker that was away gets its marker when it is back. Everything else goes on.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, closing, contextmanager
from dataclasses import replace

import pytest
from confluent_kafka import Producer as ConfluentProducer

from plog.errors import ErrorCode
from plog.protocol.api_keys import ApiKey
from plog.protocol.messages.producers import InitProducerIdRequest
from tests.cluster.marker_proxy import MarkerProxy
from tests.cluster.spanning import IDS, NONE, Cluster, Parts, Play, at_last
from tests.compat.clients import read_all
from tests.compat.live_kafka import ZooKeeper
from tests.coordinator.conftest import TRANSACTION
from tests.handlers.wire import fresh_name
from tests.routed import Routed
from tests.servers import BrokerProcess
from tests.transactions.transactor import Transactor
from tests.waiting import until

CONCURRENT = ErrorCode.CONCURRENT_TRANSACTIONS
LOOK = "transaction.abort.timed.out.transaction.cleanup.interval.ms"
SETTINGS = {
    "group_initial_rebalance_delay_ms": 0,
    "offsets_topic_num_partitions": 3,
    "transaction_state_log_num_partitions": 3,
    # No other broker takes the place of a coordinator that is away.
    "offsets_topic_replication_factor": 1,
    "transaction_state_log_replication_factor": 1,
    # No transaction times out unless a test wants it.
    "transaction_abort_timed_out_transaction_cleanup_interval_ms": 3_600_000,
}
BEFORE, COMMITTED_OFFSET = b"before", 7
LATE = "its markers were sent again by a later connection"

by_version = pytest.mark.parametrize("own_epochs", [False, True], ids=["v1", "v2"])
by_outcome = pytest.mark.parametrize("commit", [True, False], ids=["commit", "abort"])


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory, zookeeper: ZooKeeper) -> Iterator[Cluster]:
    made = Cluster(tmp_path_factory.mktemp("cluster"), zookeeper.bootstrap, **SETTINGS)
    with made:
        yield made
    for proxy in made.proxies:
        proxy.close()
    for one in made.brokers:
        assert "failed with an internal error" not in one.log, one.log


@pytest.fixture
def cluster(running: Cluster) -> Iterator[Cluster]:
    """All three brokers; a test that fails leaves none behind."""
    running.start()
    yield running
    for proxy in running.proxies:
        assert not proxy.failures, proxy.failures


@pytest.fixture(params=["third", pytest.param("coordinator", marks=pytest.mark.long)])
def parts(cluster: Cluster, request: pytest.FixtureRequest) -> Parts:
    """Return who does what: the controller is the coordinator too, or is always there."""
    until(lambda: cluster.controller in IDS, "a controller")
    controller = cluster.controller
    first, second = (broker_id for broker_id in IDS if broker_id != controller)
    if request.param == "third":
        return Parts(coordinator=first, away=second, third=controller)
    return Parts(coordinator=controller, away=first, third=second)


@pytest.fixture
def wire(cluster: Cluster, parts: Parts) -> Iterator[Routed]:
    with closing(Routed(cluster.ports, home=parts.third)) as routed:
        yield routed


@contextmanager
def killed(broker: BrokerProcess) -> Iterator[None]:
    broker.kill()
    yield
    broker.start()


@contextmanager
def stopped(broker: BrokerProcess) -> Iterator[None]:
    broker.stop()
    yield
    broker.start()


Away = Callable[[BrokerProcess], AbstractContextManager[None]]


def restart(cluster: Cluster, broker_id: int) -> None:
    cluster[broker_id].start()
    cluster.until_known()


# -- before PREPARE --------------------------------------------------------------------------------


def open_and_kill(cluster: Cluster, play: Play, coordinator: int) -> None:
    """Leave a transaction open on all brokers, and kill its coordinator."""
    play.write(BEFORE, offset=1)
    play.one.finish(commit=True)
    play.write(b"open", offset=COMMITTED_OFFSET)
    cluster[coordinator].kill()
    for broker_id in IDS:
        if broker_id != coordinator:
            assert play.is_open(broker_id)
            assert play.seen(broker_id) == [BEFORE]


@by_version
@by_outcome
def test_transaction_goes_on_after_its_coordinator_died_before_prepare(
    cluster: Cluster, parts: Parts, wire: Routed, own_epochs: bool, commit: bool
) -> None:
    play = Play(cluster, wire, parts, group_on=parts.third, own_epochs=own_epochs)
    open_and_kill(cluster, play, parts.coordinator)
    restart(cluster, parts.coordinator)
    assert play.described().transaction_state == "Ongoing"
    assert all(play.is_open(broker_id) for broker_id in IDS)
    play.write(b"more")
    play.one.finish(commit=commit)
    if commit:
        play.goes_on(BEFORE, b"open", b"more", offset=COMMITTED_OFFSET)
    else:
        play.goes_on(BEFORE, offset=1)


def is_fenced(play: Play, old: Transactor) -> None:
    """Check that an old producer can do nothing on any broker."""
    for at in play.places.values():
        error = at_last(lambda at=at: old.produce(at, b"late").error_code)
        assert error is ErrorCode.INVALID_PRODUCER_EPOCH
    assert old.end(commit=True) is not NONE
    if not old.own_epochs:
        assert old.add(*play.places.values()) == [ErrorCode.PRODUCER_FENCED] * 3
        assert old.add_offsets(play.group) is ErrorCode.PRODUCER_FENCED
    error = at_last(lambda: old.commit_offset(play.group, play.places[0], 99))
    assert error in (ErrorCode.INVALID_PRODUCER_EPOCH, ErrorCode.PRODUCER_FENCED)


@by_version
def test_transaction_is_aborted_by_the_next_producer_after_its_coordinator_died(
    cluster: Cluster, parts: Parts, wire: Routed, own_epochs: bool
) -> None:
    play = Play(cluster, wire, parts, group_on=parts.third, own_epochs=own_epochs)
    open_and_kill(cluster, play, parts.coordinator)
    old = replace(play.one, sequences=dict(play.one.sequences))
    restart(cluster, parts.coordinator)
    play.described()
    play.one.start()
    play.check(BEFORE, offset=1)
    is_fenced(play, old)
    play.goes_on(BEFORE, offset=1)


@by_version
def test_transaction_times_out_after_its_coordinator_died(
    cluster: Cluster, parts: Parts, wire: Routed, own_epochs: bool
) -> None:
    coordinator = cluster[parts.coordinator]
    play = Play(cluster, wire, parts, group_on=parts.third, own_epochs=own_epochs, timeout_ms=1)
    open_and_kill(cluster, play, parts.coordinator)
    rarely = coordinator.overrides[LOOK]
    coordinator.overrides[LOOK] = 100
    restart(cluster, parts.coordinator)
    play.await_state("CompleteAbort")
    play.check(BEFORE, offset=1)
    is_fenced(play, play.one)
    coordinator.overrides[LOOK] = rarely
    coordinator.stop()
    restart(cluster, parts.coordinator)
    play.described()
    play.goes_on(BEFORE, offset=1)


def ends_again(before: Transactor, after: Transactor, *, commit: bool) -> None:
    """Check that a producer which has missed the answer to its end gets the same one."""
    again = replace(before, sequences={})
    assert again.end(commit=commit) is NONE
    assert again.producer == after.producer


# -- after PREPARE ---------------------------------------------------------------------------------


@by_version
@by_outcome
@pytest.mark.parametrize(
    "away", [killed, pytest.param(stopped, marks=pytest.mark.long), BrokerProcess.suspended]
)
def test_broker_that_was_away_gets_its_markers_from_a_restarted_coordinator(
    cluster: Cluster, parts: Parts, wire: Routed, away: Away, own_epochs: bool, commit: bool
) -> None:
    play = Play(cluster, wire, parts, group_on=parts.away, own_epochs=own_epochs)
    play.write(BEFORE, offset=1)
    play.one.finish(commit=True)
    play.write(b"open", offset=COMMITTED_OFFSET)
    (offsets,) = (at for at in play.due if at.topic == "__consumer_offsets")
    ending = "PrepareCommit" if commit else "PrepareAbort"
    values = [BEFORE, b"open"] if commit else [BEFORE]
    before = replace(play.one)
    with away(cluster[parts.away]):
        assert play.one.end(commit=commit) is NONE
        for life in range(2):
            if life:
                cluster[parts.coordinator].kill()
                cluster[parts.coordinator].start()
            until(lambda: play.due == {play.places[parts.away], offsets}, "the other markers")
            assert play.described().transaction_state == ending
            for broker_id in (parts.coordinator, parts.third):
                assert not play.is_open(broker_id)
                assert play.seen(broker_id) == values
        assert play.one.end(commit=commit) is CONCURRENT
        assert play.one.init(was=play.one.producer) is CONCURRENT
    play.await_state(ending.replace("Prepare", "Complete"))
    ends_again(before, play.one, commit=commit)
    cluster.until_known()
    play.goes_on(*values, offset=COMMITTED_OFFSET if commit else 1)


def test_client_goes_on_while_a_broker_lacks_its_marker(
    cluster: Cluster, parts: Parts, wire: Routed
) -> None:
    """librdkafka commits, and its next transaction waits for the markers."""
    play = Play(cluster, wire, parts, group_on=parts.third, own_epochs=False)
    name = wire.name_on(TRANSACTION, parts.coordinator, fresh_name())
    producer = ConfluentProducer(
        {"bootstrap.servers": cluster.bootstrap, "transactional.id": name, "linger.ms": 0}
    )
    producer.init_transactions(60)
    for number in range(3):
        producer.begin_transaction()
        for broker_id, at in play.places.items():
            if number != 1 or broker_id != parts.away:
                producer.produce(*at[:1], b"%d" % number, partition=at.partition)
        assert producer.flush(60) == 0
        if number == 0:
            with killed(cluster[parts.away]):
                producer.commit_transaction(60)
                until(lambda: play.seen(parts.third) == [b"0"], "committed")
        else:
            producer.commit_transaction(60)
    for broker_id, at in play.places.items():
        expected = [b"0", b"2"] if broker_id == parts.away else [b"0", b"1", b"2"]
        until(lambda number=broker_id: not play.is_open(number), f"{at} is stable")
        found = read_all(cluster.bootstrap, *at, "read_committed")
        assert [record.value for _, record in found] == expected


# -- before COMPLETE -------------------------------------------------------------------------------


@by_version
@by_outcome
def test_coordinator_that_died_before_complete_writes_its_markers_again(
    cluster: Cluster, parts: Parts, wire: Routed, own_epochs: bool, commit: bool
) -> None:
    play = Play(cluster, wire, parts, group_on=parts.third, own_epochs=own_epochs)
    proxy = cluster.proxies[parts.away]
    play.write(BEFORE, offset=1)
    play.one.finish(commit=True)
    play.write(b"open", offset=COMMITTED_OFFSET)
    before = replace(play.one)
    proxy.keep_next("answer")
    assert play.one.end(commit=commit) is NONE
    proxy.await_kept()
    # Every marker is written, and the coordinator does not know.
    until(lambda: play.due == {play.places[parts.away]}, "the other markers")
    values = [BEFORE, b"open"] if commit else [BEFORE]
    for broker_id in IDS:
        until(lambda number=broker_id: not play.is_open(number), "marked")
        assert play.seen(broker_id) == values
    sent = markers_through(proxy)
    cluster[parts.coordinator].kill()
    restart(cluster, parts.coordinator)
    play.await_state("CompleteCommit" if commit else "CompleteAbort")
    assert markers_through(proxy) > sent
    ends_again(before, play.one, commit=commit)
    play.goes_on(*values, offset=COMMITTED_OFFSET if commit else 1)


def markers_through(proxy: MarkerProxy) -> int:
    """Return how many requests for markers have come by a proxy."""
    return sum(one.header.api_key == ApiKey.WRITE_TXN_MARKERS for one in proxy.exchanges)


@by_version
def test_late_marker_of_a_dead_coordinator_does_not_end_the_next_transaction(
    cluster: Cluster, parts: Parts, wire: Routed, own_epochs: bool
) -> None:
    play = Play(cluster, wire, parts, group_on=parts.third, own_epochs=own_epochs)
    proxy = cluster.proxies[parts.away]
    play.write(BEFORE, offset=1)
    play.one.finish(commit=True)
    play.write(b"open", offset=COMMITTED_OFFSET)
    proxy.keep_next("request")
    assert play.one.end(commit=True) is NONE
    proxy.await_kept()
    until(lambda: play.due == {play.places[parts.away]}, "the other markers")
    assert play.is_open(parts.away)
    cluster[parts.coordinator].kill()
    restart(cluster, parts.coordinator)
    play.await_state("CompleteCommit")
    play.check(BEFORE, b"open", offset=COMMITTED_OFFSET)

    play.write(b"aborted", offset=99)
    before = cluster[parts.away].log.count(LATE)
    proxy.release()
    until(lambda: cluster[parts.away].log.count(LATE) > before, "refused")
    assert all(play.is_open(broker_id) for broker_id in IDS)
    play.one.finish(commit=False)
    play.goes_on(BEFORE, b"open", offset=COMMITTED_OFFSET)


# -- two producers ---------------------------------------------------------------------------------


@by_version
def test_producer_is_fenced_by_one_that_begins_at_another_broker(
    cluster: Cluster, parts: Parts, wire: Routed, own_epochs: bool
) -> None:
    play = Play(cluster, wire, parts, group_on=parts.third, own_epochs=own_epochs)
    play.write(BEFORE, offset=1)
    play.one.finish(commit=True)
    play.write(b"fenced", offset=COMMITTED_OFFSET)
    old = play.one
    with closing(Routed(cluster.ports, home=parts.away)) as elsewhere:
        for broker_id in (parts.away, parts.third):
            asked = InitProducerIdRequest(
                transactional_id=old.transactional_id, transaction_timeout_ms=60_000
            )
            answer = elsewhere.to(broker_id).ask(asked, 4)
            assert answer.error_code == ErrorCode.NOT_COORDINATOR
        other = Transactor(
            elsewhere,
            old.transactional_id,
            own_epochs=own_epochs,
        ).start()
        assert other.producer.id == old.producer.id
        assert other.producer.epoch > old.producer.epoch
        play.check(BEFORE, offset=1)
        is_fenced(play, old)
        play.one = other
        play.write(b"mine", offset=8)
        is_fenced(play, old)
        assert all(play.is_open(broker_id) for broker_id in IDS)
        other.finish(commit=True)
        play.check(BEFORE, b"mine", offset=8)
