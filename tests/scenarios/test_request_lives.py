"""Random lives of a connection: whatever happens in whatever order, these things hold."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from plog._native.request_line import RequestLine, Step
from plog._native.request_stages import ABORTS, Event, Stage
from tests.scenarios.request_model import ACKS_ALL, FETCH, OTHER, PRODUCE, Batch, Sent
from tests.scenarios.request_reactor import AFTER, FakeReactor
from tests.scenarios.request_twin import (
    MAX_UNSENT_BYTES,
    Client,
    Place,
    may_read_on,
    next_step,
    owes_appends,
)

PARTITIONS = "abc"
NAMES = st.sampled_from(PARTITIONS)
FORMS = st.sampled_from(["plain"] * 6 + ["compressed"] * 3 + ["special", "unusual"])
BATCHES = st.lists(st.builds(Batch, NAMES, FORMS), max_size=3)
STATES = st.sampled_from(
    ["ready", "ready", "busy", "slow", "empty", "empty", "cold", "evicted", "special", "unusual"]
)
OF_NO_REQUEST = (Step.REST, Step.READ_ON, Step.READ_LATER, Step.WRITE)
CLIENTS = [
    Client(),
    Client(has_left=True),
    Client(sends_no_more=True),
    Client(unsent_bytes=MAX_UNSENT_BYTES),
    Client(unsent_bytes=MAX_UNSENT_BYTES + 1, is_muted=True),
    Client(is_muted=True),
    Client(is_closing=True),
    Client(is_draining=True),
]


class Lives(RuleBasedStateMachine):
    """A client, three partitions, threads, Python and a clock, in any order."""

    def __init__(self) -> None:
        super().__init__()
        self.connect()

    # -- the client

    def connect(self) -> None:
        self.reactor = FakeReactor(lambda line: None)
        self.sent: list[Sent] = []

    def send(self, sent: Sent) -> None:
        self.sent.append(sent)
        self.reactor.send(sent)

    @precondition(lambda self: self.reactor.is_dead)
    @rule()
    def connect_again(self) -> None:
        self.teardown()
        self.connect()

    @precondition(lambda self: not self.reactor.peer_closed)
    @rule(
        pipelined=st.lists(
            st.tuples(BATCHES, st.sampled_from([ACKS_ALL, ACKS_ALL, 0, 1, 1])),
            min_size=1,
            max_size=5,
        )
    )
    def produce(self, pipelined: list[tuple[list[Batch], int]]) -> None:
        for batches, acks in pipelined:
            copies = [Batch(batch.partition, batch.form) for batch in batches]
            self.send(Sent(PRODUCE, copies, acks=acks, wait_ms=1000))

    @precondition(lambda self: not self.reactor.peer_closed)
    @rule(
        names=st.lists(NAMES, max_size=3), wait_ms=st.sampled_from([0, 500]), is_stale=st.booleans()
    )
    def fetch(self, names: list[str], wait_ms: int, is_stale: bool) -> None:
        batches = [Batch(name) for name in names]
        self.send(Sent(FETCH, batches, wait_ms=wait_ms, has_stale_session=is_stale))

    @precondition(lambda self: not self.reactor.peer_closed)
    @rule(is_malformed=st.sampled_from([True, False, False, False, False, False, False]))
    def malformed(self, is_malformed: bool) -> None:
        if is_malformed:
            self.send(Sent(PRODUCE, is_malformed=True))

    @precondition(lambda self: not self.reactor.peer_closed)
    @rule()
    def other(self) -> None:
        self.send(Sent(OTHER))

    @rule(stalls=st.booleans())
    def stall(self, stalls: bool) -> None:
        if stalls:
            self.reactor.is_stalled = True
        else:
            self.reactor.client_takes()

    @precondition(lambda self: self.sent)
    @rule(ends=st.sampled_from([""] * 12 + ["leave", "shut", "close"]))
    def end(self, ends: str) -> None:
        if ends == "leave":
            self.reactor.client_leaves()
        elif ends == "shut":
            self.reactor.client_shuts()
        elif ends == "close":
            self.reactor.close()

    # -- disks, threads, Python and the clock

    @rule(name=NAMES, state=STATES)
    def set_state(self, name: str, state: str) -> None:
        self.reactor.partition(name).state = state
        self.reactor.change(name)

    @rule(name=NAMES, room=st.sampled_from([None, None, 0, 1, 2]))
    def leave_space(self, name: str, room: int | None) -> None:
        self.reactor.partition(name).room = room

    @rule()
    def end_round(self) -> None:
        self.reactor.end_round()

    @precondition(lambda self: self.reactor.threads)
    @rule(data=st.data())
    def come_back(self, data: st.DataObject) -> None:
        self.reactor.come_back(data.draw(st.sampled_from(sorted(self.reactor.threads))))

    @precondition(lambda self: self.reactor.asked)
    @rule()
    def python_answers(self) -> None:
        (number,) = self.reactor.asked
        self.reactor.python_answers(number)

    @rule(name=NAMES)
    def become_safe(self, name: str) -> None:
        partition = self.reactor.partition(name)
        partition.safe = len(partition.log)
        self.reactor.change(name)

    @rule(name=NAMES, is_lost=st.booleans())
    def lose(self, name: str, is_lost: bool) -> None:
        self.reactor.partition(name).is_lost = is_lost
        self.reactor.change(name)

    @rule(ms=st.sampled_from([1, 499, 1000]))
    def pass_ms(self, ms: int) -> None:
        self.reactor.pass_ms(ms)

    # -- the broker

    @rule(memory=st.sampled_from(["enough"] * 8 + ["short", "short", "none"]))
    def have_memory(self, memory: str) -> None:
        self.reactor.is_short = memory == "short"
        self.reactor.is_out_of_memory = memory == "none"
        self.reactor.serve()

    @rule(is_muted=st.sampled_from([True, False, False]))
    def mute(self, is_muted: bool) -> None:
        self.reactor.is_muted = is_muted
        self.reactor.serve()

    # -- what holds

    @invariant()
    def responses_have_the_order_of_the_requests(self) -> None:
        assert self.reactor.answered == sorted(set(self.reactor.answered))

    @invariant()
    def batches_have_the_order_of_the_requests(self) -> None:
        for partition in self.reactor.partitions.values():
            assert partition.log == sorted(partition.log)

    @invariant()
    def no_batch_is_appended_twice(self) -> None:
        for name, partition in self.reactor.partitions.items():
            for number, times in Counter(partition.log).items():
                batches = self.sent[number - 1].batches
                assert times <= sum(batch.partition == name for batch in batches)

    @invariant()
    def stage_of_a_request_is_the_first_of_its_parts(self) -> None:
        line = self.reactor.line
        for number in line.numbers:
            parts = line.parts(number)
            assert not parts or line.stage(number) == min(parts)

    @invariant()
    def line_decides_as_its_twin(self) -> None:
        line = self.reactor.line
        queue = [
            Place(
                number,
                sent.kind,
                sent.acks,
                Stage(line.stage(number)),
                sent.waits,
                Stage.GATHERED in line.parts(number),
            )
            for number, sent in self.reactor.requests.items()
        ]
        assert [place.number for place in queue] == line.numbers
        assert line.may_read_on == may_read_on(queue)
        assert line.owes_appends == owes_appends(queue)
        for client in CLIENTS:
            step, number = line.step(
                client_left=client.has_left,
                client_sends_no_more=client.sends_no_more,
                unsent_bytes=client.unsent_bytes,
                muted=client.is_muted,
                closing=client.is_closing,
                draining=client.is_draining,
            )
            found = (Step(step), None if step in OF_NO_REQUEST else number)
            assert found == next_step(queue, client)

    @invariant()
    def requests_that_are_left_are_waited_for(self) -> None:
        reactor = self.reactor
        if reactor.is_dead or reactor.is_closing:
            return
        numbers = reactor.line.numbers
        first_waits = bool(numbers) and reactor.requests[numbers[0]].waits
        if first_waits:
            self.has_something_to_wait_for(numbers[0])
        if reactor.threads or reactor.asked or reactor.gathered or first_waits:
            return
        assert not numbers
        held_up = reactor.is_short or reactor.is_draining or reactor.is_stalled
        held_up |= reactor.is_muted
        assert held_up or not reactor.socket

    def has_something_to_wait_for(self, number: int) -> None:
        reactor = self.reactor
        sent = reactor.requests[number]
        if sent.kind == FETCH:
            states = [reactor.partition(batch.partition).state for batch in sent.batches]
            assert set(states) == {"empty"}
            assert reactor.now_ms < sent.deadline_ms
            return
        waiting = [
            (batch, reactor.partition(batch.partition))
            for batch, stage in zip(sent.batches, reactor.line.parts(number), strict=True)
            if stage == Stage.APPENDED
        ]
        assert waiting
        assert all(
            batch.place >= partition.safe and not partition.is_lost for batch, partition in waiting
        )

    def teardown(self) -> None:
        """Let everything happen that is waited for: every request comes to its end."""
        reactor = self.reactor
        self.have_memory("enough")
        self.stall(False)
        self.mute(False)
        for _ in range(4 * len(self.sent) + 4):
            self.end_round()
            for number in sorted(reactor.threads):
                reactor.come_back(number)
            for number in sorted(reactor.asked):
                reactor.python_answers(number)
            self.pass_ms(1000)
            for name in PARTITIONS:
                self.become_safe(name)
        assert not reactor.line.numbers
        assert reactor.is_dead or not reactor.socket
        if not reactor.is_dead:
            answered = [n for n, sent in enumerate(self.sent, 1) if sent.acks != 0]
            assert reactor.answered == answered


TestLives = Lives.TestCase
TestLives.settings = settings(max_examples=300, stateful_step_count=50)


@pytest.mark.skipif(ABORTS, reason="a debug build aborts")
@given(
    parts=st.integers(0, 3),
    life=st.lists(st.tuples(st.integers(0, 2), st.sampled_from(sorted({e for _, e in AFTER})))),
    part=st.integers(0, 2),
    data=st.data(),
)
@settings(max_examples=200)
def test_event_outside_the_table_changes_nothing(
    parts: int, life: list[tuple[int, Event]], part: int, data: st.DataObject
) -> None:
    line = RequestLine()
    other, number = line.come(PRODUCE), line.come(PRODUCE)
    line.know(number, parts)
    for at, event in life:
        stages = line.parts(number) or [line.stage(number)]
        at %= len(stages)
        if (after := AFTER.get((Stage(stages[at]), event))) is not None:
            assert line.happen(number, event, at if parts else None)
            stages[at] = after
        assert (line.parts(number) or [line.stage(number)]) == stages
        assert line.stage(number) == min(stages)
    part %= max(parts, 1)
    stage = stages[part] if life else Stage.CAME
    unknown = sorted(set(Event) - {e for s, e in AFTER if s == stage})
    before = line.parts(number), line.stage(number), line.step(), line.may_read_on
    event = data.draw(st.sampled_from(unknown))
    assert not line.happen(number, event, part if parts else None)
    assert (line.parts(number), line.stage(number), line.step(), line.may_read_on) == before
    assert line.happen(other, Event.FOUND_GOOD)
