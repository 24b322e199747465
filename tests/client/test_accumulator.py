"""The producer's batches between the threads that send and the sender."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest

from plog.client.accumulator import FOREVER, Accumulator, Bounds, ProducerClosed
from plog.client.partitioner import StickyPartitioner
from tests.waiting import until


@pytest.fixture
def accumulator() -> Iterator[Accumulator]:
    bounds = Bounds(
        batch_size=16384,
        linger_s=0,
        codec=0,
        max_request_size=1 << 20,
        buffer_memory=1 << 25,
        max_block_s=1,
        delivery_timeout_s=10,
    )
    made = Accumulator(bounds, StickyPartitioner())
    yield made
    made.release()


@pytest.mark.parametrize("abort", [False, True])
def test_sender_does_not_sleep_through_a_close_that_came_before_its_look(
    accumulator: Accumulator, abort: bool
) -> None:
    # As the sender's loop does, with `close` between its first two steps.
    assert not accumulator.is_finished
    accumulator.close(abort=abort)
    accumulator.begin_look()
    accumulator.take(0.0, lambda queue: True)
    assert not accumulator.sleep_until(FOREVER)


def test_sender_does_not_sleep_through_a_topic_that_came_after_its_look_at_topics(
    accumulator: Accumulator,
) -> None:
    accumulator.begin_look()
    assert not accumulator.wanted_topics()
    with ThreadPoolExecutor(1) as pool:
        appended = pool.submit(accumulator.append, "topic", b"v", None, (), None, -1, None)
        until(accumulator.wanted_topics)
        accumulator.take(0.0, lambda queue: True)
        sleeps = accumulator.sleep_until(FOREVER)
        accumulator.close()
        assert isinstance(appended.exception(), ProducerClosed)
    assert not sleeps


def test_sender_sleeps_while_there_is_nothing_to_do(accumulator: Accumulator) -> None:
    accumulator.begin_look()
    accumulator.take(0.0, lambda queue: True)
    assert accumulator.sleep_until(FOREVER)
    accumulator.close()
    assert accumulator.wake_socket.recv(1)
