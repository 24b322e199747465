"""Where coordinators are looked for, and what becomes of the connection to one."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from plog.client import coordinators
from plog.client.connection import Connection
from plog.client.coordinators import Coordinator, Coordinators, KeyType, find_coordinator
from plog.client.metadata import Cluster
from plog.errors import CoordinatorNotAvailable, ErrorCode, KafkaError
from plog.protocol.api_keys import ApiKey
from plog.protocol.messages.groups import FindCoordinatorRequest, FindCoordinatorResponse
from plog.protocol.messages.metadata import MetadataRequest
from plog.protocol.messages.transactions import EndTxnRequest, EndTxnResponse
from tests.client.fake_broker import CLOSE, TxnBroker

END = EndTxnRequest(transactional_id="x", producer_id=1, producer_epoch=0, committed=True)


@pytest.fixture
def fake() -> Iterator[TxnBroker]:
    with TxnBroker() as running:
        yield running


@pytest.fixture
def cluster(fake: TxnBroker) -> Iterator[Cluster]:
    with Cluster(fake.bootstrap) as made:
        yield made


@pytest.mark.parametrize("kind", list(KeyType))
def test_coordinator_is_asked_for_by_its_type(
    fake: TxnBroker, cluster: Cluster, kind: KeyType
) -> None:
    for _ in range(2):
        assert find_coordinator(cluster, kind, "x").node_id == 1
    asked = [one for one in fake.requests if isinstance(one, FindCoordinatorRequest)]
    assert [(one.key_type, one.key) for one in asked] == [(int(kind), "x")] * 2
    # Where the brokers are is asked once: it is where FindCoordinator says, too.
    assert fake.count(MetadataRequest) == 1


@pytest.mark.parametrize(
    ("kind", "name"), [(KeyType.GROUP, "group 'x'"), (KeyType.TRANSACTION, "transactional id 'x'")]
)
def test_refusal_names_what_was_asked_for(
    fake: TxnBroker, cluster: Cluster, kind: KeyType, name: str
) -> None:
    fake.lots[ApiKey.FIND_COORDINATOR] = [ErrorCode.COORDINATOR_NOT_AVAILABLE]
    with pytest.raises(CoordinatorNotAvailable, match=f"{name}: no broker coordinates it"):
        find_coordinator(cluster, kind, "x")


def test_coordinator_that_has_left_is_not_available(fake: TxnBroker, cluster: Cluster) -> None:
    fake.answers[ApiKey.FIND_COORDINATOR] = lambda *_: FindCoordinatorResponse(
        error_code=0, node_id=9, host="gone", port=1
    )
    with pytest.raises(CoordinatorNotAvailable, match="broker 9, is down"):
        find_coordinator(cluster, KeyType.GROUP, "x")


def test_connection_is_kept_until_it_breaks_or_is_forgotten(
    fake: TxnBroker, cluster: Cluster
) -> None:
    coordinator = Coordinator(cluster, KeyType.TRANSACTION, "x")
    for _ in range(3):
        coordinator.call(END, EndTxnResponse)
    assert fake.count(FindCoordinatorRequest) == 1
    fake.lots[ApiKey.END_TXN] = [CLOSE]
    with pytest.raises(KafkaError):
        coordinator.call(END, EndTxnResponse)
    coordinator.call(END, EndTxnResponse)
    assert fake.count(FindCoordinatorRequest) == 2
    coordinator.forget()
    coordinator.call(END, EndTxnResponse)
    assert fake.count(FindCoordinatorRequest) == 3
    coordinator.forget()


def test_wait_for_a_coordinator_is_logged_once(
    fake: TxnBroker,
    cluster: Cluster,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    fake.lots[ApiKey.FIND_COORDINATOR] = [ErrorCode.COORDINATOR_NOT_AVAILABLE] * 10_000
    groups = Coordinators(cluster, KeyType.GROUP, timeout_ms=300)
    with pytest.raises(CoordinatorNotAvailable):
        groups.ask("gx", lambda *_: None)
    assert caplog.messages == []  # a short wait is usual
    monkeypatch.setattr(coordinators, "SILENT_S", 0)
    with pytest.raises(CoordinatorNotAvailable):
        groups.ask("gx", lambda *_: None)
    assert caplog.messages == ["waiting for the coordinator of group 'gx'"]


def test_connection_is_newer_only_if_it_began_after_the_other_was_open(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Both open at once: the broker may have accepted either of them first."""
    ends, joins = (Coordinator(cluster, KeyType.TRANSACTION, "x") for _ in range(2))
    opened = cluster.open

    def open_with_another(node_id: int) -> Connection:
        monkeypatch.setattr(cluster, "open", opened)
        connection = opened(node_id)
        ends.call(END, EndTxnResponse)
        return connection

    monkeypatch.setattr(cluster, "open", open_with_another)
    joins.call(END, EndTxnResponse)
    assert not joins.is_newer_than(ends)
    joins.forget()
    joins.call(END, EndTxnResponse)
    assert joins.is_newer_than(ends)
    assert not ends.is_newer_than(joins)
    joins.forget()
    ends.forget()
