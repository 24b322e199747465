"""A broker's own nodes: cluster id, broker id, registration, and blocks of producer ids."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest

from plog.cluster.broker_registration import (
    BrokerRegistration,
    check_is_free,
    create_persistent_paths,
    ensure_cluster_id,
    generate_broker_id,
)
from plog.cluster.embedded_store import EmbeddedStore
from plog.cluster.producer_ids import (
    BLOCK_SIZE,
    LARGEST_PRODUCER_ID,
    ProducerIds,
    raise_producer_ids,
)
from plog.cluster.store import SetOp
from plog.cluster.znodes import (
    PERSISTENT_PATHS,
    PRODUCER_ID_BLOCK,
    BrokerNode,
    Endpoint,
    ProducerIdBlock,
)
from plog.errors import DuplicateBrokerRegistration, UnknownServerError
from plog.types import uuid_from_text

NODE = BrokerNode((Endpoint("PLAINTEXT", "h", 9092),), 1)


def test_persistent_paths_are_there_and_stay(embedded: EmbeddedStore) -> None:
    create_persistent_paths(embedded)
    zxid = embedded._tree.zxid
    create_persistent_paths(embedded)
    assert embedded._tree.zxid == zxid
    assert all(embedded.exists(path) for path in PERSISTENT_PATHS)


def test_cluster_id_is_drawn_once(embedded: EmbeddedStore) -> None:
    drawn = ensure_cluster_id(embedded)
    uuid_from_text(drawn)
    assert ensure_cluster_id(embedded) == drawn
    assert ensure_cluster_id(embedded, "another") == drawn


def test_cluster_id_of_the_log_dirs_is_taken_up(embedded: EmbeddedStore) -> None:
    assert ensure_cluster_id(embedded, "abcdefghijklmnopqrstuv") == "abcdefghijklmnopqrstuv"


def test_generated_broker_ids_begin_above_the_reserved_ones(embedded: EmbeddedStore) -> None:
    assert [generate_broker_id(embedded, 1000) for _ in range(3)] == [1001, 1002, 1003]


def test_broker_epoch_is_the_creating_transaction_and_only_grows(
    log_dirs: list[Path], clock
) -> None:
    epochs = []
    for _ in range(3):
        store = EmbeddedStore(log_dirs, clock=clock)
        create_persistent_paths(store)
        registration = BrokerRegistration(store, 0)
        epochs.append(registration.register(NODE))
        assert store.get("/brokers/ids/0")[1].czxid == epochs[-1]
        assert registration.register(NODE) == epochs[-1]
        registration.update(BrokerNode((Endpoint("PLAINTEXT", "other", 1),), 2))
        assert store.get("/brokers/ids/0")[1].czxid == epochs[-1]
        store.close()
    assert epochs == sorted(set(epochs))


def as_of_session(store: EmbeddedStore, session: int) -> None:
    """Make the registration that of another session, as only a server's expiry could."""
    node = store._tree.nodes["/brokers/ids/0"]
    store._tree._nodes["/brokers/ids/0"] = node._replace(ephemeral_owner=session)


def test_registration_of_another_process_is_fatal(embedded: EmbeddedStore) -> None:
    create_persistent_paths(embedded)
    BrokerRegistration(embedded, 0).register(NODE)
    as_of_session(embedded, 99)
    with pytest.raises(DuplicateBrokerRegistration):
        BrokerRegistration(embedded, 0).register(NODE)


