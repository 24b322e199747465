"""Batches of a query on a real broker, with tasks and drivers that die wherever they are.

No Spark here: tasks are calls, and a run that has died is one that is not heard of any more, or
that turns up late.
"""

from __future__ import annotations

import contextlib
import itertools
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest

from plog.client.admin import Admin
from plog.client.connection import Connection
from plog.client.consumer import Consumer
from plog.client.producer import Producer
from plog.client.transaction_admin import TransactionAdmin
from plog.client.transaction_states import PreparedTransaction
from plog.errors import (
    ConfigError,
    NetworkException,
    PlogError,
    ProducerFenced,
    UnknownTopicOrPartition,
)
from plog.protocol.messages.list_offsets import ListOffsetsRequest
from plog.protocol.messages.transactions import (
    DescribeTransactionsRequest,
    ListTransactionsRequest,
)
from plog.protocol.schema import Struct
from plog.spark import decision_log, links, open_transactions
from plog.spark.decision_log import DecisionLog, DecisionWriter
from plog.spark.decisions import CheckpointRewound, Decision, Fenced, TransactionalIds, commit_batch
from plog.spark.links import Link
from plog.spark.open_transactions import TransactionLost
from plog.spark.sink_options import SinkOptions
from plog.spark.two_phases import BatchPhases, PartialCommit, StreamPhases
from plog.types import TopicPartition
from tests.compat.live_kafka import KraftKafka
from tests.planes import Plane
from tests.servers import BrokerProcess
from tests.waiting import until

TASKS = 2
_numbers = itertools.count()
NewTopic = Callable[..., str]


def link_of(options: SinkOptions) -> Link:
    return Link(options.bootstrap_servers, options.client_id, options.request_timeout_ms)


class Run:
    """A run of a streaming query, and the process that its tasks are in."""

    def __init__(
        self,
        options: SinkOptions,
        query: str,
        topic: str,
        name: str,
        transactional_ids: TransactionalIds | None = None,
    ) -> None:
        self.options, self.query, self.topic, self.name = options, query, topic, name
        self.transactional_ids = transactional_ids or TransactionalIds(f"{name}-process")
        self._links: dict[int, Link] = {}

    @property
    def link(self) -> Link:
        """This thread's, as a process has one."""
        here = threading.get_ident()
        if here not in self._links:
            self._links[here] = link_of(self.options)
        return self._links[here]

    def log(self) -> DecisionLog:
        return DecisionLog(self.link, self.options, self.query)

    def phases(self) -> StreamPhases:
        return StreamPhases(self.link, self.options, self.query, self.name)

    def close(self) -> None:
        for link in self._links.values():
            link.close()

    def task(self, batch: int, number: int) -> PreparedTransaction | None:
        """Write a task's records of a batch; None where it stands already."""
        if not self.phases().must_write(batch):
            return None
        producer = Producer(
            self.options.bootstrap_servers,
            linger_ms=0,
            transaction_timeout_ms=self.options.transaction_timeout_ms,
            transactional_id=self.transactional_ids.next_id(
                "plog-spark-", self.query, self.name, batch
            ),
        )
        producer.init_transactions()
        producer.begin_transaction()
        for n in range(3):
            value = b"%d-%d-%d" % (batch, number, n)
            producer.send(self.topic, value, partition=number % TASKS)
        prepared = producer.prepare_transaction()
        producer.close()
        assert prepared is not None
        return prepared

    def write(self, batch: int, tasks: int = TASKS) -> list[PreparedTransaction]:
        written = [self.task(batch, number) for number in range(tasks)]
        return [one for one in written if one is not None]

    def decide_and_die(self, batch: int, written: list[PreparedTransaction]) -> None:
        """Have a batch stand, and commit nothing of it."""
        log = self.log()
        with DecisionWriter(log, self.options) as driver:
            last = log.last()
            assert last is not None
            driver.write(commit_batch(last, batch, written))

    def run(self, batch: int) -> None:
        """Write a batch and have it stand, unless it does."""
        if written := self.write(batch):
            self.phases().commit(batch, written)
        else:
            self.phases().check_replay(batch)


@pytest.fixture
def options(broker: BrokerProcess) -> SinkOptions:
    return SinkOptions(broker.bootstrap)


@pytest.fixture
def transactional_ids() -> TransactionalIds | None:
    """Those of the process that the tasks of all runs are in; None where each run has its own."""
    return None


