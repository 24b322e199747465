"""Every public call of `plog.client` against a broker that does not answer.

The calls are found by looking at the classes and functions: a new one is in the sweep as soon as it
exists, and fails it until `CALLS` says how it is called and how it has to end.
"""

from __future__ import annotations

import importlib
import inspect
import itertools
import logging
import pkgutil
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, suppress
from enum import Enum
from pathlib import Path
from typing import Any, NamedTuple

import pytest

import plog.client
from plog.client import (
    admin,
    coordinators,
    group_lag,
    offsets,
    partition_producers,
)
from plog.client.admin import Admin
from plog.client.administration import Administration
from plog.client.cluster_admin import ClusterAdmin
from plog.client.consumer import Consumer
from plog.client.group_admin import GroupAdmin
from plog.client.group_consumer import GroupConsumer
from plog.client.group_membership import GroupMetadata
from plog.client.metadata import Cluster
from plog.client.partition_producers import ActiveProducer, OpenTransaction
from plog.client.producer import Producer
from plog.client.reassignments import ReassignmentAdmin
from plog.client.transaction_admin import TransactionAdmin
from plog.client.transaction_states import PreparedTransaction
from plog.errors import NetworkException, PlogError
from plog.protocol.messages.metadata import MetadataRequest, MetadataResponse
from plog.types import TopicPartition
from tests.arrow_rows import rows_of, table
from tests.client.conftest import OVERRIDES
from tests.servers import BrokerProcess, free_port
from tests.waiting import TurnsClock, until

TIMEOUT_MS = 600
TIMEOUT_S = TIMEOUT_MS / 1000
"""What every timeout that a constructor takes is set to."""
POLL_MS = 2 * TIMEOUT_MS
MARGIN_S = 1.5
"""How much later than by its timeout a call may end, by a clock that waits for a busy host."""
HANGS_S = 60.0
"""After this time a call that has not ended counts as one that hangs."""
ATTEMPTS = 5
PATIENCE_S = 30.0
TOPIC, GROUP = "t", "g"
TP = TopicPartition(TOPIC, 0)
OPEN = OpenTransaction(TP, ActiveProducer(1, 0, 0, 0, 0, 0))
ROWS = rows_of(table([{"value": b"v", "partition": 0}], ["value", "partition"]))


class End(Enum):
    """How a call ends that no broker answers."""

    FAILS = "raises a PlogError, or a TimeoutError, that names the address"
    WARNS = "returns, and has logged a warning that names the address"
    LOCAL = "asks no broker"


def nothing(_: Any) -> None:
    pass


class Call(NamedTuple):
    """How to make a call, and how it has to end.

    `prepare` needs no broker; `meet` runs next, while there is a broker. `timeouts` is how many of
    its timeouts the call may take.
    """

    run: Callable[[Any], object]
    end: End = End.FAILS
    prepare: Callable[[Any], object] = nothing
    meet: Callable[[Any], object] = nothing
    needs_broker: bool = False
    timeouts: int = 1


def local(run: Callable[[Any], object], prepare: Callable[[Any], object] = nothing) -> Call:
    return Call(run, End.LOCAL, prepare, timeouts=0)


def assign(consumer: Consumer) -> None:
    consumer.assign([TP])


def read(consumer: Consumer) -> None:
    until(lambda: consumer.poll(TIMEOUT_MS))


def assign_reader(consumer: GroupConsumer) -> None:
    consumer.reader.assign([TP])


def subscribe(consumer: GroupConsumer) -> None:
    consumer.subscribe([TOPIC])


def join(consumer: GroupConsumer) -> None:
    until(lambda: consumer.poll(TIMEOUT_MS) or consumer.assignment())


def poll(consumer: Consumer | GroupConsumer) -> None:
    while consumer.poll(POLL_MS):
        pass  # records that were fetched before


def send(producer: Producer) -> None:
    producer.send(TOPIC, b"v").result(PATIENCE_S)


