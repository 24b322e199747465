"""Targets over what coordinators read: what members tell, and the records of their own logs."""

from __future__ import annotations

import logging
import struct
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import partial

from plog._native import batch
from plog._reference import codec as reference
from plog.coordinator import group_log, txn_log
from plog.coordinator.classic_group import ClassicGroup
from plog.coordinator.group_events import (
    Answer,
    Effect,
    Join,
    JoinAnswer,
    Protocol,
    Stored,
    StoreGroup,
    Sync,
    SyncAnswer,
)
from plog.coordinator.group_shard import Group, Shard
from plog.coordinator.group_states import GroupState
from plog.coordinator.replay import Entry, Replayed
from plog.coordinator.subscriptions import CONSUMER_PROTOCOL, subscribed_topics
from plog.coordinator.txn import Txn
from plog.coordinator.txn_events import (
    AddPartitions,
    EndTxn,
    Event,
    InitProducer,
    LookAtAge,
    LookAtTimeout,
    Producer,
    Store,
)
from plog.coordinator.txn_shard import TxnShard
from plog.errors import CorruptRecord, ErrorCode
from plog.protocol.messages.consumer_protocol import ConsumerProtocolSubscription
from plog.types import TopicPartition

from .common import HEADER_BYTES, exact, said, with_right_crcs
from .record_targets import NOW_MS

AT = TopicPartition("t", 0)
DAY_MS = 24 * 60 * 60 * 1000
SPARE_ID = 77


# -- what members tell -----------------------------------------------------------------------------


def members(data: memoryview) -> None:
    """How long what the first member tells is, and its assignment, 4 bytes; they; the other's."""
    if len(data) < 4:
        return
    told_bytes, assignment_bytes = struct.unpack_from(">HH", data)
    rest = bytes(data[4:])
    told, rest = rest[:told_bytes], rest[told_bytes:]
    assignment, other = rest[:assignment_bytes], rest[assignment_bytes:]
    group = ClassicGroup("g")
    answers: dict[object, object] = {}
    stored = _execute(group.on(_join("a", told)), answers)
    _execute(group.on(_join("b", other)), answers)
    # The first one hears of the second, and comes again.
    _execute(group.on(_join("a", told, is_member=True)), answers)
    joined = answers["a"]
    assert isinstance(joined, JoinAnswer)
    views = {view.member_id: view.metadata for view in joined.members}
    assert views == {"a": told, "b": other}
    assigned = {"a": assignment, "b": told}
    for name in ("b", "a"):
        sync = Sync(name, name, None, group.generation, CONSUMER_PROTOCOL, "range", assigned)
        stored = _execute(group.on(sync), answers)
    assert stored is not None
    value = group_log.encode_group(group, stored.assignments, NOW_MS)
    _execute(group.on(Stored(stored.ticket)), answers)
    assert group.state is GroupState.STABLE
    for name in assigned:
        synced = answers[name]
        assert isinstance(synced, SyncAnswer)
        assert synced.assignment == assigned[name]
    again = group_log.decode_group("g", value)
    assert {one.member_id: one.assignment for one in again.roster} == assigned
    expected = [_topics(metadata) for metadata in (told, other)]
    for one in (group, again):
        found = subscribed_topics(one)
        if None in expected:
            assert found is None
        else:
            assert found == {name for topics in expected for name in topics or ()}
        Group(one).expired(NOW_MS, DAY_MS)


def _join(name: str, metadata: bytes, *, is_member: bool = False) -> Join:
    return Join(
        token=name,
        member_id=name if is_member else "",
        new_member_id=name,
        instance_id=None,
        client_id="client",
        client_host="/127.0.0.1",
        rebalance_timeout_ms=60_000,
        session_timeout_ms=10_000,
        protocol_type=CONSUMER_PROTOCOL,
        protocols=(Protocol("range", metadata),),
        must_know_id=False,
    )


def _execute(effects: list[Effect], answers: dict[object, object]) -> StoreGroup | None:
    stored = None
    for effect in effects:
        if isinstance(effect, Answer):
            answers[effect.token] = effect.answer
        elif isinstance(effect, StoreGroup):
            stored = effect
    return stored


def _topics(metadata: bytes) -> list[str] | None:
    """Return what the reader of declarations says that a member wants."""
    if len(metadata) < 2:
        return None
    (version,) = struct.unpack_from(">h", metadata)
    if version < 0:
        return None
    cls = ConsumerProtocolSubscription
    found = said(reference.decode, cls, min(version, cls.api.versions.high), metadata, 2)
    if isinstance(found, str):
        assert found.startswith("InvalidRequest: ")
        return None
    topics: list[str] = found[0].topics
    return topics