@pytest.fixture
def start(
    options: SinkOptions, new_topic: NewTopic, transactional_ids: TransactionalIds | None
) -> Iterator[Callable[[], Run]]:
    """Start runs of one new query, one after the other."""
    query, topic = f"query-{next(_numbers)}", new_topic(TASKS)
    runs: list[Run] = []

    def begin() -> Run:
        runs.append(Run(options, query, topic, f"run-{len(runs)}", transactional_ids))
        return runs[-1]

    yield begin
    for run in runs:
        run.close()


def read(broker: BrokerProcess | KraftKafka, topic: str) -> list[bytes]:
    """Return what readers of committed records see, once nobody's transaction is open."""
    values = []
    at = [TopicPartition(topic, number) for number in range(TASKS)]
    with (
        Consumer(broker.bootstrap) as everything,
        Consumer(broker.bootstrap, isolation_level="read_committed") as committed,
    ):
        until(lambda: committed.end_offsets(at) == everything.end_offsets(at), "nothing open")
        ends = everything.end_offsets(at)
        committed.assign(at)
        committed.seek_to_beginning()
        while any(committed.position(one) < ends[one] for one in at):
            values += [one.value for one in committed.poll(100)]
    return values


def batches(*numbers: int, tasks: int = TASKS) -> list[bytes]:
    return sorted(
        b"%d-%d-%d" % (batch, task, n)
        for batch in numbers
        for task in range(tasks)
        for n in range(3)
    )


def test_batches_stand_as_they_are_decided(broker: BrokerProcess, start: Callable[[], Run]) -> None:
    run = start()
    for batch in range(4):
        run.run(batch)
    assert sorted(read(broker, run.topic)) == batches(0, 1, 2, 3)


def test_batch_that_stands_is_not_written_again(
    broker: BrokerProcess, start: Callable[[], Run]
) -> None:
    first, again = start(), start()
    first.run(0)
    first.run(1)
    assert first.write(1) == []
    assert again.write(1) == []
    again.run(2)
    assert sorted(read(broker, first.topic)) == batches(0, 1, 2)


def test_batch_of_a_driver_that_died_before_it_decided_is_written_anew(
    broker: BrokerProcess, start: Callable[[], Run]
) -> None:
    dead, again = start(), start()
    dead.run(0)
    left = dead.write(1)
    again.run(1)
    assert sorted(read(broker, dead.topic)) == batches(0, 1)
    # It was not dead, only late.
    with pytest.raises((Fenced, TransactionLost)):
        dead.phases().commit(1, left)
    with pytest.raises(Fenced):
        dead.phases().abort(1, left)
    with pytest.raises(Fenced):
        dead.task(1, 0)
    again.run(2)
    assert sorted(read(broker, dead.topic)) == batches(0, 1, 2)


SAME_PROCESS = pytest.mark.parametrize(
    "transactional_ids",
    [None, TransactionalIds("process")],
    ids=["other-processes", "same-process"],
)
"""Python workers outlive a query, and its next run has its transactional ids from the same ones."""


@SAME_PROCESS
@pytest.mark.parametrize("committed", range(TASKS + 1))
def test_batch_of_a_driver_that_died_after_it_decided_is_finished_by_the_next(
    broker: BrokerProcess, start: Callable[[], Run], options: SinkOptions, committed: int
) -> None:
    dead, again = start(), start()
    dead.run(0)
    left = dead.write(1)
    dead.decide_and_die(1, left)
    with TransactionAdmin(broker.bootstrap) as admin:
        for one in left[:committed]:
            admin.end(one, commit=True)
    assert again.write(1) == []
    assert sorted(read(broker, dead.topic)) == batches(0, 1)
    again.run(2)
    assert sorted(read(broker, dead.topic)) == batches(0, 1, 2)


@pytest.mark.parametrize("tasks", [1, 5])
@pytest.mark.parametrize("decides", [False, True])
def test_batch_that_is_run_again_with_other_tasks_is_there_once(
    broker: BrokerProcess,
    start: Callable[[], Run],
    options: SinkOptions,
    tasks: int,
    decides: bool,
) -> None:
    """Other ids, and other records of them: what was decided counts, or what is written again."""
    dead, again = start(), start()
    dead.run(0)
    left = dead.write(1)
    if decides:
        dead.decide_and_die(1, left)
    if written := again.write(1, tasks):
        again.phases().commit(1, written)
    assert bool(written) is not decides
    again.run(2)
    rewritten = batches(1, tasks=TASKS if decides else tasks)
    assert sorted(read(broker, dead.topic)) == sorted([*batches(0, 2), *rewritten])