def begin(producer: Producer) -> None:
    producer.init_transactions()
    producer.begin_transaction()
    send(producer)


def hold_transaction(producer: Producer) -> None:
    with producer.transaction():
        producer.send(TOPIC, b"v")


def ask_leaders(cluster: Cluster) -> None:
    _, fault = offsets.ask_leaders(cluster, {TP: 0})
    assert fault is not None
    raise fault


ADMIN = {
    "Admin.close": local(lambda one: one.close()),
    "Admin.nodes": Call(lambda one: one.nodes()),
    "Admin.controller_id": Call(lambda one: one.controller_id()),
    "Admin.cluster_id": Call(lambda one: one.cluster_id()),
    "Admin.offsets": Call(lambda one: one.offsets({TP: 0})),
    "Admin.partitions_of": Call(lambda one: one.partitions_of("other")),
    "Admin.topics": Call(lambda one: one.topics()),
    "Admin.topic": Call(lambda one: one.topic(TOPIC)),
    "Admin.create_topic": Call(lambda one: one.create_topic("new")),
    "Admin.delete_topic": Call(lambda one: one.delete_topic("old")),
    "Admin.create_partitions": Call(lambda one: one.create_partitions(TOPIC, 9)),
    "Admin.delete_records": Call(lambda one: one.delete_records({TP: 0})),
    "Admin.describe_configs": Call(lambda one: one.describe_configs(admin.BROKER, "1")),
    "Admin.alter_configs": Call(lambda one: one.alter_configs(admin.TOPIC, TOPIC, [])),
    "Admin.features": Call(lambda one: one.features()),
    "Admin.set_feature": Call(lambda one: one.set_feature("f", 1)),
    "Admin.log_dirs": Call(lambda one: one.log_dirs([TOPIC])),
    "ClusterAdmin.close": local(lambda one: one.close()),
    "ClusterAdmin.overview": Call(lambda one: one.overview()),
    "ClusterAdmin.partitions_of": Call(lambda one: one.partitions_of("other")),
    "Administration.close": local(lambda one: one.close()),
    "Administration.partitions_of": Call(lambda one: one.partitions_of("other")),
    "GroupAdmin.close": local(lambda one: one.close()),
    "GroupAdmin.groups": Call(lambda one: one.groups()),
    "GroupAdmin.survey": Call(lambda one: one.survey(0)),
    "GroupAdmin.describe": Call(lambda one: one.describe(GROUP)),
    "GroupAdmin.delete": Call(lambda one: one.delete(GROUP)),
    "GroupAdmin.committed": Call(lambda one: one.committed(GROUP)),
    "GroupAdmin.commit": Call(lambda one: one.commit(GROUP, {TP: 0})),
    "GroupAdmin.delete_offsets": Call(lambda one: one.delete_offsets(GROUP, [TP])),
    "GroupAdmin.lags": Call(lambda one: one.lags({TP: 0}, 0)),
    "GroupAdmin.measure_lags": Call(lambda one: one.measure_lags({TP: 0}, 0)),
    "GroupAdmin.partitions_of": Call(lambda one: one.partitions_of("other")),
    "GroupAdmin.bounds": Call(lambda one: one.bounds([TP])),
    "GroupAdmin.offsets_at": Call(lambda one: one.offsets_at([TP], 0)),
    "TransactionAdmin.close": local(lambda one: one.close()),
    "TransactionAdmin.transactions": Call(lambda one: one.transactions()),
    "TransactionAdmin.describe": Call(lambda one: one.describe("id")),
    "TransactionAdmin.end": Call(lambda one: one.end(PreparedTransaction("id", 1, 0), commit=True)),
    "TransactionAdmin.partitions_of": Call(lambda one: one.partitions_of("other")),
    "TransactionAdmin.all_partitions": Call(lambda one: one.all_partitions()),
    "TransactionAdmin.producers": Call(lambda one: one.producers([TP])),
    "TransactionAdmin.open_since": Call(lambda one: one.open_since(TP, 0)),
    "TransactionAdmin.owners": Call(lambda one: one.owners([OPEN])),
    "TransactionAdmin.hanging": Call(lambda one: one.hanging([TP], longer_than_ms=0, now_ms=0)),
    "TransactionAdmin.abort": Call(
        lambda one: one.abort(TP, producer_id=1, producer_epoch=0, coordinator_epoch=0)
    ),
}
CONSUMERS = {
    "Consumer.assign": local(lambda one: one.assign([TP])),
    "Consumer.assignment": local(lambda one: one.assignment()),
    "Consumer.beginning_offsets": Call(lambda one: one.beginning_offsets([TP])),
    "Consumer.close": local(lambda one: one.close()),
    "Consumer.end_offsets": Call(lambda one: one.end_offsets([TP])),
    "Consumer.high_watermark": local(lambda one: one.high_watermark(TP), assign),
    "Consumer.isolation_level": local(lambda one: one.isolation_level),
    "Consumer.known_positions": local(lambda one: one.known_positions(), assign),
    "Consumer.offsets_for_times": Call(lambda one: one.offsets_for_times({TP: 0})),
    "Consumer.partitions_for": Call(lambda one: one.partitions_for("other")),
    "Consumer.pause": local(lambda one: one.pause([TP]), assign),
    "Consumer.paused": local(lambda one: one.paused(), assign),
    "Consumer.poll": Call(poll, End.WARNS, assign, read, timeouts=3),
    "Consumer.position": Call(lambda one: one.position(TP), prepare=assign),
    "Consumer.resume": local(lambda one: one.resume([TP]), assign),
    "Consumer.seek": local(lambda one: one.seek(TP, 0), assign),
    "Consumer.seek_to_beginning": Call(lambda one: one.seek_to_beginning(), prepare=assign),
    "Consumer.seek_to_end": Call(lambda one: one.seek_to_end(), prepare=assign),
    "GroupConsumer.assignment": local(lambda one: one.assignment()),
    "GroupConsumer.beginning_offsets": Call(lambda one: one.beginning_offsets([TP])),
    "GroupConsumer.close": Call(
        lambda one: one.close(), End.WARNS, subscribe, join, needs_broker=True
    ),
    "GroupConsumer.commit": Call(lambda one: one.commit({TP: 0})),
    "GroupConsumer.committed": Call(lambda one: one.committed([TP])),
    "GroupConsumer.end_offsets": Call(lambda one: one.end_offsets([TP])),
    "GroupConsumer.has_coordinator": local(lambda one: one.has_coordinator),
    "GroupConsumer.group_metadata": local(lambda one: one.group_metadata),
    "GroupConsumer.offsets_for_times": Call(lambda one: one.offsets_for_times({TP: 0})),
    "GroupConsumer.partitions_for": Call(lambda one: one.partitions_for("other")),
    "GroupConsumer.pause": local(lambda one: one.pause([])),
    "GroupConsumer.paused": local(lambda one: one.paused()),
    "GroupConsumer.poll": Call(poll, End.WARNS, subscribe, join, timeouts=3),
    "GroupConsumer.position": Call(lambda one: one.position(TP), prepare=assign_reader),
    "GroupConsumer.positions": local(lambda one: one.positions(), assign_reader),
    "GroupConsumer.resume": local(lambda one: one.resume([])),
    "GroupConsumer.seek": local(lambda one: one.seek(TP, 0), assign_reader),
    "GroupConsumer.seek_to_beginning": Call(
        lambda one: one.seek_to_beginning(), prepare=assign_reader
    ),
    "GroupConsumer.seek_to_end": Call(lambda one: one.seek_to_end(), prepare=assign_reader),
    "GroupConsumer.subscribe": Call(lambda one: one.subscribe([TOPIC]), End.WARNS),
    "GroupConsumer.subscription": local(lambda one: one.subscription()),
    "GroupConsumer.unsubscribe": Call(
        lambda one: one.unsubscribe(), End.WARNS, subscribe, join, needs_broker=True
    ),
}
PRODUCERS = {
    "Producer.send": Call(lambda one: one.send("other", b"v")),
    "Producer.send_rows": Call(lambda one: one.send_rows("other", ROWS)),
    "Producer.flush": Call(lambda one: (one.send_rows(TOPIC, ROWS), one.flush()), meet=send),
    "Producer.flush with a timeout": Call(
        lambda one: (one.send(TOPIC, b"v"), one.flush(TIMEOUT_S)), meet=send, needs_broker=True
    ),
    "Producer.close": Call(lambda one: (one.send_rows(TOPIC, ROWS), one.close()), meet=send),
    "Producer.init_transactions": Call(lambda one: one.init_transactions()),
    "Producer.begin_transaction": Call(
        lambda one: one.begin_transaction(),
        End.LOCAL,
        meet=lambda one: one.init_transactions(),
        needs_broker=True,
        timeouts=0,
    ),
    "Producer.send_offsets_to_transaction": Call(
        lambda one: one.send_offsets_to_transaction({TP: 0}, GroupMetadata(GROUP)),
        meet=begin,
        needs_broker=True,
    ),
    "Producer.commit_transaction": Call(
        lambda one: one.commit_transaction(), meet=begin, needs_broker=True
    ),
    "Producer.prepare_transaction": Call(
        lambda one: (one.send(TOPIC, b"v"), one.prepare_transaction()),
        meet=begin,
        needs_broker=True,
    ),
    "Producer.abort_transaction": Call(
        lambda one: one.abort_transaction(), meet=begin, needs_broker=True
    ),
    "Producer.transaction": Call(
        hold_transaction, meet=lambda one: one.init_transactions(), needs_broker=True
    ),
    "Delivery.result": Call(lambda one: one.send(TOPIC, b"v").result(), meet=send),
    "RowsDelivery.result": Call(lambda one: one.send_rows(TOPIC, ROWS).result(), meet=send),
}
CLUSTER = {
    "Cluster.address": Call(
        lambda one: one.address(next(iter(one.nodes))), End.LOCAL, needs_broker=True, timeouts=0
    ),
    "Cluster.bootstrap": local(lambda one: one.bootstrap),
    "Cluster.request_timeout_s": local(lambda one: one.request_timeout_s),
    "Cluster.ask_any": Call(lambda one: one.ask_any(MetadataRequest(topics=[]), MetadataResponse)),
    "Cluster.close": local(lambda one: one.close()),
    "Cluster.connection": Call(
        lambda one: (one.close(), one.connection(next(iter(one.nodes)))), needs_broker=True
    ),
    "Cluster.controller": Call(lambda one: (one.close(), one.controller())),
    "Cluster.forget": local(lambda one: one.forget(TOPIC)),
    "Cluster.interrupt": local(lambda one: one.interrupt()),
    "Cluster.known_leader": local(lambda one: one.known_leader(TP)),
    "Cluster.leader": Call(lambda one: one.leader(TopicPartition("other", 0))),
    "Cluster.open": Call(lambda one: one.open(next(iter(one.nodes))), needs_broker=True),
    "Cluster.refresh": Call(lambda one: one.refresh(None)),
    "Cluster.topic": Call(lambda one: one.topic("other")),
    "Cluster.twin": local(lambda one: one.twin()),
    "coordinators.find_coordinator": Call(
        lambda one: coordinators.find_coordinator(one, coordinators.KeyType.GROUP, GROUP)
    ),
    "coordinators.open_coordinator": Call(
        lambda one: coordinators.open_coordinator(one, coordinators.KeyType.GROUP, GROUP)
    ),
    "group_lag.measure": Call(lambda one: group_lag.measure(one, {TP: 0}, 0)),
    "group_lag.measure_groups": Call(
        lambda one: group_lag.measure_groups(one, {GROUP: {TP: 0}}, 0)
    ),
    "offsets.ask_each": Call(lambda one: offsets.ask_each(one, {TP: 0})),
    "offsets.ask_leaders": Call(ask_leaders),
    "offsets.list_offsets": Call(
        lambda one: offsets.list_offsets(one, {TP: 0}, timeout_ms=TIMEOUT_MS)
    ),
    "partition_producers.describe_producers": Call(
        lambda one: partition_producers.describe_producers(one, [TP])
    ),
    "partition_producers.write_abort_marker": Call(
        lambda one: partition_producers.write_abort_marker(
            one, TP, producer_id=1, producer_epoch=0, coordinator_epoch=0, timeout_ms=TIMEOUT_MS
        )
    ),
}
REASSIGNMENTS = {
    name.replace("Admin.", "ReassignmentAdmin."): call
    for name, call in ADMIN.items()
    if name.startswith("Admin.")
} | {
    "ReassignmentAdmin.disks": Call(lambda one: one.disks()),
    "ReassignmentAdmin.reassign": Call(lambda one: one.reassign({TP: [1]})),
    "ReassignmentAdmin.moves": Call(lambda one: one.moves()),
}
CALLS = ADMIN | REASSIGNMENTS | CONSUMERS | PRODUCERS | CLUSTER
TWO_TIMEOUTS = {
    "Admin.create_topic",
    "Admin.delete_topic",
    "Admin.create_partitions",
    "Admin.delete_records",
    "Admin.set_feature",
    "ReassignmentAdmin.create_topic",
    "ReassignmentAdmin.delete_topic",
    "ReassignmentAdmin.create_partitions",
    "ReassignmentAdmin.delete_records",
    "ReassignmentAdmin.set_feature",
    "ReassignmentAdmin.reassign",
    "ReassignmentAdmin.moves",
    "TransactionAdmin.producers",
    "TransactionAdmin.open_since",
    "TransactionAdmin.hanging",
    "TransactionAdmin.abort",
    "GroupConsumer.close",
    "GroupConsumer.unsubscribe",
    "Producer.flush",
    "Producer.close",
    "Producer.prepare_transaction",
    "Delivery.result",
    "RowsDelivery.result",
    "partition_producers.describe_producers",
    "partition_producers.write_abort_marker",
}
"""Calls that wait for two requests, for a request that itself waits, or for a delivery."""


