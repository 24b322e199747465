"""Members of groups that tell far more of themselves than anybody needs, and stay."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager

import pytest

from plog.coordinator.member_memory import SHARE
from plog.errors import ErrorCode
from tests.coordinator.conftest import await_coordinator
from tests.coordinator.members import ByHand, Consumer
from tests.handlers.wire import speak
from tests.hostile.conftest import Besiege
from tests.hostile.watch import MIB, Siege
from tests.servers import BrokerProcess

MOST = 32 * MIB
GROWTH = MOST + 64 * MIB
"""Beside what members take: requests, and what Python keeps of memory that is free."""
NONE, TRY_AGAIN = ErrorCode.NONE, ErrorCode.COORDINATOR_NOT_AVAILABLE
STAY_MS = 30 * 60_000
EXPECTED = (
    r"needs \d+ bytes, more than group\.members\.max\.bytes allows|further members were refused"
)


@pytest.fixture
def broker(own_broker: Callable[..., BrokerProcess]) -> BrokerProcess:
    broker = own_broker(
        group_members_max_bytes=MOST,
        group_initial_rebalance_delay_ms=0,
        offsets_topic_num_partitions=1,
    )
    with closing(speak(broker.port)) as wire:
        await_coordinator(wire, "any")
    return broker


def join(broker: BrokerProcess, group: str, size: int) -> ErrorCode:
    """Join with so much metadata, and go away without leaving."""
    member = ByHand(
        broker.port,
        group,
        protocols={"range": bytes(size)},
        session_ms=STAY_MS,
        rebalance_ms=STAY_MS,
    )
    with closing(member):
        return ErrorCode(member.join(version=3).error_code)


@contextmanager
def served(broker: BrokerProcess, besiege: Besiege) -> Iterator[tuple[Siege, ByHand]]:
    """Have somebody be in a group meanwhile; afterwards others may be in theirs."""
    with besiege(broker, growth=GROWTH) as under, closing(ByHand(broker.port, "kept")) as kept:
        kept.enter()
        yield under, kept
        assert kept.beat() is NONE
        with closing(ByHand(broker.port, "late", protocols={"range": bytes(1000)})) as late:
            late.enter()
            assert late.beat() is NONE
    strange = [line for line in under.lines.grave() if not re.search(EXPECTED, line)]
    assert not strange


def test_members_that_tell_much_take_little_memory(broker: BrokerProcess, besiege: Besiege) -> None:
    told: Counter[ErrorCode] = Counter()
    with served(broker, besiege) as (_, kept):
        assert join(broker, "too large", MOST // SHARE) is ErrorCode.GROUP_MAX_SIZE_REACHED
        for number in range(200):
            told[join(broker, f"big{number}", MIB)] += 1
            assert kept.beat() is NONE
        for number in range(200):
            told[join(broker, f"less{number}", MIB // 8)] += 1
    assert set(told) == {NONE, TRY_AGAIN}
    assert told[NONE] * MIB // 8 < MOST


def test_members_with_many_topics_take_little_memory(
    broker: BrokerProcess, besiege: Besiege
) -> None:
    topics = tuple(f"t{number}" for number in range(10_000))
    told: Counter[ErrorCode] = Counter()
    with served(broker, besiege) as (_, kept):
        for number in range(200):
            with closing(Consumer(broker.port, f"c{number}", topics)) as member:
                told[ErrorCode(member.join().error_code)] += 1
            assert kept.beat() is NONE
    assert set(told) == {NONE, TRY_AGAIN}