def test_run_with_an_older_checkpoint_is_refused(start: Callable[[], Run]) -> None:
    before, again = start(), start()
    for batch in range(3):
        before.run(batch)
    with pytest.raises(
        CheckpointRewound, match="batch 2 is already committed, but the query restarts at batch 1"
    ):
        again.write(1)
    assert before.write(2) == []  # nobody was disturbed for good
    before.run(3)


def test_history_is_not_taken_for_none_where_a_broker_does_not_know_the_topic(
    broker: BrokerProcess, start: Callable[[], Run], monkeypatch: pytest.MonkeyPatch
) -> None:
    """One that has just started knows no topics yet."""
    before, again = start(), start()
    before.run(0)
    before.run(1)
    ends, calls = decision_log.list_offsets, itertools.count()

    def forgetful(*arguments: object, **options: object) -> object:
        if next(calls) < 6:
            raise UnknownTopicOrPartition("not here")
        return ends(*arguments, **options)  # type: ignore[arg-type]

    monkeypatch.setattr(decision_log, "list_offsets", forgetful)
    assert again.write(1) == []
    again.run(2)
    assert sorted(read(broker, before.topic)) == batches(0, 1, 2)


@pytest.mark.parametrize(
    "request_type", [ListTransactionsRequest, DescribeTransactionsRequest, ListOffsetsRequest]
)
def test_broker_that_is_away_for_a_moment_costs_no_batch(
    broker: BrokerProcess,
    start: Callable[[], Run],
    monkeypatch: pytest.MonkeyPatch,
    request_type: type[Struct],
) -> None:
    run, call, lost = start(), Connection.call, itertools.count()

    def losing(self: Connection, request: Struct, *more: object, **options: object) -> object:
        if isinstance(request, request_type) and next(lost) % 5 == 0:
            self.close()
            raise NetworkException("gone")
        return call(self, request, *more, **options)  # type: ignore[arg-type]

    monkeypatch.setattr(Connection, "call", losing)
    for batch in range(3):
        run.run(batch)
    monkeypatch.undo()
    assert next(lost) > 3
    assert sorted(read(broker, run.topic)) == batches(0, 1, 2)


def test_what_a_twin_opens_while_the_batch_is_decided_is_aborted(
    broker: BrokerProcess, start: Callable[[], Run], monkeypatch: pytest.MonkeyPatch
) -> None:
    """It has looked whether it is late, and was not; and it lives."""
    run, write, twins = start(), DecisionWriter.write, []
    run.run(0)
    written = run.write(1)

    def beside(self: DecisionWriter, decision: Decision) -> None:
        twins.append(run.task(1, 0))
        write(self, decision)

    monkeypatch.setattr(DecisionWriter, "write", beside)
    run.phases().commit(1, written)
    assert None not in twins
    assert sorted(read(broker, run.topic)) == batches(0, 1)