def parameters(found: Any) -> dict[str, inspect.Parameter]:
    with suppress(ValueError):  # a class that the interpreter itself constructs
        return dict(inspect.signature(found).parameters)
    return {}


def modules() -> Iterator[Any]:
    for found in pkgutil.iter_modules(plog.client.__path__):
        yield importlib.import_module(f"plog.client.{found.name}")


def public_calls() -> Iterator[str]:
    """Name the methods and properties of classes that take an address, and what takes a cluster."""
    yield from ("Delivery.result", "RowsDelivery.result")  # what a producer returns
    for module in modules():
        for name, found in vars(module).items():
            if name.startswith("_") or getattr(found, "__module__", None) != module.__name__:
                continue
            if inspect.isclass(found):
                if "bootstrap_servers" in parameters(found):
                    yield from (f"{name}.{one}" for one in dir(found) if not one.startswith("_"))
            elif inspect.isfunction(found):
                first = next(iter(parameters(found).values()), None)
                if first is not None and first.annotation == "Cluster":
                    yield f"{module.__name__.rpartition('.')[2]}.{name}"


# -- the sweep -------------------------------------------------------------------------------------


class Outcome(NamedTuple):
    """What became of a call."""

    seconds: float
    error: BaseException | None
    warnings: list[str]


class Warnings(logging.Handler):
    """What each thread has logged."""

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self.by_thread: dict[int | None, list[str]] = {}

    def emit(self, record: logging.LogRecord) -> None:
        self.by_thread.setdefault(record.thread, []).append(record.getMessage())


