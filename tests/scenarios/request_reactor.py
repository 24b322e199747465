"""A reactor for one connection, without sockets, logs and threads.

The line decides, and this does it, as the kernels `turn`, `steps`, `produce_turn`, `fetch_turn` and
`closing` do. Its disks, its threads and Python answer on command, and its clock moves on command.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

from plog._native.request_line import RequestLine, Step
from plog._native.request_stages import TRANSITIONS, Event, Stage
from tests.scenarios.request_model import (
    ACKS_ALL,
    FETCH,
    OTHER,
    PRODUCE,
    Batch,
    FakePartition,
    Sent,
)

AFTER = {(stage, event): after for stage, event, after, _ in TRANSITIONS}
PYTHONS = ("special", "unusual")
"""Forms of batches that Python decides about."""
RESPONSE_BYTES = 200 * 1024
"""Of a response that the client does not take: two of them are too much to read on."""


class FakeReactor:
    """Runs the requests of a connection; `say` gets a line for each thing that it does."""

    def __init__(self, say: Callable[[str], None]) -> None:
        self.say = say
        self.line = RequestLine()
        self.partitions: dict[str, FakePartition] = {}
        self.socket: deque[Sent] = deque()
        self.requests: dict[int, Sent] = {}
        """Those in the line."""
        self.threads: dict[int, str] = {}
        """Requests that a thread works on: `compute` or `disk`."""
        self.asked: dict[int, Sent] = {}
        """The request that Python has."""
        self.gathered: list[int] = []
        self.answered: list[int] = []
        self.walked: set[tuple[Stage, Event]] = set()
        self.now_ms = 0
        self.unsent = 0
        self.is_full = self.is_gone = self.peer_closed = self.is_closing = self.is_dead = False
        self.is_muted = self.is_draining = self.is_stalled = self.is_short = (
            self.is_out_of_memory
        ) = False
        self._shown: dict[int, str] = {}

    # -- events from outside

    def send(self, sent: Sent) -> None:
        """The client sends a request."""
        self.socket.append(sent)
        self.serve()

    def end_round(self) -> None:
        """Write what the round has gathered."""
        self._write_gathered()
        self.serve()

    def come_back(self, number: int) -> None:
        """A thread is done with a request."""
        thread = self.threads.pop(number)
        if number not in self.requests:
            self.say(f"{number} is freed")
            return
        if self.requests[number].kind == FETCH:
            self._read(number, thread="disk")
        else:
            self._work_on(number, appends=thread == "disk")
        self._show(number)
        self.serve()

    def python_answers(self, number: int) -> None:
        """Python decides about partitions, or responds to the request that it has whole."""
        sent = self.asked.pop(number)
        if sent.kind == PRODUCE:
            self._take_outcomes(number, sent)
        elif sent.kind == FETCH:
            self._take_ranges(number, sent)
        elif self.is_dead or self.is_closing:
            self.say(f"{number} is closed")
        else:
            self._happen(number, Event.ANSWERED)
            self._respond_with(number, "by Python")
        self.serve()

    def change(self, name: str) -> None:
        """A partition has changed, and wakes the request that waits for it."""
        self.partition(name).changes += 1
        first = self._waiting()
        if first is not None and name in self.requests[first].seen:
            self._look_again(first, expired=False)

    def pass_ms(self, ms: int) -> None:
        """Time passes."""
        self.now_ms += ms
        first = self._waiting()
        if first is not None and self.requests[first].deadline_ms <= self.now_ms:
            self._look_again(first, expired=True)

    def client_leaves(self) -> None:
        """The connection breaks; the requests that have come are read all the same."""
        if self.is_closing:
            self._finish_close()
            return
        self.is_gone = self.peer_closed = True
        self.unsent = 0
        self.serve()

    def client_shuts(self) -> None:
        """The client sends no more."""
        self.peer_closed = True
        self._write_gathered()
        self.serve()

    def client_takes(self) -> None:
        """The client reads its responses."""
        self.is_stalled, self.unsent = False, 0
        if self.is_closing:
            self._finish_close()
        self.serve()

    def close(self) -> None:
        """Python closes the connection."""
        if not self.is_closing:
            self._begin_close()

    def partition(self, name: str) -> FakePartition:
        return self.partitions.setdefault(name, FakePartition())

    # -- the turn

    def serve(self) -> None:
        """Give the connection a turn."""
        if not self.is_dead and not self.is_closing:
            self._read_on()
        is_left = self.peer_closed and not self.is_closing and not self.is_dead
        if is_left and self.line.numbers and not self.line.owes_appends and not self.socket:
            self._begin_close()

    def _read_on(self) -> None:
        step = self._take_steps()
        while step != Step.REST and not self.is_dead:
            if step == Step.WRITE:
                self._write_gathered()
                step = self._take_steps()
            elif step in (Step.CHECK, Step.CHECK_ASIDE):
                step = self._look_at_last(is_aside=step == Step.CHECK_ASIDE)
            elif step == Step.READ_LATER or self.is_short:
                return
            elif self.socket:
                self._take_frame()
                step = self._take_steps()
            else:
                if self.peer_closed:
                    self._begin_close()
                return

    def _take_frame(self) -> None:
        sent = self.socket.popleft()
        number = self.line.come(sent.kind, sent.acks)
        self.requests[number] = sent
        self.say(f"read {number}")

    def _begin_close(self) -> None:
        self._write_gathered()
        self.is_closing = True
        if self.unsent == 0:
            self._finish_close()

    def _finish_close(self) -> None:
        self._write_gathered()
        if self.is_dead:
            return
        self.is_dead = self.is_closing = True
        for number in self.line.numbers:
            if number in self.threads or (
                number in self.asked and self.asked[number].kind != OTHER
            ):
                self.line.leave(number)
                del self.requests[number]
                continue
            self._happen(number, Event.CLOSED)
            self._end(number, f"{number} ends")
        self.say("closed")

    # -- the steps

    def next_step(self) -> tuple[int, int | None]:
        """Ask the line."""
        return self.line.step(
            client_left=self.is_gone,
            client_sends_no_more=self.peer_closed,
            unsent_bytes=self.unsent * RESPONSE_BYTES,
            muted=self.is_muted,
            draining=self.is_draining,
        )

    def _take_steps(self) -> Step:
        while not (self.is_closing or self.is_dead):
            step, number = self.next_step()
            done: Step | None = Step.REST
            if number is None:
                return Step(step)
            if step == Step.ANSWER:
                done = self._respond(number)
            elif step == Step.ASK:
                self._ask(number)
            elif step == Step.APPEND:
                done = self._take_in(number)
            elif step == Step.WAIT:
                self._wait(number)
            elif step == Step.CLOSE:
                self.say(f"{number} is malformed")
                self._begin_close()
            elif step == Step.DROP:
                self._happen(number, Event.CLIENT_LEFT)
                self._end(number, f"drop {number}")
            else:
                return Step(step)
            if done == Step.WRITE or self.is_full:
                return Step.WRITE
            if done is None:
                self._begin_close()
        return Step.REST

    def _look_at_last(self, *, is_aside: bool) -> Step:
        number = self.line.numbers[-1]
        sent = self.requests[number]
        if sent.kind == OTHER:
            self._happen(number, Event.FOUND_UNUSUAL)
        elif sent.kind == FETCH:
            self._look_at_fetch(number)
        elif is_aside:
            self._leave_to("compute", number)
        elif not self._look_at_produce(number):
            return Step.WRITE
        self._show(number)
        return Step.WRITE if self.is_full else self._take_steps()

    def _respond(self, number: int) -> Step | None:
        sent = self.requests[number]
        if self.is_out_of_memory:
            self.say("out of memory for a request")
            return None
        self._happen(number, Event.ANSWERED)
        if sent.kind == PRODUCE and sent.acks == 0:
            self._end(number, f"{number} is done")
            return Step.REST
        if sent.has_stale_session:
            sent.refused = {"session": "stale"}
        errors = (f"{name}={error}" for name, error in sent.refused.items())
        self._respond_with(number, " ".join(errors))
        return Step.REST

    def _respond_with(self, number: int, text: str) -> None:
        self.answered.append(number)
        self.unsent += self.is_stalled
        self._end(number, f"answer {number} {text}".rstrip())

    def _ask(self, number: int) -> None:
        sent = self.requests[number]
        if sent.kind != OTHER:
            for part, stage in enumerate(self.line.parts(number)):
                sent.batches[part].is_asked = stage == Stage.UNUSUAL
            self._happen_from(number, Stage.UNUSUAL, Event.TURN_CAME)
        else:
            self._happen(number, Event.TURN_CAME)
        self.asked[number] = sent
        sent.waits = False
        self._show(number)

    def _wait(self, number: int) -> None:
        sent = self.requests[number]
        self.line.wait(number)
        sent.waits = True
        self.say(f"{number} waits")
        if any(self.partition(name).changes != seen for name, seen in sent.seen.items()):
            self._look_again(number, expired=False)

    def _waiting(self) -> int | None:
        """Return the request that waits for its partitions or for its deadline."""
        first = self.line.numbers[0] if self.line.numbers else 0
        return first if first and self.requests[first].waits and not self.is_closing else None

    def _look_again(self, number: int, *, expired: bool) -> None:
        if self.requests[number].kind == FETCH:
            self._happen(number, Event.EXPIRED if expired else Event.CHANGED)
            self._read(number, thread="again")
        elif not self._settle(number) and expired:
            for part, stage in enumerate(self.line.parts(number)):
                if stage == Stage.APPENDED:
                    self._refuse(number, part, Event.EXPIRED)
        self._show(number)
        self.serve()

    # -- Produce

    def _look_at_produce(self, number: int) -> bool:
        """Check it; return False where the write of the round comes first."""
        batches = self.requests[number].batches
        for batch in batches if not self.requests[number].is_malformed else ():
            thread = "disk" if self.partition(batch.partition).state == "slow" else "compute"
            if batch.form in PYTHONS:
                continue
            if thread == "disk" or batch.form == "compressed":
                if self.gathered:
                    return False
                self._leave_to(thread, number)
                return True
        self._know(number)
        if Stage.CHECKED in (self.line.parts(number) or [self.line.stage(number)]):
            self._gather(number)
        return True

    def _leave_to(self, thread: str, number: int) -> None:
        self._happen(number, Event.FOUND_LONG if thread == "compute" else Event.FOUND_COLD)
        self.threads[number] = thread

    def _work_on(self, number: int, *, appends: bool) -> None:
        """Check it in another thread, and append it if that is a disk's."""
        if not self.line.parts(number):
            self._know(number)
        if appends and self.line.stage(number) != Stage.MALFORMED:
            self._conclude(number, may_append=True, in_reactor=False)

    def _know(self, number: int) -> None:
        """Its partitions are known now: each may be appended, or is Python's."""
        batches = self.requests[number].batches
        if self.requests[number].is_malformed:
            self._happen(number, Event.FOUND_MALFORMED)
            return
        self.line.know(number, len(batches))
        for part, batch in enumerate(batches):
            is_pythons = batch.form in PYTHONS
            self._happen(number, Event.FOUND_UNUSUAL if is_pythons else Event.FOUND_GOOD, part)
        if not batches:
            self._happen(number, Event.FOUND_GOOD)

    def _take_in(self, number: int) -> Step:
        checked = self._parts_in(number, Stage.CHECKED)
        if not any(self.partition(batch.partition).state == "slow" for batch in checked):
            self._gather(number)
        elif self.gathered:
            return Step.WRITE
        else:
            self._happen_from(number, Stage.CHECKED, Event.FOUND_COLD)
            self.threads[number] = "disk"
        self._show(number)
        return Step.REST

    def _gather(self, number: int) -> None:
        for batch in self._parts_in(number, Stage.CHECKED):
            if self.partition(batch.partition).state == "busy":
                self.is_full = True
                break
            batch.is_grouped = True
        self._happen_from(number, Stage.CHECKED, Event.TAKEN_IN)
        self.gathered.append(number)

    def _write_gathered(self) -> None:
        for number in self.gathered:
            before = self.line.numbers[: self.line.numbers.index(number)]
            is_next = all(
                self.line.stage(each) == Stage.GATHERED or self.line.stage(each) >= Stage.APPENDED
                for each in before
            )
            self._conclude(number, may_append=is_next, in_reactor=True)
            self._show(number)
        was_any = bool(self.gathered)
        self.gathered, self.is_full = [], False
        if was_any:
            self._take_steps()

    def _conclude(self, number: int, *, may_append: bool, in_reactor: bool) -> None:
        sent = self.requests[number]
        for part, stage in enumerate(self.line.parts(number)):
            if stage == Stage.GATHERED and sent.batches[part].is_grouped:
                self._append(number, part)
        for part, stage in enumerate(self.line.parts(number)):
            if stage not in (Stage.CHECKED, Stage.GATHERED, Stage.ON_DISK):
                continue
            name = sent.batches[part].partition
            is_slow = in_reactor and self.partition(name).state == "slow"
            follows = any(
                batch.partition == name for batch in self._parts_in(number, Stage.UNUSUAL, part)
            )
            if not may_append or is_slow or follows:
                self._happen(number, Event.NOT_WRITTEN, part)
            else:
                self._append(number, part)
        sent.deadline_ms = self.now_ms + sent.wait_ms
        if not sent.batches:
            self._happen(number, Event.WROTE)
            self._happen(number, Event.IS_SAFE)
        else:
            self._settle(number)

    def _take_outcomes(self, number: int, sent: Sent) -> None:
        """Python has appended or refused what it was asked about."""
        for part, batch in enumerate(sent.batches):
            if not batch.is_asked:
                continue
            is_written = batch.form != "unusual" and self._put(number, batch)
            if number not in self.requests:
                continue
            if is_written:
                sent.seen[batch.partition] = self.partition(batch.partition).changes
                self._happen(number, Event.WROTE, part)
            else:
                self._refuse(number, part, Event.WAS_REFUSED)
        if number not in self.requests:
            self.say(f"{number} is freed")
            return
        sent.deadline_ms = self.now_ms + sent.wait_ms
        self._settle(number)
        self._show(number)

    def _append(self, number: int, part: int) -> None:
        """Append a batch, or leave it to Python where its disk has no space."""
        batch = self.requests[number].batches[part]
        if not self._put(number, batch):
            self._happen(number, Event.NOT_WRITTEN, part)
            return
        self.requests[number].seen[batch.partition] = self.partition(batch.partition).changes
        self._happen(number, Event.WROTE, part)

    def _put(self, number: int, batch: Batch) -> bool:
        """Put a batch into its log, whichever thread does it; return False without space."""
        partition = self.partition(batch.partition)
        if partition.room == 0:
            return False
        if partition.room is not None:
            partition.room -= 1
        batch.place, batch.is_appended = len(partition.log), True
        partition.log.append(number)
        return True

    def _settle(self, number: int) -> bool:
        """See which of its batches are safe or lost; return whether all are."""
        sent = self.requests[number]
        for part, stage in enumerate(self.line.parts(number)):
            batch = sent.batches[part]
            partition = self.partition(batch.partition)
            if stage != Stage.APPENDED:
                continue
            if sent.acks != ACKS_ALL or batch.place < partition.safe:
                self._happen(number, Event.IS_SAFE, part)
            elif partition.is_lost:
                self._refuse(number, part, Event.IS_LOST)
        return Stage.APPENDED not in self.line.parts(number)

    def _refuse(self, number: int, part: int, event: Event) -> None:
        self._happen(number, event, part)
        sent = self.requests[number]
        sent.refused[sent.batches[part].partition] = event.name

    # -- Fetch

    def _look_at_fetch(self, number: int) -> None:
        sent = self.requests[number]
        if sent.is_malformed:
            self._happen(number, Event.FOUND_MALFORMED)
            return
        self.line.know(number, len(sent.batches))
        sent.deadline_ms = self.now_ms + sent.wait_ms
        self._read(number, thread="reactor")

    def _read(self, number: int, *, thread: str) -> None:
        """Read its ordinary partitions; the reactor's thread does not wait for a disk."""
        sent = self.requests[number]
        is_cold = False
        for part, batch in enumerate(sent.batches):
            partition = self.partition(batch.partition)
            sent.seen[batch.partition] = partition.changes
            is_cold |= thread == "reactor" and partition.state in ("cold", "evicted")
            if is_cold and partition.state == "cold":
                break
            is_pythons = partition.state in PYTHONS
            self._happen(number, Event.FOUND_UNUSUAL if is_pythons else Event.WAS_READ, part)
        if is_cold:
            self._leave_to("disk", number)
        else:
            self._conclude_fetch(number)

    def _conclude_fetch(self, number: int) -> None:
        """See whether there is enough, once each partition is read or refused."""
        sent = self.requests[number]
        states = {self.partition(batch.partition).state for batch in sent.batches}
        if not sent.batches:
            self._happen(number, Event.WAS_READ)
        elif Stage.UNUSUAL in self.line.parts(number) or sent.refused:
            return
        elif self.now_ms < sent.deadline_ms and states == {"empty"}:
            self._happen(number, Event.TOO_LITTLE)

    def _take_ranges(self, number: int, sent: Sent) -> None:
        """Python has read or refused what it was asked about."""
        if number not in self.requests:
            self.say(f"{number} is freed")
            return
        for part, batch in enumerate(sent.batches):
            if not batch.is_asked:
                continue
            if self.partition(batch.partition).state == "unusual":
                self._refuse(number, part, Event.WAS_REFUSED)
            else:
                self._happen(number, Event.WAS_READ, part)
        self._conclude_fetch(number)
        self._show(number)

    # -- the line

    def _happen(self, number: int, event: Event, part: int | None = None) -> None:
        parts = self.line.parts(number) or [self.line.stage(number)]
        for stage in parts if part is None else [parts[part]]:
            assert (stage, event) in AFTER, (number, Stage(stage).name, event.name)
            self.walked.add((Stage(stage), event))
        assert self.line.happen(number, event, part)

    def _happen_from(self, number: int, stage: Stage, event: Event) -> None:
        """To those of its partitions that are in a stage; to the whole where it has none."""
        if not self.line.parts(number):
            self._happen(number, event)
        for part, each in enumerate(self.line.parts(number)):
            if each == stage:
                self._happen(number, event, part)

    def _parts_in(self, number: int, stage: Stage, until: int | None = None) -> list[Batch]:
        """Return the batches in a stage, of the first `until`."""
        stages = self.line.parts(number)[:until]
        return [
            self.requests[number].batches[part] for part, each in enumerate(stages) if each == stage
        ]

    def _end(self, number: int, text: str) -> None:
        assert self.line.stage(number) == Stage.OVER
        self.line.leave(number)
        del self.requests[number]
        self.say(text)

    def _show(self, number: int) -> None:
        """Say in which stages its partitions are, unless that was the last word about it."""
        if number not in self.requests:
            return
        stages = [Stage(stage).name for stage in self.line.parts(number)]
        text = f"{number} {Stage(self.line.stage(number)).name}"
        if len(set(stages)) > 1:
            text += f": {' '.join(stages)}"
        if self._shown.get(number) != text:
            self._shown[number] = text
            self.say(text)