def test_registration_of_our_expired_session_is_replaced(
    embedded: EmbeddedStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    create_persistent_paths(embedded)
    registration = BrokerRegistration(embedded, 0)
    first = registration.register(NODE)
    monkeypatch.setattr(embedded, "is_own", {99, embedded.session_id}.__contains__)
    as_of_session(embedded, 99)
    second = registration.register(NODE)
    assert second > first
    assert embedded.get("/brokers/ids/0")[1].ephemeral_owner == embedded.session_id


IPV6 = Endpoint("B", "::1", 9093)


@pytest.mark.parametrize(
    ("endpoint", "address"),
    [
        (Endpoint("PLAINTEXT", "h", 9092), "h:9092"),
        (Endpoint("OTHER", "H", 9092), "h:9092"),
        (IPV6, "[::1]:9093"),
    ],
)
def test_address_of_another_broker_is_refused(
    embedded: EmbeddedStore, endpoint: Endpoint, address: str
) -> None:
    create_persistent_paths(embedded)
    BrokerRegistration(embedded, 0).register(BrokerNode((*NODE.endpoints, IPV6), 1))
    reason = f"broker 0 is registered at {address}, which broker 1".replace("[", r"\[")
    with pytest.raises(DuplicateBrokerRegistration, match=reason):
        check_is_free(embedded, 1, [Endpoint("A", "other", 1), endpoint])
    check_is_free(embedded, 0, [endpoint])


def test_other_ports_and_unreadable_brokers_do_not_conflict(embedded: EmbeddedStore) -> None:
    check_is_free(embedded, 1, NODE.endpoints)
    create_persistent_paths(embedded)
    BrokerRegistration(embedded, 0).register(NODE)
    embedded.create("/brokers/ids/7", b"junk")
    embedded.create("/brokers/ids/x", b"junk")
    check_is_free(embedded, 1, [Endpoint("PLAINTEXT", "h", 9093)])


def test_of_two_brokers_that_register_one_address_at_once_the_later_is_refused(
    embedded: EmbeddedStore,
) -> None:
    create_persistent_paths(embedded)
    both = [BrokerRegistration(embedded, broker_id) for broker_id in range(2)]
    for broker_id in range(2):
        check_is_free(embedded, broker_id, NODE.endpoints)
    sooner, later = [one.register(NODE) for one in both]
    both[0].check_addresses(NODE, sooner)
    with pytest.raises(DuplicateBrokerRegistration, match="broker 0 is registered at h:9092"):
        both[1].check_addresses(NODE, later)


def test_producer_ids_are_never_given_twice(embedded: EmbeddedStore) -> None:
    create_persistent_paths(embedded)
    brokers = [ProducerIds(embedded, broker_id) for broker_id in (0, 1)]
    given: list[int] = []

    def take(ids: ProducerIds) -> None:
        mine = [ids.next() for _ in range(BLOCK_SIZE + 10)]
        given.extend(mine)

    threads = [threading.Thread(target=take, args=(ids,)) for ids in brokers for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(set(given)) == len(given) == 4 * (BLOCK_SIZE + 10)
    # A restarted broker takes a new block, whatever it had left.
    assert ProducerIds(embedded, 0).next() > max(given) - BLOCK_SIZE
    last = ProducerIdBlock.decode(embedded.get(PRODUCER_ID_BLOCK)[0])
    assert (last.broker_id, last.last - last.first + 1) == (0, BLOCK_SIZE)


def test_block_is_written_before_its_first_id(embedded: EmbeddedStore) -> None:
    create_persistent_paths(embedded)
    assert ProducerIds(embedded, 3).next() == 0
    assert embedded.get(PRODUCER_ID_BLOCK)[0] == (
        b'{"version":1,"broker":3,"block_start":"0","block_end":"999"}'
    )


def test_block_that_another_broker_took_meanwhile_is_left_to_it(
    embedded: EmbeddedStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    create_persistent_paths(embedded)
    get, raced = embedded.get, []

    def race(path: str):
        found = get(path)
        if not raced:
            raced.append(True)
            embedded.multi([SetOp(PRODUCER_ID_BLOCK, ProducerIdBlock(9, 0, 999).encode())])
        return found

    monkeypatch.setattr(embedded, "get", race)
    assert ProducerIds(embedded, 0).next() == 1000


@pytest.mark.parametrize(
    ("largest", "first"), [(-1, 1_000_000), (999, 1000), (1000, 1_001_001), (1999, 1_002_000)]
)
def test_ids_go_on_above_those_that_logs_have(
    embedded: EmbeddedStore, monkeypatch: pytest.MonkeyPatch, largest: int, first: int
) -> None:
    create_persistent_paths(embedded)
    if largest >= 0:
        embedded.set(PRODUCER_ID_BLOCK, ProducerIdBlock(9, 0, 999).encode())
    set_node, raced = embedded.set, []

    def race(*arguments):
        if not raced:
            raced.append(set_node(PRODUCER_ID_BLOCK, embedded.get(PRODUCER_ID_BLOCK)[0]))
        return set_node(*arguments)

    monkeypatch.setattr(embedded, "set", race)
    raise_producer_ids(embedded, 0, largest)
    assert ProducerIds(embedded, 0).next() == first


@pytest.mark.parametrize("made_up", [LARGEST_PRODUCER_ID, LARGEST_PRODUCER_ID - 2_000_000])
def test_id_that_a_client_made_up_uses_no_ids_up(embedded: EmbeddedStore, made_up: int) -> None:
    create_persistent_paths(embedded)
    raise_producer_ids(embedded, 0, made_up)
    assert ProducerIds(embedded, 0).next() == 0


def test_when_all_ids_are_used_the_broker_says_so(embedded: EmbeddedStore) -> None:
    create_persistent_paths(embedded)
    last = ProducerIdBlock(0, LARGEST_PRODUCER_ID - 999, LARGEST_PRODUCER_ID)
    embedded.set(PRODUCER_ID_BLOCK, last.encode())
    with pytest.raises(UnknownServerError):
        ProducerIds(embedded, 0).next()