_numbers = itertools.count()


def make(name: str, address: str) -> Any:
    """Make what a call belongs to, with short timeouts."""
    owner = name.partition(".")[0]
    owner = {"Delivery": "Producer", "RowsDelivery": "Producer"}.get(owner, owner)
    kinds = (
        Admin,
        Administration,
        ClusterAdmin,
        GroupAdmin,
        ReassignmentAdmin,
        TransactionAdmin,
        Consumer,
        GroupConsumer,
        Producer,
    )
    kind: Any = {one.__name__: one for one in kinds}.get(owner, Cluster)
    own = f"{name}-{next(_numbers)}"
    given: dict[str, object] = {
        "request_timeout_ms": TIMEOUT_MS,
        "max_block_ms": TIMEOUT_MS,
        "delivery_timeout_ms": 2 * TIMEOUT_MS,
        "retry_backoff_ms": 10,
        "fetch_max_wait_ms": 100,
        "group_id": own,
        "auto_offset_reset": "earliest",
        "transactional_id": own if "transaction" in name else None,
    }
    known = parameters(kind)
    if "reading" in known:
        known |= parameters(Consumer)
    return kind(address, **{key: value for key, value in given.items() if key in known})


class Sweep:
    """Makes every call against one broker.

    Args:
        fail: what befalls the broker once all calls are prepared; None: it never was one.
    """

    def __init__(self, address: str, fail: Callable[[], object] | None) -> None:
        self.address = address
        self.has_broker = fail is not None
        self.calls = {
            name: call for name, call in CALLS.items() if self.has_broker or not call.needs_broker
        }
        self.outcomes: dict[str, Outcome] = {}
        self.faults: dict[str, PlogError] = {}
        self._log = Warnings()
        self._clock = TurnsClock()
        self._ready = threading.Semaphore(0)
        self._failed = threading.Event()
        self._few = threading.Semaphore(8)  # a flood of connections would take too long
        threads = [
            threading.Thread(target=self._run, args=(name,), name=name, daemon=True)
            for name in self.calls
        ]
        logger = logging.getLogger("plog.client")
        logger.addHandler(self._log)
        try:
            for thread in threads:
                thread.start()
            for _ in threads:
                assert self._ready.acquire(timeout=PATIENCE_S), "a call is not prepared"
            assert not self.faults, self.faults
            if fail is not None:
                fail()
            with self._clock:
                self._failed.set()
                deadline = time.monotonic() + HANGS_S
                for thread in threads:
                    thread.join(max(deadline - time.monotonic(), 0))
        finally:
            logger.removeHandler(self._log)

    def _run(self, name: str) -> None:
        call = self.calls[name]
        with self._few:
            made = self._prepared(name, call)
        self._ready.release()
        if made is None:
            return
        self._failed.wait()
        began, error = self._clock.seconds, None
        try:
            call.run(made)
        except Exception as fault:  # noqa: BLE001 - what it is, `complaints` says
            error = fault
        seconds = self._clock.seconds - began
        warnings = self._log.by_thread.get(threading.get_ident(), [])
        self.outcomes[name] = Outcome(seconds, error, warnings)
        with suppress(PlogError):
            made.close(0) if isinstance(made, Producer) else made.close()

    def _prepared(self, name: str, call: Call) -> Any:
        """Make what a call belongs to and prepare it; on a slow host several times."""
        for _ in range(ATTEMPTS):
            made = make(name, self.address)
            call.prepare(made)
            if not self.has_broker:
                return made
            try:
                if not isinstance(made, Producer):
                    getattr(made, "_cluster", made).refresh([TOPIC])
                call.meet(made)
            except PlogError as fault:
                self.faults[name] = fault
                made.close(0) if isinstance(made, Producer) else made.close()
            else:
                self.faults.pop(name, None)
                return made
        return None

    def complaints(self) -> list[str]:
        return [f"{name}: {why}" for name in self.calls for why in self._complaints_about(name)]

    def _complaints_about(self, name: str) -> Iterator[str]:
        call = self.calls[name]
        outcome = self.outcomes.get(name)
        if outcome is None:
            yield f"hangs for {HANGS_S} s"
            return
        timeouts = 2 if name in TWO_TIMEOUTS else call.timeouts
        if outcome.seconds > timeouts * TIMEOUT_S + MARGIN_S:
            yield f"takes {outcome.seconds:.1f} s"
        if call.end is End.FAILS:
            if not isinstance(outcome.error, PlogError | TimeoutError):
                yield f"raises {outcome.error!r}"
            elif self.address not in str(outcome.error):
                yield f"does not name the address: {outcome.error!r}"
            return
        if outcome.error is not None:
            yield f"raises {outcome.error!r}"
        elif call.end is End.WARNS and not any(self.address in one for one in outcome.warnings):
            yield f"names the address in no warning: {outcome.warnings}"


