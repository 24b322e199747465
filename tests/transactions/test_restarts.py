"""A broker that ends at any point of a transaction: what was decided stands, the rest can go on."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pytest

from plog.client.admin import Admin
from plog.cluster.features import TRANSACTION_VERSION
from plog.errors import ErrorCode
from plog.protocol.messages.api_versions import ApiVersionsRequest
from plog.protocol.messages.group_admin import DeleteGroupsRequest, ListGroupsRequest
from plog.types import TopicPartition
from tests.compat.programs import JAVA, run_program
from tests.coordinator.conftest import TRANSACTION, await_coordinator
from tests.handlers.wire import create_topic, speak
from tests.planes import Plane
from tests.servers import BrokerProcess
from tests.transactions.conftest import SETTINGS
from tests.transactions.hanging import COORDINATOR_EPOCH, leave_hanging
from tests.transactions.test_administration import write_marker
from tests.transactions.transactor import Transactor, committed_offset, read
from tests.waiting import until

NONE = ErrorCode.NONE
AT = TopicPartition("t", 0)


@pytest.fixture(params=[BrokerProcess.kill, BrokerProcess.stop], ids=["kill", "stop"])
def end(request: pytest.FixtureRequest) -> Callable[[BrokerProcess], None]:
    ends: Callable[[BrokerProcess], None] = request.param
    return ends


@pytest.mark.parametrize("own_epochs", [False, True], ids=["v1", "v2"])
@pytest.mark.parametrize("commit", [True, False])
@pytest.mark.parametrize("at_once", [True, False], ids=["at-once", "done"])
def test_outcome_stands_after_the_broker_has_ended(
    plane: Plane,
    tmp_path: Path,
    end: Callable[[BrokerProcess], None],
    own_epochs: bool,
    commit: bool,
    at_once: bool,
) -> None:
    broker = BrokerProcess(tmp_path, overrides=SETTINGS).start()
    with closing(speak(broker.port)) as wire:
        create_topic(wire, AT.topic)
        await_coordinator(wire, "g")
        one = Transactor(wire, "tx", own_epochs=own_epochs).start()
        one.send(AT, b"no" if not commit else b"yes")
        producer = one.producer
        assert one.add_offsets("g") is NONE
        assert one.commit_offset("g", AT, 3) is NONE
        if at_once:
            assert one.end(commit=commit) is NONE
        else:
            one.finish(commit=commit)
    end(broker)
    with broker, closing(speak(broker.port)) as wire:
        again = Transactor(wire, "tx", producer=producer, own_epochs=own_epochs)
        await_coordinator(wire, "tx", TRANSACTION)
        done = "CompleteCommit" if commit else "CompleteAbort"
        until(lambda: again.described().transaction_state == done, done)
        assert again.end(commit=commit) is NONE
        assert again.producer == one.producer
        assert read(wire, AT) == ([b"yes"] if commit else [])
        await_coordinator(wire, "g")
        until(
            lambda: (
                committed_offset(wire, "g", AT, require_stable=True) == (NONE, 3 if commit else -1)
            )
        )


def test_deleted_group_stays_so_whatever_becomes_of_its_transactions(
    plane: Plane, tmp_path: Path, end: Callable[[BrokerProcess], None]
) -> None:
    broker = BrokerProcess(tmp_path, overrides=SETTINGS).start()
    with closing(speak(broker.port)) as wire:
        create_topic(wire, AT.topic)
        await_coordinator(wire, "g")
        one = Transactor(wire, "tx").start()
        assert one.add_offsets("g") is NONE
        assert one.commit_offset("g", AT, 3) is NONE
        (deleted,) = wire.ask(DeleteGroupsRequest(groups_names=["g"]), 2).results
        assert deleted.error_code == NONE
    end(broker)
    with broker, closing(speak(broker.port)) as wire:
        again = Transactor(wire, "tx", producer=one.producer)
        await_coordinator(wire, "tx", TRANSACTION)
        await_coordinator(wire, "g")
        assert wire.ask(ListGroupsRequest(), 4).groups == []
        again.finish(commit=True)
        assert committed_offset(wire, "g", AT, require_stable=True) == (NONE, -1)
        assert wire.ask(ListGroupsRequest(), 4).groups == []


def test_open_transaction_goes_on_with_the_next_start(
    plane: Plane, tmp_path: Path, end: Callable[[BrokerProcess], None]
) -> None:
    broker = BrokerProcess(tmp_path, overrides=SETTINGS).start()
    with closing(speak(broker.port)) as wire:
        create_topic(wire, AT.topic)
        one = Transactor(wire, "tx").start()
        one.send(AT, b"a")
    end(broker)
    with broker, closing(speak(broker.port)) as wire:
        await_coordinator(wire, "tx", TRANSACTION)
        again = Transactor(wire, "tx", producer=one.producer, sequences=one.sequences)
        until(lambda: again.described().transaction_state == "Ongoing")
        assert read(wire, AT) == []
        assert again.produce(AT, b"b").error_code == NONE
        again.finish(commit=True)
        assert read(wire, AT) == [b"a", b"b"]


@pytest.mark.parametrize("ends_before", [True, False], ids=["ended", "open"])
def test_partition_that_joined_before_the_restart_is_asked_about(
    plane: Plane, tmp_path: Path, end: Callable[[BrokerProcess], None], ends_before: bool
) -> None:
    """What the partition itself knew of its transaction before the first write is gone."""
    broker = BrokerProcess(tmp_path, overrides=SETTINGS).start()
    with closing(speak(broker.port)) as wire:
        create_topic(wire, AT.topic)
        one = Transactor(wire, "tx").start()
        one.send(AT, b"a")
        one.finish(commit=True)
        one.join(AT)
        if ends_before:
            assert one.end(commit=True) is NONE
    end(broker)
    with broker, closing(speak(broker.port)) as wire:
        await_coordinator(wire, "tx", TRANSACTION)
        again = Transactor(wire, "tx", producer=one.producer, sequences=one.sequences)
        if ends_before:
            until(lambda: again.described().transaction_state == "CompleteCommit")
            assert again.produce(AT, b"late").error_code == ErrorCode.TRANSACTION_ABORTABLE
        else:
            assert again.produce(AT, b"b").error_code == NONE
            again.finish(commit=True)
        assert read(wire, AT) == ([b"a"] if ends_before else [b"a", b"b"])


@pytest.mark.parametrize("own_epochs", [False, True], ids=["v1", "v2"])
@pytest.mark.parametrize("commit", [True, False], ids=["commit", "abort"])
def test_coordinator_dies_in_each_state_and_partitions_that_come_back_get_their_markers(
    plane: Plane, tmp_path: Path, own_epochs: bool, commit: bool
) -> None:
    """A disk that is away keeps the transaction prepared for as long as it takes."""
    broker = BrokerProcess(tmp_path, overrides=SETTINGS)
    with broker, closing(speak(broker.port)) as wire:
        await_coordinator(wire, "g")
        await_coordinator(wire, "tx", TRANSACTION)
    first, disk, elsewhere = broker.log_dirs[0], tmp_path / "disk", tmp_path / "elsewhere"
    broker.overrides["log.dirs"] = f"{first},{disk}"
    broker.start()
    with closing(speak(broker.port)) as wire:
        create_topic(wire, AT.topic, partitions=9)
        here, away = (
            TopicPartition(AT.topic, min(int(log.name[2:]) for log in place.glob("t-*")))
            for place in (first, disk)
        )
        assert not list(disk.glob("__*")), "the coordinators' logs are to stay"
        one = Transactor(wire, "tx", own_epochs=own_epochs).start()
        one.send(here, b"here")
        one.send(away, b"away")
        producer = one.producer
    broker.kill()
    disk.rename(elsewhere)
    ending, done = (
        ("PrepareCommit", "CompleteCommit") if commit else ("PrepareAbort", "CompleteAbort")
    )
    seen = [b"here"] if commit else []

    broker.start()
    with closing(speak(broker.port)) as wire:
        await_coordinator(wire, "tx", TRANSACTION)
        again = Transactor(wire, "tx", producer=producer, own_epochs=own_epochs)
        until(lambda: again.described().transaction_state == "Ongoing", "died before PREPARE")
        assert read(wire, here) == []
        assert again.end(commit=commit) is NONE
        until(lambda: again.described().topics[0].partitions == [away.partition], "the marker here")
        assert again.described().transaction_state == ending
        assert read(wire, here) == seen
        # Also of the next transaction, which a client may give up before it has written.
        for which in (True, False):
            assert again.end(commit=which) is ErrorCode.CONCURRENT_TRANSACTIONS
    broker.kill()

    broker.start()
    with closing(speak(broker.port)) as wire:
        await_coordinator(wire, "tx", TRANSACTION)
        again = Transactor(wire, "tx", producer=producer, own_epochs=own_epochs)
        until(lambda: again.described().transaction_state == ending, "died after PREPARE")
        assert read(wire, here) == seen
        assert again.init(was=again.producer) is ErrorCode.CONCURRENT_TRANSACTIONS
    broker.kill()

    elsewhere.rename(disk)
    broker.start()
    with closing(speak(broker.port)) as wire:
        await_coordinator(wire, "tx", TRANSACTION)
        again = Transactor(wire, "tx", producer=producer, own_epochs=own_epochs)
        until(lambda: again.described().transaction_state == done, done)
        assert read(wire, here) == seen
        assert read(wire, away) == ([b"away"] if commit else [])
        assert read(wire, away, committed=False) == [b"away"]
    broker.kill()

    with broker, closing(speak(broker.port)) as wire:
        await_coordinator(wire, "tx", TRANSACTION)
        last = Transactor(wire, "tx", own_epochs=own_epochs)
        until(lambda: last.described().transaction_state == done, "died after COMPLETE")
        last.start()
        last.send(away, b"next")
        last.finish(commit=True)
        assert read(wire, here) == seen
        assert read(wire, away) == ([b"away", b"next"] if commit else [b"next"])


def test_transaction_whose_marker_is_refused_is_prepared_after_the_restart(
    plane: Plane, tmp_path: Path, end: Callable[[BrokerProcess], None]
) -> None:
    broker = BrokerProcess(tmp_path, overrides=SETTINGS).start()
    with closing(speak(broker.port)) as wire:
        create_topic(wire, AT.topic)
        one = Transactor(wire, "tx").start()
        leave_hanging(one, AT, b"hangs")
    end(broker)
    with broker, closing(speak(broker.port)) as wire:
        await_coordinator(wire, "tx", TRANSACTION)
        again = Transactor(wire, "tx", producer=one.producer)
        until(lambda: not again.described().topics, "its marker is refused again")
        assert again.described().transaction_state == "PrepareCommit"
        aborted = write_marker(wire, AT, one.producer, commit=False, epoch=COORDINATOR_EPOCH)
        assert aborted is NONE
        until(lambda: again.described().transaction_state == "CompleteCommit")
        assert read(wire, AT) == []
    assert broker.log.count("no marker for producer") == 3, broker.log


def test_producer_ids_are_never_given_twice(plane: Plane, tmp_path: Path) -> None:
    broker = BrokerProcess(tmp_path, overrides=SETTINGS)
    seen = set()
    for turn in range(3):
        broker.start()
        with closing(speak(broker.port)) as wire:
            for n in range(3):
                seen.add(Transactor(wire, f"tx-{turn}-{n}").start().producer.id)
        broker.kill()
    assert len(seen) == 9


# -- which version clients speak -------------------------------------------------------------------


def level_of(broker: BrokerProcess) -> int:
    """Return the level of transactions that ApiVersions tells a client of."""
    with closing(speak(broker.port)) as wire:
        answer = wire.ask(
            ApiVersionsRequest(client_software_name="test", client_software_version="1"), 4
        )
        levels = {one.name: one.max_version_level for one in answer.finalized_features}
        return int(levels.get(TRANSACTION_VERSION, 0))


def epoch_of_java(broker: BrokerProcess, topic: str) -> int:
    """Have Java's newest client abort and commit a transaction; return its last epoch."""
    with closing(speak(broker.port)) as wire:
        create_topic(wire, topic)
    java = JAVA[-1]
    settings = [f"bootstrap.servers={broker.bootstrap}", f"transactional.id={topic}"]
    said = run_program([*java.late_command(java.built()), topic, *settings])
    assert said.split() == ["written", "write", "done", "abort", "done", "next", "done"]
    with closing(speak(broker.port)) as wire:
        one, at = Transactor(wire, topic), TopicPartition(topic, 0)
        until(lambda: one.described().transaction_state == "CompleteCommit")
        assert read(wire, at) == [b"next"]
        return int(one.described().producer_epoch)