# -- the coordinators' logs ------------------------------------------------------------------------


def coordinator_records(data: memoryview) -> None:
    """Whose, a byte; how long the key is, 2 bytes; key and value, as they stand in a log."""
    if len(data) < 3:
        return
    key_bytes = struct.unpack_from(">H", data, 1)[0]
    key, value = bytes(data[3 : 3 + key_bytes]), bytes(data[3 + key_bytes :])
    reads: list[tuple[Callable[[bytes], object], bytes]] = [
        (group_log.decode_key, key),
        (txn_log.decode_key, key),
        (group_log.decode_offset, value),
        (group_log.group_since_ms, value),
        (partial(group_log.decode_group, "g"), value),
        (txn_log.decode_value, value),
    ]
    for read, what in reads:
        with suppress(CorruptRecord):  # any other error is a finding
            read(what)
    table = {key: Entry(value, 5)}
    of_transactions = {} if data[0] & 2 else {SPARE_ID: {key: Entry(value, 6)}}
    _fill(data[0], Replayed(table, of_transactions, 7))


def coordinator_logs(data: memoryview) -> None:
    """Whose, a byte; then the batches of a log, as a broker that starts reads them."""
    if len(data) < 1:
        return
    replayed = Replayed()
    left = exact(with_right_crcs(data[1:]))
    while len(left) >= HEADER_BYTES:
        header = said(batch.check_batch, left)
        if isinstance(header, str):
            break
        one, left = exact(left[: header.size_bytes]), left[header.size_bytes :]
        try:
            replayed.take_batch(one, header)
        except (CorruptRecord, ValueError):
            return  # the partition is not served
    replayed.drop_deleted()
    _fill(data[0], replayed)


def _fill(whose: int, replayed: Replayed) -> None:
    """Have a coordinator take in what a log says, and do with it what it does at a start."""
    with _silence():
        if whose & 1:
            txns = TxnShard(0, 3)
            txns.fill(replayed)
            for txn in txns:
                _look_at_txn(txn)
            return
        shard = Shard(0, 3)
        shard.fill(replayed)
        for group in shard:
            _look_at_offsets(group)
        for producer_id in replayed.undecided:
            shard.end_transaction(producer_id, is_commit=bool(whose & 4))
        for group in shard:
            _look_at_offsets(group)
            _look_at_group(group)


def _look_at_offsets(group: Group) -> None:
    for _, committed in group.offsets:
        assert group_log.decode_offset(group_log.encode_offset(committed)) == committed
    expired = group.expired(NOW_MS, DAY_MS)
    assert len(set(expired)) == len(expired) <= len(group.offsets)


def _look_at_group(group: Group) -> None:
    classic = group.machine
    if not isinstance(classic, ClassicGroup):
        return
    assert classic.state is (GroupState.STABLE if classic.roster else GroupState.EMPTY)
    assert len(classic.resume()) == len(classic.roster)
    assignments = {member.member_id: member.assignment for member in classic.roster}
    if classic.protocol_name is not None:  # else nothing that members told is known
        value = group_log.encode_group(classic, assignments, group.since_ms)
        assert group_log.decode_group(classic.group_id, value) == classic
        assert group_log.group_since_ms(value) == group.since_ms
    for name in assignments:
        assert classic.refuse_commit(name, None, classic.generation - 1) is not ErrorCode.NONE
    classic.die(ErrorCode.NOT_COORDINATOR)
    assert not classic.roster


def _look_at_txn(txn: Txn) -> None:
    value = txn.value
    assert value is not None
    assert txn_log.decode_value(txn_log.encode_value(value)) == value
    txn.resume()
    txn.missing(value.producer, [AT])
    for event in _events(value.producer):
        for effect in Txn(txn.transactional_id, value).on(event):
            if isinstance(effect, Store) and effect.value is not None:
                written = txn_log.encode_value(effect.value)
                assert txn_log.decode_value(written) == effect.value


def _events(producer: Producer) -> Iterator[Event]:
    for was in (None, producer):
        yield InitProducer("token", 1000, NOW_MS, was, SPARE_ID)
    yield AddPartitions("token", producer, frozenset([AT]), NOW_MS, DAY_MS)
    for commit in (False, True):
        yield EndTxn("token", producer, commit, NOW_MS, 0, SPARE_ID)
    yield LookAtTimeout(NOW_MS, DAY_MS)
    yield LookAtAge(NOW_MS, DAY_MS)


@contextmanager
def _silence() -> Iterator[None]:
    """Have nothing logged: each record that says nothing is told."""
    before = logging.root.manager.disable
    logging.disable(logging.CRITICAL)
    try:
        yield
    finally:
        logging.disable(before)