@pytest.fixture
def running(tmp_path: Path) -> Iterator[BrokerProcess]:
    with BrokerProcess(tmp_path, overrides=OVERRIDES) as broker:
        with (
            Admin(broker.bootstrap) as made,
            Producer(broker.bootstrap, transactional_id="first") as producer,
            GroupConsumer(broker.bootstrap, "first", auto_offset_reset="earliest") as consumer,
        ):
            made.create_topic(TOPIC)
            begin(producer)
            producer.commit_transaction()
            subscribe(consumer)
            join(consumer)
        yield broker


def test_sweep_has_every_public_call() -> None:
    assert set(public_calls()) == {name.partition(" ")[0] for name in CALLS}
    assert set(CALLS) >= TWO_TIMEOUTS


def test_calls_end_where_nothing_listens() -> None:
    assert Sweep(f"127.0.0.1:{free_port()}", None).complaints() == []


def test_calls_end_where_nothing_answers() -> None:
    with socket.create_server(("127.0.0.1", 0), backlog=2 * len(CALLS)) as server:
        assert Sweep(f"127.0.0.1:{server.getsockname()[1]}", None).complaints() == []


def test_calls_end_when_a_broker_falls_silent_and_when_it_dies(running: BrokerProcess) -> None:
    with ExitStack() as held:
        silent = Sweep(running.bootstrap, lambda: held.enter_context(running.suspended()))
    assert silent.complaints() == []
    assert Sweep(running.bootstrap, running.kill).complaints() == []


