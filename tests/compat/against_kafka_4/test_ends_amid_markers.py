"""An end that comes while the markers of the transaction before are written, beside Kafka 4.1.

It is that of the next transaction, which a client may give up before it has sent anything of it:
Java's asks for its end all the same by version 2, and a refusal would be its own end.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import closing

import pytest

from plog.errors import ErrorCode
from plog.types import TopicPartition
from tests.compat.against_kafka.pair import Pair
from tests.handlers.wire import create_topic, fresh_name, speak
from tests.transactions.transactor import Transactor
from tests.waiting import until

PARTITIONS = 400
"""So that their markers take a while."""
MAX_ROUNDS = 10


def answers_to_ends(
    one: Transactor, partitions: Sequence[TopicPartition], *, own_epochs: bool
) -> list[ErrorCode]:
    """Return the responses to the next transaction's end, asked until the markers are written."""
    until(lambda: own_epochs or not any(one.add(*partitions)), "joined")
    for tp in partitions:
        # Kafka tells of a new topic before it takes records.
        until(lambda tp=tp: one.produce(tp).error_code == ErrorCode.NONE, "taken")
    assert one.end(commit=True) is ErrorCode.NONE
    met: list[ErrorCode] = []

    def is_done() -> bool:
        met.append(one.end(commit=False))
        return met[-1] is not ErrorCode.CONCURRENT_TRANSACTIONS

    until(is_done, "the markers")
    return met


@pytest.mark.parametrize("own_epochs", [False, True], ids=["v1", "v2"])
def test_end_amid_the_markers_is_to_come_again(pair: Pair, own_epochs: bool) -> None:
    name, topic = fresh_name(), fresh_name()  # both list them from now on
    for side in pair.sides:
        with closing(speak(side.port)) as wire:
            create_topic(wire, topic, partitions=PARTITIONS)
            partitions = [TopicPartition(topic, number) for number in range(PARTITIONS)]
            one = Transactor(wire, name, own_epochs=own_epochs).start()
            last = ErrorCode.NONE if own_epochs else ErrorCode.INVALID_TXN_STATE
            for _ in range(MAX_ROUNDS):
                met = answers_to_ends(one, partitions, own_epochs=own_epochs)
                if met != [last]:  # else the markers were written before the next request
                    break
            assert met[0] is ErrorCode.CONCURRENT_TRANSACTIONS
            assert met[-1] is last