def test_entry_that_another_query_hides_is_waited_for(
    broker: BrokerProcess, start: Callable[[], Run], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Behind its open transaction nothing is seen at once, and the driver asks for all of it."""
    run = start()
    written = run.write(0)
    monkeypatch.setattr(DecisionLog, "last_known", lambda self: None)
    run.phases().commit(0, written)
    monkeypatch.undo()
    assert sorted(read(broker, run.topic)) == batches(0)


def test_driver_that_decided_too_late_for_the_next_run_has_not_decided(
    broker: BrokerProcess, start: Callable[[], Run], options: SinkOptions
) -> None:
    """It has read that it may, and stands still before it writes."""
    late, again = start(), start()
    late.run(0)
    left = late.write(1)
    log = late.log()
    with DecisionWriter(log, options) as driver:
        last = log.last()
        assert last is not None
        written = again.write(1)
        with pytest.raises(ProducerFenced):
            driver.write(commit_batch(last, 1, left))
    again.phases().commit(1, written)
    assert sorted(read(broker, late.topic)) == batches(0, 1)


@pytest.mark.parametrize("tasks", [TASKS, 12])
def test_tasks_that_enter_together_let_each_other_write(
    broker: BrokerProcess, start: Callable[[], Run], tasks: int
) -> None:
    before, run = start(), start()
    before.run(0)
    before.write(1)  # to be aborted by who enters
    written: list[PreparedTransaction | None] = [None] * tasks

    def task(number: int) -> None:
        written[number] = run.task(1, number)

    threads = [threading.Thread(target=task, args=(number,)) for number in range(tasks)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert None not in written
    run.phases().commit(1, [one for one in written if one is not None])
    assert sorted(read(broker, run.topic)) == sorted([*batches(0), *batches(1, tasks=tasks)])


def test_what_a_task_wrote_whose_twin_won_is_aborted(
    broker: BrokerProcess, start: Callable[[], Run]
) -> None:
    run = start()
    run.run(0)
    written = run.write(1)
    twin = run.task(1, 0)
    assert twin not in written
    run.phases().commit(1, written)
    assert sorted(read(broker, run.topic)) == batches(0, 1)


def test_batch_without_one_of_its_transactions_does_not_stand(
    broker: BrokerProcess, start: Callable[[], Run]
) -> None:
    run = start()
    written = run.write(0)
    with TransactionAdmin(broker.bootstrap) as admin:
        admin.end(written[0], commit=False)
    with pytest.raises(TransactionLost, match=written[0].transactional_id):
        run.phases().commit(0, written)
    run.phases().abort(0, written)
    assert read(broker, run.topic) == []
    run.run(0)
    assert sorted(read(broker, run.topic)) == batches(0)


def test_batch_that_is_given_up_is_aborted_unless_it_stands(
    broker: BrokerProcess, start: Callable[[], Run]
) -> None:
    run = start()
    written = run.write(0)
    run.phases().abort(0, written)
    assert read(broker, run.topic) == []
    written = run.write(0)
    run.phases().commit(0, written)
    run.phases().abort(0, written)
    assert sorted(read(broker, run.topic)) == batches(0)


@pytest.mark.parametrize(
    ("later_s", "stands"),
    [(0, True), (839, True), (841, False), (959, False), (961, True), (7200, True), (-7200, True)],
)
def test_batch_stands_only_if_its_transactions_last_long_enough(
    broker: BrokerProcess,
    start: Callable[[], Run],
    monkeypatch: pytest.MonkeyPatch,
    later_s: int,
    stands: bool,
) -> None:
    """A minute of their fifteen is left for who commits them, or the clocks differ."""
    run = start()
    written = run.write(0)
    now_ns = time.time_ns
    with monkeypatch.context() as patch:
        patch.setattr(open_transactions.time, "time_ns", lambda: now_ns() + later_s * 10**9)
        if stands:
            run.phases().commit(0, written)
        else:
            with pytest.raises(TransactionLost, match="ms left, too little to commit it safely"):
                run.phases().commit(0, written)
            run.phases().abort(0, written)
    assert sorted(read(broker, run.topic)) == (batches(0) if stands else [])


@pytest.fixture
def impatient(tmp_path: Path, plane: Plane) -> Iterator[tuple[BrokerProcess, SinkOptions]]:
    """A broker that looks often for transactions that took too long, and such as may take 1 s."""
    often = {"transaction.abort.timed.out.transaction.cleanup.interval.ms": 100}
    with BrokerProcess(tmp_path, overrides=often) as broker:
        with Admin(broker.bootstrap) as admin:
            admin.create_topic("t", partitions=TASKS)
        yield broker, SinkOptions(broker.bootstrap, transaction_timeout_ms=1_000)


def wait_for_abort(broker: BrokerProcess, transactions: list[PreparedTransaction]) -> None:
    with TransactionAdmin(broker.bootstrap) as admin:
        for one in transactions:
            until(
                lambda one=one: admin.describe(one.transactional_id).state == "CompleteAbort",
                "it took too long",
            )


def test_batch_whose_transactions_took_too_long_does_not_stand(
    impatient: tuple[BrokerProcess, SinkOptions],
) -> None:
    broker, options = impatient
    with contextlib.closing(Run(options, "query", "t", "run")) as run:
        written = run.write(0)
        wait_for_abort(broker, written)
        with pytest.raises(TransactionLost, match="is no longer open"):
            run.phases().commit(0, written)
        run.phases().abort(0, written)
    assert read(broker, "t") == []


@pytest.mark.parametrize("fails", [True, False])
def test_batch_that_nobody_committed_in_time_is_torn(
    impatient: tuple[BrokerProcess, SinkOptions], caplog: pytest.LogCaptureFixture, fails: bool
) -> None:
    broker, options = impatient
    options = replace(options, fail_on_torn_batch=fails)
    with (
        contextlib.closing(Run(options, "query", "t", "dead")) as dead,
        contextlib.closing(Run(options, "query", "t", "again")) as again,
    ):
        left = dead.write(0)
        dead.decide_and_die(0, left)
        wait_for_abort(broker, left)
        words = "batch 0 of query query is only partly committed: the records of transactions "
        words += left[0].transactional_id
        if fails:
            with pytest.raises(PartialCommit, match=words):
                again.task(0, 0)
        else:
            assert again.task(0, 0) is None
            assert words in caplog.text
    assert read(broker, "t") == []


@pytest.mark.parametrize("fails", [True, False])
def test_batch_that_is_torn_is_told_of(
    broker: BrokerProcess,
    start: Callable[[], Run],
    options: SinkOptions,
    fails: bool,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """It takes everybody to be away for as long as transactions may take; here one is aborted."""
    dead, again = start(), start()
    again.options = replace(options, fail_on_torn_batch=fails)
    left = dead.write(0)
    dead.decide_and_die(0, left)
    with TransactionAdmin(broker.bootstrap) as admin:
        admin.end(left[1], commit=False)
    words = f"batch 0 of query {dead.query} is only partly committed: the records of transactions "
    words += left[1].transactional_id
    if fails:
        with pytest.raises(PartialCommit, match=words):
            again.task(0, 0)
    else:
        assert again.task(0, 0) is None
        assert words in caplog.text
        again.run(1)
        half = [value for value in batches(0, 1) if not value.startswith(b"0-1")]
        assert sorted(read(broker, dead.topic)) == half


def test_batch_query_stands_or_not(broker: BrokerProcess, start: Callable[[], Run]) -> None:
    run = start()
    phases = BatchPhases(run.link, run.options, run.query)

    class Once(Run):
        def phases(self) -> BatchPhases:  # type: ignore[override]
            return phases

    once = Once(run.options, run.query, run.topic, "once")
    written, twin = once.write(0), once.task(0, 0)
    assert twin is not None
    phases.commit(0, written)
    assert sorted(read(broker, run.topic)) == batches(0)
    phases.abort(0, once.write(0))
    assert sorted(read(broker, run.topic)) == batches(0)
    written = once.write(0)
    phases.abort(0, written[:1])
    with pytest.raises(TransactionLost):
        phases.commit(0, written)
    phases.abort(0, written)


@pytest.mark.usefixtures("plane")
@pytest.mark.parametrize("ends", [BrokerProcess.stop, BrokerProcess.kill])
def test_run_goes_on_with_a_broker_that_was_away_between_batches(
    tmp_path: Path, ends: Callable[[BrokerProcess], None]
) -> None:
    """Its tasks and its driver keep their connections from one batch to the next."""
    with BrokerProcess(tmp_path) as broker:
        with Admin(broker.bootstrap) as admin:
            admin.create_topic("t", partitions=TASKS)
        run = Run(SinkOptions(broker.bootstrap), "query", "t", "run")
        run.run(0)
        for batch in (1, 2):
            ends(broker)
            broker.start()
            run.run(batch)
        run.close()
        assert sorted(read(broker, "t")) == batches(0, 1, 2)


# -- the topic of decisions ------------------------------------------------------------------------


def test_tasks_that_make_the_topic_together_find_it(options: SinkOptions) -> None:
    """The second one hears that it is there before brokers tell of it."""
    mine = replace(options, decisions_topic=f"made-together-{next(_numbers)}")
    faults: list[PlogError] = []

    def make(number: int) -> None:
        try:
            with contextlib.closing(link_of(mine)) as link:
                DecisionLog(link, mine, f"query {number}").create_topic()
        except PlogError as fault:
            faults.append(fault)

    threads = [threading.Thread(target=make, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not faults


def test_topic_that_is_none_of_decisions_is_refused(
    options: SinkOptions, new_topic: NewTopic
) -> None:
    other = replace(options, decisions_topic=new_topic(3))
    with (
        contextlib.closing(link_of(other)) as link,
        pytest.raises(ConfigError, match="has 3 partitions, but a decisions topic needs 16"),
    ):
        DecisionLog(link, other, "q").create_topic()


def test_topic_that_forgets_is_refused(options: SinkOptions, new_topic: NewTopic) -> None:
    other = replace(options, decisions_topic=new_topic(16, cleanup_policy="compact,delete"))
    with (
        contextlib.closing(link_of(other)) as link,
        pytest.raises(ConfigError, match="=compact,delete, which deletes decisions"),
    ):
        DecisionLog(link, other, "q").create_topic()


def test_link_is_kept_while_it_is_used(
    options: SinkOptions, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = links.link_to(options)
    assert links.link_to(options) is first
    assert links.link_to(replace(options, client_id="another")) is not first
    found: list[Link] = []
    thread = threading.Thread(target=lambda: found.append(links.link_to(options)))
    thread.start()
    thread.join()
    assert found != [first]
    monkeypatch.setattr(links, "IDLE_S", 0.0)
    assert links.link_to(options) is not first


def test_last_decision_is_found_behind_those_of_others(
    broker: BrokerProcess, start: Callable[[], Run], options: SinkOptions
) -> None:
    run = start()
    run.run(0)
    log = run.log()
    found = log.last()
    assert found is not None
    with Producer(broker.bootstrap) as producer:
        for n in range(5 * decision_log.TAIL_OFFSETS):
            producer.send(
                log.tp.topic,
                Decision("another's").encode(),
                key=b"other %d" % n,
                partition=log.tp.partition,
            )
    assert log.last() == found
    assert DecisionLog(run.link, options, "nobody's").last() is None


def test_decision_is_not_missed_behind_a_transaction_that_is_open(
    broker: BrokerProcess, start: Callable[[], Run], options: SinkOptions
) -> None:
    """Readers of committed records would not come so far."""
    run = start()
    run.run(0)
    log = run.log()
    with Producer(broker.bootstrap, transactional_id=f"of another {run.query}") as other:
        other.init_transactions()
        other.begin_transaction()
        other.send(log.tp.topic, b"{}", key=b"another's", partition=log.tp.partition)
        other.flush()
        later = Decision(run.name, 1, (), ())
        with Producer(broker.bootstrap) as producer:
            producer.send(
                log.tp.topic, later.encode(), key=run.query.encode(), partition=log.tp.partition
            )
        found: list[Decision | None] = []
        reader = threading.Thread(target=lambda: found.append(log.last()))
        reader.start()
        reader.join(0.5)
        assert not found
        other.commit_transaction()
        reader.join()
    assert found == [later]


# -- dying at every step ---------------------------------------------------------------------------


class Died(BaseException):
    """The process has gone; nothing catches it."""


@contextmanager
def dying_at(step: int, patch: pytest.MonkeyPatch, *, sent: bool) -> Iterator[list[int]]:
    """Have the process die at a request that this thread makes: before it is sent, or after.

    What the producer's own thread has sent is on its way all the same.
    """
    call, here = Connection.call, threading.get_ident()
    count = [0]

    def counted(self: Connection, *arguments: object, **options: object) -> object:
        if threading.get_ident() != here:
            return call(self, *arguments, **options)  # type: ignore[arg-type]
        count[0] += 1
        if count[0] > step or (count[0] == step and not sent):
            raise Died
        answer = call(self, *arguments, **options)  # type: ignore[arg-type]
        if count[0] == step:
            raise Died
        return answer

    with patch.context() as patched:
        patched.setattr(Connection, "call", counted)
        yield count


def rounds(
    start: Callable[[], Run], patch: pytest.MonkeyPatch, steps: Iterator[tuple[int, bool]]
) -> tuple[Run, int]:
    """Write a batch for each step, which the first run of it dies at, and the next one finishes."""
    run = start()
    run.run(0)
    batch = 0
    for batch, (step, sent) in enumerate(steps, start=1):
        with dying_at(step, patch, sent=sent) as count:
            try:
                run.run(batch)
            except Died:
                pass
            else:
                assert count[0] < step, "there are no more steps"
                return run, batch
        run = start()
        run.run(batch)
    return run, batch


@SAME_PROCESS
@pytest.mark.parametrize("sent", [False, True])
def test_whoever_dies_at_whichever_step_each_batch_is_there_once(
    broker: BrokerProcess, start: Callable[[], Run], monkeypatch: pytest.MonkeyPatch, sent: bool
) -> None:
    run, last = rounds(start, monkeypatch, ((step, sent) for step in itertools.count(1)))
    assert last > 10
    assert sorted(read(broker, run.topic)) == batches(*range(last + 1))
