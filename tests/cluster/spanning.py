"""A transaction that spans three brokers, for tests that kill some of them meanwhile."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from plog.client.admin import Admin
from plog.errors import ErrorCode
from plog.protocol.messages.fetch import PartitionData
from plog.protocol.messages.transactions import TransactionState
from plog.types import TopicPartition
from tests.cluster.marker_proxy import MarkerProxy
from tests.cluster.processes import Brokers, split_listeners
from tests.compat.clients import read_all
from tests.coordinator.conftest import GROUP, TRANSACTION, await_coordinator
from tests.handlers.wire import fetch_request, fetched, fresh_name
from tests.routed import Routed
from tests.servers import free_port
from tests.transactions.transactor import COMMITTED, Transactor, committed_offset, read
from tests.waiting import until

NONE = ErrorCode.NONE
IDS = (0, 1, 2)
NOT_READY = frozenset(
    {
        ErrorCode.NOT_LEADER_OR_FOLLOWER,
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        ErrorCode.UNKNOWN_TOPIC_ID,
        ErrorCode.LEADER_NOT_AVAILABLE,
        ErrorCode.NOT_ENOUGH_REPLICAS,
        ErrorCode.COORDINATOR_NOT_AVAILABLE,
        ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
        ErrorCode.NOT_COORDINATOR,
    }
)
"""Errors that a client asks again after: a broker has just started, or is not known yet."""


def at_last(ask: Callable[[], int]) -> ErrorCode:
    """Ask until no broker is still starting; return the error."""
    found = NONE

    def is_ready() -> bool:
        nonlocal found
        found = ErrorCode(ask())
        return found not in NOT_READY

    until(is_ready, "a final answer")
    return found


class Cluster(Brokers):
    """Three brokers that reach each other by proxies."""

    def __init__(self, *arguments: object, **settings: object) -> None:
        super().__init__(*arguments, **settings)
        self.proxies: list[MarkerProxy] = []
        for one in self.brokers:
            port = free_port()
            self.proxies.append(MarkerProxy(port))
            split_listeners(one, port, advertised=self.proxies[-1].port)


@dataclass
class Parts:
    """What each broker does in a test."""

    coordinator: int
    away: int
    third: int


class Play:
    """A transactional id on a coordinator, with a partition on each broker, and a group."""

    def __init__(
        self,
        brokers: Brokers,
        wire: Routed,
        parts: Parts,
        *,
        group_on: int,
        own_epochs: bool,
        timeout_ms: int = 60_000,
    ) -> None:
        self.brokers, self.wire = brokers, wire
        topic = fresh_name()
        with Admin(brokers.bootstrap) as admin:
            admin.create_topic(topic, partitions=3)
        brokers.all_until(lambda admin: topic in admin.topics())
        places = [TopicPartition(topic, number) for number in range(3)]
        self.places = {wire.leader(at): at for at in places}
        assert sorted(self.places) == list(IDS)
        self.group = wire.name_on(GROUP, group_on, fresh_name())
        await_coordinator(wire, self.group)
        name = wire.name_on(TRANSACTION, parts.coordinator, fresh_name())
        one = Transactor(wire, name, own_epochs=own_epochs, timeout_ms=timeout_ms)
        self.one = one.start()

    def write(self, value: bytes, *, offset: int | None = None) -> None:
        """Write to every partition, and commit an offset of the group."""
        one, anywhere = self.one, self.places[0]
        for at in self.places.values():
            one.join(at)
            error = at_last(lambda at=at: one.produce(at, value).error_code)
            assert error is NONE
        if offset is not None:
            assert one.add_offsets(self.group) is NONE
            assert at_last(lambda: one.commit_offset(self.group, anywhere, offset)) is NONE

    @property
    def due(self) -> set[TopicPartition]:
        """The partitions that lack their marker, as the coordinator says."""
        return {
            TopicPartition(topic.topic, partition)
            for topic in self.described().topics
            for partition in topic.partitions
        }

    def described(self) -> TransactionState:
        """Describe the transaction, once the coordinator has loaded it."""
        state = self.one.described()

        def is_loaded() -> bool:
            nonlocal state
            state = self.one.described()
            return bool(state.error_code == NONE)

        until(is_loaded, "loaded")
        return state

    def await_state(self, state: str) -> None:
        until(lambda: self.described().transaction_state == state, state)

    def part(self, broker_id: int) -> PartitionData:
        """Read the partition of a broker from its start, once the broker leads it."""
        at = self.places[broker_id]
        found: list[PartitionData] = []

        def is_read() -> bool:
            asked = fetch_request((*at, 0), isolation_level=COMMITTED)
            (part,) = fetched(self.wire.ask(asked, 12)).values()
            assert part.error_code in {NONE, *NOT_READY}, part
            found[:] = [part]
            return bool(part.error_code == NONE)

        until(is_read, f"{at} is led")
        return found[0]

    def seen(self, broker_id: int) -> list[bytes | None]:
        """Return the committed values of the partition of a broker."""
        self.part(broker_id)
        return read(self.wire, self.places[broker_id])

    def is_open(self, broker_id: int) -> bool:
        """Return whether readers of the partition of a broker wait for a transaction."""
        part = self.part(broker_id)
        return bool(part.last_stable_offset < part.high_watermark)

    def offset(self) -> int:
        """Return the group's committed offset, once no transaction may change it."""
        await_coordinator(self.wire, self.group)
        found = -1

        def is_stable() -> bool:
            nonlocal found
            error, found = committed_offset(
                self.wire,
                self.group,
                self.places[0],
                require_stable=True,
            )
            assert error in {NONE, ErrorCode.UNSTABLE_OFFSET_COMMIT, *NOT_READY}, error
            return error is NONE

        until(is_stable, "stable")
        return found

    def check(self, *values: bytes, offset: int) -> None:
        """Check what readers see once no transaction is open, and with another client."""
        for broker_id, at in self.places.items():
            until(lambda number=broker_id: not self.is_open(number), f"{at} is stable")
            assert self.seen(broker_id) == list(values)
            others = read_all(self.brokers.bootstrap, *at, "read_committed")
            assert [record.value for _, record in others] == list(values)
        assert self.offset() == offset

    def goes_on(self, *values: bytes, offset: int) -> None:
        """Check the outcome, and that a later transaction of the id commits."""
        self.check(*values, offset=offset)
        self.one.start()
        self.write(b"next", offset=offset + 100)
        self.one.finish(commit=True)
        self.check(*values, b"next", offset=offset + 100)
