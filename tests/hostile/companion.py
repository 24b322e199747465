"""A member of a group that writes and commits its offsets in transactions, beside the attackers."""

from __future__ import annotations

import contextlib
import itertools
import threading
from collections.abc import Iterator

from plog.errors import ErrorCode
from plog.protocol.messages.groups import (
    HeartbeatRequest,
    JoinGroupRequest,
    JoinGroupRequestProtocol,
    SyncGroupRequest,
    SyncGroupRequestAssignment,
)
from plog.types import TopicPartition
from tests.committed import kept_records
from tests.handlers.wire import WAIT_MS, Speaker, create_topic, fetch_one, fresh_name, speak
from tests.transactions.transactor import COMMITTED, Transactor, committed_offset
from tests.waiting import until

PAUSE_S = 0.02
ABORTED = 3
"""Every so-manieth transaction is aborted."""
KIND, PROTOCOL = "consumer", "range"
SESSION_MS = 60_000


class Companion:
    """Goes on in a thread of its own until it is stopped; what it was told must be so then."""

    def __init__(self, port: int) -> None:
        self._port = port
        self._wire = speak(port, client_id="companion")
        topic, _ = create_topic(self._wire, fresh_name())
        self._at = TopicPartition(topic, 0)
        self._group = fresh_name()
        self._member = _joined(self._wire, self._group)
        self._transactor = Transactor(self._wire, fresh_name()).start()
        self.committed: list[bytes] = []
        self._offset = -1
        self._failure: BaseException | None = None
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="companion", daemon=True)
        self._thread.start()

    def _run(self) -> None:
        try:
            for number in itertools.count():
                if self._stop.wait(PAUSE_S):
                    return
                self._turn(number)
        except BaseException as failure:  # noqa: BLE001 - raised where it is waited for
            self._failure = failure

    def _turn(self, number: int) -> None:
        value = b"%d" % number
        self._transactor.send(self._at, value)
        assert self._transactor.add_offsets(self._group) is ErrorCode.NONE
        error = self._transactor.commit_offset(self._group, self._at, number, member=self._member)
        assert error is ErrorCode.NONE
        member_id, generation = self._member
        beat = HeartbeatRequest(group_id=self._group, generation_id=generation, member_id=member_id)
        assert self._wire.ask(beat, 4).error_code == ErrorCode.NONE
        commits = number % ABORTED != ABORTED - 1
        self._transactor.finish(commit=commits)
        if commits:
            self.committed.append(value)
            self._offset = number

    def go_on(self) -> None:
        """Wait until it has committed once more."""
        wanted = len(self.committed) + 1
        until(
            lambda: len(self.committed) >= wanted or self._failure is not None,
            "the next transaction is committed",
        )
        self._raise()

    def stop(self) -> None:
        """End it, and check that just what was committed is there."""
        self.close()
        assert not self._thread.is_alive()
        self._raise()
        with contextlib.closing(speak(self._port)) as wire:
            assert list(_read(wire, self._at)) == self.committed
            found = committed_offset(wire, self._group, self._at, require_stable=True)
            assert found == (ErrorCode.NONE, self._offset)

    def close(self) -> None:
        """End it, whatever has come of it."""
        self._stop.set()
        self._thread.join(2 * WAIT_MS / 1000)
        self._wire.close()

    def _raise(self) -> None:
        if self._failure is not None:
            raise self._failure


def _joined(wire: Speaker, group: str) -> tuple[str, int]:
    """Be the only member of a group; return its id and its generation."""
    member_id = ""
    for _ in range(2):  # it is told its id first
        answer = wire.ask(
            JoinGroupRequest(
                group_id=group,
                session_timeout_ms=SESSION_MS,
                rebalance_timeout_ms=SESSION_MS,
                member_id=member_id,
                protocol_type=KIND,
                protocols=[JoinGroupRequestProtocol(name=PROTOCOL, metadata=b"")],
            ),
            5,
        )
        member_id = answer.member_id
    assert answer.error_code == ErrorCode.NONE, answer
    sync = SyncGroupRequest(
        group_id=group,
        generation_id=answer.generation_id,
        member_id=member_id,
        protocol_type=KIND,
        protocol_name=PROTOCOL,
        assignments=[SyncGroupRequestAssignment(member_id=member_id, assignment=b"all")],
    )
    assert wire.ask(sync, 5).error_code == ErrorCode.NONE
    return member_id, answer.generation_id


def _read(wire: Speaker, at: TopicPartition) -> Iterator[bytes | None]:
    """Read what was committed, from the beginning to where nothing comes any more."""
    offset = 0
    while True:
        part = fetch_one(wire, at.topic, offset, isolation_level=COMMITTED)
        assert part.error_code == ErrorCode.NONE, part
        records, following = kept_records(part)
        yield from (record.value for record in records)
        if following < 0:
            return
        offset = following