def test_producer_ends_in_its_own_time_while_a_request_waits_for_longer() -> None:
    """The sender's thread waits for the request meanwhile."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        address = f"127.0.0.1:{server.getsockname()[1]}"
        producer = Producer(address, max_block_ms=100, request_timeout_ms=600_000)
        with pytest.raises(NetworkException) as caught:
            producer.send(TOPIC, b"v")
        assert str(caught.value) == (
            f"topic 't': no answer to Metadata from {address} within max_block_ms=100"
        )
        began = time.monotonic()
        producer.close(0.1)
        assert time.monotonic() - began < MARGIN_S
        assert not producer._sender.is_alive()


def test_cluster_is_interrupted_while_it_opens_a_connection() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        address = f"127.0.0.1:{server.getsockname()[1]}"
        cluster = Cluster(address, request_timeout_ms=600_000)
        faults: list[BaseException] = []

        def refresh() -> None:
            with pytest.raises(NetworkException) as caught:
                cluster.refresh(None)
            faults.append(caught.value)

        thread = threading.Thread(target=refresh)
        thread.start()
        until(lambda: cluster._opening is not None)
        cluster.interrupt()
        thread.join(PATIENCE_S)
        assert address in str(faults[0])
        with pytest.raises(NetworkException, match="interrupted"):
            cluster.refresh(None)


def test_poll_makes_no_second_look_up_after_its_time() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        address = f"127.0.0.1:{server.getsockname()[1]}"
        with Consumer(address, request_timeout_ms=300) as consumer:
            assign(consumer)
            assert consumer.poll(100) == []
            server.setblocking(False)
            server.accept()[0].close()
            with pytest.raises(BlockingIOError):
                server.accept()