def error_of_no_member(broker: BrokerProcess, name: str, *, own_epochs: bool) -> ErrorCode:
    """Write to a partition that has not joined, and return the error; nothing is left open."""
    with closing(speak(broker.port)) as wire:
        one = Transactor(wire, name, own_epochs=own_epochs).start()
        error = ErrorCode(one.produce(AT).error_code)
        if error is NONE:
            one.finish(commit=False)
        return error


def test_level_of_transactions_stands_after_the_broker_was_killed(
    plane: Plane, tmp_path: Path
) -> None:
    """Clients go by it. The broker goes by the versions of requests, as Kafka 4.1 at each level."""
    broker = BrokerProcess(tmp_path, overrides=SETTINGS).start()
    with closing(speak(broker.port)) as wire:
        create_topic(wire, AT.topic)
        await_coordinator(wire, "any", TRANSACTION)
    for level, raised in ((1, 0), (2, 2)):
        with Admin(broker.bootstrap) as admin:
            admin.set_feature(TRANSACTION_VERSION, level, lower=level == 1)
        broker.kill()
        broker.start()
        assert level_of(broker) == level
        assert epoch_of_java(broker, f"java-{level}") == raised
        joined_not = error_of_no_member(broker, f"v1-{level}", own_epochs=False)
        assert joined_not is ErrorCode.TRANSACTION_ABORTABLE
        assert error_of_no_member(broker, f"v2-{level}", own_epochs=True) is NONE
    broker.stop()
